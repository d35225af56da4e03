# SPDX-License-Identifier: Apache-2.0

"""Holds room for a server by an allocation before the server has a host.

Placement writes several consumers in one transaction, and refuses the whole
transaction if one consumer has changed. So one write proves that there is
room, holds the room, and is the lock between two reapers.
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence

from oslo_log import log

from nova_reaper.clients import nova
from nova_reaper.clients import placement
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model

LOG = log.getLogger(__name__)
TRIES = 4


def allocation(server: nova.NovaServer, provider: str,
               taken: Mapping[str, dict[str, int]]) -> placement.Consumer:
    """Return the allocation that a server had on a host, by its flavor alone.

    :param provider: UUID of the host's own provider
    :param taken: what has been allocated of the room of several servers; the
        function takes out what this server had
    """
    amounts = {provider: shapes.resources(server)}
    own = taken.get(provider, {})
    others = {name: amount for name, amount in amounts[provider].items()
              if name not in own}
    for name, amount in (others | shapes.scarce(server.flavor)).items():
        for uuid, left in taken.items():
            part = min(amount, left.get(name, 0))
            if uuid != provider and part:
                amounts.setdefault(uuid, {})[name] = part
                amounts[provider].pop(name, None)
                left[name] -= part
                amount -= part
    return placement.Consumer(server.id, amounts, server.project, server.user)


def room(provider: placement.Provider, held: Mapping[str, int]
         ) -> dict[str, int]:
    """Return how much of a provider a hold or its victims may get.

    Placement accepts a write on an overcommitted host if the write does not
    raise what is used.

    :param held: the amounts that the hold has of the provider already
    """
    return {name: max(free, 0) + held.get(name, 0)
            for name, free in provider.summed().left.items()}


def part(request: Iterable[tuple[str, int]],
         inventory: Mapping[str, model.Inventory], left: Mapping[str, int]
         ) -> dict[str, int]:
    """Return the part of a request that a host with so much left gives."""
    amounts = {}
    for name, amount in request:
        item = inventory.get(name)
        if item is None:
            continue
        amount = min(amount, left.get(name, 0), item.max_unit)
        amount -= amount % item.step_size
        if amount >= item.min_unit:
            amounts[name] = amount
    return amounts


def place(request: model.Shape, tree: Sequence[placement.Provider],
          victims: Iterable[str], held: placement.Amounts
          ) -> placement.Amounts | None:
    """Return what each provider of a host gives for a request.

    :param tree: the host's own provider, the providers below, and sharing
        providers
    :param victims: IDs of the servers that count as gone
    :param held: the amounts that are held for the request already
    :returns: None if there is not room enough
    """
    gone = set(victims)
    return next(model.ways(request, [
        one.summed(gone, held.get(one.uuid)) for one in tree]), None)


class Holds:
    """Takes, swaps and releases holds.

    :param project: ID of the reaper's own project, so that the quota of the
        server's owner does not count the room twice
    """

    def __init__(self, service: placement.Placement, project: str,
                 user: str) -> None:
        self._placement = service
        self.project = project
        self._user = user

    def find(self, server: str, provider: str | None = None
             ) -> placement.Consumer | None:
        """Return the hold of a server, None if it has none.

        :param provider: the provider that has to have the hold: a hold on
            another provider belongs to another reaper. None for any provider
        """
        consumer = self._placement.consumer(server)
        return consumer if self.is_one(consumer) and (
            provider is None or provider in consumer.amounts) else None

    def is_one(self, consumer: placement.Consumer) -> bool:
        """Return whether the allocation of a consumer is a hold of the reaper.

        A build takes a hold over by writing the owner's project, and may leave
        the type of the consumer.
        """
        return consumer.is_hold and consumer.project == self.project

    def take(self, server: str, amounts: placement.Amounts,
             held: placement.Consumer | None = None) -> placement.Consumer:
        """Hold room for a server, or change what is held.

        :param amounts: all that is to be held from now on
        :param held: what the caller holds already
        :returns: the hold as written
        :raises: rest.Conflict if there is no room, or the server has an
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

        :param victims: the allocations that the caller has read
        :raises: rest.Conflict if anything has changed since, or the room
            is too small even so; the swap changes nothing then
        :returns: what the server has: a build or a delete may have been as
            fast, and the room of the victims is gone all the same
        """
        self._placement.write(
            [victim.with_amounts({}) for victim in victims] +
            [self._hold(server, amounts, held)])
        return self._written(server, held)

    def give_back(self, server: str | None,
                  victims: Sequence[placement.Consumer],
                  has_left: Callable[[str], bool],
                  provider: str | None = None) -> frozenset[str]:
        """Give victims that did not end their room again: the reverse swap.

        What the hold has beyond the victims' room becomes free. If another
        server has taken a part of that room, the first victims get all that
        they had, and the next victim gets what is left.

        :param server: the server that has the hold, None if no hold has the
            room of the victims
        :param victims: the allocations that the victims had
        :param has_left: tells whether the victim of an ID is off its host by
            now: such a victim gets nothing
        :param provider: as for find()
        :returns: IDs of the victims that live on with less than they had
        """
        left = list(victims)
        for _ in range(TRIES):
            left = [victim for victim in victims
                    if not self._placement.consumer(victim.id).amounts and
                    not has_left(victim.id)]
            held = self.find(server, provider) if server else None
            shares = self._shares(left, held)
            writes = [share for share in shares if share.amounts]
            if held:
                writes.append(held.with_amounts({}))
            if writes:
                try:
                    self._placement.write(writes)
                except rest.Conflict as error:
                    LOG.info('Room is not given back yet: %s', error)
                    continue
            for share in shares:
                self._empty(share.id, has_left)
            return frozenset(
                share.id for share, victim in zip(shares, left)
                if share.amounts != victim.amounts)
        return frozenset(victim.id for victim in left)

    def _shares(self, victims: Sequence[placement.Consumer],
                held: placement.Consumer | None) -> list[placement.Consumer]:
        """Return what each victim can get of the hold and of what is free."""
        hosts = [self._placement.provider(uuid) for uuid in sorted(
            {uuid for victim in victims for uuid in victim.amounts})]
        left = {host.uuid: room(
            host, held.amounts.get(host.uuid, {}) if held else {})
            for host in hosts}
        shares = []
        for victim in victims:
            amounts = {}
            for host in hosts:
                share = part(victim.amounts.get(host.uuid, {}).items(),
                             host.inventory, left[host.uuid])
                for name, amount in share.items():
                    left[host.uuid][name] -= amount
                if share:
                    amounts[host.uuid] = share
            shares.append(placement.Consumer(
                victim.id, amounts, victim.project, victim.user, victim.type))
        return shares

    def _empty(self, server: str, has_left: Callable[[str], bool]) -> None:
        """Empty the allocation of a victim that left during give_back()."""
        given = self._placement.consumer(server)
        if not given.amounts or not has_left(server):
            return
        try:
            self._placement.write([given.with_amounts({})])
        except rest.Conflict:
            LOG.info('Server %s has got another allocation.', server)

    def release(self, server: str, provider: str | None = None) -> bool:
        """Free the hold that find() finds; return whether one is free now."""
        for _ in range(TRIES):
            held = self.find(server, provider)
            if not held:
                return False
            try:
                # A build that claims the hold meanwhile changes the
                # generation: the write fails, and the allocation stays.
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
            # A change and a delete at the same time can leave allocations
            # without a consumer in Placement 16, which counts them and does
            # not show them. A write for a new consumer replaces them.
            try:
                self._placement.write([self._hold(server, {}, None)])
            except rest.Conflict:
                LOG.info('Somebody holds room for server %s again.', server)
        return consumer
