# SPDX-License-Identifier: Apache-2.0

"""Returns a server to cell0 that has a build request and no record.

The caller has the lease of the build request. What earlier builds have left
elsewhere is deleted first. Then the record is written in its final state, and
then the mapping points to the record. A process that dies in between leaves a
build request that gets old.
"""

import collections.abc
import contextlib
import sys

from oslo_log import log as logging

from nova.compute import action_history
from nova.compute import instance_actions
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.conductor import cell0
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova.notifications import base as notifications
from nova import objects
from nova.objects import build_request as build_request_module
from nova.objects import unbuilt_instance
from nova import rpc
from nova.scheduler import allocations
from nova.scheduler.client import report
from nova.scheduler import lost_claims

LOG = logging.getLogger(__name__)

_EVENT = 'conductor_schedule_and_build_instances'


def return_to_cell0(
    context: nova_context.RequestContext,
    report_client: report.SchedulerReportClient,
    build_request: 'objects.BuildRequest',
    exc: Exception,
    host: str | None = None,
) -> None:
    """Return a server to cell0.

    :param context: the request context
    :param report_client: the client of the placement service
    :param build_request: the BuildRequest, whose lease the caller has
    :param exc: why the server was not built
    :param host: the name of the conductor whose build has failed, None if
        the build was interrupted and left no record of its failure
    :raises: LeaseLost if its owner has deleted the server, or its build was
        taken over
    """
    uuid = build_request.instance_uuid
    build_request.renew()
    noted = build_request.lease['cell']
    if noted:
        cell = objects.CellMapping.get_by_uuid(context, noted)
        if not unbuilt_instance.purge(context, cell, uuid):
            LOG.warning('A host builds the server in its cell, so the server '
                        'is not put into cell0.', instance_uuid=uuid)
            build_request.convert_to_mapping(cell, lambda changes: None)
            return
    # A hold is given back, too: a service that holds room for the server waits
    # until the server is in cell0. The lease is renewed before, because cells
    # and Placement can have taken so long that another conductor has built the
    # server.
    allocations.delete(context, report_client, uuid,
                       lambda: build_request.renew() or True)
    mapping = objects.CellMapping.get_by_uuid(
        context, objects.CellMapping.CELL0_UUID)
    build_request.renew(cell=mapping.uuid)
    if noted != mapping.uuid:
        unbuilt_instance.purge(context, mapping, uuid)
    with nova_context.target_cell(
            _of_owner(context, build_request), mapping) as cctxt:
        instance = build_request.get_new_instance(cctxt)

        def update(changes):
            instance.update(changes)
            instance.save()

        try:
            _create_record(cctxt, instance, build_request, exc, host)
            build_request.convert_to_mapping(mapping, update)
        except build_request_module.LeaseLost:
            purge_lost(context, mapping, instance)
            raise
        _tell(cctxt, instance, exc)
    if not cell0.found_no_host(exc):
        # A scheduler that did not answer can have claimed room meanwhile.
        lost_claims.delete(context, report_client, uuid)


def leave_in_error(
    context: nova_context.RequestContext,
    cell: 'objects.CellMapping',
    instance_uuid: str,
    row_id: int,
    exc: Exception,
    expected_task_state: str | None = task_states.SCHEDULING,
    updates: dict[str, object] | None = None,
    spec: 'objects.RequestSpec | None' = None,
    expected_vm_state: str | None = vm_states.BUILDING,
) -> bool:
    """Set a server to ERROR that is in its cell and on no host.

    A message that was not confirmed may have reached its host all the same.
    If the host has begun, nothing is changed. If the host begins later, the
    task state lets the host begin, and keeps the server from being rebuilt
    until an administrator resets the state.

    :param context: the request context
    :param cell: the CellMapping of the cell
    :param instance_uuid: the server
    :param row_id: the ID of its record
    :param exc: why no host builds the server
    :param expected_task_state: the task state that the server must have
    :param updates: what else is set on the Instance
    :param spec: the RequestSpec, by default as it is stored
    :param expected_vm_state: the state that the server must have
    :returns: False if the server was deleted or rebuilt, or its host has begun
    """
    with nova_context.target_cell(context, cell) as cctxt:
        try:
            with locked(cctxt, instance_uuid, row_id):
                before, _after = main_db_api.instance_update_and_get_original(
                    cctxt, instance_uuid,
                    {'vm_state': vm_states.ERROR, **(updates or {})},
                    expected={'vm_state': expected_vm_state,
                              'task_state': expected_task_state})
                instance = objects.Instance.get_by_uuid(cctxt, instance_uuid)
                compute_utils.add_instance_fault_from_exc(
                    cctxt, instance, exc, sys.exc_info())
        except (exception.InstanceUpdateConflict,
                build_request_module.LeaseLost):
            LOG.info('The server was deleted or rebuilt, or its host has '
                     'begun.', instance_uuid=instance_uuid)
            return False
        LOG.warning('No host builds the server: %s', exc, instance=instance)
        # A bus that hangs must not keep the record locked.
        notifications.send_update(cctxt, before, instance)
        _notify_failure(cctxt, instance, exc, spec)
        return True


@contextlib.contextmanager
def locked(
    cctxt: nova_context.RequestContext, instance_uuid: str,
    row_id: int | None = None,
) -> collections.abc.Iterator[None]:
    """Keep a record while the caller writes what goes by its UUID.

    If another process has replaced the record, the writes would go to the
    record of that process. All writes must be made with the given context.

    :param cctxt: a context that is targeted at the cell of the record
    :param instance_uuid: the server
    :param row_id: the ID of its record, None if the caller looks whether the
        record is its own
    :raises: LeaseLost if the record was replaced or deleted
    """
    row = main_models.Instance
    with main_db_api.get_context_manager(cctxt).writer.using(cctxt) as session:
        found = session.query(row.id).filter_by(
            uuid=instance_uuid, deleted=0).with_for_update().first()
        if found is None or row_id not in (None, found.id):
            raise build_request_module.LeaseLost(instance_uuid=instance_uuid)
        yield


def purge_lost(
    context: nova_context.RequestContext,
    cell: 'objects.CellMapping',
    instance: 'objects.Instance',
) -> None:
    """Delete the record of a build that has lost the server.

    The cell may have the record of another build by now: only the row of this
    Instance is deleted. SQLite gives the ID of a deleted row to the next row,
    so the mapping is looked at, too.
    """
    place = build_request_module.place_of(context, instance.uuid)
    if place is None or place.cell_uuid != cell.uuid:
        unbuilt_instance.purge(context, cell, instance.uuid, instance.id)


def _of_owner(context, build_request) -> nova_context.RequestContext:
    """Return a context of the owner, whose security groups the server gets.

    A record makes a group "default" for the project of the context, and the
    context of recovery has no project.
    """
    context = nova_context.RequestContext.from_dict(context.to_dict())
    context.project_id = build_request.instance.project_id
    context.user_id = build_request.instance.user_id
    return context


def _create_record(cctxt, instance, build_request, exc, host) -> None:
    before = build_request.before
    instance.vm_state = cell0.vm_state_after(
        exc, before['vm_state'] or vm_states.ERROR)
    instance.task_state = None
    if before.get('vtpm_secret_uuid'):
        instance.system_metadata['vtpm_secret_uuid'] = (
            before['vtpm_secret_uuid'])
    instance.create()
    bdms = [unbuilt_instance.copy_of_mapping(bdm)
            for bdm in build_request.block_device_mappings]
    with locked(cctxt, instance.uuid, instance.id):
        for bdm in bdms:
            bdm._context = cctxt
            bdm.instance_uuid = instance.uuid
            bdm.create()
        if build_request.tags:
            objects.TagList.create(
                cctxt, instance.uuid, [tag.tag for tag in build_request.tags])
        compute_utils.add_instance_fault_from_exc(
            cctxt, instance, exc, sys.exc_info())
        action_history.unpack(cctxt, instance.uuid, before['actions'])
        if host is not None:
            _record_failure(cctxt, instance, exc, host)


def _record_failure(cctxt, instance, exc: Exception, host: str) -> None:
    """Record the rebuild and its failed event.

    A create that fails is recorded in the same way.
    """
    objects.InstanceAction.action_start(
        cctxt, instance.uuid, instance_actions.REBUILD, want_result=False)
    objects.InstanceActionEvent.event_start(
        cctxt, instance.uuid, _EVENT, want_result=False, host=host)
    objects.InstanceActionEvent.event_finish_with_failure(
        cctxt, instance.uuid, _EVENT, exc_val=exc, exc_tb=sys.exc_info()[2],
        want_result=False)


def _tell(cctxt, instance, exc: Exception) -> None:
    """Log, and notify, that a server was put into cell0."""
    LOG.log(logging.INFO if cell0.found_no_host(exc) else logging.WARNING,
            'The server is back in cell0: %s', exc, instance=instance)
    notifications.send_update_with_states(
        cctxt, instance, vm_states.BUILDING, instance.vm_state,
        task_states.SCHEDULING, None, service='conductor')
    _notify_failure(cctxt, instance, exc)


def _notify_failure(cctxt, instance, exc: Exception, spec=None) -> None:
    """Send the notifications of a server that was not built."""
    spec = (spec or objects.RequestSpec.get_by_instance_uuid(
        cctxt, instance.uuid)).to_legacy_request_spec_dict()
    rpc.get_notifier('compute_task').error(
        cctxt, 'compute_task.build_instances', {
            'request_spec': spec,
            'instance_properties': spec.get('instance_properties', {}),
            'instance_id': instance.uuid, 'state': instance.vm_state,
            'method': 'build_instances', 'reason': exc})
    try:
        # The notification has the place where the exception was raised.
        raise exc
    except type(exc):
        compute_utils.notify_about_compute_task_error(
            cctxt, 'build_instances', instance.uuid, spec, instance.vm_state,
            exc)
