# SPDX-License-Identifier: Apache-2.0

from collections.abc import Sequence
import dataclasses
import datetime
import random
from unittest import mock

import hypothesis
from hypothesis import strategies

from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.decide import victims
from nova_reaper.queue import queue
from nova_reaper import tests
from nova_reaper.tests import brute_force

PREEMPT = model.Options(mode=model.Mode.PREEMPT)
SEEDS = strategies.integers(min_value=0, max_value=2 ** 32)


def decide(world: brute_force.World, waiting: model.Waiting,
           options: model.Options = PREEMPT,
           ends_left: dict[str, int] | None = None) -> model.Decision:
    index = world.index(options)
    index.exclusions.refuse(waiting.shape, world.refused)
    return choose.decide(index, waiting, options,
                         brute_force.NOW, ends_left=ends_left)


class KubernetesTestCase(tests.TestCase):
    """The workload of kube-scheduler's scheduler_perf for preemption.

    100 servers need all of a host each, and there are 1,000 hosts with ten
    servers of a lower priority each.
    """

    def setUp(self) -> None:
        super().setUp()
        one, full = {'VCPU': 1, 'MEMORY_MB': 2}, {'VCPU': 10, 'MEMORY_MB': 20}
        names = [f'node{number:04}' for number in range(1000)]
        self.index = brute_force.world({}, ()).index(PREEMPT)
        for name in names:
            self.index.put(model.Host(name, {
                key: model.Inventory(amount) for key, amount in full.items()},
                full), [model.Server(
                    f'{name}-{number}', name, one, preemptible=True)
                    for number in range(10)])
        self.queue = queue.Queue(PREEMPT)
        for number in range(100):
            self.queue.put(brute_force.waiting(full, number), brute_force.NOW)

    def test_counts_stay_what_they_are(self) -> None:
        planner = choose.Planner(self.index, self.queue, PREEMPT)
        decisions = []
        with mock.patch.object(
                victims._Search, '_of_size', autospec=True,
                side_effect=victims._Search._of_size) as of_size, (
                mock.patch.object(victims.Field, 'sets', autospec=True,
                                  side_effect=victims.Field.sets)) as sets:
            while found := planner.next(brute_force.NOW):
                decisions.append(found[1])
        self.assertEqual(100, len(decisions))
        self.assertEqual(100, len({decision.host for decision in decisions}))
        self.assertEqual({10}, {len(decision.victims)
                                for decision in decisions})
        # One search for a decision, and a fifth more before somebody looks.
        for calls in (of_size, sets):
            self.assertLessEqual(calls.call_count, 120)


class AardvarkTestCase(tests.TestCase):
    """The cases that Aardvark's own tests fix for its strict strategy."""

    @staticmethod
    def server(name: str, resources: tuple[int, int, int],
               host: str = 'h1') -> model.Server:
        names = ('VCPU', 'MEMORY_MB', 'DISK_GB')
        return model.Server(name, host, dict(zip(names, resources)),
                            preemptible=True)

    def check(self, asked: tuple[int, int, int],
              used: Sequence[tuple[int, int, int]],
              servers: Sequence[model.Server],
              expected: tuple[str, str, Sequence[str]]) -> None:
        names = ('VCPU', 'MEMORY_MB', 'DISK_GB')
        hosts = [
            model.Host(f'h{number}', {
                name: model.Inventory(total)
                for name, total in zip(names, (8, 2056, 40))},
                dict(zip(names, amounts)))
            for number, amounts in enumerate(used, 1)]
        world = brute_force.World(hosts, servers)
        decision = decide(world,
                          brute_force.waiting(dict(zip(names, asked))))
        self.assertEqual(expected, (decision.verdict, decision.host or '',
                                    decision.victims))

    def test_the_only_one(self) -> None:
        self.check((1, 256, 5), [(8, 2056, 40)],
                   [self.server('s1', (1, 256, 10))],
                   ('preempt', 'h1', ('s1',)))

    def test_least_left_over(self) -> None:
        self.check((1, 256, 5), [(8, 2056, 40)],
                   [self.server('s1', (1, 256, 10)),
                    self.server('s2', (1, 256, 5)),
                    self.server('s3', (2, 512, 10))],
                   ('preempt', 'h1', ('s2',)))

    def test_of_two_hosts(self) -> None:
        self.check((2, 512, 10), [(7, 1800, 35), (7, 1500, 35)],
                   [self.server('s1', (1, 256, 5)),
                    self.server('s2', (1, 256, 5), 'h2'),
                    self.server('s3', (2, 512, 10), 'h2')],
                   ('preempt', 'h1', ('s1',)))

    def test_nobody_where_there_is_room(self) -> None:
        self.check((1, 256, 5), [(7, 512, 35)],
                   [self.server('s1', (1, 256, 10)),
                    self.server('s2', (1, 256, 5)),
                    self.server('s3', (2, 512, 10))],
                   ('room', 'h1', ()))

    def test_the_host_with_the_least_room_left(self) -> None:
        self.check((1, 256, 5), [(7, 256, 35), (7, 512, 35)],
                   [self.server('s1', (1, 256, 5)),
                    self.server('s2', (1, 256, 5), 'h2'),
                    self.server('s3', (2, 512, 10), 'h2')],
                   ('room', 'h2', ()))

    def test_not_enough(self) -> None:
        self.check((1, 256, 35), [(7, 512, 35)],
                   [self.server('s1', (1, 256, 10)),
                    self.server('s2', (1, 256, 5)),
                    self.server('s3', (2, 512, 10))],
                   ('wait', '', ()))

    def test_not_enough_on_one_host(self) -> None:
        self.check((1, 256, 35), [(7, 256, 35), (7, 512, 35)],
                   [self.server('s1', (1, 256, 5)),
                    self.server('s2', (1, 256, 5), 'h2'),
                    self.server('s3', (2, 512, 10), 'h2')],
                   ('wait', '', ()))

    def test_the_smaller_of_two(self) -> None:
        self.check((2, 512, 10), [(7, 1800, 35)],
                   [self.server('s1', (2, 512, 5)),
                    self.server('s2', (1, 256, 10))],
                   ('preempt', 'h1', ('s2',)))

    def test_one_large_rather_than_four_small(self) -> None:
        # The one deliberate difference: Aardvark ends the four, because less
        # is left over.
        self.check((4, 1024, 20), [(8, 2056, 40)],
                   [self.server('large', (5, 1280, 25)),
                    *(self.server(f's{number}', (1, 256, 5))
                      for number in range(4))],
                   ('preempt', 'h1', ('large',)))


class OneHostTestCase(tests.TestCase):
    """One full host."""

    def server(self, name: str, vcpus: int, **others: object
               ) -> model.Server:
        return dataclasses.replace(
            model.Server(name, 'h1', {'VCPU': vcpus, 'MEMORY_MB': vcpus},
                         preemptible=True), **others)  # type: ignore

    def victims(self, asked: int, *servers: model.Server,
                options: model.Options = PREEMPT, **others: object
                ) -> set[str]:
        world = brute_force.world({'h1': {
            'VCPU': sum(one.resources['VCPU'] for one in servers),
            'MEMORY_MB': sum(one.resources['MEMORY_MB'] for one in servers)}},
            servers)
        return set(decide(world, brute_force.waiting(
            {'VCPU': asked}, **others), options).victims)  # type: ignore


class PreferenceTestCase(OneHostTestCase):
    """Each step of the order decides when those before it do not."""

    def test_lower_priority_before_fewer(self) -> None:
        self.assertEqual({'low1', 'low2'}, self.victims(
            4, self.server('high', 4, priority=1000),
            self.server('low1', 2, priority=-1000),
            self.server('low2', 2, priority=-1000)))

    def test_fewer_before_those_that_are_shelved(self) -> None:
        self.assertEqual({'one'}, self.victims(
            4, self.server('one', 4), *(
                self.server(f'shelved{number}', 2, action=model.Action.SHELVE)
                for number in range(2))))

    def test_shelved_before_deleted(self) -> None:
        self.assertEqual({'shelved', 'deleted2'}, self.victims(
            4, self.server('deleted1', 2, priority=1),
            self.server('deleted2', 2, priority=0),
            self.server('shelved', 3, priority=1,
                        action=model.Action.SHELVE)))

    def test_other_priorities_after_the_highest(self) -> None:
        self.assertEqual({'high', 'low'}, self.victims(
            4, self.server('high', 3, priority=2),
            self.server('middle', 1, priority=1),
            self.server('low', 1, priority=-1)))

    def test_no_priority_in_vain(self) -> None:
        # Only one project may lose as many as it takes at the low priority.
        world = brute_force.world({'h1': {'VCPU': 8}}, [
            model.Server(name, 'h1', {'VCPU': 2}, project=project,
                         preemptible=True, priority=priority)
            for name, project, priority in (
                ('a1', 'a', 0), ('a2', 'a', 0), ('b1', 'b', 5),
                ('b2', 'b', 7))])
        decision = decide(world, brute_force.waiting({'VCPU': 4}),
                          ends_left={'a': 1})
        self.assertEqual({'a1', 'b1'}, set(decision.victims))

    def test_lower_priority_before_less_left_over(self) -> None:
        self.assertEqual({'low'}, self.victims(
            4, self.server('high', 4, priority=1), self.server('low', 8)))

    def test_highest_of_a_set_counts_first(self) -> None:
        self.assertEqual({'b', 'c'}, self.victims(
            5, self.server('a', 4, priority=5), self.server('b', 3,
                                                            priority=4),
            self.server('c', 2, priority=4), self.server('d', 1)))

    def test_less_left_over_before_younger(self) -> None:
        self.assertEqual({'small'}, self.victims(
            2, self.server('small', 2), self.server(
                'large', 4,
                launched_at=brute_force.NOW - datetime.timedelta(hours=1))))

    def test_the_youngest(self) -> None:
        hours = [datetime.timedelta(hours=number) for number in (3, 1, 2)]
        self.assertEqual({'s1'}, self.victims(2, *(
            self.server(f's{number}', 2, launched_at=brute_force.NOW - hour)
            for number, hour in enumerate(hours))))

    def test_order_of_the_scorers(self) -> None:
        options = dataclasses.replace(
            PREEMPT, scorers=('leftover', 'priority'))
        self.assertEqual({'high'}, self.victims(
            4, self.server('high', 4, priority=1), self.server('low', 8),
            options=options))

    def test_count_before_priority(self) -> None:
        options = dataclasses.replace(PREEMPT, scorers=('count', 'priority'))
        self.assertEqual({'high'}, self.victims(
            4, self.server('high', 4, priority=9), self.server('low1', 2),
            self.server('low2', 2), options=options))

    def test_less_left_over_before_fewer(self) -> None:
        options = dataclasses.replace(PREEMPT, scorers=('leftover', 'count'))
        self.assertEqual({'small1', 'small2'}, self.victims(
            4, self.server('large', 5), self.server('small1', 2),
            self.server('small2', 2), options=options))

    def test_no_scorer_at_all(self) -> None:
        self.assertEqual(1, len(self.victims(
            2, self.server('a', 2), self.server('b', 2),
            options=dataclasses.replace(PREEMPT, scorers=()))))


class ProtectionTestCase(OneHostTestCase):
    """Who is never ended."""

    def test_minimum_run_time(self) -> None:
        for seconds, expected in ((599, set()), (600, {'s1'})):
            launched = brute_force.NOW - datetime.timedelta(seconds=seconds)
            self.assertEqual(expected, self.victims(
                2, self.server('s1', 2, launched_at=launched)))

    def test_launched_in_the_future(self) -> None:
        self.assertEqual(set(), self.victims(2, self.server(
            's1', 2,
            launched_at=brute_force.NOW + datetime.timedelta(days=1))))

    def test_ended_before(self) -> None:
        ended = brute_force.NOW - datetime.timedelta(seconds=3599)
        self.assertEqual(set(), self.victims(
            2, self.server('s1', 2, last_ended_at=ended)))

    def test_locked_or_busy(self) -> None:
        self.assertEqual(set(), self.victims(
            2, self.server('s1', 2, locked=True),
            self.server('s2', 2, busy=True)))

    def test_preemptible_needs_higher_priority(self) -> None:
        servers = [self.server('s0', 2), self.server('s1', 2, priority=1)]
        for priority, expected in ((0, set()), (1, {'s0'})):
            self.assertEqual(expected, self.victims(
                2, *servers, preemptible=True, priority=priority))

    def test_others_end_any(self) -> None:
        self.assertEqual({'s1'}, self.victims(
            2, self.server('s1', 2, priority=9), priority=-1))

    def test_cap_of_a_project(self) -> None:
        servers = [
            model.Server(f'{project}{number}', 'h1', {'VCPU': 1},
                         project=project, preemptible=True)
            for project in 'ab' for number in range(3)]
        world = brute_force.world({'h1': {'VCPU': 6}}, servers)
        waiting = brute_force.waiting({'VCPU': 4})
        for left, expected in (({}, 4), ({'a': 1, 'b': 3}, 4),
                               ({'a': 0, 'b': 3}, 0), ({'a': 1, 'b': 2}, 0)):
            decision = decide(world, waiting, ends_left=left)
            self.assertEqual(expected, len(decision.victims), decision)
            for project, most in left.items():
                self.assertLessEqual(sum(
                    victim.startswith(project)
                    for victim in decision.victims), most)

    def test_protected_is_told(self) -> None:
        launched = brute_force.NOW - datetime.timedelta(seconds=60)
        world = brute_force.world({'h1': {'VCPU': 2}}, [model.Server(
            's1', 'h1', {'VCPU': 2}, preemptible=True, launched_at=launched)])
        waiting = brute_force.waiting({'VCPU': 1})
        index = world.index(PREEMPT)
        decision = choose.decide(index, waiting, PREEMPT, brute_force.NOW)
        self.assertEqual(
            (model.Reason.NO_ROOM, model.Hindrance.PROTECTED, 'protected'),
            (decision.reason, decision.hindrance, decision.word))
        self.assertEqual(
            launched + datetime.timedelta(seconds=600),
            choose.protected_until(index, waiting, brute_force.NOW))


class ReasonTestCase(tests.TestCase):
    """Why one waits."""

    def reason(self, waiting: model.Waiting, *hosts: model.Host,
               refused: dict[str, str] | None = None,
               options: model.Options = PREEMPT,
               reserved: str | None = None) -> tuple[str | None, str]:
        index = brute_force.World(hosts, []).index(options)
        index.exclusions.refuse(waiting.shape, refused or {})
        decision = choose.decide(index, waiting, options, brute_force.NOW,
                                 reserved=reserved)
        return decision.word, decision.detail

    def host(self, name: str = 'h1', used: int = 0, **others: object
             ) -> model.Host:
        return dataclasses.replace(
            model.Host(name, {'VCPU': model.Inventory(4)}, {'VCPU': used}),
            **others)  # type: ignore

    def test_no_room(self) -> None:
        self.assertEqual(
            ('no_room', '1 of 1 hosts could take it; none has room. No '
             'preemptible servers on one host would free enough.'),
            self.reason(brute_force.waiting({'VCPU': 1}), self.host(used=4)))

    def test_no_such_host(self) -> None:
        detail = 'The host that it was created for is not there.'
        self.assertEqual(('no_such_host', detail), self.reason(
            brute_force.waiting({'VCPU': 1}, host='h9'), self.host()))

    def test_nothing_fits(self) -> None:
        waiting = brute_force.waiting
        for server, hosts, detail in (
                (waiting({'VCPU': 1}), [], 'There is no host at all.'),
                (waiting({'VGPU': 1}), [self.host()], 'No host has VGPU.'),
                (waiting({'VCPU': 5}), [self.host()],
                 'The server asks for 5 VCPU, and the largest host has 4.'),
                (waiting({'VCPU': 1}, required=['CUSTOM_X']), [self.host()],
                 'No host has at once all that the server asks for: '
                 'resources, traits and aggregates.'),
                (waiting({'VCPU': 5}, host='h1'),
                 [self.host(), self.host('h2', inventory={
                     'VCPU': model.Inventory(8)})],
                 'The host that it was created for could not take it, even '
                 'if the host were empty.')):
            self.assertEqual(('nothing_fits', detail),
                             self.reason(server, *hosts))

    def test_refused_by_a_filter(self) -> None:
        word, detail = self.reason(
            brute_force.waiting({'VCPU': 1}), self.host(),
            self.host('h2', used=4), refused={'h1': 'ServerGroupFilter'})
        self.assertEqual('refused', word)
        self.assertIn('ServerGroupFilter', detail)

    def test_filters_refuse_hosts_that_are_full(self) -> None:
        # Another end or another host would not help, and room would not.
        waiting, full = brute_force.waiting({'VCPU': 1}), self.host(used=4)
        others = (dataclasses.replace(full, name='h2'),
                  self.host('h3', disabled=True))
        self.assertEqual(
            ('refused', '3 of 3 hosts could take it; those that are enabled '
             'and up are refused by AFilter, BFilter. No preemptible servers '
             'on one host would free enough that AFilter, BFilter would '
             'accept.'),
            self.reason(waiting, full, *others,
                        refused={'h1': 'AFilter', 'h2': 'BFilter'}))
        self.assertEqual('no_room', self.reason(
            waiting, full, *others, refused={'h1': 'AFilter'})[0])

    def test_refused_as_disabled(self) -> None:
        self.assertEqual('refused', self.reason(
            brute_force.waiting({'VCPU': 1}), self.host(disabled=True))[0])

    def test_disabled_and_full(self) -> None:
        self.assertEqual('no_room', self.reason(
            brute_force.waiting({'VCPU': 1}),
            self.host(disabled=True, used=4))[0])

    def test_room_on_a_host_that_is_disabled(self) -> None:
        self.assertEqual(
            ('no_room', '2 of 2 hosts could take it; none that is enabled and '
             'up has room. No preemptible servers on one host would free '
             'enough.'),
            self.reason(brute_force.waiting({'VCPU': 1}),
                        self.host(disabled=True), self.host('h2', used=4)))

    def test_reserved(self) -> None:
        kept = 'except a host that is kept for a server ahead in the queue.'
        waiting = brute_force.waiting({'VCPU': 1})
        self.assertEqual(
            ('reserved', f'1 of 1 hosts could take it; none has room, {kept}'),
            self.reason(waiting, self.host(), reserved='h1'))
        self.assertEqual(
            ('reserved', '2 of 2 hosts could take it; those with room are '
             f'refused by AFilter, {kept}'),
            self.reason(waiting, self.host(), self.host('h2'),
                        refused={'h2': 'AFilter'}, reserved='h1'))

    def test_overcommitted_host_has_no_room(self) -> None:
        self.assertEqual('no_room', self.reason(
            brute_force.waiting({'VCPU': 1}), self.host(used=9))[0])

    def test_fill_ends_nobody(self) -> None:
        options = dataclasses.replace(PREEMPT, mode=model.Mode.FILL)
        world = brute_force.world({'h1': {'VCPU': 1}}, [
            model.Server('s1', 'h1', {'VCPU': 1}, preemptible=True)])
        decision = decide(world, brute_force.waiting({'VCPU': 1}), options)
        self.assertEqual(
            (model.Verdict.WAIT, (), model.Reason.NO_ROOM, 'mode'),
            (decision.verdict, decision.victims, decision.reason,
             decision.word))

    def test_observe_says_what_preempt_would_do(self) -> None:
        options = dataclasses.replace(PREEMPT, mode=model.Mode.OBSERVE)
        world = brute_force.world({'h1': {'VCPU': 1}}, [
            model.Server('s1', 'h1', {'VCPU': 1}, preemptible=True)])
        waiting = brute_force.waiting({'VCPU': 1})
        self.assertEqual(decide(world, waiting),
                         decide(world, waiting, options))

    def test_nobody_ends_for_more_than_one_provider(self) -> None:
        world = brute_force.world({'h1': {'VCPU': 1}}, [
            model.Server('s1', 'h1', {'VCPU': 1}, preemptible=True)])
        waiting = brute_force.waiting({'VCPU': 1})
        waiting = dataclasses.replace(waiting, shape=dataclasses.replace(
            waiting.shape, fill_only=True))
        self.assertEqual(model.Verdict.WAIT, decide(world, waiting).verdict)


class BruteForceTestCase(tests.TestCase):
    """Whatever the cloud is, nothing better can be found."""

    def check(self, seed: int, options: model.Options = PREEMPT,
              below: bool = False, shared: bool = False,
              crowd: bool = False) -> None:
        rand = random.Random(seed)
        world = brute_force.random_world(
            rand, *((3, 5) if below or shared else ()))
        waiting = brute_force.random_waiting(rand)
        if below:
            world = brute_force.with_providers(rand, world)
            waiting = brute_force.random_groups(rand)
        if shared:
            world = brute_force.with_shares(rand, world)
            waiting = brute_force.random_shared(rand)
        if crowd:
            world, waiting = brute_force.crowd(rand)
        ends_left = {} if rand.random() < 0.6 else {'a': rand.randint(0, 2)}
        decision = decide(world, waiting, options, ends_left)
        best = brute_force.decide(world, waiting, options, ends_left)
        if best is None:
            self.assertEqual(model.Verdict.WAIT, decision.verdict)
            self.assertIn(decision.reason, model.Reason)
            return
        host = next(host for host in world.hosts
                    if host.name == decision.host)
        ended = [server for server in world.servers
                 if server.id in decision.victims]
        self.assertEqual(len(ended), len(decision.victims))
        refused = world.refused.get(host.name)
        self.assertTrue(brute_force.makes_room(
            host, ended, waiting.shape, refused))
        self.assertEqual(best, brute_force.cost(
            host, ended, waiting.shape, options, refused))
        for victim in ended:
            self.assertEqual(decision.host, victim.host)
            self.assertTrue(brute_force.may_end(victim, waiting, options))
            others = [one for one in ended if one.id != victim.id]
            self.assertFalse(
                brute_force.makes_room(host, others, waiting.shape, refused),
                f'{victim.id} could be left out')

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(SEEDS)
    def test_as_brute_force(self, seed: int) -> None:
        self.check(seed)

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(SEEDS)
    def test_as_brute_force_with_providers_below(self, seed: int) -> None:
        rand = random.Random(seed)
        self.check(seed, rand.choice((PREEMPT, dataclasses.replace(
            PREEMPT, scorers=tuple(rand.sample(
                list(victims.SCORERS), rand.randint(0, 6)))))), below=True)

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(SEEDS)
    def test_as_brute_force_on_full_hosts_with_gpus(self, seed: int) -> None:
        self.check(seed, crowd=True)

    def test_server_of_another_kind_that_may_not_be_ended(self) -> None:
        """Its row comes before those of the servers that may be ended."""
        gpus = tuple(model.Provider(
            name, {'VGPU': model.Inventory(1)}, {'VGPU': 1})
            for name in ('gpu0', 'gpu1'))
        world = brute_force.World(
            [model.Host('h', {'VCPU': model.Inventory(15)}, {'VCPU': 15},
                        providers=gpus)],
            [model.Server('locked', 'h', {'VCPU': 8}, preemptible=True,
                          locked=True),
             model.Server('plain', 'h', {'VCPU': 4}, preemptible=True),
             model.Server('a', 'h', {'VCPU': 2}, preemptible=True,
                          providers={'gpu0': {'VGPU': 1}}),
             model.Server('b', 'h', {'VCPU': 1}, preemptible=True,
                          providers={'gpu1': {'VGPU': 1}})])
        group = model.Group.of({'VGPU': 1})
        waiting = dataclasses.replace(
            brute_force.waiting({}), shape=model.Shape.of(
                {'VCPU': 2, 'VGPU': 2}, spread=model.Group.of({'VCPU': 2}),
                groups=(group, group)))
        self.assertEqual({'a', 'b'}, {*decide(world, waiting).victims})

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(SEEDS)
    def test_as_brute_force_with_providers_that_share(self, seed: int
                                                      ) -> None:
        rand = random.Random(seed)
        self.check(seed, rand.choice((PREEMPT, dataclasses.replace(
            PREEMPT, scorers=tuple(rand.sample(
                list(victims.SCORERS), rand.randint(0, 6)))))),
            below=rand.random() < 0.3, shared=True)

    @hypothesis.settings(max_examples=200)
    @hypothesis.given(SEEDS, strategies.booleans())
    def test_when_run_times_have_made_room(self, seed: int, below: bool
                                           ) -> None:
        rand = random.Random(seed)
        world = brute_force.random_world(rand, *((3, 5) if below else ()))
        waiting = brute_force.random_waiting(rand)
        if below:
            world = brute_force.with_providers(rand, world)
            waiting = brute_force.random_groups(rand)
        world = dataclasses.replace(world, servers=[dataclasses.replace(
            server, preemptible=rand.random() < 0.5,
            ends_at=rand.choice((None, *(
                brute_force.NOW + datetime.timedelta(minutes=minutes)
                for minutes in range(-1, 5))))) for server in world.servers])
        hosts = [host for host in world.hosts
                 if brute_force.could(host, waiting.shape)]
        if any(brute_force.makes_room(host, (), waiting.shape,
                                      world.refused.get(host.name))
               for host in hosts):
            return
        index = world.index(PREEMPT)
        index.exclusions.refuse(waiting.shape, world.refused)
        ends = sorted({server.ends_at for server in world.servers
                       if server.ends_at})
        expected = next((max(at, brute_force.NOW) for at in ends if any(
            brute_force.makes_room(host, [
                server for server in world.servers
                if server.host == host.name and server.ends_at and
                server.ends_at <= at and
                not (server.locked or server.busy)], waiting.shape,
                world.refused.get(host.name)) for host in hosts)), None)
        self.assertEqual(expected, choose.room_by(index, waiting,
                                                  brute_force.NOW))

    def test_more_ways_than_are_looked_at_once(self) -> None:
        gpu = {'VGPU': 1}
        hosts = [model.Host(
            f'h{number}', {'VCPU': model.Inventory(8)}, {'VCPU': 2},
            providers=tuple(model.Provider(
                name, {'VGPU': model.Inventory(1)}, gpu) for name in 'ab'))
            for number in range(9)]
        world = brute_force.World(hosts, [model.Server(
            f'{host.name}-{name}', host.name, {'VCPU': 1},
            preemptible=True, locked=host.name != 'h8',
            providers={name: gpu}) for host in hosts for name in 'ab'])
        waiting = brute_force.waiting({})
        waiting = dataclasses.replace(waiting, shape=model.Shape.of(
            {'VCPU': 1, 'VGPU': 1}, spread=model.Group.of({'VCPU': 1}),
            groups=(model.Group.of(gpu),)))
        for most in (1, 2048):
            with mock.patch.object(victims, 'MOST_WAYS', most):
                decision = decide(world, waiting)
                self.assertEqual(('h8', 1), (
                    decision.host, len(decision.victims)))
        free = [dataclasses.replace(server, locked=False)
                for server in world.servers]
        for most, exact in ((1, False), (2048, True)):
            with mock.patch.object(victims, 'MOST_WAYS', most):
                decision = decide(brute_force.World(hosts, free), waiting)
                self.assertEqual(exact, 'might' not in decision.detail)

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(SEEDS)
    def test_as_brute_force_in_any_order(self, seed: int) -> None:
        rand = random.Random(seed)
        scorers = rand.sample(list(victims.SCORERS), rand.randint(0, 6))
        with mock.patch.object(victims, 'MOST', rand.choice((4, 1 << 19))):
            self.check(seed, dataclasses.replace(
                PREEMPT, scorers=tuple(scorers)))

    @hypothesis.settings(max_examples=150)
    @hypothesis.given(SEEDS)
    def test_as_brute_force_in_parts_and_one_by_one(self, seed: int) -> None:
        # As if there were too many sets to build them side by side.
        with mock.patch.object(victims, 'MOST', 4):
            self.check(seed)

    @hypothesis.settings(max_examples=50)
    @hypothesis.given(SEEDS)
    def test_as_brute_force_without_minimum_run_time(self, seed: int) -> None:
        self.check(seed, dataclasses.replace(PREEMPT, min_run_time=0))

    @hypothesis.settings(max_examples=40)
    @hypothesis.given(SEEDS)
    def test_as_brute_force_with_many_victims(self, seed: int) -> None:
        rand = random.Random(seed)
        flavors = [brute_force.random_resources(rand, 3)
                   for _ in range(rand.choice((2, 3, 11)))]
        servers = [model.Server(
            f's{number}', 'h1', rand.choice(flavors), preemptible=True,
            project=rand.choice('ab'), priority=rand.randrange(3),
            action=rand.choice(list(model.Action)),
            launched_at=brute_force.NOW - datetime.timedelta(
                hours=rand.randrange(1, 4))) for number in range(11)]
        totals = {name: sum(one.resources.get(name, 0) for one in servers)
                  for name in ('VCPU', 'MEMORY_MB', 'DISK_GB')}
        world = brute_force.world({'h1': totals}, servers)
        waiting = brute_force.waiting({
            name: int(total * rand.uniform(0.4, 0.95))
            for name, total in totals.items()})
        ends_left = rand.choice(({}, {'a': rand.randint(0, 5)}))
        with mock.patch.object(victims, 'MOST', rand.choice((8, 1 << 19))):
            decision = decide(world, waiting, PREEMPT, ends_left)
        best = brute_force.decide(world, waiting, PREEMPT, ends_left)
        if best is None:
            self.assertEqual(model.Verdict.WAIT, decision.verdict)
            return
        self.assertEqual(best, brute_force.cost(
            world.hosts[0], [one for one in servers
                             if one.id in decision.victims], waiting.shape))

    def test_says_that_the_number_is_not_proved(self) -> None:
        servers = [model.Server(f's{number}', 'h1', {
            'VCPU': 10 + number % 7, 'MEMORY_MB': 16 - number % 5},
            preemptible=True) for number in range(20)]
        world = brute_force.world(
            {'h1': {'VCPU': 300, 'MEMORY_MB': 320}}, servers)
        host = dataclasses.replace(world.hosts[0],
                                   used={'VCPU': 300, 'MEMORY_MB': 320})
        waiting = brute_force.waiting({'VCPU': 100, 'MEMORY_MB': 100})
        world = brute_force.World([host], servers)
        self.assertNotIn('too many', decide(world, waiting).detail)
        with mock.patch.multiple(victims, MOST=1, STEPS=1,
                                 FEWEST_STEPS=1):
            decision = decide(world, waiting)
        self.assertEqual(model.Verdict.WAIT, decision.verdict)
        self.assertIn('too many', decision.detail)
