# SPDX-License-Identifier: Apache-2.0

"""The command line of nova-reaper."""

import argparse
from collections.abc import Iterable
from collections.abc import Sequence
import datetime
from importlib import metadata
import io
import json
import math
import os
import sys
import types
from typing import Any
from typing import TextIO

from oslo_utils import timeutils
import prettytable
import yaml

from nova_reaper.cloud import model
from nova_reaper import planning
from nova_reaper import simulate


def _cloud_commands() -> types.ModuleType:
    """Load the commands that ask a cloud, which takes a second.

    oslo.service has to be told of threads before anything else imports it.
    """
    from oslo_service import backend
    backend.init_backend(backend.BackendType.THREADING)
    from nova_reaper.cli import commands
    return commands


def _version() -> str:
    try:
        return metadata.version('nova-reaper')
    except metadata.PackageNotFoundError:
        return 'of a source tree that is not installed'


def _parser(with_cloud: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog='nova-reaper',
        description='Makes room for servers that wait in OpenStack Nova.')
    parser.add_argument('--version', action='version',
                        version=f'nova-reaper {_version()}')
    commands = parser.add_subparsers(dest='command', required=True,
                                     metavar='COMMAND')
    command = commands.add_parser(
        'simulate', help='say what would happen on the cloud of a file',
        description='Say what would happen on the cloud that a file '
        'describes. It needs neither a cloud nor a configuration.')
    command.add_argument('file', metavar='FILE',
                         help='JSON or YAML, "-" for standard input')
    command.add_argument('--json', action='store_true',
                         help='print JSON instead of a table')
    command.add_argument(
        '--until', metavar='TIME', help='let the time pass until then, with '
        'the arrivals and the run times of the file; print utilisation and '
        'waits instead of decisions')
    command.add_argument('--add-hosts', metavar='NUMBER',
                         help='add so many empty hosts like that of --like')
    command.add_argument(
        '--hosts-to-clear', action='store_true', help='say how many more '
        'hosts like that of --like would leave nobody waiting')
    command.add_argument('--like', metavar='HOST',
                         help='the name of a host in the file')
    if with_cloud:
        _cloud_commands().add_parsers(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run ``nova-reaper``, and return its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    options = _parser(arguments[:1] != ['simulate']).parse_args(arguments)
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names are text of any language, whatever the terminal can show.
            sys.stdout.reconfigure(errors='backslashreplace')
        code: int = (_simulate(options)
                     if options.command == 'simulate'
                     else _cloud_commands().main(options))
        # A disk that is full is found here, and not at the exit.
        if sys.stdout:
            sys.stdout.flush()
        return code
    except OSError as error:
        if sys.stdout:
            _give_up(sys.stdout)
        # A reader that has closed the pipe needs no message.
        if not isinstance(error, BrokenPipeError):
            refuse(f'nova-reaper: {error.strerror or error}')
    return 2


def _simulate(options: argparse.Namespace) -> int:
    """Simulate the cloud of a file, print it, and return the exit code."""
    try:
        cloud = simulate.parse(simulate.load(simulate.read(options.file)),
                               timeutils.utcnow(True))
        report = _report(cloud, options)
    except simulate.BadInput as error:
        return refuse(f'nova-reaper simulate: {error}')
    except OSError as error:
        return refuse(f'nova-reaper simulate: {options.file}: '
                     f'{error.strerror}')
    if sys.stdout is None:
        return refuse('nova-reaper simulate: there is no standard output')
    show(report, options.json, cloud)
    return 0


def _report(cloud: simulate.Snapshot, options: argparse.Namespace
            ) -> dict[str, Any]:
    """Return what is printed of a cloud.

    :raises simulate.BadInput: if something in the options is wrong
    """
    until, like = options.until, options.like
    if until is not None:
        until = simulate.time_of(until, '--until')
    count = simulate.number_of(options.add_hosts, '--add-hosts', 0,
                               planning.MOST_HOSTS)
    if (like is not None) != (count is not None or options.hosts_to_clear):
        raise simulate.BadInput('--like', 'has to be there with --add-hosts '
                                'or --hosts-to-clear, and with nothing else')
    if count is not None:
        cloud = planning.add_hosts(cloud, like, count)
    report: dict[str, Any] = (
        {'decisions': simulate.simulate(cloud)} if until is None
        else planning.run(cloud, until))
    if options.hosts_to_clear:
        report['hosts_to_clear'] = planning.hosts_to_clear(cloud, like, until)
    return report


def refuse(why: str, code: int = 2) -> int:
    """Say on standard error why something cannot be done; return the code."""
    if sys.stderr:
        try:
            print(why, file=sys.stderr, flush=True)
        except OSError:
            _give_up(sys.stderr)
    return code


def _give_up(output: TextIO) -> None:
    """Drop what could not be written: Python would try again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def show(report: dict[str, Any], as_json: bool, cloud: simulate.Snapshot
         ) -> None:
    """Print decisions or a report, as JSON or as tables with names."""
    servers: tuple[model.Waiting | model.Server, ...] = (
        *cloud.waiting, *cloud.servers)
    names = {server.id: server.name for server in servers}

    def named(server: str) -> str:
        name = names.get(server)
        return f'{server} ({name})' if name else server

    decisions = report.get('decisions')
    if as_json:
        if decisions is not None:
            report = report | {'decisions': [decision.to_dict()
                                             for decision in decisions]}
        print(json.dumps(report, indent=2))
        return
    if decisions is not None:
        print(table_of(['Server', 'Verdict', 'Host', 'Victims', 'Reason',
                      'Detail'], [[
                          named(decision.server), decision.verdict.value,
                          decision.host or '',
                          tuple(map(named, decision.victims)),
                          decision.word or '', decision.detail]
                          for decision in decisions]))
    else:
        print(_course(report))
    if found := report.get('hosts_to_clear'):
        number = found['hosts']
        print(simulate.printable(
            f'Hosts like {found["like"]} to add until nobody waits: '
            f'{"not known" if number is None else number} '
            f'(tried: up to {found["most"]})'))


def _course(report: dict[str, Any]) -> str:
    """Return the report of planning.run() as tables."""
    capacity, counts = report['capacity'], report['servers']
    used = [[part['from'], part['until'], *(
        f'{part["mean"][name]:.2%} / {part["peak"][name]:.2%}'
        for name in capacity)] for part in (
            *report['utilisation_by_time'], report['utilisation'])]
    waits = [[one.get('project', '*'), yaml.safe_dump(
        one['shape'], default_flow_style=True, width=math.inf).strip()
        if 'shape' in one else '*', one['servers'], *(
            '' if one[name] is None
            else str(datetime.timedelta(seconds=one[name]))
            for name in ('median', 'p90', 'longest')), one['never']]
        for one in (*report['waits_by_project'], *report['waits_by_shape'],
                    report['waits'])]
    return '\n'.join((
        f'Hosts: {report["hosts"]}',
        'Servers: ' + ', '.join(f'{number} {name.replace("_", " ")}'
                                for name, number in counts.items()),
        'Utilisation', table_of(['From', 'Until', *(
            f'{name} of {amount}, mean / peak'
            for name, amount in capacity.items())], used),
        'Waits', table_of(['Project', 'Shape', 'Servers', 'Median', '90 %',
                         'Longest', 'Never'], waits)))


def table_of(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Draw a table; a cell that is a tuple has a line for each item."""
    shown = simulate.printable
    table = prettytable.PrettyTable([shown(name) for name in names])
    table.align = 'l'
    for row in rows:
        table.add_row(['\n'.join(map(shown, cell)) if isinstance(cell, tuple)
                       else shown(str(cell)) for cell in row])
    return str(table)


if __name__ == '__main__':
    sys.exit(main())
