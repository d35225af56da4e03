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

import os
import pathlib
import signal
import subprocess
import sys
import time
from unittest import mock

import fixtures
import testtools

from tools.cloud import errors
from tools.cloud import main

ROOT = pathlib.Path(__file__).resolve().parents[4]

# A cloud that comes up for ever and notes that it went down.
ENDLESS = '''
import pathlib, sys, time
from unittest import mock
from tools.cloud import main

class Stack:
    settings = processes = None
    def __init__(self, *args):
        pass
    def check(self):
        pass
    def up(self, done):
        print('up', flush=True)
        time.sleep(60)
    def down(self):
        time.sleep(0.5)
        pathlib.Path(sys.argv[1]).touch()

with mock.patch('tools.cloud.stack.Stack', Stack), \\
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
        self.stack = self.useFixture(fixtures.MockPatch(
            'tools.cloud.stack.Stack')).mock
        self.cloud = self.stack.return_value
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
        self.demo.timeline = [('A step', 1.0)]
        self.assertEqual(0, main.main(['demo']))
        self.cloud.down.assert_called_once_with()
        self.assertIn('A step', self.written(self.out))

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
                   '--state-dir', 'here', '--keep'])
        self.assertEqual([
            ('mysql+pymysql://root@127.0.0.1:3306',
             'rabbit://guest:guest@127.0.0.1:5672/', None, False),
            ('db', 'mq', None, False),
            ('mine', 'my mq', 'here', True)],
            [call.args for call in self.stack.call_args_list])


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
        while self.child.stdout.readline() not in ('up\n', ''):
            pass

    def test_each_signal_takes_the_cloud_down(self):
        self.child.send_signal(signal.SIGTERM)
        self.assertEqual(143, self.child.wait(20))
        self.assertTrue(self.mark.exists())
        self.assertEqual('Ended by SIGTERM.\n', self.child.stderr.read())

    def test_further_signals_do_not_interrupt_the_way_down(self):
        self.child.send_signal(signal.SIGINT)
        time.sleep(0.1)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(self.child.pid, signum)
        self.assertEqual(130, self.child.wait(20))
        self.assertTrue(self.mark.exists())
