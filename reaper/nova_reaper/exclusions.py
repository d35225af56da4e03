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

"""Where a shape is not to go, by the word of others.

Nova's filters refuse hosts, and Placement offers no room where the index sees
some. Both are told to the index; it asks nobody.
"""

from collections.abc import Collection, Mapping, Sized

import numpy as np

from nova_reaper import model
from nova_reaper import slots


class Exclusions:
    """The hosts of an index that are refused or not offered, by the shape.

    :param rows: of the index, which changes it: rows by the host's name
    :param hosts: of the index, which changes it: one for each row
    """

    def __init__(self, rows: Mapping[str, int], hosts: Sized) -> None:
        self._rows = rows
        self._hosts = hosts
        self._refusals: dict[model.Shape, Mapping[str, str]] = {}
        self._refused: dict[model.Shape, slots.Bools] = {}
        self._not_offered: dict[model.Shape, slots.Bools] = {}

    def put(self, row: int, before: model.Host | None,
            host: model.Host) -> None:
        """Let what Placement said of a host hold no more if it has changed."""
        if self._not_offered and before != host:
            for mask in self._not_offered.values():
                mask[row:row + 1] = False

    def add_row(self) -> None:
        """There is a new host: what was said by name is looked up again."""
        self._refused.clear()

    def refuse(self, shape: model.Shape, by_host: Mapping[str, str]) -> None:
        """Say which filter of Nova's refuses a shape, by the host's name.

        It replaces what was said of the shape before; {} forgets it.
        """
        self._refused.pop(shape, None)
        if by_host:
            self._refusals[shape] = by_host
        else:
            self._refusals.pop(shape, None)

    def refusals(self, shape: model.Shape) -> Mapping[str, str]:
        """The filters that refuse a shape, by the host's name."""
        return self._refusals.get(shape, {})

    def refused(self, shape: model.Shape) -> slots.Bools | None:
        """The hosts on which Nova's filters refuse a shape, None for none."""
        by_host = self._refusals.get(shape)
        if by_host is None:
            return None
        mask = self._refused.get(shape)
        if mask is None or len(mask) != len(self._hosts):
            mask = np.zeros(len(self._hosts), np.bool_)
            mask[[self._rows[name] for name in by_host
                  if name in self._rows]] = True
            self._refused[shape] = mask
        return mask

    def offer(self, shape: model.Shape, hosts: Collection[str]) -> None:
        """Say that Placement has room for a shape on no other hosts.

        It holds of each host until that changes, or everything is asked
        again. What was said before is not taken back, so that who asks again
        and again comes to an end.
        """
        mask = np.ones(len(self._hosts), np.bool_)
        mask[[self._rows[name] for name in hosts
              if name in self._rows]] = False
        before = self.not_offered(shape)
        self._not_offered[shape] = mask if before is None else before | mask

    def not_offered(self, shape: model.Shape) -> slots.Bools | None:
        """The hosts without room by Placement's word, None for none."""
        mask = self._not_offered.get(shape)
        if mask is not None and len(mask) != len(self._hosts):
            mask = slots.wider(mask, len(self._hosts), False)
            self._not_offered[shape] = mask
        return mask

    def forget_offers(self) -> bool:
        """Ask Placement anew; returns whether it had said anything."""
        said = bool(self._not_offered)
        self._not_offered.clear()
        return said

    def keep_only(self, shapes: Collection[model.Shape]) -> None:
        """Forget what was said of other shapes."""
        for said in (self._refusals, self._refused, self._not_offered):
            for shape in said.keys() - shapes:
                del said[shape]
