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

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.InstancePayload)
class InstancePayload:
    # Version 1.10: PENDING is added to the InstanceState enum
    VERSION = '1.10'
    VERSION_BEFORE_PENDING = '1.9'


@nova_pending.over(released.InstanceActionPayload)
class InstanceActionPayload:
    # Version 1.10: PENDING is added to the InstanceState enum
    VERSION = '1.10'
    VERSION_BEFORE_PENDING = '1.9'


@nova_pending.over(released.InstanceActionVolumePayload)
class InstanceActionVolumePayload:
    # Version 1.8: PENDING is added to the InstanceState enum
    VERSION = '1.8'
    VERSION_BEFORE_PENDING = '1.7'


@nova_pending.over(released.InstanceActionSharePayload)
class InstanceActionSharePayload:
    # Version 1.1: PENDING is added to the InstanceState enum
    VERSION = '1.1'
    VERSION_BEFORE_PENDING = '1.0'


@nova_pending.over(released.InstanceActionVolumeSwapPayload)
class InstanceActionVolumeSwapPayload:
    # Version 1.10: PENDING is added to the InstanceState enum
    VERSION = '1.10'
    VERSION_BEFORE_PENDING = '1.9'


@nova_pending.over(released.InstanceCreatePayload)
class InstanceCreatePayload:
    # Version 1.14: PENDING is added to the InstanceState enum
    VERSION = '1.14'
    VERSION_BEFORE_PENDING = '1.13'


@nova_pending.over(released.InstanceActionResizePrepPayload)
class InstanceActionResizePrepPayload:
    # Version 1.5: PENDING is added to the InstanceState enum
    VERSION = '1.5'
    VERSION_BEFORE_PENDING = '1.4'


@nova_pending.over(released.InstanceUpdatePayload)
class InstanceUpdatePayload:
    # Version 2.2: PENDING is added to the InstanceState enum
    VERSION = '2.2'
    VERSION_BEFORE_PENDING = '2.1'

    def says_pending(self):
        update = self.state_update
        return (vm_states.PENDING in (update.old_state, update.state) or
                released.InstanceUpdatePayload.says_pending(self))


@nova_pending.over(released.InstanceActionRescuePayload)
class InstanceActionRescuePayload:
    # Version 1.5: PENDING is added to the InstanceState enum
    VERSION = '1.5'
    VERSION_BEFORE_PENDING = '1.4'


@nova_pending.over(released.InstanceActionRebuildPayload)
class InstanceActionRebuildPayload:
    # Version 1.11: PENDING is added to the InstanceState enum
    VERSION = '1.11'
    VERSION_BEFORE_PENDING = '1.10'


@nova_pending.over(released.InstanceActionSnapshotPayload)
class InstanceActionSnapshotPayload:
    # Version 1.11: PENDING is added to the InstanceState enum
    VERSION = '1.11'
    VERSION_BEFORE_PENDING = '1.10'


@nova_pending.over(released.InstanceExistsPayload)
class InstanceExistsPayload:
    # Version 2.2: PENDING is added to the InstanceState enum
    VERSION = '2.2'
    VERSION_BEFORE_PENDING = '2.1'
