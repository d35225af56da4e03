# SPDX-License-Identifier: Apache-2.0
import threading
from unittest import mock

from nova.api.openstack import api_version_request
from nova.api.openstack import common
from nova.api.openstack import wsgi as os_wsgi
from nova.compute import instance_list
from nova.compute import pending
from nova.compute import task_states
from nova.db.main import models
from nova import exception
from nova.objects import fields
from nova import test
from nova.tests.unit.api.openstack import fakes


class WhoSeesPendingTestCase(test.NoDBTestCase):

    def test_shown_unless_hidden(self):
        self.assertEqual('pending', pending.shown('pending'))
        with pending.hidden(True):
            self.assertTrue(pending.is_hidden())
            self.assertEqual('error', pending.shown('pending'))
            for other in set(fields.InstanceState.ALL) - {'pending'}:
                self.assertEqual(other, pending.shown(other))
            self.assertIsNone(pending.shown(None))
            with pending.hidden(False):
                self.assertEqual('pending', pending.shown('pending'))
            self.assertEqual('error', pending.shown('pending'))
        self.assertFalse(pending.is_hidden())

    def test_shown_again_after_a_failure(self):
        def fail():
            with pending.hidden(True):
                raise ValueError()

        self.assertRaises(ValueError, fail)
        self.assertFalse(pending.is_hidden())

    def test_requests_of_other_threads_are_their_own(self):
        seen = []
        with pending.hidden(True):
            thread = threading.Thread(
                target=lambda: seen.append(pending.shown('pending')))
            thread.start()
            thread.join()
        self.assertEqual(['pending'], seen)

    def test_hidden_by_the_microversion_of_the_request(self):
        class Controller(os_wsgi.Controller):
            def index(self, req):
                return {'state': pending.shown('pending')}

        app = fakes.TestRouter(Controller())
        for version, state in (
                ('2.1', 'error'), ('2.103', 'error'),
                (pending.API_VERSION, 'pending'),
                (api_version_request._MAX_API_VERSION, 'pending')):
            req = fakes.HTTPRequest.blank('/tests', version=version)
            req.headers = {os_wsgi.API_VERSION_REQUEST_HEADER:
                           'compute ' + version}
            answer = req.get_response(app)
            self.assertEqual({'state': state}, answer.json, version)

    def test_refusal_does_not_name_the_state(self):
        def refusal(state, attr='vm_state'):
            return str(exception.InstanceInvalidState(
                attr=attr, instance_uuid='u', state=state, method='m'))

        self.assertIn('vm_state pending', refusal('pending'))
        with pending.hidden(True):
            self.assertEqual(refusal('error'), refusal('pending'))
            self.assertIn('vm_state active', refusal('active'))
            # The value of another attribute is none of our business.
            self.assertIn('other pending', refusal('pending', attr='other'))
            exc = exception.InstanceInvalidState('as it is')
            self.assertEqual('as it is', str(exc))


class StatusTestCase(test.NoDBTestCase):

    def test_status(self):
        for task, seen, hidden in (
                (None, 'PENDING', 'ERROR'),
                (task_states.DELETING, 'PENDING', 'ERROR'),
                (task_states.REBUILDING, 'REBUILD', 'REBUILD')):
            self.assertEqual(
                seen, common.status_from_state('pending', task))
            with pending.hidden(True):
                self.assertEqual(
                    hidden, common.status_from_state('pending', task))
                self.assertEqual(
                    common.status_from_state('error', task),
                    common.status_from_state('pending', task))

    def test_states_of_a_status(self):
        states = common.task_and_vm_state_from_status
        for status in 'PENDING', 'pending', 'Pending':
            self.assertEqual((['pending'], ['default']), states([status]))
            with pending.hidden(True):
                self.assertEqual(([], []), states([status]))
                self.assertEqual(
                    (['active'], ['default']), states([status, 'ACTIVE']))
        self.assertEqual((['error'], ['default']), states(['ERROR']))
        self.assertEqual(
            (['error', 'pending'], ['default']), states(['ERROR', 'PENDING']))
        self.assertIn('pending', states(['REBUILD'])[0])


class ListTestCase(test.NoDBTestCase):

    def test_columns(self):
        for hidden, column in (False, 'vm_state'), (True, '_vm_state_hidden'):
            with pending.hidden(hidden), mock.patch.object(
                    instance_list, 'InstanceLister') as lister:
                instance_list.get_instances_sorted(
                    mock.sentinel.ctx, {'vm_state': ['error'], 'deleted': 0},
                    5, 'marker', [], ['created_at', 'vm_state'],
                    ['asc', 'desc'], batch_size=3)
                instance_list.get_instances_sorted(
                    mock.sentinel.ctx, {}, None, None, [], None, None)
            self.assertEqual([
                mock.call(['created_at', column], ['asc', 'desc'],
                          cells=None, batch_size=3),
                mock.call().get_records_sorted(
                    mock.sentinel.ctx, {column: ['error'], 'deleted': 0},
                    5, 'marker', columns_to_join=[],
                    cell_down_support=False),
                mock.call([], None, cells=None, batch_size=None),
                mock.call().get_records_sorted(
                    mock.sentinel.ctx, {}, None, None, columns_to_join=[],
                    cell_down_support=False),
            ], lister.mock_calls)

    def test_column_of_a_row(self):
        for state, hidden in (('pending', 'error'), ('error', 'error'),
                              ('active', 'active'), (None, None)):
            row = models.Instance(vm_state=state)
            self.assertEqual(hidden, row[pending.HIDDEN_COLUMN])

    def test_column_in_sql(self):
        self.assertEqual(
            'CASE WHEN (instances.vm_state = :vm_state_1) THEN :param_1 '
            'ELSE instances.vm_state END',
            str(getattr(models.Instance, pending.HIDDEN_COLUMN).expression))
