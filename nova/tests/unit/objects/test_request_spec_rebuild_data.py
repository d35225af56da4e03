# SPDX-License-Identifier: Apache-2.0

"""What a request spec keeps for the rebuild of an unbuilt server."""

from oslo_utils.fixture import uuidsentinel as uuids

from nova import context as nova_context
from nova import objects
from nova.objects import request_spec
from nova import test
from nova.tests.unit import fake_request_spec


class RebuildDataTestCase(test.NoDBTestCase):

    def setUp(self):
        super().setUp()
        self.spec = fake_request_spec.fake_spec_obj()
        self.spec.instance_group = None
        self.server = objects.Instance(root_device_name='/dev/vda')
        self.mappings = [objects.BlockDeviceMapping(disk_bus='virtio')]

    def stored(self):
        """Return the request spec as it is loaded after it was saved."""
        row = dict(fake_request_spec.fake_db_spec(),
                   spec=self.spec._get_update_primitives()['spec'])
        return objects.RequestSpec._from_db_object(
            nova_context.get_admin_context(), objects.RequestSpec(), row)

    def test_nothing_is_known(self):
        self.assertIsNone(self.stored().rebuild_data)

    def test_it_is_stored_beside_the_fields(self):
        self.spec.rebuild_data = {'personality': True}
        stored = self.stored()
        self.assertEqual({'personality': True}, stored.rebuild_data)
        self.assertEqual(self.spec.flavor.flavorid, stored.flavor.flavorid)

    def test_request_of_the_create(self):
        networks = objects.NetworkRequestList(
            objects=[objects.NetworkRequest(network_id=uuids.network)])
        self.spec.requested_destination = objects.Destination(host='here')
        self.spec.rebuild_data = {'networks': networks.obj_to_primitive()}
        self.spec.keep_request(objects.BuildRequest(
            instance=self.server, block_device_mappings=(
                objects.BlockDeviceMappingList(objects=self.mappings))))
        stored = self.stored()
        stored.load_request()
        self.assertEqual('here', stored.requested_destination.host)
        self.assertEqual([uuids.network], [
            network.network_id for network in stored.requested_networks])

    def test_devices(self):
        """What a host has filled in is taken back."""
        packed = request_spec.pack_devices(self.server, self.mappings)
        self.server.default_swap_device = '/dev/vdb'
        self.mappings[0].device_name = '/dev/vdc'
        self.mappings[0].disk_bus = 'scsi'
        self.assertTrue(request_spec.restore_devices(
            packed, self.server, self.mappings))
        self.assertEqual(('/dev/vda', None), (
            self.server.root_device_name, self.server.default_swap_device))
        self.assertEqual((None, 'virtio'), (
            self.mappings[0].device_name, self.mappings[0].disk_bus))

    def test_other_devices(self):
        packed = request_spec.pack_devices(self.server, self.mappings)
        self.assertFalse(request_spec.restore_devices(
            packed, self.server, self.mappings * 2))
