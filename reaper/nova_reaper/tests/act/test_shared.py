# SPDX-License-Identifier: Apache-2.0

"""Hosts that get their disk from a provider that shares with them."""

from collections.abc import Callable
from typing import Any
from unittest import mock

from nova_reaper.act import attempts
from nova_reaper.events import bus
from nova_reaper.tests import test_engine

OWN = {'VCPU': 2, 'MEMORY_MB': 2048}


class SharedBase(test_engine.EngineTestCase):
    """What is common: two hosts and a pool of disk."""

    disk = 20

    def setUp(self) -> None:
        super().setUp()
        for name in ('h1', 'h2'):
            self.nova.add_host(name, 4)
        self.hosts = list(self.nova.hosts.values())
        self.pool = self.room.add_sharing(*self.hosts, DISK_GB=self.disk)

    def add(self, host: str, disk: int = 0, preemptible: bool = True,
            said: int | None = None) -> str:
        """A server on a host.

        :param disk: what it has of the pool
        :param said: what its flavor asks for, None for the same
        """
        said = disk if said is None else said
        specs: dict[str, Any] = (
            {'resources:DISK_GB': str(said)} if said else {})
        server = self.nova.add_server(
            's', 2, host, preemptible=preemptible, **specs)
        consumer = self.room.placement.consumer(server)
        self.room.placement.write([consumer.with_amounts({
            self.nova.hosts[host]: OWN,
            **({self.pool: {'DISK_GB': disk}} if disk else {})})])
        return server

    def wait(self, disk: int) -> str:
        specs: dict[str, Any] = {'resources:DISK_GB': str(disk)}
        return self.nova.add_server('w', 2, **specs)

    def has(self, server: str, host: int, disk: int) -> None:
        self.assertEqual(
            {self.hosts[host]: OWN, self.pool: {'DISK_GB': disk}},
            self.amounts(server))


class SharedTestCase(SharedBase):

    def fill(self, host: str) -> None:
        for _ in range(2):
            self.add(host, preemptible=False)

    def test_there_is_room(self) -> None:
        self.fill('h1')
        running = self.add('h2', 5)
        waiting = self.wait(15)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.has(waiting, 1, 15)
        self.assertEqual([True], self.left(running))

    def test_the_host_lacks_processors(self) -> None:
        self.fill('h1')
        running = [self.add('h2', 5), self.add('h2')]
        waiting = self.wait(15)
        with self.staying_at(attempts.Step.END):
            self.turns(20)
            self.has(waiting, 1, 15)
            # The disk is enough: less is left over without the first.
            self.assertEqual([5, 0], [
                self.amounts(server).get(self.pool, {}).get('DISK_GB', 0)
                for server in running])
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.has(waiting, 1, 15)
        self.assertEqual([True, False], self.left(*running))

    def test_the_pool_lacks_disk(self) -> None:
        self.fill('h1')
        self.add('h2', preemptible=False)
        having = self.add('h2', 10)
        self.nova.add_host('h3', 4)
        others = [self.add('h3') for _ in range(2)]
        waiting = self.wait(15)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.has(waiting, 1, 15)
        self.assertEqual([True, True, False], self.left(*others, having))

    def test_nobody_ends_where_that_does_not_free_disk(self) -> None:
        running = [self.add('h1', 15, preemptible=False), self.add('h1'),
                   self.add('h2'), self.add('h2')]
        waiting = self.wait(10)
        self.turns(40)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual([], self.actions())
        self.assertEqual([True] * 4, self.left(*running))
        self.assertIn('would free enough', self.detail(waiting))

    def test_disk_becomes_free_on_another_host(self) -> None:
        self.fill('h1')
        other = self.add('h2', 15, preemptible=False)
        self.add('h2', preemptible=False)
        self.nova.add_host('h3', 2)
        self.nova.asks_also = ''
        self.room._put(self.nova.hosts['h3'], 'aggregates', list(
            self.room.placement._aggregates(self.pool)))
        waiting = self.wait(10)
        self.turns(10)
        self.assertEqual('PENDING', self.status(waiting))
        # The other host has still no room for it afterwards.
        self.room.set_inventory(self.hosts[1], VCPU=2, MEMORY_MB=2048)
        self.nova.delete(other)
        self.hint(bus.Kind.HOST, host='h2')
        self.turns(20)
        self.assertEqual(('ACTIVE', 'h3'), (
            self.status(waiting),
            self.nova.servers[waiting]['OS-EXT-SRV-ATTR:host']))

    def test_two_wait_for_the_last_disk(self) -> None:
        waiting = [self.wait(12), self.wait(12)]
        self.turns(30)
        self.assertEqual(['ACTIVE', 'PENDING'],
                         sorted(str(self.status(one)) for one in waiting))

    def test_what_is_read(self) -> None:
        """The consumers of the pool are not listed."""
        self.add('h1', 5)
        self.add('h1', 5)
        self.add('h2', 5)
        self.add('h2', 5)
        waiting = self.wait(5)
        del self.room.adapter.log[:]
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        paths = [path for _method, path in self.room.adapter.log]
        self.assertNotIn(f'/resource_providers/{self.pool}/allocations', paths)
        # No server asks for what providers below hosts have.
        self.assertNotIn('/resource_providers', paths)

    def changes_at(self, step: attempts.Step, change: Callable[[], None]
                   ) -> None:
        self.fill('h1')
        running = [self.add('h2', 10), self.add('h2', preemptible=False)]
        waiting = self.wait(15)
        self.change_at(step, waiting, change)
        self.assertEqual([True, True], self.left(*running))
        self.has(running[0], 1, 10)

    def less(self) -> None:
        self.room.set_inventory(self.pool, DISK_GB=12)

    def test_the_pool_gets_smaller_before_the_notice(self) -> None:
        self.changes_at(attempts.Step.NOTICE, self.less)

    def test_the_pool_gets_smaller_before_the_swap(self) -> None:
        self.changes_at(attempts.Step.SWAP, self.less)

    def test_others_use_the_pool_before_the_swap(self) -> None:
        self.changes_at(attempts.Step.SWAP, lambda: self.room.allocate(
            'c' * 8 + '-0000-4000-8000-000000000000', self.pool, 'x',
            DISK_GB=8))

    def test_the_pool_shares_no_longer_before_the_swap(self) -> None:
        self.changes_at(attempts.Step.SWAP, lambda: self.room._put(
            self.pool, 'aggregates', []))

    def test_the_flavor_says_what_placement_does_not(self) -> None:
        self.fill('h1')
        self.add('h2', 10, preemptible=False)
        running = self.add('h2', said=10)
        waiting = self.wait(15)
        self.turns(60)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual([], self.actions())
        self.assertEqual([True], self.left(running))

    def test_a_restart_before_the_end(self) -> None:
        self.fill('h1')
        having = [self.add('h2', 8), self.add('h2', 8)]
        waiting = self.wait(8)
        with self.staying_at(attempts.Step.END):
            self.turns(20)
        self.assertIn({}, [self.amounts(server) for server in having])
        # The server that waited is gone: its hold has the room.
        del self.nova.servers[waiting]
        self.start()
        self.turns(60)
        self.assertEqual([True, True], self.left(*having))
        for server in having:
            self.has(server, 1, 8)


class GraceTestCase(SharedBase):
    """What is free is held during the notice."""

    options = {'grace_period': 60}

    def test_the_free_part(self) -> None:
        for _ in range(2):
            self.add('h1', preemptible=False)
        having = self.add('h2', 12)
        waiting = self.wait(15)
        with self.staying_at(attempts.Step.GRACE):
            self.turns(20)
            self.has(waiting, 1, 8)
        self.hint(bus.Kind.HOST, host='h2')
        self.turns(3)
        plan = self.engine.world.index.plans[waiting]
        self.assertEqual({'DISK_GB': 7}, plan.of(self.pool))
        self.turns(120)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.has(waiting, 1, 15)
        self.assertNotIn(having, self.nova.servers)


class ElsewhereTestCase(SharedBase):
    """Another host gets room while a server has notice."""

    disk = 30
    options = {'grace_period': 120}

    def setUp(self) -> None:
        super().setUp()
        self.room.set_inventory(self.hosts[0], VCPU=5, MEMORY_MB=5120)
        self.add('h1', preemptible=False)
        self.victim = self.add('h1', 15)
        self.other = self.add('h2', 10, preemptible=False)
        self.add('h2', preemptible=False)
        self.waiting = self.wait(15)
        self.turns(8)
        self.assertEqual(
            attempts.Step.GRACE,
            self.engine.attempts.under_way[self.waiting].step)
        self.nova.finish(self.other)
        self.hint(bus.Kind.HOST, host='h2')

    def test_what_is_held_of_the_pool_counts(self) -> None:
        """The pool has 15 GB with the part that is held, 10 without it."""
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.has(self.waiting, 1, 15)
        self.assertEqual([True], self.left(self.victim))

    def test_the_host_is_removed_meanwhile(self) -> None:
        advance = self.engine.attempts._actor.advance

        def slow(current: attempts.Attempt
                 ) -> attempts.Attempt | attempts.Outcome:
            result = advance(current)
            if isinstance(result, attempts.Attempt) and (
                    result.host != current.host):
                self.engine.world.remove_host(result.host)
            return result

        with mock.patch.object(
                self.engine.attempts._actor, 'advance', slow):
            self.turns(60)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual([True], self.left(self.victim))
