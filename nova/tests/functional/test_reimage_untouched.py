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

"""Rebuilds of volume-backed servers that end outside of the re-image."""

from unittest import mock

import oslo_messaging as messaging

from nova import exception
from nova import objects
from nova.scheduler.client import query
from nova.tests.functional import test_volume_reimage_exchange
from nova.tests.functional import test_volume_reimage_refused
from nova.tests.functional import volume_reimage_base

OTHER_IMAGE = volume_reimage_base.OTHER_IMAGE


def without_tests(cls):
    """Return a class without its tests, for its helpers."""
    return type(cls.__name__, (cls,), {
        name: None for name in dir(cls) if name.startswith('test_')})


class BeforeTestCase(without_tests(
        test_volume_reimage_refused.RefusedTestCase)):
    """Nobody has touched the guest when it fails."""

    def test_image_cannot_be_read_by_the_host(self):
        released = objects.ImageMeta.from_image_ref
        # The conductor reads it first.
        answers = [released, mock.Mock(
            side_effect=exception.GlanceConnectionFailed(
                server='glance', reason='down'))]

        def read(*args):
            return (answers.pop(0) if answers else released)(*args)

        with mock.patch.object(objects.ImageMeta, 'from_image_ref', read):
            self.as_before(lambda: None, 'glance')
        self.assertEqual([], answers)
        self.rebuild()
        self.assertRebuilt()

    def test_preserve_ephemeral(self):
        rebuild = self.rebuild
        with mock.patch.object(self, 'rebuild', lambda **body: rebuild(
                preserve_ephemeral=True, **body)):
            self.as_before(lambda: None, 'preserving ephemeral')
        self.rebuild()
        self.assertRebuilt()

    def test_driver_with_a_way_of_its_own(self):
        with mock.patch.object(
                self.driver, 'rebuild', side_effect=exception.NovaException(
                    'no volume-backed servers here')):
            self.as_before(lambda: None, 'no volume-backed servers here')
        self.rebuild()
        self.assertRebuilt()

    # In the conductor.

    def test_image_cannot_be_read_by_the_conductor(self):
        image = dict(self.glance.show(None, OTHER_IMAGE))
        with mock.patch(
                'nova.conductor.manager.ComputeTaskManager.'
                '_validate_image_traits_for_rebuild',
                side_effect=exception.ImageNotFound(image_id=image['id'])):
            self.not_begun('Image')

    def test_scheduler_does_not_answer(self):
        with mock.patch.object(
                query.SchedulerQueryClient, 'select_destinations',
                side_effect=messaging.MessagingTimeout('no answer')):
            self.not_begun('MessagingTimeout')

    def not_begun(self, said):
        before = self.in_database()
        self.api.post_server_action(self.server['id'], {'rebuild': {
            'imageRef': OTHER_IMAGE, 'name': 'renamed', 'metadata': {'a': '1'},
            'user_data': 'bmV3'}})
        self._wait_for_assert(lambda: self.assertEqual(
            'None', self.in_database()['instance']['task_state']))
        after = self.in_database()
        for part in ('spec', 'instance', 'system_metadata'):
            self.assertEqual(before[part], after[part])
        self.assertIn(said, after['fault'].message)
        self.assertAttached()
        self.assertEqual([], self.tables_with('bmV3'))
        self.api.post_server_action(
            self.server['id'], {'reboot': {'type': 'HARD'}})
        self._wait_for_state_change(self.server, 'ACTIVE')

    def test_deleted_while_the_scheduler_does_not_answer(self):
        def deleted(*args, **kwargs):
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            raise messaging.MessagingTimeout('no answer')

        with mock.patch.object(query.SchedulerQueryClient,
                               'select_destinations', deleted):
            self.api.post_server_action(
                self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
            self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)


class SoftDeletedTestCase(volume_reimage_base.VolumeReimageBase):
    """It is deleted in a way that can be undone while Cinder works."""

    def soft_deleted(self, exc=None):
        self.flags(reclaim_instance_interval=3600)

        def delete():
            self.api.delete_server(self.server['id'])
            self._wait_for_state_change(self.server, 'SOFT_DELETED')
            if exc:
                raise exc

        self.cinder.failures['reimage_volume'] = [delete]
        self.api.post_server_action(
            self.server['id'], {'rebuild': {'imageRef': OTHER_IMAGE}})
        self._wait_for_assert(self.has_ended)
        server = self.admin_api.get_server(self.server['id'])
        self.assertEqual(('SOFT_DELETED', None), (
            server['status'], server['OS-EXT-STS:task_state']))
        for volume in (self.root, self.data):
            self.assertEqual([self.server['id']], [
                each[0] for each in self.cinder.attached(volume)])
        self.api.post_server_action(self.server['id'], {'forceDelete': None})
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)

    def has_ended(self):
        events = [
            event for action in self.admin_api.get_instance_actions(
                self.server['id']) if action['action'] == 'rebuild'
            for event in self.admin_api.api_get(
                '/servers/%s/os-instance-actions/%s' % (
                    self.server['id'], action['request_id'])).body[
                        'instanceAction']['events']
            if event['event'] == 'compute_rebuild_instance']
        self.assertTrue(events and events[0]['finish_time'])

    def test_refused(self):
        self.soft_deleted(volume_reimage_base.REFUSALS['policy'])

    def test_done(self):
        self.soft_deleted()

    def test_in_error(self):
        self.cinder.outcome = 'error'
        self.soft_deleted()


class HostIsDownTestCase(without_tests(
        test_volume_reimage_exchange.KilledTestCase)):
    """nova-compute dies, and the server is deleted without its host."""

    def deleted_locally(self, when, call, number):
        getattr(self.cinder, when)[call] = [None] * number + [self.killed]
        self.ask_and_wait()
        service = self.admin_api.get_services(
            binary='nova-compute', host=self.host)[0]['id']
        self.admin_api.put_service_force_down(service, True)
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.attachments)
        for volume in (self.root, self.data):
            self.assertEqual('available', self.cinder.status(volume))

    def test_with_the_original_attachment(self):
        self.deleted_locally('failures', 'attachment_delete', 1)

    def test_with_the_attachment_in_its_place(self):
        self.deleted_locally('failures_after', 'attachment_create', 0)


class SecretTestCase(volume_reimage_base.VolumeReimageBase):

    def test_user_data_of_before_a_reimage_that_failed(self):
        old, new = 'c2VjcmV0', 'bmV3'
        self.rebuild(user_data=old)
        self.assertEqual(['instances'], self.tables_with(old))
        self.cinder.outcome = 'error'
        self.assertEqual('ERROR', self.rebuild(user_data=new)['status'])
        self.assertEqual([], self.tables_with(old))
        self.assertEqual(['instances'], self.tables_with(new))
