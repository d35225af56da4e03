# SPDX-License-Identifier: Apache-2.0

"""The block devices of a server that waited are those it was to have."""

from unittest import mock

from nova import objects
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.functional import rebuild_twins

IMAGE = glance_fixture.GlanceFixture.image1['id']
OTHER_IMAGE = glance_fixture.GlanceFixture.image2['id']
BOOTABLE = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL
SHARED = cinder_fixture.CinderFixture.MULTIATTACH_VOL
VOLUME = '77777777-0000-4000-8000-000000000001'
OTHER_VOLUME = '77777777-0000-4000-8000-000000000002'
SNAPSHOT = '77777777-0000-4000-8000-000000000004'
LUKS_IMAGE = glance_fixture.GlanceFixture.eph_encryption_luks['id']


def volume(source, uuid=None, **device):
    """Return a device of a create request that ends in a volume."""
    device = {'source_type': source, 'destination_type': 'volume',
              'boot_index': 0, **device}
    if uuid:
        device['uuid'] = uuid
    if source == 'volume':
        return device
    return {'volume_size': 1, **device}


class DevicesTestCase(rebuild_twins.TwinsTestCase):

    def setUp(self):
        super().setUp()
        self.cinder.volume_snapshots[SNAPSHOT] = {
            'id': SNAPSHOT, 'volume_id': BOOTABLE, 'size': 2,
            'display_name': 'snapshot', 'display_description': ''}

    def boot(self, *devices, image='', **server):
        return self.request(imageRef=image,
                            block_device_mapping_v2=list(devices), **server)

    def volumes(self, server):
        return [(attached['id'], attached['delete_on_termination'])
                for attached in server['os-extended-volumes:volumes_attached']]

    def bootable(self, *volume_ids):
        """Let volumes look as if they had been made from an image."""
        for volume_id in volume_ids:
            self.cinder.volumes[volume_id] = {
                'id': volume_id, 'display_name': 'bootable', 'size': 1,
                'status': 'available', 'attach_status': 'detached',
                'multiattach': False, 'availability_zone': 'nova',
                'bootable': True,
                'volume_image_metadata': {'image_id': IMAGE}}

    def test_image_on_the_host(self):
        self.kept(self.boot(
            {'source_type': 'image', 'destination_type': 'local',
             'boot_index': 0, 'uuid': IMAGE, 'delete_on_termination': True},
            image=IMAGE))

    def test_existing_volume(self):
        self.bootable(VOLUME, OTHER_VOLUME)
        server, _twin = self.kept(
            self.boot(volume('volume', VOLUME, delete_on_termination=True)),
            once={VOLUME: OTHER_VOLUME}, times=2)
        self.assertEqual([(VOLUME, True)], self.volumes(server))
        self.assertEqual(1, len(self.cinder.volume_to_attachment[VOLUME]))

    def test_existing_volume_is_kept_when_the_server_is_deleted(self):
        self.bootable(VOLUME, OTHER_VOLUME)
        server, _twin = self.kept(
            self.boot(volume('volume', VOLUME)),
            once={VOLUME: OTHER_VOLUME})
        self.assertEqual([(VOLUME, False)], self.volumes(server))

    def test_image_to_volume(self):
        server, _twin = self.kept(self.boot(volume(
            'image', IMAGE, volume_size=3, delete_on_termination=True)),
            times=2)
        [(volume_id, deleted)] = self.volumes(server)
        self.assertTrue(deleted)
        self.assertEqual(3, self.cinder.volumes[volume_id]['size'])

    def test_another_image_to_volume(self):
        self.kept(self.boot(volume('image', IMAGE)),
                  once={IMAGE: OTHER_IMAGE}, imageRef=OTHER_IMAGE)

    def test_another_image(self):
        self.kept(self.request(imageRef=IMAGE), once={IMAGE: OTHER_IMAGE},
                  times=2, imageRef=OTHER_IMAGE)

    def test_snapshot_to_volume(self):
        server, _twin = self.kept(self.boot(volume(
            'snapshot', SNAPSHOT, volume_size=2)), times=2)
        [(volume_id, _deleted)] = self.volumes(server)
        self.assertEqual(2, self.cinder.volumes[volume_id]['size'])

    def test_blank_root(self):
        self.kept(self.boot(volume('blank')))

    def test_several_with_type_tag_and_bus(self):
        self.bootable(VOLUME, OTHER_VOLUME)
        server, _twin = self.kept(
            self.boot(
                volume('image', IMAGE, volume_type='lvm-1', tag='root',
                       disk_bus='virtio', device_type='disk'),
                volume('volume', VOLUME, boot_index=1, tag='data'),
                volume('blank', boot_index=-1, volume_size=5, tag='scratch',
                       delete_on_termination=True),
                volume('snapshot', SNAPSHOT, boot_index=None)),
            once={VOLUME: OTHER_VOLUME}, times=2)
        self.assertEqual(4, len(self.volumes(server)))
        self.assertIn((VOLUME, False), self.volumes(server))

    def test_order_that_no_database_promises(self):
        tags = ['root', 'one', 'two', 'three']
        server = self.create_at(None, self.api, self.boot(*(
            volume('blank', boot_index=0 if tag == 'root' else -1, tag=tag)
            for tag in tags)), 'PENDING')
        get = objects.BlockDeviceMappingList.get_by_instance_uuid

        def backwards(context, instance_uuid):
            found = get(context, instance_uuid)
            found.objects.reverse()
            return found

        with mock.patch.object(objects.BlockDeviceMappingList,
                               'get_by_instance_uuid', backwards), \
                mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                           'rebuild_instance_in_cell0') as cast:
            self.rebuild(server)
        *_others, devices, _tags = cast.call_args.args
        self.assertEqual(
            tags, [device.tag for device in devices if device.is_volume])

    def test_ephemeral_disks_and_swap(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000, swap=512)
        self.kept(self.request(flavor, imageRef=IMAGE))

    def test_ephemeral_disks_and_swap_that_were_asked_for(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000, swap=512)
        local = {'source_type': 'blank', 'destination_type': 'local',
                 'boot_index': -1}
        request = self.boot(
            {'source_type': 'image', 'destination_type': 'local',
             'boot_index': 0, 'uuid': IMAGE},
            dict(local, volume_size=1500, guest_format='ext4'),
            dict(local, volume_size=256, guest_format='swap'), image=IMAGE)
        request['server']['flavorRef'] = flavor
        self.kept(request, times=2)

    def test_volume_that_others_are_attached_to(self):
        self.wait_for(self.api.post_server(self.boot(
            {'source_type': 'image', 'destination_type': 'local',
             'boot_index': 0, 'uuid': IMAGE},
            volume('volume', SHARED, boot_index=-1), image=IMAGE,
            flavorRef=self.small)), 'ACTIVE')
        server, _twin = self.kept(self.boot(
            {'source_type': 'image', 'destination_type': 'local',
             'boot_index': 0, 'uuid': IMAGE},
            volume('volume', SHARED, boot_index=-1), image=IMAGE))
        self.assertEqual([(SHARED, False)], self.volumes(server))
        self.assertEqual(3, len(self.cinder.volume_to_attachment[SHARED]))

    def image_with_devices(self, *devices, **properties):
        image = dict(glance_fixture.GlanceFixture.image1)
        del image['id']
        image['properties'] = dict(
            image['properties'], bdm_v2=True,
            block_device_mapping=list(devices), **properties)
        return self.glance.create(None, image)['id']

    def test_image_that_defines_its_root(self):
        image = self.image_with_devices(volume(
            'snapshot', snapshot_id=SNAPSHOT, volume_size=2,
            delete_on_termination=True), root_device_name='vda')
        server, _twin = self.kept(self.request(imageRef=image), times=2)
        self.assertEqual(1, len(self.volumes(server)))

    def test_image_that_defines_a_disk(self):
        image = self.image_with_devices(volume(
            'snapshot', snapshot_id=SNAPSHOT, boot_index=-1,
            delete_on_termination=False))
        server, _twin = self.kept(self.request(imageRef=image))
        self.assertEqual(1, len(self.volumes(server)))

    def test_image_in_a_volume_and_another_as_that_of_the_server(self):
        self.kept(self.boot(volume('image', OTHER_IMAGE), image=IMAGE))

    def make_encrypting_room(self):
        self.flags(compute_driver='fake.EphEncryptionDriverLUKS')
        self._start_compute('roomy')

    def test_encryption_of_local_disks(self):
        self.kept(self.request(self.small, imageRef=LUKS_IMAGE),
                  room=self.make_encrypting_room)

    def test_encryption_that_another_image_asks_for(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=8000, disk=1, ephemeral=0)
        # Both must fit on the host.
        self.flags(initial_ram_allocation_ratio=3.0)
        self.kept(self.request(flavor, imageRef=IMAGE),
                  once={IMAGE: LUKS_IMAGE}, room=self.make_encrypting_room,
                  imageRef=LUKS_IMAGE)

    def test_encryption_that_another_image_does_not_ask_for(self):
        self.kept(self.request(self.small, imageRef=LUKS_IMAGE),
                  once={LUKS_IMAGE: IMAGE}, imageRef=IMAGE)

    def test_key_that_encrypts_an_image_is_not_asked_for_in_a_volume(self):
        image = self.image_with_devices(cinder_encryption_key_id=VOLUME)
        self.kept(self.boot(volume('image', image)))
