# SPDX-License-Identifier: Apache-2.0

"""What each functional test would do again, done once for all tests."""

import functools
import weakref

import fixtures
from oslo_policy import policy
import sqlalchemy as sa
from sqlalchemy import pool
from sqlalchemy import util

# How many statements are kept as compiled.
_STATEMENTS = 4000


class _Compiled(util.LRUCache):
    """Keeps a statement by the name of its dialect.

    SQLAlchemy's key has the dialect itself, and each engine has a dialect of
    its own.
    """

    @staticmethod
    def _key(key):
        dialect, *rest = key
        return (dialect.name, *rest)

    def get(self, key, default=None):
        return super().get(self._key(key), default)

    def __setitem__(self, key, value):
        super().__setitem__(self._key(key), value)


class _KeptConnections(pool.QueuePool):

    def __init__(self, creator, **kwargs):
        # A size of 0 is no limit.
        super().__init__(
            creator, **dict(kwargs, pool_size=0, use_lifo=True))


class SharedWork(fixtures.Fixture):
    """Spares a test nearly half of its processor time.

    Each test has databases of its own, and SQLAlchemy keeps compiled
    statements by the engine of a database: each test would compile each
    statement again. oslo.db opens a connection to a file of SQLite for each
    transaction: SQLite would read the whole schema each time, and write its
    log into the file whenever the last connection is closed. And each test
    would parse the same file of policies, twice.
    """

    _compiled = _Compiled(_STATEMENTS)

    _parse = staticmethod(functools.cache(policy.parse_file_contents))

    def _setUp(self):
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_policy.policy.parse_file_contents',
            lambda data: dict(self._parse(data))))
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_db.sqlalchemy.engines.pool.NullPool', _KeptConnections))
        self._engines = weakref.WeakSet()
        sa.event.listen(sa.Engine, 'engine_connect', self._connected)
        self.addCleanup(self._close)

    def _connected(self, connection):
        connection.execution_options(compiled_cache=self._compiled)
        self._engines.add(connection.engine)

    def _close(self):
        sa.event.remove(sa.Engine, 'engine_connect', self._connected)
        for engine in list(self._engines):
            engine.dispose()
