# SPDX-License-Identifier: Apache-2.0

"""Changes the allocations of a server, if they are as they were read.

Placement starts the generation of a consumer anew with its next allocations:
allocations that somebody has deleted and others have made since the read pass
for those that were read, if the generations are the same by chance.
"""

import collections.abc
import typing as ty

from nova import context as nova_context
from nova import exception

if ty.TYPE_CHECKING:
    from nova.scheduler.client import report


def delete(
    context: nova_context.RequestContext,
    report_client: 'report.SchedulerReportClient',
    instance_uuid: str,
    is_current: collections.abc.Callable[[], bool],
) -> bool:
    """Delete the allocations of a server that is on no host.

    :param is_current: a function without arguments that says, after the
        allocations were read, whether the server is still the caller's
    :returns: whether nothing is left
    :raises: AllocationUpdateFailed if somebody else has changed them
    """
    body = report_client.get_allocs_for_consumer(context, instance_uuid)
    if not body['allocations']:
        return True
    if not is_current():
        return False
    put(context, report_client, instance_uuid, body, {})
    return True


def resources(body: dict[str, ty.Any]) -> dict[str, dict]:
    """Return allocations in the form that a request to Placement takes.

    :param body: as get_allocs_for_consumer() returns it
    """
    return {provider: {'resources': allocation['resources']}
            for provider, allocation in body['allocations'].items()}


def put(
    context: nova_context.RequestContext,
    report_client: 'report.SchedulerReportClient',
    instance_uuid: str,
    body: dict[str, ty.Any],
    allocations: dict[str, dict],
) -> None:
    """Replace allocations that have not changed since they were read.

    :param body: what was read, as get_allocs_for_consumer() returns it
    :param allocations: what the server is to have, by provider
    :raises: AllocationUpdateFailed if somebody else has changed them
    """
    if not report_client.put_allocations(context, instance_uuid, {
            'allocations': allocations,
            'consumer_generation': body.get('consumer_generation'),
            'project_id': body['project_id'], 'user_id': body['user_id']}):
        raise exception.AllocationUpdateFailed(
            consumer_uuid=instance_uuid, error='')
