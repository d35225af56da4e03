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

"""Which of the servers of one priority is next: fair share, then age."""

from collections.abc import Mapping
import dataclasses
import datetime
import heapq

from nova_reaper import model

# Weights of the fair share are brought back to 1 before they overflow.
_LARGEST_WEIGHT = 2.0 ** 500

# When a server was created, how many were in the queue before it came, its ID,
# and what tells this entry from a later one of the same server.
Place = tuple[float, int, str, int]


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

    def of(self, project: str) -> float:
        """The dominant share; only the order of the values has a meaning."""
        return self._shares.get(project, 0.0)

    def give(self, project: str, resources: Mapping[str, float],
             totals: Mapping[str, int]) -> None:
        """Count weighted resources; negative ones take back."""
        given = self._given.setdefault(project, {})
        for name, amount in resources.items():
            given[name] = given.get(name, 0.0) + amount
        self._shares[project] = max(
            (amount / totals[name] for name, amount in given.items()
             if totals.get(name, 0) > 0), default=0.0)

    def weight(self, now: datetime.datetime) -> float:
        """How much what is given now counts."""
        if not self._half_life:
            return 1.0
        if self._begin is None:
            self._begin = now
        age = (now - self._begin).total_seconds() / self._half_life
        if 2.0 ** min(age, 1000.0) > _LARGEST_WEIGHT:
            self._given.clear()
            self._shares.clear()
            self._begin, age = now, 0.0
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

    def unpark(self) -> None:
        """Have all of its servers stand in line again."""
        for place in self.parked:
            heapq.heappush(self.places, place)
        self.parked.clear()


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

    def reorder(self, project: str) -> None:
        """Take note of another share or another oldest server."""
        if lines := self._lines.get(project):
            heapq.heappush(self._projects,
                           (self._share.of(project), lines[0][0], project))
        else:
            self._lines.pop(project, None)

    def pop(self) -> tuple[Place, Line] | None:
        """The next in order, None if there is none.

        The line has to be noted again, and may have another first by now.
        """
        while self._projects:
            share, place, project = heapq.heappop(self._projects)
            lines = self._lines.get(project)
            # Not so if it was noted anew since.
            if (lines and lines[0][0] == place and
                    self._share.of(project) == share):
                entry = heapq.heappop(lines)
                self.reorder(project)
                return entry
        return None
