# SPDX-License-Identifier: Apache-2.0

"""The bootstrap, with a client that keeps what was made in a file."""

import os
import pathlib
import subprocess
import sys

import fixtures
from oslotest import base

BOOTSTRAP = (pathlib.Path(__file__).parents[2] / 'etc' / 'bootstrap' /
             'bootstrap')

# Answers a question by what the file has, and notes what is made there.
CLIENT = r'''#!/usr/bin/env bash
has() { grep -qxF -- "$1" "$CLOUD"; }
echo "$*" >>"$ARGUMENTS"
if has "fails $1 $2" && [[ $* != *--service* ]]; then exit 1; fi
case "$*" in
  'token issue'*) has token ;;
  'user list'*) has user && echo nova-reaper; true ;;
  'role assignment list'*)
    role=$(sed 's/.*--role \([a-z]*\) .*/\1/' <<<"$*")
    has "role $role" && echo 0123; true ;;
  'quota show'*)
    echo cores 20
    has quota && echo properties -1 || echo properties 128 ;;
  'service list'*) echo compute; has service && echo compute-pending; true ;;
  'endpoint list --service compute '*)
    if has 'no regions'; then exit 1; fi
    sed -n 's/^region //p' "$CLOUD" ;;
  'endpoint list'*)
    has endpoint && echo compute-pending https://reaper:8782; true ;;
  'role add'*) echo "role ${*: -1}" ;;&
  'quota set'*) echo quota ;;&
  'service create'*) echo service ;;&
  'endpoint create'*) echo endpoint ;;&
  *) [[ $* != *list* && $* != *show* ]] ;;
esac >"$OUT.new" || exit 1
case "$*" in
  'role assignment list'* | 'endpoint list --service compute '* | *show* | \
      'token issue'*) cat "$OUT.new" ;;
  # Keystone's lists are longer than what a pipe holds.
  *list*) cat "$OUT.new" && seq 100000 ;;
  *) cat "$OUT.new" >>"$CLOUD"; echo "$*" >>"$OUT" ;;
esac
'''

# The Python of the client, and what it finds as openstacksdk.
PYTHON = r'''#!/bin/sh
echo "$*" >>"$ARGUMENTS"
exec "$REAL" "$@"
'''
LIBRARY = """
import os
import types


def find_domain(name, ignore_missing):
    return types.SimpleNamespace(id=name)


def create_user(**values):
    for file, words in (('CLOUD', ['user']), (
            'OUT', ['user', *(f'{k}={v}' for k, v in values.items())])):
        with open(os.environ[file], 'a') as out:
            print(*words, file=out)


def connect():
    return types.SimpleNamespace(identity=types.SimpleNamespace(
        find_domain=find_domain, create_user=create_user))
"""


class BootstrapTestCase(base.BaseTestCase):

    def setUp(self) -> None:
        super().setUp()
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        (folder / 'venv').mkdir()
        for name, text in (('openstack', CLIENT), ('python3', PYTHON)):
            script = folder / 'venv' / name
            script.write_text(text)
            script.chmod(0o755)
        # Links to the command are followed to the environment.
        (folder / 'openstack').symlink_to(folder / 'venv' / 'openstack')
        (folder / 'library').mkdir()
        (folder / 'library' / 'openstack.py').write_text(LIBRARY)
        self.arguments = folder / 'arguments'
        self.cloud, self.asked = folder / 'cloud', folder / 'asked'
        self.cloud.write_text('token\n')
        self.environment = {
            'PATH': f'{folder}:{os.environ["PATH"]}', 'OUT': str(self.asked),
            'CLOUD': str(self.cloud), 'ARGUMENTS': str(self.arguments),
            'REAL': sys.executable, 'PYTHONPATH': str(folder / 'library'),
            'NOVA_REAPER_PASSWORD': 'secret'}

    def run_it(self, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [BOOTSTRAP, *words], env=self.environment, text=True,
            capture_output=True)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def made(self) -> list[str]:
        return (self.asked.read_text().splitlines()
                if self.asked.exists() else [])

    def test_all_is_made_once(self) -> None:
        words = ('--url', 'https://reaper:8782', '--region', 'one',
                 '--domain', 'customers')
        out = self.run_it(*words)
        self.assertNotIn('missing', out)
        self.assertEqual([
            'user name=nova-reaper password=secret domain_id=default',
            'role add --user nova-reaper --user-domain default --project '
            'service --project-domain default admin',
            'role add --user nova-reaper --user-domain default --project '
            'service --project-domain default service',
            'role add --user nova-reaper --user-domain default --domain '
            'customers --inherited member',
            'quota set --properties -1 service',
            'service create --name reaper compute-pending',
            'endpoint create --region one compute-pending public '
            'https://reaper:8782'], self.made())
        out = self.run_it(*words)
        self.assertNotIn('made', out)
        self.assertEqual(7, len(self.made()))
        self.assertNotIn('missing', self.run_it(*words, '--check'))

    def test_no_command_has_the_password_as_an_argument(self) -> None:
        self.run_it('--url', 'https://reaper:8782')
        self.assertIn('password=secret', self.made()[0])
        arguments = self.arguments.read_text()
        self.assertIn('- nova-reaper default', arguments)
        self.assertNotIn('secret', arguments)

    def test_check_makes_nothing(self) -> None:
        out = self.run_it('--check', '--url', 'https://reaper:8782', code=1)
        for what in ('user nova-reaper', 'the roles', 'no limit',
                     'service of type compute-pending', 'public endpoint'):
            self.assertIn(f'missing: {what}', out)
        self.assertEqual([], self.made())

    def test_what_is_there_stays(self) -> None:
        self.cloud.write_text('token\nuser\nrole admin\nquota\n')
        self.run_it('--url', 'https://reaper:8782')
        self.assertEqual(['role add', 'service create', 'endpoint create'],
                         [' '.join(line.split()[:2]) for line in self.made()])

    def test_the_region_is_that_of_nova(self) -> None:
        self.cloud.write_text('token\nuser\nregion one\nregion one\n')
        self.run_it('--url', 'https://reaper:8782')
        self.assertEqual('endpoint create --region one compute-pending public '
                         'https://reaper:8782', self.made()[-1])

    def test_nova_is_in_several_regions(self) -> None:
        self.cloud.write_text('token\nregion one\nregion two\n')
        self.assertIn('--region: Nova is in one two.', self.run_it(
            '--url', 'https://reaper:8782', code=2))
        self.assertEqual([], self.made())
        self.run_it('--url', 'https://reaper:8782', '--region', 'two')

    def test_nobody_says_in_which_region_nova_is(self) -> None:
        self.cloud.write_text('token\nregion one\nno regions\n')
        self.run_it('--url', 'https://reaper:8782', code=1)
        self.assertEqual([], self.made())

    def test_no_token(self) -> None:
        self.cloud.write_text('')
        self.run_it('--url', 'https://reaper:8782', code=1)
        self.assertEqual([], self.made())

    def test_nothing_is_made_if_the_client_cannot_tell(self) -> None:
        for command in ('user list', 'role assignment', 'quota show',
                        'service list', 'endpoint list'):
            self.cloud.write_text('\n'.join((
                'token', 'user', 'role admin', 'role service', 'quota',
                'service', 'endpoint', f'fails {command}', '')))
            self.run_it('--url', 'https://reaper:8782', code=1)
            self.assertEqual([], self.made())

    def test_no_password_of_a_new_user(self) -> None:
        del self.environment['NOVA_REAPER_PASSWORD']
        self.run_it('--url', 'https://reaper:8782', code=1)
        self.assertEqual([], self.made())

    def test_wrong_arguments(self) -> None:
        for word in ('--check', '--url', '--what'):
            self.run_it(word, code=2)
        self.run_it(code=2)
        self.assertEqual([], self.made())
