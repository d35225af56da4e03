# SPDX-License-Identifier: Apache-2.0

"""The journal in its database, on each database that it may be in."""

from concurrent import futures
import datetime
import multiprocessing
import os
import threading
import time
from typing import Any
from unittest import mock

import fixtures
from oslo_config import cfg
from oslo_utils import timeutils
import sqlalchemy as sa

from nova_reaper.report import journal
from nova_reaper.report.journal import Kind
from nova_reaper.report.journal import Record
from nova_reaper import tests
from nova_reaper.tests import fakes
from nova_reaper.tests.report import databases

NOW = timeutils.utcnow(True)


def record(kind: Kind, server: str = 's', **values: Any) -> Record:
    seconds = values.pop('ago', 0)
    return Record(kind, server, values.pop('project', 'p'),
                  at=NOW - datetime.timedelta(seconds=seconds), **values)


class SQLiteTestCase(tests.TestCase):
    """The database that a reaper has if nobody names another."""

    def setUp(self) -> None:
        super().setUp()
        self.conf = fakes.configuration()
        self.conf.set_override('connection', self.url(), 'database')
        self.store = journal.Store(self.conf)

    def url(self) -> str:
        self.path = os.path.join(
            self.useFixture(fixtures.TempDir()).path, 'state', 'journal')
        return f'sqlite:///{self.path}'

    def ids(self, **query: Any) -> list[str]:
        return [found.id for found in self.store.find(**query)]

    def test_a_record_is_found_as_it_was_added(self) -> None:
        added = record(Kind.NOTICE, name='näme 🚀', waiting='w',
                       waiting_project='q', host='h', detail={'a': [1, None]})
        self.store.add([added])
        self.assertEqual([added], self.store.find())

    def test_what_is_added_again_is_there_once(self) -> None:
        one, two = record(Kind.END), record(Kind.BUILD)
        self.store.add([one])
        self.store.add([one, two])
        self.assertEqual([two.id, one.id], self.ids())

    def test_queries(self) -> None:
        notice = record(Kind.NOTICE, 's1', waiting='w', ago=30)
        end = record(Kind.END, 's1', waiting='w', project='q', ago=20)
        build = record(Kind.BUILD, 'w', waiting='w', ago=10)
        self.store.add([notice, end, build])
        self.assertEqual([build.id, end.id, notice.id], self.ids(server='w'))
        self.assertEqual([end.id, notice.id], self.ids(server='s1'))
        self.assertEqual([build.id, notice.id], self.ids(project='p'))
        self.assertEqual([build.id, end.id],
                         self.ids(kinds=[Kind.END, Kind.BUILD]))
        self.assertEqual([end.id], self.ids(
            since=end.at, until=build.at))
        self.assertEqual([end.id], self.ids(limit=1, marker=build.id))
        self.assertEqual([], self.ids(marker=notice.id))
        self.assertRaises(journal.NoSuchMarker, self.ids, marker='x')
        # An ID of another project's record tells nobody that it exists.
        self.assertRaises(journal.NoSuchMarker, self.ids, marker=end.id,
                          project='p')

    def test_the_project_of_a_withdrawal_is_that_of_the_notice(self) -> None:
        self.store.add([
            record(Kind.NOTICE, waiting='w', waiting_project='q'),
            record(Kind.NOTICE, waiting='x', waiting_project='r'),
            record(Kind.WITHDRAWAL, waiting='w'),
            record(Kind.WITHDRAWAL, waiting='y')])
        found = self.store.find(kinds=[Kind.WITHDRAWAL])
        self.assertEqual(['', 'q'], [item.waiting_project for item in found])

    def test_a_single_pause_of_many_at_once(self) -> None:
        told: list[Record] = []
        clients = [journal.Journal(self.conf, told.append)
                   for _ in range(6)]
        together = threading.Barrier(6)

        def switch(client: journal.Journal) -> list[Record]:
            found = []
            for kind in journal.SWITCHES * 4:
                together.wait(30)
                found.append(client.switch(kind, str(id(client)), ''))
                together.wait(30)
            return found

        with futures.ThreadPoolExecutor(6) as pool:
            found = list(pool.map(switch, clients))
        self.assertEqual([found[0]] * 6, found)
        self.assertEqual(found[0], told)
        self.assertEqual(found[0], self.store.find()[::-1])

    def test_what_is_open(self) -> None:
        given = [record(Kind.NOTICE, server, waiting='w', ago=60)
                 for server in ('s1', 's2', 's3')]
        asked = [record(Kind.BUILD, server, waiting=server, result='asked')
                 for server in ('w1', 'w2')]
        self.store.add([
            record(Kind.WITHDRAWAL, 's3', waiting='w', ago=90), *given,
            record(Kind.END, 's1', waiting='w'),
            record(Kind.END, 's2', waiting='other'), *asked,
            record(Kind.BUILD, 'w1', waiting='w1', result='active')])
        later = NOW + datetime.timedelta(seconds=1)
        self.assertEqual(
            [given[1], given[2], asked[1]],
            self.store.open(NOW - datetime.timedelta(days=1), later))
        self.assertEqual([given[1], given[2]], self.store.open(
            NOW - datetime.timedelta(days=1), NOW))

    def test_an_end_after_a_withdrawal(self) -> None:
        stuck = [record(Kind.WITHDRAWAL, server, waiting='w', result='stuck')
                 for server in ('s1', 's2', 's3', 's4')]
        self.store.add([
            *stuck, record(Kind.WITHDRAWAL, 's5', waiting='w', result='gone'),
            record(Kind.END, 's1', waiting='w'),
            record(Kind.NOTICE, 's2', waiting='other'),
            record(Kind.END, 's2', waiting='other'),
            record(Kind.WITHDRAWAL, 's3', waiting='w')])
        self.assertEqual([stuck[3]], self.store.open(
            NOW - datetime.timedelta(days=1),
            NOW + datetime.timedelta(seconds=1)))

    def test_the_purge_is_bounded_and_leaves_the_pause(self) -> None:
        old = 90 * 86400
        self.store.add([record(Kind.PAUSE, '', ago=old + 9)] + [
            record(Kind.END, ago=old + number) for number in range(5)] + [
            record(Kind.END, ago=old - 5)])
        before = NOW - datetime.timedelta(seconds=old - 1)
        self.assertEqual([3, 2, 0], [
            self.store.purge(before, 3) for _ in range(3)])
        self.assertEqual(2, len(self.ids()))
        switch = self.store.switch()
        self.assertEqual(Kind.PAUSE, switch.kind if switch else None)

    def test_a_detail_is_bounded(self) -> None:
        self.store.add([record(Kind.END, name='n' * 300, detail={
            'why': 'x', 'decision': {'victims': ['v' * 36] * 1000}})])
        found = self.store.find()[0]
        self.assertEqual(('n' * 300, {'why': 'x', 'shortened': True}),
                         (found.name, found.detail))

    def test_the_migrations_make_the_tables(self) -> None:
        self.store.add([])
        engine = sa.create_engine(self.conf.database.connection)
        self.addCleanup(engine.dispose)
        found = sa.inspect(engine)
        self.assertEqual(
            set(journal.ROWS.keys()),
            {column['name'] for column in found.get_columns('journal')})
        self.assertEqual(
            {('id',)}, {tuple(unique['column_names']) for unique
                        in found.get_unique_constraints('journal')})
        self.assertEqual(
            {('at',), ('kind', 'at'), ('project_id', 'number'),
             ('server_id', 'number'), ('for_id', 'number')},
            {tuple(index['column_names']) for index
             in found.get_indexes('journal')} - {('id',)})

    def test_an_upgrade_that_was_interrupted_goes_on(self) -> None:
        self.store.add([])
        engine = sa.create_engine(self.conf.database.connection)
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            connection.execute(sa.text('DELETE FROM alembic_version'))
            connection.execute(sa.text(
                'DROP INDEX journal_for' + (
                    ' ON journal' if engine.dialect.name in
                    ('mysql', 'mariadb') else '')))
        journal.Store(self.conf).add([record(Kind.END)])
        self.test_the_migrations_make_the_tables()

    def test_questions_are_answered_by_an_index(self) -> None:
        self.store.add([record(Kind.END, str(number), project=str(number),
                               waiting=str(number), ago=number)
                        for number in range(300)])
        for query, index in (
                ({'project': '7'}, 'journal_project'),
                ({'kinds': [Kind.PAUSE, Kind.RESUME]}, 'journal_kind_at')):
            self.assertIn(index, self.plan(**query))

    def plan(self, **query: Any) -> str:
        """How the database looks for the answer to a query."""
        said: list[str] = []
        engine = self.store._context.writer.get_engine()

        def explain(connection: sa.Connection, statement: str,
                    parameters: Any) -> None:
            if statement.startswith('SELECT'):
                if connection.dialect.name == 'postgresql':
                    # It reads a table that is so small from end to end.
                    connection.exec_driver_sql('SET enable_seqscan = off')
                said.extend(str(tuple(row)) for row in (
                    connection.exec_driver_sql(
                        self.EXPLAIN + statement, parameters)))

        def before(connection: sa.Connection, cursor: Any, statement: str,
                   parameters: Any, *_: Any) -> None:
            if not statement.startswith((self.EXPLAIN, 'SET ')):
                explain(connection, statement, parameters)

        sa.event.listen(engine, 'before_cursor_execute', before)
        self.addCleanup(sa.event.remove, engine, 'before_cursor_execute',
                        before)
        self.store.find(**query)
        return ' '.join(said)

    EXPLAIN = 'EXPLAIN QUERY PLAN '

    def test_tables_that_are_gone_are_made_anew(self) -> None:
        self.store.add([record(Kind.END)])
        engine = sa.create_engine(self.conf.database.connection)
        self.addCleanup(engine.dispose)
        with engine.begin() as connection:
            connection.execute(sa.text('DROP TABLE journal'))
            connection.execute(sa.text('DROP TABLE alembic_version'))
        self.assertRaisesRegex(Exception, 'journal', self.store.add,
                               [record(Kind.END)])
        added = record(Kind.END)
        self.store.add([added])
        self.assertEqual([added.id], self.ids())

    def test_several_begin_at_once(self) -> None:
        added = [record(Kind.END, str(number)) for number in range(4)]
        fork = multiprocessing.get_context('fork')
        processes = [fork.Process(target=_add, args=(self.conf, one))
                     for one in added]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        self.assertEqual({item.id for item in added}, set(self.ids()))


def _add(conf: cfg.ConfigOpts, added: Record) -> None:
    """Add a record as a process of its own does, with some tries."""
    mine = journal.Store(conf)
    for _ in range(20):
        try:
            mine.add([added])
            return
        except Exception:
            time.sleep(0.1)


class OwnerTestCase(tests.TestCase):
    """Who may write to the file of a SQLite database that a command made."""

    def setUp(self) -> None:
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir()).path
        self.path = os.path.join(self.folder, 'journal')
        self.chown = self.useFixture(
            fixtures.MockPatch('os.chown')).mock
        self.useFixture(fixtures.MockPatch('os.geteuid', return_value=0))

    def open(self) -> None:
        conf = fakes.configuration()
        conf.set_override('connection', f'sqlite:///{self.path}', 'database')
        self.assertEqual([], journal.Store(conf).find())

    def test_root_gives_a_new_file_to_the_owner_of_the_directory(self) -> None:
        self.useFixture(fixtures.MockPatch('os.stat', return_value=mock.Mock(
            st_uid=123, st_gid=456, st_mode=0o40750)))
        self.open()
        self.chown.assert_called_once_with(mock.ANY, 123, 456)

    def test_root_leaves_the_owner_of_a_file_that_is_there(self) -> None:
        # The owner of the directory may have put a link there.
        other = os.path.join(self.folder, 'other')
        os.symlink(other, self.path)
        self.open()
        self.open()
        self.chown.assert_not_called()

    def test_memory_is_no_file(self) -> None:
        self.path = ':memory:'
        self.open()
        self.chown.assert_not_called()
        self.assertFalse(os.path.exists(':memory:'))


class MySQLTestCase(SQLiteTestCase):
    """MariaDB or MySQL."""

    EXPLAIN = 'EXPLAIN '

    def url(self) -> str:
        return databases.make(self, 'mysql')


class PostgreSQLTestCase(SQLiteTestCase):
    """PostgreSQL."""

    EXPLAIN = 'EXPLAIN '

    def url(self) -> str:
        return databases.make(self, 'postgresql')
