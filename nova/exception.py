# SPDX-License-Identifier: Apache-2.0

from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.InstanceInvalidState)
class InstanceInvalidState:

    def __init__(self, message=None, **kwargs):
        if kwargs.get('attr') == 'vm_state':
            kwargs['state'] = pending.shown(kwargs.get('state'))
        released.InstanceInvalidState.__init__(self, message, **kwargs)
