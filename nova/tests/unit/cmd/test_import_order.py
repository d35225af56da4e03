#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

import subprocess
import sys

from nova import test


class ImportOrderTestCase(test.NoDBTestCase):
    """Each command imports Nova in an order of its own."""

    def assertStarts(self, name):
        # Here the modules are there already, in the order of the tests.
        found = subprocess.run(
            [sys.executable, '-c', 'import nova.cmd.%s' % name],
            capture_output=True, text=True)
        self.assertEqual(0, found.returncode, found.stderr)

    def test_status(self):
        self.assertStarts('status')

    def test_conductor(self):
        self.assertStarts('conductor')

    def test_scheduler(self):
        self.assertStarts('scheduler')

    def test_compute(self):
        self.assertStarts('compute')
