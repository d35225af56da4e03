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

"""The options of the group [reaper]: what the reaper does, and when."""

import base64
from typing import Any

from oslo_config import cfg
from oslo_config import types

from nova_reaper.cloud import model
from nova_reaper.decide import victims

DEFAULTS = model.Options()


def _seconds(name: str, **options: Any) -> cfg.IntOpt:
    return cfg.IntOpt(name, max=model.MAX_SECONDS, mutable=True, **options)


def _count(name: str, **options: Any) -> cfg.IntOpt:
    return cfg.IntOpt(name, max=model.MAX_INT, mutable=True, **options)


def hook_key(secret: str) -> bytes:
    """The key of ``hook_secret``.

    :raises: ValueError if it is none
    """
    begin, _, text = secret.partition('whsec_')
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b''
    if begin or not 24 <= len(key) <= 64:
        raise ValueError('[reaper] hook_secret has to be "whsec_" and 24 to '
                         '64 bytes in Base64')
    return key


reaper_opts = [
    cfg.StrOpt(
        'mode', default=DEFAULTS.mode.value, mutable=True,
        choices=[
            ('observe', 'Say what would be done, and do nothing.'),
            ('fill', 'Rebuild servers that wait where there is free room.'),
            ('preempt', 'Also end preemptible servers where there is none.')],
        help="""
How far the reaper may go.

Begin with ``observe`` and read for some days what the reaper says that it
would do. ``fill`` needs the right to rebuild servers and to write allocations;
``preempt`` also the right to stop, delete and shelve servers. A change takes
effect on SIGHUP: what has been begun is brought to its end, or undone if
nobody has been ended yet.
"""),
    cfg.StrOpt(
        'wait', default=DEFAULTS.wait.value, mutable=True,
        choices=[
            ('asked', 'Servers whose owners have asked to wait.'),
            ('all', 'All servers in PENDING.')],
        help="""
For which servers the reaper works.

An owner asks to wait by creating the server at microversion 2.105 or later,
by rebuilding it at 2.106 or later, or by the metadata ``reaper:wait=true`` of
the create. Clients that know nothing of ``PENDING`` see ``ERROR``, give up and
try again: built later, their servers would run, and cost, without anybody
knowing of them.

The property ``reaper:wait`` of a flavor (an extra spec) or of a project,
``asked``, ``all`` or ``never``, goes before the option, in this order; the
metadata ``reaper:wait`` of a server, ``true`` or ``false``, goes before all of
them. Servers that the reaper does not work for stay as they are;
``pending_timeout`` counts for them, too. A server that the reaper has shelved
always comes back.
"""),
    _seconds(
        'min_run_time', default=DEFAULTS.min_run_time, min=0,
        help="""
Seconds for which a preemptible server is safe after its launch. Tell the
tenants: it is what they can count on.
"""),
    _count(
        'max_ends_per_project_hour', default=20, min=0,
        help="""
At most so many preemptible servers of one project are ended within an hour.
0 is no limit. A reaper that starts reads the count from the journal.
"""),
    _count(
        'max_ends_per_hour', default=100, min=0,
        help="""
At most so many preemptible servers of all projects together are ended within
an hour. It bounds what a wrong configuration or a flood of servers can cost
until somebody looks. 0 is no limit. A server that needs more victims than
this waits for free room.
"""),
    _seconds(
        'repeat_protection', default=DEFAULTS.repeat_protection, min=0,
        help="""
Seconds for which a server is safe that was shelved for another and has come
back.
"""),
    _seconds(
        'pending_timeout', default=DEFAULTS.pending_timeout, min=0,
        help="""
Seconds after which a server that waits is given up and set to ERROR. 0 is
never. The extra spec ``reaper:pending_timeout`` of a flavor and the property
of the same name of a project go before the option, in this order.
"""),
    _seconds(
        'nothing_fits_timeout', default=0, min=0,
        help="""
Seconds for which no host could ever have taken a server, were it empty, or the
one that it was created for was not there, before it is given up and set to
ERROR. 0 is never. They begin anew when the reaper is
started. Hosts may be added, or be away for a moment, so leave some time.
"""),
    _seconds(
        'retry_interval', default=DEFAULTS.retry_interval, min=1,
        help="""
Seconds until a server is tried again for which a rebuild did not end with a
running server. Doubled with each attempt, up to ``max_retry_interval``.
"""),
    _seconds(
        'max_retry_interval', default=DEFAULTS.max_retry_interval, min=1,
        help="""
The longest interval in seconds between two attempts, or the first one, where
that is longer.
"""),
    _seconds(
        'build_failed_retry_interval',
        default=DEFAULTS.build_failed_retry_interval, min=1,
        help="""
The first interval in seconds where a host took the server and its build
failed there. Such a failure is rarely cured by time.
"""),
    _seconds(
        'fair_share_half_life', default=DEFAULTS.fair_share_half_life, min=0,
        help="""
Seconds after which what a project was given counts half as much when it is
compared with what others were given. 0: it is never forgotten.
"""),
    cfg.BoolOpt(
        'reserve', default=DEFAULTS.reserve, mutable=True,
        help="""
Whether the server that is the first of those that cannot be placed, as the
queue stands at the moment, keeps those behind it from one host, that which
lacks the least for it. Off, small servers pass
large ones, which may then wait for long; on, room may lie idle: nobody is
ended elsewhere for a server for which there is room on that host.
"""),
    cfg.ListOpt(
        'scorers', default=list(DEFAULTS.scorers), mutable=True,
        item_type=types.String(choices=list(victims.SCORERS)),
        help="""
What decides between sets of servers whose end would make room, in this order;
the smaller value wins. ``priority`` is the highest priority in a set,
``count`` how many servers it has, ``deletes`` how many of them would be
deleted and not shelved, ``priorities`` their priorities from the highest down,
``leftover`` what would be free beyond what is needed (RAM, then VCPUs, then
disk), ``youngest`` how long its servers have run, all together. What is not
named decides nothing. No set ever has a server that could be left out.

A decision in a cloud of 10,000 hosts takes milliseconds where nothing stands
before ``count`` but ``priority`` as the first. In another order sets of every
size are compared, which may take seconds there.
"""),
    _seconds(
        'grace_period', default=120, min=0,
        help="""
Seconds between the notice to a preemptible server and its end. The guest sees
the notice in its metadata within [api] metadata_cache_expiration of Nova, 15
seconds unless configured. 0 ends servers at once: the notice is still written,
and no guest has the time to read it.
"""),
    _seconds(
        'stop_timeout', default=60, min=0,
        help="""
Seconds that a guest is given to shut down (ACPI) before its server is
deleted or shelved. 0 does not stop it first: a delete is then a power cut.
"""),
    _seconds(
        'end_timeout', default=600, min=30,
        help="""
Seconds in which a victim must have ended once it is told to. Then the room is
given back to it, and it is left alone for ``stuck_exclusion``. A shelved
server may have to upload its disk in this time.
"""),
    _count(
        'owner_shelve_max_gb', default=40, min=0,
        help="""
Up to how many GB on the disk of its host a preemptible server is shelved and
not deleted because its owner says so (metadata ``reaper:action``). A shelve
uploads that disk to the image service: a large one takes longer than
``end_timeout``, and the server would never end. The extra spec of the flavor
counts for every size.
"""),
    _seconds(
        'stuck_exclusion', default=3600, min=0,
        help="""
Seconds for which a server that did not end in time is not chosen again.
"""),
    _seconds(
        'rebuild_timeout', default=1800, min=60,
        help="""
Seconds in which a rebuild should lead to a running server. After them the
reaper counts it as failed and watches it no longer; it cancels nothing.
"""),
    cfg.BoolOpt(
        'strict_accounting', default=False, mutable=True,
        help="""
Off, the room of the victims goes to the waiting server before they end, in one
transaction: nobody else can take it, nobody is ended in vain, and for some
moments a victim runs without an allocation. On, they keep theirs until they
have ended: never a guest without an allocation, and a gap in which a third
server may take the room.
"""),
    _count(
        'max_rebuilds', default=20, min=1,
        help="""
At most so many servers are looked at, given room and handed to Nova at the
same time. Servers that Nova has accepted, and that a host builds or Nova keeps
in BUILD, do not count.
"""),
    _count(
        'max_rebuilds_per_project', default=10, min=1,
        help="""
At most so many of ``max_rebuilds`` are of one project, so that no project
holds the others up.
"""),
    _count(
        'max_preemptions', default=5, min=1,
        help="""
For at most so many waiting servers others are under notice, or being ended, at
the same time.
"""),
    _count(
        'max_misses', default=3, min=1,
        help="""
Nobody is ended for a kind of server (its flavor, image, zone and so on) of
which so many did not run within the hour after others had been ended for them:
Nova cannot foresee NUMA, huge pages and pinned CPUs of a host without its
servers. What Nova refused and what a host could not build counts, for an hour;
faults of services do not.
"""),
    _seconds(
        'hold_timeout', default=1800, min=60,
        help="""
Seconds after which held room is given free that the reaper does not work with
itself. Room whose server is in ERROR is given free by the next sweep; that of
a server that was deleted has to be found first, and waits for this time.
"""),
    _seconds(
        'pending_list_interval', default=60, min=5,
        help="""
Seconds between two lists of the servers that wait. It heals what no
notification told; without notifications it is what the reaper lives from.
"""),
    _seconds(
        'full_list_interval', default=600, min=5,
        help="""
Seconds between two lists of everything: hosts, their inventories and
allocations, preemptible servers, holds, notices.
"""),
    cfg.IntOpt(
        'safeguard_shrink_percent', default=30, min=1, max=100, mutable=True,
        help="""
A full list of hosts that is empty, or has lost more than this share since the
list before, is not believed: the reaper only observes until
``safeguard_lists`` lists in a row agree. An empty one is never believed, nor
one with more than this share of hosts of which Placement knows nothing, or no
inventory; hosts that are disabled or down may have none.
"""),
    _count(
        'safeguard_lists', default=3, min=1,
        help='How many full lists in a row have to agree to be believed.'),
    _seconds(
        'max_index_age', default=900, min=60,
        help="""
Nobody is ended while the last full list is older than so many seconds, or
than twice ``full_list_interval`` where that is longer.
"""),
    cfg.IntOpt(
        'workers', default=16, min=1, max=256,
        help='Threads that ask Nova and Placement.'),
    cfg.URIOpt(
        'hook_url', schemes=['http', 'https'], mutable=True,
        deprecated_name='notice_url',
        help="""
Where to POST each record of the journal as JSON, by the Standard Webhooks
specification. A POST that fails is tried again for a quarter of an hour, with
growing intervals; records that follow wait for it. Nothing else waits.
"""),
    cfg.StrOpt(
        'hook_secret', secret=True, mutable=True,
        help="""
With what the header ``webhook-signature`` of each POST is made (HMAC with
SHA-256): ``whsec_`` and then 24 to 64 random bytes in Base64, as
``echo whsec_$(openssl rand -base64 32)`` writes it. Without it nothing is
signed, and a receiver cannot tell the reaper from others.
"""),
]
