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

"""Puts servers back into cell0 whose rebuild was interrupted.

A rebuild moves a server through two databases and over the bus, and what does
it can die after each step. What then stands is told by three things: a build
request, the record in cell0 and its claim (its task_state). Whoever deletes
the row of the build request has the server, as in the release, so that
neither a slow conductor nor another recovery can have it too.
"""

import datetime

from oslo_log import log as logging
from oslo_utils import timeutils

from nova.compute import rebuild_in_cell0
from nova.compute import rebuild_request
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.conductor import burial
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova import exception
from nova.i18n import _
from nova import objects

LOG = logging.getLogger(__name__)

# The claim of a recovery on a record in cell0. A nova-api that comes back to
# life can delete a record only while it has its own claim, REBUILDING.
CLAIM = task_states.REBUILD_SPAWNING


class RebuildInterrupted(exception.NovaException):
    msg_fmt = _("The rebuild of the server was interrupted. It can be rebuilt "
                "again.")


def recover(context, report_client, age):
    """Undo the rebuilds in cell0 that were asked for too long ago.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param age: how long ago, in seconds
    :returns: how many servers were put back or let go, and for how many it
        failed; the log says why
    """
    before = timeutils.utcnow() - datetime.timedelta(seconds=age)
    recovered, failed = set(), set()
    for function, things in ((_put_back, _stale_build_requests),
                             (_let_go, _stale_claims)):
        for instance_uuid, thing in things(context, before):
            try:
                if function(context, report_client, thing):
                    recovered.add(instance_uuid)
            except Exception:
                # It must not keep the others from being recovered.
                failed.add(instance_uuid)
                LOG.exception('An interrupted rebuild in cell0 could not be '
                              'undone.', instance_uuid=instance_uuid)
    return len(recovered), len(failed - recovered)


@api_db_api.context_manager.reader
def _old_rows(context, before):
    return [row.instance_uuid for row in
            context.session.query(api_models.BuildRequest).filter(
                api_models.BuildRequest.updated_at < before)]


def _stale_build_requests(context, before):
    """Find the build requests that a rebuild in cell0 has left."""
    for instance_uuid in _old_rows(context, before):
        try:
            # What is kept of the request tells them from those of a create.
            spec = objects.RequestSpec.get_by_instance_uuid(
                context, instance_uuid)
            if spec.is_buried:
                yield (instance_uuid,
                       objects.BuildRequest.get_by_instance_uuid(
                           context, instance_uuid))
        except (exception.RequestSpecNotFound,
                exception.BuildRequestNotFound):
            continue


def _stale_claims(context, before):
    """Find the records in cell0 whose claim nobody lets go."""
    with nova_context.target_cell(
            context, rebuild_in_cell0.cell0(context)) as cctxt:
        claimed = objects.InstanceList.get_by_filters(
            cctxt, {'task_state': [task_states.REBUILDING, CLAIM],
                    'deleted': False})
    return [(instance.uuid, instance) for instance in claimed
            if timeutils.normalize_time(
                instance.updated_at or instance.created_at) < before]


def _put_back(context, report_client, build_request):
    """Bury a server again that only a build request stands for."""
    cell0 = rebuild_in_cell0.cell0(context)
    with nova_context.target_cell(context, cell0) as cctxt:
        if not _take_over(cctxt, build_request.instance_uuid):
            _create_record(cctxt, build_request)
    if not rebuild_in_cell0.put_back(context, build_request):
        LOG.debug('The server was built, deleted or put back meanwhile.',
                  instance_uuid=build_request.instance_uuid)
    try:
        with nova_context.target_cell(context, cell0) as cctxt:
            instance = objects.Instance.get_by_uuid(
                cctxt, build_request.instance_uuid)
    except exception.InstanceNotFound:
        return False
    return instance.task_state == CLAIM and _let_go(
        context, report_client, instance)


def _take_over(cctxt, instance_uuid):
    """Replace the claim of a rebuild that left its record in cell0.

    :returns: False if there is no record
    """
    try:
        instance = objects.Instance.get_by_uuid(cctxt, instance_uuid)
        if instance.task_state == task_states.REBUILDING:
            instance.task_state = CLAIM
            instance.save(expected_task_state=[task_states.REBUILDING])
        return True
    except exception.UnexpectedTaskStateError:
        return True
    except exception.InstanceNotFound:
        return False


def _create_record(cctxt, build_request):
    """Make the record in cell0 again, all of it or nothing."""
    instance = build_request.get_new_instance(cctxt)
    instance.vm_state = (vm_states.PENDING if burial.use_pending_state()
                         else vm_states.ERROR)
    instance.task_state = CLAIM
    try:
        with main_db_api.get_context_manager(cctxt).writer.using(cctxt):
            instance.create()
            for bdm in build_request.block_device_mappings:
                bdm = rebuild_request.unsaved(bdm)
                bdm._context = cctxt
                bdm.instance_uuid = instance.uuid
                bdm.create()
            if build_request.tags:
                objects.TagList.create(
                    cctxt, instance.uuid,
                    [tag.tag for tag in build_request.tags])
            compute_utils.add_instance_fault_from_exc(
                cctxt, instance, RebuildInterrupted())
    except exception.InstanceExists:
        # Another recovery was faster, or its owner has deleted the server.
        LOG.debug('The server is in cell0 already.', instance=instance)


def _let_go(context, report_client, instance):
    """Clean up behind a rebuild and drop the claim on the record in cell0.

    :returns: whether that was done
    """
    mapping = _mapping_of(context, instance.uuid)
    cell0 = rebuild_in_cell0.cell0(context)
    if mapping is None or mapping.cell_mapping is None or (
            mapping.cell_mapping.id != cell0.id):
        return _remove_leftover(context, instance)
    purge(context, instance.uuid)
    report_client.delete_allocation_for_instance(
        context, instance.uuid, force=True)
    burial.settle(context, instance.uuid)
    instance.task_state = None
    instance.save(expected_task_state=[task_states.REBUILDING, CLAIM])
    LOG.warning('The server, whose rebuild was interrupted, is back in cell0.',
                instance=instance)
    return True


def _mapping_of(context, instance_uuid):
    try:
        return objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid)
    except exception.InstanceMappingNotFound:
        return None


def _remove_leftover(context, instance):
    """Delete a record in cell0 of a server that is elsewhere or deleted."""
    try:
        # While there is a build request the server is not elsewhere yet.
        objects.BuildRequest.get_by_instance_uuid(context, instance.uuid)
        return False
    except exception.BuildRequestNotFound:
        rebuild_in_cell0.destroy_claimed(
            instance._context, instance.uuid, claim=instance.task_state)
        return True


def purge(context, instance_uuid):
    """Delete for good what builds of a server have left in the cells.

    A row that is only marked as deleted keeps the next build out of that
    cell: the ID of a server is unique in it.

    :param context: the request context
    :param instance_uuid: a server that is on no host
    """
    for cell in objects.CellMappingList.get_all(context):
        if cell.uuid == objects.CellMapping.CELL0_UUID:
            continue
        with nova_context.target_cell(context, cell) as cctxt:
            cctxt.read_deleted = 'yes'
            try:
                main_db_api.instance_destroy(
                    cctxt, instance_uuid, hard_delete=True,
                    constraint=main_db_api.constraint(
                        host=main_db_api.equal_any(None)))
            except exception.InstanceNotFound:
                pass
