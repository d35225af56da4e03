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

REST_API_VERSION_HISTORY = released.REST_API_VERSION_HISTORY + """
    * 2.105 - Servers for which no valid host was found may wait in the status
              ``PENDING`` (``ERROR`` at older microversions). The status is
              shown in server responses, and servers can be filtered by it.
    * 2.106 - The ``rebuild`` action takes a server that is in ``PENDING`` or
              ``ERROR`` because it was never built out of cell0 and builds it
              under the same ID. ``imageRef`` may be null or left out.
    * 2.107 - Add ``GET /servers/{server_id}/pending``, which tells why a
              server waits in ``PENDING``. Servers in ``PENDING`` show in
              ``asked_to_wait`` whether their owner knows of that status. The
              ``rebuild`` action of a server that was never built takes
              ``flavorRef`` and ``availability_zone``.
"""

_MAX_API_VERSION = '2.107'
