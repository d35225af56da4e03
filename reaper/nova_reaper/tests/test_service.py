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

"""The processes of the service, and what signals do to them."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from unittest import mock

from cotyledon import types
import fixtures
from keystoneauth1 import exceptions

from nova_reaper import http
from nova_reaper import metrics
from nova_reaper import service
from nova_reaper import tests
from nova_reaper.tests import cloud

# It goes on trying to log in.
_CONFIGURATION = '''
[DEFAULT]
use_stderr = true
log_color = false
[reaper]
mode = %s
''' + cloud.LOGIN


class NoBusTestCase(tests.TestCase):
    """Who connects to the bus tries it for ever."""

    def test_the_engine_does_not_wait_for_it(self) -> None:
        connected = threading.Event()
        listener = mock.Mock(start=mock.Mock(side_effect=connected.wait))
        self.useFixture(fixtures.MockPatch(
            'nova_reaper.events.listener', return_value=listener))
        reaper = service.Reaper(cloud.configuration())
        reaper._metrics = metrics.Metrics()
        reaper._coordinator = mock.Mock()
        reaper._listener, reaper._listens = None, False
        reaper._listening = threading.Lock()
        engine = mock.Mock()
        reaper._take_part(engine)
        # It is not stopped while it begins, which would wait for it, too.
        reaper._leave()
        listener.stop.assert_not_called()
        connected.set()
        for thread in threading.enumerate():
            if thread.name == 'listens':
                thread.join(10)
        listener.stop.assert_called_once_with()
        reaper._take_part(engine)
        for thread in threading.enumerate():
            if thread.name == 'listens':
                thread.join(10)
        reaper._leave()
        self.assertEqual(2, listener.stop.call_count)


class WrongOptionTestCase(tests.TestCase):
    """What libraries raise for one does not end the thread that does it all.
    """

    def runs(self, **patches: mock.Mock) -> None:
        reaper = service.Reaper(cloud.configuration())
        with mock.patch.multiple(service, **patches):
            reaper.start()
            self.addCleanup(reaper.wait)
            self.addCleanup(reaper.stop)
            reaper._thread.join(1)
            self.assertTrue(reaper._thread.is_alive())

    def test_of_the_session(self) -> None:
        self.runs(connect=mock.Mock(side_effect=OSError('no certificate')))

    def test_of_the_tokens_that_are_shown(self) -> None:
        with mock.patch.object(
                http, 'application',
                side_effect=exceptions.NoMatchingPlugin('pasword')):
            self.runs(connect=mock.Mock(), build=mock.Mock())


class EndTestCase(tests.TestCase):
    """A worker whose engine has ended."""

    def test_by_itself_is_a_failure(self) -> None:
        worker = service.Worker(types.WorkerId(0), cloud.configuration())
        worker._reaper = reaper = mock.Mock(stopping=True)
        worker.run()
        reaper.stopping = False
        self.assertEqual(1, self.assertRaises(SystemExit, worker.run).code)

    def test_it_is_told_to_stop(self) -> None:
        reaper = service.Reaper(cloud.configuration())
        with mock.patch.object(reaper, '_run'):
            reaper.start()
        self.assertFalse(reaper.stopping)
        reaper.stop()
        reaper.wait()
        self.assertTrue(reaper.stopping)


class MutateTestCase(tests.TestCase):
    """A file that cannot be read does not end the service."""

    def test_no_text_and_a_directory(self) -> None:
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        file.write_text('[reaper]\nmode = fill\n')
        conf = cloud.configuration(file)
        file.write_bytes(b'\xff\xfe')
        self.assertFalse(service.mutate(conf))
        file.unlink()
        file.mkdir()
        self.assertFalse(service.mutate(conf))
        self.assertEqual('fill', conf.reaper.mode)


class SignalTestCase(tests.TestCase):
    """It runs, and looks for a cloud that is not there."""

    def setUp(self) -> None:
        super().setUp()
        self.file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        self.configure('observe')
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'nova_reaper.cmd', 'run', '--config-file',
             self.file], stderr=subprocess.PIPE, text=True,
            start_new_session=True)
        self.addCleanup(self.end)
        self.log: list[str] = []
        threading.Thread(target=self.read, daemon=True).start()
        self.wait_for('The cloud cannot be asked')

    def configure(self, mode: str) -> None:
        self.file.write_text(_CONFIGURATION % mode)

    def read(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.log.append(line)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def wait_for(self, text: str) -> str:
        """The first line of the log that has a text."""
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            for line in self.log:
                if text in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f'Not in the log: {text}\n{"".join(self.log)}')

    @staticmethod
    def worker(line: str) -> str:
        return line.split()[2]

    def test_hangup_takes_other_options_over(self) -> None:
        self.configure('fill')
        self.process.send_signal(signal.SIGHUP)
        line = self.wait_for('the mode is fill')
        # In the process that knows the cloud.
        self.assertEqual(
            self.worker(self.wait_for('cannot be asked')), self.worker(line))
        self.assertNotEqual(str(self.process.pid), self.worker(line))

    def test_hangup_with_a_wrong_file_changes_nothing(self) -> None:
        self.configure('nonsense')
        self.process.send_signal(signal.SIGHUP)
        self.wait_for('The configuration is as it was')
        self.configure('preempt')
        self.process.send_signal(signal.SIGHUP)
        self.wait_for('the mode is preempt')
        self.assertIsNone(self.process.poll())

    def test_it_ends_when_it_is_told_to(self) -> None:
        self.process.terminate()
        self.assertEqual(0, self.process.wait(100))
