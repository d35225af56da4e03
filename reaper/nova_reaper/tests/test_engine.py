# SPDX-License-Identifier: Apache-2.0

"""The whole reaper against a real Placement and a Nova of this process."""

from collections.abc import Callable
from concurrent import futures
import datetime
import itertools
import logging
import time
from typing import Any
from unittest import mock

import fixtures
from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.act import holds
from nova_reaper.cli import commands
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper import engine as engine_module
from nova_reaper.events import bus
from nova_reaper import planning
from nova_reaper.report import health
from nova_reaper.report import http
from nova_reaper.report import journal
from nova_reaper import service
from nova_reaper import simulate
from nova_reaper import tests
from nova_reaper.tests import fakes
from nova_reaper import world


class Immediate(futures.Executor):
    """Does at once what it is given: one thread has the database."""

    def submit(self, call: Callable[..., Any], /,
               *args: Any, **kwargs: Any) -> futures.Future[Any]:
        future: futures.Future[Any] = futures.Future()
        future.set_result(call(*args, **kwargs))
        return future


class EngineTestCase(tests.TestCase):
    """What is shared: a cloud, and engines that come and go."""

    options: dict[str, Any] = {}
    mode = 'preempt'
    has_reason = True

    def setUp(self) -> None:
        super().setUp()
        self.room: fakes.PlacementFixture = self.useFixture(
            fakes.PlacementFixture())
        self.nova = fakes.Nova(self.room, self.has_reason)
        # Time passes as fast as the test likes.
        self.offset = 0.0
        self.useFixture(fakes.Clock(lambda: self.offset))
        self.conf = fakes.configuration(
            **({'mode': self.mode, 'grace_period': 0, 'stop_timeout': 0} |
               self.options))
        self.engine = self.start()

    def start(self) -> engine_module.Engine:
        """A new process."""
        identity = mock.Mock(spec=rest.Keystone)
        identity.project_properties.return_value = {}
        self.metrics = health.Metrics()
        self.book = self.new_book()
        pool = Immediate()
        self.services = service.Services(
            self.nova.owners, self.nova.nova, self.room.placement, identity,
            fakes.SERVICE, 'reaper')
        self.engine = service.build(self.conf, self.services, self.metrics,
                                    pool, pool, self.book)
        self.shown = http.Shown(self.conf, lambda: None)
        self.shown.show(self.engine)
        return self.engine

    def new_book(self) -> journal.Journal:
        """The journal of the new process."""
        return fakes.book(self.conf)

    def turns(self, count: int = 30, seconds: float = 1.0) -> None:
        for _ in range(count):
            self.engine.turn(0.0)
            self.offset += seconds

    def staying_at(self, step: attempts.Step) -> Any:
        """Have attempts come to a step, and no further."""
        advance = self.engine.attempts._actor.advance

        def stay(current: attempts.Attempt
                 ) -> attempts.Attempt | attempts.Outcome:
            return (current.at(step, 0.0) if current.step == step
                    else advance(current))

        return mock.patch.object(self.engine.attempts._actor, 'advance', stay)

    def amounts(self, server: str) -> placement.Amounts:
        return self.room.placement.consumer(server).amounts

    def change_at(self, step: attempts.Step, waiting: str,
                  change: Callable[[], None]) -> None:
        """Have a change at a step spoil the attempt for a server."""
        with self.staying_at(step):
            self.turns(20)
            [current] = self.engine.attempts.under_way.values()
            self.assertEqual(step, current.step)
        change()
        self.turns(60)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual({}, self.amounts(waiting))
        self.assertEqual([], self.actions())

    def hint(self, kind: bus.Kind, **what: Any) -> None:
        self.engine.mailbox.put([bus.Hint(kind, **what)])

    def status(self, server: str) -> str | None:
        return self.nova.servers.get(server, {}).get('status')

    def detail(self, server: str) -> str:
        """What the decision on a server that waits says."""
        entry = self.shown.entry(server)
        assert entry and entry.decision
        return entry.decision.detail

    def left(self, *servers: str) -> list[bool]:
        """Which servers are there still, without a notice."""
        return [self.status(server) == 'ACTIVE' and
                not fakes.NOTICE & self.nova.servers[server]['metadata'].keys()
                for server in servers]

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(
            f'nova_reaper_{name}', labels) or 0.0

    def actions(self) -> list[str]:
        return [action for action, _ in self.nova.calls]


class FillTestCase(EngineTestCase):
    """Free room."""

    mode = 'fill'

    def test_one_that_waits_is_built(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.nova.add_server('w', 4)
        self.turns()
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(1, self.value('rebuilds_total', result='active'))
        self.assertEqual({}, self.engine.attempts.under_way)
        self.assertEqual([], list(self.shown.entries()))

    def test_each_runs_that_fits(self) -> None:
        for number in range(3):
            self.nova.add_host(f'h{number}', 8)
        waiting = [self.nova.add_server(f'w{number}', 3)
                   for number in range(8)]
        self.turns(60)
        self.assertEqual(6, sum(self.status(server) == 'ACTIVE'
                                for server in waiting))
        self.assertEqual(6, self.actions().count('rebuild'))

    def test_those_that_cannot_be_checked_are_in_nobodys_way(self) -> None:
        self.conf.set_override('max_rebuilds', 1, group='reaper')
        self.nova.add_host('h1', 8)
        stuck = [self.nova.add_server(f's{number}', 1) for number in range(3)]
        self.nova.unavailable = dict.fromkeys(stuck, 'No answer.')
        waiting = self.nova.add_server('w', 2)
        self.turns(120)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_a_host_without_room_is_not_read_for_what_is_taken(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.add_host('h2', 8)
        self.nova.add_server('o', 6, 'h1')
        self.nova.add_server('o', 4, 'h2')
        self.turns(5)
        waiting = self.nova.add_server('w', 4)
        self.nova.refused_by['h2'] = 'AFilter'
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(5)
        log = self.room.adapter.log
        del log[:]
        for name in ('h1', 'h2'):
            self.hint(bus.Kind.TAKEN, host=name)
        self.turns(5)
        read = {path.split('/')[2] for _method, path in log}
        self.assertEqual({self.nova.hosts['h2']}, read)

    def test_a_plan_ends_with_the_next_list(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.nova.add_server('w', 8)
        # The host cannot be read.
        with mock.patch.object(self.engine._hosts, 'read'):
            self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual({waiting}, set(self.engine.world.index.plans))
        self.nova.finish(waiting)
        after = self.nova.add_server('v', 8)
        self.turns(30, 61)
        self.assertEqual('ACTIVE', self.status(after))
        self.assertEqual({}, self.engine.world.index.plans)

    def test_a_plan_ends_with_its_host(self) -> None:
        self.nova.add_host('h1', 8)
        self.turns(5)
        self.engine.world.index.plan(
            index_module.Plan('w', 'h1', {'': {'VCPU': 8}}))
        self.engine.world.remove_host('h1')
        self.assertEqual({}, self.engine.world.index.plans)

    def test_another_mode_plans_nothing_twice(self) -> None:
        self.nova.add_host('h1', 8)
        first = self.nova.add_server('w1', 4)
        with self.staying_at(attempts.Step.WATCH):
            self.turns(20)
            self.assertIn(first, self.engine.attempts.under_way)
            self.hint(bus.Kind.HOST, host='h1')
            self.turns(3)
            self.conf.set_override('mode', 'preempt', 'reaper')
            self.turns(3)
            second = self.nova.add_server('w2', 4)
            self.hint(bus.Kind.WAITS, server=second)
            self.turns(20)
            self.assertIn(second, self.engine.attempts.under_way)

    def test_a_host_that_could_not_be_read_is_read_again(self) -> None:
        self.nova.add_host('h1', 8)
        other = self.nova.add_server('o', 8, 'h1')
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.nova.finish(other)
        with mock.patch.object(
                self.engine.source, 'read_host',
                side_effect=rest.Unavailable('placement', 'x', 'No.')):
            self.hint(bus.Kind.HOST, host='h1')
            self.turns(3)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_a_list_that_is_older_than_a_server(self) -> None:
        self.nova.add_host('h1', 2)
        self.turns(5)
        found = self.engine._lists.read_waiting(
            self.engine.world.index.on_hosts())
        waiting = self.nova.add_server('w', 8)
        self.nova.servers[waiting]['updated'] = '2100-01-01T00:00:00Z'
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(3)
        list(self.engine._take_waiting(found))
        self.assertIn(waiting, self.engine.world.servers)

    def test_all_that_fit_nowhere_are_given_up(self) -> None:
        self.conf.set_override('nothing_fits_timeout', 300, 'reaper')
        self.nova.add_host('h1', 2)
        waiting = [self.nova.add_server(f'w{number}', 8)
                   for number in range(3)]
        self.turns(4, 61)
        self.assertEqual(['nothing_fits'] * 3, [
            entry.decision and entry.decision.word
            for entry in self.shown.entries()])
        self.turns(20, 61)
        self.assertEqual(['ERROR'] * 3, [self.status(server)
                                         for server in waiting])

    def test_a_host_that_placement_knows_no_more_has_no_room(self) -> None:
        for number in range(4):
            self.nova.add_host(f'h{number}', 8)
        self.turns(5)
        self.room.client.request(
            'DELETE', f'/resource_providers/{self.nova.hosts["h0"]}')
        self.offset += 3600
        with self.assertLogs('nova_reaper.engine', 'WARNING') as log:
            self.turns(5)
        self.assertRegex(log.output[0], 'Placement does not know these hosts '
                                        'of Nova.*: h0')
        self.assertEqual({'h1', 'h2', 'h3'}, set(self.engine.world.views))
        self.assertEqual('fill', self.engine.guard.mode)
        waiting = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(15)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.room.client.request('POST', '/resource_providers', json={
            'name': 'h0', 'uuid': self.nova.hosts['h0']})
        self.room.set_inventory(self.nova.hosts['h0'], VCPU=8, MEMORY_MB=8192)
        self.offset += 3600
        self.turns(5)
        self.assertIn('h0', self.engine.world.views)

    def test_nova_lets_nobody_wait(self) -> None:
        self.nova.add_host('h1', 8)
        server = self.nova.servers[
            self.nova.add_server('w', 8, status='ERROR')]
        for fault, warnings in (
                ({'message': 'Build of instance x was aborted.'}, 0),
                ({'message': 'No valid host was found. '}, 1)):
            server['fault'] = fault
            self.offset += 3600
            server['created'] = server['updated'] = model.time_text(
                timeutils.utcnow(True))
            with self.assertLogs('nova_reaper.events.lists') as log:
                self.turns(3)
                logging.getLogger('nova_reaper.events.lists').info('end')
            self.assertEqual(warnings, sum(
                'use_pending_state' in line for line in log.output))

    def test_nothing_is_kept_of_those_who_wait_no_more(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.refused_by['h1'] = 'AFilter'
        waiting = [self.nova.add_server(f'w{number}', number + 1)
                   for number in range(8)]
        self.turns(20)
        known = self.engine.world
        said = known.index.exclusions
        self.assertEqual(8, len(said._refused))
        for server in waiting:
            self.nova.delete(server)
        self.turns(5, 61)
        self.assertEqual(({}, [], {}), (
            said._refused, list(known.queue._sleeping.sleeps),
            known.queue._lines))

    def test_one_that_is_deleted_leaves_its_room(self) -> None:
        self.nova.add_host('h1', 8)
        first = self.nova.add_server('w1', 8)
        second = self.nova.add_server('w2', 8)
        advance = self.engine.attempts._actor.advance

        def delete_it(current: attempts.Attempt
                      ) -> attempts.Attempt | attempts.Outcome:
            if current.id == first and first in self.nova.servers:
                self.nova.delete(first)
            return advance(current)

        with mock.patch.object(self.engine.attempts._actor, 'advance',
                               delete_it):
            self.turns(30)
        self.assertEqual('ACTIVE', self.status(second))

    def test_room_that_was_free_for_long(self) -> None:
        self.nova.add_host('h1', 8)
        other = self.nova.add_server('o', 8, 'h1')
        self.turns(5)
        self.nova.finish(other)
        self.engine.mailbox.put([bus.Hint(bus.Kind.HOST, 'h1',
                                          at=time.monotonic())])
        self.turns(5)
        self.offset += 10000
        waiting = self.nova.add_server('w', 8)
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(0, self.value('freed_to_issued_seconds_count'))

    def test_a_hint_wakes(self) -> None:
        self.nova.add_host('h1', 8)
        other = self.nova.add_server('o', 8, 'h1')
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.assertEqual('PENDING', self.status(waiting))
        self.nova.finish(other)
        self.turns(5)
        self.assertEqual('PENDING', self.status(waiting))
        self.hint(bus.Kind.ENDED, host='h1', server=other)
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(8)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(0, self.value('poll_only_finds_total', what='host'))

    def test_a_trait_that_nobody_asked_for_before(self) -> None:
        self.nova.add_host('h1', 8)
        self.room.client.request('PUT', '/traits/CUSTOM_X')
        self.room.client.request(
            'PUT', f'/resource_providers/{self.nova.hosts["h1"]}/traits',
            json={'resource_provider_generation': 1,
                  'traits': ['CUSTOM_X']})
        self.turns(5)
        self.nova.asks_also = '&required=CUSTOM_X'
        waiting = self.nova.add_server('w', 4)
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(8)
        self.assertEqual('ACTIVE', self.status(waiting))
        host = self.engine.world.views['h1'].host
        self.assertEqual({'CUSTOM_X'}, host.traits)
        self.assertEqual(set(), host.aggregates)

    def test_a_list_heals(self) -> None:
        self.nova.add_host('h1', 8)
        other = self.nova.add_server('o', 8, 'h1')
        self.turns(5)
        waiting = self.nova.add_server('w', 8)
        self.turns(3, 61)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual(1, self.value('poll_only_finds_total', what='waits'))
        self.nova.finish(other)
        self.turns(15, 61)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertLess(0, self.value('poll_only_finds_total', what='host'))

    def test_nobody_is_ended(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns()
        self.assertEqual(('ACTIVE', 'PENDING'),
                         (self.status(victim), self.status(waiting)))
        entry = self.shown.entry(waiting)
        assert entry
        shown = entry.to_dict(False)
        self.assertEqual(('no_room', 'mode'),
                         (shown['reason'], shown['hindrance']))

    def test_one_that_waits_again_backs_off(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.add_server('w', 4)
        self.nova.builds = 'PENDING'
        self.turns(60)
        self.assertIn(self.actions().count('rebuild'), (3, 4))

    def test_a_refusal_backs_off(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.nova.add_server('w', 4)
        self.nova.before = [
            ('rebuild', 'action', lambda: self.nova.error(403, 'Quota'))] * 9
        self.turns(60)
        self.assertLess(9 - len(self.nova.before), 5)
        entry = self.shown.entry(waiting)
        assert entry
        self.assertEqual('quota', entry.to_dict(False)['reason'])
        self.assertEqual({}, self.room.has(waiting))

    def test_one_with_a_forced_host_is_set_apart(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.nova.add_server('w', 4)
        again = self.nova.add_server('x', 4)
        provider = self.nova.hosts['h1']
        server = self.nova.servers[waiting]

        def pending(*args: Any) -> fakes.Answer:
            answer = original(*args).json()
            if args[1] is server:
                answer['pending']['requests'][0] += f'&in_tree={provider}'
            return self.nova._answer(**answer)

        original = self.nova._pending
        setattr(self.nova, '_pending', pending)
        self.turns()
        self.assertEqual(('ACTIVE', 'ACTIVE'),
                         (self.status(waiting), self.status(again)))

    def test_a_filter_that_refuses_later(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.add_host('h2', 8)
        waiting = self.nova.add_server('w', 4)
        self.engine.turn(0.0)
        self.nova.refused_by['h1'] = 'ComputeFilter'
        self.turns()
        self.assertEqual('h2', self.nova.servers[waiting][
            'OS-EXT-SRV-ATTR:host'])

    def test_a_cell_that_is_down_seems_to_have_room(self) -> None:
        down = [f'h{number}' for number in range(20)]
        for name in (*down, 'up'):
            self.nova.add_host(name, 8)
        self.nova.add_server('o', 8, 'up')
        self.turns(5)
        first = self.nova.add_server('w', 8)
        self.nova.cell_down.update(down)
        with mock.patch.object(
                self.nova, '_pending', side_effect=self.nova._pending) as ask:
            self.hint(bus.Kind.WAITS, server=first)
            self.turns(60)
            # Nova is not asked again and again.
            self.assertLess(ask.call_count, 6)
        entry = self.shown.entry(first)
        assert entry
        self.assertEqual(('refused', None), (
            entry.to_dict(False)['reason'], entry.next_attempt))
        second = self.nova.add_server('w', 4)
        self.nova.add_host('another', 4)
        self.hint(bus.Kind.SHAPE)
        self.hint(bus.Kind.WAITS, server=second)
        self.turns(20)
        self.assertEqual('another', self.nova.servers[second][
            'OS-EXT-SRV-ATTR:host'])
        self.nova.cell_down.clear()
        self.turns(15, 61)
        self.assertEqual('ACTIVE', self.status(first))

    def test_a_cell_is_down_as_a_host_of_the_cell_was_chosen(self) -> None:
        down = [f'h{number}' for number in range(20)]
        for name in (*down, 'up'):
            self.nova.add_host(name, 8)
        waiting = self.nova.add_server('w', 8)
        with self.staying_at(attempts.Step.CHECK):
            self.turns(5)
        self.nova.cell_down.update(down)
        self.turns(8)
        self.assertEqual('up', self.nova.servers[waiting][
            'OS-EXT-SRV-ATTR:host'])

    def test_rebuilds_that_nova_lists_cost_no_place(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.nova.add_server('w', 4)
        for _ in range(8):
            self.nova._add_action(self.nova.servers[waiting], 'rebuild',
                                  'reaper')
        self.turns()
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_past_its_deadline(self) -> None:
        self.conf.set_override('pending_timeout', 60, 'reaper')
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)
        self.turns(30, 5)
        self.assertEqual('ERROR', self.status(waiting))
        self.assertEqual(1, self.value('given_up_total', reason='deadline'))
        entry = self.shown.entry(waiting)
        assert entry
        shown = entry.to_dict(False)
        self.assertEqual(('given_up', 'deadline'),
                         (shown['step'], shown['hindrance']))
        self.assertIn('was set to ERROR', shown['automatic'])
        self.turns(80, 60)
        self.assertIsNone(self.shown.entry(waiting))

    def test_given_up_while_placement_is_away(self) -> None:
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)
        self.turns(5)
        self.room.holds.take(waiting, {self.nova.hosts['h1']: {'VCPU': 2}})
        self.conf.set_override('pending_timeout', 1, 'reaper')
        with mock.patch.object(
                self.room.placement, 'consumer',
                side_effect=rest.Unavailable('placement', 'x', 'no')):
            self.turns(5)
        self.assertEqual('ERROR', self.status(waiting))
        self.assertEqual(1, self.value('given_up_total', reason='deadline'))
        self.assertEqual({'VCPU': 2}, self.room.has(waiting))
        self.turns(12, 61)
        self.assertEqual({}, self.room.has(waiting))
        self.assertEqual(1, self.value('holds_swept_total'))

    def test_one_that_cannot_be_given_up(self) -> None:
        self.conf.set_override('pending_timeout', 1, 'reaper')
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)
        self.nova.before = [(
            'os-resetState', 'action', lambda: self.nova.error(503))] * 99
        self.turns(121)
        self.assertIn(len(self.nova.before), (96, 97))
        self.nova.before = []
        self.turns(60)
        self.assertEqual('ERROR', self.status(waiting))

    def test_given_up_and_the_answer_is_lost(self) -> None:
        self.conf.set_override('pending_timeout', 1, 'reaper')
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)

        def lose() -> fakes.Answer:
            self.nova.servers[waiting]['status'] = 'ERROR'
            return self.nova.error(504)

        self.nova.before = [('os-resetState', 'action', lose)]
        self.turns(10)
        self.assertEqual([], self.nova.before)
        self.assertEqual(1, self.value('given_up_total', reason='deadline'))

    def test_nothing_could_ever_take_it(self) -> None:
        self.conf.set_override('nothing_fits_timeout', 60, 'reaper')
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)
        other = self.nova.add_server('x', 2)
        self.turns(30, 5)
        self.assertEqual(('ERROR', 'ACTIVE'),
                         (self.status(waiting), self.status(other)))

    def test_the_host_that_it_was_created_for_is_gone(self) -> None:
        self.conf.set_override('nothing_fits_timeout', 60, 'reaper')
        self.nova.add_host('h1', 4)
        self.nova.asks_also = f'&in_tree={fakes.new_id()}'
        waiting = self.nova.add_server('w', 4)
        self.turns(30, 5)
        self.assertEqual('ERROR', self.status(waiting))
        entry = self.shown.entry(waiting)
        assert entry and entry.decision
        self.assertEqual(model.Reason.NO_SUCH_HOST, entry.decision.reason)
        self.assertEqual(
            1, self.value('given_up_total', reason='no_such_host'))

    def test_nothing_could_take_it_since_a_moment_ago(self) -> None:
        self.conf.set_override('nothing_fits_timeout', 60, 'reaper')
        self.nova.add_host('h1', 4)
        self.nova.add_server('s', 4, 'h1')
        waiting = self.nova.add_server('w', 4)
        self.turns(10)
        # It has waited for long by now.
        self.offset += 86400
        self.turns(10)
        decision = model.Decision(
            waiting, model.Verdict.WAIT, reason=model.Reason.NOTHING_FITS)
        known = self.engine.world
        known.told.tell(decision, timeutils.utcnow(True))
        item = known.queue.get(waiting)
        assert item is not None
        asleep = known.queue._sleeping.sleeps.get(item.demand)
        assert asleep is not None
        asleep.decision = decision
        self.turns(10)
        self.assertEqual('PENDING', self.status(waiting))
        self.turns(10, 6)
        self.assertEqual('ERROR', self.status(waiting))

    def test_while_everything_is_asked_again(self) -> None:
        self.nova.add_host('h1', 4)
        waiting = self.nova.add_server('w', 4)
        item = self.nova.nova.server(waiting)
        self.turns(1)
        self.engine.attempts._shapes.forget()
        self.assertIsNone(self.engine.attempts._shapes.fresh(item))
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_two_active_reapers(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = [self.nova.add_server(f'w{number}', 4)
                   for number in range(4)]
        first, second = self.engine, self.start()
        for _ in range(40):
            for self.engine in (first, second):
                self.turns(1)
        self.assertEqual(2, sum(self.status(server) == 'ACTIVE'
                                for server in waiting))
        self.assertEqual(8, sum(self.room.has(server).get('VCPU', 0)
                                for server in waiting))

    def _asked_of(self, host: str) -> list[str]:
        provider = f'/resource_providers/{self.nova.hosts[host]}/'
        return [path.removeprefix(provider) for _method, path
                in self.room.adapter.log if path.startswith(provider)]

    def test_news_of_a_host_take_one_request(self) -> None:
        self.nova.add_host('h1', 8)
        filler = self.nova.add_server('s', 8, 'h1')
        self.nova.add_server('w', 12)
        self.turns(5)
        del self.room.adapter.log[:]
        self.nova.delete(filler)
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(5)
        self.assertEqual(['allocations'], self._asked_of('h1'))

    def test_a_host_has_less_than_before(self) -> None:
        self.nova.add_host('h1', 8)
        filler = self.nova.add_server('s', 8, 'h1')
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        provider = self.nova.hosts['h1']
        self.nova.delete(filler)
        self.room.client.request(
            'PUT', f'/resource_providers/{provider}/inventories', json={
                'resource_provider_generation':
                    self.room.placement.provider(provider).generation,
                'inventories': {'VCPU': {'total': 4},
                                'MEMORY_MB': {'total': 8192}}})
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(5)
        # Placement has no room on it, and so it was read again.
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual(4, self.engine.world.views[
            'h1'].host.inventory['VCPU'].total)


class ObserveTestCase(EngineTestCase):
    """It says what it would do, and does nothing."""

    mode = 'observe'

    def test_nothing_is_done(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(5, 61)
        self.assertEqual([], self.actions())
        self.assertEqual({}, self.room.has(waiting))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])
        entry = self.shown.entry(waiting)
        assert entry and entry.decision
        self.assertEqual((model.Verdict.PREEMPT, (victim,)),
                         (entry.decision.verdict, entry.decision.victims))
        everything = entry.to_dict(True)
        self.assertEqual('h1', everything['host'])
        owners = entry.to_dict(False)
        self.assertEqual('mode', owners['hindrance'])
        self.assertNotIn('host', owners)
        for name in ('h1', victim):
            self.assertNotIn(name, owners['detail'])

    def test_a_server_that_is_deleted_counts_against_no_cap(self) -> None:
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        self.nova.add_host('h1', 8)
        self.nova.add_server('s', 8, 'h1', preemptible=True)
        first = self.nova.add_server('w', 8)
        self.turns(5)
        second = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=second)
        self.turns(5)
        entry = self.shown.entry(second)
        assert entry and entry.decision
        self.assertEqual(model.Verdict.WAIT, entry.decision.verdict)
        self.nova.delete(first)
        self.hint(bus.Kind.WAITS, server=first)
        self.turns(5)
        entry = self.shown.entry(second)
        assert entry and entry.decision
        self.assertEqual(model.Verdict.PREEMPT, entry.decision.verdict)

    def test_the_log_names_the_victim(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        log = self.useFixture(fixtures.FakeLogger())
        self.turns(5)
        line, = (line for line in log.output.splitlines()
                 if 'would be: ' in line)
        self.assertIn(f'Server {waiting} (', line)
        self.assertIn(
            f'Servers to end: {victim} '
            f'({self.nova.servers[victim]["name"]}).', line)
        self.assertIn('Waiting servers: 1; attempts that go on: 0.',
                      log.output)

    def test_what_an_owner_reads_of_room_names_no_host(self) -> None:
        for mode in (model.Mode.OBSERVE, model.Mode.FILL):
            self.conf.set_override('mode', mode.value, 'reaper')
            self.nova.add_host(f'{mode.value}-1', 8)
            server = self.nova.add_server('w', 8)
            self.turns(5, 61)
            entry = self.shown.entry(server)
            assert entry and entry.decision
            self.assertTrue(entry.decision.detail)
            self.assertNotIn('-1', entry.decision.detail)

    def test_then_it_may(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.conf.set_override('mode', 'preempt', 'reaper')
        self.turns()
        self.assertEqual('ACTIVE', self.status(waiting))


class PreemptTestCase(EngineTestCase):
    """Preemptible servers make room."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)

    def test_a_trait_is_learnt_of_as_a_server_is_left_alone(self) -> None:
        alone = self.nova.add_server('s', 1, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 4)
        self.nova.asks_also = '&required=CUSTOM_X'
        self.room.client.request('PUT', '/traits/CUSTOM_X')
        self.turns(10)
        self.assertEqual('PENDING', self.status(waiting))
        self.room.set_traits(self.nova.hosts['h1'], 'CUSTOM_X')
        self.engine.source.read_having(['CUSTOM_X'], again=True)
        with self.engine.lock:
            self.engine.world.avoid('h1', (alone,), 5.0)
            list(self.engine.world.learn())
        self.turns(5)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_one_goes_and_one_runs(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.assertIsNone(self.status(victim))
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(0, self.value('needless_victims_total'))

    def test_a_cell_that_is_down_holds_nobody_up(self) -> None:
        self.conf.set_override('max_preemptions', 1, 'reaper')
        self.conf.set_override('grace_period', 60, 'reaper')
        first = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        self.assertEqual('notice', self.shown.entries()[0].step)
        self.nova.cell_down.add(first)
        self.nova.add_host('h2', 8)
        second = self.nova.add_server('t', 8, 'h2', preemptible=True)
        after = self.nova.add_server('v', 8)
        log = self.useFixture(fixtures.FakeLogger())
        self.turns(15, 61)
        self.turns(20)
        self.assertEqual({waiting}, set(self.engine.attempts.under_way))
        self.assertEqual(('ACTIVE', None), (self.status(after),
                                            self.status(second)))
        self.assertNotIn('Traceback', log.output)
        self.nova.cell_down.clear()
        self.turns(30)
        self.assertEqual(('ACTIVE', None), (self.status(waiting),
                                            self.status(first)))

    def test_victims_of_a_cell_that_is_down(self) -> None:
        first = [self.nova.add_server('s', 8, 'h1', preemptible=True)]
        for number in range(10):
            self.nova.add_host(f'i{number}', 8)
            first.append(self.nova.add_server(
                's', 8, f'i{number}', preemptible=True))
        self.nova.add_host('up', 8)
        # The end of this server costs more.
        high: Any = {'reaper:priority': '1'}
        second = self.nova.add_server('t', 8, 'up', preemptible=True, **high)
        waiting = self.nova.add_server('w', 8)
        with self.staying_at(attempts.Step.CHECK):
            self.turns(5)
        self.nova.cell_down |= self.nova.hosts.keys() - {'up'}
        self.turns(25)
        self.assertEqual((None, 'ACTIVE'), (self.status(second),
                                            self.status(waiting)))
        self.assertEqual({'ACTIVE'}, set(map(self.status, first)))
        self.assertEqual(1, self.value('notices_total', result='given'))

    def test_nothing_is_kept_of_whom_it_has_ended(self) -> None:
        self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.nova.finish(waiting)
        self.nova.add_server('v', 8)
        self.turns(20, 61)
        self.assertEqual({}, self.engine.attempts._ended)

    def test_one_that_cannot_be_told_is_spared(self) -> None:
        self.nova.add_host('h2', 8)
        first = self.nova.add_server('s', 8, 'h1', preemptible=True)
        second = self.nova.add_server('t', 8, 'h2', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        # The quota of metadata of a server is used up.
        self.nova.before += [
            ('metadata', first, lambda: self.nova.error(403))] * 5
        self.turns(80)
        self.assertEqual(('ACTIVE', None, 'ACTIVE'), (
            self.status(first), self.status(second), self.status(waiting)))

    def test_the_shelved_comes_back(self) -> None:
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                      image=False)
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.assertEqual(('SHELVED_OFFLOADED', 'ACTIVE'),
                         (self.status(victim), self.status(waiting)))
        self.nova.finish(waiting)
        self.turns(40, 61)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])
        self.assertEqual(1, self.value('returned_total', result='active'))

    def test_an_owner_has_no_large_disk_shelved(self) -> None:
        for most, action in ((40, 'forceDelete'), (41, 'shelve')):
            self.conf.set_override('owner_shelve_max_gb', most, 'reaper')
            victim = self.nova.add_server(
                's', 8, 'h1', preemptible=True,
                metadata={'reaper:action': 'shelve'})
            self.nova.servers[victim]['flavor']['disk'] = 41
            waiting = self.nova.add_server('w', 8)
            del self.nova.calls[:]
            self.turns(40)
            self.assertEqual([action, 'rebuild'], self.actions())
            self.nova.finish(waiting)

    def test_too_many_misses(self) -> None:
        self.conf.set_override('max_misses', 1, 'reaper')
        self.conf.set_override('retry_interval', 1, 'reaper')
        victims = [self.nova.add_server(f's{number}', 4, 'h1',
                                        preemptible=True)
                   for number in range(2)]
        self.nova.add_server('w', 4)
        self.nova.builds = 'PENDING'
        self.turns(100)
        self.assertEqual(1, sum(self.status(victim) == 'ACTIVE'
                                for victim in victims))
        self.assertEqual(1, self.value('needless_victims_total'))

    def test_a_build_that_fails_has_no_more_victims_for_an_hour(self
                                                                ) -> None:
        self.conf.set_override('build_failed_retry_interval', 1, 'reaper')
        for number in range(3):
            self.nova.add_server('s', 2, 'h1', preemptible=True)
        self.nova.add_server('o', 2, 'h1')
        waiting = self.nova.add_server('w', 2)
        self.nova.reason[waiting] = 'build_failed'

        def fails(server: dict[str, Any]) -> fakes.Answer:
            # Somebody else is faster to take the room that it leaves.
            self.room.holds.release(server['id'])
            self.nova.add_server('x', 2, 'h1')
            return fakes.Answer(202, b'')

        with mock.patch.object(self.nova, '_build', fails):
            self.turns(100, 20)
        self.assertEqual(1, self.actions().count('forceDelete'))
        decision = self.engine.world.told.last[waiting].decision
        self.assertIn('did not run', decision.detail)
        self.turns(100, 20)
        self.assertEqual(2, self.actions().count('forceDelete'))
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_a_stuck_one_is_left_alone(self) -> None:
        self.conf.set_override('end_timeout', 30, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_server('w', 8)
        self.nova.slow = True
        self.turns(200)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual({'VCPU': 8, 'MEMORY_MB': 8192},
                         self.room.has(victim))
        self.assertEqual(1, self.value('victims_stuck_total'))

    def test_a_host_that_seems_to_have_room_for_ever(self) -> None:
        """Placement counts allocations there that it does not show."""
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.add_host('h2', 8)
        waiting = self.nova.add_server('w', 8)
        take = self.room.holds.take

        def none(server: str, amounts: placement.Amounts, *args: Any
                 ) -> placement.Consumer:
            if self.nova.hosts['h2'] in amounts:
                raise rest.Conflict('placement', 'hold', 'over capacity', 409)
            return take(server, amounts, *args)

        with mock.patch.object(holds.Holds, 'take', side_effect=none):
            self.turns(100)
        self.assertEqual((None, 'ACTIVE'), (self.status(victim),
                                            self.status(waiting)))

    def test_a_host_that_ends_no_server_is_left_alone(self) -> None:
        self.conf.set_override('end_timeout', 30, 'reaper')
        self.nova.add_host('h2', 8)
        hangs = [self.nova.add_server('s', 4, 'h1', preemptible=True)
                 for _ in range(2)]
        # The end of this server costs more.
        high: Any = {'reaper:priority': '1'}
        other = self.nova.add_server('s', 8, 'h2', preemptible=True, **high)
        high = {'reaper:priority': '2'}
        waiting = self.nova.add_server('w', 4, **high)
        self.nova.slow = True
        self.nova.ends_on = 'h2'
        self.turns(200)
        self.assertEqual(1, self.value('victims_stuck_total'))
        self.assertEqual(['ACTIVE'] * 2, [self.status(one) for one in hangs])
        self.assertEqual((None, 'ACTIVE'),
                         (self.status(other), self.status(waiting)))

    def test_nova_fails_over_one_server_of_a_host(self) -> None:
        self.conf.set_override('end_timeout', 30, 'reaper')
        low: Any = {'reaper:priority': '-1'}
        fails = self.nova.add_server('s', 4, 'h1', preemptible=True, **low)
        other = self.nova.add_server('s', 4, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 4)
        self.nova.before += 500 * [
            ('forceDelete', fails, lambda: self.nova.error(500))]
        self.turns(200)
        self.assertEqual(1, self.value('victims_stuck_total'))
        self.assertEqual(('ACTIVE', None, 'ACTIVE'), (
            self.status(fails), self.status(other), self.status(waiting)))

    def test_owners_marks_mean_nothing(self) -> None:
        mine = self.nova.add_server(
            's', 8, 'h1', metadata={
                'reaper:preemptible': 'true', 'reaper:for': 'x',
                'reaper:terminate_at': fakes.NOW})
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.assertEqual(('ACTIVE', 'PENDING'),
                         (self.status(mine), self.status(waiting)))
        self.assertIn('reaper:for', self.nova.servers[mine]['metadata'])

    def test_dry_run(self) -> None:
        self._dry_run('fill')

    def test_dry_run_of_what_is_planned_already(self) -> None:
        self._dry_run('observe')

    def test_dry_run_of_what_is_under_way(self) -> None:
        self.conf.set_override('grace_period', 600, 'reaper')
        self._dry_run('preempt')

    def _dry_run(self, mode: str) -> None:
        self.conf.set_override('mode', mode, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        answer = self.shown.dry_run(waiting)
        assert answer
        self.assertEqual([victim], answer['victims'])
        self.assertEqual(
            [{'server': victim, 'name': 's', 'project_id': 'owner',
              'host': 'h1', 'priority': 0, 'action': 'delete',
              'resources': {'VCPU': 8, 'MEMORY_MB': 8192}}],
            answer['servers'])
        self.assertEqual('ACTIVE', self.status(victim))

    def test_dry_run_beyond_the_cap_of_the_cloud(self) -> None:
        self.conf.set_override('mode', 'fill', 'reaper')
        self.conf.set_override('max_ends_per_hour', 1, 'reaper')
        for name in 'st':
            self.nova.add_server(name, 4, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        answer = self.shown.dry_run(waiting)
        assert answer
        self.assertEqual([], answer['victims'])
        self.assertIn('within an hour', answer['detail'])

    def test_who_is_under_notice(self) -> None:
        self.conf.set_override('grace_period', 600, 'reaper')
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.turns(5)
        notice, = self.shown.notices()
        self.assertRegex(notice.pop('terminate_at'),
                         r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$')
        self.assertEqual(
            {'server': victim, 'name': 's', 'project_id': 'owner',
             'action': 'delete', 'cause': 'room',
             'message': 'Another server needs the room.', 'for': waiting,
             'host': 'h1'}, notice)


class OnceTestCase(EngineTestCase):
    """What "nova-reaper once" and "nova-reaper snapshot" see of a cloud."""

    def test_once(self) -> None:
        # The tests' Placement has a single connection to its database.
        self.conf.set_override('concurrency', 1, 'placement')
        for name in ('h1', 'h2'):
            self.nova.add_host(name, 4)
        self.nova.refused_by['h2'] = 'AFilter'
        victim = self.nova.add_server('v', 4, 'h1', preemptible=True)
        first = self.nova.add_server('w1', 4)
        second = self.nova.add_server('w2', 8, asked=False)
        self.offset += 3600
        cloud = commands.take_snapshot(self.conf, self.services)
        self.assertEqual(
            [(first, 'preempt', 'h1', (victim,)),
             (second, 'not_asked', None, ())],
            [(decision.server, decision.hindrance or decision.verdict,
              decision.host, decision.victims)
             for decision in simulate.simulate(cloud)])
        self.assertEqual([victim], [server.id for server in cloud.servers])
        self.assertEqual({'h2': 'AFilter'},
                         cloud.refusals[cloud.waiting[0].shape])

    def test_run_times_end_in_the_simulation(self) -> None:
        begun = timeutils.utcnow(True).replace(microsecond=0)
        self.conf.set_override('concurrency', 1, 'placement')
        identity: Any = self.services.keystone
        identity.project_properties.return_value = {
            'p': {'reaper:max_run_time': '1800'}}
        limit: dict[str, str] = {'reaper:max_run_time': '3600'}
        servers: list[str] = []
        for name, others in (
                ('flavor', limit), ('owner', {**limit, 'metadata': {
                    'reaper:max_run_time': '900'}}),
                ('project', {'project': 'p'}), ('none', {'metadata': limit})):
            self.nova.add_host(name, len(servers) + 2)
            servers.append(self.nova.add_server(
                name, len(servers) + 2, name, **others))
            self.nova.servers[servers[-1]].update({
                'OS-SRV-USG:launched_at': model.time_text(begun)})
        waiting = self.nova.add_server('w', 5, project='p')
        self.offset += 60
        cloud = commands.take_snapshot(self.conf, self.services)
        document = simulate.to_document(cloud)
        self.assertEqual(
            {servers[0]: 3600, servers[1]: 900, servers[2]: 1800,
             waiting: 1800},
            {item['id']: item['run_time'] for item
             in document['servers'] + document['waiting']
             if 'run_time' in item})
        for seconds, finished in ((800, 0), (900, 1), (1800, 2), (3600, 3)):
            report = planning.run(
                simulate.parse(document, cloud.now),
                begun + datetime.timedelta(seconds=seconds))
            self.assertEqual(finished, report['servers']['finished'], seconds)


class NonsenseTestCase(EngineTestCase):
    """Extra specs of which Nova takes no notice."""

    def test_a_shelved_one_comes_back(self) -> None:
        self.nova.add_host('h1', 8)
        shelved = self.nova.add_server(
            's', 8, 'h1', preemptible=True, image=False, metadata={},
            asked=True,
            **{'resources:banana': '1', 'trait:CUSTOM_X': 'banana'})
        waiting = self.nova.add_server('w', 8)
        self.turns(40)
        self.assertEqual(('SHELVED_OFFLOADED', 'ACTIVE'),
                         (self.status(shelved), self.status(waiting)))
        self.nova.delete(waiting)
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(120, 5)
        self.assertEqual('ACTIVE', self.status(shelved))

    def test_placement_refuses_what_a_shelved_one_asks_for(self) -> None:
        self.nova.add_host('h1', 8)
        shelved = self.nova.add_server(
            's', 4, status='SHELVED_OFFLOADED', preemptible=True,
            metadata={'reaper:shelved_at': fakes.NOW})
        self.nova.add_server('w', 4)
        with mock.patch.object(
                self.engine._recovery._placement, 'candidate',
                side_effect=rest.BadRequest('placement', 'GET', 'no', 400)):
            self.turns(30)
            # One may be at its next try.
            self.assertEqual(set(), {
                current.step for current
                in self.engine.attempts.under_way.values()
                } - {attempts.Step.CHECK})
        self.assertEqual('SHELVED_OFFLOADED', self.status(shelved))


class MinRunTimeTestCase(EngineTestCase):

    options = {'min_run_time': 600}

    def test_rebuilt_by_its_owner_and_nobody_told_of_it(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.turns(3)
        self.nova.servers[victim]['OS-SRV-USG:launched_at'] = (
            timeutils.utcnow(True).strftime('%Y-%m-%dT%H:%M:%S.000000'))
        waiting = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(victim))
        self.assertEqual({}, self.nova.servers[victim]['metadata'])


class SafeguardTestCase(EngineTestCase):
    """What cannot be true is not acted upon."""

    def test_no_host_at_all(self) -> None:
        self.turns(5)
        health = self.shown.health()
        self.assertEqual((model.Mode.OBSERVE, 'degraded'),
                         (health.mode, health.status))
        self.assertIn('empty', health.safeguard or '')

    def test_hosts_vanish(self) -> None:
        for number in range(4):
            self.nova.add_host(f'h{number}', 8)
        self.turns(5)
        hosts = dict(self.nova.hosts)
        victim = self.nova.add_server('s', 8, 'h0', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        self.nova.hosts = {'h0': hosts['h0']}
        self.turns(12, 61)
        self.assertEqual(('ACTIVE', 'PENDING'),
                         (self.status(victim), self.status(waiting)))
        health = self.shown.health()
        self.assertEqual(model.Mode.OBSERVE, health.mode)
        self.assertIn('from 4 to 1', health.safeguard or '')
        self.assertEqual(1, self.value('safeguard'))
        # The same thrice is believed.
        self.turns(80, 61)
        self.assertIsNone(self.shown.health().safeguard)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_placement_does_not_know_the_hosts(self) -> None:
        self.nova.hosts = {f'h{number}': fakes.new_id()
                           for number in range(3)}
        self.turns(5)
        self.assertIn('Placement knows nothing',
                      self.shown.health().safeguard or '')

    def lose_inventory(self) -> None:
        """Nine of ten hosts have nothing any more, by Placement's word."""
        for provider in list(self.nova.hosts.values())[1:]:
            self.room.set_inventory(provider)

    def add_ten_hosts(self) -> str:
        """Ten hosts; returns the server that may be ended on the first."""
        self.conf.set_override('retry_interval', 1, 'reaper')
        for number in range(10):
            self.nova.add_host(f'h{number}', 8)
        victim = self.nova.add_server('s', 8, 'h0', preemptible=True)
        self.turns(5)
        return victim

    def test_hosts_without_inventory(self) -> None:
        self.conf.set_override('nothing_fits_timeout', 60, 'reaper')
        self.conf.set_override('retry_interval', 600, 'reaper')
        for number in range(10):
            self.nova.add_host(f'h{number}', 8)
        hosts = list(self.nova.hosts.values())
        filler = self.nova.add_server('s', 8, 'h0')
        self.turns(5)
        self.lose_inventory()
        waiting = self.nova.add_server('w', 8)
        self.turns(60, 61)
        health = self.shown.health()
        self.assertEqual((model.Mode.OBSERVE, 'Placement knows of no '
                          'inventory of 9 of 10 hosts.'),
                         (health.mode, health.safeguard))
        self.assertEqual(('PENDING', []),
                         (self.status(waiting), self.actions()))
        # What was known of them before stays.
        self.assertEqual(model.Verdict.ROOM, self.engine.world.told.last[
            waiting].decision.verdict)
        for provider in hosts[1:8]:
            self.room.set_inventory(provider, VCPU=8, MEMORY_MB=8192)
        self.turns(30, 61)
        # Some may have none.
        self.assertIsNone(self.shown.health().safeguard)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual('ACTIVE', self.status(filler))

    def test_a_list_of_changes_lifts_no_safeguard(self) -> None:
        victim = self.add_ten_hosts()
        self.lose_inventory()
        self.turns(12, 61)
        for number in range(9):
            self.nova.add_server(f'w{number}', 8)
        self.hint(bus.Kind.SHAPE)
        self.turns(60)
        for name in self.nova.hosts:
            self.hint(bus.Kind.HOST, host=name)
        self.turns(60)
        self.assertEqual(model.Mode.OBSERVE, self.engine.guard.mode)
        self.assertEqual('ACTIVE', self.status(victim))

    def test_hosts_that_lose_everything_are_for_a_list_to_judge(self) -> None:
        victim = self.add_ten_hosts()
        self.lose_inventory()
        for number in range(9):
            self.nova.add_server(f'w{number}', 8)
        # Until the next full list.
        self.turns(60, 5)
        self.assertEqual('ACTIVE', self.status(victim))

    def test_placement_is_not_asked_again_and_again(self) -> None:
        self.add_ten_hosts()
        self.conf.set_override('retry_interval', 10, 'reaper')
        # There is no list in this time.
        self.conf.set_override('pending_list_interval', 3600, 'reaper')
        self.lose_inventory()
        waiting = [self.nova.add_server('w', size) for size in (2, 3, 4)]
        for server in waiting:
            self.hint(bus.Kind.WAITS, server=server)
        log = self.room.adapter.log
        self.turns(60)
        del log[:]
        self.turns(240)
        self.assertEqual([], [path for _, path in log
                              if 'allocation_candidates' in path])
        # The inventory of before is back: nothing else has changed.
        self.room.set_inventory(self.nova.hosts['h1'], VCPU=8, MEMORY_MB=8192)
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(30)
        self.assertIn('ACTIVE', [self.status(server) for server in waiting])

    def test_no_inventory_since_the_start(self) -> None:
        self.conf.set_override('nothing_fits_timeout', 60, 'reaper')
        self.conf.set_override('retry_interval', 600, 'reaper')
        self.nova.hosts['h1'] = self.room.add_host('h1')
        waiting = self.nova.add_server('w', 2)
        self.turns(40, 61)
        self.assertEqual('nothing_fits',
                         self.engine.world.told.last[waiting].decision.word)
        # Meanwhile it has backed off.
        self.engine.world.history[waiting].came_to_nothing(
            world.Cause.SERVER, model.Reason.NO_ROOM, 'h1',
            timeutils.utcnow(True), 10)
        self.engine.world.put_again(waiting)
        self.room.set_inventory(self.nova.hosts['h1'], VCPU=2, MEMORY_MB=2048)
        self.turns(12, 61)
        self.assertIsNone(self.shown.health().safeguard)
        self.turns(20, 61)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_disabled_hosts_may_have_no_inventory(self) -> None:
        for number in range(4):
            self.nova.add_host(f'h{number}', 8)
        for name in ('h1', 'h2', 'h3'):
            self.room.set_inventory(self.nova.hosts[name])
        self.nova.disabled = {'h1', 'h2', 'h3'}
        self.turns(2)
        self.assertIsNone(self.shown.health().safeguard)
        self.room.set_inventory(self.nova.hosts['h0'])
        self.nova.disabled = set(self.nova.hosts)
        self.turns(4, 601)
        self.assertIn('inventory of 4 of 4',
                      self.shown.health().safeguard or '')

    def test_its_clock_is_not_nova_s(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        for off, word in ((-7200, 'ahead of'), (7200, 'behind')):
            self.nova.clock_off = off
            self.turns(20, 61)
            self.assertEqual(('ACTIVE', 'PENDING'),
                             (self.status(victim), self.status(waiting)))
            health = self.shown.health()
            self.assertEqual(model.Mode.OBSERVE, health.mode)
            self.assertRegex(health.safeguard or '',
                             rf'^The clock .* 7[12]\d\d s {word} Nova')
            self.assertEqual(1, self.value('safeguard'))
        self.nova.clock_off = 20
        self.turns(70)
        self.assertIsNone(self.shown.health().safeguard)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_the_clock_of_one_nova_api_is_off(self) -> None:
        self.conf.set_override('grace_period', 120, 'reaper')
        self.nova.add_host('h1', 8)
        self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        offs, request = itertools.cycle((3600, 0, 0)), self.nova.request

        def answer(*args: Any, **more: Any) -> fakes.Answer:
            self.nova.clock_off = next(offs)
            return request(*args, **more)

        with mock.patch.object(self.nova, 'request', answer):
            self.turns(150)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual((1, 0), (
            self.value('notices_total', result='given'),
            self.value('notices_total', result='withdrawn')))

    def test_numbers_beyond_all_measure(self) -> None:
        for name in ('priority', 'pending_timeout'):
            absurd: Any = {f'reaper:{name}': '9' * 20}
            self.nova.add_host(name, 8)
            self.nova.add_server('s', 4, name, preemptible=True, **absurd)
            self.nova.add_server('w', 32, **absurd)
            waiting = self.nova.add_server('w', 4)
            self.turns(40)
            self.assertEqual('ACTIVE', self.status(waiting), name)

    def test_half_a_list_is_none(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.nova.add_server('w', 8)
        self.nova.before += [('GET', 'flavors',
                              lambda: self.nova.error(503))]
        self.turns(5)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual('failed', self.shown.health().status)
        self.turns(14, 61)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual('ok', self.shown.health().status)


class TooOldTestCase(EngineTestCase):
    """A Nova without the series."""

    has_reason = False

    def test_it_says_so(self) -> None:
        self.turns(3)
        health = self.shown.health()
        self.assertEqual('failed', health.status)
        self.assertIn('2.107', health.checks[0].detail)
        self.assertRaises(rest.TooOld, next, self.nova.nova.servers())
