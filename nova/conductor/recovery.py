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
import sqlalchemy as sa

from nova.compute import action_history
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
from nova.db.main import models as main_models
from nova import exception
from nova.i18n import _
from nova import objects
from nova import utils

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
                             (_take_over, _stale_claims)):
        for instance_uuid, thing in things(context, before):
            try:
                if function(context, report_client, thing, before):
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
            if objects.RequestSpec.get_remembered(context, instance_uuid):
                yield (instance_uuid,
                       objects.BuildRequest.get_by_instance_uuid(
                           context, instance_uuid))
        except exception.BuildRequestNotFound:
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


def _put_back(context, report_client, build_request, _before):
    """Bury a server again that only a build request stands for."""
    with nova_context.target_cell(
            context, rebuild_in_cell0.cell0(context)) as cctxt:
        def make_record(build_request, _changes=None):
            # As long as there is the build request, what is in cell0 counts
            # for nothing: looked up before, it can be replaced.
            left = _row_of(cctxt, build_request.instance_uuid)
            if burial.current(context, build_request):
                _create_record(cctxt, build_request, left)

        make_record(build_request)
        if not rebuild_in_cell0.put_back(
                context, build_request, make_record):
            LOG.debug('The server was built, deleted or put back meanwhile.',
                      instance_uuid=build_request.instance_uuid)
            return False
        instance = objects.Instance.get_by_uuid(
            cctxt, build_request.instance_uuid)
    return _let_go(context, report_client, instance)


def _row_of(cctxt, instance_uuid):
    """Return the ID of the row of a server in a cell, deleted or not."""
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return session.query(main_models.Instance.id).filter_by(
            uuid=instance_uuid).scalar()


def _create_record(cctxt, build_request, left):
    """Make the record in cell0 again, all of it or nothing.

    :param left: the ID of the row that it replaces, or None
    """
    instance = build_request.get_new_instance(cctxt)
    instance.vm_state = (vm_states.PENDING if burial.use_pending_state()
                         else vm_states.ERROR)
    instance.task_state = CLAIM
    manager = main_db_api.get_context_manager(cctxt)
    with manager.writer.using(cctxt) as session:
        history = []
        if left is not None:
            history = action_history.pack(cctxt, instance.uuid)
            with utils.temporary_mutation(cctxt, read_deleted='yes'):
                rebuild_in_cell0.destroy_record(
                    cctxt, instance.uuid, id=left)
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
        action_history.unpack(cctxt, instance.uuid, history)
        # The age of the claim, which the server does not share.
        session.query(main_models.Instance).filter_by(
            uuid=instance.uuid).update({'updated_at': timeutils.utcnow()})


def _take_over(context, report_client, instance, before):
    """Let a server go whose claim is old, if no other recovery does.

    :returns: whether that was done
    """
    cctxt = instance._context
    with main_db_api.get_context_manager(cctxt).writer.using(cctxt) as session:
        if not session.query(main_models.Instance).filter_by(
                uuid=instance.uuid, task_state=instance.task_state,
                deleted=0).filter(
                    sa.func.coalesce(
                        main_models.Instance.updated_at,
                        main_models.Instance.created_at) < before).update(
                    {'task_state': CLAIM, 'updated_at': timeutils.utcnow()},
                    synchronize_session=False):
            return False
    instance.refresh()
    return _let_go(context, report_client, instance)


def _let_go(context, report_client, instance):
    """Clean up behind a rebuild and drop the claim on the record in cell0.

    :param instance: the Instance in cell0, claimed by this recovery
    :returns: whether that was done
    """
    cell = burial.cell_of(context, instance.uuid)
    if cell is None or not cell.is_cell0():
        return _remove_leftover(context, instance)
    clean_up(context, report_client, instance.uuid)
    burial.settle(context, instance.uuid)
    instance.task_state = None
    instance.save(expected_task_state=[CLAIM])
    LOG.warning('The server, whose rebuild was interrupted, is back in cell0.',
                instance=instance)
    return True


def clean_up(context, report_client, instance_uuid):
    """Delete what builds of a server have left in the cells and in placement.

    :param context: the request context
    :param report_client: the client of the placement service
    :param instance_uuid: a server that is on no host
    """
    purge(context, instance_uuid)
    report_client.delete_allocation_for_instance(
        context, instance_uuid, force=True)


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


def clear_the_way(context, report_client, instance_uuid):
    """Do what clean_up() does as far as it can be done, before a build.

    The build can do without the rest: no host is chosen in a cell that is
    down, and none at all without the placement service.
    """
    for cell in _cells_with_hosts(context):
        try:
            _purge_cell(context, cell, instance_uuid)
        except Exception:
            LOG.exception('Cell %s cannot be searched for what an earlier '
                          'build has left.', cell.identity,
                          instance_uuid=instance_uuid)
    give_back(context, report_client, instance_uuid)


def give_back(context, report_client, instance_uuid):
    """Delete the allocations of a server that is on no host, if possible."""
    try:
        report_client.delete_allocation_for_instance(
            context, instance_uuid, force=True)
    except Exception:
        LOG.exception('What a build has allocated cannot be given back.',
                      instance_uuid=instance_uuid)


def purge(context, instance_uuid):
    """Delete for good what builds of a server have left in the cells.

    :param context: the request context
    :param instance_uuid: a server that is on no host
    """
    for cell in _cells_with_hosts(context):
        _purge_cell(context, cell, instance_uuid)


def _cells_with_hosts(context):
    return [cell for cell in objects.CellMappingList.get_all(context)
            if not cell.is_cell0()]


def _purge_cell(context, cell, instance_uuid):
    """Delete the row of a server for good.

    One that is only marked as deleted keeps the next build out of the cell:
    the ID of a server is unique in it.
    """
    with nova_context.target_cell(context, cell) as cctxt:
        if _row_of(cctxt, instance_uuid) is None:
            return
        cctxt.read_deleted = 'yes'
        try:
            main_db_api.instance_destroy(
                cctxt, instance_uuid, hard_delete=True,
                constraint=main_db_api.constraint(
                    host=main_db_api.equal_any(None)))
        except exception.InstanceNotFound:
            pass
