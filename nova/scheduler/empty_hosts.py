# SPDX-License-Identifier: Apache-2.0

"""Whether a host could take a request if nothing ran on it.

Placement answers what fits now, and no query of Placement ignores usage. So
the inventories and traits of the provider tree of a host tell what a full host
could hold, for one host at a time.
"""

import os_traits

from nova import context as nova_context
from nova import exception
from nova.scheduler.client import report
from nova.scheduler import utils

_VERSION = '1.18'

# How many trees are read. A tree that was not read counts as large enough.
_TREES = 50

# Each compute node has this trait, so there is no need to ask for it.
_OF_ALL = frozenset((os_traits.OWNER_NOVA,))


class PlacementUnavailable(exception.NovaException):
    msg_fmt = "Placement could not be asked: %(reason)s"


class EmptyHosts:
    """The provider trees of a cloud, as if nothing ran on them.

    A doubtful host counts as a host that could take the request: if a sharing
    provider may have a resource class, or one provider would have to serve
    groups together.
    """

    def __init__(self, context: nova_context.RequestContext,
                 client: report.SchedulerReportClient,
                 requests: list[utils.ResourceRequest]) -> None:
        """:param requests: the requests, of which a host is to hold one"""
        self.context = context
        self.client = client
        self.requests = requests
        self._read = 0
        #: The roots of the trees that have a trait, by its name.
        self._roots: dict[str, set[str]] = {}

    def could_hold(self, root: str) -> bool:
        """Whether the tree of a host could hold one of the requests.

        :param root: the UUID of the root provider
        :raises: PlacementUnavailable
        """
        requests = [request for request in self.requests
                    if self._has_traits(request, root)]
        if not requests:
            return False
        self._read += 1
        if self._read > _TREES:
            return True
        tree = self._read_tree(root)
        return any(self._fits(request, tree) for request in requests)

    def _get(self, url: str, refused: dict | None = None) -> dict:
        """:param refused: what to return where Placement answers with 400"""
        response = self.client.get(
            url, version=_VERSION, global_request_id=self.context.global_id)
        if response.status_code == 200:
            return response.json()
        if response.status_code == 400 and refused is not None:
            return refused
        raise PlacementUnavailable(reason=response.text)

    def _roots_with(self, trait: str) -> set[str]:
        if trait not in self._roots:
            # Placement refuses a trait that it does not know.
            answer = self._get('/resource_providers?required=' + trait,
                               refused={'resource_providers': []})
            self._roots[trait] = {provider['root_provider_uuid']
                                  for provider in answer['resource_providers']}
        return self._roots[trait]

    def _is_shared(self) -> bool:
        """Whether any provider shares what it has with others."""
        return bool(self._roots_with(os_traits.MISC_SHARES_VIA_AGGREGATE))

    def _has_traits(self, request: utils.ResourceRequest, root: str) -> bool:
        if not all(root in self._roots_with(trait)
                   for trait in request._root_required - _OF_ALL):
            return False
        required = set().union(*(
            group.required_traits for group in request._rg_by_id.values()))
        return all(root in self._roots_with(trait) or self._is_shared()
                   for trait in required - _OF_ALL)

    def _read_tree(self, root: str) -> list[tuple[dict, list[str]]]:
        """Return pairs of the inventories and the traits of each provider."""
        tree = self._get('/resource_providers?in_tree=' + root)
        urls = ['/resource_providers/' + provider['uuid']
                for provider in tree['resource_providers']]
        return [(self._get(url + '/inventories')['inventories'],
                 self._get(url + '/traits')['traits']) for url in urls]

    def _fits(self, request: utils.ResourceRequest, tree: list) -> bool:
        return all(
            self._fits_one(group.forbidden_traits, name, amount, tree)
            for group in request._rg_by_id.values()
            for name, amount in group.resources.items())

    def _fits_one(self, forbidden, name, amount: int, tree: list) -> bool:
        if not any(name in inventories for inventories, _traits in tree):
            return self._is_shared()
        return any(_holds(inventories.get(name), amount)
                   for inventories, traits in tree
                   if not forbidden.intersection(traits))


def _holds(inventory: dict | None, amount: int) -> bool:
    """Whether an empty inventory has room for an amount of its class.

    As placement.objects.allocation checks it, but without the usage.
    """
    return inventory is not None and (
        (inventory['total'] - inventory['reserved']) *
        inventory['allocation_ratio'] >= amount and
        inventory['min_unit'] <= amount <= inventory['max_unit'] and
        amount % inventory['step_size'] == 0)
