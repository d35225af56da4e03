# SPDX-License-Identifier: Apache-2.0

from oslo_config import cfg

import nova_pending

released = nova_pending.released(__name__)

base_options = released.base_options + [
    cfg.BoolOpt(
        'use_pending_state',
        default=False,
        mutable=True,
        help='''
Let a server for which no valid host was found wait in PENDING.

A server for which the scheduler finds no valid host is kept in cell0: in ERROR
with this option off, in PENDING with this option on. PENDING tells the owner
that the server waits for room. After any other failure a server is still in
ERROR.

In both states the server can be rebuilt under its ID from microversion 2.106
on (2.105 of Nova 33).

The option is read by nova-conductor. A client sees ``PENDING`` from
microversion 2.105 on (2.104 of Nova 33) and ``ERROR`` before.

Turn the option on only when every nova-api and every nova-conductor knows
PENDING: an older nova-api shows such servers with the status ``UNKNOWN``.

Before a downgrade to a Nova that does not know PENDING, turn the option off
and run ``nova-manage pending set_error``.

Possible values:

* True: servers for which no valid host was found wait in PENDING.
* False: servers for which no valid host was found are in ERROR (default).

Related:

* ``nova-status upgrade check`` tells whether the option may be turned on.
'''),
]
