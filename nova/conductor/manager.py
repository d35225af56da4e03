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

import nova_pending
from nova.compute import vm_states
import nova.conf
from nova import exception
from nova import objects

CONF = nova.conf.CONF

released = nova_pending.released(__name__)


def _waits_for_room(context, exc):
    """Whether a server that a failed build leaves is to wait in PENDING.

    It is if it is being buried in cell0 and the scheduler found no valid
    host. MaxRetriesExceeded, a NoValidHost too, says that hosts had room and
    the build failed on each.
    """
    return (CONF.use_pending_state and
            context.cell_uuid == objects.CellMapping.CELL0_UUID and
            isinstance(exc, exception.NoValidHost) and
            not isinstance(exc, exception.MaxRetriesExceeded))


@nova_pending.over(released.ComputeTaskManager)
class ComputeTaskManager:

    def _set_vm_state_and_notify(self, context, instance_uuid, method,
                                 updates, ex, request_spec):
        if _waits_for_room(context, ex):
            updates = dict(updates, vm_state=vm_states.PENDING)
        released.ComputeTaskManager._set_vm_state_and_notify(
            self, context, instance_uuid, method, updates, ex, request_spec)
