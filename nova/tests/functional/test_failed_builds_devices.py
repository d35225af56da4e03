# SPDX-License-Identifier: Apache-2.0

import itertools
from unittest import mock

import fixtures
import os_traits
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import rebuild_in_cell0
from nova import context as nova_context
from nova import crypto
from nova import exception
from nova import objects
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.functional import failed_builds_base
from nova.tests.functional.libvirt import test_vtpm
from nova.virt import driver as virt_driver
from nova.virt import fake
from nova.virt.libvirt import blockinfo
from nova import vtpm

IMAGE = glance_fixture.GlanceFixture.image1['id']
VOLUME = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL

INSTANCE = (
    'root_device_name', 'default_ephemeral_device', 'default_swap_device')
MAPPING = ('source_type', 'destination_type', 'guest_format', 'boot_index',
           'volume_size', 'device_name', 'disk_bus', 'device_type')


def name_as_libvirt(_driver, instance, _root, *lists):
    """Do what the driver of libvirt does."""
    bdms = list(itertools.chain(*lists))
    for bdm in bdms:
        bdm.device_name = None
    blockinfo.default_device_names(
        'kvm', nova_context.get_admin_context(), instance,
        virt_driver.get_block_device_info(instance, bdms),
        instance.image_meta)


class FailedBuildsDevicesTestCase(failed_builds_base.FailedBuildsBase):
    """What a host has filled in does not outlive its build."""

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(
            fake.FakeDriver, 'default_device_names_for_instance',
            name_as_libvirt))
        self.large = self.make_flavor(ephemeral=2000, swap=128)

    def make_flavor(self, ephemeral=0, swap=0):
        return self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=ephemeral, swap=swap)

    def waits(self, **server):
        """Let a build fail; return what is stored of a server that waits."""
        self.fill('bad')
        self.server = self.create_waiting(**server)
        before = self.devices()
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.placement.delete('/allocations/%s' % uuids.filler)
        self.failed(**server)
        return before

    def fails(self):
        """Let the server wait after its build has failed."""
        self.fill('bad')
        self.rebuild(self.server)
        self.wait_for(self.server, 'PENDING')
        self.placement.delete('/allocations/%s' % uuids.filler)

    def devices(self):
        stored = self.stored(self.server)
        instance, = stored['instances']
        return ([instance[name] for name in INSTANCE], [
            [row[name] for name in MAPPING] for row in sorted(
                stored['block_device_mapping'], key=lambda row: row['id'])])

    def is_built(self, **body):
        """Rebuild the server; return its disks, by kind, size and bus."""
        self.rebuild(self.server, **body)
        self.wait_for(self.server, 'ACTIVE')
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            return sorted(
                (bdm.guest_format or bdm.source_type, bdm.volume_size,
                 bdm.disk_bus) for bdm
                in objects.BlockDeviceMappingList.get_by_instance_uuid(
                    cctxt, self.server['id']))

    def test_as_it_was(self):
        before = self.waits()
        self.fails()
        self.assertEqual(before, self.devices())
        self.assertIsNone(self.admin_api.get_server(self.server['id'])[
            'OS-EXT-SRV-ATTR:root_device_name'])

    def test_what_the_owner_has_named(self):
        before = self.waits(block_device_mapping_v2=[
            {'boot_index': 0, 'source_type': 'image', 'uuid': IMAGE,
             'destination_type': 'local', 'device_name': '/dev/sdq',
             'disk_bus': 'scsi'},
            {'boot_index': -1, 'source_type': 'blank', 'volume_size': 1999,
             'destination_type': 'local', 'device_name': '/dev/vdr'},
            {'boot_index': -1, 'source_type': 'volume', 'uuid': VOLUME,
             'destination_type': 'volume', 'disk_bus': 'usb'}])
        self.fails()
        self.assertEqual(before, self.devices())
        self.assertLessEqual({'/dev/sdq', '/dev/vdr'},
                             {row[-3] for row in before[1]})
        self.assertLessEqual({'scsi', 'usb'}, {row[-2] for row in before[1]})

    def test_larger_flavor(self):
        self.waits()
        self.fails()
        self.assertEqual(
            [('blank', 2001, 'virtio'), ('image', None, 'virtio'),
             ('swap', 512, 'virtio')],
            self.is_built(flavorRef=self.make_flavor(2001, 512)))

    def test_flavor_without_them(self):
        self.waits()
        self.fails()
        self.assertEqual([('image', None, 'virtio')],
                         self.is_built(flavorRef=self.make_flavor()))

    def test_other_image(self):
        self.waits()
        self.fails()
        image = self.glance.create(None, {
            'name': 'scsi', 'status': 'active', 'disk_format': 'raw',
            'container_format': 'raw', 'size': 1, 'min_ram': 0, 'min_disk': 0,
            'properties': {
                'hw_architecture': 'x86_64', 'hw_disk_bus': 'scsi',
                'hw_scsi_model': 'virtio-scsi'}})['id']
        self.assertEqual(
            [('blank', 2000, 'scsi'), ('image', None, 'scsi'),
             ('swap', 128, 'scsi')], self.is_built(imageRef=image))


class FailedBuildsSecretsTestCase(failed_builds_base.FailedBuildsBase):
    """What a host has put into the key manager does not outlive its build."""

    SECURITY = 'user'

    def setUp(self):
        self.flags(backend='%s.%s' % (
            test_vtpm.__name__, test_vtpm.FakeKeyManager.__name__),
            group='key_manager')
        super().setUp()
        # What the service user of Nova would have.
        self.useFixture(fixtures.MockPatchObject(
            nova_context, 'get_nova_service_user_context',
            lambda: nova_context.RequestContext(user_id='nova')))
        self.secrets = crypto._get_key_manager()._passphrases
        self.large = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000)
        self.admin_api.post_extra_spec(self.large, {'extra_specs': {
            'hw:ephemeral_encryption': 'true', 'hw:tpm_version': '2.0',
            'hw:tpm_secret_security': self.SECURITY}})
        self._set_provider_traits(self.provider('bad'), [
            *self._get_provider_traits(self.provider('bad')),
            os_traits.COMPUTE_EPHEMERAL_ENCRYPTION,
            os_traits.COMPUTE_SECURITY_TPM_2_0,
            os_traits.COMPUTE_SECURITY_TPM_TIS,
            'COMPUTE_SECURITY_TPM_SECRET_SECURITY_' + self.SECURITY.upper()])
        self.fill('bad')
        self.server = self.create_waiting()
        self.placement.delete('/allocations/%s' % uuids.filler)
        self.before = self.stored_secrets()
        self.made = []

    def spawn(self, context, instance, *args, **kwargs):
        """Do what the driver of libvirt does, and fail."""
        vtpm.get_or_create_secret(context, instance)
        instance.system_metadata['clean_attempts'] = '1'
        instance.save()
        for bdm in objects.BlockDeviceMappingList.get_by_instance_uuid(
                context, instance.uuid):
            self.assertTrue(bdm.encrypted)
            self.assertIsNone(bdm.encryption_secret_uuid)
            bdm.encryption_format = 'luks'
            bdm.encryption_secret_uuid, _secret = (
                crypto.create_encryption_secret(context, instance, bdm))
            bdm.save()
        self.made.append(set(self.secrets))
        raise exception.BuildAbortException(
            instance_uuid=instance.uuid, reason='no such disk')

    def stored_secrets(self):
        stored = self.stored(self.server)
        return ([(row['encrypted'], row['encryption_format'],
                  row['encryption_secret_uuid'], row['encryption_options'])
                 for row in stored['block_device_mapping']],
                {row['key'] for row in stored['instance_system_metadata']})

    def fails(self, meanwhile=None):
        with mock.patch(failed_builds_base.SPAWN, self.spawn):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ERROR')
        self.assertEqual(3, len(self.secrets))
        if meanwhile:
            meanwhile()
        self.fill('bad')
        self.rebuild(self.server)
        self.wait_for(self.server, 'PENDING')
        self.placement.delete('/allocations/%s' % uuids.filler)

    def test_nothing_is_left(self):
        self.fails()
        self.assertEqual(self.before, self.stored_secrets())
        self.assertEqual({}, self.secrets)

    def test_api_dies(self):
        def die():
            self.stopped(rebuild_in_cell0, '_delete_what_was_made',
                         lambda: self.rebuild(self.server))
            self.assertEqual((1, 0), self.recover())
            self.assertEqual(('ERROR', None), self.state())
            self.assertEqual(3, len(self.secrets))

        self.fails(die)
        self.assertEqual(self.before, self.stored_secrets())
        self.assertEqual({}, self.secrets)

    def test_key_manager_refuses(self):
        with mock.patch.object(test_vtpm.FakeKeyManager, 'delete',
                               side_effect=exception.Forbidden()):
            self.fails()
        self.assertEqual(self.before, self.stored_secrets())
        self.assertEqual(3, len(self.secrets))
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')


class FailedBuildsDeploymentSecretsTestCase(FailedBuildsSecretsTestCase):
    """The same with a secret of the TPM that belongs to Nova."""

    SECURITY = 'deployment'
