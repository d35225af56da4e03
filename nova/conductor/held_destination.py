# SPDX-License-Identifier: Apache-2.0

"""Finds a host for a server that is rebuilt, in held room if there is any.

The function is not in nova.scheduler.held_room, because nova.scheduler.utils
imports that module indirectly.
"""

import collections.abc

from oslo_log import log as logging

from nova import context as nova_context
from nova import objects
from nova.scheduler import allocations
from nova.scheduler.client import query
from nova.scheduler.client import report
from nova.scheduler import held_room
from nova.scheduler import utils as scheduler_utils

LOG = logging.getLogger(__name__)


def schedule(
    context: nova_context.RequestContext,
    client: report.SchedulerReportClient,
    query_client: query.SchedulerQueryClient,
    request_spec: 'objects.RequestSpec',
    build_request: 'objects.BuildRequest',
    schedule_anywhere: collections.abc.Callable[
        [], list[list['objects.Selection']]],
) -> list[list['objects.Selection']]:
    """Find a host for a server that is rebuilt.

    What earlier builds have left allocated is deleted first, or Placement
    would refuse the claim of the scheduler.

    :param context: the request context
    :param client: the SchedulerReportClient
    :param query_client: the SchedulerQueryClient
    :param request_spec: the RequestSpec of the server
    :param build_request: its BuildRequest, whose lease the caller has
    :param schedule_anywhere: finds a host where no room is held, a function
        without arguments
    :returns: a list of lists of Selection objects
    :raises: LeaseLost, and what schedule_anywhere() raises. What is held for
        the server, or allocated to the server, is then left to the caller.
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
