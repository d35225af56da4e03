# SPDX-License-Identifier: Apache-2.0

"""The quota of a server that room is held for."""

from unittest import mock

from oslo_limit import fixture as limit_fixture
from oslo_utils.fixture import uuidsentinel as uuids

from nova.limit import local as local_limit
from nova.tests.functional import held_room_base


class QuotaTestCase(held_room_base.HeldRoomBase):
    """The server is counted once, whoever it is that room is held for."""

    def setUp(self):
        super().setUp()
        self.make_room()

    def count(self, **limits):
        self.flags(count_usage_from_placement=True, group='quota')
        self.flags(group='quota', **limits)

    def own(self):
        return {'project_id': self.server['tenant_id'],
                'user_id': self.server['user_id']}

    def over_quota(self):
        self.refused(403, self.server)
        self.assertEqual('NOVA_PENDING', self.held()['consumer_type'])

    def test_cells(self):
        self.flags(cores=1, ram=128, instances=1, group='quota')
        self.hold(**self.own())
        self.rebuild(self.server)
        self.is_built()

    def test_placement(self):
        self.count(cores=1, ram=128, instances=1)
        for whose in (self.own(), {}):
            self.hold(**whose)
            self.rebuild(self.server)
            self.is_built()
            self.flags(cores=-1, group='quota')
            self.placement.delete('/allocations/%s' % self.server['id'])
            self.fill()
            self.flags(cores=1, group='quota')
            self.server = self.create_waiting()
            self.placement.delete('/allocations/%s' % uuids.filler)

    def test_placement_and_what_a_build_has_left(self):
        self.count(cores=1, ram=128, instances=1)
        self.assertEqual(204, self.placement.put(
            '/allocations/%s' % self.server['id'], {
                'allocations': {self.provider('roomy'): {
                    'resources': self.RESOURCES}},
                'consumer_generation': None, 'consumer_type': 'INSTANCE',
                **self.own()}, version='1.38').status)
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')

    def test_placement_and_another_server(self):
        self._create_server(flavor_id=self.small, networks='none')
        self.count(cores=1)
        for whose in (self.own(), {}):
            self.hold(**whose)
            self.over_quota()
            self.placement.delete('/allocations/%s' % self.server['id'])

    def test_unified_limits(self):
        self.flags(driver='nova.quota.UnifiedLimitsDriver', group='quota')
        for whose in (self.own(), {}):
            self.hold(**whose)
            with self.limits(servers=1, cores=0), mock.patch(
                    'nova.limit.utils._identity_client') as identity:
                # Whether the limit of 0 is one is asked for.
                identity.return_value.registered_limits.return_value = [
                    mock.Mock(resource_name='class:VCPU')]
                self.over_quota()
            with self.limits(servers=1, cores=1):
                self.rebuild(self.server)
                self.wait_for(self.server, 'ACTIVE')
            with self.limits(servers=2, cores=2):
                self.is_built()
                self.server = self.create_waiting_full()

    def limits(self, servers, cores):
        return limit_fixture.LimitFixture({
            **dict.fromkeys((
                local_limit.SERVER_METADATA_ITEMS, local_limit.INJECTED_FILES,
                local_limit.INJECTED_FILES_CONTENT,
                local_limit.INJECTED_FILES_PATH, local_limit.KEY_PAIRS,
                local_limit.SERVER_GROUPS, local_limit.SERVER_GROUP_MEMBERS,
                'class:MEMORY_MB', 'class:DISK_GB'), 9999),
            'servers': servers, 'class:VCPU': cores}, {})

    def test_more_is_held_than_the_server_asks_for(self):
        self.count(cores=1)
        self.hold(resources=dict(self.RESOURCES, VCPU=5), **self.own())
        self.rebuild(self.server)
        self.is_built()
