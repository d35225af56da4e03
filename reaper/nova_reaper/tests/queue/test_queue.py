# SPDX-License-Identifier: Apache-2.0

import dataclasses
import datetime
import functools
import random
from typing import Any
from unittest import mock

import hypothesis
from hypothesis import strategies

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.queue import queue
from nova_reaper import tests
from nova_reaper.tests import brute_force

NOW = brute_force.NOW
OPTIONS = model.Options(mode=model.Mode.PREEMPT, fair_share_half_life=0)
WAIT = model.Decision('', model.Verdict.WAIT)


def seconds(number: float) -> datetime.timedelta:
    return datetime.timedelta(seconds=number)


def waits(name: str, vcpus: int = 1, **others: Any) -> model.Waiting:
    waiting = brute_force.waiting({'VCPU': vcpus})
    return dataclasses.replace(waiting, id=name, **others)


class TimesTestCase(tests.TestCase):
    """Back-off and deadline, from what Nova keeps."""

    def due(self, attempts: int, **others: Any) -> float | None:
        waiting = waits('w1', failures=attempts - 1, failed_at=NOW, **others)
        due = queue.due_at(waiting, OPTIONS)
        return None if due is None else (due - NOW).total_seconds()

    def test_create_alone_is_no_failure_of_ours(self) -> None:
        self.assertIsNone(self.due(0))
        self.assertIsNone(self.due(1))

    def test_doubles_up_to_the_most(self) -> None:
        self.assertEqual([10, 20, 40, 80, 160, 320, 600, 600],
                         [self.due(number) for number in range(2, 10)])
        self.assertEqual(600, self.due(10 ** 6))

    def test_longer_after_a_build_that_failed(self) -> None:
        self.assertEqual([300, 600, 600], [
            self.due(number, reason=model.Reason.BUILD_FAILED)
            for number in (2, 3, 4)])

    def test_unknown_time_of_the_attempt(self) -> None:
        self.assertIsNone(queue.due_at(waits('w1', failures=9), OPTIONS))

    def test_a_pause_is_beside_the_back_off(self) -> None:
        for failures, pause, expected in ((0, 5, 5), (1, 5, 10), (1, 15, 15)):
            self.assertEqual(expected, self.due(
                failures + 1, paused_until=NOW + seconds(pause)))

    def test_deadline(self) -> None:
        options = dataclasses.replace(OPTIONS, pending_timeout=60)
        for waiting, given, expected in (
                (waits('w1'), OPTIONS, None),
                (waits('w1'), options, NOW + seconds(60)),
                (waits('w1', pending_timeout=5), options, NOW + seconds(5)),
                (waits('w1', pending_timeout=0), options, None),
                (waits('w1', shelved=True), options, None)):
            self.assertEqual(expected, queue.deadline(waiting, given))


class QueueTestCase(tests.TestCase):
    """Who is next."""

    def setUp(self) -> None:
        super().setUp()
        self.queue = queue.Queue(OPTIONS)
        self.index = index_module.Index(OPTIONS)
        self.put_host('h1', 0)

    def put_host(self, name: str, free: int, **others: object) -> int:
        host = model.Host(name, {'VCPU': model.Inventory(100)},
                          {'VCPU': 100 - free})
        return self.index.put(
            dataclasses.replace(host, **others))  # type: ignore

    def put(self, *waiting: model.Waiting) -> None:
        for one in waiting:
            self.queue.put(one, NOW)

    def pop_all(self, now: datetime.datetime = NOW) -> list[str]:
        result = []
        while (waiting := self.queue.pop(now)) is not None:
            result.append(waiting.id)
        return result

    def sleep(self, waiting: model.Waiting, **others: object) -> bool:
        popped = self.queue.pop(NOW)
        assert popped is not None
        self.assertEqual(waiting.id, popped.id)
        return self.queue.sleep(
            popped, WAIT, self.index, self.index.version, NOW,
            **others)  # type: ignore

    def test_priority_then_age_then_arrival(self) -> None:
        self.put(waits('young'), waits('b', created_at=NOW - seconds(9)),
                 waits('a', created_at=NOW - seconds(9)),
                 waits('high', priority=1), waits('low', priority=-1),
                 waits('back', shelved=True, priority=9))
        self.assertEqual(
            [one.id for one in self.queue.in_order()], order := [
                'high', 'b', 'a', 'young', 'low', 'back'])
        self.assertEqual(order, self.pop_all())

    def test_fair_share(self) -> None:
        self.put(*(waits(f'{project}{number}', project=project)
                   for project in 'ab' for number in range(3)))
        order = []
        while (waiting := self.queue.pop(NOW)) is not None:
            order.append(waiting.id)
            self.queue.grant(waiting, {'VCPU': 100}, NOW)
        self.assertEqual(['a0', 'b0', 'a1', 'b1', 'a2', 'b2'], order)

    def test_what_is_given_back_does_not_count(self) -> None:
        self.put(waits('a0', project='a'), waits('b0', project='b'))
        first = self.queue.pop(NOW)
        assert first is not None
        self.queue.grant(first, {'VCPU': 100}, NOW)
        self.queue.give_back('a0', NOW)
        self.assertEqual(0, self.queue.share.of('a'))
        self.assertEqual(['a0', 'b0'], self.pop_all())

    def test_out_until_given_back(self) -> None:
        self.put(waits('w1'))
        self.assertEqual(['w1'], self.pop_all())
        self.put(waits('w1', attempts=1))
        self.assertEqual([], self.pop_all())
        self.queue.give_back('w1', NOW)
        self.assertEqual(['w1'], self.pop_all())
        self.queue.discard('w1')
        self.queue.give_back('w1', NOW)
        self.assertEqual([], self.pop_all())
        self.assertEqual([], list(self.queue))

    def test_put_again_counts_once(self) -> None:
        self.put(waits('w1'), waits('w1', priority=3), waits('w2'),
                 waits('w1', priority=-3))
        self.assertEqual(['w2', 'w1'], self.pop_all())

    def test_backs_off(self) -> None:
        self.put(waits('w1', failures=1, failed_at=NOW))
        self.assertEqual([], self.pop_all(NOW + seconds(9.9)))
        self.assertEqual(['w1'], self.pop_all(NOW + seconds(10)))

    def test_one_demand_sleeps_and_others_do_not(self) -> None:
        large = [waits(f'large{number}', 8) for number in range(3)]
        self.put(*large, waits('small', 1))
        self.assertTrue(self.sleep(large[0]))
        self.assertEqual(WAIT, self.queue.asleep(large[1].demand))
        self.assertEqual(['small'], self.pop_all())
        row = self.put_host('h2', 7)
        self.assertEqual(0, self.queue.host_changed(self.index, row))
        row = self.put_host('h2', 8)
        self.assertEqual(1, self.queue.host_changed(self.index, row))
        self.assertEqual({'large0', 'large1', 'large2'},
                         set(self.pop_all()))

    def test_hidden_while_it_sleeps(self) -> None:
        servers = [waits(f's{number}', project=f'p{number}',
                         created_at=NOW - seconds(9 - number))
                   for number in range(3)]
        self.put(*servers)
        self.queue.hide(servers[0].demand)
        self.assertTrue(self.queue._levels)
        self.sleep(servers[0])
        self.queue.hide(servers[0].demand)
        self.assertEqual({}, self.queue._levels)
        self.queue.wake(servers[0].demand)
        self.assertEqual(['s0', 's1', 's2'], self.pop_all())

    def test_wakes_for_what_could_be_ended(self) -> None:
        waiting = waits('w1', 8)
        self.put(waiting)
        self.sleep(waiting)
        host = model.Host('h1', {'VCPU': model.Inventory(100)},
                          {'VCPU': 100})
        row = self.index.put(host, [model.Server(
            's1', 'h1', {'VCPU': 8}, preemptible=True)])
        self.assertEqual(1, self.queue.host_changed(self.index, row))

    def test_wakes_no_demand_that_the_host_cannot_take(self) -> None:
        for waiting in (
                waits('w1', shape=model.Shape.of(
                    {'VCPU': 1}, required=frozenset({'X'}))),
                waits('w2', shape=model.Shape.of({'VGPU': 1})),
                waits('w3', shape=model.Shape.of({'VCPU': 1}, host='h1'))):
            self.put(waiting)
            self.assertTrue(self.sleep(waiting))
        row = self.put_host('h2', 50)
        self.assertEqual(0, self.queue.host_changed(self.index, row))
        row = self.put_host('h2', 50, disabled=True,
                            traits=frozenset({'X'}))
        self.assertEqual(0, self.queue.host_changed(self.index, row))
        row = self.put_host('h2', 50, traits=frozenset({'X'}))
        self.assertEqual(1, self.queue.host_changed(self.index, row))

    def test_what_is_not_asked_for_does_not_matter(self) -> None:
        waiting = waits('w1', shape=model.Shape.of({'VCPU': 1}))
        self.put(waiting)
        self.sleep(waiting)
        other = waits('w2', shape=model.Shape.of({'MEMORY_MB': 1}))
        self.put(other)
        self.sleep(other)
        row = self.put_host('h2', 50, inventory={
            'VCPU': model.Inventory(100), 'MEMORY_MB': model.Inventory(1)},
            used={'VCPU': 1, 'MEMORY_MB': 5})
        self.assertEqual(1, self.queue.host_changed(self.index, row))

    def test_what_fits_nowhere_is_not_looked_at_for_room(self) -> None:
        row = self.put_host('h2', 0)
        waiting = waits('w1', shape=model.Shape.of(
            {'VCPU': 1}, required=frozenset({'X'})))
        self.put(waiting)
        popped = self.queue.pop(NOW)
        assert popped is not None
        self.assertTrue(self.queue.sleep(popped, dataclasses.replace(
            WAIT, reason=model.Reason.NOTHING_FITS), self.index,
            self.index.version, NOW))
        with mock.patch.object(self.index, 'could_take') as could_take:
            self.put_host('h2', 50)
            self.assertEqual(0, self.queue.host_changed(self.index, row))
        could_take.assert_not_called()
        # The host can take it as soon as it is enabled.
        self.put_host('h2', 50, traits=frozenset({'X'}), disabled=True)
        self.assertEqual(0, self.queue.host_changed(self.index, row))
        self.put_host('h2', 50, traits=frozenset({'X'}))
        self.assertEqual(1, self.queue.host_changed(self.index, row))

    def test_no_wake_is_missed(self) -> None:
        waiting = waits('w1', 8)
        self.put(waiting)
        popped = self.queue.pop(NOW)
        assert popped is not None
        seen = self.index.version
        # It changes after the decision and before the sleep.
        self.put_host('h2', 8)
        self.assertFalse(self.queue.sleep(popped, WAIT, self.index, seen,
                                          NOW))
        self.assertEqual(['w1'], self.pop_all())

    def test_looks_again_at_a_time(self) -> None:
        waiting = waits('w1', 8)
        self.put(waiting)
        self.sleep(waiting, until=NOW + seconds(60))
        self.assertEqual([], self.pop_all(NOW + seconds(59)))
        self.assertEqual(['w1'], self.pop_all(NOW + seconds(60)))

    def test_when_time_alone_lets_a_server_be_tried(self) -> None:
        self.assertIsNone(self.queue.next_time())
        self.put(waits('w2', failures=1, failed_at=NOW))
        self.assertEqual(NOW + seconds(10), self.queue.next_time())
        for name, cpus, until, expected in (
                ('w8', 8, 60, 10), ('w4', 4, 5, 5)):
            waiting = waits(name, cpus)
            self.put(waiting)
            self.sleep(waiting, until=NOW + seconds(until))
            self.assertEqual(NOW + seconds(expected), self.queue.next_time())
        self.assertEqual(['w2', 'w4', 'w8'], sorted(
            self.pop_all(NOW + seconds(60))))
        self.assertIsNone(self.queue.next_time())

    def test_many_demands_sleep_until_their_turn(self) -> None:
        for number in range(200):
            waiting = waits(f'w{number:03}', 1 + number % 4,
                            project=f'p{number}')
            waiting = dataclasses.replace(waiting, shape=dataclasses.replace(
                waiting.shape, key=str(number)))
            self.put(waiting)
            self.sleep(waiting)
        self.queue.close(['p4'])
        row = self.put_host('h2', 2)
        self.assertEqual(100, self.queue.host_changed(self.index, row))
        first = self.queue.pop(NOW)
        assert first
        self.assertEqual('w000', first.id)
        self.put_host('h2', 1)
        # The demands for which the host has no room any more sleep on.
        self.assertEqual(['w008', 'w012'], self.pop_all()[:2])
        self.assertEqual([], self.pop_all())
        # The queue looks at a project again as soon as it may be built for.
        self.queue.close([])
        self.assertEqual(['w004'], self.pop_all())

    def test_many_demands(self) -> None:
        demands = [waits(f'w{number:03}', number + 1)
                   for number in range(200)]
        for waiting in demands:
            self.put(waiting)
            self.sleep(waiting)
        row = self.put_host('h2', 10)
        self.assertEqual(10, self.queue.host_changed(self.index, row))
        self.assertEqual([f'w{number:03}' for number in range(10)],
                         self.pop_all())
        self.queue.wake_all()
        self.assertEqual(190, len(self.pop_all()))

    def test_discarded_while_asleep(self) -> None:
        waiting = waits('w1', 8)
        self.put(waiting)
        self.sleep(waiting)
        self.queue.discard('w1')
        self.queue.wake_all()
        self.assertEqual([], self.pop_all())

    def test_those_who_come_and_go_leave_nothing(self) -> None:
        first = waits('w', 2)
        self.put(first)
        self.sleep(first)
        for number in range(5000):
            self.put(waits(f's{number}', 2))
            self.queue.discard(f's{number}')
        self.assertLess(sum(
            len(line.places) for lines in self.queue._lines.values()
            for line in lines.values()), 1100)
        self.queue.wake_all()
        self.assertEqual(['w'], self.pop_all())

    def test_is_late(self) -> None:
        for timeout, later, late in (
                (60, 59, False), (60, 60, True), (None, 60, False)):
            self.assertIs(late, queue.is_late(
                waits('w1', pending_timeout=timeout), OPTIONS,
                NOW + seconds(later)))

    @hypothesis.settings(max_examples=60)
    @hypothesis.given(strategies.integers(min_value=0, max_value=2 ** 32))
    def test_order_is_total_and_nobody_is_lost(self, seed: int) -> None:
        rand = random.Random(seed)
        self.queue = queue.Queue(OPTIONS)
        for number in range(rand.randint(0, 30)):
            self.put(waits(f'w{number}', rand.randint(1, 3),
                           project=rand.choice('abc'),
                           priority=rand.randint(0, 2),
                           created_at=NOW - seconds(rand.randint(0, 3))))
        popped = []
        while self.queue.in_order():
            expected = self.queue.in_order()[0]
            waiting = self.queue.pop(NOW)
            assert waiting is not None
            self.assertEqual(expected, waiting)
            popped.append(waiting.id)
            if rand.random() < 0.5:
                self.queue.grant(waiting, {'VCPU': 10}, NOW)
            self.queue.discard(waiting.id)
        self.assertEqual(len(set(popped)), len(popped))
        self.assertIsNone(self.queue.pop(NOW))


class FairShareTestCase(tests.TestCase):
    """The dominant share of what was given."""

    def test_dominant(self) -> None:
        given = queue.FairShare(0)
        given.give('a', {'VCPU': 1, 'MEMORY_MB': 50},
                   {'VCPU': 10, 'MEMORY_MB': 100}, NOW)
        given.give('b', {'VCPU': 4, 'CUSTOM': 1}, {'VCPU': 10}, NOW)
        self.assertEqual((0.5, 0.4, 0.0), (given.of('a'), given.of('b'),
                                           given.of('c')))

    def test_what_was_given_long_ago_counts_less(self) -> None:
        given = queue.FairShare(100)
        for project, at in (('a', 0), ('b', 100)):
            given.give(project, {'VCPU': 1}, {'VCPU': 10}, NOW + seconds(at))
        self.assertEqual(2 * given.of('a'), given.of('b'))

    def test_weights_do_not_overflow(self) -> None:
        given = queue.FairShare(1)
        given.give('a', {'VCPU': 1}, {'VCPU': 10}, NOW, 'w')
        given.give('b', {'VCPU': 1}, {'VCPU': 10}, NOW + seconds(10 ** 7))
        self.assertEqual((0.0, 0.1), (given.of('a'), given.of('b')))
        # What was given before that is forgotten, and not taken back.
        given.take_back('w', {'VCPU': 10})
        self.assertEqual(0.0, given.of('a'))


class PlannerTestCase(tests.TestCase):
    """One decision after another."""

    def planner(self, world: brute_force.World, *waiting: model.Waiting,
                options: model.Options = OPTIONS) -> choose.Planner:
        waiters = queue.Queue(options)
        for one in waiting:
            waiters.put(one, NOW)
        return choose.Planner(world.index(options), waiters, options)

    def all(self, planner: choose.Planner, now: datetime.datetime = NOW
            ) -> list[tuple[str, str, tuple[str, ...]]]:
        result = []
        while (step := planner.next(now)) is not None:
            result.append((step[1].server, step[1].verdict.value,
                           step[1].victims))
        return result

    def world(self, *victims: int, project: str = 'p') -> brute_force.World:
        return brute_force.world({'h1': {'VCPU': sum(victims)}}, [
            model.Server(f's{number}', 'h1', {'VCPU': vcpus},
                         preemptible=True, project=project)
            for number, vcpus in enumerate(victims)])

    def test_each_sees_what_those_before_took(self) -> None:
        planner = self.planner(self.world(4, 3), waits('w1', 3),
                               waits('w2', 3), waits('w3', 1))
        self.assertEqual([('w1', 'preempt', ('s1',)),
                          ('w2', 'preempt', ('s0',)), ('w3', 'room', ())],
                         self.all(planner))

    def test_who_cannot_be_placed_blocks_nobody(self) -> None:
        planner = self.planner(self.world(4), waits('huge', 99, priority=9),
                               waits('large', 5, priority=8), waits('w1', 4))
        self.assertEqual([('huge', 'wait', ()), ('large', 'wait', ()),
                          ('w1', 'preempt', ('s0',))], self.all(planner))

    def test_decided_once_a_demand(self) -> None:
        planner = self.planner(self.world(4), *(
            waits(f'w{number}', 5) for number in range(100)))
        self.assertEqual(1, len(self.all(planner)))

    def test_undone(self) -> None:
        planner = self.planner(self.world(4), waits('w1', 3))
        for _ in range(3):
            step = planner.next(NOW)
            assert step is not None
            self.assertEqual(('s0',), step[1].victims)
            self.assertIsNone(planner.next(NOW))
            planner.undo(step[1], NOW)

    def test_undone_wakes_those_behind(self) -> None:
        planner = self.planner(self.world(4), waits('w1', 3, priority=1),
                               waits('w2', 4))
        step = planner.next(NOW)
        assert step is not None
        self.assertEqual([('w2', 'wait', ())], self.all(planner))
        planner.undo(step[1], NOW)
        planner.queue.discard('w1')
        self.assertEqual([('w2', 'preempt', ('s0',))], self.all(planner))

    def test_cap_by_project_and_hour(self) -> None:
        options = dataclasses.replace(OPTIONS, max_ends_per_project_hour=2)
        planner = self.planner(self.world(1, 1, 1, 1), waits('w1'),
                               waits('w2'), waits('w3'), options=options)
        self.assertEqual(['preempt', 'preempt', 'wait'],
                         [step[1] for step in self.all(planner)])
        # Notice can be longer than an hour.
        self.assertEqual([], self.all(planner, NOW + seconds(7200)))
        planner.carry_out('w2', NOW + seconds(7200))
        planner.queue.wake_protected()
        self.assertEqual([('w3', 'wait')], [
            step[:2] for step in self.all(planner, NOW + seconds(10799))])
        self.assertEqual([('w3', 'preempt')], [
            step[:2] for step in self.all(planner, NOW + seconds(10800))])
        self.assertEqual({'w1', 'w3'}, planner.to_end.keys())
        self.assertEqual([], list(planner.ends))

    def test_an_end_before_it_came_back_counts(self) -> None:
        planner = self.planner(self.world(1), waits('w1'))
        before = choose.End('s0', 'p', NOW - seconds(1200))
        planner.ends.append(before)
        step = planner.next(NOW)
        assert step is not None
        self.assertEqual(('s0',), step[1].victims)
        self.assertEqual({'w1': {'s0': 'p'}}, planner.to_end)
        planner.undo(step[1], NOW)
        self.assertEqual({}, planner.to_end)
        self.assertEqual([before], list(planner.ends))

    def test_ends_that_others_made_count(self) -> None:
        options = dataclasses.replace(OPTIONS, max_ends_per_project_hour=1)
        planner = self.planner(self.world(1), waits('w1'), options=options)
        planner.ends.append(choose.End('s9', 'p', NOW - seconds(60)))
        self.assertEqual({'p': 0}, planner.ends_left(NOW))
        self.assertEqual('wait', self.all(planner)[0][1])

    def test_protection_ends(self) -> None:
        world = brute_force.world({'h1': {'VCPU': 1}}, [model.Server(
            's1', 'h1', {'VCPU': 1}, preemptible=True, launched_at=NOW)])
        planner = self.planner(world, waits('w1'))
        self.assertEqual('wait', self.all(planner)[0][1])
        self.assertEqual([], self.all(planner, NOW + seconds(599)))
        self.assertEqual([('w1', 'preempt', ('s1',))],
                         self.all(planner, NOW + seconds(600)))

    def test_reserves_for_one_that_is_refused_elsewhere(self) -> None:
        world = brute_force.world({'h1': {'VCPU': 4}, 'h2': {'VCPU': 4}}, [
            model.Server('s1', 'h1', {'VCPU': 2})])
        first, second = waits('first', 4, priority=1), waits('second', 2)
        planner = self.planner(
            world, first, second,
            options=dataclasses.replace(OPTIONS, reserve=True))
        planner.index.exclusions.refuse(first.shape, {'h2': 'F'})
        planner.index.exclusions.refuse(second.shape, {'h2': 'G'})
        self.assertEqual(
            {'first': 'refused', 'second': 'reserved'},
            {step[1].server: step[1].word for step in
             iter(lambda: planner.next(NOW), None)})
        decision = planner.queue.asleep(second.demand)
        assert decision is not None
        self.assertEqual(model.Reason.NO_ROOM, decision.reason)

    def test_reserves_for_the_first_that_cannot_be_placed(self) -> None:
        world = brute_force.world({'h1': {'VCPU': 8}, 'h2': {'VCPU': 4}}, [
            model.Server('s1', 'h1', {'VCPU': 6})])
        waiting = (waits('large', 8, priority=2),
                   waits('larger', 7, priority=1), waits('small', 1),
                   waits('middle', 2), waits('more', 3))
        self.assertEqual(['wait', 'wait', 'room', 'room', 'wait'], [
            step[1] for step in self.all(self.planner(world, *waiting))])
        planner = self.planner(
            world, *waiting, waits('other', 1),
            options=dataclasses.replace(OPTIONS, reserve=True))
        hosts = {}
        while (step := planner.next(NOW)) is not None:
            hosts[step[1].server] = step[1].host, step[1].word
        self.assertEqual(('h2', None), hosts['small'])
        self.assertEqual(('h2', None), hosts['middle'])
        self.assertEqual((None, 'no_room'), hosts['more'])
        self.assertEqual(('h2', None), hosts['other'])
        # Without the server that it was kept for it is kept for the next.
        planner.queue.discard('large')
        planner.queue.discard('larger')
        planner.queue.put(waits('last', 2), NOW)
        hosts = {}
        while (step := planner.next(NOW)) is not None:
            hosts[step[1].server] = step[1].host, step[1].word
        self.assertEqual((None, 'reserved'), hosts['last'])
        # Then it is let go, and the servers that sleep are tried.
        planner.queue.discard('more')
        step = planner.next(NOW)
        assert step
        self.assertEqual(('last', 'h1'), (step[1].server, step[1].host))

    @hypothesis.settings(max_examples=60)
    @hypothesis.given(strategies.integers(min_value=0, max_value=2 ** 32))
    def test_nobody_waits_for_whom_there_is_room(self, seed: int) -> None:
        rand = random.Random(seed)
        world = brute_force.random_world(rand, 3, 5)
        waiting = [brute_force.random_waiting(rand, number)
                   for number in range(12)]
        planner = self.planner(world, *waiting)
        while planner.next(NOW) is not None:
            pass
        left = [one for one in waiting if planner.index.plans.get(one.id)
                is None]
        for one in left:
            self.assertEqual(model.Verdict.WAIT,
                             planner.decide(one, NOW).verdict)
        self.assertLessEqual(
            sum(len(each.victims) for each in planner.index.plans.values()),
            len(set().union(*(each.victims for each
                              in planner.index.plans.values()))))

    @hypothesis.settings(max_examples=60)
    @hypothesis.given(strategies.integers(min_value=0, max_value=2 ** 32))
    def test_nobody_sleeps_for_whom_something_has_changed(self, seed: int
                                                          ) -> None:
        rand = random.Random(seed)
        world = brute_force.random_world(rand, 3, 4)
        options = dataclasses.replace(OPTIONS, mode=rand.choice(
            list(model.Mode)))
        waiting = [brute_force.random_waiting(rand, number)
                   for number in range(10)]
        planner = self.planner(world, *waiting, options=options)
        for _ in range(10):
            while planner.next(NOW) is not None:
                pass
            other = brute_force.random_world(rand, 3, 4)
            for host in other.hosts:
                if rand.random() < 0.2:
                    planner.index.remove(host.name)
                    continue
                row = planner.index.put(host, [
                    server for server in other.servers
                    if server.host == host.name])
                planner.queue.host_changed(planner.index, row)
            for one in waiting:
                if planner.queue.asleep(one.demand) is not None:
                    self.assertEqual(model.Verdict.WAIT,
                                     planner.decide(one, NOW).verdict)

    @hypothesis.settings(max_examples=100)
    @hypothesis.given(strategies.integers(min_value=0, max_value=2 ** 32),
                      strategies.booleans())
    @hypothesis.example(137400, False)
    @hypothesis.example(1710651251, False)
    @hypothesis.example(3502878567, False)
    @hypothesis.example(2690727065, False)
    @hypothesis.example(458349127, False)
    def test_a_look_at_what_has_changed_is_enough(
            self, seed: int, refuse: bool) -> None:
        rand = random.Random(seed)
        world = brute_force.random_world(rand, 3, 4)
        options = dataclasses.replace(
            OPTIONS, mode=rand.choice(list(model.Mode)),
            max_ends_per_project_hour=rand.choice([0, 0, 2]))
        waiting = [brute_force.random_waiting(rand, number)
                   for number in range(10)]
        both = [self.planner(world, *waiting, options=options)
                for _ in range(2)]
        both[1]._decide_again = mock.Mock(  # type: ignore[method-assign]
            return_value=None)
        # Demands of the first planner sleep until their turn.
        most = [rand.choice([0, 2, queue._MANY]), queue._MANY]

        def decided(planner: choose.Planner, many: int
                    ) -> list[model.Decision]:
            with mock.patch.object(queue, '_MANY', many):
                return [step[1] for step in iter(functools.partial(
                    planner.next, now, may_end=may_end), None)
                    if step[1].verdict is not model.Verdict.WAIT]

        now = NOW
        for _ in range(10):
            for one in waiting if refuse else ():
                by_host = {
                    host: rand.choice(['AFilter', 'ComputeFilter'])
                    for host in both[0].index.rows if rand.random() < 0.8}
                if rand.random() < 0.3:
                    for planner in both:
                        planner.index.exclusions.refuse(one.shape, by_host)
            # A demand that was put off may sleep on until its next turn,
            # even if a host could help.
            may_end = most[0] < queue._MANY or rand.random() < 0.8
            # One may look again at what another does not, and find nothing.
            made = list(map(decided, both, most))
            self.assertEqual(*([
                (step.server, step.verdict, step.host, step.victims)
                for step in steps] for steps in made))
            done = made[0]
            other = brute_force.random_world(rand, 3, 4)
            changed = [host for host in other.hosts if rand.random() < 0.5]
            gone = rand.sample(done, rand.randrange(len(done) + 1))
            now += seconds(rand.choice([1, 10, 700]))
            for planner, many in zip(both, most):
                with mock.patch.object(queue, '_MANY', many):
                    for host in changed:
                        planner.queue.host_changed(
                            planner.index, planner.index.put(host, [
                                server for server in other.servers
                                if server.host == host.name]))
                    for decision in gone:
                        planner.undo(decision, now)

    def test_a_change_of_another_host_does_not_help_where_all_refuse(self
                                                                    ) -> None:
        world = brute_force.world(
            {'h1': {'VCPU': 4}, 'h2': {'VCPU': 4}},
            [model.Server('s1', 'h1', {'VCPU': 4}),
             model.Server('s2', 'h2', {'VCPU': 4})])
        one = waits('w1')
        planner = self.planner(world, one)
        exclusions = planner.index.exclusions
        exclusions.refuse(one.shape, {'h1': 'AFilter', 'h2': 'ComputeFilter'})
        step = planner.next(NOW)
        assert step is not None
        self.assertEqual(model.Reason.REFUSED, step[1].reason)

        def looks(host: str) -> int:
            with mock.patch.object(choose, 'decide',
                                   wraps=choose.decide) as decide:
                planner.queue.host_changed(
                    planner.index, planner.index.rows[host])
                while planner.next(NOW) is not None:
                    pass
            return decide.call_count

        planner.index.put(dataclasses.replace(
            world.hosts[1], used={'VCPU': 0}), [])
        self.assertEqual(0, looks('h2'))
        # The filter that refused the first host looks at its servers.
        planner.index.put(dataclasses.replace(
            world.hosts[0], used={'VCPU': 0}), [])
        self.assertEqual(1, looks('h1'))
        self.assertEqual('h1', planner.index.plans['w1'].host)

    @hypothesis.settings(max_examples=60)
    @hypothesis.given(strategies.integers(min_value=0, max_value=2 ** 32))
    def test_all_of_it_undone_is_as_if_nothing_was(self, seed: int) -> None:
        rand = random.Random(seed)
        world = brute_force.random_world(rand, 3, 6)
        waiting = [brute_force.random_waiting(rand, number)
                   for number in range(8)]
        planner = self.planner(world, *waiting)
        fresh = world.index(OPTIONS)
        decisions = []
        while (step := planner.next(NOW)) is not None:
            if step[1].verdict is not model.Verdict.WAIT:
                decisions.append(step[1])
        rand.shuffle(decisions)
        for decision in decisions:
            planner.undo(decision, NOW)
        self.assertEqual({}, planner.index.plans)
        for name, column in fresh.classes.items():
            for host, row in fresh.rows.items():
                to = planner.index.classes[name], planner.index.rows[host]
                self.assertEqual(fresh.free[column][row],
                                 planner.index.free[to[0]][to[1]])
                self.assertEqual(fresh.endable[column][row],
                                 planner.index.endable[to[0]][to[1]])
        for one in waiting:
            self.assertEqual(0, round(planner.queue.share.of(one.project), 9))
