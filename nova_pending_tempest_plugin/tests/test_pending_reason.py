# SPDX-License-Identifier: Apache-2.0

"""Why a server waits, and a rebuild that corrects what it waits for."""

from oslo_serialization import jsonutils
from tempest.lib.common.utils import data_utils
from tempest.lib import decorators
from tempest.lib import exceptions

from nova_pending_tempest_plugin import base

OWNERS = {'since', 'attempts', 'last_attempt', 'reason', 'message', 'advice',
          'asked_to_wait'}


class PendingReasonTest(base.BasePendingTest):
    """A server whose flavor requires a trait that no host has."""

    feature = 'reason'

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting_server()
        self.addCleanup(self.delete_server, self.server['id'])

    def _pending(self, client=None, query=''):
        client = client or self.servers_client
        response, body = client.get(
            'servers/%s/pending%s' % (self.server['id'], query))
        client.expected_success(200, response.status)
        return jsonutils.loads(body)['pending']

    @decorators.idempotent_id('0f6a2b0e-9a0b-4f0e-8b57-2c9f4f1c7a01')
    def test_owner_sees_why(self):
        for client in self.servers_client, self.reader:
            shown = self._pending(client)
            self.assertEqual(OWNERS, set(shown))
            self.assertEqual('nothing_fits', shown['reason'])
            self.assertEqual(1, shown['attempts'])
            self.assertEqual(self.server['created'], shown['since'])
            self.assertIn('No valid host was found', shown['message'])
            self.assertTrue(shown['advice'])

    @decorators.idempotent_id('d7b6c3a4-52a1-47f6-9d0c-5f1c6d27be02')
    def test_administrator_sees_hosts(self):
        shown = self._pending(self.admin)
        self.assertIn(self.trait, shown['requests'][0])
        self.assertTrue(shown['hosts'])
        host = shown['hosts'][0]
        self.assertEqual({'host', 'uuid', 'refused_by'}, set(host))
        named = self._pending(self.admin, '?host=' + host['host'])
        self.assertEqual({host['host']},
                         {each['host'] for each in named['hosts']})

    @decorators.idempotent_id('6a4b1e90-3c58-4d27-9f10-7e2d8b5c4f08')
    def test_server_that_is_not_created_is_judged(self):
        asked = jsonutils.dumps({'pending': {'server': {
            'flavorRef': self.flavor, 'imageRef': self.image_ref,
            'project_id': self.server['tenant_id']}}})
        response, body = self.admin.post('pending', asked)
        self.admin.expected_success(200, response.status)
        shown = jsonutils.loads(body)['pending']
        self.assertEqual(
            ('nothing_fits', self._pending(self.admin)['requests'], []),
            (shown['reason'], shown['requests'], shown['hosts']))
        self.assertRaises(exceptions.Forbidden, self.servers_client.post,
                          'pending', asked)

    @decorators.idempotent_id('5c0a9a37-8b0e-4b0b-a1d5-78c2a0f1ce03')
    def test_others_do_not_see_it(self):
        self.assertRaises(exceptions.NotFound, self._pending, self.other)

    @decorators.idempotent_id('e1c4f2d9-6f7d-4a57-8d9a-0b6d5a93fe04')
    def test_older_microversion(self):
        with base.microversion(self.microversions['rebuild']):
            self.assertRaises(exceptions.NotFound, self._pending)

    @decorators.idempotent_id('9be6d7f0-4a3c-49c5-93f4-3d1f62b7aa05')
    def test_another_flavor_builds_it(self):
        before = self.servers_client.show_server(
            self.server['id'])['server']
        answer = self.rebuild(
            self.server['id'], flavorRef=self.flavor_ref,
            availability_zone=None)
        self.assertEqual('BUILD', answer['status'])
        built = self.wait_until(self.server['id'], 'ACTIVE')
        self.assertNotEqual(before['flavor']['original_name'],
                            built['flavor']['original_name'])
        self.assertEqual(before['created'], built['created'])
        self.assertRaises(exceptions.Conflict, self._pending)

    @decorators.idempotent_id('3f5d8c12-0d7e-4e0f-b1a6-64f6a58c7b06')
    def test_unknown_flavor_is_refused(self):
        self.assertRefused(
            exceptions.BadRequest, self.server['id'], self.rebuild,
            self.server['id'], flavorRef=data_utils.rand_uuid())

    @decorators.idempotent_id('b8a7e9d3-7c21-4b0d-8e64-9a0d3e5f2c07')
    def test_running_server_is_refused(self):
        running = self.create_test_server(wait_until='ACTIVE')
        self.addCleanup(self.delete_server, running['id'])
        self.assertRefused(
            exceptions.BadRequest, running['id'], self.rebuild,
            running['id'], flavorRef=self.flavor_ref_alt)
