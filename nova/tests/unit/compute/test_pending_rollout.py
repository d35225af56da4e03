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

from unittest import mock

import fixtures
from oslo_db import exception as db_exc
from sqlalchemy import orm

from nova.compute import pending_rollout
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import test
import nova_pending_check


@main_db_api.pick_context_manager_reader
def _rows(context):
    return [(row.task_name, row.host, row.updated_at is not None)
            for row in context.session.query(models.TaskLog).all()]


_drift = nova_pending_check.drift


class ServiceStartedTestCase(test.TestCase):
    """What a service records and logs when it has started."""

    def setUp(self):
        super().setUp()
        self.drift = self.useFixture(fixtures.MockPatchObject(
            nova_pending_check, 'drift', return_value=[])).mock
        self.log = self.useFixture(fixtures.MockPatchObject(
            pending_rollout, 'LOG')).mock

    def recorded(self):
        return _rows(nova_context.get_admin_context())

    def test_it_is_recorded_once(self):
        pending_rollout.service_started('host', 'nova-conductor')
        self.assertEqual([('nova-pending:nova-conductor', 'host', False)],
                         self.recorded())
        pending_rollout.service_started('host', 'nova-conductor')
        # One that was updated would be archived with the task log.
        self.assertEqual([('nova-pending:nova-conductor', 'host', False)],
                         self.recorded())
        self.log.warning.assert_not_called()

    def test_another_service_starts_at_the_same_time(self):
        flush, deadlocks = orm.Session.flush, [db_exc.DBDeadlock()]

        def flush_or_deadlock(session, objects=None):
            if session.new and deadlocks:
                raise deadlocks.pop()
            flush(session, objects)

        with mock.patch.object(orm.Session, 'flush', flush_or_deadlock):
            pending_rollout.service_started('host', 'nova-conductor')
        self.assertEqual([], deadlocks)
        self.assertEqual([('nova-pending:nova-conductor', 'host', False)],
                         self.recorded())
        self.log.warning.assert_not_called()

    def test_a_service_that_needs_it_not(self):
        pending_rollout.service_started('host', 'nova-compute')
        self.assertEqual([], self.recorded())

    def test_another_worker_was_faster(self):
        with mock.patch.object(pending_rollout, '_record',
                               side_effect=db_exc.DBDuplicateEntry()):
            pending_rollout.service_started('host', 'nova-conductor')
        self.log.warning.assert_not_called()

    def test_a_service_starts_without_its_record(self):
        with mock.patch.object(pending_rollout, '_record',
                               side_effect=db_exc.DBError('down')):
            pending_rollout.service_started('host', 'nova-conductor')
        self.assertIn('could not be recorded',
                      self.log.warning.call_args.args[0])

    def test_a_replaced_body_has_changed(self):
        """The sentence of each is logged, in nova-compute as well."""
        self.drift.return_value = ['nova.x.y replaces a body']
        pending_rollout.service_started('host', 'nova-compute')
        self.log.warning.assert_called_once_with(
            mock.ANY, 'nova.x.y replaces a body')

    def test_the_replaced_bodies_of_this_process(self):
        """Only those of modules that it has loaded are compared."""
        import nova.compute.manager  # noqa: F401
        with mock.patch.object(nova_pending_check, 'digest',
                               return_value='other'):
            found = list(_drift())
        self.assertNotEqual([], found)
        for sentence in found:
            self.assertIn('nova.compute.manager.ComputeManager.', sentence)
