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

"""Rebuilds servers that nova-api has taken out of cell0."""

import time

from oslo_db import exception as db_exc
from oslo_log import log as logging
from oslo_utils import excutils

from nova.compute import rebuild_in_cell0
from nova.conductor import cell0
from nova.conductor import cleanup
from nova.conductor import rebuild_log
from nova.conductor.tasks import return_to_cell0
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.notifications import base as notifications
from nova import objects
from nova.objects import build_request_lease
from nova.objects import persisted_request
from nova.objects import rebuild_context
from nova.objects import rebuilt_instance
from nova.scheduler import allocations
from nova.scheduler import held_room

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A write set of another Galera node, which nova-api may have written to, can
# come later than the message (with wsrep_sync_wait=0).
_TRIES = 3
_TRY_EVERY = 0.5


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


def build(manager, context, build_request, request_spec, *arguments):
    """Build a server, or put it back into cell0.

    :param manager: the ComputeTaskManager
    :param context: the request context
    :param build_request: the BuildRequest as it came over the bus
    :param request_spec: the RequestSpec of the server
    :param arguments: what schedule_and_build_instances() is called with
        after these
    """
    rebuild = begin(context, manager.report_client, build_request)
    if rebuild is None:
        LOG.info('The rebuild of the server in cell0 was undone, or '
                 'another conductor has it.',
                 instance_uuid=request_spec.instance_uuid)
        if rebuild_in_cell0.remove_if_deleted(
                context, request_spec.instance_uuid):
            # A nova-api that dies leaves the room that was held.
            allocations.delete(
                context, manager.report_client, request_spec.instance_uuid,
                lambda: not cell0.is_mapped(
                    context, request_spec.instance_uuid))
        return
    try:
        with rebuild_context.rebuilding(rebuild):
            rebuild.notify()
            try:
                manager.schedule_and_build_instances(
                    context, [rebuild.build_request], [request_spec],
                    *arguments)
            except build_request_lease.LeaseLost as exc:
                LOG.info('%s', exc)
    except Exception:
        with excutils.save_and_reraise_exception():
            if rebuild.is_in_cell0 or (
                    rebuild.unscheduled and return_to_cell0.from_cell(
                        context, manager.report_client,
                        rebuild.build_request.cell,
                        request_spec.instance_uuid, rebuild.unscheduled)):
                rebuild.end()
    rebuild.end()


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
    mapping = rebuild_in_cell0.cell0(context)
    entry = rebuild_log.begin(context, mapping, current.instance_uuid)
    if not current.take():
        rebuild_log.end(context, mapping, entry)
        return None
    return Rebuild(context, report_client, mapping, current, entry)


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
            if not cell0.is_mapped(context, build_request.instance_uuid):
                return None
    return None


class Rebuild:
    """A rebuild of which this conductor has the lease."""

    def __init__(self, context, report_client, mapping, build_request, entry):
        """Use begin().

        :param context: the request context
        :param report_client: the client of the placement service
        :param mapping: the CellMapping of cell0
        :param build_request: the BuildRequest, taken
        :param entry: the ID of the entry in nova.conductor.rebuild_log
        """
        self.context = context
        self.report_client = report_client
        self.cell0 = mapping
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
        if not cell0.is_target(instance._context):
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
            if cell0.is_mapped(self.context, self._uuid):
                cell0.destroy_own_record(
                    self.context, self._record,
                    objects.CellMapping.get_by_uuid(self.context, cell_uuid))
                raise

    def restore_actions(self, cctxt):
        """Create the actions that the server had before its rebuild."""
        if not cell0.is_target(cctxt):
            self.check_record(cctxt.cell_uuid)
        cell0.restore_actions(cctxt, self._uuid)

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
        elif not cell.is_cell0() and cell0.is_mapped_to(
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
            return not cell0.is_mapped(self.context, self._uuid) or (
                cell0.is_mapped_to(
                    self.context, self._uuid, self.cell0.uuid) and
                not held_room.find(
                    self.context, self.report_client, self._uuid))

        allocations.delete(
            self.context, self.report_client, self._uuid, is_lost)
