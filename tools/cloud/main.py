# SPDX-License-Identifier: Apache-2.0

"""The command line of the local cloud."""

import argparse
from importlib import metadata
import os
import pathlib
import signal
import sys
import textwrap
import time
import traceback

import nova_pending
from tools.cloud import client
from tools.cloud import configuration
from tools.cloud import demo
from tools.cloud import demo_libvirt
from tools.cloud import errors
from tools.cloud import plan
from tools.cloud import ports
from tools.cloud import profiles
from tools.cloud import record
from tools.cloud import screen
from tools.cloud import settings
from tools.cloud import signals
from tools.cloud import stack

# Of workers, conductors and cells: a machine that could bear more has more
# than this tool is for.
_MOST = 8

_EPILOG = """\
exit codes: 0 everything was as it should be; 1 a server that the cloud needs
is not there, nothing was started; 2 wrong arguments; 3 the cloud, or a service
of it, did not come up or go down as it should, or does not run; 4 a step of
the demonstration was not as it should be; 128 and the number of the signal
that ended it
"""


def _in_tree():
    """Return the environment that has the branch of the Nova that is here.

    tox -e in-tree-wheel makes the environment, for Nova 33 tox -e
    in-tree-wheel-nova33.
    """
    series = (nova_pending.release() or '').partition('.')[0]
    return str(pathlib.Path(__file__).parents[2] / '.tox' / (
        'in-tree33' if series == '33' else 'in-tree'))


def main(argv=None):
    """Run the command line.

    :returns: the exit code
    """
    args = _parse(argv)
    # No proxy stands between the services, nor between them and us.
    os.environ['no_proxy'] = os.environ['NO_PROXY'] = ports.HOST
    try:
        return args.function(args)
    except (errors.CloudError, errors.Interrupted) as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except Exception:
        traceback.print_exc()
        code = errors.CloudError.exit_code
    return code


def _parse(argv):
    parser = argparse.ArgumentParser(
        prog='python -m tools.cloud', description='A whole OpenStack on this '
        'machine.', epilog=_EPILOG)
    commands = parser.add_subparsers(
        dest='command', required=True, metavar='COMMAND')

    def add(name, function, help, description=''):
        command = commands.add_parser(
            name, help=help, epilog=_EPILOG,
            description='%s%s.%s' % (
                help[0].upper(), help[1:], description and ' ' + description))
        command.set_defaults(function=function)
        command.add_argument(
            '--state-dir', metavar='DIR', type=pathlib.Path,
            help='the directory of the cloud (CLOUD_STATE_DIR, %s)'
            % record.default_state())
        return command

    up = add('up', _up, 'bring a cloud up', 'One that is there already is '
             'started as it was made, with all that is in it.')
    _add_choices(up)
    nova = up.add_mutually_exclusive_group()
    nova.add_argument(
        '--stock', action='store_const', const=True,
        help='with Nova as it was released, without nova-pending')
    add_in_tree(nova)
    up.add_argument(
        '--with-samples', action='store_true', help='with an image, flavors, '
        'a network, and servers that fill the hosts while another waits')
    down = add('down', _down, 'end a cloud and remove all that it made')
    down.add_argument(
        '--keep-data', action='store_true',
        help='only end its processes: up starts them again')
    add('status', _status, 'show the services of a cloud')
    shown = add(
        'demo', _demo, 'bring a cloud up, show on it what nova-pending does, '
        'and remove it again', 'Without --keep and --state-dir it lies in a '
        'temporary directory.')
    _add_choices(shown)
    shown.add_argument(
        '--keep', action='store_true', help='let the cloud stay up')
    run = add('exec', _exec, 'run a command with the credentials of a cloud')
    run.add_argument(
        '--user', choices=(configuration.OWNER, configuration.ADMIN),
        default=configuration.OWNER, help='whose (%(default)s)')
    run.add_argument('program', metavar='PROGRAM')
    run.add_argument('arguments', nargs=argparse.REMAINDER, metavar='ARGUMENT')
    logs = add('logs', _logs, 'show the log of a service')
    logs.add_argument('service', metavar='SERVICE')
    logs.add_argument('-n', '--lines', type=int, metavar='N',
                      help='only the last N lines')
    logs.add_argument('-f', '--follow', action='store_true',
                      help='go on showing what is added')
    kill = add('kill', _kill, 'send a signal to a service', 'KILL goes to its '
               'workers too, as from a system that has run out of memory.')
    kill.add_argument('service', metavar='SERVICE')
    kill.add_argument('--signal', type=_signal, default=signal.SIGKILL,
                      metavar='SIGNAL', help='a name or a number (KILL)')
    restart = add('restart', _restart, 'end services and start them again')
    restart.add_argument('service', nargs='?', metavar='SERVICE',
                         help='one service (all of them)')
    return parser.parse_args(argv)


def add_in_tree(parser):
    """Add the option that names an environment with the branch of Nova."""
    parser.add_argument(
        '--in-tree', metavar='ENV', nargs='?', const=_in_tree(),
        type=lambda path: str(pathlib.Path(path).absolute()),
        help='with the branch of Nova that is installed, without '
        'nova-pending, in another Python environment (%(const)s)')


def _add_choices(parser):
    """Add what can be chosen for a new cloud, with None for what is not."""
    parser.add_argument(
        '--profile', choices=profiles.NAMES,
        help='what the cloud is made of (%s)' % profiles.DEFAULT)
    parser.add_argument(
        '--database-url', metavar='URL',
        help='the MariaDB or PostgreSQL where databases of our own are made '
        'and dropped, for the profile services (CLOUD_DATABASE_URL, %s)'
        % settings.DATABASE_URL)
    parser.add_argument(
        '--bus-url', metavar='URL',
        help='the RabbitMQ, for the profile services (CLOUD_BUS_URL, %s)'
        % settings.BUS_URL)
    parser.add_argument(
        '--private-servers', action='store_true', help='with a MariaDB and a '
        'RabbitMQ of the cloud\'s own where no URL is given, also if servers '
        'answer at the usual URLs, for the profile services')
    parser.add_argument(
        '--port', action='append', type=_port, metavar='API=NUMBER',
        help='the port of an API, one of %s, in place of a free port; may be '
        'given several times' % ', '.join(settings.APIS))
    parser.add_argument(
        '--libvirt', action='store_const', const=True,
        help='with a third host, with real guests of QEMU under a '
        'libvirtd of the cloud\'s own, for the profile services')
    parser.add_argument(
        '--pci', choices=('nova', 'placement'),
        help='with three PCI devices on each host, of which Nova alone or '
        'Placement, too, keeps count, for the profile services')
    parser.add_argument(
        '--no-cinder', dest='cinder', action='store_const', const=False,
        help='without volumes')
    parser.add_argument(
        '--dashboard', action='store_const', const=True,
        help='with Horizon and its panels of waiting servers')
    parser.add_argument(
        '--reaper', action='store_const', const=True,
        help='with nova-reaper, which makes room for servers that wait')
    for name, what in (
            ('workers', 'processes of each API and each conductor'),
            ('conductors', 'conductors of the whole cloud'),
            ('cells', 'cells beside cell0; from two on each has a bus, a '
             'database and a conductor of its own')):
        parser.add_argument(
            '--' + name, type=_count, metavar='N', help='%s, for the profile '
            'services (%d)' % (what, getattr(settings.Settings, name)))


def _choices(args):
    """Return what of settings.Settings was chosen on the command line."""
    names = ('libvirt', 'pci', 'cinder', 'dashboard', 'reaper', 'stock',
             'in_tree', 'workers', 'conductors', 'cells')
    return {name: getattr(args, name) for name in names
            if getattr(args, name, None) is not None}


def _count(text):
    if text not in map(str, range(1, _MOST + 1)):
        raise argparse.ArgumentTypeError(
            '%r is not a number from 1 to %d' % (text, _MOST))
    return int(text)


def _port(text):
    api, _, number = text.partition('=')
    if api not in settings.APIS or not (
            number.isdecimal() and 0 < int(number) < 65536):
        raise argparse.ArgumentTypeError(
            '%r is not like nova=8774, with one of %s' % (
                text, ', '.join(settings.APIS)))
    return api, int(number)


def _signal(text):
    try:
        return (signal.Signals(int(text)) if text.isdecimal() else
                signal.Signals['SIG' + text.upper().removeprefix('SIG')])
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError('there is no signal %r' % text)


def _state(args):
    return (args.state_dir or record.default_state()).absolute()


def _new(args, state, **others):
    """Return the cloud that is asked for, of which nothing is there yet.

    :param others: of what settings.Settings has, what is not for the user
    """
    if not nova_pending.laid() and not (
            getattr(args, 'stock', None) or getattr(args, 'in_tree', None)):
        raise errors.CloudError(
            'nova-pending is not active in this environment: see '
            'nova-pending status.')
    profile = profiles.find(args.profile or profiles.DEFAULT)
    urls = profile.find_urls(
        args.database_url or os.environ.get('CLOUD_DATABASE_URL'),
        args.bus_url or os.environ.get('CLOUD_BUS_URL'), args.private_servers)
    cloud = profile(*urls, state, given_ports=dict(args.port or ()),
                    **_choices(args), **others)
    cloud.check()
    return cloud


def _load(args):
    """Return the cloud that is there, which nobody else may change."""
    signals.catch()
    cloud = profiles.load(_state(args))
    cloud.lock()
    return cloud


def _up(args):
    signals.catch()
    state, start, show = _state(args), time.monotonic(), screen.Screen()
    if record.Record(state).read() is not None:
        if any((_choices(args), args.profile, args.port, args.database_url,
                args.bus_url, args.private_servers, args.with_samples)):
            raise errors.BadArgument(
                'There is a cloud in %s already, and what it is made of '
                'cannot be changed: take it down, or give another '
                '--state-dir.' % state)
        cloud = _load(args)
        _start(cloud, show, cloud.start)
    else:
        if args.stock and args.with_samples:
            raise errors.BadArgument(
                'No server waits with --stock: leave out --with-samples.')
        cloud = _new(args, state)
        show.write('A cloud comes up in %s' % state)
        _bring_up(cloud, show)
        if args.with_samples:
            samples = demo.Demo(cloud.settings, cloud.processes, show.write)
            _run_steps(samples.make_samples, samples.stop)
    show.write()
    show.services(cloud)
    show.write('\nUp in %.1f s. To go on:\n' % (time.monotonic() - start))
    _write_next(show, cloud)
    return 0


def _write_next(show, cloud):
    for words in (('exec', 'openstack', 'server', 'list'), ('status',),
                  ('down',)):
        show.write('  ' + screen.command(cloud.state, *words))


def _bring_up(cloud, show):
    try:
        with show.steps() as (done, started):
            cloud.up(done, started)
    except BaseException:
        signals.ignore()
        _tell_full_disk(cloud)
        _take_down(cloud)
        raise


def _start(cloud, show, start):
    """Start services of a cloud that is there, or end it if they do not."""
    try:
        with show.steps() as (done, started):
            start(done, started)
    except errors.BadArgument:
        raise
    except BaseException:
        signals.ignore()
        _tell_full_disk(cloud)
        cloud.stop()
        print('All of the cloud in %s was ended. What it made is still there: '
              'up starts it, down removes it.' % cloud.state, file=sys.stderr)
        raise


def _tell_full_disk(cloud):
    # What a service says of it is not always its last word, or written.
    if not stack.disk_room(cloud.state):
        print('There is no room left on the disk of %s.' % cloud.state,
              file=sys.stderr)


def _down(args):
    cloud, start = _load(args), time.monotonic()
    signals.ignore()
    if args.keep_data:
        cloud.stop()
    else:
        cloud.down()
    screen.Screen().write('Down in %.1f s%s.' % (
        time.monotonic() - start, args.keep_data and
        ', what it made stays in %s' % cloud.state or
        ', and nothing is left'))
    return 0


def _status(args):
    cloud = profiles.load(_state(args))
    screen.Screen().write('The cloud in %s' % cloud.state)
    return (0 if screen.Screen().services(cloud) and cloud.made
            else errors.CloudError.exit_code)


def _exec(args):
    cloud = profiles.load(_state(args))
    return _run([args.program, *args.arguments], client.environment(
        cloud.settings, args.user))


def _run(argv, env):
    """Become another program, or say why not."""
    try:
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        raise errors.BadArgument('%s cannot be run: %s.' % (
            argv[0], error.strerror))


def _logs(args):
    folder = profiles.load(_state(args)).state / 'log'
    log = folder / (args.service + '.log')
    if log.parent != folder or not log.exists():
        raise errors.BadArgument('There is no log of %s, but of: %s.' % (
            args.service, ', '.join(sorted(
                path.stem for path in folder.glob('*.log')))))
    lines = '+1' if args.lines is None else str(args.lines)
    argv = ['tail', '-n', lines, *(['-F'] if args.follow else []), str(log)]
    return _run(argv, os.environ)


def _kill(args):
    process = profiles.load(_state(args)).find(args.service)
    if not process.alive:
        raise errors.CloudError('%s has ended already.' % args.service)
    if args.signal == signal.SIGKILL:
        process.kill()
    else:
        process.send(args.signal)
    return 0


def _restart(args):
    cloud, start, show = _load(args), time.monotonic(), screen.Screen()
    if args.service:
        _restart_one(cloud, show, args.service)
    else:
        def again(done, started):
            cloud.stop()
            cloud.start(done, started)

        _start(cloud, show, again)
    show.write()
    show.services(cloud)
    for name in cloud.ended():
        show.write('%s has ended before, and was left alone.' % name)
    show.write('\nUp again in %.1f s.' % (time.monotonic() - start))
    return 0


def _restart_one(cloud, show, service):
    cloud.find(service)
    try:
        with show.steps() as (done, started):
            cloud.restart(service, done, started)
    except BaseException:
        signals.ignore()
        _tell_full_disk(cloud)
        print('%s did not come up. The rest of the cloud is as it was; up '
              'starts what is missing.' % service, file=sys.stderr)
        raise


def _demo(args):
    signals.catch()
    start, show = time.time(), screen.Screen()
    args.reaper = True
    # The demonstration makes its tenant itself.
    cloud = _new(args, _state(args) if args.keep else args.state_dir,
                 owner=False)
    timeline = []

    def lap(title, since):
        timeline.append((title, since, time.time() - since))

    show.write(_title(cloud))
    show.write('\n## The cloud comes up\n')
    _bring_up(cloud, show)
    lap('The cloud comes up', start)
    try:
        _show_steps(cloud, show, timeline)
    finally:
        signals.ignore()
        since = time.time()
        if args.keep:
            show.write('\nThe cloud stays up. To go on:\n')
            _write_next(show, cloud)
        else:
            _take_down(cloud)
            lap('The cloud goes down', since)
    lap('In all', start)
    show.write('\n## When each step began, and how long it took\n')
    show.timeline(timeline)
    return 0


def _show_steps(cloud, show, timeline):
    shown = (demo_libvirt if cloud.settings.libvirt else demo).Demo(
        cloud.settings, cloud.processes, show.write)
    _run_steps(shown.run, shown.stop)
    timeline += shown.timeline


def _run_steps(run, stop):
    """Run steps in a thread: a signal is not to wait for the end of a step.

    :param run: runs them
    :param stop: ends them while they run
    """
    steps = plan.Plan()
    steps.add('demonstration', run)
    steps.run(lambda *_: None, stop)


def _take_down(cloud):
    earlier = sys.exception()
    try:
        cloud.down()
    except errors.CloudError as error:
        if earlier is None:
            raise
        # Not to hide why the cloud goes down.
        print(error, file=sys.stderr)


def _title(cloud):
    return textwrap.fill(
        'Nova %s with nova-pending %s. %s Not real are the guests of Nova\'s '
        'fake driver, the switch and the storage.' % (
            metadata.version('nova'), metadata.version('nova-pending'),
            cloud.description), width=79)
