# SPDX-License-Identifier: Apache-2.0

"""Room that is held in placement for a server that waits."""

from oslo_serialization import jsonutils
from tempest import config
from tempest.lib.common.utils import test_utils
from tempest.lib import decorators
from tempest.lib import exceptions

from nova_pending_tempest_plugin import base

CONF = config.CONF

_CONSUMER_TYPE = 'NOVA_PENDING'


class HeldRoomTest(base.BasePendingTest):
    feature = 'reason'
    # Consumer types.
    placement_min_microversion = '1.38'

    @classmethod
    def setup_clients(cls):
        super().setup_clients()
        cls.placement = cls.os_admin.placement_client

    def _hold(self, server, provider):
        """Hold the room that the flavor of a server asks for.

        :param provider: the UUID of the resource provider
        :returns: the resources, as an allocation has them
        """
        flavor = server['flavor']
        resources = {'VCPU': flavor['vcpus'], 'MEMORY_MB': flavor['ram'],
                     'DISK_GB': flavor['disk']}
        resources = {name: amount for name, amount in resources.items()
                     if amount}
        response, body = self.placement.put(
            'allocations/' + server['id'], jsonutils.dumps({
                'allocations': {provider: {'resources': resources}},
                'consumer_generation': None,
                'consumer_type': _CONSUMER_TYPE,
                'project_id': self.servers_client.project_id,
                'user_id': self.servers_client.user_id}))
        self.placement.expected_success(204, response.status)
        return resources

    def _wait_until_given_back(self, server):
        def given_back():
            return not self.placement.list_allocations(
                server['id'])['allocations']

        if not test_utils.call_until_true(
                given_back, CONF.compute.build_timeout, 1):
            raise exceptions.TimeoutException(
                'The hold of %s is still there' % server['id'])

    @decorators.idempotent_id('4d0b8a54-7c4b-4f0e-9a50-3f4f2d5f0c01')
    def test_room_is_kept_and_becomes_the_allocation_of_the_server(self):
        provider = self.host()
        flavor = self._create_flavor(self.most_disk(provider))
        server = self.create_waiting_server(flavor=flavor)
        resources = self._hold(server, provider)
        self.assertEqual(provider, self.give_room())
        # There is room for this server, but the room is held.
        self.create_waiting_server(flavor=flavor)

        self.rebuild(server['id'])
        self.wait_until(server['id'], 'ACTIVE')
        shown = self.placement.list_allocations(server['id'])
        self.assertEqual([provider], list(shown['allocations']))
        self.assertEqual(
            resources, shown['allocations'][provider]['resources'])
        self.assertEqual(
            ('INSTANCE', self.servers_client.project_id,
             self.servers_client.user_id),
            (shown['consumer_type'], shown['project_id'], shown['user_id']))
        self.delete_server(server['id'])

    @decorators.idempotent_id('4d0b8a54-7c4b-4f0e-9a50-3f4f2d5f0c02')
    def test_hold_on_a_host_that_is_refused_is_given_back(self):
        server = self.create_waiting_server()
        # The host has the room, and not the trait.
        self._hold(server, self.host())
        self.rebuild(server['id'])
        self._wait_until_given_back(server)
        self.wait_until(server['id'], 'PENDING')

    @decorators.idempotent_id('4d0b8a54-7c4b-4f0e-9a50-3f4f2d5f0c03')
    def test_deleted_server_leaves_no_hold(self):
        server = self.create_waiting_server()
        self._hold(server, self.host())
        self.delete_server(server['id'])
        self._wait_until_given_back(server)
