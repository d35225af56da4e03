# SPDX-License-Identifier: Apache-2.0

"""Placement does what it is asked for, and its answer is lost."""

from typing import Any
from unittest import mock

from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Step
from nova_reaper.act import steps
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.report.journal import Kind
from nova_reaper.tests.act import test_preempt
from nova_reaper.tests import acting
from nova_reaper.tests import fakes

SIX = test_preempt.SIX


class LostSwapTestCase(test_preempt.FullHostTestCase):
    """The room has changed hands; a proxy says 504, or a repeat 409."""

    def lose(self, method: str, status: int) -> Attempt:
        current = self.at(Step.SWAP, self.start())
        self.room.adapter.lost[method] = status
        result = self.actor.advance(current)
        assert isinstance(result, Attempt), result
        self.assertEqual(SIX, self.room.has(self.waiting))
        return result

    def runs(self, current: Attempt) -> None:
        outcome = self.outcome(current)
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(2, outcome.attempt.ended)
        self.assertEqual({self.waiting}, set(self.nova.servers))
        self.assertEqual(SIX, self.room.has(self.waiting))

    def test_no_answer(self) -> None:
        self.runs(self.lose('POST', 504))

    def test_the_repeat_is_refused(self) -> None:
        self.runs(self.lose('POST', 409))

    def test_the_process_does_not_know_what_they_had(self) -> None:
        current = self.at(Step.SWAP, self.start())
        self.room.adapter.lost['POST'] = 504
        self.actor.advance(current)
        current = self.at(Step.END, current)
        self.nova.finish(self.waiting)
        self.assertEqual(Result.GONE, self.outcome(current).result)
        self.nobody_was_ended()

    def test_then_the_mode_allows_it_no_more(self) -> None:
        current = self.lose('POST', 504)
        self.mode = model.Mode.OBSERVE
        self.assertEqual(Result.WITHDRAWN, self.outcome(current).result)
        self.nobody_was_ended()

    def test_then_it_is_deleted(self) -> None:
        current = self.lose('POST', 504)
        self.nova.finish(self.waiting)
        self.assertEqual(Result.GONE, self.outcome(current).result)
        self.nobody_was_ended()

    def test_then_its_owner_rebuilds_it(self) -> None:
        current = self.lose('POST', 504)
        self.nova._rebuild(self.nova.servers[self.waiting], {})
        # The room of the victims is its own by now: their end goes on.
        self.outcome(current)
        self.assertEqual({self.waiting}, set(self.nova.servers))

    def test_it_was_not_done(self) -> None:
        current = self.at(Step.SWAP, self.start())
        with mock.patch.object(
                self.room.holds, 'swap', side_effect=rest.Unavailable(
                    'placement', 'swap', 'no')):
            result = self.actor.advance(current)
        assert isinstance(result, Attempt)
        self.assertEqual({}, self.room.has(self.waiting))
        self.runs(result)

    def test_deleted_as_soon_as_it_is_done(self) -> None:
        current = self.at(Step.SWAP, self.start())
        write = self.room.placement.write

        def wrote(*args: Any) -> None:
            write(*args)
            if self.room.has(self.waiting):
                self.nova.finish(self.waiting)

        with mock.patch.object(self.room.placement, 'write', wrote):
            self.assertEqual(Result.GONE, self.outcome(current).result)
        self.nobody_was_ended()


class LostEndTestCase(test_preempt.FullHostTestCase):
    """Nova fails after it has set the task; no host is told of it."""

    def fails(self, current: Attempt, task: str) -> Attempt:
        self.nova.no_bus = True
        current = self.actor.advance(current)  # type: ignore[assignment]
        # The first victim is ended alone before the others.
        self.assertEqual([task, None], [
            self.nova.servers[victim]['OS-EXT-STS:task_state']
            for victim in self.victims])
        self.nova.no_bus = False
        return current

    def runs(self, current: Attempt) -> None:
        outcome = self.outcome(current)
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(2, outcome.attempt.ended)

    def test_delete(self) -> None:
        self.runs(self.fails(self.at(Step.END, self.start()), 'deleting'))
        self.assertEqual({self.waiting}, set(self.nova.servers))
        self.assertEqual(1, self.actions().count('os-resetState'))

    def test_stop(self) -> None:
        self.conf.set_override('stop_timeout', 30, 'reaper')
        self.runs(self.fails(self.at(Step.END, self.start()), 'powering-off'))
        self.assertEqual(3, self.actions().count('os-stop'))

    def test_shelve(self) -> None:
        for victim in self.victims:
            self.nova.servers[victim]['image'] = ''
        self.runs(self.fails(self.at(Step.END, self.start()), 'shelving'))
        for victim in self.victims:
            self.assertEqual('SHELVED_OFFLOADED', self.status(victim))

    def test_the_host_was_told(self) -> None:
        current = self.fails(self.at(Step.END, self.start()), 'deleting')
        for victim in self.victims:
            self.nova.finish(victim)
        self.runs(current)
        self.assertNotIn('os-resetState', self.actions())

    def results(self, action: str) -> list[str]:
        """Nova does what it is asked for, and its answers are lost.

        :returns: the results in the journal
        """
        def end() -> fakes.Answer:
            victim = next(left)
            self.nova.servers[victim]['ending'] = action
            self.nova.finish(victim)
            return self.nova.error(503)

        left = iter(self.victims)
        current = self.at(Step.END, self.start())
        self.nova.before += [(action, 'action', end)] * 2
        self.runs(current)
        return [record.result for record in self.book._rows
                if record.kind is Kind.END]

    def test_deleted_by_the_next_look(self) -> None:
        self.assertEqual(['delete'] * 2, self.results('forceDelete'))

    def test_shelved_by_the_next_look(self) -> None:
        for victim in self.victims:
            self.nova.servers[victim]['image'] = ''
        self.assertEqual(['shelve'] * 2, self.results('shelve'))

    def test_it_works_at_the_second_time(self) -> None:
        current = self.at(Step.END, self.start())
        self.nova.before.append((
            'forceDelete', 'action', lambda: self.nova.error(503)))
        self.nova.slow = True
        for _time in range(20):
            current = self.actor.advance(  # type: ignore[assignment]
                current)
            for victim in self.victims:
                # Its host works on it, and takes its time.
                self.nova.servers[victim]['OS-EXT-STS:task_state'] = (
                    'deleting' if _time else None)
            self.now += 2
        self.assertNotIn('os-resetState', self.actions())

    def test_nova_fails_until_the_time_is_over(self) -> None:
        for timeout in range(60, 76, 3):
            with self.subTest(timeout=timeout):
                self.conf.set_override('end_timeout', timeout, 'reaper')
                current = self.at(Step.END, self.start())
                self.nova.no_bus = True
                self.assertEqual(Result.STUCK, self.outcome(current).result)
                self.nova.no_bus = False
                # Their owners can act on them.
                self.assertEqual([('ACTIVE', None)] * 2, [
                    (self.status(victim), self.nova.servers[victim][
                        'OS-EXT-STS:task_state']) for victim in self.victims])

    def test_a_task_of_somebody_else(self) -> None:
        current = self.at(Step.END, self.start())
        for victim in self.victims:
            self.nova.servers[victim]['OS-EXT-STS:task_state'] = 'rebooting'
        self.assertEqual(Result.STUCK, self.outcome(current).result)
        self.assertNotIn('os-resetState', self.actions())


class LostHoldTestCase(acting.ActingTestCase):
    """The free room of a host is held."""

    def test_no_answer(self) -> None:
        self.nova.add_host('h1', 8)
        for vcpus in (4, 8):
            waiting = self.nova.add_server('w', vcpus)
            current = self.at(Step.HOLD, self.begin(waiting))
            self.room.adapter.lost['POST'] = 504
            outcome = self.outcome(current)
            self.assertEqual(Result.ACTIVE, outcome.result)
            self.nova.finish(waiting)


class FailingTestCase(test_preempt.FullHostTestCase):
    """A service answers, and fails over this one server for ever."""

    options = {'rebuild_timeout': 300}

    def small(self) -> Attempt:
        if 'h2' not in self.nova.hosts:
            self.nova.add_host('h2', 8)
        return self.begin(self.nova.add_server('x', 1), 'h2')

    def fail(self, what: str) -> None:
        self.nova.before += 1000 * [
            (what, 'action', lambda: self.nova.error(500))]

    def test_its_rebuild(self) -> None:
        current = self.at(Step.REBUILD, self.small())
        self.fail('rebuild')
        begun = self.now
        outcome = self.outcome(current)
        self.assertEqual((Result.CONFLICT, model.Reason.UNKNOWN),
                         (outcome.result, outcome.reason))
        self.assertLess(self.now - begun, 2 * steps.PATIENCE)
        self.assertEqual({}, self.room.has(current.id))

    def test_its_rebuild_after_others_have_ended(self) -> None:
        current = self.at(Step.REBUILD, self.start())
        self.fail('rebuild')
        begun = self.now
        outcome = self.outcome(current)
        self.assertEqual(Result.CONFLICT, outcome.result)
        waited = self.now - begun
        self.assertGreater(waited, self.conf.reaper.rebuild_timeout)
        self.assertEqual({}, self.room.has(self.waiting))
        self.assertEqual(2, outcome.attempt.ended)

    def test_its_hold(self) -> None:
        for method, failure in (
                ('candidate', rest.Unavailable('placement', '', '', 500)),
                ('write', rest.Unavailable('placement', '', '', 500))):
            current = self.at(Step.HOLD, self.small())
            with mock.patch.object(self.room.placement, method,
                                   side_effect=failure):
                outcome = self.outcome(current)
            self.assertEqual(Result.CONFLICT, outcome.result)
            self.assertEqual({}, self.room.has(current.id))
