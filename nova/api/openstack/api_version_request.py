# SPDX-License-Identifier: Apache-2.0

import nova_pending

released = nova_pending.released(__name__)

REST_API_VERSION_HISTORY = released.REST_API_VERSION_HISTORY + """
    * 2.105 - Servers for which no valid host was found may wait in the status
              ``PENDING`` (``ERROR`` at older microversions). The status is
              shown in server responses, and servers can be filtered by it.
    * 2.106 - The ``rebuild`` action takes a server that was never built and is
              in ``PENDING`` or ``ERROR`` out of its cell and builds it under
              the same ID. ``imageRef`` may be null or left out.
    * 2.107 - Add ``GET /servers/{server_id}/pending``, which tells why a
              server waits in ``PENDING``. Servers in ``PENDING`` show in
              ``asked_to_wait`` whether their owner knows of that status. The
              ``rebuild`` action of a server that was never built takes
              ``flavorRef`` and ``availability_zone``. Add ``GET /pending``,
              which tells the first microversion of each feature for waiting
              servers, and no server. Add ``POST /pending``, which tells what a
              server that is not created would ask for, and which hosts refuse
              it.
"""

_MAX_API_VERSION = '2.107'
