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

"""Whether a host could take a request if nothing ran on it.

Placement answers what fits now. What a full host could hold is read from the
inventories and traits of its provider tree, for one host at a time: no query
of Placement leaves usage out of account.
"""

from nova import exception

_VERSION = '1.18'

# Trees that are read before the traits are asked for over the whole cloud,
# and in all. Of what is not read it is taken for granted that it could.
_FIRST_TREES = 5
_TREES = 50

SHARING_TRAIT = 'MISC_SHARES_VIA_AGGREGATE'

# The providers of a disabled service have it. ComputeFilter refuses the host
# then, and an operator may enable it again.
_DISABLED_TRAIT = 'COMPUTE_STATUS_DISABLED'


class PlacementUnavailable(exception.NovaException):
    msg_fmt = "Placement could not be asked: %(reason)s"


class EmptyHosts:
    """The provider trees of a cloud, as if nothing ran on them.

    What cannot be told for certain counts as a host that could take the
    request: a resource class that a sharing provider may have.
    """

    def __init__(self, context, client, requests):
        """:param context: the request context

        :param client: the SchedulerReportClient
        :param requests: a list of ResourceRequests; a host is to hold one
        """
        self.context = context
        self.client = client
        self.requests = requests
        self._has_sharing = None
        self._read = 0
        self._with_traits = None
        self._has_asked = False

    def _get(self, url, missing=(404,)):
        response = self.client.get(
            url, version=_VERSION, global_request_id=self.context.global_id)
        if response is not None and response.status_code == 200:
            return response.json()
        if response is not None and response.status_code in missing:
            return None
        raise PlacementUnavailable(
            reason=url if response is None else response.text)

    def _providers_with(self, trait):
        # Placement refuses a trait that it does not know.
        found = self._get('/resource_providers?required=%s' % trait,
                          missing=(400,))
        return found['resource_providers'] if found else []

    def _shared(self):
        """Whether any provider shares what it has with others."""
        if self._has_sharing is None:
            self._has_sharing = bool(self._providers_with(SHARING_TRAIT))
        return self._has_sharing

    def rules_out(self, host_uuid):
        """Whether a host is known to lack the traits of the requests."""
        return (self._with_traits is not None and
                host_uuid not in self._with_traits)

    def _find_with_traits(self):
        """Return the roots of trees with the traits of one of the requests.

        None if no trait tells them.
        """
        trees = set()
        for request in self.requests:
            if not all(self._is_known(name)
                       for name in request.merged_resources()):
                continue
            traits = set(request._root_required).union(
                *(group.required_traits
                  for group in request._rg_by_id.values()))
            found = [{provider['root_provider_uuid'] for provider in
                      self._providers_with(trait)} for trait in sorted(traits)]
            if not found or (self._shared() and all(found)):
                return None
            trees |= set.intersection(*found)
        return trees

    def _is_known(self, name):
        return not name.startswith('CUSTOM_') or self._get(
            '/resource_classes/%s' % name) is not None

    def could_hold(self, host_uuid):
        """Whether the tree of a host could hold one of the requests.

        :param host_uuid: the UUID of the root provider
        :raises: PlacementUnavailable
        """
        if self._read == _FIRST_TREES and not self._has_asked:
            self._has_asked = True
            self._with_traits = self._find_with_traits()
        if self.rules_out(host_uuid):
            return False
        self._read += 1
        return self._read > _TREES or self._read_tree(host_uuid)

    def _read_tree(self, host_uuid):
        tree = self._get('/resource_providers?in_tree=%s' % host_uuid)
        uuids = [provider['uuid'] for provider in tree['resource_providers']]
        if host_uuid not in uuids:
            return False
        inventories = {
            uuid: (self._get('/resource_providers/%s/inventories' % uuid) or
                   {'inventories': {}})['inventories'] for uuid in uuids}
        traits = {}
        if any(_names_traits(request) for request in self.requests):
            traits = {
                uuid: set((self._get('/resource_providers/%s/traits' % uuid) or
                           {'traits': []})['traits']) for uuid in uuids}
        return any(self._fits(request, host_uuid, inventories, traits)
                   for request in self.requests)

    def _fits(self, request, root, inventories, traits):
        if (set(request._root_required) - traits.get(root, set()) or
                (set(request._root_forbidden) - {_DISABLED_TRAIT}) &
                traits.get(root, set())):
            return False
        return all(
            self._fits_on_one(group, inventories, traits)
            if group.use_same_provider else
            self._fits_on_any(group, inventories, traits)
            for group in request._rg_by_id.values())

    def _fits_on_one(self, group, inventories, traits):
        return self._shared() or any(
            all(_holds(inventory.get(name), amount)
                for name, amount in group.resources.items()) and
            group.required_traits <= traits.get(uuid, set()) and
            not group.forbidden_traits & traits.get(uuid, set())
            for uuid, inventory in inventories.items())

    def _fits_on_any(self, group, inventories, traits):
        usable = {uuid: inventory for uuid, inventory in inventories.items()
                  if not group.forbidden_traits & traits.get(uuid, set())}
        if not group.required_traits <= set().union(
                *(traits.get(uuid, set()) for uuid in usable)):
            return self._shared()
        return all(
            any(_holds(inventory.get(name), amount)
                for inventory in usable.values()) or
            (self._shared() and not any(
                name in inventory for inventory in usable.values()))
            for name, amount in group.resources.items())


def _names_traits(request):
    return bool(
        request._root_required or
        set(request._root_forbidden) - {_DISABLED_TRAIT} or any(
            group.required_traits or group.forbidden_traits
            for group in request._rg_by_id.values()))


def _holds(inventory, amount):
    """Whether an empty inventory has room for an amount of its class.

    As placement.objects.allocation checks it, without what is used.
    """
    return inventory is not None and (
        (inventory['total'] - inventory['reserved']) *
        inventory['allocation_ratio'] >= amount and
        inventory['min_unit'] <= amount <= inventory['max_unit'] and
        amount % inventory['step_size'] == 0)
