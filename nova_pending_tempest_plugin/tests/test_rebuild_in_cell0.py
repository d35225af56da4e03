# SPDX-License-Identifier: Apache-2.0

"""The rebuild of a server that was never built."""

from tempest.lib.common.utils import data_utils
from tempest.lib import decorators
from tempest.lib import exceptions

from nova_pending_tempest_plugin import base


class RebuildInCell0Test(base.BasePendingTest):
    """One waiting server each."""

    feature = 'rebuild'

    def _wait_anew(self, **kwargs):
        server = self.create_waiting_server(**kwargs)['id']
        # The quota is not large enough for all tests.
        self.addCleanup(self.delete_server, server)
        return server

    def _assert_built(self, server):
        built = self.wait_until(server, 'ACTIVE')
        self.assertNotIn('fault', built)
        # Nobody waits for a host that it has.
        self.assertTrue(self.admin.show_server(server)['server'][
            'OS-EXT-SRV-ATTR:host'])
        return built

    @decorators.idempotent_id('f76e8ec1-c05c-4899-81f1-69271faed6eb')
    def test_rebuild(self):
        server = self._wait_anew()
        self.give_room()
        answer = self.rebuild(server)
        self.assertEqual((server, 'BUILD'), (answer['id'], answer['status']))
        built = self._assert_built(server)
        self.assertEqual(self.image_ref, built['image']['id'])

    @decorators.idempotent_id('0c28f655-0bf2-4029-b6a2-3674d937423e')
    def test_what_its_owner_said_is_kept(self):
        key = data_utils.rand_name('key')
        self.keypairs_client.create_keypair(name=key)
        self.addCleanup(self.keypairs_client.delete_keypair, key)
        network = self.get_tenant_network()
        ports = self.os_primary.ports_client
        port = ports.create_port(network_id=network['id'])['port']
        self.addCleanup(ports.delete_port, port['id'])
        server = self._wait_anew(
            key_name=key, networks=[{'port': port['id']}],
            metadata={'purpose': 'test'}, tags=['blue'],
            description='as it was', hostname='as-it-was')
        before = self.servers_client.show_server(server)['server']
        self.give_room()
        self.rebuild(server)
        built = self._assert_built(server)
        for name in ('id', 'name', 'created', 'key_name', 'metadata', 'tags',
                     'description', 'user_id', 'tenant_id', 'flavor',
                     'OS-EXT-SRV-ATTR:hostname',
                     'OS-EXT-SRV-ATTR:reservation_id'):
            self.assertEqual(before.get(name), built.get(name), name)
        self.assertEqual(key, built['key_name'])
        self.assertEqual(
            [port['fixed_ips'][0]['ip_address']],
            [each['addr'] for each in built['addresses'][network['name']]])
        self.assertEqual(server, ports.show_port(
            port['id'])['port']['device_id'])

    @decorators.idempotent_id('03d26a75-6400-49ab-9cc1-1aabb0d44c06')
    def test_actions(self):
        server = self._wait_anew()
        self.give_room()
        self.rebuild(server)
        self._assert_built(server)
        self.assertEqual(
            ['rebuild', 'create'],
            [each['action'] for each in self.servers_client
             .list_instance_actions(server)['instanceActions']])

    @decorators.idempotent_id('ebd25633-938b-488f-9251-a4fe09f61eaf')
    def test_no_room_again(self):
        server = self._wait_anew()
        before = self.servers_client.show_server(server)['server']
        for _ in range(2):
            self.assertEqual('BUILD', self.rebuild(server)['status'])
            after = self.wait_until(server, 'PENDING')
        for name in ('created', 'name', 'flavor', 'image', 'key_name',
                     'metadata', 'tags', 'user_id'):
            self.assertEqual(before[name], after[name], name)
        self.give_room()
        self.rebuild(server)
        self._assert_built(server)

    @decorators.idempotent_id('40b17a90-eb00-42d8-a26e-80da019f1b18')
    def test_what_the_request_says_replaces(self):
        server = self._wait_anew(metadata={'purpose': 'old'})
        name = data_utils.rand_name('new')
        self.give_room()
        self.rebuild(server, imageRef=self.image_ref_alt, name=name,
                     metadata={'purpose': 'new'})
        built = self._assert_built(server)
        self.assertEqual(self.image_ref_alt, built['image']['id'])
        self.assertEqual(name, built['name'])
        self.assertEqual({'purpose': 'new'}, built['metadata'])

    @decorators.idempotent_id('eb0589ee-dc99-4983-a73c-926c2d61155f')
    def test_image_null(self):
        server = self._wait_anew()
        self.give_room()
        self.rebuild(server, imageRef=None)
        self.assertEqual(self.image_ref,
                         self._assert_built(server)['image']['id'])

    @decorators.idempotent_id('b7a35e4d-97d0-4c62-a985-9c96f61a223a')
    def test_server_in_error(self):
        server = self._wait_anew()
        self.admin.reset_state(server, state='error')
        self.assertEqual('ERROR', self.servers_client.show_server(
            server)['server']['status'])
        self.give_room()
        self.rebuild(server)
        self._assert_built(server)

    @decorators.idempotent_id('0da228ce-cfbb-46c7-a49b-4f53c577414e')
    def test_rebuild_as_admin(self):
        server = self._wait_anew()
        self.give_room()
        self.rebuild(server, self.admin)
        self._assert_built(server)
        self.assertEqual(
            self.servers_client.project_id,
            self.admin.show_server(server)['server']['tenant_id'])

    @decorators.idempotent_id('d35576be-75f1-4e4f-bbe6-0e0e45551724')
    def test_rebuild_as_others_is_refused(self):
        server = self._wait_anew()
        for client, error in ((self.reader, exceptions.Forbidden),
                              (self.other, exceptions.NotFound)):
            self.assertRefused(error, server, self.rebuild, server, client)

    @decorators.idempotent_id('a4230fc7-2b6b-45e4-9074-002f05796eea')
    def test_locked_server_is_refused(self):
        server = self._wait_anew()
        self.servers_client.lock_server(server)
        self.assertRefused(
            exceptions.Conflict, server, self.rebuild, server)
        self.servers_client.unlock_server(server)
        self.give_room()
        self.rebuild(server)
        self._assert_built(server)

    @decorators.idempotent_id('7f15ef28-bed4-4312-a0c7-f92f46f6d01f')
    def test_unknown_image_is_refused(self):
        server = self._wait_anew()
        self.assertRefused(
            exceptions.BadRequest, server, self.rebuild, server,
            imageRef=data_utils.rand_uuid())

    @decorators.idempotent_id('9978d69d-8602-45cd-848b-17134c975345')
    def test_delete_of_a_rebuilt_server(self):
        server = self._wait_anew()
        self.give_room()
        self.rebuild(server)
        self._assert_built(server)
        self.delete_server(server)
        self.assertRaises(exceptions.NotFound,
                          self.servers_client.show_server, server)

    @decorators.idempotent_id('87c7cb29-f76c-415f-86e8-f13ddf094cfb')
    def test_servers_of_one_request(self):
        reservation = self.create_test_server(
            flavor=self.flavor, min_count=2, max_count=2,
            return_reservation_id=True)['reservation_id']
        first, second = (
            each['id'] for each in self.servers_client.list_servers(
                reservation_id=reservation)['servers'])
        for server in (first, second):
            self.addCleanup(self.delete_server, server)
            self.wait_until(server, 'PENDING')
        self.give_room()
        self.rebuild(first)
        self._assert_built(first)
        self.assertEqual('PENDING', self.servers_client.show_server(
            second)['server']['status'])
        self.rebuild(second)
        self._assert_built(second)


class RebuildWithoutImageTest(base.BasePendingTest):
    """A server that runs."""

    feature = 'rebuild'

    @decorators.idempotent_id('5aca802b-48ad-4669-85b7-693cdcc6237c')
    def test_its_own_image_is_taken(self):
        server = self.create_test_server(wait_until='ACTIVE')['id']
        with base.microversion(self.microversions['pending']):
            self.assertRefused(exceptions.BadRequest, server, self.rebuild,
                               server)
        self.assertEqual('REBUILD', self.rebuild(server)['status'])
        built = self.wait_until(server, 'ACTIVE')
        self.assertEqual(self.image_ref, built['image']['id'])
