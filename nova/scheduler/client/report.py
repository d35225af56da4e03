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

import os_resource_classes as orc

from nova.scheduler import held_candidate
from nova.scheduler import held_room
from nova.scheduler import lost_claims
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.SchedulerReportClient)
class SchedulerReportClient:

    def get_allocation_candidates(self, context, resources):
        held = held_candidate.candidates(context, self, resources)
        if held is not None:
            return (*held, held_room.VERSION)
        return released.SchedulerReportClient.get_allocation_candidates(
            self, context, resources)

    def claim_resources(self, context, consumer_uuid, alloc_request,
                        project_id, user_id, allocation_request_version,
                        consumer_generation=None):
        hold = held_candidate.is_claimed_by(context, consumer_uuid)
        if hold is not None:
            return held_room.claim(context, self, hold, project_id, user_id)
        is_build = context.hold is not None
        if is_build:
            # Placement refuses the claim if the server has allocations: the
            # conductor of a late scheduler has given up then, and the server
            # is built by another. The release would add to the allocations.
            alloc_request = dict(alloc_request, consumer_generation=None)
        claimed = released.SchedulerReportClient.claim_resources(
            self, context, consumer_uuid, alloc_request, project_id, user_id,
            allocation_request_version,
            consumer_generation=consumer_generation)
        if claimed and is_build:
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
