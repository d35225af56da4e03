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

"""The services: how each is started, and when it is ready."""

import os
import pathlib
import sys
import urllib.error
import urllib.request

from keystoneauth1 import exceptions

from tools.cloud import configuration
from tools.cloud import errors
from tools.cloud import identity
from tools.cloud import ports
from tools.cloud import processes
from tools.cloud import settings

_WSGI_MODULES = {
    'keystone': 'keystone.wsgi.api',
    'placement': 'placement.wsgi.api',
    'glance': 'glance.wsgi.api',
    'neutron': 'neutron.wsgi.api',
    'nova': 'nova.wsgi.osapi_compute',
}
_THREADS = 8

_PROGRAMS = (
    'uwsgi', 'openstack', 'keystone-manage', 'placement-manage',
    'glance-manage', 'neutron-db-manage', 'neutron-rpc-server', 'nova-manage',
    'nova-conductor', 'nova-scheduler', 'nova-compute')

# What the root of an API answers, by its service and by its middleware.
_ANSWERS = (200, 300, 401)


def check():
    """Raise CloudError if this environment lacks a program of the cloud."""
    missing = [name for name in _PROGRAMS if not _program(name).exists()]
    if missing:
        raise errors.CloudError(
            'The environment %s has no %s: pip install -r '
            'tools/cloud/requirements.txt there.'
            % (settings.PREFIX, ', '.join(missing)))


class Services:
    """The services of one cloud.

    :param cloud: the settings.Settings
    :param running: the processes.Processes that they run in
    :param reserved: the ports.Ports held for them
    """

    def __init__(self, cloud, running, reserved):
        self._cloud = cloud
        self._processes = running
        self._reserved = reserved
        self._config_dirs = {
            'OS_%s_CONFIG_DIR' % api.upper(): str(cloud.etc / api)
            for api in settings.APIS}

    def command(self, log, name, *args):
        """Run one of the services' own commands to its end.

        :param log: the name of its log
        :param name: the command
        :param args: its arguments
        :raises: CloudError with the end of its log if it fails
        """
        code, output = self._processes.run(
            log, [_program(name), *args], self._environment())
        if code:
            raise errors.CloudError('%s failed with exit code %d:\n%s' % (
                ' '.join([name, *map(str, args)]), code,
                processes.tail(output)))

    def start_api(self, api):
        """Start an HTTP API, and wait until it answers."""
        self._reserved.release(api)
        port = self._cloud.ports[api]
        self._processes.start(_label(api), [
            _program('uwsgi'),
            '--http-socket', '%s:%d' % (ports.HOST, port),
            '--module', _WSGI_MODULES[api] + ':application',
            '--virtualenv', settings.PREFIX,
            '--procname-prefix-spaced', _label(api),
            '--master', '--die-on-term', '--need-app', '--lazy-apps',
            '--processes', 1, '--threads', _THREADS, '--enable-threads',
            '--buffer-size', 65535, '--http-chunked-input',
            '--http-auto-chunked', '--add-header', 'Connection: close',
            '--worker-reload-mercy', 3, '--disable-logging', '--log-5xx',
        ], self._environment())
        self._processes.wait_until(
            'an answer of ' + _label(api),
            lambda: _answers('http://%s:%d/' % (ports.HOST, port)),
            [_label(api)])

    def start(self, name, program, *config_files, queue=None):
        """Start a service that has no HTTP API.

        :param name: the name of its process
        :param program: its command, or a file of Python source
        :param config_files: its files, relative to the configuration's
            directory
        :param queue: the queue of the bus that it must take calls from
            before this returns; calls sent earlier would be lost
        """
        argv = ([sys.executable, '-P', program]
                if isinstance(program, pathlib.Path) else [_program(program)])
        for path in config_files:
            argv += ['--config-file', self._cloud.etc / path]
        self._processes.start(name, argv, self._environment())
        if queue:
            self._processes.wait_until(
                '%s to take calls' % name,
                lambda: self._cloud.bus.consumers(queue), [name])

    def wait_for_agents(self):
        """Wait until Neutron has a living agent on every host."""
        session = identity.connect(self._cloud, configuration.ADMIN)

        def ready():
            agents = _list(session, self._cloud.url('neutron'),
                           '/v2.0/agents', 'agents')
            return set(self._cloud.hosts) <= {
                agent['host'] for agent in agents if agent['alive']}

        self._processes.wait_until('the agents in Neutron', ready, None)

    def wait_for_hosts(self):
        """Wait until Nova could build on every host."""
        session = identity.connect(self._cloud, configuration.ADMIN)
        nova = self._cloud.url('nova')

        def ready():
            up = {service['binary'] for service
                  in _list(session, nova, '/os-services', 'services')
                  if service['state'] == 'up'}
            # Only hosts that are mapped to a cell are in this list.
            hosts = {host['service']['host'] for host
                     in _list(session, nova, '/os-hypervisors/detail',
                              'hypervisors')
                     if host['state'] == 'up'}
            return (up >= {'nova-conductor', 'nova-scheduler'} and
                    hosts >= set(self._cloud.hosts))

        self._processes.wait_until('the hosts in Nova', ready, None)

    def _environment(self):
        return {**self._config_dirs, 'PYTHONWARNINGS': 'ignore',
                'PATH': '%s:%s' % (settings.PREFIX / 'bin',
                                   os.environ.get('PATH', os.defpath))}


def _label(api):
    return api + '-api'


def _program(name):
    return settings.PREFIX / 'bin' / name


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
