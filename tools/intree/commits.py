# SPDX-License-Identifier: Apache-2.0

"""Checks each commit of the branch at that commit: its style and its tests.

The Python that runs this must have what Nova needs, and not nova-pending: what
is tested is the branch alone. The tests run on native threads, or as
OS_NOVA_DISABLE_EVENTLET_PATCHING says.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

from tools.intree import export

# Run in the work tree, where only an installed nova-pending can be found.
_IS_THERE = ('import importlib.util, sys; '
             'sys.exit(importlib.util.find_spec("nova_pending") is not None)')


def changed_by(git, commit, where):
    """Return the files that a commit adds or edits, below a path of git's."""
    return git('diff', '--name-only', '--diff-filter=AM', commit + '~1',
               commit, '--', where).split()


def tests_of(git, commit, suite):
    """Return the modules with tests that a commit adds or edits."""
    return [path[:-3].replace('/', '.')
            for path in changed_by(git, commit, 'nova/tests/%s' % suite)
            if re.search(r'/test_\w+\.py$', path)]


def style_of(git, commit, place):
    """Return what Nova's own flake8, with hacking, finds in a commit's files.

    :param place: the work tree, at that commit
    """
    paths = changed_by(git, commit, '*.py')
    return paths and subprocess.run(
        [sys.executable, '-m', 'flake8', *paths], cwd=place, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


def run(place, modules):
    """Run tests in a work tree.

    :returns: the number of tests and the output, None instead of that if all
        have passed
    """
    environment = {
        'OS_NOVA_DISABLE_EVENTLET_PATCHING': 'True',
        **{name: value for name, value in os.environ.items()
           if not name.startswith('PYTHON')},
        'OS_STDOUT_CAPTURE': '1', 'OS_STDERR_CAPTURE': '1',
        'OS_TEST_TIMEOUT': os.environ.get('OS_TEST_TIMEOUT', '300'),
        'LANGUAGE': 'en_US', 'LC_ALL': 'C.UTF-8'}
    if subprocess.run([sys.executable, '-c', _IS_THERE], cwd=place,
                      env=environment).returncode:
        raise export.ExportError('nova-pending is installed beside %s: the '
                                 'branch is tested without it.'
                                 % sys.executable)
    done = subprocess.run(
        [sys.executable, '-m', 'testtools.run', *modules], cwd=place,
        env=environment, text=True, errors='replace',
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    number = re.search(r'^Ran (\d+) tests?', done.stdout, re.M)
    return int(number[1]) if number else 0, (
        done.stdout if done.returncode else None)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog='python -m tools.intree.commits',
        description='Check the style of each commit of the branch, and run '
                    'its tests, at that commit.')
    parser.add_argument(
        'repository', metavar='DIR', help='what nova-pending export has made')
    parser.add_argument(
        '--suite', choices=('unit', 'functional'), default='unit',
        help='the tests to run (default: unit)')
    parser.add_argument(
        '--commit', metavar='NAME', action='append', default=[],
        help='a commit to test; may be given more than once (default: all)')
    arguments = parser.parse_args(arguments)
    git = export.Git(arguments.repository)
    failed = False
    try:
        base = git('branch', '--show-current').rpartition('/')[2]
        commits = [git('rev-parse', '--short', name)
                   for name in arguments.commit] or git(
            'rev-list', '--reverse', '--abbrev-commit',
            '%s..HEAD' % base).split('\n')
        with tempfile.TemporaryDirectory() as scratch:
            place = pathlib.Path(scratch) / 'nova'
            git('worktree', 'add', '--quiet', '--detach', str(place))
            try:
                for commit in commits:
                    failed |= test(git, commit, place, arguments.suite)
            finally:
                git('worktree', 'remove', '--force', str(place))
    except export.ExportError as exc:
        print('commits: %s' % exc, file=sys.stderr)
        return 2
    return int(failed)


def test(git, commit, place, suite):
    """Check a commit, tell how it went, and return whether it failed."""
    export.Git(place)('checkout', '--quiet', commit)
    modules = tests_of(git, commit, suite)
    title = git('log', '-1', '--format=%h %s', commit)
    wrong = style_of(git, commit, place)
    if wrong:
        print('%s: style\n%s' % (title, wrong), flush=True)
        return True
    if not modules:
        print('%s: no %s tests' % (title, suite), flush=True)
        return False
    started = time.monotonic()
    number, output = run(place, modules)
    print('%s: %d tests in %d s, %s' % (
        title, number, time.monotonic() - started,
        'passed' if output is None else 'FAILED'), flush=True)
    if output is not None:
        print(output, flush=True)
    return output is not None


if __name__ == '__main__':
    sys.exit(main())
