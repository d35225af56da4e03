# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)


class InstanceState(released.InstanceState):
    #: In cell0 because no host had room, and waiting for one.
    PENDING = 'pending'

    ALL = released.InstanceState.ALL + (PENDING,)


class InstanceStateField(released.InstanceStateField):
    AUTO_TYPE = InstanceState()
