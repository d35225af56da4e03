# SPDX-License-Identifier: Apache-2.0

"""The rebuild of a server whose root disk is a volume, with another image."""

from tempest.api.compute import base as compute_base
from tempest.common import waiters
from tempest import config
from tempest.lib import decorators
from tempest.lib import exceptions

from nova_pending_tempest_plugin import base

CONF = config.CONF


def root_volume(server):
    """Return the ID of the one volume of a server."""
    volume, = server['os-extended-volumes:volumes_attached']
    return volume['id']


class NeedsReimage:
    """Leaves a class out on a cloud that cannot re-image a volume."""

    volume_min_microversion = '3.68'

    @classmethod
    def skip_checks(cls):
        super().skip_checks()
        if not CONF.service_available.cinder:
            raise cls.skipException('Cinder is not available')


class RebuildVolumeBackedTest(NeedsReimage, compute_base.BaseV2ComputeTest):
    """A server that runs, from microversion 2.93 on."""

    credentials = ['primary', 'project_reader', 'alt', 'admin']
    create_default_network = True
    min_microversion = '2.93'

    def setUp(self):
        super().setUp()
        server = self.create_test_server(
            volume_backed=True, wait_until='ACTIVE')['id']
        self.addCleanup(self.delete_server, server)
        self.server = self.servers_client.show_server(server)['server']
        self.volume = root_volume(self.server)

    def _image_of_volume(self):
        volume = self.volumes_client.show_volume(self.volume)['volume']
        self.assertEqual('in-use', volume['status'])
        return volume['volume_image_metadata']['image_id']

    def _assert_rebuilt(self):
        waiters.wait_for_server_status(
            self.servers_client, self.server['id'], 'ACTIVE')
        rebuilt = self.servers_client.show_server(self.server['id'])['server']
        self.assertEqual(self.volume, root_volume(rebuilt))
        self.assertEqual(self.server['addresses'], rebuilt['addresses'])
        self.assertEqual(self.image_ref_alt, self._image_of_volume())

    @decorators.idempotent_id('35f65d77-8779-489a-a7d5-2b53ae8b03a0')
    def test_rebuild(self):
        self.assertEqual(self.image_ref, self._image_of_volume())
        self.servers_client.rebuild_server(
            self.server['id'], self.image_ref_alt)
        self._assert_rebuilt()

    @decorators.idempotent_id('7fa4810f-799e-469d-8d6a-e2d516fe9990')
    def test_rebuild_as_admin(self):
        self.os_admin.servers_client.rebuild_server(
            self.server['id'], self.image_ref_alt)
        self._assert_rebuilt()

    @decorators.idempotent_id('de05e46c-5729-44a5-aaf4-90fea5d7fe52')
    def test_rebuild_as_others_is_refused(self):
        for manager, error in (
                (self.os_project_reader, exceptions.Forbidden),
                (self.os_alt, exceptions.NotFound)):
            self.assertRaises(
                error, manager.servers_client.rebuild_server,
                self.server['id'], self.image_ref_alt)
        self.assertEqual(self.server, self.servers_client.show_server(
            self.server['id'])['server'])
        self.assertEqual(self.image_ref, self._image_of_volume())

    @decorators.idempotent_id('181fe968-4a60-45e8-9567-3f9dd8d55eb8')
    def test_rebuild_before_2_93_is_refused(self):
        with base.microversion('2.92'):
            self.assertRaises(
                exceptions.BadRequest, self.servers_client.rebuild_server,
                self.server['id'], self.image_ref_alt)
        self.assertEqual('ACTIVE', self.servers_client.show_server(
            self.server['id'])['server']['status'])
        self.assertEqual(self.image_ref, self._image_of_volume())


class RebuildVolumeBackedInCell0Test(NeedsReimage, base.BasePendingTest):
    """A server that waits for a host with a volume that was there before."""

    feature = 'rebuild'

    def setUp(self):
        super().setUp()
        self.volume = self.create_volume(image_ref=self.image_ref)['id']
        self.server = self.create_waiting_server(
            image_id='', block_device_mapping_v2=[{
                'boot_index': 0, 'uuid': self.volume,
                'source_type': 'volume', 'destination_type': 'volume',
                'delete_on_termination': False}])['id']
        self.addCleanup(self.delete_server, self.server)

    def _status_of_volume(self):
        return self.volumes_client.show_volume(
            self.volume)['volume']['status']

    @decorators.idempotent_id('57d1781a-9b5e-44cf-bc5b-d12ab2efd17d')
    def test_rebuild(self):
        self.assertEqual('reserved', self._status_of_volume())
        self.give_room()
        self.rebuild(self.server)
        built = self.wait_until(self.server, 'ACTIVE')
        self.assertEqual(self.volume, root_volume(built))
        self.assertEqual('in-use', self._status_of_volume())

    @decorators.idempotent_id('84c87e93-b1e3-4b04-a529-11097f81a080')
    def test_rebuild_with_another_image_is_refused(self):
        before = self.servers_client.show_server(self.server)['server']
        self.give_room()
        self.assertRaises(exceptions.BadRequest, self.rebuild, self.server,
                          imageRef=self.image_ref_alt)
        self.assertEqual(before, self.servers_client.show_server(
            self.server)['server'])
        volume = self.volumes_client.show_volume(self.volume)['volume']
        self.assertEqual(
            ('reserved', self.image_ref),
            (volume['status'], volume['volume_image_metadata']['image_id']))

    @decorators.idempotent_id('a8dea998-f0bb-4223-953d-2e0f28043cbe')
    def test_delete_frees_the_volume(self):
        self.delete_server(self.server)
        waiters.wait_for_volume_resource_status(
            self.volumes_client, self.volume, 'available')
