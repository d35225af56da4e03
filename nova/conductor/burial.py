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

"""What a burial in cell0 keeps for a rebuild out of it."""

import contextlib
import contextvars
import functools

from oslo_config import cfg
from oslo_db import api as oslo_db_api
from oslo_log import log as logging
from oslo_utils import excutils
from oslo_utils import timeutils

from nova.compute import action_history
from nova.compute import handover
from nova.compute import rebuild_in_cell0
import nova.conf
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova.notifications import base as notifications
from nova import objects
from nova.objects import request_memory

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_build_requests = contextvars.ContextVar('of_a_burial', default=())


def use_pending_state():
    """Return the option, as off if it was changed to what is no boolean.

    A burial must not fail half way. A bad value at the start of the service
    is refused there.
    """
    try:
        return CONF.use_pending_state
    except cfg.ConfigFileValueError as exc:
        LOG.error('Servers for which no host is found are set to ERROR: %s',
                  exc)
        return False


@contextlib.contextmanager
def servers_named_on_failure(context, build_requests):
    """Log the IDs of servers that cannot be buried, which the release omits.

    :param context: the request context
    :param build_requests: the BuildRequests of the servers, or None
    """
    def name(reason):
        for build_request in build_requests or []:
            LOG.error('The server could not be buried in cell0 and stays as '
                      'it is: %s', reason,
                      instance_uuid=build_request.instance_uuid)

    try:
        yield
    except Exception as exc:
        with excutils.save_and_reraise_exception():
            name(exc)
    try:
        rebuild_in_cell0.cell0(context)
    except exception.CellMappingNotFound as exc:
        # The release has logged that there is none, and returned.
        name(exc)


@contextlib.contextmanager
def of(build_requests):
    """Tell let_go() whose burial runs within.

    :param build_requests: the BuildRequests of the servers, or None
    """
    token = _build_requests.set(build_requests or ())
    try:
        yield
    finally:
        _build_requests.reset(token)


def let_go(instance_uuid):
    """Destroy the build request of a server that is being buried.

    The release does so when all servers have been shown as buried. By then
    one can have been taken out of cell0, and have another build request.

    :param instance_uuid: the server, all of whose record is in cell0
    """
    for build_request in _build_requests.get():
        if build_request.instance_uuid == instance_uuid:
            build_request.let_go()


def is_burial(context):
    """Whether a server whose state is being set is in cell0.

    :param context: the context that is targeted at the server's cell
    """
    return context.cell_uuid == objects.CellMapping.CELL0_UUID


def found_no_host(exc):
    """Whether a build failed because no host had room.

    :param exc: why the build failed. MaxRetriesExceeded, a NoValidHost too,
        says that hosts had room and the build failed on each.
    """
    return (isinstance(exc, exception.NoValidHost) and
            not isinstance(exc, exception.MaxRetriesExceeded))


def keep_request(context, instance_uuid, request_spec):
    """Persist what the owner asked for and the release would forget.

    A failure is logged only: the server is buried all the same, and a
    rebuild of it is refused.

    :param context: the request context
    :param instance_uuid: the server that is being buried
    :param request_spec: the RequestSpec of the request. All servers of a
        multi-create are buried with that of the first.
    """
    try:
        spec = objects.RequestSpec.get_by_instance_uuid(
            context, instance_uuid)
        spec.remember_request(request_spec)
        spec.save()
    except Exception:
        LOG.exception('The networks and files that the server was asked for '
                      'with could not be kept; it cannot be rebuilt in cell0.',
                      instance_uuid=instance_uuid)


def notify_rebuild(context, build_request):
    """Send instance.update for a server that goes from cell0 to BUILD.

    :param context: the request context
    :param build_request: the BuildRequest that stands for the server
    """
    if not CONF.notifications.notify_on_state_change:
        return
    remembered = request_memory.get(
        context, build_request.instance_uuid)
    if not remembered:
        return  # The server was deleted.
    instance = build_request.instance
    # No row could tell; all else that a notification says is set.
    instance.deleted_at = None
    instance.obj_reset_changes(['deleted_at'])
    cell0 = rebuild_in_cell0.cell0(context)
    with nova_context.target_cell(context, cell0) as cctxt:
        with instance.obj_alternate_context(cctxt):
            notifications.send_update_with_states(
                cctxt, instance, remembered.get('vm_state'),
                instance.vm_state, None, instance.task_state,
                service='conductor')


def bury_again(context, build_request, bury):
    """Bury a server whose rebuild found no host, with all that it had.

    :param context: the request context
    :param build_request: the BuildRequest that stands for the server
    :param bury: what buries a list of Instances and touches neither build
        requests nor mappings
    """
    build_request = current(context, build_request)
    if build_request is None:
        return
    instance = build_request.get_new_instance(context)
    bury(instances=[instance])
    if 'id' in instance:
        cell0 = rebuild_in_cell0.cell0(context)
        if not hand_over(context, build_request, instance, cell0) and (
                is_own(context, instance, cell0)):
            with nova_context.target_cell(context, cell0) as cctxt:
                rebuild_in_cell0.destroy_record(
                    cctxt, instance.uuid, id=instance.id)


def hand_over(context, build_request, instance, cell):
    """Give a server that is being rebuilt to a cell.

    In the moment in which it has no build request any more nothing is left
    to do for which the conductor would still be needed, but to ask a host.

    :param context: the request context
    :param build_request: the BuildRequest that the instance was made of
    :param instance: the Instance in the cell
    :param cell: the CellMapping of the cell
    :returns: False if the server was deleted or put back into cell0 meanwhile
    """
    def update(_build_request, changes):
        with nova_context.target_cell(context, cell) as cctxt:
            with instance.obj_alternate_context(cctxt):
                instance.update(changes)
                instance.save()

    return handover.give(
        context, build_request, cell, update,
        # What no host was asked for yet must be remembered.
        functools.partial(_forget, context, instance.uuid, cell)
        if cell.is_cell0() else None)


def forget_built(context, instance_uuid):
    """Forget what a server was asked for with, which a host knows now.

    :param context: the request context
    :param instance_uuid: a server that a rebuild has given to a cell, or not
    """
    cell = cell_of(context, instance_uuid)
    if cell is not None and not cell.is_cell0():
        _forget(context, instance_uuid, cell)


def is_own(context, instance, cell):
    """Whether a build that lost the server may delete its record in a cell.

    :param context: the request context
    :param instance: the Instance of the build
    :param cell: the CellMapping of the cell
    :returns: False if another party has made the record that is there now
    """
    mapped = cell_of(context, instance.uuid)
    if mapped is not None and mapped.id == cell.id:
        return False
    with nova_context.target_cell(context, cell) as cctxt:
        try:
            return objects.Instance.get_by_uuid(
                cctxt, instance.uuid).id == instance.id
        except exception.InstanceNotFound:
            return False


def cell_of(context, instance_uuid):
    """Return the CellMapping that a server is mapped to, or None."""
    try:
        return objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid).cell_mapping
    except exception.InstanceMappingNotFound:
        return None


def settle(context, instance_uuid):
    """Give a server that has a cell again its history; forget the rest.

    :param context: the request context
    :param instance_uuid: a server that was put back into cell0, or scheduled
    """
    cell = cell_of(context, instance_uuid)
    if cell is not None:
        with nova_context.target_cell(context, cell) as cctxt:
            restore_history(cctxt, instance_uuid)
        _forget(context, instance_uuid, cell)


def restore_history(context, instance_uuid):
    """Create the actions that a server had before its rebuild.

    :param context: a context that is targeted at the cell of its record
    :param instance_uuid: the server
    """
    action_history.unpack(
        context, instance_uuid, request_memory.get(
            context, instance_uuid).get('actions', []))


def _forget(context, instance_uuid, cell):
    # A server that was buried again keeps what it was asked for with.
    request_memory.forget(
        context, instance_uuid, *(['request'] if cell.is_cell0() else []))


def current(context, build_request):
    """Return a build request as it is now.

    :param context: the request context
    :param build_request: the BuildRequest as it came over the bus
    :returns: None if the server was deleted, was put back into cell0, or has
        a newer build request
    """
    try:
        now = objects.BuildRequest.get_by_instance_uuid(
            context, build_request.instance_uuid)
    except exception.BuildRequestNotFound:
        return None
    return now if now.id == build_request.id else None


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
@api_db_api.context_manager.writer
def keep_current(context, build_request):
    """Let a build request be as young as one of now.

    :param context: the request context
    :param build_request: the BuildRequest
    :returns: whether it still stands for the server
    """
    return bool(context.session.query(api_models.BuildRequest).filter_by(
        id=build_request.id).update({'updated_at': timeutils.utcnow()}))


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
    return bool(request_memory.get(
        context, build_requests[0].instance_uuid))
