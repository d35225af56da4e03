# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
import signal
import subprocess
import sys
from unittest import mock

import fixtures
import testtools

from tools.cloud import errors
from tools.cloud import main
from tools.cloud import record

ROOT = pathlib.Path(__file__).resolve().parents[4]

# A cloud that comes up for ever and notes that it went down.
ENDLESS = '''
import pathlib, sys, time
from unittest import mock
from tools.cloud import main

class Stack:
    description = ''
    state = pathlib.Path('/')
    settings = processes = None
    def __init__(self, *args, **kwargs):
        pass
    @staticmethod
    def find_urls(*args):
        return None, None
    def check(self):
        pass
    def up(self, done, started):
        print('up', flush=True)
        time.sleep(60)
    def down(self):
        print('down', flush=True)
        time.sleep(0.5)
        pathlib.Path(sys.argv[1]).touch()

with mock.patch('tools.cloud.profiles.find', return_value=Stack), \\
        mock.patch('nova_pending.laid', return_value=True):
    sys.exit(main.main(['demo']))
'''


class MainTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        # The handlers and the environment of the test runner are to stay.
        for name in ('no_proxy', 'NO_PROXY'):
            self.useFixture(fixtures.EnvironmentVariable(name))
        self.useFixture(fixtures.MockPatch('signal.signal'))
        self.useFixture(fixtures.MockPatch(
            'nova_pending.laid', return_value=True))
        self.useFixture(fixtures.MockPatch(
            'tools.cloud.main.metadata.version', return_value='1'))
        self.stack = mock.Mock()
        self.useFixture(fixtures.MockPatch(
            'tools.cloud.profiles.find', return_value=self.stack))
        self.stack.find_urls.side_effect = (
            lambda database_url, bus_url, private:
            (database_url, bus_url))
        self.cloud = self.stack.return_value
        self.cloud.state = pathlib.Path('/state')
        self.cloud.settings.libvirt = False
        # A plain test of the screen is elsewhere.
        self.services = self.useFixture(fixtures.MockPatch(
            'tools.cloud.screen.Screen.services', return_value=True)).mock
        self.folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.useFixture(fixtures.EnvironmentVariable(
            'CLOUD_STATE_DIR', str(self.folder / 'state')))
        self.demo = self.useFixture(fixtures.MockPatch(
            'tools.cloud.demo.Demo')).mock.return_value
        self.demo.timeline = []
        self.out = self.useFixture(fixtures.StringStream('out')).stream
        self.err = self.useFixture(fixtures.StringStream('err')).stream
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.out))
        self.useFixture(fixtures.MonkeyPatch('sys.stderr', self.err))

    def written(self, stream):
        stream.seek(0)
        return stream.read()

    def test_demonstration_as_it_should_be(self):
        self.demo.timeline = [('A step', 1000.0, 1.0)]
        self.assertEqual(0, main.main(['demo']))
        self.cloud.down.assert_called_once_with()
        self.assertIn('A step', self.written(self.out))

    def test_first_it_says_what_the_cloud_is_made_of(self):
        self.cloud.description = 'Every service is a thread.'
        main.main(['demo'])
        self.assertIn('Every service is a thread.',
                      self.written(self.out).partition('##')[0])

    def test_server_that_is_missing_stops_it_before_anything(self):
        self.cloud.check.side_effect = errors.ServerMissing('no MariaDB')
        self.assertEqual(1, main.main(['demo']))
        self.assertEqual('no MariaDB\n', self.written(self.err))
        self.assertEqual('', self.written(self.out))
        self.cloud.up.assert_not_called()

    def test_bad_argument(self):
        self.stack.side_effect = errors.BadArgument('no URL')
        self.assertEqual(2, main.main(['demo']))
        error = self.assertRaises(SystemExit, main.main, ['demo', '--what'])
        self.assertEqual(2, error.code)

    def test_cloud_that_does_not_come_up_goes_down(self):
        self.cloud.up.side_effect = errors.CloudError('nova-api has ended')
        self.assertEqual(3, main.main(['demo']))
        self.cloud.down.assert_called_once_with()
        self.demo.run.assert_not_called()

    def test_step_that_is_not_as_it_should_be(self):
        self.demo.run.side_effect = errors.StepFailed('status: ERROR')
        self.assertEqual(4, main.main(['demo']))
        self.cloud.down.assert_called_once_with()
        self.assertIn('status: ERROR', self.written(self.err))

    def test_cloud_that_does_not_go_down(self):
        self.cloud.down.side_effect = errors.CloudError('left over')
        self.assertEqual(3, main.main(['demo']))

    def test_cloud_that_does_not_go_down_hides_no_earlier_fault(self):
        self.demo.run.side_effect = errors.StepFailed('status: ERROR')
        self.cloud.down.side_effect = errors.CloudError('left over')
        self.assertEqual(4, main.main(['demo']))
        self.assertEqual('left over\nstatus: ERROR\n',
                         self.written(self.err))

    def test_fault_that_nobody_expected_is_no_missing_server(self):
        self.demo.run.side_effect = ZeroDivisionError
        self.assertEqual(3, main.main(['demo']))
        self.cloud.down.assert_called_once_with()
        self.assertIn('ZeroDivisionError', self.written(self.err))

    def test_environment_without_the_layer(self):
        with mock.patch('nova_pending.laid', return_value=False):
            self.assertEqual(3, main.main(['demo']))
        self.cloud.check.assert_not_called()

    def test_no_proxy_is_asked_for_the_services(self):
        main.main(['demo'])
        self.assertEqual('127.0.0.1', os.environ['no_proxy'])

    def test_servers_are_those_of_the_options_or_the_environment(self):
        main.main(['demo'])
        self.useFixture(fixtures.EnvironmentVariable(
            'CLOUD_DATABASE_URL', 'db'))
        self.useFixture(fixtures.EnvironmentVariable('CLOUD_BUS_URL', 'mq'))
        main.main(['demo'])
        main.main(['demo', '--database-url', 'mine', '--bus-url', 'my mq',
                   '--state-dir', '/here'])
        self.assertEqual([
            (None, None, None),
            ('db', 'mq', None), ('mine', 'my mq', pathlib.Path('/here'))],
            [call.args for call in self.stack.call_args_list])

    def test_servers_of_its_own(self):
        self.assertEqual(0, main.main(['up', '--private-servers']))
        self.stack.find_urls.assert_called_once_with(None, None, True)
        self.there_is_a_cloud()
        self.assertEqual(2, main.main(['up', '--private-servers']))

    def test_host_with_real_guests_is_shown_too(self):
        self.cloud.settings.libvirt = True
        with mock.patch('tools.cloud.demo_libvirt.Demo') as shown:
            shown.return_value.timeline = []
            self.assertEqual(0, main.main(['demo', '--libvirt']))
        shown.return_value.run.assert_called_once_with()
        self.demo.run.assert_not_called()
        self.assertEqual({'libvirt': True, 'reaper': True, 'owner': False,
                          'given_ports': {}}, self.stack.call_args.kwargs)

    def test_kept_cloud_stays_up_and_the_next_line_is_told(self):
        self.assertEqual(0, main.main(['demo', '--keep']))
        self.cloud.down.assert_not_called()
        self.assertEqual(self.folder / 'state', self.stack.call_args.args[2])
        self.assertIn('-m tools.cloud exec --state-dir /state openstack',
                      self.written(self.out))

    def test_kept_cloud_stays_up_to_be_looked_at_when_a_step_fails(self):
        self.demo.run.side_effect = errors.StepFailed('status: ERROR')
        self.assertEqual(4, main.main(['demo', '--keep']))
        self.cloud.down.assert_not_called()
        self.assertIn('The cloud stays up', self.written(self.out))

    def test_kept_cloud_that_does_not_come_up_goes_down(self):
        self.cloud.up.side_effect = errors.CloudError('nova-api has ended')
        self.assertEqual(3, main.main(['demo', '--keep']))
        self.cloud.down.assert_called_once_with()

    def test_new_cloud_is_as_it_was_chosen(self):
        self.assertEqual(0, main.main([
            'up', '--stock', '--no-cinder', '--workers', '3', '--conductors',
            '2', '--cells', '2', '--port', 'nova=8774', '--port',
            'keystone=5000', '--state-dir', '/here']))
        self.assertEqual({
            'stock': True, 'cinder': False, 'workers': 3, 'conductors': 2,
            'cells': 2, 'given_ports': {'nova': 8774, 'keystone': 5000}},
            self.stack.call_args.kwargs)
        self.assertEqual(pathlib.Path('/here'), self.stack.call_args.args[2])
        self.cloud.down.assert_not_called()
        self.services.assert_called_once_with(self.cloud)

    def test_samples(self):
        self.assertEqual(0, main.main(['up']))
        self.demo.make_samples.assert_not_called()
        self.assertEqual(0, main.main(['up', '--with-samples']))
        self.demo.make_samples.assert_called_once_with()

    def test_samples_that_are_not_as_they_should_be(self):
        self.demo.make_samples.side_effect = errors.StepFailed('ACTIVE')
        self.assertEqual(4, main.main(['up', '--with-samples']))
        # The cloud is there to be looked at.
        self.cloud.down.assert_not_called()

    def test_no_samples_of_servers_that_cannot_wait(self):
        self.assertEqual(2, main.main(['up', '--with-samples', '--stock']))
        self.cloud.up.assert_not_called()

    def test_stock_cloud_needs_no_layer(self):
        with mock.patch('nova_pending.laid', return_value=False):
            self.assertEqual(0, main.main(['up', '--stock']))
            self.assertEqual(3, main.main(['up']))

    def test_cloud_of_the_branch_needs_no_layer(self):
        for release, words, path in (
                ('34.0.0', ['x'], os.path.abspath('x')),
                ('34.0.0', [], str(ROOT / '.tox/in-tree')),
                ('33.0.2', [], str(ROOT / '.tox/in-tree33'))):
            with mock.patch('nova_pending.laid', return_value=False), (
                    mock.patch('nova_pending.release', return_value=release)):
                self.assertEqual(0, main.main(['up', '--in-tree', *words]))
                self.assertEqual(
                    {'in_tree': path, 'given_ports': {}},
                    self.stack.call_args.kwargs)
        error = self.assertRaises(
            SystemExit, main.main, ['up', '--stock', '--in-tree'])
        self.assertEqual(2, error.code)

    def test_wrong_choices(self):
        for words in (['--workers', '0'], ['--workers', 'x'],
                      ['--cells', '99'], ['--port', 'nova'],
                      ['--port', 'nova=0'], ['--port', 'none=80'],
                      ['--profile', 'none']):
            error = self.assertRaises(SystemExit, main.main, ['up', *words])
            self.assertEqual(2, error.code)
        error = self.assertRaises(
            SystemExit, main.main, ['kill', 'nova-api', '--signal', 'NONE'])
        self.assertEqual(2, error.code)

    def there_is_a_cloud(self):
        (self.folder / 'state').mkdir()
        record.Record(self.folder / 'state').write({'name': 'cloud_1'})
        self.useFixture(fixtures.MockPatch(
            'tools.cloud.profiles.load', return_value=self.cloud))

    def test_cloud_that_is_there_is_started_as_it_was_made(self):
        self.there_is_a_cloud()
        self.assertEqual(0, main.main(['up']))
        self.cloud.lock.assert_called_once_with()
        self.cloud.start.assert_called_once_with(mock.ANY, mock.ANY)
        self.cloud.up.assert_not_called()
        for words in (('--cells', '2'), ('--with-samples',)):
            self.assertEqual(2, main.main(['up', *words]))
        self.cloud.start.assert_called_once_with(mock.ANY, mock.ANY)

    def test_cloud_that_does_not_start_again_is_ended_and_keeps_its_data(self):
        self.there_is_a_cloud()
        self.cloud.start.side_effect = errors.CloudError('nova-api has ended')
        self.assertEqual(3, main.main(['up']))
        self.cloud.stop.assert_called_once_with()
        self.cloud.down.assert_not_called()
        self.assertIn('nova-api has ended', self.written(self.err))

    def test_down(self):
        self.there_is_a_cloud()
        self.assertEqual(0, main.main(['down']))
        self.cloud.down.assert_called_once_with()
        self.assertEqual(0, main.main(['down', '--keep-data']))
        self.cloud.down.assert_called_once_with()
        self.cloud.stop.assert_called_once_with()

    def test_without_a_cloud(self):
        for words in (['down'], ['status'], ['restart'], ['exec', 'true'],
                      ['logs', 'nova-api'], ['kill', 'nova-api']):
            self.assertEqual(2, main.main(words))
        self.assertEqual(
            6 * ('There is no cloud in %s.\n' % (self.folder / 'state')),
            self.written(self.err))

    def test_status_tells_whether_all_services_run(self):
        self.there_is_a_cloud()
        self.assertEqual(0, main.main(['status']))
        self.services.return_value = False
        self.assertEqual(3, main.main(['status']))
        self.cloud.lock.assert_not_called()

    def test_signals_to_a_service(self):
        self.there_is_a_cloud()
        process = self.cloud.find.return_value
        self.assertEqual(0, main.main(['kill', 'nova-api']))
        process.kill.assert_called_once_with()
        for name in ('HUP', 'SIGHUP', 'hup', '1'):
            main.main(['kill', 'nova-api', '--signal', name])
        self.assertEqual([mock.call(signal.SIGHUP)] * 4,
                         process.send.call_args_list)
        process.alive = False
        self.assertEqual(3, main.main(['kill', 'nova-api']))

    def test_restart(self):
        self.there_is_a_cloud()
        self.cloud.ended.return_value = ['nova-compute@host1']
        self.assertEqual(0, main.main(['restart', 'nova-api']))
        self.cloud.restart.assert_called_once_with(
            'nova-api', mock.ANY, mock.ANY)
        self.cloud.stop.assert_not_called()
        self.cloud.restart.side_effect = errors.CloudError('it fails')
        self.assertEqual(3, main.main(['restart', 'nova-api']))
        # The rest of the cloud goes on.
        self.cloud.stop.assert_not_called()
        self.assertEqual(0, main.main(['restart']))
        self.assertEqual(
            [mock.call.stop(), mock.call.start(mock.ANY, mock.ANY)],
            [call for call in self.cloud.method_calls
             if call[0] in ('stop', 'start')])

    def test_service_that_is_not_there_ends_nothing(self):
        self.there_is_a_cloud()
        self.cloud.find.side_effect = errors.BadArgument('no service')
        self.assertEqual(2, main.main(['restart', 'none']))
        self.cloud.stop.assert_not_called()

    def test_command_has_the_credentials_of_the_cloud_and_no_others(self):
        self.there_is_a_cloud()
        self.cloud.settings.etc = pathlib.Path('/etc-of-it')
        self.useFixture(fixtures.EnvironmentVariable('OS_USERNAME', 'me'))
        with mock.patch('os.execvpe') as execute:
            main.main(['exec', '--user', 'admin', 'openstack', 'server',
                       'list', '--all-projects'])
        program, argv, env = execute.call_args.args
        self.assertEqual(
            ['openstack', 'server', 'list', '--all-projects'], argv)
        self.assertEqual(('admin', '/etc-of-it/clouds.yaml'), (
            env['OS_CLOUD'], env['OS_CLIENT_CONFIG_FILE']))
        self.assertNotIn('OS_USERNAME', env)
        self.assertEqual(2, main.main(['exec', '/no/program']))

    def test_log_of_a_service(self):
        self.there_is_a_cloud()
        self.cloud.state = self.folder
        (self.folder / 'log').mkdir()
        (self.folder / 'log/nova-api.log').touch()
        with mock.patch('os.execvpe') as execute:
            main.main(['logs', 'nova-api', '-n', '5', '-f'])
        self.assertEqual(
            ['tail', '-n', '5', '-F', str(self.folder / 'log/nova-api.log')],
            execute.call_args.args[1])
        for name in ('nova', '../log/nova-api'):
            self.assertEqual(2, main.main(['logs', name]))
        self.assertIn('but of: nova-api.', self.written(self.err))

    def test_full_disk_is_told(self):
        self.cloud.up.side_effect = errors.CloudError('nova-api has ended')
        with mock.patch('tools.cloud.stack.disk_room', return_value=0):
            main.main(['up'])
        self.assertIn('There is no room left on the disk of /state.',
                      self.written(self.err))


class SignalTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.mark = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'down')
        # The checkout only: what the release has under tools is none of it.
        self.child = subprocess.Popen(
            [sys.executable, '-c', ENDLESS, self.mark], cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.child.communicate)
        self.addCleanup(self.child.kill)
        self.wait_for('up\n')

    def wait_for(self, wanted):
        while self.child.stdout.readline() not in (wanted, ''):
            pass

    def test_each_signal_takes_the_cloud_down(self):
        self.child.send_signal(signal.SIGTERM)
        self.assertEqual(143, self.child.wait(20))
        self.assertTrue(self.mark.exists())
        self.assertEqual('Ended by SIGTERM.\n', self.child.stderr.read())

    def test_further_signals_do_not_interrupt_the_way_down(self):
        self.child.send_signal(signal.SIGINT)
        self.wait_for('down\n')
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(self.child.pid, signum)
        self.assertEqual(130, self.child.wait(20))
        self.assertTrue(self.mark.exists())
