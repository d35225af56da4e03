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

from oslo_config import cfg

import nova_pending

released = nova_pending.released(__name__)

API_OPTS = released.API_OPTS + [
    cfg.IntOpt(
        'pending_verdict_timeout',
        default=10,
        min=1,
        mutable=True,
        help="""
Seconds that a request for why a server waits may ask nova-scheduler.

``GET /servers/{server_id}/pending`` has a nova-scheduler run its filters
without scheduling anything. If none answers within this time, the owner is
told what the last attempt has left with the server, and the rest of the answer
says that it could not be found out.

Possible values:

* A positive integer: the time in seconds (the default is 10).
"""),
]
