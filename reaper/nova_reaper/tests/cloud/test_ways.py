# SPDX-License-Identifier: Apache-2.0

"""Which provider of a host gives what: as Placement says."""

from collections.abc import Sequence
import random
from typing import Any
from urllib import parse

from nova_reaper.act import holds
from nova_reaper.clients import placement
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import tests
from nova_reaper.tests import brute_force
from nova_reaper.tests import fakes

TRAITS = ('CUSTOM_A', 'CUSTOM_B')

# What each provider gives of a request: its UUID, the class and the amount.
Given = frozenset[tuple[str, str, int]]


def nodes_of(tree: Sequence[placement.Provider]) -> list[model.Provider]:
    """The providers of a host, as model.ways() takes them."""
    return [one.summed() for one in tree]


def offered(answer: Any) -> set[Given]:
    """What Placement offers in an answer of GET /allocation_candidates."""
    return {frozenset(
        (uuid, name, amount) for uuid, item in request['allocations'].items()
        for name, amount in item['resources'].items())
        for request in answer['allocation_requests']}


def found_by(shape: model.Shape, nodes: Sequence[model.Provider]
             ) -> set[Given]:
    """What model.ways() finds."""
    return {frozenset((provider, name, amount)
                      for provider, amounts in way.items()
                      for name, amount in amounts.items())
            for way in model.ways(shape, nodes)}


class PlacementTestCase(tests.TestCase):
    """A real Placement, on trees and with requests that are random."""

    def setUp(self) -> None:
        super().setUp()
        self.room: fakes.PlacementFixture = self.useFixture(
            fakes.PlacementFixture())
        self.room.client.request('PUT', '/resource_classes/CUSTOM_X')
        for trait in TRAITS:
            self.room.client.request('PUT', f'/traits/{trait}')

    def add_host(self, rand: random.Random, number: int) -> str:
        host = self.room.add_host(f'h{number}')
        self.room.set_inventory(host, VCPU=4, **{'CUSTOM_X': 2}
                                if rand.random() < 0.2 else {})
        for at in range(rand.randint(2, 3)):
            below = self.room.add_host(f'g{number}-{at}', host)
            self.room.set_inventory(below, **rand.choice((
                {'VGPU': 4}, {'VGPU': 2}, {'CUSTOM_X': 2},
                {'VGPU': 2, 'CUSTOM_X': 1})))
            self.room.set_traits(
                below, *rand.sample(TRAITS, rand.randint(0, 2)))
            if rand.random() < 0.3:
                name = next(iter(self.room.placement.provider(
                    below).inventory))
                self.room.allocate(fakes.new_id(), below, 'x', **{name: 1})
        self.room.set_traits(host, *rand.sample(TRAITS, rand.randint(0, 1)))
        return host

    def query(self, rand: random.Random) -> str:
        pairs = [('resources', rand.choice((
            'VCPU:2', 'VCPU:2,VGPU:1', 'VCPU:1,CUSTOM_X:1,VGPU:2')))]
        for suffix in ['', *map(str, range(rand.randint(1, 2)))]:
            if suffix:
                pairs.append((f'resources{suffix}', rand.choice((
                    'VGPU:1', 'VGPU:2', 'CUSTOM_X:1', 'VGPU:1,CUSTOM_X:1'))))
            if rand.random() < 0.2:
                pairs.append((f'required{suffix}', rand.choice((
                    'CUSTOM_A', '!CUSTOM_B', 'in:CUSTOM_A,CUSTOM_B'))))
        if rand.random() < 0.2:
            pairs.append(('root_required', '!CUSTOM_B'))
        return parse.urlencode(pairs + [
            ('group_policy', rand.choice(('none', 'isolate')))])

    def test_as_placement(self) -> None:
        rand = random.Random(31)
        found = 0
        for number in range(4):
            host = self.add_host(rand, number)
            tree = self.room.placement.tree(host)
            nodes = nodes_of(tree)
            for _ in range(8):
                query = self.query(rand)
                answer = self.room.client.request(
                    'GET', f'/allocation_candidates?{query}&in_tree={host}')
                expected = offered(answer)
                shape = shapes.shape(query, '', {}, ['VGPU', 'CUSTOM_X'])
                if '!CUSTOM_B' in shape.required and (
                        'CUSTOM_B' in tree[0].traits):
                    # The index looks at traits of the host's own provider.
                    self.assertEqual(set(), expected)
                    continue
                mine = found_by(shape, nodes)
                # Where several groups take of one provider, Placement 16
                # counts what a group takes twice in some of its candidates.
                right = {one for one in expected if sum(
                    amount for _, _, amount in one) == sum(
                        shape.amounts.values())}
                self.assertLessEqual(right, mine, query)
                self.assertEqual(bool(expected), bool(mine), query)
                if right == expected:
                    self.assertEqual(expected, mine, query)
                found += len(right)
                place = holds.place(shape, tree, (), {})
                self.assertEqual(bool(expected), place is not None)
        self.assertGreater(found, 20)


class SharedTestCase(PlacementTestCase):
    """A real Placement with providers that share with hosts."""

    def setUp(self) -> None:
        super().setUp()
        self.zones = [fakes.new_id() for _ in range(2)]

    def add_shared(self, rand: random.Random, number: int) -> str:
        one = self.room.add_host(f'pool{number}')
        self.room.set_inventory(one, **rand.choice((
            {'DISK_GB': 8}, {'DISK_GB': 4, 'CUSTOM_X': 2})))
        self.room.set_traits(one, placement.SHARES, *rand.sample(
            TRAITS, rand.choice((0, 0, 1))))
        if rand.random() < 0.5:
            self.room.allocate(fakes.new_id(), one, 'x', DISK_GB=3)
        return one

    def query(self, rand: random.Random) -> str:
        pairs = [('resources', rand.choice((
            'VCPU:2,DISK_GB:2', 'VCPU:2,DISK_GB:5',
            'VCPU:1,CUSTOM_X:1,DISK_GB:1')))]
        if rand.random() < 0.3:
            pairs += [('resources1', rand.choice((
                'DISK_GB:1', 'CUSTOM_X:1', 'VCPU:1'))),
                ('group_policy', rand.choice(('none', 'isolate')))]
        if rand.random() < 0.4:
            pairs.append(('required', rand.choice((
                'CUSTOM_A', '!CUSTOM_B', 'in:CUSTOM_A,CUSTOM_B'))))
        if rand.random() < 0.4:
            pairs.append(('member_of', rand.choice((
                self.zones[0], f'!{self.zones[1]}',
                f'in:{",".join(self.zones)}'))))
        return parse.urlencode(pairs)

    def test_as_placement(self) -> None:
        rand = random.Random(32)
        pools = [self.add_shared(rand, number) for number in range(2)]
        of_pools = [fakes.new_id() for _ in pools]
        aggregates = {}
        for pool, aggregate in zip(pools, of_pools):
            aggregates[pool] = [aggregate, *rand.sample(
                self.zones, rand.randint(1, 2))]
        hosts = []
        for number in range(6):
            host = self.room.add_host(f'h{number}')
            self.room.set_inventory(host, VCPU=4, **rand.choice((
                {}, {}, {'DISK_GB': 6})))
            self.room.set_traits(host, *rand.sample(
                TRAITS, rand.choice((0, 0, 1))))
            aggregates[host] = [*rand.sample(of_pools, rand.randint(1, 2)),
                                *rand.sample(self.zones, rand.randint(0, 2))]
            hosts.append(host)
        for uuid, some in aggregates.items():
            self.room._put(uuid, 'aggregates', some)
        self.room.placement.read_sharing(hosts)
        nodes = {host: nodes_of(self.room.placement.tree(host))
                 for host in hosts}
        found = 0
        for _ in range(30):
            query = self.query(rand)
            answer = self.room.client.request(
                'GET', f'/allocation_candidates?{query}')
            expected = offered(answer)
            shape = shapes.shape(query, '', {}, ['DISK_GB', 'CUSTOM_X'])
            mine = set()
            for host in hosts:
                # The index compares the aggregates of the host's own.
                if brute_force.has_all(shape.member_of, aggregates[host]):
                    mine |= found_by(shape, nodes[host])
            right = {one for one in expected if sum(
                amount for _, _, amount in one) == sum(
                    shape.amounts.values())}
            self.assertLessEqual(right, mine, query)
            self.assertEqual(bool(expected), bool(mine), query)
            if right == expected:
                self.assertEqual(expected, mine, query)
            found += len(right)
        self.assertGreater(found, 50)


class ManyTestCase(tests.TestCase):
    """More ways than can be looked at."""

    def nodes(self, count: int, **inventory: int) -> list[model.Provider]:
        items = {name: model.Inventory(total)
                 for name, total in inventory.items()}
        return [model.Provider('', {'VCPU': model.Inventory(8)}),
                *(model.Provider(f'g{at}', items) for at in range(count))]

    def shape(self, *groups: dict[str, int]) -> model.Shape:
        return model.Shape.of(
            model.total({'VCPU': 1}, *groups),
            spread=model.Group.of({'VCPU': 1}),
            groups=tuple(map(model.Group.of, groups)))

    def test_equal_groups(self) -> None:
        for groups, expected in ((1, 8), (4, 70), (8, 1), (9, 0)):
            self.assertEqual(expected, len(list(model.ways(
                self.shape(*[{'VGPU': 1}] * groups),
                self.nodes(8, VGPU=1)))))

    def test_no_more_than_may_be_looked_at(self) -> None:
        many = self.shape(*({'VGPU': amount} for amount in range(1, 9)))
        self.assertEqual(model.MOST_WAYS, len(list(model.ways(
            many, self.nodes(8, VGPU=99)))))
        steps = iter(range(1000))
        self.assertEqual([], list(model.ways(
            many, self.nodes(8, VGPU=8, CUSTOM_X=1)[:5], steps)))
        self.assertEqual([], list(steps))
