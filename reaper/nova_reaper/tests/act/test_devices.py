# SPDX-License-Identifier: Apache-2.0

"""Servers with PCI devices, which Placement does not know of."""

from typing import Any
from unittest import mock

from nova_reaper.act import attempts
from nova_reaper.cloud import model
from nova_reaper.tests import test_engine


class TwoHostsTestCase(test_engine.EngineTestCase):
    """What is shared: two hosts with two devices each."""

    def setUp(self) -> None:
        super().setUp()
        for host in ('h1', 'h2'):
            self.nova.add_host(host, 8)
            self.nova.devices[host] = {'gpu': 2}

    def add(self, vcpus: int, host: str | None = None, devices: str = '',
            **others: Any) -> str:
        return self.nova.add_server(
            's' if host else 'w', vcpus, host, preemptible=bool(host),
            devices=devices, **others)

    def fill(self, host: str) -> str:
        """A server that is not preemptible takes the devices of a host."""
        return self.nova.add_server('o', 1, host, devices='gpu:2')

    def hint_of_h1(self) -> None:
        """Something has changed on the first host."""
        self.engine.source.read_preemptible()
        self.engine._hosts.read('h1', whole=True)


class DevicesTestCase(TwoHostsTestCase):
    """Without a time of grace."""

    def test_the_one_with_the_device_ends(self) -> None:
        self.fill('h2')
        taken = self.nova.add_server('o', 1, 'h1', devices='gpu:1')
        without = [self.add(1, 'h1') for _ in range(2)]
        having = self.add(2, 'h1', 'gpu:1')
        waiting = self.add(2, devices='gpu:1')
        held = {'VCPU': 2, 'MEMORY_MB': 2048}
        with self.staying_at(attempts.Step.END):
            self.turns(20)
            self.assertEqual(held, self.room.has(waiting))
        with mock.patch.object(self.book, 'write') as write:
            self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertNotIn(having, self.nova.servers)
        self.assertEqual([True] * 3, self.left(taken, *without))
        self.assertEqual(held, self.room.has(waiting))
        [record] = [call.args[0] for call in write.call_args_list
                    if call.args and call.args[0].result == 'active']
        self.assertEqual(held, record.detail['resources'])

    def test_a_device_is_free(self) -> None:
        self.fill('h2')
        running = self.add(2, 'h1', 'gpu:1'), self.add(2, 'h1')
        waiting = self.add(2, devices='gpu:1')
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(['rebuild'], self.actions())
        self.assertEqual([True, True], self.left(*running))

    def test_nobody_has_a_device(self) -> None:
        self.nova.devices.clear()
        running = [self.add(8, 'h2'), self.add(6, 'h1'),
                   self.add(2, 'h1', 'fpga:1')]
        waiting = self.add(2, devices='gpu:1')
        self.turns(40)
        self.assertEqual([], self.actions())
        self.assertEqual([True] * 3, self.left(*running))
        self.assertIn('PciPassthroughFilter', self.detail(waiting))
        # Nova is not asked again before a host changes.
        del self.nova.judged[:]
        self.turns(20)
        self.assertEqual([], self.nova.judged)
        self.nova.devices['h1'] = {'gpu': 1}
        self.nova.delete(running[1])
        self.hint_of_h1()
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_room_without_a_device(self) -> None:
        self.nova.devices.clear()
        running = self.add(2, 'h1'), self.add(2, 'h2', 'fpga:1')
        waiting = self.add(2, devices='gpu:1')
        self.turns(40)
        self.assertEqual([], self.actions())
        self.assertEqual([True, True], self.left(*running))
        entry = self.shown.entry(waiting)
        assert entry and entry.decision
        self.assertEqual(model.Reason.REFUSED, entry.decision.reason)
        self.assertIn('those with room are refused by PciPassthroughFilter',
                      entry.decision.detail)

    def test_a_full_host(self) -> None:
        # By amounts alone, the youngest and cheapest has no device.
        self.fill('h2')
        for host in ('h2', 'h2', 'h1'):
            self.add(3 if host == 'h2' else 2, host)
        without = self.add(2, 'h1')
        having = self.add(4, 'h1', 'gpu:2')
        waiting = self.add(2, devices='gpu:1')
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertNotIn(having, self.nova.servers)
        self.assertEqual([True], self.left(without))
        self.assertEqual(6, len(self.nova.servers))

    def test_a_full_host_on_which_others_free_the_room(self) -> None:
        # The server with a device does not free enough by itself.
        self.nova.devices['h2'] = {}
        having = self.add(1, 'h1', 'gpu:1'), self.add(1, 'h1', 'gpu:1')
        without = [self.add(3, 'h1') for _ in range(2)]
        self.nova.add_server('o', 8, 'h2')
        waiting = self.add(4, devices='gpu:1')
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, sum(self.left(*having)))
        self.assertEqual(1, sum(self.left(*without)))

    def test_several(self) -> None:
        self.nova.devices['h1'] = {'gpu': 2, 'fpga': 1}
        self.fill('h2')
        gpus = [self.add(1, 'h1', 'gpu:1') for _ in range(2)]
        fpga, both = self.add(1, 'h1', 'fpga:1'), self.add(1, 'h1')
        waiting = self.add(1, devices='gpu:2,fpga:1')
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([False] * 3 + [True], self.left(*gpus, fpga, both))

    def test_more_than_any_host_has(self) -> None:
        running = [self.add(1, host, 'gpu:1') for host in ('h1', 'h1', 'h2')]
        self.add(1, devices='gpu:3')
        self.turns(60)
        self.assertEqual([], self.actions())
        self.assertEqual([True] * 3, self.left(*running))

    def test_numa_as_well(self) -> None:
        self.fill('h2')
        self.nova.pinned.update(h1=2, h2=0)
        gpus = [self.add(1, 'h1', 'gpu:1') for _ in range(2)]
        others = [self.add(2, 'h1') for _ in range(2)]
        waiting = self.add(2, devices='gpu:1')
        self.turns(90)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual((1, 1), (sum(self.left(*gpus)),
                                  sum(self.left(*others))))

    def test_numa_refuses_for_the_devices(self) -> None:
        # Where both filters would refuse, NUMATopologyFilter is named.
        self.fill('h2')
        gpu, other = self.add(2, 'h1', 'gpu:2'), self.add(2, 'h1')
        judge = self.nova._by_usage

        def by_usage(host: str, server: Any, without: Any = ()) -> str | None:
            name = judge(host, server, without)
            return 'NUMATopologyFilter' if name else None

        self.nova._by_usage = by_usage  # type: ignore[method-assign]
        waiting = self.add(2, devices='gpu:1')
        self.turns(90)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([False, True], self.left(gpu, other))

    def test_too_many_servers(self) -> None:
        self.nova.most.update(h1=2, h2=0)
        having = self.add(1, 'h1', 'gpu:1')
        others = [self.add(1, 'h1') for _ in range(2)]
        self.fill('h2')
        waiting = self.add(4)
        self.turns(60)
        # The server needs no device, and nothing but that somebody goes.
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([True], self.left(having))
        self.assertEqual(1, sum(self.left(*others)))

    def test_many_hosts_without_devices(self) -> None:
        self.nova.devices.clear()
        for number in range(30):
            self.nova.add_host(f'x{number}', 2)
            self.add(2, f'x{number}', **{'reaper:priority': '-1'})
        self.nova.devices['h1'] = {'gpu': 1}
        having = self.add(8, 'h1', 'gpu:1')
        self.add(8, 'h2')
        waiting = self.add(2, devices='gpu:1')
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([False], self.left(having))
        # One attempt has found out about all hosts.
        self.assertLess(len(self.nova.judged), 10)

    def test_only_fills(self) -> None:
        self.conf.set_override('mode', 'fill', 'reaper')
        self.fill('h2')
        having = self.add(2, 'h1', 'gpu:2')
        waiting = self.add(2, devices='gpu:1')
        self.turns(40)
        self.assertEqual([], self.actions())
        self.assertEqual([True], self.left(having))
        self.assertIn('nobody is ended', self.detail(waiting))

    def restarted_at(self, step: attempts.Step) -> None:
        self.fill('h2')
        having, other = self.add(2, 'h1', 'gpu:2'), self.add(2, 'h1')
        waiting = self.add(2, devices='gpu:1')
        with self.staying_at(step):
            self.turns(20)
            self.assertEqual(
                {step}, {current.step for current
                         in self.engine.attempts.under_way.values()})
        self.start()
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([False, True], self.left(having, other))
        self.assertEqual({}, self.room.has(having))

    def test_a_restart_before_the_notice(self) -> None:
        self.restarted_at(attempts.Step.NOTICE)

    def test_a_restart_before_the_swap(self) -> None:
        self.restarted_at(attempts.Step.SWAP)

    def test_a_restart_before_the_end(self) -> None:
        self.restarted_at(attempts.Step.END)

    def test_a_restart_before_the_rebuild(self) -> None:
        self.restarted_at(attempts.Step.REBUILD)

    def test_nonsense(self) -> None:
        # Nova builds no server of such a flavor, and the flavor is there.
        said = ('gpu', 'gpu:x', ':1', ':::', ',', 'gpu:1:2', 'gpu:-1',
                'gpu:' + '9' * 250, 'gpu:2147483647,gpu:2147483647')
        self.nova.add_host('h3', len(said))
        waiting = []
        for devices in said:
            self.add(1, 'h3', devices)
            waiting.append(self.add(1, devices=devices))
        self.nova.refused_by.update(dict.fromkeys(
            self.nova.hosts, 'PciPassthroughFilter'))
        self.turns(40)
        self.assertEqual([], self.actions())
        for server in waiting:
            self.assertIn('PciPassthroughFilter', self.detail(server))


class NoticeTestCase(TwoHostsTestCase):
    """With a time of grace."""

    options = {'grace_period': 60}

    def test_the_host_changes_after_the_notice(self) -> None:
        self.nova.devices['h2'] = {}
        self.nova.add_server('o', 8, 'h2')
        having = self.add(2, 'h1', 'gpu:2')
        lower = {'reaper:priority': '-1'}
        others = [self.add(2, 'h1', **lower) for _ in range(3)]
        waiting = self.add(2, devices='gpu:1')
        with self.staying_at(attempts.Step.GRACE):
            self.turns(20)
        self.assertEqual([False, True], self.left(having, others[0]))
        self.nova.delete(others.pop())
        others.append(self.add(2, 'h1', **lower))
        self.hint_of_h1()
        self.turns(30)
        # Others that are cheaper by the amounts do not help: no notice is
        # taken back for them.
        self.assertFalse(self.engine.world.history[waiting].withdrawn_at)
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([False] + [True] * 3, self.left(having, *others))


class PortsTestCase(TwoHostsTestCase):
    """A port asks for a device, of which nothing is said in the flavor."""

    def test_it_is_tried_by_the_amounts(self) -> None:
        running = self.add(2, 'h1'), self.add(2, 'h1')
        self.nova.refused_by.update(
            h1='PciPassthroughFilter', h2='PciPassthroughFilter')
        waiting = self.add(2)
        self.turns(60)
        self.assertEqual([], self.actions())
        self.assertEqual([True, True], self.left(*running))
        self.assertIn('PciPassthroughFilter', self.detail(waiting))
        entry = self.shown.entry(waiting)
        assert entry and entry.decision
        self.assertEqual(model.Reason.REFUSED, entry.decision.reason)
