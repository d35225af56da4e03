# SPDX-License-Identifier: Apache-2.0

"""One decision after another: the queue, the choice, and what follows from it.

The service and the simulation both run this; they differ in what they do with
a decision.
"""

import collections
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import contextlib
import dataclasses
import datetime
from typing import Any

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper.queue import lines
from nova_reaper.queue import queue as queue_module

_HOUR = datetime.timedelta(hours=1)
# A demand for which nobody may be ended yet, since as many as may be are ended
# for others, is looked at again after this.
_TURN = datetime.timedelta(seconds=5)
# Up to so many hosts are looked at faster one by one than all at once.
_FEW = 64


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """A server that was ended, or is going to be."""

    server: str
    project: str
    time: datetime.datetime


class Planner:
    """Decides for the servers that wait, in their order.

    :ivar ends: of servers that count against what may be ended in an hour
    """

    def __init__(self, index: index_module.Index, queue: queue_module.Queue,
                 options: model.Options) -> None:
        self.index = index
        self.queue = queue
        self._options = options
        self.ends: collections.deque[End] = collections.deque()
        self._reserved: tuple[str, str] | None = None
        self._seen: set[str] = set()
        self._told: dict[model.Demand, int] = {}

    def use(self, options: model.Options) -> None:
        """Decide by other options from now on."""
        self._options = options
        if not options.reserve:
            self._reserved = None

    def next(self, now: datetime.datetime, *, everybody: bool = False,
             may_end: bool = True
             ) -> tuple[model.Waiting, model.Decision] | None:
        """Decide for the next server, None if nobody is to be tried now.

        The room of a decision other than "wait" is planned in the index at
        once, so that the next decision sees it. It is the caller's to drop
        the plan when it is carried out, or to call :meth:`undo`.

        :param everybody: whether to go once through all who wait, those whose
            demand sleeps included
        :param may_end: whether anybody may be ended for a server now
        """
        waiting = self.queue.pop(now, asleep=everybody)
        while waiting and waiting.id in self._seen:
            # It was woken by what another left over.
            waiting = self.queue.pop(now, asleep=True)
        if waiting is None:
            return None
        seen, demand = self.index.version, waiting.demand
        slept = None if self._options.reserve else self.queue.slept(demand)
        decision = None
        if everybody:
            self._seen.add(waiting.id)
            known = self.queue.asleep(demand)
            # What was decided since may have changed why it has to sleep.
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
            decision = self._put_off(
                decision, 'As many as may be are ended for others first.')
            self.queue.sleep(waiting, decision, self.index, seen, now,
                             now + _TURN, complete=False)
        elif decision.verdict is model.Verdict.WAIT:
            self._wait(waiting, decision, seen, now)
        else:
            self._plan(waiting, decision, now)
        return waiting, decision

    @staticmethod
    def _put_off(decision: model.Decision, why: str,
                 hindrance: model.Hindrance | None = None) -> model.Decision:
        """That nobody is ended for a server at the moment."""
        return model.Decision(
            decision.server, model.Verdict.WAIT, reason=model.Reason.NO_ROOM,
            detail=f'Preemptible servers can make room for it. {why}',
            hindrance=hindrance)

    def decide(self, waiting: model.Waiting,
               now: datetime.datetime) -> model.Decision:
        """What would be decided for a server; nothing is changed by it."""
        reserved = self._reservation()
        if reserved is not None and reserved[0] == waiting.id:
            reserved = None
        return self._bounded(choose.decide(
            self.index, waiting, self._options, now,
            ends_left=self.ends_left(now),
            reserved=reserved[1] if reserved else None), now)

    def _bounded(self, decision: model.Decision, now: datetime.datetime
                 ) -> model.Decision:
        """The decision, if no more are ended by it in an hour than may be."""
        if len(decision.victims) <= self._left(now):
            return decision
        return self._put_off(
            decision, 'As many as may be were ended in the last hour.',
            model.Hindrance.PROTECTED)

    def runner_up(self, waiting: model.Waiting, before: model.Decision,
                  now: datetime.datetime) -> dict[str, Any]:
        """What would be decided without the host of a decision.

        :returns: the host, the victims, and the scorer that told both apart;
            {} if no other host could be made free
        """
        row = self.index.rows.get(before.host or '')
        found = choose.decide(
            self.index, waiting, self._options, now,
            ends_left=self.ends_left(now),
            among=[other for other in self.index.rows.values()
                   if other != row])
        if not found.victims:
            return {}
        with self._without_plan(waiting):
            decided = choose.decided_by(self.index, waiting, self._options,
                                        now, before, found)
        return {'host': found.host, 'victims': list(found.victims),
                'decided_by': decided}

    def better(self, waiting: model.Waiting, before: model.Decision,
               held: Mapping[str, int], now: datetime.datetime
               ) -> model.Decision | None:
        """A better decision than that which is planned; nothing is changed.

        :param held: what is held for the server on the host of the decision,
            as far as the index counts it as used
        :returns: None if there is no better one
        """
        ends = self.ends
        with self._without_plan(waiting):
            self.index.plan(index_module.Plan(
                waiting.id, before.host or '',
                {name: -amount for name, amount in held.items()}))
            self.ends = collections.deque(
                end for end in ends if end.server not in before.victims)
            try:
                found = self.decide(waiting, now)
                if found.verdict is model.Verdict.ROOM or found.victims and (
                        choose.is_better(self.index, waiting, self._options,
                                         now, found, before)):
                    return found
                return None
            finally:
                self.ends = ends

    @contextlib.contextmanager
    def _without_plan(self, waiting: model.Waiting) -> Iterator[None]:
        """Have nothing planned for a server for a moment."""
        plan = self.index.plans.get(waiting.id)
        self.index.drop_plan(waiting.id)
        try:
            yield
        finally:
            self.index.drop_plan(waiting.id)
            if plan:
                self.index.plan(plan)

    def _decide_again(self, waiting: model.Waiting, slept: lines.Sleep,
                      now: datetime.datetime) -> model.Decision | None:
        """Decide by the hosts that have changed since its demand slept.

        The others have nothing for it, so that one host that changes does not
        cost a search over all of them for each demand.

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
                choose.could_help(self.index, waiting.demand, row)
                for row in rows):
            return still
        decision = choose.decide(
            self.index, waiting, self._options, now,
            ends_left=self.ends_left(now), among=rows)
        if decision.verdict is model.Verdict.ROOM:
            return decision
        if decision.verdict is model.Verdict.PREEMPT:
            # Why it waited is said of all hosts.
            return dataclasses.replace(decision, reason=before.reason)
        if decision.hindrance is model.Hindrance.PROTECTED or (
                decision.hindrance is not before.hindrance) or (
                decision.reason not in (before.reason,
                                        model.Reason.NOTHING_FITS)):
            return None
        return still

    def undo(self, decision: model.Decision, now: datetime.datetime) -> None:
        """Nothing came of a decision: give the room and its server back."""
        self.index.drop_plan(decision.server)
        self.drop_ends(decision)
        self.queue.give_back(decision.server, now)
        row = self.index.rows.get(decision.host or '')
        if row is not None:
            self.queue.host_changed(self.index, row)

    def drop_ends(self, decision: model.Decision) -> None:
        """The ends of a decision are planned no more."""
        victims = set(decision.victims)
        left = collections.deque(
            end for end in self.ends if end.server not in victims)
        if len(left) < len(self.ends) and self._capped:
            # Others of these projects may be ended in their stead.
            self.queue.wake_protected()
        self.ends = left

    def remember(self, ends: Iterable[tuple[str, str, datetime.datetime]]
                 ) -> None:
        """Count ends of before this process began."""
        self.ends.extendleft(End(*end) for end in ends)

    def ends_left(self, now: datetime.datetime) -> dict[str, int]:
        """How many servers may still be ended, by project."""
        most = self._options.max_ends_per_project_hour or model.MAX_INT
        left = self._left(now)
        if not self._capped:
            return {}
        ended = collections.Counter(end.project for end in self.ends)
        return {project: min(left, max(0, most - ended[project]))
                for project in self.index.slots.projects}

    @property
    def _capped(self) -> bool:
        return bool(self._options.max_ends_per_project_hour or
                    self._options.max_ends_per_hour)

    def _left(self, now: datetime.datetime) -> int:
        """How many servers of all projects may still be ended."""
        self.ends = collections.deque(
            end for end in self.ends if end.time > now - _HOUR)
        most = self._options.max_ends_per_hour or model.MAX_INT
        return max(0, most - len(self.ends))

    def _wait(self, waiting: model.Waiting, decision: model.Decision,
              seen: int, now: datetime.datetime) -> None:
        until = None
        if decision.hindrance is model.Hindrance.PROTECTED:
            until = choose.protected_until(self.index, waiting, now)
            if self.ends and self._capped:
                free = min(end.time for end in self.ends) + _HOUR
                until = min(until, free) if until else free
        self.queue.sleep(
            waiting, decision, self.index, seen, now, until,
            complete=self.index.exclusions.withheld(waiting.shape) is None)
        if self._options.reserve:
            self._reserve(waiting)

    def _plan(self, waiting: model.Waiting, decision: model.Decision,
              now: datetime.datetime) -> None:
        assert decision.host is not None
        table = self.index.slots
        for victim in decision.victims:
            server = table.find(victim)
            if server is not None:
                self.ends.append(End(victim, server.project, now))
        self.index.plan(index_module.Plan(
            waiting.id, decision.host, waiting.shape.amounts,
            decision.victims))
        self.queue.grant(waiting, self.index.totals(), now)
        if self._reserved is not None and self._reserved[0] == waiting.id:
            self._reserved = None
            self.queue.wake_all()
        if decision.victims:
            # What its victims leave over may be enough for another.
            self.queue.host_changed(self.index,
                                    self.index.rows[decision.host])

    def _reserve(self, waiting: model.Waiting) -> None:
        """Keep a host for the first of those that cannot be placed."""
        reserved = self._reservation()
        if reserved is not None:
            holder = self.queue.get(reserved[0])
            if holder and self.queue.rank(holder) <= self.queue.rank(waiting):
                return
        host = choose.worth_reserving(self.index, waiting)
        if host is not None:
            self._reserved = waiting.id, host
            self.queue.wake_all()

    def _reservation(self) -> tuple[str, str] | None:
        if self._reserved is not None and (
                self._reserved[0] not in self.queue or
                self._reserved[1] not in self.index.rows):
            self._reserved = None
            self.queue.wake_all()
        return self._reserved
