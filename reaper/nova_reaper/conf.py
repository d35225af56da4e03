# SPDX-License-Identifier: Apache-2.0

"""Every option of nova-reaper.

``oslo-config-generator --namespace nova_reaper`` writes a sample of them.
"""

import base64
import dataclasses
import itertools
import math
from typing import Any

from keystoneauth1 import loading
from oslo_config import cfg
from oslo_config import types
from oslo_db import options as db_options
from oslo_log import log
import sqlalchemy as sa

from nova_reaper.cloud import model
from nova_reaper.decide import victims

LOG = log.getLogger(__name__)
AUTH_GROUP = 'nova_reaper'
_CHOICE = model.Options()


def _count(name: str, **settings: Any) -> cfg.IntOpt:
    """An option of a whole number, with the default of model.Options."""
    settings = {'default': getattr(_CHOICE, name, None), 'max': model.MAX_INT,
                'mutable': True} | settings
    return cfg.IntOpt(name, **settings)


def _seconds(name: str, **settings: Any) -> cfg.IntOpt:
    return _count(name, max=model.MAX_SECONDS, **settings)


def hook_key(secret: str) -> bytes:
    """The key that ``hook_secret`` has in Base64.

    :raises: oslo_config.cfg.Error for a text that has no such key
    """
    begin, _, text = secret.partition('whsec_')
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b''
    if begin or not 24 <= len(key) <= 64:
        raise cfg.ConfigFileValueError(
            '[reaper] hook_secret has to be "whsec_" and 24 to 64 bytes in '
            'Base64')
    return key


reaper_opts = [
    cfg.StrOpt(
        'mode', default=_CHOICE.mode.value, mutable=True,
        choices=[
            ('observe', 'Say what would be done, and do nothing.'),
            ('fill', 'Rebuild servers that wait where there is free room.'),
            ('preempt', 'Also end preemptible servers where there is none.')],
        help="""
How far the reaper may go.

Begin with ``observe`` and read for some days what the reaper says that it
would do. ``fill`` needs the right to rebuild servers and to write allocations;
``preempt`` also the right to stop, delete and shelve servers. A change takes
effect on SIGHUP: the reaper ends no further server, and undoes each attempt
that still has servers to end.
"""),
    cfg.StrOpt(
        'wait', default=_CHOICE.wait.value, mutable=True,
        choices=[
            ('asked', 'Servers whose owners have asked to wait.'),
            ('all', 'All servers in PENDING.')],
        help="""
For which servers the reaper works.

An owner asks to wait by creating the server at microversion 2.105 or later,
by rebuilding it at 2.106 or later, or by the metadata ``reaper:wait=true`` of
the create. A client that does not know ``PENDING`` sees ``ERROR``, gives up
and creates another server: if the reaper built the first server later, that
server would run, and cost money, without anybody knowing.

The extra spec ``reaper:wait`` of the flavor overrides the property
``reaper:wait`` of the project, and that overrides this option; the values are
``asked``, ``all`` and ``never``. The metadata ``reaper:wait`` of a server,
``true`` or ``false``, overrides all of them. Servers that the reaper does not
work for stay as they are; ``pending_timeout`` applies to them, too. A server
that the reaper has shelved always comes back.
"""),
    _seconds('min_run_time', min=0, help="""
Seconds after its launch for which the reaper does not end a preemptible
server. Tell your tenants that they can rely on a server for this time.
"""),
    _count('max_ends_per_project_hour', default=20, min=0, help="""
The most preemptible servers of one project that the reaper ends within an
hour. 0 is no limit. A reaper that starts reads the count from the journal.
"""),
    _count('max_ends_per_hour', default=100, min=0, help="""
The most preemptible servers of all projects together that the reaper ends
within an hour. The option bounds what a wrong configuration or a flood of
servers can cost until somebody looks. A server counts from its notice on, and
for an hour after its end, or after its end was given up because it hangs. 0 is
no limit. A server that needs more victims than this waits for free room.
"""),
    _seconds('repeat_protection', min=0, help="""
Seconds after its return for which the reaper does not end a server again that
it had shelved for another server.
"""),
    _seconds('pending_timeout', min=0, help="""
Seconds after which the reaper gives up a server that waits and sets the server
to ERROR. 0 is never. The extra spec ``reaper:pending_timeout`` of the flavor
overrides the property ``reaper:pending_timeout`` of the project, and that
overrides this option.
"""),
    _seconds('nothing_fits_timeout', default=0, min=0, help="""
Seconds after which the reaper gives up a server that no host could take even
if the host were empty, or whose host does not exist, and sets the server to
ERROR. 0 is never. The time begins anew when the reaper is started. Hosts may
be added, or be away for a moment, so leave some time.
"""),
    _seconds('retry_interval', min=1, help="""
Seconds after which the reaper tries a server again whose rebuild did not lead
to a running server. The interval doubles with each such rebuild, up to
``max_retry_interval``.
"""),
    _seconds('max_retry_interval', min=1, help="""
The longest interval in seconds between two attempts. A longer first interval
(``retry_interval``, ``build_failed_retry_interval``) is kept, and not doubled.
"""),
    _seconds('build_failed_retry_interval', min=1, help="""
The first interval in seconds if a host took the server and could not build the
server. Time rarely cures such a failure.
"""),
    _seconds('fair_share_half_life', min=0, help="""
Seconds after which the room that a project was given counts half as much in
the comparison with other projects. With 0 the room always counts in full.
"""),
    cfg.BoolOpt('reserve', default=_CHOICE.reserve, mutable=True, help="""
Whether the first server in the queue for which there is no room reserves a
host: the host closest to having enough room for that server. With the option
off, small servers pass large servers, which may then wait for long. With the
option on, room may lie idle, and the reaper ends nobody on other hosts for a
server for which the reserved host has room.
"""),
    cfg.ListOpt(
        'scorers', default=list(_CHOICE.scorers), mutable=True,
        item_type=types.String(choices=list(victims.SCORERS)),
        help="""
How the reaper compares sets of servers whose end would make room. It compares
the values of the scorers in this order; the smaller value wins. ``priority``
is the highest priority in a set, ``count`` the number of its servers,
``deletes`` how many of them would be deleted and not shelved, ``priorities``
their priorities from the highest down, ``leftover`` what would be free beyond
what is needed (PCI devices and other scarce resource classes that become free,
then RAM, then VCPUs, then disk), ``youngest`` how long all servers of the set
have run together. A scorer that is not named decides nothing, but for
``count``, which comes last if it is not named. No set ever has a server that
could be left out.

A decision in a cloud of 10,000 hosts takes milliseconds if ``count`` is first,
or second after ``priority``. In another order the reaper compares sets of
every size, which may take seconds.
"""),
    _seconds('grace_period', default=120, min=0, help="""
Seconds between the notice to a preemptible server and its end. The guest sees
the notice in its metadata within [api] metadata_cache_expiration of Nova, 15
seconds unless configured. With 0 the reaper ends servers at once: it still
writes the notice, but no guest has the time to read it.
"""),
    _seconds('stop_timeout', default=60, min=0, help="""
Seconds that a guest has to shut down (ACPI) before the reaper deletes or
shelves its server. With 0 the reaper does not stop the server first, so a
delete is a power cut. If a server has a task, such as a snapshot, when its
notice is over, the reaper waits for this time, too, and then leaves the server
alone for ``stuck_exclusion``. While the owner of the waiting server rebuilds
that server, a notice stays in force for this time after its end.
"""),
    _seconds('end_timeout', default=600, min=30, help="""
Seconds in which a victim has to end after the reaper has asked Nova to end it.
After that time the victim gets its room back, and the reaper leaves the victim
alone for ``stuck_exclusion``. A shelved server may have to upload its disk in
this time.
"""),
    _count('owner_shelve_max_gb', default=40, min=0, help="""
The most GB on the disk of its host with which a preemptible server is shelved,
and not deleted, because its owner says so (metadata ``reaper:action``). A
shelve uploads that disk to the image service: a large disk takes longer than
``end_timeout``, and the server would never end. The extra spec of the flavor
counts for disks of every size.
"""),
    _seconds('stuck_exclusion', default=3600, min=0, help="""
Seconds for which the reaper does not choose a server again that did not end in
time. If its host has ended none of the servers that were to make room, the
reaper chooses no server of that host for this time.
"""),
    _seconds('rebuild_timeout', default=1800, min=60, help="""
Seconds in which a rebuild should lead to a running server. After that time the
reaper counts the rebuild as failed and no longer watches it. The reaper does
not cancel the rebuild.
"""),
    cfg.BoolOpt('strict_accounting', default=False, mutable=True, help="""
Off, the room of the victims goes to the waiting server before they end, in one
transaction: no other server can take the room, no victim is ended in vain, and
for some moments a victim runs without an allocation. On, the victims keep
their allocations until they have ended: no guest ever runs without an
allocation, and a third server may take the room before the waiting server.
"""),
    _count('max_rebuilds', default=20, min=1, help="""
The most servers that the reaper gives room and hands to Nova at the same time.
Servers that Nova has accepted, and that a host builds or Nova keeps in BUILD,
do not count.
"""),
    _count('max_rebuilds_per_project', default=10, min=1, help="""
How many of ``max_rebuilds`` may belong to one project, so that no project
holds the other projects up.
"""),
    cfg.IntOpt('verdict_rate', default=1000, min=0, max=model.MAX_INT, help="""
About how many hosts a second the reaper asks nova-scheduler about, whether its
filters refuse them, for all servers that wait together; each question counts
as 15 hosts more. A thread of a nova-scheduler judges some 1,500 hosts a
second. The reaper asks about the 32 best hosts of a server when it is about to
do something for the server. 0 is no limit.
"""),
    _count('max_preemptions', default=5, min=1, help="""
The most waiting servers for which other servers are under notice, or being
ended, at the same time.
"""),
    _count('max_misses', default=3, min=1, help="""
The reaper ends nobody for a kind of server (flavor, image, zone and so on)
after this number of servers of that kind did not run although others had been
ended for them. Refusals of Nova and failed builds count for an hour, and
faults of services do not count.
"""),
    _seconds('hold_timeout', default=1800, min=60, help="""
Seconds after which the reaper releases held room that none of its own attempts
uses. The next sweep releases the room of a server that is in ERROR. The room
of a server that was deleted has to be found first, and waits for this time.
"""),
    _seconds('pending_list_interval', default=60, min=5, help="""
Seconds between two lists of what has changed: servers and their hosts. A list
finds the changes for which no notification came, and reads a part of the
other hosts again. Without notifications the reaper polls by these lists.
"""),
    _seconds('full_list_interval', default=600, min=5, help="""
Seconds between two lists of all waiting and preemptible servers. Within this
time the reaper also reads each host again, with inventory and allocations.
"""),
    cfg.IntOpt(
        'safeguard_shrink_percent', default=30, min=1, max=100, mutable=True,
        help="""
A share of hosts in percent. If a full list has lost more of the hosts since
the list before, the reaper does not believe the list: it only observes until
``safeguard_lists`` lists in a row agree. The reaper never believes an empty
list, nor a list in which Placement does not know more than this share of the
hosts, or has no inventory of them. Hosts that are disabled or down may have no
inventory.
"""),
    _count(
        'safeguard_lists', default=3, min=1,
        help='How many full lists in a row have to agree until the reaper '
             'believes them.'),
    _seconds('max_index_age', default=900, min=60, help="""
The reaper ends nobody while the last full list is older than this number of
seconds, or than twice ``full_list_interval`` if that is longer.
"""),
    cfg.IntOpt(
        'workers', default=16, min=1, max=256,
        help='Threads that ask Nova and Placement.'),
    cfg.URIOpt(
        'hook_url', schemes=['http', 'https'], mutable=True,
        deprecated_name='notice_url',
        help="""
The URL to which the reaper POSTs each record of the journal as JSON, by the
Standard Webhooks specification. The reaper repeats a POST that fails for a
quarter of an hour, with growing intervals. Only the records that follow wait
for that.
"""),
    cfg.StrOpt('hook_secret', secret=True, mutable=True, help="""
The secret of the header ``webhook-signature`` of each POST (HMAC with
SHA-256): ``whsec_`` and then 24 to 64 random bytes in Base64, as ``echo
whsec_$(openssl rand -base64 32)`` writes it. Without the secret the reaper
signs nothing, and a receiver cannot tell the reaper from other senders.
"""),
]

notifications_opts = [
    cfg.BoolOpt('enabled', default=True, help="""
Whether to listen to Nova's notifications. With the option off the reaper
polls, and finds free room only when it reads its next list.
"""),
    cfg.ListOpt('topics', default=['reaper_notifications'], help="""
Topics to listen on. They must be the reaper's own: the bus delivers each
message of a topic to a single listener, so on a shared topic the reaper would
take messages from others. Name the topic beside the default in the nova.conf
of every Nova service: ``[notifications] versioned_notifications_topics``,
``notification_format = versioned`` (or ``both``) and ``notify_on_state_change
= vm_state``; ``[oslo_messaging_notifications] driver = messagingv2``.
"""),
    cfg.StrOpt('transport_url', secret=True, help="""
The message bus of the notifications, as a URL like ``[DEFAULT]
transport_url``. That option is used if this option is not set.
"""),
    cfg.IntOpt(
        'batch_size', default=100, min=1,
        help='The most notifications that the reaper handles at once.'),
    cfg.FloatOpt(
        'batch_timeout', default=0.1, min=0.01, max=model.MAX_SECONDS,
        help='Seconds to wait until a batch is full.'),
    cfg.IntOpt('silence', default=900, min=60, max=model.MAX_SECONDS, help="""
Seconds without any notification after which /healthz and the log say that the
reaper is degraded.
"""),
]

coordination_opts = [
    cfg.StrOpt('backend_url', secret=True, help="""
Where the reapers of a cloud find out which of them is the active one, as a
tooz URL: ``redis://host:6379``, ``etcd3+http://host:2379`` or, for reapers on
the same machine, ``file:///var/lib/nova-reaper/lock``. Leave it out for a
single reaper. Two active reapers do no harm, but do the same work twice.
"""),
    cfg.StrOpt(
        'lock_name', default='nova-reaper',
        help='The name of the lock. Each cloud that shares the backend needs '
             'a name of its own.'),
    cfg.FloatOpt(
        'check_interval', default=2.0, min=0.1, max=model.MAX_SECONDS,
        help='Seconds between two heartbeats or tries to become active.'),
]

http_opts = [
    cfg.BoolOpt(
        'enabled', default=True,
        help='Whether to serve /metrics, /healthz and /v1.'),
    cfg.HostAddressOpt(
        'listen', default='127.0.0.1', help='The address to listen on.'),
    cfg.PortOpt('port', default=8782, help='The port to listen on.'),
    cfg.IntOpt(
        'threads', default=8, min=1, max=256,
        help='Requests served at a time.'),
    cfg.StrOpt(
        'certificate',
        help='File with the certificate, for TLS; with ``private_key``.'),
    cfg.StrOpt('private_key', help='File with the key of the certificate.'),
]

STATE_PATH = cfg.StrOpt('state_path', default='/var/lib/nova-reaper', help="""
The directory of what nova-reaper itself writes: the journal, unless
``[database] connection`` names another database.
""")
CONNECTION = 'sqlite:///$state_path/journal.sqlite'

journal_opts = [
    cfg.IntOpt('retention_days', default=90, min=0, max=36500, help="""
Days after which a record of the journal is deleted. 0 keeps all records.
"""),
    cfg.IntOpt('purge_batch', default=500, min=1, max=10000, help="""
The most old records that one transaction deletes. The next transaction follows
some seconds later.
"""),
    cfg.BoolOpt('required', default=False, help="""
Whether the reaper ends servers only while the journal can be written and read.
Off, the reaper goes on without its database: records wait in memory until the
database is back. A reaper that starts without its database only builds servers
in free room until the database tells whether the reaper is paused. On, the
reaper only builds servers in free room whenever the database is away. With
``[database] connection = sqlite://`` the journal is in memory only: the reaper
knows nothing of it after a start, and no pause outlives the process.
"""),
]


def _client_opts(rate_limit: float, concurrency: int) -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            'rate_limit', default=rate_limit, min=0,
            help='The most requests in a second; 0 is no limit.'),
        cfg.IntOpt(
            'concurrency', default=concurrency, min=1,
            help='The most requests at the same time.'),
    ]


# The options of nova-reaper by group, without the options of keystoneauth.
OPTIONS: dict[str, list[cfg.Opt]] = {
    'reaper': reaper_opts,
    'notifications': notifications_opts,
    'coordination': coordination_opts,
    'http': http_opts,
    'journal': journal_opts,
    'nova': _client_opts(rate_limit=50, concurrency=10),
    'placement': _client_opts(rate_limit=200, concurrency=10),
    'keystone': _client_opts(rate_limit=10, concurrency=2),
}
_ADAPTER: dict[str, Any] = {
    'valid_interfaces': ['internal', 'public'], 'connect_retries': 2}
# Defaults, by group, where keystoneauth has another default or none.
DEFAULTS: dict[str, dict[str, Any]] = {
    AUTH_GROUP: {'timeout': 60},
    'nova': _ADAPTER | {'service_type': 'compute'},
    'placement': _ADAPTER | {'service_type': 'placement'},
    # The endpoint of Keystone in the catalogue may be without a version.
    'keystone': _ADAPTER | {
        'service_type': 'identity', 'min_version': '3',
        'max_version': '3.latest'},
}
SERVICES = ('nova', 'placement', 'keystone')


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register all options of nova-reaper with conf."""
    for group, opts in OPTIONS.items():
        conf.register_opts(opts, group=group)
    conf.register_opt(STATE_PATH)
    db_options.set_defaults(conf, connection=CONNECTION)
    loading.register_auth_conf_options(conf, AUTH_GROUP)
    loading.register_session_conf_options(conf, AUTH_GROUP)
    for group in SERVICES:
        loading.register_adapter_conf_options(conf, group)
    for group, defaults in DEFAULTS.items():
        for name, default in defaults.items():
            conf.set_default(name, default, group=group)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """All options by group, for oslo-config-generator."""
    auth = itertools.chain(
        loading.get_session_conf_options(),
        loading.get_auth_common_conf_options(),
        loading.get_auth_plugin_conf_options('password'))
    database = [opt for _, opts in db_options.list_opts() for opt in opts]
    cfg.set_defaults(database, connection=CONNECTION)
    listed = [(group, opts + loading.get_adapter_conf_options(
        include_deprecated=False) if group in SERVICES else opts)
              for group, opts in OPTIONS.items()]
    listed += [('DEFAULT', [STATE_PATH]), ('database', database),
               (AUTH_GROUP, list({opt.dest: opt for opt in auth}.values()))]
    for group, opts in listed:
        cfg.set_defaults(opts, **DEFAULTS.get(group, {}))
    return listed


def set_log_defaults() -> None:
    """Give oslo.log's options the defaults of this service."""
    # At DEBUG the first two would write lines for each request and each
    # heartbeat; the third writes two at INFO for each look at the journal.
    log.set_defaults(default_log_levels=log.get_default_log_levels() + [
        'keystoneauth=WARNING', 'tooz=WARNING', 'alembic=WARNING'])


class _Group(cfg.ConfigOpts.GroupAttr):
    """The group ``[reaper]``: a caller that keeps it reads new values, too."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conf.current, name)


class Configuration(cfg.ConfigOpts):
    """Every option; options of ``[reaper]`` may change while threads read.

    A ConfigOpts whose files are read again may keep an old value for good: a
    thread that looked the value up before puts it into the cache afterwards.
    So the values of ``[reaper]`` come from a ConfigOpts that no thread has
    used before the change.

    :ivar current: the group ``[reaper]`` of the newest ConfigOpts
    """

    def __init__(self) -> None:
        super().__init__()
        register_opts(self)
        self.current = super().__getattr__('reaper')
        self._reaper = _Group(self, self._get_group('reaper'))

    def __getattr__(self, name: str) -> Any:
        if name == 'reaper':
            return self._reaper
        return super().__getattr__(name)


def load(files: list[str] | None) -> Configuration:
    """Read the configuration and set up logging.

    :param files: configuration files, None for those of the usual places
    :raises: oslo_config.cfg.Error for a wrong value; ValueError if the log
        cannot be set up as configured
    """
    conf = Configuration()
    log.register_options(conf)
    set_log_defaults()
    conf([], project='nova-reaper', prog='nova-reaper',
         default_config_files=files)
    check(conf)
    if not (conf.log_file or conf.log_dir or conf.use_journal):
        # Unless told so, oslo.log writes to where the commands print.
        conf.set_override('use_stderr', True)
    try:
        log.setup(conf, 'nova-reaper')
    except log.LogConfigError as error:
        raise ValueError(str(error)) from error
    return conf


def check(conf: cfg.ConfigOpts) -> None:
    """Read each option once: oslo.config finds a wrong value when it is read.

    :raises: oslo_config.cfg.Error for a wrong value
    """
    for group, opts in OPTIONS.items():
        for opt in opts:
            value = getattr(conf[group], opt.dest)
            if value is None and opt.default is not None:
                raise cfg.ConfigFileValueError(
                    f'[{group}] {opt.dest} is empty: write a value, or leave '
                    f'it out for {opt.default!r}')
            if isinstance(value, float) and not math.isfinite(value):
                raise cfg.ConfigFileValueError(
                    f'[{group}] {opt.dest} has to be a number, not {value}')
    try:
        sa.make_url(conf.database.connection or '')
    except sa.exc.ArgumentError:
        # The text of the error has the password.
        raise cfg.ConfigFileValueError(
            '[database] connection has to be a URL as SQLAlchemy reads it, '
            'like mysql+pymysql://USER:PASSWORD@HOST/nova_reaper') from None
    if conf.reaper.hook_secret:
        hook_key(conf.reaper.hook_secret)
    if conf.http.private_key and not conf.http.certificate:
        raise cfg.ConfigFileValueError(
            '[http] private_key needs the option certificate, too')


def check_login(conf: cfg.ConfigOpts) -> None:
    """See that the configuration says how to log in to Keystone.

    :raises: oslo_config.cfg.Error if it does not
    """
    group = conf[AUTH_GROUP]
    if not group.auth_type and not group.auth_section:
        read = ', '.join(conf.config_file or ()) or 'no file was found'
        raise cfg.ConfigFileValueError(
            f'[{AUTH_GROUP}] auth_type is not set, so nobody can log in to '
            f'Keystone ({read})')


def mutate(conf: Configuration) -> None:
    """Read the configuration files again, for the options that may change.

    :raises: oslo_config.cfg.Error for a wrong value; nothing has changed then
    """
    wanted = Configuration()
    log.register_options(wanted)
    wanted([], default_config_files=conf.config_file,
           default_config_dirs=conf.config_dir)
    check(wanted)
    for opt in OPTIONS['reaper']:
        if not opt.mutable:
            wanted.set_override(opt.dest, conf.reaper[opt.dest], 'reaper')
    conf.current = wanted.current
    try:
        conf.mutate_config_files()
    except log.LogConfigError as error:
        LOG.error('The log is written as before: %s', error)


def options(conf: cfg.ConfigOpts) -> model.Options:
    """The options that queue and decisions need."""
    return model.Options(**{
        name: type(default)(conf.reaper[name])
        for name, default in dataclasses.asdict(_CHOICE).items()})
