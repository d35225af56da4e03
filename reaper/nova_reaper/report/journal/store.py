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

"""Where the journal is kept: a database that ``[database] connection`` names.

Each method is one short transaction, and raises what the database does. Who
calls it does not hold up the engine.
"""

from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
import contextlib
import dataclasses
import datetime
import json
import os
import threading

from alembic import command
from alembic import config as alembic_config
from oslo_config import cfg
from oslo_db.sqlalchemy import enginefacade
import sqlalchemy as sa

from nova_reaper.report.journal import models
from nova_reaper.report.journal.record import ASKED
from nova_reaper.report.journal.record import Kind
from nova_reaper.report.journal.record import Record

ROWS = models.JOURNAL.c
# Characters of a detail: the column of MySQL takes 65,535 bytes.
LONGEST = 16000
# A database that hangs keeps no thread for longer than some seconds.
LIMITS = {
    'mysql': 'connect_timeout=5&read_timeout=10&write_timeout=10',
    'postgresql': 'connect_timeout=5&tcp_user_timeout=10000&'
                  'options=-c%20statement_timeout%3D10000',
    'sqlite': 'timeout=5'}
# Alembic keeps what it works on in a module.
_UPGRADING = threading.Lock()
SWITCHES = (Kind.PAUSE, Kind.RESUME)
#: Which records say what became of a record of the kind.
CLOSED_BY = {Kind.NOTICE: (Kind.WITHDRAWAL, Kind.END),
             Kind.BUILD: (Kind.BUILD,), Kind.RETURN: (Kind.RETURN,)}


class NoSuchMarker(Exception):
    """The record at which a list is to go on is not there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """Which records to find.

    :ivar server: ID of the server to which, or for which, it was done
    :ivar project: ID of the project of the server to which it was done
    :ivar marker: ID of the record after which to go on
    """

    server: str | None = None
    project: str | None = None
    kinds: Collection[Kind] = ()
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    limit: int = 1000
    marker: str | None = None


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
        """A connection to a database whose tables are the newest ones."""
        try:
            if not self._ready:
                self._upgrade()
            with self._context.writer.get_engine().begin() as connection:
                yield connection
        except NoSuchMarker:
            raise
        except Exception:
            # It may be another database the next time.
            self._ready = False
            raise

    def _upgrade(self) -> None:
        with _UPGRADING:
            if self._ready:
                return
            if self._url.get_backend_name() == 'sqlite' and (
                    self._url.database):
                os.makedirs(os.path.dirname(self._url.database) or '.', 0o750,
                            exist_ok=True)
            settings = alembic_config.Config()
            settings.set_main_option('script_location', os.path.join(
                os.path.dirname(__file__), 'migrations'))
            with self._context.writer.get_engine().begin() as connection:
                settings.attributes['connection'] = connection
                command.upgrade(settings, 'head')
            self._ready = True

    def add(self, records: Sequence[Record]) -> None:
        """Add records, but for those that are there already.

        Whoever got no answer adds the same records again.
        """
        with self._connection() as connection:
            there = set(connection.scalars(sa.select(ROWS.id).where(
                ROWS.id.in_([record.id for record in records]))))
            for record in records:
                if record.id in there:
                    continue
                waiting = record.waiting_project
                if record.waiting and not waiting:
                    # Who withdraws the notice of another knows no more.
                    waiting = connection.scalar(
                        sa.select(ROWS.for_project_id).where(
                            ROWS.server_id == record.server,
                            ROWS.for_id == record.waiting)
                        .order_by(ROWS.number.desc()).limit(1)) or ''
                connection.execute(models.JOURNAL.insert().values(
                    id=record.id, kind=record.kind.value, at=_naive(record.at),
                    server_id=record.server[:36],
                    project_id=record.project[:64],
                    for_id=record.waiting[:36], for_project_id=waiting[:64],
                    host=record.host[:255], result=record.result[:32],
                    detail=_text(record)))

    def find(self, query: Query) -> list[Record]:
        """Records, the newest first.

        :raises: NoSuchMarker
        """
        with self._connection() as connection:
            return self._find(connection, query)

    def _find(self, connection: sa.Connection, query: Query) -> list[Record]:
        wanted = sa.select(models.JOURNAL).order_by(ROWS.number.desc())
        if query.server is not None:
            # For which servers of others it was done no project learns.
            wanted = wanted.where(sa.or_(
                ROWS.server_id == query.server, sa.and_(
                    ROWS.for_id == query.server,
                    sa.true() if query.project is None
                    else ROWS.for_project_id == query.project)))
        if query.project is not None:
            wanted = wanted.where(ROWS.project_id == query.project)
        if query.kinds:
            wanted = wanted.where(ROWS.kind.in_(
                [kind.value for kind in query.kinds]))
        if query.since is not None:
            wanted = wanted.where(ROWS.at >= _naive(query.since))
        if query.until is not None:
            wanted = wanted.where(ROWS.at < _naive(query.until))
        if query.marker is not None:
            at = connection.execute(sa.select(
                ROWS.number, ROWS.project_id).where(
                    ROWS.id == query.marker)).first()
            if at is None or query.project not in (None, at.project_id):
                raise NoSuchMarker(query.marker)
            wanted = wanted.where(ROWS.number < at.number)
        return [_record(row)
                for row in connection.execute(wanted.limit(query.limit))]

    def switch(self) -> Record | None:
        """The last pause or resume, None if there was none."""
        found = self.find(Query(kinds=SWITCHES, limit=1))
        return found[0] if found else None

    def open(self, since: datetime.datetime, until: datetime.datetime,
             limit: int = 1000) -> list[Record]:
        """Notices and builds of which no record says what became of them."""
        then = models.JOURNAL.alias()
        cases = [sa.and_(
            ROWS.kind == kind.value,
            ROWS.result == ('' if kind is Kind.NOTICE else ASKED),
            ~sa.exists().where(
                then.c.server_id == ROWS.server_id,
                then.c.number > ROWS.number, then.c.for_id == ROWS.for_id,
                then.c.kind.in_([item.value for item in closing])))
            for kind, closing in CLOSED_BY.items()]
        with self._connection() as connection:
            return [_record(row) for row in connection.execute(
                sa.select(models.JOURNAL).where(
                    ROWS.kind.in_([kind.value for kind in CLOSED_BY]),
                    ROWS.at >= _naive(since), ROWS.at < _naive(until),
                    sa.or_(*cases)).order_by(ROWS.number).limit(limit))]

    def purge(self, before: datetime.datetime, limit: int) -> int:
        """Delete the oldest records; returns how many.

        Pauses stay: the last of them is in force.
        """
        with self._connection() as connection:
            old = list(connection.scalars(sa.select(ROWS.number).where(
                ROWS.at < _naive(before),
                ROWS.kind.not_in([kind.value for kind in SWITCHES]))
                .order_by(ROWS.at).limit(limit)))
            if old:
                connection.execute(models.JOURNAL.delete().where(
                    ROWS.number.in_(old)))
        return len(old)


def _naive(time: datetime.datetime) -> datetime.datetime:
    return time.astimezone(datetime.UTC).replace(tzinfo=None)


def _text(record: Record) -> str:
    """The detail and the name as JSON, which any character set can keep."""
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
