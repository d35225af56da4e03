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

"""The smallest sets of preemptible servers that would make room.

Covering a need in several resource classes with the fewest servers is a
covering knapsack, NP-hard in general. Servers come from flavors, though, and a
host has few: sets are built one server at a time, for all hosts at once, and
those that cannot reach the need any more with what is left of the host are
dropped. Servers of one kind are exchangeable but for their age, so of a kind
only the youngest are taken.

The number of victims is exact, over all hosts. The choice among sets of that
number is made by the scorers and exact as well, as long as one host has no
more than covering.MOST of them under construction. Beyond that a search that
goes deep first proves the number and finds up to covering.FOUND to choose
from; its proof is given up after covering.STEPS, and Result.exact says so.
"""

from collections.abc import Callable
from collections.abc import Mapping
import dataclasses

import numpy as np

from nova_reaper.cloud import arrays
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model
from nova_reaper.decide import covering

Best = Callable[[covering.Sets], covering.Sets]


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What was found.

    :ivar sets: the best of the smallest sets, equal to each other by all
        scorers; None if no set makes room
    :ivar exact: whether no smaller set can exist
    """

    sets: covering.Sets | None
    exact: bool = True


def fewest(index: index_module.Index, demand: model.Demand,
           rows: arrays.Bools, now: int, left: Mapping[str, int],
           best: Best, priority_first: bool = False) -> Result:
    """Find the smallest sets whose end makes room on one of the hosts.

    :param now: microseconds since 1970
    :param left: how many servers may still be ended, of the projects for
        which that is limited
    :param rows: the hosts that may be looked at; none of them has room
    :param best: what chooses among sets of the same size
    :param priority_first: whether it prefers the lowest priorities before
        anything else
    """
    search = _Search(index, demand, rows, left, best, priority_first)
    return search.run(now) if search.rows.any() else Result(None)


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
                 best: Best, priority_first: bool) -> None:
        self.table = index.slots
        self.below = demand.below
        self.best = best
        self.priority_first = priority_first
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
        self.problem = covering.Problem(self.table, columns, needs,
                                           allowed)

    def run(self, now: int) -> Result:
        """Try one victim, two, and so on."""
        may = lowest = self._endable(now)
        if self.priority_first and may.any():
            lowest = may & (self.table.priority ==
                            self.table.priority[may].min())
        size = 0
        while self.rows.any():
            size = max(size + 1, int(self.at_least[self.rows].min()))
            if size > 2:
                self._bound(may, size)
            rows = self.rows & (self.at_least <= size)
            # No set is better than one of the lowest priority alone.
            sets = self._of_size(self._chosen(lowest, rows), size)
            if sets is None and lowest is not may:
                sets = self._of_size(self._chosen(may, rows), size)
            if sets is not None:
                return Result(sets, self.exact)
        return Result(None, self.exact)

    def _endable(self, now: int) -> arrays.Bools:
        """The slots of servers that may be ended."""
        may = self.table.endable & (self.table.safe_until <= now)
        if self.below is not None:
            may &= self.table.priority < self.below
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
        found = field.sets(size)
        if found is None:
            return self._of_size_in_parts(field, size)
        return self.best(found) if len(found) else None

    def _of_one(self, chosen: arrays.Ints) -> covering.Sets | None:
        for need, column in zip(self.problem.need, self.problem.columns):
            chosen = chosen[self.table.amounts[column][chosen] >=
                            need[self.table.host_of[chosen]]]
        rows = self.table.host_of[chosen].astype(np.int64)
        sets = covering.Sets(rows, chosen[:, np.newaxis])
        return self.best(sets) if len(sets) else None

    def _of_size_in_parts(self, field: covering.Field,
                          size: int) -> covering.Sets | None:
        hosts = int(field.rank[-1]) + 1
        if hosts == 1:
            may = max(self.steps, covering.FEWEST_STEPS)
            sets, steps = field.sets_deep(size, may)
            self.steps -= steps
            self.exact &= len(sets) > 0 or steps <= may
            return self.best(sets) if len(sets) else None
        middle = int(np.searchsorted(field.rank, hosts // 2))
        first = self._of_size(field.slot[:middle], size)
        second = self._of_size(field.slot[middle:], size)
        if first is None or second is None:
            return first if second is None else second
        return self.best(first.join(second))
