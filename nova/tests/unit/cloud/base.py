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
