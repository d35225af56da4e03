# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ResourceTracker)
class ResourceTracker:

    def delete_allocation_for_evacuated_instance(self, context, instance, node,
                                                 node_type='source'):
        # A rebuild that fails is taken for an evacuation that fails. The
        # server has not moved, and needs what it has allocated.
        if (node_type == 'destination' and
                (instance.host, instance.node) == (self.host, node)):
            return
        released.ResourceTracker.delete_allocation_for_evacuated_instance(
            self, context, instance, node, node_type=node_type)
