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

from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import full_cloud


class RebuildInCell0TestCase(full_cloud.FullCloudTestCase):
    """A server waits until a second, larger host comes."""

    def make_room(self):
        self.flags(compute_driver='fake.FakeDriver')
        self._start_compute('large')

    def rebuild(self, server, **body):
        return self.api.post_server_action(
            server['id'], {'rebuild': body},
            check_response_status=[202])

    def test_builds_under_the_same_id(self):
        server = self.bury(networks=[
            {'port': neutron_fixture.NeutronFixture.port_1['id']}])
        self.make_room()
        answer = self.rebuild(server)
        self.assertEqual(server['id'], answer['id'])
        active = self.wait_for(server, 'ACTIVE')
        self.assertEqual(server['id'], active['id'])
        for key in ('name', 'image', 'flavor', 'metadata', 'tags',
                    'OS-EXT-SRV-ATTR:hostname'):
            self.assertEqual(server[key], active[key], key)
        self.assertEqual(
            [neutron_fixture.NeutronFixture.port_1['id']],
            [port['port_id'] for port
             in self.api.get_port_interfaces(server['id'])])

    def test_buried_again_without_room(self):
        server = self.bury()
        self.rebuild(server)
        self.wait_for(server, 'PENDING')
        self.make_room()
        self.rebuild(server, imageRef=None)
        self.wait_for(server, 'ACTIVE')

    def test_refused_before_2_106(self):
        server = self.bury()
        self.speak('2.105')
        exc = self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            server['id'], {'rebuild': {'imageRef': server['image']['id']}})
        self.assertEqual(409, exc.response.status_code)
