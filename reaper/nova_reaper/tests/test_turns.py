# SPDX-License-Identifier: Apache-2.0

"""Who takes a turn while others are under notice."""

import time
from typing import Any
from unittest import mock

from nova_reaper.act.attempts import Step
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.events import bus
from nova_reaper.events import lists
from nova_reaper.report import http
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


class ShelvedTestCase(test_engine.EngineTestCase):
    """A server that was shelved for another waits for free room."""

    def test_nobody_is_ended_for_it(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        high: Any = {'reaper:priority': '5'}
        shelved = self.nova.add_server(
            's', 8, preemptible=True, status='SHELVED_OFFLOADED',
            metadata={'reaper:shelved_at': fakes.NOW}, **high)
        self.turns(15, 61)
        decision = self.engine.world.told.last[shelved].decision
        self.assertEqual(model.Verdict.WAIT, decision.verdict)
        self.assertIn('shelved for another', decision.detail)
        self.assertEqual('ACTIVE', self.status(victim))

    def test_it_comes_back_though_its_flavor_is_no_more(self) -> None:
        self.nova.add_host('h1', 8)
        shelved = self.nova.add_server(
            's', 8, preemptible=True, status='SHELVED_OFFLOADED',
            metadata={'reaper:shelved_at': fakes.NOW})
        self.nova.flavors.clear()
        self.turns(15)
        self.assertEqual('ACTIVE', self.status(shelved))
        self.assertEqual({}, self.nova.servers[shelved]['metadata'])


class UnmarkedTestCase(test_engine.EngineTestCase):
    """An operator takes the mark from a flavor of servers that run."""

    def test_nobody_is_ended_that_it_does_not_mark_any_more(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.flavors['m8p']['extra_specs'] = {}
        self.turns(5)
        waiting = self.nova.add_server('w', 8)
        self.hint(bus.Kind.SERVER, server=victim, preemptible=True)
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(15)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual('PENDING', self.status(waiting))


class LoadingTestCase(test_engine.EngineTestCase):
    """Whether a list is read or taken, the first list or any later list."""

    def test_later_lists(self) -> None:
        self.turns(5)
        self.assertEqual((1, False), (self.engine.listed,
                                      self.engine.loading))
        for name in (lists.FULL, lists.CHANGES, lists.FIRST_HOSTS):
            with mock.patch.object(self.engine.jobs, '_running', {name}):
                self.assertTrue(self.engine.loading)
        self.engine._lists_read.append(iter(()))
        self.assertTrue(self.engine.loading)


class TurnsTestCase(test_engine.EngineTestCase):
    """Twelve servers of high priority wait for ends, two at a time."""

    options: dict[str, Any] = {
        'grace_period': 100000, 'max_preemptions': 2, 'max_rebuilds': 4}

    def setUp(self) -> None:
        super().setUp()
        for number in range(12):
            self.nova.add_host(f'h{number}', 8)
            self.nova.add_server('s', 8, f'h{number}', preemptible=True)
        high: Any = {'reaper:priority': '5'}
        self.large = [self.nova.add_server(
            'w', 8, project=f'p{number}', **high) for number in range(12)]

    def test_free_room_waits_for_none_of_them(self) -> None:
        self.nova.add_host('free', 4)
        small = self.nova.add_server('small', 2, project='q')
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(small))
        steps = [current.step
                 for current in self.engine.attempts.under_way.values()]
        self.assertEqual([Step.GRACE] * 2, steps)
        self.assertTrue(any('for other servers first' in told.decision.detail
                            for told in self.engine.world.told.last.values()))

    def test_none_of_them_is_overtaken(self) -> None:
        self.turns(15)
        first = set(self.engine.attempts.under_way)
        self.assertEqual(2, len(first))
        low: Any = {'reaper:priority': '3'}
        late = self.nova.add_server('late', 8, project='late', **low)
        for server in first:
            del self.nova.servers[server]
            self.hint(bus.Kind.SERVER, server=server)
        self.hint(bus.Kind.WAITS, server=late)
        self.turns(5, 1)
        second = set(self.engine.attempts.under_way) - first
        self.assertEqual(2, len(second))
        self.assertNotIn(late, second)

    def test_who_comes_after_a_demand_was_left_is_served(self) -> None:
        self.turns(15)
        first = set(self.engine.attempts.under_way)
        # All servers but those under way go, and with them the last server of
        # a demand that was put off.
        for server in set(self.large) - first:
            del self.nova.servers[server]
            self.hint(bus.Kind.SERVER, server=server)
        self.turns(2, 1)
        for server in first:
            del self.nova.servers[server]
            self.hint(bus.Kind.SERVER, server=server)
        self.turns(2, 1)
        high: Any = {'reaper:priority': '5'}
        late = [self.nova.add_server('w', 8, project=f'p{number}', **high)
                for number in range(12)]
        for server in late:
            self.hint(bus.Kind.WAITS, server=server)
        self.turns(5, 1)
        self.assertEqual(2, len(self.engine.attempts.under_way))
        self.assertLessEqual(set(self.engine.attempts.under_way), set(late))

    def test_nobody_is_decided_for_again_while_others_have_their_turn(
            self) -> None:
        self.turns(15)
        with mock.patch.object(choose, 'decide') as decide:
            self.turns(10, 1)
        # Attempts under way are planned anew.
        self.assertLessEqual({call.args[1].id for call
                              in decide.call_args_list},
                             set(self.engine.attempts.under_way))

    def test_each_has_its_turn(self) -> None:
        self.conf.set_override('grace_period', 0, 'reaper')
        self.turns(120)
        self.assertEqual({'ACTIVE'}, {self.status(server)
                                      for server in self.large})


class OthersTestCase(test_engine.EngineTestCase):
    """One for which nothing can be done stands in nobody's way."""

    mode = 'fill'
    options = {'max_rebuilds': 2}

    def test_nova_fails_over_rebuilds_of_some(self) -> None:
        self.nova.add_host('h1', 64)
        bad = '|'.join(self.nova.add_server('bad', 4) for _ in range(3))
        self.nova.before += 5000 * [
            ('rebuild', bad, lambda: self.nova.error(500))]
        self.turns(10)
        good = self.nova.add_server('good', 2)
        self.turns(60, 10)
        self.assertEqual('ACTIVE', self.status(good))

    def test_a_host_is_not_known_any_more(self) -> None:
        for host in ('h1', 'h2'):
            self.nova.add_host(host, 64)
        self.turns(5)
        source = self.engine.source
        for gone in source.hypervisors:
            server = self.nova.add_server('w', 4)
            with mock.patch.object(source, 'hypervisors', {
                    name: one for name, one in source.hypervisors.items()
                    if name != gone}):
                self.hint(bus.Kind.WAITS, server=server)
                self.turns(10)
            self.assertEqual('ACTIVE', self.status(server))
            self.assertNotEqual(
                gone, self.nova.servers[server]['OS-EXT-SRV-ATTR:host'])

    def test_nothing_is_begun_for_one_that_is_given_up(self) -> None:
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)
        self.turns(5)
        self.conf.set_override('pending_timeout', 1, 'reaper')
        give_up = self.engine.attempts._actor.give_up

        def meanwhile(server: model.Waiting) -> bool:
            # There is room in the moment in which it is given up.
            self.nova.add_host('h2', 8)
            self.hint(bus.Kind.SHAPE)
            self.engine._put_host(self.engine.source.read_host(
                'h1') or self.fail('no host'))
            self.assertNotIn(waiting, self.engine.world.queue)
            return give_up(server)

        with mock.patch.object(self.engine.attempts._actor, 'give_up',
                               meanwhile):
            self.turns(5, 10)
        self.assertEqual('ERROR', self.status(waiting))
        self.assertNotIn('rebuild', self.actions())

    def test_one_that_cannot_be_given_up_is_waited_for_again(self) -> None:
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)
        self.conf.set_override('pending_timeout', 1, 'reaper')
        self.nova.before += 20 * [
            ('os-resetState', 'action', lambda: self.nova.error(500))]
        self.turns(10)
        self.assertIn(waiting, self.engine.world.queue)
        self.assertEqual('PENDING', self.status(waiting))


class ShownTestCase(test_engine.EngineTestCase):
    """Those who look at a long queue do not hold the engine up."""

    mode = 'fill'

    def test_a_long_list_is_not_made_for_each(self) -> None:
        self.nova.add_host('h1', 2)
        self.nova.add_server('w', 4)
        self.turns(5)
        self.assertEqual(1, len(self.shown.entries()))
        with mock.patch.object(time, 'perf_counter',
                               side_effect=(0.0, 0.3)):
            self.shown.entries()
        self.nova.add_server('x', 4)
        self.turns(2, 61)
        self.turns(2)
        made = self.shown._made
        with mock.patch.object(self.shown, '_made', side_effect=made) as make:
            for _ in range(5):
                self.assertEqual(2, len(self.shown.entries()))
            self.assertEqual(5, make.call_count)
        with mock.patch.object(time, 'perf_counter',
                               side_effect=(0.0, 0.3)):
            self.shown.entries()
        with mock.patch.object(self.shown, '_made') as make:
            for _ in range(5):
                self.assertEqual(2, len(self.shown.entries()))
            make.assert_not_called()
            self.offset += 0.3 * http.REST
            self.shown.entries()
            make.assert_called_once()
