# SPDX-License-Identifier: Apache-2.0

"""Two reapers believe to be the active one, and act on one cloud."""

from collections.abc import Callable
from concurrent import futures
import copy
import dataclasses
import functools
import os
import random
import threading
from typing import Any

from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Step
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import service
from nova_reaper.tests import acting
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine
from nova_reaper import world

# Seconds for which a thread may work between two requests.
PATIENCE = 60.0
# Draws the order of requests; a developer tries other values.
SEED = int(os.environ.get('NOVA_REAPER_SEED', 1))


class Killed(BaseException):
    """The process of a thread was killed."""


class Task:
    """A job of a reaper in a thread of its own.

    :ivar request: what the job asks a service for and has no answer to
    :ivar answer: gives the answer, or raises an error
    """

    def __init__(self, call: Callable[[], object],
                 blocked: threading.Semaphore) -> None:
        self.request: Callable[[], Any] | None = None
        self.answer: Callable[[], Any] = lambda: None
        self.blocked = blocked
        self.answered = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, args=(call,),
                                       daemon=True)

    def _run(self, call: Callable[[], object]) -> None:
        CURRENT.task = self
        try:
            call()
        except Killed:
            pass
        self.request = None
        self.blocked.release()

    def ask(self, request: Callable[[], Any]) -> Any:
        self.request = request
        self.blocked.release()
        self.answered.acquire()
        return self.answer()


# The task of a thread.
CURRENT = threading.local()


class Pool(futures.Executor):
    """The threads of one reaper, of which at most one works at a time.

    A thread works until it asks a service. The thread of the test answers the
    request of any thread that it likes.
    """

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self._blocked = threading.Semaphore(0)

    def submit(self, call: Callable[..., Any], /,
               *args: Any, **kwargs: Any) -> futures.Future[Any]:
        task = Task(functools.partial(call, *args, **kwargs), self._blocked)
        task.thread.start()
        self._wait_for(task)
        return futures.Future()

    def answer(self, task: Task) -> None:
        """Have a service do what a job asks for, and the job go on."""
        self.tasks.remove(task)
        assert task.request
        try:
            task.answer = functools.partial(_same, task.request())
        except Exception as error:
            task.answer = functools.partial(_fail, error)
        task.answered.release()
        self._wait_for(task)

    def kill(self) -> None:
        """Have all threads end without an answer."""
        while self.tasks:
            task = self.tasks.pop()
            task.answer = functools.partial(_fail, Killed())
            task.answered.release()
            self._wait_for(task)

    def _wait_for(self, task: Task) -> None:
        assert self._blocked.acquire(timeout=PATIENCE), 'A thread hangs.'
        if task.request:
            self.tasks.append(task)
        else:
            task.thread.join()


def _same(answer: Any) -> Any:
    return answer


def _fail(error: BaseException) -> Any:
    raise error


class Gate:
    """An adapter: the threads of a pool wait here for their answers."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self.auth = fakes.Token(fakes.SERVICE)

    def request(self, path: str, method: str, **more: Any) -> Any:
        task = getattr(CURRENT, 'task', None)
        request = functools.partial(self._do, path, method, **more)
        return task.ask(request) if task else request()

    def _do(self, path: str, method: str, **more: Any) -> Any:
        asked = copy.copy(self._service)
        asked.auth = self.auth
        return asked.request(path, method, **more)


class TwoActiveTestCase(test_engine.EngineTestCase):
    """Three servers wait; a host is free, and on four others servers may end.

    The requests of the two reapers come in the order that a seed draws. By
    their configurations the reapers choose different victims.
    """

    options = {'mode': 'preempt', 'grace_period': 20, 'stop_timeout': 5,
               'hold_timeout': 60, 'full_list_interval': 60}
    scorers = ['priority', 'count'], ['count', 'priority']

    def setUp(self) -> None:
        super().setUp()
        self.victims: dict[str, list[str]] = {}
        for host, sizes in {'h1': (), 'h2': (8,), 'h3': (4, 4), 'h4': (4, 3),
                            'h5': (8,)}.items():
            self.nova.add_host(host, 8)
            self.victims[host] = [self.nova.add_server(
                'victim', size, host, preemptible=True) for size in sizes]
            for victim in self.victims[host]:
                flavor = self.nova.servers[victim]['flavor']
                flavor['extra_specs']['reaper:priority'] = str(
                    flavor['vcpus'])
        self.waiting = [self.nova.add_server(f'w{number}', 8)
                        for number in range(3)]

    def start_two(self) -> list[tuple[Any, Pool]]:
        made = []
        for scorers in self.scorers:
            self.conf = fakes.configuration(**self.options, scorers=scorers)
            self.start()
            pool, compute = Pool(), nova.Nova(
                nova.Client('nova', Gate(self.nova)))
            services = service.Services(
                nova.Owners(compute, fakes.SERVICE, self.nova.log_in), compute,
                placement.Placement(placement.Client(
                    'placement', Gate(self.room.adapter))),
                self.services.keystone, fakes.SERVICE, 'reaper')
            self.addCleanup(pool.kill)
            made.append((service.build(
                self.conf, services, self.metrics, pool,
                test_engine.Immediate(), self.new_book()), pool))
        return made

    def race(self, reapers: list[tuple[Any, Pool]], rand: random.Random,
             requests: int) -> None:
        """Let the reapers ask so much, one request after another."""
        while requests:
            tasks = [(pool, task) for _, pool in reapers
                     for task in pool.tasks]
            if tasks and rand.random() < 0.8:
                pool, task = rand.choice(tasks)
                pool.answer(task)
                requests -= 1
                continue
            reaper, _ = rand.choice(reapers)
            reaper.turn(0.0)
            if not tasks:
                # Time passes faster while nobody asks.
                self.offset += 2
            self.offset += rand.choice((0.0, 0.1, 0.5))

    def settle(self, reapers: list[tuple[Any, Pool]]) -> None:
        """Let the reapers bring to an end what they have begun."""
        for _ in range(60):
            for reaper, pool in reapers:
                reaper.turn(0.0)
                while pool.tasks:
                    pool.answer(pool.tasks[0])
            self.offset += 15

    def check(self) -> None:
        """Each server runs that waited, and no end was needless."""
        hosts = []
        for server in self.waiting:
            self.assertEqual('ACTIVE', self.status(server))
            self.assertEqual({'VCPU': 8, 'MEMORY_MB': 8192},
                             self.room.has(server))
            hosts.append(self.nova.servers[server]['OS-EXT-SRV-ATTR:host'])
            self.assertEqual(['rebuild'], [
                action['action']
                for action in self.nova.servers[server]['actions']])
        self.assertEqual(3, len(set(hosts)))
        self.assertIn('h1', hosts)
        for host, victims in self.victims.items():
            for victim in victims:
                known = self.nova.servers.get(victim)
                if host in hosts:
                    self.assertIsNone(known)
                    continue
                self.assertEqual(('ACTIVE', {}), known and (
                    known['status'], known['metadata']))
                self.assertEqual(known and known['flavor']['vcpus'],
                                 self.room.has(victim)['VCPU'])
        ends = [server for action, server in self.nova.calls
                if action == 'forceDelete']
        self.assertEqual(len(set(ends)), sum(
            len(self.victims[host]) for host in hosts))

    def end_some(self, rand: random.Random, share: float) -> None:
        """Have hosts end some of the servers that they are to end."""
        for server, item in list(self.nova.servers.items()):
            if item.get('ending') and rand.random() < share:
                self.nova.finish(server)

    def test_both_live(self) -> None:
        rand, reapers = random.Random(SEED), self.start_two()
        self.race(reapers, rand, 400)
        self.settle(reapers)
        self.check()

    def test_ends_take_long(self) -> None:
        rand, reapers = random.Random(SEED), self.start_two()
        self.nova.slow = True
        for _ in range(60):
            self.race(reapers, rand, 10)
            self.end_some(rand, 0.2)
        self.nova.slow = False
        self.end_some(rand, 1.0)
        self.settle(reapers)
        self.check()

    def test_a_reaper_is_killed(self) -> None:
        rand, reapers = random.Random(SEED), self.start_two()
        self.race(reapers, rand, rand.randrange(50, 300))
        _, pool = reapers.pop()
        pool.kill()
        self.settle(reapers)
        self.check()


class HoldElsewhereTestCase(acting.ActingTestCase):
    """Another reaper makes room for the same server on another host."""

    options = {'grace_period': 60}

    def setUp(self) -> None:
        super().setUp()
        for host in ('h1', 'h2'):
            self.nova.add_host(host, 8)
        self.victim = self.nova.add_server('s', 7, 'h1', preemptible=True)
        self.waiting = self.nova.add_server('w', 8)

    def hold(self) -> None:
        self.room.holds.take(self.waiting, {self.nova.hosts['h2']: {
            'VCPU': 8, 'MEMORY_MB': 8192}})

    def check(self, current: attempts.Attempt) -> None:
        """The notice runs out, and nothing of the other reaper is touched."""
        result = self.outcome(dataclasses.replace(
            current, terminate_at=timeutils.utcnow(True)))
        self.assertEqual(model.Result.CONFLICT, result.result)
        held = self.room.holds.find(self.waiting)
        self.assertEqual([self.nova.hosts['h2']], [*held.amounts]
                         if held else None)
        self.assertEqual([], self.actions())
        self.assertNotIn(shapes.FOR,
                         self.nova.servers[self.victim]['metadata'])
        self.assertEqual(7, self.room.has(self.victim)['VCPU'])

    def test_before_the_check(self) -> None:
        self.hold()
        result = self.outcome(self.begin(
            self.waiting, victims=(self.victim,)))
        self.assertEqual(
            (model.Result.CONFLICT, world.Cause.INTERRUPTED),
            (result.result, result.cause))
        self.assertEqual({}, self.nova.servers[self.victim]['metadata'])
        self.assertIsNotNone(self.room.holds.find(self.waiting))

    def test_before_the_notice(self) -> None:
        current = self.at(Step.NOTICE, self.begin(
            self.waiting, victims=(self.victim,)))
        self.hold()
        self.check(self.at(Step.GRACE, current))

    def test_after_the_notice(self) -> None:
        current = self.at(Step.GRACE, self.begin(
            self.waiting, victims=(self.victim,)))
        # As Nova does when the owner has rebuilt the server in vain.
        self.room.holds.release(self.waiting)
        self.hold()
        self.check(current)

    def test_there_is_room(self) -> None:
        self.nova.delete(self.victim)
        self.victim = self.nova.add_server('s', 7, preemptible=True)
        current = self.at(Step.HOLD, self.begin(self.waiting))
        self.hold()
        result = self.outcome(current.but(unsure=True))
        self.assertEqual(model.Result.CONFLICT, result.result)
        self.assertIsNotNone(self.room.holds.find(self.waiting))
