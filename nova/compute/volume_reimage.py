# SPDX-License-Identifier: Apache-2.0

"""Rebuilds a volume-backed server with a new image, or leaves it as it was.

under_way() is the context of a rebuild in nova-compute. It asks Glance and
Cinder before the guest is touched. rebuild() has the steps: guest off and
destroyed, each attachment exchanged for an attachment without a host, the
re-image, volumes attached, guest spawned.

Until Cinder has accepted the re-image the content of the volume is what it
was. Whatever fails until then is undone: volumes, guest, power state, image
properties and the status of the server. Whatever fails afterwards leaves the
server in ERROR with its volumes reserved for it. The system metadata of the
server has the key UNFINISHED from the start of the re-image until its end, so
that nova-api lets the owner rebuild the server again, and a delete of the
server deletes all attachments that a killed nova-compute has made.
"""

import collections.abc
import contextlib
import functools
import time
import typing as ty

from cinderclient import exceptions as cinder_exception
from oslo_log import log as logging
from oslo_serialization import jsonutils

from nova.compute import power_state
from nova.compute import rebuild_rollback
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import service as service_obj
from nova.volume import cinder

if ty.TYPE_CHECKING:
    from nova.compute import manager as compute_manager
    from nova.network import model as network_model

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The key of the system metadata that holds the ID of the root volume.
UNFINISHED = 'reimage_unfinished'

# The microversion of Cinder that re-images a reserved volume.
_CINDER_API = '3.68'

_NOT_CONNECTED = '{}'

# Seconds between two looks at the volume while no event comes.
_ASK_EVERY = 60

# Seconds between the tries of what needs Cinder.
_TRY_AGAIN_AFTER = (2, 8, 20)


class HostTooOld(exception.InstanceInvalidState):
    msg_fmt = _("The root volume of instance %(instance_uuid)s cannot be "
                "re-imaged: the compute service of its host is too old. Ask "
                "for the rebuild again when that is upgraded.")


class NotReimaged(exception.BuildAbortException):
    msg_fmt = _("Volume %(volume_id)s was not re-imaged: %(reason)s")


class ReimageFailed(exception.BuildAbortException):
    msg_fmt = _("Failed to rebuild volume backed instance. Re-image of volume "
                "%(volume_id)s failed: %(reason)s")


# In nova-api.

def check_host(context: nova_context.RequestContext,
               instance: 'objects.Instance') -> None:
    """Refuse a server whose host would not undo a re-image that fails.

    A server on no host is left to the other checks of a rebuild.

    :raises: HostTooOld
    """
    if instance.host is None:
        return
    service = objects.Service.get_by_host_and_binary(
        context, instance.host, 'nova-compute')
    if service is None or service.version < service_obj.UNDOES_REIMAGE:
        raise HostTooOld(instance_uuid=instance.uuid)


def is_left_by_failure(context: nova_context.RequestContext,
                       volume_api: cinder.API,
                       instance: 'objects.Instance',
                       bdms: 'objects.BlockDeviceMappingList') -> bool:
    """Whether a failed re-image is why volumes are not in use.

    :param instance: the Instance, whose root volume is to be re-imaged
    :param bdms: all block device mappings of the server
    :returns: True if the requested rebuild can mend that
    """
    if (instance.vm_state != vm_states.ERROR or
            UNFINISHED not in instance.system_metadata):
        return False
    attachments = Attachments(context, volume_api, instance.uuid)

    def is_ours(bdm):
        status = volume_api.get(context, bdm.volume_id)['status']
        return status in ('available', 'in-use') or (
            status in ('attaching', 'error', 'reserved') and
            attachments.find(bdm))

    return all(is_ours(bdm) for bdm in bdms if bdm.volume_id)


def delete_leftovers(context: nova_context.RequestContext,
                     volume_api: cinder.API, instance: 'objects.Instance',
                     bdms: 'objects.BlockDeviceMappingList') -> None:
    """Delete the attachments that a killed nova-compute has left.

    The server is being deleted, and with it the attachments that its block
    device mappings know. A failure is logged.
    """
    try:
        if UNFINISHED in instance.system_metadata:
            attachments = Attachments(context, volume_api, instance.uuid)
            for bdm in bdms:
                if bdm.is_volume and bdm.attachment_id:
                    attachments.delete(bdm, keep=bdm.attachment_id)
    except Exception:
        LOG.exception('A volume may have an attachment that is not known.',
                      instance=instance)


# In nova-compute.

@contextlib.contextmanager
def under_way(manager: 'compute_manager.ComputeManager',
              context: nova_context.RequestContext,
              instance: 'objects.Instance',
              bdms: 'objects.BlockDeviceMappingList', image_id: str,
              system_metadata: dict[str, str] | None,
              allocations: dict) -> collections.abc.Iterator[None]:
    """Restore a server whose root volume is not re-imaged, or give it up.

    :param context: the context of the rebuild, elevated
    :param system_metadata: the system metadata before the rebuild
    :raises: InstanceFaultRollback of a NotReimaged if the server is what it
        was before, InstanceNotFound if the server is being deleted, otherwise
        ReimageFailed and what the rebuild raises
    """
    undo = _Undo(manager, context, instance, bdms, system_metadata)
    try:
        undo.check(image_id)
        yield
    except Exception as exc:
        failure = exc
        try:
            if instance.task_state == task_states.REBUILDING and not (
                    isinstance(exc, ReimageFailed) or
                    undo.is_deleted()):
                LOG.exception('The root volume was not re-imaged.',
                              instance=instance)
                undo.run(exc, allocations)
                failure = exception.InstanceFaultRollback(
                    inner_exception=NotReimaged(
                        volume_id=undo.root.volume_id,
                        reason=_reason(exc)))
        except Exception as second:
            failure = second
        if not isinstance(failure, exception.InstanceFaultRollback):
            undo.give_up()
        raise failure


def rebuild(manager: 'compute_manager.ComputeManager',
            context: nova_context.RequestContext,
            instance: 'objects.Instance',
            image_meta: 'objects.ImageMeta', injected_files: list,
            admin_password: str, allocations: dict,
            bdms: 'objects.BlockDeviceMappingList',
            attach_block_devices: collections.abc.Callable,
            network_info: 'network_model.NetworkInfo',
            block_device_info: dict, preserve_ephemeral: bool) -> None:
    """Destroy the guest, re-image its root volume and spawn the guest again.

    The parameters are those of ComputeManager._rebuild_default_impl().
    """
    if preserve_ephemeral:
        raise exception.PreserveEphemeralNotSupported()
    attachments = Attachments(context, manager.volume_api, instance.uuid)
    root = compute_utils.get_root_bdm(context, instance, bdms)
    volumes = _volumes(bdms, root)
    # Cinder can refuse to reserve, so this comes before the guest is touched.
    reserved = [attachments.reserve(bdm) for bdm in volumes]
    # A guest that a failed rebuild has destroyed cannot be powered off.
    if manager._get_power_state(instance) != power_state.NOSTATE:
        manager._power_off_instance(context, instance, clean_shutdown=True)
    for bdm, attachment_id in zip(volumes[1:], reserved[1:]):
        attachments.exchange(bdm, attachment_id, functools.partial(
            manager._detach_volume, context, bdm, instance,
            destroy_bdm=False))
    # The way back needs the local disks of the guest. A driver that can
    # evacuate spawns a guest on existing disks.
    kept = bool(manager.driver.capabilities.get('supports_evacuate') and (
        instance.config_drive or block_device_info.get('ephemerals') or
        block_device_info.get('swap')))
    manager.driver.destroy(
        context, instance, network_info=network_info,
        block_device_info=block_device_info,
        **({'destroy_disks': False} if kept else {}))
    accel_info = manager._get_accel_info(context, instance)

    def disconnect_root() -> None:
        original = root.attachment_id
        manager._detach_root_volume(context, instance, root)
        manager.volume_api.attachment_delete(context, original)

    attachments.exchange(root, reserved[0], disconnect_root)
    _Reimage(
        manager, context, instance, root.volume_id, image_meta.id).run()
    instance.task_state = task_states.REBUILD_BLOCK_DEVICE_MAPPING
    instance.save(expected_task_state=[task_states.REBUILDING])
    if kept:
        manager.driver.destroy(
            context, instance, network_info=network_info,
            block_device_info=dict(block_device_info,
                                   block_device_mapping=[]))
    block_device_info = attach_block_devices(context, instance, bdms)
    instance.task_state = task_states.REBUILD_SPAWNING
    instance.save(
        expected_task_state=[task_states.REBUILD_BLOCK_DEVICE_MAPPING])
    with instance.mutated_migration_context():
        manager.driver.spawn(
            context, instance, image_meta, injected_files, admin_password,
            allocations, network_info=network_info,
            block_device_info=block_device_info, accel_info=accel_info)
    # The caller saves the instance.
    instance.system_metadata.pop(UNFINISHED, None)


def _volumes(bdms, root) -> list['objects.BlockDeviceMapping']:
    """Return the mappings of volumes, the root first.

    Another volume that cannot be attached must not hold up the root.
    """
    return sorted((bdm for bdm in bdms if bdm.is_volume),
                  key=lambda bdm: bdm is not root)


def _is_connected(connection_info: str | None) -> bool:
    return bool(jsonutils.loads(connection_info or _NOT_CONNECTED))


class Attachments:
    """The attachments of one server to its volumes."""

    def __init__(self, context: nova_context.RequestContext,
                 volume_api: cinder.API, instance_uuid: str) -> None:
        self.context = context
        self.volume_api = volume_api
        self.instance_uuid = instance_uuid

    def find(self, bdm: 'objects.BlockDeviceMapping') -> dict[str, str]:
        """Return the statuses of the attachments to a volume, by their IDs."""
        return {each['id']: each.get('status')
                for each in self.volume_api.attachment_get_all(
                    self.context, instance_id=self.instance_uuid)
                if each.get('volume_id') == bdm.volume_id}

    def delete(self, bdm: 'objects.BlockDeviceMapping',
               keep: str | None = None) -> None:
        """Delete all attachments to a volume, except the one to keep."""
        for attachment_id in self.find(bdm):
            if attachment_id != keep:
                self.volume_api.attachment_delete(self.context, attachment_id)

    def reserve(self, bdm: 'objects.BlockDeviceMapping') -> str | None:
        """Make an attachment without a host beside one that has a host.

        :returns: its ID, None if the volume has no attachment with a host; a
            volume that was attached before Cinder 3.27 has none
        """
        if bdm.attachment_id and _is_connected(bdm.connection_info):
            return self._create(bdm)
        return None

    def exchange(self, bdm: 'objects.BlockDeviceMapping',
                 attachment_id: str | None,
                 disconnect: collections.abc.Callable[[], object]) -> None:
        """Exchange the attachment to a volume for the one without a host.

        :param attachment_id: what reserve() has returned
        :param disconnect: disconnects the volume from the host and deletes
            its attachment
        """
        if _is_connected(bdm.connection_info):
            disconnect()
            self._set(bdm, attachment_id, _NOT_CONNECTED)

    def settle(self, bdm: 'objects.BlockDeviceMapping',
               original: tuple[str, str | None] | None = None,
               renew: bool = False) -> None:
        """Leave the server one attachment to a volume.

        A connected attachment is kept, if there is one.

        :param original: the ID and the connection of the attachment that the
            server had, None for what its block device mapping says
        :param renew: whether to make the attachment anew if Cinder does not
            have the volume reserved, for example because it is in error
        """
        found = self.find(bdm)
        for known in (original or (), (bdm.attachment_id,
                                       bdm.connection_info)):
            if known and found.get(known[0]) == 'attached':
                break
        else:
            attachment_id = (bdm.attachment_id if bdm.attachment_id in found
                             else next(iter(found), None))
            if attachment_id is None or renew and self.volume_api.get(
                    self.context, bdm.volume_id)['status'] != 'reserved':
                # Cinder makes a volume available that has no attachment, and
                # makes no attachment to a volume in error.
                self.delete(bdm)
                attachment_id = self._create(bdm)
            known = attachment_id, _NOT_CONNECTED
        self._set(bdm, *known)
        self.delete(bdm, keep=known[0])

    def _create(self, bdm: 'objects.BlockDeviceMapping') -> str:
        return self.volume_api.attachment_create(
            self.context, bdm.volume_id, self.instance_uuid)['id']

    @staticmethod
    def _set(bdm, attachment_id: str | None, connection_info) -> None:
        bdm.attachment_id = attachment_id
        bdm.connection_info = connection_info
        bdm.save()


class _Undo:
    """What a re-image needs before it begins and when it has failed."""

    def __init__(self, manager, context, instance, bdms, system_metadata):
        self.manager = manager
        self.context = context
        self.instance = instance
        self.bdms = bdms
        self.system_metadata = system_metadata or {}
        self.attachments = Attachments(
            context, manager.volume_api, instance.uuid)
        self.root = compute_utils.get_root_bdm(context, instance, bdms)
        self.volumes = _volumes(bdms, self.root)
        # The attachments before the rebuild, by volume; empty as long as they
        # cannot have changed.
        self.originals = {}

    def check(self, image_id: str) -> None:
        """Find out, before the guest is touched, what Cinder would refuse."""
        instance, volumes = self.instance, self.manager.volume_api
        instance.system_metadata[UNFINISHED] = self.root.volume_id
        instance.save(expected_task_state=[task_states.REBUILDING])
        cinder.is_microversion_supported(self.context, _CINDER_API)
        self.manager.image_api.get(self.context, image_id)
        volume = volumes.get(self.context, self.root.volume_id)
        if set(volume.get('attachments') or ()) - {instance.uuid}:
            raise exception.InvalidVolume(
                reason=_('it is attached to other servers too'))
        # Cinder re-images no volume that has two attachments.
        if (UNFINISHED in self.system_metadata or
                len(self.attachments.find(self.root)) > 1):
            for bdm in self.volumes:
                self.attachments.settle(bdm, renew=True)
        self.guest_state = self.manager._get_power_state(instance)
        self.originals = {
            bdm.volume_id: (bdm.attachment_id, bdm.connection_info)
            for bdm in self.volumes}

    def run(self, exc: Exception, allocations: dict) -> None:
        """Make the server what it was before the rebuild.

        :param exc: why the rebuild failed
        :raises: ReimageFailed, and what the drivers raise
        """
        instance = self.instance
        rebuild_rollback.restore_image(instance, self.system_metadata)
        instance.save(expected_task_state=[task_states.REBUILDING])
        is_settled = not self.originals or self._attach_again(exc)
        if self.originals and self.guest_state != power_state.NOSTATE:
            self._start_again(allocations)
        if is_settled and UNFINISHED not in self.system_metadata:
            del instance.system_metadata[UNFINISHED]
        instance.power_state = self.manager._get_power_state(instance)
        instance.save(expected_task_state=[task_states.REBUILDING])

    def _attach_again(self, exc):
        """Attach the volumes, and delete all other attachments to them.

        :returns: whether that is done; if the guest still runs, it can wait
            for the next rebuild
        """
        for last in _tries():
            try:
                for bdm in self.volumes:
                    self._connect(bdm)
                return True
            except Exception as second:
                LOG.warning('The volumes are not attached again: %s', second,
                            instance=self.instance)
                if last and self.guest_state == power_state.RUNNING == (
                        self.manager._get_power_state(self.instance)):
                    return False
                if last or self.is_deleted():
                    raise ReimageFailed(
                        volume_id=self.root.volume_id,
                        reason=_('%(reason)s, and its volumes could not be '
                                 'attached again: %(second)s') % {
                                     'reason': _reason(exc),
                                     'second': _reason(second, exc)})

    def _connect(self, bdm: 'objects.BlockDeviceMapping') -> None:
        original = self.originals[bdm.volume_id]
        if original[0]:
            self.attachments.settle(bdm, original, renew=True)
        if _is_connected(original[1]) and not _is_connected(
                bdm.connection_info):
            self.manager._prep_block_device(
                self.context, self.instance,
                objects.BlockDeviceMappingList(objects=[bdm]))

    def _start_again(self, allocations: dict) -> None:
        manager, context, instance = self.manager, self.context, self.instance
        running = self.guest_state == power_state.RUNNING
        state = manager._get_power_state(instance)
        if state == power_state.NOSTATE:
            manager.driver.spawn(
                context, instance, instance.image_meta, [], None, allocations,
                network_info=instance.get_network_info(),
                block_device_info=manager._get_instance_block_device_info(
                    context, instance, bdms=self.bdms),
                power_on=running,
                accel_info=manager._get_accel_info(context, instance))
        elif running and state != power_state.RUNNING:
            manager._power_on(context, instance)

    def give_up(self) -> None:
        """Leave what the next rebuild, or the delete of the server, expects.

        :raises: InstanceNotFound if the server is being deleted: the caller
            must not change it any more
        """
        is_deleted, for_good = self._deletion()
        for bdm in self.volumes:
            try:
                if for_good:
                    self.attachments.delete(bdm)
                elif bdm.attachment_id:
                    self.attachments.settle(bdm)
            except Exception:
                LOG.exception('A volume may have an attachment that is not '
                              'known.', instance=self.instance)
        if is_deleted:
            raise exception.InstanceNotFound(instance_id=self.instance.uuid)

    def is_deleted(self) -> bool:
        return self._deletion()[0]

    def _deletion(self) -> tuple[bool, bool]:
        """Return whether the server is being deleted, and whether for good."""
        try:
            now = objects.Instance.get_by_uuid(
                self.context, self.instance.uuid)
        except exception.InstanceNotFound:
            return True, True
        except Exception:
            LOG.exception('It is not known whether the server is deleted.',
                          instance=self.instance)
            return False, False
        # A soft-deleted server keeps its volumes until it is deleted for good.
        is_soft = (now.vm_state == vm_states.SOFT_DELETED or
                   now.task_state == task_states.SOFT_DELETING)
        return (is_soft or now.task_state == task_states.DELETING,
                not is_soft and now.task_state == task_states.DELETING)


class _Reimage:
    """One re-image of a volume; the status of the volume tells how it goes.

    Cinder sends no event when a re-image fails, and its answer to the request
    can be lost.
    """

    def __init__(self, manager, context, instance, volume_id, image_id):
        self.manager = manager
        self.context = context
        self.instance = instance
        self.volume_id = volume_id
        self.image = manager.image_api.get(context, image_id)
        self.volume = manager.volume_api.get(context, volume_id)
        self.seconds = cinder.reimage_timeout(self.image, self.volume)
        self.limit = self.seconds * (1 + CONF.reimage_timeout_extensions)

    def run(self) -> None:
        """Ask for the re-image and wait until it is done.

        :raises: ReimageFailed if Cinder has accepted it
        """
        event = ('volume-reimaged', self.volume_id)
        end = time.monotonic() + self.limit
        asked = False
        while True:
            try:
                with self.manager.virtapi.wait_for_instance_event(
                        self.instance, [event],
                        timeout=min(self.seconds, _ASK_EVERY),
                        error_callback=self.manager._reimage_failed_callback):
                    if not asked:
                        self._ask()
                        asked = True
                    elif self._is_done(end):
                        self.manager.virtapi.exit_wait_early([event])
                return
            except exception.InstanceEventTimeout:
                LOG.debug('No event has come for volume %s.', self.volume_id,
                          instance=self.instance)
            except exception.ReimageException as exc:
                if asked:
                    raise self._failed(_reason(exc))
                raise exception.NovaException(
                    _('nova-compute is being stopped'))

    def _ask(self) -> None:
        try:
            self.manager.volume_api.reimage_volume(
                self.context, self.volume_id, self.image['id'],
                reimage_reserved=True)
        except Exception as exc:
            if not self._has_begun(exc):
                raise

    def _has_begun(self, exc: Exception) -> bool:
        """Whether Cinder re-images the volume though its answer denies it."""
        answer = _answer(exc)
        if answer is not None and 400 <= answer.code < 500:
            # Cinder sets the status before it looks for the image, and does
            # not reset it. With 400 it refuses a request that it works on.
            return (answer.code == 400 and
                    self._look()['status'] == 'downloading')
        for _last in _tries():
            volume = self._look()
            if volume['status'] is not None:
                return (volume['status'] in ('downloading', 'error') or
                        _image_of(volume) == self.image['id'] !=
                        _image_of(self.volume))
        raise self._failed(_('%s, and its status is not known') % _reason(exc))

    def _is_done(self, end: float) -> bool:
        """Whether the re-image is done.

        :param end: when it must be done, by the monotonic clock
        :raises: ReimageFailed
        """
        status = self._look()['status']
        if status == 'reserved':
            LOG.warning('Volume %s was re-imaged, but Cinder has not said so: '
                        'look at its credentials for Nova.', self.volume_id,
                        instance=self.instance)
            return True
        if status not in ('downloading', None):
            raise self._failed(_('its status is %s') % status)
        if time.monotonic() >= end:
            raise self._failed(
                _('after %(seconds)d seconds its status is %(status)s')
                % {'seconds': self.limit, 'status': status or _('not known')})
        return False

    def _look(self) -> dict:
        """Return the volume, with the status None if that is not known."""
        try:
            return self.manager.volume_api.get(self.context, self.volume_id)
        except exception.VolumeNotFound:
            return {'status': 'deleted'}
        except Exception as exc:
            LOG.warning('The status of volume %s is not known: %s',
                        self.volume_id, exc, instance=self.instance)
            return {'status': None}

    def _failed(self, why: str) -> ReimageFailed:
        return ReimageFailed(volume_id=self.volume_id, reason=why)


def _image_of(volume: dict) -> str | None:
    return volume.get('volume_image_metadata', {}).get('image_id')


def _tries() -> collections.abc.Iterator[bool]:
    """Yield whether it is the last try, with some time between the tries."""
    for delay in _TRY_AGAIN_AFTER:
        yield False
        time.sleep(delay)
    yield True


def _answer(exc, earlier=None):
    """Return the answer of Cinder with which a call failed, or None.

    :param earlier: the failure of an earlier call, which was being handled
    """
    while exc is not None and exc is not earlier:
        if isinstance(exc, cinder_exception.ClientException):
            return exc
        exc = exc.__context__


def _reason(exc: BaseException, earlier: BaseException | None = None) -> str:
    """Return why a call failed, in the words of Cinder if it said any.

    :param earlier: the failure of an earlier call, which was being handled
    """
    answer = _answer(exc, earlier)
    if answer is not None:
        return str(answer)
    if isinstance(exc, exception.NovaException):
        return exc.format_message()
    return str(exc) or type(exc).__name__
