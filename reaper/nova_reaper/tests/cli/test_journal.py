# SPDX-License-Identifier: Apache-2.0

"""Commands that ask the journal."""

import contextlib
import json
import pathlib
from typing import Any
from unittest import mock

import fixtures

from nova_reaper.cloud import model
from nova_reaper import conf
from nova_reaper.report import journal
from nova_reaper.report.journal import Kind
from nova_reaper.report.journal import Record
from nova_reaper import service
from nova_reaper.tests.cli import test_commands
from nova_reaper.tests import fakes
from nova_reaper.tests.report import test_history


class JournalTestCase(test_commands.CommandTestCase):
    """On a journal of some records; there is no cloud."""

    def setUp(self) -> None:
        super().setUp()
        path = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.url = f'sqlite:///{path / "journal"}'
        self.use(self.url)
        made = fakes.configuration()
        made.set_override('connection', self.url, 'database')
        self.store = journal.Store(made)
        self.end = Record(Kind.END, test_history.VICTIM, 'p1', 'v',
                          test_history.WAITER, 'p2', 'h1', 'delete')
        self.store.add([
            Record(Kind.NOTICE, test_history.VICTIM, 'p1', 'v',
                   test_history.WAITER, 'p2', 'h1',
                   detail={'action': 'delete', 'runner_up': {
                       'host': 'h2', 'victims': ['x'],
                       'decided_by': 'count'}}),
            self.end, Record(Kind.BUILD, test_history.WAITER, 'p2', 'w',
                             test_history.WAITER, 'p2', 'h1', 'active',
                             {'why': 'It runs.'})])

    def use(self, url: str) -> None:
        self.file.write_text(f'[database]\nconnection = {url}\n')

    def test_the_command(self) -> None:
        code, out, err = self.run_command('history')
        self.assertEqual((0, ''), (code, err))
        lines = out.splitlines()
        self.assertEqual(['notice', 'end', 'build'], [
            line.split()[3] for line in lines[3:-1]])
        self.assertIn('It runs.', out)
        self.assertIn('h2 was next, by count.', out)
        code, out, err = self.run_command(
            'history', '--server', test_history.VICTIM, '--kind', 'end',
            '--since', '1d', '--json')
        self.assertEqual([self.end.to_dict(True)], json.loads(out)['history'])
        for wrong in (('--server', 'x'), ('--since', 'x'), ('--kind', 'x'),
                      ('--limit', '0')):
            code, out, err = self.run_command('history', *wrong)
            self.assertEqual((2, '', 1), (code, out, err.count('\n')))

    def test_names_do_not_tell_a_terminal_what_to_do(self) -> None:
        self.store.add([Record(Kind.END, test_history.VICTIM, 'p1',
                               '\x1b[2Jwiped', result='delete')])
        out = self.run_command('history')[1]
        self.assertNotIn('\x1b', out)
        self.assertIn('\\x1b[2Jwiped', out)

    def test_the_commands_pause_and_resume(self) -> None:
        code, out, _ = self.run_command('pause', '--reason', 'power')
        pause = self.store.switch()
        assert pause
        self.assertEqual('power', pause.detail['why'])
        told = (0, f'The reaper is paused since {model.time_text(pause.at)} '
                   f'by {pause.detail["by"]}.\n')
        self.assertEqual(told, (code, out))
        with mock.patch('getpass.getuser', return_value='another'):
            self.assertEqual(told, self.run_command('pause')[:2])
        code, out, _ = self.run_command('resume')
        self.assertEqual((0, 'The reaper is not paused.\n'), (code, out))
        for wrong in ('x' * 256, '\x1b[2J'):
            code, out, err = self.run_command('pause', '--reason', wrong)
            self.assertEqual((2, ''), (code, out))
            self.assertIn('255 printable characters', err)

    def test_a_journal_in_memory_is_not_that_of_the_service(self) -> None:
        for url in 'sqlite://', 'sqlite:///:memory:':
            self.use(url)
            for command in 'pause', 'resume':
                code, out, err = self.run_command(command)
                self.assertEqual((2, ''), (code, out))
                self.assertIn('SIGUSR1', err)

    def test_others_are_told_of_a_pause(self) -> None:
        with self.file.open('a') as file:
            file.write('[reaper]\nhook_url = http://hook/x\n')
        posts = self.useFixture(fixtures.MockPatch(
            'requests.post', return_value=contextlib.nullcontext(
                mock.Mock(status_code=200)))).mock
        for command in ('pause', 'pause', 'resume'):
            self.assertEqual(0, self.run_command(command)[0])
        self.assertEqual(['pause', 'resume'], [
            json.loads(call.kwargs['data'])['kind']
            for call in posts.call_args_list])

    def test_alembic_logs_nothing_of_each_look(self) -> None:
        known = conf.load([str(self.file)])
        self.assertIn('alembic=WARNING', known.default_log_levels)

    def test_nothing_is_done_once_during_a_pause(self) -> None:
        def build(*given: Any) -> mock.Mock:
            # As the engine does, which decides nothing before.
            return mock.Mock(
                turn=lambda _: given[-1].asked.wait(10), recovered=True,
                busy=False, guard=mock.Mock(reason=None))

        self.file.write_text(f'[reaper]\nmode = fill\n{fakes.LOGIN}'.replace(
            'sqlite://', self.url))
        self.useFixture(fixtures.MockPatchObject(service, 'connect'))
        self.useFixture(fixtures.MockPatchObject(service, 'build', build))
        self.assertEqual((0, '', ''), self.run_command('once', '--do'))
        self.store.add([Record(Kind.PAUSE)])
        code, out, err = self.run_command('once', '--do')
        self.assertEqual((1, '', 1), (code, out, err.count('\n')))
        self.assertIn('The reaper is paused', err)

    def test_nobody_is_ended_once_without_the_database(self) -> None:
        self.file.write_text(f'[reaper]\nmode = fill\n{fakes.LOGIN}'.replace(
            'sqlite://', 'sqlite:////proc/none/journal'))
        self.useFixture(fixtures.MockPatchObject(service, 'connect'))
        self.useFixture(fixtures.MockPatchObject(
            service, 'build', lambda *_: mock.Mock(
                busy=False, guard=mock.Mock(reason=None))))
        code, out, err = self.run_command('once', '--do')
        self.assertEqual((1, '', 1), (code, out, err.count('\n')))
        self.assertIn('Nobody was ended', err)

    def test_commands_without_the_database(self) -> None:
        self.use('sqlite:////proc/none/journal')
        for command in ('history', 'pause', 'resume'):
            code, out, err = self.run_command(command)
            self.assertEqual((2, ''), (code, out))
            self.assertIn('[database] connection', err)
        self.assertIn('systemctl stop', self.run_command('pause')[2])
        self.use('no url with p4ssword')
        code, out, err = self.run_command('history')
        self.assertEqual((2, ''), (code, out))
        self.assertIn('has to be a URL', err)
        self.assertNotIn('p4ssword', err)
