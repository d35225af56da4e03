# SPDX-License-Identifier: Apache-2.0

"""Defines the commands that need a configuration, and mostly a cloud."""

import argparse
from concurrent import futures
import dataclasses
import functools
import getpass
import json
import secrets
import socket
import time
from typing import Any

from keystoneauth1 import exceptions
from oslo_config import cfg
from oslo_utils import timeutils
import requests

from nova_reaper.cli import main as main_module
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import conf as reaper_conf
from nova_reaper.events import lists
from nova_reaper.events import reader
from nova_reaper.report import health
from nova_reaper.report import http
from nova_reaper.report import journal
from nova_reaper import service
from nova_reaper import simulate

_refuse = main_module.refuse
# The exit codes of "status", as plugins of Nagios have them.
STATUS_CODES = {'ok': 0, 'degraded': 1, 'failed': 2}


def add_parsers(commands: Any) -> None:
    """Add the commands to those of a parser."""
    def add(name: str, run: Any, text: str, more: str
            ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = commands.add_parser(
            name, help=text, description=more)
        command.set_defaults(run=run)
        command.add_argument(
            '--config-file', action='append', metavar='FILE',
            help='a configuration file; may be repeated. Default: '
            '/etc/nova-reaper/nova-reaper.conf')
        if name in ('once', 'status', 'history'):
            command.add_argument('--json', action='store_true',
                                 help='print JSON')
        return command

    add('run', _run, 'run the service', 'Run the service until SIGTERM. '
        'SIGHUP reads the configuration again. SIGUSR1 pauses the reapers of '
        'the cloud, as "pause" does.')
    command = add(
        'once', _once, 'look at the cloud once', 'Look at the cloud once and '
        'print what would be done; nothing is done without --do.')
    command.add_argument('--do', action='store_true', help='do it, as the '
                         'mode of the configuration allows')
    command.add_argument(
        '--timeout', type=int, default=3600, metavar='SECONDS',
        help='with --do: stop after so long (3600)')
    command = add(
        'snapshot', _snapshot, 'write the cloud to a file',
        'Write the cloud as it is now as a file for "simulate".')
    command.add_argument('file', metavar='FILE', nargs='?', default='-',
                         help='where to write; standard output by default')
    command.add_argument(
        '--hash', action='store_true', help='write hashes in place of IDs '
        'and names, by a key that is thrown away')
    add('status', _status, 'ask the service on this machine how it is',
        'Ask the service on this machine how it is. The exit code is 0 for '
        'ok, 1 for degraded, 2 for failed.')
    command = add(
        'history', _history, 'list what was done, to whom and why',
        'List what was done to servers, for whom and why, as the journal has '
        'it.')
    for argument, text in (
            ('server', 'what was done to the server of this ID, and for it'),
            ('project', 'what was done to servers of the project of this ID'),
            ('kind', f'one of {", ".join(journal.Kind)}; several with commas'),
            ('since', 'a time, or a period like 90m, 12h or 7d'),
            ('until', 'the same')):
        command.add_argument(f'--{argument}', help=text)
    command.add_argument(
        '--limit', type=int, default=100, metavar='NUMBER',
        help='at most so many records, the newest (100)')
    for kind, text, more in (
            (journal.Kind.PAUSE, 'have nothing done any more',
             'Have nothing done any more, by any reaper of this cloud, '
             'restarts included, until "resume". Notices are withdrawn; who '
             'is being ended already is ended. It takes some seconds. The '
             'pause is kept in the journal: if its database cannot be '
             'reached, send each reaper SIGUSR1 ("systemctl kill '
             '--signal=USR1 nova-reaper"), or stop it ("systemctl stop '
             'nova-reaper").'),
            (journal.Kind.RESUME, 'end a pause',
             'Have the reapers go on after a pause.')):
        command = add(kind.value, functools.partial(_switch, kind), text, more)
        command.add_argument('--reason', default='', metavar='TEXT',
                             help='why; the journal keeps it')


def main(options: argparse.Namespace) -> int:
    """Run a command of :func:`add_parsers`, and return its exit code."""
    try:
        conf = reaper_conf.load(options.config_file)
        if options.run in (_run, _once, _snapshot):
            reaper_conf.check_login(conf)
    except (cfg.Error, OSError, ValueError) as error:
        where = ', '.join(options.config_file or ()) or 'The configuration'
        return _refuse(f'{where}: {error}')
    try:
        code: int = options.run(conf, options)
        return code
    except (rest.RequestFailed, exceptions.ClientException,
            ValueError) as error:
        return _refuse(f'The cloud cannot be asked: {error}')


def _connect(conf: cfg.ConfigOpts, meters: health.Metrics
             ) -> service.Services:
    try:
        return service.connect(conf, meters)
    except (rest.RequestFailed, exceptions.ClientException):
        raise
    except Exception as error:
        # Libraries raise errors of any class for a wrong option or file.
        raise ValueError(str(error) or type(error).__name__) from error


def _run(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    return service.run(conf)


def _once(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    meters = health.Metrics()
    services = _connect(conf, meters)
    if options.do:
        return _once_done(conf, services, meters, options.timeout)
    cloud = take_snapshot(conf, services)
    main_module.show({'decisions': simulate.simulate(cloud)}, options.json,
                     cloud)
    return 0


def _once_done(conf: cfg.ConfigOpts, services: service.Services,
               meters: health.Metrics, timeout: float) -> int:
    """Do what is to be done, and end when nothing is under way any more."""
    if conf.reaper.mode == model.Mode.OBSERVE:
        return _refuse('The mode is "observe": nothing is done.')
    with futures.ThreadPoolExecutor(conf.reaper.workers) as pool, (
            futures.ThreadPoolExecutor(conf.placement.concurrency)) as hosts:
        book = journal.Journal(conf)
        book.start()
        engine = service.build(conf, services, meters, pool, hosts, book)
        end = time.monotonic() + timeout
        # After three turns without anything to do nothing more will come.
        calm = 0
        while calm < 3 and time.monotonic() < end:
            engine.turn(0.5)
            calm = 0 if engine.busy else calm + 1
        engine.jobs.stopping = True
    book.leave()
    if engine.guard.reason:
        return _refuse(engine.guard.reason, 1)
    if book.pause:
        return _refuse('The reaper is paused: nothing is begun before '
                       '"nova-reaper resume".', 1)
    if not book.asked.is_set():
        return _refuse('Nobody was ended, since the journal does not tell '
                       'whether the reaper is paused: see [database] '
                       'connection.', 1)
    if calm < 3:
        return _refuse('It was not done in time; the next start goes on with '
                       'it.', 1)
    return 0


def _snapshot(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    document = simulate.to_document(
        take_snapshot(conf, _connect(conf, health.Metrics())))
    if options.hash:
        document = simulate.hashed(document, secrets.token_bytes(32))
    text = json.dumps(document, indent=1) + '\n'
    if options.file == '-':
        print(text, end='')
        return 0
    try:
        with open(options.file, 'w', encoding='utf-8') as file:
            file.write(text)
    except OSError as error:
        return _refuse(f'{options.file}: {error.strerror}')
    return 0


def _status(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    scheme = 'https' if conf.http.certificate else 'http'
    listen = {'0.0.0.0': '127.0.0.1', '::': '::1'}.get(
        conf.http.listen, conf.http.listen)
    host = f'[{listen}]' if ':' in listen else listen
    try:
        # The certificate has the name that others know the machine by.
        answer = requests.get(f'{scheme}://{host}:{conf.http.port}/healthz',
                              timeout=10, verify=False).json()
        code = STATUS_CODES[answer['status']]
        lines = [f'{answer["status"]}; '
                 f'{"active" if answer["active"] else "stands by"}; '
                 f'mode {answer["mode"]} (configured: '
                 f'{answer["configured_mode"]})']
        if answer['safeguard']:
            lines.append(f'safeguard: {answer["safeguard"]}')
        lines += [f'{check["name"]}: {check["status"]}: {check["detail"]}'
                  for check in answer['checks']]
    except requests.ConnectionError:
        files = ', '.join(conf.config_file or ())
        source = (f'[http] in {files}' if files else
                  'no configuration file was read')
        return _refuse(f'No nova-reaper listens on {host}, port '
                       f'{conf.http.port} ({source}).')
    except (requests.RequestException, ValueError) as error:
        return _refuse(f'nova-reaper does not answer: {error}')
    except (LookupError, TypeError):
        return _refuse(f'What answers on {host}, port {conf.http.port}, is '
                       'no nova-reaper.')
    print(json.dumps(answer) if options.json else '\n'.join(lines))
    return code


def take_snapshot(conf: cfg.ConfigOpts, services: service.Services
                  ) -> simulate.Snapshot:
    """Read the cloud as it is now, as ``simulate`` takes it.

    :raises: rest.RequestFailed
    """
    with futures.ThreadPoolExecutor(conf.placement.concurrency) as pool:
        source = reader.Reader(services.nova, services.placement,
                               services.keystone, pool, conf)
        forms = shapes.Shapes(services.nova)
        found = lists.Lists(source, forms).read_hosts()
        views = [source.with_traits(view)
                 for view in found.hosts.values() if view]
        answers = found.waiting.answers
        servers = [found.waiting.servers[uuid] for uuid in answers]
        by_shape = {answers[server.id].shape: server for server in servers}
        refusals = {shape: forms.refusals(server)
                    for shape, server in by_shape.items()}
        run_times = {server.id: source.max_run_time(server) for server in (
            *servers, *source.preemptible.values())}
    return simulate.Snapshot(
        now=timeutils.utcnow(True), options=reaper_conf.options(conf),
        hosts=[dataclasses.replace(view.host, providers=tuple(
            dataclasses.replace(one, used=source.used_of(one.name))
            if one.shared else one for one in view.host.providers))
            for view in views],
        servers=[server for view in views for server in view.servers],
        waiting=[shapes.waiting(server, answers[server.id],
                                source.properties.get(server.project, {}))
                 for server in servers],
        refusals=refusals, run_times={
            uuid: limit for uuid, limit in run_times.items() if limit})


def _history(conf: cfg.ConfigOpts, options: argparse.Namespace) -> int:
    """Print records, the oldest first."""
    if options.limit < 1:
        return _refuse('--limit has to be a whole number, 1 or more.')
    values = {'server': options.server, 'project_id': options.project,
              'kind': options.kind, 'since': options.since,
              'until': options.until}
    try:
        query = http.history_query(
            {name: value for name, value in values.items()
             if value is not None}, options.limit)
    except ValueError as error:
        return _refuse(str(error))
    try:
        found = journal.Store(conf).find(**query)[::-1]
    except Exception as error:
        return _failed(error)
    if options.json:
        print(json.dumps({'history': [item.to_dict(True) for item in found]}))
    else:
        print(main_module.table_of(
            ['Time', 'What', 'Server', 'Name', 'Result', 'For', 'Host', 'Why'],
            map(_row, found)))
    return 0


def _row(item: journal.Record) -> tuple[str, ...]:
    shown = item.to_dict(True)
    return (shown['at'], item.kind.value, item.server, item.name,
            item.result or shown['action'] or '',
            item.waiting if item.waiting != item.server else '', item.host,
            _why(item))


def _why(item: journal.Record) -> str:
    """Say in a few words how the deed of a record came about."""
    decision = item.detail.get('decision') or {}
    said = [str(item.detail.get('why') or decision.get('detail') or '')]
    if other := item.detail.get('runner_up'):
        said.append(f'{other["host"]} was next, by {other["decided_by"]}.')
    if item.detail.get('by'):
        said.append(f'by {item.detail["by"]}')
    return ' '.join(part for part in said if part)


def _switch(kind: journal.Kind, conf: cfg.ConfigOpts,
            options: argparse.Namespace) -> int:
    """Pause the reapers of this cloud, or have them go on."""
    if not http.is_reason(options.reason):
        return _refuse('The reason may have at most '
                       f'{http.LONGEST_REASON} printable characters.')
    try:
        book = journal.Journal(conf)
        if not book.store.is_shared:
            return _refuse(
                'The journal is in the memory of the service, where no other '
                'process can write: send the reaper SIGUSR1 (systemctl kill '
                '--signal=USR1 nova-reaper) to pause it, and start it again '
                'to have it go on, or use its HTTP API.')
        found = book.switch(
            kind, f'{getpass.getuser()}@{socket.gethostname()}',
            options.reason)
    except Exception as error:
        if kind is journal.Kind.PAUSE:
            _refuse('The pause is not written. Without the database each '
                    'reaper is paused by SIGUSR1 (systemctl kill '
                    '--signal=USR1 nova-reaper), or stopped (systemctl stop '
                    'nova-reaper).')
        return _failed(error)
    # A pause that another user has begun stands as it was.
    print(f'The reaper is paused since {model.time_text(found.at)} by '
          f'{found.detail.get("by")}.' if kind is journal.Kind.PAUSE
          else 'The reaper is not paused.')
    book.leave()
    return 0


def _failed(error: Exception) -> int:
    # The text of the error may hold the password of the URL.
    return _refuse(f'The journal cannot be used ({type(error).__name__}): see '
                   '[database] connection.')
