# SPDX-License-Identifier: Apache-2.0

"""Which filter refuses which host, whether the host has room or not.

The host states and the filters are those of a real request. Nothing is
claimed or kept.
"""

import typing as ty

import sqlalchemy as sa

from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import objects
from nova.objects import base
from nova.scheduler import host_manager as manager

#: The columns of a compute node that tell its size, by the resource class.
#: With every driver they bound what a single server can have.
SIZES = {'VCPU': 'vcpus', 'MEMORY_MB': 'memory_mb', 'DISK_GB': 'local_gb'}


class Node(ty.NamedTuple):
    """The row of a compute node."""
    uuid: str
    host: str
    vcpus: int
    memory_mb: int
    local_gb: int


class Asked(ty.NamedTuple):
    """The aggregates that a request filter asks for, or forbids."""
    filter: str
    member_of: list[set[str]]
    forbidden: set[str]


class Hosts:
    """The hosts of a cloud, as one request sees them."""

    #: Whether each cell that was asked has answered.
    are_known = True

    def __init__(self, context: nova_context.RequestContext,
                 spec: 'objects.RequestSpec',
                 host_manager: manager.HostManager) -> None:
        self.context = context
        self.spec = spec
        self.host_manager = host_manager
        #: What the request filters that have run so far have asked for.
        self.asked: list[Asked] = []

    def filter(self, states: list[manager.HostState]
               ) -> tuple[dict[str, str], list[manager.HostState]]:
        """Run the filters as HostManager.get_filtered_hosts() does.

        HostManager says only in the log which filter refused which host.

        :returns: the names of what refuses hosts, by the UUID of the provider
            and in the order in which the filters ran, and the hosts that
            nothing refuses
        """
        refused, left = {}, []
        for state in states:
            if name := self._refused_by_request(state):
                refused[state.uuid] = name
            else:
                left.append(state)
        is_forced = ((self.spec.force_hosts or self.spec.force_nodes) and
                     not self.spec.get_scheduler_hint('_nova_check_type'))
        for filter_ in [] if is_forced else self.host_manager.enabled_filters:
            passed = list(filter_.filter_all(left, self.spec) or ())
            uuids = {state.uuid for state in passed}
            for state in left:
                if state.uuid not in uuids:
                    refused[state.uuid] = type(filter_).__name__
            left = passed
        return refused, left

    def _refused_by_request(self, state: manager.HostState) -> str | None:
        """Return the part of the request that excludes a host, or None."""
        spec = self.spec
        destination = spec.requested_destination
        if destination and 'host' in destination and (
                state.host != destination.host or
                destination.node not in (None, '', state.nodename)):
            return 'requested_destination'
        host = state.host.lower()
        if host in {name.lower() for name in spec.ignore_hosts or ()}:
            return 'ignore_hosts'
        if spec.force_hosts and host not in {
                name.lower() for name in spec.force_hosts}:
            return 'force_hosts'
        if spec.force_nodes and state.nodename not in spec.force_nodes:
            return 'force_nodes'
        uuids = {aggregate.uuid for aggregate in state.aggregates}
        for asked in self.asked:
            if uuids & asked.forbidden or not all(
                    uuids & any_of for any_of in asked.member_of):
                return asked.filter
        return None

    def _ask(self, function, argument) -> dict[str, ty.Any]:
        """Return what a function returns for each cell that answers."""
        # The cells of HostManager.get_host_states_by_uuids().
        cells = self.host_manager.enabled_cells
        destination = self.spec.requested_destination
        if (destination and 'cell' in destination and destination.cell and
                not destination.allow_cross_cell_move):
            cells = [destination.cell]
        results = nova_context.scatter_gather_cells(
            self.context, cells, nova_context.CELL_TIMEOUT, function, argument)
        answered = {
            cell_uuid: result for cell_uuid, result in results.items()
            if not nova_context.is_cell_failure_sentinel(result)}
        self.are_known = self.are_known and len(answered) == len(results)
        return answered

    def get_nodes(self, names: list[str] | None = None) -> list[Node]:
        """Return the compute nodes that have a service, by their UUIDs.

        :param names: names of hosts, None for all
        """
        return sorted(
            Node(uuid, host, *(size or 0 for size in sizes))
            for rows in self._ask(_get_rows, names).values()
            for uuid, host, *sizes in rows)

    def get_states(self, uuids: list[str],
                   candidates: dict[str, list[dict]] | None = None
                   ) -> list[manager.HostState]:
        """Make the HostStates of nodes, as candidates of the request.

        :param uuids: the UUIDs of the nodes
        :param candidates: the allocation requests by the UUID of the node. A
            node without any gets one that names only this node.
        """
        found = self._ask(_get_computes, uuids) if uuids else {}
        states = list(self.host_manager._get_host_states(
            self.context,
            {cell_uuid: nodes for cell_uuid, (nodes, _) in found.items()},
            {service.host: service for _, services in found.values()
             for service in services}))
        for state in states:
            state.allocation_candidates = (
                candidates and candidates.get(state.uuid) or
                [{'allocations': {state.uuid: {'resources': {}}},
                  'mappings': None}])
        return states


def _get_computes(context, uuids: list[str]) -> tuple:
    """Return compute nodes, and the services of their hosts.

    HostManager would read the services of all hosts.
    """
    nodes = objects.ComputeNodeList.get_all_by_uuids(context, uuids)
    with main_db_api.get_context_manager(context).reader.using(
            context) as session:
        rows = session.query(models.Service).filter(
            models.Service.binary == 'nova-compute',
            models.Service.deleted == 0,
            models.Service.host.in_({node.host for node in nodes})).all()
        return nodes, base.obj_make_list(
            context, objects.ServiceList(context), objects.Service, rows)


def _get_rows(context, names: list[str] | None) -> list:
    node, service = models.ComputeNode, models.Service
    # Only the columns: an object takes thirty times as long.
    with main_db_api.get_context_manager(context).reader.using(
            context) as session:
        query = session.query(
            node.uuid, node.host, *(getattr(node, size) for size in
                                    SIZES.values())).join(
            service, sa.and_(
                service.host == node.host, service.deleted == 0,
                service.binary == 'nova-compute')).filter(node.deleted == 0)
        if names is not None:
            query = query.filter(node.host.in_(names))
        return query.all()
