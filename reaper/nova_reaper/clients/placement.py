# SPDX-License-Identifier: Apache-2.0

"""What the reaper asks of Placement.

https://docs.openstack.org/api-ref/placement/
"""

import collections
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Mapping
import dataclasses
from typing import Any
from urllib import parse

from nova_reaper.clients import rest
from nova_reaper.cloud import model

HOLD = 'NOVA_PENDING'
INSTANCE = 'INSTANCE'
SHARES = 'MISC_SHARES_VIA_AGGREGATE'
# The suffix of a group in a request; no group of Nova's has it.
ANCHOR = '_NOVA_REAPER_HOST'
# As many candidates as the scheduler asks for, by default.
MOST = 1000

# Resource class and amount by the provider's UUID, or the consumer's ID.
Amounts = Mapping[str, Mapping[str, int]]


@dataclasses.dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer and all that it has allocated.

    :ivar generation: None if the consumer has nothing. Placement refuses a
        write with None if the consumer has something meanwhile
    """

    id: str
    amounts: Amounts
    project: str = ''
    user: str = ''
    type: str = INSTANCE
    generation: int | None = None

    @property
    def is_hold(self) -> bool:
        """Say whether the consumer holds room for a server that waits."""
        return bool(self.amounts) and self.type == HOLD

    def covers(self, request: Iterable[tuple[str, int]]) -> bool:
        """Say whether the sums over all providers reach these amounts."""
        sums = collections.Counter[str]()
        for resources in self.amounts.values():
            sums.update(resources)
        return all(sums[name] >= amount for name, amount in request)

    def with_amounts(self, amounts: Amounts) -> 'Consumer':
        """Return a copy of the consumer with other amounts."""
        return dataclasses.replace(self, amounts=amounts)


@dataclasses.dataclass(frozen=True, slots=True)
class Provider:
    """A provider: what it has, and who has what of it.

    :ivar consumers: what each has, by its ID; of a provider that shares some,
        and as '' all others together
    :ivar shared: whether the provider shares with hosts
    :ivar aggregates: the aggregates of a provider that shares
    """

    uuid: str
    generation: int
    inventory: Mapping[str, model.Inventory]
    consumers: Amounts
    traits: frozenset[str] = frozenset()
    shared: bool = False
    aggregates: frozenset[str] = frozenset()

    def summed(self, gone: Collection[str] = (),
               freed: Mapping[str, int] | None = None) -> model.Provider:
        """Return the provider with what is used together.

        :param gone: IDs of the consumers that count as gone
        :param freed: other amounts that do not count as used
        """
        used = collections.Counter[str]()
        for consumer, share in self.consumers.items():
            if consumer not in gone:
                used.update(share)
        used.subtract(freed or {})
        return model.Provider(self.uuid, self.inventory, dict(used),
                              self.traits, self.shared, self.aggregates)


class Client(rest.Client):
    """Requests to Placement, which has consumer types since 1.38."""

    microversion = '1.39'


class Placement:
    """What the reaper needs of Placement.

    :ivar sharing: UUIDs of the sharing providers, as the last reading of all
        of them has found them
    :ivar beside: the resource classes of the sharing providers
    """

    def __init__(self, client: Client) -> None:
        self.client = client
        self.sharing: frozenset[str] = frozenset()
        self.beside: frozenset[str] = frozenset()

    def _list(self, **query: str) -> Any:
        return self.client.request('GET', rest.with_query(
            '/resource_providers', **query))['resource_providers']

    def _part(self, uuid: str, name: str) -> Any:
        """Read a part of a provider, such as its inventories."""
        return self.client.request(
            'GET', f'/resource_providers/{uuid}/{name}')

    def _inventory(self, uuid: str) -> dict[str, model.Inventory]:
        fields = [field.name for field in dataclasses.fields(model.Inventory)]
        return {name: model.Inventory(**{field: item[field]
                                         for field in fields})
                for name, item in self._part(
                    uuid, 'inventories')['inventories'].items()}

    def provider(self, uuid: str, inventory: Mapping[str, model.Inventory] |
                 None = None) -> Provider:
        """Read a provider: its inventory and its consumers.

        :param inventory: the inventory if it is known, which saves a request
        :raises: rest.NotFound if it is gone
        """
        if uuid in self.sharing:
            return self._shared(uuid)
        if inventory is None:
            inventory = self._inventory(uuid)
        allocations = self._part(uuid, 'allocations')
        return Provider(
            uuid, allocations['resource_provider_generation'], inventory,
            {consumer: item['resources'] for consumer, item
             in allocations['allocations'].items()})

    def used(self, uuid: str) -> dict[str, int]:
        """Ask what all consumers of a provider have together.

        :raises: rest.NotFound if it is gone
        """
        return dict(self._part(uuid, 'usages')['usages'])

    def _aggregates(self, uuid: str) -> frozenset[str]:
        return frozenset(self._part(uuid, 'aggregates')['aggregates'])

    def _shared(self, uuid: str, consumers: Iterable[str] = ()) -> Provider:
        """Read a provider that shares, with the shares of some consumers."""
        usages = self._part(uuid, 'usages')
        shares = {consumer: share for consumer in consumers
                  if (share := self.consumer(consumer).amounts.get(uuid))}
        rest = collections.Counter[str](usages['usages'])
        for share in shares.values():
            rest.subtract(share)
        return Provider(
            uuid, usages['resource_provider_generation'],
            self._inventory(uuid), {**shares, '': dict(rest)},
            self.traits(uuid), True, self._aggregates(uuid))

    def tree(self, uuid: str, consumers: Collection[str] = ()
             ) -> list[Provider]:
        """Read a host's own provider, and the providers below or sharing.

        :param consumers: IDs of the consumers whose share of sharing providers
            is to be known
        :returns: the host's own provider first, and each with its traits
        :raises: rest.NotFound if a provider is gone
        """
        below = self.providers(in_tree=uuid)
        tree = [dataclasses.replace(self.provider(one),
                                    traits=self.traits(one))
                for one in (uuid, *sorted(below - {uuid}))]
        # Nova takes a hold only if the host's own provider is in an aggregate
        # of the provider that shares.
        aggregates = self._aggregates(uuid) if self.sharing else ()
        shares = self.providers(
            required=SHARES, member_of='in:' + ','.join(sorted(aggregates))
            ) if aggregates else set()
        return tree + [self._shared(one, consumers)
                       for one in sorted(self.sharing & shares - below)]

    def traits(self, uuid: str) -> frozenset[str]:
        """Ask Placement for the traits of a provider."""
        return frozenset(self._part(uuid, 'traits')['traits'])

    def below(self) -> dict[str, list[str]]:
        """List the UUIDs of providers below others, by UUID of the root."""
        found: dict[str, list[str]] = {}
        for item in self._list():
            if item['parent_provider_uuid']:
                found.setdefault(item['root_provider_uuid'], []).append(
                    item['uuid'])
        return found

    def providers(self, **query: str) -> set[str]:
        """Find the UUIDs of providers, as by ``required``, ``member_of``."""
        return {item['uuid'] for item in self._list(**query)}

    def consumer(self, uuid: str) -> Consumer:
        """Read what a consumer has; a consumer may have nothing."""
        answer = self.client.request('GET', f'/allocations/{uuid}')
        amounts = {provider: item['resources']
                   for provider, item in answer['allocations'].items()}
        if not amounts:
            return Consumer(uuid, {})
        kind = answer['consumer_type']
        # Nova writes no type: Placement shows that as "unknown", which it does
        # not take back.
        return Consumer(uuid, amounts, answer['project_id'],
                        answer['user_id'],
                        INSTANCE if kind == 'unknown' else kind,
                        answer['consumer_generation'])

    def read_sharing(self, hosts: Collection[str]
                     ) -> list[tuple[Provider, set[str]]]:
        """Read the providers that share what they have.

        :param hosts: UUIDs of the providers of hosts, which are left out
        :returns: each with the UUIDs of the hosts that it shares with
        """
        found = []
        for item in self._list(required=SHARES):
            if item['uuid'] in hosts:
                continue
            try:
                one = self._shared(item['uuid'])
            except rest.NotFound:
                continue
            # A host that has the provider in its own tree does not know what
            # other hosts use of the provider.
            with_whom = self._list(member_of='in:' + ','.join(sorted(
                one.aggregates))) if one.aggregates and (
                    item['root_provider_uuid'] not in hosts) else []
            found.append((one, {other['root_provider_uuid']
                                for other in with_whom}.intersection(hosts)))
        self.sharing = frozenset(one.uuid for one, some in found if some)
        self.beside = frozenset().union(*(
            one.inventory for one, some in found if some))
        return found

    def candidate(self, query: str, provider: str,
                  elsewhere: Collection[str] = ()) -> Amounts | None:
        """Ask what to allocate for a request on one host.

        The tree of the host's provider gives each class that it has.

        :param query: as Nova gives it in ``requests``
        :param provider: the host's own provider, the root of its tree
        :param elsewhere: resource classes that sharing providers may have
        :returns: None if there is no room
        """
        pairs = parse.parse_qsl(query)
        queries = [[(key, value) for key, value in pairs if key != 'in_tree'] +
                   [('in_tree', provider)]]
        if elsewhere:
            queries.append(_with_anchor(pairs, provider, elsewhere))
        for asked in queries:
            requests = self._candidates(asked, 1)['allocation_requests']
            if requests:
                return {uuid: item['resources'] for uuid, item
                        in requests[0]['allocations'].items()}
        return None

    def offered(self, query: str, most: int = MOST) -> set[str] | None:
        """Find the roots of all trees that have room for a request.

        The roots of sharing providers are among them.

        :param query: as Nova gives it in ``requests``
        :param most: how many candidates are looked at; by default as many as
            the scheduler looks at
        :returns: None if there may be more than are looked at
        """
        answer = self._candidates(parse.parse_qsl(query), most)
        if len(answer['allocation_requests']) >= most:
            return None
        return set(_roots(answer))

    def first_offered(self, query: str, most: int) -> list[str]:
        """Return the roots among so many candidates, as offered() does."""
        return _roots(self._candidates(parse.parse_qsl(query), most))

    def having_left(self, name: str) -> dict[str, model.Provider]:
        """Read by one request all providers of hosts with something left.

        The inventories have what Placement says of the capacity: units, steps
        and ratios are not known.

        :param name: the resource class of which at least 1 is left
        :returns: by UUID, all providers of the hosts' trees, and those that
            share with the hosts
        """
        found = self.client.request('GET', rest.with_query(
            '/allocation_candidates', resources=f'{name}:1'))
        return {uuid: model.Provider(
            uuid, {key: model.Inventory(item['capacity'])
                   for key, item in summary['resources'].items()},
            {key: item['used'] for key, item in summary['resources'].items()})
            for uuid, summary in found['provider_summaries'].items()}

    def _candidates(self, pairs: list[tuple[str, str]], limit: int
                    ) -> dict[str, Any]:
        query = [(key, value) for key, value in pairs if key != 'limit']
        return self.client.request(
            'GET', '/allocation_candidates?' + parse.urlencode(
                query + [('limit', str(limit))]))

    def write(self, consumers: Iterable[Consumer]) -> None:
        """Write what the consumers have from now on, all or nothing.

        A consumer without amounts loses what it had.

        :raises: rest.Conflict if a consumer has changed since it was
            read, or there is no room; nothing has changed then
        """
        body: dict[str, Any] = {}
        for consumer in consumers:
            body[consumer.id] = {
                'allocations': {
                    uuid: {'resources': dict(resources)}
                    for uuid, resources in consumer.amounts.items()},
                'project_id': consumer.project, 'user_id': consumer.user,
                'consumer_generation': consumer.generation,
                'consumer_type': consumer.type}
        self.client.request('POST', '/allocations', json=body)

    def count_holds(self, project: str) -> int:
        """Count the consumers of the project that are holds."""
        usages = self.client.request('GET', rest.with_query(
            '/usages', project_id=project, consumer_type=HOLD))['usages']
        return int(usages.get(HOLD, {}).get('consumer_count', 0))


def _roots(answer: Mapping[str, Any]) -> list[str]:
    """List the roots of all candidates' trees, in Placement's order."""
    summaries = answer['provider_summaries']
    return list(dict.fromkeys(
        summaries[uuid]['root_provider_uuid']
        for request in answer['allocation_requests']
        for uuid in request['allocations']))


def _with_anchor(pairs: list[tuple[str, str]], provider: str,
                 elsewhere: Collection[str]) -> list[tuple[str, str]]:
    """Limit a query to one tree and the providers that share with the tree.

    With ``in_tree`` a group takes nothing from sharing providers. So a class
    that the host's own provider has gets a group to itself, in the tree. The
    other classes then come from the same tree or are shared with it.
    """
    result = []
    for key, value in pairs:
        if key == 'resources':
            items = value.split(',')
            own = [item for item in items
                   if item.partition(':')[0] not in elsewhere]
            if own and len(items) > 1:
                # The classes that are left keep the traits of the query.
                value = ','.join(item for item in items if item != own[0])
                result += [(f'resources{ANCHOR}', own[0]),
                           (f'in_tree{ANCHOR}', provider)]
        result.append((key, value))
    if 'group_policy' not in dict(pairs):
        result.append(('group_policy', 'none'))
    return result
