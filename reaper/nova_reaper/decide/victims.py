# SPDX-License-Identifier: Apache-2.0

"""Finds the best sets of preemptible servers whose end would make room.

Scorers say which of two sets is better, one after another. Covering a need in
several resource classes with the fewest servers is a covering knapsack,
NP-hard in general. Servers come from flavors, though, and a host has few
servers: sets are built one server at a time, for all hosts at once. A set is
dropped when the rest of the host cannot cover the need any more. Servers of
one kind differ only in their age, so sets take the youngest of a kind.

If the highest priority decides first, the search finds the lowest priority up
to which servers are enough on some host, and looks at no other servers. If the
count decides next, the search tries sets of one server, then of two, and stops
at the first size that makes room. Otherwise it compares sets of every size.

The result is exact, over all hosts, as long as no host has more than MOST sets
under construction. Beyond that a depth-first search finds up to
FOUND sets to choose from. Result.exact says whether the search ended within
STEPS steps.
"""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
import dataclasses
import itertools

import numpy as np

from nova_reaper.cloud import index as index_module
from nova_reaper.cloud import model

Bools = index_module.Bools
Ints = index_module.Ints

# The most sets that are built side by side, and the most that a depth-first
# search finds to choose from. The steps for such searches in a decision, and
# how many each of them may make even so.
MOST = 1 << 19
FOUND = 4096
STEPS = 200_000
FEWEST_STEPS = 2000
# The most ways in which hosts may give a shape that one search looks at; the
# hosts on which the fewest ends may do come first.
MOST_WAYS = 8192
# More than any number of servers.
FAR = 1 << 40

_WEIGHT = 1 << 10

# How much is lacking, by the numbers of the provider and of the class.
_Lacks = Mapping[tuple[int, int], int]


@dataclasses.dataclass(frozen=True, slots=True)
class Sets:
    """Sets of victims, all of one size.

    :ivar rows: the host of each set
    :ivar members: the slots of the servers of each set, a line for each set
    """

    rows: Ints
    members: Ints

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, which: Bools | Ints) -> 'Sets':
        """Return some of the sets."""
        return Sets(self.rows[which], self.members[which])

    def join(self, others: 'Sets') -> 'Sets':
        """Return these sets and others of the same size."""
        return Sets(np.concatenate((self.rows, others.rows)),
                    np.concatenate((self.members, others.members)))


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What has to be covered, and with what.

    :ivar columns: the numbers of the classes that are asked for
    :ivar need: for each of these classes, what each host lacks
    :ivar left: how many servers of each project may be ended, by its number
    """

    table: index_module.Slots
    columns: list[int]
    need: list[Ints]
    left: Ints

    def without_needless(self, sets: Sets) -> Sets:
        """Return the sets from which no server could be left out."""
        spared: Bools = np.ones(sets.members.shape, np.bool_)
        for need, column in zip(self.need, self.columns):
            amounts = self.table.amounts[column][sets.members].astype(np.int64)
            rest = amounts.sum(axis=1, keepdims=True) - amounts
            spared &= rest >= need[sets.rows][:, np.newaxis]
        return sets.take(np.flatnonzero(~spared.any(axis=1)))


class Field:
    """The servers that may be ended on some hosts, side by side by host.

    :ivar rank: the number of the server's host among these hosts, from 0
    :ivar end: where the servers of the server's host end
    :ivar first: whether the server is the first of its kind on its host
    """

    def __init__(self, problem: Problem, chosen: Ints,
                 size: int) -> None:
        table = problem.table
        self.problem = problem
        # If a project may lose fewer servers than a set has, the choice among
        # its servers matters: they are a kind of their own.
        projects = table.project.take(chosen)
        capped = problem.left[projects] < size
        self.capped = bool(capped.any())
        project = np.where(capped, projects, -1)
        if self.capped:
            chosen = chosen[np.lexsort((project, table.kind[chosen],
                                        table.host_of[chosen]))]
            projects = table.project.take(chosen)
            project = np.where(problem.left[projects] < size, projects, -1)
        self.slot = chosen
        self.project = projects
        row = table.host_of.take(chosen)
        self.row = row
        changes = np.ones(len(chosen), np.bool_)
        changes[1:] = row[1:] != row[:-1]
        self.rank = np.cumsum(changes) - 1
        self.begins = np.flatnonzero(changes)
        self.end = np.append(self.begins[1:], len(chosen))[self.rank]
        self.amounts = [table.amounts[column].take(chosen).astype(np.int64)
                        for column in problem.columns]
        self.need = [need.take(row) for need in problem.need]
        kind = table.kind.take(chosen)
        self.first = changes
        self.first[1:] |= ((kind[1:] != kind[:-1]) |
                           (project[1:] != project[:-1]))
        self.starts = np.flatnonzero(self.first)
        self.next_start = np.cumsum(self.first)

    def after(self, amounts: Ints) -> Ints:
        """Return, by server, the most that a later server of the host has."""
        # From the end on, each host has an offset above the hosts before, so
        # that no maximum runs over from one host into the next.
        offset = (self.rank[-1] - self.rank[::-1]) << 32
        result = np.zeros_like(amounts)
        most = (np.maximum.accumulate(amounts[::-1] + offset) - offset)[::-1]
        same = self.rank[1:] == self.rank[:-1]
        result[:-1][same] = most[1:][same]
        return result

    def weights(self) -> Ints:
        """Return how much each server has of all that is needed together.

        No set that covers the needs weighs less than _WEIGHT for each class
        of which something is needed.
        """
        weights = np.zeros(len(self.slot), np.int64)
        for amounts, need in zip(self.amounts, self.need):
            safe = np.maximum(need, 1)
            weights += np.where(
                need > 0, -(-np.minimum(amounts, safe) * _WEIGHT // safe), 0)
        return weights

    def at_least(self) -> Ints:
        """Return a number of victims below which no set makes room on a host.

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
        """Return all sets of a size that make room, None if too many.

        :param smaller_do: whether smaller sets may make room; the result has
            no set that grows from such a set
        """
        after = [self.after(amounts) for amounts in self.amounts]
        last_start = self.next_start[self.end - 1]
        at = self.starts
        paths = at[:, np.newaxis]
        sums = [amounts.take(at) for amounts in self.amounts]
        for missing in range(size - 1, -1, -1):
            keep = self.end[at] - at > missing
            for total, later, need in zip(sums, after, self.need):
                keep &= total + missing * later.take(at) >= need.take(at)
            if self.capped:
                mine = self.project[paths]
                count = (mine == mine[:, -1:]).sum(axis=1)
                keep &= count <= self.problem.left[mine[:, -1]]
            at, paths = at[keep], paths[keep]
            sums = [total[keep] for total in sums]
            if not missing:
                break
            if smaller_do:
                short = np.zeros(len(at), np.bool_)
                for total, need in zip(sums, self.need):
                    short |= total < need.take(at)
                at, paths = at[short], paths[short]
                sums = [total[short] for total in sums]
            # Next comes the next of the same kind, or the first of another.
            same = np.flatnonzero(at + 1 < self.end[at])
            same = same[~self.first[at[same] + 1]]
            counts = last_start[at] - self.next_start[at]
            if int(counts.sum()) + len(same) > MOST:
                return None
            parent, nth = _repeated(counts)
            child = np.concatenate((
                at[same] + 1, self.starts.take(
                    self.next_start.take(at.take(parent)) + nth)))
            parent = np.concatenate((same, parent))
            paths = np.concatenate((paths[parent], child[:, np.newaxis]),
                                   axis=1)
            sums = [total.take(parent) + amounts.take(child)
                    for total, amounts in zip(sums, self.amounts)]
            at = child
        return Sets(self.row[at].astype(np.int64), self.slot[paths])


class _Walk:
    """A depth-first search on one host.

    The search ends a branch if the largest servers left are not enough.

    :ivar steps: how many steps the search has made; if these are more than
        ``most_steps``, there may be more sets
    """

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
        """Return the sums of the 0, 1, ... largest amounts from each place."""
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
        """Yield sets until the number of steps is used up."""
        yield from self._from(0, [], list(self.need))

    def _from(self, begin: int, path: list[int], need: list[int]
              ) -> Iterator[list[int]]:
        missing = self.size - len(path)
        if not missing or max(need) <= 0:
            # Another server would be needless.
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
            # The server before, of the same kind, was left out.
            if at > begin and not self.field.first[here]:
                continue
            project = self.field.project[here]
            mine = sum(self.field.project[self.order[before]] == project
                       for before in path)
            if mine >= self.field.problem.left[project]:
                continue
            yield from self._from(
                at + 1, [*path, at],
                [rest - amounts[at]
                 for rest, amounts in zip(need, self.amounts)])


@dataclasses.dataclass(frozen=True, slots=True)
class Scorers:
    """Scores sets of victims, all of one size, for a shape.

    Each scorer has a method, which returns a line of columns for each set: the
    smaller, the better, compared from left to right. No scorer finds a set
    better with one server more.

    :ivar now: microseconds since 1970
    """

    index: index_module.Index
    shape: model.Shape
    options: model.Options
    now: int

    @property
    def names(self) -> tuple[str, ...]:
        """The scorers that the option names; the count decides in any case."""
        return tuple(dict.fromkeys((*self.options.scorers, 'count')))

    def priority(self, sets: Sets) -> Ints:
        """Return the highest priority of a set."""
        highest: Ints = self.index.slots.priority[sets.members].max(
            axis=1, keepdims=True, initial=-model.MAX_INT)
        return highest

    def count(self, sets: Sets) -> Ints:
        """Return how many servers a set has."""
        return np.full((len(sets), 1), sets.members.shape[1])

    def deletes(self, sets: Sets) -> Ints:
        """Return how many servers of a set would be deleted."""
        deletes: Ints = self.index.slots.deletes[sets.members].sum(
            axis=1, keepdims=True)
        return deletes

    def priorities(self, sets: Sets) -> Ints:
        """Return the priorities of a set, the highest first."""
        return -np.sort(-self.index.slots.priority[sets.members], axis=1)

    def leftover(self, sets: Sets) -> Ints:
        """Return what of RAM, then VCPUs, then disk is left over on the host.

        The first column is how many PCI devices, VGPUs and the like become
        free that are not asked for.
        """
        index, asked = self.index, self.shape.amounts
        columns = [self._scarce(sets)]
        for name in ('MEMORY_MB', 'VCPU', 'DISK_GB'):
            column = index.classes[name]
            free = index.free[column][sets.rows]
            freed = index.slots.amounts[column][sets.members].sum(
                axis=1, dtype=np.int64)
            columns.append(np.where(free == index_module.NONE, 0,
                                    free + freed - asked.get(name, 0)))
        return np.stack(columns, axis=1)

    def _scarce(self, sets: Sets) -> Ints:
        """Return what of scarce classes a set has beyond what is lacking."""
        index, beyond = self.index, np.zeros(len(sets), np.int64)
        lacking = index.lacking(self.shape) if index.scarce else {}
        for name, column in index.scarce.items():
            freed = index.slots.amounts[column][sets.members].sum(
                axis=1, dtype=np.int64)
            if name in lacking:
                freed -= lacking[name][sets.rows]
            beyond += np.maximum(freed, 0)
        return beyond

    def youngest(self, sets: Sets) -> Ints:
        """Return for how many microseconds the servers of a set have run."""
        launched = self.index.slots.launched[sets.members]
        run: Ints = (self.now - launched).sum(axis=1, keepdims=True)
        return run

    def best(self, sets: Sets) -> Sets:
        """Return the best sets: no other set is better."""
        for name in self.names:
            if len(sets) == 1:
                break
            scores = SCORERS[name](self, sets)
            which = np.arange(len(sets))
            for column in range(scores.shape[1]):
                values = scores[which, column]
                which = which[values == values.min()]
            sets = sets.take(which)
        return sets

    def cost(self, sets: Sets) -> list[list[int]]:
        """Return what scorers say of the first of some sets."""
        first = sets.take(np.array([int(sets.rows.argmin())]))
        return [SCORERS[name](self, first)[0].tolist() for name in self.names]

    def order(self, sets: Sets) -> tuple[list[list[int]], int]:
        """Return what scorers say of equal sets, and the first row."""
        return self.cost(sets), int(sets.rows.min())


SCORERS: Mapping[str, Callable[[Scorers, Sets], Ints]] = {
    'priority': Scorers.priority,
    'count': Scorers.count,
    'deletes': Scorers.deletes,
    'priorities': Scorers.priorities,
    'leftover': Scorers.leftover,
    'youngest': Scorers.youngest,
}
# Scorers for which no notice is withdrawn: what they say changes with every
# start and end on other hosts.
SLIGHT = frozenset({'leftover', 'youngest'})


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a search has found.

    :ivar sets: the best sets, equal to each other by all scorers; None if no
        set was found that makes room
    :ivar exact: whether no better set can exist
    """

    sets: Sets | None
    exact: bool = True


def find(scorers: Scorers, demand: model.Demand, rows: Bools,
         left: Mapping[str, int]) -> Result:
    """Find the best sets whose end makes room on one of the hosts.

    :param scorers: of the shape of the demand
    :param left: how many servers may still be ended by project; projects that
        are missing have no limit
    :param rows: which hosts to look at; none of them has room
    """
    rows = rows.copy()
    named = _named(scorers, demand, rows, left)
    result = _find(scorers, demand, rows, left)
    if not named:
        return result
    return Result(min(filter(None, (result.sets, *named)), key=scorers.order,
                      default=None), result.exact)


def _named(scorers: Scorers, demand: model.Demand, rows: Bools,
           left: Mapping[str, int]) -> list[Sets]:
    """Return the sets that Nova has named for hosts, where they may be ended.

    :param rows: as of find(); the function takes out all hosts for which Nova
        has named sets
    """
    index, found = scorers.index, []
    for host, servers in index.exclusions.named(demand.shape).items():
        row = index.rows.get(host)
        if row is None or not rows[row]:
            continue
        rows[row] = False
        where = index.slots.segment(row)
        slots = {at: server for at, (server, may) in enumerate(zip(
            index.slots.servers[where], index.slots.may_end(
                demand.below, scorers.now, where)), where.start)
            if server and server.id in servers and may}
        projects = collections.Counter(
            server.project for server in slots.values())
        if len(slots) == len(servers) and all(
                count <= left.get(project, FAR)
                for project, count in projects.items()):
            found.append(Sets(np.array([row]), np.array([list(slots)])))
    return found


def _find(scorers: Scorers, demand: model.Demand, rows: Bools,
          left: Mapping[str, int]) -> Result:
    """Find sets by what they free, as find() does."""
    if demand.shape.spread is None:
        return _by_sums(scorers, demand, rows, left)
    # All servers of a host together have to be enough, by the sums.
    rows = rows & room_without(
        scorers.index, demand.shape,
        scorers.index.slots.may_end(demand.below, scorers.now))
    single = scorers.index.single
    best, exact, found = _by_sums(scorers, demand, rows & single, left
                                  ), True, None
    rows &= ~single
    while found is None and rows.any():
        index = _Ways(scorers.index, demand.shape, scorers.options, rows)
        result = index.real(_Search(dataclasses.replace(
            scorers, index=index), demand, index.known, left).run())
        rows, found = index.left, result.sets
        exact &= result.exact
    return Result(min(filter(None, (best.sets, found)), key=scorers.order,
                      default=None), best.exact and exact and not rows.any())


def _by_sums(scorers: Scorers, demand: model.Demand, rows: Bools,
             left: Mapping[str, int]) -> Result:
    """Find sets by the sums over the providers of a host, as find() does."""
    search = _Search(scorers, demand, rows, left)
    return search.run() if search.rows.any() else Result(None)


class _Room:
    """What the providers of hosts have left, and what ends free there.

    An array has a line for each host or server, and in it a line for each
    provider: 0 is for providers that are not the host's, 1 for the host's own,
    and the last line is empty. The columns are the classes asked for.

    :ivar slots: the servers that may be ended at some time, host by host
    :ivar bounds: where the servers of each host begin, and where the last end
    :ivar freed: what the end of each of these servers frees
    :ivar own: by host, what is lacking of classes that only its own provider
        has
    :ivar keys: by host; hosts of the same key have the same ways and lack the
        same in each way
    """

    def __init__(self, index: index_module.Index, shape: model.Shape,
                 hosts: Ints) -> None:
        self._index, self._shape, self._hosts = index, shape, hosts
        table, self.needs = index.slots, index.needs(shape)
        self._names = {need.name: at for at, need in enumerate(self.needs)}
        where = [table.segment(row) for row in hosts.tolist()]
        host, nth = _repeated(np.array([
            one.stop - one.start for one in where], np.int64))
        slots = np.array([one.start for one in where], np.int64)[host] + nth
        mine = table.endable[slots]
        host, self.slots = host[mine], slots[mine]
        self.bounds = np.searchsorted(host, np.arange(len(hosts) + 1))
        nodes = [index.nodes(row) for row in hosts.tolist()]
        self._numbers = [{node.name: number for number, node
                          in enumerate(some, 1)} for some in nodes]
        size = max(map(len, nodes)) + 2, len(self.needs)
        left = np.full((len(hosts), *size), index_module.NONE)
        cells, amounts = self._cells(
            (at, number, node.left) for at, some in enumerate(nodes)
            for number, node in enumerate(some, 1))
        left[cells] = amounts
        below = (left[:, 2:] != index_module.NONE).any(axis=1)
        self.freed = np.zeros((len(self.slots), *size), np.int64)
        cells, amounts = self._cells(
            (at, self._numbers[number].get(provider, 0), some)
            for at, (number, slot) in enumerate(zip(
                host.tolist(), self.slots.tolist()))
            if (server := table.servers[slot])
            for provider, some in server.providers.items())
        np.add.at(self.freed, cells, amounts)
        self.freed[:, 1] = np.stack([
            table.amounts[need.column][self.slots] for need in self.needs],
            axis=1) - self.freed.sum(axis=1)
        sums = np.zeros((len(self.slots) + 1, *size), np.int64)
        np.cumsum(self.freed, axis=0, out=sums[1:])
        most_left = left + sums[self.bounds[1:]] - sums[self.bounds[:-1]]
        # If a filter makes free room of a class useless, the room of a single
        # provider is useless, too.
        free, lacking = (np.stack(some, axis=1)[hosts] for some in zip(*(
            (need.free, need.lacking) for need in self.needs)))
        left = np.where((free > 0)[:, np.newaxis], left, np.minimum(left, 0))
        self._left = np.where(below[:, np.newaxis], left, FAR)
        self.own = np.where(below, 0, lacking)
        asked = np.array([need.amount for need in self.needs])
        self.keys = np.concatenate((index.kind_of[hosts][:, np.newaxis], *(
            np.minimum(some, asked).reshape(len(hosts), -1)
            for some in (most_left, self._left))), axis=1)

    def _cells(self, amounts: Iterable[tuple[int, int, Mapping[str, int]]]
               ) -> tuple[tuple[Ints, ...], Ints]:
        """Return the cells of amounts, and the amounts."""
        *cells, values = np.fromiter(itertools.chain.from_iterable(
            (at, number, self._names[name], amount)
            for at, number, some in amounts for name, amount in some.items()
            if name in self._names), np.int64).reshape(-1, 4).T
        return tuple(cells), values

    def ways(self, at: int) -> tuple[list[_Lacks], bool]:
        """Return what providers lack in each way, and whether that is all.

        A way in which no provider lacks less than in another is left out.
        """
        found: list[_Lacks] = []
        left, numbers, count = self._left[at], self._numbers[at], 0
        gone = [server for slot in self.slots[slice(*self.bounds[at:at + 2])]
                if (server := self._index.slots.servers[slot])]
        for way in model.ways(self._shape, self._index.nodes(
                int(self._hosts[at]), gone)):
            count += 1
            lacking = {}
            for provider, amounts in way.items():
                for name, amount in amounts.items():
                    cell = numbers[provider], self._names[name]
                    if amount > left[cell]:
                        lacking[cell] = amount - int(left[cell])
            if not any(_is_less(other, lacking) for other in found):
                found = [*(other for other in found
                           if not _is_less(lacking, other)), lacking]
        return found, count < model.MOST_WAYS


class _Ways(index_module.Index):
    """Hosts of an index, each once for each way in which it may give a shape.

    What a provider lacks of a class in a way is a class of its own, of which
    each server has what its end makes free there. So servers are chosen as on
    hosts without providers below their own. Servers that have nothing of what
    is lacking are left out: their ends would not help.

    :ivar exact: whether all ways of its hosts are there
    :ivar left: the other hosts that servers may be looked for on
    """

    def __init__(self, index: index_module.Index, shape: model.Shape,
                 options: model.Options, rows: Bools) -> None:
        super().__init__(options)
        self.exact = True
        self.left = rows.copy()
        ends = at_least(index, shape, self.left)
        hosts = np.flatnonzero(self.left)
        hosts = hosts[np.argsort(ends[hosts], kind='stable')][:MOST_WAYS]
        room = _Room(index, shape, hosts)
        alike: dict[bytes, range] = {}
        lacks: list[_Lacks] = []
        of_host: list[range] = []
        count = 0
        for at, key in enumerate(map(bytes, room.keys)):
            if count >= MOST_WAYS:
                break
            if key not in alike:
                found, exact = room.ways(at)
                self.exact &= exact
                alike[key] = range(len(lacks), len(lacks) + len(found))
                lacks += found
            of_host.append(alike[key])
            count += len(alike[key])
        self.left[hosts[:len(of_host)]] = False
        host, way = np.array([
            (at, one) for at in np.argsort(hosts[:len(of_host)]).tolist()
            for one in of_host[at]], np.int64).reshape(-1, 2).T
        self._rows = hosts[host]
        self.hosts[:] = [None] * len(host)
        self.known = np.ones(len(host), np.bool_)
        width = max(map(len, lacks), default=0)
        number, column, lacking = np.array([
            [*((*cell, lack) for cell, lack in one.items()),
             *[(-1, 0, 0)] * (width - len(one))] for one in lacks],
            np.int64).reshape(len(lacks), width, 3).transpose(2, 0, 1)[:, way]
        self._needs = [
            index_module.Need(need.name, need.column, 0, -lack)
            for need, lack in zip(room.needs, room.own[host].T) if lack.any()]
        row, nth = _repeated(np.diff(room.bounds)[host])
        line = room.bounds[host][row] + nth
        slot, freed = room.slots[line], room.freed[
            line[:, np.newaxis], number[row], column[row]]
        helps: Bools = (freed > 0).any(axis=1)
        for need in self._needs:
            helps |= (need.lacking[row] > 0) & (
                index.slots.amounts[need.column][slot] > 0)
        kind = index.slots.kind[slot]
        order = np.lexsort((slot, *freed.T, kind, row))
        order = order[helps[order]]
        self._slots, kind, freed = slot[order], kind[order], freed[order]
        self.slots = index.slots.take(self._slots, row[order])
        self.slots.kind[:1] = 0
        self.slots.kind[1:] = np.cumsum((np.diff(kind) != 0) | (
            np.diff(freed, axis=0) != 0).any(axis=1))
        self.slots.amounts += list(freed.T.astype(np.int32))
        self._needs += [
            index_module.Need('', len(index.classes) + at, 0, -lack)
            for at, lack in enumerate(lacking.T)]
        # No bound is known of what providers lack.
        self.classes, self.scarce = index.classes, index.scarce
        self._lacking = {name: some[self._rows] for name, some
                         in index.lacking(shape).items()}
        self.free, self.endable, self.largest = (
            [some[..., self._rows] for some in arrays] +
            [np.full_like(arrays[0][..., self._rows], FAR)] * width
            for arrays in (index.free, index.endable, index.largest))

    def needs(self, shape: model.Shape, row: int | None = None
              ) -> list[index_module.Need]:
        """Return what each row lacks."""
        return self._needs

    def lacking(self, shape: model.Shape) -> Mapping[str, Ints]:
        """Return what all providers of each host lack of scarce classes."""
        return self._lacking

    def real(self, found: 'Result') -> 'Result':
        """Return the sets that were found, in the index of the hosts."""
        sets = found.sets and Sets(self._rows[found.sets.rows],
                                   self._slots[found.sets.members])
        return Result(sets, found.exact and self.exact)


def _is_less(lacking: _Lacks, other: _Lacks) -> bool:
    """Return whether nothing is lacking more in a way than in another."""
    return all(amount <= other.get(key, 0) for key, amount in lacking.items())


def _repeated(counts: Ints) -> tuple[Ints, Ints]:
    """Repeat each number from 0 on as often as its count says.

    :returns: the numbers, and how often each came before
    """
    parent = np.repeat(np.arange(len(counts)), counts)
    return parent, np.arange(len(parent)) - np.repeat(
        np.cumsum(counts) - counts, counts)


def room_without(index: index_module.Index, shape: model.Shape,
                 slots: Bools | Ints) -> Bools:
    """Return the hosts with room if the servers of slots were gone."""
    host_of = index.slots.host_of[slots]
    rows = np.ones(len(index.hosts), np.bool_)
    for need in index.needs(shape):
        freed = np.bincount(host_of, index.slots.amounts[need.column][slots],
                            len(rows)).astype(np.int64)
        rows &= need.free + freed >= need.amount
    return rows


def at_least(index: index_module.Index, shape: model.Shape, rows: Bools
             ) -> Ints:
    """Return numbers of victims below which hosts cannot be made to have room.

    :param rows: the hosts; the function takes out hosts that no ends help
    :returns: for each row of the index
    """
    result = np.ones(len(rows), np.int64)
    for need in index.needs(shape):
        lacking = need.lacking
        rows &= lacking <= index.endable[need.column]
        np.maximum(result, _at_least(index, need.column, lacking), out=result)
    return result


def _at_least(index: index_module.Index, column: int,
              need: Ints) -> Ints:
    """Return numbers of victims below which hosts cannot cover a need."""
    *_, before, most = index.largest[column]
    result: Ints = 1 + np.count_nonzero(
        index.largest[column][:-1] < need, axis=0)
    # The next servers are no larger than the last that was counted.
    far = np.flatnonzero(need > most)
    result[far] = index_module.TOP - (
        (most - need)[far] // np.maximum(most - before, 1)[far])
    return result


class _Search:

    def __init__(self, scorers: Scorers, demand: model.Demand,
                 rows: Bools, left: Mapping[str, int]) -> None:
        index, names = scorers.index, scorers.names
        self.scorers = scorers
        self.table = index.slots
        self.demand = demand
        self.by_priority = names[:1] == ('priority',)
        # Whether the search stops at the first size that makes room.
        self.by_count = names[self.by_priority] == 'count'
        self.exact = True
        self.steps = STEPS
        self.rows = rows.copy()
        self.at_least = at_least(index, demand.shape, self.rows)
        allowed = np.full(len(self.table.projects) + 1, FAR)
        for project, ends in left.items():
            if project in self.table.projects:
                allowed[self.table.projects[project]] = ends
        needs = index.needs(demand.shape)
        self.problem = Problem(
            self.table, [need.column for need in needs],
            [need.lacking for need in needs], allowed)

    def run(self) -> Result:
        """Find the best sets."""
        may = self.table.may_end(self.demand.below, self.scorers.now)
        if self.problem.left.min() <= 0:
            may &= self.problem.left[self.table.project] > 0
        levels = sorted(self.table.priorities)
        if not self.by_priority or len(levels) < 2:
            return Result(self._search(self._chosen(may), self.rows),
                          self.exact)
        # A bisection finds the lowest level up to which all servers together
        # have enough; a project's limit may make a higher level necessary.
        enough: dict[int, tuple[Ints, Bools]] = {}
        low, level, high = 0, 0, len(levels) - 1
        while low < high:
            chosen = self._chosen(may & (self.table.priority <= levels[level]))
            rows = self.rows & room_without(
                self.scorers.index, self.demand.shape, chosen)
            enough[level] = chosen, rows
            if rows.any():
                high = level
            else:
                low = level + 1
            level = (low + high) // 2
        for level in range(low, len(levels)):
            chosen, rows = enough.get(level) or (self._chosen(
                may & (self.table.priority <= levels[level])), self.rows)
            sets = self._search(chosen, rows)
            if sets is not None:
                return Result(sets, self.exact)
        return Result(None, self.exact)

    def _search(self, may: Ints, rows: Bools) -> Sets | None:
        """Find the best sets of some slots: of one server, then of two, ..."""
        rows, at_least = rows.copy(), self.at_least.copy()
        # How many servers may be ended on each host that was looked at closer.
        servers = np.zeros_like(at_least)
        found: Sets | None = None
        size = 0
        while rows.any():
            size = max(size + 1, int(at_least[rows].min()))
            if size > 2:
                # Look closer, and once, at hosts for which this size may do.
                near = rows & (at_least <= size) & (servers == 0)
                at_least[near] = FAR
                chosen = self._on(near, may)
                if len(chosen):
                    field = Field(self.problem, chosen, FAR)
                    at_least[field.row[field.begins]] = field.at_least()
                    servers += np.bincount(field.row, minlength=len(rows))
                rows &= (at_least < FAR) & (
                    (servers == 0) | (servers >= size))
            chosen = self._on(rows & (at_least <= size), may)
            sets = self._of_size(chosen, size)
            if sets is not None and (
                    found is None or
                    self.scorers.order(sets) < self.scorers.order(found)):
                found = sets
                if self.by_count:
                    break
        return found

    def _best(self, sets: Sets) -> Sets | None:
        if not self.by_count and len(sets):
            sets = self.problem.without_needless(sets)
        return self.scorers.best(sets) if len(sets) else None

    def _chosen(self, may: Bools) -> Ints:
        """Return the slots that may be chosen on the hosts of the search."""
        return self._on(self.rows, np.flatnonzero(may))

    def _on(self, rows: Bools, slots: Ints) -> Ints:
        """Return the slots that are on some hosts."""
        return slots[rows.take(self.table.host_of.take(slots))]

    def _large_enough(self, chosen: Ints, size: int) -> Ints:
        """Return the slots that may be in a set of a size.

        Each server has to be enough together with the largest servers of its
        host.
        """
        index = self.scorers.index
        for need, column in zip(self.problem.need, self.problem.columns):
            others = (0 if size == 1 else index.largest[column][size - 2]
                      if size - 2 < index_module.TOP
                      else index.endable[column])
            chosen = chosen[
                self.table.amounts[column].take(chosen) >=
                (need - others).take(self.table.host_of.take(chosen))]
        return chosen

    def _of_size(self, chosen: Ints,
                 size: int) -> Sets | None:
        """Return the best of all sets of a size that make room."""
        if size == 1:
            chosen = self._large_enough(chosen, 1)
            rows = self.table.host_of[chosen].astype(np.int64)
            return self._best(Sets(rows, chosen[:, np.newaxis]))
        chosen = self._large_enough(chosen, size)
        if len(chosen) < size:
            return None
        field = Field(self.problem, chosen, size)
        found = field.sets(size, not self.by_count)
        if found is not None:
            return self._best(found)
        # The sets are too many to be built side by side.
        hosts = int(field.rank[-1]) + 1
        if hosts == 1:
            may = max(self.steps, FEWEST_STEPS)
            walk = _Walk(field, size, may)
            paths = list(itertools.islice(walk.sets(), FOUND))
            self.steps -= walk.steps
            self.exact &= walk.steps <= may or self.by_count and bool(paths)
            return self._best(Sets(
                np.full(len(paths), field.row[0], np.int64),
                field.slot[np.array(paths, np.int64).reshape(-1, size)]))
        middle = int(np.searchsorted(field.rank, hosts // 2))
        first = self._of_size(field.slot[:middle], size)
        second = self._of_size(field.slot[middle:], size)
        if first is None or second is None:
            return first if second is None else second
        return self._best(first.join(second))
