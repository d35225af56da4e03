# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ComputeTaskPayload)
class ComputeTaskPayload:
    # Version 1.1: PENDING is added to the InstanceState enum
    VERSION = '1.1'
    VERSION_BEFORE_PENDING = '1.0'
