# SPDX-License-Identifier: Apache-2.0

"""A notice is withdrawn when the end becomes needless; its room is kept."""

from nova_reaper.act import attempts
from nova_reaper.clients import rest
from nova_reaper.events import bus
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


class GraceTestCase(test_engine.EngineTestCase):
    """A host with a preemptible server, and another that is full."""

    options = {'grace_period': 120}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.nova.add_host('h2', 8)
        self.victim = self.nova.add_server('s', 6, 'h1', preemptible=True)
        # A flavor that the reaper knows.
        self.nova.finish(self.nova.add_server('x', 8, 'h2', preemptible=True))
        self.other = self.nova.add_server('o', 8, 'h2')
        self.waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.assertEqual(attempts.Step.GRACE, self.current().step)

    def current(self) -> attempts.Attempt:
        return self.engine.attempts.under_way[self.waiting]

    def noticed(self, server: str) -> bool:
        return 'reaper:for' in self.nova.servers[server]['metadata']

    def prefer(self, server: str, priority: str) -> None:
        specs = self.nova.servers[server]['flavor']['extra_specs']
        specs['reaper:priority'] = priority

    def changed(self, host: str) -> None:
        self.hint(bus.Kind.HOST, host=host)
        self.turns(3)

    def test_room_elsewhere(self) -> None:
        self.nova.finish(self.other)
        self.changed('h2')
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('h2', self.nova.servers[self.waiting][
            'OS-EXT-SRV-ATTR:host'])
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))
        self.assertEqual({'VCPU': 6, 'MEMORY_MB': 6144},
                         self.room.has(self.victim))
        self.turns(200)
        self.assertEqual('ACTIVE', self.status(self.victim))

    def test_room_elsewhere_at_the_last_moment(self) -> None:
        left = 118 - self.offset
        self.turns(int(left))
        self.nova.finish(self.other)
        self.hint(bus.Kind.HOST, host='h2')
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))

    def test_room_on_the_same_host(self) -> None:
        self.room.set_inventory(self.nova.hosts['h1'], VCPU=16,
                                MEMORY_MB=16384)
        self.engine._hosts.read('h1', whole=True)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))

    def test_a_smaller_flavor(self) -> None:
        smaller = self.nova.servers[self.nova.add_server('x', 2)]
        del self.nova.servers[smaller['id']]
        self.nova.servers[self.waiting]['flavor'] = smaller['flavor']
        self.hint(bus.Kind.WAITS, server=self.waiting)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertFalse(self.noticed(self.victim))
        self.assertEqual({'VCPU': 2, 'MEMORY_MB': 2048},
                         self.room.has(self.waiting))

    def test_the_waiter_is_gone(self) -> None:
        self.nova.delete(self.waiting)
        self.hint(bus.Kind.ENDED, server=self.waiting)
        self.turns(5)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertFalse(self.noticed(self.victim))
        self.assertEqual('ACTIVE', self.status(self.victim))

    def test_others_at_a_lower_price(self) -> None:
        self.nova.finish(self.other)
        cheaper = self.nova.add_server(
            'c', 8, 'h2', preemptible=True)
        self.prefer(cheaper, '-5')
        self.hint(bus.Kind.SERVER, server=cheaper, host='h2',
                  preemptible=True)
        self.turns(3)
        self.changed('h2')
        self.turns(20)
        self.assertFalse(self.noticed(self.victim))
        self.assertTrue(self.noticed(cheaper))
        self.turns(150)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual('ACTIVE', self.status(self.victim))
        self.assertIsNone(self.status(cheaper))

    def test_the_notice_stays_where_nothing_is_better(self) -> None:
        self.nova.finish(self.other)
        dearer = self.nova.add_server('c', 8, 'h2', preemptible=True)
        self.prefer(dearer, '5')
        self.hint(bus.Kind.SERVER, server=dearer, host='h2',
                  preemptible=True)
        self.turns(3)
        self.changed('h2')
        noticed = self.nova.servers[self.victim]['metadata'].copy()
        self.turns(60)
        self.assertEqual(noticed, self.nova.servers[self.victim]['metadata'])
        self.turns(90)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertIsNone(self.status(self.victim))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_the_notice_stays_for_one_that_is_only_younger(self) -> None:
        self.nova.finish(self.other)
        younger = self.nova.add_server('c', 8, 'h2', preemptible=True)
        self.nova.servers[younger]['OS-SRV-USG:launched_at'] = (
            '2026-01-01T00:00:00.000000')
        self.hint(bus.Kind.SERVER, server=younger, host='h2',
                  preemptible=True)
        self.turns(3)
        self.changed('h2')
        self.turns(60)
        self.assertEqual((True, False), (self.noticed(self.victim),
                                         self.noticed(younger)))

    def test_nobody_takes_the_free_part(self) -> None:
        self.assertEqual({'VCPU': 2, 'MEMORY_MB': 2048},
                         self.room.has(self.waiting))
        self.assertRaises(
            rest.Conflict, self.room.allocate, fakes.new_id(),
            self.nova.hosts['h1'], 'owner', VCPU=1, MEMORY_MB=1024)
        self.turns(150)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_what_is_held_counts_once(self) -> None:
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(3)
        index = self.engine.world.index
        row = index.rows['h1']
        self.assertEqual(0, index.free[index.classes['VCPU']][row])
