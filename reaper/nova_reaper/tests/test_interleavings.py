# SPDX-License-Identifier: Apache-2.0

"""Answers that are late: what else has happened by then."""

from collections.abc import Callable
from collections.abc import Iterator
from concurrent import futures
import contextlib
import functools
import itertools
import sys
import time
import types
from typing import Any
from unittest import mock

from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Step
from nova_reaper.act import recovery
from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import conf as reaper_conf
from nova_reaper import engine as engine_module
from nova_reaper.events import bus
from nova_reaper.events import lists
from nova_reaper.events import reader
from nova_reaper.report import health
from nova_reaper import tests
from nova_reaper.tests import acting
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


@contextlib.contextmanager
def another_thread(module: types.ModuleType, does: Callable[[int], object]
                   ) -> Iterator[None]:
    """Another thread comes between any two steps of a module.

    :param does: what it does; it is told how often it has done so before
    """
    times = itertools.count()

    def step(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_globals is not vars(module):
            return None
        frame.f_trace_opcodes = True
        if event == 'opcode':
            does(next(times))
        return step

    before = sys.gettrace()
    # Python 3.12 looks for one when the trace begins.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(step)
    try:
        yield
    finally:
        sys.settrace(before)
    assert next(times), f'nothing of {module.__name__} was run'


class Pool(test_engine.Immediate):
    """Does at once what it is given, but for jobs that hang.

    :ivar hang: names of jobs that hang from now on: they are done by let()
    :ivar answered: names of those of them that have asked, and whose answer
        is late
    """

    def __init__(self) -> None:
        self.hang: set[str] = set()
        self.answered: set[str] = set()
        self._hanging: dict[str, functools.partial[Any]] = {}

    def submit(self, call: Callable[..., Any], /,
               *args: Any, **kwargs: Any) -> futures.Future[Any]:
        name = str(args[0]) if args else ''
        if name not in self.hang:
            return super().submit(call, *args, **kwargs)
        if name in self.answered:
            found = args[1]()
            args = (name, lambda: found, args[2])
        self._hanging[name] = functools.partial(call, *args, **kwargs)
        return futures.Future()

    def fail(self, name: str) -> None:
        """Let a request that hangs have no answer."""
        call = self._hanging.pop(name)
        call.func(name, mock.Mock(side_effect=rest.Unavailable(
            'nova', 'servers', 'no answer')), *call.args[2:])

    def let(self, *names: str) -> None:
        """Let those that hang be done, in this order."""
        self.hang.clear()
        for name in names:
            self._hanging.pop(name)()


class LateTestCase(test_engine.EngineTestCase):
    """What is shared."""

    options: dict[str, Any] = {'hold_timeout': 1800}

    def start(self) -> engine_module.Engine:
        self.pool = Pool()
        with mock.patch.object(test_engine, 'Immediate', lambda: self.pool):
            return super().start()

    def late(self, *names: str) -> None:
        """Have jobs ask, and their answers come late."""
        self.pool.hang.update(names)
        self.pool.answered.update(names)

    def stand_by(self) -> None:
        """Another is the active one for a moment."""
        self.engine.guard.active = False
        self.turns(1)
        self.engine.guard.active = True

    def seconds(self, done: Callable[[], bool], most: int = 3600) -> float:
        """After how many seconds something is so."""
        begun = self.offset
        while not done() and self.offset < begun + most:
            self.turns(1)
        return self.offset - begun

    def until_active(self, server: str) -> float:
        return self.seconds(lambda: self.status(server) == 'ACTIVE')


class StandbyTestCase(LateTestCase):
    """The lock is lost and won again while something is under way."""

    def under_way(self, step: Step, **server: Any) -> str:
        """A server whose attempt has come to a step, and no further."""
        self.turns(5)
        waiting = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=waiting)
        with self.staying_at(step):
            self.turns(10)
        self.assertEqual(step, self.engine.attempts.under_way[waiting].step)
        return waiting

    def test_sweep_of_before(self) -> None:
        self.conf.set_override('stop_timeout', 60, 'reaper')
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.turns(5)
        waiting = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=waiting)
        self.seconds(lambda: self.status(victim) == 'SHUTOFF', 40)
        self.assertEqual('SHUTOFF', self.status(victim))
        with self.staying_at(Step.END):
            self.pool.hang.add('sweep')
            self.engine._sweep()
            self.stand_by()
        self.pool.let('sweep')
        self.assertLess(self.until_active(waiting), 120)

    def test_sweep_of_before_that_fails(self) -> None:
        self.nova.add_host('h1', 8)
        self.turns(5)
        self.pool.hang.add('sweep')
        self.engine._sweep()
        self.stand_by()
        self.pool.hang.add(lists.CHANGES)
        self.turns(1)
        self.pool.fail('sweep')
        self.turns(20)
        self.assertFalse(self.engine.recovered)
        self.pool.let(lists.CHANGES)
        self.turns(5)
        self.assertTrue(self.engine.recovered)

    def test_hold_of_before(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.under_way(Step.HOLD)
        self.pool.hang.add(f'attempt {waiting}')
        self.late('sweep')
        self.turns(1)
        self.stand_by()
        self.turns(2)
        self.pool.let(*self.pool._hanging)
        self.assertLess(self.until_active(waiting), 120)

    def test_swap_of_before(self) -> None:
        self.nova.add_host('h1', 8)
        self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.under_way(Step.SWAP)
        self.pool.hang.add(f'attempt {waiting}')
        self.late('sweep')
        self.turns(1)
        self.stand_by()
        self.turns(2)
        self.pool.let(*self.pool._hanging)
        self.assertLess(self.until_active(waiting), 120)

    def test_list_of_before(self) -> None:
        self.nova.add_host('h1', 8)
        server = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.engine.guard.active = False
        self.turns(5)
        self.late(lists.CHANGES)
        self.offset += 601
        self.turns(1)
        metadata = self.nova.servers[server]['metadata']
        metadata.update({shapes.TERMINATE_AT: '2026-01-01T00:00:00Z',
                         shapes.FOR: fakes.new_id()})
        self.engine.guard.active = True
        self.turns(2)
        self.pool.let(lists.CHANGES)
        self.assertLess(self.seconds(
            lambda: not self.nova.servers[server]['metadata']), 120)

    def test_notice_of_before(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.nova.servers[victim]['updated'] = '2026-01-01T00:00:00Z'
        self.conf.set_override('grace_period', 30, 'reaper')
        waiting = self.under_way(Step.NOTICE)
        self.pool.hang.add(f'attempt {waiting}')
        self.turns(1)
        self.stand_by()
        self.turns(2)
        self.nova.delete(waiting)
        self.pool.let(f'attempt {waiting}')
        metadata = self.nova.servers[victim]['metadata']
        metadata[shapes.TERMINATE_AT] = '2026-01-01T00:00:00Z'
        self.assertLess(self.seconds(lambda: not metadata), 120)


class FirstListTestCase(LateTestCase):
    """What of a preemptible server is read before its flavor is known."""

    def test_it_is_known_afterwards(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        listed = self.engine.source.nova.servers

        def listing(**query: str) -> Any:
            found = list(listed(**query))
            if not self.engine.source._marked:
                self.engine.source.read_server(victim)
            return found

        with mock.patch.object(self.engine.source.nova, 'servers', listing):
            self.turns(3)
        self.assertIn(victim, self.engine.source.preemptible)


class JobsTestCase(LateTestCase):
    """A job is to be done once more."""

    def test_though_nobody_can_use_what_it_found(self) -> None:
        found: list[int] = []
        running = self.engine.jobs
        self.pool.hang.add('x')
        running.start('x', lambda: 1, mock.Mock(side_effect=ValueError))
        running.line_up('x', lambda: 2, found.append)
        self.pool.let('x')
        self.assertRaises(ValueError, running.take)
        running.take()
        self.assertEqual([2], found)

    def test_a_decision_that_cannot_be_carried_out(self) -> None:
        self.nova.add_host('h1', 8)
        self.turns(5)
        waiting = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=waiting)
        source, attempts = self.engine.source, self.engine.attempts
        with mock.patch.object(
                attempts, 'begin', wraps=attempts.begin) as begin, (
                    mock.patch.object(source, 'hypervisors', {})):
            self.turns(3)
            begin.assert_called_once()
            # It does not turn and turn for it.
            self.assertFalse(self.engine.mailbox._changed.is_set())
            self.turns(6)
            self.assertEqual(2, begin.call_count)
        self.assertLess(self.until_active(waiting), 20)


class HintTestCase(LateTestCase):
    """A notification comes while that of which it tells is read."""

    mode = 'fill'

    def test_of_one_that_waits(self) -> None:
        self.nova.add_host('h1', 8)
        self.turns(5)
        waiting = self.nova.add_server('w', 4)
        self.nova.servers[waiting]['OS-EXT-STS:task_state'] = 'scheduling'
        self.late(f'server {waiting}')
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(1)
        self.nova.servers[waiting]['OS-EXT-STS:task_state'] = None
        self.hint(bus.Kind.WAITS, server=waiting)
        self.turns(1)
        self.pool.let(f'server {waiting}')
        self.assertLess(self.until_active(waiting), 20)

    def test_of_one_that_is_shelved(self) -> None:
        self.nova.add_host('h1', 4)
        self.nova.add_server('x', 4, 'h1')
        shelved = self.nova.add_server(
            's', 4, status='SHELVED_OFFLOADED', preemptible=True,
            metadata={shapes.SHELVED_AT: fakes.NOW})
        self.turns(5)
        del self.nova.servers[shelved]
        self.hint(bus.Kind.ENDED, server=shelved, preemptible=True)
        self.turns(2)
        self.assertNotIn(shelved, self.engine.source.preemptible)
        self.hint(bus.Kind.ENDED, server=shelved, preemptible=True)
        self.turns(2)
        self.assertNotIn(shelved, self.engine.world.servers)

    def test_of_what_a_step_looks_at(self) -> None:
        self.mode = 'preempt'
        self.conf.set_override('mode', 'preempt', 'reaper')
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        self.turns(5)
        self.conf.set_override('grace_period', 100, 'reaper')
        waiting = self.nova.add_server('w', 8)
        self.hint(bus.Kind.WAITS, server=waiting)
        under_way = self.engine.attempts.under_way
        self.seconds(lambda: waiting in under_way and
                     under_way[waiting].step == Step.GRACE, 20)
        self.late(f'attempt {waiting}')
        self.engine.attempts.wake(waiting)
        self.turns(1)
        self.nova.delete(victim)
        self.hint(bus.Kind.ENDED, server=victim, host='h1',
                  preemptible=True)
        self.turns(1)
        self.pool.let(f'attempt {waiting}')
        self.assertLess(self.until_active(waiting), 10)

    def test_what_comes_before_the_wait_ends_it(self) -> None:
        mailbox = bus.Mailbox()
        mailbox.wake()
        begun = time.monotonic()
        mailbox.take(60.0)
        self.assertLess(time.monotonic() - begun, 30)
        self.assertFalse(mailbox._changed.is_set())

    def test_many_decisions_do_not_wait_for_each_other(self) -> None:
        for number in range(3):
            self.nova.add_host(f'h{number}', 1)
        self.turns(5)
        waiting = [self.nova.add_server(f'w{number}', 2 + number)
                   for number in range(4)]
        for server in waiting:
            self.hint(bus.Kind.WAITS, server=server)
        take = self.engine.mailbox.take
        woken = []

        def taken(timeout: float) -> list[bus.Hint]:
            woken.append(self.engine.mailbox._changed.is_set())
            return take(0.0)

        with mock.patch.object(engine_module, 'AT_LEAST', 1), (
                mock.patch.object(engine_module, 'BUDGET', 0)), (
                mock.patch.object(self.engine.mailbox, 'take', taken)):
            self.turns(6)
        self.assertEqual(4, len(self.engine.world.told.last))
        self.assertGreaterEqual(woken.count(True), 4)


class StuckTestCase(LateTestCase):
    """A host that ends no server is read late."""

    def test_no_other_server_of_the_host_is_chosen(self) -> None:
        self.conf.set_override('end_timeout', 30, 'reaper')
        self.nova.add_host('h1', 8)
        for number in range(2):
            self.nova.add_server(f's{number}', 4, 'h1', preemptible=True)
        self.turns(5)
        self.nova.slow = True
        waiting = self.nova.add_server('w', 4)
        self.hint(bus.Kind.WAITS, server=waiting)
        self.seconds(lambda: 'forceDelete' in self.actions(), 40)
        self.pool.hang.add('host h1')
        self.seconds(lambda: bool(self.value('victims_stuck_total')), 800)
        self.turns(5)
        self.assertEqual(1, self.actions().count('forceDelete'))
        self.assertEqual({}, self.engine.attempts.under_way)


class OptionsTestCase(LateTestCase):
    """SIGHUP comes while the engine takes the options over."""

    mode = 'observe'

    def test_a_new_mode_comes_with_its_limits(self) -> None:
        self.nova.add_host('h1', 8)
        self.turns(5)
        wanted = fakes.configuration(mode='preempt', repeat_protection=86400)
        read = reaper_conf.options

        def change(conf: Any) -> model.Options:
            found = read(conf)
            self.conf.current = wanted.current
            return found

        with mock.patch.object(reaper_conf, 'options', change):
            self.engine._use_mode()
        self.assertEqual(model.Mode.OBSERVE, self.engine.world.options.mode)


class SeenTestCase(LateTestCase):
    """Somebody looks while something changes."""

    mode = 'observe'

    def test_gauges_have_what_was_or_what_is(self) -> None:
        self.nova.add_host('h1', 8)
        server = self.nova.add_server('w', 4)
        self.turns(3)
        gauge = self.metrics.pending
        with mock.patch.object(gauge, 'labels', side_effect=lambda *names: (
                self.assertIn(b'nova_reaper_pending{', self.metrics.text()),
                mock.DEFAULT)[1], wraps=gauge.labels) as labels:
            list(self.engine.world.measure())
            self.engine.world.show()
            labels.assert_called()
        self.nova.delete(server)
        self.offset += 100
        self.turns(3)
        list(self.engine.world.measure())
        self.engine.world.show()
        self.assertNotIn(b'nova_reaper_pending{', self.metrics.text())

    def test_health_while_something_fails(self) -> None:
        safe = self.engine.guard
        safe.failed('full list', 'no')
        with another_thread(health, lambda times: safe.failures.setdefault(
                f'sweep {times}', 'later')):
            check = safe._check_lists()
        self.assertIn('no', check.detail)
        self.assertGreater(len(safe.failures), 1)


class WithdrawnTestCase(acting.ActingTestCase):
    """The reaper is told to observe while something is under way."""

    def test_hold_whose_answer_was_lost(self) -> None:
        self.nova.add_host('h1', 8)
        waiting = self.nova.add_server('w', 4)
        current = self.at(Step.HOLD, self.begin(waiting))
        self.room.adapter.lost['POST'] = 504
        result = self.actor.advance(current)
        assert isinstance(result, attempts.Attempt)
        self.assertTrue(result.unsure)
        self.assertTrue(self.room.has(waiting))
        self.mode = model.Mode.OBSERVE
        outcome = self.actor.advance(result)
        assert isinstance(outcome, attempts.Outcome)
        self.assertEqual(model.Result.WITHDRAWN, outcome.result)
        self.assertFalse(self.room.has(waiting))


class StrictTestCase(acting.ActingTestCase):
    """With strict accounting all have ended before room is held."""

    options = {'strict_accounting': True}

    def test_what_others_have_ended_for_is_brought_to_its_end(self) -> None:
        self.nova.add_host('h1', 8)
        victim = self.nova.add_server('s', 8, 'h1', preemptible=True)
        waiting = self.nova.add_server('w', 8)
        current = self.at(Step.HOLD, self.begin(waiting, victims=(victim,)))
        self.assertEqual(1, current.ended)
        self.mode = model.Mode.OBSERVE
        self.assertEqual(model.Result.ACTIVE, self.outcome(current).result)


class ReaderTestCase(tests.TestCase):
    """Two threads read."""

    def setUp(self) -> None:
        super().setUp()
        self.nova = mock.Mock()
        self.flavor = nova.Flavor(
            'p', 1, 1, 1, extra_specs={'reaper:preemptible': 'true'}, id='p')
        self.nova.flavors.return_value = [self.flavor]
        self.reader = reader.Reader(
            self.nova, mock.Mock(), mock.Mock(spec=rest.Keystone),
            mock.Mock(spec=futures.Executor), fakes.configuration())

    def server(self, uuid: str, status: str = 'ACTIVE', **metadata: str
               ) -> nova.NovaServer:
        now = timeutils.utcnow(True)
        return nova.NovaServer(
            uuid, uuid, 'p', 'u', status, None, 'h', self.flavor, 'i',
            now, now, None, metadata, False)

    def test_newer_answers_than_those_of_a_list_stay(self) -> None:
        self.nova.servers.return_value = []
        self.reader.read_preemptible()
        answers = {'x': self.server('x', 'SHELVED_OFFLOADED'),
                   'new': self.server('new')}
        self.nova.find.side_effect = answers.__getitem__

        def listed(**query: str) -> Any:
            if 'flavor' not in query:
                return
            yield self.server('x')
            yield self.server('y')
            for uuid in answers:
                self.reader.read_server(uuid)

        self.nova.servers.side_effect = listed
        found = self.reader.read_preemptible()
        self.assertEqual({'x', 'y', 'new'}, found.keys())
        self.assertEqual('SHELVED_OFFLOADED', found['x'].status)
        self.assertEqual('SHELVED_OFFLOADED',
                         self.reader.preemptible['x'].status)

    def test_another_asks_who_has_locked_a_server(self) -> None:
        self.nova.servers.return_value = [self.server('x')]
        now = timeutils.utcnow(True)
        kept = self.reader._locked
        kept.update((f's{number}', (now, True)) for number in range(5))
        with another_thread(reader, lambda times: (
                kept.setdefault(f'o{times}', (now, True)))):
            self.reader.read_preemptible()
        self.assertNotIn('s0', kept)
        self.assertIs(kept, self.reader._locked)

    def test_another_asks_for_more_traits(self) -> None:
        self.reader._having = {f'T{number}': {'u'} for number in range(5)}
        setattr(self.reader._placement, 'providers', lambda **_: {'u'})
        with another_thread(reader, lambda times: (
                self.reader._having.setdefault(f'CUSTOM_B{times}', set()))):
            self.reader.read_having(['CUSTOM_A'])
        self.assertLessEqual({'CUSTOM_A', 'CUSTOM_B0'},
                             self.reader._having.keys())


class ShapesTestCase(tests.TestCase):
    """What servers ask for is asked twice, and the first answer is late."""

    def test_the_newer_answer_stays(self) -> None:
        service = mock.Mock()
        forms = shapes.Shapes(service)
        server = mock.Mock(shelved=False, failed=False, id='w', project='p',
                           kind='', status='PENDING',
                           flavor=nova.Flavor('f', 1, 1, 1))

        def answer(amount: int) -> mock.Mock:
            return mock.Mock(
                requests=(f'resources=VCPU:{amount}',), message='', advice='',
                reason=model.Reason.NO_ROOM)

        def late(uuid: str, hosts: list[str]) -> mock.Mock:
            forms.forget()
            service.pending.side_effect = [answer(1)]
            forms.ask(server, {}, {'VCPU'})
            return answer(2)

        service.pending.side_effect = late
        forms.ask(server, {}, {'VCPU'})
        known = forms.fresh(server)
        assert known is not None
        self.assertEqual({'VCPU': 1}, known.shape.amounts)

    def test_an_answer_of_before_is_asked_for_again(self) -> None:
        service = mock.Mock()
        forms = shapes.Shapes(service)
        server = mock.Mock(shelved=False, failed=False, id='w', project='p',
                           kind='', status='PENDING',
                           flavor=nova.Flavor('f', 1, 1, 1))

        def late(uuid: str, hosts: list[str]) -> mock.Mock:
            forms._stale[forms.key(server)] = time.monotonic() + 1
            return mock.Mock(
                requests=('resources=VCPU:1',), message='', advice='',
                hosts={}, reason=model.Reason.NO_ROOM)

        service.pending.side_effect = late
        forms.ask(server, {}, {'VCPU'})
        self.assertIsNone(forms.fresh(server))
        self.assertIsNotNone(forms.known(server))


class NoticeTestCase(tests.TestCase):
    """A notice is withdrawn from a guest that shuts down."""

    def test_it_is_looked_at_anew(self) -> None:
        ends, room = mock.Mock(later=set()), mock.Mock()
        compute = mock.Mock()
        finder = recovery.Recovery(
            fakes.configuration(), compute, room, mock.Mock(), ends,
            mock.Mock(), mock.Mock(hypervisors={}), mock.Mock(), mock.Mock())
        compute.find.return_value = mock.Mock(
            id='s', task_state='powering-off', status='ACTIVE', metadata={
                shapes.TERMINATE_AT: '2020-01-01T00:00:00Z',
                shapes.FOR: 'w'})
        room.consumer.return_value.amounts = {'p': 1}

        def withdraw(*args: Any) -> None:
            ends.later.add('s')
            # The engine looks at each turn.
            self.assertFalse(finder.is_late)

        ends.withdraw.side_effect = withdraw
        finder._late['s'] = 0.0
        finder.withdraw_late([])
        ends.withdraw.assert_called_once()
        self.assertIn('s', finder._late)
