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

"""Rebuilds a volume-backed server with a new image, or leaves it as it was.

under_way() is around the whole of the released rebuild. Before the guest is
touched prepare() asks Cinder what can be asked, and reserves the root volume
for the server once more. rebuild() then takes the released steps: guest off
and destroyed, the attachments exchanged for ones without a host
(nova.compute.reimage_attachment), the re-image (nova.compute.cinder_reimage),
the attachments connected, guest spawned.

Until Cinder has accepted the re-image nothing has changed on the volume, and
whatever fails is undone: NotReimaged. Afterwards the server is in ERROR and
its volumes stay reserved for it: ReimageFailed. What of that the next rebuild
can meet is in Attachment.adopt().
"""

import contextlib
import contextvars
import functools

from oslo_log import log as logging
from oslo_utils import excutils

from nova.compute import cinder_reimage
from nova.compute import power_state
from nova.compute import reimage_attachment
from nova.compute import reimage_rollback
from nova.compute import reimage_state
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova import context_value
from nova import exception
from nova.i18n import _
from nova import objects
from nova.volume import cinder

LOG = logging.getLogger(__name__)

# The microversion of Cinder that re-images a reserved volume.
_CINDER_API = '3.68'

_current = contextvars.ContextVar('volume_reimage', default=None)


@contextlib.contextmanager
def under_way(manager, context, instance, bdms, image_id, system_metadata):
    """Leave no wreck of a server whose root volume is not re-imaged.

    :param manager: the ComputeManager
    :param context: the context of the rebuild, elevated
    :param instance: the Instance, volume-backed
    :param bdms: its BlockDeviceMappingList
    :param image_id: the ID of the image
    :param system_metadata: its system metadata before the rebuild
    :raises: InstanceFaultRollback of a NotReimaged if the server is what it
        was before, InstanceNotFound if it is being deleted, ReimageFailed and
        what the released rebuild raises if it is neither
    """
    rebuild = VolumeRebuild(manager, context, instance, bdms, system_metadata)
    with context_value.within(_current, rebuild):
        try:
            rebuild.prepare(image_id)
            yield
        except Exception as exc:
            failure = rebuild.look_at(exc)
            rebuild.abandon(failure)
            if isinstance(failure, cinder_reimage.NotReimaged):
                raise exception.InstanceFaultRollback(inner_exception=failure)
            raise


def current():
    """Return what under_way() is around, None if there is nothing."""
    return _current.get()


class VolumeRebuild:
    """The rebuild of one volume-backed server with a new image."""

    def __init__(self, manager, context, instance, bdms, system_metadata):
        """Change nothing; the parameters are those of under_way()."""
        self.manager = manager
        self.volumes = manager.volume_api
        self.context = context
        self.instance = instance
        self.bdms = bdms
        self.system_metadata = system_metadata
        self.root = reimage_attachment.Attachment(
            context, self.volumes,
            compute_utils.get_root_bdm(context, instance, bdms))
        self.others = [
            reimage_attachment.Attachment(context, self.volumes, bdm)
            for bdm in bdms if bdm.is_volume and bdm is not self.root.bdm]
        self.volume = None
        self.image = None
        self.guest_state = power_state.NOSTATE
        #: Whether the guest may have been touched.
        self.has_begun = False

    # Before the guest is touched.

    def prepare(self, image_id):
        """Reserve the root volume for the server once more.

        :param image_id: the ID of the image
        :raises: NotReimaged; nothing has changed then
        """
        # First of all: a nova-compute that dies leaves what this tells of.
        self._mark_unfinished()
        self.instance.save(expected_task_state=[task_states.REBUILDING])
        try:
            cinder.is_microversion_supported(self.context, _CINDER_API)
            self.image = self.manager.image_api.get(self.context, image_id)
            self.volume = self.volumes.get(
                self.context, self.root.bdm.volume_id)
            self._reserve_root()
        except Exception as exc:
            self._undo_record()
            raise self._not_reimaged(exc)

    def _reserve_root(self):
        """Make an attachment without a host, unless there is one."""
        status = self.volume['status']
        if set(self.volume.get('attachments') or ()) - {self.instance.uuid}:
            raise exception.InvalidVolume(
                reason=_('it is attached to other servers too'))
        if status not in ('in-use', 'reserved', 'error', 'available',
                          'attaching'):
            raise exception.InvalidVolume(
                reason=_('its status is %s') % status)
        # Cinder re-images no volume that has two.
        self.root.adopt(status)
        if not self.root.is_reserved:
            self.root.reserve()

    # The released steps.

    def rebuild(self, image_meta, injected_files, admin_password, allocations,
                attach_block_devices, network_info, block_device_info):
        """Destroy the guest, re-image its root volume and spawn it again.

        The parameters are those of the released _rebuild_default_impl().

        :raises: NotReimaged, ReimageFailed, and what the drivers and the
            saves of the instance raise
        """
        self.has_begun = True
        manager, context, instance = self.manager, self.context, self.instance
        spawn = {'allocations': allocations, 'network_info': network_info}
        self.guest_state = manager._get_power_state(instance)
        try:
            if self.guest_state != power_state.NOSTATE:
                manager._power_off_instance(
                    context, instance, clean_shutdown=True)
            for attachment in self.others:
                self._detach(attachment)
            kept = self._has_local_disks(block_device_info)
            manager.driver.destroy(
                context, instance, network_info=network_info,
                block_device_info=block_device_info,
                **({'destroy_disks': False} if kept else {}))
            spawn['accel_info'] = manager._get_accel_info(context, instance)
            manager._rebuild_volume_backed_instance(
                context, instance, self.bdms, image_meta.id)
        except cinder_reimage.ReimageFailed:
            raise
        except Exception as exc:
            if self.is_deleted():
                raise
            LOG.exception('The root volume was not re-imaged.',
                          instance=instance)
            self._go_back(exc, spawn)
            raise self._not_reimaged(exc)
        if kept:
            manager.driver.destroy(
                context, instance, network_info=network_info,
                block_device_info=dict(block_device_info,
                                       block_device_mapping=[]))
        instance.task_state = task_states.REBUILD_BLOCK_DEVICE_MAPPING
        instance.save(expected_task_state=[task_states.REBUILDING])
        try:
            block_device_info = attach_block_devices(
                context, instance, self.bdms)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._keep_reserved()
        instance.task_state = task_states.REBUILD_SPAWNING
        instance.save(
            expected_task_state=[task_states.REBUILD_BLOCK_DEVICE_MAPPING])
        with instance.mutated_migration_context():
            manager.driver.spawn(
                context, instance, image_meta, injected_files, admin_password,
                block_device_info=block_device_info, **spawn)
        reimage_state.clear_original(context, instance)

    def _has_local_disks(self, block_device_info):
        """Whether the guest has disks that a way back needs.

        A driver that can evacuate spawns a guest on disks that are there.
        """
        return bool(
            self.manager.driver.capabilities.get('supports_evacuate') and
            (self.instance.config_drive or
             block_device_info.get('ephemerals') or
             block_device_info.get('swap')))

    def _detach(self, attachment):
        """Detach a volume that is not the root and keep it reserved."""
        bdm = attachment.bdm
        if bdm.attachment_id and reimage_state.UNFINISHED in (
                self.system_metadata or {}):
            attachment.adopt(
                self.volumes.get(self.context, bdm.volume_id)['status'])
        attachment.exchange(functools.partial(
            self.manager._detach_volume, self.context, bdm, self.instance,
            destroy_bdm=False))

    def reimage(self):
        """Reserve the root volume, and have Cinder write the image to it.

        :raises: NotReimaged if Cinder has not accepted it, ReimageFailed
        """
        self.root.exchange(functools.partial(
            self.manager._detach_root_volume, self.context, self.instance,
            self.root.bdm))
        self.root.delete_original()
        cinder_reimage.Reimage(
            self.manager, self.context, self.instance, self.root, self.volume,
            self.image).run()

    # When it has failed.

    def look_at(self, exc):
        """Undo what the request has changed if the guest was not touched.

        A driver that rebuilds in a way of its own re-images no volume.

        :param exc: what has failed
        :returns: a NotReimaged if nothing has changed, exc otherwise
        """
        if isinstance(exc, cinder_reimage.NotReimaged):
            return exc
        if self.has_begun or self.is_deleted():
            reimage_state.forget_original(self.context, self.instance)
            return exc
        LOG.exception('The root volume was not re-imaged.',
                      instance=self.instance)
        self._undo_record()
        return self._not_reimaged(exc)

    def abandon(self, exc):
        """Leave what the next rebuild, or the delete of the server, expects.

        :param exc: what has failed
        :raises: InstanceNotFound if the server is deleted: nothing is to be
            set on it any more
        """
        is_deleted = self.is_deleted()
        attachments = [self.root, *self.others]
        for attachment in attachments:
            attachment.abandon(is_deleted and not self._is_reclaimed_later())
        if is_deleted:
            raise exception.InstanceNotFound(instance_id=self.instance.uuid)
        if isinstance(exc, cinder_reimage.ReimageFailed):
            self.root.clear_connection()
        if any(attachment.is_lost for attachment in attachments):
            # The next rebuild deletes it, or the delete of the server.
            self._mark_unfinished()

    def is_deleted(self):
        """Whether the server is deleted, or is being deleted."""
        return self._has_state(
            True, vm_states.SOFT_DELETED, task_states.DELETING,
            task_states.SOFT_DELETING)

    def _is_reclaimed_later(self):
        """Whether the server is deleted in a way that can be undone."""
        return self._has_state(
            False, vm_states.SOFT_DELETED, task_states.SOFT_DELETING)

    def _has_state(self, if_gone, *states):
        try:
            now = objects.Instance.get_by_uuid(
                self.context, self.instance.uuid)
            return now.vm_state in states or now.task_state in states
        except exception.InstanceNotFound:
            return if_gone
        except Exception:
            LOG.exception('It is not known whether the server is deleted.',
                          instance=self.instance)
            return False

    def _keep_reserved(self):
        """Let nobody else have a volume that could not be connected."""
        for attachment in (self.root, *self.others):
            if attachment.bdm.attachment_id:
                try:
                    attachment.ensure()
                except Exception:
                    LOG.exception('Volume %s is not reserved.',
                                  attachment.bdm.volume_id,
                                  instance=self.instance)

    def _not_reimaged(self, exc):
        return cinder_reimage.not_reimaged(self.root.bdm.volume_id, exc)

    def _mark_unfinished(self):
        self.instance.system_metadata[
            reimage_state.UNFINISHED] = self.root.bdm.volume_id

    def _undo_record(self):
        reimage_state.restore_original(
            self.context, self.instance, self.system_metadata)

    def _go_back(self, exc, spawn):
        """Make the server what it was before the rebuild.

        :param exc: why
        :param spawn: arguments for the driver
        :raises: ReimageFailed if it cannot be done
        """
        rollback = reimage_rollback.Rollback(self)
        try:
            self._undo_record()
            self.instance.save(expected_task_state=[task_states.REBUILDING])
            rollback.attach_again(exc)
            if self.guest_state != power_state.NOSTATE:
                rollback.start_again(spawn)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._mark_unfinished()
