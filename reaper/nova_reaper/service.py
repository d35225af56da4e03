# SPDX-License-Identifier: Apache-2.0

"""Makes clients and an engine by the configuration, and runs the service.

If there are several reapers, the reaper that has a lock of tooz is active. Two
active reapers do no harm, since Placement and Nova refuse the second of two
writers. So it is enough that the active reaper stops to act if the backend
does not answer.
"""

from collections.abc import Callable
from concurrent import futures
import dataclasses
import functools
import gc
import os
import queue
import signal
import socket
import threading
import time
from typing import Any

from oslo_config import cfg
from oslo_log import log
import tooz
from tooz import coordination

from nova_reaper.act import ending
from nova_reaper.act import holds
from nova_reaper.act import recovery
from nova_reaper.act import steps
from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper import conf as reaper_conf
from nova_reaper import engine as engine_module
from nova_reaper.events import bus
from nova_reaper.events import reader
from nova_reaper.report import health
from nova_reaper.report import http
from nova_reaper.report import journal
from nova_reaper import world

LOG = log.getLogger(__name__)
# Seconds between two tries to find Nova, Placement and Keystone.
AGAIN = 5.0
# Seconds until a port that was in use is tried again.
LISTEN_AGAIN = 30.0
# Seconds for which the end of the reaper waits for a bus that hangs.
LEAVE = 5.0
# Seconds after which a process that is told to end does so in any case.
END = 60
# In the place of a signal's number: the engine's thread has ended by itself.
ENDED = 0
# Seconds for the first try to become active.
FIRST = 5.0


@dataclasses.dataclass(frozen=True, slots=True)
class Services:
    """The clients of the services, and the reaper's own project and user."""

    owners: nova.Owners
    nova: nova.Nova
    placement: placement.Placement
    keystone: rest.Keystone
    project: str
    user: str


def connect(conf: cfg.ConfigOpts, meters: health.Metrics) -> Services:
    """Find Nova, Placement and Keystone by the configuration.

    :raises: rest.RequestFailed; keystoneauth1's ClientException where
        Keystone refuses or does not answer
    """
    session = rest.load_session(conf)
    project, user = session.get_project_id() or '', session.get_user_id() or ''
    observe = meters.observe_request
    compute = nova.Nova(rest.load_client(
        nova.Client, conf, session, 'nova', observe),
        rest.Pace(conf.reaper.verdict_rate))
    return Services(
        nova.Owners(compute, project, functools.partial(
            rest.log_in, conf, session)), compute,
        placement.Placement(rest.load_client(
            placement.Client, conf, session, 'placement', observe)),
        rest.Keystone(rest.load_client(
            rest.Client, conf, session, 'keystone', observe)),
        project, user)


def build(conf: cfg.ConfigOpts, services: Services,
          meters: health.Metrics, pool: futures.Executor,
          readers: futures.Executor, book: journal.Journal
          ) -> engine_module.Engine:
    """Make an engine that is ready for its first turn.

    :param readers: a pool for the reading of hosts alone, because a job of the
        first pool waits for it
    """
    source = reader.Reader(services.nova, services.placement,
                           services.keystone, readers, conf)
    forms = shapes.Shapes(services.nova)
    held = holds.Holds(services.placement, services.project, services.user)
    ends = ending.Victims(conf, services.nova, book, meters, source)
    safe = health.Guard(conf, services.nova, meters, book)
    known = world.World(reaper_conf.options(conf), source, forms, meters)
    actor = steps.Actor(conf, services.nova, services.placement, held, ends,
                        services.owners, meters, book, lambda: safe.mode)
    finder = recovery.Recovery(conf, services.nova, services.placement, held,
                               ends, actor, source, meters,
                               known.waiting_for_job)
    return engine_module.Engine(
        conf, source, forms, actor, finder, safe, known,
        meters, pool, book)


class Coordinator:
    """Tries to make this reaper active, and notes if another reaper may act.

    :ivar active: set while this reaper is to act
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf.coordination
        self._stop = threading.Event()
        self._backend: Any = None
        self._lock: Any = None
        self._beat_at = 0.0
        self._thread: threading.Thread | None = None
        self._tried = threading.Event()
        self.active = threading.Event()
        self.error: str | None = None

    def start(self) -> None:
        """Begin to try, and wait for the first try, but not for ever.

        A reaper that is active at once need not look for what others did.
        """
        if not self._conf.backend_url:
            # There is no other reaper.
            self.active.set()
            return
        self._thread = threading.Thread(
            target=self._run, name='coordinator', daemon=True)
        self._thread.start()
        self._tried.wait(FIRST)

    def stop(self) -> None:
        """Stop, and leave the lock to another reaper."""
        self._stop.set()
        if self._thread:
            self._thread.join(10)
        self.active.clear()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._turn()
            except Exception as error:
                # tooz's drivers let errors of their own libraries through,
                # and the text of an error may have a URL with a password.
                self._lost(type(error).__name__)
            self._tried.set()
            self._stop.wait(self._conf.check_interval)
        self._close()

    def _turn(self) -> None:
        if self._backend is None:
            member = f'{socket.gethostname()}-{os.getpid()}'
            backend = coordination.get_coordinator(
                self._conf.backend_url, member.encode())
            backend.start()
            self._backend = backend
            self._lock = backend.get_lock(self._conf.lock_name.encode())
        last, self._beat_at = self._beat_at, time.monotonic()
        lasts = self._backend.heartbeat()
        if self.active.is_set():
            if not self._is_owner() or (
                    lasts and time.monotonic() - last >= lasts):
                self._lost('the lock has expired')
                return
        elif self._lock.acquire(blocking=False):
            LOG.info('This reaper is the active one now.')
            self.active.set()
        self.error = None

    def _is_owner(self) -> bool:
        try:
            return bool(self._lock.is_still_owner())
        except tooz.NotImplemented:
            # etcd: the time tells whether the lease has expired.
            return bool(self._lock.acquired)

    def _lost(self, why: str) -> None:
        if self.active.is_set():
            LOG.warning('This reaper is not the active one any more: %s.', why)
        elif self.error != why:
            LOG.warning('The coordination does not answer: %s.', why)
        self.error = why
        self.active.clear()
        self._close()

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        lock, self._lock = self._lock, None
        if backend is None:
            return
        try:
            if lock is not None and lock.acquired:
                lock.release()
            backend.stop()
        except Exception as error:
            LOG.info('The coordination did not end well: %s.',
                     type(error).__name__)


def spare(engine: engine_module.Engine) -> None:
    """Keep garbage collection from what lists have read, after collecting.

    A collection that looks at all that was read holds everything up for
    seconds.
    """
    if engine.loading:
        gc.collect(1)
        gc.freeze()


class Reaper:
    """Runs the engine, the HTTP server and the coordination.

    :param ended: is called when the engine has ended, told to or not
    """

    def __init__(self, conf: reaper_conf.Configuration,
                 ended: Callable[[], None] = lambda: None) -> None:
        self._conf = conf
        self._ended = ended
        self._stopping = threading.Event()
        self._engine: engine_module.Engine | None = None
        # Why the cloud cannot be asked.
        self._refusal: str | None = None
        self._metrics = health.Metrics()
        self._book = journal.Journal(conf)
        self._coordinator = Coordinator(conf)
        self._listening = bus.Listening(conf)
        self._shown = http.Shown(
            conf, lambda: self._refusal or self._coordinator.error)
        self._server: http.Server | None = None
        # When to try again to listen, by the monotonic clock.
        self._again = 0.0
        self._pool = futures.ThreadPoolExecutor(
            conf.reaper.workers, thread_name_prefix='asks')
        self._readers = futures.ThreadPoolExecutor(
            conf.placement.concurrency, thread_name_prefix='hosts')
        self._thread = threading.Thread(
            target=self._run_to_end, name='engine', daemon=True)

    def start(self) -> None:
        """Start the threads; return before any service has been asked."""
        if self._conf.coordination.backend_url and (
                self._conf.database.connection.startswith('sqlite')):
            LOG.warning(
                'Reapers that stand by for each other need one journal, and '
                '[database] connection names a file of this machine: a pause '
                'holds for this reaper alone, and caps by the hour count its '
                'own ends only.')
        self._book.start()
        self._thread.start()

    def _run_to_end(self) -> None:
        try:
            self._run()
        finally:
            self._ended()

    def _run(self) -> None:
        self._serve()
        services = self._connect()
        if services is None:
            return
        # A reaper that cannot ask the cloud must not be active.
        self._coordinator.start()
        engine = build(self._conf, services, self._metrics, self._pool,
                       self._readers, self._book)
        self._engine = engine
        self._shown.show(engine)
        # Keystone has answered by now.
        self._again = 0.0
        while not self._stopping.is_set():
            try:
                self._serve()
                self._take_part(engine)
                engine.turn()
                spare(engine)
            except Exception:
                # An error over one server or host must not stop the rest.
                LOG.exception('The engine goes on with the next turn.')
                self._stopping.wait(1.0)
        engine.jobs.stopping = True
        leaving = self._listening.leave()
        if leaving:
            leaving.join(LEAVE)

    def _connect(self) -> Services | None:
        while not self._stopping.is_set():
            try:
                services = connect(self._conf, self._metrics)
                self._refusal = None
                return services
            except Exception as error:
                # Libraries raise what they like for a wrong option or file.
                self._refusal = str(error) or type(error).__name__
                LOG.error('The cloud cannot be asked: %s', self._refusal)
                self._stopping.wait(AGAIN)
        return None

    def _serve(self) -> None:
        """Begin to answer, unless that has been done or failed just now."""
        group = self._conf.http
        if self._server or not group.enabled or (
                time.monotonic() < self._again):
            return
        try:
            self._server = http.Server(self._conf, http.application(
                self._conf, self._shown, self._metrics, self._book))
            port = self._server.start()
            LOG.info('Answering on %s, port %d.', group.listen, port)
        except Exception as error:
            # A port in use, or an option of [keystone_authtoken].
            self._server = None
            self._again = time.monotonic() + LISTEN_AGAIN
            LOG.error('Nothing is answered on %s, port %d: %s', group.listen,
                      group.port, error)

    def _take_part(self, engine: engine_module.Engine) -> None:
        """Listen if this is the reaper that acts, and only then."""
        active = self._coordinator.active.is_set()
        engine.guard.active = active
        if active:
            self._listening.listen(engine.mailbox, engine.guard.event)
        else:
            self._listening.leave()
        engine.guard.show()
        engine.guard.tell()

    @property
    def connected(self) -> bool:
        """Whether something may be under way that has to be ended."""
        return self._engine is not None

    def stop(self) -> None:
        """Tell the engine to stop; the next start finds what is under way."""
        self._stopping.set()
        if self._engine:
            self._engine.mailbox.wake()

    def wait(self, patience: float | None = None) -> None:
        """Wait for the engine, some seconds or for ever; stop the rest."""
        self._thread.join(patience)
        # A step that was begun is done; a list of all hosts is given up.
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=True, cancel_futures=True)
        if self._server:
            self._server.stop()
        self._coordinator.stop()
        self._book.leave()

    def pause(self) -> None:
        """Pause the reaper until an administrator resumes it."""
        self._book.pause_at_once('SIGUSR1')
        if self._engine:
            self._engine.mailbox.wake()

    def reset(self) -> None:
        """Read the options that may change again, all of them or none."""
        try:
            reaper_conf.mutate(self._conf)
        except (Exception, SystemExit) as error:
            # Libraries raise what they like for a wrong file; oslo.config ends
            # the process for a value of an option of the command line.
            LOG.error('The configuration is as it was, since it cannot be '
                      'read again: %s', error)
            return
        LOG.info('The configuration was read again; the mode is %s.',
                 self._conf.reaper.mode)
        if self._engine:
            self._engine.mailbox.wake()


def run(conf: reaper_conf.Configuration) -> int:
    """Run the service until it is told to stop; returns its exit code."""
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    # SIGINT comes from a terminal, SIGALRM where the end hangs. Without a
    # handler the first process of a container would ignore both.
    for number in (signal.SIGINT, signal.SIGALRM):
        signal.signal(number, lambda number, frame: os._exit(1))
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: told.put(number))
    reaper = Reaper(conf, lambda: told.put(ENDED))
    reaper.start()
    while (word := told.get()) in (signal.SIGHUP, signal.SIGUSR1):
        if word == signal.SIGUSR1:
            reaper.pause()
        else:
            reaper.reset()
    signal.alarm(END)
    reaper.stop()
    # Nothing is under way before the cloud could be asked.
    reaper.wait(None if reaper.connected else 0.0)
    return 0 if word == signal.SIGTERM else 1
