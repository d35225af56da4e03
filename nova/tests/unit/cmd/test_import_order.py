# SPDX-License-Identifier: Apache-2.0

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
