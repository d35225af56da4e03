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

"""Re-images the root volume of a server in cell0, before it is built.

There is no nova-compute to do it, and Cinder's event finds no host: the
status of the volume is asked for until Cinder is done.
"""

import time

from oslo_log import log as logging

from nova.compute import reimage_record
from nova.compute import volume_reimage
from nova.conductor import burial
import nova.conf
from nova import exception
from nova.i18n import _
from nova.objects import request_memory

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_ASK_EVERY = 2

#: What run() raises: the server is to be buried again.
FAILURES = (volume_reimage.NotReimaged, volume_reimage.ReimageFailed)


def run(context, volume_api, image_api, build_request, bdms):
    """Re-image the root volume if that is what the rebuild asked for.

    :param context: the context of the request
    :param volume_api: the API of the block storage service
    :param image_api: the API of the image service
    :param build_request: the BuildRequest that stands for the server
    :param bdms: its BlockDeviceMappingList; the attachment of the root is
        exchanged in it and in the build request if it has to be
    :returns: whether the server is still to be built
    :raises: NotReimaged if Cinder has not accepted it, ReimageFailed
    """
    image_id = request_memory.get(
        context, build_request.instance_uuid).get('reimage')
    if image_id is None:
        return True
    root = bdms.root_bdm()
    seconds = CONF.reimage_timeout_per_gb
    try:
        volume = volume_api.get(context, root.volume_id)
        seconds = volume_reimage.timeout(
            image_api.get(context, image_id), volume)
        # What a try before this has lost is among the others.
        others = {*reimage_record.attachments(context, volume_api, root)} - {
            root.attachment_id}
        reimage_record.delete(context, volume_api, others)
        if volume['status'] != 'reserved' or not reimage_record.has_attachment(
                context, volume_api, root):
            _leave_error(context, volume_api, build_request, root)
        LOG.info('Volume %s is re-imaged before the server is built.',
                 root.volume_id, instance=build_request.instance)
        volume_api.reimage_volume(
            context, root.volume_id, image_id, reimage_reserved=True)
    except Exception as exc:
        not_reimaged = volume_reimage.NotReimaged(
            volume_id=root.volume_id, reason=volume_reimage.reason(exc))
        if _status(volume_api, context, root) != 'downloading':
            raise not_reimaged
        if volume_reimage.is_stuck(exc):
            _leave_downloading(context, volume_api, build_request, root)
            raise not_reimaged
    if not _wait(context, volume_api, build_request, root,
                 seconds * (1 + CONF.reimage_timeout_extensions)):
        return False
    if build_request.instance.system_metadata.pop(
            reimage_record.UNFINISHED, None):
        _save(build_request)
    return True


def _leave_error(context, volume_api, build_request, root):
    """Get a volume out of error: Cinder leaves it there else."""
    # Between the two nobody has it, and the next rebuild may take it again.
    build_request.instance.system_metadata[
        reimage_record.UNFINISHED] = root.volume_id
    _save(build_request)
    reimage_record.delete(context, volume_api, [root.attachment_id])
    _attach(context, volume_api, build_request, root)


def _leave_downloading(context, volume_api, build_request, root):
    """Reserve a volume that Cinder takes for one that it writes to."""
    before = root.attachment_id
    try:
        _attach(context, volume_api, build_request, root)
        volume_api.attachment_delete(context, before)
    except Exception:
        LOG.exception('Volume %s stays in downloading.', root.volume_id,
                      instance=build_request.instance)


def _attach(context, volume_api, build_request, root):
    """Make an attachment and have it in the build request."""
    instance_uuid = build_request.instance_uuid
    root.attachment_id = volume_api.attachment_create(
        context, root.volume_id, instance_uuid)['id']
    if burial.current(context, build_request) is None:
        volume_api.attachment_delete(context, root.attachment_id)
        raise exception.InstanceNotFound(instance_id=instance_uuid)
    build_request.block_device_mappings.root_bdm().attachment_id = (
        root.attachment_id)
    _save(build_request)


def _save(build_request):
    """Save what is changed within the objects of a build request."""
    build_request.instance = build_request.instance
    build_request.block_device_mappings = build_request.block_device_mappings
    build_request.save()


def _wait(context, volume_api, build_request, root, seconds):
    """Wait until Cinder is done: whether the server is still to be built."""
    end = time.monotonic() + seconds
    while True:
        # No recovery is to take it for left by a conductor that died.
        if not burial.keep_current(context, build_request):
            return False
        status = _status(volume_api, context, root)
        if status == 'reserved':
            return True
        if status not in ('downloading', None) or time.monotonic() >= end:
            raise volume_reimage.ReimageFailed(
                volume_id=root.volume_id,
                reason=_('its status is %s') % (status or _('not known')))
        time.sleep(_ASK_EVERY)


def _status(volume_api, context, root):
    try:
        return volume_api.get(context, root.volume_id)['status']
    except exception.VolumeNotFound:
        return 'deleted'
    except Exception as exc:
        LOG.warning('The status of volume %s is not known: %s',
                    root.volume_id, exc)
        return None
