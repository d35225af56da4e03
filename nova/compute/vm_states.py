# SPDX-License-Identifier: Apache-2.0

from nova.objects import fields
import nova_pending

released = nova_pending.released(__name__)

# VM found no host with room, lies in cell0 and waits to be rebuilt
PENDING = fields.InstanceState.PENDING

# Where the API lets a server in ERROR pass its first check, one in PENDING
# passes too and is refused by the same later one: it was never launched.
ALLOW_HARD_REBOOT = released.ALLOW_HARD_REBOOT + [PENDING]
ALLOW_TRIGGER_CRASH_DUMP = released.ALLOW_TRIGGER_CRASH_DUMP + [PENDING]
