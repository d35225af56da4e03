# SPDX-License-Identifier: Apache-2.0

"""Decides where a waiting server goes, and which victims end for the server.

The functions do not change the index. The order of preference is
lexicographic: a host with room before a host with victims, then what the
scorers say, one after another, then the host that was listed first. The
Planner decides for one server of the queue after another. The service and the
simulation both run the Planner; they differ in what they do with a decision.
"""

import collections
from collections.abc import Collection
from collections.abc import Generator
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
from typing import Any

import numpy as np

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import victims
from nova_reaper.queue import queue as queue_module

Bools = index_module.Bools
_HOUR = datetime.timedelta(hours=1)
# So many hosts, or fewer, are judged faster one by one than all at once.
_FEW = 64
# The reaper asks Nova's filters about so many hosts at most for a decision.
CANDIDATES = 32


def decide(index: index_module.Index, waiting: model.Waiting,
           options: model.Options, now: datetime.datetime, *,
           ends_left: Mapping[str, int] | None = None,
           reserved: str | None = None,
           among: Sequence[int] | None = None) -> model.Decision:
    """Decide what becomes of a waiting server.

    In the mode "observe" the decision is that of the mode "preempt".

    :param now: the time by which servers are still protected or not
    :param ends_left: how many servers may still be ended by project; projects
        that are missing have no limit
    :param reserved: the name of a host that is kept for another server
    :param among: the rows of the hosts to look at, None for all
    """
    shape = waiting.shape
    if shape.host is not None and shape.host not in index.rows:
        return _wait(waiting, model.Reason.NO_SUCH_HOST,
                     'The host that it was created for is not there.')
    fits = index.fits(shape)
    if among is not None:
        only = np.zeros(len(fits), np.bool_)
        only[among] = True
        fits = fits & only
    if not fits.any():
        return _wait(waiting, model.Reason.NOTHING_FITS,
                     _why_nothing_fits(index, shape))
    enabled = fits & index.enabled
    seems = enabled & index.has_room(shape, fits)
    room = seems & ~index.exclusions.not_offered(shape)
    eligible = enabled & ~index.exclusions.refused(shape)
    kept = np.zeros_like(eligible)
    if reserved in index.rows:
        kept[index.rows[reserved]] = True
    withheld, _until = index.exclusions.withheld(shape, now)
    free = room & eligible & ~kept
    nobody = np.flatnonzero(free & ~withheld)
    if waiting.avoid in index.rows and len(nobody) > 1:
        nobody = nobody[nobody != index.rows[waiting.avoid]]
    scorers = _scorers(index, waiting, options, now)
    if len(nobody):
        chosen = scorers.best(victims.Sets(
            nobody, np.zeros((len(nobody), 0), np.int64)))
        host = index.host(int(chosen.rows.min())).name
        return model.Decision(waiting.id, model.Verdict.ROOM, host,
                              detail=_where_room_is(index, shape, host))
    if free.any():
        # No victim is ended while nobody knows whether there is room.
        return _wait(waiting, model.Reason.NO_ROOM, 'The hosts that seem to '
                     'have room are looked at again.')
    return _without_room(scorers, waiting, ends_left or {}, fits, room,
                         eligible, eligible & ~seems, kept, withheld)


def _without_room(scorers: victims.Scorers, waiting: model.Waiting,
                  ends_left: Mapping[str, int], fits: Bools, room: Bools,
                  eligible: Bools, short: Bools, kept: Bools, withheld: Bools
                  ) -> model.Decision:
    index, shape, demand = scorers.index, waiting.shape, waiting.demand
    is_kept = bool((room & eligible & kept).any())
    reason, detail = _why_no_room(index, shape, fits, room & ~eligible,
                                  is_kept)
    if is_kept:
        return _wait(waiting, reason, detail, model.Hindrance.RESERVED)
    if waiting.spared:
        return _wait(waiting, reason, f'{detail} {waiting.spared}',
                     model.Hindrance.MISSES)
    if shape.fill_only:
        kind = ('was shelved for another' if waiting.shelved else
                'is in ERROR since its build failed' if waiting.failed else
                'asks for what only Placement can judge')
        return _wait(waiting, reason, f'{detail} Nobody is ended for a server '
                     f'that {kind}.')
    searched = short & ~kept & ~withheld
    result = victims.find(scorers, demand, searched, ends_left)
    if result.sets is not None:
        row = int(result.sets.rows.min())
        slot = result.sets.members[result.sets.rows == row][0]
        host = index.host(row).name
        ids = tuple(server.id for server in (index.slots.servers[at]
                                             for at in slot) if server)
        would = ('1 preemptible server on one host would have to go.'
                 if len(ids) == 1 else f'{len(ids)} preemptible servers on '
                 'one host would have to go.')
        if not result.exact:
            would += ' Others might do: there were too many sets to try all.'
        if scorers.options.mode is model.Mode.FILL:
            return _wait(waiting, reason, f'{detail} {would} The mode is '
                         f'{model.Mode.FILL}: nobody is ended.',
                         model.Hindrance.MODE)
        return model.Decision(waiting.id, model.Verdict.PREEMPT, host, ids,
                              reason, would)
    if not result.exact:
        return _wait(waiting, reason, f'{detail} There were too many sets of '
                     'preemptible servers to try them all.')
    would_help = _would_help(index, demand, short)
    protected = would_help & searched
    if protected.any():
        return _wait(waiting, reason, f'{detail} Preemptible servers on '
                     f'{int(protected.sum())} of the hosts would free enough '
                     'and are protected for now.', model.Hindrance.PROTECTED)
    if (would_help & kept).any():
        return _wait(waiting, reason, f'{detail} Preemptible servers would '
                     'free enough on a host that is kept for a server ahead '
                     'in the queue.', model.Hindrance.RESERVED)
    if would_help.any():
        return _wait(waiting, reason, f'{detail} The hosts where preemptible '
                     'servers would free enough are looked at again.')
    detail += ' No preemptible servers on one host would free enough'
    if names := _filters(index, shape, fits & index.enabled):
        detail += f' that {names} would accept'
    return _wait(waiting, reason, f'{detail}.')


def candidates(index: index_module.Index, waiting: model.Waiting,
               decision: model.Decision) -> tuple[str, ...]:
    """Return the hosts to try next if Nova's filters refuse the decided host.

    For a decision without victims these are hosts with room, else the hosts on
    which the fewest ends may make room, those with the least RAM to spare
    first. The Planner then decides again which host is the best.

    :returns: CANDIDATES - 1 names at most
    """
    shape = waiting.shape
    rows = _open(index, shape)
    if decision.victims:
        ends = victims.at_least(index, shape, rows)
    else:
        rows &= index.has_room(shape, rows)
        ends = np.zeros(len(rows), np.int64)
    rows[index.rows[decision.host or '']] = False
    found = np.flatnonzero(rows)
    order = np.lexsort((index.free[index.classes['MEMORY_MB']][found],
                        ends[found]))
    return tuple(index.host(int(row)).name
                 for row in found[order[:CANDIDATES - 1]])


def may_end(index: index_module.Index, waiting: model.Waiting, host: str,
            now: datetime.datetime, victims: Collection[str] = ()
            ) -> list[model.Server]:
    """Return the servers of a host that may be ended, the dearest first.

    :param victims: IDs of servers that are chosen already, which the result
        includes
    """
    where = index.slots.segment(index.rows[host])

    def order(server: model.Server) -> tuple[object, ...]:
        has = index_module.amounts_of(server)
        # If the smaller servers stay, fewer servers have to end.
        return (-server.priority, -sum(has.get(name, 0)
                                       for name in index.scarce),
                sum(min(has.get(name, 0) / amount, 1)
                    for name, amount in waiting.shape.resources),
                server.action is model.Action.SHELVE,
                index_module.to_micros(server.launched_at))

    may = index.slots.may_end(
        waiting.demand.below, index_module.to_micros(now), where)
    return sorted((server for server, mine
                   in zip(index.slots.servers[where], may)
                   if server and (mine or server.id in victims)),
                  key=order)


def to_search(index: index_module.Index, waiting: model.Waiting, host: str,
              now: datetime.datetime) -> list[model.Server]:
    """Return servers of a host with room, among which Nova is to name victims.

    :returns: as may_end(); none if the servers have all that is asked for: if
        a filter refuses the host, decide() chooses victims by what they have
    """
    found = [] if waiting.shape.fill_only or waiting.spared else may_end(
        index, waiting, host, now)
    has = model.total({}, *(server.amounts for server in found))
    return [] if all(has.get(name, 0) >= amount for name, amount
                     in waiting.shape.resources) else found


def is_better(index: index_module.Index, waiting: model.Waiting,
              options: model.Options, now: datetime.datetime,
              found: model.Decision, before: model.Decision) -> bool:
    """Return whether one decision's victims cost less than another's.

    The scorers in SLIGHT do not count.

    :param found: the decision that may be better
    :param before: the other decision; only its victims that are still on the
        host count
    """
    options = dataclasses.replace(options, scorers=tuple(
        name for name in options.scorers if name not in victims.SLIGHT))
    new, old = _costs(_scorers(index, waiting, options, now), found, before)
    return bool(new and old and new < old)


def decided_by(index: index_module.Index, waiting: model.Waiting,
               options: model.Options, now: datetime.datetime,
               one: model.Decision, other: model.Decision) -> str:
    """Return the first scorer that tells the victims of decisions apart."""
    scorers = _scorers(index, waiting, options, now)
    costs = _costs(scorers, one, other)
    return next((name for name, mine, others in zip(scorers.names, *costs)
                 if mine != others), 'order of hosts')


def _scorers(index: index_module.Index, waiting: model.Waiting,
             options: model.Options, now: datetime.datetime
             ) -> victims.Scorers:
    return victims.Scorers(index, waiting.shape, options,
                           index_module.to_micros(now))


def _costs(scorers: victims.Scorers, *decisions: model.Decision
           ) -> list[list[list[int]]]:
    """Return what scorers say of the victims that are left, [] for none."""
    index, costs = scorers.index, []
    for decision in decisions:
        row = index.rows.get(decision.host or '', 0)
        where = index.slots.segment(row)
        slots = [where.start + at for at, server
                 in enumerate(index.slots.servers[where])
                 if server is not None and server.id in decision.victims]
        costs.append(scorers.cost(victims.Sets(
            np.array([row]), np.array([slots]))) if slots else [])
    return costs


def could_help(index: index_module.Index, demand: model.Demand,
               row: int) -> bool:
    """Return whether a host could have room if preemptible servers ended."""
    host = index.hosts[row]
    if host and host.name in index.exclusions.named(demand.shape):
        return True
    table, where = index.slots, index.slots.segment(row)
    mine = table.preemptible[where]
    if demand.below is not None:
        mine = mine & (table.priority[where] < demand.below)
    return index.could_take(demand.shape, row) and all(
        need.free[0] + table.amounts[need.column][where][mine].sum(
            dtype=np.int64) >= need.amount
        for need in index.needs(demand.shape, row)
        if need.name not in demand.shape.elsewhere)


def protected_until(index: index_module.Index, waiting: model.Waiting,
                    now: datetime.datetime) -> datetime.datetime | None:
    """Return when the first protection of a server that could help ends."""
    demand, table = waiting.demand, index.slots
    hosts = _would_help(index, demand,
                        index.fits(demand.shape) & index.enabled)
    safe = table.endable & hosts[table.host_of] & (
        table.safe_until > index_module.to_micros(now))
    if demand.below is not None:
        safe &= table.priority < demand.below
    if demand.shape.fill_only or not safe.any():
        return None
    return index_module.from_micros(int(table.safe_until[safe].min()))


def room_by(index: index_module.Index, waiting: model.Waiting,
            now: datetime.datetime) -> datetime.datetime | None:
    """Return when ending run times will have made room for a server.

    A bisection over the time looks at all hosts at once, and at half of the
    servers each time. For a shape that may spread over several providers of a
    host the function looks at _FEW hosts at a time.

    :returns: None if the ends of all run times make no room, or nobody knows
        which hosts the server needs
    """
    shape, table = waiting.shape, index.slots
    rows = _open(index, shape)
    left = np.flatnonzero((table.ends > 0) & rows[table.host_of])
    if not len(left) or shape.elsewhere or (
            shape.fill_only and not (waiting.shelved or waiting.failed)):
        return None
    needs = index.needs(shape)
    free = [need.free for need in needs]
    first = int(table.ends[left].min())
    last = until = int(table.ends[left].max())
    while True:
        gone = left[table.ends[left] <= until]
        sums = [had + np.bincount(
            table.host_of[gone], table.amounts[need.column][gone],
            len(rows)).astype(np.int64) for need, had in zip(needs, free)]
        found = rows.copy()
        for need, had in zip(needs, sums):
            found &= had >= need.amount
        if shape.spread is not None:
            found[np.flatnonzero(found)[_FEW:]] = False
            found = index.with_way(shape, found, gone=(
                table.ends > 0) & (table.ends <= until))
        if found.any():
            rows, last, left = found, until, gone[found[table.host_of[gone]]]
        elif until == last:
            return None
        else:
            free, left = sums, left[table.ends[left] > until]
            first = until + 1
        if first >= last:
            return max(now, index_module.from_micros(last))
        until = (first + last) // 2


def worth_reserving(index: index_module.Index, waiting: model.Waiting
                    ) -> str | None:
    """Return the name of the host that lacks the least share of what is asked.

    :returns: None if no host could take the server
    """
    shape = waiting.shape
    may = _open(index, shape)
    for host in index.exclusions.crowded(shape).keys() & index.rows.keys():
        may[index.rows[host]] = False
    rows = np.flatnonzero(may)
    if not len(rows) or not shape.resources:
        return None
    needs = index.needs(shape)
    lacking = np.stack([need.lacking[rows] for need in needs])
    asked = [need.amount for need in needs]
    shares = (lacking.T / asked).sum(axis=1)
    # Sums of floats are not exact: nearly equal shares count as equal.
    return index.host(int(rows[shares.round(9).argmin()])).name


def _open(index: index_module.Index, shape: model.Shape) -> Bools:
    """Return the hosts that could take a shape, and that nobody refuses."""
    return (index.fits(shape) & index.enabled &
            ~index.exclusions.refused(shape))


def _wait(waiting: model.Waiting, reason: model.Reason, detail: str,
          hindrance: model.Hindrance | None = None) -> model.Decision:
    return model.Decision(waiting.id, model.Verdict.WAIT, reason=reason,
                          detail=detail, hindrance=hindrance)


def _would_help(index: index_module.Index, demand: model.Demand,
                rows: Bools) -> Bools:
    """Return the hosts that would have room without preemptible servers."""
    mine = index.slots.preemptible
    if demand.below is not None:
        mine = mine & (index.slots.priority < demand.below)
    return index.with_way(demand.shape, rows & victims.room_without(
        index, demand.shape, mine), gone=mine)


def _crowded(index: index_module.Index, shape: model.Shape, fits: Bools
             ) -> Bools:
    """Return the hosts with room by Placement that a filter still refuses."""
    crowded = np.zeros(len(index.hosts), np.bool_)
    for host in index.exclusions.crowded(shape):
        if host in index.rows:
            row = index.rows[host]
            crowded[row] = fits[row] and all(
                index.free_of(name, row) >= amount
                for name, amount in shape.by_host)
    return index.with_way(shape, crowded)


def _where_room_is(index: index_module.Index, shape: model.Shape,
                   name: str) -> str:
    host = index.host(index.rows[name])
    others = sorted(shape.elsewhere - host.inventory.keys())
    if not others:
        return 'A host has room.'
    return (f'A host has room, as far as it is its own; {", ".join(others)} '
            'would come from other providers, of which Placement knows.')


def _why_nothing_fits(index: index_module.Index, shape: model.Shape) -> str:
    if not index.rows:
        return 'There is no host at all.'
    for name, amount in shape.resources:
        if name in shape.elsewhere:
            continue
        column = index.classes.get(name)
        most = -1 if column is None else int(index.capacity[column].max())
        if most < 0:
            return f'No host has {name}.'
        if most < amount:
            return (f'The server asks for {amount} {name}, and the largest '
                    f'host has {most}.')
    if shape.host is not None:
        return ('The host that it was created for could not take it, even if '
                'the host were empty.')
    return ('No host has at once all that the server asks for: resources, '
            'traits and aggregates.')


def _filters(index: index_module.Index, shape: model.Shape, rows: Bools
             ) -> str:
    """Return the names of the filters that refuse some of the hosts."""
    return ', '.join(sorted({
        name for host, name in index.exclusions.refusals(shape).items()
        if host in index.rows and rows[index.rows[host]]}))


def _why_no_room(index: index_module.Index, shape: model.Shape,
                 fits: Bools, refused: Bools, kept: bool
                 ) -> tuple[model.Reason, str]:
    """Return why there is no room.

    :param refused: hosts with room that filters refuse whatever ends there
    :param kept: whether a host has room and is kept for another server
    """
    could = f'{int(fits.sum())} of {len(index.rows)} hosts could take it;'
    crowded = _crowded(index, shape, fits)
    refused = refused | crowded & index.enabled
    others = (', except a host that is kept for a server ahead in the queue'
              if kept else '')
    if refused.any():
        return (model.Reason.NO_ROOM if kept else model.Reason.REFUSED,
                f'{could} those with room are refused by '
                f'{_filters(index, shape, refused)}'
                f'{others}.')
    off = (index.has_room(shape, fits) | crowded) & ~index.enabled
    if not (fits & index.enabled).any():
        if off.any():
            return (model.Reason.REFUSED,
                    f'{could} all of them are disabled or down.')
        return (model.Reason.NO_ROOM,
                f'{could} none has room, and all are disabled or down.')
    if not _open(index, shape).any():
        return (model.Reason.REFUSED, f'{could} those that are enabled and up '
                f'are refused by '
                f'{_filters(index, shape, fits & index.enabled)}.')
    none = ('none that is enabled and up has room' if off.any()
            else 'none has room')
    return model.Reason.NO_ROOM, f'{could} {none}{others}.'


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """The end of a server.

    :ivar stuck: whether the host has not ended the server yet, though Nova was
        asked
    """

    server: str
    project: str
    time: datetime.datetime
    stuck: bool = False


class Planner:
    """Decides for the servers that wait, in the order of the queue.

    :ivar ends: the ends that count against the hourly caps, in the order of
        their times
    :ivar to_end: the servers that are still to end, as a mapping from their
        IDs to their projects; by the ID of the server for which they end, or
        by its own ID for a server that ends for no other
    """

    def __init__(self, index: index_module.Index, queue: queue_module.Queue,
                 options: model.Options) -> None:
        self.index = index
        self.queue = queue
        self._options = options
        self.ends: collections.deque[End] = collections.deque()
        self.to_end: dict[str, Mapping[str, str]] = {}
        self._reserved: tuple[str, str] | None = None
        self._told: dict[model.Demand, int] = {}

    def use(self, options: model.Options) -> None:
        """Decide by other options from now on."""
        self._options = options
        if not options.reserve:
            self._reserved = None

    def next(self, now: datetime.datetime, *, everybody: bool = False,
             may_end: bool = True
             ) -> tuple[model.Waiting, model.Decision] | None:
        """Decide for the next server; return None if there is none to try now.

        The method plans the room of a decision other than "wait" in the index,
        so that the next decision sees the plan. The caller has to drop the
        plan when the decision is carried out, or to call :meth:`undo`.

        :param everybody: whether to go once through all servers that wait,
            those whose demand sleeps included
        :param may_end: whether a server may be ended for another now
        """
        self._end_reservation()
        waiting = None
        while waiting is None and may_end and self.queue.wake_put_off():
            # The queue may pass over the projects of all its servers.
            waiting = self.queue.pop(now, asleep=everybody)
        waiting = waiting or self.queue.pop(now, asleep=everybody)
        if waiting is None:
            return None
        seen, demand = self.index.version, waiting.demand
        slept = None if self._options.reserve else self.queue.slept(demand)
        decision = None
        if everybody:
            known = self.queue.asleep(demand)
            # Decisions since then may have changed why the demand sleeps.
            if known is not None and self._told.get(demand) == seen:
                return waiting, dataclasses.replace(known, server=waiting.id)
            self._told[demand] = seen
        elif slept:
            decision = self._decide_again(waiting, slept, now)
            if decision and decision.verdict is model.Verdict.WAIT:
                self.queue.sleep(waiting, decision, self.index, seen, now,
                                 slept.until)
                return waiting, decision
        decision = (self._bounded(decision, now) if decision
                    else self.decide(waiting, now))
        if decision.victims and not may_end:
            decision = self._nobody_ends(
                decision, 'Room is made for other servers first, for as many '
                'as allowed.')
            self.queue.put_off(waiting, decision, self.index, seen, now)
        elif decision.verdict is model.Verdict.WAIT:
            self._wait(waiting, decision, seen, now)
        else:
            self._plan(waiting, decision, now)
        if everybody:
            # The room that another server leaves over may wake the demand.
            self.queue.take_out(waiting.id)
        else:
            self.queue.hide(demand)
        return waiting, decision

    @staticmethod
    def _nobody_ends(decision: model.Decision, why: str,
                 hindrance: model.Hindrance | None = None) -> model.Decision:
        """Return the decision that nobody is ended for a server for now."""
        return model.Decision(
            decision.server, model.Verdict.WAIT, reason=decision.reason,
            detail=f'Preemptible servers can make room for it. {why}',
            hindrance=hindrance)

    def decide(self, waiting: model.Waiting, now: datetime.datetime,
               options: model.Options | None = None) -> model.Decision:
        """Decide by some options, or those in force, and change nothing."""
        server, host = self._reserved or ('', None)
        first = self.queue.get(server)
        is_behind = first and self.queue.rank(first) < self.queue.rank(waiting)
        return self._bounded(decide(
            self.index, waiting, options or self._options, now,
            ends_left=self.ends_left(now),
            reserved=host if is_behind else None), now)

    def _bounded(self, decision: model.Decision, now: datetime.datetime
                 ) -> model.Decision:
        """Return the decision, or to wait if it exceeds max_ends_per_hour."""
        if len(decision.victims) <= self._left(now):
            return decision
        return self._nobody_ends(
            decision, 'More servers would have to end than may end within an '
            'hour.',
            model.Hindrance.PROTECTED)

    def runner_up(self, waiting: model.Waiting, before: model.Decision,
                  now: datetime.datetime) -> dict[str, Any]:
        """Return what would be decided without the host of a decision.

        :returns: the host, the victims, and the scorer that told both apart;
            {} if no other host could be made free
        """
        row = self.index.rows.get(before.host or '')
        found = decide(
            self.index, waiting, self._options, now,
            ends_left=self.ends_left(now),
            among=[other for other in self.index.rows.values()
                   if other != row])
        if not found.victims:
            return {}
        with self._without_plan(waiting):
            decided = decided_by(self.index, waiting, self._options,
                                        now, before, found)
        return {'host': found.host, 'victims': list(found.victims),
                'decided_by': decided}

    def would(self, waiting: model.Waiting, offered: Collection[str] | None,
              refused: Mapping[str, str], now: datetime.datetime
              ) -> Generator[model.Decision, None, None]:
        """Decide for servers like a given server, one after another.

        Each decision sees what the decisions before it take. Close the
        iterator under the lock under which it was made, to undo the plans.

        :param waiting: of a shape that no other server has
        :param offered: the only hosts that Placement offers, None if it may
            offer others
        :param refused: the filters that refuse hosts, by the host's name
        """
        made: list[str] = []
        exclusions = self.index.exclusions
        exclusions.refuse(waiting.shape, refused)
        if offered is not None:
            exclusions.offer(waiting.shape, offered)
        try:
            while True:
                server = f'{waiting.id}-{len(made)}'
                decision = self._without_ends(waiting, self.decide(
                    dataclasses.replace(waiting, id=server), now))
                made.append(server)
                if decision.verdict is not model.Verdict.WAIT:
                    self._take(waiting.shape, decision, now)
                if decision.victims and offered is not None:
                    # The victims may free more than the server needs.
                    offered = {*offered, decision.host or ''}
                    exclusions.forget(waiting.shape)
                    exclusions.refuse(waiting.shape, refused)
                    exclusions.offer(waiting.shape, offered)
                yield decision
        finally:
            for server in made:
                self.index.drop_plan(server)
                self.to_end.pop(server, None)
            exclusions.forget(waiting.shape)

    def _without_ends(self, waiting: model.Waiting, decision: model.Decision
                      ) -> model.Decision:
        """Return the decision, or to wait if nobody may be ended for it."""
        mode = self._options.mode
        if decision.victims and mode is not model.Mode.PREEMPT:
            return self._nobody_ends(
                decision, f'The mode is {mode}: nobody is ended.',
                model.Hindrance.MODE)
        if decision.victims and not waiting.is_wanted(self._options.wait):
            return self._nobody_ends(decision, queue_module.NOT_ASKED,
                                     model.Hindrance.NOT_ASKED)
        return decision

    def better(self, waiting: model.Waiting, before: model.Decision,
               held: Mapping[str, Mapping[str, int]],
               now: datetime.datetime) -> model.Decision | None:
        """Find a decision that is better than the plan; change nothing.

        :param before: the decision that is planned
        :param held: the amounts by provider that are held for the server on
            the host of that decision and that the index counts as used
        :returns: None if no decision is better
        """
        with self._without_plan(waiting):
            self.index.plan(index_module.Plan(
                waiting.id, before.host or '', {}, held=held))
            found = self.decide(waiting, now)
            if found.verdict is model.Verdict.ROOM or found.victims and (
                    is_better(self.index, waiting, self._options, now, found,
                              before)):
                return found
            return None

    @contextlib.contextmanager
    def _without_plan(self, waiting: model.Waiting) -> Iterator[None]:
        """Drop the plan for a server while the context lasts."""
        plan = self.index.plans.get(waiting.id)
        to_end = self.to_end.pop(waiting.id, None)
        self.index.drop_plan(waiting.id)
        try:
            yield
        finally:
            self.index.drop_plan(waiting.id)
            if plan:
                self.index.plan(plan)
            if to_end:
                self.to_end[waiting.id] = to_end

    def _decide_again(self, waiting: model.Waiting, slept: queue_module.Sleep,
                      now: datetime.datetime) -> model.Decision | None:
        """Decide by the hosts that have changed since a demand slept.

        The other hosts have no room for the demand, so that a host that
        changes does not cost each demand a search over all hosts.

        :returns: None if all hosts have to be looked at
        """
        before, rows = slept.decision, self.index.changed_since(slept.seen)
        if (slept.until is not None and slept.until <= now or
                len(rows) > len(self.index.hosts) // 8 or
                before.reason in model.NEVER):
            return None
        still = dataclasses.replace(before, server=waiting.id)
        few = before.reason is model.Reason.NO_ROOM and len(rows) <= _FEW
        if few and not any(
                could_help(self.index, waiting.demand, row)
                for row in rows):
            return still
        decision = decide(
            self.index, waiting, self._options, now,
            ends_left=self.ends_left(now), among=rows)
        if decision.verdict is model.Verdict.ROOM:
            return decision
        if decision.verdict is model.Verdict.PREEMPT:
            # Better victims on other hosts may be too many for the caps: they
            # are not to be spared at the price of these. The reason that there
            # is no room is about all hosts.
            return None if before.hindrance is model.Hindrance.PROTECTED else (
                dataclasses.replace(decision, reason=before.reason))
        # Time alone ends a protection, and the wait for a host that is
        # withheld: the demand has to wake then.
        withheld, _until = self.index.exclusions.withheld(waiting.shape, now)
        if decision.hindrance is model.Hindrance.PROTECTED or (
                decision.hindrance is not before.hindrance) or (
                decision.reason not in (before.reason,
                                        model.Reason.NOTHING_FITS)) or (
                withheld[rows].any()):
            return None
        return still

    def undo(self, decision: model.Decision, now: datetime.datetime) -> None:
        """Drop the plan of a decision; give its server back to the queue."""
        self.queue.give_back(decision.server, now)
        self._drop(decision)

    def move(self, before: model.Decision, after: model.Decision,
             waiting: model.Waiting, now: datetime.datetime) -> None:
        """Plan another decision for a server, which gets its room at once."""
        self._drop(before)
        if after.host in self.index.rows:
            self._take(waiting.shape, after, now)

    def _drop(self, decision: model.Decision) -> None:
        self.index.drop_plan(decision.server)
        self.drop_ends(decision.server)
        row = self.index.rows.get(decision.host or '')
        if row is not None:
            self.queue.host_changed(self.index, row)

    def drop_ends(self, server: str) -> None:
        """Count the ends that are planned for a server no more."""
        if self.to_end.pop(server, None) and self._capped:
            # Other servers of these projects may be ended instead.
            self.queue.wake_protected()

    def carry_out(self, server: str, now: datetime.datetime) -> None:
        """Count the ends that are planned for a server as ends of now."""
        self.ends.extend(End(victim, project, now) for victim, project
                         in self.to_end.pop(server, {}).items())

    def drop_stuck(self, servers: Collection[str]) -> None:
        """Count ends that were stuck no more, of servers by their IDs."""
        self.ends = collections.deque(
            end for end in self.ends
            if not end.stuck or end.server not in servers)

    def take_ends(self, servers: Iterable[model.Server], most: int,
                  now: datetime.datetime) -> list[model.Server]:
        """Count the ends of servers that make room for no other server.

        :returns: the servers, "most" of them at most, that may be ended now
        """
        left = min(most, self._left(now))
        limit = self._options.max_ends_per_project_hour or model.MAX_INT
        ended = self._by_project()
        taken: list[model.Server] = []
        for server in servers:
            if len(taken) >= left:
                break
            if ended[server.project] < limit:
                ended[server.project] += 1
                self.to_end[server.id] = {server.id: server.project}
                taken.append(server)
        return taken

    def ends_left(self, now: datetime.datetime) -> dict[str, int]:
        """Return how many servers of each project may end, {} for no limit.

        What is left for all projects together limits no choice, unless nothing
        is left: a server of a high priority is not to be ended because the
        best victims are too many. _bounded() checks the decision instead.
        """
        most = self._options.max_ends_per_project_hour
        if not self._left(now):
            most = 0
        elif not most:
            return {}
        ended = self._by_project()
        return {project: max(0, most - ended[project])
                for project in self.index.slots.projects}

    def over_caps(self, servers: Sequence[str], now: datetime.datetime
                  ) -> set[str]:
        """Return the servers for which the caps allow no more ends by now.

        The caps may have become lower since the decisions. Ends for other
        servers count first.

        :param servers: in the order in which they may have what is left
        """
        if not self._capped:
            return set()
        self._forget_old(now)
        options = self._options
        most = options.max_ends_per_hour or model.MAX_INT
        of_project = options.max_ends_per_project_hour or model.MAX_INT
        ended, over = self._by_project(besides=servers), set()
        for server in servers:
            more = collections.Counter(self.to_end.get(server, {}).values())
            if ended.total() + more.total() > most or any(
                    ended[project] + count > of_project
                    for project, count in more.items()):
                over.add(server)
            else:
                ended += more
        return over

    def _by_project(self, besides: Collection[str] = ()
                    ) -> collections.Counter[str]:
        """Return how many ends of each project count.

        :param besides: the servers for which no planned end counts
        """
        ended = collections.Counter(end.project for end in self.ends)
        for server in self.to_end.keys() - set(besides):
            ended.update(self.to_end[server].values())
        return ended

    @property
    def _capped(self) -> bool:
        return bool(self._options.max_ends_per_project_hour or
                    self._options.max_ends_per_hour)

    def _forget_old(self, now: datetime.datetime) -> None:
        """Forget the ends that count no more, an hour after them."""
        while self.ends and self.ends[0].time <= now - _HOUR:
            self.ends.popleft()

    def _left(self, now: datetime.datetime) -> int:
        """Return how many servers of all projects may still be ended."""
        self._forget_old(now)
        most = self._options.max_ends_per_hour
        return max(0, most - len(self.ends) - sum(
            map(len, self.to_end.values()))) if most else model.MAX_INT

    def _wait(self, waiting: model.Waiting, decision: model.Decision,
              seen: int, now: datetime.datetime) -> None:
        times: list[datetime.datetime | None] = []
        if decision.hindrance is model.Hindrance.PROTECTED:
            times.append(protected_until(self.index, waiting, now))
            if self.ends and self._capped:
                times.append(self.ends[0].time + _HOUR)
        withheld, until = self.index.exclusions.withheld(waiting.shape, now)
        times.append(until)
        self.queue.sleep(
            waiting, decision, self.index, seen, now,
            min(filter(None, times), default=None),
            complete=not withheld.any())
        if self._options.reserve:
            self._reserve(waiting)

    def _plan(self, waiting: model.Waiting, decision: model.Decision,
              now: datetime.datetime) -> None:
        self._take(waiting.shape, decision, now)
        self.queue.grant(waiting, self.index.totals(), now)
        if self._reserved is not None and self._reserved[0] == waiting.id:
            self._reserved = None
            self.queue.wake_all()
        if decision.victims:
            # The victims may free more than the server needs.
            self.queue.host_changed(self.index,
                                    self.index.rows[decision.host or ''])

    def _take(self, shape: model.Shape, decision: model.Decision,
              now: datetime.datetime) -> None:
        """Have the index and the caps count a decision."""
        assert decision.host is not None
        if decision.victims:
            self.to_end[decision.server] = {
                server.id: server.project for server in filter(None, map(
                    self.index.slots.find, decision.victims))}
        self.index.plan(index_module.Plan(
            decision.server, decision.host, self.index.place(
                shape, decision.host, decision.victims), decision.victims))

    def _reserve(self, waiting: model.Waiting) -> None:
        """Keep a host for the first server that cannot be placed."""
        holder = self._reserved and self.queue.get(self._reserved[0])
        if holder and self.queue.rank(holder) <= self.queue.rank(waiting):
            return
        host = worth_reserving(self.index, waiting)
        if host is not None:
            self._reserved = waiting.id, host
            self.queue.wake_all()

    def _end_reservation(self) -> None:
        """Keep a host no longer if its server, or the host itself, is gone."""
        if self._reserved is not None and (
                self._reserved[0] not in self.queue or
                self._reserved[1] not in self.index.rows):
            self._reserved = None
            self.queue.wake_all()
