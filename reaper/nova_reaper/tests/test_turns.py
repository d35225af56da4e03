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

"""Who takes a turn while others are under notice."""

from typing import Any

from nova_reaper.attempt import Step
from nova_reaper import events
from nova_reaper import model
from nova_reaper.tests import cloud
from nova_reaper.tests import test_engine


class ShelvedTestCase(test_engine.EngineTestCase):
    """One that was shelved for another waits for free room."""

    def test_nobody_is_ended_for_it(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        high: Any = {'reaper:priority': '5'}
        shelved = self.nova.add_server(
            's', 8, preemptible=True, status='SHELVED_OFFLOADED',
            metadata={'reaper:shelved_at': cloud.NOW}, **high)
        self.turns(15, 61)
        decision = self.engine.world.told.last[shelved].decision
        self.assertEqual(model.Verdict.WAIT, decision.verdict)
        self.assertIn('shelved for another', decision.detail)
        self.assertEqual('ACTIVE', self.status(victim))

    def test_it_comes_back_though_its_flavor_is_no_more(self) -> None:
        self.nova.add_host('h1', 8)
        shelved = self.nova.add_server(
            's', 8, preemptible=True, status='SHELVED_OFFLOADED',
            metadata={'reaper:shelved_at': cloud.NOW})
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
        self.hint(events.Kind.SERVER, server=victim, preemptible=True)
        self.hint(events.Kind.WAITS, server=waiting)
        self.turns(15)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual('PENDING', self.status(waiting))


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
        self.assertEqual(2, steps.count(Step.GRACE))
        self.assertEqual(2, steps.count(Step.CHECK))
        self.assertTrue(any('for others first' in told.decision.detail
                            for told in self.engine.world.told.last.values()))

    def test_each_has_its_turn(self) -> None:
        self.conf.set_override('grace_period', 0, 'reaper')
        self.turns(120)
        self.assertEqual({'ACTIVE'}, {self.status(server)
                                      for server in self.large})
