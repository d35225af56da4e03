# SPDX-License-Identifier: Apache-2.0

"""A notice is withdrawn when the end becomes needless; its room is kept."""

from collections.abc import Callable
import dataclasses
import datetime
from typing import Any
from unittest import mock

import fixtures
from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.events import bus
from nova_reaper.report import journal
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


class GraceTestCase(test_engine.EngineTestCase):
    """A host with a preemptible server, and another that is full."""

    options = {'grace_period': 120}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.nova.add_host('h2', 8)
        self.victim = self.nova.add_server('s', 6, 'h1', preemptible=True)
        # A flavor that the reaper knows.
        self.nova.finish(self.nova.add_server('x', 8, 'h2', preemptible=True))
        self.other = self.nova.add_server('o', 8, 'h2')
        self.waiting = self.nova.add_server('w', 8)
        self.turns(6)
        self.assertEqual(attempts.Step.GRACE, self.current().step)

    def current(self) -> attempts.Attempt:
        return self.engine.attempts.under_way[self.waiting]

    def noticed(self, server: str) -> bool:
        return 'reaper:for' in self.nova.servers[server]['metadata']

    def prefer(self, server: str, priority: str) -> None:
        specs = self.nova.servers[server]['flavor']['extra_specs']
        specs['reaper:priority'] = priority

    def changed(self, host: str) -> None:
        self.hint(bus.Kind.HOST, host=host)
        self.turns(3)

    def learns_of(self, server: str) -> None:
        """The reaper hears of a preemptible server, and reads its host."""
        self.hint(bus.Kind.SERVER, server=server, host='h2', preemptible=True)
        self.turns(3)
        self.changed('h2')

    def test_room_elsewhere(self) -> None:
        self.nova.finish(self.other)
        self.changed('h2')
        self.until(lambda: self.current().host == 'h2')
        told = self.engine.world.told.last[self.waiting].decision
        self.assertEqual((model.Verdict.ROOM, 'h2'),
                         (told.verdict, told.host))
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('h2', self.nova.servers[self.waiting][
            'OS-EXT-SRV-ATTR:host'])
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))
        self.assertEqual({'VCPU': 6, 'MEMORY_MB': 6144},
                         self.room.has(self.victim))
        self.turns(200)
        self.assertEqual('ACTIVE', self.status(self.victim))

    def test_room_elsewhere_at_the_last_moment(self) -> None:
        left = 108 - self.offset
        self.turns(int(left))
        self.nova.finish(self.other)
        self.hint(bus.Kind.HOST, host='h2')
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))

    def test_room_on_the_same_host(self) -> None:
        self.room.set_inventory(self.nova.hosts['h1'], VCPU=16,
                                MEMORY_MB=16384)
        self.engine._hosts.read('h1', whole=True)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))

    def room_on(self, host: str) -> Any:
        """Let the index say that a host has room, which it has not."""
        return mock.patch.object(
            self.engine.world.planner, 'better', lambda waiting, *_: (
                model.Decision(waiting.id, model.Verdict.ROOM, host)))

    def test_no_room_on_the_same_host_after_all(self) -> None:
        with self.room_on('h1'):
            self.turns(60)
            self.assertEqual('ACTIVE', self.status(self.victim))
            self.assertTrue(self.noticed(self.victim))
            self.turns(90)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertIsNone(self.status(self.victim))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_room_elsewhere_that_is_none(self) -> None:
        with self.room_on('h2'):
            self.turns(300)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertIsNone(self.status(self.victim))
        self.assertEqual((1, 0), (
            self.value('notices_total', result='given'),
            self.value('notices_total', result='withdrawn')))

    def test_room_elsewhere_that_others_take_time_and_again(self) -> None:
        for _ in range(4):
            self.nova.finish(self.other)
            # Nova places another server before the reaper holds the room.
            self.other = self.nova.add_server('o', 8, 'h2')
            with self.room_on('h2'):
                self.turns(15)
            self.assertTrue(self.noticed(self.victim))
        self.nova.finish(self.other)
        self.changed('h2')
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_a_filter_refuses_the_host_with_room(self) -> None:
        self.nova.add_host('h3', 8)
        third = self.nova.add_server('o', 8, 'h3')
        self.hint(bus.Kind.HOST, host='h3')
        self.turns(3)
        self.nova.refused_by['h2'] = 'ImagePropertiesFilter'
        self.nova.finish(self.other)
        self.changed('h2')
        self.turns(40)
        self.assertEqual('PENDING', self.status(self.waiting))
        self.assertTrue(self.noticed(self.victim))
        self.nova.finish(third)
        self.changed('h3')
        self.turns(20)
        self.assertEqual(('ACTIVE', 'h3'), (
            self.status(self.waiting),
            self.nova.servers[self.waiting]['OS-EXT-SRV-ATTR:host']))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_the_answer_about_the_room_elsewhere_is_lost(self) -> None:
        self.nova.finish(self.other)
        self.room.adapter.lost['POST'] = 504
        self.changed('h2')
        self.turns(40)
        self.assertEqual({}, self.room.adapter.lost)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))

    def test_nobody_is_told_before_the_room_elsewhere_is_held(self) -> None:
        held: list[dict[str, int]] = []
        with mock.patch.object(
                self.engine.attempts._actor._victims, 'withdraw',
                lambda *_, **options: held.append(
                    self.room.has(self.waiting))):
            self.nova.finish(self.other)
            self.changed('h2')
            self.turns(20)
        self.assertEqual([{'VCPU': 8, 'MEMORY_MB': 8192}], held)
        self.assertEqual('ACTIVE', self.status(self.waiting))

    def test_nova_fails_over_the_room_elsewhere(self) -> None:
        answered = self.nova._pending

        def pending(method: str, server: dict[str, Any], query: dict[str, Any],
                    *more: Any) -> fakes.Answer:
            if 'h2' in (query['hosts'] or ()):
                return self.nova.error(500, 'Unexpected API Error.')
            return answered(method, server, query, *more)

        with mock.patch.object(self.nova, '_pending', pending):
            self.nova.finish(self.other)
            self.changed('h2')
            self.turns(200)
        self.assertEqual(('ACTIVE', 'h1'), (
            self.status(self.waiting),
            self.nova.servers[self.waiting]['OS-EXT-SRV-ATTR:host']))
        self.assertIsNone(self.status(self.victim))

    def test_a_conflict_over_the_room_elsewhere(self) -> None:
        take = self.room.holds.take
        refusals: list[Any] = []

        def conflict(*args: Any) -> placement.Consumer:
            if self.nova.hosts['h2'] in args[1] and not refusals:
                refusals.append(args)
                raise rest.Conflict('placement', 'POST', 'changed', 409)
            return take(*args)

        holding = self.engine.attempts._actor._holds
        with mock.patch.object(holding, 'take', conflict), mock.patch.object(
                self.engine._calendar, 'due', lambda *_: None):
            self.nova.finish(self.other)
            self.changed('h2')
            self.turns(90)
        self.assertEqual(1, len(refusals))
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual([True], self.left(self.victim))

    def test_hosts_that_change_put_no_end_off(self) -> None:
        for host in 'h3', 'h4':
            self.nova.add_host(host, 16)
            self.nova.refused_by[host] = 'NUMATopologyFilter'
            self.hint(bus.Kind.HOST, host=host)
        self.turns(3)
        self.offset += 85
        small: dict[str, str] = {}
        with mock.patch.object(self.engine._calendar, 'due', lambda *_: None
                               ), mock.patch.object(attempts, 'ELSEWHERE', 9):
            for number in range(70):
                host = 'h3' if number % 2 else 'h4'
                if host in small:
                    self.nova.finish(small.pop(host))
                else:
                    small[host] = self.nova.add_server('n', 1, host)
                self.hint(bus.Kind.HOST, host=host)
                self.turns(1)
        self.assertEqual('ACTIVE', self.status(self.waiting))

    def test_the_mode_is_lowered_as_the_answer_is_lost(self) -> None:
        self.nova.finish(self.other)
        self.room.adapter.lost['POST'] = 504
        self.hint(bus.Kind.HOST, host='h2')
        self.until(lambda: getattr(self.current().elsewhere, 'unsure', False))
        self.conf.set_override('mode', 'fill', 'reaper')
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual([True], self.left(self.victim))

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(100):
            if done():
                return
            self.turns(1)
        self.fail('It does not come to that.')

    def test_a_crash_before_the_notice_is_withdrawn(self) -> None:
        victims = self.engine.attempts._actor._victims
        with mock.patch.object(victims, 'withdraw'), self.staying_at(
                attempts.Step.REBUILD):
            self.nova.finish(self.other)
            self.changed('h2')
            self.turns(20)
            self.assertEqual(8, self.room.has(self.waiting)['VCPU'])
        self.assertTrue(self.noticed(self.victim))
        self.start()
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        # A sweep keeps the notice for as long as its reaper may act on it.
        self.turns(100, 10)
        self.assertEqual([True], self.left(self.victim))

    def test_a_smaller_flavor(self) -> None:
        smaller = self.nova.servers[self.nova.add_server('x', 2)]
        del self.nova.servers[smaller['id']]
        self.nova.servers[self.waiting]['flavor'] = smaller['flavor']
        self.hint(bus.Kind.WAITS, server=self.waiting)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))
        self.assertEqual({'VCPU': 2, 'MEMORY_MB': 2048},
                         self.room.has(self.waiting))

    def unwanted(self) -> None:
        self.turns(150)
        self.assertEqual('PENDING', self.status(self.waiting))
        self.assertEqual([True], self.left(self.victim))
        self.assertEqual({}, self.amounts(self.waiting))
        self.assertEqual([], self.actions())

    def test_its_owner_lets_it_wait_no_more(self) -> None:
        self.nova.servers[self.waiting]['metadata']['reaper:wait'] = 'false'
        self.hint(bus.Kind.WAITS, server=self.waiting)
        self.unwanted()

    def test_an_end_before_it_came_back_counts(self) -> None:
        planner = self.engine.world.planner
        then = timeutils.utcnow(True) - datetime.timedelta(seconds=1200)
        before = choose.End(self.victim, 'owner', then)
        planner.ends.append(before)
        self.assertEqual([{self.victim}],
                         [victims.keys() for victims
                          in planner.to_end.values()])
        self.test_its_owner_lets_it_wait_no_more()
        self.assertEqual({}, planner.to_end)
        self.assertEqual([before], list(planner.ends))

    def test_what_is_told_of_a_withdrawal_names_the_project(self) -> None:
        told: list[journal.Record] = []
        self.nova.servers[self.waiting]['metadata']['reaper:wait'] = 'false'
        self.hint(bus.Kind.WAITS, server=self.waiting)
        with mock.patch.object(self.book, '_tell', told.append):
            self.unwanted()
        self.assertEqual([('withdrawal', self.victim, True, 'owner')], [
            tuple(record.to_dict(True)[key] for key in (
                'kind', 'server', 'for_own_project', 'for_project_id'))
            for record in told])

    def test_its_operator_lets_it_wait_no_more(self) -> None:
        keystone: mock.Mock = self.services.keystone  # type: ignore
        keystone.project_properties.return_value = {
            'owner': {'reaper:wait': 'never'}}
        self.engine.source.read_properties()
        self.unwanted()

    def test_no_lower_priority_any_more(self) -> None:
        # The waiter is preemptible by now, as if it had been so before.
        current = self.current()
        waiting = dataclasses.replace(
            current.waiting, preemptible=True, priority=1)
        self.useFixture(fixtures.MockPatchObject(
            self.engine.world, 'waiting', return_value=waiting))
        self.engine.attempts.under_way[self.waiting] = current.but(
            waiting=waiting)
        self.turns(10)
        self.assertTrue(self.noticed(self.victim))
        self.prefer(self.victim, '1')
        self.engine.source.read_server(self.victim)
        self.changed('h1')
        self.unwanted()

    def test_the_waiter_is_gone(self) -> None:
        self.nova.delete(self.waiting)
        self.hint(bus.Kind.ENDED, server=self.waiting)
        self.turns(5)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertFalse(self.noticed(self.victim))
        self.assertEqual('ACTIVE', self.status(self.victim))

    def test_others_at_a_lower_price(self) -> None:
        self.nova.finish(self.other)
        cheaper = self.nova.add_server(
            'c', 8, 'h2', preemptible=True)
        self.prefer(cheaper, '-5')
        self.learns_of(cheaper)
        self.turns(20)
        self.assertFalse(self.noticed(self.victim))
        self.assertTrue(self.noticed(cheaper))
        self.turns(150)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertIsNone(self.status(cheaper))

    def test_another_that_is_shelved_and_not_deleted(self) -> None:
        self.nova.finish(self.other)
        kept = self.nova.add_server('c', 8, 'h2', preemptible=True)
        specs = self.nova.servers[kept]['flavor']['extra_specs']
        specs['reaper:action'] = 'shelve'
        # By the scorers that withdraw no notice the server is the worse one.
        self.nova.servers[kept]['OS-SRV-USG:launched_at'] = (
            '2026-01-01T00:00:00.000000')
        self.learns_of(kept)
        self.turns(20)
        self.assertEqual((False, True), (self.noticed(self.victim),
                                         self.noticed(kept)))
        self.turns(150)
        self.assertEqual(('ACTIVE', 'ACTIVE', 'SHELVED_OFFLOADED'), tuple(map(
            self.status, (self.waiting, self.victim, kept))))

    def test_prices_that_change_time_and_again(self) -> None:
        self.nova.finish(self.other)
        other = self.nova.add_server('c', 8, 'h2', preemptible=True)
        for priority in '-5', '5', '-5', '5':
            self.prefer(other, priority)
            self.learns_of(other)
            self.turns(15)
            # The notice has moved once, and does not move back.
            self.assertEqual((False, True), (self.noticed(self.victim),
                                             self.noticed(other)))
        self.turns(150)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertIsNone(self.status(other))

    def test_the_notice_stays_where_nothing_is_better(self) -> None:
        self.nova.finish(self.other)
        dearer = self.nova.add_server('c', 8, 'h2', preemptible=True)
        self.prefer(dearer, '5')
        self.learns_of(dearer)
        noticed = self.nova.servers[self.victim]['metadata'].copy()
        self.turns(60)
        self.assertEqual(noticed, self.nova.servers[self.victim]['metadata'])
        self.turns(90)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertIsNone(self.status(self.victim))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_the_notice_stays_for_one_that_is_only_younger(self) -> None:
        self.nova.finish(self.other)
        younger = self.nova.add_server('c', 8, 'h2', preemptible=True)
        self.nova.servers[younger]['OS-SRV-USG:launched_at'] = (
            '2026-01-01T00:00:00.000000')
        self.learns_of(younger)
        self.turns(60)
        self.assertEqual((True, False), (self.noticed(self.victim),
                                         self.noticed(younger)))

    def test_nobody_takes_the_free_part(self) -> None:
        self.assertEqual({'VCPU': 2, 'MEMORY_MB': 2048},
                         self.room.has(self.waiting))
        self.assertRaises(
            rest.Conflict, self.room.allocate, fakes.new_id(),
            self.nova.hosts['h1'], 'owner', VCPU=1, MEMORY_MB=1024)
        self.turns(150)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_what_is_held_counts_once(self) -> None:
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(3)
        index = self.engine.world.index
        row = index.rows['h1']
        self.assertEqual(0, index.free[index.classes['VCPU']][row])


class PartTestCase(test_engine.EngineTestCase):
    """Two servers have notice on a host that was full."""

    options = {'grace_period': 120}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.victims = [
            self.nova.add_server(name, amount, 'h1', preemptible=True)
            for name, amount in (('u', 4), ('v', 2))]
        self.other = self.nova.add_server('o', 2, 'h1')
        self.waiting = self.nova.add_server('w', 6)
        self.turns(5)
        self.assertEqual(
            attempts.Step.GRACE,
            self.engine.attempts.under_way[self.waiting].step)

    def test_one_of_them_need_not_end(self) -> None:
        self.nova.finish(self.other)
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(60)
        self.assertEqual(['ACTIVE'] * 2, list(map(self.status, self.victims)))
        self.turns(90)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual([None, 'ACTIVE'],
                         list(map(self.status, self.victims)))
        self.assertEqual(2, self.value('notices_total', result='given'))


class TwoTestCase(test_engine.EngineTestCase):
    """A server has notice for each of two that wait."""

    options = {'grace_period': 120}

    def test_room_for_one(self) -> None:
        for host in 'h1', 'h2', 'h3':
            self.nova.add_host(host, 8)
        victims = [self.nova.add_server('s', 8, host, preemptible=True)
                   for host in ('h1', 'h2')]
        other = self.nova.add_server('o', 8, 'h3')
        waiting = [self.nova.add_server('w', 8) for _ in range(2)]
        self.turns(5)
        self.assertEqual(2, self.value('notices_total', result='given'))
        self.nova.finish(other)
        self.hint(bus.Kind.HOST, host='h3')
        self.turns(40)
        self.assertEqual(['ACTIVE', 'PENDING'],
                         sorted(map(self.status, waiting), key=str))
        self.assertEqual(1, self.value('notices_total', result='withdrawn'))
        self.assertEqual(['ACTIVE'] * 2, list(map(self.status, victims)))

    def at_the_last_moment(self) -> tuple[list[str], list[str]]:
        """Two hosts become free while both attempts are at their swap.

        :returns: the victims, and the servers that wait
        """
        for host in 'h1', 'h2', 'h3', 'h4':
            self.nova.add_host(host, 8)
        victims = [self.nova.add_server('s', 8, host, preemptible=True)
                   for host in ('h1', 'h2')]
        others = [self.nova.add_server('o', 8, host) for host in ('h3', 'h4')]
        waiting = [self.nova.add_server('w', 8) for _ in range(2)]
        with self.staying_at(attempts.Step.SWAP):
            self.turns(125)
            for host, other in zip(('h3', 'h4'), others):
                self.nova.finish(other)
                self.hint(bus.Kind.HOST, host=host)
            self.turns(3)
        self.assertEqual(
            [attempts.Step.SWAP] * 2,
            [current.step
             for current in self.engine.attempts.under_way.values()])
        return victims, waiting

    def test_room_for_both_at_the_last_moment(self) -> None:
        victims, waiting = self.at_the_last_moment()
        self.turns(60)
        self.assertEqual(['ACTIVE'] * 2, list(map(self.status, waiting)))
        self.assertEqual([True] * 2, self.left(*victims))

    def test_one_of_them_hangs(self) -> None:
        victims, waiting = self.at_the_last_moment()
        first, second = self.engine.attempts.under_way
        advance = self.engine.attempts._actor.advance
        with mock.patch.object(
                self.engine.attempts._actor, 'advance', lambda current: (
                    current.later(attempts.AGAIN) if current.id == first
                    else advance(current))):
            self.turns(30)
            self.assertEqual('ACTIVE', self.status(second))
        self.turns(60)
        self.assertEqual(['ACTIVE'] * 2, list(map(self.status, waiting)))
        self.assertEqual([True] * 2, self.left(*victims))


class CapTestCase(test_engine.EngineTestCase):
    """A cap of ends becomes lower while three servers have notice."""

    options = {'grace_period': 120}

    def setUp(self) -> None:
        super().setUp()
        for host in 'h1', 'h2', 'h3':
            self.nova.add_host(host, 8)
        self.victims = [
            self.nova.add_server('s', 8, host, preemptible=True,
                                 project=project)
            for host, project in (('h1', 'a'), ('h2', 'b'), ('h3', 'b'))]
        self.waiting = [self.nova.add_server('w', 8) for _ in range(3)]
        self.turns(5)
        self.assertEqual(3, self.value('notices_in_force'))

    def lower(self, option: str, most: int) -> None:
        self.conf.set_override(option, most, 'reaper')
        self.turns(20)

    def end(self) -> tuple[int, float]:
        """Return how many servers end, and how many notices were withdrawn."""
        self.turns(150)
        return (list(map(self.status, self.victims)).count(None),
                self.value('notices_total', result='withdrawn'))

    def test_of_all_projects(self) -> None:
        first = next(iter(self.engine.attempts.under_way))
        self.lower('max_ends_per_hour', 1)
        self.assertEqual([first], list(self.engine.attempts.under_way))
        self.assertEqual(2, self.left(*self.victims).count(True))
        self.assertEqual((1, 2), self.end())
        self.assertEqual('ACTIVE', self.status(first))
        # No other notice was given instead.
        self.assertEqual(3, self.value('notices_total', result='given'))
        self.assertEqual({None: 0}, {
            history.withdrawn_at: history.failures
            for history in self.engine.world.history.values()})

    def test_of_each_project(self) -> None:
        self.lower('max_ends_per_project_hour', 1)
        self.assertEqual((2, 1), self.end())
        self.assertIsNone(self.status(self.victims[0]))

    def test_once_servers_have_ended(self) -> None:
        under_way = self.engine.attempts.under_way
        first = next(iter(under_way))
        under_way[first] = under_way[first].but(
            terminate_at=timeutils.utcnow(True), wake_at=0.0)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(first))
        self.lower('max_ends_per_hour', 1)
        self.assertEqual((1, 2), self.end())

    def test_a_notice_that_is_longer_than_an_hour(self) -> None:
        for current in self.engine.attempts.under_way.values():
            self.engine.attempts.under_way[current.id] = current.but(
                terminate_at=timeutils.utcnow(True) + datetime.timedelta(
                    seconds=5000))
        self.conf.set_override('max_ends_per_hour', 3, 'reaper')
        self.nova.add_host('h4', 8)
        fourth = self.nova.add_server('s', 8, 'h4', preemptible=True)
        self.nova.add_server('w', 8)
        self.turns(75, 60)
        self.assertEqual([True], self.left(fourth))
        self.assertEqual(3, self.value('notices_total', result='given'))
        self.turns(20, 60)
        self.assertEqual((3, 0), self.end())

    def test_a_cap_that_is_not_reached(self) -> None:
        self.lower('max_ends_per_hour', 3)
        self.assertEqual((3, 0), self.end())

    def test_no_cap(self) -> None:
        self.lower('max_ends_per_hour', 0)
        self.lower('max_ends_per_project_hour', 0)
        self.assertEqual((3, 0), self.end())


class RebuiltByOwnerTestCase(test_engine.EngineTestCase):
    """Two servers wait; the owner of the first one rebuilds it in vain."""

    options = {'grace_period': 120}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.victim = self.nova.add_server('s', 6, 'h1', preemptible=True)
        self.first, self.second = [
            self.nova.add_server('w', 8) for _ in range(2)]
        self.nova.servers[self.first]['created'] = '2026-01-01T00:00:00Z'
        self.turns(5)
        self.notice = self.nova.servers[self.victim]['metadata'].copy()
        self.assertEqual(self.first, self.notice['reaper:for'])

    def rebuild(self, seconds: int) -> None:
        """The owner rebuilds the server; no host is found in some seconds."""
        server = self.nova.servers[self.first]
        server['status'] = 'BUILD'
        # A conductor gives back what is not all that the server asks for.
        self.room.holds.release(self.first)
        for _ in range(seconds):
            self.hint(bus.Kind.SERVER, server=self.first)
            self.turns(1)
        server['status'] = 'PENDING'
        self.nova.rebuild_in_vain(self.first)
        self.hint(bus.Kind.WAITS, server=self.first)
        self.turns(1)

    def test_the_server_keeps_its_turn(self) -> None:
        for seconds in 3, 0, 5, 0, 20:
            self.rebuild(seconds)
            self.assertEqual(self.notice,
                             self.nova.servers[self.victim]['metadata'])
            self.turns(5)
            # The reaper holds the free part of the host again.
            self.assertEqual({'VCPU': 2, 'MEMORY_MB': 2048},
                             self.room.has(self.first))
        self.turns(100)
        self.assertEqual(('ACTIVE', 'PENDING'), (
            self.status(self.first), self.status(self.second)))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_what_is_not_held_any_more_is_planned(self) -> None:
        plans = self.engine.world.index.plans
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(3)
        self.assertEqual(6, plans[self.first].of('')['VCPU'])
        self.room.holds.release(self.first)
        self.room.allocate(fakes.new_id(), self.nova.hosts['h1'], 'x',
                           VCPU=2, MEMORY_MB=2048)
        self.engine.attempts.wake(self.first)
        self.turns(3)
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(3)
        self.assertEqual(8, plans[self.first].of('')['VCPU'])


class StrictGraceTestCase(GraceTestCase):
    """The room stays planned until it is held, after all ends."""

    options = {'grace_period': 120, 'strict_accounting': True}

    def test_the_plan_outlives_the_free_part(self) -> None:
        self.nova.slow = True
        self.turns(130)
        self.assertEqual(attempts.Step.END, self.current().step)
        self.changed('h1')
        self.assertIn(self.waiting, self.engine.world.index.plans)
        self.nova.finish(self.victim)
        self.changed('h1')
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(self.waiting))
