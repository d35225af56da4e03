# SPDX-License-Identifier: Apache-2.0

"""Decisions that are written down, and what the next process makes of them."""

import datetime
import os
from typing import Any
from unittest import mock

import fixtures
from oslo_db import exception
from oslo_utils import timeutils

from nova_reaper.act.attempts import Step
from nova_reaper.clients import nova
from nova_reaper.cloud import model
from nova_reaper import engine as engine_module
from nova_reaper.events import bus
from nova_reaper.report import journal
from nova_reaper.report.journal import Kind
from nova_reaper.report.journal import Record
from nova_reaper.tests.act import test_recovery


class Book(journal.Journal):
    """A journal without a thread.

    :ivar slow: what is not waited for is not written before the kill
    """

    slow = False

    def write(self, *records: Record, wait: bool = False) -> None:
        super().write(*records, wait=wait)
        if wait or not self.slow:
            self.work()


class JournalTestCase(test_recovery.CrashingTestCase):
    """Processes that come and go have one journal."""

    def setUp(self) -> None:
        self.url = 'sqlite:///' + os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'journal')
        super().setUp()

    book: Book

    def new_book(self) -> Book:
        self.conf.set_override('connection', self.url, 'database')
        made = Book(self.conf, lambda record: None)
        made.work()
        return made

    def turns(self, count: int = 30, seconds: float = 1.0) -> None:
        for _ in range(count):
            if not self.book.slow:
                self.book.work()
            super().turns(1, seconds)

    def records(self, *kinds: Kind) -> list[Record]:
        return journal.Store(self.conf).find(kinds=kinds)[::-1]

    def said(self, *kinds: Kind) -> list[tuple[str, str, str]]:
        return [(item.kind.value, item.server, item.result)
                for item in self.records(*kinds)]


class WrittenTestCase(JournalTestCase):
    """What is written of each decision."""

    def test_an_end_and_a_build(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      project='victims')
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        notice, end, asked, build = self.records()
        self.assertEqual(
            [('notice', victim, ''), ('build', waiting, 'asked'),
             ('end', victim, 'delete'), ('build', waiting, 'active')],
            [self.said()[0], self.said()[2], self.said()[1], self.said()[3]])
        for item in (notice, end):
            self.assertEqual(
                ('victims', 's', waiting, 'owner', 'h1', 'delete'),
                (item.project, item.name, item.waiting, item.waiting_project,
                 item.host, item.detail['action']))
        self.assertTrue(notice.detail['terminate_at'])
        for item in (notice, asked):
            self.assertEqual([victim], item.detail['decision']['victims'])
        self.assertEqual(([victim], {'VCPU': 8, 'MEMORY_MB': 8192}),
                         (build.detail['victims'], build.detail['resources']))

    def test_the_runner_up(self) -> None:
        for host in ('h2', 'h3'):
            self.nova.add_host(host, 8)
        priorities: list[dict[str, Any]] = [
            {'reaper:priority': priority} for priority in ('5', '1', '3')]
        victims = [
            self.nova.add_server('s', 8, host, preemptible=True, **specs)
            for host, specs in zip(('h1', 'h2', 'h3'), priorities)]
        self.nova.add_server('w', 8)
        self.turns(40)
        notice, = self.records(Kind.NOTICE)
        self.assertEqual((victims[1], 'h2'), (notice.server, notice.host))
        self.assertEqual(
            {'host': 'h3', 'victims': [victims[2]], 'decided_by': 'priority'},
            notice.detail['runner_up'])
        # It was only asked for, and has changed nothing.
        self.assertEqual(['ACTIVE', None, 'ACTIVE'],
                         [self.status(victim) for victim in victims])

    def test_the_runner_up_is_equal(self) -> None:
        self.nova.add_host('h2', 8)
        for host in ('h1', 'h2'):
            self.nova.add_server('s', 8, host, preemptible=True)
        self.nova.add_server('w', 8)
        self.turns(40)
        notice, = self.records(Kind.NOTICE)
        self.assertEqual('order of hosts',
                         notice.detail['runner_up']['decided_by'])

    def test_a_withdrawal(self) -> None:
        self.conf.set_override('grace_period', 600, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(10)
        self.nova.delete(waiting)
        self.turns(60)
        notice, withdrawal = self.records()
        self.assertEqual(
            (Kind.WITHDRAWAL, victim, waiting, 'owner', 'gone', 'h1'),
            (withdrawal.kind, withdrawal.server, withdrawal.waiting,
             withdrawal.waiting_project, withdrawal.result, withdrawal.host))
        self.assertIn('was deleted', withdrawal.detail['why'])

    def test_one_that_leaves_by_itself_was_not_ended(self) -> None:
        self.conf.set_override('grace_period', 600, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_server('w', 8)
        self.turns(10)
        self.nova.delete(victim)
        self.turns(60)
        self.assertEqual([('end', victim, 'left')], self.said(Kind.END))

    def test_a_return(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.nova.finish(waiting)
        self.turns(40, 61)
        self.assertEqual(
            [('end', victim, 'shelve'), ('return', victim, 'asked'),
             ('return', victim, 'active')],
            self.said(Kind.END, Kind.RETURN))

    def test_giving_up(self) -> None:
        self.conf.set_override('pending_timeout', 100, 'reaper')
        self.nova.add_server('s', 8, 'h1')
        waiting = self.nova.add_server('w', 8)
        self.turns(30, 30)
        self.assertEqual([('given_up', waiting, 'deadline')], self.said())

    def test_nothing_is_written_of_what_is_only_observed(self) -> None:
        self.conf.set_override('mode', 'observe', 'reaper')
        self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_server('w', 8)
        self.turns()
        self.assertEqual([], self.said())


class KilledTestCase(JournalTestCase):
    """Killed between a deed and its record: the next process finds out."""

    def start(self) -> engine_module.Engine:
        engine = super().start()
        self.book.slow = True
        return engine

    def killed(self, step: Step, **server: Any) -> tuple[str, str]:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True, **server)
        waiting = self.nova.add_server('w', 8)
        self.until(step)
        self.start()
        self.book.slow = False
        self.turns(100, 20)
        self.assertEqual('ACTIVE', self.status(waiting))
        return victim, waiting

    def ended(self, victim: str, waiting: str, how: str = 'delete') -> None:
        self.assertEqual([('end', victim, how)], self.said(Kind.END))
        self.assertIn(('build', waiting, 'active'), self.said())
        self.assertEqual([], journal.Store(self.conf).open(
            self.records()[0].at, self.records()[-1].at))

    def test_after_the_notice(self) -> None:
        victim, waiting = self.killed(Step.GRACE)
        self.ended(victim, waiting)
        self.assertEqual(['notice', 'withdrawal', 'notice'], [
            kind for kind, _, _ in self.said(Kind.NOTICE, Kind.WITHDRAWAL)])

    def test_after_the_swap(self) -> None:
        self.ended(*self.killed(Step.END))

    def test_in_the_middle_of_a_withdrawal(self) -> None:
        self.conf.set_override('grace_period', 600, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(10)
        self.nova.delete(waiting)

        def kill() -> None:
            raise test_recovery.Killed

        self.nova.before.append(('DELETE', 'metadata/reaper:for', kill))
        self.assertRaises(test_recovery.Killed, self.turns, 60)
        self.start()
        self.book.slow = False
        self.turns(20, 61)
        self.assertEqual({}, self.nova.servers[victim]['metadata'])
        self.assertEqual([('withdrawal', victim, '')],
                         self.said(Kind.WITHDRAWAL, Kind.END))

    def unmarked(self, step: Step, result: str = '') -> str:
        """The flavor loses its mark while no reaper runs."""
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_server('w', 8)
        self.until(step)
        self.nova.flavors['m8p']['extra_specs'] = {}
        self.start()
        self.book.slow = False
        self.turns(100, 20)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])
        self.assertEqual(test_recovery.EIGHT, self.room.has(victim))
        self.assertEqual([('withdrawal', victim, result)],
                         self.said(Kind.WITHDRAWAL, Kind.END))
        self.assertEqual(set(), self.engine._recovery._noticed)
        return victim

    def test_the_mark_is_gone_after_the_notice(self) -> None:
        self.unmarked(Step.GRACE)

    def test_the_mark_is_gone_after_the_swap(self) -> None:
        self.unmarked(Step.END, 'withdrawn')

    def test_the_mark_is_gone_after_the_stop(self) -> None:
        self.conf.set_override('stop_timeout', 30, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_server('w', 8)
        while self.status(victim) == 'ACTIVE':
            self.turns(1)
        self.nova.flavors['m8p']['extra_specs'] = {}
        self.start()
        self.turns(100, 20)
        self.assertEqual(('ACTIVE', {}), (
            self.status(victim), self.nova.servers[victim]['metadata']))
        self.assertEqual(test_recovery.EIGHT, self.room.has(victim))

    def test_the_mark_and_the_waiting_server_are_gone(self) -> None:
        """Only the journal leads to the server."""
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.until(Step.END)
        self.nova.flavors['m8p']['extra_specs'] = {}
        self.nova.delete(waiting)
        self.start()
        self.turns(100, 61)
        self.assertEqual({}, self.nova.servers[victim]['metadata'])
        self.assertEqual(test_recovery.EIGHT, self.room.has(victim))

    def killed_meanwhile(self, **server: Any) -> tuple[str, str]:
        """Killed while a host ends a server, which takes a while."""
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True, **server)
        waiting = self.nova.add_server('w', 8)
        self.nova.slow = True
        while not self.actions():
            self.turns(1)
        self.start()
        self.book.slow = False
        with self.staying_at(Step.END):
            self.turns(10)
        return victim, waiting

    def test_while_it_is_deleted(self) -> None:
        victim, waiting = self.killed_meanwhile()
        self.turns(5)
        self.nova.finish(victim)
        self.turns(40)
        self.ended(victim, waiting)

    def test_while_it_is_shelved(self) -> None:
        victim, waiting = self.killed_meanwhile(image=False)
        self.turns(5)
        self.nova.finish(victim)
        self.turns(40)
        self.ended(victim, waiting, 'shelve')

    def test_while_it_is_deleted_for_one_that_is_gone(self) -> None:
        victim, waiting = self.killed_meanwhile()
        self.nova.finish(victim)
        self.nova.delete(waiting)
        self.turns(20)
        self.assertEqual([('end', victim, 'delete')], self.said(Kind.END))

    def test_after_the_end(self) -> None:
        victim, waiting = self.killed(Step.REBUILD)
        end, = self.records(Kind.END)
        self.assertIn('found so later', end.detail['why'])
        self.assertEqual(('owner', waiting, 'h1', 's'), (
            end.waiting_project, end.waiting, end.host, end.name))
        self.ended(victim, waiting)

    def test_after_the_end_of_one_that_is_shelved(self) -> None:
        victim, waiting = self.killed(Step.REBUILD, image=False)
        self.assertIn(('end', victim, 'shelve'), self.said(Kind.END))

    def limited(self, **server: Any) -> str:
        return self.nova.add_server(
            's', 8, 'h1', **server | {'reaper:max_run_time': '60'})

    def test_while_one_is_ended_whose_run_time_is_over(self) -> None:
        for image, how in ((True, 'delete'), (False, 'shelve')):
            server = self.limited(image=image)
            self.nova.servers[server]['OS-SRV-USG:launched_at'] = (
                '2026-01-01T00:00:00.000000')
            self.nova.slow = True
            del self.nova.calls[:]
            while not self.actions():
                self.turns(1)
            # Its end is not written.
            self.nova.finish(server)
            self.start()
            self.book.slow = False
            self.turns(50, 20)
            end = self.records(Kind.END)[-1]
            self.assertEqual((server, how, 'run_time'), (
                end.server, end.result, end.detail['cause']))
            self.assertIsNone(end.to_dict(False)['for'])

    def test_while_it_is_built(self) -> None:
        victim, waiting = self.killed(Step.WATCH)
        self.assertEqual([('build', waiting, 'asked'),
                          ('build', waiting, 'active')],
                         self.said(Kind.BUILD))
        self.ended(victim, waiting)

    def test_what_was_not_written_does_not_stop_what_was_begun(self) -> None:
        self.book.store._ready = True
        with mock.patch.object(journal.Store, '_connection',
                               side_effect=OSError):
            victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
            waiting = self.nova.add_server('w', 8)
            self.turns(40)
            self.assertEqual((None, 'ACTIVE'),
                             (self.status(victim), self.status(waiting)))
        self.book.slow = False
        self.turns(10)
        self.assertEqual(1, len(self.said(Kind.END)))


class RememberedTestCase(JournalTestCase):
    """What the next process, or the process that stood by, has to know."""

    def serve(self, **server: Any) -> str | None:
        waiting = self.nova.add_server('w', 8, **server)
        self.turns(20, 5)
        return self.status(waiting)

    def one_end(self) -> None:
        """Three hosts; one server is ended, and no more may be."""
        for host in ('h2', 'h3'):
            self.nova.add_host(host, 8)
        self.victims = [
            self.nova.add_server('s', 8, host, preemptible=True, project=host)
            for host in ('h1', 'h2', 'h3')]
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        self.assertEqual('ACTIVE', self.serve())

    def test_the_cap_of_the_cloud(self) -> None:
        self.one_end()
        self.assertEqual('PENDING', self.serve())
        waiting, = self.engine.world.servers
        told = self.engine.world.told.last[waiting].decision
        self.assertEqual(model.Hindrance.PROTECTED, told.hindrance)
        self.offset += 3600
        self.turns(40, 5)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_one_that_needs_more_than_the_cap(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        victims = [self.nova.add_server('s', 4, 'h1', preemptible=True,
                                        project=f'p{number}')
                   for number in range(2)]
        self.assertEqual('PENDING', self.serve())
        self.assertEqual(['ACTIVE'] * 2, [self.status(one) for one in victims])
        waiting, = self.engine.world.servers
        self.assertIn('More servers would have to end than may end within an '
                      'hour.',
                      self.detail(waiting))

    def test_the_cap_after_three_restarts(self) -> None:
        self.one_end()
        for _ in range(3):
            self.start()
            self.assertEqual('PENDING', self.serve())
        self.assertEqual(1, len(self.said(Kind.END)))

    def ended_meanwhile(self) -> None:
        """Killed at the end of a server, which is gone before the restart."""
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        self.nova.add_host('h2', 8)
        self.victims = [self.nova.add_server('s', 8, host, preemptible=True)
                        for host in ('h1', 'h2')]
        self.nova.add_server('w', 8)
        self.until(Step.END)
        ended, = (victim for victim in self.victims
                  if self.nova.servers[victim]['metadata'])
        self.nova.delete(ended)
        self.offset += 120

    def test_the_cap_counts_what_ended_while_no_reaper_ran(self) -> None:
        self.ended_meanwhile()
        self.start()
        self.assertEqual('PENDING', self.serve())
        self.assertEqual(1, len(self.said(Kind.END)))
        self.assertEqual(1, len(self.engine.world.planner.ends))

    def test_the_cap_counts_what_a_sweep_goes_on_with(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        self.nova.add_host('h2', 8)
        for host in ('h1', 'h2'):
            self.nova.add_server('s', 8, host, preemptible=True)
        self.nova.add_server('w', 8)
        self.until(Step.END)
        self.nova.add_server('w', 8)
        self.nova.slow = True
        self.start()
        self.turns(60)
        self.assertEqual(1, len(self.said(Kind.NOTICE)))
        self.assertEqual(1, self.actions().count('forceDelete'))
        self.nova.slow = False
        self.nova.finish(self.nova.calls[-1][1])
        self.turns(60)
        self.assertEqual(1, len(self.said(Kind.END)))
        self.assertEqual(1, len(self.said(Kind.NOTICE)))
        self.assertEqual(1, len(self.engine.world.planner.ends))

    def test_the_cap_counts_one_that_is_stuck(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        self.conf.set_override('end_timeout', 60, 'reaper')
        self.nova.add_host('h2', 8)
        for host in ('h1', 'h2'):
            self.nova.add_server('s', 8, host, preemptible=True)
        self.nova.add_server('w', 8)
        self.nova.slow = True
        self.turns(50, 5)
        stuck = self.nova.calls[0][1]
        self.assertEqual([('withdrawal', stuck, 'stuck')],
                         self.said(Kind.WITHDRAWAL))
        self.start()
        self.turns(50, 5)
        self.assertEqual([('forceDelete', stuck)], self.nova.calls)
        self.nova.finish(stuck)
        self.turns(20, 61)
        self.assertEqual([('end', stuck, 'delete')], self.said(Kind.END))
        self.assertEqual([(stuck, False)], [
            (end.server, end.stuck) for end in self.engine.world.planner.ends])

    def test_an_end_that_nova_refused_counts_for_an_hour(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        self.conf.set_override('end_timeout', 30, 'reaper')
        self.conf.set_override('stuck_exclusion', 1000000, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.nova.before += 500 * [
            ('forceDelete', victim, lambda: self.nova.error(500))]
        self.turns(40, 5)
        self.nova.before.clear()
        self.nova.add_host('h2', 8)
        other = self.nova.add_server('s', 8, 'h2', preemptible=True)
        self.turns(20, 61)
        self.assertEqual('ACTIVE', self.status(other))
        self.turns(80, 61)
        self.assertEqual(('ACTIVE', 'ACTIVE', None), tuple(map(
            self.status, (waiting, victim, other))))

    def lives_on(self, exclusion: int) -> str:
        """A server whose end was stuck, and that its host starts again."""
        self.conf.set_override('end_timeout', 60, 'reaper')
        self.conf.set_override('stuck_exclusion', exclusion, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        self.nova.add_server('w', 8)
        self.nova.slow = True
        self.turns(50, 5)
        self.assertEqual([True], [
            end.stuck for end in self.engine.world.planner.ends])
        self.nova.slow = False
        self.nova.servers[victim].update({
            'OS-EXT-STS:task_state': None, 'status': 'ACTIVE'})
        self.hint(bus.Kind.SERVER, server=victim)
        self.hint(bus.Kind.HOST, host='h1')
        return victim

    def test_one_that_was_stuck_and_ends_later_counts_once(self) -> None:
        victim = self.lives_on(120)
        self.turns(60, 10)
        self.assertEqual([(victim, False)], [
            (end.server, end.stuck) for end in self.engine.world.planner.ends])

    def test_one_that_was_stuck_and_lives_counts_no_more(self) -> None:
        victim = self.lives_on(3000)
        self.conf.set_override('mode', 'fill', 'reaper')
        self.turns(15, 61)
        self.assertEqual(('withdrawal', victim, ''),
                         self.said(Kind.WITHDRAWAL)[-1])
        self.assertEqual([], list(self.engine.world.planner.ends))

    def test_nobody_is_ended_before_the_cap_is_known(self) -> None:
        self.ended_meanwhile()
        self.start()
        jobs, late = self.engine.jobs, list[Any]()
        start = jobs.start

        def start_later(name: str, *more: Any) -> bool:
            if name != engine_module.CLOSE:
                return start(name, *more)
            jobs._running.add(name)
            late[:] = name, *more
            return True

        other = self.nova.add_server('w', 8)
        with mock.patch.object(jobs, 'start', start_later):
            self.turns(10)
            self.assertEqual(1, sum(map(bool, map(self.status, self.victims))))
            # The ends are not waited for any longer.
            self.assertEqual('PENDING', self.status(other))
        jobs._running.remove(engine_module.CLOSE)
        start(*late)
        self.turns(20)
        self.assertEqual('PENDING', self.status(other))

    def test_what_ended_before_is_not_waited_for_without_end(self) -> None:
        self.one_end()
        self.conf.set_override('max_ends_per_hour', 0, 'reaper')
        self.start()
        jobs = self.engine.jobs
        start = jobs.start

        def hang(name: str, *more: Any) -> bool:
            if name == engine_module.CLOSE:
                jobs._running.add(name)
                return True
            return start(name, *more)

        with mock.patch.object(jobs, 'start', hang):
            self.assertEqual('ACTIVE', self.serve())

    def test_ends_count_in_the_order_of_their_times(self) -> None:
        known, now = self.engine.world, timeutils.utcnow(True)
        for minutes in (30, 50, 40):
            known.remember(journal.Memory(now, 0, ends=[Record(
                Kind.END, str(minutes), at=now - datetime.timedelta(
                    minutes=minutes))]))
        self.assertEqual(['50', '40', '30'],
                         [end.server for end in known.planner.ends])

    def test_the_older_end_counts_no_more_after_a_restart(self) -> None:
        self.one_end()
        self.conf.set_override('max_ends_per_hour', 2, 'reaper')
        self.offset += 1800
        self.assertEqual('ACTIVE', self.serve())
        self.start()
        self.assertEqual('PENDING', self.serve())
        waiting, = self.engine.world.servers
        self.offset += 1900
        self.turns(40, 5)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_the_cap_on_a_standby(self) -> None:
        first, second = self.engine, self.start()
        second.guard.active = False
        self.turns(5)
        self.engine = first
        self.one_end()
        first.guard.active = False
        self.engine.turn(0.0)
        self.engine = second
        second.guard.active = True
        self.assertEqual('PENDING', self.serve())
        # And back again: nothing is counted twice, nothing forgotten.
        second.guard.active = False
        self.engine.turn(0.0)
        self.engine = first
        first.guard.active = True
        self.turns(5)
        self.assertEqual(1, len(first.world.planner.ends))

    def test_one_that_came_back_is_protected(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.nova.finish(waiting)
        self.turns(40, 61)
        self.assertEqual('ACTIVE', self.status(victim))
        self.start()
        self.assertEqual(('PENDING', 'ACTIVE'),
                         (self.serve(), self.status(victim)))

    def test_one_that_came_back_while_no_reaper_ran_is_protected(self
                                                                 ) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.nova.finish(waiting)
        self.until(Step.WATCH, 61)
        self.assertEqual('ACTIVE', self.status(victim))
        self.start()
        self.assertEqual(('PENDING', 'ACTIVE'),
                         (self.serve(), self.status(victim)))
        self.assertEqual(('return', victim, 'active'),
                         self.said(Kind.RETURN)[-1])

    def test_one_that_was_stuck_is_left_alone(self) -> None:
        self.conf.set_override('end_timeout', 30, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.slow = True
        self.assertEqual('PENDING', self.serve())
        self.assertIn(('withdrawal', victim, 'stuck'), self.said())
        notices = len(self.said(Kind.NOTICE))
        self.nova.servers[victim]['OS-EXT-STS:task_state'] = None
        self.start()
        self.turns(20, 5)
        self.assertEqual(notices, len(self.said(Kind.NOTICE)))

    def stuck(self) -> str:
        """A server whose host has not ended it yet."""
        self.conf.set_override('end_timeout', 30, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.slow = True
        self.assertEqual('PENDING', self.serve())
        self.turns(10, 61)
        self.assertEqual([('withdrawal', victim, 'stuck')],
                         self.said(Kind.WITHDRAWAL, Kind.END))
        return victim

    def test_one_that_was_stuck_ends_after_all(self) -> None:
        victim = self.stuck()
        self.nova.finish(victim)
        self.turns(20, 61)
        self.assertEqual([('end', victim, 'delete')], self.said(Kind.END))

    def test_one_that_was_stuck_is_shelved_and_comes_back(self) -> None:
        """No sweep sees the server while the server is off its host."""
        self.conf.set_override('end_timeout', 30, 'reaper')
        self.conf.set_override('repeat_protection', 0, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        self.nova.slow = True
        self.assertEqual('PENDING', self.serve())
        with mock.patch.object(self.engine, '_close'):
            self.nova.finish(victim)
            waiting, = (uuid for uuid in self.nova.servers if uuid != victim)
            self.nova.delete(waiting)
            self.turns(30, 10)
            self.assertEqual(('return', victim, 'active'), self.said()[-1])
        self.turns(20, 61)
        self.assertEqual([('end', victim, 'shelve')], self.said(Kind.END))

    def test_one_that_was_stuck_is_deleted_by_its_owner(self) -> None:
        victim = self.stuck()
        self.nova.servers[victim]['OS-EXT-STS:task_state'] = None
        self.turns(20, 61)
        self.assertEqual(('withdrawal', victim, ''),
                         self.said(Kind.WITHDRAWAL)[-1])
        self.nova.delete(victim)
        self.turns(20, 61)
        self.assertEqual([], self.said(Kind.END))

    def test_one_that_ends_when_nobody_waits_any_more(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.nova.slow = True
        while not self.actions():
            self.turns(1)
        self.nova.delete(waiting)
        self.turns(10)
        self.assertEqual([('withdrawal', victim, 'stuck')],
                         self.said(Kind.WITHDRAWAL))
        self.nova.finish(victim)
        self.turns(20, 61)
        self.assertEqual([('end', victim, 'delete')], self.said(Kind.END))

    def test_misses(self) -> None:
        self.conf.set_override('max_misses', 1, 'reaper')
        self.conf.set_override('stuck_exclusion', 0, 'reaper')
        self.conf.set_override('retry_interval', 1, 'reaper')
        for _ in range(2):
            self.nova.add_server('s', 4, 'h1', preemptible=True)
        self.nova.add_server('w', 4)
        self.nova.builds = 'PENDING'
        self.turns(60)
        self.assertEqual(1, len(self.said(Kind.END)))
        [missed] = {str(entry.detail['missed']) for entry in self.records()
                    if entry.detail.get('missed')}
        self.start()
        self.turns(60)
        said = self.engine.world.misses.objection(
            missed, 1, timeutils.utcnow(True))
        self.assertIn('did not run', said)
        self.assertIn(self.nova.message, said)
        self.assertEqual(1, len(self.said(Kind.END)))

    def test_a_build_that_failed(self) -> None:
        for _ in range(2):
            self.nova.add_server('s', 4, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 4)
        self.nova.builds = 'PENDING'
        self.nova.reason[waiting] = 'build_failed'
        self.turns(30)
        self.start()
        self.turns(5)
        self.assertIn(self.nova.message, self.engine.world.misses.objection(
            waiting, 1, timeutils.utcnow(True)))

    def test_one_in_error_keeps_its_place(self) -> None:
        self.conf.set_override('wait', 'all', 'reaper')
        # The next process may find the error later.
        for step in (None, Step.WATCH):
            self.nova.builds = 'ERROR'
            waiting = self.nova.add_server('w', 4, asked=False)
            if step:
                self.until(step)
            else:
                self.turns(10)
            self.assertEqual('ERROR', self.status(waiting))
            self.offset += 120
            self.nova.builds = 'ACTIVE'
            self.start()
            self.turns(20, 61)
            self.assertEqual('ACTIVE', self.status(waiting))

    def failures(self) -> list[tuple[int, int, bool]]:
        """For each server its failures, attempts, and whether it backs off."""
        return [(entry.waiting.failures, entry.waiting.attempts,
                 entry.next_attempt is not None)
                for entry in self.shown.entries()]

    def test_refusals_make_a_server_back_off(self) -> None:
        self.nova.builds = 'PENDING'
        self.assertEqual('PENDING', self.serve())
        self.turns(1, 5)
        before = self.failures()
        self.assertGreater(before, [(2, 3, True)])
        asked = len(self.said(Kind.BUILD))
        self.start()
        self.turns(3)
        self.assertEqual(before, self.failures())
        # Another reaper acts for a moment.
        self.engine.guard.active = False
        self.turns(2)
        self.engine.guard.active = True
        self.turns(10, 0.1)
        self.assertEqual(before, self.failures())
        self.assertEqual(asked, len(self.said(Kind.BUILD)))

    def test_faults_of_services_do_not(self) -> None:
        self.nova.message = 'Timed out waiting for a reply to message ID 1'
        waiting = self.nova.add_server('w', 8)
        self.nova.reason[waiting] = 'unknown'
        self.nova.builds = 'PENDING'
        self.turns(80)
        self.assertGreater(self.actions().count('rebuild'), 3)
        while self.engine.attempts.under_way:
            self.turns(1)
        self.nova.builds = 'ACTIVE'
        self.start()
        self.turns(6)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_the_fair_share(self) -> None:
        self.nova.add_host('h2', 8)
        self.nova.add_host('h3', 8)
        filler = self.nova.add_server('f', 8, 'h3')
        for _ in range(2):
            self.assertEqual('ACTIVE', self.serve(project='greedy'))
        self.start()
        first = self.nova.add_server('w', 8, project='greedy')
        second = self.nova.add_server('w', 8, project='modest')
        self.turns(5)
        self.nova.finish(filler)
        self.turns(60, 15)
        self.assertEqual(('PENDING', 'ACTIVE'),
                         (self.status(first), self.status(second)))

    def test_the_fair_share_without_a_half_life(self) -> None:
        self.conf.set_override('fair_share_half_life', 0, 'reaper')
        self.assertEqual('ACTIVE', self.serve(project='a'))
        share = self.engine.world.queue.share.of('a')
        self.assertLess(0, share)
        self.start()
        self.turns(5)
        self.assertEqual(share, self.engine.world.queue.share.of('a'))

    def test_a_rehearsal(self) -> None:
        server = self.nova.add_server('s', 4, 'h1', preemptible=True)
        self.turns(5)

        def rehearse() -> str | None:
            return self.engine.rehearse(self.nova.nova.server(server))

        self.assertIsNone(rehearse())
        self.turns(20)
        self.start()
        self.turns(10)
        self.assertIn('within the last hour', rehearse() or '')
        self.turns(60, 61)
        self.assertIsNone(rehearse())

    def test_the_fair_share_of_what_was_built_while_no_reaper_ran(self
                                                                  ) -> None:
        self.nova.add_server('w', 4, project='greedy')
        self.until(Step.WATCH)
        self.offset += 120
        for _ in range(2):
            self.start()
            self.turns(5)
            share = self.engine.world.queue.share.of('greedy')
            self.assertAlmostEqual(0.5, share, 1)


class PausedTestCase(JournalTestCase):
    """An administrator has paused the reaper."""

    def setUp(self) -> None:
        super().setUp()
        self.victim = self.nova.add_server('s', 8, 'h1', preemptible=True)

    def switch(self, kind: Kind) -> None:
        """By another process."""
        journal.Journal(self.conf, lambda record: None).switch(kind, 'u', 'x')

    def test_over_restarts_until_the_end_of_the_pause(self) -> None:
        self.switch(Kind.PAUSE)
        waiting = self.nova.add_server('w', 8)
        for _ in range(3):
            self.start()
            self.turns(20, 5)
            self.assertEqual('ACTIVE', self.status(self.victim))
        health = self.engine.guard.health()
        self.assertEqual(model.Mode.OBSERVE, health.mode)
        check, = (item for item in health.checks if item.name == 'pause')
        self.assertIn('an administrator has paused', check.detail)
        self.assertEqual('degraded', health.status)
        self.switch(Kind.RESUME)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_a_notice_is_withdrawn(self) -> None:
        self.conf.set_override('grace_period', 600, 'reaper')
        self.nova.add_server('w', 8)
        self.turns(10)
        self.assertTrue(self.nova.servers[self.victim]['metadata'])
        self.switch(Kind.PAUSE)
        self.turns(30)
        self.assertEqual({}, self.nova.servers[self.victim]['metadata'])
        self.assertEqual(('withdrawal', self.victim, 'withdrawn'),
                         self.said()[-1])

    def test_a_standby_takes_over(self) -> None:
        self.engine.guard.active = False
        self.turns(5)
        self.switch(Kind.PAUSE)
        self.nova.add_server('w', 8)
        self.turns(5)
        self.engine.guard.active = True
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(self.victim))


class GoneTestCase(JournalTestCase):
    """The database cannot be used when the reaper is started."""

    def setUp(self) -> None:
        super().setUp()
        self.away = mock.patch.object(journal.Store, '_connection',
                                      side_effect=OSError)
        self.away.start()
        self.addCleanup(self.away.stop)
        self.victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.start()

    def check(self) -> tuple[str, str]:
        found, = (item for item in self.engine.guard.health().checks
                  if item.name == 'journal')
        return found.status, found.detail

    def test_it_works_and_says_so(self) -> None:
        self.nova.add_host('h2', 4)
        waiting, fits = (self.nova.add_server('w', size) for size in (8, 4))
        self.turns(40)
        self.assertEqual(
            ('ACTIVE', 'PENDING', 'ACTIVE'),
            tuple(map(self.status, (self.victim, waiting, fits))))
        self.assertEqual(model.Mode.FILL, self.engine.guard.mode)
        status, detail = self.check()
        self.assertEqual('degraded', status)
        self.assertIn('are not known', detail)
        self.assertIn('nobody is ended before', detail)
        self.away.stop()
        self.turns(60)
        self.assertEqual(('ok', 'written'), self.check())
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(self.victim), self.status(waiting)))
        # It goes on when the database is away again.
        self.away.start()
        self.nova.delete(fits)
        self.nova.add_server('s', 4, 'h2', preemptible=True)
        other = self.nova.add_server('w', 4)
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(other))

    def test_it_was_paused_before(self) -> None:
        self.away.stop()
        journal.Store(self.conf).add([Record(Kind.PAUSE)])
        self.away.start()
        self.start()
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.away.stop()
        self.turns(40)
        self.away.start()
        self.assertEqual(('ACTIVE', 'PENDING'), (
            self.status(self.victim), self.status(waiting)))
        self.assertEqual([], self.actions())

    def test_it_is_told_once(self) -> None:
        said = self.useFixture(fixtures.FakeLogger())
        self.start()
        self.turns(40, 10)
        self.assertNotIn('Traceback', said.output)
        self.assertEqual(1, said.output.count('cannot be written'))

    def test_the_active_reaper_is_paused_meanwhile(self) -> None:
        self.away.stop()
        self.engine.guard.active = False
        self.turns(5)
        self.assertTrue(self.book.asked.is_set())
        journal.Store(self.conf).add([Record(Kind.PAUSE)])
        self.away.start()
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.engine.guard.active = True
        self.turns(40)
        self.assertEqual(('ACTIVE', 'PENDING'), (
            self.status(self.victim), self.status(waiting)))

    def test_without_a_journal(self) -> None:
        self.url = 'sqlite://'
        self.away.stop()
        self.start()
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.away.start()
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(self.victim), self.status(waiting)))

    def test_nobody_is_ended_without_it(self) -> None:
        self.conf.set_override('required', True, 'journal')
        self.nova.add_host('h2', 4)
        waiting, fits = (self.nova.add_server('w', size) for size in (8, 4))
        self.turns(40)
        self.assertEqual(
            ('ACTIVE', 'PENDING', 'ACTIVE'),
            tuple(map(self.status, (self.victim, waiting, fits))))
        self.away.stop()
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.away.start()

    def test_what_was_done_is_read_late(self) -> None:
        self.away.stop()
        self.addCleanup(self.away.start)
        start = self.engine.jobs.start
        self.useFixture(fixtures.MockPatchObject(
            self.engine.jobs, 'start', lambda name, *more, **others: (
                name != engine_module.JOURNAL and
                start(name, *more, **others))))
        waiting = self.nova.add_server('w', 8)
        self.turns(10)
        self.assertEqual('PENDING', self.status(waiting))
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))


class CloseTestCase(JournalTestCase):
    """What became of servers of which the journal does not tell."""

    def test_no_log_shows_a_password(self) -> None:
        """The errors of some drivers tell the URL."""
        said = self.useFixture(fixtures.FakeLogger())
        self.useFixture(fixtures.MockPatchObject(
            journal, 'read', side_effect=exception.DBConnectionError(
                'no server at mysql://reaper:secret@db')))
        self.start()
        self.nova.add_host('h2', 8)
        self.turns(5)
        self.assertIn('DBConnectionError', said.output)
        self.assertNotIn('secret', said.output)

    def test_a_cell_that_is_down_holds_up_no_other(self) -> None:
        self.book.store.add([Record(Kind.NOTICE, server)
                             for server in ('down', 'gone')])
        self.offset += 120

        def find(server: str) -> None:
            if server == 'down':
                raise nova.CellDown('nova', server, 'no answer', 503)

        self.assertEqual([('gone', 'delete')], [
            (record.server, record.result)
            for record in journal.close(
                self.book.store, find, (), self.fail)])


class RecallTestCase(JournalTestCase):
    """Which records are read."""

    def test_what_is_older_or_did_not_happen_counts_for_nothing(self) -> None:
        now = self.records() or None
        self.assertIsNone(now)
        book, options = self.book, self.engine.world.options
        written = [
            Record(Kind.END, 'a', result='delete'),
            Record(Kind.END, 'b', result='left'),
            Record(Kind.RETURN, 'c', result='asked'),
            Record(Kind.RETURN, 'd', result='error'),
            Record(Kind.WITHDRAWAL, 'e', result='gone')]
        book.store.add(written)
        self.offset += 1
        until = timeutils.utcnow(True)
        memory = journal.read(book.store, until, options, 3600)
        self.assertEqual(
            (['a'], [], [], [], []), (
                [item.server for item in memory.ends], memory.returns,
                memory.stuck, memory.missed, memory.builds))
        self.offset += 3601
        until = timeutils.utcnow(True)
        self.assertEqual([], journal.read(book.store, until, options,
                                         3600).ends)
        # What this process has done itself it knows.
        self.assertEqual([], journal.read(book.store, written[0].at, options,
                                         3600).ends)
