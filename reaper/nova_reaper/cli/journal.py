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

"""The commands that ask the journal, and need neither cloud nor service."""

import argparse
from collections.abc import Sequence
import getpass
import json
import socket
import sys
from typing import Any

from oslo_config import cfg
import prettytable

from nova_reaper.report import history
from nova_reaper.report.journal import journal
from nova_reaper.report.journal.record import Kind
from nova_reaper.report.journal.record import Record
from nova_reaper.report.journal import store as store_module


def add_history(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``history``."""
    for name, text in (
            ('--server', 'what was done to the server of this ID, and for it'),
            ('--project', 'what was done to servers of the project of this '
                          'ID'),
            ('--kind', f'one of {", ".join(Kind)}; several with commas'),
            ('--since', 'a time, or a period like 90m, 12h or 7d'),
            ('--until', 'the same')):
        command.add_argument(name, help=text)
    command.add_argument('--limit', type=int, default=100, metavar='NUMBER',
                         help='at most so many records, the newest (100)')


def add_reason(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``pause`` and ``resume``."""
    command.add_argument('--reason', default='', metavar='TEXT',
                         help='why; the journal keeps it')


def show(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    """Print records, the oldest first."""
    values = {'server': options.server, 'project_id': options.project,
              'kind': options.kind, 'since': options.since,
              'until': options.until}
    try:
        query = history.parse({name: value for name, value in values.items()
                               if value is not None}, max(1, options.limit))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        found = store_module.Store(conf).find(query)[::-1]
    except Exception as error:
        return _failed(error)
    if options.json:
        print(json.dumps({'history': [item.to_dict(True) for item in found]}))
    else:
        print(_table(found))
    return 0


def _table(found: Sequence[Record]) -> str:
    table = prettytable.PrettyTable(
        ['Time', 'What', 'Server', 'Name', 'Result', 'For', 'Host', 'Why'])
    table.align = 'l'
    for item in found:
        shown = item.to_dict(True)
        other = item.waiting if item.waiting != item.server else ''
        table.add_row([
            shown['at'], item.kind.value, item.server, item.name,
            item.result or shown['action'] or '', other, item.host,
            why(item)])
    return str(table)


def why(item: Record) -> str:
    """In a few words how it came about."""
    decision = item.detail.get('decision') or {}
    said = [str(item.detail.get('why') or decision.get('detail') or '')]
    if other := item.detail.get('runner_up'):
        said.append(f'{other["host"]} was next, by {other["decided_by"]}.')
    if item.detail.get('by'):
        said.append(f'by {item.detail["by"]}')
    return ' '.join(part for part in said if part)


def pause(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    """Pause the reapers of this cloud."""
    return _switch(conf, options, Kind.PAUSE)


def resume(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    """Have the reapers of this cloud go on."""
    return _switch(conf, options, Kind.RESUME)


def _switch(conf: cfg.ConfigOpts, options: argparse.Namespace, kind: Kind
            ) -> int:
    reason = options.reason[:history.LONGEST_REASON]
    try:
        stands = journal.Journal(conf, lambda record: None).switch(
            kind, f'{getpass.getuser()}@{socket.gethostname()}', reason)
    except Exception as error:
        if kind is Kind.PAUSE:
            print('The reaper is not paused. Set mode = observe in its '
                  'configuration and send it SIGHUP.', file=sys.stderr)
        return _failed(error)
    state: dict[str, Any] = history.pause_to_dict(stands)
    print('The reaper is paused.' if state['paused']
          else 'The reaper is not paused.')
    return 0


def _failed(error: Exception) -> int:
    # Its text may hold the password of the URL.
    print(f'The journal cannot be used ({type(error).__name__}): see '
          '[database] connection.', file=sys.stderr)
    return 2
