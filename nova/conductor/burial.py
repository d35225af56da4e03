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

"""What a burial in cell0 keeps for a rebuild out of it."""

from oslo_log import log as logging

from nova import exception
from nova import objects

LOG = logging.getLogger(__name__)


def waits_for_room(context, exc):
    """Whether a server is being buried because no host had room for it.

    :param context: the context that is targeted at the server's cell
    :param exc: why the build failed. MaxRetriesExceeded, a NoValidHost too,
        says that hosts had room and the build failed on each.
    """
    return (context.cell_uuid == objects.CellMapping.CELL0_UUID and
            isinstance(exc, exception.NoValidHost) and
            not isinstance(exc, exception.MaxRetriesExceeded))


def keep_request(context, instance_uuid, request_spec):
    """Persist what the owner asked for and the release would forget.

    :param context: the request context
    :param instance_uuid: the server that is about to be buried
    :param request_spec: the RequestSpec of the request. All servers of a
        multi-create are buried with that of the first.
    """
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(
            context, instance_uuid)
    except exception.RequestSpecNotFound:
        LOG.warning('No request spec was found for a server that is being '
                    'buried in cell0; it cannot be rebuilt.',
                    instance_uuid=instance_uuid)
        return
    if 'requested_networks' in request_spec:
        spec.requested_networks = request_spec.requested_networks
    else:
        # Asked for without networks. An empty list tells that from a server
        # of which they are not known.
        spec.requested_networks = objects.NetworkRequestList(objects=[])
    spec.requested_destination = request_spec.requested_destination
    spec.is_buried = True
    spec.save()


def forget_request(context, instance_uuid):
    """Drop what was kept once a server has left cell0.

    :param context: the request context
    :param instance_uuid: a server that was scheduled or buried again
    """
    try:
        mapping = objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid)
        if mapping.cell_mapping is None or mapping.cell_mapping.is_cell0():
            return
        spec = objects.RequestSpec.get_by_instance_uuid(
            context, instance_uuid)
    except (exception.InstanceMappingNotFound,
            exception.RequestSpecNotFound):
        return
    spec.is_buried = False
    # Reset by the save, as in the release, and dirty so that it saves.
    spec.requested_destination = None
    spec.save()
