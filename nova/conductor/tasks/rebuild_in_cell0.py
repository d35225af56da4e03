# SPDX-License-Identifier: Apache-2.0

"""Builds a server that nova-api has taken out of its cell."""

import collections.abc
import time
import typing as ty

from keystoneauth1 import exceptions as ks_exc
from oslo_log import log as logging
import oslo_messaging as messaging

from nova.conductor.tasks import base
from nova.conductor.tasks import return_to_cell0
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.notifications import base as notifications
from nova import objects
from nova.objects import build_request as build_request_module
from nova.objects import unbuilt_instance
from nova.scheduler import allocations
from nova.scheduler import lost_claims

if ty.TYPE_CHECKING:
    from nova.conductor import manager as conductor_manager

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# If nova-api has written to another Galera node, the write set of that node
# can come later than the message (with wsrep_sync_wait=0).
_TRIES = 3
_TRY_EVERY = 0.5


def is_rebuild(
    context: nova_context.RequestContext,
    build_requests: list['objects.BuildRequest'],
) -> bool:
    """Whether what looks like a create is a rebuild that no task has begun.

    :param context: the request context
    :param build_requests: the BuildRequests as they came over the bus
    """
    # A build request of a create is hardly ever updated, so most creates need
    # no query.
    if len(build_requests) != 1 or build_requests[0].lease is not None or not (
            'updated_at' in build_requests[0] and
            build_requests[0].updated_at):
        return False
    try:
        return objects.BuildRequest.get_by_instance_uuid(
            context, build_requests[0].instance_uuid).lease is not None
    except exception.BuildRequestNotFound:
        return False


def _may_still_claim(exc: Exception) -> bool:
    """Whether a scheduler that was asked may still claim room.

    A scheduler that raises has answered, unless Placement did not answer the
    scheduler.
    """
    if isinstance(exc, messaging.RemoteError):
        return hasattr(ks_exc, exc.exc_type)
    return isinstance(exc, messaging.MessagingException)


class NotBuilt(Exception):
    """Ends the build and says why no host was asked."""


class RebuildInCell0Task(base.TaskBase):
    """Builds the server of a build request, or returns it to cell0.

    The build is that of a create, except for the methods that the manager of
    the build overrides.
    """

    def __init__(
        self,
        context: nova_context.RequestContext,
        build_request: 'objects.BuildRequest',
        manager: collections.abc.Callable[
            ['RebuildInCell0Task'], 'conductor_manager.ComputeTaskManager'],
        *arguments: ty.Any,
    ) -> None:
        """:param context: the request context

        :param build_request: the BuildRequest as it came over the bus
        :param manager: a function of this task that returns the
            ComputeTaskManager of the build
        :param arguments: what schedule_and_build_instances() is called with
            after the build requests
        """
        super().__init__(context, build_request.instance)
        self.build_request = build_request
        self.manager = manager(self)
        self.arguments = arguments
        self.is_mine = False

    def _execute(self):
        current = self._find_current()
        self.is_mine = current is not None and current.take()
        if not self.is_mine:
            LOG.info('The server was deleted, or its build was taken over.',
                     instance=self.instance)
            # A nova-api that dies as it deletes the server leaves a hold.
            self._delete_what_is_lost()
            return
        self.build_request = current
        self._notify()
        self.manager.schedule_and_build_instances(
            self.context, [current], *self.arguments)

    def _find_current(self) -> 'objects.BuildRequest | None':
        """Return the build request as it is now.

        :returns: None if the server was deleted, was returned to cell0, or
            has a newer build request
        """
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_TRY_EVERY)
            try:
                now = objects.BuildRequest.get_by_instance_uuid(
                    self.context, self.build_request.instance_uuid)
                return now if now.id == self.build_request.id else None
            except exception.BuildRequestNotFound:
                place = build_request_module.place_of(
                    self.context, self.instance.uuid)
                if place is None or place.cell_uuid is not None:
                    return None
        return None

    def _notify(self) -> None:
        """Send instance.update: the server goes to BUILD."""
        if not CONF.notifications.notify_on_state_change:
            return
        instance = self.build_request.instance
        # There is no row to load it from; a notification needs it.
        instance.deleted_at = None
        instance.obj_reset_changes(['deleted_at'])
        cell0 = objects.CellMapping.get_by_uuid(
            self.context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(self.context, cell0) as cctxt:
            with instance.obj_alternate_context(cctxt):
                notifications.send_update_with_states(
                    cctxt, instance, self.build_request.before['vm_state'],
                    instance.vm_state, None, instance.task_state,
                    service='conductor')

    def select(self, selection: 'objects.Selection') -> None:
        """Note the cell in which a record is about to be created.

        :param selection: the Selection of the host
        :raises: LeaseLost
        """
        self.build_request.renew(cell=selection.cell_uuid)
        cell = objects.CellMapping.get_by_uuid(
            self.context, selection.cell_uuid)
        if not unbuilt_instance.purge(
                self.context, cell, self.instance.uuid):
            raise exception.InstanceExists(name=self.instance.uuid)

    def convert_to_mapping(
        self, instance: 'objects.Instance', cell: 'objects.CellMapping',
    ) -> None:
        """Map the server to the cell of its record.

        :param instance: the Instance in the cell
        :param cell: the CellMapping
        :raises: LeaseLost
        """
        def update(changes):
            with nova_context.target_cell(self.context, cell) as cctxt:
                with instance.obj_alternate_context(cctxt):
                    instance.update(changes)
                    instance.save()

        try:
            self.build_request.convert_to_mapping(cell, update)
        except build_request_module.LeaseLost:
            return_to_cell0.purge_lost(self.context, cell, instance)
            raise
        # This one has the ID of the record.
        self.instance = instance

    def rollback(self, ex: Exception) -> None:
        if not self.is_mine:
            return
        exc = ex.args[0] if isinstance(ex, NotBuilt) else ex
        try:
            if isinstance(exc, build_request_module.LeaseLost):
                self._delete_what_is_lost()
            elif self.build_request.cell is not None:
                self._set_error(exc)
            elif (_may_still_claim(exc) and
                  CONF.conductor.rebuild_in_cell0_timeout):
                LOG.warning('No scheduler has answered: %s. The server '
                            'returns to cell0 when none can answer any more.',
                            exc, instance=self.instance)
            else:
                return_to_cell0.return_to_cell0(
                    self.context, self.manager.report_client,
                    self.build_request, exc, self.manager.host)
        except build_request_module.LeaseLost:
            self._delete_what_is_lost()

    def _set_error(self, exc: Exception) -> None:
        """Set a server whose host was not asked to ERROR."""
        cell, uuid = self.build_request.cell, self.instance.uuid
        row_id = self.instance.id

        def has_record() -> bool:
            with nova_context.target_cell(self.context, cell) as cctxt:
                with return_to_cell0.locked(cctxt, uuid, row_id):
                    return True

        updates: dict[str, object] = {}
        try:
            if not isinstance(exc, messaging.MessagingException):
                updates['task_state'] = None
                # An administrator can have let the owner rebuild the server
                # meanwhile.
                allocations.delete(self.context, self.manager.report_client,
                                   uuid, has_record)
        finally:
            return_to_cell0.leave_in_error(
                self.context, cell, uuid, row_id, exc, updates=updates)

    def _delete_what_is_lost(self) -> None:
        """Delete what this build has left of a server that it has lost.

        The process that has the server now deletes the record of this build,
        unless the owner has deleted the server before the record was created.
        """
        if self.is_mine and build_request_module.place_of(
                self.context, self.instance.uuid) in build_request_module.GONE:
            unbuilt_instance.purge(
                self.context, objects.CellMapping.get_by_uuid(
                    self.context, self.build_request.lease['cell']),
                self.instance.uuid)
        lost_claims.delete(
            self.context, self.manager.report_client, self.instance.uuid)
