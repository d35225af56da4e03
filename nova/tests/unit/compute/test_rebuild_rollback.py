# SPDX-License-Identifier: Apache-2.0

from unittest import mock

import fixtures
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import rebuild_rollback
from nova.compute import task_states
from nova.compute import vm_states
from nova.conductor import manager
from nova import context as nova_context
from nova import exception
from nova import objects
from nova import test
from nova.tests.unit import fake_instance


class RollbackBase(test.NoDBTestCase):
    """A server that nova-api has prepared for a rebuild with a new image."""

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.before = {'image_os_distro': 'old', 'image_os_type': 'linux',
                       'image_kernel_id': 'nokernel'}
        self.instance = fake_instance.fake_instance_obj(
            self.context, uuid=uuids.instance, image_ref='', host='host',
            vm_state=vm_states.ACTIVE, task_state=task_states.REBUILDING,
            os_type='windows', kernel_id=uuids.kernel,
            system_metadata={'image_os_distro': 'new', 'other': 'kept'},
            expected_attrs=['system_metadata'])
        self.get = self.patch(
            'nova.objects.Instance.get_by_uuid', return_value=self.instance)
        self.save = self.patch('nova.objects.Instance.save')
        self.fault = self.patch('nova.compute.utils.'
                                'add_instance_fault_from_exc')

    def patch(self, name, **kwargs):
        return self.useFixture(fixtures.MockPatch(name, **kwargs)).mock

    def assertRestored(self):
        self.assertEqual(
            {**self.before, 'other': 'kept'}, self.instance.system_metadata)
        self.assertEqual(
            ('', 'linux', ''), (self.instance.image_ref, self.instance.os_type,
                                self.instance.kernel_id))
        self.save.assert_called_once_with(
            expected_task_state=[task_states.REBUILDING, None])


class RestoreUnaskedTestCase(RollbackBase):

    def restore(self):
        # Nova gives a server whose rebuild found no host this image.
        self.instance.image_ref = uuids.image
        rebuild_rollback.restore_unasked(
            self.context, self.instance, self.before)

    def test_server_in_rebuild(self):
        self.restore()
        self.assertRestored()
        self.fault.assert_called_once()
        self.assertIsNone(self.instance.task_state)

    def test_server_for_which_no_host_was_found(self):
        """The server is in ERROR, and has a fault."""
        self.get.return_value = objects.Instance(task_state=None)
        self.restore()
        self.assertRestored()
        self.fault.assert_not_called()

    def test_server_that_is_deleted(self):
        self.get.side_effect = exception.InstanceNotFound(instance_id='')
        self.restore()
        self.save.assert_not_called()

    def test_server_that_is_being_deleted(self):
        self.save.side_effect = exception.UnexpectedDeletingTaskStateError(
            instance_uuid='', expected={}, actual={})
        self.restore()
        self.assertRestored()


class ConductorTestCase(RollbackBase):

    def setUp(self):
        super().setUp()
        for name in 'start', 'finish_with_failure':
            self.patch('nova.objects.InstanceActionEvent.event_' + name)
        self.patch('nova.objects.Migration.get_by_instance_and_status',
                   side_effect=exception.MigrationNotFoundByStatus(
                       instance_id='', status=''))
        self.manager = manager.ComputeTaskManager()
        self.state = self.patch(
            'nova.conductor.manager.ComputeTaskManager.'
            '_set_vm_state_and_notify')
        self.validate = self.patch(
            'nova.conductor.manager.ComputeTaskManager.'
            '_validate_image_traits_for_rebuild')

    def rebuild(self, error, reimage=True):
        self.validate.side_effect = error
        self.assertRaises(
            type(error), self.manager.rebuild_instance, self.context,
            self.instance, uuids.old_image, uuids.image, [], 'secret',
            self.before, mock.sentinel.bdms, recreate=False,
            on_shared_storage=False, request_spec=objects.RequestSpec(),
            reimage_boot_volume=reimage)

    def test_image_that_cannot_be_read(self):
        self.rebuild(exception.ImageNotFound(image_id=uuids.image))
        self.assertRestored()
        self.assertIsNone(self.instance.task_state)

    def test_scheduler_that_does_not_answer(self):
        self.rebuild(messaging.MessagingTimeout())
        self.assertRestored()
        self.assertIsNone(self.instance.task_state)

    def test_host_that_does_not_fit_the_image(self):
        self.get.return_value = objects.Instance(task_state=None)
        self.save.reset_mock()
        with mock.patch.object(objects.RequestSpec, 'obj_load_attr'):
            self.rebuild(exception.NoValidHost(reason=''))
        self.state.assert_called_once()
        self.assertEqual('', self.instance.image_ref)
        self.assertEqual(self.before['image_os_distro'],
                         self.instance.system_metadata['image_os_distro'])

    def test_server_that_boots_from_an_image(self):
        self.instance.image_ref = uuids.image
        self.rebuild(messaging.MessagingTimeout())
        self.save.assert_not_called()
        self.assertEqual(task_states.REBUILDING, self.instance.task_state)
