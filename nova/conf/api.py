# SPDX-License-Identifier: Apache-2.0

from oslo_config import cfg

import nova_pending

released = nova_pending.released(__name__)

pending_opts = [
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

API_OPTS = released.API_OPTS + pending_opts
