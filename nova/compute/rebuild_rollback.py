# SPDX-License-Identifier: Apache-2.0

"""Undoes what nova-api has changed for the rebuild of a volume-backed server.

nova-api gives the server the image of the rebuild, with its properties, before
a host is asked.
"""

import sys

from oslo_log import log as logging

from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova import context as nova_context
from nova import exception
from nova import objects
from nova import utils

LOG = logging.getLogger(__name__)

# The attributes that nova-api takes from the properties of an image.
_FROM_IMAGE = {'architecture': None, 'kernel_id': '', 'os_type': None,
               'ramdisk_id': '', 'vm_mode': None}


def restore_image(instance: 'objects.Instance',
                  system_metadata: dict[str, str] | None) -> None:
    """Give a server back what nova-api has changed for the new image.

    The instance is not saved. Name, metadata and user data of the request
    stay, as after each rebuild that fails.

    :param system_metadata: the system metadata before the rebuild
    """
    prefix = utils.SM_IMAGE_PROP_PREFIX
    of_image = {key: value for key, value in (system_metadata or {}).items()
                if key.startswith(prefix)}
    instance.image_ref = ''
    instance.system_metadata = {
        **{key: value for key, value in instance.system_metadata.items()
           if not key.startswith(prefix)}, **of_image}
    for name, default in _FROM_IMAGE.items():
        value = of_image.get(prefix + name)
        setattr(instance, name,
                default if value in (None, 'nokernel') else value)


def restore_unasked(context: nova_context.RequestContext,
                    instance: 'objects.Instance',
                    system_metadata: dict[str, str] | None) -> None:
    """End a rebuild that failed before a host was asked for it.

    By then a volume-backed server has been given an image, as if its root
    disk were on the host, and is in REBUILD unless no host was found.
    """
    restore_image(instance, system_metadata)
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
