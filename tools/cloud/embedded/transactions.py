# SPDX-License-Identifier: Apache-2.0

"""Lets threads and processes write to one SQLite file.

oslo.db begins a transaction of SQLite with its first statement, a read as
often as not. When another connection has written before that transaction
does, SQLite refuses the write at once ("database is locked"): what was read
is outdated. Here a transaction of SQLite begins with its first write, which
waits for its turn. A read before it sees what is committed, as in PostgreSQL
by default.
"""

from sqlalchemy import engine
from sqlalchemy import event

_READS = ('SELECT', 'PRAGMA', 'EXPLAIN')


def prepare():
    """Change how this process begins transactions in SQLite.

    To be called before the first engine is used.
    """
    event.listen(engine.Engine, 'begin', _mark)
    event.listen(engine.Engine, 'before_cursor_execute', _begin)


def _mark(connection):
    # oslo.db begins no transaction where it finds its mark, and removes it at
    # the end.
    if connection.dialect.name == 'sqlite':
        connection.info['in_transaction'] = True


def _begin(connection, cursor, statement, parameters, context, executemany):
    if (connection.dialect.name == 'sqlite' and
            not connection.connection.dbapi_connection.in_transaction and
            not statement.lstrip().upper().startswith(_READS)):
        cursor.execute('BEGIN IMMEDIATE')
