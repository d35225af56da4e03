# SPDX-License-Identifier: Apache-2.0

"""A cloud of which nothing is there but its settings."""

import pathlib
from unittest import mock

import fixtures
import testtools

from tools.cloud import databases
from tools.cloud import settings


class CloudTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.cloud = settings.Settings(
            state=self.state,
            databases=databases.Databases(
                'mysql+pymysql://root@127.0.0.1:3306', 'cloud_1_'),
            bus=mock.Mock(url='rabbit://guest:guest@127.0.0.1:5672/cloud_1',
                          shared=False),
            ports={api: 20000 + number
                   for number, api in enumerate(settings.APIS)})
