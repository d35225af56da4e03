# SPDX-License-Identifier: Apache-2.0

"""Room in placement that is held for a server that waits in cell0.

A hold is an allocation under the server's own UUID whose consumer type is
NOVA_PENDING. A service that makes room for a server writes the hold. While the
server is rebuilt out of cell0, the conductor hands the hold to the scheduler,
which takes it as the only allocation candidate and claims it. Nothing else in
Nova knows holds. A delete of the server deletes its hold, as any allocation.
nova/scheduler/held_candidate.py has what the scheduler does with a hold.
"""

import collections
import typing as ty

from keystoneauth1 import exceptions as ks_exc
from oslo_log import log as logging

from nova import context as nova_context
from nova.scheduler import allocations

if ty.TYPE_CHECKING:
    from nova.scheduler.client import report

LOG = logging.getLogger(__name__)

CONSUMER_TYPE = 'NOVA_PENDING'

#: The type that a hold gets when it is claimed for its server.
CLAIMED_TYPE = 'INSTANCE'

#: The first version of placement with consumer types.
VERSION = '1.38'
# A put that conflicts with another one about the same provider is repeated.
_ATTEMPTS = 4


def find(
    context: nova_context.RequestContext,
    client: 'report.SchedulerReportClient',
    instance_uuid: str,
) -> dict[str, ty.Any] | None:
    """Return the room that is held for a server.

    :returns: a dict with the keys instance_uuid, allocations,
        consumer_generation, project_id and user_id, as a GET of the
        allocations answers it; None if nothing is held, or if the allocation
        is no hold
    :raises: keystoneauth1.exceptions.ClientException if placement cannot be
        asked
    """
    return of_allocations(instance_uuid, get_allocations(
        context, client, instance_uuid))


def get_allocations(
    context: nova_context.RequestContext,
    client: 'report.SchedulerReportClient',
    instance_uuid: str,
) -> dict[str, ty.Any] | None:
    """Return what is allocated to a server, with the type of the consumer.

    :returns: the answer of placement as it is; None if the answer has no
        allocations, as of a placement that does not know the version
    :raises: as find()
    """
    response = client.get('/allocations/%s' % instance_uuid, version=VERSION,
                          global_request_id=context.global_id)
    # A proxy in front of placement may have answered, not in JSON.
    if response.status_code >= 500:
        raise ks_exc.from_response(response, 'GET', response.url)
    return response.json() if response.status_code == 200 else None


def of_allocations(
    instance_uuid: str, body: dict[str, ty.Any] | None,
) -> dict[str, ty.Any] | None:
    """Turn what get_allocations() has returned into what find() returns."""
    if not body or not body.get('allocations') or (
            body.get('consumer_type') != CONSUMER_TYPE):
        return None
    return {
        'instance_uuid': instance_uuid,
        'allocations': allocations.resources(body),
        **{key: body[key] for key in (
            'consumer_generation', 'project_id', 'user_id')}}


def drop(
    context: nova_context.RequestContext,
    client: 'report.SchedulerReportClient',
    hold: dict[str, ty.Any],
) -> bool:
    """Give back room that is held, if it is still what was found.

    :param hold: what find() returned
    :returns: whether the room is given back. If not, somebody else has changed
        or taken the hold meanwhile.
    :raises: keystoneauth1.exceptions.ClientException
    """
    if not _stands(context, client, hold):
        return False
    dropped = _put(context, client, hold, {}, CONSUMER_TYPE,
                   hold['project_id'], hold['user_id'])
    LOG.info('The room that was held for the server %s.',
             'is given back' if dropped else 'was changed by somebody else',
             instance_uuid=hold['instance_uuid'])
    return dropped


def claim(
    context: nova_context.RequestContext,
    client: 'report.SchedulerReportClient',
    hold: dict[str, ty.Any],
    project_id: str,
    user_id: str,
) -> bool:
    """Make room that is held the allocation of its server.

    :param hold: what find() returned
    :returns: whether that was done. If not, placement has no such room, or
        the hold is not what was found any more.
    :raises: keystoneauth1.exceptions.ClientException
    """
    if not _stands(context, client, hold):
        return False
    for _attempt in range(_ATTEMPTS):
        if not _put(context, client, hold, hold['allocations'], CLAIMED_TYPE,
                    project_id, user_id):
            return False
        # Placement 16 repeats a write that met a deadlock without the part
        # that the deadlock undid: type, project and user of the consumer.
        try:
            now = get_allocations(context, client, hold['instance_uuid'])
        except ks_exc.ClientException as exc:
            LOG.warning('Whether the room that was held belongs to the server '
                        'now cannot be looked at: %s', exc,
                        instance_uuid=hold['instance_uuid'])
            now = None
        if now is None:
            return True
        if not now['allocations']:
            _clear(context, client, hold)
            return False
        if (now['consumer_type'], now['project_id'], now['user_id']) == (
                CLAIMED_TYPE, project_id, user_id):
            return True
        if allocations.resources(now) != hold['allocations']:
            return False
        hold = dict(hold, consumer_generation=now['consumer_generation'])
    return False


def _stands(context, client, hold: dict[str, ty.Any]) -> bool:
    """Whether a hold is what find() would return now.

    Placement deletes a consumer with its last allocation, and the generation
    of the next consumer begins anew. So the generation does not show a late
    caller that the server has another hold by now, or runs.
    """
    if find(context, client, hold['instance_uuid']) == hold:
        return True
    LOG.info('The room that was held for the server was changed by somebody '
             'else.', instance_uuid=hold['instance_uuid'])
    return False


def _clear(context, client, hold: dict[str, ty.Any]) -> None:
    # A write and a delete at once can leave allocations without a consumer in
    # Placement 16: it counts them, and shows them to nobody. A write for a new
    # consumer replaces them.
    try:
        _put(context, client, dict(hold, consumer_generation=None), {},
             CLAIMED_TYPE, hold['project_id'], hold['user_id'])
    except ks_exc.ClientException as exc:
        LOG.warning('What may be left of the room that was held cannot be '
                    'cleared: %s', exc,
                    instance_uuid=hold['instance_uuid'])


def _put(context, client, hold, allocations, consumer_type, project_id,
         user_id) -> bool:
    for _attempt in range(_ATTEMPTS):
        response = client.put(
            '/allocations/%s' % hold['instance_uuid'], {
                'allocations': allocations,
                'consumer_generation': hold['consumer_generation'],
                'consumer_type': consumer_type,
                'project_id': project_id, 'user_id': user_id},
            version=VERSION, global_request_id=context.global_id)
        if response.status_code == 204:
            return True
        # Only placement itself answers these codes, in JSON.
        if response.status_code not in (400, 409):
            raise ks_exc.from_response(response, 'PUT', response.url)
        LOG.info('Placement refuses to change the room that is held: %s',
                 response.text, instance_uuid=hold['instance_uuid'])
        try:
            error = response.json()['errors'][0]
        except (KeyError, TypeError, ValueError):
            # A proxy in front of placement has answered.
            raise ks_exc.from_response(response, 'PUT', response.url)
        if error.get('code') != 'placement.concurrent_update' or (
                'consumer generation conflict' in error['detail']):
            break
    return False


def uncounted(
    context: nova_context.RequestContext,
    project_id: str,
    user_id: str | None = None,
) -> collections.Counter[str]:
    """Return what is left out of the usage that placement reports for quotas.

    That is what is allocated to a server (RequestContext.uncounted) which the
    quota check of a rebuild counts itself. A hold belongs to the project and
    the user that its writer has named.

    :param project_id: the project whose usage is counted
    :param user_id: the user whose usage is counted, None for all users
    :returns: a collections.Counter of amounts by resource class
    """
    found = context.uncounted
    if not found or not found['allocations'] or (
            found['project_id'] != project_id) or (
            user_id not in (None, found['user_id'])):
        return collections.Counter()
    return amounts(found)


def amounts(hold: dict[str, ty.Any]) -> collections.Counter[str]:
    """Return the amounts of a hold by resource class, a collections.Counter.

    :param hold: what find() or get_allocations() has returned
    """
    total: collections.Counter[str] = collections.Counter()
    for allocation in hold['allocations'].values():
        total.update(allocation['resources'])
    return total
