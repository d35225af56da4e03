# SPDX-License-Identifier: Apache-2.0

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)

# PENDING is added to the InstanceState enum: one more minor version each.
for _name in ('InstancePayload', 'InstanceActionPayload',
              'InstanceActionVolumePayload', 'InstanceActionSharePayload',
              'InstanceActionVolumeSwapPayload', 'InstanceCreatePayload',
              'InstanceActionResizePrepPayload', 'InstanceUpdatePayload',
              'InstanceActionRescuePayload', 'InstanceActionRebuildPayload',
              'InstanceActionSnapshotPayload', 'InstanceExistsPayload'):
    _class = getattr(released, _name)
    _major, _minor = _class.VERSION.split('.')
    nova_pending.over(_class)(type(_name, (), {
        '__module__': __name__,
        'VERSION': '%s.%d' % (_major, int(_minor) + 1),
        'VERSION_BEFORE_PENDING': _class.VERSION}))


@nova_pending.over(released.InstanceUpdatePayload)
class InstanceUpdatePayload:

    def says_pending(self):
        update = self.state_update
        return (vm_states.PENDING in (update.old_state, update.state) or
                released.InstanceUpdatePayload.says_pending(self))
