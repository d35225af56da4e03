# SPDX-License-Identifier: Apache-2.0

from nova import exception
import nova_pending

released = nova_pending.released(__name__)

#: The first service version whose nova-compute undoes a re-image of a root
#: volume that Cinder refuses.
UNDOES_REIMAGE = released.SERVICE_VERSION + 1

#: The first service version whose service knows PENDING, and the rebuild of
#: servers that were never built.
KNOWS_PENDING = UNDOES_REIMAGE + 1

SERVICE_VERSION = KNOWS_PENDING

SERVICE_VERSION_HISTORY = released.SERVICE_VERSION_HISTORY + (
    # Version 75: Compute RPC v6.5:
    # Compute manager undoes a re-image of a root volume that Cinder refuses
    {'compute_rpc': '6.5'},
    # Version 76: Compute RPC v6.5:
    # Services know PENDING, and build servers that were never built
    {'compute_rpc': '6.5'},
)


@nova_pending.over(released.Service)
class Service:

    def _check_minimum_version(self):
        try:
            released.Service._check_minimum_version(self)
        except exception.ServiceTooOld:
            # nova-manage may have lowered the versions since this process has
            # read the minimum: no heartbeat would be written any more.
            self.clear_min_version_cache()
            released.Service._check_minimum_version(self)
