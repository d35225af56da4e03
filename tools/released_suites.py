# SPDX-License-Identifier: Apache-2.0

"""Runs the test suites of the released Nova under the layer.

The tests are those of the installed package, whole or in part. What may fail
is listed with its reason in nova/tests/released/expected.yaml: the run fails
when anything else fails and when something that is listed does not. Tests that
the branch of Nova edits are listed by their module there. The tests
run on native threads or with eventlet, as OS_NOVA_DISABLE_EVENTLET_PATCHING
has it for Nova.
"""

import argparse
import collections
import os
import pathlib
import re
import subprocess
import sys
import time

import yaml

import harness
from intree import edits
import subunit_stream

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The branch of Nova runs without nova-pending: it is installed nowhere then.
sys.path.append(str(ROOT))
import nova_pending  # noqa: E402

LISTS = ROOT / 'nova' / 'tests' / 'released'
SUITES = ('unit', 'functional')
PROGRESS_SECONDS = 60


def native_threads():
    """Return whether nova.monkey_patch chooses native threads for tests."""
    return os.environ.get('OS_NOVA_DISABLE_EVENTLET_PATCHING', '').lower() in (
        '1', 'true', 'yes')


def newest():
    """Return whether the newest release is installed, which the lists name."""
    return nova_pending.check_environment() == nova_pending.RELEASE


class Expected:
    """The tests that are listed as failing, or as left out.

    :ivar left_out: those that are not run on native threads
    :ivar always: those that fail without the layer too
    :ivar by_design: those that fail because of what the layer is for, none
        without it. An ID stands for all tests that ddt makes of it: some of
        them fail
    :ivar counterparts: our tests that stand in for the second
    """

    def __init__(self, document, layer=True):
        self.left_out = self._tests(document['not_on_native_threads'])
        self.always = self._tests(document['without_the_layer_too'])
        # The branch of Nova has other tests than the release in their place.
        self.by_design = (
            self._tests(document['by_design']) if layer else set())
        self.counterparts = {
            entry['counterpart'] for entry in document['by_design']}

    @staticmethod
    def _tests(entries):
        tests = []
        for entry in entries:
            if not entry['reason'].strip():
                raise ValueError('no reason is given for %s' % entry)
            tests += (edits.tests_of(entry['edit'], harness.site(),
                                     nova_pending.check_environment())
                      if 'edit' in entry else entry['tests'])
        twice = [t for t, n in collections.Counter(tests).items() if n > 1]
        if twice:
            raise ValueError('listed twice: %s' % ', '.join(twice))
        return set(tests)

    def of(self, suite):
        """Return which failures of a suite are expected.

        :param suite: the Suite
        :returns: the IDs of the two kinds
        """
        return (set(filter(suite.owns, self.always)),
                set(filter(suite.owns, self.by_design)))


def read(name):
    """Return what one of the files in nova/tests/released says."""
    return yaml.safe_load((LISTS / (name + '.yaml')).read_text())


def pattern(part):
    """Return the regular expression for a package, module, class or test."""
    return '^%s($|[.(])' % re.escape(part)


class Suite:
    """One suite of the released Nova.

    :ivar name: one of SUITES
    :ivar parts: what of it to run: packages, modules, classes or tests;
        empty for all
    :ivar left_out: the IDs of tests that are not run
    :ivar results: a dict of test ID to status, as subunit names it
    :ivar seconds: how long it took
    """

    def __init__(self, name, parts):
        self.name = name
        self.parts = parts
        self.left_out = []
        self.results = {}
        self.seconds = 0

    def owns(self, name):
        return name.startswith('nova.tests.%s.' % self.name)

    def run(self, layer, concurrency, listed):
        """Run the suite and tell failures as they come.

        :param layer: whether the layer is on
        :param concurrency: the number of processes, 0 for one each core
        :param listed: the tests whose failure is no news
        """
        started = told = time.monotonic()

        def take(test):
            nonlocal told
            self.results[test['id']] = test['status']
            if test['status'] == 'exists':
                return
            if (test['status'] in subunit_stream.FAILED and
                    not runs_of(test['id'], listed)):
                print('\n%s: %s' % (test['status'], test['id']))
                for name, content in test['details'].items():
                    if name.startswith('traceback'):
                        print(content.as_text())
            if time.monotonic() - told > PROGRESS_SECONDS:
                told = time.monotonic()
                print('%s: %d of %d tests in %d s' % (
                    self.name, len(self.results) - self.count('exists'),
                    len(self.results), told - started))
            sys.stdout.flush()

        # Away from the checkout, whose tests have the same package names.
        # The results stay there, for stestr's own commands. It makes no
        # .stestr for our tests where there is one already.
        home = ROOT / '.stestr-released' / self.name
        home.mkdir(parents=True, exist_ok=True)
        site = harness.site()
        command = [
            sys.executable, '-m', 'stestr', '--top-dir', str(site),
            '--test-path', str(site / 'nova' / 'tests' / self.name),
            'run', '--subunit', '--concurrency', str(concurrency)]
        if self.left_out:
            command += ['--exclude-regex', '|'.join(
                pattern(test) for test in self.left_out)]
        command += [pattern(part) for part in self.parts]
        subunit_stream.follow(
            command, take, cwd=home,
            env=dict(os.environ, NOVA_PENDING='' if layer else 'off'))
        self.seconds = time.monotonic() - started
        # A test with scenarios exists once and runs under several names.
        begun = {test.partition('(')[0]
                 for test, status in self.results.items()
                 if status != 'exists'}
        self.results = {test: status for test, status in self.results.items()
                        if status != 'exists' or test not in begun}

    def failed(self):
        return {test for test, status in self.results.items()
                if status in subunit_stream.FAILED}

    def count(self, *statuses):
        return sum(status in statuses for status in self.results.values())

    def judge(self, listed):
        """Compare what the suite did with what is listed.

        :param listed: the tests that are listed for this suite
        :returns: a list of sentences, empty if all is as listed
        """
        failed = self.failed()
        problems = ['not listed: %s' % test for test in sorted(failed)
                    if not runs_of(test, listed)]
        problems += ['listed, but it does not fail: %s' % test
                     for test in sorted(listed)
                     if not any(edits.is_run_of(test, x) for x in failed) and
                     (not self.parts or any(
                         edits.is_run_of(test, x) for x in self.results))]
        problems += ['no test ran: %s' % part
                     for part in self.parts
                     if newest() and not any(re.match(pattern(part), test)
                                             for test in self.results)]
        if not self.results:
            problems.append('no test ran: %s' % self.name)
        return problems


def runs_of(ran, tests):
    """Say whether a test that ran is in some tests, or made of these."""
    return any(edits.is_run_of(test, ran) for test in tests)


def our_tests():
    """Return the IDs of our own tests, which may stand in for others."""
    found = set()
    for name in SUITES:
        listing = subprocess.run(
            [sys.executable, '-m', 'testtools.run', 'discover', '--list',
             '--start-directory', 'nova/tests/%s' % name,
             '--top-level-directory', '.'],
            cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
        found.update(listing.stdout.split('\n'))
    return found


def choose(targets, part):
    """Return the suites to run.

    :param targets: names of suites, or of packages, modules, classes or
        tests in them
    :param part: a dict of suite to such names, to run instead of the whole
    :raises: ValueError for a name that is in no suite
    """
    parts = {}
    for target in targets:
        if target in SUITES:
            parts.setdefault(target, []).extend(part.get(target, []))
            continue
        for name in SUITES:
            if target.startswith('nova.tests.%s.' % name):
                parts.setdefault(name, []).append(target)
                break
        else:
            raise ValueError('%s is neither unit, functional nor in one of '
                             'the two' % target)
    return [Suite(name, parts[name]) for name in parts]


def main():
    parser = argparse.ArgumentParser(
        description='Run the test suites of the released Nova under the '
                    'layer.')
    parser.add_argument(
        'targets', nargs='+', metavar='TARGET',
        help='unit, functional, or a package, module, class or test')
    parser.add_argument(
        '--part', action='store_true',
        help='of each suite only what touches the same as the layer '
             '(nova/tests/released/part.yaml)')
    parser.add_argument(
        '--without-layer', action='store_true',
        help='run the release as it is, or the branch of Nova')
    parser.add_argument(
        '--concurrency', type=int, default=0, metavar='N',
        help='number of processes (default: one for each core)')
    arguments = parser.parse_args()
    layer = not arguments.without_layer
    try:
        suites = choose(arguments.targets,
                        read('part') if arguments.part else {})
    except ValueError as exc:
        parser.error(exc)

    expected = Expected(read('expected'), layer)
    problems = []
    if layer:
        problems += ['a counterpart that is not there: %s' % test
                     for test in sorted(expected.counterparts - our_tests())]
    harness.link_etc()
    harness.fetch_documents()
    totals = collections.Counter()
    for suite in suites:
        always, by_design = expected.of(suite)
        listed = always | by_design
        if native_threads():
            suite.left_out = sorted(filter(suite.owns, expected.left_out))
            for test in suite.left_out:
                print('not run on native threads: %s' % test)
        suite.run(layer, arguments.concurrency, listed)
        problems += suite.judge(listed)
        failed = {test for test in suite.failed() if runs_of(test, listed)}
        totals['passed'] += suite.count('success', 'xfail')
        totals['failed'] += len(suite.failed() - failed)
        totals['skipped'] += suite.count('skip')
        print('%s, %s: %d tests in %d s, %d listed tests failed: %d without '
              'the layer too, %d by design' % (
                  suite.name,
                  'native threads' if native_threads() else 'eventlet',
                  len(suite.results), suite.seconds,
                  len(failed), len(failed & always), len(failed - always)))
    for problem in problems:
        print(problem)
    print('%d passed, %d failed, %d skipped' % (
        totals['passed'], totals['failed'], totals['skipped']))
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())
