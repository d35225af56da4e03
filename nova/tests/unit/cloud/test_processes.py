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
import threading
import time

import fixtures
from oslo_serialization import jsonutils
import testtools

from tools.cloud import errors
from tools.cloud import processes

# Each says on its output when it is ready.
SLEEP = 'import time; print("ready", flush=True); time.sleep(60)'
STUBBORN = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print(child.pid, flush=True)
time.sleep(60)
'''
LEAVES_A_WORKER = '''
import subprocess, sys
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
print(child.pid, flush=True)
'''


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError('waited in vain')
        time.sleep(0.02)


class StartTimeTestCase(testtools.TestCase):

    def test_of_a_living_process_stays(self):
        first = processes.start_time(os.getpid())
        self.assertIsInstance(first, int)
        self.assertEqual(first, processes.start_time(os.getpid()))

    def test_tells_two_processes_apart(self):
        time.sleep(2 / os.sysconf('SC_CLK_TCK'))
        child = subprocess.Popen([sys.executable, '-c', SLEEP],
                                 stdout=subprocess.DEVNULL)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.assertGreater(processes.start_time(child.pid),
                           processes.start_time(os.getpid()))

    def test_of_an_ended_process_is_none_reaped_or_not(self):
        child = subprocess.Popen(['true'])
        wait_for(lambda: processes.start_time(child.pid) is None)
        # Nobody has reaped it so far: its number is still taken.
        os.kill(child.pid, 0)
        child.wait()
        self.assertIsNone(processes.start_time(child.pid))

    def test_of_a_name_with_spaces_and_parentheses(self):
        program = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'a) R (b c')
        program.symlink_to('/bin/sleep')
        child = subprocess.Popen([program, '60'])
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        wait_for(lambda: pathlib.Path(
            '/proc/%d/comm' % child.pid).read_text() == 'a) R (b c\n')
        self.assertGreaterEqual(processes.start_time(child.pid),
                                processes.start_time(os.getpid()))


class ProcessesTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.processes = processes.Processes(self.state)
        self.addCleanup(self.processes.close, grace=0)

    def start(self, source, name='service', **env):
        return self.processes.start(name, [sys.executable, '-c', source], env)

    def first_line(self, process):
        wait_for(lambda: '\n' in process.output())
        return process.output().splitlines()[0]

    def test_started_process_is_recorded_with_its_start_time(self):
        process = self.start(SLEEP)
        record = jsonutils.loads(
            (self.state / 'run' / 'service.json').read_text())
        self.assertEqual(
            {'pid': process.pid,
             'started': processes.start_time(process.pid)}, record)
        self.assertTrue(process.alive)
        self.assertEqual('ready', self.first_line(process))

    def test_process_runs_in_the_state_directory_with_its_environment(self):
        process = self.start(
            'import os; print(os.getcwd(), os.environ["MINE"],'
            ' "PATH" in os.environ, flush=True)', MINE='yes')
        self.assertEqual('%s yes True' % self.state.resolve(),
                         self.first_line(process))

    def test_process_sees_no_credentials_of_the_users_shell(self):
        self.useFixture(fixtures.EnvironmentVariable('OS_AUTH_URL', 'theirs'))
        process = self.start(
            'import os; print(os.environ.get("OS_AUTH_URL"),'
            ' os.environ.get("OS_CLOUD"), flush=True)', OS_CLOUD='ours')
        self.assertEqual('None ours', self.first_line(process))

    def test_close_ends_a_process_and_drops_its_record(self):
        process = self.start(SLEEP)
        self.first_line(process)
        self.processes.close()
        self.assertFalse(process.alive)
        self.assertEqual({}, self.processes.running())
        self.assertEqual([], list((self.state / 'run').iterdir()))

    def test_close_kills_what_does_not_end_and_what_that_started(self):
        process = self.start(STUBBORN)
        child = int(self.first_line(process))
        start = time.monotonic()
        self.processes.close(grace=0.5)
        self.assertGreaterEqual(time.monotonic() - start, 0.5)
        self.assertFalse(process.alive)
        wait_for(lambda: processes.start_time(child) is None)

    def test_close_kills_the_workers_of_a_process_that_has_ended(self):
        process = self.start(LEAVES_A_WORKER)
        child = int(self.first_line(process))
        wait_for(lambda: not process.alive)
        self.assertIsNotNone(processes.start_time(child))
        self.processes.close()
        wait_for(lambda: processes.start_time(child) is None)

    def test_another_process_of_that_number_is_neither_ours_nor_signalled(
            self):
        process = self.start(SLEEP)
        self.first_line(process)
        process.started -= 1
        self.assertFalse(process.alive)
        process.send(signal.SIGKILL)
        time.sleep(0.1)
        self.assertIsNotNone(processes.start_time(process.pid))

    def test_nothing_is_started_after_close(self):
        self.processes.close()
        self.assertRaises(errors.Stopped, self.start, SLEEP)

    def test_run_returns_exit_code_and_output(self):
        self.assertEqual((3, 'out\nerr\n'), self.processes.run('command', [
            sys.executable, '-c',
            'import sys; print("out", flush=True);'
            'print("err", file=sys.stderr); sys.exit(3)']))
        self.assertEqual({}, self.processes.running())

    def test_close_ends_a_command_that_another_thread_waits_for(self):
        raised = []

        def run():
            try:
                self.processes.run('command', [sys.executable, '-c', SLEEP])
            except errors.Stopped as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        wait_for(lambda: 'command' in self.processes.running())
        self.processes.close()
        thread.join(20)
        self.assertFalse(thread.is_alive())
        self.assertEqual(1, len(raised))

    def test_check_tells_which_service_ended_and_the_end_of_its_log(self):
        other = self.start(SLEEP, 'other')
        self.first_line(other)
        self.processes.check()
        process = self.start(
            'print("first"); [print(n) for n in range(20)]')
        wait_for(lambda: not process.alive)
        error = self.assertRaises(errors.CloudError, self.processes.check)
        self.assertIn('service has ended', str(error))
        self.assertIn('\n19', str(error))
        self.assertNotIn('first', str(error))
        self.processes.check(['other'])

    def test_wait_until_returns_what_it_waited_for(self):
        answers = [None, 0, 'ready']
        self.assertEqual('ready', self.processes.wait_until(
            'it', lambda: answers.pop(0), None))

    def test_wait_until_ends_at_its_limit(self):
        error = self.assertRaises(
            errors.CloudError, self.processes.wait_until, 'the moon',
            lambda: None, None, 0.3)
        self.assertIn('the moon', str(error))

    def test_wait_until_ends_with_the_service(self):
        process = self.start('pass')
        wait_for(lambda: not process.alive)
        self.assertRaises(errors.CloudError, self.processes.wait_until,
                          'it', lambda: None, ['service'])

    def test_wait_until_believes_no_answer_of_a_service_that_ended(self):
        # Somebody else listens on its port then.
        process = self.start('pass')
        wait_for(lambda: not process.alive)
        self.assertRaises(errors.CloudError, self.processes.wait_until,
                          'it', lambda: True, ['service'])

    def test_wait_until_ends_when_the_cloud_goes_down(self):
        self.processes.close()
        self.assertRaises(errors.Stopped, self.processes.wait_until,
                          'it', lambda: None, None)
