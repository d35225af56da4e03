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
import datetime
import heapq

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


class Level:
    """The servers of one priority that may be tried now."""

    def __init__(self, share: FairShare) -> None:
        self._share = share
        self._servers: dict[str, list[Place]] = {}
        self._projects: list[tuple[float, Place, str]] = []

    def push(self, project: str, place: Place) -> None:
        """Add a server."""
        servers = self._servers.setdefault(project, [])
        heapq.heappush(servers, place)
        if servers[0] == place:
            self.reorder(project)

    def reorder(self, project: str) -> None:
        """Take note of another share or another oldest server."""
        if servers := self._servers.get(project):
            heapq.heappush(self._projects,
                           (self._share.of(project), servers[0], project))
        else:
            self._servers.pop(project, None)

    def pop(self) -> Place | None:
        """The next in order, None if there is none."""
        while self._projects:
            share, place, project = heapq.heappop(self._projects)
            servers = self._servers.get(project)
            # Not so if it was noted anew since.
            if (servers and servers[0] == place and
                    self._share.of(project) == share):
                heapq.heappop(servers)
                self.reorder(project)
                return place
        return None
