# SPDX-License-Identifier: Apache-2.0

"""The commands that ask a cloud, and what they say of what is wrong."""

import argparse
import contextlib
import io
import json
import pathlib
import subprocess
import sys
from typing import Any
from unittest import mock

import fixtures
import requests
from requests_mock.contrib import fixture

from nova_reaper.cli import commands
from nova_reaper.cli import main
from nova_reaper.cloud import model
from nova_reaper import service
from nova_reaper import simulate
from nova_reaper import tests
from nova_reaper.tests import brute_force
from nova_reaper.tests import fakes


class CommandTestCase(tests.TestCase):
    """A command with a configuration file."""

    def setUp(self) -> None:
        super().setUp()
        self.useFixture(fixtures.MockPatch('oslo_log.log.setup'))
        self.file = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path, 'nova-reaper.conf')
        self.file.write_text(fakes.LOGIN)

    def options(self, name: str, *arguments: str) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        commands.add_parsers(parser.add_subparsers())
        return parser.parse_args(
            [name, '--config-file', str(self.file), *arguments])

    def run_command(self, name: str, *arguments: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = commands.main(self.options(name, *arguments))
        return code, out.getvalue(), err.getvalue()


class ConfigurationTestCase(CommandTestCase):
    """It is refused before anything is asked or run."""

    def refused(self, *words: str, names: tuple[str, ...] = (
            'run', 'once', 'snapshot')) -> None:
        run = self.useFixture(fixtures.MockPatchObject(service, 'run')).mock
        for name in names:
            code, out, err = self.run_command(name)
            self.assertEqual((2, '', 1), (code, out, err.count('\n')), err)
            self.assertTrue(err.startswith(f'{self.file}: '), err)
            for word in words:
                self.assertIn(word, err)
        run.assert_not_called()

    def test_no_text(self) -> None:
        self.file.write_bytes(b'\xff\xfe')
        self.refused('utf-8', names=('run', 'once', 'status'))

    def test_a_directory(self) -> None:
        self.file.unlink()
        self.file.mkdir()
        self.refused('directory', names=('run', 'once', 'status'))

    def test_nobody_can_log_in(self) -> None:
        self.file.write_text('[http]\nport = 18799\n')
        self.refused('[nova_reaper] auth_type')

    def test_a_key_without_a_certificate(self) -> None:
        self.file.write_text(f'[http]\nprivate_key = key\n{fakes.LOGIN}')
        self.refused('[http] private_key')

    def test_no_value(self) -> None:
        self.file.write_text(f'[reaper]\nworkers =\n{fakes.LOGIN}')
        self.refused('[reaper] workers is empty')


class CloudTestCase(CommandTestCase):
    """Of a cloud."""

    def test_what_libraries_raise(self) -> None:
        for wrong in ('timeout = inf', '[nova]\nvalid_interfaces = zzz'):
            self.file.write_text(fakes.LOGIN + wrong)
            for name in ('once', 'snapshot'):
                code, out, err = self.run_command(name)
                self.assertEqual((2, '', 1), (code, out, err.count('\n')))
                self.assertTrue(err.startswith('The cloud cannot be asked: '))

    def is_there(self) -> None:
        cloud = simulate.Snapshot(brute_force.NOW)
        self.found: dict[str, mock.Mock] = {}
        for module, name, found in (
                (service, 'connect', None),
                (commands, 'take_snapshot', cloud)):
            self.found[name] = self.useFixture(fixtures.MockPatchObject(
                module, name, return_value=found)).mock

    def asked(self, **times: int) -> None:
        self.assertEqual(times, {name: found.call_count
                                 for name, found in self.found.items()})

    def test_once_names_servers(self) -> None:
        room = {'VCPU': 8}
        cloud = simulate.Snapshot(
            brute_force.NOW, model.Options(mode=model.Mode.PREEMPT),
            hosts=[model.Host('h1', {'VCPU': model.Inventory(8)}, room)],
            servers=[model.Server('v1', 'h1', room, name='batch',
                                  preemptible=True)],
            waiting=[brute_force.waiting(room, name='web')])
        self.useFixture(fixtures.MockPatchObject(service, 'connect'))
        self.useFixture(fixtures.MockPatchObject(
            commands, 'take_snapshot', return_value=cloud))
        code, out, _ = self.run_command('once')
        self.assertEqual(0, code)
        for cell in ('| w1 (web) |', '| v1 (batch) |'):
            self.assertIn(cell, out)
        _, out, _ = self.run_command('once', '--json')
        decision, = json.loads(out)['decisions']
        self.assertEqual(('w1', ['v1']),
                         (decision['server'], decision['victims']))

    def test_a_file_that_cannot_be_written(self) -> None:
        self.is_there()
        self.assertEqual(
            (2, '', '/nowhere/cloud: No such file or directory\n'),
            self.run_command('snapshot', '/nowhere/cloud'))
        self.assertEqual(0, self.run_command(
            'snapshot', str(self.file.parent / 'cloud'))[0])
        self.asked(connect=2, take_snapshot=2)

    def test_an_output_that_is_full_is_not_the_clouds(self) -> None:
        self.is_there()
        full = mock.Mock(write=mock.Mock(side_effect=OSError))
        for name in ('once', 'snapshot'):
            with contextlib.redirect_stdout(full):
                self.assertRaises(OSError, commands.main, self.options(name))
            with contextlib.redirect_stdout(None):
                self.assertEqual(0, commands.main(self.options(name)))
        self.asked(connect=4, take_snapshot=4)


class LogTestCase(CommandTestCase):
    """In a process of its own, whose log is its own."""

    def run_process(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, *arguments, str(self.file)],
            capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout, done.stderr

    def test_what_is_printed_has_standard_output_to_itself(self) -> None:
        program = ("import sys\n"
                   "from oslo_log import log\n"
                   "from nova_reaper import conf\n"
                   "conf.load(sys.argv[1:])\n"
                   "log.getLogger('nova_reaper').warning('It is said.')\n"
                   "print('{}')\n")
        code, out, err = self.run_process('-c', program)
        self.assertEqual((0, '{}\n'), (code, out))
        self.assertIn('It is said.', err)
        written = self.file.parent / 'log'
        self.file.write_text(f'[DEFAULT]\nlog_file = {written}\n'
                             f'{fakes.LOGIN}')
        self.assertEqual((0, '{}\n', ''), self.run_process('-c', program))
        self.assertIn('It is said.', written.read_text())

    def test_a_log_that_cannot_be_set_up(self) -> None:
        self.file.write_text('[DEFAULT]\nlog_config_append = /nowhere/log\n'
                             f'{fakes.LOGIN}')
        for name in ('run', 'once', 'snapshot', 'status'):
            code, out, err = self.run_process(
                '-m', 'nova_reaper.cli.main', name, '--config-file')
            self.assertEqual((2, '', 1), (code, out, err.count('\n')), err)
            self.assertIn('/nowhere/log', err)


class StatusTestCase(CommandTestCase):
    """What the service on this machine answers."""

    def status(self, *arguments: str, **answer: Any) -> tuple[int, str, str]:
        answers: Any = self.useFixture(fixture.Fixture())
        answers.get('http://127.0.0.1:8782/healthz', **answer)
        return self.run_command('status', *arguments)

    def test_it_tells(self) -> None:
        health = {'status': 'degraded', 'active': False, 'mode': 'observe',
                  'configured_mode': 'fill', 'safeguard': 'No hosts.',
                  'checks': [{'name': 'lists', 'status': 'degraded',
                              'detail': 'old'}]}
        self.assertEqual(
            (1, 'degraded; stands by; mode observe (configured: fill)\n'
             'safeguard: No hosts.\nlists: degraded: old\n', ''),
            self.status(json=health))

    def test_somebody_else_answers(self) -> None:
        answers: tuple[Any, ...] = (
            [], {}, None, 'ok', 1, {'error': {'code': 404}}, {'status': []},
            {'status': 'ok', 'active': True})
        for answer in answers:
            for arguments in ((), ('--json',)):
                self.assertEqual(
                    (2, '', 'What answers on 127.0.0.1, port 8782, is no '
                     'nova-reaper.\n'), self.status(
                         *arguments, text=json.dumps(answer)))

    def test_nobody_answers(self) -> None:
        answers: tuple[dict[str, Any], ...] = (
            {'text': 'x'}, {'exc': requests.ReadTimeout})
        for answer in answers:
            code, out, err = self.status(**answer)
            self.assertEqual((2, ''), (code, out))
            self.assertTrue(err.startswith('nova-reaper does not answer: '))
        for refusal in (requests.ConnectionError, requests.ConnectTimeout):
            code, out, err = self.status(exc=refusal('HTTPConnectionPool()'))
            self.assertEqual((2, ''), (code, out))
            self.assertRegex(err, '^No nova-reaper listens on 127.0.0.1, port '
                             rf'8782 \(\[http\] in {self.file}\)\.$')

    def test_version(self) -> None:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), mock.patch.object(
                main, '_cloud_commands'):
            self.assertRaises(SystemExit, main.main, ['--version'])
        self.assertRegex(out.getvalue(), r'^nova-reaper \d')
