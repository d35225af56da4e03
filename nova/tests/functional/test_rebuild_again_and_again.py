# SPDX-License-Identifier: Apache-2.0

"""A server that is rebuilt for months costs what it costs on its first day."""

import collections
import contextlib
import datetime
import re

from oslo_utils import timeutils
from oslo_utils import uuidutils
import sqlalchemy as sa
from sqlalchemy import engine
from sqlalchemy import event

from nova.compute import action_history
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import objects
from nova.tests.functional import rebuild_base

_LIST = re.compile(r'\((__\[POSTCOMPILE_\w+\]|\?(, \?)*)\)')


@contextlib.contextmanager
def statements_that_write():
    """Count the statements that write to any database."""
    statements = []

    def count(_connection, _cursor, statement, *_args):
        if statement.lstrip().split(None, 1)[0].upper() in (
                'INSERT', 'UPDATE', 'DELETE') and (
                    # The services report that they live.
                    not statement.startswith('UPDATE services ')):
            # Where several rows are named, they are so in one statement.
            statements.append(_LIST.sub('(...)', statement))

    event.listen(engine.Engine, 'before_cursor_execute', count)
    try:
        yield statements
    finally:
        event.remove(engine.Engine, 'before_cursor_execute', count)


class ManyTriesTestCase(rebuild_base.RebuildInCell0Base):

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting()

    def try_again(self):
        with statements_that_write() as statements:
            self.rebuild(self.server)
            self.wait_for(self.server, 'PENDING')
            self._wait_for_assert(lambda: self.assertEqual(
                [], self.stored(self.server)['build_requests']))
        return statements

    def tried_before(self, times):
        """Let the server have been tried some times more."""
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt, \
                main_db_api.get_context_manager(cctxt).writer.using(
                    cctxt) as session:
            action = models.InstanceAction.__table__
            of_server = action.c.instance_uuid == self.server['id']
            last = session.execute(sa.select(action).where(
                of_server).order_by(action.c.id.desc())).mappings().first()
            # Databases other than this one know of no less than a second.
            began = timeutils.utcnow().replace(
                microsecond=0) - datetime.timedelta(days=1)
            session.execute(action.update().where(of_server).values(
                created_at=began, start_time=began, updated_at=began))
            for number in range(times):
                then = began + datetime.timedelta(seconds=1 + number)
                [key] = session.execute(action.insert().values(
                    dict(last, id=None, start_time=then, created_at=then,
                         updated_at=then,
                         request_id='req-' + uuidutils.generate_uuid()))
                ).inserted_primary_key
                session.add(models.InstanceActionEvent(
                    action_id=key, event='conductor_rebuild', result='Error',
                    start_time=then, finish_time=then,
                    host='here', traceback='x' * 3000))

    def test_thirtieth_try_writes_no_more_than_the_fifth(self):
        self.tried_before(3)
        fifth = self.try_again()
        self.tried_before(25)
        thirtieth = self.try_again()
        self.assertEqual({}, collections.Counter(thirtieth) -
                         collections.Counter(fifth))

    def test_history_is_bounded(self):
        self.tried_before(40)
        before = self.actions()
        self.assertEqual(41, len(before))
        self.try_again()
        after = self.actions()
        kept = before[:action_history.LATEST] + before[-1:]
        self.assertEqual([action['request_id'] for action in kept],
                         [action['request_id'] for action in after[1:]])
        self.assertEqual(kept, after[1:])
        self.assertEqual('create', after[-1]['action'])
        [restored] = self.admin_api.get_instance_action_details(
            self.server['id'], after[1]['request_id'])['events']
        self.assertEqual('x' * 3000, restored['traceback'])

    def actions(self):
        return self.api.get_instance_actions(self.server['id'])
