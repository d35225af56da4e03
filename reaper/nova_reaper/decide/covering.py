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

"""Sets of servers of some hosts, built one server at a time."""

from collections.abc import Iterator
import dataclasses

import numpy as np

from nova_reaper.cloud import arrays
from nova_reaper.cloud import model

# So many sets are built side by side, so many are chosen from where they are
# found one by one. So many steps are made for that in one decision, and in
# any case so many for each host and size.
MOST = 1 << 19
FOUND = 4096
STEPS = 200_000
FEWEST_STEPS = 2000
# More than any number of servers.
FAR = 1 << 40

_WEIGHT = 1 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Sets:
    """Sets of victims, all of one size.

    :ivar rows: the host of each set
    :ivar members: the slots of the servers of each set, a line for each
    """

    rows: arrays.Ints
    members: arrays.Ints

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: arrays.Bools | arrays.Ints) -> 'Sets':
        """Some of the sets."""
        return Sets(self.rows[which], self.members[which])

    def join(self, others: 'Sets') -> 'Sets':
        """These sets and others of the same size."""
        return Sets(np.concatenate((self.rows, others.rows)),
                    np.concatenate((self.members, others.members)))


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What has to be covered, and with what.

    :ivar columns: the resource classes that are asked for
    :ivar need: for each of those, what each host lacks of it
    :ivar left: how many servers of each project may be ended
    """

    table: arrays.Slots
    columns: list[int]
    need: list[arrays.Ints]
    left: arrays.Ints

    def without_needless(self, sets: Sets) -> Sets:
        """Those of the sets of which no server could be left out."""
        spared: arrays.Bools = np.ones(sets.members.shape, np.bool_)
        for need, column in zip(self.need, self.columns):
            amounts = self.table.amounts[column][sets.members].astype(np.int64)
            rest = amounts.sum(axis=1, keepdims=True) - amounts
            spared &= rest >= need[sets.rows][:, np.newaxis]
        return sets.take(np.flatnonzero(~spared.any(axis=1)))


class Field:
    """The servers that may be ended on some hosts, side by side by host.

    :ivar rank: which host it is of these, from 0
    :ivar end: where the servers of the host end
    :ivar first: whether it is the first of its kind on its host
    :ivar after: by resource class, the most that a later one of its host has
    """

    def __init__(self, problem: Problem, chosen: arrays.Ints,
                 size: int) -> None:
        table = problem.table
        self.problem = problem
        # Of a project that may lose fewer than a set has, which ones are
        # taken matters: they are a kind of their own.
        projects = table.project[chosen]
        capped = problem.left[projects] < size
        self.capped = bool(capped.any())
        project = np.where(capped, projects, -1)
        if self.capped:
            chosen = chosen[np.lexsort((project, table.kind[chosen],
                                        table.host_of[chosen]))]
            projects = table.project[chosen]
            project = np.where(problem.left[projects] < size, projects, -1)
        self.slot = chosen
        self.project = projects
        row = table.host_of[chosen]
        self.row = row
        changes = np.ones(len(chosen), np.bool_)
        changes[1:] = row[1:] != row[:-1]
        self.rank = np.cumsum(changes) - 1
        self.begins = np.flatnonzero(changes)
        self.end = np.append(self.begins[1:], len(chosen))[self.rank]
        self.amounts = [table.amounts[column][chosen].astype(np.int64)
                        for column in problem.columns]
        self.need = [need[row] for need in problem.need]
        kind = table.kind[chosen]
        self.first = changes
        self.first[1:] |= ((kind[1:] != kind[:-1]) |
                           (project[1:] != project[:-1]))
        self.starts = np.flatnonzero(self.first)
        self.next_start = np.cumsum(self.first)

    def after(self, amounts: arrays.Ints) -> arrays.Ints:
        """The most that a later server of the same host has."""
        # Seen from the end each host has an offset above those before it, so
        # that no maximum runs over from one into the next.
        offset = (self.rank[-1] - self.rank[::-1]) << 32
        result = np.zeros_like(amounts)
        most = (np.maximum.accumulate(amounts[::-1] + offset) - offset)[::-1]
        same = self.rank[1:] == self.rank[:-1]
        result[:-1][same] = most[1:][same]
        return result

    def weights(self) -> arrays.Ints:
        """What each server has of all that is needed together.

        No set that covers the needs weighs less than _WEIGHT for each class
        of which something is needed.
        """
        weights = np.zeros(len(self.slot), np.int64)
        for amounts, need in zip(self.amounts, self.need):
            safe = np.maximum(need, 1)
            weights += np.where(
                need > 0, -(-np.minimum(amounts, safe) * _WEIGHT // safe), 0)
        return weights

    def at_least(self) -> arrays.Ints:
        """A number of victims below which a host cannot be made to fit.

        :returns: by host; FAR where all of its servers are not enough
        """
        weight = sum(((need > 0).astype(np.int64) * _WEIGHT
                      for need in self.need),
                     np.zeros(len(self.slot), np.int64))
        result = np.ones(len(self.begins), np.int64)
        for amounts, need in zip((*self.amounts, self.weights()),
                                 (*self.need, weight)):
            if not need.any():
                continue
            key = (self.rank << 32) | (model.MAX_INT - amounts)
            key.sort()
            ordered = model.MAX_INT - (key & 0xFFFFFFFF)
            before = np.cumsum(ordered) - ordered
            before -= before[self.begins][self.rank]
            count = np.add.reduceat((before < need).astype(np.int64),
                                    self.begins)
            enough = (np.add.reduceat(ordered, self.begins) >=
                      need[self.begins])
            np.maximum(result, np.where(enough, count, FAR), out=result)
        return result

    def sets(self, size: int, smaller_do: bool) -> Sets | None:
        """All sets of a size that make room; None if they are too many.

        :param smaller_do: whether a smaller set may make room: no server is
            added to such
        """
        after = [self.after(amounts) for amounts in self.amounts]
        last_start = self.next_start[self.end - 1]
        at = self.starts
        paths = at[:, np.newaxis]
        sums = [amounts[at] for amounts in self.amounts]
        for missing in range(size - 1, -1, -1):
            keep = self.end[at] - at > missing
            for total, later, need in zip(sums, after, self.need):
                keep &= total + missing * later[at] >= need[at]
            if self.capped:
                keep &= self._within_caps(paths)
            at, paths = at[keep], paths[keep]
            sums = [total[keep] for total in sums]
            if not missing:
                break
            if smaller_do:
                short = np.zeros(len(at), np.bool_)
                for total, need in zip(sums, self.need):
                    short |= total < need[at]
                at, paths = at[short], paths[short]
                sums = [total[short] for total in sums]
            # Next comes the next of the same kind, or the first of another.
            same = np.flatnonzero(at + 1 < self.end[at])
            same = same[~self.first[at[same] + 1]]
            counts = last_start[at] - self.next_start[at]
            total_count = int(counts.sum())
            if total_count + len(same) > MOST:
                return None
            parent = np.repeat(np.arange(len(at)), counts)
            nth = np.arange(total_count) - np.repeat(
                np.cumsum(counts) - counts, counts)
            child = np.concatenate((
                at[same] + 1, self.starts[self.next_start[at[parent]] + nth]))
            parent = np.concatenate((same, parent))
            paths = np.concatenate((paths[parent], child[:, np.newaxis]),
                                   axis=1)
            sums = [total[parent] + amounts[child]
                    for total, amounts in zip(sums, self.amounts)]
            at = child
        return Sets(self.row[at].astype(np.int64), self.slot[paths])

    def _within_caps(self, paths: arrays.Ints) -> arrays.Bools:
        mine = self.project[paths]
        count = (mine == mine[:, -1:]).sum(axis=1)
        return np.asarray(count <= self.problem.left[mine[:, -1]], np.bool_)

    def sets_deep(self, size: int, steps: int) -> tuple[Sets, int]:
        """Some sets of a size that make room on the one host there is.

        :param steps: how many may be made
        :returns: the sets, and the number of steps. If it is larger than that
            which may be made, there may be more
        """
        found = []
        walk = _Walk(self, size, steps)
        for path in walk.sets():
            found.append(path)
            if len(found) == FOUND:
                break
        paths = np.array(found, np.int64).reshape(len(found), size)
        sets = Sets(np.full(len(found), self.row[0], np.int64),
                    self.slot[paths])
        return sets, walk.steps


class _Walk:
    """A search that goes deep first, bounded by the largest that are left."""

    def __init__(self, field: Field, size: int, most_steps: int) -> None:
        weights = field.weights()
        self.order = [int(at) for at in np.argsort(-weights, kind='stable')]
        self.field = field
        self.size = size
        self.steps = 0
        self.most_steps = most_steps
        self.amounts = [[int(amounts[at]) for at in self.order]
                        for amounts in (*field.amounts, weights)]
        self.need = [int(need[0]) for need in field.need]
        self.need.append(_WEIGHT * sum(need > 0 for need in self.need))
        self.most = [self._most(amounts) for amounts in self.amounts]

    def _most(self, amounts: list[int]) -> list[list[int]]:
        """The sums of the largest 0, 1, ... of those from each on."""
        result = [[0] * (self.size + 1)]
        largest: list[int] = []
        for amount in reversed(amounts):
            largest = sorted((*largest, amount), reverse=True)[:self.size]
            sums = [0]
            for one in largest:
                sums.append(sums[-1] + one)
            sums.extend(sums[-1:] * (self.size + 1 - len(sums)))
            result.append(sums)
        return result[::-1]

    def sets(self) -> Iterator[list[int]]:
        """The sets; no more of them after the steps that may be made."""
        yield from self._from(0, [], list(self.need))

    def _from(self, begin: int, path: list[int], need: list[int]
              ) -> Iterator[list[int]]:
        missing = self.size - len(path)
        if not missing or max(need) <= 0:
            # One server more would be needless.
            if not missing and max(need) <= 0:
                yield [self.order[at] for at in path]
            return
        for at in range(begin, len(self.order) - missing + 1):
            self.steps += 1
            if self.steps > self.most_steps or any(
                    most[at][missing] < rest
                    for most, rest in zip(self.most, need)):
                return
            here = self.order[at]
            # The one before it, of its kind, was left out.
            if at > begin and not self.field.first[here]:
                continue
            if self._capped(path, here):
                continue
            yield from self._from(
                at + 1, [*path, at],
                [rest - amounts[at]
                 for rest, amounts in zip(need, self.amounts)])

    def _capped(self, path: list[int], here: int) -> bool:
        project = self.field.project[here]
        mine = sum(self.field.project[self.order[at]] == project
                   for at in path)
        return bool(mine >= self.field.problem.left[project])
