# SPDX-License-Identifier: Apache-2.0

"""Preemptible servers are ended for a waiting server, or nobody is."""

import dataclasses
import datetime
from typing import Any
from unittest import mock

from oslo_utils import timeutils

from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.tests import acting
from nova_reaper.tests import fakes

PAST = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
FOUR = {'VCPU': 4, 'MEMORY_MB': 4096}
SIX = {'VCPU': 6, 'MEMORY_MB': 6144}


class FullHostTestCase(acting.ActingTestCase):
    """A full host with two preemptible servers; a larger one waits."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.victims = tuple(
            self.nova.add_server(f's{number}', 4, 'h1', preemptible=True)
            for number in (1, 2))
        self.waiting = self.nova.add_server('w', 6)

    def start(self, **changes: Any) -> Attempt:
        return self.begin(self.waiting, victims=self.victims, **changes)

    def status(self, server: str) -> str | None:
        return self.nova.servers.get(server, {}).get('status')

    def nobody_was_ended(self) -> None:
        for victim in self.victims:
            self.assertEqual('ACTIVE', self.status(victim))
            self.assertEqual(FOUR, self.room.has(victim))
            self.assertEqual(set(), fakes.NOTICE & self.nova.servers[
                victim]['metadata'].keys())
        self.assertEqual({}, self.room.has(self.waiting))


class PreemptTestCase(FullHostTestCase):
    """Without a time of grace."""

    def test_it_runs(self) -> None:
        outcome = self.outcome(self.start())
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(SIX, self.room.has(self.waiting))
        self.assertEqual({self.waiting}, set(self.nova.servers))
        self.assertEqual(['forceDelete', 'forceDelete', 'rebuild'],
                         self.actions())
        self.assertEqual(2, self.value('victims_total', action='delete'))
        self.assertEqual(2, outcome.attempt.ended)

    def test_the_notice(self) -> None:
        current = self.at(Step.GRACE, self.start())
        for victim in self.victims:
            metadata = self.nova.servers[victim]['metadata']
            self.assertEqual(self.waiting, metadata['reaper:for'])
            self.assertRegex(metadata['reaper:terminate_at'],
                             r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$')
        self.assertIsNotNone(current.terminate_at)
        self.assertEqual([], self.actions())

    def test_the_room_changes_hands_before_anybody_ends(self) -> None:
        self.at(Step.END, self.start())
        self.assertEqual([], self.actions())
        self.assertEqual(SIX, self.room.has(self.waiting))
        for victim in self.victims:
            self.assertEqual({}, self.room.has(victim))

    def test_nobody_for_one_over_quota(self) -> None:
        self.nova.reason[self.waiting] = 'quota'
        outcome = self.outcome(self.start())
        self.assertEqual((Result.REFUSED, model.Reason.QUOTA),
                         (outcome.result, outcome.reason))
        self.nobody_was_ended()

    def test_nobody_for_one_that_is_over_quota_after_the_notice(self) -> None:
        current = self.at(Step.SWAP, self.start())
        self.nova.reason[self.waiting] = 'quota'
        outcome = self.outcome(current)
        self.assertEqual((Result.REFUSED, model.Reason.QUOTA),
                         (outcome.result, outcome.reason))
        self.nobody_was_ended()

    def test_nobody_for_one_that_filters_refuse(self) -> None:
        self.nova.refused_by['h1'] = 'ImagePropertiesFilter'
        self.assertEqual(Result.REFUSED, self.outcome(self.start()).result)
        self.nobody_was_ended()

    def test_nobody_in_another_mode(self) -> None:
        for step in (None, Step.NOTICE, Step.GRACE, Step.SWAP):
            self.mode = model.Mode.PREEMPT
            current = self.start()
            if step:
                current = self.at(step, current)
            self.mode = model.Mode.FILL
            self.assertEqual(Result.WITHDRAWN, self.outcome(current).result)
            self.nobody_was_ended()

    def test_a_victim_is_not_what_it_was(self) -> None:
        for changes in ({'status': 'RESIZE'}, {'flavor': None},
                        {'OS-EXT-STS:task_state': 'rebooting'},
                        {'OS-EXT-SRV-ATTR:host': 'h2'}):
            server = self.nova.servers[self.victims[0]]
            before = dict(server)
            if 'flavor' in changes:
                changes = {'flavor': server['flavor'] | {'extra_specs': {}}}
            server.update(changes)
            outcome = self.outcome(self.start())
            self.assertEqual(Result.CONFLICT, outcome.result)
            server.update(before)
            self.nobody_was_ended()

    def test_locked_by_an_administrator_after_the_notice(self) -> None:
        for project, result in (('admins', Result.CONFLICT),
                                ('owner', Result.ACTIVE)):
            server = self.nova.servers[self.victims[0]]
            server['locked'] = False
            current = self.at(Step.SWAP, self.start())
            server |= {'locked': True, 'updated': f'2100-01-0{len(project)}',
                       'actions': [{
                           'action': 'lock', 'request_id': '',
                           'user_id': 'somebody', 'project_id': project,
                           'start_time': fakes.NOW, 'message': None}]}
            self.assertEqual(result, self.outcome(current).result)
            if result == Result.CONFLICT:
                self.nobody_was_ended()

    def test_a_victim_cannot_be_told(self) -> None:
        self.nova.before.append((
            'metadata', self.victims[1], lambda: self.nova.error(409)))
        self.assertEqual(Result.CONFLICT, self.outcome(self.start()).result)
        self.nobody_was_ended()

    def test_its_owner_reads_of_nobody_else(self) -> None:
        for step, what, method in (
                (Step.NOTICE, self.nova.nova, 'set_metadata'),
                (Step.SWAP, self.room.holds, 'swap')):
            current = self.at(step, self.start())
            with mock.patch.object(what, method, side_effect=rest.Conflict(
                    'nova', 'POST', f'{self.victims[0]} is locked')):
                outcome = self.outcome(current)
            self.assertEqual(Result.CONFLICT, outcome.result)
            self.assertNotIn(self.victims[0], outcome.detail)
            self.nobody_was_ended()

    def test_a_victim_is_told_and_the_answer_lost(self) -> None:
        def told() -> fakes.Answer:
            self.nova.servers[self.victims[1]]['metadata'].update({
                'reaper:terminate_at': fakes.NOW, 'reaper:for': self.waiting})
            return self.nova.error(504)

        self.nova.before.append(('metadata', self.victims[1], told))
        self.assertEqual(Result.CONFLICT, self.outcome(self.start()).result)
        self.nobody_was_ended()

    def test_a_victim_that_nova_does_not_end_at_all(self) -> None:
        for status in (400, 403):
            self.nova.before += 500 * [
                ('forceDelete', self.victims[1],
                 lambda status=status: self.nova.error(status))]
            outcome = self.outcome(self.start())
            self.assertEqual((Result.STUCK, (self.victims[1],)),
                             (outcome.result, outcome.avoid))
            self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                             self.room.has(self.victims[1]))
            self.assertEqual({}, self.room.has(self.waiting))
            self.nova.before.clear()
            self.victims = self.nova.add_server(
                's1', 4, 'h1', preemptible=True), self.victims[1]

    def test_nova_does_not_end_the_first_victim_at_all(self) -> None:
        self.nova.before += 500 * [
            ('forceDelete', self.victims[0], lambda: self.nova.error(403))]
        outcome = self.outcome(self.start())
        self.assertEqual((Result.STUCK, self.victims[:1]),
                         (outcome.result, outcome.avoid))
        self.nobody_was_ended()

    def test_free_room_after_all(self) -> None:
        self.nova.finish(self.victims[0])
        self.room.placement.write([self.room.placement.consumer(
            self.victims[1]).with_amounts({
                self.nova.hosts['h1']: {'VCPU': 1}})])
        current = dataclasses.replace(
            self.begin(self.waiting, victims=self.victims[1:]))
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)
        self.assertEqual('ACTIVE', self.status(self.victims[1]))
        self.assertEqual(['rebuild'], self.actions())

    def test_one_of_them_is_enough_meanwhile(self) -> None:
        current = self.at(Step.SWAP, self.start())
        # The second became smaller: without the first there is room enough.
        consumer = self.room.placement.consumer(self.victims[1])
        self.room.placement.write([consumer.with_amounts({
            self.nova.hosts['h1']: {'VCPU': 1, 'MEMORY_MB': 1}})])
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)
        self.assertEqual('ACTIVE', self.status(self.victims[1]))
        self.assertEqual({}, self.nova.servers[self.victims[1]]['metadata'])
        self.assertIsNone(self.status(self.victims[0]))

    def test_who_was_spared_has_no_notice_any_more(self) -> None:
        current = self.at(Step.SWAP, self.start())
        provider = self.nova.hosts['h1']
        spared, kept = self.victims
        self.room.placement.write([
            self.room.placement.consumer(spared).with_amounts(
                {provider: {'VCPU': 2, 'MEMORY_MB': 2048}})])
        look = self.room.placement.consumer

        def fail(server: str) -> placement.Consumer:
            if server == kept:
                raise rest.Unavailable('placement', 'GET', 'no', 503)
            return look(server)

        # Each step begins with what the step before it has left.
        with mock.patch.object(self.room.placement, 'consumer', fail):
            for _step in range(3):
                current = self.actor.advance(  # type: ignore[assignment]
                    current)
        self.assertEqual({}, self.nova.servers[spared]['metadata'])
        # Without the end of both there is not room enough any more.
        self.room.allocate(fakes.new_id(), provider, 'x', VCPU=2,
                           MEMORY_MB=2048)
        self.assertEqual(Result.CONFLICT, self.outcome(current).result)
        self.assertEqual([], self.actions())
        self.assertEqual({'VCPU': 2, 'MEMORY_MB': 2048},
                         self.room.has(spared))
        # Each of the two victims has had its notice withdrawn once.
        self.assertEqual(2, self.value('notices_total', result='withdrawn'))

    def test_a_swap_that_loses(self) -> None:
        current = self.at(Step.SWAP, self.start())

        def steal() -> None:
            # Right before the swap, after the last look at the host.
            consumer = self.room.placement.consumer(self.victims[0])
            self.room.placement.write([consumer])

        held = self.room.holds.swap

        def swap(*args: Any) -> Any:
            steal()
            return held(*args)

        setattr(self.room.holds, 'swap', swap)
        outcome = self.outcome(current)
        self.assertEqual(Result.CONFLICT, outcome.result)
        self.assertEqual(1, self.value('conflicts_total', step='swap'))
        self.nobody_was_ended()

    def test_two_reapers_and_the_same_victims(self) -> None:
        other = self.nova.add_server('x', 6)
        first = self.at(Step.SWAP, self.start())
        # The other reaper has read the victims before the notice.
        second = dataclasses.replace(
            first, waiting=self.begin(other).waiting)
        self.assertEqual(Result.ACTIVE, self.outcome(first).result)
        self.assertEqual(Result.CONFLICT, self.outcome(second).result)
        self.assertEqual('PENDING', self.status(other))
        self.assertEqual({}, self.room.has(other))
        self.assertEqual(SIX, self.room.has(self.waiting))

    def test_the_notice_of_another_reaper_stays(self) -> None:
        current = self.at(Step.SWAP, self.start())
        other = self.nova.add_server('w2', 6)
        for victim in self.victims:
            self.nova.servers[victim]['metadata']['reaper:for'] = other
        self.nova.finish(self.waiting)
        self.assertEqual(Result.GONE, self.outcome(current).result)
        for victim in self.victims:
            self.assertEqual(other, self.nova.servers[victim]['metadata'][
                'reaper:for'])

    def test_two_reapers_and_the_same_server(self) -> None:
        first = self.at(Step.SWAP, self.start())
        late = self.at(Step.END, first)
        second = self.at(Step.END, first)
        # What the first one needs if it starts again stands.
        for victim in self.victims:
            self.assertLessEqual(
                fakes.NOTICE, self.nova.servers[victim]['metadata'].keys())
        self.assertEqual(SIX, self.room.has(self.waiting))
        self.assertEqual(Result.ACTIVE, self.outcome(late).result)
        self.outcome(second)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual(SIX, self.room.has(self.waiting))

    def test_deleted_while_it_waits_for_the_notice(self) -> None:
        current = self.at(Step.GRACE, self.start())
        self.nova.finish(self.waiting)
        self.assertEqual(Result.GONE, self.outcome(current).result)
        self.nobody_was_ended()

    def test_deleted_after_the_swap(self) -> None:
        current = self.at(Step.END, self.start())
        self.nova.finish(self.waiting)
        self.assertEqual(Result.GONE, self.outcome(current).result)
        self.nobody_was_ended()

    def test_deleted_after_the_first_end(self) -> None:
        self.nova.slow = True
        current = self.at(Step.END, self.start())
        result = self.actor.advance(current)
        assert isinstance(result, Attempt)
        self.nova.finish(self.victims[0])
        self.nova.finish(self.waiting)
        outcome = self.outcome(result)
        self.assertEqual(Result.GONE, outcome.result)
        self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                         self.room.has(self.victims[1]))

    def test_a_victim_does_not_end(self) -> None:
        self.nova.slow = True
        outcome = self.outcome(self.start())
        self.assertEqual((Result.STUCK, self.victims[:1]),
                         (outcome.result, outcome.avoid))
        self.nobody_was_ended()
        self.assertEqual(1, self.value('victims_stuck_total'))
        # The other one was not touched.
        self.assertNotIn(('forceDelete', self.victims[1]), self.nova.calls)
        self.assertNotIn('rebuild', self.actions())

    def test_one_of_them_does_not_end(self) -> None:
        self.nova.slow = True
        current = self.at(Step.END, self.start())
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.nova.finish(self.victims[0])
        outcome = self.outcome(current)
        self.assertEqual((Result.STUCK, self.victims[1:]),
                         (outcome.result, outcome.avoid))
        self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                         self.room.has(self.victims[1]))

    def test_the_scheduler_refuses_after_all(self) -> None:
        self.nova.builds = 'PENDING'
        outcome = self.outcome(self.start())
        self.assertEqual((Result.PENDING, 2),
                         (outcome.result, outcome.attempt.ended))
        self.assertEqual({}, self.room.has(self.waiting))

    def test_a_request_that_needs_more_than_the_host_itself(self) -> None:
        self.nova.asks_also = '&resources1=VGPU%3A1'
        outcome = self.outcome(self.start())
        self.assertEqual(Result.REFUSED, outcome.result)
        self.nobody_was_ended()


class GraceTestCase(FullHostTestCase):
    """With a notice, and guests that are given time to shut down."""

    options = {'grace_period': 60, 'stop_timeout': 30}

    def to(self, step: Step | None, current: Attempt, actor: Any = None
           ) -> Attempt | Outcome:
        # The time of the notice is the wall's: it has come at once.
        if current.step not in (Step.CHECK, Step.NOTICE) or (
                step == Step.NOTICE):
            return super().to(step, current, actor)
        result = super().to(Step.GRACE, current, actor)
        if step == Step.GRACE or isinstance(result, Outcome):
            return result
        result = dataclasses.replace(result, terminate_at=PAST)
        return super().to(step, result, actor)

    def test_it_runs(self) -> None:
        outcome = self.outcome(self.start())
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(
            ['os-stop', 'forceDelete', 'os-stop', 'forceDelete', 'rebuild'],
            self.actions())

    def test_the_notice_is_kept(self) -> None:
        current = self.at(Step.GRACE, self.start())
        later = self.actor.advance(current)
        assert isinstance(later, Attempt)
        self.assertEqual(Step.GRACE, later.step)
        self.assertGreater(later.wake_at, self.now)
        self.assertEqual([], self.actions())

    def test_a_victim_has_a_task_when_its_notice_is_over(self) -> None:
        server = self.nova.servers[self.victims[0]]
        current = dataclasses.replace(
            self.at(Step.GRACE, self.start()),
            terminate_at=timeutils.utcnow(True))
        server['OS-EXT-STS:task_state'] = 'image_uploading'
        for _look in range(3):
            looked = self.actor.advance(current)
            assert isinstance(looked, Attempt)
            current = looked
        self.assertEqual(Step.SWAP, current.step)
        self.assertEqual([], self.actions())
        self.assertEqual(
            fakes.NOTICE, fakes.NOTICE & server['metadata'].keys())
        # The task goes on for longer than stop_timeout.
        late = dataclasses.replace(current, terminate_at=PAST)
        outcome = self.outcome(late)
        self.assertEqual((Result.CONFLICT, (self.victims[0],)),
                         (outcome.result, outcome.avoid))
        self.nobody_was_ended()

    def test_a_guest_does_not_shut_down(self) -> None:
        self.nova.before.append((
            'os-stop', 'action', lambda: fakes.Answer(202, b'')))
        self.assertEqual(Result.ACTIVE, self.outcome(self.start()).result)
        self.assertEqual(2, self.actions().count('forceDelete'))

    def test_the_others_run_on_while_the_first_end_hangs(self) -> None:
        self.nova.slow = True
        current = self.at(Step.END, self.start())
        for _look in range(9):
            looked = self.actor.advance(current)
            assert isinstance(looked, Attempt)
            current = looked
        self.assertEqual(['os-stop', 'forceDelete'], self.actions())
        self.assertEqual('ACTIVE', self.status(self.victims[1]))
        self.assertEqual(Result.STUCK, self.outcome(current).result)
        self.assertEqual(['os-stop', 'forceDelete'], self.actions())

    def test_the_reverse_starts_guests_again(self) -> None:
        current = self.at(Step.END, self.start())
        stopped = self.actor.advance(current)
        assert isinstance(stopped, Attempt)
        self.assertEqual('SHUTOFF', self.status(self.victims[0]))
        self.nova.finish(self.waiting)
        self.assertEqual(Result.GONE, self.outcome(stopped).result)
        self.nobody_was_ended()

    def test_whatever_its_owner_writes(self) -> None:
        for written, left in (('mine', set()), (fakes.new_id(), fakes.NOTICE)):
            current = self.at(Step.END, self.start())
            stopped = self.actor.advance(current)
            assert isinstance(stopped, Attempt)
            metadata = self.nova.servers[self.victims[0]]['metadata']
            metadata['reaper:for'] = written
            status = self.nova.servers[self.waiting]
            status['status'] = 'ERROR'
            self.assertEqual(Result.GONE, self.outcome(stopped).result)
            self.assertEqual('ACTIVE', self.status(self.victims[0]))
            self.assertEqual(left, metadata.keys() & fakes.NOTICE)
            metadata.clear()
            status['status'] = 'PENDING'

    def test_given_up_after_the_swap_and_its_hold_stays(self) -> None:
        current = self.at(Step.END, self.start())
        stopped = self.actor.advance(current)
        assert isinstance(stopped, Attempt)
        self.nova.servers[self.waiting]['status'] = 'ERROR'
        self.assertEqual(Result.GONE, self.outcome(stopped).result)
        self.nobody_was_ended()

    def test_what_leaves_early_is_held_at_once(self) -> None:
        current = self.at(Step.GRACE, self.start())
        self.nova.finish(self.victims[0])
        held = self.actor.advance(current)
        assert isinstance(held, Attempt)
        self.assertEqual(Step.GRACE, held.step)
        self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                         self.room.has(self.waiting))
        # Nobody else gets it.
        self.assertRaises(
            rest.Conflict, self.room.allocate, fakes.new_id(),
            self.nova.hosts['h1'], 'x', VCPU=1)
        outcome = self.outcome(dataclasses.replace(held, terminate_at=PAST))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(SIX, self.room.has(self.waiting))

    def test_a_partial_hold_is_given_free(self) -> None:
        current = self.at(Step.GRACE, self.start())
        self.nova.finish(self.victims[0])
        held = self.actor.advance(current)
        assert isinstance(held, Attempt)
        self.mode = model.Mode.FILL
        self.assertEqual(Result.WITHDRAWN, self.outcome(held).result)
        self.assertEqual({}, self.room.has(self.waiting))

    def test_a_partial_hold_whose_answer_is_lost(self) -> None:
        current = self.at(Step.GRACE, self.start())
        self.nova.finish(self.victims[0])
        self.room.adapter.lost['POST'] = 504
        held = self.actor.advance(current)
        assert isinstance(held, Attempt)
        self.assertEqual(FOUR, self.room.has(self.waiting))
        # The rest is taken on top of it.
        outcome = self.outcome(dataclasses.replace(held, terminate_at=PAST))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(SIX, self.room.has(self.waiting))

    def test_one_that_was_lost_is_given_free(self) -> None:
        current = self.at(Step.GRACE, self.start())
        self.nova.finish(self.victims[0])
        self.room.adapter.lost['POST'] = 504
        held = self.actor.advance(current)
        assert isinstance(held, Attempt)
        self.mode = model.Mode.FILL
        self.assertEqual(Result.WITHDRAWN, self.outcome(held).result)
        self.assertEqual({}, self.room.has(self.waiting))

    def test_neither_a_notice_nor_the_release_is_possible(self) -> None:
        self.room.set_inventory(self.nova.hosts['h1'], VCPU=10,
                                MEMORY_MB=10240)
        for mode, result, has in (
                (model.Mode.FILL, Result.WITHDRAWN, {}),
                (model.Mode.PREEMPT, Result.ACTIVE, SIX)):
            self.mode = model.Mode.PREEMPT
            current = self.at(Step.NOTICE, self.start())
            self.nova.before.append((
                'metadata', self.victims[1], lambda: self.nova.error(409)))
            with mock.patch.object(
                    self.room.holds, 'release', side_effect=rest.Unavailable(
                        'placement', 'POST', 'no', 503)) as release:
                while not release.called:
                    current = self.actor.advance(  # type: ignore[assignment]
                        current)
            self.assertEqual(Step.NOTICE, current.step)
            self.assertEqual({'VCPU': 2, 'MEMORY_MB': 2048},
                             self.room.has(self.waiting))
            self.mode = mode
            self.assertEqual(result, self.outcome(current).result)
            self.assertEqual(has, self.room.has(self.waiting))

    def test_a_partial_hold_and_strict_accounting_since(self) -> None:
        current = self.at(Step.GRACE, self.start())
        self.nova.finish(self.victims[0])
        held = self.actor.advance(current)
        assert isinstance(held, Attempt)
        self.assertEqual(FOUR, self.room.has(self.waiting))
        self.conf.set_override('strict_accounting', True, 'reaper')
        outcome = self.outcome(dataclasses.replace(held, terminate_at=PAST))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(SIX, self.room.has(self.waiting))

    def test_all_leave_early(self) -> None:
        current = self.at(Step.GRACE, self.start())
        for victim in self.victims:
            self.nova.finish(victim)
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)
        self.assertEqual(['rebuild'], self.actions())


class RebuiltByOwnerTestCase(FullHostTestCase):
    """The owner of the server that waits rebuilds the server."""

    options = {'grace_period': 60, 'stop_timeout': 30}

    def under_notice(self) -> Attempt:
        return self.at(Step.GRACE, self.start())

    def at_its_end(self) -> Attempt:
        """The notice is over at this moment."""
        return self.at(Step.SWAP, dataclasses.replace(
            self.under_notice(), terminate_at=timeutils.utcnow(True)))

    def shows(self, status: str, task: str | None = None,
              host: str | None = None) -> None:
        self.nova.servers[self.waiting].update({
            'status': status, 'OS-EXT-STS:task_state': task,
            'OS-EXT-SRV-ATTR:host': host})

    def stays(self, current: Attempt) -> Attempt:
        """Look some times; returns the attempt, which has not gone on."""
        step = current.step
        for _look in range(3):
            looked = self.actor.advance(current)
            assert isinstance(looked, Attempt), looked
            current = looked
        self.assertEqual(step, current.step)
        self.assertEqual(['ACTIVE'] * 2, [*map(self.status, self.victims)])
        for victim in self.victims:
            self.assertLessEqual(
                fakes.NOTICE, self.nova.servers[victim]['metadata'].keys())
        return current

    def runs(self, current: Attempt) -> None:
        outcome = self.outcome(dataclasses.replace(
            current, terminate_at=PAST))
        self.assertEqual(Result.ACTIVE, outcome.result, outcome.detail)
        self.assertEqual(SIX, self.room.has(self.waiting))
        self.assertEqual(2, self.value('notices_total', result='given'))

    def test_in_the_grace(self) -> None:
        current = self.under_notice()
        for status, task in (('BUILD', 'scheduling'), ('REBUILD', None),
                             ('PENDING', 'rebuilding')):
            self.shows(status, task)
            current = self.stays(current)
        self.shows('PENDING')
        self.runs(current)

    def test_when_the_notice_is_over(self) -> None:
        current = self.at_its_end()
        self.shows('BUILD')
        current = self.stays(current)
        self.shows('PENDING')
        self.runs(current)

    def test_as_nova_is_asked_for_its_verdict(self) -> None:
        current = self.at_its_end()

        def rebuilt() -> fakes.Answer:
            self.shows('BUILD')
            return self.nova.error(409)

        self.nova.before.append(('GET', 'pending', rebuilt))
        current = self.stays(current)
        self.assertEqual([], self.nova.before)
        self.shows('PENDING')
        self.runs(current)

    def test_a_build_that_goes_on_for_long(self) -> None:
        current = self.under_notice()
        self.shows('BUILD')
        self.stays(dataclasses.replace(
            current, terminate_at=timeutils.utcnow(True)))
        self.assertEqual(Result.GONE, self.outcome(dataclasses.replace(
            current, terminate_at=PAST)).result)
        self.nobody_was_ended()

    def test_a_build_that_has_found_a_host(self) -> None:
        for status in 'BUILD', 'ACTIVE':
            self.shows('PENDING')
            current = self.under_notice()
            self.shows(status, host='h2')
            outcome = self.actor.advance(current)
            assert isinstance(outcome, Outcome)
            self.assertEqual(Result.GONE, outcome.result)
            self.nobody_was_ended()

    def with_a_part(self) -> Attempt:
        """A part of the room is free, and held."""
        current = self.under_notice()
        self.nova.finish(self.victims[0])
        held = self.actor.advance(current)
        assert isinstance(held, Attempt)
        self.assertEqual(FOUR, self.room.has(self.waiting))
        return held

    def test_between_two_looks(self) -> None:
        current = self.with_a_part()
        # Nova gives the hold back that is not all of what the server needs.
        self.room.holds.release(self.waiting)
        self.runs(current)

    def test_the_free_part_is_held_again(self) -> None:
        current = self.with_a_part()
        self.room.holds.release(self.waiting)
        held = self.actor.advance(current)
        assert isinstance(held, Attempt)
        self.assertEqual(FOUR, self.room.has(self.waiting))
        self.runs(held)

    def test_before_the_ends_of_strict_accounting(self) -> None:
        self.conf.set_override('strict_accounting', True, 'reaper')
        current = self.at(Step.END, self.at_its_end())
        self.shows('BUILD')
        current = self.stays(current)
        self.shows('PENDING')
        self.runs(current)


class OrderTestCase(FullHostTestCase):
    """What comes back is ended first, and what does not come back last."""

    def setUp(self) -> None:
        super().setUp()
        self.deleted, self.shelved = self.victims
        self.nova.servers[self.shelved]['image'] = ''

    def test_both(self) -> None:
        self.assertEqual(Result.ACTIVE, self.outcome(self.start()).result)
        self.assertEqual(['shelve', 'forceDelete', 'rebuild'], self.actions())

    def test_the_shelve_hangs(self) -> None:
        self.nova.slow = True
        outcome = self.outcome(self.start())
        self.assertEqual((Result.STUCK, (self.shelved,)),
                         (outcome.result, outcome.avoid))
        self.assertNotIn('forceDelete', self.actions())
        self.assertEqual('ACTIVE', self.status(self.deleted))
        self.assertEqual(FOUR, self.room.has(self.deleted))

    def test_each_has_its_time(self) -> None:
        self.nova.slow = True
        current = self.at(Step.END, self.start())
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.now += 500
        self.nova.finish(self.shelved)
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.now += 500
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.assertIsInstance(current, Attempt)
        self.nova.finish(self.deleted)
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)


class BrakeTestCase(FullHostTestCase):
    """The operator takes the mark off a flavor."""

    def take_off(self) -> None:
        self.nova.flavors['m4p']['extra_specs'] = {}

    def test_in_the_grace(self) -> None:
        current = self.at(Step.SWAP, self.start())
        self.take_off()
        self.assertEqual(Result.CONFLICT, self.outcome(current).result)
        self.nobody_was_ended()

    def test_after_the_swap(self) -> None:
        current = self.at(Step.END, self.start())
        self.take_off()
        self.assertEqual(Result.WITHDRAWN, self.outcome(current).result)
        self.nobody_was_ended()

    def test_the_flavor_of_a_victim_whose_turn_is_the_last(self) -> None:
        self.nova.servers[self.victims[0]]['image'] = ''
        current = self.at(Step.END, self.start())
        last = self.nova.servers[self.victims[1]]
        last['flavor'] = last['flavor'] | {'original_name': 'deleted'}
        self.assertEqual(Result.WITHDRAWN, self.outcome(current).result)
        self.nobody_was_ended()

    def test_between_two_ends(self) -> None:
        self.nova.slow = True
        current = self.at(Step.END, self.start())
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.nova.finish(self.victims[0])
        self.take_off()
        outcome = self.outcome(current)
        self.assertEqual((Result.WITHDRAWN, 1),
                         (outcome.result, outcome.attempt.ended))
        self.assertEqual('ACTIVE', self.status(self.victims[1]))
        self.assertEqual(FOUR, self.room.has(self.victims[1]))


class ModeTestCase(FullHostTestCase):
    """The reaper is paused after the swap."""

    options = {'stop_timeout': 60}

    def test_no_end_has_begun(self) -> None:
        current = self.at(Step.END, self.start())
        self.mode = model.Mode.OBSERVE
        self.assertEqual(Result.WITHDRAWN, self.outcome(current).result)
        self.assertEqual([], self.actions())
        self.nobody_was_ended()

    def test_a_guest_shuts_down(self) -> None:
        current = self.at(Step.END, self.start())
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.mode = model.Mode.FILL
        self.assertEqual(Result.WITHDRAWN, self.outcome(current).result)
        self.assertEqual(['os-stop', 'os-start'], self.actions())
        self.nobody_was_ended()

    def test_one_has_ended(self) -> None:
        current = self.at(Step.END, self.start())
        while not isinstance(current, Outcome) and not current.ended:
            current = self.actor.advance(current)  # type: ignore[assignment]
        self.mode = model.Mode.OBSERVE
        outcome = self.outcome(current)
        self.assertEqual((Result.WITHDRAWN, 1),
                         (outcome.result, outcome.attempt.ended))
        self.assertEqual(FOUR, self.room.has(self.victims[1]))

    def test_all_have_ended(self) -> None:
        current = self.at(Step.END, self.start())
        while not isinstance(current, Outcome) and current.ended < 2:
            current = self.actor.advance(current)  # type: ignore[assignment]
        self.mode = model.Mode.OBSERVE
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)

    def test_its_owner_has_the_room(self) -> None:
        current = self.at(Step.END, self.start())
        self.nova._build(self.nova.servers[self.waiting])
        self.mode = model.Mode.OBSERVE
        self.assertEqual(2, self.outcome(current).attempt.ended)


class FailedEndTestCase(FullHostTestCase):
    """Nova shows a server as deleted, and then its delete fails."""

    def fail(self) -> Attempt:
        self.nova.slow = True
        current = self.at(Step.END, self.start())
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.shows('DELETED')
        current = self.actor.advance(current)  # type: ignore[assignment]
        self.assertEqual(0, current.ended)
        self.shows('ERROR')
        return current

    def shows(self, status: str) -> None:
        self.nova.servers[self.victims[0]].update({
            'status': status, 'OS-EXT-STS:task_state': None})

    def test_it_is_asked_for_again(self) -> None:
        current = self.fail()
        self.nova.slow = False
        outcome = self.outcome(current)
        self.assertEqual((Result.ACTIVE, 2),
                         (outcome.result, outcome.attempt.ended))
        self.assertEqual({self.waiting}, set(self.nova.servers))

    def test_it_keeps_no_notice(self) -> None:
        current = self.fail()
        self.nova.before += 500 * [
            ('forceDelete', self.victims[0], lambda: self.nova.error(500))]
        outcome = self.outcome(current)
        self.assertEqual((Result.STUCK, self.victims[:1], 0), (
            outcome.result, outcome.avoid, outcome.attempt.ended))
        server = self.nova.servers[self.victims[0]]
        self.assertEqual(('ERROR', {}), (server['status'],
                                         server['metadata']))
        self.assertEqual(FOUR, self.room.has(self.victims[0]))
        self.assertEqual('ACTIVE', self.status(self.victims[1]))


class ShelveTestCase(acting.ActingTestCase):
    """A server on a volume is shelved, and marked so that it comes back."""

    def test_shelved(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        waiting = self.nova.add_server('w', 6)
        outcome = self.outcome(self.begin(waiting, victims=(victim,)))
        self.assertEqual(Result.ACTIVE, outcome.result)
        server = self.nova.servers[victim]
        self.assertEqual('SHELVED_OFFLOADED', server['status'])
        self.assertIn('reaper:shelved_at', server['metadata'])
        self.assertEqual({}, self.room.has(victim))
        self.assertEqual(1, self.value('victims_total', action='shelve'))

    def test_one_that_is_shelved_too_late_comes_back_all_the_same(self
                                                                  ) -> None:
        self.nova.slow = True
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        waiting = self.nova.add_server('w', 6)
        outcome = self.outcome(self.begin(waiting, victims=(victim,)))
        self.assertEqual(Result.STUCK, outcome.result)
        self.nova.finish(victim)
        self.assertEqual({'reaper:shelved_at'},
                         self.nova.servers[victim]['metadata'].keys())
        outcome = self.outcome(self.begin(victim))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual({}, self.nova.servers[victim]['metadata'])

    def test_one_that_nova_does_not_shelve_bears_no_mark(self) -> None:
        for what in ('metadata', 'shelve'):
            self.nova.add_host(what, 8)
            victim = self.nova.add_server('s', 8, what, preemptible=True,
                                          image=False)
            current = self.at(Step.END, self.begin(
                self.nova.add_server('w', 6), what, victims=(victim,)))
            self.nova.before += 500 * [
                (what, victim, lambda: self.nova.error(403))]
            outcome = self.outcome(current)
            self.assertEqual((Result.STUCK, (victim,)),
                             (outcome.result, outcome.avoid))
            self.assertEqual({}, self.nova.servers[victim]['metadata'])
            self.assertEqual({'VCPU': 8, 'MEMORY_MB': 8192},
                             self.room.has(victim))
            self.nova.before.clear()


class StrictTestCase(acting.ActingTestCase):
    """Strict accounting: nobody runs without an allocation."""

    options = {'strict_accounting': True}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.waiting = self.nova.add_server('w', 6)

    def test_the_room_is_held_after_the_end(self) -> None:
        current = self.at(Step.END, self.begin(
            self.waiting, victims=(self.victim,)))
        self.assertEqual({'VCPU': 8, 'MEMORY_MB': 8192},
                         self.room.has(self.victim))
        outcome = self.outcome(current)
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(SIX, self.room.has(self.waiting))

    def test_it_does_not_end(self) -> None:
        self.nova.slow = True
        outcome = self.outcome(self.begin(
            self.waiting, victims=(self.victim,)))
        self.assertEqual(Result.STUCK, outcome.result)
        self.assertEqual({'VCPU': 8, 'MEMORY_MB': 8192},
                         self.room.has(self.victim))

    def test_the_gap(self) -> None:
        current = self.at(Step.HOLD, self.begin(
            self.waiting, victims=(self.victim,)))
        self.room.allocate(fakes.new_id(), self.nova.hosts['h1'], 'x',
                           VCPU=8, MEMORY_MB=1)
        outcome = self.outcome(current)
        self.assertEqual((Result.CONFLICT, 1),
                         (outcome.result, outcome.attempt.ended))
