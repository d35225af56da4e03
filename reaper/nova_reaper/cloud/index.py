# SPDX-License-Identifier: Apache-2.0

"""What the reaper knows of all hosts, laid out for the decision.

The index is filled and refreshed by whoever reads Nova and Placement; it asks
nobody. It is not safe for threads: its owner holds a lock.
"""

from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
import itertools
import math

import numpy as np

from nova_reaper.cloud import arrays
from nova_reaper.cloud import model

# Of a resource class that a host does not have, less than nothing is free.
NONE = -(1 << 61)

TOP = 6

_ROWS = 64
_MASKS = 256
_MOST = 1 << 60


@dataclasses.dataclass(slots=True)
class Plan:
    """Room that was given to a server and that Placement does not know of yet.

    :ivar victims: IDs of those that are ended for it
    :ivar written_at: when Placement was told, by the monotonic clock
    """

    server: str
    host: str
    resources: Mapping[str, int]
    victims: Collection[str] = ()
    written_at: float = math.inf


@dataclasses.dataclass(slots=True)
class _Mask:
    fits: arrays.Bools
    seen: int


class Index:
    """Hosts, their room and their preemptible servers.

    A host has what its own provider has. Of what a shape may get elsewhere a
    host that has none is no worse than another: only Placement knows.

    Arrays have one element for each row; a row is a host, or empty.

    :ivar exclusions: where others say that a shape is not to go
    :ivar version: grows with every change
    :ivar changed: the version at which each host changed last
    :ivar known: whether there is a host
    :ivar capacity: by resource class, Placement's; NONE without inventory
    :ivar free: by resource class, capacity without what is used and planned;
        negative on a host that has more than its capacity
    :ivar endable: by resource class, the sum of what those have that could be
        ended, at some time
    :ivar largest: by resource class, what the first, the first two, ... TOP
        of those have together, those that have the most first; a line for each
        number of them
    """

    def __init__(self, options: model.Options) -> None:
        self.classes: dict[str, int] = {}
        self.rows: dict[str, int] = {}
        self.hosts: list[model.Host | None] = [None] * _ROWS
        self.slots = arrays.Slots(self.classes, options)
        self.exclusions = arrays.Exclusions(self.rows, self.hosts)
        self.plans: dict[str, Plan] = {}
        self.version = 0
        self.changed = np.zeros(_ROWS, np.int64)
        self.known = np.zeros(_ROWS, np.bool_)
        self.enabled = np.zeros(_ROWS, np.bool_)
        self.capacity: list[arrays.Ints] = []
        self.free: list[arrays.Ints] = []
        self.endable: list[arrays.Ints] = []
        self.largest: list[arrays.Ints] = []
        # The units of Placement's inventories.
        self._least: list[arrays.Ints] = []
        self._most: list[arrays.Ints] = []
        self._step: list[arrays.Ints] = []
        # The lists with an array for each resource class, and what stands in
        # empty rows of them.
        self._columns = (
            (self.capacity, NONE), (self.free, NONE), (self.endable, 0),
            (self.largest, 0), (self._least, 1), (self._most, model.MAX_INT),
            (self._step, 1))
        self._empty_rows = list(range(_ROWS - 1, -1, -1))
        self._plans_of: dict[str, dict[str, Plan]] = {}
        self._members: dict[tuple[str, str], arrays.Bools] = {}
        self._masks: dict[model.Shape, _Mask] = {}
        self._fit_changes: list[int] = []
        for name in ('MEMORY_MB', 'VCPU', 'DISK_GB'):
            self._add_class(name)

    def put(self, host: model.Host,
            servers: Iterable[model.Server] = ()) -> int:
        """Say anew all that is known of one host.

        :param servers: the servers on it; those that are not preemptible
            count in ``host.used`` alone
        :returns: the row of the host
        """
        for name in (*host.inventory, *host.used):
            if name not in self.classes:
                self._add_class(name)
        row = self.rows.get(host.name)
        if row is None:
            row = self._add_row(host.name)
        before = self.hosts[row]
        self.hosts[row] = host
        self.exclusions.put(row, before, host)
        if (before is None or before.inventory != host.inventory or
                before.traits != host.traits or
                before.aggregates != host.aggregates):
            self._put_fit(row, host)
        self.enabled[row] = not host.disabled
        self._put_room(row, [server for server in servers
                             if server.preemptible])
        return row

    def remove(self, name: str) -> None:
        """Forget a host, if it is known."""
        row = self.rows.get(name)
        if row is None:
            return
        self.put(model.Host(name, {}, disabled=True))
        del self.rows[name]
        self.hosts[row] = None
        self.known[row] = False
        self._fit_changes.append(row)
        self._empty_rows.append(row)

    def plan(self, plan: Plan) -> None:
        """Count room as taken, and its victims as gone, before they are.

        A plan outlives a refresh of its host. It has to be dropped when
        Placement has the allocation, or when nothing comes of it.
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
        """What is planned on a host."""
        return list(self._plans_of.get(host, {}).values())

    def fits(self, shape: model.Shape) -> arrays.Bools:
        """The hosts that could take a shape if they were empty.

        What is asked of capacity, units, traits, aggregates and the host's
        name; neither whether it is enabled nor what Nova's filters say.
        """
        mask = self._masks.pop(shape, None)
        if (mask is None or len(mask.fits) != len(self.hosts) or
                len(self._fit_changes) - mask.seen > len(self.hosts) // 8):
            mask = _Mask(self._fits(shape, slice(None)), 0)
        else:
            for row in set(self._fit_changes[mask.seen:]):
                mask.fits[row] = self._fits(shape, slice(row, row + 1))[0]
        mask.seen = len(self._fit_changes)
        # The masks stand in the order in which they were used last.
        self._masks[shape] = mask
        if len(self._masks) > _MASKS:
            del self._masks[next(iter(self._masks))]
        return mask.fits

    def could_take(self, shape: model.Shape, row: int) -> bool:
        """Whether one host could take a shape if it were empty."""
        host = self.hosts[row]
        if (host is None or not self.enabled[row] or
                host.name in self.exclusions.refusals(shape)):
            return False
        only = slice(row, row + 1)
        fits = self._fits(shape, only)
        not_offered = self.exclusions.not_offered(shape)
        if not_offered is not None and not_offered[row]:
            # Placement has no room where the index sees some; where the index
            # sees none, ends may make some.
            return bool(fits[0] and not self.has_room(shape, fits, only)[0])
        return bool(fits[0])

    def has_room(self, shape: model.Shape, fits: arrays.Bools,
                 rows: slice = slice(None)) -> arrays.Bools:
        """Those of the hosts that a shape fits on that have room for it now.

        :param fits: of the rows, whether they could take the shape if they
            were empty
        """
        room = fits.copy()
        for name, amount in shape.resources:
            column = self.classes.get(name)
            if column is None:
                # The hosts that fit get the class from other providers.
                continue
            free = self.free[column][rows]
            enough = free >= amount
            if name in shape.elsewhere:
                enough |= free == NONE
            room &= enough
        return room

    def changed_since(self, version: int) -> list[int]:
        """The rows of the hosts that have changed after a version."""
        rows: list[int] = np.flatnonzero(self.changed > version).tolist()
        return rows

    def totals(self) -> dict[str, int]:
        """The capacity of all hosts, by resource class."""
        return {name: int(np.maximum(self.capacity[column], 0).sum())
                for name, column in self.classes.items()}

    def _fits(self, shape: model.Shape, rows: slice) -> arrays.Bools:
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
        return fits

    def _having(self, kind: str, name: str) -> arrays.Bools:
        having = self._members.get((kind, name))
        if having is None or len(having) != len(self.hosts):
            having = np.array([host is not None and name in getattr(host, kind)
                               for host in self.hosts], np.bool_)
            self._members[kind, name] = having
        return having

    def _put_fit(self, row: int, host: model.Host) -> None:
        for name, column in self.classes.items():
            inventory = host.inventory.get(name)
            self.capacity[column][row] = (
                NONE if inventory is None
                else min(inventory.capacity, _MOST))
            if inventory is not None:
                self._least[column][row] = inventory.min_unit
                self._most[column][row] = inventory.max_unit
                self._step[column][row] = inventory.step_size
        for (kind, name), having in self._members.items():
            if row < len(having):
                having[row] = name in getattr(host, kind)
        self._fit_changes.append(row)
        if len(self._fit_changes) > 100_000:
            self._fit_changes.clear()
            self._masks.clear()

    def _put_room_again(self, name: str) -> None:
        row = self.rows.get(name)
        if row is not None:
            self._put_room(row, self.slots.of_host(row))

    def _put_room(self, row: int, servers: Collection[model.Server]) -> None:
        host = self.hosts[row]
        assert host is not None
        plans = self._plans_of.get(host.name, {}).values()
        taken = frozenset().union(*(plan.victims for plan in plans))
        self.slots.put(row, servers, taken)
        used = dict(host.used)
        for plan in plans:
            for name, amount in plan.resources.items():
                used[name] = used.get(name, 0) + amount
        for server in servers:
            if server.id in taken:
                for name, amount in server.resources.items():
                    used[name] = used.get(name, 0) - amount
        where = self.slots.segment(row)
        for name, column in self.classes.items():
            capacity = int(self.capacity[column][row])
            self.free[column][row] = (
                NONE if capacity == NONE else capacity - used.get(name, 0))
            amounts = sorted(self.slots.amounts[column][where][
                self.slots.endable[where]].tolist(), reverse=True)
            self.endable[column][row] = sum(amounts)
            amounts.extend([0] * (TOP - len(amounts)))
            self.largest[column][:, row] = list(
                itertools.accumulate(amounts[:TOP]))
        self.version += 1
        self.changed[row] = self.version

    def _add_row(self, name: str) -> int:
        if not self._empty_rows:
            size = len(self.hosts)
            self._empty_rows = list(range(2 * size - 1, size - 1, -1))
            self.hosts.extend([None] * size)
            self.changed = arrays.wider(self.changed, 2 * size)
            self.known = arrays.wider(self.known, 2 * size)
            self.enabled = arrays.wider(self.enabled, 2 * size)
            for columns, fill in self._columns:
                columns[:] = [arrays.wider(array, 2 * size, fill)
                              for array in columns]
        row = self._empty_rows.pop()
        self.rows[name] = row
        self.known[row] = True
        self.exclusions.add_row()
        return row

    def _add_class(self, name: str) -> None:
        self.classes[name] = len(self.classes)
        for columns, fill in self._columns:
            lines = (TOP,) if columns is self.largest else ()
            columns.append(np.full((*lines, len(self.hosts)), fill, np.int64))
        self.slots.add_class()
