# SPDX-License-Identifier: Apache-2.0

"""Runs migrations on the connection that journal.py gives."""

from alembic import context

context.configure(connection=context.config.attributes['connection'])
with context.begin_transaction():
    context.run_migrations()
