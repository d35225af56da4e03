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

"""Removes what builds of a server have left.

Another conductor or recovery can have the server by now, and build it again.
So each function reads what is there, then asks whether the server is still
its caller's, and removes nothing but what it has read.
"""

from oslo_log import log as logging
from oslo_serialization import jsonutils

from nova.compute import cell0_record
from nova.compute import vm_states
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.scheduler import allocations
from nova.scheduler import held_room
from nova import utils

LOG = logging.getLogger(__name__)

_SHARED = 'MISC_SHARES_VIA_AGGREGATE'

# The states of migrations of which nothing is to come, nor to be undone.
_OVER = frozenset((
    'cancelled', 'completed', 'confirmed', 'error', 'failed', 'reverted'))


def purge_stale_records(cctxt, instance_uuid, is_current):
    """Delete the record that a build has left in a cell for good.

    One that is only marked as deleted keeps the next build out of the cell:
    the ID of a server is unique in it. And db archive_deleted_rows would take
    the mapping and the request spec of the living server with it.

    :param cctxt: a context that is targeted at the cell
    :param instance_uuid: the server, which is on no host
    :param is_current: whether no host can have got the server meanwhile, a
        function without arguments
    :raises: ConstraintNotMet if a host has it
    """
    row_id = row_of(cctxt, instance_uuid)
    if row_id is None or not is_current():
        return
    with utils.temporary_mutation(cctxt, read_deleted='yes'):
        try:
            cell0_record.destroy_record(
                cctxt, instance_uuid, id=row_id, host=None)
        except exception.InstanceNotFound:
            pass


def row_of(cctxt, instance_uuid):
    """Return the ID of the row of a server in a cell, deleted or not."""
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return session.query(main_models.Instance.id).filter_by(
            uuid=instance_uuid).scalar()


def match_allocations(context, report_client, instance, selection,
                      is_current):
    """Let a server have the allocations of its build, no more and no less.

    A scheduler that has answered late or twice has claimed a host more, which
    the next claim takes for the source of a move and keeps. So it does with
    room that was held after the conductor had looked for it; and who holds it
    would give all of it back.

    :param context: the request context
    :param report_client: the client of the placement service
    :param instance: the Instance
    :param selection: the Selection that the scheduler has answered with
    :param is_current: as of purge_stale_records()
    :raises: AllocationUpdateFailed if somebody else has changed them
    """
    if not selection.allocation_request:
        return
    wanted = {
        provider: {'resources': allocation['resources']}
        for provider, allocation in jsonutils.loads(
            selection.allocation_request)['allocations'].items()}
    body = held_room.get_allocations(
        context, report_client, instance.uuid
    ) or report_client.get_allocs_for_consumer(context, instance.uuid)
    hold = held_room.of_allocations(instance.uuid, body)
    if not (hold or wanted != allocations.resources(body)) or not is_current():
        return
    LOG.warning('The allocations of the server were not those of the host '
                'that the scheduler chose; they are now.', instance=instance)
    if hold is None:
        allocations.put(context, report_client, instance.uuid, dict(
            body, project_id=instance.project_id, user_id=instance.user_id),
            wanted)
    elif not held_room.claim(
            context, report_client, hold, instance.project_id,
            instance.user_id, wanted):
        raise exception.AllocationUpdateFailed(
            consumer_uuid=instance.uuid,
            error=_('the room that is held for it was changed'))


def delete_other_allocations(context, report_client, instance_uuid,
                             is_current, resources_from_flavor):
    """Delete what a server that is on a host has allocated elsewhere.

    If it has nothing there, it gets what its flavor asks for in the same
    request.

    :param context: the request context, targeted at the cell of the server
    :param report_client: the client of the placement service
    :param instance_uuid: the server
    :param is_current: whether it still is where it was, a function
    :param resources_from_flavor: that of nova.scheduler.utils, which cannot be
        imported before objects of Nova
    :returns: False if it is to be looked at again: what it has now may be
        that of a task or a migration, or there is no room on its host
    """
    body = report_client.get_allocs_for_consumer(context, instance_uuid)
    if not body['allocations']:
        return True
    try:
        # What begins after that changes the generation of the allocations.
        instance = objects.Instance.get_by_uuid(
            context, instance_uuid, expected_attrs=['flavor'])
        host = instance.host and objects.ComputeNode.get_by_host_and_nodename(
            context, instance.host, instance.node)
    except exception.InstanceNotFound:
        return True
    except exception.ComputeHostNotFound:
        # The node has gone over to another nova-compute.
        return False
    if host and list(body['allocations']) == [host.uuid]:
        return True
    if (host is None or instance.task_state or
            instance.vm_state == vm_states.BUILDING or
            _is_migrated(context, instance_uuid)):
        return False
    tree = {provider['uuid'] for provider in
            report_client.get_providers_in_tree(context, host.uuid)}
    kept = {
        provider: allocation
        for provider, allocation in allocations.resources(body).items()
        if provider in tree or _SHARED in report_client.get_provider_traits(
            context, provider).traits}
    if tree.isdisjoint(kept):
        return is_current() and _reallocate(
            context, report_client, instance, body, {host.uuid: {
                'resources': resources_from_flavor(
                    instance, instance.flavor)}})
    if len(kept) != len(body['allocations']) and is_current():
        allocations.put(context, report_client, instance_uuid, body, kept)
    return True


def _reallocate(context, report_client, instance, body, wanted):
    """Allocate a server on its host, and nowhere else.

    What its ports and devices have below the host is not known any more.

    :returns: whether there was room
    """
    try:
        allocations.put(context, report_client, instance.uuid, body, wanted)
    except exception.AllocationUpdateFailed:
        LOG.warning('The server has allocations elsewhere and none on its '
                    'host, where they do not fit: see nova-manage placement '
                    'heal_allocations --force.', instance=instance)
        return False
    LOG.warning('The server had allocations elsewhere and none on its host; '
                'it has those of its flavor there now. For its ports see '
                'nova-manage placement heal_allocations.', instance=instance)
    return True


def _is_migrated(context, instance_uuid):
    """Whether a server may have allocations on two hosts rightly.

    What was evacuated has, until the host that failed is back.
    """
    return any(
        migration.status not in _OVER for migration in
        objects.MigrationList.get_by_filters(
            context, {'instance_uuid': instance_uuid}))
