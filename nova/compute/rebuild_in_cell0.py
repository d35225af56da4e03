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

from oslo_log import log as logging
from oslo_utils import timeutils

from nova.compute import action_history
from nova.compute import rebuild_request
from nova.compute import task_states
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova import exception
from nova.i18n import _
from nova import objects

LOG = logging.getLogger(__name__)

#: The microversion from which the rebuild action takes servers out of cell0.
API_VERSION = '2.106'

_asked_for = contextvars.ContextVar('rebuild_in_cell0', default=False)


class Cell0Unreachable(exception.NovaException):
    msg_fmt = _("The database that holds the server cannot be reached: try "
                "again later.")
    code = 503


@contextlib.contextmanager
def asked_for(yes):
    """Tell the compute API whether the client may ask for such a rebuild.

    :param yes: whether the request is at API_VERSION or later
    """
    token = _asked_for.set(yes)
    try:
        yield
    finally:
        _asked_for.reset(token)


def is_asked_for():
    """Whether the client may ask for a rebuild out of cell0."""
    return _asked_for.get()


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
    :raises: InstanceIsLocked (409) and what rebuild_request.Request.check()
        raises; nothing has changed then
    """
    if instance.locked and not context.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    rebuilt = _Rebuild(api, context, instance, image_href,
                       files_to_inject or [], changes)
    rebuilt.check()
    _claim(instance)
    rebuilt.move()
    # It is in no cell now. Within one, a server group has no other hosts.
    with nova_context.target_cell(context, None) as cctxt:
        api.compute_task_api.rebuild_instance_in_cell0(
            cctxt, rebuilt.build_request, rebuilt.request_spec, rebuilt.image,
            admin_password, rebuilt.files, rebuilt.networks, rebuilt.bdms,
            rebuilt.tags)


def _claim(instance):
    """Let exactly one of several requests have the server.

    :raises: InstanceInvalidState if another one has it
    """
    claimed = objects.Instance.get_by_uuid(instance._context, instance.uuid)
    claimed.task_state = task_states.REBUILDING
    try:
        claimed.save(expected_vm_state=instance.vm_state,
                     expected_task_state=[None])
    except exception.UnexpectedTaskStateError:
        raise _in_progress(instance)


class _Rebuild(rebuild_request.Request):
    """The rebuild of a server in cell0: check(), then a claim, then move()."""

    def move(self):
        """Turn the record in cell0 into a build request.

        :raises: InstanceInvalidState if the claim was lost,
            InstanceNotFound if the server was deleted
        """
        build_request = objects.BuildRequest(
            self.context, instance=self.instance,
            instance_uuid=self.instance.uuid,
            project_id=self.instance.project_id,
            block_device_mappings=self.bdms, tags=self.tags)
        self.request_spec.remembered = dict(
            self.request_spec.remembered,
            vm_state=self.buried.vm_state,
            actions=action_history.pack(self.context, self.buried.uuid))
        # The save drops what the release does not persist.
        resources = self.request_spec.requested_resources
        try:
            self.build_request = _exchange(
                self.context, build_request, self.request_spec,
                self.buried.created_at)
        except exception.InstanceMappingNotFound:
            raise _in_progress(self.buried)
        self.request_spec.requested_resources = resources
        try:
            destroy_claimed(self.context, self.buried.uuid)
        except (exception.ConstraintNotMet,
                exception.InstanceNotFound) as exc:
            # Deleted or reset meanwhile: the claim is gone.
            self.restore_request_spec()
            if put_back(self.context, self.build_request):
                self.request_spec.save()
            if isinstance(exc, exception.InstanceNotFound):
                raise
            raise _in_progress(self.buried)
        LOG.info('The server was taken out of cell0 to be rebuilt.',
                 instance=self.instance)


@api_db_api.context_manager.writer
def _exchange(context, build_request, request_spec, created_at):
    """Replace a mapping to cell0 by a build request, in one transaction.

    :param created_at: when the server was created. The server has the time
        of its build request; how long the rebuild takes is told by the time
        at which the build request was updated.
    :returns: the BuildRequest
    :raises: InstanceMappingNotFound if the server is not mapped to cell0
    """
    objects.InstanceMapping.exchange_cell(
        context, build_request.instance_uuid, cell0(context), None)
    build_request.create()
    context.session.query(api_models.BuildRequest).filter_by(
        id=build_request.id).update({
            'created_at': created_at.replace(tzinfo=None),
            'updated_at': timeutils.utcnow()})
    request_spec.save()
    context.session.expire_all()
    return objects.BuildRequest.get_by_instance_uuid(
        context, build_request.instance_uuid)


def destroy_claimed(context, instance_uuid,
                    claim=task_states.REBUILDING):
    """Delete the record of a server in cell0 for good while it is claimed.

    :param context: a context that is targeted at cell0
    :param instance_uuid: the server
    :param claim: the task_state that the record must have
    :raises: ConstraintNotMet if it is not claimed, InstanceNotFound
    """
    main_db_api.instance_destroy(
        context, instance_uuid, hard_delete=True,
        constraint=main_db_api.constraint(
            task_state=main_db_api.equal_any(claim)))


def remove_leftover(context, instance_uuid):
    """Delete what an interrupted rebuild has left in cell0.

    :param context: the request context
    :param instance_uuid: a server whose build request was deleted
    """
    with nova_context.target_cell(context, cell0(context)) as cctxt:
        try:
            destroy_claimed(cctxt, instance_uuid)
        except (exception.ConstraintNotMet, exception.InstanceNotFound):
            pass


@api_db_api.context_manager.writer
def put_back(context, build_request):
    """Replace a build request by a mapping to cell0, in one transaction.

    Whoever deletes the row of the build request has the server, as in the
    release.

    :returns: whether it was this caller
    """
    if not context.session.query(api_models.BuildRequest).filter_by(
            id=build_request.id).delete():
        return False
    context.session.query(api_models.InstanceMapping).filter_by(
        instance_uuid=build_request.instance_uuid).update(
            {'cell_id': cell0(context).id})
    return True


def cell0(context):
    """Return the CellMapping of cell0."""
    return objects.CellMapping.get_by_uuid(
        context, objects.CellMapping.CELL0_UUID)


def _in_progress(instance):
    return exception.InstanceInvalidState(
        attr='task_state', instance_uuid=instance.uuid,
        state=task_states.REBUILDING, method='rebuild')
