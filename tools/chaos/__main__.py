# SPDX-License-Identifier: Apache-2.0

"""The command line of the campaign."""

import argparse
import pathlib
import random
import signal
import sys

from tools.chaos import cloud
from tools.chaos import draw
from tools.chaos import reaping
from tools.chaos import report
from tools.chaos import rounds
from tools.cloud import errors
from tools.cloud import reaper

_NOVA = ('nova-api', 'nova-conductor', 'nova-scheduler', 'nova-compute')

_REAPING = {kind.mode: kind
            for kind in (reaping.FillRound, reaping.PreemptRound)}

# Only its owner can rebuild the last kind.
_REAPER_KINDS = draw.KINDS[:-1]

# The fake driver forgets its guests with its process, and what it does not
# know cannot be shelved.
_SURVIVES = {'preempt': ('nova-compute',)}

_EPILOG = """\
exit codes: 0 all held; 1 something did not, or a server that the cloud needs
is not there; 2 wrong arguments; 3 the cloud did not come up
"""


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog='tox -e chaos --', epilog=_EPILOG,
        description='Kills services of a cloud at random moments while '
        'servers in cell0 are rebuilt, and looks at what is left.')

    def add(name, default, help, type=int):
        parser.add_argument('--' + name, type=type, default=default,
                            metavar='N', help=help + ' (%(default)s)')

    parser.add_argument('--seed', type=int, metavar='N', help='draws the '
                        'moments and what fails (a random one)')
    add('first', 0, 'number of the first round, to have one of them again')
    add('rounds', 5, 'how many rounds')
    add('servers', 20, 'servers of each round')
    add('victims', 40, 'preemptible servers that fill the cloud with --reaper '
        'preempt, of which each server that waits needs two')
    add('creates', 10, 'other servers that are created in a round; none are '
        'with --reaper')
    add('faults', 8, 'how often a service is killed or hangs in a round')
    add('span', 30, 'seconds of a round in which services fail')
    add('timeout', 25, '[conductor] rebuild_in_cell0_timeout, which has to be '
        'longer than the rpc-timeout')
    add('rpc-timeout', 20, '[DEFAULT] rpc_response_timeout')
    parser.add_argument(
        '--services', nargs='+', metavar='SERVICE',
        help='which fail, of those of tools.cloud status (%s, and the reaper '
        'if it runs). With %s the cloud has servers of its own.' % (
            ' '.join(_NOVA), ' or '.join(cloud.PRIVATE)))
    parser.add_argument(
        '--private-servers', action='store_true', help='with a MariaDB and a '
        'RabbitMQ of the cloud\'s own: it needs more connections than others '
        'may have left')
    parser.add_argument(
        '--on-hosts', action='store_true', help='nova-pending on the hosts, '
        'too: a host whose build fails late leaves the allocations of a '
        'server alone that was rebuilt meanwhile')
    parser.add_argument(
        '--reaper', choices=sorted(_REAPING), help='nobody asks for rebuilds '
        'but nova-reaper in that mode')
    parser.add_argument(
        '--state-dir', type=pathlib.Path, metavar='DIR', help='where the '
        'configuration and the logs of the cloud are to stay')
    return parser.parse_args(argv)


def _run(args, chaos, told, seed, services):
    """Run all rounds, and report each."""
    told.tell('Seed %s, %s' % (seed, ' '.join(services)))
    for number in range(args.first, args.first + args.rounds):
        told.begin(number)
        drawn = draw.draw(
            seed, number, args.servers, services, args.faults, args.span,
            2 * args.timeout, _REAPER_KINDS if args.reaper else draw.KINDS,
            _SURVIVES.get(args.reaper, ()),
            0 if args.reaper else args.creates)
        told.tell('round %d: %s' % (
            number, '; '.join(map(str, drawn.faults))))
        _REAPING.get(args.reaper, rounds.Round)(
            chaos, drawn, args.span, args.timeout + 3 * args.rpc_timeout,
            told).run()


def _room(args):
    """Return how large the hosts are and what a server needs of them."""
    if not args.reaper:
        return {}
    vcpus = _REAPING[args.reaper].vcpus
    needed = vcpus * args.servers
    if args.reaper == 'preempt':
        needed = max(needed, args.victims)
    # Two hosts, each with half of the room.
    return {'reaper': True, 'vcpus': vcpus, 'host_vcpus': -(-needed // 2)}


def main(argv=None):
    """Run a campaign.

    :returns: the exit code
    """
    args = _parse(argv)
    seed = random.randrange(2 ** 32) if args.seed is None else args.seed
    told = report.Report(seed)
    names = args.services or [
        *_NOVA, *([reaper.NAME] if args.reaper else [])]
    chaos = cloud.Cloud(
        args.timeout, args.rpc_timeout, on_hosts=args.on_hosts,
        state_dir=args.state_dir,
        private=args.private_servers or not set(
            cloud.PRIVATE).isdisjoint(names),
        **_room(args))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        chaos.check()
        chaos.up()
        _run(args, chaos, told, seed, draw.chosen(names, chaos.services))
    except ValueError as error:
        print(error, file=sys.stderr)
        return errors.BadArgument.exit_code
    except errors.CloudError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        chaos.down()
        for line in told.summary():
            print(line)
    return told.exit_code


if __name__ == '__main__':
    sys.exit(main())
