# SPDX-License-Identifier: Apache-2.0

"""Keeps what the reaper knows and plans, and what became of servers.

The world asks no service. Its owner, the engine, holds the lock of the world.
"""

import collections
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import datetime
import enum
import threading
import time
from typing import Any

from oslo_log import log
from oslo_utils import timeutils

from nova_reaper.clients import nova
from nova_reaper.clients import shapes
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.events import reader
from nova_reaper.queue import queue as queue_module
from nova_reaper.report import answers
from nova_reaper.report import health
from nova_reaper.report import journal

LOG = log.getLogger(__name__)
# A miss, and a withdrawal for better victims, counts for so long.
COUNTS_FOR = datetime.timedelta(hours=1)


class Cause(enum.Enum):
    """Why an attempt came to nothing."""

    SERVER = enum.auto()       # Nova refused the server
    HOST = enum.auto()         # a host could not build the server
    INTERRUPTED = enum.auto()  # a host or a service died during the build
    SERVICE = enum.auto()      # a service did not answer, or failed
    RACE = enum.auto()         # another client took the room first


# Causes that lie with the server. Any other cause passes.
OWN = frozenset({Cause.SERVER, Cause.HOST})


@dataclasses.dataclass(slots=True)
class History:
    """What became of a server since the reaper knows of it.

    model.Waiting describes the other fields.

    :ivar last: the time of the last attempt
    :ivar builds: how many builds have failed on a host
    :ivar withdrawn_at: when notices were withdrawn for better victims last
    """

    attempts: int = 1
    last: datetime.datetime | None = None
    failures: int = 0
    failed_at: datetime.datetime | None = None
    builds: int = 0
    withdrawn_at: datetime.datetime | None = None
    reason: model.Reason | None = None
    avoid: str | None = None
    paused_until: datetime.datetime | None = None

    def asked(self, now: datetime.datetime) -> None:
        """Count that the reaper asked Nova to build the server."""
        self.attempts += 1
        # The journal may tell of an older attempt later.
        self.last = max(now, self.last or now)

    def came_to_nothing(self, cause: Cause, reason: model.Reason | None,
                        host: str, now: datetime.datetime, pause: int
                        ) -> None:
        """Count an attempt after which the server waits again.

        :param reason: what Nova says of the attempt
        :param host: on which the server was to be built
        :param pause: seconds until the next try after a fault of a service
        """
        self.avoid = (host if cause in (Cause.HOST, Cause.INTERRUPTED)
                      else None)
        if cause is Cause.SERVICE:
            self.paused_until = now + datetime.timedelta(seconds=pause)
        if cause is Cause.HOST:
            self.builds += 1
        if cause is Cause.SERVER or cause is Cause.HOST and self.builds > 1:
            self.failures += 1
            # The journal may tell of an older failure later.
            self.failed_at = max(now, self.failed_at or now)
        if cause in OWN:
            self.reason = reason

    def may_withdraw(self, now: datetime.datetime) -> bool:
        """Return whether notices may be withdrawn for better victims.

        Plans of other servers change prices all the time. If notices were
        withdrawn each time, nobody would be ended.
        """
        return self.withdrawn_at is None or (
            now - self.withdrawn_at >= COUNTS_FOR)

    def of(self, waiting: model.Waiting) -> model.Waiting:
        """Return a copy of the server with its history."""
        return dataclasses.replace(
            waiting, attempts=self.attempts,
            last_attempt=self.last or waiting.last_attempt,
            failures=self.failures, failed_at=self.failed_at,
            paused_until=self.paused_until, avoid=self.avoid,
            reason=self.reason or waiting.reason)


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """Servers were ended for a server that did not run all the same.

    :ivar at: when the server turned out not to run
    :ivar why: what Nova or the host said
    """

    at: datetime.datetime
    why: str


class Misses:
    """Keeps misses by the key of a shape, for as long as the misses count.

    Misses of a server that hosts could not build are kept by the server's ID,
    too.
    """

    def __init__(self) -> None:
        self._misses: dict[str, list[Miss]] = {}

    def add(self, key: str, miss: Miss) -> int:
        """Count a miss of a shape's key or server's ID; return how many."""
        misses = [*self._current(key, miss.at), miss]
        # Shapes of which no miss counts any more are dropped.
        self._misses = {
            other: known for other, known in self._misses.items()
            if known[-1].at > miss.at - COUNTS_FOR} | {key: misses}
        return len(misses)

    def objection(self, key: str, most: int, now: datetime.datetime) -> str:
        """Return why nobody is ended for a server, '' if that is allowed.

        :param key: of the shape of the server, or the server's ID
        :param most: the number of misses that forbids further ends
        """
        misses = self._current(key, now)
        if not most or len(misses) < most:
            return ''
        until = misses[-most].at + COUNTS_FOR
        return (f'Nobody is ended for the server until '
                f'{model.time_text(until)}: {len(misses)} of its kind did not '
                f'run within the hour after others had been ended for them. '
                f'The last one: {misses[-1].why}')

    def clear(self) -> None:
        """Forget all misses."""
        self._misses.clear()

    def _current(self, key: str, now: datetime.datetime) -> list[Miss]:
        return [miss for miss in self._misses.get(key, ())
                if miss.at > now - COUNTS_FOR]


class World:
    """Keeps hosts and waiting servers, planned by the options in force.

    :ivar servers: all servers that wait, as Nova shows them
    :ivar not_asked: the servers whose owners have not asked to wait, which the
        queue does not have
    :ivar max_misses: the option of that name
    :ivar lock: a thread that uses anything of the world holds the lock
    """

    def __init__(self, options: model.Options, source: reader.Reader,
                 forms: shapes.Shapes, meters: health.Metrics) -> None:
        self._reader = source
        self._shapes = forms
        self.lock = threading.RLock()
        self.options = options
        self.index = index_module.Index(options)
        self.queue = queue_module.Queue(options)
        self.planner = choose.Planner(self.index, self.queue, options)
        self.views: dict[str, reader.HostView] = {}
        self.servers: dict[str, nova.NovaServer] = {}
        self.not_asked: dict[str, model.Waiting] = {}
        self.told = answers.Decisions(meters)
        self.history: dict[str, History] = (
            collections.defaultdict(History))
        self.misses = Misses()
        self.max_misses = 0
        # By ID of a preemptible server: until when it is left alone, by the
        # monotonic clock, and when it ran again after the reaper had ended it.
        self._avoided: dict[str, float] = {}
        self._returned_at: dict[str, datetime.datetime] = {}
        # The least amount that some server asks for, by resource class.
        self._least: dict[str, int] = {}
        # How many servers wait by state and word, as gauges show them, and
        # for how long the oldest of each state has waited, in seconds.
        self._counts: collections.Counter[tuple[str, str]] = (
            collections.Counter())
        self._oldest: dict[str, float] = {}

    def use(self, options: model.Options, attempts: Collection[str]) -> None:
        """Plan by other options, but leave the servers of attempts alone."""
        self.options = options
        # A list that is not believed may have shown that no host could take a
        # server: no server is given up before that is decided again.
        self.told.forget(model.NEVER)
        self.index.slots.use(options)
        self.planner.use(options)
        self.queue.use(options, timeutils.utcnow(True))
        for server in list(self.servers):
            if server not in attempts:
                self.put_again(server)

    def put_host(self, view: reader.HostView, wake: bool = False) -> bool:
        """Keep a host as it was read; returns whether the host has changed.

        :param wake: whether to wake the demands that the host could help even
            if the host has not changed
        """
        view, name = self._known_by_now(view), view.host.name
        before = self.views.get(name)
        # A list that began while another reaper was active may have the host
        # as it was before its outline was read.
        if before and (before.read_at >= view.read_at
                       if before.outlined == view.outlined
                       else view.outlined):
            changed, row = False, self.index.rows[name]
        else:
            self.views[name] = view
            row = self.index.put(view.host, view.servers)
            for one in view.host.providers:
                if one.shared:
                    self.index.share(one.name, self._reader.used_of(one.name))
            changed = self.index.exclusions.trust(name) or not before or (
                before.host, before.servers) != (view.host, view.servers)
        if changed or wake:
            self.queue.host_changed(self.index, row)
        if self.index.grown:
            self.queue.wake_short(self.index.take_grown())
        return changed

    def _known_by_now(self, view: reader.HostView) -> reader.HostView:
        """Return a host as it was read, with what became known since then.

        The reaper asks for a trait once a server asks for the trait, and the
        journal, or an attempt, may tell later what protects a server.
        """
        view, now = self._reader.with_traits(view), time.monotonic()
        if all(server.id not in self._avoided and
               server.id not in self._returned_at for server in view.servers):
            return view
        return dataclasses.replace(view, servers=tuple(
            dataclasses.replace(
                server, last_ended_at=self._returned_at.get(server.id),
                locked=server.locked or now < self._avoided.get(server.id, 0))
            for server in view.servers))

    def _put_again(self, host: str) -> bool:
        """Have the index count what became known of a host since it was read.

        :returns: whether anything became known
        """
        before = self.views.get(host)
        if before is None:
            return False
        view = self._known_by_now(before)
        if view == before:
            return False
        self.views[host] = view
        row = self.index.put(view.host, view.servers)
        if view.host != before.host:
            # The host may have a trait now for which a demand sleeps.
            self.queue.host_changed(self.index, row)
        return True

    def avoid(self, host: str, servers: Collection[str] | None,
              seconds: float) -> None:
        """Have servers of a host, None for all, left alone for seconds."""
        if servers is None:
            view = self.views.get(host)
            servers = [server.id for server in view.servers] if view else ()
        until = time.monotonic() + seconds
        self._avoided.update(dict.fromkeys(servers, until))
        self._put_again(host)

    def has_returned(self, server: str, at: datetime.datetime) -> None:
        """Protect for repeat_protection a server that runs again."""
        self._returned_at[server] = at
        if known := self.index.slots.find(server):
            self._put_again(known.host)

    def learn(self) -> Iterator[None]:
        """Put the traits and aggregates that the reader has learnt of.

        Iterate the result: each item puts one host.
        """
        for name in self._reader.take_learned():
            if self._put_again(name):
                yield

    def remove_host(self, name: str) -> None:
        """Forget a host that is gone, and the plans for the host."""
        self.views.pop(name, None)
        self.index.exclusions.trust(name)
        for plan in self.index.planned(name):
            self.index.drop_plan(plan.server)
        self.index.remove(name)

    def put_server(self, server: nova.NovaServer, answer: shapes.Answer,
                   busy: bool = False) -> bool:
        """Keep a server that waits; returns whether the server is new.

        :param answer: what Nova says of the server's shape
        :param busy: whether an attempt for the server is under way
        """
        if server.failed and queue_module.is_late(
                self._waiting(server, answer), self.options,
                timeutils.utcnow(True)):
            # The server is in ERROR already, and is not given up again.
            self.discard(server.id)
            return False
        new = server.id not in self.servers
        self.servers[server.id] = server
        if not busy:
            self.put_again(server.id)
        return new

    def _waiting(self, server: nova.NovaServer, answer: shapes.Answer
                 ) -> model.Waiting:
        return shapes.waiting(server, answer, self._reader.properties.get(
            server.project, {}))

    def ask_again(self, filters: bool) -> None:
        """Ask again where Placement had no room, or filters refused, too."""
        said = self.index.exclusions
        self.queue.wake_shapes(said.forget_offers() | (
            said.forget_refusals() if filters else set()))

    def waiting(self, server: str) -> model.Waiting | None:
        """Return a server as the queue has it, None if it does not wait."""
        answer = self.answer(server)
        if answer is None:
            return self.queue.get(server)
        made = self.history[server].of(
            self._waiting(self.servers[server], answer))
        now = timeutils.utcnow(True)
        spared = self.misses.objection(server, 1, now) or (
            self.misses.objection(made.shape.key, self.max_misses, now))
        if made.shelved or not spared:
            return made
        return dataclasses.replace(
            made, spared=spared,
            shape=dataclasses.replace(made.shape, fill_only=True))

    def waiting_for_job(self, server: str) -> model.Waiting | None:
        """Return what waiting() returns, to a thread without the lock."""
        with self.lock:
            return self.waiting(server)

    def measure(self) -> Iterator[None]:
        """Find out again what servers ask for, and tell each its decision.

        What is known of shapes and demands without a server is forgotten.
        Iterate the result: each item looks at one server.
        """
        now = timeutils.utcnow(True)
        demands: set[model.Demand] = set()
        asked: set[model.Shape] = set()
        least: dict[str, int] = {}
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        oldest: dict[str, float] = {}
        for server in list(self.servers.values()):
            yield
            if server.id not in self.servers:
                continue
            waiting = self.queue.get(server.id)
            if waiting and waiting.spared:
                # The misses may have been too long ago by now.
                self.put_again(server.id)
                waiting = self.queue.get(server.id)
            known, demand = None, waiting.demand if waiting else None
            if demand:
                known = self.queue.asleep(demand)
            if demand and demand not in demands:
                demands.add(demand)
                asked.add(demand.shape)
                least = _lowest(least, demand.shape)
            last = self.told.last.get(server.id)
            if known and (last is None or not last.decision.hindrance and (
                    last.decision.reason is not known.reason)):
                # A decision holds for all servers of the demand.
                self.told.tell(dataclasses.replace(
                    known, server=server.id), timeutils.utcnow(True))
                last = self.told.last[server.id]
            state = 'shelved' if server.shelved else 'pending'
            word = last.decision.word if last else None
            counts[state, word or 'none'] += 1
            if server.id not in self.not_asked:
                oldest[state] = max(oldest.get(state, 0.0), (
                    now - shapes.waits_since(server)).total_seconds())
        self._counts, self._oldest, self._least = counts, oldest, least
        self.index.exclusions.keep_only(asked)
        kept: dict[str, Any]
        for kept in (self._avoided, self._returned_at):
            for uuid in kept.keys() - self._reader.preemptible.keys():
                del kept[uuid]
        yield
        self.queue.keep_only(demands)

    def has_room(self, host: str) -> bool:
        """Return whether some server may find room on a host, as far as known.

        A host without such room need not be read again when room is taken.
        """
        row = self.index.rows.get(host)
        return row is not None and all(
            self.index.free[self.index.classes[name]][row] >= amount
            for name, amount in self._least.items()
            if name in self.index.classes)

    def answer(self, server: str) -> shapes.Answer | None:
        """Return what Nova says of a server's shape, None if not known."""
        item = self.servers.get(server)
        return self._shapes.known(item) if item else None

    def missed(self, waiting: model.Waiting, cause: Cause,
               why: str) -> bool:
        """Count that servers were ended for a server that did not run.

        Faults of services pass, and do not count.

        :returns: whether the miss counts
        """
        if cause not in OWN:
            return False
        miss = Miss(timeutils.utcnow(True), why)
        if cause is Cause.HOST:
            # More room would not help a server whose build fails on hosts.
            self.misses.add(waiting.id, miss)
        count = self.misses.add(waiting.shape.key, miss)
        if count >= self.max_misses:
            LOG.warning('Nobody is ended for an hour for servers like %s '
                        '(%s), of which %d did not run after others had been '
                        'ended for them: %s', waiting.id, waiting.flavor,
                        count, why)
        return True

    def remember(self, memory: journal.Memory) -> None:
        """Take over from the journal what earlier reapers knew."""
        # Servers may have been ended since the time that the memory is of.
        self.planner.ends = collections.deque(sorted((
            *(choose.End(end.server, end.project, end.at)
              for end in memory.ends),
            *(choose.End(end.server, end.project, end.at, stuck=True)
              for end in memory.begun
              if end.kind is journal.Kind.WITHDRAWAL),
            *self.planner.ends),
            key=lambda end: end.time))
        for build in reversed(memory.missed):
            miss = Miss(build.at, build.detail.get('why') or '')
            self.misses.add(build.detail['missed'], miss)
            if build.detail.get('reason') == model.Reason.BUILD_FAILED:
                self.misses.add(build.server, miss)
        for back in memory.returns:
            self.has_returned(back.server, back.at)
        for stuck in memory.stuck:
            self.avoid(stuck.host, (stuck.server,), (
                stuck.at - memory.until).total_seconds() + memory.exclusion)

    def remember_builds(self, memory: journal.Memory, busy: Collection[str]
                        ) -> None:
        """Count what earlier reapers have built, and what failed.

        The shares are of the capacity of the hosts that are known by now, or
        of all that was built if no host is known.

        :param busy: IDs of servers that attempts are under way for
        """
        totals = collections.Counter(self.index.totals())
        for build in () if self.views else memory.builds:
            totals.update(build.detail.get('resources', {}))
        for build in memory.builds:
            self.queue.share.give(build.project, build.detail.get(
                'resources', {}), totals, build.at)
        for build in reversed(memory.failed):
            reason = model.Reason(build.detail['reason'])
            self.history[build.server].asked(build.at)
            self.history[build.server].came_to_nothing(
                Cause.HOST if reason is model.Reason.BUILD_FAILED
                else Cause.SERVER, reason, build.host, build.at, 0)
        for server in {build.server
                       for build in memory.failed}.difference(busy):
            self.put_again(server)

    def complete(self) -> None:
        """Note that all hosts and all servers that wait are known by now."""
        self.queue.share.measure(self.index.totals())
        for server in self.history.keys() - self.servers.keys():
            del self.history[server]

    def forget(self) -> None:
        """Forget what this reaper did: the active reaper remembers it."""
        self.planner.ends.clear()
        self.planner.to_end.clear()
        self.queue.share.forget()
        self.history.clear()
        self.misses.clear()

    def put_again(self, server: str) -> None:
        """Give the queue what is known of a server now."""
        waiting = self.waiting(server)
        if waiting is None:
            return
        if waiting.is_wanted(self.options.wait):
            self.not_asked.pop(server, None)
            self._least = _lowest(self._least, waiting.shape)
            self.queue.put(waiting, timeutils.utcnow(True))
            return
        if server not in self.not_asked:
            self._leave_queue(server)
            self.told.say(waiting, queue_module.not_asked(waiting),
                          self.options.mode, timeutils.utcnow(True))
        self.not_asked[server] = waiting

    def discard(self, server: str, planned: bool = False) -> None:
        """Forget a server that waits no more; keep its plan if planned."""
        self.servers.pop(server, None)
        self.told.last.pop(server, None)
        self.history.pop(server, None)
        self.not_asked.pop(server, None)
        if planned:
            self.queue.discard(server)
        else:
            self._leave_queue(server)

    def _leave_queue(self, server: str) -> None:
        """Take a server out of the queue, and drop the plan for its room."""
        plan = self.index.plans.get(server)
        if plan:
            self.index.drop_plan(server)
            row = self.index.rows.get(plan.host)
            if row is not None:
                self.queue.host_changed(self.index, row)
        self.queue.discard(server)

    def show(self) -> None:
        """Bring the gauges up to date."""
        self.told.show(self._counts, self._oldest, len(self.views),
                       len(self.index.slots))


def _lowest(least: Mapping[str, int], shape: model.Shape) -> dict[str, int]:
    """Return the least amounts, by class, of some shapes and one more."""
    asked = dict(shape.by_host)
    return {name: min(amount, asked[name]) for name, amount
            in (least or asked).items() if name in asked}
