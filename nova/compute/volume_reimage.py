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
and destroyed, the attachments exchanged for ones without a host, the
re-image, the attachments connected, guest spawned.

Until Cinder has accepted the re-image nothing has changed on the volume, and
whatever fails is undone: NotReimaged. Afterwards the server is in ERROR and
its volumes stay reserved for it: ReimageFailed. What of that the next rebuild
can meet is in Reimage._reserve_root().
"""

import contextlib
import contextvars
import math
import time

from cinderclient import exceptions as cinder_exception
from oslo_log import log as logging
from oslo_utils import excutils
from oslo_utils import units

from nova.compute import power_state
from nova.compute import reimage_record
from nova.compute import task_states
from nova.compute import utils as compute_utils
import nova.conf
from nova import exception
from nova.i18n import _
from nova import objects
from nova.volume import cinder

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# Cinder says nothing when a re-image fails, so that it is asked after so many
# seconds at the latest.
_ASK_EVERY = 60

# Seconds between the tries to bring a server back.
_TRY_AGAIN_AFTER = (2, 8, 20)

# The microversion of Cinder that re-images a reserved volume.
_CINDER_API = '3.68'

_current = contextvars.ContextVar('volume_reimage', default=None)


class NotReimaged(exception.BuildAbortException):
    msg_fmt = _("Volume %(volume_id)s was not re-imaged: %(reason)s")


class ReimageFailed(exception.BuildAbortException):
    msg_fmt = _("Failed to rebuild volume backed instance. Re-image of volume "
                "%(volume_id)s failed: %(reason)s")


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
    reimage = Reimage(manager, context, instance, bdms, system_metadata)
    token = _current.set(reimage)
    try:
        reimage.prepare(image_id)
        yield
    except Exception as exc:
        if reimage.is_deleted():
            reimage.abandon()
            # Nothing is to be set on the server any more.
            raise exception.InstanceNotFound(instance_id=instance.uuid)
        with excutils.save_and_reraise_exception() as raised:
            reimage.abandon()
            raised.reraise = not isinstance(exc, NotReimaged)
        raise exception.InstanceFaultRollback(inner_exception=exc)
    finally:
        _current.reset(token)


def current():
    """Return the Reimage that under_way() is around, None if there is none."""
    return _current.get()


def _answer(exc):
    """Return the answer of Cinder that a call failed with, None without."""
    while exc is not None and not isinstance(
            exc, cinder_exception.ClientException):
        exc = exc.__context__
    return exc


def is_refusal(exc):
    """Whether Cinder has said that it does not do what it was asked for.

    After any other answer, or none, it may be doing it.
    """
    answer = _answer(exc)
    return answer is not None and 400 <= answer.code < 500


def is_stuck(exc):
    """Whether a volume that Cinder has not begun with is left downloading.

    Cinder sets the status before it looks for the image. What it refuses for
    the status, with 400, it is doing for another request, or a repeated one.
    """
    return is_refusal(exc) and _answer(exc).code != 400


def reason(exc):
    """Return why a call failed, in the words of Cinder if it said any."""
    answer = _answer(exc)
    if answer is not None:
        return str(answer)
    if isinstance(exc, exception.NovaException):
        return exc.format_message()
    return str(exc) or type(exc).__name__


def timeout(image, volume):
    """Return how many seconds Cinder is given for a re-image.

    :param image: the image, a dict with size and virtual_size in bytes
    :param volume: the volume, a dict with its size in GiB
    """
    size = max(image.get('size') or 0, image.get('virtual_size') or 0)
    # That of a snapshot is 0, and all of it is copied.
    gib = math.ceil(size / units.Gi) if size else volume.get('size') or 1
    return CONF.reimage_timeout_per_gb * max(gib, 1)


class Reimage:
    """The re-image of the root volume of one server."""

    def __init__(self, manager, context, instance, bdms, system_metadata):
        """:param manager: the ComputeManager

        :param context: the context of the rebuild, elevated
        :param instance: the Instance
        :param bdms: its BlockDeviceMappingList
        :param system_metadata: its system metadata before the rebuild
        """
        self.manager = manager
        self.volumes = manager.volume_api
        self.context = context
        self.instance = instance
        self.bdms = bdms
        self.system_metadata = system_metadata
        self.root = compute_utils.get_root_bdm(context, instance, bdms)
        self.volume = None
        self.image = None
        self.guest_state = power_state.NOSTATE
        # All attachments that were made.
        self.created = set()
        # The ones in the place of those that the server had, by volume, and
        # those, with their connection.
        self.made = {}
        self.had = {}
        # Volumes whose attachment has no host.
        self.reserved = set()
        # Whether there may be an attachment whose ID is not known.
        self.lost = False

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
            self.volume = self.volumes.get(self.context, self.root.volume_id)
            self._reserve_root()
        except Exception as exc:
            self._undo_record()
            raise self._not_reimaged(exc)

    def _reserve_root(self):
        """Make an attachment without a host, unless there is one."""
        root = self.root
        status = self.volume['status']
        servers = set(self.volume.get('attachments') or ())
        if servers - {self.instance.uuid}:
            raise exception.InvalidVolume(
                reason=_('it is attached to other servers too'))
        if status in ('in-use', 'reserved'):
            # Cinder re-images no volume that has two. What is not in the
            # mapping was left by a nova-compute that died.
            self._delete(set(self._attachments(root)) - {root.attachment_id})
            if status == 'reserved' and self._has_attachment(root):
                self.reserved.add(root.volume_id)
            else:
                self._attach_without_host(root)
        elif status in ('error', 'available', 'attaching'):
            # Cinder leaves a volume in error there, even if the re-image
            # succeeds, and makes no attachment to it. It is available once
            # it has none.
            self._reserve_anew(root)
        else:
            raise exception.InvalidVolume(
                reason=_('its status is %s') % status)

    def _attachments(self, bdm):
        """Return the IDs of all attachments of the server to a volume."""
        return reimage_record.attachments(self.context, self.volumes, bdm)

    def _attach_without_host(self, bdm):
        """Make an attachment that reserves a volume for the server."""
        self.had[bdm.volume_id] = (bdm.attachment_id, bdm.connection_info)
        self.made[bdm.volume_id] = self._create(bdm)

    def _reserve_anew(self, bdm):
        """Reserve a volume that has no attachment, or none that is of use."""
        self._delete({bdm.attachment_id} | set(self._attachments(bdm)))
        self._exchange(bdm, self._create(bdm))

    def _exchange(self, bdm, attachment_id):
        """Have an attachment without a host in a mapping."""
        bdm.attachment_id = attachment_id
        bdm.connection_info = '{}'
        bdm.save()
        self.reserved.add(bdm.volume_id)

    def _create(self, bdm):
        """Make an attachment without a host, or none: return its ID."""
        try:
            attachment_id = self.volumes.attachment_create(
                self.context, bdm.volume_id, self.instance.uuid)['id']
        except Exception as exc:
            with excutils.save_and_reraise_exception():
                if not is_refusal(exc):
                    self._delete_unknown(bdm)
        self.created.add(attachment_id)
        return attachment_id

    def _delete_unknown(self, bdm):
        """Delete what Cinder may have made without a word."""
        known = self.created | {each.attachment_id for each in self.bdms}
        for delay in _TRY_AGAIN_AFTER + (None,):
            try:
                self._delete(set(self._attachments(bdm)) - known)
                return
            except Exception as exc:
                LOG.warning('The attachments of volume %s are not known: %s',
                            bdm.volume_id, exc, instance=self.instance)
                if delay is None:
                    self.lost = True
                    return
                time.sleep(delay)

    def _has_attachment(self, bdm):
        return reimage_record.has_attachment(self.context, self.volumes, bdm)

    def _delete(self, attachment_ids):
        reimage_record.delete(self.context, self.volumes, attachment_ids)
        self.created.difference_update(attachment_ids)

    # The released steps.

    def rebuild(self, image_meta, injected_files, admin_password, allocations,
                attach_block_devices, network_info, block_device_info):
        """Destroy the guest, re-image its root volume and spawn it again.

        The parameters are those of the released _rebuild_default_impl().

        :raises: NotReimaged, ReimageFailed, and what the drivers and the
            saves of the instance raise
        """
        manager, context, instance = self.manager, self.context, self.instance
        spawn = {'allocations': allocations, 'network_info': network_info}
        self.guest_state = manager._get_power_state(instance)
        try:
            if self.guest_state != power_state.NOSTATE:
                manager._power_off_instance(
                    context, instance, clean_shutdown=True)
            for bdm in self.bdms:
                if bdm.is_volume and bdm is not self.root:
                    self._detach(bdm)
            kept = self._has_local_disks(block_device_info)
            manager.driver.destroy(
                context, instance, network_info=network_info,
                block_device_info=block_device_info,
                **({'destroy_disks': False} if kept else {}))
            spawn['accel_info'] = manager._get_accel_info(context, instance)
            manager._rebuild_volume_backed_instance(
                context, instance, self.bdms, image_meta.id)
        except ReimageFailed:
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
        instance.system_metadata.pop(reimage_record.UNFINISHED, None)

    def _has_local_disks(self, block_device_info):
        """Whether the guest has disks that a way back needs.

        A driver that can evacuate spawns a guest on disks that are there.
        """
        return bool(
            self.manager.driver.capabilities.get('supports_evacuate') and
            (self.instance.config_drive or
             block_device_info.get('ephemerals') or
             block_device_info.get('swap')))

    def _detach(self, bdm):
        """Detach a volume that is not the root and keep it reserved."""
        if bdm.attachment_id and self._is_unfinished():
            status = self.volumes.get(self.context, bdm.volume_id)['status']
            self._delete(set(self._attachments(bdm)) - {bdm.attachment_id})
            if status == 'reserved' and self._has_attachment(bdm):
                self.reserved.add(bdm.volume_id)
            elif status != 'in-use':
                self._reserve_anew(bdm)
            if bdm.volume_id in self.reserved:
                return
        if bdm.attachment_id:
            self._attach_without_host(bdm)
        self.manager._detach_volume(
            self.context, bdm, self.instance, destroy_bdm=False)
        if bdm.attachment_id:
            bdm.attachment_id = self.made[bdm.volume_id]
            bdm.save()
        self.reserved.add(bdm.volume_id)

    def _is_unfinished(self):
        return reimage_record.UNFINISHED in (self.system_metadata or {})

    def exchange(self):
        """Exchange the attachment of the root volume for one without a host.

        The volume is reserved then, which it has to be for a re-image.
        """
        root = self.root
        if root.volume_id in self.reserved:
            return
        if root.volume_id not in self.made:
            self._attach_without_host(root)
        self.manager._detach_root_volume(self.context, self.instance, root)
        root.attachment_id = self.made[root.volume_id]
        root.save()
        self.volumes.attachment_delete(
            self.context, self.had[root.volume_id][0])
        self.reserved.add(root.volume_id)

    def run(self, image_id):
        """Have Cinder write an image to the root volume, and wait for it.

        :param image_id: the ID of the image
        :raises: NotReimaged if Cinder has not accepted it, ReimageFailed
        """
        seconds = timeout(self.image, self.volume)
        started = time.monotonic()
        asked = accepted = False
        try:
            with self._event(seconds):
                asked = True
                self.volumes.reimage_volume(
                    self.context, self.root.volume_id, image_id,
                    reimage_reserved=True)
                accepted = True
            return
        except exception.InstanceEventTimeout:
            pass
        except Exception as exc:
            LOG.debug('%s', exc, instance=self.instance)
            if not accepted and not (asked and self._is_begun(exc, image_id)):
                self.manager.instance_events.pop_instance_event(
                    self.instance, objects.InstanceExternalEvent(
                        name='volume-reimaged', tag=self.root.volume_id))
                raise self._not_reimaged(exc)
        self._wait(seconds, started)

    def _is_begun(self, exc, image_id):
        """Whether Cinder has begun, though it has not said so.

        :param exc: what it has said instead
        :param image_id: the ID of the image
        :raises: ReimageFailed if it is not known
        """
        status = self._status()
        if status == 'downloading' and is_stuck(exc):
            self._leave_downloading()
            return False
        if status != 'downloading' and is_refusal(exc):
            return False
        for delay in _TRY_AGAIN_AFTER:
            if status is not None:
                break
            time.sleep(delay)
            status = self._status()
        if status is None:
            raise self._failed(_('%s, and its status is not known')
                               % reason(exc))
        return (status in ('downloading', 'error') or
                self._is_made_from(image_id))

    def _leave_downloading(self):
        """Reserve a volume that Cinder takes for one that it writes to."""
        root, before = self.root, self.root.attachment_id
        self._exchange(root, self._create(root))
        if root.volume_id in self.made:
            self.made[root.volume_id] = root.attachment_id
        self._delete([before])

    def _wait(self, seconds, started):
        """Wait until Cinder is done, whether it says so or not."""
        limit = seconds * (1 + CONF.reimage_timeout_extensions)
        while True:
            status = self._status()
            if status == 'reserved':
                LOG.warning('Volume %s was re-imaged, but Cinder has not said '
                            'so: look at its credentials for Nova.',
                            self.root.volume_id, instance=self.instance)
                return
            if status not in ('downloading', None):
                raise self._failed(_('its status is %s') % status)
            if time.monotonic() - started >= limit:
                raise self._failed(
                    _('after %(seconds)d seconds its status is %(status)s')
                    % {'seconds': limit, 'status': status or _('not known')})
            try:
                with self._event(seconds):
                    pass
                return
            except exception.InstanceEventTimeout:
                pass
            except exception.ReimageException as exc:
                if self._status() == 'downloading':
                    # nova-compute is being stopped.
                    raise self._failed(exc.format_message())

    def _event(self, seconds):
        return self.manager.virtapi.wait_for_instance_event(
            self.instance, [('volume-reimaged', self.root.volume_id)],
            timeout=min(seconds, _ASK_EVERY),
            error_callback=self.manager._reimage_failed_callback)

    def _status(self):
        """Return the status of the root volume, None if it is not known."""
        try:
            return self.volumes.get(
                self.context, self.root.volume_id)['status']
        except exception.VolumeNotFound:
            return 'deleted'
        except Exception as exc:
            LOG.warning('The status of volume %s is not known: %s',
                        self.root.volume_id, exc, instance=self.instance)
            return None

    def _is_made_from(self, image_id):
        """Whether the volume was written since it was looked at."""
        try:
            before, now = (
                volume.get('volume_image_metadata', {}).get('image_id')
                for volume in (self.volume, self.volumes.get(
                    self.context, self.root.volume_id)))
        except Exception:
            return False
        return now == image_id != before

    # When it has failed.

    def _not_reimaged(self, exc):
        if isinstance(exc, NotReimaged):
            return exc
        return NotReimaged(volume_id=self.root.volume_id, reason=reason(exc))

    def _failed(self, why):
        if self.root.volume_id in self.reserved:
            # The connection is gone, and what is under its name may be
            # another volume by now.
            self.root.connection_info = '{}'
            self.root.save()
        return ReimageFailed(volume_id=self.root.volume_id, reason=why)

    def is_deleted(self):
        """Whether the server is deleted, or is being deleted."""
        try:
            return objects.Instance.get_by_uuid(
                self.context, self.instance.uuid).task_state in (
                    task_states.DELETING, task_states.SOFT_DELETING)
        except exception.InstanceNotFound:
            return True
        except Exception:
            LOG.exception('It is not known whether the server is deleted.',
                          instance=self.instance)
            return False

    def abandon(self):
        """Delete the attachments that nothing knows of any more."""
        if self.is_deleted():
            unknown = self.created | {
                attachment_id for attachment_id, _info in self.had.values()
            } | {bdm.attachment_id for bdm in self.bdms
                 if bdm.volume_id in self.reserved}
        else:
            unknown = self.created - {bdm.attachment_id for bdm in self.bdms}
        for attachment_id in unknown:
            try:
                self._delete([attachment_id])
            except Exception:
                self.lost = True
                LOG.exception('Attachment %s stays.', attachment_id,
                              instance=self.instance)
        if self.lost:
            # The next rebuild deletes it, or the delete of the server.
            self._mark_unfinished()

    def _keep_reserved(self):
        """Let nobody else have a volume that could not be connected."""
        for bdm in self.bdms:
            if bdm.is_volume and bdm.attachment_id:
                try:
                    self._ensure_attachment(bdm)
                except Exception:
                    LOG.exception('Volume %s is not reserved.', bdm.volume_id,
                                  instance=self.instance)

    def _undo_record(self):
        reimage_record.bring_back(
            self.context, self.instance, self.system_metadata)

    def _go_back(self, exc, spawn):
        """Make the server what it was before the rebuild.

        :param exc: why
        :param spawn: arguments for the driver
        :raises: ReimageFailed if it cannot be done
        """
        try:
            self._undo_record()
            self.instance.save(expected_task_state=[task_states.REBUILDING])
            self._attach_again_somehow(exc)
            if self.guest_state != power_state.NOSTATE:
                self._start_again(spawn)
        except Exception:
            with excutils.save_and_reraise_exception():
                self._mark_unfinished()

    def _attach_again_somehow(self, exc):
        """Attach the volumes, trying several times.

        :param exc: why
        :raises: ReimageFailed
        """
        for delay in _TRY_AGAIN_AFTER + (None,):
            try:
                return self._attach_again()
            except Exception as second:
                if delay is None or self.is_deleted():
                    LOG.exception('The volumes could not be attached again.',
                                  instance=self.instance)
                    raise self._failed(_(
                        '%(reason)s, and its volumes could not be attached '
                        'again: %(second)s') % {
                            'reason': reason(exc), 'second': reason(second)})
                LOG.warning('The volumes are not attached again: %s', second,
                            instance=self.instance)
                time.sleep(delay)

    def _mark_unfinished(self):
        self.instance.system_metadata[
            reimage_record.UNFINISHED] = self.root.volume_id

    def _attach_again(self):
        # The database gives them in any order: the root is not to wait for
        # one that cannot be attached.
        for bdm in sorted(self.bdms, key=lambda bdm: bdm is not self.root):
            if bdm.volume_id in self.had:
                self._choose_attachment(bdm)
            if bdm.volume_id in self.reserved and (
                    self.guest_state != power_state.NOSTATE or
                    bdm.volume_id in self.made):
                self._ensure_attachment(bdm)
                self.manager._prep_block_device(
                    self.context, self.instance,
                    objects.BlockDeviceMappingList(objects=[bdm]))
                self.reserved.remove(bdm.volume_id)

    def _choose_attachment(self, bdm):
        """Let a volume have one attachment, with a host if there is one."""
        had, info = self.had[bdm.volume_id]
        made = self.made.get(bdm.volume_id)
        if bdm.volume_id not in self.reserved:
            bdm.attachment_id = had
            if not self._has_attachment(bdm):
                self.reserved.add(bdm.volume_id)
        if bdm.volume_id in self.reserved:
            bdm.attachment_id = made or had
        else:
            bdm.attachment_id, bdm.connection_info = had, info
        bdm.save()
        if made and made != bdm.attachment_id:
            self._delete([made])
        del self.had[bdm.volume_id]

    def _ensure_attachment(self, bdm):
        """Make the attachment anew if a try to connect it has deleted it."""
        if not self._has_attachment(bdm):
            self._exchange(bdm, self._create(bdm))

    def _start_again(self, spawn):
        """Bring the guest back, in the power state that it had."""
        manager, context, instance = self.manager, self.context, self.instance
        running = self.guest_state == power_state.RUNNING
        state = manager._get_power_state(instance)
        if state == power_state.NOSTATE:
            if 'accel_info' not in spawn:
                spawn['accel_info'] = manager._get_accel_info(
                    context, instance)
            manager.driver.spawn(
                context, instance, instance.image_meta, [], None,
                block_device_info=manager._get_instance_block_device_info(
                    context, instance, bdms=self.bdms),
                power_on=running, **spawn)
        elif running and state != power_state.RUNNING:
            manager._power_on(context, instance)
        instance.power_state = manager._get_power_state(instance)
        instance.save(expected_task_state=[task_states.REBUILDING])
