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

"""Where a server that comes out of cell0 is to be built.

Apart from nova.scheduler.held_room, which objects of Nova import before
scheduler utilities can be.
"""

from oslo_log import log as logging
from oslo_serialization import jsonutils

from nova import exception
from nova.i18n import _
from nova.scheduler import allocations
from nova.scheduler import held_room
from nova.scheduler import utils as scheduler_utils

LOG = logging.getLogger(__name__)


def schedule(context, client, query_client, request_spec, build_request,
             schedule_anywhere):
    """Find a host for a server that comes out of cell0.

    What earlier builds have left allocated is deleted before: a scheduler
    would take it for the host that the server moves from.

    :param context: the request context
    :param client: the SchedulerReportClient
    :param query_client: the SchedulerQueryClient
    :param request_spec: the RequestSpec of the server
    :param build_request: its BuildRequest, whose lease the caller has
    :param schedule_anywhere: finds a host where no room is held, a function
        without arguments
    :returns: a list of lists of Selection objects
    :raises: LeaseLost, and what schedule_anywhere() raises. The caller gives
        back then what is held for the server or allocated to it.
    """
    uuid = request_spec.instance_uuid
    body = held_room.get_allocations(context, client, uuid)
    hold = held_room.of_allocations(uuid, body)
    if hold is not None:
        scheduler_utils.setup_instance_group(context, request_spec)
        host_lists = query_client.select_held_destination(
            context, request_spec, hold)
        if host_lists is not None:
            if not held_room.was_claimed(host_lists[0][0]):
                _match(context, client, build_request, host_lists[0][0])
            return host_lists
        LOG.info('The scheduler that was asked does not take room that is '
                 'held.', instance_uuid=uuid)
        held_room.drop(context, client, hold)
    elif body is not None and body['allocations']:
        build_request.renew()
        allocations.put(context, client, uuid, body, {})
    host_lists = schedule_anywhere()
    _match(context, client, build_request, host_lists[0][0])
    return host_lists


def _match(context, client, build_request, selection):
    """Let a server have what the scheduler chose, no more and no less.

    The claim of the scheduler is added to room that was held, or claimed by
    another scheduler, after the conductor had looked for it. Whoever holds
    the room would give back all of it.

    :raises: LeaseLost, or AllocationUpdateFailed if somebody else has changed
        the allocations
    """
    if not selection.allocation_request:
        return
    instance = build_request.instance
    wanted = allocations.resources(
        jsonutils.loads(selection.allocation_request))
    body = held_room.get_allocations(context, client, instance.uuid)
    if body is None:
        return
    hold = held_room.of_allocations(instance.uuid, body)
    if hold is None and wanted == allocations.resources(body):
        return
    build_request.renew()
    LOG.warning('The allocations of the server were not those of the host '
                'that the scheduler chose; they are now.', instance=instance)
    if hold is None:
        allocations.put(context, client, instance.uuid, dict(
            body, project_id=instance.project_id, user_id=instance.user_id),
            wanted)
    elif not held_room.claim(context, client, hold, instance.project_id,
                             instance.user_id, wanted):
        raise exception.AllocationUpdateFailed(
            consumer_uuid=instance.uuid,
            error=_('the room that is held for it was changed'))
