# SPDX-License-Identifier: Apache-2.0

"""What hosts have not of their own: of nested and sharing providers."""

import dataclasses
from typing import Any

from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.events import bus
from nova_reaper import tests
from nova_reaper.tests import brute_force
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


class ShapeTestCase(tests.TestCase):
    """What of a request hosts are judged by."""

    def shape(self, resources: str, classes: str, shared: str = '',
              also: str = '') -> model.Shape:
        return shapes.elsewhere(
            shapes.shape(f'resources={resources}{also}', 'key', {}),
            classes.split(), shared.split())

    def test_all_is_the_hosts_own(self) -> None:
        self.assertEqual(
            model.Shape.of({'VCPU': 1, 'CUSTOM_X': 2}, key='key'),
            self.shape('VCPU:1,CUSTOM_X:2', 'VCPU CUSTOM_X'))

    def test_what_no_host_has(self) -> None:
        for name in ('VGPU', 'CUSTOM_X'):
            self.assertEqual(
                model.Shape.of({'VCPU': 1}, required=frozenset({'!B'}),
                               fill_only=True, key='key',
                               elsewhere=frozenset({name})),
                self.shape(f'VCPU:1,{name}:1', 'VCPU',
                           also='&required=A,!B'))

    def test_what_hosts_always_have_themselves(self) -> None:
        shape = self.shape('PCPU:1,DISK_GB:5', 'VCPU DISK_GB')
        self.assertEqual(({'PCPU': 1, 'DISK_GB': 5}, False),
                         (shape.amounts, shape.fill_only))

    def test_what_is_shared(self) -> None:
        shape = self.shape('VCPU:1,DISK_GB:5', 'VCPU', 'DISK_GB')
        self.assertEqual(({'VCPU': 1}, True),
                         (shape.amounts, shape.fill_only))

    def test_what_is_shared_with_some(self) -> None:
        shape = self.shape('VCPU:1,DISK_GB:5', 'VCPU DISK_GB', 'DISK_GB',
                           also='&required=A')
        self.assertEqual(({'VCPU': 1, 'DISK_GB': 5}, False, {'A'},
                          {'DISK_GB'}),
                         (shape.amounts, shape.fill_only, shape.required,
                          shape.elsewhere))


class DecisionTestCase(tests.TestCase):
    """One host has a disk, and another gets one elsewhere."""

    def decide(self, vcpus: int, disk: int, *, offered: str | None = None,
               elsewhere: str = 'DISK_GB') -> model.Decision:
        options = model.Options(mode=model.Mode.PREEMPT)
        world = brute_force.world(
            {'own': {'VCPU': 8, 'DISK_GB': 10}, 'none': {'VCPU': 4}},
            [model.Server(f's-{host}', host, {'VCPU': 2}, preemptible=True)
             for host in ('own', 'none')])
        index = world.index(options)
        waiting = brute_force.waiting({})
        waiting = dataclasses.replace(waiting, shape=model.Shape.of(
            {'VCPU': vcpus, 'DISK_GB': disk},
            elsewhere=frozenset({elsewhere})))
        if offered is not None:
            index.exclusions.offer(waiting.shape, offered.split())
        return choose.decide(index, waiting, options, brute_force.NOW)

    def test_each_host_is_judged_by_what_it_has(self) -> None:
        for vcpus, disk, elsewhere, expected in (
                (2, 11, 'DISK_GB', 'none'), (6, 10, 'DISK_GB', 'own'),
                (2, 11, 'VGPU', None), (6, 11, 'DISK_GB', None)):
            decision = self.decide(vcpus, disk, elsewhere=elsewhere)
            self.assertEqual(expected, decision.host)
            self.assertEqual(model.Reason.NOTHING_FITS if expected is None
                             else None, decision.reason)

    def test_only_hosts_with_all_of_it_have_servers_ended(self) -> None:
        decision = self.decide(8, 10)
        self.assertEqual(('own', ('s-own',)),
                         (decision.host, decision.victims))
        decision = self.decide(4, 11)
        self.assertEqual((model.Verdict.WAIT, model.Reason.NO_ROOM),
                         (decision.verdict, decision.reason))

    def test_what_placement_says(self) -> None:
        self.assertEqual('own', self.decide(2, 5, offered='own').host)
        self.assertEqual('none', self.decide(2, 5, offered='none').host)
        decision = self.decide(2, 5, offered='')
        # Not even for nothing.
        self.assertEqual(
            (model.Verdict.WAIT, (), model.Reason.NO_ROOM),
            (decision.verdict, decision.victims, decision.reason))

    def test_it_does_not_say_whose_end_would_help(self) -> None:
        world = brute_force.world({'h': {'VCPU': 4}}, [
            model.Server('s', 'h', {'VCPU': 4})])
        index = world.index(model.Options())
        shape = model.Shape.of({'VCPU': 2})
        index.exclusions.offer(shape, ())
        # It has none, which the index knows itself.
        self.assertTrue(index.could_take(shape, index.rows['h']))

    def test_what_it_says_is_of_the_host_as_it_is(self) -> None:
        world = brute_force.world({'a': {'VCPU': 4}, 'b': {'VCPU': 4}}, [])
        index = world.index(model.Options())
        shape = model.Shape.of({'VCPU': 1})
        for hosts in ('a', 'b'):
            index.exclusions.offer(shape, hosts)
        self.assertFalse(index.could_take(shape, index.rows['a']))
        index.put(world.hosts[0])
        self.assertFalse(index.could_take(shape, index.rows['a']))
        index.put(dataclasses.replace(world.hosts[0], generation=9))
        self.assertTrue(index.could_take(shape, index.rows['a']))
        for number in range(200):
            index.put(model.Host(f'h{number}', {'VCPU': model.Inventory(1)}))
        self.assertTrue(index.could_take(shape, index.rows['h199']))
        self.assertFalse(index.could_take(shape, index.rows['b']))
        self.assertTrue(index.exclusions.forget_offers())
        self.assertTrue(index.could_take(shape, index.rows['b']))


class CandidateTestCase(tests.TestCase):
    """What Placement offers on one host."""

    def setUp(self) -> None:
        super().setUp()
        self.room: fakes.PlacementFixture = self.useFixture(
            fakes.PlacementFixture())
        self.hosts = [self.room.add_host(f'h{number}', VCPU=8, MEMORY_MB=64)
                      for number in range(3)]
        self.shares = self.room.add_sharing(*self.hosts[:2], DISK_GB=20)

    def candidate(self, host: int, query: str = '') -> object:
        return self.room.placement.candidate(
            'resources=VCPU:1,MEMORY_MB:2,DISK_GB:5' + query,
            self.hosts[host], {'DISK_GB', 'VGPU'})

    def test_shared_with_the_host(self) -> None:
        for host in range(2):
            self.assertEqual({self.hosts[host]: {'VCPU': 1, 'MEMORY_MB': 2},
                              self.shares: {'DISK_GB': 5}},
                             self.candidate(host))
        self.assertIsNone(self.candidate(2))

    def test_its_own_first(self) -> None:
        self.room.set_inventory(self.hosts[0], VCPU=8, MEMORY_MB=64,
                                DISK_GB=9)
        self.assertEqual({self.hosts[0]: {
            'VCPU': 1, 'MEMORY_MB': 2, 'DISK_GB': 5}}, self.candidate(0))

    def test_groups_and_traits(self) -> None:
        child = self.room.add_host('child', self.hosts[1], VGPU=1)
        self.room.set_traits(self.hosts[1], 'CUSTOM_A')
        query = '&resources_A=VGPU:1&required=CUSTOM_A'
        self.assertIsNone(self.candidate(0, query))
        self.assertEqual({self.hosts[1]: {'VCPU': 1, 'MEMORY_MB': 2},
                          self.shares: {'DISK_GB': 5}, child: {'VGPU': 1}},
                         self.candidate(1, query))
        self.assertIsNone(self.candidate(1, query +
                                         '&required_A=CUSTOM_A'))

    def test_nova_asks_for_one_tree(self) -> None:
        self.assertIsNone(self.candidate(0, f'&in_tree={self.hosts[0]}'))

    def test_offered(self) -> None:
        self.assertEqual(
            {*self.hosts[:2], self.shares},
            self.room.placement.offered('resources=VCPU:1,DISK_GB:5'))
        self.assertEqual(
            set(), self.room.placement.offered('resources=DISK_GB:50'))

    def test_there_may_be_more_than_it_offers(self) -> None:
        self.assertIsNone(self.room.placement.offered(
            'resources=VCPU:1,DISK_GB:5', most=1))

    def test_what_is_shared(self) -> None:
        room = self.room.placement
        for hosts, expected in ((self.hosts, set(self.hosts[:2])),
                                (self.hosts[1:], {self.hosts[1]}),
                                (self.hosts[2:], set())):
            [(one, found)] = room.read_sharing(hosts)
            self.assertEqual((self.shares, 20, expected), (
                one.uuid, one.inventory['DISK_GB'].total, found))
            self.assertEqual({'DISK_GB'} if expected else set(), room.beside)
        self.assertEqual([], room.read_sharing([self.shares]))


class ElsewhereTestCase(test_engine.EngineTestCase):
    """The whole reaper."""

    options = {'nothing_fits_timeout': 60}

    def wait(self, **resources: int) -> str:
        specs: dict[str, Any] = {f'resources:{name}': str(amount)
                                 for name, amount in resources.items()}
        return self.nova.add_server('w', 2, **specs)

    def host_of(self, server: str) -> str | None:
        host: str | None = self.nova.servers[server]['OS-EXT-SRV-ATTR:host']
        return host

    def word(self, server: str) -> str | None:
        return self.engine.world.told.last[server].decision.word

    def add_hosts(self, count: int) -> list[str]:
        for number in range(count):
            self.nova.add_host(f'h{number}', 8)
        return list(self.nova.hosts.values())

    def test_nested(self) -> None:
        providers = self.add_hosts(5)
        child = self.room.add_host('gpu', providers[3], VGPU=1)
        waiting = self.wait(VGPU=1)
        self.turns()
        self.assertEqual(('ACTIVE', 'h3'),
                         (self.status(waiting), self.host_of(waiting)))
        self.assertEqual(
            {child: {'VGPU': 1}, providers[3]: {'VCPU': 2,
                                                'MEMORY_MB': 2048}},
            self.room.placement.consumer(waiting).amounts)

    def test_a_trait_of_a_nested_one(self) -> None:
        self.room.client.request('PUT', '/resource_classes/CUSTOM_X')
        providers = self.add_hosts(2)
        for provider in providers:
            child = self.room.add_host(f'of-{provider}', provider, CUSTOM_X=1)
        self.room.set_traits(child, 'CUSTOM_A')
        self.nova.asks_also = '&required=CUSTOM_A'
        waiting = self.wait(CUSTOM_X=1)
        self.turns()
        self.assertEqual('h1', self.host_of(waiting))

    def test_shared(self) -> None:
        providers = self.add_hosts(3)
        shares = self.room.add_sharing(providers[2], DISK_GB=20)
        waiting = self.wait(DISK_GB=5)
        self.turns()
        self.assertEqual(('ACTIVE', 'h2'),
                         (self.status(waiting), self.host_of(waiting)))
        self.assertEqual({'DISK_GB': 5}, self.room.placement.consumer(
            waiting).amounts[shares])

    def test_shared_with_some(self) -> None:
        providers = self.add_hosts(2)
        self.room.set_inventory(providers[0], VCPU=8, MEMORY_MB=8192,
                                DISK_GB=9)
        self.room.add_sharing(providers[1], DISK_GB=20)
        large, small = self.wait(DISK_GB=15), self.wait(DISK_GB=9)
        self.turns()
        self.assertEqual(['h1', 'h0'],
                         [self.host_of(large), self.host_of(small)])

    def test_none_is_free(self) -> None:
        providers = self.add_hosts(3)
        self.room.add_host('gpu', providers[0], VGPU=1)
        victim = self.nova.add_server('s', 2, 'h0', preemptible=True)
        first = self.wait(VGPU=1)
        self.turns(10)
        second, other = self.wait(VGPU=1), self.nova.add_server('o', 2)
        self.turns(40, 61)
        self.assertEqual(
            ['ACTIVE', 'PENDING', 'ACTIVE', 'ACTIVE'],
            [self.status(server)
             for server in (first, second, other, victim)])
        # The host is left out after each try that Placement refuses.
        words = set()
        for _ in range(3):
            self.turns(1, 61)
            words.add(self.word(second))
        self.assertIn('no_room', words)
        self.nova.finish(first)
        self.hint(bus.Kind.HOST, host='h0')
        self.turns(20, 61)
        self.assertEqual('h0', self.host_of(second))

    def test_it_is_not_asked_for_all_the_time(self) -> None:
        providers = self.add_hosts(9)
        self.room.add_host('gpu', providers[0], VGPU=1)
        self.room.allocate(fakes.new_id(), providers[0], 'x', VCPU=8)
        for _ in range(5):
            self.wait(VGPU=1)
        self.turns(60)
        asked = [path for _method, path in self.room.adapter.log
                 if path.startswith('/allocation_candidates')]
        # Once for the host, and once for all of them, by each at most.
        self.assertLessEqual(len(asked), 15)

    def test_nowhere(self) -> None:
        self.room.client.request('PUT', '/resource_classes/CUSTOM_X')
        self.add_hosts(2)
        waiting, unknown = self.wait(CUSTOM_X=1), self.wait(CUSTOM_X=2)
        self.nova.reason[waiting] = 'nothing_fits'
        self.turns(40, 5)
        # It is Nova that knows.
        self.assertEqual(['ERROR', 'PENDING'],
                         [self.status(waiting), self.status(unknown)])
        self.assertEqual('no_room', self.word(unknown))
