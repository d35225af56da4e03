# SPDX-License-Identifier: Apache-2.0

"""Why a request waits for a host, found out without scheduling it.

The request filters, the queries of Placement, the host states and the host
filters are those of a real request. Nothing is claimed or written, and no
notification is sent, because nothing is scheduled.
"""

import collections
import contextlib
import threading
import time
import typing as ty
from urllib import parse as urlparse

from keystoneauth1 import exceptions as ks_exc
from oslo_log import log as logging

import nova.conf
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler.client import report
from nova.scheduler import empty_hosts
from nova.scheduler import held_candidate
from nova.scheduler import held_room
from nova.scheduler import host_manager as manager
from nova.scheduler import host_refusals
from nova.scheduler import request_filter
from nova.scheduler import utils
from nova.scheduler import without_servers

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: Reasons that the scheduler can tell. FITS says that a rebuild would find a
#: host now.
FITS = 'fits'
NO_ROOM = 'no_room'
REFUSED = 'refused'
NO_SUCH_HOST = 'no_such_host'
NOTHING_FITS = 'nothing_fits'

# These filters look at what runs on a host: an empty host may pass them.
_OF_USAGE = frozenset((
    'AggregateIoOpsFilter', 'AggregateNumInstancesFilter', 'IoOpsFilter',
    'NUMATopologyFilter', 'NumInstancesFilter', 'PciPassthroughFilter'))

# Host states that are made at a time while a reason is looked for.
_BATCH = 100

# Seconds that the search for a reason takes at most. If hosts are left by
# then, it is not proven that nothing fits.
_SECONDS = 5


class Allowance:
    """The seconds of work that the questions of tenants may take.

    A token bucket: a share of one thread of this process, and a store for
    times at which many ask at once. If the bucket is empty, a tenant learns
    nothing from the scheduler.
    """

    def __init__(self, share: float = 0.1, store: float = 10.0) -> None:
        self.share, self.store = share, store
        self._left, self._at = store, time.monotonic()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def spend(self) -> ty.Iterator[bool]:
        """Take the time of the with statement from the allowance.

        :returns: a context manager that gives whether any time is left
        """
        with self._lock:
            now = time.monotonic()
            self._left = min(
                self.store, self._left + (now - self._at) * self.share)
            self._at = now
            allowed = self._left > 0
            # One second is taken at once, so that questions that come at the
            # same time do not all find the same seconds.
            self._left -= allowed
        try:
            yield allowed
        finally:
            with self._lock:
                self._left += allowed * (1 - (time.monotonic() - now))


_allowance = Allowance()


def find(context: nova_context.RequestContext, spec: 'objects.RequestSpec',
         host_manager: manager.HostManager,
         client: report.SchedulerReportClient,
         hosts: list[str] | None = None, marker: str | None = None,
         limit: int | None = None, reason: bool = True,
         is_tenant: bool = False,
         without: ty.Collection[str] = ()) -> dict[str, ty.Any]:
    """Find out why a request waits.

    :param context: an administrator's context
    :param hosts: names of the hosts to judge, None for all
    :param marker: the provider UUID of the last host of the previous page
    :param limit: how many hosts to judge, 0 for none
    :param reason: whether to look for the reason, which is the costly part
    :param is_tenant: whether a tenant asks, for whom there is an allowance
    :param without: UUIDs of servers; the hosts are judged as if these servers
        were gone
    :returns: a dict of reason (None if it is not known), filter (the filter
        that refused the last hosts, or None), requests (a list of query
        strings of GET /allocation_candidates), hosts (a list of dicts of
        host, uuid and refused_by) and absent (the servers of without that are
        on none of the hosts)
    :raises: MarkerNotFound
    """
    with (_allowance.spend() if is_tenant else
          contextlib.nullcontext(True)) as allowed:
        if not allowed:
            return {'reason': None, 'filter': None, 'requests': [],
                    'hosts': [], 'absent': []}
        return _Verdict(context, spec, host_manager, client).find(
            hosts, marker, limit, reason, without)


class _Verdict:

    def __init__(self, context, spec, host_manager, client) -> None:
        self.context = context
        self.spec = spec
        self.host_manager = host_manager
        self.client = client
        self.hosts = host_refusals.Hosts(context, spec, host_manager)

    def find(self, hosts, marker, limit, reason,
             without) -> dict[str, ty.Any]:
        verdict: dict[str, ty.Any] = {
            'reason': None, 'filter': None, 'requests': []}
        utils.setup_instance_group(self.context, self.spec)
        try:
            self._filter_request()
            requests = self._make_requests()
            verdict['requests'] = [
                _without_limit(request) for request in requests]
            if reason:
                verdict['reason'], verdict['filter'] = self._find_reason(
                    requests)
        except exception.RequestFilterFailed:
            verdict.update(reason=REFUSED, filter=self.hosts.asked[-1].filter)
        except exception.NoValidHost:
            # resources_from_request_spec() raises it for a forced host.
            verdict['reason'] = NO_SUCH_HOST
        except (ks_exc.ClientException, exception.NovaException) as exc:
            # Placement does not answer, most of the time.
            LOG.warning('Why server %s waits is not known: %s',
                        self.spec.instance_uuid, exc)
        verdict['hosts'], verdict['absent'] = self._find_hosts(
            hosts, marker, limit, without)
        return verdict

    # The request, as SchedulerManager.select_destinations() makes it.

    def _filter_request(self) -> None:
        """Run the request filters; note which asks for which aggregates."""
        for filter_ in request_filter.ALL_REQUEST_FILTERS:
            member_of, forbidden = self._aggregates()
            try:
                filter_(self.context, self.spec)
            except exception.RequestFilterFailed:
                # The filter excludes every host.
                self.hosts.asked.append(host_refusals.Asked(
                    filter_.__name__, [set()], set()))
                raise
            now_member_of, now_forbidden = self._aggregates()
            self.hosts.asked.append(host_refusals.Asked(
                filter_.__name__,
                [set(uuids.split(',')) for uuids in now_member_of
                 if uuids not in member_of], now_forbidden - forbidden))

    def _aggregates(self) -> tuple[list[str], set[str]]:
        destination = ('requested_destination' in self.spec and
                       self.spec.requested_destination)
        if not destination:
            return [], set()
        return (list(destination.aggregates or ()),
                set(destination.forbidden_aggregates or ()))

    def _make_requests(self) -> list[utils.ResourceRequest]:
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

    def _find_reason(self, requests) -> tuple[str | None, str | None]:
        """Return the reason, and the filter that refused the last hosts."""
        candidates, is_answered = self._find_candidates(requests)
        if candidates:
            uuids, could_take = list(candidates), lambda uuid: True
        else:
            uuids = self._find_large_nodes(requests)
            could_take = empty_hosts.EmptyHosts(
                self.context, self.client, requests).could_hold
        reason, filter_ = self._judge(uuids, candidates, could_take)
        if reason in (NO_ROOM, REFUSED) and not is_answered:
            # Placement may not know a trait, which is a reason, or may have
            # failed, which is no reason.
            raise empty_hosts.PlacementUnavailable(reason='')
        if reason == NOTHING_FITS and not self.hosts.are_known:
            LOG.warning('Why server %s waits is not known, since a cell does '
                        'not answer.', self.spec.instance_uuid)
            reason = None
        return reason, filter_

    def _find_candidates(self, requests) -> tuple[dict[str, list], bool]:
        """Ask Placement which hosts have room.

        :returns: the allocation requests by the UUID of each of their
            providers, and whether Placement has answered each query
        """
        answers = [self.client.get_allocation_candidates(
            self.context, request) for request in requests]
        if None in answers:
            raise empty_hosts.PlacementUnavailable(reason='')
        hold = held_room.find(
            self.context, self.client, self.spec.instance_uuid)
        if hold:
            held, _why = held_candidate.fit(
                self.context, self.client, requests[0], hold)
            answers.append((held, {}, None))
        candidates = collections.defaultdict(list)
        for allocations, _summaries, _version in answers:
            for allocation in allocations or ():
                for uuid in allocation['allocations']:
                    candidates[uuid].append(allocation)
        return candidates, all(answer[0] is not None for answer in answers)

    def _find_large_nodes(self, requests) -> list[str]:
        """Return the nodes that are not too small, the largest nodes first."""
        def is_large_enough(node: host_refusals.Node) -> bool:
            own = (None, node.uuid)
            return any(
                request.get_request_group(None).in_tree in own and
                all(amount <= getattr(node, host_refusals.SIZES[name])
                    for name, amount in request.merged_resources().items()
                    if name in host_refusals.SIZES)
                for request in requests)

        nodes = filter(is_large_enough, self.hosts.get_nodes())
        return [node.uuid for node in sorted(
            nodes, key=lambda node: node[2:], reverse=True)]

    def _judge(
        self, uuids, candidates, could_take,
    ) -> tuple[str | None, str | None]:
        """Return the reason, and the filter that refused the last hosts.

        :param uuids: the providers of the nodes that are judged
        :param candidates: what _find_candidates() returned
        :param could_take: a function that says of a provider whether its host
            could take the server if less ran there
        """
        until = time.monotonic() + _SECONDS
        refused = {}
        for start in range(0, len(uuids), _BATCH):
            refusals, left = self.hosts.filter(self.hosts.get_states(
                uuids[start:start + _BATCH], candidates))
            refused.update(refusals)
            for state in left:
                if candidates:
                    return FITS, None
                if time.monotonic() > until or could_take(state.uuid):
                    return NO_ROOM, None
            if time.monotonic() > until:
                return (None if candidates else NO_ROOM), None
        # If only a filter of the usage refuses a host, less usage makes room.
        # Among all other filters the filter that ran last counts.
        for uuid, name in sorted(
                reversed(refused.items()),
                key=lambda item: item[1] not in _OF_USAGE):
            if could_take(uuid):
                return (NO_ROOM, None) if name in _OF_USAGE else (
                    REFUSED, name)
        return NOTHING_FITS, None

    # The hosts.

    def _find_hosts(
        self, names, marker, limit, without,
    ) -> tuple[list[dict], list[str]]:
        if limit == 0:
            return [], []
        nodes = self.hosts.get_nodes(names)
        if marker is not None:
            uuids = [node.uuid for node in nodes]
            if marker not in uuids:
                raise exception.MarkerNotFound(marker=marker)
            nodes = nodes[uuids.index(marker) + 1:]
        nodes = nodes[:limit]
        states = self.hosts.get_states([node.uuid for node in nodes])
        absent = self._take_out(states, without)
        refused, _left = self.hosts.filter(states)
        return [{'host': node.host, 'uuid': node.uuid,
                 'refused_by': refused.get(node.uuid)}
                for node in nodes], sorted(absent)

    def _take_out(self, states, without) -> set[str]:
        """Take servers out of their hosts, and return those not found there.

        If the cell of the host does not answer, the host is not judged, and no
        server counts as absent.
        """
        absent = set(without)
        for state in states if absent else ():
            cell = self.host_manager.cells[state.cell_uuid]
            with nova_context.target_cell(self.context, cell) as cctxt:
                absent -= without_servers.take_out(cctxt, state, without)
        return absent if states or self.hosts.are_known else set()


def _without_limit(request: utils.ResourceRequest) -> str:
    return urlparse.urlencode([
        (name, value) for name, value in urlparse.parse_qsl(
            request.to_querystring()) if name != 'limit'])
