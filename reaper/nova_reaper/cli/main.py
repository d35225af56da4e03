# SPDX-License-Identifier: Apache-2.0

"""The command line of nova-reaper."""

import argparse
from importlib import metadata
import io
import sys
import types

from oslo_utils import timeutils

from nova_reaper.simulate import simulate


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
        code = _run(options)
        # A disk that is full is found here, and not at the exit.
        if sys.stdout:
            sys.stdout.flush()
        return code
    except OSError as error:
        if sys.stdout:
            simulate.give_up(sys.stdout)
        # A reader that has closed the pipe needs no message.
        if not isinstance(error, BrokenPipeError):
            simulate.tell(f'nova-reaper: {error.strerror or error}')
    return 2


def _run(options: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Names are text of any language, whatever the terminal can show.
        sys.stdout.reconfigure(errors='backslashreplace')
    if options.command != 'simulate':
        code: int = _cloud_commands().main(options)
        return code
    now = timeutils.utcnow(True)
    return simulate.run(options.file, options.json, now)


if __name__ == '__main__':
    sys.exit(main())
