# SPDX-License-Identifier: Apache-2.0

"""The services: how each is started, and when it is ready."""

import datetime
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.request

from keystoneauth1 import exceptions

from tools.cloud import configuration
from tools.cloud import errors
from tools.cloud import identity
from tools.cloud import ports
from tools.cloud import processes
from tools.cloud import settings

_THREADS = 8
_STAND_INS = pathlib.Path(__file__).with_name('stand_ins')
_NEUTRON_SCHEMA = pathlib.Path(__file__).parent / 'embedded/neutron_schema.py'

_NOVA = ('nova-manage', 'nova-conductor', 'nova-scheduler', 'nova-compute')
_PROGRAMS = (
    'uwsgi', 'openstack', 'keystone-manage', 'placement-manage',
    'glance-manage', 'neutron-db-manage', 'neutron-rpc-server', *_NOVA,
    'cinder-manage', 'cinder-scheduler', 'cinder-volume')

# Fails where nova-pending is installed, and where Nova is as released.
_IS_BRANCH = ('import importlib.util as u, sys; sys.exit('
              'u.find_spec("nova_pending") is not None or '
              'u.find_spec("nova.compute.pending") is None)')

# What the root of an API answers, by its service and by its middleware.
_ANSWERS = (200, 300, 401)


def check(in_tree=None):
    """See that all programs of the cloud are there.

    :param in_tree: the environment with the branch of Nova, or None
    :raises: CloudError if this environment lacks one, or if the other one has
        another Nova
    """
    missing = [name for name in _PROGRAMS if not _program(name).exists()]
    if missing:
        raise errors.CloudError(
            'The environment %s has no %s: pip install -r '
            'tools/cloud/requirements.txt there.'
            % (settings.PREFIX, ', '.join(missing)))
    if in_tree and not _has_branch(in_tree):
        raise errors.CloudError(
            'The environment %s has not the branch of Nova, without '
            'nova-pending: tox -e in-tree-wheel makes one that has.' % in_tree)


def _has_branch(in_tree):
    try:
        return not subprocess.run(
            [_python(in_tree), '-I', '-c', _IS_BRANCH],
            stderr=subprocess.DEVNULL).returncode
    except OSError:
        return False


class Services:
    """The services of one cloud.

    :param cloud: the settings.Settings
    :param running: the processes.Processes that they run in
    :param reserved: the ports.Ports held for them
    """

    #: The WSGI module of each API.
    wsgi_modules = {
        'keystone': 'keystone.wsgi.api',
        'placement': 'placement.wsgi.api',
        'glance': 'glance.wsgi.api',
        'neutron': 'neutron.wsgi.api',
        'nova': 'nova.wsgi.osapi_compute',
        'cinder': 'cinder.wsgi.api',
    }

    def __init__(self, cloud, running, reserved):
        self._cloud = cloud
        self._processes = running
        self._reserved = reserved
        # As exact as what the services note.
        self._since = int(time.time())
        self._config_dirs = {
            'OS_%s_CONFIG_DIR' % api.upper(): str(cloud.etc / api)
            for api in settings.APIS}

    def command(self, log, name, *args, env=None):
        """Run one of the services' own commands to its end.

        :param log: the name of its log
        :param name: the command
        :param args: its arguments
        :param env: what its environment has beside that of a service
        :raises: CloudError with the end of its log if it fails
        """
        code, output = self._processes.run(
            log, [*self.program(name), *args],
            {**self.environment(), **(env or {})})
        if code:
            raise errors.CloudError('%s failed with exit code %d:\n%s' % (
                ' '.join([name, *map(str, args)]), code,
                processes.tail(output)))

    def start_api(self, api):
        """Start an HTTP API, and wait until it answers."""
        self._serve(api, _label(api), self.api_program(
            api, self._cloud.ports[api]), self.environment())

    def start_wsgi(self, name, module, env, *arguments):
        """Start what is no API but serves HTTP, and wait until it answers.

        :param name: the name of its process, and of its port
        :param module: its WSGI module
        :param env: what its environment has beside that of a service
        :param arguments: of uWSGI, what an API has not
        """
        self._serve(name, name, [
            *self._uwsgi(name, self._cloud.ports[name], module), *arguments],
            {**self.environment(), **env})

    def _serve(self, port, name, argv, env):
        self._reserved.release(port)
        url = 'http://%s:%d/' % (ports.HOST, self._cloud.ports[port])
        self._processes.start(name, argv, env)
        self._processes.wait_until(
            'an answer of ' + name, lambda: _answers(url), [name])

    def api_program(self, api, port):
        """Return the command line of a process that serves an HTTP API."""
        return [
            *self._uwsgi(_label(api), port, self.wsgi_modules[api]),
            '--processes', self._cloud.workers,
            *self._arguments(api),
        ]

    def _uwsgi(self, name, port, module):
        return [
            _program('uwsgi'),
            '--http-socket', '%s:%d' % (ports.HOST, port),
            '--module', module + ':application',
            '--virtualenv', self.prefix(name),
            '--procname-prefix-spaced', name,
            '--master', '--die-on-term', '--need-app', '--lazy-apps',
            '--threads', _THREADS, '--enable-threads',
            '--buffer-size', 65535, '--http-chunked-input',
            '--http-auto-chunked', '--add-header', 'Connection: close',
            '--worker-reload-mercy', 3, '--disable-logging', '--log-5xx',
        ]

    def start(self, name, program, *config_files, queue=None, cell=None):
        """Start a service that has no HTTP API.

        :param name: the name of its process
        :param program: its command, or a file of Python source
        :param config_files: its files, relative to the configuration's
            directory
        :param queue: the queue of the bus that it must take calls from
            before this returns; calls sent earlier would be lost
        :param cell: the cell whose bus that is
        """
        argv = ([self.python(name), '-P', program]
                if isinstance(program, pathlib.Path)
                else self.program(program))
        for path in config_files:
            argv += ['--config-file', self._cloud.etc / path]
        self._processes.start(name, argv, self.environment())
        if queue:
            self._processes.wait_until(
                '%s to take calls' % name,
                lambda: self._cloud.bus.consumers(queue, cell), [name])

    def start_program(self, name, argv):
        """Start a service of another kind.

        :param name: the name of its process, and of its port
        :param argv: its command line; the first word is its command
        """
        self._reserved.release(name)
        self._processes.start(
            name, [*self.program(argv[0]), *argv[1:]], self.environment())

    def wait(self, name, ready):
        """Wait until a process is ready, or has ended.

        :param ready: returns whether it is
        :raises: CloudError
        """
        self._processes.wait_until(name, ready, [name])

    def _arguments(self, api):
        # The one API that reads no OS_..._CONFIG_DIR.
        return (['--pyargv', '--config-file %s' % (
            self._cloud.etc / 'cinder/cinder.conf')]
            if api == 'cinder' else [])

    def program(self, name):
        """Return the first words of the command line of a service.

        :param name: a service, or a command of one
        """
        if name == 'neutron-db-manage' and (
                not self._cloud.databases.neutron_migrates):
            return [sys.executable, '-P', _NEUTRON_SCHEMA]
        return [self.prefix(name) / 'bin' / name]

    def prefix(self, name):
        """Return the Python environment that a service is started from.

        :param name: a command, or the name of a process
        """
        return (pathlib.Path(self._cloud.in_tree) if self._cloud.in_tree and
                name.partition('@')[0] in ('nova-api', *_NOVA) else
                settings.PREFIX)

    def python(self, name):
        """Return the Python that a process of that name is started with."""
        return _python(self.prefix(name))

    def wait_for_agents(self):
        """Wait until Neutron has a living agent on every host."""
        session = identity.connect(self._cloud, configuration.ADMIN)

        def ready():
            agents = _list(session, self._cloud.url('neutron'),
                           '/v2.0/agents', 'agents')
            return set(self._cloud.hosts) <= {
                agent['host'] for agent in agents if agent['alive'] and
                self._is_new(agent['heartbeat_timestamp'])}

        self._processes.wait_until('the agents in Neutron', ready, None)

    def wait_for_hosts(self):
        """Wait until Nova could build on every host."""
        session = identity.connect(self._cloud, configuration.ADMIN)
        nova = self._cloud.url('nova')
        wanted = {
            ('nova-scheduler', settings.CONTROL),
            *(('nova-conductor', host) for host in (
                *self._cloud.conductor_hosts, *self._cloud.separate_cells)),
            *(('nova-compute', host) for host in self._cloud.all_hosts)}

        def ready():
            up = {(service['binary'], service['host']) for service
                  in _list(session, nova, '/os-services', 'services')
                  if service['state'] == 'up' and
                  self._is_new(service['updated_at'])}
            # Only hosts that are mapped to a cell are in this list.
            hosts = {host['service']['host'] for host
                     in _list(session, nova, '/os-hypervisors/detail',
                              'hypervisors')
                     if host['state'] == 'up'}
            return up >= wanted and hosts >= set(self._cloud.all_hosts)

        self._processes.wait_until('the hosts in Nova', ready, None)

    def wait_for_volumes(self):
        """Wait until Cinder could make a volume."""
        session = identity.connect(self._cloud, configuration.ADMIN)

        def ready():
            return {'cinder-scheduler', 'cinder-volume'} <= {
                service['binary'] for service
                in _list(session, '%s/%s' % (
                    self._cloud.url('cinder'), session.get_project_id()),
                    '/os-services', 'services')
                if service['state'] == 'up' and
                self._is_new(service['updated_at'])}

        self._processes.wait_until('the services of Cinder', ready, None)

    def _is_new(self, when):
        # What was there before a restart says nothing about a service.
        return when is not None and datetime.datetime.fromisoformat(
            when).replace(tzinfo=datetime.timezone.utc
                          ).timestamp() >= self._since

    def environment(self):
        """Return what the environment of each process has beside ours."""
        return {**self._config_dirs, 'PYTHONWARNINGS': 'ignore',
                **({'NOVA_PENDING': 'off'} if self._cloud.stock else {}),
                'PYTHONPATH': os.pathsep.join(filter(None, (
                    str(_STAND_INS), os.environ.get('PYTHONPATH')))),
                'PATH': '%s:%s' % (settings.PREFIX / 'bin',
                                   os.environ.get('PATH', os.defpath))}


def _label(api):
    return api + '-api'


def _program(name):
    return settings.PREFIX / 'bin' / name


def _python(prefix):
    return pathlib.Path(prefix, 'bin/python')


def _list(session, url, path, key):
    """Return a list of an API, empty while the API does not work."""
    try:
        return session.get(url + path).json()[key]
    except exceptions.ClientException:
        return []


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status in _ANSWERS
    except urllib.error.HTTPError as error:
        return error.code in _ANSWERS
    except OSError:
        return False
