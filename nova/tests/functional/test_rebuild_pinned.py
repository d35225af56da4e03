# SPDX-License-Identifier: Apache-2.0

"""The rebuild in cell0 while nova-api takes the conductors to be older."""

from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exc

from nova.conductor import manager
from nova.conductor import rpcapi
from nova import objects
from nova.objects import build_request
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional import held_room_base
from nova.tests.functional import rebuild_twins

NETWORK = neutron_fixture.NeutronFixture.network_1['id']


class PinnedTestCase(rebuild_twins.TwinsTestCase):

    def setUp(self):
        self.flags(conductor='3.0', group='upgrade_levels')
        super().setUp()
        self.casts = []
        build = rpcapi.ComputeTaskAPI.schedule_and_build_instances

        def record(api, context, build_requests, *args, **kwargs):
            self.casts += [request.instance_uuid for request in build_requests]
            return build(api, context, build_requests, *args, **kwargs)

        self.useFixture(fixtures.MockPatchObject(
            rpcapi.ComputeTaskAPI, 'schedule_and_build_instances', record))

    def asked(self):
        return self.request(
            tags=['blue'], metadata={'a': 'b'}, hostname='patient-host',
            networks=[{'uuid': NETWORK}])

    def history(self, server):
        return [action['action'] for action in
                self.api.get_instance_actions(server['id'])]

    def test_in_cell0_again_and_built(self):
        server, _twin = self.kept(self.asked(), times=3)
        # The create, the rebuilds, and nothing but what each conductor knows.
        self.assertEqual(4, self.casts.count(server['id']))
        self.assertEqual(['rebuild'] * 3 + ['create'], self.history(server))


class _StockConductor:

    def stock(self):
        # What the bus calls is looked up when the service starts.
        self.useFixture(fixtures.MockPatch(
            'nova.conductor.tasks.rebuild_in_cell0.is_rebuild',
            return_value=False))
        released = build_request.released.BuildRequest
        for name in ('_get_by_instance_uuid_from_db', '_destroy_in_db'):
            self.useFixture(fixtures.MockPatchObject(
                objects.BuildRequest, name,
                staticmethod(getattr(released, name))))
        released = manager.released.ComputeTaskManager
        for name in ('_set_vm_state_and_notify', '_delete_build_request',
                     '_bury_in_cell0', '_cleanup_build_artifacts',
                     '_create_block_device_mapping'):
            self.useFixture(fixtures.MockPatchObject(
                manager.ComputeTaskManager, name, getattr(released, name)))
        self.useFixture(fixtures.MockPatchObject(
            manager.ComputeTaskManager, '_map_instance_to_cell',
            staticmethod(released._map_instance_to_cell)))


class StockConductorTestCase(_StockConductor, PinnedTestCase):
    """The conductor that gets what is cast is one without the layer."""

    def test_in_cell0_again_and_built(self):
        request = self.asked()
        server = self.create_at(None, self.api, request, 'PENDING')
        self.stock()
        for _try in range(2):
            self.rebuild_with(self.api, server, {})
            server = self.wait_for(server, 'ERROR')
            # The release lets the build request go last.
            self._wait_for_assert(lambda: self.assertEqual(
                [], self.stored(server)['build_requests']))
        self.make_room()
        self.rebuild_with(self.api, server, {})
        server = self.wait_for(server, 'ACTIVE')
        twin = self.create_at(None, self.api, request, 'ACTIVE')
        self.same(self.all_of(server), self.all_of(twin))


class StockConductorHoldTestCase(_StockConductor,
                                 held_room_base.HeldRoomBase):
    """Room is held, which a conductor without the layer does not know."""

    def setUp(self):
        self.flags(conductor='3.0', group='upgrade_levels')
        super().setUp()
        self.make_room()
        self.stock()

    def test_only_room_is_held(self):
        self.assertEqual(204, self.hold())
        self.fill()
        self.rebuild(self.server)
        self.is_built()

    def test_there_is_other_room(self):
        self.assertEqual(204, self.hold())
        self.rebuild(self.server)
        self.is_built()

    def test_placement_cannot_be_asked(self):
        self.assertEqual(204, self.hold())
        with mock.patch('nova.scheduler.client.report.report_client_singleton',
                        side_effect=ks_exc.EndpointNotFound):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ERROR')
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')
