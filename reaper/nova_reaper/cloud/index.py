# SPDX-License-Identifier: Apache-2.0

"""Keeps what the reaper knows of all hosts, in arrays for the decision.

The preemptible servers of a host stand side by side in the arrays: servers of
one kind together, the lower priority and the younger first. A decision over
100,000 servers then reads a few arrays from end to end, and changing one host
writes a few short pieces. The index also has the room of the hosts, and, by
shape, the hosts that Nova's filters refuse or Placement does not offer.

The callers that read Nova and Placement fill and refresh the index, which asks
no service. The index is not safe for threads: its owner holds a lock.
"""

import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Sized
import copy
import dataclasses
import datetime
import enum
import itertools
import math
from typing import Any
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nova_reaper.cloud import model

# Stands for what is free of a resource class that a host does not have.
NONE = -(1 << 61)
# After so many tries in vain a host counts as without room for the shape.
DENIALS = 3

# The class of PCI devices of an alias has a name that begins so and ends with
# the alias. No resource class of Placement has such a name.
DEVICE = 'PCI:'
# The names of classes that most servers have, or that are rates, begin so. All
# other classes are scarce.
_COMMON = ('VCPU', 'PCPU', 'MEMORY_MB', 'DISK_GB', 'MEM_ENCRYPTION_CONTEXT',
           'NET_')

# Index.largest has sums for up to so many servers of a host.
TOP = 6
_ROWS = 64
_MASKS = 256

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.int32]
_Scalar = TypeVar('_Scalar', bound=np.generic)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def to_micros(time: datetime.datetime | None) -> int:
    """Return microseconds since 1970, 0 for a time that is not known."""
    return 0 if time is None else (time - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime.datetime:
    """Return the time that is so many microseconds after 1970."""
    return _EPOCH + micros * _MICROSECOND


def wider(array: npt.NDArray[_Scalar], size: int,
          fill: int = 0) -> npt.NDArray[_Scalar]:
    """Return a copy of an array, each line filled up to a size."""
    result = np.full((*array.shape[:-1], size), fill, array.dtype)
    result[..., :array.shape[-1]] = array
    return result


class Slots:
    """Places for the servers that may be ended, and some empty places.

    Servers whose run time is limited have places, too, and are not victims
    unless they are preemptible.

    Each array has an element for each slot.

    :ivar amounts: what the server has, an array for each resource class
    :ivar host_of: the row of the server's host
    :ivar kind: a number that servers share for which all scorers but the
        scorer of age have the same answer
    :ivar deletes: whether the end of the server is a delete
    :ivar priorities: every priority that a server has or had
    :ivar safe_until: microseconds since 1970 until which the server may not be
        ended for another
    :ivar endable: whether the server may be ended for another after that
    :ivar ends: microseconds since 1970 at which the run time is over; 0 if
        there is no limit, or the server is not to be ended now
    """

    def __init__(self, classes: Mapping[str, int],
                 options: model.Options) -> None:
        self._classes = classes
        self._options = options
        self.amounts: list[SmallInts] = []
        self.host_of = np.zeros(0, np.int32)
        self.kind = np.zeros(0, np.int32)
        self.project = np.zeros(0, np.int32)
        self.priority = np.zeros(0, np.int64)
        self.deletes = np.zeros(0, np.bool_)
        self.launched = np.zeros(0, np.int64)
        self.safe_until = np.zeros(0, np.int64)
        self.endable = np.zeros(0, np.bool_)
        self.preemptible = np.zeros(0, np.bool_)
        self.ends = np.zeros(0, np.int64)
        # The run time of no server is over before this time; 0 if none ends.
        self._first_end = 0
        self.servers: list[model.Server | None] = []
        self.projects: dict[str, int] = {}
        self.priorities: set[int] = set()
        self.row_of: dict[str, int] = {}
        self._kinds: dict[tuple[object, ...], int] = {}
        self._segments: dict[int, tuple[int, int, int]] = {}
        self._end = 0
        self._wasted = 0

    def __len__(self) -> int:
        return len(self.row_of)

    def use(self, options: model.Options) -> None:
        """Protect servers by other options from now on."""
        before, self._options = self._options, options
        if (before.min_run_time, before.repeat_protection) == (
                options.min_run_time, options.repeat_protection):
            return
        for at, server in enumerate(self.servers):
            if server is not None:
                self.safe_until[at] = self._safe_until(server)

    def segment(self, row: int) -> slice:
        """Return the slots of the servers of a host."""
        start, count, _size = self._segments.get(row, (0, 0, 0))
        return slice(start, start + count)

    def may_end(self, below: int | None, now: int,
                where: slice = slice(None)) -> Bools:
        """Return whether the servers of slots may be ended for another server.

        :param below: the priority that they have to be below, None for any
        :param now: microseconds since 1970
        :param where: the slots, all by default
        """
        may: Bools = self.endable[where] & (self.safe_until[where] <= now)
        if below is not None:
            may &= self.priority[where] < below
        return may

    def of_host(self, row: int) -> list[model.Server]:
        """Return the servers of a host that have slots."""
        return [server for server in self.servers[self.segment(row)]
                if server is not None]

    def find(self, server: str) -> model.Server | None:
        """Return the server of an ID, None if the server has no slot."""
        row = self.row_of.get(server)
        if row is None:
            return None
        return next((one for one in self.of_host(row) if one.id == server),
                    None)

    def of_project(self, project: str | None) -> list[model.Server]:
        """Return the servers of a project, None standing for all projects."""
        if project is None:
            return [server for server in self.servers if server]
        mine = np.flatnonzero(self.project == self.projects.get(project, -1))
        return [server for at in mine if (server := self.servers[at]) and
                server.project == project]

    def due(self, until: int) -> list[model.Server]:
        """Return servers whose run time is over by a time, the earliest first.

        :param until: microseconds since 1970
        """
        if not 0 < self._first_end <= until:
            return []
        found = np.flatnonzero((self.ends > 0) & (self.ends <= until))
        found = found[np.argsort(self.ends[found], kind='stable')]
        left = self.ends[found] if len(found) else self.ends[self.ends > until]
        self._first_end = int(left.min()) if len(left) else 0
        return [server for at in found if (server := self.servers[at])]

    def put(self, row: int, servers: Collection[model.Server],
            taken: Collection[str] = ()) -> None:
        """Replace the servers of a host; those taken are victims already."""
        start, count, size = self._segments.get(row, (0, 0, 0))
        self.endable[start:start + count] = False
        self.preemptible[start:start + count] = False
        self.ends[start:start + count] = 0
        for server in self.servers[start:start + count]:
            # A server that has moved may be known on another host by now.
            if server is not None and self.row_of.get(server.id) == row:
                del self.row_of[server.id]
        if len(servers) > size:
            self._wasted += size
            size = len(servers) + max(2, len(servers) // 4)
            start, self._end = self._end, self._end + size
            if self._end > len(self.servers):
                # A decision reads whole arrays: few slots are empty.
                more = max(1024, self._end + self._end // 8) - len(
                    self.servers)
                self._change(lambda array: wider(array, len(array) + more))
                self.servers += [None] * more
            self.host_of[start:self._end] = row
        self.servers[start:start + size] = [None] * size
        self._segments[row] = start, len(servers), size
        self._write(row, start, sorted(servers, key=self._order), taken)
        if self._wasted > 4096 and self._wasted > self._end // 2:
            self._compact()

    def _order(self, server: model.Server) -> tuple[object, ...]:
        amounts = amounts_of(server)
        return ([-amounts.get(name, 0) for name in self._classes],
                server.priority, server.action,
                -to_micros(server.launched_at))

    def _write(self, row: int, start: int, servers: Sequence[model.Server],
               taken: Collection[str]) -> None:
        where = slice(start, start + len(servers))
        amounts = [amounts_of(server) for server in servers]
        for name, column in self._classes.items():
            self.amounts[column][where] = [one.get(name, 0) for one in amounts]
        self.servers[where] = servers
        self.host_of[where] = row
        self.kind[where] = [self._kind(server) for server in servers]
        self.project[where] = [
            self.projects.setdefault(server.project, len(self.projects))
            for server in servers]
        self.priority[where] = [server.priority for server in servers]
        self.priorities.update(server.priority for server in servers)
        self.deletes[where] = [server.action is model.Action.DELETE
                               for server in servers]
        self.launched[where] = [to_micros(server.launched_at)
                                for server in servers]
        self.safe_until[where] = [self._safe_until(server)
                                  for server in servers]
        self.preemptible[where] = [
            server.preemptible and server.id not in taken
            for server in servers]
        mine = [not (server.locked or server.busy or server.id in taken)
                for server in servers]
        self.endable[where] = mine
        self.endable[where] &= self.preemptible[where]
        ends = [to_micros(server.ends_at) * is_mine
                for server, is_mine in zip(servers, mine)]
        self.ends[where] = ends
        self._first_end = min(filter(None, (self._first_end, *ends)),
                              default=0)
        self.row_of.update(dict.fromkeys(
            (server.id for server in servers), row))

    def _kind(self, server: model.Server) -> int:
        # The kind has all that scorers look at, except for the age.
        kind = (tuple(sorted((name, amount) for name, amount
                             in amounts_of(server).items() if amount)),
                server.priority, server.action)
        return self._kinds.setdefault(kind, len(self._kinds))

    def _safe_until(self, server: model.Server) -> int:
        safe = 0
        if server.launched_at is not None:
            safe = (to_micros(server.launched_at) +
                    self._options.min_run_time * 1_000_000)
        if server.last_ended_at is not None:
            safe = max(safe, to_micros(server.last_ended_at) +
                       self._options.repeat_protection * 1_000_000)
        return safe

    def take(self, which: Ints, rows: Ints) -> 'Slots':
        """Return a copy with the arrays of some slots, to be read only.

        :param which: the slots
        :param rows: the row of each server in another index
        """
        result = copy.copy(self)
        result._change(lambda array: array[which])
        result.host_of = rows.astype(np.int32)
        return result

    def _change(self, function: Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
                ) -> None:
        """Replace each array by an array that a function makes of it."""
        self.amounts = [function(array) for array in self.amounts]
        for name in ('host_of', 'kind', 'project', 'priority', 'deletes',
                     'launched', 'safe_until', 'endable', 'preemptible',
                     'ends'):
            setattr(self, name, function(getattr(self, name)))

    def _compact(self) -> None:
        """Close the gaps of hosts that have outgrown their slots."""
        taken = {server.id
                 for server, mine in zip(self.servers, self.preemptible)
                 if server is not None and server.preemptible and not mine}
        hosts = [(row, self.of_host(row)) for row in self._segments]
        self._segments = {}
        self._end = self._wasted = 0
        self.endable[:] = False
        self.preemptible[:] = False
        self.ends[:] = 0
        self.servers = [None] * len(self.servers)
        for row, servers in hosts:
            self.put(row, servers, taken)


def amounts_of(server: model.Server) -> Mapping[str, int]:
    """Return what a server has, PCI devices included."""
    if not server.devices:
        return server.amounts
    return {**server.amounts, **{
        DEVICE + alias: amount for alias, amount in server.devices.items()}}


# Filters whose verdict does not depend on what is on a host: the verdict holds
# until an aggregate, a service or a flavor changes. The verdict of any other
# filter (NUMA, PCI devices, number of servers, groups) ends with each change
# of the host.
LASTING = frozenset({
    'AggregateImagePropertiesIsolation', 'AggregateInstanceExtraSpecsFilter',
    'AggregateMultiTenancyIsolation', 'AggregateTypeAffinityFilter',
    'ComputeCapabilitiesFilter', 'ComputeFilter', 'ImagePropertiesFilter',
    'IsolatedHostsFilter'})


class Lack(enum.Enum):
    """What servers that end on a host have to free, whatever is free now."""

    AMOUNTS = 'amounts'  # all that is asked for, but for devices
    DEVICES = 'devices'  # the PCI devices that are asked for
    SERVER = 'server'    # something: a server, however small


# Filters that may accept a host once servers there have ended, and what those
# servers have to free: the first lack, and the next if that is not enough.
BY_USAGE: Mapping[str, tuple[Lack, ...]] = {
    'AggregateNumInstancesFilter': (Lack.SERVER,),
    # Devices have to be of the right NUMA nodes, too.
    'NUMATopologyFilter': (Lack.AMOUNTS, Lack.DEVICES),
    'NumInstancesFilter': (Lack.SERVER,),
    'PciPassthroughFilter': (Lack.DEVICES,)}


def _at_most(free: Ints, rows: list[int], most: int) -> Ints:
    """Return what is free, with a limit on some rows."""
    if rows:
        free = free.copy()
        free[rows] = np.minimum(free[rows], most)
    return free


class Exclusions:
    """Knows by shape which hosts are refused, not offered or withheld.

    :param rows: the rows of the index by the host's name, which change
    :param hosts: the hosts of the index by row, which change
    """

    def __init__(self, rows: Mapping[str, int], hosts: Sized) -> None:
        self._rows = rows
        self._hosts = hosts
        # By shape: the filters that refuse hosts, by the host's name, and the
        # rows of these hosts, made when they are needed. By host: shapes.
        self._refused: dict[model.Shape, dict[str, str]] = {}
        self._masks: dict[model.Shape, Bools] = {}
        self._refused_on: dict[str, set[model.Shape]] = {}
        # By shape and host: what ends have to free, where ends may help; and
        # the servers without which Nova accepts the host, where Nova has named
        # some.
        self._crowded: dict[model.Shape, dict[str, frozenset[Lack]]] = {}
        self._named: dict[model.Shape, dict[str, Collection[str]]] = {}
        self._not_offered: dict[model.Shape, Bools] = {}
        # By shape: until when hosts are left out, by the host's name.
        self._withheld: dict[model.Shape, dict[str, datetime.datetime]] = {}
        # By host: how often each shape has found no room there since the host
        # changed.
        self._denied: dict[str, collections.Counter[model.Shape]] = {}
        # Hosts that were read, and whose reading is not believed.
        self._doubted: set[str] = set()

    def put(self, row: int, before: model.Host | None,
            host: model.Host) -> None:
        """Forget what was said of a host that has changed, unless it lasts."""
        if before == host:
            return
        self._denied.pop(host.name, None)
        for hosts in self._withheld.values():
            hosts.pop(host.name, None)
        if before is not None:
            self.take_back(host.name)
        for mask in self._not_offered.values():
            mask[row:row + 1] = False

    def take_back(self, host: str, lasting: bool = False) -> bool:
        """Forget which shapes filters refuse on a host.

        :param lasting: whether to forget lasting refusals, too
        :returns: whether there was something to forget
        """
        shapes = self._refused_on.get(host, set())
        ended = {shape for shape in shapes
                 if lasting or self._refused[shape][host] not in LASTING}
        for shape in ended:
            del self._refused[shape][host]
            self._masks.pop(shape, None)
            self._crowded.get(shape, {}).pop(host, None)
            self._named.get(shape, {}).pop(host, None)
        shapes -= ended
        if not shapes:
            self._refused_on.pop(host, None)
        return bool(ended)

    def add_row(self) -> None:
        """Look up the rows of hosts again, since there is a new row."""
        self._masks.clear()

    def refuse(self, shape: model.Shape, by_host: Mapping[str, str],
               lacks: frozenset[Lack] = frozenset(),
               named: Collection[str] = ()) -> None:
        """Say which filter of Nova's refuses a shape, by the host's name.

        A refusal holds until take_back(), or until the host changes if the
        filter looks at what is on the host. If the filter may accept the host
        once servers have ended, the host is crowded until servers were chosen
        for all lacks that may help.

        :param lacks: the lacks by which the servers were chosen without which
            Nova has judged the hosts
        :param named: IDs of other servers: Nova accepts the hosts only without
            all of them
        """
        for host, name in by_host.items():
            self._named.get(shape, {}).pop(host, None)
            crowded = self._crowded.setdefault(shape, {})
            self._refused.setdefault(shape, {})[host] = name
            self._refused_on.setdefault(host, set()).add(shape)
            remedies = self._remedies(shape, name)
            left = [lack for lack in remedies if named or lack not in lacks]
            if left:
                crowded[host] = crowded.get(host, lacks) | {left[0]}
                if named:
                    self._named.setdefault(shape, {})[host] = named
            else:
                crowded.pop(host, None)
        self._masks.pop(shape, None)

    @staticmethod
    def _remedies(shape: model.Shape, name: str) -> Sequence[Lack]:
        """Return what ends have to free for a filter to accept a host.

        Nobody knows which servers have the devices that ports ask for: servers
        that free all else may free the devices. For a shape without RAM
        Index.needs() cannot say that a server has to end.
        """
        remedies = BY_USAGE.get(name, ())
        if not shape.resources or (
                Lack.SERVER in remedies and 'MEMORY_MB' not in shape.amounts):
            return ()
        if shape.devices or Lack.DEVICES not in remedies:
            return remedies
        return [Lack.AMOUNTS]

    def refusals(self, shape: model.Shape) -> Mapping[str, str]:
        """Return the filters that refuse a shape, by the host's name."""
        return self._refused.get(shape, {})

    def refused(self, shape: model.Shape) -> Bools:
        """Return the hosts that filters refuse, whatever ends there."""
        refused = self.refusals(shape).keys()
        if refused and shape not in self._masks:
            self._masks[shape] = self._mask(
                refused - self.crowded(shape).keys())
        return self._masks[shape] if refused else self._mask(())

    def crowded(self, shape: model.Shape) -> Mapping[str, frozenset[Lack]]:
        """Return, by host, what has to be freed before filters accept it."""
        return self._crowded.get(shape, {})

    def named(self, shape: model.Shape) -> Mapping[str, Collection[str]]:
        """Return IDs of the servers to end, by host, where Nova named some."""
        return self._named.get(shape, {})

    def _mask(self, hosts: Iterable[str]) -> Bools:
        """Return which rows have one of these hosts, by name."""
        mask = np.zeros(len(self._hosts), np.bool_)
        mask[[self._rows[name] for name in hosts if name in self._rows]] = True
        return mask

    def offer(self, shape: model.Shape, hosts: Collection[str]) -> None:
        """Say that Placement has room for a shape on no other hosts.

        The other hosts are left out, each until the host changes or until
        forget_offers(). Hosts that were left out before stay left out, so that
        a server that is tried again and again runs out of hosts.
        """
        self._leave_out(shape, ~self._mask(hosts))

    def _leave_out(self, shape: model.Shape, mask: Bools) -> None:
        """Add the rows of a mask to those without room for a shape."""
        self._not_offered[shape] = self.not_offered(shape) | mask

    def withhold(self, shape: model.Shape, host: str,
                 until: datetime.datetime, ends: bool = False) -> None:
        """Leave out a host that seems good for a shape, and is not.

        The host is left out until the host changes, or until the time. After
        DENIALS calls for free room without a change of the host, Placement
        counts something that Placement does not show: the host then counts as
        without room, and servers of other hosts may be ended.

        :param ends: whether servers of the host were to end for the room
        """
        if not ends:
            denied = self._denied.setdefault(host, collections.Counter())
            denied[shape] += 1
            if denied[shape] >= DENIALS:
                self._leave_out(shape, self._mask([host]))
                return
        self._withheld.setdefault(shape, {})[host] = until

    def doubt(self, host: str) -> None:
        """Withhold a host from all shapes until trust().

        Shapes that found no room there have not found that the host is full.
        """
        self._denied.pop(host, None)
        self._doubted.add(host)

    def trust(self, host: str) -> bool:
        """End the doubt about a host; return whether there was a doubt."""
        doubted = host in self._doubted
        self._doubted.discard(host)
        return doubted

    def withheld(self, shape: model.Shape, now: datetime.datetime
                 ) -> tuple[Bools, datetime.datetime | None]:
        """Return the hosts that are withheld from a shape.

        :returns: the rows of the hosts, and when the first host is withheld
            no longer, None if nobody knows
        """
        hosts = {host: until for host, until
                 in self._withheld.pop(shape, {}).items() if until > now}
        if hosts:
            self._withheld[shape] = hosts
        return (self._mask({*hosts, *self._doubted}),
                min(hosts.values(), default=None))

    def not_offered(self, shape: model.Shape) -> Bools:
        """Return the hosts that are not offered to a shape."""
        mask = self._not_offered.get(shape, np.zeros(0, np.bool_))
        return wider(mask, len(self._hosts))

    def leaves_out(self, shape: model.Shape, row: int) -> bool:
        """Say whether one host is among those of :meth:`not_offered`."""
        mask = self._not_offered.get(shape, ())
        return row < len(mask) and bool(mask[row])

    def forget_offers(self) -> set[model.Shape]:
        """Forget all offers; return the shapes for which there were some."""
        shapes = set(self._not_offered)
        self._not_offered.clear()
        return shapes

    def forget_refusals(self) -> set[model.Shape]:
        """Forget all refusals; return the shapes for which there were some."""
        shapes = {shape for shape, by_host in self._refused.items() if by_host}
        self._refused.clear()
        self._masks.clear()
        self._crowded.clear()
        self._named.clear()
        self._refused_on.clear()
        return shapes

    def keep_only(self, shapes: Collection[model.Shape]) -> None:
        """Forget what was said of all other shapes."""
        for shape in {*self._refused, *self._not_offered,
                      *self._withheld}.difference(shapes):
            self.forget(shape)

    def forget(self, shape: model.Shape) -> None:
        """Forget what was said of a shape."""
        for host in self._refused.pop(shape, ()):
            self._refused_on[host].discard(shape)
        self._masks.pop(shape, None)
        self._crowded.pop(shape, None)
        self._named.pop(shape, None)
        self._not_offered.pop(shape, None)
        self._withheld.pop(shape, None)


@dataclasses.dataclass(slots=True)
class Plan:
    """Room that was given to a server and that Placement does not know of yet.

    :ivar amounts: by the name of the provider
    :ivar held: which of the amounts the host's ``used`` has already
    :ivar victims: IDs of the servers that are ended for the server
    :ivar written_at: when Placement was told, by the monotonic clock
    """

    server: str
    host: str
    amounts: Mapping[str, Mapping[str, int]]
    victims: Collection[str] = ()
    written_at: float = math.inf
    held: Mapping[str, Mapping[str, int]] = dataclasses.field(
        default_factory=dict)

    def of(self, provider: str) -> Mapping[str, int]:
        """Return what the plan takes of a provider beyond what shows."""
        return model.total(self.amounts.get(provider, {}), {
            name: -amount
            for name, amount in self.held.get(provider, {}).items()})


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a shape asks for of a resource class, or of PCI devices.

    :ivar column: the number of the class
    :ivar free: what hosts have free for servers of the shape
    """

    name: str
    column: int
    amount: int
    free: Ints

    @property
    def lacking(self) -> Ints:
        """What has to become free on each host."""
        return np.maximum(self.amount - self.free, 0)


@dataclasses.dataclass(slots=True)
class _Share:
    """A provider that shares what it has with hosts.

    :ivar used: what all its consumers have
    :ivar node: the provider as it will be, with the plans
    :ivar rows: whether the provider shares with the host of a row
    """

    provider: model.Provider
    used: Mapping[str, int]
    node: model.Provider
    rows: Bools


class Index:
    """Keeps hosts, their room and their preemptible servers.

    A host that has no class that a shape may get elsewhere is no worse than
    another host: only Placement knows. If several providers of a host have a
    class, below the host or sharing with it, the arrays have the sum, an upper
    bound of the room. The index looks at single providers only if the sums are
    enough and several providers have one class.

    Arrays have one element for each row; a row is a host, or empty.

    :ivar exclusions: the hosts where a shape is not to go
    :ivar version: grows with every change
    :ivar changed: the version at which each host changed last
    :ivar refitted: the version at which each host last changed in what the
        host has when empty
    :ivar known: whether there is a host
    :ivar single: whether no two providers of the host have one class, so that
        the sums are exact
    :ivar kind_of: a number that hosts share whose providers are alike when
        empty
    :ivar grown: by resource class, the least that a sharing provider had left
        before the provider got more, since the last take_grown()
    :ivar capacity: by resource class, Placement's; NONE without inventory
    :ivar free: by resource class, capacity without what is used and planned;
        negative on a host that has more than its capacity
    :ivar scarce: of the resource classes, those that few hosts have
    :ivar endable: by resource class, the sum of what servers have that could
        be ended, at some time
    :ivar largest: by resource class, what the largest, the two largest, ... of
        these servers have together: TOP lines
    """

    def __init__(self, options: model.Options) -> None:
        self.classes: dict[str, int] = {}
        self.scarce: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.hosts: list[model.Host | None] = [None] * _ROWS
        self.slots = Slots(self.classes, options)
        self.exclusions = Exclusions(self.rows, self.hosts)
        self.plans: dict[str, Plan] = {}
        self.version = 0
        self.changed = np.zeros(_ROWS, np.int64)
        self.refitted = np.zeros(_ROWS, np.int64)
        self.known = np.zeros(_ROWS, np.bool_)
        self.enabled = np.zeros(_ROWS, np.bool_)
        self.single = np.ones(_ROWS, np.bool_)
        self.grown: dict[str, int] = {}
        self.capacity: list[Ints] = []
        self.free: list[Ints] = []
        self.endable: list[Ints] = []
        self.largest: list[Ints] = []
        # The units of Placement's inventories.
        self._least: list[Ints] = []
        self._most: list[Ints] = []
        self._step: list[Ints] = []
        # How many providers of a host have a class.
        self._owners: list[Ints] = []
        # Lists of one array for each resource class, and the value that an
        # array has in empty rows.
        self._columns = (
            (self.capacity, NONE), (self.free, NONE), (self.endable, 0),
            (self.largest, 0), (self._least, 1), (self._most, model.MAX_INT),
            (self._step, 1), (self._owners, 0))
        self._empty_rows = list(range(_ROWS - 1, -1, -1))
        # By row: the providers of the host that do not share, as they will
        # be with the plans. By name: the sharing providers.
        self._nodes: dict[int, list[model.Provider]] = {}
        self._shares: dict[str, _Share] = {}
        self.kind_of = np.zeros(_ROWS, np.int64)
        self._kinds: dict[object, int] = {}
        self._plans_of: dict[str, dict[str, Plan]] = {}
        self._members: dict[tuple[str, str], Bools] = {}
        # What fits() found, until a host changes otherwise than in its room;
        # the shapes stand in the order in which they were asked for last.
        self._masks: dict[model.Shape, Bools] = {}
        for name in ('MEMORY_MB', 'VCPU', 'DISK_GB'):
            self._column(name)

    def put(self, host: model.Host,
            servers: Iterable[model.Server] = ()) -> int:
        """Add a host, or replace all that is known of the host.

        :param servers: the servers on the host; servers that are neither
            preemptible nor limited in run time count only in ``host.used``
        :returns: the row of the host
        """
        servers = [server for server in servers
                   if server.preemptible or server.ends_at]
        for name in itertools.chain(
                host.inventory, host.used,
                host.below, *(amounts_of(server) for server in servers
                  if server.devices or server.providers)):
            self._column(name)
        row = self.rows.get(host.name)
        if row is None:
            row = self._add_row(host.name)
        before = self.hosts[row]
        self.hosts[row] = host
        self.exclusions.put(row, before, host)
        self._put_shares(row, before, host)
        if before is None or _when_empty(before) != _when_empty(host):
            self._put_fit(row, host)
            # The version that the index has once the host is put.
            self.refitted[row] = self.version + 1
        self.enabled[row] = not host.disabled
        self._put_room(row, servers)
        if host.name in self._plans_of:
            # The amounts of servers that plans end may have changed.
            self._count_shares()
        return row

    def share(self, name: str, used: Mapping[str, int]) -> None:
        """Replace what is used of a provider that shares with hosts.

        Before the first call, ``used`` of the first put() counts.
        """
        share = self._shares.get(name)
        if share is not None and share.used != used:
            share.used = used
            self._count_share(share)

    def remove(self, name: str) -> None:
        """Forget a host, if it is known."""
        row = self.rows.get(name)
        if row is None:
            return
        self.put(model.Host(name, {}, disabled=True))
        del self.rows[name]
        self.hosts[row] = None
        self.known[row] = False
        self._masks.clear()
        self._empty_rows.append(row)

    def plan(self, plan: Plan) -> None:
        """Count room as taken, and its victims as gone, before they are.

        A plan outlives a refresh of its host. The caller has to drop the plan
        when the host is read with the allocation, or the plan fails.
        """
        self.drop_plan(plan.server)
        self.plans[plan.server] = plan
        self._plans_of.setdefault(plan.host, {})[plan.server] = plan
        self._put_room_again(plan.host)

    def drop_plan(self, server: str) -> None:
        """Forget a plan, if there is one for the server."""
        plan = self.plans.pop(server, None)
        if plan is not None:
            del self._plans_of[plan.host][server]
            self._put_room_again(plan.host)

    def planned(self, host: str) -> list[Plan]:
        """Return the plans for a host."""
        return list(self._plans_of.get(host, {}).values())

    def fits(self, shape: model.Shape) -> Bools:
        """Return the hosts that could take a shape if they were empty.

        Capacity, units, traits, aggregates and the host's name count; whether
        the host is enabled, and what Nova's filters say, do not.
        """
        mask = self._masks.pop(shape, None)
        if mask is None:
            mask = self._fits(shape, slice(None))
        self._masks[shape] = mask
        if len(self._masks) > _MASKS:
            del self._masks[next(iter(self._masks))]
        return mask

    def needs(self, shape: model.Shape, row: int | None = None) -> list[Need]:
        """Return what a shape needs, and what hosts have free for the shape.

        If a filter refuses a host until servers end, what is free there is of
        no use: servers that end have to free what the filter looks at. A host
        with too many servers lacks one MB, which any of its servers frees. A
        host that no filter refuses has enough PCI devices. Classes that no
        host has are left out.

        :param row: the row of the only host to look at, None for all
        """
        rows = self._crowded(shape, row)
        result = []
        for name, amount in shape.resources:
            if name in self.classes:
                free = self.free[self.classes[name]]
                free = free if row is None else free[row:row + 1]
                free = _at_most(free, rows[Lack.AMOUNTS], 0)
                if name == 'MEMORY_MB':
                    free = _at_most(free, rows[Lack.SERVER], amount - 1)
                result.append(Need(name, self.classes[name], amount, free))
        if rows[Lack.DEVICES]:
            enough = np.full(len(self.hosts) if row is None else 1,
                             model.MOST)
            free = _at_most(enough, rows[Lack.DEVICES], 0)
            result += [Need(DEVICE + alias, self._column(DEVICE + alias),
                            amount, free) for alias, amount in shape.devices]
        return result

    def lacking(self, shape: model.Shape) -> Mapping[str, Ints]:
        """Return what each host lacks of scarce classes, by their names."""
        return {need.name: need.lacking for need in self.needs(shape)
                if need.name in self.scarce}

    def _crowded(self, shape: model.Shape, row: int | None
                 ) -> dict[Lack, list[int]]:
        """Return the rows of crowded hosts, or 0 for the only row, by lack."""
        rows: dict[Lack, list[int]] = {lack: [] for lack in Lack}
        crowded = self.exclusions.crowded(shape)
        if row is None:
            found = [(self.rows[name], lacks)
                     for name, lacks in crowded.items() if name in self.rows]
        else:
            found = [(0, crowded.get(self.host(row).name, frozenset()))]
        for at, lacks in found:
            for lack in lacks:
                rows[lack].append(at)
        return rows

    def free_of(self, name: str, row: int) -> int:
        """Return what a host has free of a class, NONE without inventory."""
        column = self.classes.get(name)
        return NONE if column is None else int(self.free[column][row])

    def could_take(self, shape: model.Shape, row: int) -> bool:
        """Return whether one host could take a shape if it were empty."""
        host = self.hosts[row]
        if host is None or not self.enabled[row] or (
                host.name in self.exclusions.refusals(shape) and
                host.name not in self.exclusions.crowded(shape)):
            return False
        fits = self._fits(shape, slice(row, row + 1))
        if self.exclusions.leaves_out(shape, row):
            # Placement has no room where the index sees some; where the index
            # sees none, ends may make some.
            return bool(fits[0] and not self.has_room(shape, fits, row)[0])
        return bool(fits[0])

    def has_room(self, shape: model.Shape, fits: Bools,
                 row: int | None = None) -> Bools:
        """Return which of some hosts have room for a shape now.

        :param fits: by row, whether the host could take the shape if the host
            were empty
        :param row: the only row to judge, None for all
        """
        room = fits.copy()
        for need in self.needs(shape, row):
            enough = need.free >= need.amount
            if need.name in shape.elsewhere:
                enough |= need.free == NONE
            room &= enough
        return self.with_way(shape, room, row or 0)

    def with_way(self, shape: model.Shape, rows: Bools, first: int = 0,
                 gone: Bools | None = None, empty: bool = False) -> Bools:
        """Return whether single providers of some rows have room for a shape.

        :param rows: whether the sums are enough, from the first row on, and
            whether the hosts could take the shape if they were empty
        :param gone: whether the server of a slot counts as gone
        :param empty: whether all servers count as gone; then it does not
            matter whether the hosts could take the shape
        """
        if shape.spread is not None:
            crowded = self.exclusions.crowded(shape)
            where = slice(first, first + len(rows))
            closer = ~self.single[where]
            if empty and (shape.groups or shape.spread.required):
                closer[:] = True
            for share in self._shares.values() if empty else ():
                if not model.admits(shape, share.provider):
                    closer |= share.rows[where]
            # Hosts that are alike when they are empty are looked at once.
            known: dict[int, bool] = {}
            for at in np.flatnonzero(rows & closer).tolist():
                row = first + at
                kind = int(self.kind_of[row])
                if empty and kind in known:
                    rows[at] = known[kind]
                    continue
                where = self.slots.segment(row)
                nodes = self.nodes(row, () if gone is None else [
                    server for server, is_gone in zip(
                        self.slots.servers[where], gone[where])
                    if is_gone and server], empty, gone is not None and (
                        Lack.AMOUNTS in crowded.get(self.host(row).name, ())))
                steps = iter(range(model.MOST_STEPS))
                rows[at] = known[kind] = any(
                    True for _ in model.ways(shape, nodes, steps)
                    ) or empty and not any(True for _ in steps)
        return rows

    def host(self, row: int) -> model.Host:
        """Return the host of a row that has a host."""
        host = self.hosts[row]
        assert host is not None
        return host

    def nodes(self, row: int, gone: Iterable[model.Server] = (),
              empty: bool = False, full: bool = False
              ) -> list[model.Provider]:
        """Return the providers of a host with the plans, its own first.

        :param gone: servers of the host that count as gone
        :param empty: whether no server has anything
        :param full: whether nothing is left but what these servers have
        """
        nodes = self._nodes[row] + [
            self._shares[one.name].node
            for one in self.host(row).providers if one.shared]
        if full:
            nodes = [dataclasses.replace(node, used={
                name: max(item.capacity, node.used.get(name, 0))
                for name, item in node.inventory.items()}) for node in nodes]
        gone = list(gone)
        if not (empty or gone):
            return nodes
        return [dataclasses.replace(node, used={} if empty else _used(
            node, (), gone)) for node in nodes]

    def place(self, shape: model.Shape, host: str, victims: Collection[str]
              ) -> Mapping[str, Mapping[str, int]]:
        """Return what each provider gives of a shape once victims are gone."""
        if shape.spread is None:
            return {model.OWN: shape.amounts}
        row = self.rows[host]
        nodes = self.nodes(row, [server for server in self.slots.of_host(row)
                                 if server.id in victims])
        return next(model.ways(shape, nodes), {})

    def changed_since(self, version: int) -> list[int]:
        """Return the rows of the hosts that have changed after a version."""
        rows: list[int] = np.flatnonzero(self.changed > version).tolist()
        return rows

    def on_hosts(self) -> frozenset[str]:
        """Return the resource classes of all hosts, of their own or below."""
        return frozenset(name for name, column in self.classes.items()
                         if self.capacity[column].max() > NONE)

    def totals(self) -> dict[str, int]:
        """Return the capacity of all hosts, by resource class."""
        totals = {name: int(np.maximum(self.capacity[column], 0).sum())
                  for name, column in self.classes.items()}
        for share in self._shares.values():
            # The provider counts once, and not for each of its hosts.
            more = max(int(share.rows.sum()) - 1, 0)
            for name, item in share.provider.inventory.items():
                totals[name] -= more * max(item.capacity, 0)
        return totals

    def _fits(self, shape: model.Shape, rows: slice) -> Bools:
        fits = self.known[rows].copy()
        if shape.host is not None:
            only = np.zeros(len(self.hosts), np.bool_)
            if shape.host in self.rows:
                only[self.rows[shape.host]] = True
            fits &= only[rows]
        for name, amount in shape.resources:
            column = self.classes.get(name)
            if column is None:
                return np.zeros_like(fits)
            capacity = self.capacity[column][rows]
            enough = (capacity >= amount) & (
                amount % self._step[column][rows] == 0)
            enough &= (self._least[column][rows] <= amount) & (
                amount <= self._most[column][rows])
            if name in shape.elsewhere:
                enough |= capacity == NONE
            fits &= enough
        for kind, expressions in (('traits', shape.required),
                                  ('aggregates', shape.member_of)):
            for expression in expressions:
                names = expression.removeprefix('!')
                has = np.zeros_like(fits)
                for name in (names.removeprefix('in:').split(',')
                             if names.startswith('in:') else [names]):
                    has |= self._having(kind, name)[rows]
                fits &= has != expression.startswith('!')
        return self.with_way(shape, fits, rows.start or 0, empty=True)

    def _having(self, kind: str, name: str) -> Bools:
        having = self._members.get((kind, name))
        if having is None or len(having) != len(self.hosts):
            having = np.array([host is not None and name in getattr(host, kind)
                               for host in self.hosts], np.bool_)
            self._members[kind, name] = having
        return having

    def _put_fit(self, row: int, host: model.Host) -> None:
        providers = host.all_providers
        self.kind_of[row] = self._kinds.setdefault(tuple(
            (frozenset(one.inventory.items()), one.traits, one.shared and (
                one.aggregates)) for one in providers), len(self._kinds))
        for name, column in self.classes.items():
            items = [one.inventory[name] for one in providers
                     if name in one.inventory]
            inventory = _as_one(items)
            self._owners[column][row] = len(items)
            self.capacity[column][row] = (
                inventory.capacity if inventory else NONE)
            if inventory:
                self._least[column][row] = inventory.min_unit
                self._most[column][row] = inventory.max_unit
                self._step[column][row] = inventory.step_size
        for (kind, name), having in self._members.items():
            if row < len(having):
                having[row] = name in getattr(host, kind)
        self._masks.clear()

    def _put_room_again(self, name: str) -> None:
        row = self.rows.get(name)
        if row is not None:
            self._put_room(row, self.slots.of_host(row))
        self._count_shares()

    def _put_room(self, row: int, servers: Collection[model.Server]) -> None:
        host = self.host(row)
        plans = self._plans_of.get(host.name, {}).values()
        taken = frozenset().union(*(plan.victims for plan in plans))
        self.slots.put(row, servers, taken)
        going = [server for server in servers if server.id in taken]
        where = self.slots.segment(row)
        self.single[row] = _is_single(host, servers)
        self._nodes[row] = [
            dataclasses.replace(one, used=_used(one, plans, going))
            for one in host.all_providers if not one.shared]
        left = _sums(self.nodes(row))
        for name, column in self.classes.items():
            self.free[column][row] = min(left.get(name, NONE), model.MOST)
            amounts = sorted(self.slots.amounts[column][where][
                self.slots.endable[where]].tolist(), reverse=True)
            self.endable[column][row] = sum(amounts)
            amounts.extend([0] * (TOP - len(amounts)))
            self.largest[column][:, row] = list(
                itertools.accumulate(amounts[:TOP]))
        self.version += 1
        self.changed[row] = self.version

    def _put_shares(self, row: int, before: model.Host | None,
                    host: model.Host) -> None:
        """Note which providers share with a host."""
        for one in before.providers if before else ():
            if one.shared:
                self._shares[one.name].rows[row] = False
        for one in host.providers:
            if one.shared:
                share = self._shares.get(one.name)
                if share is None:
                    share = self._shares[one.name] = _Share(
                        one, one.used, model.Provider(one.name, {}),
                        np.zeros(len(self.hosts), np.bool_))
                share.rows[row] = True
                if share.provider != one or not share.node.inventory:
                    share.provider = one
                    self._count_share(share)

    def _count_shares(self) -> None:
        for share in self._shares.values():
            self._count_share(share)

    def _count_share(self, share: _Share) -> None:
        """Find out again what is left of a provider that shares."""
        before, plans = share.node.left, self.plans.values()
        going = [server for plan in plans for victim in plan.victims
                 if (server := self.slots.find(victim))]
        one = dataclasses.replace(share.provider, used=share.used)
        share.node = dataclasses.replace(one, used=_used(one, plans, going))
        for name, left in share.node.left.items():
            # The free room of hosts has what was left before.
            old = before.get(name, left)
            if left == old:
                continue
            column = self._column(name)
            owners, free = self._owners[column], self.free[column]
            free[share.rows & (owners == 1)] += left - old
            free[share.rows & (owners > 1)] += max(left, 0) - max(old, 0)
            self.version += 1
            if left > old:
                self.grown[name] = min(self.grown.get(name, old), old)

    def take_grown(self) -> Mapping[str, int]:
        """Return which classes sharing providers got more of, once.

        :returns: by class, the least that such a provider had left before
        """
        grown, self.grown = self.grown, {}
        return grown

    def _add_row(self, name: str) -> int:
        if not self._empty_rows:
            before = len(self.hosts)
            size = before + max(_ROWS, before // 8)
            self._empty_rows = list(range(size - 1, before - 1, -1))
            self.hosts.extend([None] * (size - before))
            self.changed = wider(self.changed, size)
            self.refitted = wider(self.refitted, size)
            self.known = wider(self.known, size)
            self.enabled = wider(self.enabled, size)
            self.single = wider(self.single, size, True)
            self.kind_of = wider(self.kind_of, size)
            for share in self._shares.values():
                share.rows = wider(share.rows, size)
            for columns, fill in self._columns:
                columns[:] = [wider(array, size, fill) for array in columns]
        row = self._empty_rows.pop()
        self.rows[name] = row
        self.known[row] = True
        self.exclusions.add_row()
        return row

    def _column(self, name: str) -> int:
        """Return the number of a class, and add the class if it is new."""
        if name not in self.classes:
            self.classes[name] = len(self.classes)
            if not name.startswith(_COMMON):
                self.scarce[name] = self.classes[name]
            for columns, fill in self._columns:
                lines = (TOP,) if columns is self.largest else ()
                columns.append(
                    np.full((*lines, len(self.hosts)), fill, np.int64))
            self.slots.amounts.append(
                np.zeros(len(self.slots.servers), np.int32))
        return self.classes[name]


def _when_empty(host: model.Host) -> object:
    """Return what decides which shapes a host could take if it were empty."""
    return (host.inventory, host.traits, host.aggregates, [
        (one.name, one.inventory, one.traits, one.aggregates)
        for one in host.providers])


def _is_single(host: model.Host, servers: Iterable[model.Server]) -> bool:
    """Return whether one provider has each class, also what servers have."""
    owner: dict[str, str] = {}
    for provider in host.all_providers if host.providers else ():
        for name in provider.inventory:
            if owner.setdefault(name, provider.name) != provider.name:
                return False
    return not owner or all(
        owner.get(name, provider) == provider for server in servers
        for provider in (model.OWN, *server.providers)
        for name in server.of(provider))


def _used(one: model.Provider, plans: Iterable[Plan],
          going: Iterable[model.Server]) -> dict[str, int]:
    """Return what is used with plans, and without servers that go."""
    sums = dict(model.total(one.used, *(plan.of(one.name) for plan in plans)))
    for server in going:
        for name, amount in server.of(one.name).items():
            sums[name] = sums.get(name, 0) - amount
    return sums


def _sums(providers: Iterable[model.Provider]) -> dict[str, int]:
    """Return the sums of what is left.

    An overcommitted provider has nothing left of a class that several
    providers have.
    """
    left: dict[str, list[int]] = {}
    for one in providers:
        for name, amount in one.left.items():
            left.setdefault(name, []).append(amount)
    return {name: amounts[0] if len(amounts) == 1 else
            sum(max(amount, 0) for amount in amounts)
            for name, amounts in left.items()}


def _as_one(items: Sequence[model.Inventory]) -> model.Inventory | None:
    """Return what several providers have of a class, as a single inventory."""
    if len(items) < 2:
        return items[0] if items else None
    return model.Inventory(
        sum(max(item.capacity, 0) for item in items),
        min_unit=min(item.min_unit for item in items))
