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

"""Why a request waits for a host, found out without scheduling it.

The request filters, the queries of Placement, the host states and the host
filters are those of a real request. Nothing is claimed or written, and no
notification tells of a scheduling that is none.
"""

import bisect
import collections
import contextlib
import threading
import time
from urllib import parse as urlparse

from keystoneauth1 import exceptions as ks_exc
from oslo_log import log as logging

import nova.conf
from nova import exception
from nova.scheduler import empty_hosts
from nova.scheduler import held_candidate
from nova.scheduler import held_room
from nova.scheduler import host_refusals
from nova.scheduler import request_filter
from nova.scheduler import utils

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: Reasons that the scheduler can tell. FITS is none: a rebuild would land.
FITS = 'fits'
NO_ROOM = 'no_room'
REFUSED = 'refused'
NO_SUCH_HOST = 'no_such_host'
NOTHING_FITS = 'nothing_fits'

# Filters that look at what runs on a host: one that is empty may pass them.
_OF_USAGE = frozenset((
    'AggregateIoOpsFilter', 'AggregateNumInstancesFilter', 'IoOpsFilter',
    'NUMATopologyFilter', 'NumInstancesFilter', 'PciPassthroughFilter'))

# Host states that are made at a time while a reason is looked for.
_BATCH = 100

# After so many seconds a host that could take the request is taken for
# granted. One that is not loaded yet cannot be proved to be too small.
_SECONDS = 5


class Allowance:
    """Seconds of work that the questions of tenants may take.

    A token bucket: a share of one thread of this process, and a store of it
    for when many ask at once. Whoever finds it empty is told nothing.
    """

    def __init__(self, share=0.1, store=10.0):
        self.share, self.store = share, store
        self._left, self._at = store, time.monotonic()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def spend(self):
        """Take what is done within from the allowance.

        :returns: a context manager that gives whether there is any left
        """
        with self._lock:
            now = time.monotonic()
            self._left = min(
                self.store, self._left + (now - self._at) * self.share)
            self._at = now
            allowed = self._left > 0
            # Those that begin together see each other.
            self._left -= allowed
        try:
            yield allowed
        finally:
            with self._lock:
                self._left += allowed * (1 - (time.monotonic() - now))


_allowance = Allowance()


def find(context, spec, host_manager, client, hosts=None, marker=None,
         limit=None, reason=True, is_tenant=False):
    """Find out why a request waits.

    :param context: an administrator's context
    :param spec: the RequestSpec, as a rebuild hands it to the conductor
    :param host_manager: the HostManager of the scheduler
    :param client: the SchedulerReportClient of the scheduler
    :param hosts: names of the hosts to tell of, None for all
    :param marker: the provider UUID of the last host of the page before
    :param limit: how many hosts to tell of, 0 for none
    :param reason: whether to look for the reason. It is the costly part.
    :param is_tenant: whether a tenant asks, for whom there is an allowance
    :returns: a dict of reason (None if it was not found out), filter (the one
        that refused the last hosts, or None), requests (a list of query
        strings of GET /allocation_candidates) and hosts (a list of dicts of
        host, uuid and refused_by)
    :raises: MarkerNotFound
    """
    with contextlib.ExitStack() as stack:
        if is_tenant and not stack.enter_context(_allowance.spend()):
            return {'reason': None, 'filter': None, 'requests': [],
                    'hosts': []}
        return _Verdict(context, spec, host_manager, client).find(
            hosts, marker, limit, reason)


class _Verdict:

    def __init__(self, context, spec, host_manager, client):
        self.context = context
        self.spec = spec
        self.host_manager = host_manager
        self.client = client
        self.asked = []
        self.hosts = host_refusals.Hosts(
            context, spec, host_manager, self.asked)
        self.until = time.monotonic() + _SECONDS

    def find(self, hosts, marker, limit, reason):
        verdict = {'reason': None, 'filter': None, 'requests': []}
        utils.setup_instance_group(self.context, self.spec)
        try:
            self._filter_request()
            self.requests = self._make_requests()
        except exception.RequestFilterFailed:
            verdict.update(reason=REFUSED, filter=self.asked[-1].filter)
        except exception.NoValidHost:
            # The one that resources_from_request_spec() raises.
            verdict['reason'] = NO_SUCH_HOST
        else:
            verdict['requests'] = [
                _without_limit(request) for request in self.requests]
            if reason:
                try:
                    verdict['reason'], verdict['filter'] = self._find_reason()
                except (ks_exc.ClientException,
                        empty_hosts.PlacementUnavailable,
                        exception.ResourceProviderRetrievalFailed,
                        exception.ResourceProviderTraitRetrievalFailed,
                        exception.ResourceProviderAggregateRetrievalFailed,
                        ) as exc:
                    LOG.warning('Why a server waits is not known, since '
                                'Placement does not answer: %s', exc)
        verdict['hosts'] = self._find_hosts(hosts, marker, limit)
        return verdict

    # The request, as SchedulerManager.select_destinations() makes it.

    def _filter_request(self):
        """Run the request filters; note which asked for which aggregates."""
        for filter_ in request_filter.ALL_REQUEST_FILTERS:
            member_of, forbidden = self._aggregates()
            try:
                filter_(self.context, self.spec)
            except exception.RequestFilterFailed:
                # It keeps the server off each host.
                self.asked.append(host_refusals.Asked(
                    filter_.__name__, [set()], set()))
                raise
            now_member_of, now_forbidden = self._aggregates()
            self.asked.append(host_refusals.Asked(
                filter_.__name__,
                [set(uuids.split(',')) for uuids in now_member_of
                 if uuids not in member_of], now_forbidden - forbidden))

    def _aggregates(self):
        destination = ('requested_destination' in self.spec and
                       self.spec.requested_destination)
        if not destination:
            return [], set()
        return (list(destination.aggregates or ()),
                set(destination.forbidden_aggregates or ()))

    def _make_requests(self):
        requests = [utils.resources_from_request_spec(
            self.context, self.spec, self.host_manager,
            enable_pinning_translate=True)]
        if (requests[0].cpu_pinning_requested and
                not CONF.workarounds.disable_fallback_pcpu_query):
            requests.append(utils.resources_from_request_spec(
                self.context, self.spec, self.host_manager,
                enable_pinning_translate=False))
        return requests

    # The reason.

    def _find_reason(self):
        """Return the reason, and the filter that refused the last hosts."""
        answers = self._find_candidates()
        reason = self._find_reason_with(answers)
        # It answers so too if it does not know a trait that is asked for.
        if reason[0] not in (FITS, NOTHING_FITS) and any(
                found is None for found, _of_providers in answers):
            raise empty_hosts.PlacementUnavailable(reason='')
        return reason

    def _find_reason_with(self, answers):
        candidates, summaries = collections.defaultdict(list), {}
        for found, of_providers in answers:
            for candidate in found or ():
                for uuid in candidate['allocations']:
                    candidates[uuid].append(candidate)
            summaries.update(of_providers or {})
        uuids, last = list(summaries) if candidates else [], None
        size = len(uuids) if self.hosts.are_compared() else _BATCH
        for start in range(0, len(uuids), size):
            if start and self._is_late():
                return None, None
            states = list(self.host_manager.get_host_states_by_uuids(
                self.context, uuids[start:start + size], self.spec))
            for state in states:
                state.allocation_candidates = candidates[state.uuid]
            _refused, left, name = self.hosts.filter(states)
            if left:
                return FITS, None
            last = name or last
        if last:
            return (NO_ROOM, None) if last in _OF_USAGE else (REFUSED, last)
        return self._find_reason_without_room()

    def _is_late(self):
        return time.monotonic() > self.until

    def _find_candidates(self):
        """Return what there is room on, as Placement answers each request."""
        hold = held_room.find(
            self.context, self.client, self.spec.instance_uuid)
        held = []
        if hold and not held_candidate.misfit(
                self.context, self.client, self.requests[0], hold,
                with_groups=True):
            held = [held_candidate.as_candidates(hold)]
            if not self.requests[0].get_num_of_suffixed_groups():
                return held
            # It is given back, and is room for the server as any other then.
            held[0][0][0]['mappings'] = None
        answers = [self.client.get_allocation_candidates(
            self.context, request) for request in self.requests]
        if None in answers:
            raise empty_hosts.PlacementUnavailable(reason='')
        return held + [answer[:2] for answer in answers]

    def _find_reason_without_room(self):
        nodes = [node for node in self.hosts.get_nodes()
                 if self._is_big_enough(node)]
        # Where the largest is too small the others are.
        nodes.sort(key=lambda node: node[3:], reverse=True)
        empty = empty_hosts.EmptyHosts(
            self.context, self.client, self.requests)
        refused = {}
        for start in range(0, len(nodes), _BATCH):
            if self._is_late():
                return NO_ROOM, None
            states = self.hosts.get_states([
                node for node in nodes[start:start + _BATCH]
                if not empty.rules_out(node.uuid)])
            names, left, _last = self.hosts.filter(states)
            refused.update(names)
            if any(self._is_late() or empty.could_hold(state.uuid)
                   for state in left):
                return NO_ROOM, None
        for uuid, name in sorted(
                refused.items(), key=lambda item: item[1] in _OF_USAGE):
            if self._is_late() or empty.could_hold(uuid):
                return ((NO_ROOM, None) if name in _OF_USAGE else
                        (REFUSED, name))
        if not self.hosts.are_known:
            LOG.warning('Why a server waits is not known, since a cell does '
                        'not answer.')
            return None, None
        return NOTHING_FITS, None

    def _is_big_enough(self, node):
        """Whether the row of a node does not rule out each request."""
        def fits(request):
            in_tree = request.get_request_group(None).in_tree
            return in_tree in (None, node.uuid) and all(
                amount <= getattr(node, host_refusals.SIZES[name])
                for name, amount in request.merged_resources().items()
                if name in host_refusals.SIZES)

        return any(fits(request) for request in self.requests)

    # The hosts.

    def _find_hosts(self, names, marker, limit):
        if limit == 0:
            return []
        nodes = self.hosts.get_nodes(names)
        if marker is not None:
            uuids = [node.uuid for node in nodes]
            start = bisect.bisect(uuids, marker)
            if not start or uuids[start - 1] != marker:
                raise exception.MarkerNotFound(marker=marker)
            nodes = nodes[start:]
        if not self.hosts.are_compared():
            nodes = nodes[:limit]
        refused = self.hosts.filter(self.hosts.get_states(nodes))[0]
        return [{'host': node.host, 'uuid': node.uuid,
                 'refused_by': refused.get(node.uuid)}
                for node in nodes[:limit]]


def _without_limit(request):
    return urlparse.urlencode([
        (name, value) for name, value in urlparse.parse_qsl(
            request.to_querystring()) if name != 'limit'])
