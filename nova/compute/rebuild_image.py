# SPDX-License-Identifier: Apache-2.0

"""The image of a rebuild, and what refuses a rebuild."""

import collections.abc
import contextlib
import typing as ty

from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova import objects

if ty.TYPE_CHECKING:
    from nova.compute import api as compute

# A create answers these exceptions with 400 or 409, and the rebuild of a
# server on a host with 500. None of them is a NotFound or an Invalid.
_BAD_REQUESTS = (
    exception.DeviceProfileError,
    exception.FixedIpAlreadyInUse,
    exception.ImageNotAuthorized,
    exception.ImagePCINUMAPolicyForbidden,
    exception.InstanceUserDataMalformed,
    exception.MixedInstanceNotSupportByComputeService,
    exception.NoUniqueMatch)


class RebuildRefused(exception.InvalidRequest):
    msg_fmt = _("The server cannot be rebuilt: %(reason)s")


@contextlib.contextmanager
def refusals(
    refused: type[exception.InvalidRequest] = RebuildRefused,
) -> collections.abc.Iterator[None]:
    """Answer what is wrong with the request as a bad request.

    :param refused: the exception to raise, whose message takes a reason
    """
    try:
        yield
    except (exception.InstanceNotFound, exception.InstanceInvalidState,
            RebuildRefused):
        raise
    except (exception.NotFound, exception.Invalid, *_BAD_REQUESTS) as exc:
        raise refused(reason=exc.format_message())


def image_of(
    api: 'compute.API',
    context: nova_context.RequestContext,
    instance: 'objects.Instance',
    bdms: 'objects.BlockDeviceMappingList | None' = None,
) -> str:
    """Return the image that a server is rebuilt from if none is named.

    :param context: the request context, targeted at the server's cell
    :param instance: the Instance, in cell0 or not
    :param bdms: its BlockDeviceMappingList, loaded if it is not given
    :returns: the ID of the image, '' if its root volume was made from none
    """
    if instance.image_ref:
        return instance.image_ref
    if bdms is None:
        bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
            context, instance.uuid)
    root = bdms.root_bdm()
    if root is None:
        return ''
    volume_id = root.volume_id
    if root.snapshot_id and not volume_id:
        volume_id = api.volume_api.get_snapshot(
            context, root.snapshot_id)['volume_id']
    if volume_id:
        volume = api.volume_api.get(context, volume_id)
        return volume.get('volume_image_metadata', {}).get('image_id', '')
    return root.image_id or ''


def current_image(
    api: 'compute.API',
    context: nova_context.RequestContext,
    instance: 'objects.Instance',
) -> str:
    """Return the image that a server outside of cell0 is rebuilt from.

    :param context: the request context, targeted at the server's cell
    :returns: the ID of the image, where the request names none
    :raises: RebuildRefused (400) if its root volume was made from none, or
        cannot be asked
    """
    with refusals():
        image_id = image_of(api, context, instance)
    if not image_id:
        raise RebuildRefused(
            reason=_('its volume was made from no image, so name one'))
    return image_id
