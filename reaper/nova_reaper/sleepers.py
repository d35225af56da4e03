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

"""Demands that sleep, laid out so that a changed host finds whom it wakes."""

from collections.abc import Iterator
import dataclasses
import datetime

import numpy as np

from nova_reaper import index as index_module
from nova_reaper import model
from nova_reaper import slots

# Nobody asks for so much, and every host has more than this.
_NEVER = 1 << 62
_NOT_ASKED = -_NEVER


@dataclasses.dataclass(slots=True)
class Sleep:
    """With what a demand sleeps: there is nothing for it.

    :ivar until: when it is to be looked at again in any case
    :ivar seen: the version of the index of which that was found
    :ivar complete: whether the hosts of that version have nothing for it, by
        whatever means
    """

    decision: model.Decision
    until: datetime.datetime | None
    seen: int
    complete: bool


class Sleepers:
    """The demands that sleep, each with its Sleep.

    What they ask for stands in arrays, one for each resource class, with an
    element for each demand.
    """

    def __init__(self, options: model.Options) -> None:
        self._options = options
        self._sleeps: dict[model.Demand, Sleep] = {}
        self._columns: dict[model.Demand, int] = {}
        self._demands: list[model.Demand | None] = []
        self._empty: list[int] = []
        self._asked: dict[str, slots.Ints] = {}

    def __contains__(self, demand: model.Demand) -> bool:
        return demand in self._sleeps

    def __iter__(self) -> Iterator[model.Demand]:
        return iter(self._sleeps)

    def get(self, demand: model.Demand) -> Sleep | None:
        """With what a demand sleeps, None if it does not."""
        return self._sleeps.get(demand)

    def add(self, demand: model.Demand, sleep: Sleep) -> None:
        """A demand that did not sleep does so from now on."""
        self._sleeps[demand] = sleep
        self._columns[demand] = self._ask(demand)

    def pop(self, demand: model.Demand) -> Sleep | None:
        """Wake a demand; returns with what it slept, None if it did not."""
        sleep = self._sleeps.pop(demand, None)
        if sleep is not None:
            column = self._columns.pop(demand)
            self._demands[column] = None
            self._empty.append(column)
            for asked in self._asked.values():
                asked[column] = _NEVER
        return sleep

    def helped_by(self, index: index_module.Index, row: int
                  ) -> list[model.Demand]:
        """The demands that a host could help."""
        if not self._sleeps:
            return []
        could = np.ones(len(self._demands), np.bool_)
        for name, asked in self._asked.items():
            could &= asked[:len(could)] <= self._most(index, row, name)
        demands = [self._demands[column] for column in np.flatnonzero(could)]
        return [demand for demand in demands
                if demand and index.could_take(demand.shape, row)]

    def would_help(self, index: index_module.Index, row: int,
                   demand: model.Demand) -> bool:
        """Whether a host could help a demand, asleep or not."""
        return (all(self._most(index, row, name) >= amount
                    for name, amount in demand.shape.by_host) and
                index.could_take(demand.shape, row))

    def _ask(self, demand: model.Demand) -> int:
        """Note what a demand asks for; returns where."""
        if not self._empty:
            size = max(64, 2 * len(self._demands))
            self._empty = list(range(size - 1, len(self._demands) - 1, -1))
            self._demands.extend([None] * (size - len(self._demands)))
            self._asked = {name: slots.wider(asked, size, _NEVER)
                           for name, asked in self._asked.items()}
        column = self._empty.pop()
        self._demands[column] = demand
        for asked in self._asked.values():
            asked[column] = _NOT_ASKED
        for name, amount in demand.shape.by_host:
            if name not in self._asked:
                self._asked[name] = np.full(len(self._demands), _NOT_ASKED)
            self._asked[name][column] = amount
        return column

    def _most(self, index: index_module.Index, row: int, name: str) -> int:
        """What of a resource class a host could be made to have free."""
        column = index.classes.get(name)
        if column is None:
            return index_module.NONE
        most = int(index.free[column][row])
        if self._options.mode is not model.Mode.FILL:
            most += int(index.endable[column][row])
        return most
