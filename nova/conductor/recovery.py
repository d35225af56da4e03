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
neither a slow conductor nor another recovery can have it too. After that a
fourth thing tells that no host was asked to build it: what it was asked for
with is still remembered. It gets a build request again then.
"""

import datetime
import functools

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
from nova.conductor import cleaning
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import request_memory
from nova import utils

LOG = logging.getLogger(__name__)

# The claim of a recovery on a record in cell0. A nova-api that comes back to
# life can delete a record only while it has its own claim, REBUILDING.
CLAIM = task_states.REBUILD_SPAWNING


class RebuildInterrupted(exception.NovaException):
    msg_fmt = _("The rebuild of the server was interrupted. It can be rebuilt "
                "again.")


def recover(context, report_client, age, look_back=None):
    """Undo the rebuilds in cell0 that were asked for too long ago.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param age: how long ago, in seconds
    :param look_back: how long before that it may have been that a server was
        handed over to a cell, in seconds. It takes a look at each request
        spec to find them all, which is what it does by default.
    :returns: how many servers were put back or let go, and for how many it
        failed; the log says why
    """
    before = timeutils.utcnow() - datetime.timedelta(seconds=age)
    recovered, failed = set(), set()
    for function, things in ((_put_back, _stale_build_requests),
                             (_take_over, _stale_claims),
                             (_take_back, functools.partial(
                                 _handed_over, look_back=look_back))):
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
            if request_memory.get(context, instance_uuid):
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


@api_db_api.context_manager.reader
def _handed_over(context, before, look_back):
    """Find the servers with a cell whose request is still remembered."""
    mapping, spec = api_models.InstanceMapping, api_models.RequestSpec
    query = context.session.query(mapping.instance_uuid).join(
        spec, spec.instance_uuid == mapping.instance_uuid).filter(
            mapping.cell_id != rebuild_in_cell0.cell0(context).id,
            mapping.updated_at < before,
            request_memory.is_there())
    if look_back is not None:
        query = query.filter(mapping.updated_at > before - datetime.timedelta(
            seconds=look_back))
    return [(row.instance_uuid, row.instance_uuid) for row in query]


def _put_back(context, report_client, build_request, _before):
    """Bury a server again that only a build request stands for."""
    with nova_context.target_cell(
            context, rebuild_in_cell0.cell0(context)) as cctxt:
        def make_record(build_request, _changes=None):
            # As long as there is the build request, what is in cell0 counts
            # for nothing: looked up before, it can be replaced.
            left = cleaning.row_of(cctxt, build_request.instance_uuid)
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


def _take_back(context, report_client, instance_uuid, before):
    """Put a server back into cell0 that no host was asked to build.

    :returns: whether that was done
    """
    cell = burial.cell_of(context, instance_uuid)
    if cell is None or cell.is_cell0():
        return False
    with nova_context.target_cell(context, cell) as cctxt:
        instance = _unbuilt(cctxt, instance_uuid)
        claimed = instance and _claim_unbuilt(cctxt, instance, before)
    if instance is None:
        # A host has it, or it is deleted.
        burial.forget_built(context, instance_uuid)
    if not claimed:
        return False
    try:
        build_request = _ask_again(context, cell, instance, before)
    except exception.InstanceNotFound:
        return False  # Its owner has deleted it.
    try:
        rebuild_in_cell0.destroy_unchanged(instance, CLAIM)
    except (exception.ConstraintNotMet, exception.InstanceNotFound,
            rebuild_in_cell0.ChangedMeanwhile):
        # Its owner is deleting it there, or has changed it.
        burial.hand_over(context, build_request, instance, cell)
        return False
    compute_utils.delete_arqs_if_needed(context, instance)
    return _put_back(context, report_client, build_request, before)


def _unbuilt(cctxt, instance_uuid):
    """Return the Instance in a cell, None if it is not as a handover left it.

    A host that begins to build it sets its task_state first.
    """
    try:
        instance = objects.Instance.get_by_uuid(cctxt, instance_uuid)
    except exception.InstanceNotFound:
        return None
    if (instance.host is None and instance.vm_state == vm_states.BUILDING and
            instance.task_state in (task_states.SCHEDULING, CLAIM)):
        return instance
    return None


def _claim_unbuilt(cctxt, instance, before):
    """Keep a host and other recoveries from a server that is not built."""
    row = main_models.Instance
    return _claim(
        cctxt, instance, row.host.is_(None),
        sa.or_(row.task_state == task_states.SCHEDULING,
               sa.and_(row.task_state == CLAIM, row.updated_at < before)))


def _claim(cctxt, instance, *conditions):
    """Claim a record if it is as it should be, and no other recovery does.

    :param conditions: what must hold of its row
    :returns: whether that was done
    """
    row = main_models.Instance
    with main_db_api.get_context_manager(cctxt).writer.using(cctxt) as session:
        return bool(session.query(row).filter(
            row.uuid == instance.uuid, row.deleted == 0, *conditions).update(
                {'task_state': CLAIM, 'updated_at': timeutils.utcnow()},
                synchronize_session=False))


def _ask_again(context, cell, instance, before):
    """Replace the mapping of a server to a cell by a build request.

    :param instance: the Instance in that cell
    :param before: how old the build request is to be
    :returns: the BuildRequest
    """
    unsaved = rebuild_request.unsaved_instance(instance)
    # In a cell it is that of the host.
    unsaved.availability_zone = objects.RequestSpec.get_by_instance_uuid(
        context, instance.uuid).availability_zone
    return rebuild_in_cell0.exchange(
        context, cell, unsaved, rebuild_request.unsaved_bdms(instance),
        instance.tags, instance.created_at,
        before - datetime.timedelta(seconds=1))


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
    row = main_models.Instance
    if not _claim(instance._context, instance,
                  row.task_state == instance.task_state,
                  sa.func.coalesce(row.updated_at, row.created_at) < before):
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
    cleaning.clean_up(context, report_client, instance.uuid)
    burial.settle(context, instance.uuid)
    instance.task_state = None
    instance.save(expected_task_state=[CLAIM])
    LOG.warning('The server, whose rebuild was interrupted, is back in cell0.',
                instance=instance)
    return True


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
