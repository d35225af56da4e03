# SPDX-License-Identifier: Apache-2.0

"""The servers that may be tried, in order, and demands that sleep."""

from collections.abc import Collection
from collections.abc import Mapping
import dataclasses
import datetime
import heapq

import numpy as np

from nova_reaper.cloud import arrays
from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model

# Half-lives after which the weights of the fair share begin anew at 1, before
# they overflow.
_LARGEST_AGE = 500

# When a server was created, how many were in the queue before it came, its ID,
# and what tells this entry from a later one of the same server.
Place = tuple[float, int, str, int]

# Every host has more than this.
_NOT_ASKED = -(1 << 62)


class FairShare:
    """What the queue gave to each project, as its dominant share.

    The dominant share is the largest of a project's shares of the cloud's
    resource classes (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011).
    What was given long ago counts less. Instead of letting it fade, what is
    given later weighs more, so that the order of the projects never changes
    but when something is given.
    """

    def __init__(self, half_life: int) -> None:
        self._half_life = half_life
        self._begin: datetime.datetime | None = None
        self._given: dict[str, dict[str, float]] = {}
        self._shares: dict[str, float] = {}
        # By server what may be taken back, weighted: its project and amounts.
        self._grants: dict[str, tuple[str, dict[str, float]]] = {}

    def forget(self) -> None:
        """Forget what was given."""
        self._given.clear()
        self._shares.clear()
        self._grants.clear()

    def use(self, half_life: int, now: datetime.datetime) -> bool:
        """Forget by a half-life from now on; returns whether it is another.
        """
        if half_life == self._half_life:
            return False
        factor = 1.0 / self._weight(now)
        for given in (*self._given.values(), *(
                amounts for _project, amounts in self._grants.values())):
            for name in given:
                given[name] *= factor
        for project in self._shares:
            self._shares[project] *= factor
        self._half_life, self._begin = half_life, now
        return True

    def of(self, project: str) -> float:
        """The dominant share; only the order of the values has a meaning."""
        return self._shares.get(project, 0.0)

    def give(self, project: str, resources: Mapping[str, int],
             totals: Mapping[str, int], at: datetime.datetime,
             server: str = '') -> None:
        """Count what a project was given.

        :param totals: the capacity of the cloud, by resource class
        :param at: when it was given
        :param server: for which it may be taken back, '' for none
        """
        weight = self._weight(at)
        amounts = {name: amount * weight for name, amount in resources.items()}
        if server:
            self._grants[server] = project, amounts
        self._add(project, amounts, totals)

    def take_back(self, server: str, totals: Mapping[str, int]) -> str | None:
        """Take back what was given for a server; returns of which project."""
        project, amounts = self._grants.pop(server, (None, {}))
        if project is not None:
            self._add(project, {name: -amount for name, amount
                                in amounts.items()}, totals)
        return project

    def settle(self, server: str) -> None:
        """What was given for a server is not taken back any more."""
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
        """How much counts what is given at a time."""
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
    """The servers of one demand, project and priority, as a heap.

    Its first stands for all of it, so that a demand goes to sleep and wakes up
    without a look at each of its servers.

    :ivar key: the level that it belongs to
    :ivar parked: servers that are not to be tried before the demand wakes up
    """

    key: tuple[bool, int]
    project: str
    demand: model.Demand
    places: list[Place] = dataclasses.field(default_factory=list)
    parked: list[Place] = dataclasses.field(default_factory=list)


class Level:
    """The lines of one priority that may be tried now."""

    def __init__(self, share: FairShare) -> None:
        self._share = share
        self._lines: dict[str, list[tuple[Place, Line]]] = {}
        self._projects: list[tuple[float, Place, str]] = []

    def note(self, line: Line) -> None:
        """Take note of a line, or that another is its first."""
        lines = self._lines.setdefault(line.project, [])
        entry = line.places[0], line
        heapq.heappush(lines, entry)
        if lines[0] == entry:
            self.reorder(line.project)

    def reorder_all(self) -> None:
        """Take note of other shares of all projects."""
        self._projects.clear()
        for project in list(self._lines):
            self.reorder(project)

    def reorder(self, project: str) -> None:
        """Take note of another share or another oldest server."""
        if lines := self._lines.get(project):
            heapq.heappush(self._projects,
                           (self._share.of(project), lines[0][0], project))
        else:
            self._lines.pop(project, None)

    def __len__(self) -> int:
        return len(self._lines)

    def pop(self, closed: Collection[str] = ()) -> tuple[Place, Line] | None:
        """The next in order, None if there is none.

        The line has to be noted again, and may have another first by now.

        :param closed: projects to pass over; each has to be reordered before
            it is looked at again
        """
        while self._projects:
            share, place, project = heapq.heappop(self._projects)
            lines = self._lines.get(project)
            # Not so if it was noted anew since.
            if (lines and lines[0][0] == place and
                    self._share.of(project) == share and
                    project not in closed):
                entry = heapq.heappop(lines)
                self.reorder(project)
                return entry
        return None


@dataclasses.dataclass(slots=True)
class Sleep:
    """With what a demand sleeps: there is nothing for it.

    :ivar until: when it is to be looked at again in any case
    :ivar seen: the version of the index of which that was found
    :ivar complete: whether the hosts of that version have nothing for it, by
        whatever means
    :ivar column: where the arrays of the sleepers say what it asks for
    """

    decision: model.Decision
    until: datetime.datetime | None
    seen: int
    complete: bool
    column: int = -1


class Sleepers:
    """The demands that sleep.

    What they ask for stands in arrays, one for each resource class, with an
    element for each demand.

    :ivar options: by which they are woken
    :ivar sleeps: with what each of them sleeps
    """

    def __init__(self, options: model.Options) -> None:
        self.options = options
        self.sleeps: dict[model.Demand, Sleep] = {}
        self._demands: dict[int, model.Demand] = {}
        self._empty: list[int] = []
        self._taken = np.zeros(0, np.bool_)
        self._asked: dict[str, arrays.Ints] = {}

    def add(self, demand: model.Demand, sleep: Sleep) -> None:
        """A demand that did not sleep does so from now on."""
        if not self._empty:
            size = max(64, 2 * len(self._taken))
            self._empty = list(range(size - 1, len(self._taken) - 1, -1))
            self._taken = arrays.wider(self._taken, size)
            self._asked = {name: arrays.wider(asked, size)
                           for name, asked in self._asked.items()}
        self.sleeps[demand] = sleep
        sleep.column = column = self._empty.pop()
        self._demands[column] = demand
        self._taken[column] = True
        for asked in self._asked.values():
            asked[column] = _NOT_ASKED
        for name, amount in demand.shape.by_host:
            if name not in self._asked:
                self._asked[name] = np.full(len(self._taken), _NOT_ASKED)
            self._asked[name][column] = amount

    def pop(self, demand: model.Demand) -> Sleep | None:
        """Wake a demand; returns with what it slept, None if it did not."""
        sleep = self.sleeps.pop(demand, None)
        if sleep:
            self._taken[sleep.column] = False
            self._empty.append(sleep.column)
            del self._demands[sleep.column]
        return sleep

    def helped_by(self, index: index_module.Index, row: int
                  ) -> list[model.Demand]:
        """The demands that a host could help."""
        could = self._taken.copy()
        for name, asked in self._asked.items():
            could &= asked <= self._most(index, row, name)
        demands = [self._demands[column]
                   for column in np.flatnonzero(could).tolist()]
        return [demand for demand in demands
                if index.could_take(demand.shape, row)]

    def would_help(self, index: index_module.Index, row: int,
                   demand: model.Demand) -> bool:
        """Whether a host could help a demand, asleep or not."""
        return (all(self._most(index, row, name) >= amount
                    for name, amount in demand.shape.by_host) and
                index.could_take(demand.shape, row))

    def _most(self, index: index_module.Index, row: int, name: str) -> int:
        """What of a resource class a host could be made to have free."""
        column = index.classes.get(name)
        if column is None:
            return index_module.NONE
        most = int(index.free[column][row])
        if self.options.mode is not model.Mode.FILL:
            most += int(index.endable[column][row])
        return most
