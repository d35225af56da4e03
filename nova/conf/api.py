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
Seconds that nova-api waits for nova-scheduler to say why a server waits.

For ``GET /servers/{server_id}/pending`` a nova-scheduler runs its filters
without scheduling anything. If no nova-scheduler answers within this time, the
answer has only what the last attempt has left with the server. Administrators
and services read under ``unavailable`` why the hosts are not known.

Possible values:

* A positive integer: the time in seconds (the default is 10).
"""),
]

API_OPTS = released.API_OPTS + pending_opts
