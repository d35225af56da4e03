# SPDX-License-Identifier: Apache-2.0

from unittest import mock

from oslo_serialization import jsonutils

from nova.tests.unit.cloud import base
from tools.cloud import client
from tools.cloud import errors
from tools.cloud import processes
from tools.cloud import settings

PROGRAM = '''#!/bin/sh
echo "$OS_CLOUD" "$@"
case "$1" in
    refused) echo no >&2; exit 1;;
    slow) sleep 0.5;;
esac
'''


class ClientTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        program = self.state / 'bin/openstack'
        program.parent.mkdir()
        program.write_text(PROGRAM)
        program.chmod(0o755)
        patch = mock.patch.object(settings, 'PREFIX', self.state)
        patch.start()
        self.addCleanup(patch.stop)
        self.shown = []
        running = processes.Processes(self.state)
        self.addCleanup(running.close, grace=0)
        self.client = client.Client(self.cloud, running, self.shown.append)

    def test_command_is_shown_with_what_the_client_answers(self):
        answer = self.client.run('server list -c "Fixed IP"')
        self.assertEqual('owner server list -c Fixed IP\n', answer)
        self.assertEqual(['$ openstack server list -c "Fixed IP"\n'
                          'owner server list -c Fixed IP\n'], self.shown)

    def test_refusal_is_shown_and_fails(self):
        error = self.assertRaises(
            errors.StepFailed, self.client.run, 'refused')
        self.assertEqual(4, error.exit_code)
        self.assertEqual(['$ openstack refused\nowner refused\nno\n'],
                         self.shown)

    def test_refusal_that_is_wanted_does_not_fail(self):
        self.client.run('refused', fails=True)
        self.assertEqual(1, len(self.shown))

    def test_success_where_a_refusal_is_wanted_fails(self):
        self.assertRaises(
            errors.StepFailed, self.client.run, 'server list', fails=True)

    def test_password_is_not_shown(self):
        error = self.assertRaises(
            errors.StepFailed, self.client.run,
            'slow --password ' + self.cloud.password, fails=True)
        for text in (self.shown[0].splitlines()[0], str(error)):
            self.assertIn('slow --password ***', text)
            self.assertNotIn(self.cloud.password, text)

    def test_commands_side_by_side_are_shown_in_their_order(self):
        self.client.run_together('slow one', 'two', 'three')
        self.assertEqual(
            ['$ openstack slow one', '$ openstack two', '$ openstack three'],
            [text.splitlines()[0] for text in self.shown])

    def test_one_refusal_side_by_side_fails(self):
        self.assertRaises(
            errors.StepFailed, self.client.run_together, 'one', 'refused')


class ApiTestCase(base.CloudTestCase):

    def setUp(self):
        super().setUp()
        self.session = mock.Mock()
        patch = mock.patch('tools.cloud.identity.connect',
                           return_value=self.session)
        self.connect = patch.start()
        self.addCleanup(patch.stop)
        self.shown = []
        self.api = client.Api(self.cloud, self.shown.append)

    def answer(self, code, body):
        self.session.request.return_value = mock.Mock(
            status_code=code, reason='why', text=jsonutils.dumps(body),
            json=lambda: body)

    def test_get_asks_at_the_microversion(self):
        self.answer(200, {'servers': []})
        self.assertEqual({'servers': []}, self.api.get('/servers', '2.105'))
        self.connect.assert_called_once_with(self.cloud, 'owner')
        self.session.request.assert_called_once_with(
            self.cloud.url('nova') + '/servers', 'GET', json=None,
            raise_exc=False,
            headers={'OpenStack-API-Version': 'compute 2.105'})

    def test_get_is_shown_with_its_answer(self):
        self.answer(200, {'pending': {'reason': 'no_room'}})
        self.assertEqual({'pending': {'reason': 'no_room'}},
                         self.api.show('/servers/x/pending', '2.107'))
        self.assertEqual([
            '> GET /servers/x/pending\n'
            '> OpenStack-API-Version: compute 2.107',
            '{\n "pending": {\n  "reason": "no_room"\n }\n}\n'],
            self.shown)

    def test_post_is_shown_with_its_answer(self):
        self.answer(202, {'server': {'id': 'x', 'adminPass': 'secret'}})
        self.api.post('/servers/x/action', '2.106', {'rebuild': {}},
                      lambda body: {'id': body['server']['id']})
        self.assertEqual([
            '> POST /servers/x/action\n'
            '> OpenStack-API-Version: compute 2.106\n'
            '> {"rebuild": {}}',
            '< 202 why\n< {"id": "x"}\n'], self.shown)

    def test_other_answer_fails(self):
        self.answer(409, {'conflictingRequest': {'message': 'not now'}})
        error = self.assertRaises(
            errors.StepFailed, self.api.post, '/x', '2.106', {}, None)
        self.assertIn('409', str(error))
        self.assertIn('not now', str(error))
        self.assertRaises(errors.StepFailed, self.api.get, '/x', '2.1')
