# SPDX-License-Identifier: Apache-2.0

"""Servers that end when their run time is over."""

import datetime
import time
from typing import Any
from unittest import mock

from oslo_utils import timeutils

from nova_reaper.act.attempts import Step
from nova_reaper.clients import shapes
from nova_reaper.report import journal
from nova_reaper.tests.act import test_recovery
from nova_reaper.tests import fakes


class RunTimeTestCase(test_recovery.CrashingTestCase):
    """A server that may run for an hour."""

    options = {'grace_period': 120, 'stop_timeout': 30}
    limit = {'reaper:max_run_time': '3600'}

    def setUp(self) -> None:
        self.records: list[journal.Record] = []
        super().setUp()

    def new_book(self) -> journal.Journal:
        book = super().new_book()
        book._tell = self.records.append
        return book

    def add(self, name: str = 's', age: float = 0.0, vcpus: int = 8,
            host: str = 'h1', **others: Any) -> str:
        """A server that was launched so many seconds ago."""
        server = self.nova.add_server(name, vcpus, host,
                                      **self.limit | others)
        self.launch(server, age)
        return server

    def launch(self, server: str, age: float = 0.0) -> None:
        self.nova.servers[server]['OS-SRV-USG:launched_at'] = (
            timeutils.utcnow(True) - datetime.timedelta(seconds=age)
        ).strftime('%Y-%m-%dT%H:%M:%S.000000')

    def lives(self, server: str) -> bool:
        return self.left(server) == [True]

    def kinds(self, server: str) -> list[tuple[str, str | None]]:
        """The records of a server, the oldest first."""
        return [(record.kind.value, record.detail.get('cause'))
                for record in self.records if record.server == server]

    def terminate_at(self, server: str) -> datetime.datetime:
        until: datetime.datetime = timeutils.parse_isotime(
            self.nova.servers[server]['metadata']['reaper:terminate_at'])
        return until


class EndTestCase(RunTimeTestCase):
    """The good path, and what speaks against an end."""

    def test_it_has_notice_and_ends(self) -> None:
        server = self.add()
        self.turns(20, 170)
        self.assertTrue(self.lives(server))
        self.turns(12, 10)
        # The end of the notice is that of the run time.
        self.assertEqual(server,
                         self.nova.servers[server]['metadata']['reaper:for'])
        launched = timeutils.parse_isotime(
            self.nova.servers[server]['OS-SRV-USG:launched_at'] + 'Z')
        # A turn comes each ten seconds.
        self.assertIn((self.terminate_at(server) - launched).total_seconds(),
                      range(3600, 3607))
        notice, = self.shown.notices()
        self.assertEqual(
            ('run_time', None, 'Its run time ends.'),
            tuple(notice[key] for key in ('cause', 'for', 'message')))
        self.assertEqual([], self.actions())
        self.turns(30, 10)
        self.assertIsNone(self.status(server))
        self.assertEqual(['os-stop', 'forceDelete'], self.actions())
        self.assertEqual([('notice', 'run_time'), ('end', 'run_time')],
                         self.kinds(server))
        record = self.records[-1].to_dict(True)
        self.assertEqual(
            (None, None, None, 'run_time', 'Its run time ends.'), tuple(
                record[key] for key in (
                    'for', 'for_project_id', 'for_own_project', 'cause',
                    'message')))
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertEqual(0, self.value('needless_victims_total'))
        self.assertEqual(1, self.value('victims_total', action='delete'))

    def test_one_that_is_too_old_has_its_whole_notice(self) -> None:
        server = self.add(age=9000)
        self.turns(3)
        left = self.terminate_at(server) - timeutils.utcnow(True)
        self.assertGreater(left.total_seconds(), 110)

    def test_shelved_it_comes_back_by_its_owner_alone(self) -> None:
        server = self.add(age=3600, image=False)
        self.turns(40, 10)
        self.assertEqual('SHELVED_OFFLOADED', self.status(server))
        self.assertEqual({}, self.nova.servers[server]['metadata'])
        self.turns(20, 61)
        self.assertEqual('SHELVED_OFFLOADED', self.status(server))
        self.assertNotIn('unshelve', self.actions())

    def test_one_that_is_preemptible_too_makes_room_before(self) -> None:
        server = self.add(age=900, preemptible=True)
        waiting = self.nova.add_server('w', 4)
        self.turns(40, 10)
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(server), self.status(waiting)))

    def test_one_that_is_not_preemptible_makes_no_room_before(self) -> None:
        server = self.add(age=900)
        waiting = self.nova.add_server('w', 4)
        self.turns(40, 10)
        self.assertEqual(('ACTIVE', 'PENDING'),
                         (self.status(server), self.status(waiting)))
        self.turns(40, 61)
        self.turns(20)
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(server), self.status(waiting)))

    def test_nobody_is_ended_for_another_beside_it(self) -> None:
        # A server that has notice for its run time is no victim.
        server = self.add(age=3600, preemptible=True)
        self.turns(5)
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.assertEqual({server}, set(self.engine.attempts.under_way))
        self.turns(60, 10)
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(server), self.status(waiting)))
        self.assertEqual(1, self.actions().count('forceDelete'))

    def test_its_owner_asks_for_less(self) -> None:
        for value in ('900', '00900', ' 900'):
            server = self.add(age=1000, metadata={
                'reaper:max_run_time': value})
            self.turns(40, 10)
            self.assertIsNone(self.status(server), value)
            self.start()

    def test_its_owner_asks_for_no_number_of_seconds(self) -> None:
        for value in ('0', '-5', 'long', '9' * 50, '\u0663'):
            server = self.add(age=1000, vcpus=1, metadata={
                'reaper:max_run_time': value})
            self.turns(20, 10)
            self.assertTrue(self.lives(server), value)
            self.start()

    def test_its_owner_gets_no_more(self) -> None:
        for value in ('7200', '0', '-5', 'long', '9' * 50, '\u0663'):
            server = self.add(age=3600, metadata={
                'reaper:max_run_time': value})
            self.turns(40, 10)
            self.assertIsNone(self.status(server), value)
            self.start()

    def test_its_owner_alone_limits_nothing(self) -> None:
        self.limit = {}
        server = self.add(age=9000, metadata={'reaper:max_run_time': '900'},
                          preemptible=True)
        self.turns(30, 10)
        self.assertTrue(self.lives(server))

    def test_an_administrator_has_locked_it(self) -> None:
        server = self.add(age=3600)
        self.nova.servers[server] |= {'locked': True, 'actions': [
            fakes._entry('lock', 'admin', fakes.NOW) | {
                'project_id': 'admins'}]}
        self.turns(30, 10)
        self.assertTrue(self.lives(server))

    def test_it_has_a_task_when_its_notice_is_over(self) -> None:
        server = self.add(age=3600)
        self.turns(5)
        self.nova.servers[server]['OS-EXT-STS:task_state'] = 'image_uploading'
        self.turns(13, 10)
        self.assertEqual([], self.actions())
        self.nova.servers[server]['OS-EXT-STS:task_state'] = None
        self.turns(30, 2)
        self.assertIsNone(self.status(server))

    def test_its_owner_was_faster(self) -> None:
        server = self.add(age=3600)
        self.turns(5)
        self.nova.delete(server)
        self.turns(20, 10)
        self.assertEqual([], self.actions())
        self.assertEqual('left', self.records[-1].result)
        self.assertEqual({}, self.engine.attempts.under_way)

    def test_many_at_once(self) -> None:
        for number in range(2, 5):
            self.nova.add_host(f'h{number}', 8)
        servers = [self.add(str(number), 3600, host=f'h{number}')
                   for number in range(1, 5)]
        with mock.patch('nova_reaper.act.attempts.AT_ONCE', 3):
            self.turns(5)
            self.assertEqual(3, len(self.shown.notices()))
            self.turns(80, 10)
        self.assertEqual([None] * 4, [self.status(one) for one in servers])


class BrakeTestCase(RunTimeTestCase):
    """The operator's brakes hold."""

    def test_the_mode(self) -> None:
        for mode in ('observe', 'fill'):
            self.conf.set_override('mode', mode, 'reaper')
            server = self.add(age=3600)
            self.turns(20, 10)
            self.assertTrue(self.lives(server))
            self.assertEqual([], self.kinds(server))
            self.nova.finish(server)
            self.start()

    def test_the_mode_changes_in_the_notice(self) -> None:
        server = self.add(age=3600)
        self.turns(5)
        self.assertFalse(self.lives(server))
        self.conf.set_override('mode', 'fill', 'reaper')
        self.turns(10, 10)
        self.assertTrue(self.lives(server))
        self.assertEqual([('notice', 'run_time'), ('withdrawal', 'run_time')],
                         self.kinds(server))
        self.assertEqual([], list(self.engine.world.planner.ends))
        self.assertEqual({}, self.engine.world.planner.to_end)
        # Nothing is forgotten.
        self.conf.set_override('mode', 'preempt', 'reaper')
        self.turns(40, 10)
        self.assertIsNone(self.status(server))

    def test_a_pause(self) -> None:
        self.turns(2)
        self.book.pause_at_once('test')
        server = self.add(age=3600)
        self.turns(10, 61)
        self.assertTrue(self.lives(server))

    def test_the_caps(self) -> None:
        self.conf.set_override('max_ends_per_project_hour', 1, 'reaper')
        first = self.add('s1', 3700, 4)
        others = [self.add('s2', 3600, 2),
                  self.add('t', 3600, 2, project='other')]
        self.turns(40, 10)
        self.assertEqual([None, 'ACTIVE', None],
                         [self.status(one) for one in (first, *others)])
        self.turns(80, 61)
        self.assertEqual([None, None], [self.status(one) for one in others])

    def test_the_cap_of_all(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        first = self.add('s1', 3700, 4)
        other = self.add('t', 3600, 2, project='other')
        self.turns(40, 10)
        self.assertEqual([None, 'ACTIVE'],
                         [self.status(one) for one in (first, other)])

    def of_a_long_notice(self) -> tuple[str, str]:
        """A server with two hours of notice, and a server without notice."""
        self.conf.set_override('grace_period', 7200, 'reaper')
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        first = self.add('s1', 3700, 4)
        self.turns(10)
        return first, self.add('t', 3700, 2, project='other')

    def test_the_cap_counts_an_end_as_long_as_its_notice(self) -> None:
        first, other = self.of_a_long_notice()
        self.turns(80, 61)
        self.assertEqual([('notice', 'run_time')], self.kinds(first))
        self.assertEqual([], self.kinds(other))

    def test_and_so_it_does_after_a_restart(self) -> None:
        first, other = self.of_a_long_notice()
        self.start()
        self.turns(80, 61)
        self.assertEqual([('notice', 'run_time')], self.kinds(first))
        self.assertEqual([], self.kinds(other))

    def test_the_flavor_has_no_limit_any_more(self) -> None:
        server = self.add(age=3600)
        self.turns(5)
        self.assertFalse(self.lives(server))
        self.nova.flavors['m8']['extra_specs'] = {}
        self.turns(20, 10)
        self.assertTrue(self.lives(server))
        self.assertEqual([], self.actions())

    def test_the_flavor_got_its_limit_later(self) -> None:
        limit, self.limit = self.limit, {}
        server = self.add(age=9000)
        self.nova.flavors['m8']['extra_specs'] = limit
        self.turns(30, 61)
        self.assertTrue(self.lives(server))


class ProjectTestCase(RunTimeTestCase):
    """The property of a project."""

    limit: dict[str, str] = {}

    def set(self, **properties: str) -> None:
        identity: Any = self.services.keystone
        identity.project_properties.return_value = {
            'owner': {f'reaper:{name}': value
                      for name, value in properties.items()}}

    def test_it_ends(self) -> None:
        self.set(max_run_time='3600')
        self.nova.add_host('h2', 8)
        server = self.add(age=3600)
        other = self.add(age=3600, host='h2', project='other')
        self.turns(40, 10)
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(server), self.status(other)))

    def test_the_flavor_goes_before_the_project(self) -> None:
        self.set(max_run_time='60')
        servers = [self.add(name, 900, vcpus, **{'reaper:max_run_time': limit})
                   for name, vcpus, limit in (
                       ('s', 2, '3600'), ('t', 4, '0'))]
        self.turns(30, 10)
        self.assertEqual([True, True], self.left(*servers))

    def test_nonsense_is_told_and_ignored(self) -> None:
        shapes._warn_once.cache_clear()
        self.set(max_run_time='a day')
        server = self.add(age=9000)
        with self.assertLogs('nova_reaper.clients.shapes', 'WARNING') as log:
            self.turns(30, 10)
        self.assertTrue(self.lives(server))
        self.assertEqual(1, len(log.output))
        self.assertIn('reaper:max_run_time of a project', log.output[0])

    def test_the_limit_goes(self) -> None:
        self.set(max_run_time='3600')
        server = self.add(age=3600)
        self.turns(5)
        self.assertFalse(self.lives(server))
        self.set()
        self.turns(20, 10)
        self.assertTrue(self.lives(server))


class CrashTestCase(RunTimeTestCase):
    """Another process is started."""

    options = {'grace_period': 50, 'stop_timeout': 30}

    def test_before_the_notice(self) -> None:
        server = self.add(age=3600)
        self.until(Step.NOTICE)
        self.start()
        self.turns(40, 10)
        self.assertIsNone(self.status(server))

    def test_in_the_notice(self) -> None:
        server = self.add(age=3600)
        self.until(Step.GRACE)
        until = self.terminate_at(server)
        self.offset += 20
        self.start()
        self.turns(5)
        # The end goes on with the notice that was given.
        self.assertEqual(until, self.terminate_at(server))
        self.assertEqual(Step.GRACE, self.engine.attempts.under_way[
            server].step)
        self.turns(20, 10)
        self.assertIsNone(self.status(server))
        self.assertEqual(1, self.actions().count('forceDelete'))

    def test_after_the_stop(self) -> None:
        server = self.add(age=3600)
        self.until(Step.END)
        self.nova.servers[server] |= {'status': 'SHUTOFF', 'actions': [
            fakes._entry('stop', 'reaper', fakes.NOW) | {
                'project_id': fakes.SERVICE}]}
        self.start()
        self.turns(10)
        self.assertIsNone(self.status(server))
        self.assertNotIn('os-start', self.actions())

    def test_in_the_middle_of_the_end(self) -> None:
        server = self.add(age=3600)
        self.nova.slow = True
        self.turns(14, 10)
        self.turns(10)
        self.assertIn('forceDelete', self.actions())
        self.start()
        self.turns(5)
        self.nova.finish(server)
        self.turns(10)
        self.assertEqual({}, self.engine.attempts.under_way)

    def test_as_it_makes_room_for_another(self) -> None:
        server = self.add(age=3400, preemptible=True)
        waiting = self.nova.add_server('w', 4)
        self.until(Step.END)
        self.start()
        self.nova.slow = True
        self.turns(30, 10)
        # Its end goes on, and no other one begins.
        self.assertEqual({waiting}, set(self.engine.attempts.under_way))
        self.assertEqual(waiting, self.nova.servers[server]['metadata'][
            'reaper:for'])
        self.nova.finish(server)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_what_an_owner_writes_is_no_notice(self) -> None:
        server = self.add(age=60)
        self.nova.servers[server]['metadata'] = {
            'reaper:for': server,
            'reaper:terminate_at': '2000-01-01T00:00:00Z'}
        self.turns(10)
        self.assertTrue(self.lives(server))
        self.assertEqual([], self.actions())

    def test_an_owner_writes_a_notice_for_ever(self) -> None:
        server = self.add(age=3600)
        self.nova.servers[server]['metadata'] = {
            'reaper:for': server,
            'reaper:terminate_at': '2100-01-01T00:00:00Z'}
        self.turns(40, 10)
        self.assertIsNone(self.status(server))

    def test_nova_is_away_at_the_notice(self) -> None:
        server = self.add(age=3600)
        self.nova.before.append((
            'POST', 'metadata', lambda: self.nova.error(503)))
        self.turns(4)
        self.assertEqual([], list(self.engine.world.planner.ends))
        self.assertEqual({}, self.engine.world.planner.to_end)
        self.turns(60, 10)
        self.assertIsNone(self.status(server))

    def test_another_reaper_acts(self) -> None:
        server = self.add(age=3600)
        self.turns(5)
        self.engine.guard.active = False
        self.turns(2)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertLessEqual(self.engine.world._avoided[server],
                             time.monotonic())


class RoomTestCase(RunTimeTestCase):
    """When there will be room."""

    def room_by(self, server: str) -> float | None:
        """Seconds from now, as they are shown."""
        at, group = self.shown.room_by(server), self.conf.reaper
        if at is None:
            return None
        seconds: float = (at - timeutils.utcnow(True)).total_seconds() - (
            group.stop_timeout + group.end_timeout)
        return round(seconds, -1)

    def test_it_is_the_first_end_that_does(self) -> None:
        self.nova.add_host('h2', 8)
        self.add('s1', 600, 2)
        self.add('s2', 300, 4)
        self.add('s3', 0, 2)
        self.add('t', 100, 8, host='h2')
        waiting = [self.nova.add_server(f'w{size}', size)
                   for size in (1, 6, 7, 9)]
        self.turns(5, 0)
        self.assertEqual([3000, 3300, 3500, None],
                         [self.room_by(one) for one in waiting])
        self.nova.refused_by['h2'] = 'AFilter'
        self.conf.set_override('mode', 'fill', 'reaper')
        self.turns(2)
        self.assertIsNone(self.room_by(waiting[0]))

    def test_nothing_is_known(self) -> None:
        self.limit = {}
        self.add()
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.assertIsNone(self.room_by(waiting))
        self.assertIsNone(self.shown.room_by(fakes.new_id()))

    def test_what_owners_see_of_their_servers(self) -> None:
        servers = [self.add('s', 600, 2),
                   self.add('t', 600, 2, preemptible=True),
                   self.nova.add_server('u', 3, 'h1', project='other',
                                        preemptible=True)]
        self.nova.add_server('v', 1, 'h1')
        self.turns(5, 0)
        shown = {item['name']: item
                 for item in self.shown.servers('owner', '', 10)}
        self.assertEqual({'s': False, 't': True}, {
            name: item['preemptible'] for name, item in shown.items()})
        ends = timeutils.parse_isotime(shown['s']['ends_at'])
        self.assertEqual(3000, round((
            ends - timeutils.utcnow(True)).total_seconds(), -1))
        everything = self.shown.servers(None, '', 10)
        self.assertEqual(sorted(servers),
                         [item['server'] for item in everything])
        self.assertEqual([None], [item['ends_at'] for item in everything
                                  if item['name'] == 'u'])
        self.assertEqual(sorted(servers)[1:2], [
            item['server']
            for item in self.shown.servers(None, min(servers), 1)])
        self.assertEqual([], self.shown.servers('nobody', '', 10))


class RehearsalTestCase(RunTimeTestCase):
    """The owner of a server tests what the guest does."""

    options = {'grace_period': 50, 'stop_timeout': 30}
    limit: dict[str, str] = {}

    def setUp(self) -> None:
        super().setUp()
        self.server = self.add(age=900, preemptible=True)
        self.turns(5)

    def rehearse(self, server: str = '') -> str | None:
        found = self.shown.find(server or self.server)
        assert found
        return self.shown.rehearse(found)

    def test_it_is_started_again(self) -> None:
        self.assertIsNone(self.rehearse())
        self.turns(5)
        self.assertEqual(self.server, self.nova.servers[self.server][
            'metadata']['reaper:for'])
        notice, = self.shown.notices()
        # Nothing is deleted or shelved.
        self.assertEqual(
            ('rehearsal', None, None, 'Its owner rehearses its end.'),
            tuple(notice[key] for key in (
                'cause', 'for', 'action', 'message')))
        self.turns(40)
        self.assertEqual([], self.actions())
        self.turns(20)
        self.assertEqual(['os-stop', 'os-start'], self.actions())
        self.assertTrue(self.lives(self.server))
        self.assertEqual(
            [('notice', 'rehearsal'), ('withdrawal', 'rehearsal')],
            self.kinds(self.server))
        self.assertEqual('the rehearsal is over',
                         self.records[-1].detail['why'])
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertEqual([], list(self.engine.world.planner.ends))
        self.assertEqual({}, self.engine.world.planner.to_end)

    def test_a_guest_that_takes_its_time(self) -> None:
        def stop() -> fakes.Answer:
            self.nova.servers[self.server][
                'OS-EXT-STS:task_state'] = 'powering-off'
            return fakes.Answer(202, b'')

        self.nova.before.append(('os-stop', 'action', stop))
        self.assertIsNone(self.rehearse())
        self.turns(100)
        self.nova.servers[self.server] |= {
            'status': 'SHUTOFF', 'OS-EXT-STS:task_state': None, 'actions': [
                fakes._entry('stop', 'reaper', fakes.NOW) | {
                    'project_id': fakes.SERVICE}]}
        self.turns(40, 10)
        self.assertTrue(self.lives(self.server))

    def test_the_answer_to_the_stop_is_lost(self) -> None:
        def stop() -> fakes.Answer:
            self.nova.servers[self.server]['status'] = 'SHUTOFF'
            return self.nova.error(503)

        self.nova.before.append(('os-stop', 'action', stop))
        self.assertIsNone(self.rehearse())
        self.turns(100)
        self.assertTrue(self.lives(self.server))

    def test_nova_refuses_the_stop(self) -> None:
        self.nova.before.append((
            'os-stop', 'action', lambda: self.nova.error(409)))
        self.assertIsNone(self.rehearse())
        self.turns(100)
        self.assertTrue(self.lives(self.server))
        self.assertEqual({}, self.engine.attempts.under_way)

    def test_it_is_no_victim_meanwhile(self) -> None:
        self.assertIsNone(self.rehearse())
        waiting = self.nova.add_server('w', 4)
        self.turns(40)
        self.assertEqual({self.server}, set(self.engine.attempts.under_way))
        self.assertEqual('PENDING', self.status(waiting))
        # The true end comes after that.
        self.turns(60, 10)
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(self.server), self.status(waiting)))

    def test_its_run_time_is_over_meanwhile(self) -> None:
        self.limit = {'reaper:max_run_time': '3600'}
        self.nova.add_host('h2', 8)
        server = self.add(age=3540, vcpus=7, host='h2', preemptible=True)
        with mock.patch.object(self.engine.attempts, '_look_at', 1e99):
            self.turns(12, 61)
            self.assertIsNone(self.rehearse(server))
        self.turns(90)
        self.assertIn('os-start', self.actions())
        self.turns(60, 5)
        self.assertIsNone(self.status(server))

    def test_refused(self) -> None:
        def refused(server: str, why: str) -> None:
            self.assertIn(why, str(self.rehearse(server)))
            self.turns(5)
            self.assertNotIn('os-stop', self.actions())

        self.nova.add_host('h2', 8)
        refused(self.add('o', vcpus=4, host='h2'), 'not preemptible')
        other = self.nova.servers[self.server]
        for changes, why in (
                ({'status': 'SHUTOFF'}, 'does not run'),
                ({'OS-EXT-STS:task_state': 'resize_prep'}, 'has a task'),
                ({'metadata': {'reaper:for': fakes.new_id()}}, 'notice')):
            before = dict(other)
            other.update(changes)
            refused(self.server, why)
            other.update(before)
        self.conf.set_override('mode', 'fill', 'reaper')
        self.turns(2)
        refused(self.server, 'ends no servers')
        self.start()
        refused(self.server, 'does not know')

    def test_it_has_a_rehearsal_and_had_one(self) -> None:
        self.assertIsNone(self.rehearse())
        self.assertIn('notice', str(self.rehearse()))
        self.turns(100)
        self.assertIn('within the last hour', str(self.rehearse()))
        self.turns(8, 600)
        self.turns(5)
        self.assertIsNone(self.rehearse())

    def test_too_many(self) -> None:
        with mock.patch('nova_reaper.act.attempts.AT_ONCE', 0):
            self.assertIn('Too many', str(self.rehearse()))

    def test_the_mode_changes_after_the_stop(self) -> None:
        self.assertIsNone(self.rehearse())
        self.turns(30)
        self.conf.set_override('mode', 'fill', 'reaper')
        self.turns(5)
        self.assertTrue(self.lives(self.server))
        self.assertEqual([], self.actions())

    def test_its_owner_deletes_it(self) -> None:
        self.assertIsNone(self.rehearse())
        self.turns(30)
        self.nova.delete(self.server)
        self.turns(60)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertEqual(('end', 'left'), (
            self.records[-1].kind.value, self.records[-1].result))

    def killed(self, step: Step) -> None:
        self.assertIsNone(self.rehearse())
        self.until(step)
        self.start()

    def test_killed_in_the_notice(self) -> None:
        self.killed(Step.GRACE)
        self.turns(20, 10)
        self.assertTrue(self.lives(self.server))
        self.assertEqual([], self.actions())

    def test_killed_after_the_stop(self) -> None:
        self.killed(Step.END)
        self.nova.servers[self.server] |= {'status': 'SHUTOFF', 'actions': [
            fakes._entry('stop', 'reaper', fakes.NOW) | {
                'project_id': fakes.SERVICE}]}
        self.turns(5)
        self.assertTrue(self.lives(self.server))
        self.assertEqual(['os-start'], self.actions())
