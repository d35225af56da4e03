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

"""Which filter refuses which host, with room left out of account.

The host states and the filters are those of a real request. Nothing is
claimed, and all that is made is forgotten.
"""

import collections

import sqlalchemy as sa

from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import objects
from nova.objects import base
from nova.scheduler import filters

# What each host's row tells of its size, by the class of Placement. In all
# drivers one server can have as much at most.
SIZES = {'VCPU': 'vcpus', 'MEMORY_MB': 'memory_mb', 'DISK_GB': 'local_gb'}

Node = collections.namedtuple(
    'Node', ('uuid', 'host', 'cell_uuid', *SIZES.values()))

Asked = collections.namedtuple('Asked', ('filter', 'member_of', 'forbidden'))


class Hosts:
    """The hosts of a cloud, as one request sees them."""

    #: Whether each cell that was asked has answered.
    are_known = True

    def __init__(self, context, spec, host_manager, asked):
        """:param context: an administrator's context

        :param spec: the RequestSpec, after the request filters
        :param host_manager: the HostManager of the scheduler
        :param asked: a list of Asked, which aggregates a request filter wants
        """
        self.context = context
        self.spec = spec
        self.host_manager = host_manager
        self.asked = asked

    def are_compared(self):
        """Whether a filter is more than a question about one host."""
        return any(
            type(filter_).filter_all is not filters.BaseHostFilter.filter_all
            for filter_ in self.host_manager.enabled_filters)

    def filter(self, states):
        """Run the filters as HostManager.get_filtered_hosts() does.

        That one tells nobody which filter refused what, but for the log.

        :param states: HostStates
        :returns: a dict of what refuses them by the UUID of the provider, a
            list of those that are left, and what refused the last of them
        """
        refused, left, last = {}, [], None
        for state in states:
            name = self._refused_by_request(state)
            if name:
                refused[state.uuid] = last = name
            else:
                left.append(state)
        hints = ('scheduler_hints' in self.spec and
                 self.spec.scheduler_hints or {})
        if (self.spec.force_hosts or self.spec.force_nodes) and (
                not hints.get('_nova_check_type')):
            return refused, left, last
        for filter_ in self.host_manager.enabled_filters:
            if not left:
                break
            passed = list(filter_.filter_all(left, self.spec) or ())
            uuids = {state.uuid for state in passed}
            for state in left:
                if state.uuid not in uuids:
                    last = type(filter_).__name__
                    refused[state.uuid] = last
            left = passed
        return refused, left, last

    def _refused_by_request(self, state):
        """Return what of the request keeps it off a host, None for nothing."""
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
                    uuids & one for one in asked.member_of):
                return asked.filter
        return None

    def _cells(self):
        # As HostManager.get_host_states_by_uuids().
        destination = self.spec.requested_destination
        if (destination and 'cell' in destination and destination.cell and
                not destination.allow_cross_cell_move):
            return [destination.cell]
        return self.host_manager.enabled_cells

    def get_nodes(self, names=None):
        """Return the compute nodes that have a service, by their UUIDs."""
        results = self._ask(
            self._cells(), lambda cctxt: _get_rows(cctxt, names))
        return sorted(
            Node(row.uuid, row.host, cell_uuid,
                  *(getattr(row, size) or 0 for size in SIZES.values()))
            for cell_uuid, rows in results.items() for row in rows)

    def get_states(self, nodes):
        """Make HostStates of nodes, as a real request does.

        But for services of other hosts: the release reads those of all.
        """
        uuids = [node.uuid for node in nodes]
        hosts = {node.host for node in nodes}
        cells = {node.cell_uuid for node in nodes}
        results = self._ask(
            [cell for cell in self._cells() if cell.uuid in cells],
            lambda cctxt: (
                objects.ComputeNodeList.get_all_by_uuids(cctxt, uuids),
                _get_services(cctxt, hosts)))
        states = list(self.host_manager._get_host_states(
            self.context,
            {cell_uuid: nodes for cell_uuid, (nodes, _) in results.items()},
            {service.host: service for _, services in results.values()
             for service in services}))
        for state in states:
            # Filters that choose among the candidates of a host are to see
            # one of which nothing is known but the host.
            state.allocation_candidates = [
                {'allocations': {state.uuid: {'resources': {}}},
                 'mappings': None}]
        return states

    def _ask(self, cells, function):
        """Return what a function returns for each cell that answers."""
        results = nova_context.scatter_gather_cells(
            self.context, cells, nova_context.CELL_TIMEOUT, function)
        answered = {
            cell_uuid: result for cell_uuid, result in results.items()
            if not nova_context.is_cell_failure_sentinel(result)}
        self.are_known = self.are_known and len(answered) == len(results)
        return answered


def _get_rows(context, names):
    node, service = models.ComputeNode, models.Service
    # The columns alone: an object takes thirty times as long.
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


def _get_services(context, hosts):
    with main_db_api.get_context_manager(context).reader.using(
            context) as session:
        rows = session.query(models.Service).filter(
            models.Service.binary == 'nova-compute',
            models.Service.deleted == 0,
            models.Service.host.in_(hosts)).all()
        return base.obj_make_list(
            context, objects.ServiceList(context), rows)
