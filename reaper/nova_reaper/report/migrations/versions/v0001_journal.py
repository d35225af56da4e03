# SPDX-License-Identifier: Apache-2.0

"""The table of the journal."""

from alembic import op
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

revision = '0001'
down_revision = None


def upgrade() -> None:
    """Make the table.

    MySQL commits each statement by itself: a part may be there already, of an
    upgrade that was interrupted or is done by another reaper.
    """
    op.create_table(
        'journal',
        # SQLite counts up an INTEGER only.
        sa.Column('number', sa.BigInteger().with_variant(
            sa.Integer(), 'sqlite'), primary_key=True, autoincrement=True),
        sa.Column('id', sa.String(36), nullable=False),
        # MySQL keeps whole seconds only, unless it is told otherwise.
        sa.Column('at', sa.DateTime().with_variant(
            mysql.DATETIME(fsp=6), 'mysql', 'mariadb'), nullable=False),
        sa.Column('kind', sa.String(16), nullable=False),
        sa.Column('server_id', sa.String(36), nullable=False),
        sa.Column('project_id', sa.String(64), nullable=False),
        sa.Column('for_id', sa.String(36), nullable=False),
        sa.Column('for_project_id', sa.String(64), nullable=False),
        sa.Column('host', sa.String(255), nullable=False),
        sa.Column('result', sa.String(32), nullable=False),
        sa.Column('detail', sa.Text(), nullable=False),
        sa.UniqueConstraint('id', name='journal_id'),
        if_not_exists=True)
    there = {index['name']
             for index in sa.inspect(op.get_bind()).get_indexes('journal')}
    # For the purge, what a start reads, an owner's question, and an
    # administrator's.
    for name, columns in (('journal_at', ['at']),
                          ('journal_kind_at', ['kind', 'at']),
                          ('journal_project', ['project_id', 'number']),
                          ('journal_server', ['server_id', 'number']),
                          ('journal_for', ['for_id', 'number'])):
        if name not in there:
            op.create_index(name, 'journal', columns)
