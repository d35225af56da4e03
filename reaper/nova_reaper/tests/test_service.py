# SPDX-License-Identifier: Apache-2.0

"""The processes of the service, and what signals do to them."""

from collections.abc import Callable
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any
from unittest import mock

import fixtures
from keystoneauth1 import exceptions
from oslo_log import log
import webob

from nova_reaper.events import bus
from nova_reaper.events import reader
from nova_reaper.report import http
from nova_reaper import service
from nova_reaper import tests
from nova_reaper.tests import fakes

# It goes on trying to log in.
_CONFIGURATION = '''
[DEFAULT]
use_stderr = true
log_color = false
[reaper]
mode = %s
''' + fakes.LOGIN


def until(happens: Callable[[], bool]) -> bool:
    """Wait for something; returns whether it has happened."""
    end = time.monotonic() + 60
    while not happens() and time.monotonic() < end:
        time.sleep(0.01)
    return happens()


class NoBusTestCase(tests.TestCase):
    """Who connects to the bus tries it for ever."""

    def test_the_engine_does_not_wait_for_it(self) -> None:
        connected = threading.Event()
        listener = mock.Mock(start=mock.Mock(side_effect=connected.wait))
        self.useFixture(fixtures.MockPatch(
            'nova_reaper.events.bus.listener', return_value=listener))
        listens = bus.Listening(fakes.configuration())
        listens.listen(mock.Mock(), mock.Mock())
        # It is not stopped while it begins, which would wait for it, too.
        self.assertIsNone(listens.leave())
        listener.stop.assert_not_called()
        connected.set()
        for thread in threading.enumerate():
            if thread.name == 'listens':
                thread.join(10)
        listener.stop.assert_called_once_with()
        listens.listen(mock.Mock(), mock.Mock())
        self.assertTrue(until(lambda: bool(listens._thread)))
        leaving = listens.leave()
        assert leaving
        leaving.join(10)
        self.assertEqual(2, listener.stop.call_count)


class TakePartTestCase(tests.TestCase):
    """The active one listens."""

    def setUp(self) -> None:
        super().setUp()
        self.listener: mock.Mock = self.useFixture(fixtures.MockPatch(
            'nova_reaper.events.bus.listener')).mock
        self.reaper = service.Reaper(fakes.configuration())
        with mock.patch.object(self.reaper, '_run'):
            self.reaper.start()
        self.addCleanup(self.reaper.wait)
        self.engine = mock.Mock()

    def take_part(self, active: bool, times: int) -> None:
        """Do three turns, after which there was a listener so many times."""
        place = self.reaper._coordinator.active
        (place.set if active else place.clear)()
        for _ in range(3):
            self.reaper._take_part(self.engine)
        self.assertIs(active, self.engine.guard.active)
        self.assertTrue(until(lambda: self.listener.call_count == times))
        if not active:
            for thread in threading.enumerate():
                if thread.name == 'listens':
                    thread.join(10)
        self.assertEqual(times, self.listener.call_count)

    def test_it_listens_while_it_is_active(self) -> None:
        for active, times in (False, 0), (True, 1), (False, 1), (True, 2):
            self.take_part(active, times)
        self.listener.return_value.stop.assert_called_once_with()

    def test_one_that_cannot_be_made_is_tried_again_when_it_was_left(
            self) -> None:
        self.listener.side_effect = ValueError
        for active, times in (True, 1), (False, 1), (True, 2):
            self.take_part(active, times)


class SpareTestCase(tests.TestCase):
    """What lists have read is hidden from the garbage collector."""

    def test_only_while_a_list_is_read_or_taken(self) -> None:
        for loading in (False, True):
            with mock.patch('gc.freeze') as freeze:
                service.spare(mock.Mock(loading=loading))
            self.assertEqual(loading, freeze.called)


class WrongOptionTestCase(tests.TestCase):
    """What libraries raise for one does not end the thread that does it all.
    """

    def runs(self, **patches: mock.Mock) -> None:
        reaper = service.Reaper(fakes.configuration())
        with mock.patch.multiple(service, **patches):
            reaper.start()
            self.addCleanup(reaper.wait)
            self.addCleanup(reaper.stop)
            reaper._thread.join(1)
            self.assertTrue(reaper._thread.is_alive())
        for patch in patches.values():
            patch.assert_called()

    def test_of_the_session(self) -> None:
        self.runs(connect=mock.Mock(side_effect=OSError('no certificate')))

    def test_of_the_tokens_that_are_shown(self) -> None:
        with mock.patch.object(
                http, 'application',
                side_effect=exceptions.NoMatchingPlugin('pasword')) as made:
            self.runs(connect=mock.Mock(), build=mock.Mock())
        # Before the first login and after it.
        self.assertEqual(2, made.call_count)


class PortTestCase(tests.TestCase):
    """Another program has the port."""

    def test_it_is_tried_again(self) -> None:
        free = mock.Mock()
        free.start.return_value = 8782
        reaper = service.Reaper(fakes.configuration())
        with mock.patch.object(http, 'application'), mock.patch.object(
                http, 'Server',
                side_effect=[OSError('in use')] * 3 + [free]) as made, (
                mock.patch.multiple(service, connect=mock.Mock(),
                                    build=mock.Mock(), LISTEN_AGAIN=0.0)):
            reaper.start()
            self.addCleanup(reaper.wait)
            self.addCleanup(reaper.stop)
            for _ in range(100):
                if free.start.called:
                    break
                time.sleep(0.1)
        self.assertEqual(4, made.call_count)
        self.assertIs(free, reaper._server)


class NobodyLoggedInTestCase(tests.TestCase):
    """The port is open before Keystone, Nova or Placement answers."""

    def test_health_says_why(self) -> None:
        answered: list[tuple[int, dict[str, Any]]] = []
        apps: list[http.WsgiApp] = []

        def connect(*_: Any) -> mock.Mock:
            answer = webob.Request.blank('/healthz').get_response(apps[-1])
            answered.append((answer.status_int, answer.json))
            if len(answered) < 3:
                raise exceptions.ConnectFailure('Keystone is away')
            return mock.Mock()

        def server(conf: Any, app: http.WsgiApp) -> mock.Mock:
            apps.append(app)
            return mock.Mock()

        reaper = service.Reaper(fakes.configuration(mode='fill'))
        engine = mock.Mock(turn=reaper.stop)
        with mock.patch.multiple(
                service, connect=connect,
                build=mock.Mock(return_value=engine)), mock.patch.multiple(
                    service, AGAIN=0.01), mock.patch.object(
                        http, 'Server', side_effect=server) as made:
            reaper.start()
            reaper.wait()
        made.assert_called_once()
        self.assertEqual([200, 503, 503], [code for code, _ in answered])
        body = answered[-1][1]
        self.assertEqual(('failed', False, 'observe', 'fill'), (
            body['status'], body['active'], body['mode'],
            body['configured_mode']))
        self.assertEqual([{'name': 'cloud', 'status': 'failed',
                           'detail': 'Keystone is away'}], body['checks'])


class BusHangsTestCase(tests.TestCase):
    """Another is active, and the bus does not let go of the listener."""

    def test_the_engine_does_not_wait_for_it(self) -> None:
        gone = threading.Event()
        self.addCleanup(gone.set)
        left: list[bool] = []
        self.useFixture(fixtures.MockPatch(
            'nova_reaper.events.bus.listener', return_value=mock.Mock(
                wait=lambda: left.append(gone.wait(10)))))
        listens = bus.Listening(fakes.configuration())
        listens.listen(mock.Mock(), mock.Mock())
        self.assertTrue(until(lambda: bool(listens._thread)))
        leaving = listens.leave()
        self.assertEqual([], left)
        gone.set()
        assert leaving
        leaving.join(60)
        self.assertEqual([True], left)


class EndTestCase(tests.TestCase):
    """The process whose engine is told to end, or has ended."""

    def run_with(self, *signals: int, connected: bool = True
                 ) -> tuple[int, mock.Mock]:
        """The exit code, and what ran."""
        handlers: dict[int, Any] = {}
        reaper = mock.Mock(connected=connected)

        def begin(_conf: Any, ended: Any) -> mock.Mock:
            def start() -> None:
                for number in signals:
                    handlers[number](number, None)
                if not signals:
                    ended()
            reaper.start = start
            return reaper

        with mock.patch.object(service, 'Reaper', begin), mock.patch.multiple(
                signal, signal=handlers.__setitem__,
                alarm=mock.DEFAULT) as patched:
            code = service.run(fakes.configuration())
        # Whatever hangs.
        patched['alarm'].assert_called_once_with(60)
        return code, reaper

    def test_by_itself_is_a_failure(self) -> None:
        self.assertEqual(1, self.run_with()[0])

    def test_an_engine_that_fails_tells_it(self) -> None:
        ended = threading.Event()
        reaper = service.Reaper(fakes.configuration(), ended.set)
        with mock.patch.object(reaper, '_run', side_effect=SystemExit):
            reaper.start()
            self.addCleanup(reaper.wait)
            self.assertTrue(ended.wait(60))

    def test_a_journal_that_no_other_reaper_can_read(self) -> None:
        for backend, connection, is_told in (
                ('', 'sqlite://', False),
                ('redis://127.0.0.1:1', 'sqlite:////nowhere/a.sqlite', True),
                ('redis://127.0.0.1:1', 'mysql+pymysql://127.0.0.1:1/a',
                 False)):
            conf = fakes.configuration()
            conf.set_override('backend_url', backend, 'coordination')
            conf.set_override('connection', connection, 'database')
            reaper = service.Reaper(conf)
            log = self.useFixture(fixtures.FakeLogger())
            with mock.patch.object(reaper, '_book'), mock.patch.object(
                    reaper, '_thread'):
                reaper.start()
            self.assertEqual(is_told, 'need one journal' in log.output)

    def test_the_process_lives_until_it_has_stopped(self) -> None:
        code, reaper = self.run_with(signal.SIGTERM)
        self.assertEqual(0, code)
        self.assertEqual([mock.call.stop(), mock.call.wait(None)],
                         reaper.mock_calls)

    def test_nothing_has_been_begun_without_a_cloud(self) -> None:
        self.assertFalse(service.Reaper(fakes.configuration()).connected)
        code, reaper = self.run_with(signal.SIGTERM, connected=False)
        self.assertEqual(0, code)
        self.assertEqual([mock.call.stop(), mock.call.wait(0.0)],
                         reaper.mock_calls)

    def test_hangups_before_it(self) -> None:
        code, reaper = self.run_with(
            signal.SIGHUP, signal.SIGHUP, signal.SIGTERM)
        self.assertEqual(0, code)
        self.assertEqual(2, reaper.reset.call_count)

    def test_a_pause_before_it(self) -> None:
        code, reaper = self.run_with(signal.SIGUSR1, signal.SIGTERM)
        self.assertEqual(0, code)
        reaper.pause.assert_called_once_with()

    def test_a_list_of_all_hosts_is_given_up(self) -> None:
        reaper = service.Reaper(fakes.configuration())
        begun, go_on = threading.Event(), threading.Event()
        log = self.useFixture(fixtures.FakeLogger())

        def read_host(host: int) -> None:
            begun.set()
            go_on.wait(60)
            hosts.append(host)

        def runs() -> None:
            source = reader.Jobs(reaper._pool, mock.Mock(), mock.Mock())
            source.start('full list', lambda: list(
                reaper._readers.map(read_host, range(1000))), mock.Mock())
            begun.wait(60)
            source.stopping = True

        hosts: list[int] = []
        with mock.patch.object(reaper, '_run', runs):
            reaper.start()
            begun.wait(60)
            reaper.stop()
            threading.Timer(0.2, go_on.set).start()
            reaper.wait()
        self.assertLess(len(hosts), 100)
        self.assertNotIn('Traceback', log.output)

    def test_signals_before_it_has_begun(self) -> None:
        reaper = service.Reaper(fakes.configuration())
        reaper.reset()
        reaper.stop()
        with mock.patch.object(service, 'connect') as connect:
            reaper.start()
            reaper.wait()
        connect.assert_not_called()


class MutateTestCase(tests.TestCase):
    """A file that cannot be read does not end the service."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())

    def test_no_text_and_a_directory(self) -> None:
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        file.write_text('[reaper]\nmode = fill\n')
        conf = fakes.configuration(file)
        reaper = service.Reaper(conf)
        file.write_bytes(b'\xff\xfe')
        reaper.reset()
        file.unlink()
        file.mkdir()
        reaper.reset()
        self.assertEqual('fill', conf.reaper.mode)
        self.assertEqual(2, self.log.output.count('is as it was'))

    def test_a_value_of_the_command_line(self) -> None:
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        file.write_text('')
        conf = fakes.configuration(file)
        file.write_text('[DEFAULT]\ndebug = maybe\n[reaper]\nmode = fill\n')
        service.Reaper(conf).reset()
        self.assertEqual('observe', conf.reaper.mode)
        self.assertIn('is as it was', self.log.output)

    def test_logging_that_cannot_be_configured(self) -> None:
        # It is no reason to go on with the mode of before.
        file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        file.write_text('[reaper]\nmode = preempt\n')
        conf = fakes.configuration(file)
        hook = mock.Mock()
        conf.register_mutate_hook(hook)
        for error, mode in ((None, 'fill'), (log.LogConfigError('x', 'no'),
                                             'observe')):
            file.write_text(f'[reaper]\nmode = {mode}\n')
            hook.side_effect = error
            service.Reaper(conf).reset()
            self.assertEqual(mode, conf.reaper.mode)
        self.assertNotIn('is as it was', self.log.output)


class SignalTestCase(tests.TestCase):
    """It runs, and looks for a cloud that is not there."""

    def setUp(self) -> None:
        super().setUp()
        self.file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        self.configure('observe')
        self.process = subprocess.Popen(
            [sys.executable, '-m', 'nova_reaper.cli.main', 'run',
             '--config-file', self.file], stderr=subprocess.PIPE, text=True,
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
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            for line in self.log:
                if text in line:
                    return line
            time.sleep(0.05)
        raise AssertionError(f'Not in the log: {text}\n{"".join(self.log)}')

    def test_hangup_takes_other_options_over(self) -> None:
        self.configure('fill')
        self.process.send_signal(signal.SIGHUP)
        line = self.wait_for('the mode is fill')
        # In the process that knows the cloud.
        self.assertEqual(str(self.process.pid), line.split()[2])

    def test_hangup_while_one_is_handled(self) -> None:
        for mode in ('fill', 'preempt'):
            self.configure(mode)
            self.process.send_signal(signal.SIGHUP)
        self.wait_for('the mode is preempt')
        self.assertIsNone(self.process.poll())

    def test_hangup_with_a_wrong_file_changes_nothing(self) -> None:
        self.configure('nonsense')
        self.process.send_signal(signal.SIGHUP)
        self.wait_for('The configuration is as it was')
        self.configure('preempt')
        self.process.send_signal(signal.SIGHUP)
        self.wait_for('the mode is preempt')
        self.assertIsNone(self.process.poll())

    def test_a_signal_pauses(self) -> None:
        self.process.send_signal(signal.SIGUSR1)
        self.wait_for('Paused by SIGUSR1')
        self.assertIsNone(self.process.poll())

    def test_it_ends_at_once_in_a_terminal(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.assertEqual(1, self.process.wait(100))

    def test_it_ends_when_it_is_told_to(self) -> None:
        self.process.terminate()
        self.assertEqual(0, self.process.wait(100))
