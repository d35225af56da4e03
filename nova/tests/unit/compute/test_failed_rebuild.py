# SPDX-License-Identifier: Apache-2.0

"""What a rebuild that fails on the host of its server leaves in Placement."""

from unittest import mock

from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import resource_tracker
from nova import objects
from nova import test


class AllocationsTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.client = mock.Mock()
        self.tracker = resource_tracker.ResourceTracker(
            'here', mock.Mock(), self.client)
        self.tracker.compute_nodes = {
            'node': objects.ComputeNode(uuid=uuids.node)}
        self.remove = (
            self.client.remove_provider_tree_from_instance_allocation)

    def delete(self, node_type, host='here', node='node'):
        instance = objects.Instance(uuid=uuids.server, host=host, node=node)
        self.tracker.delete_allocation_for_evacuated_instance(
            mock.sentinel.context, instance, 'node', node_type=node_type)

    def test_server_that_has_not_moved(self):
        self.delete('destination')
        self.remove.assert_not_called()

    def test_evacuation_to_this_host(self):
        self.delete('destination', host='there')
        self.remove.assert_called_once_with(
            mock.sentinel.context, uuids.server, uuids.node)

    def test_evacuation_to_another_node_of_this_host(self):
        self.delete('destination', node='other')
        self.remove.assert_called_once()

    def test_evacuation_from_this_host(self):
        self.delete('source')
        self.remove.assert_called_once()
