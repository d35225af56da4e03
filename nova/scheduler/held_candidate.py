# SPDX-License-Identifier: Apache-2.0

"""Room that is held for a server, as the only candidate of the scheduler.

Placement does not store which provider serves which request group (of ports,
devices or the flavor). The scheduler finds that out again from the amounts
that are allocated of each provider, and from the traits of the providers. If
there are several ways, each is a candidate, as in an answer of placement.
"""

import collections.abc
import copy
import dataclasses
import itertools
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

# At most this number of candidates is made of one hold.
_MOST = 100


@dataclasses.dataclass
class ScheduledHold:
    """What the context of a build has while a host is selected for a server.

    Each build of a server has such an object (RequestContext.hold); a move of
    a server has none.
    """

    #: What held_room.find() returned, None if nothing is held.
    hold: dict[str, ty.Any] | None = None
    #: Whether the hold is the candidate that is to be claimed.
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
        placement does not answer. None if placement is to be asked.
    """
    scheduled = context.hold
    if scheduled is None or scheduled.hold is None:
        return None
    if scheduled.taken:
        # The second query for pinned CPUs.
        return [], {}
    hold = scheduled.hold
    try:
        found, why = fit(context, client, resources, hold)
        if why:
            LOG.info('The room that is held for the server is not what it '
                     'asks for: %s', why,
                     instance_uuid=hold['instance_uuid'])
            if not held_room.drop(context, client, hold):
                # The server has other allocations: the claim would be refused.
                return [], {}
            scheduled.hold = None
            return None
    except (ks_exc.ClientException, exception.NovaException) as exc:
        LOG.error('The room that is held for the server cannot be looked at: '
                  '%s', exc, instance_uuid=hold['instance_uuid'])
        return [], {}
    scheduled.taken = True
    return found, {provider: {} for provider in hold['allocations']}


def fit(
    context: nova_context.RequestContext,
    client: 'report.SchedulerReportClient',
    resources: 'utils.ResourceRequest',
    hold: dict[str, ty.Any],
) -> tuple[list[dict], str | None]:
    """Return the candidates that a hold is for a query, or why it is none.

    Everything that a query of placement looks at is checked, except whether
    there is room: placement says so at the claim. No filter is run.

    :param resources: the ResourceRequest of the query
    :param hold: what held_room.find() returned
    :raises: keystoneauth1.exceptions.ClientException or a NovaException if
        placement does not answer
    """
    if not _amounts_fit(resources, hold):
        return [], _('the amounts are others')
    groups = {suffix: group for suffix, group in resources._rg_by_id.items()
              if suffix is not None}
    if resources._same_subtree or any(
            group.aggregates or group.forbidden_aggregates or group.in_tree
            for group in groups.values()):
        return [], _('it has groups that have to be in one subtree, in '
                     'aggregates or in a tree of their own')
    host, traits = _host(context, client, hold, bool(groups))
    if host is None:
        return [], _('it is not on one host')
    asked = parse.parse_qs(resources.to_querystring())
    required, of_root = _traits(asked, 'required'), _traits(
        asked, 'root_required')
    candidates, has = [], {}
    why = _('no providers have what the groups ask for')
    for mappings in itertools.islice(_map(
            groups, resources.group_policy == 'isolate', hold, traits),
            _MOST):
        elsewhere = {trait for provider in mappings['']
                     for trait in traits.get(provider, ()) if provider != host}
        if any('!' + trait in required for trait in elsewhere):
            why = _('a provider has a trait that is forbidden')
            continue
        # Required traits that no other provider has must be those of the host.
        of_host = frozenset((required - elsewhere) | of_root)
        if of_host not in has:
            has[of_host] = _has(context, client, host, of_host, asked)
        if has[of_host]:
            candidates.append({'allocations': hold['allocations'],
                               'mappings': mappings})
        else:
            why = _('the host has not the traits or is not in the aggregates '
                    'that it is to have')
    return candidates, None if candidates else why


def _has(context, client, host: str, required: ty.Collection[str],
         asked: dict[str, list[str]]) -> bool:
    """Whether a host has traits, and is in the aggregates and the tree."""
    query = [('uuid', host)] + [
        (key, value) for key in ('member_of', 'in_tree')
        for value in asked.get(key, [])]
    if required:
        query.append(('required', ','.join(sorted(required))))
    response = client.get('/resource_providers?' + parse.urlencode(query),
                          version=held_room.VERSION,
                          global_request_id=context.global_id)
    # It does not know one of the traits.
    if response.status_code == 400:
        return False
    if response.status_code != 200:
        raise exception.ResourceProviderRetrievalFailed(uuid=host)
    return bool(response.json()['resource_providers'])


def _map(
    groups: dict[str, ty.Any], isolate: bool, hold: dict[str, ty.Any],
    traits: dict[str, set[str]],
) -> collections.abc.Iterator[dict[str, list[str]]]:
    """Find all ways in which the providers can serve the groups.

    :param groups: the RequestGroups by their suffix
    :param isolate: whether each group has a provider of its own
    :param traits: by provider
    :returns: the providers by the suffix; by '' the providers that serve the
        amounts in no group, of which each class is from one provider
    """
    left = {provider: dict(allocation['resources'])
            for provider, allocation in hold['allocations'].items()}
    if not groups:
        yield {'': list(left)}
        return

    def serve(suffixes, left, mappings):
        if not suffixes:
            rest = {provider: [name for name, amount in amounts.items()
                               if amount]
                    for provider, amounts in left.items()}
            names = [name for names in rest.values() for name in names]
            if len(names) == len(set(names)):
                yield {'': [provider for provider in rest if rest[provider]],
                       **mappings}
            return
        suffix, *others = suffixes
        group = groups[suffix]
        for provider, amounts in left.items():
            if (group.required_traits - traits[provider] or
                    group.forbidden_traits & traits[provider] or
                    isolate and [provider] in mappings.values() or
                    any(amounts.get(name, 0) < amount
                        for name, amount in group.resources.items())):
                continue
            now = copy.deepcopy(left)
            for name, amount in group.resources.items():
                now[provider][name] -= amount
            yield from serve(others, now, {**mappings, suffix: [provider]})

    yield from serve(list(groups), left, {})


def _traits(asked: dict[str, list[str]], key: str) -> set[str]:
    return {trait for value in asked.get(key, ())
            for trait in value.split(',')}


def _host(
    context, client, hold, with_traits: bool,
) -> tuple[str | None, dict[str, set[str]]]:
    """Find the host that a hold is on, with the providers that it shares.

    :param with_traits: whether the traits of a single provider are needed
    :returns: the provider at the root of the tree of the host, None if the
        hold is not on one host; and the traits by provider, none of a single
        provider unless they are needed
    """
    providers = list(hold['allocations'])
    if len(providers) == 1 and not with_traits:
        return providers[0], {}
    roots: dict[str, str] = {}
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
    return host, traits


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
    # A host that reports no PCPU can give pinned CPUs as VCPU.
    if (resources.cpu_pinning_requested and
            not CONF.workarounds.disable_fallback_pcpu_query):
        asked[orc.VCPU] = asked.get(orc.VCPU, 0) + asked.pop(orc.PCPU, 0)
    return held == asked
