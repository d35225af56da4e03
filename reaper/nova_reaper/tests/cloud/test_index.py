# SPDX-License-Identifier: Apache-2.0

import dataclasses
import datetime
import random
from typing import Any

import hypothesis
from hypothesis import strategies

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper import tests
from nova_reaper.tests import brute_force

OPTIONS = model.Options()


class IndexTestCase(tests.TestCase):
    """What is known of hosts, and how it changes."""

    def setUp(self) -> None:
        super().setUp()
        self.index = index_module.Index(OPTIONS)

    def put(self, name: str = 'h1', total: int = 8, used: int = 0,
            servers: tuple[model.Server, ...] = (), **others: object) -> int:
        host = model.Host(name, {'VCPU': model.Inventory(total)},
                          {'VCPU': used})
        return self.index.put(
            dataclasses.replace(host, **others), servers)  # type: ignore

    def server(self, name: str, vcpus: int = 1, host: str = 'h1'
               ) -> model.Server:
        return model.Server(name, host, {'VCPU': vcpus}, preemptible=True)

    def free(self, name: str = 'h1') -> int:
        return int(self.index.free[self.index.classes['VCPU']][
            self.index.rows[name]])

    def fits(self, **others: Any) -> set[str]:
        shape = brute_force.waiting({'VCPU': 1}, **others).shape
        mask = self.index.fits(shape)
        return {name for name, row in self.index.rows.items() if mask[row]}

    def test_usage_counts_once(self) -> None:
        self.put(used=3, servers=(self.server('s1', 3),))
        self.assertEqual(5, self.free())
        self.put(used=3, servers=(self.server('s1', 3),))
        self.assertEqual(5, self.free())

    def test_more_used_than_there_is(self) -> None:
        self.put(used=9)
        self.assertEqual(-1, self.free())

    def test_version_and_what_changed(self) -> None:
        first = self.put()
        seen = self.index.version
        self.assertEqual([], self.index.changed_since(seen))
        second = self.put('h2')
        self.assertEqual([second], self.index.changed_since(seen))
        self.assertNotEqual(first, second)

    def test_server_that_moved(self) -> None:
        self.put(servers=(self.server('s1'),))
        self.put('h2', servers=(self.server('s1', host='h2'),))
        self.put()
        found = self.index.slots.find('s1')
        assert found is not None
        self.assertEqual('h2', found.host)
        self.assertEqual(1, len(self.index.slots))

    def test_removed_host(self) -> None:
        self.put(servers=(self.server('s1'),))
        self.put('h2')
        self.assertEqual({'h1', 'h2'}, self.fits())
        self.index.remove('h1')
        self.index.remove('h9')
        self.assertEqual({'h2'}, self.fits())
        self.assertEqual({'VCPU': 8, 'MEMORY_MB': 0, 'DISK_GB': 0},
                         self.index.totals())
        self.assertEqual(0, len(self.index.slots))
        self.put()
        self.assertEqual({'h1', 'h2'}, self.fits())

    def test_many_hosts_and_classes(self) -> None:
        for number in range(300):
            self.put(f'h{number}', used=number % 8, inventory={
                'VCPU': model.Inventory(8),
                f'CUSTOM_{number % 3}': model.Inventory(1)})
        shape = model.Shape.of({'CUSTOM_1': 1, 'VCPU': 8})
        self.assertEqual(100, self.index.fits(shape).sum())
        self.assertEqual(8 - 299 % 8, self.free('h299'))
        self.assertEqual(8, self.free('h0'))

    def test_classes_on_hosts(self) -> None:
        self.put(used=1)
        self.put('h2', used=1, inventory={'DISK_GB': model.Inventory(0)},
                 providers=(model.Provider('gpu', {
                     'VGPU': model.Inventory(1)}),))
        self.assertEqual({'VCPU', 'DISK_GB', 'VGPU'}, self.index.on_hosts())
        self.index.remove('h2')
        self.assertEqual({'VCPU'}, self.index.on_hosts())
        self.index.remove('h1')
        self.assertEqual(set(), self.index.on_hosts())

    def test_traits_and_aggregates(self) -> None:
        self.put('h1', traits=frozenset('A'), aggregates=frozenset({'az1'}))
        self.put('h2', traits=frozenset('AB'), aggregates=frozenset({'az2'}))
        self.put('h3')
        for required, expected in (
                (['A'], {'h1', 'h2'}), (['!A'], {'h3'}),
                (['A', '!B'], {'h1'}), (['in:B,C'], {'h2'}),
                (['!in:B,C'], {'h1', 'h3'}), (['A', '!A'], set())):
            self.assertEqual(expected, self.fits(required=required))
        for member_of, expected in (
                (['az1'], {'h1'}), (['in:az1,az2'], {'h1', 'h2'}),
                (['!az1'], {'h2', 'h3'}), (['!in:az1,az2'], {'h3'})):
            self.assertEqual(expected, self.fits(member_of=member_of))

    def test_what_fits_follows_the_hosts(self) -> None:
        self.put('h1')
        self.put('h2')
        self.assertEqual(set(), self.fits(required=['A']))
        self.put('h1', traits=frozenset('A'))
        self.assertEqual({'h1'}, self.fits(required=['A']))
        self.put('h2', traits=frozenset('A'))
        self.put('h1')
        self.assertEqual({'h2'}, self.fits(required=['A']))

    def test_units(self) -> None:
        self.put(inventory={'VCPU': model.Inventory(
            64, min_unit=2, max_unit=8, step_size=3)})
        fitting = [amount for amount in range(1, 20) if self.index.fits(
            model.Shape.of({'VCPU': amount})).any()]
        self.assertEqual([3, 6], fitting)

    def test_refusals(self) -> None:
        self.put('h1')
        shape = model.Shape.of({'VCPU': 1})
        self.assertFalse(self.index.exclusions.refused(shape).any())
        self.index.exclusions.refuse(shape, {'h1': 'F', 'h2': 'F'})
        self.assertEqual(1, self.index.exclusions.refused(shape).sum())
        row = self.put('h2')
        self.assertTrue(self.index.exclusions.refused(shape)[row])
        self.put('h1', used=1)
        self.assertEqual({'h2': 'F'}, self.index.exclusions.refusals(shape))
        self.assertTrue(self.index.exclusions.take_back('h2'))
        self.assertFalse(self.index.exclusions.refused(shape).any())
        self.assertFalse(self.index.exclusions.take_back('h2'))

    def test_a_refusal_that_lasts(self) -> None:
        self.put('h1')
        shape, said = model.Shape.of({'VCPU': 1}), self.index.exclusions
        said.refuse(shape, {'h1': 'ComputeFilter'})
        self.put('h1', used=1)
        self.assertFalse(said.take_back('h1'))
        self.assertEqual({'h1': 'ComputeFilter'}, said.refusals(shape))
        self.assertEqual({shape}, said.forget_refusals())
        self.assertEqual({}, said.refusals(shape))

    def test_a_host_that_is_refused_as_it_is(self) -> None:
        row = self.put('h1', used=2)
        self.put('h2', used=2)
        shape, said = model.Shape.of({'VCPU': 2}), self.index.exclusions
        said.refuse(shape, {'h1': 'NUMATopologyFilter'})
        fits = self.index.fits(shape)
        self.assertFalse(said.refused(shape).any())
        self.assertEqual((6, 0), (
            self.index.free_of('VCPU', row), self.free_for(shape, row)))
        self.assertEqual(1, self.index.has_room(shape, fits).sum())
        self.assertTrue(self.index.could_take(shape, row))
        # Other shapes have the room.
        other = model.Shape.of({'VCPU': 1})
        self.assertEqual(6, self.free_for(other, row))
        # Nova refuses the host without its servers as well.
        lacks = said.crowded(shape)['h1']
        said.refuse(shape, {'h1': 'NUMATopologyFilter'}, lacks)
        self.assertTrue(said.refused(shape)[row])
        self.assertFalse(self.index.could_take(shape, row))
        # The host changes.
        said.refuse(shape, {'h1': 'NUMATopologyFilter'})
        self.put('h1', used=1)
        self.assertEqual((7, {}), (
            self.free_for(shape, row), said.crowded(shape)))
        for forget in (said.forget_refusals, lambda: said.keep_only([])):
            said.refuse(shape, {'h2': 'NUMATopologyFilter'})
            forget()
            self.assertEqual({}, said.crowded(shape))

    def test_what_has_to_come_from_servers(self) -> None:
        row = self.index.put(model.Host('h1', {
            'VCPU': model.Inventory(8), 'MEMORY_MB': model.Inventory(8)},
            {'VCPU': 2}), ())
        plain = model.Shape.of({'VCPU': 2})
        both = dataclasses.replace(plain, devices=(('gpu', 2),))
        whole = model.Shape.of({'VCPU': 2, 'MEMORY_MB': 1})
        amounts, devices, server = index_module.Lack
        numa, pci = 'NUMATopologyFilter', 'PciPassthroughFilter'
        for shape, steps in (
                (both, [(pci, {devices}), (numa, {devices, amounts}),
                        (numa, None)]),
                (both, [(pci, {devices}), (pci, None)]),
                (both, [(numa, {amounts}), (numa, {amounts, devices}),
                        (pci, None)]),
                # Ports may ask for devices, and it is not known which servers
                # have such devices.
                (plain, [(pci, {amounts}), (pci, None)]),
                (plain, [(numa, {amounts}), (numa, None)]),
                (dataclasses.replace(whole, devices=both.devices), [
                    ('NumInstancesFilter', {server}),
                    (pci, {server, devices}),
                    ('NumInstancesFilter', None)]),
                # The RAM of servers tells that some server has to end.
                (plain, [('NumInstancesFilter', None)]),
                (both, [('SimpleCIDRAffinityFilter', None)])):
            lacks, said = frozenset[index_module.Lack](), self.index.exclusions
            for name, expected in steps:
                said.refuse(shape, {'h1': name}, lacks)
                lacks = said.crowded(shape).get('h1', frozenset())
                self.assertEqual(expected or set(), lacks)
                self.assertEqual(bool(expected),
                                 self.index.could_take(shape, row))
            said.forget_refusals()

    def test_devices_have_no_inventory(self) -> None:
        row = self.put('h1', servers=(dataclasses.replace(
            self.server('s1', 3), devices={'gpu': 1}),), used=3)
        self.put('h2', used=3)
        shape = model.Shape.of({'VCPU': 2}, devices=(('fpga', 1), ('gpu', 2)))
        fits = self.index.fits(shape)
        self.assertEqual(2, self.index.has_room(shape, fits).sum())
        self.assertEqual(['VCPU'], [need.name for need
                                    in self.index.needs(shape)])
        self.index.exclusions.refuse(shape, {'h1': 'PciPassthroughFilter'})
        self.assertEqual(1, self.index.has_room(shape, fits).sum())
        for needs in self.index.needs(shape), self.index.needs(shape, row):
            at = row if len(needs[0].free) > 1 else 0
            self.assertEqual(
                [('VCPU', 5, 0), ('PCI:fpga', 0, 1), ('PCI:gpu', 0, 2)],
                [(need.name, need.free[at], need.lacking[at])
                 for need in needs])
        self.assertEqual(0, self.index.totals()['PCI:gpu'])

    def free_for(self, shape: model.Shape, row: int) -> int:
        """What of VCPUs is free on a host for a shape."""
        all_hosts, only = self.index.needs(shape), self.index.needs(shape, row)
        self.assertEqual(all_hosts[0].free[row], only[0].free[0])
        return int(only[0].free[0])

    def test_plan_outlives_a_refresh(self) -> None:
        servers = self.server('s1', 3), self.server('s2', 2)
        for _ in range(2):
            self.put(used=5, servers=servers)
            self.index.plan(index_module.Plan(
                'w1', 'h1', {'': {'VCPU': 4}}, ['s1']))
            self.assertEqual(8 - 5 + 3 - 4, self.free())
            self.assertEqual(2, self.index.endable[
                self.index.classes['VCPU']][self.index.rows['h1']])
        # Its victim is gone, and so is what it had.
        self.put(used=2, servers=servers[1:])
        self.assertEqual(8 - 2 - 4, self.free())
        # Placement has the allocation, and the plan is carried out.
        self.index.drop_plan('w1')
        self.put(used=6, servers=servers[1:])
        self.assertEqual(2, self.free())
        self.index.drop_plan('w1')

    def test_plan_that_comes_to_nothing(self) -> None:
        self.put(used=3, servers=(self.server('s1', 3),))
        self.index.plan(index_module.Plan(
            'w1', 'h1', {'': {'VCPU': 8}}, ['s1']))
        self.index.drop_plan('w1')
        self.assertEqual(5, self.free())
        self.assertEqual(3, self.index.endable[self.index.classes['VCPU']][
            self.index.rows['h1']])


class SharedTestCase(tests.TestCase):
    """Providers that share what they have with hosts."""

    def setUp(self) -> None:
        super().setUp()
        self.index = index_module.Index(OPTIONS)
        self.pool = model.Provider('pool', {'DISK_GB': model.Inventory(20)},
                                   {'DISK_GB': 8}, shared=True)
        self.server = model.Server(
            's1', 'h1', {'VCPU': 1}, preemptible=True,
            providers={'pool': {'DISK_GB': 5}})
        for name in ('h1', 'h2', 'h3'):
            self.index.put(model.Host(
                name, {'VCPU': model.Inventory(4)},
                providers=(self.pool,) * (name != 'h3')),
                [self.server] if name == 'h1' else [])

    def left(self) -> list[int]:
        return [self.index.free_of('DISK_GB', self.index.rows[name])
                for name in ('h1', 'h2', 'h3')]

    def test_what_is_left_is_that_of_all_hosts(self) -> None:
        self.assertEqual([12, 12, index_module.NONE], self.left())
        self.index.share('pool', {'DISK_GB': 21})
        self.assertEqual([-1, -1], self.left()[:2])
        self.assertEqual({}, self.index.take_grown())
        self.index.plan(index_module.Plan(
            'w1', 'h1', {'pool': {'DISK_GB': 2}}, ['s1']))
        self.assertEqual([2, 2], self.left()[:2])
        self.index.drop_plan('w1')
        self.assertEqual([-1, -1], self.left()[:2])
        self.index.share('pool', {'DISK_GB': 3})
        self.assertEqual([17, 17], self.left()[:2])
        # From there on there was more.
        self.assertEqual({'DISK_GB': -1}, self.index.take_grown())
        self.assertEqual({}, self.index.take_grown())
        self.index.share('unknown', {'DISK_GB': 3})

    def test_it_is_there_once(self) -> None:
        self.assertEqual(20, self.index.totals()['DISK_GB'])
        self.index.remove('h1')
        self.assertEqual(20, self.index.totals()['DISK_GB'])
        self.index.remove('h2')
        self.assertEqual(0, self.index.totals()['DISK_GB'])

    def test_a_server_that_has_it_elsewhere(self) -> None:
        row = self.index.rows['h1']
        for providers, single in (
                ({'pool': {'DISK_GB': 1}}, True), ({}, True),
                ({'?': {'DISK_GB': 1}}, False), ({'?': {'VGPU': 1}}, True)):
            self.index.put(model.Host(
                'h1', {'VCPU': model.Inventory(4)}, providers=(self.pool,)),
                [dataclasses.replace(self.server, providers=providers)])
            self.assertEqual(single, self.index.single[row])

    @hypothesis.settings(max_examples=100)
    @hypothesis.given(strategies.integers(0, 2 ** 32))
    def test_as_if_everything_was_put_anew(self, seed: int) -> None:
        rand = random.Random(seed)
        world = brute_force.with_shares(rand, brute_force.with_providers(
            rand, brute_force.random_world(rand, 3, 4)))
        index = world.index(OPTIONS)
        hosts = {host.name: host for host in world.hosts}
        pools = {one.name: one for host in world.hosts
                 for one in host.providers if one.shared}
        used = {name: one.used for name, one in pools.items()}
        for _ in range(12):
            host = hosts[rand.choice(list(hosts))]
            mine = [one for one in world.servers if one.host == host.name]
            what = rand.randint(0, 4)
            if what == 0:
                index.remove(host.name)
                hosts[host.name] = dataclasses.replace(host, providers=(
                    *(one for one in host.providers if not one.shared),
                    *(one for one in pools.values() if rand.random() < 0.7)))
            elif what == 1 and used:
                name = rand.choice(list(used))
                used[name] = {'DISK_GB': rand.randint(0, 50)}
                index.share(name, used[name])
            elif what == 2:
                index.plan(index_module.Plan(
                    f'w{rand.randint(0, 3)}', host.name, {
                        name: {'DISK_GB': rand.randint(0, 5)}
                        for name in ('', *(
                            one.name for one in host.providers
                            if one.shared))},
                    [one.id for one in mine if rand.random() < 0.3]))
            elif what == 3:
                index.drop_plan(f'w{rand.randint(0, 3)}')
            index.put(hosts[host.name], mine)
        fresh = index_module.Index(OPTIONS)
        for name, host in hosts.items():
            fresh.put(host, [one for one in world.servers
                             if one.host == name])
        for name, amounts in used.items():
            fresh.share(name, amounts)
        for plan in index.plans.values():
            fresh.plan(plan)
        for name in hosts:
            row, other = index.rows[name], fresh.rows[name]
            self.assertEqual(index.single[row], fresh.single[other])
            for key in fresh.classes:
                self.assertEqual(fresh.free_of(key, other),
                                 index.free_of(key, row), (name, key))
        self.assertEqual({key: total for key, total in fresh.totals().items()
                          if total},
                         {key: total for key, total in index.totals().items()
                          if total})


class SlotsTestCase(tests.TestCase):
    """The arrays are those of an index that was made anew."""

    @hypothesis.settings(max_examples=40)
    @hypothesis.given(strategies.integers(min_value=0, max_value=2 ** 32))
    def test_any_history_leads_to_the_same(self, seed: int) -> None:
        rand = random.Random(seed)
        index = index_module.Index(OPTIONS)
        now: dict[str, tuple[model.Host, list[model.Server]]] = {}
        for step in range(rand.randint(1, 60)):
            name = f'h{rand.randrange(8)}'
            if rand.random() < 0.15:
                index.remove(name)
                now.pop(name, None)
                continue
            servers = [model.Server(
                f'{name}-{step}-{number}', name,
                brute_force.random_resources(rand, 4), preemptible=True)
                for number in range(rand.choice((0, 1, 3, 12)))]
            host = brute_force.world({name: {
                'VCPU': 50, 'MEMORY_MB': 9999, 'DISK_GB': 99}},
                servers).hosts[0]
            now[name] = host, servers
            index.put(host, servers)
        fresh = index_module.Index(OPTIONS)
        for host, servers in now.values():
            fresh.put(host, servers)
        self.assertEqual(fresh.rows.keys(), index.rows.keys())
        self.assertEqual(len(fresh.slots), len(index.slots))
        self.assertEqual(fresh.slots.endable.sum(), index.slots.endable.sum())
        for name, row in index.rows.items():
            self.assertEqual(
                [server.id for server in fresh.slots.of_host(
                    fresh.rows[name])],
                [server.id for server in index.slots.of_host(row)])
            for resource, column in index.classes.items():
                if resource not in fresh.classes:
                    continue
                other, to = fresh.classes[resource], fresh.rows[name]
                self.assertEqual(fresh.free[other][to],
                                 index.free[column][row])
                self.assertEqual(fresh.endable[other][to],
                                 index.endable[column][row])

    def test_gaps_are_closed(self) -> None:
        index = index_module.Index(OPTIONS)
        for count in range(1, 200):
            for number in range(4):
                index.put(model.Host(f'h{number}', {}), [model.Server(
                    f'{number}-{at}', f'h{number}', {'VCPU': 1},
                    preemptible=True) for at in range(count)])
        self.assertEqual(4 * 199, len(index.slots))
        self.assertEqual(4 * 199, index.slots.endable.sum())
        self.assertLess(len(index.slots.servers), 20000)

    def test_whose_run_time_is_over(self) -> None:
        index = index_module.Index(OPTIONS)
        now = brute_force.NOW

        def server(name: str, minutes: int | None, **others: Any
                   ) -> model.Server:
            return model.Server(
                name, 'h1', {'VCPU': 1}, ends_at=None if minutes is None
                else now + datetime.timedelta(minutes=minutes), **others)

        def due(minutes: int) -> list[str]:
            return [one.id for one in index.slots.due(index_module.to_micros(
                now + datetime.timedelta(minutes=minutes)))]

        self.assertEqual([], due(9))
        index.put(model.Host('h1', {}), [
            server('a', 3), server('b', 2, preemptible=True),
            server('c', None, preemptible=True), server('d', 1, busy=True),
            server('e', 1, locked=True), server('f', 5), server('g', None)])
        # Servers without the mark are in the index, and are no victims.
        self.assertEqual(6, len(index.slots))
        self.assertEqual(2, index.slots.endable.sum())
        self.assertEqual([[], ['b'], ['b'], ['b', 'a'], ['b', 'a', 'f']], [
            due(minutes) for minutes in (1, 2, 2, 4, 9)])
        for count in range(1, 99):
            # Their places change.
            index.put(model.Host('h1', {}), [server('a', 3), *(
                server(str(number), 7) for number in range(count))])
        self.assertEqual([['a'], []], [due(3), due(2)])
        index.put(model.Host('h1', {}), [server('f', 5)])
        self.assertEqual([[], ['f'], []], [due(4), due(5), due(4)])
        index.remove('h1')
        self.assertEqual([], due(9))

    def test_times(self) -> None:
        self.assertEqual(0, index_module.to_micros(None))
        self.assertEqual(brute_force.NOW, index_module.from_micros(
            index_module.to_micros(brute_force.NOW)))
