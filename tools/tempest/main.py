# SPDX-License-Identifier: Apache-2.0

"""The command line of the tests on a local cloud."""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import sys
import time

from tools.cloud import configuration as cloud_configuration
from tools.cloud import errors
from tools.cloud import main as cloud_main
from tools.cloud import ports
from tools.cloud import reaper
from tools.cloud import settings
from tools.cloud import signals
from tools.cloud import stack
from tools import subunit_stream
from tools.tempest import configuration

THEIRS = r'^tempest\.api\.compute\.'
OURS = r'^nova_pending_tempest_plugin\.'
# They come last: before, the reaper only observes, so that servers wait until
# a test has them rebuilt.
REAPER = r'^nova_pending_tempest_plugin\.tests\.test_reaper\.'

_SPEC = importlib.util.find_spec('tempest')
_TEMPEST = _SPEC and pathlib.Path(_SPEC.origin).parent

# What names the set-up of a class, up to the closing parenthesis.
_SET_UP = 'setUpClass ('

# Enough for all that the tests have at one time.
_HOST_VCPUS = 64

# Seconds of notice, so that a test sees it that looks once a second.
_GRACE = 10

_EPILOG = """\
exit codes: 0 all that ran passed; 1 a test failed, or an outcome is another
one than in the run that it is compared with; 2 wrong arguments; 3 the cloud
did not come up or go down as it should; 128 and the number of the signal that
ended it
"""


# What Tempest tests, and is not there unless it is asked for: routers, and
# the filters for hints that are not among the scheduler's usual filters.
_MORE = {
    'neutron/neutron.conf': {'DEFAULT': {'service_plugins': 'router'}},
    'nova/nova.conf': {'filter_scheduler': {
        'enabled_filters': [
            'ComputeFilter', 'ComputeCapabilitiesFilter',
            'ImagePropertiesFilter', 'ServerGroupAntiAffinityFilter',
            'ServerGroupAffinityFilter', 'DifferentHostFilter',
            'SameHostFilter']}},
}


class Cloud(stack.Stack):
    """A cloud that has more of what Tempest tests."""

    def write_configuration(self):
        super().write_configuration()
        for path, sections in _MORE.items():
            with (self.settings.etc / path).open('a') as file:
                file.write(cloud_configuration.render(sections))


class Results:
    """What became of the tests.

    :ivar outcomes: what subunit calls the end of each test, by its ID
    :ivar seconds: how long they took together
    """

    def __init__(self):
        self.outcomes = {}
        self.seconds = 0

    def take(self, test):
        """Note what is known of a test, and show how it ended."""
        # Tempest puts its own identifier behind the name.
        name = test['id'].partition('[')[0]
        self.outcomes[name] = test['status']
        if test['status'] == 'exists':
            return
        print('%-8s %s' % (test['status'], name), flush=True)
        for key, content in test['details'].items():
            if key == 'reason' or (key.startswith('traceback') and
                                   test['status'] in subunit_stream.FAILED):
                print('         ' + content.as_text(), flush=True)

    def finish(self):
        """Let each test end as the set-up of its class did that ended it."""
        classes = {
            name[len(_SET_UP):-1]: outcome
            for name, outcome in self.outcomes.items()
            if name.startswith(_SET_UP)}
        for name, outcome in list(self.outcomes.items()):
            if outcome == 'exists':
                self.outcomes[name] = classes.get(
                    name.rpartition('.')[0], outcome)
            elif outcome == 'skip' and name.startswith(_SET_UP):
                del self.outcomes[name]

    def failed(self):
        """Return the IDs of the tests that failed."""
        return sorted(test for test, outcome in self.outcomes.items()
                      if outcome in subunit_stream.FAILED)

    def count(self, *outcomes):
        """Return how many tests ended so."""
        return sum(each in outcomes for each in self.outcomes.values())

    def differences(self, others):
        """Return a sentence for each test that ended otherwise elsewhere.

        :param others: the outcomes of another run; our tests are compared if
            both runs have them
        """
        sentences = []
        for test in sorted(set(self.outcomes) | set(others)):
            here, there = self.outcomes.get(test), others.get(test)
            if here != there and (
                    None not in (here, there) or
                    not re.search(OURS.strip('^'), test)):
                sentences.append('%s: %s, and %s in the other run' % (
                    test, here or 'not run', there or 'not run'))
        return sentences


def main(argv=None):
    """Run the command line.

    :returns: the exit code
    """
    args = _parse(argv)
    signals.catch()
    # No proxy stands between the services, nor between them and us.
    os.environ['no_proxy'] = os.environ['NO_PROXY'] = ports.HOST
    try:
        return _run(args)
    except (errors.CloudError, errors.Interrupted) as error:
        print(error, file=sys.stderr)
        return error.exit_code


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog='python -m tools.tempest', epilog=_EPILOG,
        description='Bring a cloud of the profile "services" up, run '
                    'Tempest\'s tests of the compute API and ours on it, '
                    'and take it down.')
    parser.add_argument(
        'patterns', nargs='*', metavar='PATTERN',
        help='of all tests only those whose ID a regular expression finds')
    parser.add_argument(
        '--ours', action='store_true', help='run our tests only')
    parser.add_argument(
        '--stock', action='store_true',
        help='leave nova-pending, and our tests, off')
    cloud_main.add_in_tree(parser)
    parser.add_argument(
        '--workers', type=int, default=0, metavar='N',
        help='how many processes run tests (one for each core)')
    parser.add_argument(
        '--save', type=pathlib.Path, metavar='FILE',
        help='write what became of each test')
    parser.add_argument(
        '--compare', type=pathlib.Path, metavar='FILE',
        help='compare it with a run that was saved')
    parser.add_argument(
        '--database-url', metavar='URL',
        default=os.environ.get('CLOUD_DATABASE_URL', settings.DATABASE_URL),
        help='MariaDB (CLOUD_DATABASE_URL, %(default)s)')
    parser.add_argument(
        '--bus-url', metavar='URL',
        default=os.environ.get('CLOUD_BUS_URL', settings.BUS_URL),
        help='RabbitMQ (CLOUD_BUS_URL, %(default)s)')
    parser.add_argument(
        '--state-dir', metavar='DIR',
        help='the directory for everything that the cloud and the tests '
             'write (a temporary one)')
    parser.add_argument(
        '--keep', action='store_true', help='let the directory stay')
    args = parser.parse_args(argv)
    if args.stock and (args.ours or args.in_tree):
        parser.error('as released Nova passes none of our tests, and is no '
                     'branch')
    return args


def _run(args):
    others = json.loads(args.compare.read_text()) if args.compare else None
    unsupported = configuration.Unsupported.read()
    cloud = Cloud(args.database_url, args.bus_url, args.state_dir, args.keep,
                  stock=args.stock, reaper=not args.stock,
                  in_tree=args.in_tree, host_vcpus=_HOST_VCPUS)
    if not _TEMPEST:
        raise errors.CloudError(
            'The environment %s has no Tempest: pip install -r '
            'tools/tempest/requirements.txt there.' % settings.PREFIX)
    cloud.check()
    results = Results()
    try:
        start = time.monotonic()
        cloud.up(lambda name, seconds: print(
            '%7.1f s  %s' % (seconds, name), flush=True))
        print('The cloud is up after %d s.' % (time.monotonic() - start),
              flush=True)
        configure = _prepare(cloud, unsupported)
        for mode, excluded in _passes(args, unsupported):
            _test(args, configure(mode), excluded, results)
        cloud.processes.check()
    finally:
        signals.ignore()
        cloud.down()
    if args.save:
        args.save.write_text(json.dumps(results.outcomes, indent=1))
    return _judge(results, others)


def _passes(args, unsupported):
    """Return pairs of the mode of the reaper and the tests to leave out."""
    listed = [r'^%s($|[.\[])' % re.escape(test)
              for test in sorted(unsupported.tests)]
    if args.stock:
        return [('none', listed)]
    return [('observe', [*listed, REAPER]),
            ('preempt', ['^(?!%s)' % REAPER.lstrip('^')])]


def _prepare(cloud, unsupported):
    """Return what brings reaper and Tempest to a mode, by its name.

    That returns the directory with the tempest.conf.
    """
    folder = cloud.settings.var / 'tempest'
    folder.mkdir()
    prepared = configuration.prepare(cloud.settings)

    def configure(mode):
        if cloud.settings.reaper:
            _let_reaper(cloud, mode)
        (folder / 'tempest.conf').write_text(configuration.render(
            cloud.settings, prepared, unsupported, folder, mode))
        return folder

    return configure


def _let_reaper(cloud, mode):
    reaper.change(cloud.settings, cloud.processes, mode=mode, min_run_time=0,
                  grace_period=_GRACE)
    cloud.processes.wait_until(
        'nova-reaper in the mode ' + mode,
        lambda: reaper.is_ready(cloud.settings, mode), [reaper.NAME])


def _test(args, folder, excluded, results):
    patterns = args.patterns or [
        *([] if args.ours else [THEIRS]), *([] if args.stock else [OURS])]
    listed = folder / 'excluded'
    listed.write_text(''.join('%s\n' % pattern for pattern in excluded))
    start = time.monotonic()
    subunit_stream.follow(
        [sys.executable, '-m', 'stestr', '--top-dir', _TEMPEST.parent,
         '--test-path', _TEMPEST / 'test_discover',
         # The tests of a class share what its set-up made.
         '--group_regex', r'([^\.]*\.)*',
         'run', '--subunit', '--concurrency', str(args.workers),
         '--exclude-list', listed, *patterns],
        results.take, cwd=folder,
        env={**os.environ, 'TEMPEST_CONFIG_DIR': str(folder),
             'TEMPEST_CONFIG': 'tempest.conf'})
    results.finish()
    results.seconds += time.monotonic() - start


def _judge(results, others):
    problems = [] if results.outcomes else ['No test ran.']
    if others is not None:
        problems += results.differences(others)
    print('%d tests in %d s' % (len(results.outcomes), results.seconds))
    for line in [*results.failed(), *problems]:
        print(line)
    print('%d passed, %d failed, %d skipped' % (
        results.count('success', 'xfail'), len(results.failed()),
        results.count('skip')))
    return 1 if problems or results.failed() else 0
