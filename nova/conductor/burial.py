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

from oslo_config import cfg
from oslo_log import log as logging
from oslo_utils import excutils

from nova.compute import action_history
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.notifications import base as notifications
from nova import objects

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


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
        _cell0(context)
    except exception.CellMappingNotFound as exc:
        # The release has logged that there is none, and returned.
        name(exc)


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
    spec = objects.RequestSpec.get_by_instance_uuid(
        context, build_request.instance_uuid)
    instance = build_request.instance
    # No row could tell; all else that a notification says is set.
    instance.deleted_at = None
    instance.obj_reset_changes(['deleted_at'])
    with nova_context.target_cell(context, _cell0(context)) as cctxt:
        with instance.obj_alternate_context(cctxt):
            notifications.send_update_with_states(
                cctxt, instance, spec.remembered.get('vm_state'),
                instance.vm_state, None, instance.task_state,
                service='conductor')


def settle(context, instance_uuid):
    """Give a server that was rebuilt its history, and forget the rest.

    :param context: the request context
    :param instance_uuid: a server that was scheduled or buried again
    """
    try:
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid).cell_mapping
        spec = objects.RequestSpec.get_by_instance_uuid(
            context, instance_uuid)
    except (exception.InstanceMappingNotFound,
            exception.RequestSpecNotFound):
        return
    if cell is None:
        return
    with nova_context.target_cell(context, cell) as cctxt:
        action_history.unpack(
            cctxt, instance_uuid, spec.remembered.get('actions', []))
    # A server that was buried again keeps what it was asked for with.
    spec.remembered = {what: value for what, value in spec.remembered.items()
                       if what == 'request'}
    if not cell.is_cell0():
        spec.is_buried = False
    spec.touch()
    spec.save()


def _cell0(context):
    return objects.CellMapping.get_by_uuid(
        context, objects.CellMapping.CELL0_UUID)


def is_outdated(context, build_request):
    """Whether a build request has made way for something else.

    :param context: the request context
    :param build_request: the BuildRequest that came over the bus
    :returns: True if the server was put back into cell0 or has a newer build
        request; not if it was deleted, which the release handles
    """
    try:
        return objects.BuildRequest.get_by_instance_uuid(
            context, build_request.instance_uuid).id != build_request.id
    except exception.BuildRequestNotFound:
        pass
    try:
        return objects.InstanceMapping.get_by_instance_uuid(
            context, build_request.instance_uuid).cell_mapping is not None
    except exception.InstanceMappingNotFound:
        return False
