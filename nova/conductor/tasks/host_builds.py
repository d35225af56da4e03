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


"""Finds out what hosts have done to build a server, and restores its volumes.

A host that fails detaches volumes, deletes those that were to go with the
server, and leaves those that it has made.
"""

import contextlib

from cinderclient import exceptions as cinder_exception
from oslo_log import log as logging

from nova.compute import cell0_record
from nova.compute import instance_actions
from nova.compute import task_states
from nova.compute import vm_states
from nova.compute import volume_reimage
from nova import crypto
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import exception
from nova.i18n import _
from nova import objects
from nova import utils
from nova.volume import cinder
from nova import vtpm

LOG = logging.getLogger(__name__)

_BUILD_EVENT = 'compute__do_build_and_run_instance'


class VolumeGone(exception.NovaException):
    msg_fmt = _("Volume %(volume_id)s was deleted when the build failed.")


def first_event(cctxt, instance_uuid):
    """Return the event of the first host that began the last rebuild.

    Of several hosts the release ends the event of the first alone.

    :param cctxt: a context that is targeted at the cell of the server
    :param instance_uuid: the server
    :returns: a row with finish_time, None if no host has begun
    """
    action, event = models.InstanceAction, models.InstanceActionEvent
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        last = session.query(action.id).filter_by(
            instance_uuid=instance_uuid,
            action=instance_actions.REBUILD).order_by(action.id.desc()).first()
        return last and session.query(event.finish_time).filter_by(
            action_id=last.id, event=_BUILD_EVENT).order_by(event.id).first()


def restore_volumes(cctxt, instance):
    """Return the block device mappings as they were before the build.

    What it has made is deleted, what was there is reserved again. What is as
    it was is left so.

    :param cctxt: a context that is targeted at the cell of the server
    :param instance: the Instance, which the caller has claimed
    :raises: VolumeGone if the host has deleted what was there
    """
    volume_api = cinder.API()
    with utils.temporary_mutation(cctxt, read_deleted='yes'):
        bdms, of_volumes = _all_bdms(cctxt, instance)
        for bdm in of_volumes:
            _restore(cctxt, volume_api, instance, bdm)
            # Who tries again makes nothing a second time.
            bdm.save()
        return cell0_record.unsaved_bdms(instance, bdms)


def secrets_of(instance, bdms):
    """Return what a host has put into the key manager for a server.

    :param instance: the Instance
    :param bdms: its BlockDeviceMappingList as the host has left it
    :returns: a dict by the ID of each secret: whether it is that of the TPM
    """
    secrets = {bdm.encryption_secret_uuid: False for bdm in bdms}
    secrets[instance.system_metadata.get('vtpm_secret_uuid')] = True
    secrets.pop(None, None)
    return secrets


def delete_secrets(cctxt, instance, secrets):
    """Delete secrets of a build that has failed; the next one makes its own.

    A failure is logged only: the token of who asked for the build is needed,
    and recovery has none.

    :param cctxt: the request context
    :param instance: the Instance
    :param secrets: what secrets_of() returned
    """
    for secret_uuid, is_of_tpm in secrets.items():
        try:
            crypto.delete_encryption_secret(
                vtpm.get_request_context(cctxt, instance.flavor)
                if is_of_tpm else cctxt, instance.uuid, secret_uuid)
        except Exception as exc:
            LOG.warning('The secret %(secret)s, which the build has made, is '
                        'left in the key manager: %(exc)s', {
                            'secret': secret_uuid, 'exc': exc},
                        instance=instance)


def is_deleted(cctxt, instance):
    """Whether the owner of a server has deleted it, or is doing so.

    :param cctxt: a context that is targeted at the cell of the server
    :param instance: the Instance, of which that record is meant alone
    """
    row = models.Instance
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return session.query(row.id).filter(
            row.id == instance.id, (row.deleted != 0) | row.task_state.in_(
                (task_states.DELETING, task_states.SOFT_DELETING))
        ).first() is not None


def release_if_deleted(cctxt, instance):
    """Delete the attachments of a server that its owner deletes meanwhile.

    Who deletes it can have read its volumes before restore_volumes() has
    reserved them. What has returned to cell0 is deleted here for good, and
    not marked as that.

    :param cctxt: a context that is targeted at the cell of the server
    :param instance: the Instance, which is not claimed any more
    """
    if not is_deleted(cctxt, instance):
        return
    volume_api = cinder.API()
    with utils.temporary_mutation(cctxt, read_deleted='yes'):
        _bdms, of_volumes = _all_bdms(cctxt, instance)
    for bdm in of_volumes:
        volume_reimage.Attachments(
            cctxt, volume_api, bdm.instance_uuid).delete(bdm)


def set_error(instance):
    """Leave a server in ERROR in its cell for good.

    :param instance: the Instance, which the host has given up
    """
    before = instance.task_state
    instance.vm_state, instance.task_state = vm_states.ERROR, None
    # As if an administrator said so.
    instance.save(expected_task_state=[before], admin_state_reset=True)


def _all_bdms(cctxt, instance):
    """Return the block device mappings, and those of them that have a volume.

    The host deletes those of volumes that are to go with the server.

    :param cctxt: a context that reads what is deleted
    """
    bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
        cctxt, instance.uuid)
    return bdms, [bdm for bdm in bdms if bdm.is_volume and bdm.volume_id]


def _restore(cctxt, volume_api, instance, bdm):
    attached = bdm.attachment_id and _exists(
        volume_api.attachment_get, cctxt, bdm.attachment_id)
    if bdm.source_type == 'volume':
        if not _exists(volume_api.get, cctxt, bdm.volume_id):
            raise VolumeGone(volume_id=bdm.volume_id)
        if not attached:
            # Who has died before it was saved may have made one.
            made = volume_reimage.Attachments(
                cctxt, volume_api, instance.uuid).find(bdm)
            bdm.attachment_id = next(iter(made)) if made else (
                volume_api.attachment_create(
                    cctxt, bdm.volume_id, instance.uuid)['id'])
        return
    if attached:
        volume_api.attachment_delete(cctxt, bdm.attachment_id)
    with contextlib.suppress(exception.VolumeNotFound):
        volume_api.delete(cctxt, bdm.volume_id)
    bdm.volume_id = bdm.attachment_id = None


def _exists(get, *args):
    try:
        get(*args)
    except (exception.VolumeNotFound, exception.VolumeAttachmentNotFound,
            cinder_exception.NotFound):
        return False
    return True
