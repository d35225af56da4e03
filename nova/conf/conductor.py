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

ALL_OPTS = released.ALL_OPTS + [
    cfg.IntOpt(
        'rebuild_in_cell0_timeout',
        default=600,
        min=0,
        mutable=True,
        help="""
Seconds after which an interrupted rebuild of a server in cell0 is undone.

A rebuild takes the server out of cell0, has it scheduled and asks a host to
build it. If the nova-api or the nova-conductor that does so dies, or loses a
database or the message bus, the server would stay in ``BUILD`` for ever. Once
this time has passed since the rebuild was asked for, or since the server was
given to the cell of its host, any nova-conductor puts the server back where it
was; its owner can rebuild it again.

A rebuild that is merely slow is undone too, so the value should be longer
than ``[DEFAULT] rpc_response_timeout`` and than a build request can wait for
a conductor. One worker of all nova-conductors looks for them once a minute;
what a scheduler has claimed that answered too late is deleted at that time,
too. Nothing is done while ``[upgrade_levels] conductor`` is set.

Possible values:

* 0: interrupted rebuilds stay as they are. ``nova-manage pending recover``
  undoes them.
* A positive integer: the time in seconds (the default is 600). Less than 4
  count as 4.
"""),
]
