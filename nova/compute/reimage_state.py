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

"""What is recorded about the rebuild of a volume-backed server.

nova-api keeps what the request changes, and nova-compute brings it back if
the volume was not re-imaged. nova-compute notes on the server which volume is
being re-imaged; if the server is in ERROR with that note, nova-api lets its
owner rebuild it though its volumes are not in use.
"""

import contextlib
import contextvars
import sys

from oslo_log import log as logging
from oslo_utils import excutils

from nova.compute import reimage_attachment
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova import context_value
from nova import exception
from nova import objects
from nova.objects import rebuild_context
from nova import utils

LOG = logging.getLogger(__name__)

#: The key of the system metadata with the volume that is being re-imaged.
UNFINISHED = 'reimage_unfinished'

# What a rebuild takes from the image, and what it may take from the request.
_FROM_IMAGE = ('architecture', 'auto_disk_config', 'kernel_id', 'os_type',
               'ramdisk_id', 'vm_mode')
_FROM_REQUEST = ('access_ip_v4', 'access_ip_v6', 'display_description',
                 'display_name', 'hostname', 'metadata', 'user_data')
_KEY = ('key_name', 'key_data')

_retried = contextvars.ContextVar('reimage_retried', default=None)


def changed(instance, changes):
    """Return what a rebuild changes about a server, as it is before that.

    :param instance: the Instance
    :param changes: the names of the attributes that the request replaces
    """
    values = {
        name: getattr(instance, name)
        for name in _FROM_IMAGE + _FROM_REQUEST
        if name in _FROM_IMAGE or name in changes}
    for name in ('access_ip_v4', 'access_ip_v6'):
        if values.get(name) is not None:
            values[name] = str(values[name])
    if 'key_name' in changes:
        values.update((name, getattr(instance, name)) for name in _KEY)
        values['keypairs'] = instance.keypairs.obj_to_primitive()
    return {'instance': values}


def save_original(context, instance):
    """Keep with the request spec what the rebuild that is asked for changes.

    :param context: the request context
    :param instance: the Instance, which no other request can rebuild now
    """
    before = rebuild_context.before_rebuild()
    if before is None:
        return
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
        before.update(request_id=context.request_id,
                      image=spec.image and spec.image.obj_to_primitive())
        spec.save_all()
    except Exception:
        # The server would stay as it is, being rebuilt by nobody.
        LOG.exception('What the rebuild changes is not kept.',
                      instance=instance)


def restore_original(context, instance, system_metadata):
    """Make a server and its request spec what they were before a rebuild.

    The instance is not saved.

    :param context: the context of the request that asked for the rebuild
    :param instance: the Instance
    :param system_metadata: its system metadata before the rebuild
    """
    _restore(instance, system_metadata, _take_original(context, instance))


def restore_unasked(context, instance, system_metadata):
    """Do so, and save it, if no host was asked to rebuild a server.

    The release sets its task_state for some of the failures only.

    :param context: the context of the request that asked for the rebuild
    :param instance: the Instance
    :param system_metadata: its system metadata before the rebuild
    """
    instance.image_ref = ''
    restore_original(context, instance, system_metadata)
    try:
        now = objects.Instance.get_by_uuid(
            context, instance.uuid, expected_attrs=[])
        if now.task_state == task_states.REBUILDING:
            compute_utils.add_instance_fault_from_exc(
                context, instance, sys.exc_info()[1], sys.exc_info())
            instance.task_state = None
        instance.save(expected_task_state=[task_states.REBUILDING, None])
    except (exception.InstanceNotFound, exception.UnexpectedTaskStateError):
        LOG.debug('The server is deleted.', instance=instance)


@contextlib.contextmanager
def restored_if_kept(context, instance, system_metadata):
    """Make a server what it was if its rebuild ends before anybody does so.

    What under_way() is around brings it back, or ends what was kept. Released
    code before that can fail, too.

    :param context: the context of the request that asked for the rebuild
    :param instance: the Instance
    :param system_metadata: its system metadata before the rebuild
    """
    try:
        yield
    except Exception:
        with excutils.save_and_reraise_exception():
            values = _take_original(context, instance)
            if values:
                _restore(instance, system_metadata, values)
                with contextlib.suppress(exception.InstanceNotFound):
                    instance.save()


def _take_original(context, instance):
    """Return what save_original() has kept, and put the image back."""
    try:
        return objects.RequestSpec.undo_rebuild(context, instance.uuid)
    except Exception:
        # A conductor of a cell may have no way to the API database, or may
        # not know of it.
        LOG.warning('The image in the request spec of the server stays the '
                    'one that it was to be rebuilt with.', exc_info=True,
                    instance=instance)
        return {}


def _restore(instance, system_metadata, values):
    def is_of_rebuild(key):
        return key.startswith(utils.SM_IMAGE_PROP_PREFIX) or key == UNFINISHED

    instance.system_metadata = {
        key: value
        for metadata, of_rebuild in ((instance.system_metadata, False),
                                     (system_metadata or {}, True))
        for key, value in metadata.items()
        if is_of_rebuild(key) == of_rebuild}
    keypairs = values.pop('keypairs', None)
    if keypairs is not None:
        instance.keypairs = objects.KeyPairList.obj_from_primitive(keypairs)
    for name, value in values.items():
        setattr(instance, name, value)


def clear_original(context, instance):
    """Delete what save_original() has kept, and the note: it was rebuilt.

    :param context: the context of the request that asked for the rebuild
    :param instance: the Instance
    """
    instance.system_metadata.pop(UNFINISHED, None)
    forget_original(context, instance)


def forget_original(context, instance):
    """Delete what save_original() has kept: there is no way back to it.

    :param context: the context of the request that asked for the rebuild
    :param instance: the Instance
    """
    try:
        objects.RequestSpec.end_rebuild(context, instance.uuid)
    except Exception:
        LOG.warning('What the server was before its rebuild is kept with its '
                    'request spec.', exc_info=True, instance=instance)


def checking(instance, reimage):
    """Tell is_left_by_failure() which server a rebuild is asked for.

    :param instance: the Instance
    :param reimage: whether its root volume would be re-imaged
    """
    return context_value.within(
        _retried, instance
        if reimage and instance.vm_state == vm_states.ERROR and
        UNFINISHED in instance.system_metadata else None)


def is_left_by_failure(context, volume_api, bdm):
    """Whether a re-image that failed left a volume in the state that it has.

    :param context: the request context
    :param volume_api: the API of the block storage service
    :param bdm: the BlockDeviceMapping of the volume
    :returns: True if the rebuild that is asked for makes up for it
    """
    instance = _retried.get()
    if instance is None or bdm.instance_uuid != instance.uuid:
        return False
    status = volume_api.get(context, bdm.volume_id)['status']
    is_root = instance.system_metadata[UNFINISHED] == bdm.volume_id
    if status == 'available':
        return True
    if status not in ('reserved', 'attaching') and not (
            is_root and status == 'error'):
        return False
    # Perhaps not the one in the mapping, if nova-compute has died.
    return bool(reimage_attachment.Attachment(context, volume_api, bdm).ids())


def delete_leftovers(context, volume_api, instance, bdms=None):
    """Delete the attachments that a nova-compute which died has left.

    It is logged if that cannot be done.

    :param context: an elevated context
    :param volume_api: the API of the block storage service
    :param instance: the Instance; nothing is done without the note on it
    :param bdms: its BlockDeviceMappingList, loaded if it is not given
    """
    try:
        if UNFINISHED not in instance.system_metadata:
            return
        if bdms is None:
            bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
                context, instance.uuid)
        for bdm in bdms:
            if bdm.is_volume and bdm.attachment_id:
                reimage_attachment.Attachment(
                    context, volume_api, bdm).delete_others()
    except Exception:
        LOG.exception('The server may have more attachments than it knows.',
                      instance=instance)
