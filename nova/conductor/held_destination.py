# SPDX-License-Identifier: Apache-2.0

"""Where a server that comes out of cell0 is to be built.

This is a module of its own, because nova.scheduler.held_room is imported
before nova.scheduler.utils can be.
"""

from oslo_log import log as logging

from nova.scheduler import allocations
from nova.scheduler import held_room
from nova.scheduler import utils as scheduler_utils

LOG = logging.getLogger(__name__)


def schedule(context, client, query_client, request_spec, build_request,
             schedule_anywhere):
    """Find a host for a server that comes out of cell0.

    What earlier builds have left allocated is deleted before, or Placement
    would refuse the claim of the scheduler.

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
            return host_lists
        LOG.info('The scheduler that was asked does not take room that is '
                 'held.', instance_uuid=uuid)
        held_room.drop(context, client, hold)
    elif body is not None and body['allocations']:
        build_request.renew()
        allocations.put(context, client, uuid, body, {})
    return schedule_anywhere()
