# SPDX-License-Identifier: Apache-2.0

"""Room that is held for servers which ask for more than their host.

Each server is what it is without a hold: a hold that is all of what the server
asks for is claimed, and another one is dropped.
"""

import fixtures

from nova.scheduler import held_room
from nova.tests.functional import test_rebuild_kept_resources as kept


class _HeldBase:
    """Mixed into a test case: room is held before each rebuild."""

    #: Whether the hold is dropped.
    drops = True

    def setUp(self):
        super().setUp()
        self.drop = self.useFixture(fixtures.MockPatchObject(
            held_room, 'drop', wraps=held_room.drop)).mock

    def to_hold(self, server):
        return {self.host: {'resources': {
            'VCPU': 1, 'MEMORY_MB': 128, 'DISK_GB': 1}}}

    def rebuild_with(self, api, server, body):
        self.assertEqual(204, self.placement.put(
            '/allocations/' + server['id'], {
                'allocations': self.to_hold(server),
                'consumer_generation': None, 'consumer_type': 'NOVA_PENDING',
                'project_id': 'service', 'user_id': 'service'},
            version='1.38').status)
        super().rebuild_with(api, server, body)

    def all_of(self, server):
        self.assertNotEqual('NOVA_PENDING', self.placement.get(
            '/allocations/' + server['id'], version='1.38').body[
                'consumer_type'])
        self.assertEqual(self.drops, self.drop.called)
        return super().all_of(server)


class _HeldWholeBase(_HeldBase):
    """What is held is what placement offers."""

    drops = False

    def to_hold(self, server):
        [request] = self.admin_api.api_get(
            'servers/%s/pending' % server['id']).body['pending']['requests']
        offered = self.placement.get(
            '/allocation_candidates?' + request, version='1.36').body
        if offered.get('allocation_requests'):
            return offered['allocation_requests'][0]['allocations']
        # There is nothing of what the server waits for yet, nor the trait.
        return super().to_hold(server)

    def make_room(self):
        super().make_room()
        self.drop.reset_mock()


class PortsTestCase(_HeldBase, kept.PortsTestCase):
    pass


class AcceleratorsTestCase(_HeldBase, kept.AcceleratorsTestCase):
    pass


class WholePortsTestCase(_HeldWholeBase, kept.PortsTestCase):
    pass


class WholeAcceleratorsTestCase(_HeldWholeBase, kept.AcceleratorsTestCase):
    pass


class WholePortsOfSeveralGroupsTestCase(
        _HeldWholeBase, kept.PortsOfSeveralGroupsTestCase):
    """Which providers are in one subtree is not found out."""

    drops = True
