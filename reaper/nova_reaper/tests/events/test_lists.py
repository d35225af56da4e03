# SPDX-License-Identifier: Apache-2.0

import datetime
from typing import Any
from unittest import mock

import fixtures

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import engine as engine_module
from nova_reaper.events import bus
from nova_reaper.events import lists
from nova_reaper.events import reader
from nova_reaper import tests
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine

NOW = datetime.datetime(2026, 11, 22, tzinfo=datetime.UTC)


class FailsOverOneTestCase(test_engine.EngineTestCase):
    """Nova cannot say why one of the servers waits."""

    mode = 'fill'

    def fail(self, server: str, status: int = 500) -> None:
        self.nova.before += 1000 * [
            ('GET', f'{server}/pending', lambda: self.nova.error(status))]

    def test_from_the_start(self) -> None:
        self.nova.add_host('h1', 64)
        self.fail(self.nova.add_server('bad', 4))
        good = self.nova.add_server('good', 2)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(good))

    def test_later(self) -> None:
        self.nova.add_host('h1', 64)
        self.turns(10)
        bad = self.nova.add_server('bad', 4)
        self.fail(bad, 504)
        good = self.nova.add_server('good', 2)
        self.turns(30, 10)
        self.assertEqual('ACTIVE', self.status(good))
        self.nova.before.clear()
        self.turns(30, 10)
        self.assertEqual('ACTIVE', self.status(bad))

    def test_its_answer_of_before_holds(self) -> None:
        self.nova.add_host('h1', 2)
        waiting = self.nova.add_server('w', 4)
        self.turns(10)
        self.fail(waiting)
        self.turns(20, 61)
        self.nova.before.clear()
        self.nova.add_host('h2', 4)
        self.fail(waiting)
        read = self.engine._lists.read_hosts()
        self.assertIn(waiting, read.waiting.answers)

    def test_others_of_its_kind_are_asked_for(self) -> None:
        self.nova.add_host('h1', 64)
        self.fail(self.nova.add_server('bad', 4))
        good = self.nova.add_server('good', 4)
        self.turns(30, 10)
        self.assertEqual('ACTIVE', self.status(good))

    def test_over_one_after_another(self) -> None:
        self.nova.add_host('h1', 64)
        for number in range(lists.FAILURES):
            self.fail(self.nova.add_server(f'bad{number}', number + 1))
        self.assertRaises(rest.Unavailable, self.engine._lists.read_hosts)
        # Others have their turn before them next time.
        good = self.nova.add_server('good', 20)
        read = self.engine._lists.read_hosts()
        self.assertEqual({good}, set(read.waiting.answers))
        self.turns(30, 10)
        self.assertEqual('ACTIVE', self.status(good))


class UnreadableTestCase(test_engine.EngineTestCase):
    """Nova says in words that nobody knows what servers ask for."""

    mode = 'fill'

    def test_a_sentence_tells_it(self) -> None:
        log = self.useFixture(fixtures.FakeLogger())
        self.nova.add_host('h1', 64)
        self.turns(10)
        unreadable = nova.Pending(
            model.Reason.NO_ROOM, '', '', requests=('resources=VCPU',))
        with mock.patch.object(self.nova.nova, 'pending',
                               return_value=unreadable):
            for number in range(lists.FAILURES):
                self.hint(bus.Kind.WAITS,
                          server=self.nova.add_server('w', number + 1))
            self.turns(10, 61)
        self.assertIn('the answer cannot be read', log.output)
        self.assertNotIn('Traceback', log.output)


class ManyKindsTestCase(tests.TestCase):
    """So many different servers that a list cannot ask for all of them."""

    def setUp(self) -> None:
        super().setUp()
        self.offset = 0.0
        self.useFixture(fakes.Clock(lambda: self.offset))
        self.nova = mock.Mock(spec=nova.Nova)
        self.nova.pending.side_effect = self.pending
        self.source = mock.Mock(spec=reader.Reader)
        self.source.nova, self.source.hypervisors = self.nova, {}
        self.source.shared = self.source.below = frozenset()
        self.source.beside = frozenset()
        self.source.shelved.return_value = []
        self.source.names_by_provider.return_value = {}
        self.source.at_once.side_effect = map
        self.shapes = shapes.Shapes(self.nova)
        self.lists = lists.Lists(self.source, self.shapes)
        self.asked: list[str] = []

    def pending(self, server: str, hosts: Any) -> nova.Pending:
        self.asked.append(server)
        self.offset += lists.ASKING / 10
        return nova.Pending(model.Reason.NO_ROOM, '', '',
                            requests=('resources=VCPU:1',))

    def wait(self, *servers: tuple[str, str]) -> None:
        self.nova.servers.return_value = [
            nova.NovaServer(
                name, name, project, 'u', 'PENDING', None, '',
                nova.Flavor('m1', 1, 512, 1), 'img', NOW, NOW, None, {},
                False, kind=name) for name, project in servers]

    def read(self) -> Any:
        self.asked.clear()
        return self.lists.read_waiting({'VCPU': 0})

    def test_every_project_has_its_turn(self) -> None:
        many = [(f'a{number}', 'a') for number in range(30)]
        self.wait(*many, ('b1', 'b'), ('c1', 'c'))
        found = self.read()
        self.assertEqual(['a0', 'b1', 'c1', 'a1'], self.asked[:4])
        self.assertEqual(set(self.asked), set(found.answers))
        self.assertLess(len(self.asked), 20)
        first = set(self.asked)
        self.read()
        # It goes on where it had to stop.
        self.assertEqual(set(), first & set(self.asked))

    def test_what_is_not_known_comes_first(self) -> None:
        self.wait(*((f'a{number}', 'a') for number in range(8)))
        self.read()
        self.shapes.forget()
        self.wait(*((f'a{number}', 'a') for number in range(9)))
        found = self.read()
        self.assertEqual('a8', self.asked[0])
        self.assertEqual(9, len(found.answers))


class NamesTestCase(test_engine.EngineTestCase):
    """Servers ask for traits that their owners have made up."""

    mode = 'fill'

    def test_they_are_asked_for_no_longer_than_a_server_waits(self) -> None:
        self.nova.add_host('h1', 4)
        for number in range(5):
            self.nova.asks_also = f'&required=CUSTOM_MADE_UP_{number}'
            waiting = self.nova.add_server('w', 4, foo=str(number))
            self.turns(2, 61)
            self.nova.delete(waiting)
        self.nova.asks_also = '&required=CUSTOM_LAST'
        last = self.nova.add_server('w', 4)
        self.turns(40, 61)
        self.room.adapter.log.clear()
        self.turns(11, 61)
        asked = [path for _, path in self.room.adapter.log
                 if 'CUSTOM' in path]
        self.assertEqual([], [path for path in asked if 'MADE_UP' in path])
        self.assertNotEqual([], [path for path in asked if 'LAST' in path])
        self.room.set_traits(self.nova.hosts['h1'], 'CUSTOM_LAST')
        self.turns(20, 61)
        self.assertEqual('ACTIVE', self.status(last))


class SilenceTestCase(test_engine.EngineTestCase):
    """Without notifications the lists find everything."""

    mode = 'fill'

    def wait_for_room(self) -> float:
        """How long it takes until room that has become free is used."""
        self.nova.add_host('h1', 4)
        filler = self.nova.add_server('o', 4, 'h1')
        waiting = self.nova.add_server('w', 4)
        self.turns(10)
        self.nova.delete(filler)
        begun = self.offset
        while self.status(waiting) != 'ACTIVE' and self.offset < begun + 650:
            self.turns(1, 5)
        return self.offset - begun

    def test_room_is_found_by_the_list_of_servers_that_wait(self) -> None:
        self.assertLess(self.wait_for_room(), 100)

    def test_so_it_is_where_news_are_lost(self) -> None:
        self.engine.guard.event(bus.Kind.HOST)
        self.assertLess(self.wait_for_room(), 100)

    def test_one_that_fails_has_nothing_more_read(self) -> None:
        self.nova.add_host('h1', 4)
        self.turns(10)
        whole = self.engine._calendar._whole_at
        self.nova.before += [('GET', 'flavors',
                              lambda: self.nova.error(503))]
        self.turns(4, 20)
        self.assertEqual([], self.nova.before)
        self.assertEqual(whole, self.engine._calendar._whole_at)


class ChangesTestCase(test_engine.EngineTestCase):
    """A list each minute has what has changed, and some hosts more."""

    mode = 'fill'
    options = {'full_list_interval': 300}

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatchObject(reader, 'SHARE', 2))
        for number in range(5):
            self.nova.add_host(f'h{number}', 4)
        self.turns(4)

    def read(self) -> list[str]:
        """The hosts that the next list reads."""
        log = self.room.adapter.log
        self.offset += 61
        del log[:]
        self.turns(3)
        return [name for name, provider in self.nova.hosts.items()
                if ('GET', f'/resource_providers/{provider}/inventories')
                in log]

    def test_each_host_has_its_turn(self) -> None:
        found = [self.read() for _ in range(5)]
        self.assertEqual([1] * 5, list(map(len, found)))
        self.assertEqual(set(self.nova.hosts), set(sum(found, [])))

    def test_inventories_that_change_are_found(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.turns(2)
        self.room.set_inventory(self.nova.hosts['h3'], VCPU=8,
                                MEMORY_MB=99999)
        self.turns(6, 61)
        self.turns(8)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_servers_that_begin_and_cease_to_wait(self) -> None:
        first = self.nova.add_server('w', 8)
        with mock.patch.object(self.engine.source, 'read_preemptible') as all:
            self.read()
            self.assertIn(first, self.engine.world.queue)
            self.nova.delete(first)
            second = self.nova.add_server('x', 8)
            self.read()
        all.assert_not_called()
        self.assertEqual({second}, set(self.engine.world.servers))

    def test_a_long_list_lets_news_pass(self) -> None:
        self.useFixture(fixtures.MockPatchObject(engine_module, 'BUDGET', 0))
        self.useFixture(fixtures.MockPatchObject(engine_module, 'AT_LEAST', 1))
        self.offset += 301
        self.turns(2)
        late = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=late)
        self.turns(2)
        self.assertIn(late, self.engine.world.servers)
        self.assertTrue(self.engine._lists_read)
        self.turns(10)
        self.assertFalse(self.engine._lists_read)

    def test_a_host_that_fails_spoils_itself_alone(self) -> None:
        read, failing = self.engine.source.read_host, ['h2']

        def fail(name: str, *args: Any, **more: Any) -> Any:
            if name in failing:
                raise rest.Unavailable('placement', 'x', 'No.', 500)
            return read(name, *args, **more)

        waiting = self.nova.add_server('w', 8)
        with mock.patch.object(self.engine.source, 'read_host', fail):
            self.engine = self.start()
            with mock.patch.object(self.engine.source, 'read_host', fail):
                self.turns(4)
                self.assertEqual(set(self.nova.hosts) - {'h2'},
                                 set(self.engine.world.views))
                self.assertIn(waiting, self.engine.world.queue)
                failing.clear()
                self.turns(15)
        self.assertEqual(set(self.nova.hosts), set(self.engine.world.views))

    def test_many_hosts_that_fail_spoil_the_list(self) -> None:
        with mock.patch.object(
                self.engine.source, 'read_host',
                side_effect=rest.Unavailable('placement', 'x', 'No.', 500)):
            self.assertRaises(rest.Unavailable,
                              self.engine._lists.read_hosts)


class UsageTestCase(test_engine.EngineTestCase):
    """A filter looks at what is on a host."""

    mode = 'fill'

    def test_a_host_that_is_freed(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.pinned = {'h1': 0}
        pinned = self.nova.add_server('o', 2, 'h1')
        waiting = self.nova.add_server('w', 4)
        self.turns(10)
        self.assertEqual(('PENDING', []),
                         (self.status(waiting), self.actions()))
        self.nova.finish(pinned)
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(8)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_a_host_that_changes_and_is_refused_still(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.pinned = {'h1': 0}
        others = [self.nova.add_server('o', 1, 'h1') for _ in range(2)]
        waiting = self.nova.add_server('w', 4)
        self.turns(10)
        self.nova.finish(others[0])
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(20)
        self.assertEqual(('PENDING', []),
                         (self.status(waiting), self.actions()))
        entry = self.shown.entry(waiting)
        assert entry and entry.decision
        self.assertEqual((model.Reason.REFUSED, 0), (
            entry.decision.reason, entry.waiting.failures))

    def test_what_does_not_look_at_usage_is_kept(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.refused_by['h1'] = 'ComputeCapabilitiesFilter'
        other = self.nova.add_server('o', 1, 'h1')
        waiting = self.nova.add_server('w', 4)
        self.turns(10)
        asked = self.nova.adapter
        self.nova.finish(other)
        self.hint(bus.Kind.HOST, host='h1')
        with mock.patch.object(asked, '_pending') as pending:
            self.turns(10)
        pending.assert_not_called()
        self.assertEqual('PENDING', self.status(waiting))
