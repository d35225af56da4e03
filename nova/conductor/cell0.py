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

from oslo_config import cfg
from oslo_log import log as logging

from nova.compute import action_history
from nova.compute import cell0_record
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import context_value
from nova import exception
from nova import objects
from nova.objects import persisted_request

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

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
