# SPDX-License-Identifier: Apache-2.0

"""Several connections that write to one SQLite file."""

import pathlib
import threading

import fixtures
from oslo_db.sqlalchemy import engines
import sqlalchemy
from sqlalchemy import event
from sqlalchemy import exc
import testtools

from tools.cloud.embedded import databases
from tools.cloud.embedded import transactions

_INCREMENT = 'UPDATE counter SET value = value + 1'


class TestTransactions(testtools.TestCase):

    def setUp(self):
        super().setUp()
        folder = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.databases = databases.Databases(folder)
        self.databases.create()

    def _engine(self):
        engine = engines.create_engine(
            self.databases.url('nova'), **self.databases.options)
        with engine.begin() as connection:
            connection.exec_driver_sql('CREATE TABLE counter (value INTEGER)')
            connection.exec_driver_sql('INSERT INTO counter VALUES (0)')
        return engine

    def _prepare(self):
        transactions.prepare()
        self.addCleanup(event.remove, sqlalchemy.Engine, 'begin',
                        transactions._mark)
        self.addCleanup(event.remove, sqlalchemy.Engine,
                        'before_cursor_execute', transactions._begin)

    @staticmethod
    def _value(connection):
        return connection.exec_driver_sql(
            'SELECT value FROM counter').scalar()

    def _write_between_read_and_write(self, engine):
        with engine.begin() as first:
            self._value(first)
            with engine.begin() as second:
                second.exec_driver_sql(_INCREMENT)
            first.exec_driver_sql(_INCREMENT)

    def test_released_is_refused(self):
        self.assertRaises(exc.OperationalError,
                          self._write_between_read_and_write, self._engine())

    def test_write_after_a_read_that_is_outdated(self):
        self._prepare()
        engine = self._engine()
        self._write_between_read_and_write(engine)
        with engine.connect() as connection:
            self.assertEqual(2, self._value(connection))

    def test_rollback(self):
        self._prepare()
        engine = self._engine()
        with engine.connect() as connection:
            connection.exec_driver_sql(_INCREMENT)
            connection.rollback()
            self.assertEqual(0, self._value(connection))

    def test_savepoint(self):
        self._prepare()
        engine = self._engine()
        with engine.begin() as connection:
            with connection.begin_nested() as nested:
                connection.exec_driver_sql(_INCREMENT)
                nested.rollback()
            connection.exec_driver_sql(_INCREMENT)
        with engine.connect() as connection:
            self.assertEqual(1, self._value(connection))

    def test_read_sees_nothing_uncommitted(self):
        self._prepare()
        engine = self._engine()
        with engine.begin() as writer, engine.connect() as reader:
            writer.exec_driver_sql(_INCREMENT)
            self.assertEqual(0, self._value(reader))

    def test_threads(self):
        self._prepare()
        engine = self._engine()

        def increment():
            for _ in range(20):
                with engine.begin() as connection:
                    self._value(connection)
                    connection.exec_driver_sql(_INCREMENT)

        threads = [threading.Thread(target=increment) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with engine.connect() as connection:
            self.assertEqual(80, self._value(connection))
