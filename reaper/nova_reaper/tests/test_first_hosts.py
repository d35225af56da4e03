# SPDX-License-Identifier: Apache-2.0

"""What is decided before all hosts have been read."""

import datetime
from typing import Any
from unittest import mock

from oslo_utils import timeutils

from nova_reaper.act.attempts import Step
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper import engine as engine_module
from nova_reaper.events import bus
from nova_reaper.events import lists
from nova_reaper.events import reader
from nova_reaper.report import journal
from nova_reaper.tests.act import test_recovery
from nova_reaper.tests import fakes
from nova_reaper.tests import test_interleavings
from nova_reaper.tests import test_remembering


class ManyHostsTestCase(test_interleavings.LateTestCase):
    """A host of eight has room; the list of all hosts takes long."""

    def setUp(self) -> None:
        for name, value in (('FEW', 4), ('FIRST', 4), ('AT_ONCE', 2)):
            self.enterContext(mock.patch.object(lists, name, value))
        super().setUp()
        for number in range(8):
            if f'h{number}' not in self.nova.hosts:
                self.nova.add_host(f'h{number}', 8)
        self.victims = [self.nova.add_server(
            's', 8, f'h{number}', preemptible=True) for number in range(7)]

    def start(self) -> engine_module.Engine:
        engine = super().start()
        self.late(lists.FULL)
        return engine

    def add_waiting(self, name: str, vcpus: int, seconds: int = 0,
                    **more: Any) -> str:
        """A server that has waited for so many seconds."""
        waiting = self.nova.add_server(name, vcpus, **more)
        self.nova.servers[waiting]['created'] = (
            timeutils.utcnow(True) - datetime.timedelta(seconds=seconds)
        ).strftime('%Y-%m-%dT%H:%M:%SZ')
        return waiting

    def hosts_read(self) -> set[str]:
        return {name for name, provider in self.nova.hosts.items()
                if any(path.startswith(f'/resource_providers/{provider}/')
                       for method, path in self.room.adapter.log)}


class FirstHostsTestCase(ManyHostsTestCase):
    """Servers wait as a reaper starts, or takes over."""

    def test_room_is_used_before_all_hosts_are_read(self) -> None:
        waiting = self.add_waiting('w', 4)
        del self.room.adapter.log[:]
        self.turns(1)
        self.assertEqual({'h7'}, self.hosts_read())
        self.turns(10)
        self.assertEqual({'h7'}, set(self.engine.world.views))
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertFalse(self.engine.recovered)
        self.pool.let(lists.FULL)
        self.turns(5)
        self.assertTrue(self.engine.recovered)
        self.assertEqual(8, len(self.engine.world.views))
        self.assertEqual(1, self.actions().count('rebuild'))
        # The list was read before the server was built.
        self.assertEqual({}, self.engine.world.servers)
        self.assertAlmostEqual(
            4 / 64, self.engine.world.queue.share.of('owner'), places=3)

    def test_all_that_have_room_have_their_turn(self) -> None:
        # Seven kinds wait for which there is no room, before those for which
        # there is some.
        for vcpus in range(9, 16):
            self.add_waiting('large', vcpus, 100)
        waiting = [self.add_waiting(f'w{number}', 1) for number in range(6)]
        self.turns(20)
        self.assertEqual(['ACTIVE'] * 6, [
            self.status(server) for server in waiting])

    def test_room_goes_to_the_first_of_the_queue(self) -> None:
        high: Any = {'reaper:priority': '5'}
        self.add_waiting('old', 8, 100)
        first = self.add_waiting('high', 8, **high)
        self.turns(10)
        self.assertEqual(['ACTIVE'], [
            server['status'] for server in self.nova.servers.values()
            if server['id'] not in self.victims and
            server['status'] != 'PENDING'])
        self.assertEqual('ACTIVE', self.status(first))

    def test_each_project_has_its_turn(self) -> None:
        self.enterContext(mock.patch.object(lists, 'ROUNDS', 1))
        many = [self.add_waiting('w', 2, 100) for _ in range(4)]
        other = self.add_waiting('w', 2, project='other')
        self.turns(15)
        self.assertEqual('ACTIVE', self.status(other))
        self.assertEqual(3, sum(self.status(server) == 'ACTIVE'
                                for server in many))

    def test_nobody_is_ended_or_given_up(self) -> None:
        for name in ('pending_timeout', 'nothing_fits_timeout'):
            self.conf.set_override(name, 60, 'reaper')
        fits = self.add_waiting('fits', 8, 200)
        # The room on h7 is not enough for this one.
        self.nova.add_server('other', 4, 'h7')
        nowhere = self.add_waiting('nowhere', 16, 200)
        self.add_waiting('small', 1)
        self.turns(20, 30)
        self.assertEqual(['rebuild'], self.actions())
        self.assertEqual(['PENDING'] * 2,
                         [self.status(fits), self.status(nowhere)])
        for server in self.victims:
            self.assertEqual({}, self.nova.servers[server]['metadata'])
        self.assertEqual({}, self.engine.world.told.last)
        self.assertEqual('fill', self.engine.guard.mode)
        self.pool.let(lists.FULL)
        self.turns(20, 30)
        self.assertEqual('preempt', self.engine.guard.mode)
        self.assertEqual('ERROR', self.status(nowhere))

    def test_ends_come_after_all_hosts(self) -> None:
        # Placement offers the host, and another takes the room first.
        waiting = self.add_waiting('w', 8)
        other = self.add_waiting('v', 8)
        self.turns(15)
        self.assertEqual({'PENDING', 'ACTIVE'},
                         {self.status(waiting), self.status(other)})
        self.assertNotIn('forceDelete', self.actions())
        # Why the other one waits is not known yet.
        self.assertEqual({}, self.engine.world.told.last)
        self.pool.let(lists.FULL)
        self.turns(30)
        self.assertEqual(['ACTIVE'] * 2,
                         [self.status(waiting), self.status(other)])
        self.assertEqual(1, self.actions().count('forceDelete'))

    def test_one_without_room_is_not_given_up(self) -> None:
        self.conf.set_override('pending_timeout', 60, 'reaper')
        waiting = [self.add_waiting(name, 8, 200) for name in ('w', 'v')]
        self.turns(15)
        self.assertEqual(['ACTIVE', 'PENDING'], sorted(
            str(self.status(server)) for server in waiting))
        self.pool.let(lists.FULL)
        self.turns(30)
        self.assertNotIn('PENDING', [
            self.status(server) for server in waiting])

    def test_a_demand_that_is_never_met_is_told_by_all_hosts(self) -> None:
        self.nova.add_host('large', 32)
        self.nova.add_server('other', 32, 'large')
        self.add_waiting('small', 1)
        waiting = self.add_waiting('w', 16)
        self.turns(10)
        self.assertNotIn(waiting, self.engine.world.told.last)
        self.pool.let(lists.FULL)
        self.turns(10)
        self.assertEqual(model.Reason.NO_ROOM, self.engine.world.told.last[
            waiting].decision.reason)

    def test_why_one_waits_is_found_out_by_all_hosts(self) -> None:
        self.conf.set_override('mode', 'fill', 'reaper')
        servers = [self.add_waiting(name, 8) for name in ('w', 'v')]
        self.turns(15)
        self.pool.let(lists.FULL)
        self.turns(5)
        waiting, = (server for server in servers
                    if self.status(server) == 'PENDING')
        detail = self.engine.world.told.last[waiting].decision.detail
        self.assertIn('8 of 8 hosts could take it', detail)

    def test_a_host_fails(self) -> None:
        self.nova.delete(self.victims.pop())
        waiting = self.add_waiting('w', 8)
        read, failed = self.engine.source.read_host, set[str]()

        def fail(name: str, *args: Any, **kwargs: Any) -> Any:
            if name == 'h6' and name not in failed:
                failed.add(name)
                raise rest.Unavailable('placement', 'GET', 'No.')
            return read(name, *args, **kwargs)

        with mock.patch.object(self.engine.source, 'read_host', fail):
            self.turns(10)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual({'h6'}, failed)
        self.assertEqual({'h7'}, set(self.engine.world.views))

    def test_a_kind_fails(self) -> None:
        bad = self.add_waiting('bad', 2, 100)
        waiting = self.add_waiting('w', 4)

        def fail() -> fakes.Answer:
            return self.nova.error(500)

        self.nova.before.append(('GET', f'{bad}/pending', fail))
        self.turns(10)
        self.assertEqual(['PENDING', 'ACTIVE'],
                         [self.status(bad), self.status(waiting)])
        self.pool.let(lists.FULL)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(bad))

    def test_the_list_of_servers_fails(self) -> None:
        waiting = self.add_waiting('w', 4)

        def fail() -> fakes.Answer:
            return self.nova.error(503)

        self.pool.hang.clear()
        self.nova.before.append(('GET', 'status=PENDING', fail))
        self.turns(15)
        # The list of everything reads the servers again.
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertTrue(self.engine.recovered)

    def test_the_list_of_everything_fails(self) -> None:
        waiting = self.add_waiting('w', 4)
        self.turns(3)
        self.pool.fail(lists.FULL)
        self.turns(10)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertFalse(self.engine.recovered)
        self.pool.hang.clear()
        self.turns(15, 10)
        self.assertTrue(self.engine.recovered)
        self.assertEqual(8, len(self.engine.world.views))

    def test_another_server_waits_meanwhile(self) -> None:
        self.add_waiting('w', 2)
        self.turns(3)
        late = self.add_waiting('late', 2)
        self.hint(bus.Kind.WAITS, server=late)
        self.turns(10)
        # Something may have been begun for the server.
        self.assertEqual('PENDING', self.status(late))
        self.pool.let(lists.FULL)
        self.turns(10)
        self.assertEqual('ACTIVE', self.status(late))

    def test_resource_classes_are_asked_for_again(self) -> None:
        specs: Any = {'resources:CUSTOM_A': '1'}
        self.room.client.request('PUT', '/resource_classes/CUSTOM_A')
        self.room.set_inventory(self.nova.hosts['h7'], VCPU=8,
                                MEMORY_MB=8192, CUSTOM_A=1)
        waiting = self.add_waiting('w', 2, **specs)
        with self.staying_at(Step.CHECK):
            self.turns(5)
            self.assertIn(waiting, self.engine.attempts.under_way)
            self.pool.let(lists.FULL)
            self.turns(5)
        answer = self.engine.world.answer(waiting)
        assert answer
        self.assertEqual(1, answer.shape.amounts['CUSTOM_A'])

    def test_it_only_observes(self) -> None:
        self.conf.set_override('mode', 'observe', 'reaper')
        self.add_waiting('w', 4)
        self.turns(10)
        self.assertEqual({}, self.engine.world.views)
        self.assertEqual({}, self.engine.world.told.last)
        self.assertEqual([], self.actions())

    def test_it_only_observes_from_now_on(self) -> None:
        self.add_waiting('w', 4)
        self.turns(1)
        self.conf.set_override('mode', 'observe', 'reaper')
        self.turns(10)
        self.assertEqual([], self.actions())
        # What it would do is found out by all hosts.
        self.assertEqual({}, self.engine.world.told.last)

    def test_a_reservation_needs_all_hosts(self) -> None:
        self.conf.set_override('reserve', True, 'reaper')
        waiting = self.add_waiting('w', 4)
        self.turns(10)
        self.assertEqual('PENDING', self.status(waiting))
        self.pool.let(lists.FULL)
        self.turns(15)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_a_small_cloud_is_read_at_once(self) -> None:
        self.enterContext(mock.patch.object(lists, 'FEW', 8))
        self.add_waiting('w', 4)
        self.turns(10)
        self.assertEqual({}, self.engine.world.views)

    def test_one_that_stands_by_becomes_active(self) -> None:
        self.engine.guard.active = False
        waiting = self.add_waiting('w', 4)
        self.turns(5)
        self.assertEqual({}, self.engine.world.views)
        # Its first list is not there yet.
        self.engine.guard.active = True
        self.turns(10)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertFalse(self.engine.recovered)
        self.pool.let(lists.FULL)
        self.turns(10)
        self.assertTrue(self.engine.recovered)
        self.assertEqual(8, len(self.engine.world.views))

    def test_one_that_has_read_all_reads_what_has_changed(self) -> None:
        self.pool.hang.clear()
        self.engine.guard.active = False
        self.turns(5)
        self.engine.guard.active = True
        with mock.patch.object(self.engine._lists, 'read_first') as read:
            self.turns(10)
        read.assert_not_called()
        self.assertTrue(self.engine.recovered)

    def test_another_is_active_for_a_moment(self) -> None:
        waiting = self.add_waiting('w', 4)
        with self.staying_at(Step.HOLD):
            self.turns(5)
            self.stand_by()
            self.assertEqual({}, self.engine.world.servers)
            # The other reaper has begun something for the server.
            self.room.holds.take(
                waiting, {self.nova.hosts['h7']: {'VCPU': 2}})
        self.turns(10)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertEqual('PENDING', self.status(waiting))

    def test_what_was_found_for_an_earlier_term_is_dropped(self) -> None:
        waiting = self.add_waiting('w', 4)
        self.turns(1)
        self.assertTrue(self.engine.jobs.waiting)
        self.pool.hang.add(lists.FIRST_HOSTS)
        self.stand_by()
        self.turns(2)
        self.assertEqual({}, self.engine.world.servers)
        self.pool.let(lists.FIRST_HOSTS)
        self.turns(15)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, self.actions().count('rebuild'))

    def test_a_sweep_waits_for_no_attempt_of_its_own_term(self) -> None:
        waiting = self.add_waiting('w', 4)
        self.pool.hang.add(f'attempt {waiting}')
        self.turns(5)
        self.pool.let(lists.FULL)
        self.turns(5)
        self.assertTrue(self.engine.recovered)
        self.pool.let(f'attempt {waiting}')
        self.turns(10)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, self.actions().count('rebuild'))

    def test_no_attempt_begins_while_a_sweep_looks(self) -> None:
        self.add_waiting('w', 2)
        self.turns(10)
        late = self.add_waiting('late', 2)
        self.pool.let(lists.FULL)
        self.late('sweep')
        self.hint(bus.Kind.WAITS, server=late)
        self.turns(10)
        self.assertFalse(self.engine.recovered)
        self.assertIn(late, self.engine.world.servers)
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertEqual('PENDING', self.status(late))
        self.pool.let('sweep')
        self.turns(10)
        self.assertEqual('ACTIVE', self.status(late))


class FullHostsTestCase(ManyHostsTestCase):
    """No host has room, and each host has some memory left."""

    def setUp(self) -> None:
        super().setUp()
        self.victims.append(self.nova.add_server(
            's', 8, 'h7', preemptible=True))
        self.leave(*self.nova.hosts)

    def leave(self, *hosts: str) -> None:
        for host in hosts:
            self.room.set_inventory(
                self.nova.hosts[host], VCPU=8, MEMORY_MB=9000)

    def prefer(self, server: str) -> None:
        self.nova.servers[server]['flavor']['extra_specs'][
            'reaper:priority'] = '-1'

    def ended(self) -> list[str]:
        return [server for server in self.victims
                if server not in self.nova.servers]

    def asked(self) -> list[str]:
        """The queries for candidates that any host with memory is."""
        return [path for _method, path in self.room.adapter.log
                if path.endswith('/allocation_candidates?resources='
                                 'MEMORY_MB%3A1')]

    def wait_for_all(self) -> None:
        """A server for which another ends only after the list."""
        waiting = self.add_waiting('w', 8)
        self.turns(30)
        self.assertEqual([], self.ended())
        self.assertEqual('PENDING', self.status(waiting))
        self.assertFalse(self.engine.recovered)
        self.pool.let(lists.FULL)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, len(self.ended()))


class OutlinesTestCase(FullHostsTestCase):
    """All hosts are known before all hosts are read."""

    def test_a_server_ends_before_all_hosts_are_read(self) -> None:
        self.prefer(self.victims[3])
        waiting = self.add_waiting('w', 8)
        # The list of all hosts does not begin.
        self.pool.answered.clear()
        del self.room.adapter.log[:]
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([self.victims[3]], self.ended())
        self.assertEqual({'h3'}, self.hosts_read())
        self.assertFalse(self.engine.recovered)
        self.assertEqual(8, len(self.engine.world.views))

    def test_more_hosts_cost_no_more_requests(self) -> None:
        counts = []
        for more in (0, 30):
            for number in range(more):
                name = f'more{number}'
                self.nova.add_host(name, 8, 9000)
                self.victims.append(self.nova.add_server(
                    's', 8, name, preemptible=True))
            self.add_waiting('w', 8)
            with mock.patch.object(
                    rest.Client, 'request', autospec=True,
                    side_effect=rest.Client.request) as requests:
                self.start()
                self.pool.answered.clear()
                while not self.engine.attempts.under_way:
                    self.turns(1)
            counts.append(requests.call_count)
            self.turns(30)
        self.assertLessEqual(counts[1], counts[0])

    def test_the_list_of_everything_ends_nobody_else(self) -> None:
        waiting = self.add_waiting('w', 8)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, len(self.asked()))
        self.pool.let(lists.FULL)
        self.turns(30)
        self.assertTrue(self.engine.recovered)
        self.assertEqual(1, len(self.ended()))
        self.assertEqual(1, self.actions().count('rebuild'))
        self.assertFalse(any(
            view.outlined for view in self.engine.world.views.values()))

    def test_all_servers_without_room_have_their_turn(self) -> None:
        waiting = [self.add_waiting(f'w{number}', 8 - number % 2)
                   for number in range(6)]
        self.turns(100)
        self.assertEqual(['ACTIVE'] * 6, [
            self.status(server) for server in waiting])
        self.assertFalse(self.engine.recovered)
        self.assertEqual(6, len(self.ended()))

    def test_room_comes_before_ends(self) -> None:
        self.nova.delete(self.victims.pop())
        self.leave('h7')
        first, second = (self.add_waiting(name, 8) for name in 'vw')
        self.turns(40)
        self.assertEqual(['ACTIVE'] * 2,
                         [self.status(first), self.status(second)])
        self.assertEqual(1, len(self.ended()))
        self.assertFalse(self.engine.recovered)

    def test_the_reason_is_told(self) -> None:
        self.conf.set_override('pending_timeout', 60, 'reaper')
        self.conf.set_override('nothing_fits_timeout', 60, 'reaper')
        waiting = self.add_waiting('w', 16, 200)
        self.turns(30, 10)
        told = self.engine.world.told.last[waiting].decision
        self.assertEqual(model.Reason.NOTHING_FITS, told.reason)
        self.assertEqual('PENDING', self.status(waiting))
        self.pool.let(lists.FULL)
        self.turns(30, 10)
        self.assertEqual('ERROR', self.status(waiting))

    def test_the_unit_of_a_host_is_too_small(self) -> None:
        # The capacity says nothing of the largest unit.
        self.prefer(self.victims[0])
        self.room.client.request(
            'PUT', f'/resource_providers/{self.nova.hosts["h0"]}/inventories',
            json={'inventories': {
                'VCPU': {'total': 4, 'allocation_ratio': 2.0, 'max_unit': 4},
                'MEMORY_MB': {'total': 9000}},
                'resource_provider_generation': self.room.placement.provider(
                    self.nova.hosts['h0']).generation})
        waiting = self.add_waiting('w', 8)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, len(self.ended()))
        self.assertIn(self.victims[0], self.nova.servers)
        self.assertEqual({}, self.nova.servers[self.victims[0]]['metadata'])

    def test_a_host_with_nothing_left_is_read_by_itself(self) -> None:
        self.prefer(self.victims[5])
        self.room.set_inventory(
            self.nova.hosts['h5'], VCPU=8, MEMORY_MB=8192)
        waiting = self.add_waiting('w', 8)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([self.victims[5]], self.ended())

    def test_too_many_hosts_have_nothing_left(self) -> None:
        for number in range(5):
            self.room.set_inventory(
                self.nova.hosts[f'h{number}'], VCPU=8, MEMORY_MB=8192)
        self.wait_for_all()

    def test_placement_fails(self) -> None:
        def fail(_name: str) -> dict[str, model.Provider]:
            raise rest.Unavailable('placement', 'GET', 'No.')

        with mock.patch.object(
                self.room.placement, 'having_left', side_effect=fail):
            self.wait_for_all()

    def test_a_notice_of_before_is_looked_at_first(self) -> None:
        self.nova.servers[self.victims[2]]['metadata'] = {
            'reaper:terminate_at': '2015-01-01T00:00:00Z',
            'reaper:for': fakes.new_id()}
        self.wait_for_all()
        self.assertNotIn(
            'reaper:for', self.nova.servers[self.victims[2]]['metadata']
            if self.victims[2] in self.nova.servers else {})

    def test_placement_does_not_know_the_hosts(self) -> None:
        for number in range(4):
            self.room.client.request(
                'DELETE', '/allocations/' + self.victims[number])
            self.room.client.request(
                'DELETE', '/resource_providers/' +
                self.nova.hosts[f'h{number}'])
        self.add_waiting('w', 8)
        self.turns(30)
        self.assertEqual([], self.ended())
        self.assertEqual('observe', self.engine.guard.mode)

    def test_nobody_may_be_ended(self) -> None:
        self.conf.set_override('mode', 'fill', 'reaper')
        self.add_waiting('w', 8)
        self.turns(20)
        self.assertEqual([], self.asked())
        self.assertEqual({}, self.engine.world.views)

    def test_a_host_of_which_only_the_outline_is_known(self) -> None:
        self.enterContext(mock.patch.object(reader, 'SHARE', 1))
        source = self.engine.source
        read = source.read_host

        def fail(name: str, *args: Any) -> reader.HostView | None:
            if name == 'h3':
                raise rest.Unavailable('placement', 'GET', 'No.')
            return read(name, *args)

        for server in self.nova.servers.values():
            server['updated'] = '2026-01-01T00:00:00Z'
        self.add_waiting('w', 8)
        with mock.patch.object(source, 'read_host', fail):
            self.turns(3)
        self.pool.let(lists.FULL)
        self.turns(2)
        # Another reaper acts before the host is read again.
        self.stand_by()
        self.assertTrue(self.engine.world.views['h3'].outlined)
        self.turns(5)
        self.assertTrue(self.engine.recovered)
        self.assertFalse(self.engine.world.views['h3'].outlined)

    def test_a_host_that_was_read_is_not_outlined_again(self) -> None:
        self.turns(1)
        world, source = self.engine.world, self.engine.source
        outlines = source.outline(source.hypervisors, 0)
        self.assertEqual(set(self.nova.hosts), set(outlines))
        world.put_host(outlines['h1'])
        read = source.read_host('h1', before=outlines['h1'])
        assert read
        self.assertFalse(read.outlined)
        world.put_host(read)
        world.put_host(source.outline(source.hypervisors, 0)['h1'])
        self.assertIs(read, world.views['h1'])

    def test_the_attempt_goes_on_through_the_sweep(self) -> None:
        self.conf.set_override('grace_period', 60, 'reaper')
        waiting = self.add_waiting('w', 8)
        self.turns(10)
        noticed = [server for server in self.victims
                   if self.nova.servers[server]['metadata']]
        self.assertEqual(1, len(noticed))
        self.pool.let(lists.FULL)
        self.turns(10)
        self.assertTrue(self.engine.recovered)
        self.assertTrue(self.nova.servers[noticed[0]]['metadata'])
        self.turns(30, 5)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(noticed, self.ended())

    def test_another_becomes_active_meanwhile(self) -> None:
        self.conf.set_override('grace_period', 600, 'reaper')
        waiting = self.add_waiting('w', 8)
        self.turns(10)
        self.stand_by()
        self.assertEqual({}, self.engine.attempts.under_way)
        self.turns(20)
        # The notice may be that of the other reaper.
        self.assertEqual({}, self.engine.attempts.under_way)
        self.pool.let(lists.FULL)
        self.turns(60, 30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, len(self.ended()))

    def test_who_has_a_trait_is_not_known(self) -> None:
        # Nova's filters do not look at the traits that Placement has.
        self.prefer(self.victims[3])
        self.room.set_traits(self.nova.hosts['h3'], 'CUSTOM_NOT')
        self.nova.asks_also = '&required=%21CUSTOM_NOT'
        waiting = self.add_waiting('w', 8)
        providers = self.room.placement.providers

        def fail(**query: str) -> set[str]:
            if query.get('required') == 'CUSTOM_NOT':
                raise rest.Unavailable('placement', 'GET', 'No.')
            return providers(**query)

        self.pool.answered.clear()
        with mock.patch.object(
                self.room.placement, 'providers', side_effect=fail):
            self.turns(30)
        self.assertEqual([], self.ended())
        self.assertEqual({}, self.engine.world.told.last)
        self.pool.let(lists.FULL)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual('ACTIVE', self.status(self.victims[3]))
        self.assertEqual(1, len(self.ended()))

    def test_a_list_of_before_replaces_the_outlines(self) -> None:
        self.stands_by_first()
        waiting = self.add_waiting('w', 8)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertFalse(self.engine.recovered)
        self.pool.let(lists.FULL)
        self.turns(5)
        self.assertTrue(self.engine.recovered)
        self.assertEqual([], [
            name for name, view in self.engine.world.views.items()
            if view.outlined])
        self.turns(30)
        self.assertEqual(1, len(self.ended()))
        self.assertEqual(1, self.actions().count('rebuild'))

    def test_nova_answers_after_a_long_time(self) -> None:
        self.enterContext(mock.patch.object(lists, 'FIRST', 32))
        for _ in range(20):
            self.add_waiting('w', 8)

        def fail(_server: str) -> bool:
            self.offset += 60
            raise rest.Unavailable('placement', 'GET', 'No answer.')

        self.pool.hang.clear()
        before = self.offset
        with mock.patch.object(
                self.engine.source, 'has_allocation', side_effect=fail):
            while lists.FULL not in self.engine.jobs:
                with mock.patch.object(
                        self.engine._lists, 'read_hosts') as read:
                    self.turns(1)
                if read.called:
                    break
        self.assertLess(self.offset - before, 300)

    def test_locks_are_asked_for_at_once(self) -> None:
        locked = self.victims[:3]
        for server in locked:
            self.nova.servers[server]['locked'] = True
        self.prefer(self.victims[0])
        self.nova.servers[self.victims[0]]['actions'].append({
            'action': 'lock', 'project_id': 'admin', 'user_id': 'admin',
            'start_time': '2026-01-01T00:00:00', 'message': None,
            'request_id': 'r'})
        self.add_waiting('w', 8)
        self.pool.answered.clear()
        source, asked = self.engine.source, set[str]()
        at_once = source.at_once

        def note(call: Any, items: Any) -> Any:
            if call == source.locked_by_admin:
                asked.update(server.id for server in items)
            return at_once(call, items)

        with mock.patch.object(source, 'at_once', note):
            self.turns(30)
        self.assertEqual(set(locked), asked)
        self.assertEqual(1, len(self.ended()))
        self.assertEqual('ACTIVE', self.status(self.victims[0]))

    def test_nobody_waits(self) -> None:
        self.pool.hang.clear()
        source = self.engine.source
        with mock.patch.object(source, 'read_preemptible',
                               wraps=source.read_preemptible) as read:
            self.turns(10)
        self.assertTrue(self.engine.recovered)
        read.assert_called_once()

    def test_health_tells_that_the_list_is_being_read(self) -> None:
        self.add_waiting('w', 8)
        self.turns(10)
        self.assertEqual('preempt', self.engine.guard.mode)
        check = self.engine.guard._check_lists()
        self.assertEqual('the first is being read', check.detail)
        self.pool.let(lists.FULL)
        self.turns(10)
        self.assertEqual('ok', self.engine.guard._check_lists().status)

    def stands_by_first(self) -> None:
        """The reaper is active once all hosts were asked for, in its turn."""
        for server in self.nova.servers.values():
            server['updated'] = '2026-01-01T00:00:00Z'
        self.engine.guard.active = False
        self.turns(5)
        self.engine.guard.active = True

    def test_a_list_waits_for_no_attempt_of_its_own_term(self) -> None:
        self.stands_by_first()
        waiting = self.add_waiting('w', 8)
        self.turns(2)
        self.pool.hang.add(f'attempt {waiting}')
        self.turns(3)
        self.assertIn(waiting, self.engine.attempts.under_way)
        self.pool.let(lists.FULL)
        self.pool.hang.add(f'attempt {waiting}')
        self.turns(5)
        self.assertTrue(self.engine.recovered)
        self.pool.let(f'attempt {waiting}')
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, self.actions().count('rebuild'))
        self.assertEqual(1, len(self.ended()))

    def test_a_list_does_not_wait_for_first_hosts_that_are_late(self) -> None:
        self.stands_by_first()
        waiting = self.add_waiting('w', 8)
        self.late(lists.FIRST_HOSTS)
        self.turns(3)
        self.pool.let(lists.FULL)
        self.turns(5)
        self.assertTrue(self.engine.recovered)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.pool.let(lists.FIRST_HOSTS)
        self.turns(5)
        self.assertFalse(any(
            view.outlined for view in self.engine.world.views.values()))
        self.assertEqual(1, len(self.ended()))


class CrashTestCase(ManyHostsTestCase, test_recovery.CrashingTestCase):
    """Another process starts, and attempts were under way."""

    def crash(self, step: Step, vcpus: int) -> str:
        """A server whose attempt comes to a step before the process dies."""
        waiting = self.add_waiting('w', vcpus)
        self.pool.hang.clear()
        self.until(step)
        self.start()
        return waiting

    def test_after_the_hold(self) -> None:
        waiting = self.crash(Step.REBUILD, 8)
        small = self.add_waiting('small', 1)
        self.nova.delete(self.victims.pop())
        self.turns(10)
        # There is room on another host, and the server has a hold.
        self.assertEqual({}, self.engine.world.servers)
        self.assertEqual('ACTIVE', self.status(small))
        self.assertEqual(test_recovery.EIGHT, self.room.has(waiting))
        self.pool.let(lists.FULL)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(2, self.actions().count('rebuild'))

    def test_after_the_notice(self) -> None:
        self.nova.add_server('other', 8, 'h7')
        self.conf.set_override('grace_period', 600, 'reaper')
        waiting = self.crash(Step.GRACE, 8)
        if held := self.room.holds.find(waiting):
            self.room.placement.write([held.with_amounts({})])
        gone = self.victims.pop()
        self.assertEqual({}, self.nova.servers[gone]['metadata'])
        self.nova.delete(gone)
        self.turns(10)
        # There is room on another host, and another is under notice for it.
        self.assertEqual({}, self.engine.world.servers)
        self.assertEqual('PENDING', self.status(waiting))

    def test_after_the_swap(self) -> None:
        self.nova.add_server('other', 8, 'h7')
        waiting = self.crash(Step.END, 8)
        small = self.add_waiting('small', 8)
        self.nova.delete(self.victims.pop())
        self.turns(10)
        self.assertEqual(['PENDING', 'ACTIVE'],
                         [self.status(waiting), self.status(small)])
        self.pool.let(lists.FULL)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(2, self.actions().count('rebuild'))
        self.assertEqual(1, self.actions().count('forceDelete'))


class BegunTestCase(FullHostsTestCase, test_remembering.JournalTestCase):
    """Of an end that was begun the journal alone tells."""

    def start_after_a_return(self, result: str) -> None:
        """Start when the journal tells of a protected server's return."""
        self.conf.set_override('repeat_protection', 3600, 'reaper')
        self.prefer(self.victims[0])
        journal.Store(self.conf).add([journal.Record(
            journal.Kind.RETURN, self.victims[0], 'owner', 's',
            self.victims[0], 'owner', 'h0', result, {})])
        self.offset += 100
        self.start()

    def test_an_end_that_was_begun(self) -> None:
        journal.Store(self.conf).add([journal.Record(
            journal.Kind.NOTICE, fakes.new_id(), 'owner', 's', fakes.new_id(),
            'owner', 'h1', '', {})])
        self.start()
        self.wait_for_all()

    def test_the_journal_is_late(self) -> None:
        self.start_after_a_return('active')
        self.late(engine_module.JOURNAL, lists.FIRST_HOSTS)
        waiting = self.add_waiting('w', 8)
        self.turns(20)
        self.pool.let(engine_module.JOURNAL, lists.FIRST_HOSTS)
        self.late(lists.FULL)
        self.turns(30)
        self.pool.let(lists.FULL)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual('ACTIVE', self.status(self.victims[0]))

    def test_a_return_that_was_begun(self) -> None:
        self.start_after_a_return(journal.ASKED)
        self.wait_for_all()
        self.assertEqual('ACTIVE', self.status(self.victims[0]))

    def test_an_end_that_was_stuck(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        journal.Store(self.conf).add([journal.Record(
            journal.Kind.WITHDRAWAL, fakes.new_id(), 'owner', 's',
            fakes.new_id(), 'owner', 'h0', model.Result.STUCK.value,
            {'ending': True})])
        self.offset += 100
        self.start()
        self.add_waiting('w', 8)
        self.turns(30)
        self.pool.let(lists.FULL)
        self.turns(30)
        self.assertTrue(self.engine.recovered)
        self.assertEqual([], self.ended())

    def test_the_journal_is_later_than_the_list(self) -> None:
        self.start_after_a_return('active')
        self.late(engine_module.JOURNAL)
        waiting = self.add_waiting('w', 8)
        self.turns(20)
        self.pool.let(engine_module.JOURNAL)
        self.turns(1)
        self.pool.let(lists.FULL)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual('ACTIVE', self.status(self.victims[0]))


class RememberingTestCase(ManyHostsTestCase,
                          test_remembering.JournalTestCase):
    """What the journal tells counts for the first servers, too."""

    def record(self, server: str, project: str, result: str, **detail: Any
               ) -> None:
        journal.Store(self.conf).add([journal.Record(
            journal.Kind.BUILD, server, project, 'w', server, project, 'h7',
            result, detail)])

    def test_a_project_that_was_given_much_comes_later(self) -> None:
        self.record(fakes.new_id(), 'owner', 'active', resources={'VCPU': 4})
        self.start()
        old = self.add_waiting('old', 8, 100)
        other = self.add_waiting('w', 8, project='other')
        self.turns(10)
        self.assertEqual(['PENDING', 'ACTIVE'],
                         [self.status(old), self.status(other)])
        share = self.engine.world.queue.share
        self.assertEqual(1.0, share.of('owner'))
        self.pool.let(lists.FULL)
        self.turns(5)
        # Of 64 VCPUs 4, and 8 for the old server, for which room is made by
        # now.
        self.assertAlmostEqual(12 / 64, share.of('owner'), places=3)
        self.assertAlmostEqual(8 / 64, share.of('other'), places=3)

    def test_a_server_backs_off(self) -> None:
        waiting = self.add_waiting('w', 4)
        for _ in range(2):
            self.record(waiting, 'owner', 'error', failed=True, why='No.',
                        reason='build_failed', resources={'VCPU': 4})
        self.start()
        self.turns(10)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual(1, self.engine.world.history[waiting].failures)


class LateJournalTestCase(FullHostsTestCase, test_remembering.JournalTestCase):
    """The journal is read after all hosts, which are not read again."""

    def spared(self, kind: journal.Kind, host: str, result: str) -> None:
        """The server that would be ended first is not, by a record."""
        self.conf.set_override('stuck_exclusion', 3600, 'reaper')
        self.conf.set_override('repeat_protection', 3600, 'reaper')
        first = self.victims[0]
        self.prefer(first)
        journal.Store(self.conf).add([journal.Record(
            kind, first, 'owner', 's', fakes.new_id(), 'owner', host, result)])
        self.start()
        self.late(engine_module.JOURNAL)
        self.pool.hang.discard(lists.FULL)
        self.turns(30)
        self.assertTrue(self.engine.recovered)
        self.pool.let(engine_module.JOURNAL)
        self.pool.hang.update(f'host {name}' for name in self.nova.hosts)
        waiting = self.add_waiting('w', 8)
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(13)
        self.pool.let(*list(self.pool._hanging))
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual('ACTIVE', self.status(first))

    def test_whose_end_is_stuck(self) -> None:
        self.spared(journal.Kind.WITHDRAWAL, 'h0', model.Result.STUCK.value)

    def test_who_has_returned_and_was_moved_since(self) -> None:
        self.spared(journal.Kind.RETURN, 'h5', model.Result.ACTIVE.value)
