# SPDX-License-Identifier: Apache-2.0

"""Keeps the journal of what was done to which server, for whom, and why.

Store keeps the records in a database, which ``[database] connection`` names.
Each of its methods is one short transaction, and raises what the database
raises. The thread of the engine calls none of them.

A thread of the journal writes the records, and two others tell each of them on
a bus and by a web hook: a database or a bus that is slow or gone holds up
neither the engine nor the end of a server. A record that cannot be written
waits in memory until the database is back.

A thread that acts can wait for the record of what it is about to do. A process
that is killed then has ended no server of which nothing is known. Nobody waits
while the database does not keep up. A reaper that is killed between a deed and
its record leaves a notice or a build open, of which no record says the result;
so does a victim that had not ended when its notice was withdrawn. close() asks
Nova for the result.

What a reaper has done bears on what it does: on caps by the hour, the
protection of servers that came back, exclusions, misses, back-offs and the
fair share. The next reaper, after a restart or on another machine, reads that
here.
"""

import base64
import collections
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
import enum
import hmac
import itertools
import json
import os
import queue
import socket
import threading
import time
from typing import Any
import uuid

from alembic import command
from alembic import config as alembic_config
from oslo_config import cfg
from oslo_db import exception as db_exception
from oslo_db.sqlalchemy import enginefacade
from oslo_log import log
import oslo_messaging
from oslo_utils import timeutils
from oslo_utils import uuidutils
import requests
import sqlalchemy as sa

from nova_reaper.clients import nova
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper import conf as reaper_conf

LOG = log.getLogger(__name__)
# The columns, as the migrations make them. The number is the order of the
# records; no answer has it: owners could count by it what is done to others.
JOURNAL = sa.table('journal', sa.column('at', sa.DateTime()), *map(sa.column, (
    'number', 'id', 'kind', 'server_id', 'project_id', 'for_id',
    'for_project_id', 'host', 'result', 'detail')))
ROWS = JOURNAL.c
# Characters of a detail: the column of MySQL takes 65,535 bytes.
LONGEST_DETAIL = 16000
# A database that hangs keeps no thread for longer than some seconds.
TIMEOUTS = {
    'mysql': 'connect_timeout=5&read_timeout=10&write_timeout=10',
    'postgresql': 'connect_timeout=5&tcp_user_timeout=10000&'
                  'options=-c%20statement_timeout%3D10000',
    'sqlite': 'timeout=5'}
# Alembic keeps the migration under way in a module, for all threads.
_UPGRADING = threading.Lock()
# Most records that wait to be written; more are lost, except a pause.
WAITING = 10000
# Most records of one transaction.
BATCH = 100
# Seconds that a thread waits for its record.
PATIENCE = 1.0
# Seconds between two looks whether the reaper is to pause.
POLL = 2.0
# Most seconds between two tries of a database that fails.
LONGEST = 30.0
# Seconds between two purges.
PURGE = 3600.0
# Errors of a single record, and not of the database.
UNFIT = (db_exception.DBDataError, db_exception.DBInvalidUnicodeParameter,
         ValueError, TypeError)
# Seconds that a post to the web hook may take.
HOOK_TIMEOUT = 5
# Seconds for which a record is posted again, and the longest pause between.
RETRY_FOR = 900.0
LONGEST_PAUSE = 60.0
# How often a notification is sent again; None would be for ever.
RETRIES = 2
# Most records that wait to be told; more are dropped.
UNTOLD = 1000
# Seconds that the end of the process waits for records and notifications.
AT_THE_END = 3.0
HOUR = 3600
# What a project was given counts next to nothing after so many half-lives.
HALF_LIVES = 4
# The number of builds that are enough for the fair share.
MOST = 10000
# The result of an older notice or build is written, or never will be.
OPEN_FOR = datetime.timedelta(days=7)
# A younger notice or build may be under way, or its result about to be
# written.
YOUNG = datetime.timedelta(seconds=60)


class Kind(enum.StrEnum):
    """What a record says was done."""

    NOTICE = 'notice'          # to a preemptible server
    WITHDRAWAL = 'withdrawal'  # of a notice: the server lives on
    END = 'end'                # of a preemptible server
    BUILD = 'build'            # of a server that waited
    RETURN = 'return'          # of a server that was shelved for another
    GIVEN_UP = 'given_up'      # a server that waited was set to ERROR
    PAUSE = 'pause'            # of the reaper, by an administrator
    RESUME = 'resume'


#: The result of a build or a return before Nova is asked; a second record then
#: says how the build ended.
ASKED = 'asked'
#: The result of an end that the reaper did not bring about.
LEFT = 'left'
SWITCHES = (Kind.PAUSE, Kind.RESUME)
# The namespace of the IDs of pauses and resumes. The ID of each is made of the
# ID of the pause or resume before.
NAMESPACE = uuid.UUID('5f0c9a52-7b1e-4d3a-9c86-2e4f1d7a0b35')
# By kind: the result with which a record is open, and the kinds of the records
# that say what became of the server. After a withdrawal the host may end the
# server yet; a later notice tells that the host did not.
OPEN = {Kind.NOTICE: ('', (Kind.WITHDRAWAL, Kind.END)),
        Kind.WITHDRAWAL: (model.Result.STUCK.value, (
            Kind.NOTICE, Kind.WITHDRAWAL, Kind.END)),
        Kind.BUILD: (ASKED, (Kind.BUILD,)),
        Kind.RETURN: (ASKED, (Kind.RETURN,))}


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One record.

    :ivar server: ID of the server to which it was done
    :ivar waiting: ID of the server for which it was done, which is the same
        for a server that waited itself
    :ivar waiting_project: '' if it is not known
    :ivar result: of an end ``delete``, ``shelve`` or ``left``; of a build
        ``asked`` and then how it ended; of a server that was given up why
    :ivar detail: more, as JSON has it; ``why`` is a sentence. For
        administrators.
    """

    kind: Kind
    server: str = ''
    project: str = ''
    name: str = ''
    waiting: str = ''
    waiting_project: str = ''
    host: str = ''
    result: str = ''
    detail: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    at: datetime.datetime = dataclasses.field(
        default_factory=lambda: timeutils.utcnow(True))
    id: str = dataclasses.field(default_factory=uuidutils.generate_uuid)

    def to_dict(self, everything: bool) -> dict[str, Any]:
        """Return the record as /v1/history has it.

        :param everything: whether to name hosts and servers of other
            projects; a project's own reader does not see them
        """
        cause = self.detail.get('cause')
        alone = cause not in (None, model.Cause.ROOM)
        own = self.waiting_project == self.project
        answer: dict[str, Any] = {
            'id': self.id,
            'at': model.time_text(self.at),
            'kind': self.kind.value, 'server': self.server or None,
            'name': self.name or None, 'project_id': self.project or None,
            'action': self.detail.get('action'),
            'result': self.result or None,
            'terminate_at': self.detail.get('terminate_at'), 'cause': cause,
            'for': None if alone else (
                self.waiting if everything or own else '') or None,
            'for_own_project': own if self.waiting_project and not alone
            else None,
            'message': self._message()}
        if everything:
            answer |= {'for_project_id': None if alone
                       else self.waiting_project or None,
                       'host': self.host or None,
                       'detail': dict(self.detail)}
        return answer

    def _message(self) -> str | None:
        """Say why the server had notice, None if it had no notice."""
        cause = self.detail.get('cause')
        if cause in (model.Cause.RUN_TIME, model.Cause.REHEARSAL):
            return model.Cause(cause).message
        if self.waiting in ('', self.server):
            return None
        if self.waiting_project in ('', self.project):
            return model.Cause.ROOM.message
        return 'A server of another project needs the room.'


class NoSuchMarker(Exception):
    """The record at which a list is to go on is not there."""


def _make_file(path: str) -> None:
    """Make the file of a SQLite database, unless the file is there.

    The first command may be run by root: the owner of the directory, who runs
    the service, has to be able to write to the file.
    """
    folder = os.path.dirname(path) or '.'
    os.makedirs(folder, 0o750, exist_ok=True)
    with contextlib.suppress(FileExistsError), open(path, 'x') as file:
        if not os.geteuid():
            owner = os.stat(folder)
            os.chown(file.fileno(), owner.st_uid, owner.st_gid)


class Store:
    """Adds and finds records."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        group = conf.database
        self._url = sa.make_url(group.connection)
        self._context = enginefacade.transaction_context()
        backend = self._url.get_backend_name()
        options = {name: value for name, value in group.items()
                   if name in ('connection', 'max_pool_size', 'max_overflow',
                               'connection_recycle_time', 'mysql_sql_mode',
                               'connection_debug')}
        self._context.configure(
            **options, max_retries=0,
            pool_timeout=None if backend == 'sqlite' else 5,
            connection_parameters=(group.connection_parameters or
                                   TIMEOUTS.get(backend, '')))
        self._ready = False

    @property
    def is_shared(self) -> bool:
        """Whether other processes can have the same journal."""
        return self._url.get_backend_name() != 'sqlite' or not (
            self._url.database or ':memory:').startswith(':memory:')

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sa.Connection]:
        """Connect to the database, and bring its tables up to date."""
        try:
            if not self._ready:
                self._upgrade()
            with self._context.writer.get_engine().begin() as connection:
                yield connection
        except NoSuchMarker:
            raise
        except Exception:
            # The next connection may be to another, empty database.
            self._ready = False
            raise

    def _upgrade(self) -> None:
        with _UPGRADING:
            if self._ready:
                return
            name = self._url.database or ''
            if self._url.get_backend_name() == 'sqlite' and (
                    name and not name.startswith((':memory:', 'file:'))):
                _make_file(name)
            settings = alembic_config.Config()
            settings.set_main_option('script_location', os.path.join(
                os.path.dirname(__file__), 'migrations'))
            with self._context.writer.get_engine().begin() as connection:
                settings.attributes['connection'] = connection
                command.upgrade(settings, 'head')
            self._ready = True

    def add(self, records: Sequence[Record]) -> bool:
        """Add the records that the database does not have yet.

        A caller that got no answer can add the same records again.

        :returns: whether a record was added
        """
        new: list[dict[str, Any]] = []
        # If a transaction of SQLite reads before it writes, SQLite does not
        # wait until another transaction has written.
        with self._connection() as connection:
            there = set(connection.scalars(sa.select(ROWS.id).where(
                ROWS.id.in_([record.id for record in records]))))
            for record in records:
                if record.id in there:
                    continue
                waiting = record.waiting_project
                if record.waiting and not waiting:
                    # The withdrawal of a notice that another reaper gave
                    # lacks the project: the record of the notice has it.
                    notices = [row['for_project_id'] for row in new
                               if row['server_id'] == record.server and
                               row['for_id'] == record.waiting]
                    waiting = notices[-1] if notices else connection.scalar(
                        sa.select(ROWS.for_project_id).where(
                            ROWS.server_id == record.server,
                            ROWS.for_id == record.waiting)
                        .order_by(ROWS.number.desc()).limit(1)) or ''
                new.append({
                    'id': record.id, 'kind': record.kind.value,
                    'at': _naive(record.at), 'server_id': record.server[:36],
                    'project_id': record.project[:64],
                    'for_id': record.waiting[:36],
                    'for_project_id': waiting[:64], 'host': record.host[:255],
                    'result': record.result[:32], 'detail': _text(record)})
        if new:
            with self._connection() as connection:
                connection.execute(JOURNAL.insert(), new)
        return bool(new)

    def find(self, server: str | None = None, project: str | None = None,
             kinds: Collection[str] = (),
             since: datetime.datetime | None = None,
             until: datetime.datetime | None = None, limit: int = 1000,
             marker: str | None = None) -> list[Record]:
        """Return records, the newest first.

        :param server: ID of the server to which, or for which, it was done
        :param project: ID of the project of the server to which it was done
        :param kinds: all kinds if it is empty
        :param marker: ID of the record after which to go on
        :raises: NoSuchMarker
        """
        wanted = sa.select(JOURNAL).order_by(ROWS.number.desc()).limit(limit)
        if server is not None:
            # No project learns for which servers of others it was done.
            wanted = wanted.where(sa.or_(
                ROWS.server_id == server, sa.and_(
                    ROWS.for_id == server, sa.true() if project is None
                    else ROWS.for_project_id == project)))
        if project is not None:
            wanted = wanted.where(ROWS.project_id == project)
        if kinds:
            wanted = wanted.where(ROWS.kind.in_([str(kind) for kind in kinds]))
        if since is not None:
            wanted = wanted.where(ROWS.at >= _naive(since))
        if until is not None:
            wanted = wanted.where(ROWS.at < _naive(until))
        with self._connection() as connection:
            if marker is not None:
                at = connection.execute(sa.select(
                    ROWS.number, ROWS.project_id).where(
                        ROWS.id == marker)).first()
                if at is None or project not in (None, at.project_id):
                    raise NoSuchMarker(marker)
                wanted = wanted.where(ROWS.number < at.number)
            return [_record(row) for row in connection.execute(wanted)]

    def switch(self) -> Record | None:
        """Return the last pause or resume, None if there was none."""
        found = self.find(kinds=SWITCHES, limit=1)
        return found[0] if found else None

    def open(self, since: datetime.datetime, until: datetime.datetime
             ) -> list[Record]:
        """Return records of a time that no later record closes.

        They are notices, builds, returns, and withdrawals that are STUCK.
        """
        then = JOURNAL.alias()
        cases = [sa.and_(
            ROWS.kind == kind.value, ROWS.result == result,
            ~sa.exists().where(
                then.c.server_id == ROWS.server_id,
                then.c.number > ROWS.number,
                sa.or_(then.c.for_id == ROWS.for_id,
                       ROWS.kind == Kind.WITHDRAWAL.value),
                then.c.kind.in_([item.value for item in closing])))
            for kind, (result, closing) in OPEN.items()]
        with self._connection() as connection:
            return [_record(row) for row in connection.execute(
                sa.select(JOURNAL).where(
                    ROWS.kind.in_([kind.value for kind in OPEN]),
                    ROWS.at >= _naive(since), ROWS.at < _naive(until),
                    sa.or_(*cases)).order_by(ROWS.number).limit(1000))]

    def purge(self, before: datetime.datetime, limit: int) -> int:
        """Delete the oldest records, and return how many were deleted.

        Pauses stay: the last of them is in force.
        """
        with self._connection() as connection:
            old = list(connection.scalars(sa.select(ROWS.number).where(
                ROWS.at < _naive(before),
                ROWS.kind.not_in([kind.value for kind in SWITCHES]))
                .order_by(ROWS.at).limit(limit)))
        if old:
            with self._connection() as connection:
                connection.execute(JOURNAL.delete().where(
                    ROWS.number.in_(old)))
        return len(old)


def _naive(time: datetime.datetime) -> datetime.datetime:
    return time.astimezone(datetime.UTC).replace(tzinfo=None)


def _text(record: Record) -> str:
    """Write detail and name as JSON that any character set can keep."""
    detail = dict(record.detail, name=record.name)
    text = json.dumps(detail, default=str)
    if len(text) > LONGEST_DETAIL:
        detail = {key: value for key, value in detail.items()
                  if len(json.dumps(value, default=str)) <= 1000}
        text = json.dumps(detail | {'shortened': True}, default=str)
    return text if len(text) <= LONGEST_DETAIL else '{"shortened": true}'


def _record(row: sa.Row[tuple[object, ...]]) -> Record:
    detail = json.loads(row.detail)
    return Record(
        Kind(row.kind), row.server_id, row.project_id,
        detail.pop('name', ''), row.for_id, row.for_project_id, row.host,
        row.result, detail, row.at.replace(tzinfo=datetime.UTC), row.id)


class _Outbox:
    """Delivers records in a thread of its own, one after the other.

    :param name: the name of the thread
    :param deliver: is called with a record as JSON has it; raises nothing
    """

    def __init__(self, name: str, deliver: Callable[[dict[str, Any]], None]
                 ) -> None:
        self._deliver = deliver
        self._payloads: queue.Queue[dict[str, Any]] = queue.Queue(UNTOLD)
        self._lock = threading.Lock()
        # The process does not wait for a daemon to end.
        self._thread = threading.Thread(target=self._run, name=name,
                                        daemon=True)

    def put(self, payload: dict[str, Any]) -> None:
        """Have a record delivered, or dropped if too many wait already."""
        with self._lock:
            if self._thread.ident is None:
                self._thread.start()
        try:
            self._payloads.put_nowait(payload)
        except queue.Full:
            LOG.warning('%s: %s is not sent: %d others wait to be.',
                        self._thread.name, _named(payload), UNTOLD)

    def _run(self) -> None:
        while True:
            self._deliver(self._payloads.get())
            self._payloads.task_done()

    def flush(self, timeout: float) -> int:
        """Wait so many seconds at most; return how many are not delivered."""
        done = self._payloads.all_tasks_done
        with done:
            done.wait_for(lambda: not self._payloads.unfinished_tasks, timeout)
            return self._payloads.unfinished_tasks


def _named(payload: dict[str, Any]) -> str:
    return f'reaper.{payload["kind"]} of server {payload["server"]}'


class Announcer:
    """Tells each record of the journal; failures are logged only.

    Notifications go where [oslo_messaging_notifications] says, nowhere unless
    a driver is set there.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._conf = conf
        self._notifier: Any = None
        self._bus = _Outbox('notifications', self._send)
        self._hook = _Outbox('web hook', self._post_until_done)

    def tell(self, told: Record) -> None:
        """Have a record told; nobody waits for it."""
        payload = told.to_dict(True)
        self._bus.put(payload)
        if self._conf.reaper.hook_url:
            self._hook.put(payload)

    def flush(self) -> None:
        """Wait a moment until all records are told; the rest is dropped."""
        end = time.monotonic() + AT_THE_END
        left = sum(box.flush(max(0.0, end - time.monotonic()))
                   for box in (self._bus, self._hook))
        if left:
            LOG.warning('%d notifications are not sent: the service ends.',
                        left)

    def _send(self, payload: dict[str, Any]) -> None:
        event_type = f'reaper.{payload["kind"]}'
        try:
            if self._notifier is None:
                transport = oslo_messaging.get_notification_transport(
                    self._conf, url=self._conf.notifications.transport_url)
                self._notifier = oslo_messaging.Notifier(
                    transport, retry=RETRIES,
                    publisher_id=f'nova-reaper:{socket.gethostname()}')
            self._notifier.info({}, event_type, payload)
        except Exception as error:
            LOG.warning('%s was not sent: %s', event_type,
                        type(error).__name__)

    def _post_until_done(self, payload: dict[str, Any]) -> None:
        """Post a record until a post succeeds, or no post can succeed."""
        end, pause = time.monotonic() + RETRY_FOR, 1.0
        while self._conf.reaper.hook_url:
            why, again = self._post(payload)
            if not why:
                return
            if not again or time.monotonic() + pause > end:
                break
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        else:
            why = 'it was turned off'
        LOG.warning('The web hook was not told of %s: %s', _named(payload),
                    why)

    def _post(self, payload: dict[str, Any]) -> tuple[str, bool]:
        """Post once; return why it failed, '' if not, and whether to retry."""
        body = json.dumps(payload).encode()
        try:
            # The body of the answer, which may be endless, is not read.
            with requests.post(
                    self._conf.reaper.hook_url, data=body, stream=True,
                    timeout=HOOK_TIMEOUT, allow_redirects=False, headers={
                        'content-type': 'application/json'} | signed(
                            payload['id'], int(time.time()), body,
                            self._conf.reaper.hook_secret)) as answer:
                status = answer.status_code
        except Exception as error:
            # The text of the error could hold the URL, and so a secret.
            return type(error).__name__, True
        if status < 300:
            return '', False
        return f'HTTP {status}', status >= 500 or status in (408, 425, 429)


def signed(record: str, at: int, body: bytes, secret: str | None
           ) -> dict[str, str]:
    """Make headers of a web hook, by the Standard Webhooks specification.

    A receiver that sees the same ID again has the record already. Nobody else
    can send an old record again to a receiver that checks the time.

    :param record: ID of the record
    :param at: the time in seconds
    :param secret: [reaper] hook_secret
    """
    headers = {'webhook-id': record, 'webhook-timestamp': str(at)}
    if secret:
        code = hmac.digest(reaper_conf.hook_key(secret),
                           f'{record}.{at}.'.encode() + body, 'sha256')
        headers['webhook-signature'] = f'v1,{base64.b64encode(code).decode()}'
    return headers


class Journal:
    """Writes records, and knows whether the reaper is to pause.

    :param tell: is told of each record, and does not wait; an Announcer tells
        it by default
    :ivar error: why the database could not be used last, None if it could
    :ivar lost: how many records were not written, and never will be
    :ivar asked: set while it is known whether the reaper is to pause
    """

    def __init__(self, conf: cfg.ConfigOpts,
                 tell: Callable[[Record], None] | None = None) -> None:
        self._conf = conf.journal
        self.store = Store(conf)
        self._announcer = Announcer(conf)
        self._tell = tell or self._announcer.tell
        self._rows: collections.deque[Record] = collections.deque()
        self._changed = threading.Condition()
        self._written = 0
        self._late = False
        self._size = BATCH
        self._failures = 0
        self._look_at = self._purge_at = 0.0
        self._switch: Record | None = None
        self._thread: threading.Thread | None = None
        self.error: str | None = None
        self.lost = 0
        self.asked = threading.Event()

    def start(self) -> None:
        """Begin to write, in a thread that the process does not wait for."""
        self._thread = threading.Thread(target=self._run, name='journal',
                                        daemon=True)
        self._thread.start()

    @property
    def pause(self) -> Record | None:
        """Return the pause that is in force, None without a pause."""
        switch = self._switch
        return switch if switch and switch.kind is Kind.PAUSE else None

    @property
    def waiting(self) -> int:
        """Count the records that wait to be written."""
        return len(self._rows)

    def write(self, *records: Record, wait: bool = False) -> None:
        """Have records written, and others told of them.

        :param wait: whether to wait a moment until they are written. A thread
            that owns the engine does not.
        """
        for record in records:
            self._tell(record)
        with self._changed:
            for record in records:
                if (len(self._rows) >= WAITING and
                        record.kind is not Kind.PAUSE):
                    self._lose(record, f'{WAITING} others wait to be')
                else:
                    self._rows.append(record)
            last = self._written + len(self._rows)
            self._changed.notify_all()
            if not (wait and self._thread) or self._late or self.error:
                return
            if not self._changed.wait_for(lambda: self._written >= last,
                                          PATIENCE):
                # No other thread waits until all records are written.
                self._late = True

    def switch(self, kind: Kind, by: str, why: str) -> Record:
        """Pause or resume, here at once; return the record that is in force.

        Others are told of a change.

        :raises: what the database does, and TimeoutError if the record of an
            earlier pause is not written yet; nothing has changed then
        """
        with self._changed:
            if not self._changed.wait_for(lambda: all(
                    row.kind is not Kind.PAUSE for row in self._rows),
                    PATIENCE):
                # As soon as the record of that pause is written, the record
                # would end the resume.
                raise TimeoutError('The last pause is not written yet.')
        before = self.store.switch()
        if (before.kind if before else Kind.RESUME) is not kind:
            # Of several clients that follow the same record, the database
            # takes the record of a single client.
            record = Record(kind, detail={'by': by, 'why': why}, id=str(
                uuid.uuid5(NAMESPACE, before.id if before else '')))
            if self._add(record):
                self._tell(record)
                LOG.warning('%s by %s: %s', kind.value.capitalize(), by, why)
                before = record
            else:
                before = self.store.switch()
        self._switch = before
        return before or Record(kind)

    def _add(self, record: Record) -> bool:
        """Add a record, unless another client has added it; return whether."""
        try:
            return self.store.add([record])
        except db_exception.DBDuplicateEntry:
            return False

    def pause_at_once(self, by: str) -> None:
        """Pause now; the record is written once the database can be used."""
        if self.pause is None:
            record = Record(Kind.PAUSE, detail={'by': by, 'why': ''})
            with self._changed:
                # The thread that writes sees both at once.
                self._switch = record
                self.write(record)
            LOG.warning('Paused by %s.', by)

    def flush(self, timeout: float) -> int:
        """Wait so many seconds at most; return how many are not written."""
        with self._changed:
            self._changed.wait_for(lambda: not self._rows, timeout)
            return len(self._rows)

    def leave(self) -> None:
        """Wait a moment until all records are written and told.

        The process is about to end: the others are dropped.
        """
        self.flush(AT_THE_END)
        self._announcer.flush()

    def _run(self) -> None:
        while True:
            self.work()
            if self.error:
                time.sleep(min(LONGEST, 0.5 * 2 ** min(self._failures, 10)))
                continue
            with self._changed:
                if not self._rows:
                    self._changed.wait(POLL)

    def work(self) -> None:
        """Write a batch of records, look for a pause, and purge."""
        with self._changed:
            batch = list(itertools.islice(self._rows, self._size))
        try:
            if batch:
                self.store.add(batch)
            if time.monotonic() >= self._look_at:
                known, found = self._switch, self.store.switch()
                with self._changed:
                    # A call of switch() meanwhile counts, and so does a pause
                    # whose record still waits to be written.
                    if self._switch is known and not any(
                            row is known for row in self._rows):
                        self._switch = found
                self._purge()
                self._look_at = time.monotonic() + POLL
                self.asked.set()
        except Exception as error:
            # Libraries raise errors of any class for a wrong URL.
            self._failed(batch, error)
        else:
            self._take(len(batch))
            self._size, self._failures = BATCH, 0
            if self.error:
                LOG.info('The journal is written again.')
            self.error = None

    def _take(self, count: int) -> None:
        with self._changed:
            for _ in range(count):
                self._rows.popleft()
            self._written += count
            self._late = self._late and bool(self._rows)
            self._changed.notify_all()

    def _failed(self, batch: list[Record], error: Exception) -> None:
        # The text of the error may hold the password of the URL.
        why = (str(error) if isinstance(error, ImportError)
               else type(error).__name__)
        if isinstance(error, UNFIT) and len(batch) == 1:
            self._lose(batch[0], why)
            self._take(1)
            return
        if not self.error:
            LOG.error('The journal cannot be written or read at the moment '
                      '(%s); its database is [database] connection. The '
                      'reaper goes on.', why)
            LOG.debug('The journal: %s', error)
        self.error, self._size, self._look_at = why, 1, 0.0
        self._failures += 1

    def _lose(self, record: Record, why: str) -> None:
        self.lost += 1
        LOG.error('The journal is without this record: %s of server %s for '
                  '%s: %s', record.kind.value, record.server, record.waiting,
                  why)

    def _purge(self) -> None:
        days = self._conf.retention_days
        if not days or time.monotonic() < self._purge_at:
            return
        gone = self.store.purge(
            timeutils.utcnow(True) - datetime.timedelta(days=days),
            self._conf.purge_batch)
        # After a whole batch the next look deletes the next batch.
        if gone < self._conf.purge_batch:
            self._purge_at = time.monotonic() + PURGE


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """The records of before a time that decisions still depend on.

    :ivar until: the time
    :ivar exclusion: seconds for which stuck victims are left alone
    :ivar ends: by the reaper, within an hour
    :ivar returns: of servers that may still be protected for it
    :ivar rehearsals: notices of rehearsals within an hour
    :ivar stuck: withdrawals for which a server may still be left alone
    :ivar missed: builds within an hour that failed though others had been
        ended for them
    :ivar failed: builds within an hour for which a server backs off
    :ivar builds: of servers that run since, for the fair share
    :ivar errors: the last builds of servers that were in ERROR after them
    :ivar begun: notices, ends that were stuck, and returns, of which no record
        tells the result
    """

    until: datetime.datetime
    exclusion: int
    ends: Sequence[Record] = ()
    returns: Sequence[Record] = ()
    rehearsals: Sequence[Record] = ()
    stuck: Sequence[Record] = ()
    missed: Sequence[Record] = ()
    failed: Sequence[Record] = ()
    builds: Sequence[Record] = ()
    errors: Sequence[Record] = ()
    begun: Sequence[Record] = ()


def read(store: Store, until: datetime.datetime,
         options: model.Options, exclusion: int) -> Memory:
    """Read what bears on decisions from now on.

    :param until: since when the reaper that reads remembers itself
    :param exclusion: seconds for which stuck victims are left alone
    """
    def find(seconds: int, *kinds: Kind) -> list[Record]:
        if not seconds:
            return []
        return store.find(
            kinds=kinds, since=until - datetime.timedelta(seconds=seconds),
            until=until, limit=MOST)

    builds = store.find(kinds=(Kind.BUILD, Kind.RETURN), until=until,
                        limit=MOST)

    def within(seconds: int) -> list[Record]:
        since = until - datetime.timedelta(seconds=seconds)
        return [build for build in builds if build.at >= since]

    built = within(HALF_LIVES * options.fair_share_half_life
                   ) if options.fair_share_half_life else builds
    tried = within(HOUR)
    last: dict[str, Record] = {}
    for build in builds:
        if build.kind is Kind.BUILD:
            last.setdefault(build.server, build)
    return Memory(
        until, exclusion,
        [end for end in find(HOUR, Kind.END) if end.result != LEFT],
        [back for back in find(options.repeat_protection, Kind.RETURN)
         if back.result == 'active'],
        [notice for notice in find(HOUR, Kind.NOTICE)
         if notice.detail.get('cause') == model.Cause.REHEARSAL],
        [stuck for stuck in find(exclusion, Kind.WITHDRAWAL)
         if stuck.result == 'stuck'],
        [build for build in tried if build.detail.get('missed')],
        [build for build in tried if build.detail.get('failed')],
        [build for build in built if build.result == 'active'],
        [build for build in last.values() if build.result == 'error'],
        [record for record in store.open(until - OPEN_FOR, until)
         if record.kind in (Kind.NOTICE, Kind.RETURN) or
         record.detail.get('ending')])


def memory_of(found: Sequence[Record], until: datetime.datetime) -> Memory:
    """Return what results that were found late bear on.

    :param found: the records that close() returns
    :param until: the time at which they were found
    """
    builds = [build for build in found if build.result == 'active']
    return Memory(
        until, 0, builds=builds,
        ends=[end for end in found
              if end.kind is Kind.END and end.result != LEFT],
        returns=[back for back in builds if back.kind is Kind.RETURN],
        errors=[build for build in found if build.kind is Kind.BUILD and
                build.result == 'error'])


def close(store: Store,
          find: Callable[[str], nova.NovaServer | None],
          busy: Collection[str], noticed: Callable[[str], None]
          ) -> list[Record]:
    """Find what became of servers of which the journal does not tell.

    :param busy: IDs of the servers of attempts under way: those that wait, and
        the victims
    :param noticed: is called with the ID of each server that still has the
        notice that the journal tells of
    """
    now = timeutils.utcnow(True)
    found = []
    for record in store.open(now - OPEN_FOR, now - YOUNG):
        kind = record.kind
        if record.server in busy or kind is Kind.WITHDRAWAL and (
                not record.detail.get('ending')):
            continue
        try:
            server = find(record.server)
        except rest.RequestFailed as error:
            # The cell may be down: Nova knows the servers of other cells.
            LOG.info('What became of server %s is looked at later: %s',
                     record.server, error)
            continue
        result = (_of_build(server) if kind in (Kind.BUILD, Kind.RETURN)
                  else _of_notice(record, server, now))
        if server and shapes.is_noticed(server) and (
                server.metadata[shapes.FOR] == record.waiting):
            noticed(server.id)
        if result is None:
            continue
        if result == '' and store.find(
                record.server, kinds=(Kind.RETURN,), since=record.at, limit=1):
            # The server was shelved, and is back by now.
            result = model.Action.SHELVE.value
        detail = {'why': 'It was found so later: the reaper that did it was '
                  'killed, or waited for it no longer.',
                  'cause': record.detail.get('cause')}
        if server and result == model.Result.ACTIVE:
            detail['resources'] = shapes.resources(server)
        if kind in (Kind.NOTICE, Kind.WITHDRAWAL):
            kind = Kind.END if result else Kind.WITHDRAWAL
        found.append(dataclasses.replace(
            record, kind=kind, result=result, at=now,
            id=uuidutils.generate_uuid(), detail=detail))
    return found


def _of_notice(record: Record, server: nova.NovaServer | None,
               now: datetime.datetime) -> str | None:
    """Say how a victim ended, '' if it lives on, None if that is open."""
    if server is None:
        # Nobody ends a server before its notice has run out.
        until = record.detail.get('terminate_at') or ''
        early = bool(until) and timeutils.parse_isotime(until) > now
        rehearsed = record.detail.get('cause') == model.Cause.REHEARSAL
        return LEFT if early or rehearsed else model.Action.DELETE.value
    if server.status == 'DELETED':
        # Nova says so before the delete is done, which may still fail.
        return None
    if server.status in shapes.OFF_HOST:
        return (model.Action.SHELVE.value
                if shapes.SHELVED_AT in server.metadata or
                record.detail.get('cause') == model.Cause.RUN_TIME else LEFT)
    if server.metadata.get(shapes.FOR) == record.waiting or any(
            shapes.is_leaving(server, how) for how in model.Action):
        return None
    return ''


def _of_build(server: nova.NovaServer | None) -> str | None:
    """Say how a build ended, None if it goes on."""
    if server is None:
        return model.Result.GONE.value
    if server.status in ('ACTIVE', 'SHUTOFF'):
        return model.Result.ACTIVE.value
    if server.waits or server.shelved:
        return model.Result.PENDING.value
    if server.status == 'ERROR' and not server.task_state:
        return model.Result.ERROR.value
    return None
