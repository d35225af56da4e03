# SPDX-License-Identifier: Apache-2.0

"""What stands in the way of a rebuild in cell0, elsewhere in the cloud."""

import threading
from unittest import mock

from keystoneauth1 import exceptions as ks_exc
from oslo_db import exception as db_exc
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import moved_server
from nova.compute import rpcapi
from nova.conductor.tasks import rebuild_in_cell0
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler.client import report
from nova.tests.functional import rebuild_races


class ElsewhereTestCase(rebuild_races.RacesBase):

    def allocations(self, server):
        return self.report_client.get_allocations_for_consumer(
            nova_context.get_admin_context(), server['id'])

    def on_a_host_of_no_cell(self):
        """Let each host be one that nobody has mapped to its cell yet."""
        return mock.patch.object(
            objects.HostMapping, 'get_by_host',
            side_effect=exception.HostMappingNotFound(name='new'))

    def down(self):
        """Add a cell whose database cannot be reached."""
        cell = objects.CellMapping(
            nova_context.get_admin_context(), uuid=uuids.down, name='down',
            database_connection='none://', transport_url='none://')
        cell.create()
        target_cell = nova_context.target_cell

        def targeted(context, one):
            if one.uuid == uuids.down:
                raise db_exc.DBConnectionError()
            return target_cell(context, one)

        return mock.patch.object(nova_context, 'target_cell', targeted)

    def test_another_cell_is_down(self):
        server = self.waiting()
        with self.down():
            for status in ('PENDING', 'ACTIVE'):
                self.assertEqual(202, self.ask_rebuild(server))
                server = self.until(self.exists, server)
                self.assertEqual(status, server['status'])
                if status == 'PENDING':
                    self.make_room()

    def test_delete_in_cell0_asks_no_more_than_before(self):
        servers = [self.waiting() for _ in range(2)]
        with mock.patch.object(moved_server, '_elsewhere') as elsewhere:
            self.api.delete_server(servers[0]['id'])
            self.api.put_server(servers[1]['id'], {
                'server': {'name': 'renamed'}})
        elsewhere.assert_not_called()
        self.assertEqual(['renamed'], [
            server['name'] for server in self.api.get_servers()])

    def test_deadlock_while_it_is_taken_out(self):
        server = self.waiting()
        save, deadlocks = objects.RequestSpec.save_all, [db_exc.DBDeadlock()]

        def deadlocked(spec):
            if deadlocks:
                raise deadlocks.pop()
            save(spec)

        self.make_room()
        with mock.patch.object(objects.RequestSpec, 'save_all', deadlocked):
            self.assertEqual(202, self.ask_rebuild(server))
        self.assertEqual([], deadlocks)
        self.wait_for(server, 'ACTIVE')
        self.until(self.exists, server)

    def test_placement_is_down_when_a_host_cannot_be_asked(self):
        server = self.waiting()
        self.make_room()
        with mock.patch.object(
                rpcapi.ComputeAPI, 'build_and_run_instance',
                side_effect=ZeroDivisionError()), mock.patch.object(
                    report.SchedulerReportClient,
                    'delete_allocation_for_instance',
                    side_effect=ks_exc.ConnectFailure()):
            self.assertEqual(202, self.ask_rebuild(server))
            self.wait_for(server, 'ERROR')
        self.assertEqual(['cell1'], self.cells_of(server))
        self.assertEqual(202, self.ask_rebuild(server))
        self.wait_for(server, 'ACTIVE')
        self.until(self.exists, server)

    def test_cast_is_not_confirmed_and_the_host_builds(self):
        server = self.waiting()
        self.make_room()
        cast = rpcapi.ComputeAPI.build_and_run_instance
        rollback = rebuild_in_cell0.RebuildInCell0Task.rollback
        is_over = threading.Event()

        def unconfirmed(*args, **kwargs):
            cast(*args, **kwargs)
            self.wait_for(server, 'ACTIVE')
            raise messaging.MessageDeliveryFailure()

        def roll_back(*args, **kwargs):
            rollback(*args, **kwargs)
            is_over.set()

        with mock.patch.object(
                rpcapi.ComputeAPI, 'build_and_run_instance',
                unconfirmed), mock.patch.object(
                    rebuild_in_cell0.RebuildInCell0Task, 'rollback',
                    roll_back):
            self.assertEqual(202, self.ask_rebuild(server))
            self.assertTrue(is_over.wait(60))
        self.assertEqual('ACTIVE', self.exists(server)['status'])
        self.assertNotIn('fault', self.api.get_server(server['id']))

    def test_host_of_no_cell(self):
        server = self.waiting()
        self.make_room()
        with self.on_a_host_of_no_cell():
            self.assertEqual(202, self.ask_rebuild(server))
            # With no allocation.
            server = self.until(self.exists, server)
        self.assertEqual('PENDING', server['status'])
        self.assertEqual(202, self.ask_rebuild(server))
        self.assertEqual('ACTIVE', self.until(self.exists, server)['status'])

    def test_what_the_create_has_claimed(self):
        full = self.create_waiting()
        self.make_room()
        with self.on_a_host_of_no_cell():
            server = self.create_waiting('ERROR')
        self._wait_for_assert(lambda: self.assertEqual(
            {}, self.allocations(server)))
        with mock.patch('nova.scheduler.client.query.SchedulerQueryClient.'
                        'select_destinations',
                        side_effect=exception.NoValidHost(reason='')):
            self.assertEqual(202, self.ask_rebuild(server))
            self._wait_for_assert(lambda: self.assertEqual(
                'PENDING', self.api.get_server(server['id'])['status']))
        self.assertEqual({}, self.allocations(server))
        self.rebuild(full)
        self.wait_for(full, 'ACTIVE')
