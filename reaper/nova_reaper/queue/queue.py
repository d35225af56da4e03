# SPDX-License-Identifier: Apache-2.0

"""Who is next: priority, then fair share between projects, then age.

Of servers of the same age the one that was put first is first.

Servers of one demand are decided once: when there is nothing for one of them,
all of them sleep until something changes that could help. One that cannot be
placed is never in the way of those behind it.

A server backs off after what Nova refused, and after builds that failed on two
hosts. Nothing else costs a server its place: neither rebuilds by its owner,
nor races that are lost, nor faults of services. Nothing here asks anybody; it
is not safe for threads.
"""

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import datetime
import enum
import heapq

from nova_reaper.clients import nova
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.queue import lines as lines_module

# Places that are nobody's any more are dropped when there are more of them
# than this and two for each server.
_STALE = 1000

NOT_ASKED = (
    'It waits for its owner to ask: rebuild it at microversion 2.106 or '
    'later, or create such servers with the metadata reaper:wait=true.')


def due_at(waiting: model.Waiting,
           options: model.Options) -> datetime.datetime | None:
    """Until when a server backs off, None if it may be tried at any moment.

    The first attempt is the create, which knows nothing of room to come: only
    rebuilds that failed count.
    """
    failed, paused = waiting.failures, waiting.paused_until
    if failed < 1 or waiting.failed_at is None:
        return paused
    interval = options.retry_interval
    if waiting.reason is model.Reason.BUILD_FAILED:
        interval = options.build_failed_retry_interval
    # An exponent that large is capped in any case.
    interval = min(interval << min(failed - 1, 32),
                   max(interval, options.max_retry_interval))
    due = waiting.failed_at + datetime.timedelta(seconds=interval)
    return max(due, paused) if paused else due


def deadline(waiting: model.Waiting,
             options: model.Options) -> datetime.datetime | None:
    """When a server is given up, None for never."""
    timeout = waiting.pending_timeout
    if timeout is None:
        timeout = options.pending_timeout
    if not timeout or waiting.shelved:
        return None
    return waiting.created_at + datetime.timedelta(seconds=timeout)


def expired(servers: Iterable[model.Waiting], options: model.Options,
            now: datetime.datetime) -> Iterator[model.Waiting]:
    """Those of some servers that wait past their deadline."""
    for waiting in servers:
        end = deadline(waiting, options)
        if end is not None and end <= now:
            yield waiting


def not_asked(waiting: model.Waiting) -> model.Decision:
    """The decision on a server whose owner has not asked to wait."""
    return model.Decision(
        waiting.id, model.Verdict.WAIT,
        reason=waiting.reason or model.Reason.UNKNOWN,
        hindrance=model.Hindrance.NOT_ASKED, detail=NOT_ASKED)


@dataclasses.dataclass(slots=True)
class _Item:
    """A server in the queue.

    :ivar arrival: how many were put before it
    :ivar token: of the place where it stands, 0 before the first; places with
        another token are nobody's any more
    :ivar out: whether it is taken out, and not given back yet
    """

    waiting: model.Waiting
    arrival: int
    token: int = 0
    out: bool = False


class Queue:
    """The servers that wait."""

    def __init__(self, options: model.Options) -> None:
        self._options = options
        self.share = lines_module.FairShare(options.fair_share_half_life)
        self._items: dict[str, _Item] = {}
        self._arrival = 0
        self._token = 0
        self._stale = 0
        self._closed: frozenset[str] = frozenset()
        self._levels: dict[tuple[bool, int], lines_module.Level] = {}
        # Those that back off: until when, and with which token.
        self._later: list[tuple[datetime.datetime, str, int]] = []
        self._totals: Mapping[str, int] = {}
        self._lines: dict[model.Demand, dict[
            tuple[bool, int, str], lines_module.Line]] = {}
        self._sleeping = lines_module.Sleepers(options)
        # Demands that were woken for the hosts alone that have changed.
        self._slept: dict[model.Demand, lines_module.Sleep] = {}
        self._alarms: list[tuple[datetime.datetime, int, model.Demand]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, server: str) -> bool:
        return server in self._items

    def __iter__(self) -> Iterator[model.Waiting]:
        return (item.waiting for item in self._items.values())

    def get(self, server: str) -> model.Waiting | None:
        """The server that waits under an ID."""
        item = self._items.get(server)
        return item.waiting if item else None

    def use(self, options: model.Options, now: datetime.datetime) -> None:
        """Order and wake by other options from now on."""
        self._options = self._sleeping.options = options
        if self.share.use(options.fair_share_half_life, now):
            for level in self._levels.values():
                level.reorder_all()
        self.wake_all()
        for _due, server, token in list(self._later):
            if self._stands(server, token):
                self._enqueue(self._items[server], now)

    def in_order(self) -> list[model.Waiting]:
        """All that wait, in the order of now; what is given will change it."""
        return sorted(self, key=self.rank)

    def rank(self, waiting: model.Waiting
             ) -> tuple[bool, int, float, datetime.datetime, int]:
        """Where a server stands, the smaller the sooner."""
        item = self._items.get(waiting.id)
        return (waiting.shelved, -waiting.priority,
                self.share.of(waiting.project), waiting.created_at,
                item.arrival if item else self._arrival)

    def put(self, waiting: model.Waiting, now: datetime.datetime) -> None:
        """Add a server, or say anew what is known of it.

        One that was taken out and not given back yet stays out.
        """
        item = self._items.get(waiting.id)
        if item is None:
            self._arrival += 1
            item = self._items[waiting.id] = _Item(waiting, self._arrival)
        elif item.waiting == waiting:
            return
        item.waiting = waiting
        if not item.out:
            self._enqueue(item, now)
        if self._stale > _STALE + 2 * len(self._items):
            self._compact()

    def discard(self, server: str) -> None:
        """Forget a server: it runs, is gone or was given up."""
        self.share.settle(server)
        item = self._items.pop(server, None)
        self._stale += item is not None and item.token > 0

    def pop(self, now: datetime.datetime,
            asleep: bool = False) -> model.Waiting | None:
        """Take out the next server that may be tried, None if there is none.

        It is out until it is given back, put to sleep or discarded.

        :param asleep: whether to return those as well whose demand sleeps;
            they sleep on
        """
        self._release(now)
        for key in sorted(self._levels):
            level = self._levels[key]
            while (entry := level.pop(self._closed)) is not None:
                place, line = entry
                if not line.places or line.places[0] != place:
                    continue
                _created, _arrival, server, token = place
                sleeps = line.demand in self._sleeping.sleeps
                if self._stands(server, token):
                    if sleeps and not asleep:
                        # All of the line is noted when it wakes up.
                        continue
                    heapq.heappop(line.places)
                    if sleeps:
                        line.parked.append(place)
                    else:
                        self._items[server].out = True
                    self._note(line)
                    return self._items[server].waiting
                heapq.heappop(line.places)
                self._note(line)
            if not level:
                del self._levels[key]
        return None

    def close(self, projects: Collection[str]) -> None:
        """Pass over the servers of these projects, and of no others."""
        opened = self._closed - set(projects)
        self._closed = frozenset(projects)
        for project in opened:
            self._reorder(project)

    def give_back(self, server: str, now: datetime.datetime) -> None:
        """Nothing came of it: it waits again, and was given nothing."""
        project = self.share.take_back(server, self._totals)
        if project is not None:
            self._reorder(project)
        item = self._items.get(server)
        if item and item.out:
            item.out = False
            self._enqueue(item, now)

    def grant(self, waiting: model.Waiting, totals: Mapping[str, int],
              now: datetime.datetime) -> None:
        """Count what a server is given for the fair share of its project.

        :param totals: the capacity of the cloud, by resource class
        """
        self._totals = totals
        self.share.give(waiting.project, waiting.shape.amounts, totals, now,
                        waiting.id)
        self._reorder(waiting.project)

    def remember(self, project: str, amounts: Mapping[str, int],
                 totals: Mapping[str, int], at: datetime.datetime) -> None:
        """Count for the fair share what a project was given at a time."""
        self.share.give(project, amounts, totals, at)
        self._reorder(project)

    def asleep(self, demand: model.Demand) -> model.Decision | None:
        """Why a demand sleeps, None if it does not."""
        sleep = self._sleeping.sleeps.get(demand)
        return sleep.decision if sleep else None

    def slept(self, demand: model.Demand) -> lines_module.Sleep | None:
        """With what a demand slept until some hosts changed.

        :returns: None if all hosts are to be looked at
        """
        return self._slept.get(demand)

    def sleep(self, waiting: model.Waiting, decision: model.Decision,
              index: index_module.Index, seen: int, now: datetime.datetime,
              until: datetime.datetime | None = None,
              complete: bool = True) -> bool:
        """There is nothing for a server, and so for none of its demand.

        :param seen: the version of the index that was decided by. If a host
            has changed since then that could help, nobody sleeps
        :param until: when to look again, should nothing change
        :param complete: whether hosts that do not change will not do then
        :returns: whether it sleeps
        """
        item = self._items.get(waiting.id)
        if item:
            item.out = False
        demand = waiting.demand
        if any(self._sleeping.would_help(index, row, demand)
               for row in index.changed_since(seen)):
            if item:
                self._enqueue(item, now)
            return False
        sleep = self._sleeping.sleeps.get(demand)
        if sleep is None:
            sleep = lines_module.Sleep(decision, until, seen, complete)
            self._sleeping.add(demand, sleep)
            self._slept.pop(demand, None)
        sleep.decision, sleep.until = decision, until
        if until is not None:
            self._token += 1
            heapq.heappush(self._alarms, (until, self._token, demand))
        if item:
            self._line(waiting).parked.append(self._place(item))
        return True

    def host_changed(self, index: index_module.Index, row: int) -> int:
        """Wake the demands that a changed host could help.

        :returns: how many those are
        """
        demands = self._sleeping.helped_by(index, row)
        for demand in demands:
            sleep = self._sleeping.sleeps[demand]
            self.wake(demand)
            if len(self._slept) > len(self._items):
                # Nobody waits for some of these any more.
                self._slept.clear()
            if sleep.complete:
                self._slept[demand] = sleep
        return len(demands)

    def wake(self, demand: model.Demand) -> None:
        """Look at the servers of a demand again."""
        self._slept.pop(demand, None)
        if self._sleeping.pop(demand) is None:
            return
        for line in list(self._lines.get(demand, {}).values()):
            while line.parked:
                heapq.heappush(line.places, line.parked.pop())
            self._note(line)

    def wake_shape(self, shape: model.Shape) -> None:
        """Look at all demands of a shape again: filters say otherwise now."""
        self._wake_those(lambda demand, _sleep: demand.shape == shape)

    def keep_only(self, demands: Collection[model.Demand]) -> None:
        """Forget demands that nobody waits with any more."""
        self._wake_those(lambda demand, _sleep: demand not in demands)

    def wake_protected(self) -> None:
        """Wake those for whom protected servers would have had to end."""
        self._wake_those(lambda _demand, sleep: sleep.decision.hindrance is (
            model.Hindrance.PROTECTED))

    def wake_all(self) -> None:
        """Look at everything again."""
        self._wake_those(lambda _demand, _sleep: True)

    def _wake_those(self, are_meant: Callable[
            [model.Demand, lines_module.Sleep], bool]) -> None:
        for demand, sleep in [*self._sleeping.sleeps.items(),
                              *self._slept.items()]:
            if are_meant(demand, sleep):
                self.wake(demand)

    def expired(self, now: datetime.datetime) -> list[model.Waiting]:
        """Those that wait past their deadline and are not taken out."""
        return list(expired(
            (item.waiting for item in self._items.values() if not item.out),
            self._options, now))

    def _enqueue(self, item: _Item, now: datetime.datetime) -> None:
        due = due_at(item.waiting, self._options)
        if due is None or due <= now:
            self._push(item)
            return
        heapq.heappush(self._later, (due, item.waiting.id,
                                     self._new_token(item)))

    def _push(self, item: _Item) -> None:
        line, place = self._line(item.waiting), self._place(item)
        heapq.heappush(line.places, place)
        if line.places[0] == place:
            self._note(line)

    def _place(self, item: _Item) -> lines_module.Place:
        waiting = item.waiting
        return (waiting.created_at.timestamp(), item.arrival, waiting.id,
                self._new_token(item))

    def _line(self, waiting: model.Waiting) -> lines_module.Line:
        level = waiting.shelved, -waiting.priority
        lines = self._lines.setdefault(waiting.demand, {})
        key = (*level, waiting.project)
        if key not in lines:
            lines[key] = lines_module.Line(level, waiting.project,
                                           waiting.demand)
        return lines[key]

    def _note(self, line: lines_module.Line) -> None:
        """Have a line stand where its first server does."""
        while line.places and not self._stands(*line.places[0][2:]):
            heapq.heappop(line.places)
        if line.places:
            level = self._levels.get(line.key)
            if level is None:
                level = self._levels[line.key] = lines_module.Level(self.share)
            level.note(line)
        elif not line.parked:
            lines = self._lines.get(line.demand, {})
            lines.pop((*line.key, line.project), None)
            if not lines:
                self._lines.pop(line.demand, None)

    def _compact(self) -> None:
        """Drop the places of servers that wait no more, or elsewhere."""
        self._stale = 0
        for line in [line for lines in self._lines.values()
                     for line in lines.values()]:
            for places in (line.places, line.parked):
                places[:] = [place for place in places
                             if self._stands(*place[2:])]
            heapq.heapify(line.places)
            self._note(line)

    def _new_token(self, item: _Item) -> int:
        self._stale += item.token > 0
        self._token += 1
        item.token = self._token
        return self._token

    def _stands(self, server: str, token: int) -> bool:
        """Whether a server stands at the place with a token."""
        item = self._items.get(server)
        return item is not None and item.token == token

    def _release(self, now: datetime.datetime) -> None:
        while self._later and self._later[0][0] <= now:
            _due, server, token = heapq.heappop(self._later)
            if self._stands(server, token):
                self._push(self._items[server])
        while self._alarms and self._alarms[0][0] <= now:
            until, _token, demand = heapq.heappop(self._alarms)
            sleep = self._sleeping.sleeps.get(demand)
            if sleep is not None and sleep.until == until:
                self.wake(demand)

    def _reorder(self, project: str) -> None:
        for level in self._levels.values():
            level.reorder(project)


# A miss counts for so long.
MISS_AGE = datetime.timedelta(hours=1)


class Cause(enum.Enum):
    """Why nothing came of an attempt."""

    SERVER = enum.auto()       # Nova refused the server
    HOST = enum.auto()         # a host could not build it
    INTERRUPTED = enum.auto()  # a host or a service died while it was built
    SERVICE = enum.auto()      # a service did not answer, or failed
    RACE = enum.auto()         # somebody else was faster, or it was put off


@dataclasses.dataclass(slots=True)
class History:
    """What became of a server since it is known; most as model.Waiting has it.

    :ivar builds: how many builds have failed on a host
    """

    attempts: int = 1
    last: datetime.datetime | None = None
    rebuilds: int = 0
    failures: int = 0
    failed_at: datetime.datetime | None = None
    builds: int = 0
    reason: model.Reason | None = None
    avoid: str | None = None
    paused_until: datetime.datetime | None = None

    def asked(self, now: datetime.datetime) -> None:
        """Nova was asked by the reaper to build the server."""
        self.attempts += 1
        self.rebuilds += 1
        self.last = now

    def came_to_nothing(self, cause: Cause, reason: model.Reason | None,
                        host: str, now: datetime.datetime, pause: int
                        ) -> None:
        """An attempt has ended, and the server waits.

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
            self.failed_at = now
        if cause in (Cause.SERVER, Cause.HOST):
            self.reason = reason

    def learn(self, tries: nova.Tries) -> bool:
        """Take over what Nova knows of attempts.

        :returns: whether some of them were of a reaper before this one: the
            server backs off as if they were of this one
        """
        self.attempts = max(self.attempts, tries.attempts)
        if tries.last and (self.last is None or self.last < tries.last):
            self.last = tries.last
        before, self.rebuilds = self.rebuilds, max(self.rebuilds,
                                                   tries.rebuilds)
        if self.rebuilds == before:
            return False
        self.failures += self.rebuilds - before
        self.failed_at = tries.last_rebuild
        return True

    def of(self, waiting: model.Waiting) -> model.Waiting:
        """The server with what became of it."""
        return dataclasses.replace(
            waiting, attempts=self.attempts,
            last_attempt=self.last or waiting.last_attempt,
            failures=self.failures, failed_at=self.failed_at,
            paused_until=self.paused_until, avoid=self.avoid,
            rebuilds=self.rebuilds, reason=self.reason or waiting.reason)


@dataclasses.dataclass(frozen=True, slots=True)
class Miss:
    """Servers were ended for a server that did not run after that.

    :ivar why: what Nova or the host said
    """

    at: datetime.datetime
    why: str


class Misses:
    """The misses of each kind of server, for as long as they count."""

    def __init__(self) -> None:
        self._misses: dict[str, list[Miss]] = {}

    def add(self, key: str, miss: Miss) -> int:
        """Count a miss; returns how many there are of its kind.

        :param key: of the shape of the server
        """
        misses = [*self._current(key, miss.at), miss]
        # Of the other kinds, those of which none counts any more go.
        self._misses = {
            other: known for other, known in self._misses.items()
            if known[-1].at > miss.at - MISS_AGE} | {key: misses}
        return len(misses)

    def objection(self, key: str, most: int, now: datetime.datetime) -> str:
        """Why nobody is ended for a kind of server, '' if that is allowed.

        :param most: so many misses are too many
        """
        misses = self._current(key, now)
        if not most or len(misses) < most:
            return ''
        until = misses[-most].at + MISS_AGE
        return (f'Nobody is ended for such servers until '
                f'{until:%Y-%m-%dT%H:%M:%SZ}: {len(misses)} of them did not '
                f'run within the hour after others had been ended for them. '
                f'The last one: {misses[-1].why}')

    def clear(self) -> None:
        """Forget all of them."""
        self._misses.clear()

    def _current(self, key: str, now: datetime.datetime) -> list[Miss]:
        return [miss for miss in self._misses.get(key, ())
                if miss.at > now - MISS_AGE]
