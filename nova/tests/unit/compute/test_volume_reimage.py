# SPDX-License-Identifier: Apache-2.0

import contextlib
from unittest import mock

from cinderclient import exceptions as cinder_exception
import fixtures
from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids
from oslo_utils import units

from nova.compute import power_state
from nova.compute import task_states
from nova.compute import vm_states
from nova.compute import volume_reimage
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.objects import service as service_obj
from nova import test
from nova.tests.unit import fake_instance

UNFINISHED = volume_reimage.UNFINISHED
REFUSED = cinder_exception.Forbidden(403, 'Policy does not allow that.')


def _first(volume_id):
    """Return the ID of the attachment that the server has."""
    return getattr(uuids, 'first of ' + volume_id)


def _new(volume_id):
    """Return the ID of the attachment that a rebuild makes."""
    return getattr(uuids, 'new of ' + volume_id)


class FakeCinder:
    """Volumes and attachments, as the volume API shows them.

    :ivar refusal: what the next re-image fails with, or None
    :ivar reimaged: the volumes and images of the re-images
    """

    def __init__(self):
        self.volumes, self.attachments = {}, {}
        self.refusal, self.reimaged = None, []

    def add(self, volume_id, attachment_id):
        self.volumes[volume_id] = {
            'id': volume_id, 'status': 'in-use', 'size': 2, 'attachments': {}}
        self.attachments[attachment_id] = {
            'id': attachment_id, 'volume_id': volume_id, 'status': 'attached'}

    def get(self, context, volume_id):
        return dict(self.volumes[volume_id])

    def attachment_get_all(self, context, instance_id):
        return list(self.attachments.values())

    def attachment_create(self, context, volume_id, instance_uuid):
        attachment = {'id': _new(volume_id), 'volume_id': volume_id,
                      'status': 'reserved'}
        self.attachments[attachment['id']] = attachment
        return attachment

    def attachment_delete(self, context, attachment_id):
        volume_id = self.attachments.pop(attachment_id)['volume_id']
        self.volumes[volume_id]['status'] = 'reserved'

    def reimage_volume(self, context, volume_id, image_id, reimage_reserved):
        if self.refusal is not None:
            raise self.refusal
        self.reimaged.append((volume_id, image_id))


class ReimageBase(test.NoDBTestCase):
    """A server with a root volume and another, on a host that is a mock."""

    def setUp(self):
        super().setUp()
        self.context = nova_context.get_admin_context()
        self.before = {'image_os_distro': 'old'}
        self.instance = fake_instance.fake_instance_obj(
            self.context, uuid=uuids.instance, image_ref=uuids.image,
            vm_state=vm_states.ACTIVE, task_state=task_states.REBUILDING,
            system_metadata={'image_os_distro': 'new', 'other': 'kept'},
            expected_attrs=['system_metadata'])
        self.instance.image_ref = uuids.image
        self.instance.migration_context = None
        for name in ('Instance.save', 'Instance.get_network_info',
                     'BlockDeviceMapping.save'):
            self.useFixture(fixtures.MockPatch('nova.objects.' + name))
        self.useFixture(fixtures.MockPatch(
            'nova.objects.Instance.get_by_uuid', return_value=self.instance))
        self.useFixture(fixtures.MockPatch(
            'nova.volume.cinder.is_microversion_supported'))
        self.useFixture(fixtures.MockPatchObject(
            volume_reimage, '_TRY_AGAIN_AFTER', (0,)))
        self.cinder = FakeCinder()
        self.root, self.data = map(self.volume, (uuids.root, uuids.data), (
            0, -1))
        # The root comes first although it is not.
        self.bdms = objects.BlockDeviceMappingList(
            objects=[self.data, self.root])
        self.manager = mock.Mock(volume_api=self.cinder)
        self.manager.image_api.get.return_value = {
            'id': uuids.image, 'size': 3 * units.Gi}
        self.manager.driver.capabilities = {'supports_evacuate': True}
        self.manager.driver.destroy.side_effect = lambda *_args, **_kwargs: (
            self.guest(power_state.NOSTATE))
        self.guest(power_state.RUNNING)
        self.manager._detach_volume.side_effect = (
            lambda context, bdm, instance, destroy_bdm:
                self.cinder.attachment_delete(context, bdm.attachment_id))
        self.manager._prep_block_device.side_effect = self.connect
        self.wait = self.manager.virtapi.wait_for_instance_event
        self.wait.side_effect = self.event

    def volume(self, volume_id, boot_index):
        attachment_id = _first(volume_id)
        self.cinder.add(volume_id, attachment_id)
        return objects.BlockDeviceMapping(
            self.context, source_type='volume', destination_type='volume',
            boot_index=boot_index, volume_id=volume_id,
            attachment_id=attachment_id, connection_info='{"a": "b"}')

    def guest(self, state):
        self.manager._get_power_state.return_value = state

    def connect(self, context, instance, bdms):
        for bdm in bdms:
            bdm.connection_info = '{"c": "d"}'
            self.cinder.attachments[bdm.attachment_id]['status'] = 'attached'
            self.cinder.volumes[bdm.volume_id]['status'] = 'in-use'
        return {}

    @contextlib.contextmanager
    def event(self, instance, events, timeout, error_callback):
        """The event of Cinder comes in time."""
        self.assertEqual([('volume-reimaged', uuids.root)], events)
        yield

    def rebuild(self, ephemerals=(), attach=None):
        """Do what nova-compute does, and attach the volumes again."""
        attach = attach or (lambda context, instance, bdms: self.connect(
            context, instance, bdms))
        with volume_reimage.under_way(
                self.manager, self.context, self.instance, self.bdms,
                uuids.image, self.before, mock.sentinel.allocations):
            volume_reimage.rebuild(
                self.manager, self.context, self.instance,
                mock.Mock(id=uuids.image), [], 'secret',
                mock.sentinel.allocations, self.bdms, attach,
                mock.sentinel.network_info, {'ephemerals': ephemerals},
                preserve_ephemeral=False)

    def assertAttached(self):
        """The server has one attachment to each volume, and it is used."""
        self.assertEqual(
            {bdm.attachment_id: ('attached', bdm.volume_id)
             for bdm in self.bdms},
            {each['id']: (each['status'], each['volume_id'])
             for each in self.cinder.attachments.values()})
        for bdm in self.bdms:
            self.assertNotEqual({}, jsonutils.loads(bdm.connection_info))


class GoodPathTestCase(ReimageBase):

    def test_rebuild(self):
        self.rebuild()
        self.assertEqual([(uuids.root, uuids.image)], self.cinder.reimaged)
        self.assertAttached()
        self.assertEqual({_new(uuids.root), _new(uuids.data)},
                         set(self.cinder.attachments))
        self.manager._power_off_instance.assert_called_once()
        self.manager._detach_root_volume.assert_called_once_with(
            self.context, self.instance, self.root)
        self.manager.driver.destroy.assert_called_once_with(
            self.context, self.instance,
            network_info=mock.sentinel.network_info,
            block_device_info={'ephemerals': ()})
        self.manager.driver.spawn.assert_called_once()
        self.assertEqual(task_states.REBUILD_SPAWNING,
                         self.instance.task_state)
        self.assertEqual({'image_os_distro': 'new', 'other': 'kept'},
                         self.instance.system_metadata)
        self.assertEqual(uuids.image, self.instance.image_ref)

    def test_local_disks_are_kept_until_the_volume_is_reimaged(self):
        seen = []
        self.manager.driver.destroy.side_effect = lambda *_args, **kwargs: (
            seen.append((kwargs.get('destroy_disks', True),
                         bool(self.cinder.reimaged))))
        self.rebuild(ephemerals=[{'size': 1}])
        self.assertEqual([(False, False), (True, True)], seen)

    def test_guest_that_is_gone_is_not_powered_off(self):
        self.guest(power_state.NOSTATE)
        self.rebuild()
        self.manager._power_off_instance.assert_not_called()
        self.assertAttached()

    def test_refusal_of_what_cinder_works_on(self):
        """With 400 Cinder refuses what it has begun: the event is awaited."""
        def begin(*_args, **_kwargs):
            self.cinder.volumes[uuids.root]['status'] = 'downloading'
            raise cinder_exception.BadRequest(400, 'downloading')

        with mock.patch.object(self.cinder, 'reimage_volume', begin):
            self.rebuild()
        self.assertAttached()
        self.manager.driver.spawn.assert_called_once()

    def test_event_that_does_not_come(self):
        """The status of the volume tells that it is re-imaged."""
        waits = []

        @contextlib.contextmanager
        def wait(*_args, **_kwargs):
            yield
            waits.append(self.cinder.get(None, uuids.root)['status'])
            if len(waits) == 1:
                raise exception.InstanceEventTimeout()

        self.wait.side_effect = wait
        self.rebuild()
        self.assertEqual(['reserved'] * 2, waits)
        self.manager.virtapi.exit_wait_early.assert_called_once()
        self.assertEqual(1, len(self.cinder.reimaged))
        self.assertAttached()


class RefusedTestCase(ReimageBase):

    def refused(self, said):
        """A rebuild that changes nothing, and says why."""
        exc = self.assertRaises(exception.InstanceFaultRollback, self.rebuild)
        self.assertIsInstance(exc.inner_exception, volume_reimage.NotReimaged)
        self.assertIn(said, str(exc.inner_exception))
        self.assertEqual({'image_os_distro': 'old', 'other': 'kept'},
                         self.instance.system_metadata)
        self.assertEqual('', self.instance.image_ref)
        self.assertEqual(task_states.REBUILDING, self.instance.task_state)
        self.assertEqual([], self.cinder.reimaged)
        self.assertAttached()

    def test_reimage(self):
        self.cinder.refusal = REFUSED
        self.refused('Policy does not allow that.')
        spawn = self.manager.driver.spawn
        spawn.assert_called_once()
        self.assertTrue(spawn.call_args.kwargs['power_on'])

    def test_stopped_guest_stays_stopped(self):
        self.cinder.refusal = REFUSED
        self.guest(power_state.SHUTDOWN)
        self.refused('Policy does not allow that.')
        self.assertFalse(
            self.manager.driver.spawn.call_args.kwargs['power_on'])

    def test_before_the_guest_is_touched(self):
        self.manager.image_api.get.side_effect = exception.ImageNotFound(
            image_id=uuids.image)
        self.refused(uuids.image)
        self.manager.driver.destroy.assert_not_called()
        self.manager._power_off_instance.assert_not_called()
        self.assertEqual(_first(uuids.root), self.root.attachment_id)

    def test_volume_of_several_servers(self):
        self.cinder.volumes[uuids.root]['attachments'] = {uuids.other: {}}
        self.refused('attached to other servers too')
        self.manager.driver.destroy.assert_not_called()

    def test_volume_that_cannot_be_reserved(self):
        with mock.patch.object(self.cinder, 'attachment_create',
                               side_effect=REFUSED):
            self.refused('Policy does not allow that.')
        self.manager.driver.destroy.assert_not_called()

    def test_answer_that_is_lost(self):
        """The status of the volume says that nothing has begun."""
        self.cinder.refusal = cinder_exception.ClientException(504, 'Gateway')
        self.refused('Gateway')

    def test_volume_that_is_not_attached_again(self):
        self.cinder.refusal = REFUSED
        self.manager._prep_block_device.side_effect = exception.InternalError(
            err='no such path')
        exc = self.assertRaises(volume_reimage.ReimageFailed, self.rebuild)
        self.assertIn('no such path', str(exc))
        self.assertIn(UNFINISHED, self.instance.system_metadata)

    def test_server_that_is_deleted(self):
        self.cinder.refusal = REFUSED
        self.manager._detach_root_volume.side_effect = lambda *_args: (
            setattr(self.instance, 'task_state', task_states.DELETING))
        self.assertRaises(exception.InstanceNotFound, self.rebuild)
        self.assertEqual({}, self.cinder.attachments)
        self.manager.driver.spawn.assert_not_called()


class FailedTestCase(ReimageBase):
    """Cinder has accepted the re-image."""

    def failed(self, said):
        exc = self.assertRaises(volume_reimage.ReimageFailed, self.rebuild)
        self.assertIn(said, str(exc))
        self.assertEqual(uuids.root, self.instance.system_metadata[UNFINISHED])
        self.assertEqual({_new(uuids.root), _new(uuids.data)},
                         set(self.cinder.attachments))
        self.manager.driver.spawn.assert_not_called()

    def test_event(self):
        @contextlib.contextmanager
        def wait(*_args, **_kwargs):
            yield
            raise exception.ReimageException()

        self.wait.side_effect = wait
        self.failed('')

    def test_status(self):
        @contextlib.contextmanager
        def wait(*_args, **_kwargs):
            yield
            self.cinder.volumes[uuids.root]['status'] = 'error'
            raise exception.InstanceEventTimeout()

        self.wait.side_effect = wait
        self.failed('its status is error')

    def test_answer_that_is_lost(self):
        def begin(*_args, **_kwargs):
            self.cinder.volumes[uuids.root]['status'] = 'error'
            raise cinder_exception.ClientException(504, 'Gateway')

        self.wait.side_effect = lambda *args, **kwargs: mock.patch.object(
            self.cinder, 'reimage_volume', begin)
        self.rebuild()
        self.manager.driver.spawn.assert_called_once()


class OtherServicesTestCase(ReimageBase):

    def test_host_that_undoes_a_reimage(self):
        self.instance.host = 'host'
        for version in (service_obj.UNDOES_REIMAGE - 1, None):
            with mock.patch.object(
                    objects.Service, 'get_by_host_and_binary',
                    return_value=version and mock.Mock(version=version)):
                self.assertRaises(
                    volume_reimage.HostTooOld, volume_reimage.check_host,
                    self.context, self.instance)
        with mock.patch.object(
                objects.Service, 'get_by_host_and_binary',
                return_value=mock.Mock(version=service_obj.UNDOES_REIMAGE)):
            volume_reimage.check_host(self.context, self.instance)
        self.instance.host = None
        volume_reimage.check_host(self.context, self.instance)

    def is_left(self):
        return volume_reimage.is_left_by_failure(
            self.context, self.cinder, self.instance, self.bdms)

    def test_volumes_that_a_failure_has_left(self):
        self.cinder.volumes[uuids.root]['status'] = 'error'
        self.assertFalse(self.is_left())
        self.instance.vm_state = vm_states.ERROR
        self.assertFalse(self.is_left())
        self.instance.system_metadata[UNFINISHED] = uuids.root
        self.assertTrue(self.is_left())
        del self.cinder.attachments[self.root.attachment_id]
        self.assertFalse(self.is_left())

    def test_attachments_of_a_server_that_is_deleted(self):
        self.cinder.attachment_create(None, uuids.root, uuids.instance)
        kept = set(self.cinder.attachments)
        for attachments in kept, kept - {_new(uuids.root)}:
            volume_reimage.delete_leftovers(
                self.context, self.cinder, self.instance, self.bdms)
            self.assertEqual(attachments, set(self.cinder.attachments))
            self.instance.system_metadata[UNFINISHED] = uuids.root
