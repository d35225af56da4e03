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

"""What the tests share."""

import json
from unittest import mock

import testtools

from osc_pending.tests import fakes


class TestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        # Nobody waits for a status here.
        patcher = mock.patch('time.sleep')
        self.sleep = patcher.start()
        self.addCleanup(patcher.stop)

    def use_cloud(self, **options):
        """Use a cloud until the end of the test (fakes.Cloud)."""
        self.cloud = self.useFixture(fakes.Cloud(**options))
        return self.cloud

    def run_client(self, *words, code=0):
        """Run the client, and check its exit code.

        :returns: what it wrote to both streams
        """
        actual, out, err = self.cloud.run(*words)
        self.assertEqual(code, actual, out + err)
        return out, err

    def read(self, *words, code=0):
        """Run a command and return what it gives as JSON, and its errors."""
        out, err = self.run_client(*words, '-f', 'json', code=code)
        return json.loads(out), err
