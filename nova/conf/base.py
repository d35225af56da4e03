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

When the scheduler finds no valid host for a new server, the server is kept in
cell0. With this option off it is in ERROR there. With this option on it is in
PENDING, which tells its owner that it waits for room. From either it can be
rebuilt under its ID from microversion 2.106 on (2.105 of Nova 33). Every other
failure still gives ERROR.

The option is read by nova-conductor. A client sees ``PENDING`` from
microversion 2.105 on (2.104 of Nova 33) and ``ERROR`` before.

Turn it on only when every nova-api and every nova-conductor knows PENDING: a
nova-api that does not shows the status of such servers as ``UNKNOWN``. Before
a downgrade to a Nova that does not, turn it off and run ``nova-manage pending
set_error``.

Possible values:

* True: servers for which no valid host was found wait in PENDING.
* False: they are in ERROR (default).

Related:

* ``nova-status upgrade check`` tells whether the option may be turned on.
'''),
]
