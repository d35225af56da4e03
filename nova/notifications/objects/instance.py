# SPDX-License-Identifier: Apache-2.0

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.InstancePayload)
class InstancePayload:
    # Version 1.10: Added PENDING to the states
    VERSION = '1.10'
    VERSION_BEFORE_PENDING = '1.9'


@nova_pending.over(released.InstanceActionPayload)
class InstanceActionPayload:
    # Version 1.10: Added PENDING to the states
    VERSION = '1.10'
    VERSION_BEFORE_PENDING = '1.9'


@nova_pending.over(released.InstanceActionVolumePayload)
class InstanceActionVolumePayload:
    # Version 1.8: Added PENDING to the states
    VERSION = '1.8'
    VERSION_BEFORE_PENDING = '1.7'


@nova_pending.over(released.InstanceActionSharePayload)
class InstanceActionSharePayload:
    # Version 1.1: Added PENDING to the states
    VERSION = '1.1'
    VERSION_BEFORE_PENDING = '1.0'


@nova_pending.over(released.InstanceActionVolumeSwapPayload)
class InstanceActionVolumeSwapPayload:
    # Version 1.10: Added PENDING to the states
    VERSION = '1.10'
    VERSION_BEFORE_PENDING = '1.9'


@nova_pending.over(released.InstanceCreatePayload)
class InstanceCreatePayload:
    # Version 1.14: Added PENDING to the states
    VERSION = '1.14'
    VERSION_BEFORE_PENDING = '1.13'


@nova_pending.over(released.InstanceActionResizePrepPayload)
class InstanceActionResizePrepPayload:
    # Version 1.5: Added PENDING to the states
    VERSION = '1.5'
    VERSION_BEFORE_PENDING = '1.4'


@nova_pending.over(released.InstanceUpdatePayload)
class InstanceUpdatePayload:
    # Version 2.2: Added PENDING to the states
    VERSION = '2.2'
    VERSION_BEFORE_PENDING = '2.1'

    def says_pending(self):
        update = self.state_update
        return (vm_states.PENDING in (update.old_state, update.state) or
                released.InstanceUpdatePayload.says_pending(self))


@nova_pending.over(released.InstanceActionRescuePayload)
class InstanceActionRescuePayload:
    # Version 1.5: Added PENDING to the states
    VERSION = '1.5'
    VERSION_BEFORE_PENDING = '1.4'


@nova_pending.over(released.InstanceActionRebuildPayload)
class InstanceActionRebuildPayload:
    # Version 1.11: Added PENDING to the states
    VERSION = '1.11'
    VERSION_BEFORE_PENDING = '1.10'


@nova_pending.over(released.InstanceActionSnapshotPayload)
class InstanceActionSnapshotPayload:
    # Version 1.11: Added PENDING to the states
    VERSION = '1.11'
    VERSION_BEFORE_PENDING = '1.10'


@nova_pending.over(released.InstanceExistsPayload)
class InstanceExistsPayload:
    # Version 2.2: Added PENDING to the states
    VERSION = '2.2'
    VERSION_BEFORE_PENDING = '2.1'
