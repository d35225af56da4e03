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

from oslo_upgradecheck import upgradecheck

from nova.api.openstack import wsgi_app
from nova.cmd import status
from nova.tests.functional import full_cloud


class UpgradeCheckPendingTestCase(full_cloud.FullCloudTestCase):
    """The check on the records that the services make of themselves."""

    def setUp(self):
        super().setUp()
        self.flags(host=self.conductor.host)
        wsgi_app._setup_service(self.conductor.host, 'osapi_compute')
        # What the fixture of the API recorded, on a host of its own.
        self.forget(self.check()[1])

    def check(self):
        result = status.UpgradeCommands()._check_use_pending_state()
        return result.code, result.details

    def forget(self, details):
        """Delete the first record that is to be looked up, as details say.

        The REST API deletes the record of an API although it lists none.
        """
        by_hand = details.split('Look up by hand: nova-osapi_compute')[1]
        record = by_hand.split('(record ')[1].split(')')[0]
        self.admin_api.api_delete('/os-services/' + record)

    def test_services_of_this_host(self):
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.SUCCESS, code, details)

    def test_a_host_that_is_gone(self):
        wsgi_app._setup_service('gone', 'osapi_compute')
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('nova-osapi_compute on gone', details)
        self.forget(details)
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])

    def test_a_downgrade_that_is_not_finished(self):
        self.bury()
        self.assertEqual(upgradecheck.Code.SUCCESS, self.check()[0])
        self.flags(use_pending_state=False)
        code, details = self.check()
        self.assertEqual(upgradecheck.Code.WARNING, code)
        self.assertIn('configuration: 1. ', details)
