# SPDX-License-Identifier: Apache-2.0

"""Serves what the reaper knows over HTTP, and decides who may ask."""

import collections
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import datetime
import functools
import heapq
import json
import math
import re
import threading
import time
from typing import Any
from typing import TypeVar
from urllib import parse

from cheroot.ssl import builtin
from cheroot import wsgi
from keystonemiddleware import auth_token
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_log import log
from oslo_middleware import http_proxy_to_wsgi
from oslo_policy import policy
from oslo_utils import timeutils
import prometheus_client
import webob
from webob import dec
from webob import exc

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.decide import choose
from nova_reaper import engine as engine_module
from nova_reaper.queue import queue
from nova_reaper.report import answers
from nova_reaper.report import health
from nova_reaper.report import journal
from nova_reaper.report import probe

LOG = log.getLogger(__name__)
StartResponse = Callable[..., Any]
WsgiApp = Callable[[dict[str, Any], StartResponse], Iterable[bytes]]
T = TypeVar('T')

READER = 'rule:project_reader_or_admin'
ADMIN = 'rule:admin_or_service'
_WAITING = '/v1/pending/{server_id}'
# Name of a rule, who has it, what it allows, the path and the methods; GET
# where no method is named.
RULES: tuple[tuple[str, ...], ...] = (
    ('pending:list', READER, 'List the servers of a project that wait.',
     '/v1/pending'),
    ('pending:list:all_projects', ADMIN, 'List the servers of all projects.',
     '/v1/pending'),
    ('pending:show', READER, 'Show why a server waits.', _WAITING),
    ('pending:show:host', ADMIN,
     'See hosts, and the servers that have to go for another.', _WAITING),
    ('pending:show:detail', ADMIN,
     'See how many hosts could take a server, how large they are, and how '
     'many servers wait.', _WAITING),
    ('pending:dry_run', ADMIN, 'See who would be ended for a server.',
     f'{_WAITING}?dry_run=true'),
    ('servers:list', READER, 'List the servers of a project that may be '
     'ended, and when their run time is over.', '/v1/servers'),
    ('notices:list', READER,
     'List the servers of a project that are under notice.', '/v1/notices'),
    ('history:list', READER,
     'List what was done to the servers of a project.', '/v1/history'),
    ('history:list:all_projects', ADMIN,
     'List what was done to the servers of all projects.', '/v1/history'),
    ('history:show:host', ADMIN, 'See hosts, servers of other projects, and '
     'how a decision came about.', '/v1/history'),
    ('pause:show', ADMIN, 'See whether the reaper is paused.', '/v1/pause'),
    ('probe:ask', READER, 'Ask whether there is room for servers that are not '
     'created yet.', '/v1/probe', 'POST'),
    ('servers:rehearse', 'role:member and project_id:%(project_id)s',
     'Rehearse the end of a server.', '/v1/servers/{server_id}/rehearsal',
     'POST'),
    ('pause:set', 'role:admin', 'Pause and resume the reaper.', '/v1/pause',
     'PUT', 'DELETE'))

# Most servers or records in one answer.
PAGE = 1000
# Most servers that a query of /v1/pending names: proxies refuse long URLs.
MOST_NAMED = 100
# Most bytes of the head of a request, and of its body.
LONGEST = 64 * 1024
LONGEST_REASON = 255
# So many requests ask the database at a time. A further request waits for so
# many seconds: the other threads answer what needs no database.
AT_ONCE = 2
PATIENCE = 5.0
# A project, and all, may ask for so many probes in MINUTE.
PROBES, PROBES_OF_ALL = 10, 100
MINUTE = 60.0
# A list of waiting servers that took more seconds than this is answered again
# for so many times as long as it took to make.
LONG = 0.02
REST = 20
# Query keys of /v1/history, beside all_projects.
KEYS = ('server', 'project_id', 'kind', 'since', 'until', 'limit', 'marker')
_PERIOD = re.compile(r'(\d{1,6})([smhd])', re.ASCII)
_JSON = 'application/json'
_REHEARSAL = re.compile(r'/v1/servers/([^/]+)/rehearsal')
_UNITS = {'s': 'seconds', 'm': 'minutes', 'h': 'hours', 'd': 'days'}


def list_rules() -> Iterable[policy.RuleDefault]:
    """Return all rules, for the generators of oslo.policy."""
    yield policy.RuleDefault(
        'admin_or_service', 'role:admin or role:service',
        'Administrators, and other services.')
    yield policy.RuleDefault(
        'project_reader_or_admin', 'rule:admin_or_service or '
        '(role:reader and project_id:%(project_id)s)',
        'Readers of the project that the server belongs to, administrators '
        'and other services.')
    for name, check, text, path, *methods in RULES:
        # As in Nova, the administrator of a domain is not that of the cloud.
        yield policy.DocumentedRuleDefault(name, check, text, [
            {'method': method, 'path': path} for method in methods or ['GET']
        ], scope_types=['project'])


def enforcer(conf: cfg.ConfigOpts) -> policy.Enforcer:
    """Make an enforcer that knows all rules."""
    made = policy.Enforcer(conf)
    made.register_defaults(list_rules())
    return made


def generator_enforcer() -> policy.Enforcer:
    """Make an enforcer for ``oslopolicy-policy-generator``."""
    conf = cfg.ConfigOpts()
    conf([], project='nova-reaper')
    return enforcer(conf)


def history_query(values: Mapping[str, str], limit: int) -> dict[str, Any]:
    """Turn the text of a query into arguments of Store.find().

    :param values: by names of KEYS, without the limit
    :param limit: how many records to find at most
    :raises: ValueError with a sentence that says what is wrong
    """
    for name in ('server', 'marker'):
        if name in values and not shapes.is_id(values[name]):
            raise ValueError(f'{name} has to be an ID.')
    project = values.get('project_id')
    if project is not None and not re.fullmatch(r'[\w.-]{1,64}', project,
                                                re.ASCII):
        raise ValueError('project_id has to be an ID.')
    kinds = values['kind'].split(',') if 'kind' in values else []
    if unknown := set(kinds) - set(journal.Kind):
        raise ValueError(f'There is no kind "{min(unknown)[:40]}"; there are '
                         f'{", ".join(journal.Kind)}.')
    return {'server': values.get('server'), 'project': project,
            'kinds': kinds, 'since': _time(values, 'since'),
            'until': _time(values, 'until'), 'limit': limit,
            'marker': values.get('marker')}


def _time(values: Mapping[str, str], name: str) -> datetime.datetime | None:
    value = values.get(name)
    if value is None:
        return None
    at: datetime.datetime
    try:
        if period := _PERIOD.fullmatch(value):
            at = timeutils.utcnow(True)
            return at - datetime.timedelta(
                **{_UNITS[period[2]]: int(period[1])})
        # "+" is a space in the query of a URL.
        at = timeutils.parse_isotime(value.replace(' ', '+'))
        return at.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise ValueError(f'{name} has to be a time like 2026-11-22T12:00:00Z '
                         'or a period like 90m, 12h or 7d.') from None


def pause_to_dict(switch: journal.Record | None) -> dict[str, Any]:
    """Return the last pause or resume as /v1/pause has it."""
    detail = switch.detail if switch else {}
    return {'paused': bool(switch and switch.kind is journal.Kind.PAUSE),
            'since': model.time_text(switch.at) if switch else None,
            'by': detail.get('by'), 'reason': detail.get('why')}


class Shown:
    """What the engine knows, read under its lock.

    The list of thousands of waiting servers takes long to make, and the engine
    stands still meanwhile. So requests get the same long list for a while, and
    no number of requests holds the engine up.

    :param why: says what is wrong, None if nothing is: with the cloud before
        there is an engine, later with the coordination
    """

    def __init__(self, conf: cfg.ConfigOpts, why: Callable[[], str | None]
                 ) -> None:
        self._conf = conf
        self._why = why
        self._known: engine_module.Engine | None = None
        self._lock = threading.Lock()
        self._entries: Sequence[answers.Entry] = ()
        self._until = -math.inf

    def show(self, engine: engine_module.Engine) -> None:
        """Show what an engine knows; until then there is only health."""
        self._known = engine

    @property
    def _engine(self) -> engine_module.Engine:
        assert self._known
        return self._known

    def entries(self) -> Sequence[answers.Entry]:
        """List all servers that wait, in the order in which they are tried."""
        with self._lock:
            if time.monotonic() < self._until:
                return self._entries
            with self._engine.lock:
                begun = time.perf_counter()
                self._entries = self._made()
                took = time.perf_counter() - begun
            self._until = time.monotonic() + (REST * took if took > LONG
                                              else 0.0)
            return self._entries

    def _made(self) -> Sequence[answers.Entry]:
        known = self._engine.world
        waiting = [item for server in known.servers
                   if server not in known.not_asked and
                   (item := known.waiting(server))]
        waiting.sort(key=known.queue.rank)
        others = sorted(known.not_asked.values(), key=known.queue.rank)
        return [self._entry(item, number, len(waiting))
                for number, item in enumerate(waiting, 1)] + [
            self._entry(item, None, len(waiting)) for item in others]

    def _entry(self, waiting: model.Waiting, position: int | None, length: int
               ) -> answers.Entry:
        known = self._engine.world
        told = known.told.last.get(waiting.id)
        current = self._engine.attempts.under_way.get(waiting.id)
        answer = known.answer(waiting.id)
        mode, decision = known.options.mode, told.decision if told else None
        if mode is model.Mode.OBSERVE and not current and (
                decision and decision.verdict is not model.Verdict.WAIT):
            decision = dataclasses.replace(
                decision, hindrance=model.Hindrance.MODE)
        due = queue.due_at(waiting, known.options)
        if current or due and due <= timeutils.utcnow(True):
            due = None
        return answers.Entry(
            waiting, position, length, due,
            queue.deadline(waiting, known.options),
            current.shown if current else 'waiting',
            decision, told.at if told else None, mode,
            answer.advice if answer else '')

    def entry(self, server: str) -> answers.Entry | None:
        """Find a server that waits, or was given up a short time ago."""
        with self._engine.lock:
            if server not in self._engine.world.servers:
                return self._engine.attempts.find_given_up(server)
        return next((entry for entry in self.entries()
                     if entry.waiting.id == server), None)

    def notices(self) -> list[dict[str, Any]]:
        """List the servers under notice as /v1/notices has them, whole."""
        with self._engine.lock:
            return [
                {'server': victim.id, 'name': victim.name,
                 'project_id': victim.project,
                 'action': None if current.rehearsal else victim.action.value,
                 'terminate_at': model.time_text(current.terminate_at),
                 'cause': current.cause.value,
                 'message': current.cause.message,
                 'for': current.id if current.for_another else None,
                 'host': current.host}
                for current in self._engine.attempts.under_way.values()
                for victim in current.victims
                if current.terminate_at and not victim.ended and
                victim.stage != model.Stage.CHOSEN]

    def servers(self, project: str | None, marker: str, most: int
                ) -> list[dict[str, Any]]:
        """List the servers that may be ended as /v1/servers has them, whole.

        :param project: the ID of their project, None for all projects
        :param marker: the ID after which to begin, by the order of IDs
        """
        with self._engine.lock:
            found = self._engine.world.index.slots.of_project(project)
        return [
            {'server': item.id, 'name': item.name, 'project_id': item.project,
             'preemptible': item.preemptible, 'action': item.action.value,
             'launched_at': model.time_text(item.launched_at),
             'ends_at': model.time_text(item.ends_at), 'host': item.host}
            for item in heapq.nsmallest(
                most, (item for item in found if item.id > marker),
                key=lambda item: item.id)]

    def find(self, server: str) -> nova.NovaServer | None:
        """Return a server as Nova shows it now, None if it is gone.

        :raises: rest.RequestFailed
        """
        return self._engine.source.nova.find(server)

    def rehearse(self, server: nova.NovaServer) -> str | None:
        """Begin a rehearsal, as Attempts.rehearse() does."""
        with self._engine.lock:
            return self._engine.rehearse(server)

    def room_by(self, server: str) -> datetime.datetime | None:
        """Say when run times that end will have made room, if known."""
        with self._engine.lock:
            known = self._engine.world
            waiting = known.waiting(server)
            if waiting is None or server in self._engine.attempts.under_way:
                return None
            return self._room_by(waiting)

    def _room_by(self, waiting: model.Waiting) -> datetime.datetime | None:
        known = self._engine.world
        if known.options.mode is not model.Mode.PREEMPT:
            return None
        at = choose.room_by(known.index, waiting, timeutils.utcnow(True))
        # A guest may take its time to shut down, and a host to end it.
        return at and at + datetime.timedelta(seconds=(
            self._conf.reaper.stop_timeout + self._conf.reaper.end_timeout))

    def dry_run(self, server: str) -> dict[str, Any] | None:
        """Say which servers would be ended, None until the room is known."""
        with self._engine.lock:
            known = self._engine.world
            waiting = known.waiting(server)
            if waiting is None or not known.views:
                return None
            # What was decided for the server already is planned in the index:
            # its room and its victims are taken there.
            current = self._engine.attempts.under_way.get(server)
            decision = (current.decision if current
                        else self._engine.observed.get(server))
            if decision is None:
                decision = known.planner.decide(
                    waiting, timeutils.utcnow(True), dataclasses.replace(
                        known.options, mode=model.Mode.PREEMPT))
            found = [known.index.slots.find(victim)
                     for victim in decision.victims]
        return decision.to_dict() | {'servers': [
            {'server': item.id, 'name': item.name, 'project_id': item.project,
             'host': item.host, 'priority': item.priority,
             'action': item.action.value, 'resources': dict(item.resources)}
            for item in found if item]}

    def probe(self, project: str, asked: Mapping[str, Any]) -> tuple[
            list[model.Decision], datetime.datetime | None]:
        """Decide for servers that are not created yet, by probe.Probe.

        :returns: as Probe.run(), and Probe.room_by
        :raises: probe.Refused; probe.NotKnown; rest.RequestFailed
        """
        if not self._engine.recovered:
            raise probe.NotKnown(1)
        probing = probe.Probe(
            self._engine, self._conf.reaper.pending_list_interval, project,
            asked, self._room_by)
        return probing.run(), probing.room_by

    def health(self) -> health.Health:
        """Return the health of the reaper."""
        why = self._why()
        if self._known:
            return self._known.guard.health(why)
        return health.Health(
            False, model.Mode.OBSERVE, model.Mode(self._conf.reaper.mode),
            None, [health.Check('cloud', 'failed' if why else 'degraded',
                                 why or 'not asked yet')])

    def as_of(self) -> datetime.datetime | None:
        """Say when the queue was last compared with Nova."""
        return self._engine.guard.listed_at


class Api:
    """The WSGI application below /v1; its caller has checked the token."""

    def __init__(self, conf: cfg.ConfigOpts, source: Shown,
                 book: journal.Journal) -> None:
        self._source = source
        self._book = book
        self._free = threading.BoundedSemaphore(AT_ONCE)
        self._probing = threading.BoundedSemaphore(AT_ONCE)
        # The time and the project of each probe of the last minute.
        self._probes: collections.deque[tuple[float, str]] = (
            collections.deque())
        self._lock = threading.Lock()
        self._enforcer = enforcer(conf)

    @dec.wsgify
    def __call__(self, request: webob.Request) -> webob.Response:
        """Answer a request, or return an error as JSON."""
        try:
            return _json(200, self._answer(request))
        except exc.HTTPException as error:
            answer = _error(error.code, error.title, error.detail or '')
            for name in {'Allow', 'Retry-After'} & set(error.headers):
                answer.headers[name] = error.headers[name]
            return answer
        except UnicodeDecodeError:
            return _error(400, 'Bad Request', 'Paths and queries are encoded '
                          'in UTF-8.')
        except Exception:
            LOG.exception('%s %s failed.', request.method, request.path)
            return _error(500, 'Internal Server Error',
                          'The log of nova-reaper says more.')

    def _answer(self, request: webob.Request) -> dict[str, Any]:
        path = request.path_info.rstrip('/')
        if path == '/v1/pause':
            return self._pause(request)
        rehearsed = _REHEARSAL.fullmatch(path)
        head, _, server = path.rpartition('/')
        handlers: dict[str, Callable[[webob.Request], dict[str, Any]]] = {
            '/v1/pending': self._list, '/v1/notices': self._notices,
            '/v1/probe': self._probe, '/v1/servers': self._servers,
            '/v1/history': self._history}
        handler = handlers.get(path)
        if rehearsed:
            handler = functools.partial(self._rehearse, uuid=rehearsed[1])
        elif head == '/v1/pending':
            handler = functools.partial(self._show, server=server)
        if handler is None:
            raise exc.HTTPNotFound('There is nothing at this path.')
        _check_method(request, *(
            ['POST'] if path == '/v1/probe' or rehearsed else ['GET', 'HEAD']))
        # A reaper that stands by has the same journal.
        if path != '/v1/history' and not self._source.health().active:
            # A reaper that stands by does not know who is under notice, and
            # must not say that nobody is.
            raise exc.HTTPServiceUnavailable(
                'This reaper stands by: ask the active one.')
        return handler(request)

    def _list(self, request: webob.Request) -> dict[str, Any]:
        query = _query(request, 'all_projects', 'project_id', 'server', 'name',
                       'state', 'reason', 'hindrance', 'sort_dir', 'limit',
                       'marker', repeated=('server',))
        servers = set(request.GET.getall('server'))
        if not all(map(shapes.is_id, servers)):
            raise exc.HTTPBadRequest('server is the ID of a server.')
        if len(servers) > MOST_NAMED:
            raise exc.HTTPBadRequest(
                f'server is given {MOST_NAMED} times at most.')
        name = query.get('name', '').casefold()
        state, reason, hindrance, sort_dir = (
            _word(query, key, words) for key, words in (
                ('state', answers.STATES), ('reason', model.Reason),
                ('hindrance', model.Hindrance), ('sort_dir', ('asc', 'desc'))))
        project = self._project(request, query, 'pending:list')
        everything = self._may(request, 'pending:show:host', project)
        details = self._may(request, 'pending:show:detail', project)
        entries = [
            entry for entry in self._source.entries()
            if project in (None, entry.waiting.project) and
            (not servers or entry.waiting.id in servers) and
            name in entry.waiting.name.casefold() and
            state in (None, entry.state) and
            reason in (None, getattr(entry.decision, 'reason', None)) and
            hindrance in (None, getattr(entry.decision, 'hindrance', None))]
        if sort_dir == 'desc':
            entries.reverse()
        limit = _limit(query)
        if 'marker' in query:
            at = next((number for number, entry in enumerate(entries)
                       if entry.waiting.id == query['marker']), None)
            if at is None:
                raise exc.HTTPBadRequest(
                    'The server of the marker is not on this list.')
            entries = entries[at + 1:]
        health = self._source.health()
        return _page(request, 'pending', 'server', limit, [
            entry.to_dict(everything, details)
            for entry in entries[:limit + 1]]) | {
                'mode': health.mode.value,
                'configured_mode': health.configured_mode.value,
                'as_of': model.time_text(self._source.as_of())}

    def _show(self, request: webob.Request, server: str) -> dict[str, Any]:
        query = _query(request, 'dry_run')
        entry = self._source.entry(server)
        if entry is None or not self._may(request, 'pending:show',
                                          entry.waiting.project):
            raise exc.HTTPNotFound(f'Server {server} does not wait.')
        project = entry.waiting.project
        body: dict[str, Any] = {'pending': entry.to_dict(
            self._may(request, 'pending:show:host', project),
            self._may(request, 'pending:show:detail', project))}
        body['pending']['room_by'] = model.time_text(
            self._source.room_by(server))
        if _boolean(query, 'dry_run'):
            if not self._may(request, 'pending:dry_run', project):
                raise exc.HTTPForbidden(
                    'dry_run is for administrators of the cloud.')
            body['dry_run'] = self._source.dry_run(server)
            if body['dry_run'] is None:
                raise exc.HTTPServiceUnavailable(
                    'The room on the hosts is not known yet. Ask again.')
        return body

    def _notices(self, request: webob.Request) -> dict[str, Any]:
        query = _query(request, 'all_projects', 'project_id')
        project = self._project(request, query, 'notices:list')
        # Owners see neither hosts nor servers of other projects.
        hidden = () if self._may(request, 'pending:show:host', project) else (
            'for', 'host')
        return {'notices': [
            {key: value for key, value in notice.items() if key not in hidden}
            for notice in self._source.notices()
            if project in (None, notice['project_id'])]}

    def _probe(self, request: webob.Request) -> dict[str, Any]:
        _query(request)
        project = _context(request).project_id
        if project is None or not self._may(request, 'probe:ask', project):
            raise exc.HTTPForbidden(
                'This needs the role reader in a project.')
        asked = _asked(request.body)
        if not self._probing.acquire(blocking=False):
            raise _later('Others ask as well.', 1)
        try:
            self._count(project)
            found = self._source.probe(project, asked)
        except probe.Refused as error:
            raise exc.HTTPBadRequest(str(error)) from None
        except probe.NotKnown as error:
            raise _later(str(error), error.seconds) from None
        except rest.RequestFailed as error:
            LOG.warning('A probe got no answer: %s', error)
            raise _later('Nova or Placement does not answer.', 1) from None
        finally:
            self._probing.release()
        return {'probe': {'count': asked['count']} | answers.probed(
            *found, self._may(request, 'pending:show:detail', project))}

    def _count(self, project: str) -> None:
        """Count a probe against the limits of its project and of the cloud."""
        with self._lock:
            now = time.monotonic()
            while self._probes and self._probes[0][0] <= now - MINUTE:
                self._probes.popleft()
            own = [at for at, other in self._probes if other == project]
            if len(own) < PROBES and len(self._probes) < PROBES_OF_ALL:
                self._probes.append((now, project))
                return
            first = own[0] if len(own) >= PROBES else self._probes[0][0]
        left = math.ceil(first + MINUTE - now)
        if len(own) >= PROBES:
            raise _later(f'A project may ask {PROBES} times a minute.', left,
                         exc.HTTPTooManyRequests)
        raise _later('Others ask as well.', left)

    def _servers(self, request: webob.Request) -> dict[str, Any]:
        query = _query(request, 'all_projects', 'project_id', 'limit',
                       'marker')
        project, limit = self._project(
            request, query, 'servers:list'), _limit(query)
        if 'marker' in query and not shapes.is_id(query['marker']):
            raise exc.HTTPBadRequest('marker is the ID of a server.')
        found = self._source.servers(project, query.get('marker', ''),
                                     limit + 1)
        if not self._may(request, 'pending:show:host', project):
            for item in found:
                del item['host']
        return _page(request, 'servers', 'server', limit, found)

    def _rehearse(self, request: webob.Request, uuid: str) -> dict[str, Any]:
        _query(request)
        try:
            server = (self._source.find(uuid)
                      if shapes.is_id(uuid) else None)
        except rest.RequestFailed:
            raise exc.HTTPServiceUnavailable(
                'Nova does not answer. Ask again.') from None
        if server is None or not self._may(request, 'servers:rehearse',
                                           server.project):
            raise exc.HTTPNotFound(
                f'There is no server {uuid} in your project, or you lack the '
                'role member there.')
        refusal = self._source.rehearse(server)
        if refusal:
            raise exc.HTTPConflict(refusal)
        return {'rehearsal': {'server': server.id}}

    def _history(self, request: webob.Request) -> dict[str, Any]:
        query = _query(request, 'all_projects', *KEYS)
        project = self._project(request, query, 'history:list',
                                'history:list:all_projects')
        everything = self._may(request, 'history:show:host', project)
        limit = _limit(query)
        try:
            wanted = history_query(query | (
                {'project_id': project} if project else {}), limit + 1)
        except ValueError as error:
            raise exc.HTTPBadRequest(str(error)) from None
        found = self._ask(lambda: self._book.store.find(**wanted))
        return _page(request, 'history', 'id', limit, [
            item.to_dict(everything) for item in found])

    def _pause(self, request: webob.Request) -> dict[str, Any]:
        kinds = {'PUT': journal.Kind.PAUSE, 'DELETE': journal.Kind.RESUME}
        _check_method(request, 'GET', 'HEAD', *kinds)
        _query(request)
        kind = kinds.get(request.method)
        if not self._may(request, 'pause:set' if kind else 'pause:show', None):
            raise exc.HTTPForbidden('This is for administrators of the cloud.')
        if kind is None:
            return {'pause': pause_to_dict(self._ask(self._book.store.switch))}
        by = _context(request).user_id or ''
        why = _reason(request.body if request.method == 'PUT' else b'')
        return {'pause': pause_to_dict(self._ask(
            lambda: self._book.switch(kind, by, why)))}

    def _ask(self, call: Callable[[], T]) -> T:
        """Return the answer of the database of the journal."""
        if not self._free.acquire(timeout=PATIENCE):
            raise exc.HTTPServiceUnavailable(
                'The database of the journal is slow. Ask again.')
        try:
            return call()
        except journal.NoSuchMarker:
            raise exc.HTTPBadRequest(
                'The record of the marker is not there.') from None
        except Exception as error:
            LOG.warning('The journal cannot be asked: %s',
                        type(error).__name__)
            raise exc.HTTPServiceUnavailable(
                'The database of the journal does not answer. Ask '
                'again.') from None
        finally:
            self._free.release()

    def _project(self, request: webob.Request, query: dict[str, str],
                 rule: str, everywhere: str = 'pending:list:all_projects'
                 ) -> str | None:
        """Return the project whose servers are asked for, None for all.

        :param rule: who may ask for one project
        :param everywhere: the rule of those who may ask for all
        """
        own: str | None = _context(request).project_id or None
        project = query.get('project_id', own)
        if _boolean(query, 'all_projects') or project is None:
            if not self._may(request, everywhere, own):
                raise exc.HTTPForbidden(
                    'Servers of all projects are for administrators.')
            return query.get('project_id')
        if not self._may(request, rule, project):
            raise exc.HTTPForbidden(
                'This needs the role reader in the project.')
        return project

    def _may(self, request: webob.Request, rule: str, project: str | None
             ) -> bool:
        return bool(self._enforcer.authorize(
            rule, {'project_id': project}, _context(request)))


def _context(request: webob.Request) -> oslo_context.RequestContext:
    return oslo_context.RequestContext.from_environ(
        request.environ, overwrite=False)


def _check_method(request: webob.Request, *known: str) -> None:
    if request.method not in known:
        raise exc.HTTPMethodNotAllowed(
            f'Only {", ".join(known)} can be used here.',
            headers=[('Allow', ', '.join(known))])


def _query(request: webob.Request, *known: str, repeated: Sequence[str] = ()
           ) -> dict[str, str]:
    query = dict(request.GET)
    for key in query:
        if key not in known:
            raise exc.HTTPBadRequest(
                f'There is no query key "{key[:40]}" here; ' + (
                    f'there are {", ".join(known)}.' if known
                    else 'this path has none.'))
        if key not in repeated and len(request.GET.getall(key)) > 1:
            raise exc.HTTPBadRequest(f'{key} is given once at most.')
    return query


def _page(request: webob.Request, key: str, marker: str, limit: int,
          items: list[dict[str, Any]]) -> dict[str, Any]:
    """Return items under a key, with a link to the next if there are more.

    :param marker: the key of an item that has the marker
    """
    body: dict[str, Any] = {key: items[:limit]}
    if len(items) > limit:
        query = request.GET.copy()
        query['marker'] = items[limit - 1][marker]
        body[f'{key}_links'] = [{
            'rel': 'next', 'href': request.path_url + '?' +
            parse.urlencode(list(query.items()))}]
    return body


def _object(body: bytes) -> dict[str, Any]:
    """Read the JSON object of a body, {} if there is no body."""
    try:
        given = json.loads(body or b'{}')
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise exc.HTTPBadRequest('The body is not a JSON object.')
    return given


def is_reason(text: str) -> bool:
    """Return whether a text may be the reason of a pause."""
    return len(text) <= LONGEST_REASON and text.isprintable()


def _reason(body: bytes) -> str:
    """Read the reason of a pause, '' if no reason is given."""
    given = _object(body)
    why = given.get('reason', '')
    if not isinstance(why, str) or not is_reason(why) or (
            set(given) - {'reason'}):
        raise exc.HTTPBadRequest(
            'The body is {"reason": "TEXT"} with at most '
            f'{LONGEST_REASON} printable characters of text.')
    return why


def _asked(body: bytes) -> dict[str, Any]:
    """Read what a probe asks for, with the count."""
    asked = {'count': 1} | _object(body)
    texts = [asked.get(key, '') for key in ('flavor', 'image', 'zone')]
    count, most = asked['count'], probe.MOST
    if set(asked) - {'flavor', 'image', 'zone', 'count'} or not texts[0] or (
            not all(isinstance(text, str) and len(text) <= LONGEST_REASON
                    for text in texts)) or (
                        texts[1] and not shapes.is_id(texts[1])) or (
                            type(count) is not int or not 1 <= count <= most):
        raise exc.HTTPBadRequest(
            'The body is {"flavor": "ID OR NAME", "image": "ID", "zone": '
            f'"NAME", "count": NUMBER}} with a number from 1 to {most}; all '
            'but the flavor may be left out.')
    return asked


def _boolean(query: dict[str, str], key: str) -> bool:
    value = query.get(key, 'false').lower()
    if value not in ('true', 'false', '1', '0'):
        raise exc.HTTPBadRequest(f'{key} is true or false.')
    return value in ('true', '1')


def _limit(query: dict[str, str]) -> int:
    value = query.get('limit', str(PAGE))
    if not (value.isascii() and value.isdecimal()) or (
            len(value) > len(str(PAGE)) or not 1 <= int(value) <= PAGE):
        raise exc.HTTPBadRequest(f'limit is a number from 1 to {PAGE}.')
    return int(value)


def _word(query: dict[str, str], key: str, words: Iterable[str]
          ) -> str | None:
    if key in query and query[key] not in list(words):
        raise exc.HTTPBadRequest(f'{key} is one of {", ".join(words)}.')
    return query.get(key)


def _later(why: str, seconds: int, kind: type[exc.HTTPException] =
           exc.HTTPServiceUnavailable) -> exc.HTTPException:
    """Make an error that lasts for some seconds."""
    return kind(f'{why} Ask again in {seconds} s.',
                headers=[('Retry-After', str(seconds))])


def _json(status: int, body: dict[str, Any]) -> webob.Response:
    return webob.Response(
        status=status, content_type=_JSON, charset='utf-8',
        text=json.dumps(body))


def _error(code: int, title: str, message: str) -> webob.Response:
    return _json(code, {'error': {'code': code, 'title': title,
                                  'message': message}})


def _behind_keystone(request: webob.Request, api: WsgiApp) -> webob.Response:
    """Answer a request, or return an error if no token can be checked.

    Below the middleware each error is an answer already.
    """
    try:
        answer = request.get_response(api)
    except Exception:
        LOG.exception('The token of a request cannot be checked.')
        answer = webob.Response(status=503)
    if answer.status_code == 503 and answer.content_type != _JSON:
        return _error(503, 'Service Unavailable',
                      'Keystone cannot check the token. Ask again.')
    return answer


def application(conf: cfg.ConfigOpts, source: Shown,
                meters: health.Metrics, book: journal.Journal) -> WsgiApp:
    """Make the whole application, with Keystone in front of /v1."""
    api = auth_token.AuthProtocol(
        Api(conf, source, book), {'oslo_config_config': conf})

    @dec.wsgify
    def root(request: webob.Request) -> webob.Response | WsgiApp:
        # WebOb refuses to decode a path that is not UTF-8.
        path = request.environ.get('PATH_INFO', '').rstrip('/')
        if path.startswith('/v1/'):
            return _behind_keystone(request, api)
        if path == '/healthz':
            health = source.health()
            return _json(503 if health.status == 'failed' else 200,
                         health.to_dict())
        if path == '/metrics':
            return webob.Response(body=meters.text(), headers={
                'Content-Type': prometheus_client.CONTENT_TYPE_LATEST})
        if path in ('', '/v1'):
            version = {'id': 'v1', 'status': 'CURRENT', 'links': [
                {'rel': 'self', 'href': request.host_url + '/v1/'}]}
            return _json(200, {'version': version} if path else
                         {'versions': [version]})
        return _error(404, 'Not Found', 'There is nothing at this path.')

    # Behind a proxy the links are those of the proxy.
    application: WsgiApp = http_proxy_to_wsgi.HTTPProxyToWSGI(root, conf)
    return application


class Server:
    """Serves an application in threads of its own.

    :raises: OSError if the port is in use; ValueError if the certificate or
        its key cannot be read
    """

    def __init__(self, conf: cfg.ConfigOpts, app: WsgiApp) -> None:
        group = conf.http
        self._server = wsgi.Server(
            (group.listen, group.port), app, numthreads=group.threads,
            server_name='nova-reaper')
        self._server.max_request_header_size = LONGEST
        self._server.max_request_body_size = LONGEST
        if group.certificate:
            try:
                self._server.ssl_adapter = builtin.BuiltinSSLAdapter(
                    group.certificate, group.private_key)
            except OSError as error:
                raise ValueError(
                    f'[http] certificate {group.certificate}, private_key '
                    f'{group.private_key}: {error.strerror or error}'
                ) from error
        self._thread = threading.Thread(
            target=self._server.serve, name='http', daemon=True)

    def start(self) -> int:
        """Listen, and return the port."""
        self._server.prepare()
        self._thread.start()
        port: int = self._server.bind_addr[1]
        return port

    def stop(self) -> None:
        """Answer what is being asked, and close."""
        self._server.stop()
        self._thread.join(5)
