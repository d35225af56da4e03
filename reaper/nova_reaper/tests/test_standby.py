# SPDX-License-Identifier: Apache-2.0

"""A reaper that waits for its turn, and takes it."""

import datetime
import math
from unittest import mock

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Step
from nova_reaper.clients import rest
from nova_reaper.events import bus
from nova_reaper.events import lists
from nova_reaper.tests.act import test_recovery
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine

EIGHT = test_recovery.EIGHT


class TakeOverTestCase(test_recovery.CrashingTestCase):
    """The reaper that stands by knows the host; the active reaper dies."""

    def take_over(self, step: Step, filler: str) -> None:
        for server in self.nova.servers.values():
            server['updated'] = '2026-01-01T00:00:00Z'
        first, second = self.engine, self.start()
        second.guard.active = False
        self.turns(5)
        waiting = self.nova.add_server('w', 8)
        self.nova.servers[waiting]['updated'] = '2026-01-01T00:00:00Z'
        if step == Step.REBUILD:
            self.nova.finish(filler)
        self.engine = first
        self.until(step)
        self.assertEqual(EIGHT, self.room.has(waiting))
        self.engine = second
        second.guard.active = True
        self.turns(60)
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(filler), self.status(waiting)))
        self.assertEqual(EIGHT, self.room.has(waiting))

    def test_after_the_hold(self) -> None:
        self.take_over(Step.REBUILD, self.nova.add_server('s', 8, 'h1'))

    def test_after_the_swap(self) -> None:
        self.take_over(Step.END, self.nova.add_server(
            's', 8, 'h1', preemptible=True))


class StandbyTestCase(test_engine.EngineTestCase):
    """Five hosts that are full; one server waits."""

    mode = 'fill'

    def setUp(self) -> None:
        super().setUp()
        self.filler = {}
        for name in ('h1', 'h2', 'h3', 'h4', 'h5'):
            self.nova.add_host(name, 4)
            self.filler[name] = self.nova.add_server('s', 4, name)
        self.waiting = self.nova.add_server('w', 4)
        for server in self.nova.servers.values():
            server['updated'] = '2026-01-01T00:00:00Z'
        self.engine.guard.active = False

    def _hosts_read(self, log: list[tuple[str, str]]) -> set[str]:
        return {name for name, provider in self.nova.hosts.items()
                for _method, path in log
                if path == f'/resource_providers/{provider}/allocations'}

    def _take_over(self) -> list[tuple[str, str]]:
        """Be the active one; returns what Placement is asked for it."""
        log = self.room.adapter.log
        del log[:]
        self.engine.guard.active = True
        self.turns(4)
        return list(log)

    def test_it_knows_the_cloud_and_does_nothing(self) -> None:
        self.turns(5)
        self.assertEqual(5, len(self.engine.world.views))
        self.assertEqual([self.waiting], [
            entry.waiting.id for entry in self.shown.entries()])
        self.nova.delete(self.filler['h3'])
        self.turns(30, 61)
        self.assertEqual('PENDING', self.status(self.waiting))
        self.assertEqual({}, self.room.has(self.waiting))

    def test_it_leaves_what_the_active_one_has_begun(self) -> None:
        self.nova.delete(self.filler['h3'])
        self.room.holds.take(
            self.waiting, {self.nova.hosts['h3']: {'VCPU': 2}})
        self.turns(30, 61)
        self.assertEqual({'VCPU': 2}, self.room.has(self.waiting))

    def test_only_what_has_changed_is_read(self) -> None:
        self.turns(5)
        self.offset += 200
        self.nova.delete(self.filler['h3'])
        read = self._hosts_read(self._take_over())
        self.assertEqual({'h3'}, read)
        self.turns()
        self.assertEqual('ACTIVE', self.status(self.waiting))

    def test_new_hosts_are_read(self) -> None:
        self.turns(5)
        self.offset += 200
        self.nova.add_host('h6', 4)
        read = self._hosts_read(self._take_over())
        self.assertEqual({'h6'}, read)
        self.turns()
        self.assertEqual('ACTIVE', self.status(self.waiting))

    def test_all_is_read_where_nothing_was(self) -> None:
        read = self._hosts_read(self._take_over())
        self.assertEqual(set(self.nova.hosts), read)

    def test_preemptible_servers_that_came_and_went(self) -> None:
        old = self.nova.add_server('old', 1, preemptible=True)
        self.nova.servers[old]['status'] = 'ACTIVE'
        self.turns(5)
        self.assertIn(old, self.engine.source.preemptible)
        self.offset += 200
        self.nova.delete(old)
        new = self.nova.add_server('new', 1, preemptible=True)
        self.nova.servers[new].update(status='ACTIVE', updated='2100')
        self._take_over()
        self.assertEqual({new}, set(self.engine.source.preemptible))

    def test_what_was_begun_is_begun_again(self) -> None:
        self.engine.guard.active = True
        self.turns(5)
        with mock.patch.object(
                self.engine.attempts._actor, 'advance',
                side_effect=lambda current: current.at(
                    attempts.Step.CHECK, 0.0)):
            self.nova.delete(self.filler['h3'])
            self.offset += 600
            self.turns(3)
        self.assertIn(self.waiting, self.engine.attempts.under_way)
        self.engine.guard.active = False
        self.turns(3)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.engine.guard.active = True
        self.turns()
        self.assertEqual('ACTIVE', self.status(self.waiting))

    def test_what_filters_say_changes(self) -> None:
        self.engine.guard.active = True
        self.nova.delete(self.filler['h3'])
        self.nova.refused_by['h3'] = 'AggregateInstanceExtraSpecsFilter'
        self.turns(5)
        self.assertEqual('PENDING', self.status(self.waiting))
        del self.nova.refused_by['h3']
        self.offset += 100
        log = self.room.adapter.log
        del log[:]
        # A flood of them is one.
        for host in self.nova.hosts:
            self.hint(bus.Kind.SHAPE, host=host)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        # Each list reads a further host whose turn has come.
        self.assertLessEqual(len(self._hosts_read(log) - {'h3'}), 2)

    def test_filters_are_not_asked_all_the_time(self) -> None:
        calendar = lists.Calendar(self.conf)
        calendar.began(lists.FULL)
        calendar.read_at += datetime.timedelta(days=1)
        for _ in range(2):
            calendar.read_soon()
            self.assertIsNone(calendar.due(True, True))
            self.offset += 5
            calendar.read_soon()
            self.assertIsNone(calendar.due(True, True))
            self.offset += 5
            self.assertEqual((lists.CHANGES, True, False), (
                calendar.due(True, True), calendar.anew, calendar.whole))
            calendar.began(lists.CHANGES)
            self.assertFalse(calendar.anew)

    def test_what_failed_is_read_again(self) -> None:
        calendar = lists.Calendar(self.conf)
        calendar.began(lists.FULL)
        calendar.read_at += datetime.timedelta(days=1)
        self.offset += 600
        calendar.read_soon()
        self.offset += 10
        for _ in range(2):
            self.assertEqual((lists.CHANGES, True, True), (
                calendar.due(True, True), calendar.anew, calendar.whole))
            calendar.began(lists.CHANGES)
            self.assertFalse(calendar.whole)
            calendar.failed(lists.CHANGES, True)
            self.offset += 10

    def test_a_list_that_is_not_believed(self) -> None:
        calendar = lists.Calendar(self.conf)
        calendar.began(lists.FULL)
        calendar.read_at += datetime.timedelta(days=1)
        for seconds, due in ((61, lists.CHANGES), (540, lists.FULL)):
            self.offset += seconds
            self.assertEqual((lists.CHANGES, due), (
                calendar.due(True, True), calendar.due(True, True, True)))

    def test_what_was_written_before_counts_no_more(self) -> None:
        self.engine.guard.active = True
        self.turns(5)
        self.nova.delete(self.filler['h3'])
        with self.staying_at(Step.REBUILD):
            self.hint(bus.Kind.HOST, host='h3')
            self.turns(5)
            plan = self.engine.world.index.plans[self.waiting]
            self.assertLess(plan.written_at, math.inf)
            self.engine.guard.active = False
            self.turns(3)
        self.assertEqual({}, self.engine.world.index.plans)

    def test_lists_fail(self) -> None:
        def fail() -> fakes.Answer:
            return self.nova.error(503)

        self.nova.before += [('GET', 'hypervisors', fail)] * 2
        self.engine.guard.active = True
        self.turns(3)
        self.assertFalse(self.engine.recovered)
        # Not only when the next full list is due.
        self.turns(12, 10)
        self.assertTrue(self.engine.recovered)

    def test_the_list_of_changes_fails(self) -> None:
        def fail() -> fakes.Answer:
            return self.nova.error(503)

        self.turns(5)
        self.offset += 200
        self.nova.delete(self.filler['h3'])
        self.nova.before.append(('GET', 'hypervisors', fail))
        read = self._hosts_read(self._take_over())
        self.assertFalse(self.engine.recovered)
        self.turns(20)
        read |= self._hosts_read(self.room.adapter.log)
        self.assertEqual({'h3'}, read)
        self.assertEqual('ACTIVE', self.status(self.waiting))

    def test_the_list_of_changes_fails_all_the_time(self) -> None:
        self.turns(5)
        self.offset += 200
        with mock.patch.object(
                self.engine._lists._reader, 'read_changed',
                side_effect=rest.Unavailable('nova', 'list', 'No.')):
            self._take_over()
            self.turns(20, 10)
        self.assertTrue(self.engine.recovered)

    def test_the_first_full_list_comes_first(self) -> None:
        calendar = lists.Calendar(self.conf)
        self.assertEqual(lists.FULL, calendar.due(False, False))
        calendar.began(lists.FULL)
        self.offset += 61
        # It takes longer than that on a large cloud, and what hosts have is
        # not known before.
        self.assertIsNone(calendar.due(False, False))
        calendar.read_at += datetime.timedelta(days=1)
        self.assertEqual(lists.CHANGES, calendar.due(True, True))
        # A reaper that stands by has time.
        self.assertIsNone(calendar.due(False, False))
        self.offset += 540
        self.assertEqual(lists.CHANGES, calendar.due(False, False))

    def test_intervals_that_change_count_at_once(self) -> None:
        calendar = lists.Calendar(self.conf)
        calendar.began(lists.FULL)
        self.conf.set_override('full_list_interval', 5, 'reaper')
        self.offset += 6
        self.assertEqual(lists.FULL, calendar.due(True, True))
        calendar.began(lists.FULL)
        self.conf.set_override('full_list_interval', 600, 'reaper')
        self.conf.set_override('pending_list_interval', 600, 'reaper')
        self.offset += 61
        self.assertIsNone(calendar.due(True, True))
