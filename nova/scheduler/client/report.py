# SPDX-License-Identifier: Apache-2.0

from keystoneauth1 import exceptions as ks_exc
import os_resource_classes as orc

from nova.scheduler import held_candidate
from nova.scheduler import held_room
from nova.scheduler import lost_claims
import nova_pending

released = nova_pending.released(__name__)


def drop_held_room(context, instance_uuid):
    """Give back the room that is held for a server.

    A failure is only logged: the service that wrote the hold can delete it.

    :returns: True if nothing is held for the server any more
    """
    try:
        client = report_client_singleton()  # noqa: F821
        hold = held_room.find(context, client, instance_uuid)
        return hold is None or held_room.drop(context, client, hold)
    except ks_exc.ClientException as exc:
        LOG.warning(  # noqa: F821
            'The room that may be held for the server cannot be given back: '
            '%s', exc, instance_uuid=instance_uuid)
        return False


@nova_pending.over(released.SchedulerReportClient)
class SchedulerReportClient:

    def get_allocation_candidates(self, context, resources):
        held = held_candidate.candidates(context, self, resources)
        if held is not None:
            return (*held, held_room.VERSION)
        return released.SchedulerReportClient.get_allocation_candidates(
            self, context, resources)

    def claim_resources(self, context, consumer_uuid, alloc_request,
                        project_id, user_id, *args, **kwargs):
        build = context.hold
        if build is not None and build.taken:
            return held_room.claim(
                context, self, build.hold, project_id, user_id)
        if build is not None:
            # Placement refuses the claim if the server has allocations: this
            # scheduler is late then, and another has placed the server. With a
            # generation the claim would add to the allocations.
            alloc_request = dict(alloc_request, consumer_generation=None)
        claimed = released.SchedulerReportClient.claim_resources(
            self, context, consumer_uuid, alloc_request, project_id, user_id,
            *args, **kwargs)
        if claimed and build is not None:
            lost_claims.check(context, self, consumer_uuid)
        return claimed

    def get_usages_counts_for_limits(self, context, project_id):
        usages = released.SchedulerReportClient.get_usages_counts_for_limits(
            self, context, project_id)
        held = held_room.uncounted(context, project_id)
        return {resource_class: amount - held[resource_class]
                for resource_class, amount in usages.items()}

    def get_usages_counts_for_quota(self, context, project_id, user_id=None):
        counts = released.SchedulerReportClient.get_usages_counts_for_quota(
            self, context, project_id, user_id=user_id)
        for whose, user in (('project', None), ('user', user_id)):
            if whose in counts:
                held = held_room.uncounted(context, project_id, user)
                counts[whose]['cores'] -= held[orc.VCPU] + held[orc.PCPU]
                counts[whose]['ram'] -= held[orc.MEMORY_MB]
        return counts
