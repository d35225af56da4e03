# SPDX-License-Identifier: Apache-2.0

"""Servers that have something of providers below the host's own."""

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from nova_reaper.act import attempts
from nova_reaper.events import bus
from nova_reaper.tests import test_engine

OWN = {'VCPU': 2, 'MEMORY_MB': 2048}


class NestedBase(test_engine.EngineTestCase):
    """What is shared: a host with two GPUs."""

    also = '&resources1=VGPU:1&group_policy=none'

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.host = self.nova.hosts['h1']
        self.gpus = [self.room.add_host(f'gpu{at}', self.host, VGPU=2)
                     for at in range(2)]
        self.nova.asks_also = self.also

    def add(self, vgpus: Mapping[str, int] | None = None,
            preemptible: bool = True,
            specs: Mapping[str, str] | None = None) -> str:
        """A server on the host, with so many VGPUs by GPU."""
        server = self.nova.add_server(
            's', 2, 'h1', preemptible=preemptible, **dict[str, Any](
                specs or {}))
        consumer = self.room.placement.consumer(server)
        self.room.placement.write([consumer.with_amounts(
            {**consumer.amounts, **{
                gpu: {'VGPU': number}
                for gpu, number in (vgpus or {}).items()}})])
        return server

    def wait(self, vgpus: int = 0) -> str:
        specs: dict[str, Any] = {'resources:VGPU': f'{vgpus}'}
        return self.nova.add_server('w', 2, **specs if vgpus else {})


class FirstTestCase(NestedBase):
    """No list has read GPUs when the first server that asks for one comes."""

    options = {'full_list_interval': 10, 'pending_list_interval': 30}

    def test_the_next_list_is_that_of_all(self) -> None:
        having = self.add({gpu: 2 for gpu in self.gpus})
        self.turns(5)
        waiting = self.wait()
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(15)
        self.assertIn('Nobody is ended', self.detail(waiting))
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([False], self.left(having))


class NestedTestCase(NestedBase):

    def test_the_one_with_the_gpu_ends(self) -> None:
        first, second = self.gpus
        others = [self.add({first: 2}, preemptible=False), self.add()]
        having = self.add({second: 2})
        waiting = self.wait()
        with self.staying_at(attempts.Step.END):
            self.turns(20)
            self.assertEqual({self.host: OWN, second: {'VGPU': 1}},
                             self.amounts(waiting))
            self.assertEqual({}, self.amounts(having))
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual({self.host: OWN, second: {'VGPU': 1}},
                         self.amounts(waiting))
        self.assertNotIn(having, self.nova.servers)
        self.assertEqual([True, True], self.left(*others))

    def test_one_is_free(self) -> None:
        running = [self.add({gpu: 1}) for gpu in self.gpus]
        waiting = self.wait()
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([True, True], self.left(*running))

    def test_those_that_are_free_are_not_of_one_gpu(self) -> None:
        self.nova.asks_also = '&resources1=VGPU:2'
        running = [self.add({gpu: 1}) for gpu in self.gpus]
        waiting = self.wait()
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, sum(self.left(*running)))
        self.assertEqual([{'VGPU': 2}], [
            amounts for gpu, amounts in self.amounts(waiting).items()
            if gpu in self.gpus])

    def test_without_a_group(self) -> None:
        self.nova.asks_also = ''
        running = [self.add({gpu: 1}) for gpu in self.gpus]
        waiting = self.wait(2)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, sum(self.left(*running)))

    def test_nobody_has_one(self) -> None:
        self.add(dict.fromkeys(self.gpus, 2), preemptible=False)
        running = [self.add() for _ in range(3)]
        waiting = self.wait()
        self.turns(40)
        self.assertEqual([], self.actions())
        self.assertEqual([True] * 3, self.left(*running))
        self.assertIn('would free enough', self.detail(waiting))

    def test_groups_in_one_subtree(self) -> None:
        self.nova.asks_also = ('&resources_A=VGPU:1&resources_B=VGPU:1'
                               '&same_subtree=_A,_B&group_policy=none')
        running = [self.add({gpu: 2}) for gpu in self.gpus]
        waiting = self.wait()
        self.turns(40)
        self.assertEqual([], self.actions())
        self.assertEqual([True, True], self.left(*running))
        self.assertIn('Nobody is ended for a server that asks for what only '
                      'Placement can judge.', self.detail(waiting))
        # The server gets free GPUs, and nobody is ended.
        self.nova.delete(running[0])
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual({'VGPU': 2}, self.amounts(waiting)[self.gpus[0]])

    def test_traits(self) -> None:
        self.nova.asks_also = '&resources1=VGPU:1&required1=CUSTOM_A'
        self.room.set_traits(self.gpus[1], 'CUSTOM_A')
        running = [self.add({gpu: 2}) for gpu in self.gpus]
        waiting = self.wait()
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([True, False], self.left(*running))

    def test_a_server_without_one_ends_for_one_that_wants_none(self) -> None:
        self.nova.asks_also = ''
        having = self.add({self.gpus[0]: 1}, specs={'resources:VGPU': '1'})
        others = [self.add() for _ in range(3)]
        waiting = self.nova.add_server('w', 2)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(2, sum(self.left(*others)))
        self.assertEqual([True], self.left(having))

    def without_capacity(self) -> None:
        for gpu in self.gpus:
            self.room.client.request(
                'PUT', f'/resource_providers/{gpu}/inventories', json={
                    'resource_provider_generation':
                        self.room.placement.provider(gpu).generation,
                    'inventories': {'VGPU': {'total': 2, 'reserved': 2}}})

    def with_traits(self) -> None:
        for gpu in self.gpus:
            self.room.set_traits(gpu, 'CUSTOM_A')

    def changes_at(self, step: attempts.Step, change: Callable[[], None]
                   ) -> list[bool]:
        """What becomes of two servers if their host changes at a step."""
        running = [self.add({gpu: 2}) for gpu in self.gpus]
        waiting = self.wait()
        self.change_at(step, waiting, change)
        return self.left(*running)

    def test_the_gpus_are_gone_before_the_notice(self) -> None:
        self.assertEqual([True, True], self.changes_at(
            attempts.Step.NOTICE, self.without_capacity))

    def test_the_gpus_are_gone_before_the_swap(self) -> None:
        self.assertEqual([True, True], self.changes_at(
            attempts.Step.SWAP, self.without_capacity))

    def test_the_gpus_have_other_traits_before_the_swap(self) -> None:
        self.nova.asks_also = '&resources1=VGPU:1&required1=!CUSTOM_A'
        self.assertEqual([True, True], self.changes_at(
            attempts.Step.SWAP, self.with_traits))

    def test_a_gpu_is_removed(self) -> None:
        """A provider below a host that Placement does not have any more."""
        self.add(dict.fromkeys(self.gpus, 2), preemptible=False)
        self.wait()
        self.turns(10)
        gone = self.room.add_host('gone', self.host, VGPU=1)
        self.engine.source.trees = {self.host: [*self.gpus, gone]}
        self.room.client.request('DELETE', f'/resource_providers/{gone}')
        view = self.engine.source.read_host('h1')
        assert view is not None
        self.assertEqual(self.gpus, [one.name for one in view.host.providers])

    def test_a_cloud_in_which_nobody_asks(self) -> None:
        self.nova.asks_also = ''
        del self.room.adapter.log[:]
        self.nova.add_server('w', 8)
        self.turns(10)
        paths = [path for _method, path in self.room.adapter.log]
        self.assertNotIn('/resource_providers', paths)
        self.assertFalse([path for path in paths
                          if any(gpu in path for gpu in self.gpus)])

    def test_a_restart_before_the_end(self) -> None:
        having = [self.add({gpu: 2}, specs={'resources1:VGPU': '2'})
                  for gpu in self.gpus]
        before = [self.amounts(server) for server in having]
        waiting = self.wait()
        with self.staying_at(attempts.Step.END):
            self.turns(20)
        self.assertIn({}, [self.amounts(server) for server in having])
        # The server that waited is gone: its hold has the room.
        held = self.room.placement.consumer(waiting)
        del self.nova.servers[waiting]
        self.start()
        self.turns(60)
        self.assertEqual([True, True], self.left(*having))
        ends = [self.amounts(server) for server in having]
        # Its flavor asks for two, and the hold had one of them.
        self.assertIn({self.host: OWN} | {
            gpu: amounts for gpu, amounts in held.amounts.items()
            if gpu in self.gpus}, ends)
        self.assertEqual(1, sum(one in before for one in ends))


class GraceTestCase(NestedBase):
    """What is free is held during the notice."""

    options = {'grace_period': 60}
    also = '&resources1=VGPU:1&resources2=VGPU:1&group_policy=isolate'

    def test_the_free_part(self) -> None:
        first, second = self.gpus
        self.add({first: 1}, preemptible=False)
        having = self.add({second: 2})
        waiting = self.wait()
        with self.staying_at(attempts.Step.GRACE):
            self.turns(20)
            self.assertEqual({self.host: OWN, first: {'VGPU': 1}},
                             self.amounts(waiting))
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(3)
        # The plan has what is not held.
        plan = self.engine.world.index.plans[waiting]
        self.assertEqual(({'VGPU': 1}, {'VGPU': 0}),
                         (plan.of(second), plan.of(first)))
        self.turns(120)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual({self.host: OWN, first: {'VGPU': 1},
                          second: {'VGPU': 1}}, self.amounts(waiting))
        self.assertNotIn(having, self.nova.servers)

    def test_a_gpu_becomes_free(self) -> None:
        first, second = self.gpus
        other = self.add({first: 2}, preemptible=False)
        having = self.add({second: 2})
        waiting = self.wait()
        self.turns(10)
        # There is nothing of the first yet.
        self.assertEqual([], self.actions())
        self.nova.delete(other)
        self.turns(200)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertNotIn(having, self.nova.servers)
