# SPDX-License-Identifier: Apache-2.0

"""Rebuilds in cell0 while services hang, answer late or answer twice."""

import contextlib
import datetime
import threading
from unittest import mock

import fixtures
from keystoneauth1 import exceptions as ks_exc
from oslo_db import exception as db_exc
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids

from nova.cmd import manage
from nova.compute import utils as compute_utils
from nova.conductor import manager
from nova.conductor import rpcapi as conductor_rpcapi
from nova import context as nova_context
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova import exception
from nova import objects
from nova.objects import unbuilt_instance
from nova.scheduler import allocations
from nova.scheduler.client import query
from nova.scheduler import lost_claims
from nova.tests.functional import rebuild_races

SELECT = 'nova.scheduler.client.query.SchedulerQueryClient.select_destinations'


class WeatherBase(rebuild_races.RacesBase):

    def allocations(self, server):
        """Return what a server has of each resource, by provider."""
        return {provider: allocation['resources'] for provider, allocation in
                self.report_client.get_allocations_for_consumer(
                    nova_context.get_admin_context(), server['id']).items()}

    def built(self, server):
        self.assertEqual(202, self.ask_rebuild(server))
        self.wait_for(server, 'ACTIVE')

    @contextlib.contextmanager
    def held_cast(self):
        """Hold what nova-api asks a conductor, and call it later."""
        casts = []
        with mock.patch.object(
                conductor_rpcapi.ComputeTaskAPI, 'rebuild_instance_in_cell0',
                lambda api, context, *args: casts.append((context, args))):
            yield casts


class SchedulerTestCase(WeatherBase):

    def setUp(self):
        super().setUp()
        self.selects = []

    def late(self, times=1, claims=False):
        """Let a scheduler answer when nobody waits any more.

        :param claims: whether the scheduler claims before its conductor gives
            up
        """
        original = query.SchedulerQueryClient.select_destinations

        def select(client, context, *args, **kwargs):
            def answer(seconds=0):
                context.timestamp -= datetime.timedelta(seconds=seconds)
                return original(client, context, *args, **kwargs)

            if len(self.selects) < times:
                self.selects.append(answer)
                if claims:
                    answer()
                raise messaging.MessagingTimeout()
            return original(client, context, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(SELECT, select))

    def timed_out(self, state='PENDING'):
        """Return a server in BUILD, whose scheduler has not answered."""
        server = self.waiting()
        if state == 'ERROR':
            self.assertEqual(202, self.ask_reset(server))
        self.make_room()
        self.late()
        self.assertEqual(202, self.ask_rebuild(server))
        self.until(lambda: self.assertEqual(1, len(self.selects)))
        return server

    def returned(self, server, state='PENDING'):
        self.assertEqual(
            'BUILD', self.api.get_server(server['id'])['status'])
        self.assertEqual((1, 0), self.recover())
        self.assertEqual(state, self.until(self.exists, server)['status'])

    def test_server_that_waited_waits_again(self):
        server = self.timed_out()
        self.returned(server)
        self.built(server)

    def test_server_in_error_stays_there(self):
        self.returned(self.timed_out('ERROR'), 'ERROR')

    def test_deleted_before_a_scheduler_answers(self):
        server = self.timed_out()
        self.end(server)

    def test_nobody_returns_it_later(self):
        self.flags(rebuild_in_cell0_timeout=0, group='conductor')
        server = self.timed_out()
        self.assertEqual('PENDING', self.until(self.exists, server)['status'])

    def test_late_claim_is_taken_back(self):
        server = self.timed_out()
        self.selects[0]()
        self.assertNotEqual({}, self.allocations(server))
        self.returned(server)
        self.assertEqual({}, self.allocations(server))
        self.built(server)

    def claims_late(self, server, allocations=None):
        """The scheduler claims, and the server has what it had before."""
        if allocations:
            # Placement refuses the claim.
            self.assertRaises(exception.AllocationUpdateFailed,
                              self.selects[0], seconds=3600)
        else:
            self.selects[0](seconds=3600)
        self.assertEqual(allocations or {}, self.allocations(server))

    def test_late_claim_after_the_server_has_returned(self):
        server = self.timed_out()
        self.returned(server)
        self.claims_late(server)
        self.built(server)

    def test_late_claim_while_the_server_returns(self):
        """Nothing is allocated to the server as recovery looks."""
        server = self.timed_out()
        original, claims = allocations.delete, []

        def delete(*args):
            result = original(*args)
            if not claims:
                claims.append(None)
                self.selects[0](seconds=3600)
                claims.append(self.allocations(server))
            return result

        with mock.patch.object(allocations, 'delete', delete):
            self.returned(server)
        self.assertEqual(1, len(claims[1]))
        self.assertEqual({}, self.allocations(server))

    def created(self, late=None, **body):
        """Return a server in ERROR, whose scheduler has not answered."""
        self.make_room()
        self.late(**late or {})
        server = self.api.post_server({'server': self._build_server(
            flavor_id=self.small, networks='none') | body})
        return self.wait_for(server, 'ERROR')

    def test_late_claim_for_a_create(self):
        server = self.created()
        self.claims_late(server)
        self.built(server)

    def test_late_claim_for_a_create_that_was_deleted(self):
        server = self.created()
        self.api.delete_server(server['id'])
        self.claims_late(server)

    def test_late_claim_for_a_server_that_runs(self):
        server = self.created()
        self.built(server)
        before = self.allocations(server)
        self.assertEqual(1, len(before))
        self._start_compute('other')
        self.claims_late(server, before)
        self.end(server)
        self.claims_late(server)

    def test_late_claim_for_servers_of_which_one_runs(self):
        self.created(min_count=2, max_count=2)
        servers = self.api.get_servers()
        for server in servers:
            self.wait_for(server, 'ERROR')
        for server in servers:
            self.built(server)
            before = self.allocations(server)
            self.assertEqual(1, len(before))
            self.claims_late(server, before)

    def test_claim_before_the_conductor_of_a_create_gives_up(self):
        server = self.created(late={'claims': True})
        self.until(lambda: self.assertEqual({}, self.allocations(server)))
        self.built(server)

    def test_slow_create_that_is_waited_for(self):
        self.make_room()
        with mock.patch.object(lost_claims, 'timeutils') as late:
            late.is_older_than.return_value = True
            server = self.api.post_server({'server': self._build_server(
                flavor_id=self.small, networks='none')})
            server = self.wait_for(server, 'ACTIVE')
            self.assertEqual(1, len(self.allocations(server)))
            self.end(server)
            server = self.waiting()
            self.built(server)
        self.assertEqual(1, len(self.allocations(server)))

    def test_placement_is_down_as_a_late_claim_is_deleted(self):
        server = self.created()
        with mock.patch.object(
                allocations, 'delete',
                side_effect=exception.ConsumerAllocationRetrievalFailed(
                    consumer_uuid='', error='')):
            self.selects[0](seconds=3600)
        self.built(server)
        self.assertEqual(1, len(self.allocations(server)))

    def test_scheduler_that_fails(self):
        """The scheduler has answered: nothing comes late."""
        server = self.waiting()
        with mock.patch(SELECT, side_effect=messaging.RemoteError(
                'KeyError', "'filter'")):
            self.assertEqual(202, self.ask_rebuild(server))
            self.assertEqual(
                'PENDING', self.until(self.exists, server)['status'])

    def test_placement_that_does_not_answer_the_scheduler(self):
        server = self.waiting()
        with mock.patch(SELECT, side_effect=messaging.RemoteError(
                'ConnectTimeout', '')) as asked:
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(asked.assert_called)
        self.returned(server)

    def test_late_claim_that_meets_the_next_build(self):
        server = self.timed_out()
        self.returned(server)
        self._start_compute('other')
        self.selects[0]()
        [first] = self.allocations(server)
        with mock.patch.object(
                query.SchedulerQueryClient, 'select_destinations',
                self.on_another_host(first)):
            self.built(server)
        self.assertNotIn(first, self.allocations(server))
        self.until(self.exists, server)

    def on_another_host(self, provider):
        original = query.SchedulerQueryClient.select_destinations

        def select(client, context, request_spec, *args, **kwargs):
            name = objects.ComputeNode.get_by_uuid(
                self.in_cell1(context), provider).host
            request_spec.ignore_hosts = [name]
            return original(client, context, request_spec, *args, **kwargs)

        return select

    def in_cell1(self, context):
        context = nova_context.get_admin_context()
        nova_context.set_target_cell(context, self.cell_mappings['cell1'])
        return context

    def test_placement_is_down_while_the_server_returns(self):
        server = self.waiting()
        with mock.patch.object(allocations, 'delete',
                               side_effect=ks_exc.ConnectFailure()) as down:
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(down.assert_called)
            self.assertEqual((0, 1), self.recover())
            self.assertEqual(
                'BUILD', self.api.get_server(server['id'])['status'])
        self.returned(server)


class MessageTestCase(WeatherBase):

    def test_message_that_comes_twice(self):
        server = self.waiting()
        self.make_room()
        task = self.conductor.manager.compute_task_mgr
        with self.held_cast() as casts:
            self.assertEqual(202, self.ask_rebuild(server))
        context, arguments = casts[0]
        recheck = task._recheck_quota
        begun = []

        def second(*args, **kwargs):
            if not begun:
                begun.append(self.together(lambda: (
                    task.rebuild_instance_in_cell0(
                        nova_context.RequestContext.from_dict(
                            context.to_dict()), *arguments))))
            return recheck(*args, **kwargs)

        with mock.patch.object(task, '_recheck_quota', second):
            task.rebuild_instance_in_cell0(context, *arguments)
        self.assertEqual([[None]], begun)
        self.wait_for(server, 'ACTIVE')
        self.until(self.exists, server)

    def test_build_that_lost_leaves_nothing_to_archive(self):
        server = self.waiting()
        self.make_room()
        sent = self.useFixture(fixtures.MockPatch(
            'nova.compute.utils.notify_about_instance_delete')).mock
        answers, _patch = self.meeting(
            (manager.ComputeTaskManager, '_recheck_quota'), self.recover)
        self.assertEqual(202, self.ask_rebuild(server))
        self.until(lambda: self.assertEqual([(1, 0)], answers))
        self.until(self.exists, server)
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, server))
        sent.assert_not_called()
        self.recover()
        self.until(self.exists, server)
        # It deletes the mappings and request specs of what it has archived.
        self.assertIn(manage.DbCommands().archive_deleted_rows(
            all_cells=True), (0, 1))
        self.until(self.exists, server)
        self.built(server)

    def test_recovery_tells_what_a_scheduler_without_room_does(self):
        self.flags(notify_on_state_change='vm_and_task_state',
                   notification_format='both', group='notifications')
        server = self.waiting()
        with self.held_cast():
            self.assertEqual(202, self.ask_rebuild(server))
        self.notifier.reset()
        self.assertEqual((1, 0), self.recover())
        states = [
            (payload['nova_object.data']['state_update'][
                'nova_object.data']['old_state'],
             payload['nova_object.data']['state_update'][
                 'nova_object.data']['state'])
            for payload in (
                sent['payload'] for sent in
                self.notifier.versioned_notifications
                if sent['event_type'] == 'instance.update')]
        self.assertEqual([('building', 'pending')], states)
        self.assertEqual(1, len([
            sent for sent in self.notifier.versioned_notifications
            if sent['event_type'] == 'compute_task.build_instances.error']))

    def test_server_can_be_rebuilt_as_soon_as_it_is_told_of(self):
        server = self.waiting()
        found = []

        def told(*args, **kwargs):
            [mapping] = self.rows(api_models.InstanceMapping, server)
            found.append((mapping.cell_id,
                          self.rows(api_models.BuildRequest, server)))

        with mock.patch.object(
                compute_utils, 'notify_about_compute_task_error', told):
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(lambda: self.assertEqual(
                [(self.cell_mappings['cell0'].id, [])], found))

    def test_accelerators_that_cannot_be_bound(self):
        server = self.waiting()
        self.make_room()
        with mock.patch.object(
                manager.ComputeTaskManager,
                '_create_and_bind_arq_for_instance',
                side_effect=exception.AcceleratorRequestOpFailed(
                    op='bind', msg='down')):
            self.assertEqual(202, self.ask_rebuild(server))
            shown = self.wait_for(server, 'ERROR')
        self.assertIn('down', shown['fault']['message'])
        self.assertEqual(['cell1'], self.cells_of(server))
        self.assertEqual({}, self.allocations(server))
        self.built(server)
        self.until(self.exists, server)

    def test_older_conductor_that_comes_late(self):
        """It would destroy the mapping of a server that was put back."""
        self.flags(conductor='3.0', group='upgrade_levels')
        server = self.waiting()
        with mock.patch.object(conductor_rpcapi.ComputeTaskAPI,
                               'schedule_and_build_instances'):
            self.assertEqual(202, self.ask_rebuild(server))
        self.assertEqual((0, 0), self.recover())
        self.assertEqual('BUILD', self.api.get_server(server['id'])['status'])
        self.flags(conductor=None, group='upgrade_levels')
        self.assertEqual((1, 0), self.recover())
        self.until(self.exists, server)


class LateConductorTestCase(WeatherBase):
    """A conductor that comes back when another has returned the server."""

    def returned_while_it_deletes_allocations(self, allocated):
        server = self.waiting()
        if allocated:
            self.make_room()
        delete, met, built = allocations.delete, [], []

        def late(*args):
            if not met:
                met.append(True)
                [recovered] = self.together(self.recover)
                [rebuilt] = self.together(lambda: self.ask_rebuild(server))
                if allocated:
                    self.wait_for(server, 'ACTIVE')
                self.until(self.exists, server)
                built.extend([recovered, rebuilt])
            return delete(*args)

        with mock.patch.object(allocations, 'delete', late), \
                mock.patch.object(manager.ComputeTaskManager,
                                  '_schedule_instances', self.first_fails()):
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(lambda: self.assertNotEqual([], built))
            shown = self.until(self.exists, server)
        self.assertEqual([(1, 0), 202], built)
        self.assertEqual('ACTIVE' if allocated else 'PENDING',
                         shown['status'])
        self.end(server)

    def first_fails(self):
        schedule = manager.ComputeTaskManager._schedule_instances
        failures = [exception.NoValidHost(reason='')]

        def scheduled(*args, **kwargs):
            if failures:
                raise failures.pop()
            return schedule(*args, **kwargs)

        return scheduled

    def test_allocations_are_of_a_host_that_runs_it(self):
        self.returned_while_it_deletes_allocations(True)

    def test_record_is_that_of_another_return(self):
        self.returned_while_it_deletes_allocations(False)


class CellTestCase(WeatherBase):

    def setUp(self):
        super().setUp()
        self.asleep = threading.Event()
        self.addCleanup(self.asleep.set)

    def slow(self):
        """Add a cell whose database does not answer."""
        cell = objects.CellMapping(
            nova_context.get_admin_context(), uuid=uuids.slow, name='slow',
            database_connection='none://', transport_url='none://')
        cell.create()
        self.useFixture(fixtures.MonkeyPatch('nova.context.CELL_TIMEOUT', 10))
        original = main_db_api.get_context_manager
        asked = self.asked = []

        def get(context):
            if context.cell_uuid == uuids.slow:
                asked.append(context)
                self.asleep.wait(60)
            return original(context)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.db.main.api.get_context_manager', get))
        target = nova_context.target_cell

        @contextlib.contextmanager
        def targeted(context, one):
            if one is not None and one.uuid == uuids.slow:
                context = nova_context.RequestContext.from_dict(
                    context.to_dict())
                context.cell_uuid = uuids.slow
                yield context
            else:
                with target(context, one) as cctxt:
                    yield cctxt

        self.useFixture(fixtures.MonkeyPatch(
            'nova.context.target_cell', targeted))

    def test_rebuild_asks_no_other_cell(self):
        server = self.waiting()
        self.make_room()
        self.slow()
        self.assertEqual(202, self.ask_rebuild(server))
        self.wait_for(server, 'ACTIVE')
        self.assertEqual([], self.asked)

    def test_recovery_waits_for_the_cell_that_may_have_a_record(self):
        server = self.waiting()
        self.make_room()
        with mock.patch.object(unbuilt_instance, 'purge',
                               side_effect=db_exc.DBConnectionError()) as down:
            self.assertEqual(202, self.ask_rebuild(server))
            # The build asks for it, and so does the return.
            self.until(lambda: self.assertEqual(2, down.call_count))
            self.assertEqual((0, 1), self.recover())
            self.assertEqual(
                'BUILD', self.api.get_server(server['id'])['status'])
        self.assertEqual((1, 0), self.recover())
        self.assertEqual('PENDING', self.until(self.exists, server)['status'])
        self.built(server)
