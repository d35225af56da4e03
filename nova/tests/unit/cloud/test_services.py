# SPDX-License-Identifier: Apache-2.0

import dataclasses
import http.server
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
from unittest import mock

from keystoneauth1 import exceptions
from oslo_utils import timeutils

from nova.tests.unit.cloud import base
from tools.cloud import errors
from tools.cloud import processes
from tools.cloud import services
from tools.cloud import settings

NOW = timeutils.utcnow().isoformat()
SERVICES = [
    {'binary': binary, 'host': host, 'state': 'up', 'updated_at': NOW}
    for binary, host in (
        ('nova-conductor', 'control'), ('nova-scheduler', 'control'),
        ('nova-compute', 'compute1'), ('nova-compute', 'compute2'))]
VOLUMES = [
    {'binary': binary, 'state': 'up', 'updated_at': NOW}
    for binary in ('cinder-scheduler', 'cinder-volume')]
HYPERVISORS = [
    {'service': {'host': host}, 'state': 'up'}
    for host in ('compute1', 'compute2')]
AGENTS = [{'host': host, 'alive': True, 'heartbeat_timestamp': NOW}
          for host in ('compute1', 'compute2')]
BEFORE = '2026-01-01T00:00:00.000000'


class ServicesTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        patch = mock.patch.object(settings, 'PREFIX', self.state)
        patch.start()
        self.addCleanup(patch.stop)
        self.running = processes.Processes(self.state)
        self.addCleanup(self.running.close, grace=0)
        self.reserved = mock.Mock()
        with mock.patch('time.time', return_value=timeutils.parse_isotime(
                NOW + 'Z').timestamp()):
            self.services = services.Services(
                self.cloud, self.running, self.reserved)
        self.answers = {}
        session = mock.Mock()
        session.get = self.get
        patch = mock.patch('tools.cloud.identity.connect',
                           return_value=session)
        patch.start()
        self.addCleanup(patch.stop)

    def get(self, url):
        for path, (key, value) in self.answers.items():
            if url.endswith(path):
                if isinstance(value, Exception):
                    raise value
                return mock.Mock(json=lambda: {key: value})
        raise AssertionError(url)

    def program(self, name, source):
        path = self.state / 'bin' / name
        path.parent.mkdir(exist_ok=True)
        path.write_text('#!/bin/sh\n' + source)
        path.chmod(0o755)

    def waits(self, wait):
        """Whether a wait is not over at its first look."""
        waiting = []
        with mock.patch.object(
                self.running, 'wait_until',
                lambda what, ready, names: waiting.append(not ready())):
            wait()
        return waiting[0]

    def test_environment_without_a_program_is_told_which(self):
        self.program('uwsgi', '')
        error = self.assertRaises(errors.CloudError, services.check)
        self.assertIn('nova-compute', str(error))
        self.assertNotIn('uwsgi', str(error))

    def test_environment_without_the_branch_is_named(self):
        for name in services._PROGRAMS:
            self.program(name, '')
        services.check()
        self.program('python', 'test "$2" = -c\n')
        services.check(str(self.state))
        for answer in 'exit 1', 'exit 2':
            self.program('python', answer + '\n')
            error = self.assertRaises(
                errors.CloudError, services.check, str(self.state))
            self.assertIn('%s has not the branch of Nova' % self.state,
                          str(error))
        self.assertRaises(errors.CloudError, services.check, '/nowhere')

    def test_what_is_the_branch(self):
        """Neither the release nor nova-pending over it is taken for it."""
        branch = {'nova/__init__.py', 'nova/compute/__init__.py',
                  'nova/compute/pending.py'}
        for files, is_branch in (
                (branch, True), (branch - {'nova/compute/pending.py'}, False),
                (branch | {'nova_pending.py'}, False), (set(), False)):
            with tempfile.TemporaryDirectory() as place:
                for name in files:
                    path = pathlib.Path(place, name)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
                self.assertEqual(is_branch, not subprocess.run(
                    [sys.executable, '-I', '-S', '-c',
                     'import sys; sys.path.insert(0, %r); %s' % (
                         place, services._IS_BRANCH)],
                    stderr=subprocess.DEVNULL).returncode, files)

    def test_branch_has_the_services_of_nova_and_no_others(self):
        self.services._cloud = dataclasses.replace(
            self.cloud, in_tree='/in-tree')
        for name in services._PROGRAMS:
            if name in services._NOVA:
                self.assertEqual([pathlib.Path('/in-tree/bin', name)],
                                 self.services.program(name))
            else:
                self.assertEqual([self.state / 'bin' / name],
                                 self.services.program(name))
        self.assertEqual(pathlib.Path('/in-tree/bin/python'),
                         self.services.python('nova-compute@compute3'))
        for name in 'l2agent', 'nova-reaper':
            self.assertEqual(self.state / 'bin/python',
                             self.services.python(name))
        for api in settings.APIS:
            program = self.services.api_program(api, 1)
            self.assertEqual(self.state / 'bin/uwsgi', program[0])
            self.assertEqual(
                pathlib.Path('/in-tree') if api == 'nova' else self.state,
                program[program.index('--virtualenv') + 1])

    def test_command_that_fails_is_told_with_the_end_of_its_log(self):
        self.program('nova-manage', 'echo "$@"; echo broken >&2; exit 2\n')
        error = self.assertRaises(
            errors.CloudError, self.services.command, 'log', 'nova-manage',
            'db', 'sync')
        self.assertIn('nova-manage db sync', str(error))
        self.assertIn('exit code 2', str(error))
        self.assertIn('db sync\nbroken', str(error))

    def test_command_finds_the_configuration(self):
        self.program('nova-manage',
                     'test "$OS_NOVA_CONFIG_DIR" = %s/nova\n'
                     % self.cloud.etc)
        self.services.command('log', 'nova-manage')

    def test_service_gets_its_configuration_files(self):
        self.program('nova-compute', 'echo "$@"; sleep 60\n')
        self.services.start('nova-compute@compute1', 'nova-compute',
                            'compute1/nova.conf')
        process = self.running.running()['nova-compute@compute1']
        self.running.wait_until('its output', process.output, None, 20)
        self.assertEqual('--config-file %s/compute1/nova.conf\n'
                         % self.cloud.etc, process.output())

    def test_service_is_started_when_it_takes_calls(self):
        found = [None, 0, 1]
        self.cloud.bus.consumers = lambda queue, cell: found.pop(0)
        self.program('nova-conductor', 'sleep 60\n')
        self.services.start('nova-conductor', 'nova-conductor',
                            'nova/nova.conf', queue='conductor')
        self.assertEqual([], found)

    def test_service_that_ends_is_not_waited_for(self):
        self.cloud.bus.consumers = lambda queue, cell: None
        self.program('nova-conductor', 'echo no such database; exit 1\n')
        error = self.assertRaises(
            errors.CloudError, self.services.start, 'nova-conductor',
            'nova-conductor', 'nova/nova.conf', queue='conductor')
        self.assertIn('no such database', str(error))

    def test_port_is_let_go_before_its_api_is_started(self):
        self.program('uwsgi', 'exit 1\n')
        self.assertRaises(
            errors.CloudError, self.services.start_api, 'glance')
        self.reserved.release.assert_called_once_with('glance')

    def test_hosts_are_ready_when_mapped_and_up(self):
        self.answers = {'/os-services': ('services', SERVICES),
                        '/os-hypervisors/detail': ('hypervisors',
                                                   HYPERVISORS)}
        self.assertFalse(self.waits(self.services.wait_for_hosts))
        for path, key, value in (
                ('/os-hypervisors/detail', 'hypervisors', HYPERVISORS[:1]),
                ('/os-hypervisors/detail', 'hypervisors',
                 [HYPERVISORS[0], dict(HYPERVISORS[1], state='down')]),
                ('/os-services', 'services', SERVICES[1:]),
                ('/os-services', 'services',
                 [dict(SERVICES[0], state='down'), *SERVICES[1:]]),
                # What the service said before it was started again.
                ('/os-services', 'services',
                 [dict(SERVICES[0], updated_at=BEFORE), *SERVICES[1:]]),
                ('/os-services', 'services',
                 [dict(SERVICES[0], updated_at=None), *SERVICES[1:]]),
                ('/os-services', 'services',
                 exceptions.InternalServerError())):
            with mock.patch.dict(self.answers, {path: (key, value)}):
                self.assertTrue(self.waits(self.services.wait_for_hosts))

    def test_agents_are_ready_when_all_are_alive(self):
        self.answers = {'/v2.0/agents': ('agents', AGENTS)}
        self.assertFalse(self.waits(self.services.wait_for_agents))
        for value in ([], AGENTS[:1],
                      [AGENTS[0], dict(AGENTS[1], alive=False)],
                      [AGENTS[0], dict(
                          AGENTS[1], heartbeat_timestamp=BEFORE)],
                      exceptions.ConnectFailure()):
            self.answers = {'/v2.0/agents': ('agents', value)}
            self.assertTrue(self.waits(self.services.wait_for_agents))

    def test_volumes_are_ready_when_both_services_of_cinder_are_up(self):
        self.answers = {'/os-services': ('services', VOLUMES)}
        self.assertFalse(self.waits(self.services.wait_for_volumes))
        for value in (VOLUMES[:1],
                      [VOLUMES[0], dict(VOLUMES[1], state='down')],
                      [VOLUMES[0], dict(VOLUMES[1], updated_at=BEFORE)]):
            self.answers = {'/os-services': ('services', value)}
            self.assertTrue(self.waits(self.services.wait_for_volumes))

    def test_cinder_is_told_where_its_configuration_is(self):
        def arguments(api):
            return [str(each) for each in self.services.api_program(api, 1)]

        self.assertEqual(
            ['--pyargv',
             '--config-file %s/cinder/cinder.conf' % self.cloud.etc],
            arguments('cinder')[-2:])
        self.assertNotIn('--pyargv', arguments('nova'))

    def test_layer_is_off_in_every_process_of_a_stock_cloud(self):
        self.assertNotIn('NOVA_PENDING', self.services.environment())
        self.services._cloud = dataclasses.replace(self.cloud, stock=True)
        self.assertEqual(
            'off', self.services.environment()['NOVA_PENDING'])


class AnswersTestCase(base.CloudTestCase):

    def serve(self, code):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(code)
                self.end_headers()

            def log_message(self, *args):
                pass

        server = http.server.HTTPServer(('127.0.0.1', 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        self.addCleanup(server.server_close)
        self.addCleanup(thread.join)
        self.addCleanup(server.shutdown)
        return 'http://127.0.0.1:%d/' % server.server_port

    def test_what_the_root_of_an_api_answers(self):
        for code in (200, 300, 401):
            self.assertTrue(services._answers(self.serve(code)))

    def test_api_that_fails_is_not_ready(self):
        for code in (404, 500, 503):
            self.assertFalse(services._answers(self.serve(code)))

    def test_nobody_listens(self):
        with socket.socket() as closed:
            closed.bind(('127.0.0.1', 0))
            self.assertFalse(services._answers(
                'http://127.0.0.1:%d/' % closed.getsockname()[1]))


class RequirementsTestCase(base.CloudTestCase):

    def test_requirements_have_a_version_in_the_constraints(self):
        root = pathlib.Path(__file__).resolve().parents[4]
        known = {line.partition('===')[0].lower() for line in
                 (root / 'constraints.txt').read_text().splitlines()}
        for line in (root / 'tools/cloud/requirements.txt').read_text(
                ).splitlines():
            if not line.startswith('#'):
                self.assertIn(line.split(' #')[0].lower(), known)
