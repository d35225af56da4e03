# SPDX-License-Identifier: Apache-2.0

import pathlib
import socket
import ssl
from unittest import mock

from amqp import exceptions as amqp_exc
import fixtures
import testtools

from tools.cloud import bus
from tools.cloud import errors

URL = 'rabbit://us%40er:secret@127.0.0.1:5672/'
CONNECT = bus.Bus._connect


class BusTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.calls = self.folder / 'calls'
        self.calls.touch()
        self.rabbitmqctl()
        self.connects = self.useFixture(fixtures.MockPatchObject(
            bus.Bus, '_connect', mock.MagicMock())).mock

    def rabbitmqctl(self, fails='none'):
        """Put a rabbitmqctl on the PATH that notes how it is called."""
        program = self.folder / 'rabbitmqctl'
        program.write_text(
            '#!/bin/sh\necho "$@" >> %s\ncase "$2" in %s) exit 1;; esac\n'
            % (self.calls, fails))
        program.chmod(0o755)
        self.useFixture(fixtures.EnvironmentVariable(
            'PATH', '%s:/usr/bin:/bin' % self.folder))

    def called(self):
        return self.calls.read_text().splitlines()

    def consumers(self, **found):
        return self.useFixture(fixtures.MockPatchObject(
            bus.Bus, 'consumers',
            lambda self, queue, cell=None: found.get(queue)))

    def test_cloud_gets_a_virtual_host_and_removes_it(self):
        server = bus.Bus(URL, 'cloud_1')
        server.create()
        self.assertFalse(server.shared)
        self.assertEqual('rabbit://us%40er:secret@127.0.0.1:5672/cloud_1',
                         server.url)
        server.drop()
        self.assertEqual([
            '--quiet add_vhost cloud_1',
            '--quiet set_permissions -p cloud_1 us@er .* .* .*',
            '--quiet delete_vhost cloud_1'], self.called())

    def test_bus_that_is_gone_comes_back(self):
        mine = bus.Bus(URL, 'cloud_x')
        mine.create()
        self.calls.write_text('')
        with mine.gone():
            self.assertEqual([
                '--quiet clear_permissions -p cloud_x us@er',
                '--quiet close_all_connections --vhost cloud_x gone'],
                self.calls.read_text().splitlines())
            self.calls.write_text('')
        self.assertEqual(
            '--quiet set_permissions -p cloud_x us@er .* .* .*\n',
            self.calls.read_text())

    def test_bus_of_others_does_not_go(self):
        mine = bus.Bus(URL, 'cloud_x')
        mine.shared = True
        self.assertRaises(errors.CloudError, mine.gone().__enter__)
        self.assertEqual('', self.calls.read_text())

    def test_without_rabbitmqctl_the_given_virtual_host_is_used(self):
        self.rabbitmqctl(fails='add_vhost')
        self.consumers()
        server = bus.Bus(URL, 'cloud_1')
        server.create()
        self.assertTrue(server.shared)
        self.assertEqual(URL, server.url)
        server.drop()
        self.assertEqual(['--quiet add_vhost cloud_1'], self.called())

    def test_virtual_host_that_the_user_names_is_left_alone(self):
        self.consumers()
        server = bus.Bus(URL + 'mine', 'cloud_1')
        server.create()
        server.drop()
        self.assertTrue(server.shared)
        self.assertEqual(URL + 'mine', server.url)
        self.assertEqual([], self.called())

    def test_rabbitmqctl_is_not_asked_about_another_machine(self):
        self.consumers()
        server = bus.Bus('rabbit://guest:guest@mq.example.org:5672/', 'c')
        server.create()
        self.assertTrue(server.shared)
        self.assertEqual([], self.called())

    def test_virtual_host_of_another_cloud_is_not_used(self):
        self.rabbitmqctl(fails='add_vhost')
        for queue in ('conductor', 'q-plugin'):
            # Nobody takes from it at this moment: it is theirs all the same.
            self.consumers(**{queue: 0})
            error = self.assertRaises(
                errors.CloudError, bus.Bus(URL, 'cloud_1').create)
            self.assertIn(queue, str(error))
            self.assertNotIn('secret', str(error))

    def test_virtual_host_without_rights_is_removed_again(self):
        self.rabbitmqctl(fails='set_permissions')
        server = bus.Bus(URL, 'cloud_1')
        self.assertRaises(errors.CloudError, server.create)
        server.drop()
        self.assertEqual('--quiet delete_vhost cloud_1', self.called()[-1])

    def test_virtual_host_on_another_server_is_told_and_removed(self):
        # rabbitmqctl does not ask for the port.
        self.connects.side_effect = errors.ServerMissing('no such host')
        server = bus.Bus(URL, 'cloud_1')
        error = self.assertRaises(errors.CloudError, server.create)
        self.assertIn('not the one that rabbitmqctl works on', str(error))
        self.assertNotIn('secret', str(error))
        server.drop()
        self.assertEqual('--quiet delete_vhost cloud_1', self.called()[-1])

    def test_virtual_host_that_cannot_be_removed_is_told(self):
        server = bus.Bus(URL, 'cloud_1')
        server.create()
        self.rabbitmqctl(fails='delete_vhost')
        error = self.assertRaises(errors.CloudError, server.drop)
        self.assertIn('cloud_1', str(error))

    def test_virtual_host_that_is_gone_need_not_be_removed(self):
        server = bus.Bus(URL, 'cloud_1')
        server.create()
        self.rabbitmqctl(fails='*')
        server.drop()

    def test_virtual_host_of_somebody_else_is_not_removed(self):
        server = bus.Bus(URL, 'cloud_1')
        server.shared = True
        server.drop()
        self.assertEqual([], self.called())

    def test_virtual_host_that_a_killed_process_may_have_made_is_removed(
            self):
        bus.Bus(URL, 'cloud_1').drop()
        self.assertEqual(['--quiet delete_vhost cloud_1'], self.called())

    def test_every_separate_cell_has_a_virtual_host(self):
        server = bus.Bus(URL, 'cloud_1', ['cell1', 'cell2'])
        server.create()
        self.assertEqual('rabbit://us%40er:secret@127.0.0.1:5672/cloud_1',
                         server.url_of(None))
        self.assertEqual(
            'rabbit://us%40er:secret@127.0.0.1:5672/cloud_1_cell2',
            server.url_of('cell2'))
        server.drop()
        for host in ('cloud_1', 'cloud_1_cell1', 'cloud_1_cell2'):
            for words in ('add_vhost', 'set_permissions -p', 'delete_vhost'):
                self.assertTrue(any(
                    call.startswith('--quiet %s %s' % (words, host))
                    for call in self.called()), (words, host))

    def test_cells_cannot_share_the_virtual_host_of_somebody_else(self):
        self.rabbitmqctl(fails='add_vhost')
        server = bus.Bus(URL, 'cloud_1', ['cell1', 'cell2'])
        self.assertRaises(errors.CloudError, server.create)

    def test_tls_is_what_the_url_says(self):
        url = 'rabbit://127.0.0.1:5671/?'
        for query, found in (
                ('', False), ('ssl=false&ssl_ca_file=/ca', False),
                ('ssl=true', {'cert_reqs': ssl.CERT_NONE}),
                ('ssl=true&ssl_ca_file=/ca', {
                    'cert_reqs': ssl.CERT_REQUIRED, 'ca_certs': '/ca',
                    'server_hostname': '127.0.0.1'})):
            self.assertEqual(found, bus.Bus(url + query, 'x')._tls())
        server = bus.Bus(url + 'ssl=true', 'cloud_1')
        server.create()
        self.assertEqual('rabbit://127.0.0.1:5671/cloud_1?ssl=true',
                         server.url)

    def test_rabbitmqctl_is_known_as_a_process_of_the_cloud(self):
        with mock.patch('subprocess.run') as run:
            bus.Bus(URL, 'cloud_1').drop()
        self.assertEqual(
            'cloud_1', run.call_args.kwargs['env']['NOVA_PENDING_CLOUD'])

    def test_what_is_no_url_of_rabbitmq_is_refused(self):
        for url in ('', 'amqp://127.0.0.1', 'rabbit:///', '127.0.0.1:5672',
                    'rabbit://127.0.0.1:port/'):
            self.assertRaises(errors.BadArgument, bus.Bus, url, 'x')

    def connect_for_real(self):
        self.useFixture(fixtures.MonkeyPatch(
            'tools.cloud.bus.Bus._connect', CONNECT))

    def test_server_that_is_not_there_is_told_without_the_password(self):
        self.connect_for_real()
        with socket.socket() as closed:
            closed.bind(('127.0.0.1', 0))
            url = 'rabbit://guest:secret@127.0.0.1:%d/' % (
                closed.getsockname()[1])
            error = self.assertRaises(
                errors.ServerMissing, bus.Bus(url, 'x').check)
        self.assertEqual(1, error.exit_code)
        self.assertIn(url.replace('secret', '***'), str(error))
        self.assertIn('--bus-url', str(error))
        self.assertNotIn('secret', str(error))
        self.assertNotIn('\n', str(error))

    def test_queue_is_asked_for_and_not_made(self):
        self.connect_for_real()
        with mock.patch('kombu.Connection') as connection:
            server = bus.Bus(URL, 'x')
            with mock.patch('kombu.Queue') as queue:
                declare = queue.return_value.queue_declare
                declare.return_value.consumer_count = 2
                self.assertEqual(2, server.consumers('conductor'))
                declare.assert_called_once_with(passive=True)
                connection.return_value.connect.assert_called_once_with()
                declare.return_value.message_count = 3
                self.assertEqual(3, server.messages('compute.host1'))
                declare.side_effect = amqp_exc.NotFound
                self.assertEqual(0, server.messages('compute.host1'))
                self.assertIsNone(server.consumers('compute.host1'))
