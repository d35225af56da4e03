# SPDX-License-Identifier: Apache-2.0

"""The class that the tests share."""

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
