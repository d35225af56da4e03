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

"""Puts servers into cell0 with what a rebuild out of it needs, and back."""

import contextlib
import contextvars
import time

from oslo_config import cfg
from oslo_db import exception as db_exc
from oslo_log import log as logging

from nova.compute import action_history
from nova.compute import cell0_record
from nova.compute import rebuild_in_cell0
from nova.compute import vm_states
from nova.conductor import cleanup
from nova.conductor import rebuild_log
import nova.conf
from nova import context as nova_context
from nova import context_value
from nova import exception
from nova.notifications import base as notifications
from nova import objects
from nova.objects import build_request_lease
from nova.objects import persisted_request
from nova.objects import rebuilt_instance
from nova.scheduler import held_room

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A write set of another Galera node, which nova-api may have written to, can
# come later than the message (with wsrep_sync_wait=0).
_TRIES = 3
_TRY_EVERY = 0.5

_build_requests = contextvars.ContextVar('put_into_cell0', default=())


def of(build_requests):
    """Tell destroy_build_request() whose servers are put into cell0 within.

    :param build_requests: the BuildRequests of the servers, or None
    """
    return context_value.within(_build_requests, build_requests or ())


def destroy_build_request(instance_uuid):
    """Destroy the build request of a server that is being put into cell0.

    The release does so when all servers have been shown there. By then one
    can have been taken out of cell0, and have another build request.

    :param instance_uuid: the server, all of whose record is in cell0
    """
    for build_request in _build_requests.get():
        if build_request.instance_uuid == instance_uuid:
            build_request.destroy_early()


def is_target(context):
    """Whether a context is targeted at cell0."""
    return context.cell_uuid == objects.CellMapping.CELL0_UUID


def found_no_host(exc):
    """Whether a build failed because no host had room.

    :param exc: why the build failed. MaxRetriesExceeded, a NoValidHost too,
        says that hosts had room and the build failed on each.
    """
    return (isinstance(exc, exception.NoValidHost) and
            not isinstance(exc, exception.MaxRetriesExceeded))


def use_pending_state():
    """Return the option, as off if it was changed to what is no boolean."""
    try:
        return CONF.use_pending_state
    except cfg.ConfigFileValueError as exc:
        LOG.error('Servers for which no host is found are set to ERROR: %s',
                  exc)
        return False


def vm_state_after(context, instance_uuid, exc):
    """Return the vm_state of a server in cell0 after its build has failed.

    If there was no valid host the option tells. A rebuild that failed for
    any other reason leaves the state that the server had before.

    :param context: the request context
    :param instance_uuid: the server
    :param exc: why the build failed
    """
    state = vm_states.PENDING if found_no_host(exc) else (
        persisted_request.load(context, instance_uuid).get(
            'vm_state', vm_states.ERROR))
    # With the option off no server gets into PENDING, or an operator could
    # not take the last one out of it.
    return (state if state != vm_states.PENDING or use_pending_state()
            else vm_states.ERROR)


def keep_request(context, instance_uuid, request_spec):
    """Persist what the owner asked for and the release would forget.

    A failure is logged only: the server is put into cell0 all the same, and
    a rebuild of it is refused.

    :param context: the request context
    :param instance_uuid: the server that is being put into cell0
    :param request_spec: the RequestSpec of the request. All servers of a
        multi-create are put there with that of the first.
    """
    try:
        persisted_request.save(context, instance_uuid, request_spec)
    except Exception:
        LOG.exception('The networks and files that the server was asked for '
                      'with could not be kept; it cannot be rebuilt in cell0.',
                      instance_uuid=instance_uuid)


class Rebuild:
    """A rebuild of which this conductor has the lease."""

    def __init__(self, context, report_client, cell0, build_request, entry):
        """Use begin().

        :param context: the request context
        :param report_client: the client of the placement service
        :param cell0: the CellMapping of cell0
        :param build_request: the BuildRequest, taken
        :param entry: the ID of the entry in nova.conductor.rebuild_log
        """
        self.context = context
        self.report_client = report_client
        self.cell0 = cell0
        self.build_request = build_request
        self._entry = entry
        self._uuid = build_request.instance_uuid
        self._record = None
        #: Whether recovery is to look at what is allocated in the end.
        self.is_open = False
        #: Why no host was asked, though the server was mapped to its cell.
        self.unscheduled = None

    def notify(self):
        """Send instance.update: the server goes from cell0 to BUILD."""
        if not CONF.notifications.notify_on_state_change:
            return
        before = persisted_request.load(
            self.context, self._uuid).get('vm_state')
        instance = self.build_request.instance
        # No row could tell; all else that a notification says is set.
        instance.deleted_at = None
        instance.obj_reset_changes(['deleted_at'])
        with nova_context.target_cell(self.context, self.cell0) as cctxt:
            with instance.obj_alternate_context(cctxt):
                notifications.send_update_with_states(
                    cctxt, instance, before, instance.vm_state, None,
                    instance.task_state, service='conductor')

    def create_record(self, instance, create):
        """Create the record of the server in the cell that was chosen.

        :param instance: the Instance, whose context is targeted at the cell
        :param create: what creates it
        """
        if not is_target(instance._context):
            rebuilt_instance.mark(instance)
            self._record = instance
        try:
            create()
        except db_exc.DBDuplicateEntry:
            cleanup.purge_stale_records(
                instance._context, instance.uuid,
                self.build_request.renew_lease)
            create()

    def check_record(self, cell_uuid):
        """Look before what goes by the ID of the server alone is added to it.

        :param cell_uuid: the UUID of the cell that the record was created in
        :raises: LeaseLost if somebody has taken the server
        """
        try:
            objects.BuildRequest.get_by_instance_uuid(self.context, self._uuid)
        except build_request_lease.LeaseLost:
            # That of a deleted server is deleted, and told of, later.
            if is_mapped(self.context, self._uuid):
                destroy_own_record(
                    self.context, self._record,
                    objects.CellMapping.get_by_uuid(self.context, cell_uuid))
                raise

    def restore_actions(self, cctxt):
        """Create the actions that the server had before its rebuild."""
        if not is_target(cctxt):
            self.check_record(cctxt.cell_uuid)
        restore_actions(cctxt, self._uuid)

    def select(self, selection):
        """Record what the scheduler has selected, and no more is allocated.

        :param selection: the Selection
        """
        rebuild_log.set_cell(
            self.context, self.cell0, self._entry, selection.cell_uuid)
        # That claim has replaced all that there was.
        if not held_room.was_claimed(selection):
            cleanup.match_allocations(
                self.context, self.report_client,
                self.build_request.instance, selection,
                self.build_request.renew_lease)

    @property
    def is_in_cell0(self):
        """Whether the server is in cell0 again."""
        cell = self.build_request.cell
        return cell is not None and cell.is_cell0()

    def end(self):
        """Clear what was kept for this rebuild, and nobody needs any more."""
        cell = self.build_request.cell
        if cell is None:
            LOG.info('The server was deleted while it was rebuilt, or its '
                     'rebuild was taken over.', instance_uuid=self._uuid)
            self._delete_lost_allocations()
        # Recovery can have returned it to cell0 before a host was asked.
        elif not cell.is_cell0() and is_mapped_to(
                self.context, self._uuid, cell.uuid):
            # Its actions are with it in the cell. The rest is needed if its
            # build fails there.
            persisted_request.clear(self.context, self._uuid, 'actions')
            # nova-manage looks, if nobody else: a host of a cell without a
            # way to here can fail, or launch it.
            self.is_open = True
        if not self.is_in_cell0 and CONF.conductor.rebuild_in_cell0_timeout:
            # A message that was delivered twice is answered twice.
            self.is_open = True
        if not self.is_open:
            rebuild_log.end(self.context, self.cell0, self._entry)

    def _delete_lost_allocations(self):
        """Delete what was claimed for a server that nobody builds now."""
        def is_lost():
            # Room can be held for a server that waits again.
            return not is_mapped(self.context, self._uuid) or (
                is_mapped_to(self.context, self._uuid, self.cell0.uuid) and
                not held_room.find(
                    self.context, self.report_client, self._uuid))

        cleanup.delete_allocations(
            self.context, self.report_client, self._uuid, is_lost)


def begin(context, report_client, build_request):
    """Take a server that nova-api has taken out of cell0.

    :param context: the request context
    :param report_client: the client of the placement service
    :param build_request: the BuildRequest as it came over the bus
    :returns: a Rebuild; None if the server was deleted, was put back into
        cell0, or another conductor has taken it
    """
    current = get_if_current(context, build_request)
    if current is None:
        return None
    cell0 = rebuild_in_cell0.cell0(context)
    entry = rebuild_log.begin(context, cell0, current.instance_uuid)
    if not current.take():
        rebuild_log.end(context, cell0, entry)
        return None
    return Rebuild(context, report_client, cell0, current, entry)


def get_if_current(context, build_request):
    """Return a build request as it is now.

    :param context: the request context
    :param build_request: the BuildRequest as it came over the bus
    :returns: None if the server was deleted, was put back into cell0, or has
        a newer build request
    """
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_TRY_EVERY)
        try:
            now = objects.BuildRequest.get_by_instance_uuid(
                context, build_request.instance_uuid)
            return now if now.id == build_request.id else None
        except exception.BuildRequestNotFound:
            if not is_mapped(context, build_request.instance_uuid):
                return None
    return None


def map_to_cell(context, build_request, instance, cell):
    """Map a server that is being rebuilt to the cell of its record.

    :param context: the request context
    :param build_request: the BuildRequest that the instance was made of
    :param instance: the Instance in the cell
    :param cell: the CellMapping of the cell
    :returns: False if the server was deleted, or somebody has taken it
    """
    def update(changes):
        with nova_context.target_cell(context, cell) as cctxt:
            with instance.obj_alternate_context(cctxt):
                instance.update(changes)
                instance.save()

    def clear():
        # What no host was asked for yet is still needed.
        persisted_request.clear_in_transaction(
            context, instance.uuid, *persisted_request.ON_THE_WAY)

    return build_request.convert_to_mapping(
        cell, update, clear if cell.is_cell0() else None)


def destroy_own_record(context, instance, cell):
    """Delete the record of a build that has lost, and that record alone.

    For good, and nobody is told: the server lives elsewhere.
    """
    if is_mapped_to(context, instance.uuid, cell.uuid):
        return  # Somebody has replaced it.
    with nova_context.target_cell(context, cell) as cctxt:
        with contextlib.suppress(exception.InstanceNotFound):
            cell0_record.destroy_record(
                cctxt, instance.uuid, id=instance.id)


def cell_of(context, instance_uuid):
    """Return the CellMapping that a server is mapped to, or None."""
    try:
        return objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid).cell_mapping
    except exception.InstanceMappingNotFound:
        return None


def is_mapped(context, instance_uuid):
    """Whether a server has a mapping, be it to no cell: it is not deleted."""
    try:
        objects.InstanceMapping.get_by_instance_uuid(context, instance_uuid)
    except exception.InstanceMappingNotFound:
        return False
    return True


def is_mapped_to(context, instance_uuid, cell_uuid):
    """Whether a server is mapped to a cell, or to none if that is None."""
    cell = cell_of(context, instance_uuid)
    return (cell and cell.uuid) == cell_uuid


def restore_actions(cctxt, instance_uuid):
    """Create the actions that a server had before its rebuild.

    :param cctxt: a context that is targeted at the cell of its record
    :param instance_uuid: the server
    """
    action_history.unpack(
        cctxt, instance_uuid, persisted_request.load(
            cctxt, instance_uuid).get('actions', []))


def is_rebuild(context, build_requests):
    """Whether what looks like a create is a rebuild of a server in cell0.

    :param context: the request context
    :param build_requests: the BuildRequests of what is to be built
    """
    # Hardly one of a create was ever updated, and a query is saved.
    if len(build_requests) != 1 or not (
            'updated_at' in build_requests[0] and
            build_requests[0].updated_at):
        return False
    return bool(persisted_request.load(
        context, build_requests[0].instance_uuid))
