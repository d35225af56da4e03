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
