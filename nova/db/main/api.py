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

import datetime

import sqlalchemy as sa

from nova.compute import pending
from nova.db.main import models
import nova_pending

released = nova_pending.released(__name__)

#: The name of entries of task_log that say what is, and are never updated.
REBUILD_TASK = 'rebuild_in_cell0'

_ALWAYS = datetime.datetime(9999, 1, 1)


def _exact_instance_filter(query, filters, legal_keys):
    return released._exact_instance_filter(
        query, filters, legal_keys + [pending.HIDDEN_COLUMN])


def _archive_deleted_rows_for_table(metadata, engine, tablename, max_rows,
                                    before, task_log):
    """Archive as in the release, of task_log what nobody needs any more.

    What says which rebuilds have begun has no updated_at; nor has an audit
    that has not ended.
    """
    if tablename == 'task_log' and task_log and before is None and (
            _has_entries_that_say_what_is(engine)):
        before = _ALWAYS
    return released._archive_deleted_rows_for_table(
        metadata, engine, tablename, max_rows, before, task_log)


def _has_entries_that_say_what_is(engine):
    log = models.TaskLog
    with engine.connect() as conn, conn.begin():
        return conn.execute(sa.select(log.id).where(
            log.updated_at.is_(None),
            log.task_name == REBUILD_TASK).limit(1)).first()
