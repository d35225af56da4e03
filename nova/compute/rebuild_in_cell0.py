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
built, or put into cell0 again, like a server that is being created.
"""

import contextlib
import contextvars

from oslo_db import api as oslo_db_api
from oslo_db import exception as db_exc
from oslo_log import log as logging
from oslo_utils import excutils
from oslo_utils import timeutils

from nova.compute import action_history
from nova.compute import asked_devices
from nova.compute import cell0_record
from nova.compute import rebuild_image
from nova.compute import rebuild_request
from nova.compute import task_states
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import context_value
from nova.db.api import api as api_db_api
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import persisted_request
from nova.objects import rebuild_context

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

#: The microversion from which the rebuild action takes servers out of cell0.
API_VERSION = '2.106'

_asked_for = contextvars.ContextVar('rebuild_in_cell0', default=False)
_correction = contextvars.ContextVar('correction', default=None)
_taken_out = contextvars.ContextVar('taken_out_of_cell0', default=None)


class Cell0Unreachable(exception.NovaException):
    msg_fmt = _("The database that holds the server cannot be reached: try "
                "again later.")
    code = 503


@contextlib.contextmanager
def asked_for(yes, correction=None):
    """Tell the compute API whether the client may ask for such a rebuild.

    :param yes: whether the request is at API_VERSION or later
    :param correction: the Correction that it asks for, or None
    """
    with (context_value.within(_asked_for, yes),
          context_value.within(_correction, correction),
          context_value.within(_taken_out, None)):
        yield


def is_asked_for():
    """Whether the client may ask for a rebuild out of cell0."""
    return _asked_for.get()


def taken_out():
    """Return the Instance that this request has taken out of cell0, or None.

    It is as it was before the conductor had it: that is what the client is
    told, and by now it can be in cell0 again, built or deleted.
    """
    return _taken_out.get()


def applies(context):
    """Whether a rebuild takes the server out of cell0.

    :param context: the request context, targeted at the server's cell
    """
    return (is_asked_for() and
            context.cell_uuid == objects.CellMapping.CELL0_UUID)


def would_apply(context, refusal):
    """Whether a refused rebuild would have been taken at API_VERSION.

    :param context: the request context, targeted at the server's cell
    :param refusal: the exception with which it was refused
    """
    return (isinstance(refusal, exception.InstanceInvalidState) and
            refusal.kwargs.get('attr') == 'launched_at' and
            context.cell_uuid == objects.CellMapping.CELL0_UUID)


def refuse_correction(instance):
    """Refuse another flavor or zone for a server that is not in cell0.

    :param instance: the Instance
    :raises: RebuildRefused (400)
    """
    # What is being built is refused for its state, as ever.
    if _correction.get() and instance.vm_state != vm_states.BUILDING:
        raise rebuild_image.RebuildRefused(reason=_(
            'its flavor and availability zone are those that it has been '
            'built with. Only for a server that was never built others can '
            'be named'))


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
                       files_to_inject or [], changes, _correction.get())
    try:
        rebuilt.check()
        cell0_record.claim(instance)
        rebuilt.move()
    except (exception.InstanceNotFound, exception.Invalid) as exc:
        with excutils.save_and_reraise_exception() as raised:
            # It was there when it was looked up. What is looked at while it
            # is deleted is not complete, and no fault of the request.
            if (isinstance(exc, rebuild_request.RequestUnknown) or
                    not isinstance(exc, exception.InstanceInvalidState)
                    ) and _is_deleted(instance):
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


class _Rebuild(rebuild_request.Request):
    """The rebuild of a server in cell0: check(), then a claim, then move()."""

    def move(self):
        """Turn the record in cell0 into a build request.

        :raises: InstanceInvalidState if the claim was lost,
            InstanceNotFound if the server was deleted
        """
        record = self.cell0_instance
        data = self.request_spec.rebuild_data
        actions = action_history.pack(self.context, record.uuid)
        self.request_spec.rebuild_data = dict(
            data, vm_state=record.vm_state, actions=actions,
            devices=asked_devices.pack(self.instance, self.bdms),
            # Not all of the actions are carried.
            attempts=1 + (data.get('attempts') or
                          action_history.count_attempts(actions)))
        try:
            self.build_request = unmap_and_create_build_request(
                self.context, cell0(self.context), self.instance, self.bdms,
                self.tags, record.created_at, timeutils.utcnow(),
                self.request_spec)
        except exception.InstanceMappingNotFound:
            raise cell0_record.in_progress(record)
        except db_exc.DBDuplicateEntry:
            # A stock conductor that puts it into cell0 has not deleted its
            # build request yet.
            cell0_record.drop_claim(record)
            raise cell0_record.ChangedMeanwhile(instance_uuid=record.uuid)
        except db_exc.DBError:
            with excutils.save_and_reraise_exception():
                # If it was committed all the same, recovery goes by the
                # build request, which nobody will take.
                cell0_record.drop_claim(record)
        try:
            cell0_record.destroy_unchanged(
                record, bdms=self.stored_bdms)
        except (cell0_record.ChangedMeanwhile, exception.ConstraintNotMet,
                exception.InstanceNotFound) as exc:
            self._undo_move()
            if isinstance(exc, exception.ConstraintNotMet):
                # Deleted or reset meanwhile: the claim is gone.
                raise cell0_record.in_progress(record)
            raise
        LOG.info('The server was taken out of cell0 to be rebuilt.',
                 instance=self.instance)

    def _undo_move(self):
        """Map the server to cell0 again and delete its build request."""
        self.restore_request_spec()
        if self.build_request.convert_to_mapping(
                cell0(self.context), self._update_record,
                self.request_spec.save_all):
            cell0_record.drop_claim(self.cell0_instance)
        # Who has deleted it did so before it was saved again.
        clear_if_deleted(self.context, self.cell0_instance.uuid)

    def _update_record(self, changes):
        """Change the record in cell0 as the build request was changed."""
        try:
            instance = objects.Instance.get_by_uuid(
                self.context, self.cell0_instance.uuid)
            instance.update(changes)
            instance.save()
        except exception.InstanceNotFound:
            LOG.debug('The server is deleted.', instance=self.cell0_instance)


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
@api_db_api.context_manager.writer
def unmap_and_create_build_request(context, cell, instance, bdms, tags,
                                   created_at, updated_at, request_spec=None,
                                   owner=None):
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
    :param owner: who has the lease of the build request; by default whoever
        takes it first
    :returns: the BuildRequest
    :raises: InstanceMappingNotFound if the server is not mapped to the cell
    """
    objects.InstanceMapping.unmap(context, instance.uuid, cell)
    build_request = objects.BuildRequest(
        context, instance=instance, instance_uuid=instance.uuid,
        project_id=instance.project_id, block_device_mappings=bdms, tags=tags,
        created_at=created_at, updated_at=updated_at)
    build_request.lease = {'owner': owner, 'pinned': bool(
        CONF.upgrade_levels.conductor)}
    build_request.create()
    if request_spec is not None:
        request_spec.save_all()
    return build_request


def remove_leftover(context, instance_uuid):
    """Delete what is left of a rebuild whose build request was deleted.

    The server was in no cell: no archive of deleted servers will find it.

    :param context: the request context
    :param instance_uuid: a server that is deleted
    """
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(
            context, instance_uuid)
        if spec.rebuild_data is None:
            return
        spec.destroy()
    except exception.RequestSpecNotFound:
        return
    with rebuild_context.rebuilding():
        objects.InstanceMapping(
            context, instance_uuid=instance_uuid).destroy()
    with nova_context.target_cell(context, cell0(context)) as cctxt:
        try:
            cell0_record.destroy_record(cctxt, instance_uuid)
        except exception.InstanceNotFound:
            pass


def clear_if_deleted(context, instance_uuid):
    """Clear what a server was kept with that was deleted in cell0.

    Its personality files are among it, which the release stores nowhere.

    :param context: the request context, targeted where the server was
    :param instance_uuid: the server
    """
    if (context.cell_uuid == objects.CellMapping.CELL0_UUID and
            cell0_record.is_deleted(context, instance_uuid)):
        persisted_request.clear(context, instance_uuid)


def remove_if_deleted(context, instance_uuid):
    """Delete what is left of a server that was deleted while it was rebuilt.

    A nova-api that dies has deleted the build request alone.

    :param context: the request context
    :param instance_uuid: the server
    :returns: whether it is deleted
    """
    with rebuild_context.rebuilding():
        # It goes if it is to no cell and there is no build request: both
        # change in one transaction.
        objects.InstanceMapping(
            context, instance_uuid=instance_uuid).destroy()
    try:
        objects.InstanceMapping.get_by_instance_uuid(context, instance_uuid)
        return False
    except exception.InstanceMappingNotFound:
        remove_leftover(context, instance_uuid)
        return True


def cell0(context):
    """Return the CellMapping of cell0."""
    return objects.CellMapping.get_by_uuid(
        context, objects.CellMapping.CELL0_UUID)
