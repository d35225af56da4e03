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

"""The table of the journal, as the newest migration leaves it."""

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

METADATA = sa.MetaData()
#: MySQL keeps whole seconds only, unless it is told otherwise.
TIME = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), 'mysql', 'mariadb')
#: SQLite counts up no other type.
NUMBER = sa.BigInteger().with_variant(sa.Integer(), 'sqlite')

JOURNAL = sa.Table(
    'journal', METADATA,
    # The order of the records; shown to nobody, who could count them.
    sa.Column('number', NUMBER, primary_key=True, autoincrement=True),
    sa.Column('id', sa.String(36), nullable=False),
    sa.Column('at', TIME, nullable=False),
    sa.Column('kind', sa.String(16), nullable=False),
    sa.Column('server_id', sa.String(36), nullable=False),
    sa.Column('project_id', sa.String(64), nullable=False),
    sa.Column('for_id', sa.String(36), nullable=False),
    sa.Column('for_project_id', sa.String(64), nullable=False),
    sa.Column('host', sa.String(255), nullable=False),
    sa.Column('result', sa.String(32), nullable=False),
    sa.Column('detail', sa.Text(), nullable=False),
    sa.UniqueConstraint('id', name='journal_id'),
    # For the purge, what a start reads, an owner's question, and an
    # administrator's.
    sa.Index('journal_at', 'at'),
    sa.Index('journal_kind_at', 'kind', 'at'),
    sa.Index('journal_project', 'project_id', 'number'),
    sa.Index('journal_server', 'server_id', 'number'),
    sa.Index('journal_for', 'for_id', 'number'))
