# SPDX-License-Identifier: Apache-2.0

"""Tells which server is next: priority, fair share between projects, age.

If servers have the same age, the server that was put first is first.

The reaper decides once for all servers of one demand: when one of them finds
no room, all of them sleep until something changes that could help. A server
that cannot be placed is never in the way of the servers behind.

A server backs off after a refusal by Nova, and after builds that failed on two
hosts. A fault of a service pauses the server. Neither rebuilds by its owner
nor lost races cost a server its place. The queue asks no service, and is not
safe for threads.
"""

import bisect
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import datetime
import heapq
import itertools
import math
from typing import TypeVar

import numpy as np

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model

# Half-lives after which the weights of the fair share begin anew at 1, before
# they overflow.
_LARGEST_AGE = 500
# If a host could help more demands than this, most of them sleep until their
# turn, since the room is gone before.
_MANY = 32
# The most hosts for which demands sleep until their turn.
_HELPERS = 8
# Stands for the amount of a resource class that a demand does not ask for:
# every host has more.
_NOT_ASKED = -(1 << 62)

# When a server was created, how many servers were in the queue before it, and
# its ID: servers of one priority and project are tried in this order.
Place = tuple[float, int, str]
# Until when a server backs off, how many servers came before, and its ID.
Later = tuple[datetime.datetime, int, str]
# The share of a project, its first place and its ID.
Key = tuple[float, Place, str]
T = TypeVar('T', Place, Later, Key)
# The level, the share of the project and the place of the first server.
Rank = tuple[tuple[bool, int], float, Place]

NOT_ASKED = (
    'It waits for its owner to ask: rebuild it at microversion 2.106 or '
    'later, or create such servers with the metadata reaper:wait=true.')


def due_at(waiting: model.Waiting,
           options: model.Options) -> datetime.datetime | None:
    """Return until when a server backs off, None if it may be tried now.

    Only failed rebuilds count, and not the create, which knew nothing of room
    to come.
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
    """Return when a server is given up, None for never."""
    timeout = waiting.pending_timeout
    if timeout is None:
        timeout = options.pending_timeout
    if not timeout or waiting.shelved:
        return None
    return waiting.created_at + datetime.timedelta(seconds=timeout)


def is_late(waiting: model.Waiting, options: model.Options,
            now: datetime.datetime) -> bool:
    """Return whether a server waits past its deadline."""
    end = deadline(waiting, options)
    return end is not None and end <= now


def not_tried(waiting: model.Waiting, hindrance: model.Hindrance,
              detail: str) -> model.Decision:
    """Return the decision on a server for which no room is looked for."""
    return model.Decision(
        waiting.id, model.Verdict.WAIT, detail=detail, hindrance=hindrance,
        reason=waiting.reason or model.Reason.UNKNOWN)


def not_asked(waiting: model.Waiting) -> model.Decision:
    """Return the decision on a server whose owner has not asked to wait."""
    return not_tried(waiting, model.Hindrance.NOT_ASKED, NOT_ASKED)


class FairShare:
    """What the queue gave to each project, as its dominant share.

    The dominant share is the largest of a project's shares of the cloud's
    resource classes (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011).
    What was given long ago counts less: what is given later weighs more, so
    that the order of the projects changes only when something is given.
    """

    #: Grows when the shares of all projects change.
    version = 0

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        self._begin: datetime.datetime | None = None
        self._given: dict[str, dict[str, float]] = {}
        self._shares: dict[str, float] = {}
        # By server, what may be taken back: the project and weighted amounts.
        self._grants: dict[str, tuple[str, dict[str, float]]] = {}

    def forget(self) -> None:
        """Forget what was given."""
        self.version += 1
        self._given.clear()
        self._shares.clear()
        self._grants.clear()

    def use(self, half_life: int, now: datetime.datetime) -> None:
        """Let what was given count less by another half-life from now on."""
        if half_life == self._half_life:
            return
        factor = 1.0 / self._weight(now)
        for given in (*self._given.values(), *(
                amounts for _project, amounts in self._grants.values())):
            for name in given:
                given[name] *= factor
        for project in self._shares:
            self._shares[project] *= factor
        self.version += 1
        self._half_life, self._begin = half_life, now

    def of(self, project: str) -> float:
        """Return the dominant share of a project, to compare projects by."""
        return self._shares.get(project, 0.0)

    def give(self, project: str, resources: Mapping[str, int],
             totals: Mapping[str, int], at: datetime.datetime,
             server: str = '') -> None:
        """Count what a project was given.

        :param totals: the capacity of the cloud, by resource class
        :param at: when the resources were given
        :param server: ID for take_back(), '' if nothing is to be taken back
        """
        weight = self._weight(at)
        amounts = {name: amount * weight for name, amount in resources.items()}
        if server:
            self._grants[server] = project, amounts
        self._add(project, amounts, totals)

    def take_back(self, server: str, totals: Mapping[str, int]) -> str:
        """Take back what is not settled; return the project, '' for none."""
        project, amounts = self._grants.pop(server, ('', {}))
        if amounts:
            self._add(project, {name: -amount for name, amount
                                in amounts.items()}, totals)
        return project

    def measure(self, totals: Mapping[str, int]) -> None:
        """Measure the shares of all projects by other totals."""
        self.version += 1
        for project in self._given:
            self._add(project, {}, totals)

    def settle(self, server: str) -> None:
        """Keep what was given for a server from being taken back."""
        self._grants.pop(server, None)

    def _add(self, project: str, amounts: Mapping[str, float],
             totals: Mapping[str, int]) -> None:
        given = self._given.setdefault(project, {})
        for name, amount in amounts.items():
            given[name] = given.get(name, 0.0) + amount
        self._shares[project] = max(
            (amount / totals[name] for name, amount in given.items()
             if totals.get(name, 0) > 0), default=0.0)

    def _weight(self, at: datetime.datetime) -> float:
        """Return the factor by which to weigh what is given at a time."""
        if not self._half_life:
            return 1.0
        if self._begin is None:
            self._begin = at
        age = (at - self._begin).total_seconds() / self._half_life
        if age > _LARGEST_AGE:
            self.forget()
            self._begin, age = at, 0.0
        return float(2.0 ** age)


@dataclasses.dataclass(eq=False, slots=True)
class Line:
    """The servers of one demand, project and priority, by their places.

    The first server stands for the whole line, so that a demand falls asleep
    and wakes up without a look at each of its servers.

    :ivar level: shelved servers come after all others, and the higher priority
        before the lower
    :ivar shown: the place at which the queue looks for the line, None if the
        queue does not look for it
    """

    level: tuple[bool, int]
    project: str
    demand: model.Demand
    places: list[Place] = dataclasses.field(default_factory=list)
    shown: Place | None = None


@dataclasses.dataclass(slots=True)
class Sleep:
    """Why a demand sleeps, and until when.

    :ivar until: when to decide again in any case, None for no such time
    :ivar seen: the version of the index by which the decision was made
    :ivar complete: whether the decision counts for all hosts of that version
    :ivar column: the place of the demand in the arrays of Sleepers
    """

    decision: model.Decision
    until: datetime.datetime | None
    seen: int
    complete: bool
    column: int = -1


class Sleepers:
    """The demands that sleep.

    The amounts that demands ask for stand in arrays, an array for each
    resource class, with an element for each demand.

    :ivar options: the options in force; their mode says which hosts help
    :ivar sleeps: why each demand sleeps
    :ivar demands: the demands that sleep, by their columns
    :ivar put_off: the columns of the demands that sleep until preemptible
        servers may be ended for them
    :ivar unfit: by column the version of the index in which no host could take
        the demand if the host were empty, -1 if a host could
    """

    def __init__(self, options: model.Options) -> None:
        self.options = options
        self.put_off = np.zeros(0, np.bool_)
        self.unfit = np.zeros(0, np.int64)
        self.sleeps: dict[model.Demand, Sleep] = {}
        self.demands: dict[int, model.Demand] = {}
        self._empty: list[int] = []
        self._taken = np.zeros(0, np.bool_)
        self._asked: dict[str, index_module.Ints] = {}

    def add(self, demand: model.Demand, sleep: Sleep) -> None:
        """Have a demand sleep that did not sleep before."""
        if not self._empty:
            size = max(64, 2 * len(self._taken))
            self._empty = list(range(size - 1, len(self._taken) - 1, -1))
            self._taken = index_module.wider(self._taken, size)
            self.put_off = index_module.wider(self.put_off, size)
            self.unfit = index_module.wider(self.unfit, size)
            self._asked = {name: index_module.wider(asked, size)
                           for name, asked in self._asked.items()}
        self.sleeps[demand] = sleep
        sleep.column = column = self._empty.pop()
        self.demands[column] = demand
        self._taken[column] = True
        for asked in self._asked.values():
            asked[column] = _NOT_ASKED
        for name, amount in demand.shape.by_host:
            if name not in self._asked:
                self._asked[name] = np.full(len(self._taken), _NOT_ASKED)
            self._asked[name][column] = amount

    def pop(self, demand: model.Demand) -> Sleep | None:
        """Wake a demand; returns its sleep, None if it did not sleep."""
        sleep = self.sleeps.pop(demand, None)
        if sleep:
            self._taken[sleep.column] = False
            self.put_off[sleep.column] = False
            self._empty.append(sleep.column)
            del self.demands[sleep.column]
        return sleep

    def within(self, index: index_module.Index, row: int
               ) -> index_module.Bools:
        """Return which columns ask for no more than a host could have free.

        A demand that was put off needs what is free now: no server may be
        ended for the demand yet.
        """
        could: index_module.Bools = self._taken & (
            self.unfit < index.refitted[row])
        for name, asked in self._asked.items():
            could &= asked <= np.where(
                self.put_off, index.free_of(name, row),
                self._most(index, row, name))
        return could

    def would_help(self, index: index_module.Index, row: int,
                   demand: model.Demand) -> bool:
        """Return whether a host could help a demand, asleep or not."""
        return (all(self._most(index, row, name) >= amount
                    for name, amount in demand.shape.by_host) and
                index.could_take(demand.shape, row))

    def _most(self, index: index_module.Index, row: int, name: str) -> int:
        """Return how much of a class a host could be made to have free."""
        most = index.free_of(name, row)
        if name in index.classes and (
                self.options.mode is not model.Mode.FILL):
            most += int(index.endable[index.classes[name]][row])
        return most


class _Level:
    """The projects of a level, in order.

    :ivar first: the first places of the lines of each project, in order
    """

    def __init__(self, share: FairShare) -> None:
        self._share = share
        self.first: dict[str, list[Place]] = {}
        self._order: list[Key] = []
        self._keys: dict[str, Key] = {}

    def reorder(self, project: str) -> None:
        """Put a project in order anew by its share and its first place."""
        key = self._keys.pop(project, None)
        if key:
            _remove(self._order, key)
        if places := self.first.get(project):
            key = self._share.of(project), places[0], project
            self._keys[project] = key
            bisect.insort(self._order, key)

    def next(self, closed: Collection[str]) -> Place | None:
        """Return the first place outside closed projects, None if none."""
        at = 0
        while at < len(self._order):
            share, place, project = self._order[at]
            if self._share.of(project) > share:
                # The project was given something since, and goes back.
                self.reorder(project)
            elif project in closed:
                at += 1
            else:
                return place
        return None


@dataclasses.dataclass(slots=True)
class _Ranking:
    """Demands that sleep, in the order of their first servers.

    :ivar demands: the rank and the column of each demand, as a heap
    :ivar moved: how many servers had moved forward when the demands were put
        in order
    """

    demands: list[tuple[Rank, int]]
    moved: int


@dataclasses.dataclass(slots=True)
class _Help:
    """A host that could help many demands, and these in their order."""

    index: index_module.Index
    row: int
    ranking: _Ranking


@dataclasses.dataclass(slots=True)
class _Item:
    """A server in the queue: in a line, backing off, or taken out.

    :ivar arrival: the number of the server, in the order of arrival
    :ivar line: the line in which the server stands, None for no line
    :ivar due: until when the server backs off, None if it does not
    :ivar out: whether the server is taken out, and not given back yet
    """

    waiting: model.Waiting
    arrival: int
    place: Place = (0.0, 0, '')
    line: Line | None = None
    due: datetime.datetime | None = None
    out: bool = False


def _remove(ordered: list[T], item: T) -> bool:
    """Take an item out of an ordered list; returns whether it was there."""
    at = bisect.bisect_left(ordered, item)
    if at == len(ordered) or ordered[at] != item:
        return False
    del ordered[at]
    return True


class Queue:
    """The servers that wait.

    Each server stands in the line of its demand, project and priority. The
    queue looks for a line where the first server of the line stands.
    """

    def __init__(self, options: model.Options) -> None:
        self._options = options
        self.share = FairShare(options.fair_share_half_life)
        self._items: dict[str, _Item] = {}
        self._arrivals = itertools.count(1)
        self._closed: frozenset[str] = frozenset()
        self._levels: dict[tuple[bool, int], _Level] = {}
        # The version of the shares by which the levels are in order.
        self._ordered = self.share.version
        # The servers that back off, in order.
        self._later: list[Later] = []
        self._totals: Mapping[str, int] = {}
        self._lines: dict[model.Demand, dict[
            tuple[bool, int, str], Line]] = {}
        self._sleeping = Sleepers(options)
        # Demands that were woken only for the hosts that have changed.
        self._slept: dict[model.Demand, Sleep] = {}
        # By row: hosts that could help demands that sleep until their turn.
        self._helpers: dict[int, _Help] = {}
        # The order of the demands that were put off, None if a demand was put
        # off after that order was made.
        self._put_off: _Ranking | None = None
        # How many times a server may have moved forward.
        self._moved = 0
        # When to wake demands; the numbers save a comparison of demands.
        self._alarms: list[tuple[datetime.datetime, int, model.Demand]] = []

    def __contains__(self, server: str) -> bool:
        return server in self._items

    def __iter__(self) -> Iterator[model.Waiting]:
        return (item.waiting for item in self._items.values())

    def get(self, server: str) -> model.Waiting | None:
        """Return the server that waits under an ID, None if there is none."""
        item = self._items.get(server)
        return item.waiting if item else None

    def use(self, options: model.Options, now: datetime.datetime) -> None:
        """Order servers, and wake demands, by other options from now on."""
        self._options = self._sleeping.options = options
        self.share.use(options.fair_share_half_life, now)
        self.wake_all()
        for _due, _arrival, server in list(self._later):
            self._enqueue(self._items[server], now)

    def in_order(self) -> list[model.Waiting]:
        """Return all servers in the order in which they would be tried now."""
        return sorted(self, key=self.rank)

    def rank(self, waiting: model.Waiting
             ) -> tuple[bool, int, float, datetime.datetime, float]:
        """Return the rank of a server: a smaller rank is served sooner."""
        item = self._items.get(waiting.id)
        return (waiting.shelved, -waiting.priority,
                self.share.of(waiting.project), waiting.created_at,
                item.arrival if item else math.inf)

    def put(self, waiting: model.Waiting, now: datetime.datetime) -> None:
        """Add a server, or replace what is known of the server.

        A server that was taken out and not given back yet stays out.
        """
        item = self._items.get(waiting.id)
        if item is None:
            item = self._items[waiting.id] = _Item(
                waiting, next(self._arrivals))
        elif item.waiting == waiting:
            return
        item.waiting = waiting
        if not item.out:
            self._enqueue(item, now)

    def discard(self, server: str) -> None:
        """Forget a server: it runs, is gone or was given up."""
        self.share.settle(server)
        item = self._items.pop(server, None)
        if item:
            self._leave(item)

    def pop(self, now: datetime.datetime,
            asleep: bool = False) -> model.Waiting | None:
        """Take out the next server that may be tried, None if there is none.

        The server is out until it is given back, put to sleep or discarded.

        :param asleep: whether to return also servers whose demand sleeps
        """
        self._release(now)
        if self._ordered != self.share.version:
            self._ordered = self.share.version
            self._moved += 1
            for level in self._levels.values():
                for project in level.first:
                    level.reorder(project)
        while True:
            woken = self._wake_next()
            if (found := self._pop(asleep)) or not woken:
                return found

    def _pop(self, asleep: bool) -> model.Waiting | None:
        """Do as pop() for the servers whose time has come."""
        for key in sorted(self._levels):
            level = self._levels[key]
            while place := level.next(self._closed):
                item = self._items[place[2]]
                line = item.line
                assert line
                if line.demand in self._sleeping.sleeps and not asleep:
                    # The queue looks for the line again when the demand wakes.
                    self._show(line, None)
                    continue
                self.take_out(item.waiting.id)
                return item.waiting
        return None

    def take_out(self, server: str) -> None:
        """Have a server of the queue not tried until it is given back."""
        item = self._items[server]
        self._leave(item)
        item.out = True

    def next_time(self) -> datetime.datetime | None:
        """Return when time alone may have a server tried next, or None."""
        return min([due for due, *_others in self._later[:1]] +
                   [until for until, *_others in self._alarms[:1]],
                   default=None)

    def close(self, projects: Collection[str]) -> None:
        """Pass over the servers of these projects, and of no others."""
        self._closed = frozenset(projects)

    def give_back(self, server: str, now: datetime.datetime) -> None:
        """Put a server back that was taken out, and take back its grant."""
        project = self.share.take_back(server, self._totals)
        self._moved += 1
        for level in self._levels.values():
            level.reorder(project)
        item = self._items.get(server)
        if item and item.out:
            item.out = False
            self._enqueue(item, now)

    def grant(self, waiting: model.Waiting, totals: Mapping[str, int],
              now: datetime.datetime) -> None:
        """Count what a server is given for the fair share of its project."""
        self._totals = totals
        self.share.give(waiting.project, waiting.shape.amounts, totals, now,
                        waiting.id)

    def asleep(self, demand: model.Demand) -> model.Decision | None:
        """Return why a demand sleeps, None if it does not."""
        sleep = self._sleeping.sleeps.get(demand)
        return sleep.decision if sleep else None

    def slept(self, demand: model.Demand) -> Sleep | None:
        """Return the sleep that hosts ended, None to look at all hosts."""
        return self._slept.get(demand)

    def sleep(self, waiting: model.Waiting, decision: model.Decision,
              index: index_module.Index, seen: int, now: datetime.datetime,
              until: datetime.datetime | None = None,
              complete: bool = True) -> bool:
        """Put the demand of a server to sleep: no host has room for it.

        :param seen: the version of the index by which the decision was made.
            If a host that could help has changed since, the demand stays awake
        :param until: when to decide again if no host changes, None for never
        :param complete: whether the next decision may leave out the hosts that
            have not changed when a host wakes the demand
        :returns: whether the demand sleeps
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
            sleep = Sleep(decision, until, seen, complete)
            self._sleeping.add(demand, sleep)
            self._slept.pop(demand, None)
        sleep.decision, sleep.until = decision, until
        self._sleeping.unfit[sleep.column] = (
            seen if decision.reason is model.Reason.NOTHING_FITS else -1)
        if until is not None:
            heapq.heappush(self._alarms,
                           (until, next(self._arrivals), demand))
        if item and item.line is None:
            bisect.insort(self._stand(item, waiting).places, item.place)
        return True

    def hide(self, demand: model.Demand) -> None:
        """Do not look for the servers of a demand while the demand sleeps.

        Otherwise one pop() would meet the lines of all demands that sleep.
        """
        if demand in self._sleeping.sleeps:
            for line in list(self._lines.get(demand, {}).values()):
                self._show(line, None)

    def put_off(self, waiting: model.Waiting, decision: model.Decision,
                index: index_module.Index, seen: int, now: datetime.datetime
                ) -> None:
        """Have a demand sleep, as sleep() does, until servers may be ended."""
        if self.sleep(waiting, decision, index, seen, now, complete=False):
            column = self._sleeping.sleeps[waiting.demand].column
            self._sleeping.put_off[column] = True
            self._put_off = None

    def wake_put_off(self) -> bool:
        """Wake the first demand that was put off; return whether one was."""
        could = self._sleeping.put_off
        if self._put_off is None:
            self._put_off = self._ranking(np.flatnonzero(could).tolist())
        column = self._next_of(self._put_off, could)
        if column is not None:
            self.wake(self._sleeping.demands[column])
        return column is not None

    def host_changed(self, index: index_module.Index, row: int) -> int:
        """Wake the demands that a changed host could help.

        If the host could help many demands, each demand sleeps until its turn,
        and sleeps on if the host has no room by then.

        :returns: how many demands were woken, or sleep until their turn
        """
        could = self._sleeping.within(index, row)
        columns = np.flatnonzero(could).tolist()
        self._helpers.pop(row, None)
        if len(columns) > _MANY and len(self._helpers) < _HELPERS:
            self._helpers[row] = _Help(index, row, self._ranking(columns))
            return len(columns)
        demands = [self._sleeping.demands[column] for column in columns]
        demands = [demand for demand in demands
                   if index.could_take(demand.shape, row)]
        for demand in demands:
            self._wake_for_host(demand)
        return len(demands)

    def _ranking(self, columns: Iterable[int]) -> _Ranking:
        """Put demands that sleep in order; those without a server wake up."""
        ranked = []
        for column in columns:
            rank = self._rank_of(column)
            if rank:
                ranked.append((rank, column))
            else:
                # A server of the demand that comes is decided on at once.
                self.wake(self._sleeping.demands[column])
        heapq.heapify(ranked)
        return _Ranking(ranked, self._moved)

    def _rank_of(self, column: int) -> Rank | None:
        """Return the rank of the first server of a demand, None if none."""
        lines = self._lines.get(self._sleeping.demands[column], {})
        return min(((line.level, self.share.of(line.project), line.places[0])
                    for line in lines.values()), default=None)

    def _wake_next(self) -> bool:
        """Wake a demand for each host that could help; return whether any."""
        woken = False
        for help_of in list(self._helpers.values()):
            demand = self._next_for(help_of)
            if demand:
                self._wake_for_host(demand)
                woken = True
            else:
                del self._helpers[help_of.row]
        return woken

    def _next_for(self, help_of: _Help) -> model.Demand | None:
        """Take out the next demand that a host could still help."""
        could = self._sleeping.within(help_of.index, help_of.row)
        while (column := self._next_of(help_of.ranking, could)) is not None:
            demand = self._sleeping.demands[column]
            if help_of.index.could_take(demand.shape, help_of.row):
                return demand
        return None

    def _next_of(self, ranking: _Ranking, could: index_module.Bools
                 ) -> int | None:
        """Take the first demand out of an order.

        :param could: the columns of the demands that may be taken out
        :returns: the column of the demand, None if there is none
        """
        if ranking.moved != self._moved:
            again = self._ranking([
                column for _rank, column in ranking.demands if could[column]])
            ranking.demands, ranking.moved = again.demands, again.moved
        while ranking.demands and could.any():
            before, column = heapq.heappop(ranking.demands)
            rank = self._rank_of(column) if could[column] else None
            if rank and rank > before:
                # The project was given something since.
                heapq.heappush(ranking.demands, (rank, column))
            elif rank:
                return column
            elif could[column]:
                self.wake(self._sleeping.demands[column])
        return None

    def _wake_for_host(self, demand: model.Demand) -> None:
        """Wake a demand, if possible only for the hosts that have changed."""
        sleep = self._sleeping.sleeps[demand]
        self.wake(demand)
        if len(self._slept) > len(self._items):
            # Some of the demands have no server any more.
            self._slept.clear()
        if sleep.complete:
            self._slept[demand] = sleep

    def wake(self, demand: model.Demand) -> None:
        """Wake a demand: its servers are tried again, on all hosts."""
        self._slept.pop(demand, None)
        if self._sleeping.pop(demand) is None:
            return
        for line in list(self._lines.get(demand, {}).values()):
            self._note(line)

    def wake_shapes(self, shapes: Collection[model.Shape]) -> None:
        """Wake all demands of some shapes."""
        if shapes:
            self._wake_those(lambda demand, _sleep: demand.shape in shapes)

    def wake_short(self, left: Mapping[str, int]) -> None:
        """Wake demands that more room on sharing providers could help.

        :param left: by resource class, what was left before there was more
        """
        self._wake_those(lambda demand, _sleep: any(
            left.get(name, amount) < amount
            for name, amount in demand.shape.resources))

    def keep_only(self, demands: Collection[model.Demand]) -> None:
        """Forget the sleep of all demands but some, which servers have."""
        self._wake_those(lambda demand, _sleep: demand not in demands)

    def wake_protected(self) -> None:
        """Wake the demands that only protected servers could help."""
        self._wake_those(lambda _demand, sleep: sleep.decision.hindrance is (
            model.Hindrance.PROTECTED))

    def wake_all(self) -> None:
        """Wake all demands."""
        self._wake_those(lambda _demand, _sleep: True)

    def _wake_those(self, are_meant: Callable[
            [model.Demand, Sleep], bool]) -> None:
        for demand, sleep in [*self._sleeping.sleeps.items(),
                              *self._slept.items()]:
            if are_meant(demand, sleep):
                self.wake(demand)

    def _enqueue(self, item: _Item, now: datetime.datetime) -> None:
        """Put a server in its line, or among the servers that back off."""
        self._leave(item)
        due = due_at(item.waiting, self._options)
        if due is not None and due > now:
            item.due = due
            bisect.insort(self._later, (due, item.arrival, item.waiting.id))
            return
        sleep = self._sleeping.sleeps.get(item.waiting.demand)
        if sleep and sleep.decision.hindrance is model.Hindrance.RESERVED:
            # The host may not be kept from this server.
            self.wake(item.waiting.demand)
        line = self._stand(item, item.waiting)
        self._moved += item.waiting.demand in self._sleeping.sleeps
        bisect.insort(line.places, item.place)
        self._note(line)

    def _stand(self, item: _Item, waiting: model.Waiting) -> Line:
        """Choose a server's place and line; return the line."""
        level = waiting.shelved, -waiting.priority
        lines = self._lines.setdefault(waiting.demand, {})
        key = (*level, waiting.project)
        if key not in lines:
            lines[key] = Line(level, waiting.project, waiting.demand)
        item.line = lines[key]
        item.place = waiting.created_at.timestamp(), item.arrival, waiting.id
        return lines[key]

    def _leave(self, item: _Item) -> None:
        """Take a server out of its line, or from those that back off."""
        line, due = item.line, item.due
        item.line = item.due = None
        if due is not None:
            _remove(self._later, (due, item.arrival, item.waiting.id))
        if line:
            _remove(line.places, item.place)
            self._note(line)

    def _note(self, line: Line) -> None:
        """Show a line where its first server stands; drop an empty line."""
        self._show(line, line.places[0] if line.places else None)
        if not line.places:
            lines = self._lines.get(line.demand, {})
            lines.pop((*line.level, line.project), None)
            if not lines:
                self._lines.pop(line.demand, None)

    def _show(self, line: Line, place: Place | None) -> None:
        """Have the queue look for a line at a place, None for nowhere."""
        if place == line.shown:
            return
        level = self._levels.setdefault(line.level, _Level(self.share))
        places = level.first.setdefault(line.project, [])
        before = places[:1]
        if line.shown:
            _remove(places, line.shown)
        if place:
            bisect.insort(places, place)
        line.shown = place
        if not places:
            del level.first[line.project]
        if places[:1] != before:
            level.reorder(line.project)
        if not level.first:
            del self._levels[line.level]

    def _release(self, now: datetime.datetime) -> None:
        """Have servers and demands tried again whose time has come."""
        while self._later and self._later[0][0] <= now:
            self._enqueue(self._items[self._later[0][2]], now)
        while self._alarms and self._alarms[0][0] <= now:
            until, _number, demand = heapq.heappop(self._alarms)
            sleep = self._sleeping.sleeps.get(demand)
            if sleep is not None and sleep.until == until:
                self.wake(demand)
