# SPDX-License-Identifier: Apache-2.0

from nova.compute import vm_states
from nova import exception
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ResourceTracker)
class ResourceTracker:

    @nova_pending.replaces('b79b6bd8305a301d')
    def _set_instance_host_and_node(self, instance, node):
        """Tag the instance as belonging to this host.  This should be done
        while the COMPUTE_RESOURCES_SEMAPHORE is held so the resource claim
        will not be lost if the audit process starts.
        """
        # NOTE(mriedem): ComputeManager._nil_out_instance_obj_host_and_node is
        # somewhat tightly coupled to the fields set in this method so if this
        # method changes that method might need to be updated.
        instance.host = self.host
        instance.launched_on = self.host
        if node is not None:
            # NOTE(danms): This method can be called when the node is disabled,
            # which means not in our list. The note in instance_claim()
            # explains that we should actually never get there (here) and that
            # if we do, we will likely record the instance membership
            # incorrectly. As such, if we do not have a compute node to
            # update the instance, just avoid making a change.
            instance.node = node.hypervisor_hostname
            instance.compute_id = node.id
        if ('vm_state' not in instance or
                instance.vm_state != vm_states.BUILDING):
            instance.save()
            return
        # A build can wait long for its claim: recovery sets the server to
        # ERROR, and a rebuild may build the server elsewhere.
        try:
            instance.save(expected_vm_state=[vm_states.BUILDING],
                          expected_task_state=[None])
        except exception.InstanceUpdateConflict:
            # The clean-up saves the Instance.
            instance.obj_reset_changes()
            raise exception.InstanceNotFound(instance_id=instance.uuid)

    def delete_allocation_for_evacuated_instance(self, context, instance, node,
                                                 node_type='source'):
        # A rebuild that fails is taken for an evacuation that fails. The
        # server has not moved, and needs what it has allocated.
        if (node_type == 'destination' and
                (instance.host, instance.node) == (self.host, node)):
            return
        released.ResourceTracker.delete_allocation_for_evacuated_instance(
            self, context, instance, node, node_type=node_type)
