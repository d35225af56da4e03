# SPDX-License-Identifier: Apache-2.0

import typing as ty

import oslo_messaging as messaging

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler import held_candidate
from nova.scheduler import pending_verdict
import nova_pending

released = nova_pending.released(__name__)


def _is_move(spec_obj):
    """Whether the server to be scheduled has been on a host."""
    destination = ('requested_destination' in spec_obj and
                   spec_obj.requested_destination)
    return bool(destination) and (
        destination.allow_cross_cell_move or
        'cell' in destination and destination.cell is not None)


@nova_pending.over(released.SchedulerManager)
class SchedulerManager:

    target = messaging.Target(version='4.7')

    def _schedule(
        self, context, spec_obj, instance_uuids, alloc_reqs_by_rp_uuid,
        provider_summaries, allocation_request_version=None,
        return_alternates=False,
    ):
        if context.hold is None and not _is_move(spec_obj):
            context.hold = held_candidate.ScheduledHold()
        return released.SchedulerManager._schedule(
            self, context, spec_obj, instance_uuids, alloc_reqs_by_rp_uuid,
            provider_summaries, allocation_request_version, return_alternates)

    @nova_pending.new
    def select_held_destination(self, context, spec_obj, hold):
        """Do what select_destinations() does, for a server with held room.

        :param spec_obj: the RequestSpec of one server
        :param hold: what held_room.find() returned
        :returns: a list of lists of Selection objects
        :raises: NoValidHost
        """
        context.hold = held_candidate.ScheduledHold(hold)
        return self.select_destinations(
            context, spec_obj=spec_obj,
            instance_uuids=[spec_obj.instance_uuid],
            return_objects=True, return_alternates=True)

    @nova_pending.new
    @messaging.expected_exceptions(exception.MarkerNotFound)
    def get_pending_verdict(
        self,
        context: nova_context.RequestContext,
        spec_obj: 'objects.RequestSpec',
        hosts: list[str] | None = None,
        marker: str | None = None,
        limit: int | None = None,
        reason: bool = True,
        is_tenant: bool = False,
        without: ty.Sequence[str] = (),
    ) -> dict[str, ty.Any]:
        """Tell why a request waits; schedule nothing.

        The parameters are those of pending_verdict.find().

        :returns: what that function returned
        """
        return pending_verdict.find(
            context.elevated(), spec_obj, self.host_manager,
            self.placement_client, hosts, marker, limit, reason, is_tenant,
            without)
