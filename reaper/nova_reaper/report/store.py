# SPDX-License-Identifier: Apache-2.0

"""Defines the records of the journal, and keeps them in a database.

``[database] connection`` names the database. Each method of Store is one short
transaction, and raises what the database raises. The thread of the engine
calls none of them.
"""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
import enum
import json
import os
import threading
from typing import Any

from alembic import command
from alembic import config as alembic_config
from oslo_config import cfg
from oslo_db.sqlalchemy import enginefacade
from oslo_utils import timeutils
from oslo_utils import uuidutils
import sqlalchemy as sa

from nova_reaper.cloud import model

# The columns, as the migrations make them. The number is the order of the
# records; no answer has it: owners could count by it what is done to others.
JOURNAL = sa.table('journal', sa.column('at', sa.DateTime()), *map(sa.column, (
    'number', 'id', 'kind', 'server_id', 'project_id', 'for_id',
    'for_project_id', 'host', 'result', 'detail')))
ROWS = JOURNAL.c
# Characters of a detail: the column of MySQL takes 65,535 bytes.
LONGEST = 16000
# A database that hangs keeps no thread for longer than some seconds.
LIMITS = {
    'mysql': 'connect_timeout=5&read_timeout=10&write_timeout=10',
    'postgresql': 'connect_timeout=5&tcp_user_timeout=10000&'
                  'options=-c%20statement_timeout%3D10000',
    'sqlite': 'timeout=5'}
# Alembic keeps the migration under way in a module, for all threads.
_UPGRADING = threading.Lock()


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
                                   LIMITS.get(backend, '')))
        self._ready = False

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

    def add(self, records: Sequence[Record]) -> None:
        """Add the records that the database does not have yet.

        A caller that got no answer can add the same records again.
        """
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
                    waiting = connection.scalar(
                        sa.select(ROWS.for_project_id).where(
                            ROWS.server_id == record.server,
                            ROWS.for_id == record.waiting)
                        .order_by(ROWS.number.desc()).limit(1)) or ''
                connection.execute(JOURNAL.insert().values(
                    id=record.id, kind=record.kind.value, at=_naive(record.at),
                    server_id=record.server[:36],
                    project_id=record.project[:64],
                    for_id=record.waiting[:36], for_project_id=waiting[:64],
                    host=record.host[:255], result=record.result[:32],
                    detail=_text(record)))

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
                connection.execute(JOURNAL.delete().where(
                    ROWS.number.in_(old)))
        return len(old)


def _naive(time: datetime.datetime) -> datetime.datetime:
    return time.astimezone(datetime.UTC).replace(tzinfo=None)


def _text(record: Record) -> str:
    """Write detail and name as JSON that any character set can keep."""
    detail = dict(record.detail, name=record.name)
    text = json.dumps(detail, default=str)
    if len(text) > LONGEST:
        detail = {key: value for key, value in detail.items()
                  if len(json.dumps(value, default=str)) <= 1000}
        text = json.dumps(detail | {'shortened': True}, default=str)
    return text if len(text) <= LONGEST else '{"shortened": true}'


def _record(row: sa.Row[tuple[object, ...]]) -> Record:
    detail = json.loads(row.detail)
    return Record(
        Kind(row.kind), row.server_id, row.project_id,
        detail.pop('name', ''), row.for_id, row.for_project_id, row.host,
        row.result, detail, row.at.replace(tzinfo=datetime.UTC), row.id)
