# SPDX-License-Identifier: Apache-2.0

"""Room that is held for servers which ask for more than their host.

What they ask for in groups placement cannot hold: the hold is dropped, and
each server is what it is without one.
"""

from nova.tests.functional import test_rebuild_kept_resources as kept


class _HeldBase:
    """Mixed into a test case: room is held before each rebuild."""

    def rebuild_with(self, api, server, body):
        self.assertEqual(204, self.placement.put(
            '/allocations/' + server['id'], {
                'allocations': {self.host: {'resources': {
                    'VCPU': 1, 'MEMORY_MB': 128, 'DISK_GB': 1}}},
                'consumer_generation': None, 'consumer_type': 'NOVA_PENDING',
                'project_id': 'reaper', 'user_id': 'reaper'},
            version='1.38').status)
        super().rebuild_with(api, server, body)

    def all_of(self, server):
        self.assertNotEqual('NOVA_PENDING', self.placement.get(
            '/allocations/' + server['id'], version='1.38').body[
                'consumer_type'])
        return super().all_of(server)


class PortsTestCase(_HeldBase, kept.PortsTestCase):
    pass


class AcceleratorsTestCase(_HeldBase, kept.AcceleratorsTestCase):
    pass
