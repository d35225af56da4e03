# SPDX-License-Identifier: Apache-2.0

"""What a server that waits in PENDING sends to who reads notifications."""

import base64
import os

from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova.objects import base
from nova.tests import fixtures
from nova.tests.functional.notification_sample_tests \
    import notification_sample_base


class PendingNotificationSampleTestCase(
        notification_sample_base.NotificationSampleTestBase):

    def setUp(self):
        self.flags(use_pending_state=True)
        self.flags(notify_on_state_change='vm_and_task_state',
                   group='notifications')
        super().setUp()
        self.useFixture(fixtures.NeutronFixture(self))
        service_id = self.admin_api.get_service_id('nova-compute')
        self.admin_api.put_service_force_down(service_id, True)
        self.admin_api.post_flavor({'flavor': {
            'name': 'small', 'ram': 512, 'vcpus': 1, 'disk': 1,
            'id': '7c5d6a52-0f0a-4a5c-8f2e-6f1c1a2f8d11'}})
        self.notifier.reset()

    def _get_notification_sample(self, sample):
        return os.path.normpath(os.path.join(
            os.path.dirname(os.path.abspath(__file__)), '..', '..', '..', '..',
            'doc', 'notification_samples', sample + '.json'))

    def create_waiting(self, status='PENDING', **server):
        """Create a server for which there is no host; wait until it waits."""
        body = self._build_server(
            name='waiting', networks='none',
            flavor_id='7c5d6a52-0f0a-4a5c-8f2e-6f1c1a2f8d11',
            image_uuid='155d900f-4e14-4e4c-a73d-069cbf4541e6')
        body.update(server)
        server = self._wait_for_state_change(
            self.api.post_server({'server': body}), status)
        # Sent after the state is saved.
        self._wait_for_notification('compute_task.build_instances.error')
        return self.admin_api.get_server(server['id'])

    def delete(self, server):
        self.api.delete_server(server['id'])
        self._wait_for_notification('instance.delete.end')

    def legacy(self, event_type):
        """Return the payloads of the unversioned notifications of a type."""
        return [one.payload for one in self.notifier.notifications
                if one.event_type == event_type]

    def legacy_states(self):
        return [(update['old_state'], update['state'])
                for update in self.legacy('compute.instance.update')]

    def verify(self, sample, server, actual, **replacements):
        self._verify_notification(sample, actual=actual, replacements=dict({
            'uuid': server['id'],
            'reservation_id': server['OS-EXT-SRV-ATTR:reservation_id'],
        }, **replacements))

    def test_a_server_that_is_put_into_cell0(self):
        server = self.create_waiting()
        [update] = self._get_notifications('instance.update')
        self.verify('instance-update-pending', server, update)
        self.assertEqual([('building', 'pending')], self.legacy_states())

    def test_why_a_server_is_put_into_cell0(self):
        server = self.create_waiting()
        [error] = self._get_notifications('compute_task.build_instances.error')
        self._verify_notification(
            'compute_task-build_instances-error-pending', actual=error,
            replacements={
                'instance_uuid': server['id'],
                'request_spec.instance_uuid': server['id'],
                'request_spec.pci_requests.instance_uuid': server['id'],
                # Their version differs from release to release.
                'request_spec.image.properties': self.ANY,
                'reason.function_name': self.ANY,
                'reason.module_name': self.ANY,
                'reason.traceback': self.ANY})
        [legacy] = self.legacy('compute_task.build_instances')
        self.assertEqual('pending', legacy['state'])
        self.assertEqual(server['id'], legacy['instance_id'])

    def test_a_server_that_is_deleted(self):
        server = self.create_waiting()
        self.notifier.reset()
        self.delete(server)
        [start] = self._get_notifications('instance.delete.start')
        self.verify('instance-delete-start-pending', server, start)
        [end] = self._get_notifications('instance.delete.end')
        self.verify('instance-delete-end-pending', server, end)
        self.assertEqual([('pending', 'pending'), ('pending', 'deleted')],
                         self.legacy_states())

    def test_a_server_that_is_set_to_error(self):
        server = self.create_waiting()
        self.notifier.reset()
        # An action is found by it.
        request_id = self.mock_gen_request_id.return_value = 'req-' + uuids.id
        self.admin_api.post_server_action(
            server['id'], {'os-resetState': {'state': 'error'}})
        [update] = self._get_notifications('instance.update')
        self.verify('instance-update-pending-error', server, update,
                    request_id=request_id, action_initiator_user='admin')
        self.assertEqual([('pending', 'error')], self.legacy_states())

    def test_the_versions_without_the_option_are_those_of_the_release(self):
        self.flags(use_pending_state=False)
        self.delete(self.create_waiting('ERROR'))
        seen = dict(self.versions(self.notifier.versioned_notifications))
        self.assertLess({'InstanceUpdatePayload', 'InstanceActionPayload',
                         'ComputeTaskPayload'}, seen.keys())
        for name, version in seen.items():
            self.assertEqual(self.version_before(name), version, name)
        self.assertNotIn(('state', 'pending'), self.states())

    @staticmethod
    def version_before(name):
        """Return the last version of a payload that has no PENDING."""
        payload, = (each for each in base.NovaObjectRegistry.
                    notification_classes if each.__name__ == name)
        return vars(payload).get('VERSION_BEFORE_PENDING') or payload.VERSION

    def versions(self, value):
        """Yield the name and version of each object in a structure."""
        for one in self.structures(value):
            if 'nova_object.name' in one:
                yield one['nova_object.name'], one['nova_object.version']

    def states(self):
        """Return the keys and values that say PENDING as a state."""
        sent = [self.notifier.versioned_notifications,
                [one.payload for one in self.notifier.notifications]]
        return {(key, one[key]) for one in self.structures(sent)
                for key in ('state', 'old_state') if key in one}

    def structures(self, value):
        """Yield each dictionary in a structure, at any depth."""
        if isinstance(value, dict):
            yield value
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                yield from self.structures(one)

    def test_the_word_comes_with_the_new_version(self):
        self.delete(self.create_waiting())
        self.assertIn(('state', 'pending'), self.states())
        for notification in self.notifier.versioned_notifications:
            payload = notification['payload']
            if 'state' not in payload['nova_object.data']:
                continue
            said = 'pending' in {
                one[key] for one in self.structures(payload)
                for key in ('state', 'old_state') if key in one}
            before = self.version_before(payload['nova_object.name'])
            self.assertEqual(
                said, before != payload['nova_object.version'], notification)

    def test_nothing_secret_is_sent(self):
        user_data = base64.b64encode(b'secret-of-the-owner').decode()
        server = self.create_waiting(
            user_data=user_data, adminPass='password-of-root')
        self.delete(server)
        sent = jsonutils.dumps([
            self.notifier.versioned_notifications,
            [one.payload for one in self.notifier.notifications]], default=str)
        self.assertIn(server['id'], sent)
        for secret in (user_data, 'secret-of-the-owner', 'password-of-root'):
            self.assertNotIn(secret, sent)
        [error] = self._get_notifications('compute_task.build_instances.error')
        for key in ('auth_token', '_context', 'user_data', 'admin_password',
                    'injected_files', 'requested_networks'):
            self.assertNotIn(key, str(error))
