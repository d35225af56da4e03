#    Licensed under the Apache License, Version 2.0 (the "License"); you may
#    not use this file except in compliance with the License. You may obtain
#    a copy of the License at
#
#         http://www.apache.org/licenses/LICENSE-2.0
#
#    Unless required by applicable law or agreed to in writing, software
#    distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
#    WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
#    License for the specific language governing permissions and limitations
#    under the License.

"""The best sets of preemptible servers whose end would make room.

Scorers say which of two sets is better, one after another. Covering a need in
several resource classes with the fewest servers is a covering knapsack,
NP-hard in general. Servers come from flavors, though, and a host has few: sets
are built one server at a time, for all hosts at once, and those that cannot
reach the need any more with what is left of the host are dropped. Servers of
one kind are exchangeable but for their age, so of a kind only the youngest are
taken.

Where the highest priority comes first, the lowest is found up to which servers
are enough on some host, and no other servers are looked at. Where the count is
next, sets of one server are tried, then of two, and the first size that makes
room is the last. Otherwise sets of every size are compared.

What is found is exact, over all hosts, as long as one host has no more than
covering.MOST sets under construction. Beyond that a search that goes deep
first proves the number and finds up to covering.FOUND to choose from; its
proof is given up after covering.STEPS, and Result.exact says so.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses

import numpy as np

from nova_reaper.cloud import arrays
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import covering

# Microseconds since 1970 are what the time is for a scorer.
Scorer = Callable[[index_module.Index, model.Shape, int, covering.Sets],
                  arrays.Ints]


def score_priority(index: index_module.Index, shape: model.Shape,
                   now: int, sets: covering.Sets) -> arrays.Ints:
    """The highest priority of a set."""
    highest: arrays.Ints = index.slots.priority[sets.members].max(
        axis=1, keepdims=True, initial=-model.MAX_INT)
    return highest


def score_count(index: index_module.Index, shape: model.Shape,
                now: int, sets: covering.Sets) -> arrays.Ints:
    """How many servers a set has."""
    return np.full((len(sets), 1), sets.members.shape[1])


def score_deletes(index: index_module.Index, shape: model.Shape,
                  now: int, sets: covering.Sets) -> arrays.Ints:
    """How many servers of a set would be deleted and not shelved."""
    deletes: arrays.Ints = index.slots.deletes[sets.members].sum(
        axis=1, keepdims=True)
    return deletes


def score_priorities(index: index_module.Index, shape: model.Shape,
                     now: int, sets: covering.Sets) -> arrays.Ints:
    """The highest priority of a set, then the second highest, and so on."""
    return -np.sort(-index.slots.priority[sets.members], axis=1)


def score_leftover(index: index_module.Index, shape: model.Shape,
                   now: int, sets: covering.Sets) -> arrays.Ints:
    """What of RAM, then VCPUs, then disk is left over on the host."""
    asked = shape.amounts
    columns = []
    for name in ('MEMORY_MB', 'VCPU', 'DISK_GB'):
        column = index.classes[name]
        free = index.free[column][sets.rows]
        freed = index.slots.amounts[column][sets.members].sum(
            axis=1, dtype=np.int64)
        columns.append(np.where(free == index_module.NONE, 0,
                                free + freed - asked.get(name, 0)))
    return np.stack(columns, axis=1)


def score_youngest(index: index_module.Index, shape: model.Shape,
                   now: int, sets: covering.Sets) -> arrays.Ints:
    """The time for which the servers of a set have run, all together."""
    run: arrays.Ints = (now - index.slots.launched[sets.members]).sum(
        axis=1, keepdims=True)
    return run


# The smaller the better; columns are compared from left to right. No set gets
# better in any of them by one server more.
SCORERS: Mapping[str, Scorer] = {
    'priority': score_priority,
    'count': score_count,
    'deletes': score_deletes,
    'priorities': score_priorities,
    'leftover': score_leftover,
    'youngest': score_youngest,
}


# What makes nobody take a notice back: whatever starts and ends on other hosts
# would, time and again.
SLIGHT = frozenset({'leftover', 'youngest'})


def best(index: index_module.Index, shape: model.Shape,
         options: model.Options, now: int, sets: covering.Sets
         ) -> covering.Sets:
    """Those of the sets, all of one size, that no other is better than."""
    for name in options.scorers:
        if len(sets) == 1:
            break
        scores = SCORERS[name](index, shape, now, sets)
        which = np.arange(len(sets))
        for column in range(scores.shape[1]):
            values = scores[which, column]
            which = which[values == values.min()]
        sets = sets.take(which)
    return sets


def cost(index: index_module.Index, shape: model.Shape,
         options: model.Options, now: int, sets: covering.Sets
         ) -> list[list[int]]:
    """What the scorers say of the first of some sets, to compare sizes by."""
    first = sets.take(np.array([int(sets.rows.argmin())]))
    return [SCORERS[name](index, shape, now, first)[0].tolist()
            for name in options.scorers]


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What was found.

    :ivar sets: the best sets, equal to each other by all scorers; None if no
        set makes room
    :ivar exact: whether no better set can exist
    """

    sets: covering.Sets | None
    exact: bool = True


def find(index: index_module.Index, demand: model.Demand,
         rows: arrays.Bools, now: int, left: Mapping[str, int],
         options: model.Options) -> Result:
    """Find the best sets whose end makes room on one of the hosts.

    :param now: microseconds since 1970
    :param left: how many servers may still be ended, of the projects for
        which that is limited
    :param rows: the hosts that may be looked at; none of them has room
    """
    search = _Search(index, demand, rows, left, options, now)
    return search.run() if search.rows.any() else Result(None)


def _at_least(index: index_module.Index, column: int,
              need: arrays.Ints) -> arrays.Ints:
    """A number of victims below which hosts cannot cover a need."""
    *_, before, most = index.largest[column]
    result = np.ones_like(need)
    for together in index.largest[column][:-1]:
        result += together < need
    # The next ones are no larger than the last that was counted.
    rest = need - most
    return np.where(
        rest > 0,
        index_module.TOP - (-rest // np.maximum(most - before, 1)), result)


class _Search:

    def __init__(self, index: index_module.Index, demand: model.Demand,
                 rows: arrays.Bools, left: Mapping[str, int],
                 options: model.Options, now: int) -> None:
        self.index = index
        self.table = index.slots
        self.demand = demand
        self.options = options
        self.now = now
        self.by_priority = options.scorers[:1] == ('priority',)
        # Whether the first size of which a set makes room is the last.
        first = options.scorers[self.by_priority:][:1]
        self.by_count = first in ((), ('count',))
        self.exact = True
        self.steps = covering.STEPS
        columns = [index.classes[name]
                   for name, _amount in demand.shape.resources]
        needs = [np.maximum(amount - index.free[column], 0)
                 for column, (_name, amount)
                 in zip(columns, demand.shape.resources)]
        self.rows = rows.copy()
        self.at_least = np.ones(len(rows), np.int64)
        # How many may be ended, of the hosts that were looked at closer.
        self.servers = np.zeros(len(rows), np.int64)
        for need, column in zip(needs, columns):
            self.rows &= need <= index.endable[column]
            np.maximum(self.at_least, _at_least(index, column, need),
                       out=self.at_least)
        allowed = np.full(len(self.table.projects) + 1, covering.FAR)
        for project, ends in left.items():
            if project in self.table.projects:
                allowed[self.table.projects[project]] = ends
        self.problem = covering.Problem(self.table, columns, needs, allowed)

    def run(self) -> Result:
        """Find the best sets."""
        may = self._endable()
        levels = sorted(self.table.priorities)
        if not self.by_priority or len(levels) < 2:
            return Result(self._search(may, self.rows), self.exact)
        # By what all servers up to a level have together the lowest is found
        # that may do; by what may be ended of a project it may be a higher.
        enough: dict[int, arrays.Bools] = {}
        low, level, high = 0, 0, len(levels) - 1
        while low < high:
            enough[level] = self._enough(may, levels[level])
            if enough[level].any():
                high = level
            else:
                low = level + 1
            level = (low + high) // 2
        for level in range(low, len(levels)):
            rows = enough.get(level, self.rows)
            sets = self._search(may & (self.table.priority <= levels[level]),
                                rows)
            if sets is not None:
                return Result(sets, self.exact)
        return Result(None, self.exact)

    def _enough(self, may: arrays.Bools, level: int) -> arrays.Bools:
        """The hosts on which all servers up to a priority are enough."""
        chosen = self._chosen(may & (self.table.priority <= level), self.rows)
        host_of = self.table.host_of[chosen]
        rows = self.rows.copy()
        for need, column in zip(self.problem.need, self.problem.columns):
            rows &= np.bincount(host_of, self.table.amounts[column][chosen],
                                len(rows)) >= need
        return rows

    def _search(self, may: arrays.Bools, rows: arrays.Bools
                ) -> covering.Sets | None:
        """Try sets of one server on some hosts, of two, and so on."""
        everything = self.rows, self.at_least, self.servers
        self.rows, self.at_least = rows.copy(), self.at_least.copy()
        self.servers = np.zeros_like(self.servers)
        found: covering.Sets | None = None
        size = 0
        while self.rows.any():
            size = max(size + 1, int(self.at_least[self.rows].min()))
            if size > 2:
                self._bound(may, size)
            chosen = self._chosen(may, self.rows & (self.at_least <= size))
            sets = self._of_size(chosen, size)
            if sets is not None and (
                    found is None or self._cost(sets) < self._cost(found)):
                found = sets
                if self.by_count:
                    break
        self.rows, self.at_least, self.servers = everything
        return found

    def _cost(self, sets: covering.Sets) -> tuple[list[list[int]], int]:
        """What the scorers say of sets that are equal, and the first host."""
        return cost(self.index, self.demand.shape, self.options, self.now,
                    sets), int(sets.rows.min())

    def _best(self, sets: covering.Sets) -> covering.Sets | None:
        if not self.by_count and len(sets):
            sets = self.problem.without_needless(sets)
        return best(self.index, self.demand.shape, self.options, self.now,
                    sets) if len(sets) else None

    def _endable(self) -> arrays.Bools:
        """The slots of servers that may be ended."""
        may = self.table.endable & (self.table.safe_until <= self.now)
        if self.demand.below is not None:
            may &= self.table.priority < self.demand.below
        if self.problem.left.min() <= 0:
            may &= self.problem.left[self.table.project] > 0
        return may

    def _chosen(self, may: arrays.Bools, rows: arrays.Bools
                ) -> arrays.Ints:
        return np.flatnonzero(may & rows[self.table.host_of])

    def _bound(self, may: arrays.Bools, size: int) -> None:
        """Look closer, and once, at hosts of which so few victims might do."""
        rows = self.rows & (self.at_least <= size) & (self.servers == 0)
        chosen = self._chosen(may, rows)
        at_least = np.full(len(rows), covering.FAR, np.int64)
        if len(chosen):
            field = covering.Field(self.problem, chosen, covering.FAR)
            at_least[field.row[field.begins]] = field.at_least()
            self.servers += np.bincount(field.row, minlength=len(rows))
        self.at_least[rows] = at_least[rows]
        self.rows &= (self.at_least < covering.FAR) & (
            (self.servers == 0) | (self.servers >= size))

    def _of_size(self, chosen: arrays.Ints,
                 size: int) -> covering.Sets | None:
        """The best of all sets of a size that make room."""
        if size == 1:
            return self._of_one(chosen)
        if len(chosen) < size:
            return None
        field = covering.Field(self.problem, chosen, size)
        found = field.sets(size, not self.by_count)
        if found is None:
            return self._of_size_in_parts(field, size)
        return self._best(found)

    def _of_one(self, chosen: arrays.Ints) -> covering.Sets | None:
        for need, column in zip(self.problem.need, self.problem.columns):
            chosen = chosen[self.table.amounts[column][chosen] >=
                            need[self.table.host_of[chosen]]]
        rows = self.table.host_of[chosen].astype(np.int64)
        sets = covering.Sets(rows, chosen[:, np.newaxis])
        return self._best(sets)

    def _of_size_in_parts(self, field: covering.Field,
                          size: int) -> covering.Sets | None:
        hosts = int(field.rank[-1]) + 1
        if hosts == 1:
            may = max(self.steps, covering.FEWEST_STEPS)
            sets, steps = field.sets_deep(size, may)
            self.steps -= steps
            self.exact &= steps <= may or self.by_count and len(sets) > 0
            return self._best(sets)
        middle = int(np.searchsorted(field.rank, hosts // 2))
        first = self._of_size(field.slot[:middle], size)
        second = self._of_size(field.slot[middle:], size)
        if first is None or second is None:
            return first if second is None else second
        return self._best(first.join(second))
