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

"""The command line of the local cloud."""

import argparse
from importlib import metadata
import os
import signal
import sys
import time
import traceback

import nova_pending
from tools.cloud import demo
from tools.cloud import errors
from tools.cloud import plan
from tools.cloud import ports
from tools.cloud import settings
from tools.cloud import stack

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

_EPILOG = """\
exit codes: 0 everything was as it should be; 1 MariaDB or RabbitMQ is not
there, nothing was started; 2 wrong arguments; 3 the cloud did not come up or
go down as it should; 4 a step of the demonstration was not as it should be;
128 and the number of the signal that ended it
"""


def main(argv=None):
    """Run the command line.

    :returns: the exit code
    """
    args = _parse(argv)
    for signum in _SIGNALS:
        signal.signal(signum, _interrupt)
    # No proxy stands between the services, nor between them and us.
    os.environ['no_proxy'] = os.environ['NO_PROXY'] = ports.HOST
    try:
        return _demo(args)
    except (errors.CloudError, errors.Interrupted) as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except Exception:
        traceback.print_exc()
        return errors.CloudError.exit_code


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog='python -m tools.cloud', description=__doc__)
    commands = parser.add_subparsers(dest='command', required=True)
    command = commands.add_parser(
        'demo', epilog=_EPILOG,
        help='bring a cloud up, show on it what nova-pending does, and '
        'remove it again')
    command.add_argument(
        '--database-url', metavar='URL',
        default=os.environ.get('CLOUD_DATABASE_URL', settings.DATABASE_URL),
        help='MariaDB, where databases of our own are made and dropped '
        '(CLOUD_DATABASE_URL, %(default)s)')
    command.add_argument(
        '--bus-url', metavar='URL',
        default=os.environ.get('CLOUD_BUS_URL', settings.BUS_URL),
        help='RabbitMQ (CLOUD_BUS_URL, %(default)s)')
    command.add_argument(
        '--state-dir', metavar='DIR',
        help='the directory for everything that the cloud writes, which must '
        'not be there or be empty (a temporary one)')
    command.add_argument(
        '--keep', action='store_true',
        help='let the state directory stay, with configuration and logs')
    return parser.parse_args(argv)


def _demo(args):
    start = time.monotonic()
    if not nova_pending.laid():
        raise errors.CloudError(
            'nova-pending is not active in this environment: see '
            'nova-pending status.')
    cloud = stack.Stack(
        args.database_url, args.bus_url, args.state_dir, args.keep)
    cloud.check()
    timeline = []

    def lap(title, since):
        timeline.append((title, time.monotonic() - since))
        return time.monotonic()

    try:
        try:
            _write(_title())
            _write('\n## The cloud comes up\n')
            cloud.up(_write_step)
            since = lap('The cloud comes up', start)
            shown = demo.Demo(cloud.settings, cloud.processes, _write)
            steps = plan.Plan()
            steps.add('demonstration', shown.run)
            steps.run(lambda *_: None, cloud.processes.close)
            timeline += shown.timeline
            since = time.monotonic()
        finally:
            _ignore_signals()
    finally:
        _take_down(cloud)
        if args.keep and cloud.settings:
            _write('\nThe state directory stays: %s' % cloud.settings.state)
    lap('The cloud goes down', since)
    timeline.append(('In all', time.monotonic() - start))
    _write('\n## Seconds\n')
    for title, seconds in timeline:
        _write('%7.1f  %s' % (seconds, title))
    return 0


def _take_down(cloud):
    earlier = sys.exception()
    try:
        cloud.down()
    except errors.CloudError as error:
        if earlier is None:
            raise
        # Not to hide why the cloud goes down.
        print(error, file=sys.stderr)


def _title():
    return ('Nova %s with nova-pending %s: nova-api, nova-conductor, '
            'nova-scheduler and two\nnova-compute, each a process; Keystone, '
            'Placement, Glance and Neutron; MariaDB and\nRabbitMQ. Not real '
            'are the guests (Nova\'s fake driver) and the switch.'
            % (metadata.version('nova'), metadata.version('nova-pending')))


def _write(text):
    print(text, flush=True)


def _write_step(name, seconds):
    _write('%7.1f s  %s' % (seconds, name))


def _interrupt(signum, frame):
    # The way down is not to be left in the middle.
    _ignore_signals()
    raise errors.Interrupted(signum)


def _ignore_signals():
    for signum in _SIGNALS:
        signal.signal(signum, signal.SIG_IGN)
