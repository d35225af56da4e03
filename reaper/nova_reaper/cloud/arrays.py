# SPDX-License-Identifier: Apache-2.0

"""The preemptible servers of all hosts, as arrays that a decision reads.

One array for each property, and in each the servers of a host stand side by
side, those of one kind together, the lower priority and the younger first. A
decision over 100,000 servers then reads a few arrays from end to end, and
changing one host writes a few short pieces. Beside them the hosts where a
shape is not to go: by Nova's filters, and by what Placement offers.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
from collections.abc import Sized
import dataclasses
import datetime
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from nova_reaper.cloud import model

Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
SmallInts = npt.NDArray[np.int32]
_Scalar = TypeVar('_Scalar', bound=np.generic)

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


def to_micros(time: datetime.datetime | None) -> int:
    """Microseconds since 1970, which is also what "not known" counts as."""
    return 0 if time is None else (time - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime.datetime:
    """The time that is so many microseconds after 1970."""
    return _EPOCH + micros * _MICROSECOND


def wider(array: npt.NDArray[_Scalar], size: int,
          fill: int = 0) -> npt.NDArray[_Scalar]:
    """A copy of an array, with the value ``fill`` in what is new of it.

    :param size: how long each line of it is to be
    """
    result = np.full((*array.shape[:-1], size), fill, array.dtype)
    result[..., :array.shape[-1]] = array
    return result


class Slots:
    """A place for each preemptible server, and some that are empty.

    :ivar amounts: what the server has, an array for each resource class
    :ivar host_of: the row of its host
    :ivar kind: a number that servers share for which all scorers but the one
        of age have the same answer
    :ivar deletes: whether its end is a delete
    :ivar priorities: every priority that a server has or had
    :ivar safe_until: microseconds since 1970 until which it may not be ended
    :ivar endable: whether it may be ended after that
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

    def add_class(self) -> None:
        """Make room for one resource class more."""
        self.amounts.append(np.zeros(len(self.servers), np.int32))

    def segment(self, row: int) -> slice:
        """Where the servers of a host are."""
        start, count, _size = self._segments.get(row, (0, 0, 0))
        return slice(start, start + count)

    def of_host(self, row: int) -> list[model.Server]:
        """The preemptible servers of a host."""
        return [server for server in self.servers[self.segment(row)]
                if server is not None]

    def find(self, server: str) -> model.Server | None:
        """A preemptible server by its ID."""
        row = self.row_of.get(server)
        if row is None:
            return None
        return next((one for one in self.of_host(row) if one.id == server),
                    None)

    def put(self, row: int, servers: Collection[model.Server],
            taken: Collection[str] = ()) -> None:
        """Say anew which preemptible servers a host has.

        :param taken: IDs of those that are to be ended already
        """
        start, count, size = self._segments.get(row, (0, 0, 0))
        self.endable[start:start + count] = False
        self.preemptible[start:start + count] = False
        for server in self.servers[start:start + count]:
            # A server that has moved may be known on another host by now.
            if server is not None and self.row_of.get(server.id) == row:
                del self.row_of[server.id]
        if len(servers) > size:
            self._wasted += size
            size = len(servers) + max(2, len(servers) // 4)
            start, self._end = self._end, self._end + size
            if self._end > len(self.servers):
                self._resize(max(1024, 2 * len(self.servers), self._end))
            self.host_of[start:self._end] = row
        self.servers[start:start + size] = [None] * size
        self._segments[row] = start, len(servers), size
        self._write(row, start, sorted(servers, key=self._order), taken)
        if self._wasted > 4096 and self._wasted > self._end // 2:
            self._compact()

    def _order(self, server: model.Server) -> tuple[object, ...]:
        return ([-server.resources.get(name, 0) for name in self._classes],
                server.priority, server.action,
                -to_micros(server.launched_at))

    def _write(self, row: int, start: int, servers: Sequence[model.Server],
               taken: Collection[str]) -> None:
        where = slice(start, start + len(servers))
        for name, column in self._classes.items():
            self.amounts[column][where] = [server.resources.get(name, 0)
                                           for server in servers]
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
        self.endable[where] = [
            not (server.locked or server.busy or server.id in taken)
            for server in servers]
        self.preemptible[where] = [server.id not in taken
                                   for server in servers]
        for server in servers:
            self.row_of[server.id] = row

    def _kind(self, server: model.Server) -> int:
        # All that a scorer looks at besides the age has to be part of it.
        kind = (tuple(sorted((name, amount) for name, amount
                             in server.resources.items() if amount)),
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

    def _resize(self, size: int) -> None:
        self.amounts = [wider(array, size) for array in self.amounts]
        for name in ('host_of', 'kind', 'project', 'priority', 'deletes',
                     'launched', 'safe_until', 'endable', 'preemptible'):
            setattr(self, name, wider(getattr(self, name), size))
        self.servers.extend([None] * (size - len(self.servers)))

    def _compact(self) -> None:
        """Close the gaps that hosts left which outgrew their place."""
        taken = {server.id
                 for server, mine in zip(self.servers, self.preemptible)
                 if server is not None and not mine}
        hosts = [(row, self.of_host(row)) for row in self._segments]
        self._segments = {}
        self._end = self._wasted = 0
        self.endable[:] = False
        self.preemptible[:] = False
        self.servers = [None] * len(self.servers)
        for row, servers in hosts:
            self.put(row, servers, taken)


# Filters of Nova whose verdict does not depend on what is on a host: it holds
# until an aggregate, a service or a flavor changes. The verdict of any other
# filter (NUMA, PCI devices, number of servers, groups) ends with each change
# of the host.
LASTING = frozenset({
    'AggregateImagePropertiesIsolation', 'AggregateInstanceExtraSpecsFilter',
    'AggregateMultiTenancyIsolation', 'AggregateTypeAffinityFilter',
    'ComputeCapabilitiesFilter', 'ComputeFilter', 'ImagePropertiesFilter',
    'IsolatedHostsFilter'})


@dataclasses.dataclass(slots=True)
class _Refusals:
    """What Nova's filters say of one shape.

    :ivar given: the filters by the host's name, as they were given last; other
        shapes have the same object
    :ivar by_host: those of them that hold still, and what was found since
    :ivar mask: the hosts of by_host, None until it is asked for
    """

    given: Mapping[str, str]
    by_host: Mapping[str, str]
    mask: Bools | None = None


class Exclusions:
    """The hosts of an index that are refused or not offered, by the shape.

    :param rows: of the index, which changes it: rows by the host's name
    :param hosts: of the index, which changes it: one for each row
    """

    def __init__(self, rows: Mapping[str, int], hosts: Sized) -> None:
        self._rows = rows
        self._hosts = hosts
        self._refusals: dict[model.Shape, _Refusals] = {}
        self._not_offered: dict[model.Shape, Bools] = {}
        # By the host, shapes of which what was said ends with a change of it.
        self._withheld: dict[str, set[model.Shape]] = {}
        self._passing: dict[str, set[model.Shape]] = {}

    def put(self, row: int, before: model.Host | None,
            host: model.Host) -> None:
        """Let what Placement said of a host hold no more if it has changed."""
        if before == host:
            return
        self._withheld.pop(host.name, None)
        if before is not None:
            for shape in self._passing.pop(host.name, ()):
                self._take_back(shape, host.name, row)
        for mask in self._not_offered.values():
            mask[row:row + 1] = False

    def _take_back(self, shape: model.Shape, host: str, row: int) -> None:
        said = self._refusals.get(shape)
        if said is None or host not in said.by_host:
            return
        if said.by_host is said.given:
            said.by_host = dict(said.given)
        assert isinstance(said.by_host, dict)
        del said.by_host[host]
        if said.mask is not None:
            said.mask[row:row + 1] = False

    def add_row(self) -> None:
        """There is a new host: what was said by name is looked up again."""
        for said in self._refusals.values():
            said.mask = None

    def refuse(self, shape: model.Shape, by_host: Mapping[str, str]) -> None:
        """Say which filter of Nova's refuses a shape, by the host's name.

        It replaces what was said of the shape before.
        """
        self._refusals[shape] = _Refusals(by_host, by_host)
        self._pass(shape, by_host)

    def add(self, shape: model.Shape, host: str, name: str) -> None:
        """Say that a filter refuses a shape on one host more."""
        self._refusals[shape] = _Refusals(
            self.given(shape) or {}, {**self.refusals(shape), host: name})
        self._pass(shape, {host: name})

    def _pass(self, shape: model.Shape, by_host: Mapping[str, str]) -> None:
        """Have refusals end with a change of the host, but for lasting ones.
        """
        for host, name in by_host.items():
            if name not in LASTING:
                self._passing.setdefault(host, set()).add(shape)

    def given(self, shape: model.Shape) -> Mapping[str, str] | None:
        """What was said of a shape last; some of it may hold no more."""
        said = self._refusals.get(shape)
        return said.given if said else None

    def refusals(self, shape: model.Shape) -> Mapping[str, str]:
        """The filters that refuse a shape, by the host's name."""
        said = self._refusals.get(shape)
        return said.by_host if said else {}

    def refused(self, shape: model.Shape) -> Bools | None:
        """The hosts on which Nova's filters refuse a shape, None for none."""
        said = self._refusals.get(shape)
        if said is None or not said.by_host:
            return None
        if said.mask is None or len(said.mask) != len(self._hosts):
            said.mask = self._mask(said.by_host)
        return said.mask

    def _mask(self, hosts: Iterable[str]) -> Bools:
        """Which rows have one of these hosts, by name."""
        mask = np.zeros(len(self._hosts), np.bool_)
        mask[[self._rows[name] for name in hosts if name in self._rows]] = True
        return mask

    def offer(self, shape: model.Shape, hosts: Collection[str]) -> None:
        """Say that Placement has room for a shape on no other hosts.

        It holds of each host until that changes, or everything is asked
        again. What was said before is not taken back, so that who asks again
        and again comes to an end.
        """
        before = self.not_offered(shape)
        mask = ~self._mask(hosts)
        self._not_offered[shape] = mask if before is None else before | mask

    def withhold(self, shape: model.Shape, host: str) -> None:
        """Say that a host seems to have room for a shape, and has none.

        It holds until the host changes or is released.
        """
        self._withheld.setdefault(host, set()).add(shape)

    def release(self, shape: model.Shape, host: str) -> bool:
        """Take back what was said of a host; returns whether it held."""
        shapes = self._withheld.get(host, set())
        held = shape in shapes
        shapes.discard(shape)
        if not shapes:
            self._withheld.pop(host, None)
        return held

    def withheld(self, shape: model.Shape) -> Bools | None:
        """The hosts that are withheld from a shape, None for none."""
        mask = self._mask(host for host, shapes in self._withheld.items()
                          if shape in shapes)
        return mask if mask.any() else None

    def not_offered(self, shape: model.Shape) -> Bools | None:
        """The hosts without room by Placement's word, None for none."""
        mask = self._not_offered.get(shape)
        if mask is not None and len(mask) != len(self._hosts):
            mask = wider(mask, len(self._hosts), False)
            self._not_offered[shape] = mask
        return mask

    def forget_offers(self) -> bool:
        """Ask Placement anew; returns whether it had said anything."""
        said = bool(self._not_offered)
        self._not_offered.clear()
        return said

    def keep_only(self, shapes: Collection[model.Shape]) -> None:
        """Forget what was said of other shapes."""
        for shape in self._refusals.keys() - shapes:
            del self._refusals[shape]
        for shape in self._not_offered.keys() - shapes:
            del self._not_offered[shape]
        for host, passing in list(self._passing.items()):
            passing.intersection_update(shapes)
            if not passing:
                del self._passing[host]
