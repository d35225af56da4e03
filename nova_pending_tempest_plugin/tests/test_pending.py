# SPDX-License-Identifier: Apache-2.0

"""A waiting server as its owner, other users and administrators see it."""

import datetime

from oslo_utils import timeutils
from tempest.common import waiters
from tempest.lib.common.utils import data_utils
from tempest.lib import decorators
from tempest.lib import exceptions

from nova_pending_tempest_plugin import base


class PendingTest(base.BasePendingTest):
    """What can be asked of one server without changing it."""

    @classmethod
    def resource_setup(cls):
        super().resource_setup()
        #: microversions that do not show PENDING, and those that do
        cls.old = ('2.1', cls.released)
        cls.new = (cls.pending, cls.microversions['rebuild'], 'latest')
        cls.server = cls.create_waiting_server()

    def _show(self, version, client=None):
        with base.microversion(version):
            return (client or self.servers_client).show_server(
                self.server['id'])['server']

    def _is_listed(self, version, client=None, detail=False, **filters):
        with base.microversion(version):
            servers = (client or self.servers_client).list_servers(
                detail=detail, **filters)['servers']
        return self.server['id'] in [each['id'] for each in servers]

    @decorators.idempotent_id('bf8314de-d983-4701-ac1c-4287f142ca68')
    def test_show(self):
        for versions, status in ((self.old, 'ERROR'), (self.new, 'PENDING')):
            for version in versions:
                server = self._show(version)
                self.assertEqual(status, server['status'])
                self.assertEqual(
                    status.lower(), server['OS-EXT-STS:vm_state'])
                self.assertIsNone(server['OS-EXT-STS:task_state'])
                self.assertIn(
                    'No valid host was found', server['fault']['message'])

    @decorators.idempotent_id('57e9d800-0194-4e44-8e53-44be0a0cff71')
    def test_show_differs_in_the_status_alone(self):
        old, new = self._show(self.released), self._show(self.pending)
        for server in (old, new):
            del server['status'], server['OS-EXT-STS:vm_state']
        self.assertEqual(old, new)

    @decorators.idempotent_id('0da7d48b-01e8-4605-8c2e-5bfc88534c26')
    def test_show_as_reader(self):
        self.assertEqual(
            'PENDING', self._show(self.pending, self.reader)['status'])
        self.assertEqual(
            'ERROR', self._show(self.released, self.reader)['status'])

    @decorators.idempotent_id('3174b471-2a81-4444-81d8-05eafc66383d')
    def test_show_as_admin(self):
        self.assertEqual(
            'PENDING', self._show(self.pending, self.admin)['status'])
        self.assertEqual(
            'ERROR', self._show(self.released, self.admin)['status'])

    @decorators.idempotent_id('fd793b22-4ec2-43e6-8f55-df75e15678bb')
    def test_show_as_another_tenant(self):
        for version in self.old + self.new:
            self.assertRaises(
                exceptions.NotFound, self._show, version, self.other)

    @decorators.idempotent_id('d4912889-5c39-4a02-9e92-3c441c941b00')
    def test_list_status_pending(self):
        for version in self.new:
            for detail in (False, True):
                self.assertTrue(self._is_listed(
                    version, detail=detail, status='PENDING'))
                self.assertTrue(self._is_listed(
                    version, detail=detail, status='pending'))
        self.assertTrue(self._is_listed(
            self.pending, self.reader, status='PENDING'))
        self.assertFalse(self._is_listed(
            self.pending, self.other, status='PENDING'))

    @decorators.idempotent_id('81fb2a82-477e-4bd5-8f15-734644726997')
    def test_list_status_pending_at_older_microversions(self):
        """The filter is one of a status that nobody knows."""
        self.assertFalse(self._is_listed('2.1', status='PENDING'))
        for version in ('2.38', self.released):
            self.assertRaises(exceptions.BadRequest, self._is_listed,
                              version, status='PENDING')

    @decorators.idempotent_id('0eb69dfe-5438-4383-a307-7edf10fb459c')
    def test_list_status_error(self):
        for version in self.old:
            self.assertTrue(self._is_listed(version, status='ERROR'))
        for version in self.new:
            self.assertFalse(self._is_listed(version, status='ERROR'))

    @decorators.idempotent_id('5a61385b-1a5d-45ba-850b-c208e04a4624')
    def test_list_vm_state_as_admin(self):
        def listed(version, state):
            return self._is_listed(version, self.admin, vm_state=state,
                                   all_tenants=True)

        self.assertTrue(listed(self.released, 'error'))
        self.assertFalse(listed(self.released, 'pending'))
        self.assertFalse(listed(self.pending, 'error'))
        self.assertTrue(listed(self.pending, 'pending'))

    @decorators.idempotent_id('20f33c7c-203d-4ce4-91d1-8fd4ca173208')
    def test_list_detail_shows_the_status(self):
        for version, status in ((self.released, 'ERROR'),
                                (self.pending, 'PENDING')):
            with base.microversion(version):
                servers = self.servers_client.list_servers(
                    detail=True)['servers']
            self.assertEqual(
                [status], [each['status'] for each in servers
                           if each['id'] == self.server['id']])

    @decorators.idempotent_id('c3bca3c7-82f6-4446-8a2d-aed712568e4c')
    def test_no_usage(self):
        """What was never launched is not charged for."""
        day = datetime.timedelta(days=1)
        now = timeutils.utcnow()
        for version in (self.released, self.pending):
            with base.microversion(version):
                # Tempest's own call refuses the answer without usage.
                _, body = self.os_admin.tenant_usages_client.get(
                    'os-simple-tenant-usage/%s?start=%s&end=%s' % (
                        self.servers_client.project_id,
                        (now - day).isoformat(), (now + day).isoformat()))
            self.assertNotIn(self.server['id'], body.decode())

    @decorators.idempotent_id('bab22447-bd4b-44e7-b70d-aeb8a90aa163')
    def test_what_needs_a_host_is_refused(self):
        server = self.server['id']
        client = self.servers_client
        for version in (self.released, self.pending):
            with base.microversion(version):
                for function, args in (
                        (client.start_server, ()),
                        (client.stop_server, ()),
                        (client.reboot_server, ()),
                        (client.pause_server, ()),
                        (client.shelve_server, ()),
                        (client.resize_server, (self.flavor_ref_alt,))):
                    kwargs = ({'type': 'HARD'}
                              if function == client.reboot_server else {})
                    self.assertRefused(exceptions.Conflict, server, function,
                                       server, *args, **kwargs)

    @decorators.idempotent_id('45069454-3488-49f6-a492-238f64a61cda')
    def test_rebuild_at_older_microversions_is_refused(self):
        for version in (self.released, self.pending):
            with base.microversion(version):
                self.assertRefused(
                    exceptions.Conflict, self.server['id'],
                    self.servers_client.rebuild_server, self.server['id'],
                    self.image_ref)

    @decorators.idempotent_id('94dab6aa-4c7c-4cd4-b3c9-662664dd35bc')
    def test_change_and_delete_as_others_are_refused(self):
        server = self.server['id']
        for client, error in ((self.reader, exceptions.Forbidden),
                              (self.other, exceptions.NotFound)):
            self.assertRefused(
                error, server, client.update_server, server, name='other')
            self.assertRefused(error, server, client.delete_server, server)


class PendingChangesTest(base.BasePendingTest):
    """What changes a waiting server."""

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting_server()['id']
        # The quota is not large enough for all tests.
        self.addCleanup(self.delete_server, self.server)

    @decorators.idempotent_id('4d470be0-f132-4d9a-80b4-f2780b4ccd98')
    def test_rename(self):
        name = data_utils.rand_name('renamed')
        answer = self.servers_client.update_server(self.server, name=name)
        self.assertEqual((name, 'PENDING'), (
            answer['server']['name'], answer['server']['status']))
        with base.microversion(self.released):
            answer = self.servers_client.update_server(
                self.server, name=name + '-2')
        self.assertEqual('ERROR', answer['server']['status'])
        self.assertEqual(name + '-2', self.servers_client.show_server(
            self.server)['server']['name'])

    @decorators.idempotent_id('fda44b6a-52a9-47d6-a334-3dbba0a16d44')
    def test_delete(self):
        self.servers_client.delete_server(self.server)
        waiters.wait_for_server_termination(self.servers_client, self.server)

    @decorators.idempotent_id('704a2ba3-12d5-4c1b-baf3-908df828672d')
    def test_delete_at_an_older_microversion(self):
        with base.microversion('2.1'):
            self.servers_client.delete_server(self.server)
            waiters.wait_for_server_termination(
                self.servers_client, self.server, ignore_error=True)

    @decorators.idempotent_id('79422c86-5ce8-48b4-806c-e84fceca83f5')
    def test_delete_as_admin(self):
        self.admin.delete_server(self.server)
        waiters.wait_for_server_termination(self.servers_client, self.server)

    @decorators.idempotent_id('5684666a-8862-4b3c-ba83-e611f348c607')
    def test_reset_state_as_admin(self):
        self.assertRefused(
            exceptions.Forbidden, self.server,
            self.servers_client.reset_state, self.server, state='error')
        self.admin.reset_state(self.server, state='error')
        for version in (self.released, self.pending):
            with base.microversion(version):
                self.assertEqual('ERROR', self.servers_client.show_server(
                    self.server)['server']['status'])

    @decorators.idempotent_id('24cd357f-9972-4bc5-aae2-d30c00c357e5')
    def test_lock_and_unlock(self):
        self.servers_client.lock_server(self.server)
        server = self.servers_client.show_server(self.server)['server']
        self.assertEqual((True, 'PENDING'),
                         (server['locked'], server['status']))
        self.assertRefused(exceptions.Conflict, self.server,
                           self.servers_client.delete_server, self.server)
        self.servers_client.unlock_server(self.server)
        self.assertFalse(self.servers_client.show_server(
            self.server)['server']['locked'])


class PendingMultipleCreateTest(base.BasePendingTest):

    @decorators.idempotent_id('0fc5a1d8-0c38-4458-85c6-78c57cae0102')
    def test_each_server_waits(self):
        reservation = self.create_test_server(
            flavor=self.flavor, min_count=2, max_count=2,
            return_reservation_id=True)['reservation_id']
        servers = self.servers_client.list_servers(
            reservation_id=reservation)['servers']
        self.assertEqual(2, len(servers))
        for server in servers:
            self.wait_until(server['id'], 'PENDING')
