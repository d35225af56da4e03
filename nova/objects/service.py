# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)

#: The first service version whose service knows PENDING and the rebuilds of
#: nova-pending: of servers that were never built, and of root volumes.
KNOWS_PENDING = released.SERVICE_VERSION + 1

SERVICE_VERSION = KNOWS_PENDING

SERVICE_VERSION_HISTORY = released.SERVICE_VERSION_HISTORY + (
    # Version 75: Compute RPC v6.5:
    # Compute manager undoes a re-image of a root volume that Cinder refuses
    {'compute_rpc': '6.5'},
)
