# SPDX-License-Identifier: Apache-2.0

import hashlib
import pathlib
import shutil
from unittest import mock

import fixtures
from oslo_serialization import base64
from oslo_serialization import jsonutils
from oslo_utils import uuidutils
import testtools

from tools.cloud import databases
from tools.cloud import errors
from tools.cloud import plan
from tools.cloud import ports
from tools.cloud import private_servers
from tools.cloud import processes
from tools.cloud import settings

MISSING = errors.ServerMissing('nobody answers')


class FindUrlsTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.checks = [
            self.useFixture(fixtures.MockPatch(
                'tools.cloud.%s.check' % name)).mock
            for name in ('databases.Databases', 'bus.Bus')]
        self.programs = self.useFixture(fixtures.MockPatchObject(
            private_servers, 'find_program', return_value='/here')).mock

    def test_servers_that_answer_at_the_usual_urls_are_used(self):
        self.assertEqual(
            (settings.DATABASE_URL, settings.BUS_URL),
            private_servers.find_urls(None, None, private=False))

    def test_where_none_answers_the_cloud_has_one_of_its_own(self):
        self.checks[0].side_effect = MISSING
        self.assertEqual(
            (None, settings.BUS_URL),
            private_servers.find_urls(None, None, private=False))
        self.checks[1].side_effect = MISSING
        self.assertEqual(
            (None, None), private_servers.find_urls(None, None, private=False))

    def test_what_is_not_installed_is_told_where_it_would_be_used(self):
        for check in self.checks:
            check.side_effect = MISSING
        self.programs.return_value = None
        self.assertEqual(
            (settings.DATABASE_URL, settings.BUS_URL),
            private_servers.find_urls(None, None, private=False))

    def test_asked_for_they_are_had_though_others_run(self):
        self.assertEqual(
            (None, None), private_servers.find_urls(None, None, private=True))

    def test_given_url_is_used_as_it_is(self):
        for check in self.checks:
            check.side_effect = MISSING
        for private in (False, True):
            self.assertEqual(('db', 'mq'), private_servers.find_urls(
                'db', 'mq', private))
            self.assertEqual(('db', None), private_servers.find_urls(
                'db', None, private))
        self.checks[0].assert_not_called()


class ServersTestCase(testtools.TestCase):
    """The servers, with programs that only note how they are called."""

    def setUp(self):
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.bin = self.state / 'bin'
        self.bin.mkdir()
        self.useFixture(fixtures.EnvironmentVariable(
            'PATH', '%s:/usr/bin:/bin' % self.bin))
        for module, name, value in (
                (processes, '_SYSTEM_PATH', ()),
                (private_servers, '_RABBITMQ', self.bin)):
            self.useFixture(fixtures.MockPatchObject(module, name, value))
        for name in ('mariadbd', 'epmd', 'rabbitmq-server'):
            self.program(name, 'exec sleep 60')
        self.program('mariadb-install-db', 'mkdir "${2#--datadir=}"')
        self.useFixture(fixtures.MockPatch('os.geteuid', return_value=1000))
        for name, program in (('databases.Databases', 'mariadbd'),
                              ('bus.Bus', 'rabbitmq-server')):
            self.useFixture(fixtures.MockPatch(
                'tools.cloud.%s.check' % name,
                lambda server, program=program: self.answers(program)))
        self.useFixture(fixtures.MockPatch(
            'tools.cloud.ports.answers', lambda port: bool(
                self.called('epmd'))))
        # All processes of a machine are looked at, other tests' too.
        self.processes = processes.Processes(
            self.state, 'cloud_' + uuidutils.generate_uuid(dashed=False))
        self.addCleanup(self.processes.close)

    def program(self, name, does):
        path = self.bin / name
        path.write_text(
            '#!/bin/sh\necho "$(env)" "$@" > %(path)s.$$\n'
            'cat %(path)s.calls >> %(path)s.$$ 2>/dev/null\n'
            'mv %(path)s.$$ %(path)s.calls\n%(does)s\n' % {
                'path': path, 'does': does})
        path.chmod(0o755)

    def answers(self, name):
        if not self.called(name):
            raise MISSING

    def called(self, name):
        path = self.bin / (name + '.calls')
        return path.read_text() if path.exists() else ''

    def start(self, server):
        reserved = ports.Ports(server.ports)
        self.addCleanup(reserved.release_all)
        server.settle(reserved.numbers, 'secret')
        steps = plan.Plan()
        server.add_steps(steps, self.processes, reserved)
        self.assertEqual(set(server.processes), set(steps))
        steps.run(lambda *_: None, self.processes.close)
        return reserved.numbers

    def mariadb(self):
        return private_servers.Databases(
            self.state / 'var/mariadb', 'cloud_1_', ['nova'])

    def rabbitmq(self):
        return private_servers.Bus(
            self.state / 'var/rabbitmq', 'cloud_1', ['cell1', 'cell2'])

    def test_mariadb_listens_where_its_url_says_and_nowhere_else(self):
        server = self.mariadb()
        number = self.start(server)['mariadb']
        self.assertEqual(
            'mysql+pymysql://cloud:secret@127.0.0.1:%d/cloud_1_nova'
            '?charset=utf8mb3' % number, server.url('nova'))
        self.assertTrue(self.processes.running()['mariadb'].alive)
        for word in ('--no-defaults', '--port=%d' % number,
                     '--bind-address=127.0.0.1',
                     '--datadir=%s/var/mariadb/data' % self.state):
            self.assertIn(word, self.called('mariadbd'))

    def test_data_of_mariadb_is_made_once(self):
        self.start(self.mariadb())
        self.processes.stop({'mariadb'})
        (self.bin / 'mariadbd.calls').unlink()
        self.start(self.mariadb())
        self.assertEqual(
            1, self.called('mariadb-install-db').count('--datadir'))

    def test_only_root_must_say_who_it_runs_as(self):
        self.start(self.mariadb())
        self.assertNotIn('--user', self.called('mariadbd'))
        self.processes.stop({'mariadb'})
        shutil.rmtree(self.state / 'var')
        (self.bin / 'mariadbd.calls').unlink()
        with mock.patch('os.geteuid', return_value=0):
            self.start(self.mariadb())
        for name in ('mariadbd', 'mariadb-install-db'):
            self.assertIn('--user=root', self.called(name))

    def test_data_that_cannot_be_made(self):
        self.program('mariadb-install-db', 'echo no room; exit 3')
        error = self.assertRaises(
            errors.CloudError, self.start, self.mariadb())
        self.assertEqual(
            'mariadb-install-db failed with exit code 3:\nno room',
            str(error))
        self.assertNotIn('mariadb', self.processes.running())

    def test_rabbitmq_has_a_node_and_ports_and_files_of_its_own(self):
        numbers = self.start(self.rabbitmq())
        called = self.called('rabbitmq-server')
        for word in ('RABBITMQ_NODENAME=cloud_1@localhost',
                     'ERL_EPMD_PORT=%d' % numbers['epmd'],
                     'RABBITMQ_DIST_PORT=%d' % numbers['rabbitmq-dist']):
            self.assertIn(word, called)
        for line in called.splitlines():
            if line.startswith(('RABBITMQ_', 'HOME=')) and '/' in line:
                self.assertIn(str(self.state), line)
        self.assertIn('-port %d -address 127.0.0.1' % numbers['epmd'],
                      self.called('epmd'))
        self.assertIn(
            'listeners.tcp.1 = 127.0.0.1:%d\n' % numbers['rabbitmq'],
            (self.state / 'var/rabbitmq/rabbitmq.conf').read_text())

    def test_virtual_hosts_and_user_are_there_from_the_start(self):
        server = self.rabbitmq()
        number = self.start(server)['rabbitmq']
        self.assertEqual('rabbit://cloud:secret@127.0.0.1:%d/cloud_1_cell2'
                         % number, server.url_of('cell2'))
        self.assertFalse(server.shared)
        found = jsonutils.loads(
            (self.state / 'var/rabbitmq/definitions.json').read_text())
        hosts = ['cloud_1', 'cloud_1_cell1', 'cloud_1_cell2']
        self.assertEqual(hosts, [each['name'] for each in found['vhosts']])
        self.assertEqual(
            hosts, [each['vhost'] for each in found['permissions']])
        known = base64.decode_as_bytes(found['users'][0]['password_hash'])
        self.assertEqual(
            hashlib.sha256(known[:4] + b'secret').digest(), known[4:])

    def test_what_they_hold_goes_with_their_files(self):
        self.program('rabbitmqctl', '')
        self.rabbitmq().create()
        self.rabbitmq().drop()
        self.assertEqual('', self.called('rabbitmqctl'))
        with mock.patch.object(databases.Databases, '_execute') as execute:
            self.mariadb().drop()
        execute.assert_not_called()

    def test_program_that_is_missing_is_told_with_its_package(self):
        for server, program, package in (
                (self.mariadb(), 'mariadbd', 'apt install mariadb-server'),
                (self.rabbitmq(), 'rabbitmq-server',
                 'apt install rabbitmq-server')):
            server.check()
            (self.bin / program).unlink()
            error = self.assertRaises(errors.ServerMissing, server.check)
            self.assertIn(program, str(error))
            self.assertIn(package, str(error))

    def test_rabbitmq_of_debian_is_run_without_its_wrapper(self):
        wrapped = self.bin / 'lib/rabbitmq-server'
        with mock.patch.object(private_servers, '_RABBITMQ', wrapped):
            self.assertEqual(str(self.bin / 'rabbitmq-server'),
                             private_servers.find_program('rabbitmq-server'))
            wrapped.parent.mkdir()
            wrapped.touch()
            self.assertEqual(str(wrapped), private_servers.find_program(
                'rabbitmq-server'))
