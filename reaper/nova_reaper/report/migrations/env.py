# SPDX-License-Identifier: Apache-2.0

"""Runs migrations on the connection that store.py gives."""

from alembic import context

from nova_reaper.report import store

context.configure(connection=context.config.attributes['connection'],
                  target_metadata=store.METADATA, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
