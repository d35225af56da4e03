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

from unittest import mock

from oslo_utils.fixture import uuidsentinel as uuids

from nova.network import neutron
from nova import objects
from nova import test


class KnownNetworksTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.api = neutron.API()
        for name, answer in (
                ('has_extended_resource_request_extension', True),
                ('_get_port_vnic_info', (
                    'normal', None, uuids.of_the_port, None, None, None)),
                ('_get_physnet_tunneled_info', ('new', False))):
            patcher = mock.patch.object(
                self.api, name, return_value=answer)
            self.asked = patcher.start()
            self.addCleanup(patcher.stop)
        patcher = mock.patch.object(neutron, 'get_client')
        patcher.start()
        self.addCleanup(patcher.stop)

    def ask(self, metadata, *networks):
        requested = objects.NetworkRequestList(objects=[
            objects.NetworkRequest(**network) for network in networks])
        requested.metadata = metadata
        return self.api.create_resource_requests('context', requested)

    def test_known(self):
        known = objects.NetworkMetadata(physnets={'old'}, tunneled=True)
        metadata, resources, level = self.ask(
            known, {'network_id': uuids.one}, {'network_id': uuids.two})
        self.asked.assert_not_called()
        self.assertIs(known, metadata)
        self.assertEqual([], resources)
        self.assertIsInstance(level, objects.RequestLevelParams)

    def test_not_known(self):
        metadata, _resources, _level = self.ask(
            None, {'network_id': uuids.one})
        self.asked.assert_called_once_with('context', mock.ANY, uuids.one)
        self.assertEqual({'new'}, metadata.physnets)

    def test_port_can_have_come_to_ask_for_more(self):
        self.ask(objects.NetworkMetadata(physnets={'old'}, tunneled=False),
                 {'network_id': uuids.one}, {'port_id': uuids.port})
        self.assertEqual(
            [uuids.one, uuids.of_the_port],
            [call.args[2] for call in self.asked.call_args_list])

    def test_no_networks(self):
        self.assertEqual((None, [], None), self.api.create_resource_requests(
            'context', None))
