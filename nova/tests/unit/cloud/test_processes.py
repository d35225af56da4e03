# SPDX-License-Identifier: Apache-2.0

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

import fixtures
from oslo_serialization import jsonutils
from oslo_utils import uuidutils
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

    def test_output_is_that_of_the_last_start(self):
        self.processes.run('command', ['echo', 'first'])
        self.assertEqual((0, 'second\n'), self.processes.run(
            'command', ['echo', 'second']))
        self.assertEqual('first\nsecond\n', (
            self.state / 'log' / 'command.log').read_text())

    def test_stop_ends_only_the_processes_that_are_named(self):
        process, other = self.start(SLEEP), self.start(SLEEP, 'other')
        self.processes.stop({'service'})
        self.assertFalse(process.alive)
        self.assertTrue(other.alive)
        self.assertTrue(self.start(SLEEP).alive)

    def test_close_ends_the_last_ones_after_the_others(self):
        running = processes.Processes(self.state, last={'server'})
        for name in ('server', 'service'):
            running.start(name, ['sleep', '60'])
        stopped = []
        with mock.patch.object(
                running, 'stop', lambda names, grace: stopped.append(names)):
            running.close()
        self.assertEqual([{'service'}, {'server'}], stopped)
        running.close()

    def test_program_that_is_not_there_is_told_in_a_sentence(self):
        error = self.assertRaises(
            errors.CloudError, self.processes.start, 'x', ['/no/program'])
        self.assertIn('x cannot be started', str(error))

    def test_memory_of_a_process_with_its_workers(self):
        process = self.start(STUBBORN)
        self.first_line(process)
        both = process.members()
        self.assertEqual(2, len(both))
        self.assertGreater(processes.memory(both[1:]), 0)
        self.assertGreater(processes.memory(both[:1]), 100000)
        self.processes.close(grace=0)
        # A worker that is killed ends when the kernel comes to it.
        for _try in range(200):
            if not processes.memory(both):
                break
            time.sleep(0.05)
        self.assertEqual(0, processes.memory(both))

    def test_command_that_ends_is_no_service_that_has_ended(self):
        seen = []

        def wait(process):
            # After its end, before anybody is told of it.
            process._popen.wait()
            self.processes.check()
            seen.append(process.name)
            return 0

        with mock.patch.object(processes.Process, 'wait', wait):
            self.processes.run('command', ['true'])
        self.assertEqual(['command'], seen)

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


class AnotherRunTestCase(testtools.TestCase):
    """What a process of the tool knows of the processes of another one."""

    def setUp(self):
        super().setUp()
        self.state = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        # All processes of a machine are looked at, other tests' too.
        self.name = 'cloud_' + uuidutils.generate_uuid(dashed=False)
        self.first = processes.Processes(self.state, self.name)
        self.addCleanup(self.first.close, grace=0)

    def start(self, source=SLEEP, name='service'):
        process = self.first.start(name, [sys.executable, '-c', source])
        wait_for(lambda: '\n' in process.output())
        return process

    def second(self):
        return processes.Processes(self.state, self.name)

    def reaped(self, process):
        # Nobody holds the number of a process of another run.
        process._popen.wait()
        return process

    def test_living_process_is_adopted_and_ended(self):
        process = self.start(STUBBORN)
        child = int(process.output())
        other = self.second()
        adopted = other.running()['service']
        self.assertEqual(process.pid, adopted.pid)
        self.assertTrue(adopted.alive)
        threading.Thread(target=self.reaped, args=(process,)).start()
        other.close(grace=0.2)
        self.assertFalse(process.alive)
        wait_for(lambda: processes.start_time(child) is None)
        self.assertEqual({}, self.second().running())

    def test_process_that_was_killed_is_known_to_have_ended(self):
        process = self.start()
        process.kill()
        self.assertFalse(self.second().running()['service'].alive)

    def test_workers_of_a_process_that_has_ended_are_ended(self):
        process = self.start(LEAVES_A_WORKER)
        child = int(process.output())
        self.reaped(process)
        self.second().close(grace=0)
        wait_for(lambda: processes.start_time(child) is None)

    def test_process_that_nobody_noted_is_ended(self):
        # As if the first run was killed before it could note it.
        process = self.start()
        (self.state / 'run' / 'service.json').unlink()
        other = self.second()
        self.assertEqual({}, other.running())
        self.assertEqual([process.pid], other.strays())
        other.close(grace=0)
        wait_for(lambda: not process.alive)

    def test_note_that_was_cut_off_hides_no_process(self):
        process = self.start()
        (self.state / 'run' / 'service.json').write_text('{"pid": ')
        self.assertEqual([process.pid], self.second().strays())

    def test_process_that_left_its_session_is_ended(self):
        child = int(self.start(LEAVES_A_WORKER.replace(
            "60)'])", "60)'], start_new_session=True)")).output())
        self.assertEqual(child, os.getsid(child))
        self.second().close(grace=0)
        wait_for(lambda: processes.start_time(child) is None)

    def stranger(self, env=None):
        child = subprocess.Popen(
            [sys.executable, '-c', SLEEP], stdout=subprocess.PIPE, env=env,
            start_new_session=True)
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        child.stdout.readline()
        return child

    def test_process_of_that_name_in_its_environment_is_one_of_the_cloud(
            self):
        child = self.stranger({processes.MARK: self.name})
        self.assertEqual([child.pid], self.second().strays())

    def test_process_of_another_cloud_is_left_alone(self):
        child = self.stranger({processes.MARK: self.name + '2'})
        other = self.second()
        self.assertEqual([], other.strays())
        other.close(grace=0)
        self.assertIsNone(child.poll())

    def test_stranger_with_the_number_of_ours_is_left_alone(self):
        # After a reboot both the number and the session can be another's.
        child = self.stranger()
        for started in (processes.start_time(child.pid), 1):
            (self.state / 'run' / 'service.json').write_text(
                jsonutils.dumps({'pid': child.pid, 'started': started}))
            self.second().close(grace=0)
            self.assertIsNone(child.poll())
