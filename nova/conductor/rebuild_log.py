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

"""Records which rebuilds in cell0 are to be looked at, and who looks.

The released table task_log, in the database of cell0, is where. A conductor
begins an entry before it takes a build request. Whatever dies after that, the
entry tells recovery which server to look at, and in which cell it may have
left a record: nothing has to be searched for it.
"""

import contextlib
import datetime
import itertools

from oslo_db import exception as db_exc
from oslo_utils import timeutils
import sqlalchemy as sa

from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models

_RECOVERY = 'recover_rebuilds_in_cell0'

# db archive_deleted_rows --task-log leaves rows that were never updated.
_LIVE = {'updated_at': None}

# How many entries are read at once.
_PAGE = 1000

# Of the one row that says who recovers.
_ALWAYS = datetime.datetime(2000, 1, 1)


@contextlib.contextmanager
def _entries(context, cell0, writes=True, **values):
    """Give the query for entries, in a transaction of its own."""
    with nova_context.target_cell(context, cell0) as cctxt:
        manager = main_db_api.get_context_manager(cctxt)
        with (manager.writer if writes else manager.reader).using(
                cctxt) as session:
            yield session.query(models.TaskLog).filter_by(**values)


def begin(context, cell0, instance_uuid):
    """Record that a server is about to be scheduled.

    :param context: the request context
    :param cell0: the CellMapping of cell0
    :param instance_uuid: the server
    :returns: the ID of the entry
    """
    now = timeutils.utcnow()
    for earlier in itertools.count():
        entry = models.TaskLog(
            task_name=main_db_api.REBUILD_TASK, host=instance_uuid,
            state='RUNNING', message='', period_ending=now,
            # One of the same second, of a message that was delivered twice,
            # is another conductor's.
            period_beginning=now - datetime.timedelta(seconds=earlier))
        with contextlib.suppress(db_exc.DBDuplicateEntry):
            with _entries(context, cell0) as query:
                query.session.add(entry)
                query.session.flush()
                return entry.id


def set_cell(context, cell0, entry_id, cell_uuid):
    """Record in which cell a record of the server is about to be created."""
    with _entries(context, cell0, id=entry_id) as query:
        query.update({'message': cell_uuid} | _LIVE)


def end(context, cell0, entry_id):
    """Delete an entry: there is nothing left to look at."""
    with _entries(context, cell0, id=entry_id) as query:
        query.delete()


def end_all(context, cell0, instance_uuid):
    """Delete all entries of a server."""
    with _entries(context, cell0, task_name=main_db_api.REBUILD_TASK,
                  host=instance_uuid) as query:
        query.delete()


def begun(context, cell0, before):
    """Give all entries, the oldest first.

    They are read a page at a time: those that cannot be ended now, be it for
    a cell that does not answer, keep nobody from those behind them.

    :param context: the request context
    :param cell0: the CellMapping of cell0
    :param before: when they must have begun, a datetime
    :returns: an iterator over lists of rows with id, host (the server),
        message (the cell, '' if none was chosen) and period_ending (when it
        began)
    """
    log = models.TaskLog
    behind = sa.true()
    while True:
        with _entries(context, cell0, writes=False,
                      task_name=main_db_api.REBUILD_TASK) as query:
            page = query.with_entities(
                log.id, log.host, log.message, log.period_ending).filter(
                    log.period_ending < before, behind).order_by(
                        log.period_ending, log.id).limit(_PAGE).all()
        if page:
            yield page
        if len(page) < _PAGE:
            return
        last = page[-1]
        behind = (log.period_ending > last.period_ending) | (
            (log.period_ending == last.period_ending) & (log.id > last.id))


def take_turn(context, cell0, seconds):
    """Take the turn to recover, which one worker of all conductors has.

    :param context: the request context
    :param cell0: the CellMapping of cell0
    :param seconds: how long nobody else is to have it
    :returns: whether it was taken
    """
    key = {'task_name': _RECOVERY, 'host': 'cell0',
           'period_beginning': _ALWAYS, 'period_ending': _ALWAYS}
    now = timeutils.utcnow()
    log = models.TaskLog
    # Most workers find that it is taken, and a read locks nothing.
    with _entries(context, cell0, writes=False, **key) as query:
        taken_at = query.with_entities(log.updated_at).scalar()
    until = now - datetime.timedelta(seconds=seconds)
    if taken_at is not None:
        if taken_at > until:
            return False
        with _entries(context, cell0, updated_at=taken_at, **key) as query:
            return bool(query.update({'updated_at': now}))
    try:
        with _entries(context, cell0) as query:
            query.session.add(log(
                state='RUNNING', message='', updated_at=now, **key))
            query.session.flush()
    except db_exc.DBDuplicateEntry:
        return False
    return True
