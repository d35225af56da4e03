# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.SchedulerQueryClient)
class SchedulerQueryClient:

    @nova_pending.new
    def select_held_destination(self, context, spec_obj, hold):
        """Do what SchedulerAPI.select_held_destination() does."""
        return self.scheduler_rpcapi.select_held_destination(
            context, spec_obj, hold)
