# SPDX-License-Identifier: Apache-2.0

"""The command line of nova-reaper."""

import argparse
from importlib import metadata
import io
import json
import os
import sys
import types
from typing import TextIO

from oslo_utils import timeutils
import prettytable

from nova_reaper.cloud import model
from nova_reaper import simulate


def _cloud_commands() -> types.ModuleType:
    """The commands that ask a cloud; their libraries take a second to load.

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
    if with_cloud:
        _cloud_commands().add_parsers(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run ``nova-reaper``; returns its exit code."""
    if arguments is None:
        arguments = sys.argv[1:]
    options = _parser(arguments[:1] != ['simulate']).parse_args(arguments)
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # Names are text of any language, whatever the terminal can show.
            sys.stdout.reconfigure(errors='backslashreplace')
        code: int = (_simulate(options.file, options.json)
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
            _tell(f'nova-reaper: {error.strerror or error}')
    return 2


def _simulate(path: str, as_json: bool) -> int:
    """Simulate what is in a file and print it; returns the exit code.

    :param path: the file, "-" for standard input
    """
    try:
        cloud = simulate.parse(simulate.load(simulate.read(path)),
                               timeutils.utcnow(True))
    except simulate.BadInput as error:
        return _tell(f'nova-reaper simulate: {error}')
    except OSError as error:
        return _tell(f'nova-reaper simulate: {path}: {error.strerror}')
    if sys.stdout is None:
        return _tell('nova-reaper simulate: there is no standard output')
    show(simulate.simulate(cloud), as_json)
    return 0


def _tell(what: str) -> int:
    """Tell what is wrong, if anybody can be told; returns the exit code."""
    if sys.stderr:
        try:
            print(what, file=sys.stderr, flush=True)
        except OSError:
            _give_up(sys.stderr)
    return 2


def _give_up(output: TextIO) -> None:
    """Drop what could not be written: Python would try again at the exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())


def show(decisions: list[model.Decision], as_json: bool) -> None:
    """Print decisions, as JSON or as a table."""
    if as_json:
        print(json.dumps({'decisions': [decision.to_dict()
                                        for decision in decisions]},
                         indent=2))
        return
    shown = simulate.printable
    table = prettytable.PrettyTable(
        ['Server', 'Verdict', 'Host', 'Victims', 'Reason', 'Detail'])
    table.align = 'l'
    for decision in decisions:
        table.add_row([shown(decision.server), decision.verdict.value,
                       shown(decision.host or ''),
                       '\n'.join(map(shown, decision.victims)),
                       decision.word or '', shown(decision.detail)])
    print(table)


if __name__ == '__main__':
    sys.exit(main())
