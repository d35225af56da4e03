# SPDX-License-Identifier: Apache-2.0

from oslo_config import cfg

import nova_pending

released = nova_pending.released(__name__)

ALL_OPTS = released.ALL_OPTS + [
    cfg.IntOpt(
        'rebuild_in_cell0_timeout',
        default=600,
        min=0,
        mutable=True,
        help="""
Seconds after which an interrupted rebuild of an unbuilt server is undone.

The rebuild of a server that was never built takes the server out of its cell.
If the nova-api or the nova-conductor that works on the rebuild dies, or loses
a database or the message bus, the server would stay in ``BUILD`` for ever.
After this time without a sign of the rebuild, any nova-conductor puts the
server into cell0, where it can be rebuilt again. The same happens if no
scheduler answers.

A rebuild that is merely slow is undone too, so set more than ``[DEFAULT]
rpc_response_timeout``, and more than a build request can wait for a conductor.
One worker of all nova-conductors looks for interrupted rebuilds once a minute.
No server is put into cell0 while ``[upgrade_levels] conductor`` is set.

Possible values:

* 0: interrupted rebuilds stay as they are. ``nova-manage pending recover``
  undoes them.
* A positive integer: the time in seconds (the default is 600). A value below 4
  counts as 4.

Related options:

* ``[conductor] interrupted_create_timeout``
"""),
    cfg.IntOpt(
        'interrupted_create_timeout',
        default=3600,
        min=0,
        mutable=True,
        help="""
Seconds after which a create that no conductor finishes ends in ERROR.

A server that is being created stays in ``BUILD`` for ever if the
nova-conductor that schedules the server dies. This time after the request for
the create, any nova-conductor puts the server into cell0 in ``ERROR``. From
microversion 2.106 on (2.105 of Nova 33) its owner can rebuild the server.
After a create, a rebuild or a build that failed on another host, a server can
also be in its cell while no host begins to build it. After this time that
server goes to ``ERROR`` in its cell. Because a host may still have the
message, an administrator has to reset the state before a rebuild.

A create that is merely slow ends in ``ERROR`` too, and a host that the
scheduler selects later is not asked to build the server. So set many times
``[DEFAULT] rpc_response_timeout``, and more than a create can wait for a
conductor, or for its turn on a host that builds ``[DEFAULT]
max_concurrent_builds`` servers already: such a server is in ``ERROR`` until
its host builds it. No server is put into cell0 while ``[upgrade_levels]
conductor`` is set; servers in their cells go to ``ERROR`` all the same.

Possible values:

* 0: interrupted creates stay in ``BUILD``, as in a Nova without this option.
* A positive integer: the time in seconds (the default is 3600). A value below
  4 counts as 4.

Related options:

* ``[conductor] rebuild_in_cell0_timeout``
"""),
]
