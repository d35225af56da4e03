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
