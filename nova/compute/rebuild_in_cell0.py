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

"""Takes a server that was never built out of cell0 and has it built again.

A server for which no host was found is a record in cell0, an instance mapping
to cell0 and a request spec. rebuild() turns it back into what it was before
it was scheduled, a build request and a mapping to no cell, with what the
rebuild request changes, and casts it to the conductor. From there on it is
built, or buried again, like a server that is being created.
"""

import contextlib
import contextvars

from oslo_db import api as oslo_db_api
from oslo_db import exception as db_exc
from oslo_log import log as logging
from oslo_utils import excutils
from oslo_utils import timeutils

from nova.compute import action_history
from nova.compute import handover
from nova.compute import rebuild_request
from nova.compute import task_states
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova.i18n import _
from nova.notifications import base as notifications
from nova import objects
from nova.objects import rebuild_scope
from nova import safe_utils

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The microversion from which the rebuild action takes servers out of cell0.
API_VERSION = '2.106'

# What a rebuild itself changes of the record in cell0, by its claim.
_CLAIM_CHANGES = ('task_state', 'updated_at')

# As released, but for its transaction, and that it is tried again.
_instance_destroy = safe_utils.get_wrapped_function(
    main_db_api.instance_destroy)

_asked_for = contextvars.ContextVar('rebuild_in_cell0', default=False)
_taken_out = contextvars.ContextVar('taken_out_of_cell0', default=None)


class Cell0Unreachable(exception.NovaException):
    msg_fmt = _("The database that holds the server cannot be reached: try "
                "again later.")
    code = 503


class ChangedMeanwhile(exception.InstanceInvalidState):
    msg_fmt = _("Instance %(instance_uuid)s was changed while its rebuild was "
                "prepared: try again.")


@contextlib.contextmanager
def asked_for(yes):
    """Tell the compute API whether the client may ask for such a rebuild.

    :param yes: whether the request is at API_VERSION or later
    """
    asked_for, taken_out = _asked_for.set(yes), _taken_out.set(None)
    try:
        yield
    finally:
        _asked_for.reset(asked_for)
        _taken_out.reset(taken_out)


def is_asked_for():
    """Whether the client may ask for a rebuild out of cell0."""
    return _asked_for.get()


def taken_out():
    """Return the Instance that this request has taken out of cell0, or None.

    It is as it was before the conductor had it: that is what the client is
    told, and by now it can be buried again, built or deleted.
    """
    return _taken_out.get()


def applies(context):
    """Whether a rebuild takes the server out of cell0.

    :param context: the request context, targeted at the server's cell
    """
    return (is_asked_for() and
            context.cell_uuid == objects.CellMapping.CELL0_UUID)


def rebuild(api, context, instance, image_href, admin_password,
            files_to_inject=None, **changes):
    """Take a server out of cell0 and have it built under the same ID.

    :param api: the compute API
    :param context: the request context, targeted at cell0
    :param instance: the Instance as it is in cell0
    :param image_href: the ID of the image to build from, None for the one
        that it was created with
    :param admin_password: the password to set in the guest
    :param files_to_inject: personality files, as in a create
    :param changes: the attributes of the server that the request replaces
    :raises: InstanceIsLocked or InstanceInvalidState (409) and what
        rebuild_request.Request.check() raises; nothing has changed then
    """
    if instance.locked and not context.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    rebuilt = _Rebuild(api, context, instance, image_href,
                       files_to_inject or [], changes)
    try:
        rebuilt.check()
        _claim(instance)
        rebuilt.move()
    except exception.InstanceInvalidState:
        raise
    except (exception.InstanceNotFound, exception.Invalid):
        with excutils.save_and_reraise_exception() as raised:
            # It was there when it was looked up. What is looked at while it
            # is deleted is not complete, and no fault of the request.
            if _is_deleted(instance):
                raised.reraise = False
        raise exception.InstanceInvalidState(
            attr='vm_state', instance_uuid=instance.uuid,
            state=vm_states.DELETED, method='rebuild')
    _taken_out.set(rebuilt.build_request.instance)
    # It is in no cell now. Within one, a server group has no other hosts.
    api.compute_task_api.rebuild_instance_in_cell0(
        nova_context.RequestContext.from_dict(context.to_dict()),
        rebuilt.build_request, rebuilt.request_spec, rebuilt.image,
        admin_password, rebuilt.files, rebuilt.networks, rebuilt.bdms,
        rebuilt.tags)


def _is_deleted(instance):
    try:
        now = objects.Instance.get_by_uuid(instance._context, instance.uuid)
    except exception.InstanceNotFound:
        return True
    # Its volumes and ports are gone before it is.
    return (now.task_state == task_states.DELETING or
            now.vm_state == vm_states.DELETED)


def _claim(instance):
    """Let exactly one of several requests have the server.

    :raises: InstanceInvalidState if another one has it, InstanceNotFound
    """
    if not _update_unclaimed(instance):
        now = objects.Instance.get_by_uuid(
            instance._context, instance.uuid, expected_attrs=[])
        if now.task_state is not None:
            raise _in_progress(instance)
        raise ChangedMeanwhile(instance_uuid=instance.uuid)
    _notify_claim(instance)
    try:
        # Now that nobody else can rebuild it: what was checked must hold.
        _check_unchanged(instance)
    except ChangedMeanwhile:
        _drop_claim(instance)
        raise


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def _update_unclaimed(instance):
    # The row alone, as in _check_unchanged(): each server is claimed.
    context = instance._context
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        return session.query(main_models.Instance).filter_by(
            uuid=instance.uuid, deleted=0, vm_state=instance.vm_state,
            task_state=None).update({'task_state': task_states.REBUILDING})


def _notify_claim(instance):
    # As Instance.save() does.
    if CONF.notifications.notify_on_state_change:
        claimed = objects.Instance.get_by_uuid(
            instance._context, instance.uuid)
        before = claimed.obj_clone()
        before.task_state = None
        notifications.send_update(instance._context, before, claimed)


def _drop_claim(instance):
    try:
        claimed = objects.Instance.get_by_uuid(
            instance._context, instance.uuid)
        claimed.task_state = None
        claimed.save(expected_task_state=[task_states.REBUILDING])
    except (exception.InstanceNotFound, exception.UnexpectedTaskStateError):
        LOG.debug('The claim is gone already.', instance=instance)


def _check_unchanged(instance):
    """Refuse what was changed since it was read, but for the claim.

    :raises: ChangedMeanwhile, InstanceNotFound
    """
    context = instance._context
    # The row alone: an Instance takes ten times as long.
    table = main_models.Instance.__table__
    with main_db_api.get_context_manager(context).reader.using(
            context) as session:
        row = session.query(table).filter(
            table.c.uuid == instance.uuid, table.c.deleted == 0).one_or_none()
    if row is None:
        raise exception.InstanceNotFound(instance_id=instance.uuid)
    for name, value in row._mapping.items():
        field = instance.fields.get(name)
        if field and name not in _CLAIM_CHANGES and getattr(
                instance, name) != field.coerce(instance, name, value):
            raise ChangedMeanwhile(instance_uuid=instance.uuid)


class _Rebuild(rebuild_request.Request):
    """The rebuild of a server in cell0: check(), then a claim, then move()."""

    def move(self):
        """Turn the record in cell0 into a build request.

        :raises: InstanceInvalidState if the claim was lost,
            InstanceNotFound if the server was deleted
        """
        self.request_spec.remembered = dict(
            self.request_spec.remembered,
            vm_state=self.buried.vm_state,
            actions=action_history.pack(self.context, self.buried.uuid),
            reimage=self.image_id if self.reimages else None)
        # The save drops what the release does not persist.
        resources = self.request_spec.requested_resources
        try:
            self.build_request = exchange(
                self.context, cell0(self.context), self.instance, self.bdms,
                self.tags, self.buried.created_at, timeutils.utcnow(),
                self.request_spec)
        except exception.InstanceMappingNotFound:
            raise _in_progress(self.buried)
        except db_exc.DBDuplicateEntry:
            # A stock conductor that buries it has not let it go yet.
            _drop_claim(self.buried)
            raise ChangedMeanwhile(instance_uuid=self.buried.uuid)
        self.request_spec.requested_resources = resources
        try:
            destroy_unchanged(self.buried)
        except (ChangedMeanwhile, exception.ConstraintNotMet,
                exception.InstanceNotFound) as exc:
            self._put_back()
            if isinstance(exc, exception.ConstraintNotMet):
                # Deleted or reset meanwhile: the claim is gone.
                raise _in_progress(self.buried)
            raise
        LOG.info('The server was taken out of cell0 to be rebuilt.',
                 instance=self.instance)

    def _put_back(self):
        """Undo the exchange."""
        def update(_build_request, changes):
            # A user has changed the build request, which is on its way out.
            try:
                instance = objects.Instance.get_by_uuid(
                    self.context, self.buried.uuid)
                instance.update(changes)
                instance.save()
            except exception.InstanceNotFound:
                LOG.debug('The server is deleted.', instance=self.buried)

        self.restore_request_spec()
        if put_back(self.context, self.build_request, update,
                    self._save_request_spec):
            _drop_claim(self.buried)

    def _save_request_spec(self):
        # A save that was rolled back has left nothing to save.
        self.request_spec.touch()
        self.request_spec.save()


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
@api_db_api.context_manager.writer
def exchange(context, cell, instance, bdms, tags, created_at, updated_at,
             request_spec=None):
    """Replace a mapping to a cell by a build request, in one transaction.

    :param context: the request context
    :param cell: the CellMapping that the server must be mapped to
    :param instance: the Instance, unsaved, that the build request is to have
    :param bdms: its BlockDeviceMappingList
    :param tags: its TagList
    :param created_at: when the server was created. The server has the time
        of its build request.
    :param updated_at: when its rebuild began; recovery takes it for old by
        this
    :param request_spec: the RequestSpec to save with it, or None
    :returns: the BuildRequest
    :raises: InstanceMappingNotFound if the server is not mapped to the cell
    """
    objects.InstanceMapping.exchange_cell(context, instance.uuid, cell, None)
    build_request = objects.BuildRequest(
        context, instance=instance, instance_uuid=instance.uuid,
        project_id=instance.project_id, block_device_mappings=bdms, tags=tags,
        created_at=created_at, updated_at=updated_at)
    build_request.create()
    if request_spec is not None:
        # Or it is not written a second time if a deadlock has undone it.
        request_spec.touch()
        request_spec.save()
    return build_request


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def destroy_unchanged(instance, claim=task_states.REBUILDING):
    """Delete a claimed record for good if all of it is in a build request.

    :param instance: the Instance that the build request was made of
    :param claim: the task_state that the record must have
    :raises: ChangedMeanwhile, ConstraintNotMet if the claim was lost,
        InstanceNotFound
    """
    context = instance._context
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        # Who changes it now, waits, and finds that it is gone.
        session.query(main_models.Instance.id).filter_by(
            uuid=instance.uuid).with_for_update().all()
        _check_unchanged(instance)
        destroy_claimed(context, instance.uuid, claim)


def destroy_claimed(context, instance_uuid,
                    claim=task_states.REBUILDING):
    """Delete the record of a server in cell0 for good while it is claimed.

    :param context: a context that is targeted at cell0
    :param instance_uuid: the server
    :param claim: the task_state that the record must have
    :raises: ConstraintNotMet if it is not claimed, InstanceNotFound
    """
    destroy_record(context, instance_uuid, task_state=claim)


def destroy_record(context, instance_uuid, **values):
    """Delete the record of a server in a cell for good.

    In a transaction of the caller nothing is tried again: the whole of it
    would have to be.

    :param context: a context that is targeted at the cell
    :param instance_uuid: the server
    :param values: columns and the values that they must have
    :raises: ConstraintNotMet, InstanceNotFound
    """
    with main_db_api.get_context_manager(context).writer.using(context):
        _instance_destroy(
            context, instance_uuid, hard_delete=True,
            constraint=main_db_api.constraint(**{
                column: main_db_api.equal_any(value)
                for column, value in values.items()}))


def remove_leftover(context, instance_uuid):
    """Delete what is left of a rebuild whose build request was deleted.

    The server was in no cell: no archive of deleted servers will find it.

    :param context: the request context
    :param instance_uuid: a server that is deleted
    """
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(
            context, instance_uuid)
        if not spec.is_buried:
            return
        spec.destroy()
    except exception.RequestSpecNotFound:
        return
    with rebuild_scope.rebuilding():
        objects.InstanceMapping(
            context, instance_uuid=instance_uuid).destroy()
    with nova_context.target_cell(context, cell0(context)) as cctxt:
        try:
            destroy_record(cctxt, instance_uuid)
        except exception.InstanceNotFound:
            pass


def put_back(context, build_request, update, save_spec=None):
    """Give a server that a build request stands for back to cell0.

    :param update: as of handover.give(), and the rest
    """
    return handover.give(
        context, build_request, cell0(context), update, save_spec)


def cell0(context):
    """Return the CellMapping of cell0."""
    return objects.CellMapping.get_by_uuid(
        context, objects.CellMapping.CELL0_UUID)


def _in_progress(instance):
    return exception.InstanceInvalidState(
        attr='task_state', instance_uuid=instance.uuid,
        state=task_states.REBUILDING, method='rebuild')
