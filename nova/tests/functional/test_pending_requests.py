# SPDX-License-Identifier: Apache-2.0
"""Every request to a waiting server against the same one to ERROR in cell0."""

from nova import context as nova_context
from nova import objects
from nova.tests.functional import full_cloud
from nova.tests.functional import microversions
from nova.tests.functional import server_requests

RELEASED = microversions.RELEASED
PENDING = microversions.PENDING


class SameRequestTestCase(full_cloud.FullCloudTestCase):

    def setUp(self):
        super().setUp()
        self.flags(use_pending_state=False)
        self.error = self.create_waiting('ERROR', name='patient')
        self.flags(use_pending_state=True)
        self.pending = self.create_waiting(name='patient')

    def compare(self, api, method, path, body=None, may_show=False):
        """Ask both servers for the same, expect the same.

        Nova refuses one with 409 for its state and the other because it was
        never launched: the sentences may differ, and neither names PENDING.

        :param may_show: whether the answer may show the new state
        :returns: the code
        """
        expected = server_requests.ask(
            api, method, path, self.error, body)
        code, text = server_requests.ask(
            api, method, path, self.pending, body)
        if may_show:
            text = text.replace('PENDING', 'ERROR').replace('pending', 'error')
        if code == 409:
            if not may_show:
                self.assertNotIn('pending', text.lower())
            text = expected[1]
        self.assertEqual(expected, (code, text), (
            api.microversion, method, path, body, api is self.admin_api))
        return code

    def compare_all(self, requests, apis=None, may_show=False):
        for api in apis or (self.api, self.admin_api):
            for method, path, body in requests:
                self.compare(api, method, '/servers/SERVER' + path, body,
                             may_show=may_show)

    def both(self, change):
        """Change both servers in the database."""
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt:
            for server in (self.error, self.pending):
                instance = objects.Instance.get_by_uuid(cctxt, server['id'])
                change(instance)
                instance.save()

    def test_earlier_microversions(self):
        for version in ('2.1', RELEASED):
            self.speak(version)
            self.compare_all(
                server_requests.REQUESTS + server_requests.ACTIONS)

    def test_from_2_105(self):
        self.speak(PENDING)
        self.compare_all(server_requests.REQUESTS + server_requests.ACTIONS,
                         may_show=True)

    def test_locked(self):
        self.assertEqual(202, self.compare(
            self.admin_api, 'POST', '/servers/SERVER/action',
            {'lock': {'locked_reason': 'because'}}))
        self.speak(RELEASED)
        self.compare_all(server_requests.ACTIONS, apis=[self.api])
        self.assertEqual(202, self.compare(
            self.admin_api, 'POST', '/servers/SERVER/action',
            {'unlock': None}))

    def test_task_in_progress(self):
        self.both(lambda instance: setattr(
            instance, 'task_state', 'deleting'))
        self.speak(RELEASED)
        self.compare_all(server_requests.ACTIONS, apis=[self.admin_api])

    def test_other_resources(self):
        for version in ('2.1', RELEASED, PENDING):
            self.speak(version)
            for method, path, body in server_requests.ELSEWHERE:
                self.compare(self.admin_api, method, path, body,
                             may_show=version == PENDING)
