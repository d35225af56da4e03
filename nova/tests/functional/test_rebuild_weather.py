#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

"""Rebuilds in cell0 while services hang, answer late or answer twice."""

import contextlib
import datetime
import threading
from unittest import mock

import fixtures
from oslo_db import exception as db_exc
import oslo_messaging as messaging
from oslo_utils import fixture as utils_fixture
from oslo_utils.fixture import uuidsentinel as uuids
from oslo_utils import timeutils
from oslo_utils import uuidutils

from nova.cmd import manage
from nova.compute import rpcapi
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.conductor import cell0_rebuild
from nova.conductor import manager
from nova.conductor import rebuild_log
from nova.conductor import rpcapi as conductor_rpcapi
from nova.conductor.tasks import cell0_claim
from nova.conductor.tasks import return_to_cell0
import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova import objects
from nova.scheduler.client import query
from nova.tests.functional import rebuild_races

CONF = nova.conf.CONF

SELECT = 'nova.scheduler.client.query.SchedulerQueryClient.select_destinations'


class WeatherBase(rebuild_races.RacesBase):

    def allocations(self, server):
        return self.report_client.get_allocations_for_consumer(
            nova_context.get_admin_context(), server['id'])

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

    def late(self, times=1):
        """Let a scheduler answer when nobody waits any more."""
        released = query.SchedulerQueryClient.select_destinations

        def select(client, *args, **kwargs):
            if len(self.selects) < times:
                self.selects.append(lambda: released(client, *args, **kwargs))
                raise messaging.MessagingTimeout()
            return released(client, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(SELECT, select))

    def timed_out(self, state):
        server = self.waiting()
        if state == 'ERROR':
            self.assertEqual(202, self.ask_reset(server))
        self.make_room()
        self.late()
        self.assertEqual(202, self.ask_rebuild(server))
        self.assertEqual(state, self.until(self.exists, server)['status'])
        return server

    def test_server_that_waited_waits_again(self):
        self.timed_out('PENDING')

    def test_server_in_error_stays_there(self):
        self.timed_out('ERROR')

    def test_late_claim_is_taken_back(self):
        server = self.timed_out('PENDING')
        self.selects[0]()
        self.assertNotEqual({}, self.allocations(server))
        self.recover()
        self.assertEqual({}, self.allocations(server))
        self.built(server)
        self.until(self.exists, server)

    def test_claim_that_is_later_than_a_look_is_taken_back(self):
        server = self.timed_out('PENDING')
        # The request of a scheduler that is down stays on the bus.
        self.begun_ago(CONF.long_rpc_timeout)
        self.recover()
        self.selects[0]()
        self.assertNotEqual({}, self.allocations(server))
        self.recover()
        self.assertEqual({}, self.allocations(server))
        self.assertEqual(1, self.begun_ago(
            CONF.long_rpc_timeout + CONF.rpc_response_timeout + 1))
        self.recover()
        self.assertEqual(0, self.begun_ago(0))

    def begun_ago(self, seconds):
        """Set when all rebuilds began; return how many there are."""
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell0']) as cctxt:
            with main_db_api.get_context_manager(cctxt).writer.using(
                    cctxt) as session:
                return session.query(main_models.TaskLog).filter_by(
                    task_name='rebuild_in_cell0').update({
                        'period_ending': timeutils.utcnow() -
                        datetime.timedelta(seconds=seconds)})

    def begun(self):
        return list(rebuild_log.begun(
            nova_context.get_admin_context(), self.cell_mappings['cell0'],
            timeutils.utcnow() + datetime.timedelta(seconds=1)))

    def test_nothing_is_left_to_look_at_with_recovery_off(self):
        self.flags(rebuild_in_cell0_timeout=0, group='conductor')
        server = self.waiting()
        self.make_room()
        for step, exc in (
                ('_recheck_quota', exception.TooManyInstances(
                    overs='cores', req=1, used=1, allowed=1)),
                ('_create_and_bind_arq_for_instance',
                 exception.AcceleratorRequestOpFailed(op='bind', msg='x'))):
            with mock.patch.object(manager.ComputeTaskManager, step,
                                   side_effect=exc):
                self.assertEqual(202, self.ask_rebuild(server))
                self.until(self.exists, server)
            self.until(lambda: self.assertEqual([], self.begun()))
        answers, _patch = self.meeting(
            (manager.ComputeTaskManager, '_recheck_quota'),
            lambda: self.ask_delete(server))
        self.assertEqual(202, self.ask_rebuild(server))
        self.until(lambda: self.assertEqual([204], answers))
        self.until(lambda: self.assertEqual([], self.begun()))
        self.until(self.is_gone, server)

    def test_reset_before_what_was_allocated_is_deleted(self):
        server = self.waiting()
        self.make_room()
        released = cell0_claim._is_claimed
        end, ended = cell0_rebuild.Rebuild.end, threading.Event()

        def reset(*args):
            self.together(lambda: self.ask_reset(server))
            return released(*args)

        def note(rebuild):
            end(rebuild)
            ended.set()

        with mock.patch.object(
                manager.ComputeTaskManager, '_recheck_quota',
                side_effect=exception.TooManyInstances(
                    overs='cores', req=1, used=1, allowed=1)
        ), mock.patch.object(
            cell0_claim, '_is_claimed', reset
        ), mock.patch.object(cell0_rebuild.Rebuild, 'end', note):
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(lambda: self.assertTrue(ended.is_set()))
        self.assertEqual('ERROR', self.admin_api.get_server(
            server['id'])['status'])
        self.assertNotEqual({}, self.allocations(server))
        self.recover()
        self.assertEqual({}, self.allocations(server))

    def test_late_claim_that_meets_the_next_build(self):
        server = self.timed_out('PENDING')
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
        released = query.SchedulerQueryClient.select_destinations

        def select(client, context, request_spec, *args, **kwargs):
            name = objects.ComputeNode.get_by_uuid(
                self.in_cell1(context), provider).host
            request_spec.ignore_hosts = [name]
            return released(client, context, request_spec, *args, **kwargs)

        return select

    def in_cell1(self, context):
        context = nova_context.get_admin_context()
        nova_context.set_target_cell(context, self.cell_mappings['cell1'])
        return context

    def claimed_elsewhere(self, server):
        """Let a server that was built have another host instead of its own.
        """
        allocations = self.report_client.get_allocs_for_consumer(
            nova_context.get_admin_context(), server['id'])
        [(own, allocation)] = allocations['allocations'].items()
        self._start_compute('other')
        other = objects.ComputeNode.get_by_host_and_nodename(
            self.in_cell1(None), 'other', 'other')
        allocations['allocations'] = {
            other.uuid: {'resources': allocation['resources']}}
        self.report_client.put_allocations(
            nova_context.get_admin_context(), server['id'], allocations)
        self.assertEqual([other.uuid], list(self.allocations(server)))
        return own, allocation['resources']

    def test_claim_that_has_taken_the_place_of_that_of_the_server(self):
        server = self.timed_out('PENDING')
        self.built(server)
        own, resources = self.claimed_elsewhere(server)
        self.recover()
        self.assertEqual({own: resources}, {
            provider: allocation['resources'] for provider, allocation
            in self.allocations(server).items()})

    def test_claim_in_the_place_of_that_of_a_server_without_room(self):
        server = self.timed_out('PENDING')
        self.built(server)
        own, resources = self.claimed_elsewhere(server)
        with mock.patch.object(self.report_client, 'put_allocations',
                               return_value=False):
            self.recover()
        self.assertNotIn(own, self.allocations(server))
        self.assertNotEqual([], self.begun())
        self.recover()
        self.assertEqual([own], list(self.allocations(server)))

    def claimed_late(self, server):
        """Let a server that was built have another host; return its own."""
        [own] = self.allocations(server)
        self._start_compute('other')
        allocations = self.report_client.get_allocs_for_consumer(
            nova_context.get_admin_context(), server['id'])
        other = objects.ComputeNode.get_by_host_and_nodename(
            self.in_cell1(None), 'other', 'other')
        allocations['allocations'][other.uuid] = {
            'resources': allocations['allocations'][own]['resources']}
        allocations['allocations'][own].pop('generation')
        self.report_client.put_allocations(
            nova_context.get_admin_context(), server['id'], allocations)
        self.assertEqual(2, len(self.allocations(server)))
        return own

    def test_claim_that_comes_when_the_server_runs(self):
        server = self.timed_out('PENDING')
        self.built(server)
        own = self.claimed_late(server)
        self.recover()
        self.assertEqual([own], list(self.allocations(server)))
        self.assertEqual('roomy', self.admin_api.get_server(
            server['id'])['OS-EXT-SRV-ATTR:host'])

    def test_claim_that_comes_when_the_server_is_stopped(self):
        server = self.timed_out('PENDING')
        self.built(server)
        self.api.post_server_action(server['id'], {'os-stop': {}})
        self.wait_for(server, 'SHUTOFF')
        own = self.claimed_late(server)
        self.recover()
        self.assertEqual([own], list(self.allocations(server)))

    def test_claim_that_comes_while_something_is_done_with_the_server(self):
        server = self.timed_out('PENDING')
        self.built(server)
        own = self.claimed_late(server)
        instance = objects.Instance.get_by_uuid(
            self.in_cell1(None), server['id'])
        migration = objects.Migration(
            instance._context, instance_uuid=server['id'], status='done',
            migration_type='evacuation', source_compute='other',
            source_node='other')
        migration.create()
        self.still_claimed(server)
        migration.status = 'completed'
        migration.save()
        instance.task_state = task_states.IMAGE_SNAPSHOT
        instance.save()
        self.still_claimed(server)
        instance.task_state = None
        instance.save()
        self.begun_ago(datetime.timedelta(hours=23).total_seconds())
        self.recover()
        self.assertEqual([own], list(self.allocations(server)))
        self.assertEqual([], self.begun())

    def test_claims_that_are_told_apart_for_a_day(self):
        server = self.timed_out('PENDING')
        self.built(server)
        self.claimed_late(server)
        instance = objects.Instance.get_by_uuid(
            self.in_cell1(None), server['id'])
        instance.task_state = task_states.IMAGE_SNAPSHOT
        instance.save()
        self.begun_ago(datetime.timedelta(hours=25).total_seconds())
        self.recover()
        self.assertEqual([], self.begun())
        self.assertEqual(2, len(self.allocations(server)))

    def still_claimed(self, server):
        """What may be the server's stays, and so does the entry."""
        self.begun_ago(datetime.timedelta(hours=23).total_seconds())
        self.recover()
        self.assertEqual(2, len(self.allocations(server)))
        self.assertNotEqual([], self.begun())


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

    def test_message_that_comes_twice_in_one_second(self):
        """MySQL stores no more of a time, and the entries are unique."""
        context = nova_context.get_admin_context()
        in_cell0 = self.cell_mappings['cell0']
        self.useFixture(utils_fixture.TimeFixture())
        first = rebuild_log.begin(context, in_cell0, uuids.server)
        second = rebuild_log.begin(context, in_cell0, uuids.server)
        rebuild_log.end(context, in_cell0, second)
        [[entry]] = rebuild_log.begun(
            context, in_cell0,
            timeutils.utcnow() + datetime.timedelta(seconds=1))
        self.assertEqual(first, entry.id)

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
        answers = []

        def told(*args, **kwargs):
            if not answers:
                answers.extend(
                    self.together(lambda: self.ask_rebuild(server)))
            return tell(*args, **kwargs)

        tell = compute_utils.notify_about_compute_task_error
        with mock.patch.object(
                compute_utils, 'notify_about_compute_task_error', told):
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(lambda: self.assertEqual([202], answers))
            self.assertEqual(
                'PENDING', self.until(self.exists, server)['status'])

    def test_accelerators_that_cannot_be_bound(self):
        server = self.waiting()
        self.make_room()
        with mock.patch.object(
                manager.ComputeTaskManager,
                '_create_and_bind_arq_for_instance',
                side_effect=exception.AcceleratorRequestOpFailed(
                    op='bind', msg='down')):
            self.assertEqual(202, self.ask_rebuild(server))
            shown = self.until(self.exists, server)
        self.assertEqual('PENDING', shown['status'])
        self.assertIn('down', shown['fault']['message'])
        self.assertEqual(202, self.ask_rebuild(server))
        self.wait_for(server, 'ACTIVE')
        self.until(self.exists, server)

    def test_stock_conductor_that_comes_late(self):
        """It would destroy the mapping of a server that was put back."""
        self.flags(conductor='3.0', group='upgrade_levels')
        server = self.waiting()
        with mock.patch.object(conductor_rpcapi.ComputeTaskAPI,
                               'schedule_and_build_instances'):
            self.assertEqual(202, self.ask_rebuild(server))
        self.assertEqual((0, 0), self.recover())
        self.assertEqual('BUILD', self.api.get_server(server['id'])['status'])
        # A conductor that was not told of the pin.
        self.flags(conductor=None, group='upgrade_levels')
        self.assertEqual((0, 0), self.recover())
        # And its operator, who knows that no message is left.
        self.assertEqual((1, 0), self.recover_all())
        self.until(self.exists, server)

    def recover_all(self):
        return rebuild_races.recover_rebuilds.recover(
            nova_context.get_admin_context(), self.report_client, -1,
            including_pinned=True)


class CellTestCase(WeatherBase):

    def setUp(self):
        super().setUp()
        self.asleep = threading.Event()
        self.addCleanup(self.asleep.set)

    def slow(self, error=None):
        """Add a cell whose database does not answer.

        :param error: what a look at it ends in at once, if it does
        """
        cell = objects.CellMapping(
            nova_context.get_admin_context(), uuid=uuids.slow, name='slow',
            database_connection='none://', transport_url='none://')
        cell.create()
        self.useFixture(fixtures.MonkeyPatch('nova.context.CELL_TIMEOUT', 10))
        released = main_db_api.get_context_manager
        asked = self.asked = []

        def get(context):
            if context.cell_uuid == uuids.slow:
                asked.append(context)
                if error is not None:
                    raise error
                self.asleep.wait(60)
            return released(context)

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

    def test_recovery_does_without_a_cell_that_does_not_answer(self):
        server = self.waiting()
        self.make_room()
        self.slow()

        def die(rebuild, selection):
            selection.cell_uuid = uuids.slow
            select(rebuild, selection)
            raise ZeroDivisionError()

        select = cell0_rebuild.Rebuild.select
        with mock.patch.object(return_to_cell0, 'from_rebuild'), \
                mock.patch.object(cell0_rebuild.Rebuild, 'select', die), \
                mock.patch.object(cell0_rebuild.Rebuild, 'end') as ended:
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(ended.assert_called)
        self.assertEqual((1, 0), self.recover())
        self.assertEqual('PENDING', self.until(self.exists, server)['status'])
        self.assertEqual(1, len(self.asked))
        self.asleep.set()

    def test_cell_that_does_not_answer_keeps_nobody_from_recovery(self):
        self.begun_in_slow_cell()

    def test_cell_that_is_down_keeps_nobody_from_recovery(self):
        self.begun_in_slow_cell(db_exc.DBConnectionError())

    def begun_in_slow_cell(self, error=None):
        server = self.waiting()
        self.make_room()
        context = nova_context.get_admin_context()
        for _number in range(3):
            rebuild_log.set_cell(
                context, self.cell_mappings['cell0'], rebuild_log.begin(
                    context, self.cell_mappings['cell0'],
                    uuidutils.generate_uuid()), uuids.slow)
        with mock.patch.object(rpcapi.ComputeAPI, 'build_and_run_instance',
                               side_effect=ZeroDivisionError()) as down:
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(down.assert_called)
        self.slow(error)
        self.useFixture(fixtures.MonkeyPatch(
            'nova.conductor.rebuild_log._PAGE', 2))
        self.assertEqual((1, 3), self.recover())
        self.assertEqual('PENDING', self.until(self.exists, server)['status'])
        self.assertEqual(1, len(self.asked))
        self.asleep.set()
