# SPDX-License-Identifier: Apache-2.0

"""The reaper dies after each of its steps, and another reaper starts."""

from concurrent import futures
import datetime
from unittest import mock

import fixtures
from oslo_utils import timeutils

from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.act import recovery
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.events import bus
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine

EIGHT = {'VCPU': 8, 'MEMORY_MB': 8192}


class Killed(BaseException):
    """SIGKILL: no handler runs."""


class CrashingTestCase(test_engine.EngineTestCase):
    """A host; what works is killed."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)

    def until(self, step: Step, seconds: float = 1.0) -> None:
        """Let it work until a step comes next, and kill it there."""
        actor = self.engine.attempts._actor
        advance = actor.advance

        def killed(current: Attempt) -> Attempt | Outcome:
            if current.step == step:
                raise Killed
            return advance(current)

        with mock.patch.object(actor, 'advance', killed):
            self.assertRaises(Killed, self.turns, 60, seconds)


class CrashTestCase(CrashingTestCase):
    """One waits; another process is started."""

    def fill(self, step: Step) -> None:
        waiting = self.nova.add_server('w', 8)
        self.until(step)
        self.start()
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(EIGHT, self.room.has(waiting))
        self.assertEqual(1, self.actions().count('rebuild'))

    def test_fill_after_the_check(self) -> None:
        self.fill(Step.HOLD)

    def test_fill_after_the_hold(self) -> None:
        self.fill(Step.REBUILD)

    def test_fill_after_the_rebuild(self) -> None:
        self.fill(Step.WATCH)

    def preempt(self, step: Step, slow: bool = False,
                mode: str = 'preempt') -> tuple[str, str]:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.nova.slow = slow
        self.until(step)
        self.conf.set_override('mode', mode, 'reaper')
        self.start()
        return victim, waiting

    def runs(self, victim: str, waiting: str) -> None:
        self.turns(60)
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(victim), self.status(waiting)))
        self.assertEqual(EIGHT, self.room.has(waiting))
        self.assertEqual(1, self.actions().count('rebuild'))

    def undone(self, victim: str, waiting: str) -> None:
        self.turns(20)
        self.assertEqual(('ACTIVE', 'PENDING'),
                         (self.status(victim), self.status(waiting)))
        self.assertEqual(EIGHT, self.room.has(victim))
        self.assertEqual({}, self.room.has(waiting))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])

    def test_after_the_check(self) -> None:
        self.runs(*self.preempt(Step.NOTICE))

    def test_after_the_notice(self) -> None:
        self.runs(*self.preempt(Step.GRACE))

    def test_after_the_grace(self) -> None:
        self.runs(*self.preempt(Step.SWAP))

    def test_after_the_swap(self) -> None:
        self.runs(*self.preempt(Step.END))

    def test_after_the_swap_and_an_option_changes(self) -> None:
        self.nova.add_host('h2', 8)
        other = self.nova.add_server('o', 8, 'h2')
        victim, waiting = self.preempt(Step.END)
        self.nova.slow = True
        self.turns(5)
        # There is room elsewhere by now.
        self.nova.slow = False
        self.nova.finish(other)
        self.nova.slow = True
        self.hint(bus.Kind.HOST, host='h2')
        self.turns(2)
        self.conf.set_override('min_run_time', 7, 'reaper')
        self.turns(5)
        self.assertEqual(
            Step.END, self.engine.attempts.under_way[waiting].step)
        self.nova.finish(victim)
        self.nova.slow = False
        self.runs(victim, waiting)

    def test_after_the_end(self) -> None:
        self.runs(*self.preempt(Step.REBUILD))

    def test_after_the_end_the_answer_to_the_rebuild_is_lost(self) -> None:
        victim, waiting = self.preempt(Step.REBUILD)
        self.nova.before.append(
            ('rebuild', 'action', lambda: self.nova.error(503)))
        for _ in range(60):
            self.turns(1)
            self.assertEqual(EIGHT, self.room.has(waiting))
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([], [
            record for record in self.book.store.find()
            if record.result == 'no_room'])

    def test_after_the_rebuild(self) -> None:
        self.runs(*self.preempt(Step.WATCH))

    def test_then_it_only_observes(self) -> None:
        for step in (Step.GRACE, Step.SWAP, Step.END):
            victim, waiting = self.preempt(step, mode='observe')
            self.undone(victim, waiting)
            self.nova.finish(victim)
            self.nova.finish(waiting)
            self.conf.set_override('mode', 'preempt', 'reaper')
            self.start()

    def test_in_the_middle_of_the_end(self) -> None:
        victim, waiting = self.preempt(Step.END, slow=True)
        self.turns(6)
        self.assertIn(victim, self.nova.servers)
        self.nova.finish(victim)
        self.runs(victim, waiting)

    def test_after_the_swap_the_waiting_one_is_deleted(self) -> None:
        victim, waiting = self.preempt(Step.END)
        self.nova.finish(waiting)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual(EIGHT, self.room.has(victim))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])

    def test_after_the_swap_its_owner_rebuilds_it(self) -> None:
        victim, waiting = self.preempt(Step.END)
        self.nova._rebuild(self.nova.servers[waiting], {})
        self.turns(20)
        # The room is the other's by now: the end goes on.
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(victim), self.status(waiting)))
        self.assertEqual(EIGHT, self.room.has(waiting))

    def test_after_the_swap_its_owner_is_rebuilding_it(self) -> None:
        victim, waiting = self.preempt(Step.END)
        self.nova.servers[waiting]['status'] = 'BUILD'
        self.nova.slow = True
        self.turns(8)
        # The build has the room, or is about to claim the room.
        self.assertEqual(EIGHT, self.room.has(waiting))
        self.assertEqual({}, self.room.has(victim))
        self.assertEqual(['forceDelete'], self.actions())

    def test_then_it_ends_nobody_for_the_build_of_the_owner(self) -> None:
        for mode in ('observe', 'fill'):
            victim, waiting = self.preempt(Step.END, mode=mode)
            self.nova.servers[waiting]['status'] = 'BUILD'
            self.turns(8)
            self.assertEqual('ACTIVE', self.status(victim))
            self.assertEqual(EIGHT, self.room.has(victim))
            self.assertEqual({}, self.room.has(waiting))
            self.nova.finish(victim)
            self.nova.finish(waiting)
            self.conf.set_override('mode', 'preempt', 'reaper')
            self.start()

    def test_then_it_ends_nobody_but_whom_nova_ends_already(self) -> None:
        victim, waiting = self.preempt(Step.END, slow=True, mode='fill')
        self.nova.servers[victim]['OS-EXT-STS:task_state'] = 'deleting'
        self.turns(8)
        self.assertEqual(EIGHT, self.room.has(waiting))
        self.assertEqual({}, self.room.has(victim))
        self.nova.finish(victim)
        self.nova.slow = False
        self.runs(victim, waiting)

    def test_a_victim_that_gets_no_room_again_keeps_its_notice(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        with self.staying_at(Step.END):
            self.turns(10)
        self.nova.finish(waiting)
        with mock.patch.object(self.engine.attempts._actor._holds,
                               'give_back', return_value=[victim]):
            self.turns(3)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertIn('reaper:for', self.nova.servers[victim]['metadata'])
        self.start()
        self.turns(5)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual(EIGHT, self.room.has(victim))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])

    def test_a_guest_that_was_stopped_is_started(self) -> None:
        self.conf.set_override('stop_timeout', 30, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.until(Step.END)
        # It dies right after it has told the guest to shut down.
        self.nova.servers[victim]['status'] = 'SHUTOFF'
        entry = {'request_id': '', 'user_id': 'reaper',
                 'project_id': fakes.SERVICE, 'start_time': fakes.NOW,
                 'message': None}
        # Its owner makes an image then.
        self.nova.servers[victim]['actions'] = [
            entry | {'action': 'stop'},
            entry | {'action': 'createImage', 'project_id': 'owner'}]
        self.nova.servers[victim]['OS-EXT-STS:task_state'] = 'image_uploading'
        self.nova.finish(waiting)
        self.start()
        self.turns(20)
        self.assertEqual('SHUTOFF', self.status(victim))
        self.nova.servers[victim]['OS-EXT-STS:task_state'] = None
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])

    def test_after_the_swap_its_notice_is_deleted(self) -> None:
        """By its owner; it is told again, and the room is not used twice."""
        victim, waiting = self.preempt(Step.END)
        self.nova.servers[victim]['metadata'].clear()
        self.turns(3)
        self.assertEqual(EIGHT, self.room.has(victim))
        self.assertEqual([], self.actions())
        self.runs(victim, waiting)

    def test_after_the_swap_a_victim_of_another_hold_is_left_alone(self
                                                                 ) -> None:
        first, second = (self.nova.add_server('s', size, 'h1',
                                              preemptible=True)
                         for size in (2, 6))
        # The sweep looks at the smaller server first.
        ids = sorted(fakes.new_id() for _ in range(2))
        with mock.patch.object(fakes, 'new_id', iter(ids).__next__):
            waiting = [self.nova.add_server('w', size) for size in (2, 6)]
        with self.staying_at(Step.END):
            self.turns(20)
        self.nova.finish(first)
        self.start()
        for _ in range(40):
            self.turns(1)
            self.assertGreaterEqual(8, sum(
                server['flavor']['vcpus']
                for server in self.nova.servers.values()
                if server['OS-EXT-SRV-ATTR:host'] == 'h1'))
        self.assertEqual([None, 'ACTIVE', 'ACTIVE'],
                         list(map(self.status, (second, *waiting))))

    def test_after_the_swap_its_owner_names_another_server(self) -> None:
        other = self.nova.add_server('o', 2, 'h1')
        victim = self.nova.add_server('s', 6, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 6)
        self.until(Step.END)
        self.nova.servers[victim]['metadata']['reaper:for'] = other
        self.nova.slow = True
        self.start()
        self.turns(40)
        self.assertEqual(('ACTIVE', 'PENDING'),
                         (self.status(victim), self.status(waiting)))

    def test_after_the_swap_another_reaper_deletes_its_notice(self) -> None:
        """One that chose the same server for another that waits."""
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        first = self.nova.add_server('w1', 8)
        killed = self.engine.attempts
        self.nova.slow = True
        self.until(Step.SWAP)
        second = self.nova.add_server('w2', 8)
        self.nova.servers[second]['created'] = '2000-01-01T00:00:00Z'
        actor = self.start().attempts._actor
        advance = actor.advance
        swapped: list[Attempt | Outcome] = []

        def swap_after_the_other(current: Attempt) -> Attempt | Outcome:
            if current.step == Step.SWAP and not swapped:
                self.assertEqual(second, current.id)
                swapped.append(killed._actor.advance(killed.under_way[first]))
            return advance(current)

        with mock.patch.object(actor, 'advance', swap_after_the_other):
            self.turns(20)
        self.assertIsInstance(swapped[0], Attempt)
        self.turns(60, 60)
        running = [server for server in (victim, first, second)
                   if self.status(server) == 'ACTIVE']
        self.assertEqual([EIGHT], [self.room.has(server)
                                   for server in running])

    def test_after_the_swap_the_waiting_one_lands_elsewhere(self) -> None:
        self.nova.add_host('h2', 8)
        other = self.nova.add_server('o', 8, 'h2')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.nova.slow = True
        self.until(Step.END)
        held = self.room.holds.find(waiting)
        assert held
        self.room.placement.write([held.with_amounts({})])
        self.nova.finish(other)
        self.room.allocate(waiting, self.nova.hosts['h2'], 'owner', VCPU=8,
                           MEMORY_MB=8192)
        self.nova.servers[waiting].update({
            'status': 'ACTIVE', 'OS-EXT-SRV-ATTR:host': 'h2'})
        self.start()
        self.turns(60, 60)
        self.assertEqual(EIGHT, self.room.has(victim))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])
        self.assertEqual([], self.actions())

    def test_placement_is_away_as_it_starts_again(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.until(Step.REBUILD)
        self.start()
        with mock.patch.object(
                self.engine._recovery._holds, 'find',
                side_effect=rest.Unavailable('placement', 'GET', 'no')):
            self.turns(3)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_holds_cannot_be_counted_as_it_starts_again(self) -> None:
        self.nova.add_server('w', 8)
        self.until(Step.REBUILD)
        self.start()
        with mock.patch.object(
                self.engine._recovery._placement, 'count_holds',
                side_effect=rest.Unavailable('placement', 'GET', 'no')):
            self.turns(3)
            self.assertFalse(self.engine.recovered)
        self.turns(40)
        self.assertTrue(self.engine.recovered)


class ShutDownTestCase(CrashingTestCase):
    """Somebody is spared while the guest shuts down, which takes a while."""

    options = {'stop_timeout': 60}

    def setUp(self) -> None:
        super().setUp()
        self.victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.waiting = self.nova.add_server('w', 8)
        self.nova.before.append(('os-stop', self.victim, self.stop))
        for _ in range(40):
            self.turns(1)
            if self.task():
                break
        self.assertEqual('powering-off', self.task())
        self.nova.delete(self.waiting)

    def task(self) -> object:
        return self.nova.servers[self.victim].get('OS-EXT-STS:task_state')

    def stop(self) -> fakes.Answer:
        self.nova.servers[self.victim].update({
            'OS-EXT-STS:task_state': 'powering-off', 'actions': [{
                'action': 'stop', 'request_id': '', 'user_id': 'reaper',
                'project_id': fakes.SERVICE, 'start_time': fakes.NOW,
                'message': None}]})
        return fakes.Answer(202, b'')

    def is_started(self) -> None:
        self.turns(5)
        self.assertIn('reaper:for', self.nova.servers[self.victim]['metadata'])
        self.nova.servers[self.victim].update({
            'OS-EXT-STS:task_state': None, 'status': 'SHUTOFF'})
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertEqual({}, self.nova.servers[self.victim]['metadata'])
        self.assertEqual(EIGHT, self.room.has(self.victim))

    def test_by_the_one_that_stopped_it(self) -> None:
        self.is_started()

    def test_by_another(self) -> None:
        self.start()
        self.is_started()


class StrictShutDownTestCase(ShutDownTestCase):

    options = {'stop_timeout': 60, 'strict_accounting': True}


class SweepTestCase(test_engine.EngineTestCase):
    """What nobody works with."""

    options = {'hold_timeout': 900}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.turns(5)

    def hold(self, server: str, **amounts: int) -> None:
        self.room.holds.take(server, {self.nova.hosts['h1']: amounts})

    def test_a_job_waits_until_the_engine_has_done_its_turn(self) -> None:
        waiting = self.nova.add_server('w', 16)
        self.turns(3, 61)
        pool = futures.ThreadPoolExecutor(1)
        self.addCleanup(pool.shutdown)
        with self.engine.lock:
            found = pool.submit(self.engine._recovery._waiting, waiting)
            self.assertRaises(TimeoutError, found.result, 0.2)
        given = found.result(60)
        assert given
        self.assertEqual(waiting, given.id)

    def test_a_part_is_given_free(self) -> None:
        waiting = self.nova.add_server('w', 16)
        self.hold(waiting, VCPU=2)
        self.turns(10, 61)
        self.assertEqual({'VCPU': 2}, self.room.has(waiting))
        self.turns(40, 61)
        self.assertEqual({}, self.room.has(waiting))
        self.assertEqual(1, self.value('holds_swept_total'))

    def test_a_whole_one_of_another_is_left_alone_at_first(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.hold(waiting, VCPU=8, MEMORY_MB=8192)
        self.turns(12, 61)
        self.assertEqual('PENDING', self.status(waiting))
        self.turns(40, 61)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_one_that_was_busy_for_a_moment_is_as_old(self) -> None:
        waiting = self.nova.add_server('w', 16)
        self.hold(waiting, VCPU=2)
        for busy in ((), {waiting}, ()):
            self.assertEqual({'VCPU': 2}, self.room.has(waiting))
            self.engine._recovery.look(
                {waiting}, {waiting}, busy, 900, model.Mode.FILL)
            self.offset += 600
        self.assertEqual({}, self.room.has(waiting))

    def test_one_in_error(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.hold(waiting, VCPU=8)
        self.nova.servers[waiting]['status'] = 'ERROR'
        self.turns(15, 61)
        self.assertEqual({}, self.room.has(waiting))

    def test_one_in_error_that_has_the_room_of_another(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8, status='ERROR')
        self.turns(12, 61)
        # Its notice was deleted, and then it was set to ERROR.
        self.room.holds.swap(
            waiting, {self.nova.hosts['h1']: EIGHT}, None,
            [self.room.placement.consumer(victim)])
        self.turns(15, 61)
        self.assertEqual(({}, EIGHT), (
            self.room.has(waiting), self.room.has(victim)))

    def test_one_in_error_while_attempts_hold_nothing(self) -> None:
        busy = {self.nova.add_server('w', 8) for _ in range(3)}
        waiting = self.nova.add_server('x', 8, status='ERROR')
        self.hold(waiting, VCPU=8)
        self.engine._recovery.look(
            {waiting}, busy, busy, 900, model.Mode.FILL)
        self.assertEqual({}, self.room.has(waiting))

    def test_one_in_error_that_an_attempt_is_for(self) -> None:
        waiting = self.nova.add_server('x', 8, status='ERROR')
        self.hold(waiting, VCPU=8)
        self.hold(fakes.new_id(), MEMORY_MB=1)
        self.engine._recovery.look(
            {waiting}, (), {waiting}, 900, model.Mode.FILL)
        # Its victims are given their room again first.
        self.assertEqual({'VCPU': 8}, self.room.has(waiting))

    def test_what_attempts_hold_is_not_looked_for(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.hold(waiting, VCPU=8)
        with mock.patch.object(self.nova.nova, 'ids') as ids:
            self.engine._recovery.look(
                {waiting}, {waiting}, {waiting}, 900, model.Mode.FILL)
        ids.assert_not_called()

    def test_of_one_that_was_deleted(self) -> None:
        server = fakes.new_id()
        self.hold(server, VCPU=2)
        self.turns(20, 61)
        # Another reaper may be about to give it free.
        self.assertEqual({'VCPU': 2}, self.room.has(server))
        self.assertEqual(1, self.value('holds'))
        self.turns(20, 61)
        self.assertEqual({}, self.room.has(server))
        self.assertEqual(1, self.value('holds_swept_total'))
        # Where nothing is left nothing is looked for.
        with mock.patch.object(self.nova.nova, 'ids') as ids:
            self.turns(20, 61)
        ids.assert_not_called()

    def test_of_one_that_was_deleted_while_no_reaper_ran(self) -> None:
        server = fakes.new_id()
        self.hold(server, VCPU=2)
        self.start()
        self.turns(5)
        self.assertEqual({}, self.room.has(server))

    def test_of_one_that_nova_builds(self) -> None:
        server = self.nova.add_server('w', 8, status='BUILD')
        self.hold(server, VCPU=2)
        self.turns(25, 61)
        self.assertEqual({'VCPU': 2}, self.room.has(server))
        # It hangs, and needs no room of anybody.
        self.turns(40, 61)
        self.assertEqual({}, self.room.has(server))

    def test_those_that_were_deleted_are_looked_for_bit_by_bit(self) -> None:
        self.useFixture(fixtures.MockPatchObject(recovery, 'LOOKS', 3))
        provider = self.nova.hosts['h1']
        migrations = sorted(fakes.new_id() for _ in range(8))
        for consumer in migrations[:7]:
            self.room.allocate(consumer, provider, 'owner', VCPU=1)
        # The last in the order in which they are asked for.
        self.hold(migrations[7], VCPU=1)
        log = self.room.adapter.log
        for count in (3, 3, 2):
            self.assertEqual({'VCPU': 1}, self.room.has(migrations[7]))
            del log[:]
            self.engine._recovery.look(
                set(migrations), (), (), 900, model.Mode.FILL)
            self.assertEqual(count, len([
                path for _, path in log if path.startswith('/allocations/')]))
        self.offset += 901
        self.engine._recovery.look(
            set(migrations), (), (), 900, model.Mode.FILL)
        self.assertEqual({}, self.room.has(migrations[7]))
        self.assertEqual({'VCPU': 1}, self.room.has(migrations[0]))

    def test_nova_does_not_list_its_servers(self) -> None:
        server = fakes.new_id()
        self.hold(server, VCPU=2)
        with mock.patch.object(
                self.nova.nova, 'ids',
                side_effect=rest.Unavailable('nova', 'x', 'no')):
            self.turns(60, 61)
        self.assertEqual({'VCPU': 2}, self.room.has(server))

    def test_an_allocation_of_a_server_is_none(self) -> None:
        server = self.nova.add_server('s', 4, 'h1')
        self.turns(40, 61)
        self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                         self.room.has(server))

    def test_another_starts_while_a_notice_runs(self) -> None:
        self.conf.set_override('grace_period', 120, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_server('w', 8)
        server = self.nova.servers[victim]
        self.until_noticed(victim)
        notice = dict(server['metadata'])
        second = self.start()
        with mock.patch.object(second.attempts._actor, 'advance',
                               lambda current: current):
            self.turns(5)
        self.assertEqual(notice, server['metadata'])
        # The notice may be that of a dead reaper; an owner's does not count.
        for time in ('2026-01-01T00:00:00Z', '2100-01-01T00:00:00Z', 'soon'):
            server['metadata'] = notice | {'reaper:terminate_at': time}
            self.start()
            with mock.patch.object(self.engine.attempts._actor, 'advance',
                                   lambda current: current):
                self.turns(5)
            self.assertEqual({}, server['metadata'])
        server['metadata'] = notice
        self.conf.set_override('mode', 'fill', 'reaper')
        self.start()
        self.turns(5)
        self.assertEqual({}, server['metadata'])

    def until_noticed(self, victim: str) -> None:
        for _ in range(200):
            self.turns(1, 5)
            if 'reaper:for' in self.nova.servers[victim]['metadata']:
                return
        self.fail('It gets no notice.')

    def noticed(self) -> tuple[str, dict[str, str]]:
        """A server under notice by a reaper that is killed, its metadata."""
        self.conf.set_override('grace_period', 120, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.until_noticed(victim)
        self.nova.finish(waiting)
        metadata: dict[str, str] = self.nova.servers[victim]['metadata']
        self.start()
        self.turns(10)
        self.assertIn('reaper:for', metadata)
        return victim, metadata

    def past(self) -> str:
        now: datetime.datetime = timeutils.utcnow(True)
        return (now - datetime.timedelta(seconds=1)).isoformat()

    def test_a_notice_runs_out_that_nobody_acts_upon(self) -> None:
        victim, metadata = self.noticed()
        metadata['reaper:terminate_at'] = self.past()
        self.turns(13, 10)
        self.assertIn('reaper:for', metadata)
        self.turns(5, 10)
        self.assertEqual({}, metadata)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual(1, self.value('notices_total', result='withdrawn'))
        self.assertFalse(self.engine._recovery.is_late)

    def test_a_notice_is_given_anew(self) -> None:
        _victim, metadata = self.noticed()
        metadata['reaper:terminate_at'] = (
            timeutils.utcnow(True) + datetime.timedelta(
                seconds=200)).isoformat()
        self.turns(21, 10)
        self.assertIn('reaper:for', metadata)
        metadata['reaper:terminate_at'] = self.past()
        self.turns(10, 10)
        self.assertEqual({}, metadata)

    def test_a_notice_runs_out_and_the_room_was_taken(self) -> None:
        victim, metadata = self.noticed()
        metadata['reaper:terminate_at'] = self.past()
        self.room.placement.write([
            self.room.placement.consumer(victim).with_amounts({})])
        self.turns(20, 10)
        self.assertIn('reaper:for', metadata)

    def test_a_notice_runs_out_while_nova_does_not_answer(self) -> None:
        victim, metadata = self.noticed()
        metadata['reaper:terminate_at'] = self.past()
        self.nova.before += [('GET', victim,
                              lambda: self.nova.error(503))] * 3
        self.turns(18, 10)
        self.assertIn('reaper:for', metadata)
        self.turns(10, 10)
        self.assertEqual({}, metadata)

    def test_a_notice_runs_out_of_what_an_attempt_is_to_end(self) -> None:
        victim, metadata = self.noticed()
        metadata['reaper:terminate_at'] = self.past()
        self.offset += 200
        waiting = self.nova.add_server('w', 8)
        current = mock.Mock(victims=(mock.Mock(id=victim),), id=waiting)
        for attempts in ([current], [current], []):
            self.assertIn('reaper:for', metadata)
            self.engine._recovery.withdraw_late(attempts)
            self.offset += 60
        self.assertEqual({}, metadata)

    def test_one_that_its_owner_has_unshelved(self) -> None:
        server = self.nova.servers[self.nova.add_server(
            's', 4, 'h1', preemptible=True)]
        for more in ({}, {'reaper:for': server['id']}):
            server['metadata'] = {'reaper:shelved_at': fakes.NOW} | more
            self.turns(12, 61)
            # Who is under notice may be about to be shelved.
            self.assertEqual(bool(more), 'reaper:shelved_at' in server[
                'metadata'])

    def test_a_withdrawal_that_was_interrupted(self) -> None:
        server = self.nova.servers[self.nova.add_server(
            's', 4, 'h1', preemptible=True)]
        server['metadata'] = {'reaper:for': fakes.new_id(), 'mine': 'x'}
        self.start()
        self.turns(10)
        self.assertEqual({'mine': 'x'}, server['metadata'])

    def test_two_reapers_and_a_notice(self) -> None:
        """The second leaves alone what the first works with."""
        self.conf.set_override('grace_period', 100000, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_server('w', 8)
        self.turns(15, 61)
        self.assertIn('reaper:for', self.nova.servers[victim]['metadata'])
        first = self.engine
        second = self.start()
        self.turns(1)
        for _ in range(5):
            for self.engine in (first, second):
                self.turns(1)
        self.assertEqual('ACTIVE', self.status(victim))
