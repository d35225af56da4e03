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

"""Every option of nova-reaper.

``oslo-config-generator --namespace nova_reaper`` writes a sample of them.
"""

import itertools
import math
from typing import Any

from keystoneauth1 import loading
from oslo_config import cfg
from oslo_log import log
import sqlalchemy as sa

from nova_reaper.cloud import model
from nova_reaper.conf import journal
from nova_reaper.conf import reaper

LOG = log.getLogger(__name__)
AUTH_GROUP = 'nova_reaper'

notifications_opts = [
    cfg.BoolOpt(
        'enabled', default=True,
        help="""
Whether to listen to Nova's notifications. Off, the reaper lives from its
lists alone, and is as slow as they are.
"""),
    cfg.ListOpt(
        'topics', default=['reaper_notifications'],
        help="""
Topics to listen on. They must be the reaper's own: of each message on a
topic one listener gets one copy, so a shared topic would take messages from
others. In the nova.conf of every Nova service name it beside the default:
``[notifications] versioned_notifications_topics``,
``notification_format = versioned`` (or ``both``) and
``notify_on_state_change = vm_state``; ``[oslo_messaging_notifications] driver
= messagingv2``.
"""),
    cfg.StrOpt(
        'transport_url', secret=True,
        help="""
Where the notifications are, as in ``[DEFAULT] transport_url``, which is used
if this is not set.
"""),
    cfg.IntOpt(
        'batch_size', default=100, min=1,
        help='At most so many notifications are looked at in one go.'),
    cfg.FloatOpt(
        'batch_timeout', default=0.1, min=0.01, max=model.MAX_SECONDS,
        help='Seconds to wait until a batch is full.'),
    cfg.IntOpt(
        'silence', default=900, min=60, max=model.MAX_SECONDS,
        help="""
Seconds without any notification after which /healthz and the log say that it
is degraded.
"""),
]

coordination_opts = [
    cfg.StrOpt(
        'backend_url', secret=True,
        help="""
Where the reapers of a cloud find out which of them is the active one, as a
tooz URL: ``redis://host:6379``, ``etcd3+http://host:2379`` or, for reapers on
one machine, ``file:///var/lib/nova-reaper/lock``. Not set for a single reaper.
Two active ones do no harm; they do work twice.
"""),
    cfg.StrOpt(
        'lock_name', default='nova-reaper',
        help='The name of the lock; another one for each cloud of a backend.'),
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


def _client_opts(rate_limit: float, concurrency: int) -> list[cfg.Opt]:
    return [
        cfg.FloatOpt(
            'rate_limit', default=rate_limit, min=0,
            help='At most so many requests a second; 0 is no limit.'),
        cfg.IntOpt(
            'concurrency', default=concurrency, min=1,
            help='At most so many requests at a time.'),
    ]


# By group; what keystoneauth has of its own comes on top.
OPTIONS: dict[str, list[cfg.Opt]] = {
    'reaper': reaper.reaper_opts,
    'notifications': notifications_opts,
    'coordination': coordination_opts,
    'http': http_opts,
    'journal': journal.journal_opts,
    'nova': _client_opts(rate_limit=50, concurrency=10),
    'placement': _client_opts(rate_limit=200, concurrency=10),
    'keystone': _client_opts(rate_limit=10, concurrency=2),
}
_ADAPTER: dict[str, Any] = {
    'valid_interfaces': ['internal', 'public'], 'connect_retries': 2}
# What keystoneauth has otherwise, by group.
DEFAULTS: dict[str, dict[str, Any]] = {
    AUTH_GROUP: {'timeout': 60},
    'nova': _ADAPTER | {'service_type': 'compute'},
    'placement': _ADAPTER | {'service_type': 'placement'},
    # Its endpoint in the catalogue may be without a version.
    'keystone': _ADAPTER | {
        'service_type': 'identity', 'min_version': '3',
        'max_version': '3.latest'},
}
SERVICES = ('nova', 'placement', 'keystone')


def register_opts(conf: cfg.ConfigOpts) -> None:
    """Register all options of nova-reaper with conf."""
    for group, opts in OPTIONS.items():
        conf.register_opts(opts, group=group)
    journal.register_opts(conf)
    loading.register_auth_conf_options(conf, AUTH_GROUP)
    loading.register_session_conf_options(conf, AUTH_GROUP)
    for group in SERVICES:
        loading.register_adapter_conf_options(conf, group)
    for group, defaults in DEFAULTS.items():
        for name, default in defaults.items():
            conf.set_default(name, default, group=group)


def list_opts() -> list[tuple[str, list[cfg.Opt]]]:
    """The options by group, for oslo-config-generator."""
    auth = itertools.chain(
        loading.get_session_conf_options(),
        loading.get_auth_common_conf_options(),
        loading.get_auth_plugin_conf_options('password'))
    listed = [(group, opts + loading.get_adapter_conf_options(
        include_deprecated=False) if group in SERVICES else opts)
              for group, opts in OPTIONS.items()]
    listed += journal.list_opts()
    listed.append((AUTH_GROUP, list({opt.dest: opt for opt in auth}.values())))
    for group, opts in listed:
        cfg.set_defaults(opts, **DEFAULTS.get(group, {}))
    return listed


class _Group(cfg.ConfigOpts.GroupAttr):
    """``[reaper]`` as it is now, also for who has had it for a while."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conf.current, name)


class Configuration(cfg.ConfigOpts):
    """Every option, and those of ``[reaper]`` may change while threads read.

    A ConfigOpts whose files are read again may keep an old value for good: a
    thread that looked it up before puts it into the cache afterwards. So the
    values come from a ConfigOpts that nobody has read before the change.

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


def load(arguments: list[str], files: list[str] | None = None
         ) -> Configuration:
    """Read the configuration and set up logging.

    :param arguments: of the command line, those that oslo.config knows
    :param files: configuration files, None for those of the usual places
    :raises: oslo_config.cfg.Error where a value is none; ValueError where the
        log cannot be set up so
    """
    conf = Configuration()
    log.register_options(conf)
    # Nobody wants to see each request twice; keystoneauth hides the tokens.
    log.set_defaults(default_log_levels=log.get_default_log_levels() + [
        'keystoneauth=WARNING', 'tooz=WARNING'])
    conf(arguments, project='nova-reaper', prog='nova-reaper',
         default_config_files=files)
    check(conf)
    if not (conf.log_file or conf.log_dir or conf.use_journal):
        # Otherwise oslo.log writes to where the commands print.
        conf.set_override('use_stderr', True)
    try:
        log.setup(conf, 'nova-reaper')
    except log.LogConfigError as error:
        raise ValueError(str(error)) from error
    return conf


def check(conf: cfg.ConfigOpts) -> None:
    """See that each value is one; oslo.config looks when one is used.

    :raises: oslo_config.cfg.Error where it is none
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
    group = conf.current if isinstance(conf, Configuration) else conf.reaper
    try:
        sa.make_url(conf.database.connection or '')
    except sa.exc.ArgumentError:
        # Its text has the password.
        raise cfg.ConfigFileValueError(
            '[database] connection has to be a URL as SQLAlchemy reads it, '
            'like mysql+pymysql://USER:PASSWORD@HOST/nova_reaper') from None
    if group.hook_secret:
        try:
            reaper.hook_key(group.hook_secret)
        except ValueError as error:
            raise cfg.ConfigFileValueError(str(error)) from None
    if conf.http.private_key and not conf.http.certificate:
        raise cfg.ConfigFileValueError(
            '[http] private_key is nothing without certificate')


def check_login(conf: cfg.ConfigOpts) -> None:
    """See that it is said how to log in to Keystone.

    :raises: oslo_config.cfg.Error where it is not
    """
    group = conf[AUTH_GROUP]
    if not group.auth_type and not group.auth_section:
        read = ', '.join(conf.config_file or ()) or 'no file was found'
        raise cfg.ConfigFileValueError(
            f'[{AUTH_GROUP}] auth_type is not set, so nobody can log in to '
            f'Keystone ({read})')


def mutate(conf: Configuration) -> None:
    """Take over what may change of the configuration files.

    :raises: oslo_config.cfg.Error where a value is none; nothing has changed
        then
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
    """What of the configuration the queue and the choice need."""
    group = (conf.current if isinstance(conf, Configuration)
             else conf.reaper)
    return model.Options(
        mode=model.Mode(group.mode),
        wait=model.Wait(group.wait),
        min_run_time=group.min_run_time,
        max_ends_per_project_hour=group.max_ends_per_project_hour,
        max_ends_per_hour=group.max_ends_per_hour,
        repeat_protection=group.repeat_protection,
        pending_timeout=group.pending_timeout,
        retry_interval=group.retry_interval,
        max_retry_interval=group.max_retry_interval,
        build_failed_retry_interval=group.build_failed_retry_interval,
        fair_share_half_life=group.fair_share_half_life,
        reserve=group.reserve,
        scorers=tuple(group.scorers))
