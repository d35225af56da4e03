# SPDX-License-Identifier: Apache-2.0

"""Room that is held for a server, as the only candidate of the scheduler.

Placement does not store which providers serve which request group, so a hold
is dropped where the request has groups of ports, devices or the flavor.
"""

import dataclasses
import typing as ty
from urllib import parse

from keystoneauth1 import exceptions as ks_exc
import os_resource_classes as orc
import os_traits
from oslo_log import log as logging

import nova.conf
from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova.scheduler import held_room

if ty.TYPE_CHECKING:
    from nova.scheduler.client import report
    from nova.scheduler import utils

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class ScheduledHold:
    """What a build has in its context while a host is selected for a server.

    The build of each server has such an object (RequestContext.hold), and no
    move of a server.
    """

    #: What held_room.find() returned, None if nothing is held.
    hold: dict[str, ty.Any] | None = None
    #: Whether the hold is the candidate, which a claim is for.
    taken: bool = False


def candidates(
    context: nova_context.RequestContext,
    client: 'report.SchedulerReportClient',
    resources: 'utils.ResourceRequest',
) -> tuple[list[dict], dict[str, dict]] | None:
    """Answer a query for allocation candidates for a server with a hold.

    A hold that is not what the server asks for is given back, and the server
    is scheduled as any other.

    :param resources: the ResourceRequest of the query
    :returns: the allocation requests and the provider summaries as of
        SchedulerReportClient.get_allocation_candidates(); both empty if
        placement does not answer. None if the query is to be asked.
    """
    scheduled = context.hold
    if scheduled is None or scheduled.hold is None:
        return None
    if scheduled.taken:
        # The second query for pinned CPUs.
        return [], {}
    hold = scheduled.hold
    try:
        why = (_('the request has groups of resources')
               if resources.get_num_of_suffixed_groups() else
               misfit(context, client, resources, hold))
        if why:
            LOG.info('The room that is held for the server is not what it '
                     'asks for: %s', why,
                     instance_uuid=hold['instance_uuid'])
            if not held_room.drop(context, client, hold):
                # The claim would be refused for what is there now.
                return [], {}
            scheduled.hold = None
            return None
    except (ks_exc.ClientException, exception.NovaException) as exc:
        LOG.error('The room that is held for the server cannot be looked at: '
                  '%s', exc, instance_uuid=hold['instance_uuid'])
        return [], {}
    scheduled.taken = True
    providers = list(hold['allocations'])
    candidate = {'allocations': hold['allocations'],
                 'mappings': {'': providers}}
    return [candidate], {provider: {} for provider in providers}


def misfit(
    context: nova_context.RequestContext,
    client: 'report.SchedulerReportClient',
    resources: 'utils.ResourceRequest',
    hold: dict[str, ty.Any],
) -> str | None:
    """Return why a hold is not what a query asks for, None if it is.

    Whether there is room is not asked: placement says so at the claim. All
    else that placement looks at, and no filter, is; which provider serves
    which group of the request is left out of account.

    :param resources: the ResourceRequest of the query
    :param hold: what held_room.find() returned
    :raises: keystoneauth1.exceptions.ClientException or a NovaException if
        placement does not answer
    """
    if not _amounts_fit(resources, hold):
        return _('the amounts are others')
    asked = parse.parse_qs(resources.to_querystring())
    required = _traits(asked, 'required')
    host, elsewhere = _host(context, client, hold)
    if host is None:
        return _('it is not on one host')
    if any('!' + trait in required for trait in elsewhere):
        return _('a provider has a trait that is forbidden')
    # A trait of the host may be one of a provider below it as well.
    required = (required - elsewhere) | _traits(asked, 'root_required')
    query = [('uuid', host)] + [
        (key, value) for key in ('member_of', 'in_tree')
        for value in asked.get(key, [])]
    if required:
        query.append(('required', ','.join(sorted(required))))
    response = client.get('/resource_providers?' + parse.urlencode(query),
                          version=held_room.VERSION,
                          global_request_id=context.global_id)
    # It does not know one of the traits.
    refused = response.status_code == 400
    if not refused and response.status_code != 200:
        raise exception.ResourceProviderRetrievalFailed(uuid=host)
    if refused or not response.json()['resource_providers']:
        return _('the host has not the traits or is not in the aggregates '
                 'that it is to have')
    return None


def _traits(asked: dict[str, list[str]], key: str) -> set[str]:
    return {trait for value in asked.get(key, ())
            for trait in value.split(',')}


def _host(context, client, hold) -> tuple[str | None, set[str]]:
    """Find the host that a hold is on, with the providers that it shares.

    :returns: the provider at the root of the tree of the host, None if it is
        none or not one host; and the traits of all other providers
    """
    providers = list(hold['allocations'])
    if len(providers) == 1:
        return providers[0], set()
    roots = {}
    for provider in providers:
        if provider not in roots:
            roots.update({
                one['uuid']: one['root_provider_uuid'] for one in
                client.get_providers_in_tree(context, provider)})
    traits = {provider: client.get_provider_traits(context, provider).traits
              for provider in providers}
    sharing = {provider for provider in providers
               if os_traits.MISC_SHARES_VIA_AGGREGATE in traits[provider]}
    hosts = {roots.get(provider) for provider in providers
             if provider not in sharing}
    host = hosts.pop() if len(hosts) == 1 else None
    if host and sharing and not _shares(context, client, host, sharing):
        host = None
    return host, {trait for provider in providers if provider != host
                  for trait in traits[provider]}


def _shares(context, client, host: str, sharing: set[str]) -> bool:
    """Whether a host has an aggregate in common with each of some providers.
    """
    def aggregates(provider: str) -> set[str]:
        found = client._get_provider_aggregates(context, provider)
        if found is None:
            # Placement does not answer.
            raise exception.ResourceProviderAggregateRetrievalFailed(
                uuid=provider)
        return found.aggregates

    return all(aggregates(host) & aggregates(provider)
               for provider in sharing)


def _amounts_fit(resources, hold: dict[str, ty.Any]) -> bool:
    held = held_room.amounts(hold)
    asked = {resource_class: amount for resource_class, amount
             in resources.merged_resources().items() if amount}
    if held == asked:
        return True
    # Pinned CPUs can be those of a host that does not report any.
    if (resources.cpu_pinning_requested and
            not CONF.workarounds.disable_fallback_pcpu_query):
        asked[orc.VCPU] = asked.get(orc.VCPU, 0) + asked.pop(orc.PCPU, 0)
    return held == asked
