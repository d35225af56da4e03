# SPDX-License-Identifier: Apache-2.0

"""Deletes what was claimed for servers that nobody builds any more.

A scheduler that hangs claims room when its conductor has given up. After such
a claim the scheduler looks whether the server still has a build request. The
conductor looks for a claim once more after the server is in cell0. So either
the scheduler or the conductor finds the claim.
"""

import typing as ty

from oslo_log import log as logging
from oslo_utils import timeutils

from nova import context as nova_context
from nova import objects
from nova.objects import build_request
from nova.scheduler import allocations
from nova.scheduler import held_room

if ty.TYPE_CHECKING:
    from nova.scheduler.client import report

LOG = logging.getLogger(__name__)

# Seconds. A conductor waits for [DEFAULT] rpc_response_timeout, which nobody
# sets as short as this. oslo.messaging does not register that option in a
# scheduler, because a scheduler calls nobody.
_NO_TIMEOUT_WITHIN = 10


def delete(
    context: nova_context.RequestContext,
    report_client: 'report.SchedulerReportClient',
    instance_uuid: str,
) -> None:
    """Delete what was claimed for a server, if nobody builds the server.

    A failure is only logged: the caller must be able to go on.

    :param context: the request context
    :param report_client: the SchedulerReportClient
    :param instance_uuid: the server
    """
    def is_lost() -> bool:
        place = build_request.place_of(context, instance_uuid)
        if place is None or place == build_request.Place(None, False):
            return True
        # The allocation of a server that waits can be room held for it.
        return place.cell_uuid == objects.CellMapping.CELL0_UUID and (
            not held_room.find(context, report_client, instance_uuid))

    _delete(context, report_client, instance_uuid, is_lost)


def check(
    context: nova_context.RequestContext,
    report_client: 'report.SchedulerReportClient',
    instance_uuid: str,
) -> None:
    """Delete a scheduler's claim for a server if nobody builds the server.

    The scheduler goes on: it may have claimed for other servers of the same
    create, and a conductor finds out by itself that a server is gone. There
    is no check in the first seconds after the user's request, because no
    conductor gives up so early.

    :param context: the request context
    :param report_client: the SchedulerReportClient
    :param instance_uuid: the server, for which nothing else is allocated
    """
    if not timeutils.is_older_than(context.timestamp, _NO_TIMEOUT_WITHIN):
        return
    place = build_request.place_of(context, instance_uuid)
    if place is None or not place.has_build_request:
        def is_lost() -> bool:
            # A rebuild may have built the server since the first look. Room
            # can be held for the server, too.
            return place == build_request.place_of(
                context, instance_uuid) and not held_room.find(
                    context, report_client, instance_uuid)

        LOG.info('Nobody builds the server any more: its claim is deleted.',
                 instance_uuid=instance_uuid)
        _delete(context, report_client, instance_uuid, is_lost)


def _delete(context, report_client, instance_uuid: str, is_lost) -> None:
    try:
        allocations.delete(context, report_client, instance_uuid, is_lost)
    except Exception:
        LOG.exception('What is claimed for the server cannot be deleted.',
                      instance_uuid=instance_uuid)
