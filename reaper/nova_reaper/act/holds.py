# SPDX-License-Identifier: Apache-2.0

"""Room that is held for a server: its own allocation, before it has a host.

Placement writes several consumers in one transaction, and refuses all of it if
one of them has changed: that is the proof that there is room, the hold, and
the lock between two reapers.
"""

from collections.abc import Callable
from collections.abc import Mapping
from collections.abc import Sequence
import time

from oslo_log import log

from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud import shapes

LOG = log.getLogger(__name__)
TRIES = 4
# After IN_VAIN holds in a row that led to nothing no hold is written for AGAIN
# seconds.
IN_VAIN = 3
AGAIN = 3600.0


def allocation(server: nova.NovaServer, provider: str) -> placement.Consumer:
    """What a server has of its host, where Placement does not say it."""
    return placement.Consumer(server.id, {provider: shapes.resources(server)},
                              server.project, server.user)


def fits(request: Sequence[tuple[str, int]], free: Mapping[str, int],
         inventory: Mapping[str, model.Inventory]) -> bool:
    """Whether an amount of each class may be allocated where free is left."""
    for name, amount in request:
        item = inventory.get(name)
        if (item is None or amount > free.get(name, 0) or
                not item.min_unit <= amount <= item.max_unit or
                amount % item.step_size):
            return False
    return True


def part(request: Sequence[tuple[str, int]], provider: placement.Provider,
         held: Mapping[str, int]) -> dict[str, int]:
    """As much of a request as may be allocated on a host now.

    :param held: what is held for the request already
    """
    amounts = {}
    for name, amount in request:
        item = provider.inventory.get(name)
        if item is None:
            return {}
        amount = min(amount, provider.free.get(name, 0) + held.get(name, 0))
        amount -= amount % item.step_size
        if amount >= item.min_unit:
            amounts[name] = amount
    return amounts


def least(request: Sequence[tuple[str, int]], provider: placement.Provider,
          victims: Sequence[str], held: Mapping[str, int]
          ) -> tuple[str, ...] | None:
    """Those of the victims that are still needed as the host is now.

    :param victims: IDs of the servers under notice that are still there
    :param held: what is held for the request already
    :returns: None if even all of them do not make room enough
    """
    shares = {uuid: provider.consumers[uuid].resources
              for uuid in victims if uuid in provider.consumers}

    def enough(uuids: Sequence[str]) -> bool:
        free = dict(provider.free)
        for source in [held, *(shares[uuid] for uuid in uuids)]:
            for name, amount in source.items():
                free[name] = free.get(name, 0) + amount
        return fits(request, free, provider.inventory)

    needed = list(shares)
    if not enough(needed):
        return None
    # The largest is left out first: what is kept is what one of them gives.
    for uuid in sorted(shares, key=lambda one: sorted(
            shares[one].items()), reverse=True):
        rest = [other for other in needed if other != uuid]
        if enough(rest):
            needed = rest
    return tuple(needed)


class Holds:
    """Takes, swaps and releases holds.

    :param project: the reaper's own, so that the quota of the server's owner
        does not count it twice
    """

    def __init__(self, service: placement.Placement, project: str,
                 user: str) -> None:
        self._placement = service
        self.project = project
        self._user = user
        self._in_vain = 0
        self._since = 0.0

    @property
    def kept(self) -> bool:
        """Whether Nova builds servers in the room that is held for them."""
        return (self._in_vain < IN_VAIN or
                time.monotonic() - self._since > AGAIN)

    def judge(self, landed: bool) -> None:
        """A server for which room was held runs, or finds no room again.

        A scheduler that does not know holds looks for room beside them.
        """
        if landed:
            self._in_vain = 0
            return
        self._in_vain += 1
        self._since = time.monotonic()
        if self._in_vain == IN_VAIN:
            LOG.error('%d servers in a row found no room although it was held '
                      'for them: is nova-pending installed where '
                      'nova-scheduler and nova-conductor run? Room is not '
                      'held any more, and nobody is ended, for %d seconds.',
                      IN_VAIN, AGAIN)

    def find(self, server: str) -> placement.Consumer | None:
        """The hold of a server, None if it has none."""
        consumer = self._placement.consumer(server)
        return consumer if self.is_one(consumer) else None

    def is_one(self, consumer: placement.Consumer) -> bool:
        """Whether what a consumer has is held by a reaper.

        A build takes it over in its owner's name before it changes the type,
        if it does that at all.
        """
        return consumer.is_hold and consumer.project == self.project

    def take(self, server: str, amounts: placement.Amounts,
             held: placement.Consumer | None = None) -> placement.Consumer:
        """Hold room, or more of it.

        :param held: what the caller holds already
        :raises: clients.Conflict if there is no room, or the server has an
            allocation that the caller does not know of
        """
        self._placement.write([self._hold(server, amounts, held)])
        consumer = self._written(server, held)
        if not consumer.is_hold:
            raise rest.Conflict(
                'placement', 'hold', f'the hold of {server} was taken away '
                f'as soon as it was written', 409)
        return consumer

    def swap(self, server: str, amounts: placement.Amounts,
             held: placement.Consumer | None,
             victims: Sequence[placement.Consumer]) -> placement.Consumer:
        """Take the room of the victims and hold it for a server.

        :param victims: as they were read when the decision was checked
        :raises: clients.Conflict if anything has changed since, or the room
            is too small even so; nothing has changed then
        :returns: what the server has: a build or a delete may have been as
            fast, and the room of the victims is gone all the same
        """
        self._placement.write(
            [victim.with_amounts({}) for victim in victims] +
            [self._hold(server, amounts, held)])
        return self._written(server, held)

    def give_back(self, server: str | None,
                  victims: Sequence[placement.Consumer],
                  has_left: Callable[[str], bool]) -> bool:
        """The reverse swap: victims that did not end get their room again.

        What the hold has beyond that becomes free.

        :param server: whose hold it is, None if it has their room no more
        :param victims: with the amounts that they had
        :param has_left: whether the victim of an ID is off its host by now:
            nobody would take its room from it again
        :returns: whether it has been done
        """
        for _ in range(TRIES):
            writes: list[placement.Consumer] = []
            for victim in victims:
                now = self._placement.consumer(victim.id)
                if not now.amounts and not has_left(victim.id):
                    writes.append(placement.Consumer(
                        victim.id, victim.amounts, victim.project,
                        victim.user, victim.type))
            given = [write.id for write in writes]
            held = self.find(server) if server else None
            if held:
                writes.append(held.with_amounts({}))
            if not writes:
                return True
            try:
                self._placement.write(writes)
            except rest.Conflict as error:
                LOG.info('Room is not given back yet: %s', error)
                continue
            for victim_id in given:
                self._empty(victim_id, has_left)
            return True
        return False

    def _empty(self, server: str, has_left: Callable[[str], bool]) -> None:
        """Empty what was given back to one that left in that moment."""
        given = self._placement.consumer(server)
        if not given.amounts or not has_left(server):
            return
        try:
            self._placement.write([given.with_amounts({})])
        except rest.Conflict:
            LOG.info('Server %s has got another allocation.', server)

    def release(self, server: str) -> bool:
        """Give the hold of a server free.

        :returns: whether there was one
        """
        for _ in range(TRIES):
            held = self.find(server)
            if not held:
                return False
            try:
                # An allocation that a build has claimed meanwhile has
                # another generation, and stays.
                self._placement.write([held.with_amounts({})])
                return True
            except rest.Conflict:
                continue
        LOG.warning('The hold of server %s changes all the time; a sweep '
                    'looks at it again.', server)
        return False

    def _hold(self, server: str, amounts: placement.Amounts,
              held: placement.Consumer | None) -> placement.Consumer:
        return placement.Consumer(
            server, amounts, self.project, self._user, placement.HOLD,
            held.generation if held else None)

    def _written(self, server: str, held: placement.Consumer | None
                 ) -> placement.Consumer:
        consumer = self._placement.consumer(server)
        if held and not consumer.amounts:
            # A change and a delete at once can leave allocations without a
            # consumer in Placement 16: it counts them, and shows them to
            # nobody. Whoever writes for a new consumer replaces them.
            try:
                self._placement.write([self._hold(server, {}, None)])
            except rest.Conflict:
                LOG.info('Somebody holds room for server %s again.', server)
        return consumer
