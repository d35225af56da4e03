# SPDX-License-Identifier: Apache-2.0

"""nova-reaper as a service of a cloud."""

import configparser
import importlib.util
import json
import signal
import urllib.request

from tools.cloud import errors
from tools.cloud import ports
from tools.cloud import settings

#: The name of the process, of its port and of its user in Keystone.
NAME = 'nova-reaper'
#: Its type in the catalogue.
SERVICE_TYPE = 'compute-pending'
TOPIC = 'reaper_notifications'


def check():
    """Raise CloudError if this environment has no nova-reaper."""
    if not importlib.util.find_spec('nova_reaper'):
        raise errors.CloudError(
            'The environment %s has no nova-reaper: pip install -e ./reaper '
            '-c constraints.txt there.' % settings.PREFIX)


def url(cloud):
    """Return the URL that the reaper answers at."""
    return 'http://%s:%d' % (ports.HOST, cloud.ports[NAME])


def _is_shared(cloud):
    # The bus of an embedded cloud is inside of another process.
    return not cloud.bus.url.startswith('fake:')


def notifications(cloud):
    """Return what the services of Nova need so that the reaper hears them."""
    if not cloud.reaper or not _is_shared(cloud):
        return {}
    return {
        'notifications': {
            'notification_format': 'versioned',
            'notify_on_state_change': 'vm_state',
            'versioned_notifications_topics': [TOPIC]},
        # Cells may have a bus of their own, and the reaper listens on one bus.
        'oslo_messaging_notifications': {
            'driver': 'messagingv2', 'transport_url': cloud.bus.url}}


def configuration(cloud, auth, authtoken):
    """Return the configuration of the reaper.

    It ends servers as soon as that is allowed at all, and as many as there
    are: nobody waits on a cloud that is made to be looked at.

    :param auth: how it is known to Keystone
    :param authtoken: how it looks at the tokens of others
    """
    adapters = {name: {'region_name': settings.REGION,
                       'valid_interfaces': ['internal']}
                for name in ('nova', 'placement', 'keystone')}
    auth = {key: value for key, value in auth.items()
            if key != 'region_name'}
    # Its lists are all that it hears of the cloud, which is a small one.
    alone = not _is_shared(cloud)
    return {
        'DEFAULT': {'use_stderr': True, 'log_color': False, 'debug': False,
                    'transport_url': cloud.bus.url,
                    'state_path': cloud.state / NAME},
        'reaper': {
            'mode': 'preempt', 'min_run_time': 0, 'grace_period': 30,
            'stop_timeout': 5, 'repeat_protection': 0,
            'max_ends_per_project_hour': 0, 'max_ends_per_hour': 0,
            'pending_list_interval': 5 if alone else 10,
            'full_list_interval': 5 if alone else 30},
        'notifications': {'enabled': not alone,
                          'topics': [TOPIC]},
        'http': {'listen': ports.HOST, 'port': cloud.ports[NAME]},
        'nova_reaper': auth,
        'keystone_authtoken': authtoken,
        **adapters}


def change(cloud, running, **options):
    """Let a reaper that runs have other options.

    ``is_ready()`` says when it is in another mode.

    :param cloud: the settings.Settings
    :param running: the processes.Processes that it is one of
    :param options: of its section ``[reaper]``
    """
    configure(cloud, **options)
    running.running()[NAME].send(signal.SIGHUP)


def configure(cloud, group='reaper', /, **options):
    """Write other options of a section, by default of ``[reaper]``."""
    path = cloud.etc / NAME / 'nova-reaper.conf'
    parser = configparser.ConfigParser(interpolation=None)
    # "DEFAULT" is a section like others, and gives no other its options.
    parser.default_section = ''
    parser.read(path)
    if not parser.has_section(group):
        parser.add_section(group)
    parser[group].update({
        name: str(value) for name, value in options.items()})
    with path.open('w') as file:
        parser.write(file)


def health(cloud):
    """Return what it answers at /healthz, None if that is nothing."""
    try:
        with urllib.request.urlopen(
                url(cloud) + '/healthz', timeout=5) as answer:
            return json.load(answer)
    except (OSError, ValueError):
        return None


def is_ready(cloud, mode=None):
    """Return whether the reaper has read the cloud, and is in a mode.

    :param mode: any if not given
    """
    found = health(cloud)
    return bool(found) and mode in (None, found['mode']) and any(
        check['name'] == 'lists' and check['detail'].startswith('last full')
        for check in found['checks'])


class Reaper:
    """nova-reaper of one cloud.

    :param cloud: the settings.Settings
    :param run: the services.Services
    """

    def __init__(self, cloud, run):
        self._cloud = cloud
        self._run = run

    def start(self):
        """Start it."""
        self._run.start_program(
            NAME, [NAME, 'run', '--config-file',
                   self._cloud.etc / NAME / 'nova-reaper.conf'])

    def wait(self):
        """Wait until it has read the cloud."""
        self._run.wait(NAME, lambda: is_ready(self._cloud))
