# SPDX-License-Identifier: Apache-2.0

"""Takes a server that was never built out of its cell and builds it again.

Such a server is a record in a cell (cell0 if no host was found for it), an
instance mapping to that cell and a request spec. rebuild() turns the server
back into what a create makes before the scheduling: a build request and a
mapping to no cell. It applies the changes of the rebuild, and casts the build
request to the conductor.

If nova-api dies when the server is mapped to no cell, the build request gets
old, and nova.conductor.tasks.recover_builds returns the server to cell0.
"""

import typing as ty

from oslo_db import exception as db_exc
from oslo_log import log as logging
from oslo_utils import timeutils

from nova.compute import action_history
from nova.compute import rebuild_correction
from nova.compute import rebuild_image
from nova.compute import rebuild_request
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova import context as nova_context
from nova import crypto
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import request_spec
from nova.objects import unbuilt_instance
from nova import vtpm

if ty.TYPE_CHECKING:
    from nova.compute import api as compute

LOG = logging.getLogger(__name__)

#: The microversion from which the rebuild action takes such servers.
API_VERSION = '2.106'


class CellUnreachable(exception.NovaException):
    msg_fmt = _("The database that holds the server cannot be reached: try "
                "again later.")
    code = 503


class Asked:
    """What a request says that API.rebuild() has no parameter for."""

    def __init__(self, body: dict[str, ty.Any]) -> None:
        """:param body: the body of the rebuild action"""
        self.body = body
        #: The rebuild_correction.Correction, None if the body names none.
        self.correction: rebuild_correction.Correction | None = None
        #: The Instance of the build request, which the client gets as answer:
        #: by now the server can be in cell0 again, built or deleted.
        self.taken_out: 'objects.Instance | None' = None


def refuse_correction(asked: Asked, instance: 'objects.Instance') -> None:
    """Refuse another flavor or zone for a server that was built.

    :raises: RebuildRefused (400)
    """
    # A server that is being built is refused for its state, as ever.
    if asked.correction and instance.vm_state != vm_states.BUILDING:
        raise rebuild_image.RebuildRefused(reason=_(
            'its flavor and availability zone are those that it has been '
            'built with. Only for a server that was never built others can '
            'be named'))


def rebuild(
    api: 'compute.API',
    context: nova_context.RequestContext,
    instance: 'objects.Instance',
    image_href: str | None,
    admin_password: str,
    **changes: ty.Any,
) -> None:
    """Take a server out of its cell and have it built under the same ID.

    :param context: the request context, targeted at the cell, with its Asked
    :param instance: the Instance as it is in the cell
    :param image_href: the ID of the image to build from, None for the image
        that the server was created with
    :param changes: the attributes of the server that the request replaces
    :raises: InstanceIsLocked or InstanceInvalidState (409) and what
        rebuild_request.Request.check() raises; nothing has changed then
    """
    if instance.locked and not context.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    source = objects.CellMapping.get_by_uuid(context, context.cell_uuid)
    request = rebuild_request.Request(
        api, context, instance, image_href, changes,
        context.rebuild.correction)
    try:
        request.check()
    except (exception.InstanceNotFound, exception.Invalid) as exc:
        # A server that is being deleted has lost its ports and volumes: then
        # the request is not at fault.
        if not _is_being_deleted(instance):
            raise
        raise exception.InstanceInvalidState(
            attr='vm_state', instance_uuid=instance.uuid,
            state=vm_states.DELETED, method='rebuild') from exc
    build_request = _move(request, source)
    context.rebuild.taken_out = build_request.instance
    # The server is in no cell now. A server group has no hosts in a context
    # that is targeted at a cell.
    api.compute_task_api.rebuild_instance_in_cell0(
        nova_context.RequestContext.from_dict(context.to_dict()),
        build_request, request.request_spec, request.image, admin_password,
        [], request.networks, request.bdms, build_request.tags)


def _is_being_deleted(instance: 'objects.Instance') -> bool:
    try:
        now = objects.Instance.get_by_uuid(
            instance._context, instance.uuid, expected_attrs=[])
    except exception.InstanceNotFound:
        return True
    return (now.task_state == task_states.DELETING or
            now.vm_state == vm_states.DELETED)


def _move(
    request: rebuild_request.Request, source: 'objects.CellMapping',
) -> 'objects.BuildRequest':
    """Turn the record of a server into a build request.

    :param request: the rebuild_request.Request, checked
    :param source: the CellMapping of the cell that has the record
    :returns: the BuildRequest
    :raises: InstanceInvalidState if somebody else has the server, or it was
        changed or deleted meanwhile
    """
    context, record, spec = (
        request.context, request.record, request.request_spec)
    data = spec.rebuild_data
    spec.rebuild_data = dict(
        data, asked_to_wait=data.get('asked_to_wait') or _is_asked_by_owner(
            context, record),
        devices=request_spec.pack_devices(request.instance, request.bdms),
        # The create was the first attempt.
        attempts=data.get('attempts', 1) + 1)
    # If this nova-api dies, the record in cell0 names what is not deleted yet.
    for bdm, made in request.made:
        bdm.update(made)
    try:
        build_request = objects.BuildRequest(
            context, instance=request.instance, instance_uuid=record.uuid,
            project_id=record.project_id, block_device_mappings=request.bdms,
            # The server is shown with the creation time of its build request,
            # so that stays. Recovery goes by updated_at.
            tags=record.tags, created_at=record.created_at,
            updated_at=timeutils.utcnow())
        build_request.before = {
            'vm_state': record.vm_state, 'reserve': request.reserve,
            'actions': action_history.pack(context, record.uuid),
            'vtpm_secret_uuid': record.system_metadata.get(
                'vtpm_secret_uuid')}
        build_request.create_in_place_of_mapping(context, source, spec)
    except (exception.InstanceNotFound, exception.InstanceMappingNotFound,
            db_exc.DBDuplicateEntry):
        # Another rebuild or a delete has the server, or an older conductor
        # has mapped the server to cell0 before it deletes the build request.
        raise unbuilt_instance.ChangedMeanwhile(instance_uuid=record.uuid)
    try:
        unbuilt_instance.destroy_unchanged(record, request.stored_bdms)
    except unbuilt_instance.ChangedMeanwhile:
        _move_back(build_request, source, request.stored_spec)
        raise
    LOG.info('The server was taken out of its cell to be rebuilt.',
             instance=request.instance)
    tpm_secret = build_request.before.pop('vtpm_secret_uuid')
    if request.made or tpm_secret or not source.is_cell0():
        _delete_what_was_made(request, tpm_secret)
        build_request.save_devices(request.bdms)
    return build_request


def _is_asked_by_owner(context, record) -> bool:
    """Whether a rebuild says that the owner of a server knows of PENDING.

    The rebuild of an administrator or a service says nothing about the owner,
    nor does the rebuild of a service that sends its own token beside a token
    of the server's project.
    """
    return context.project_id == record.project_id and not (
        context.is_admin or
        'service' in (*context.roles, *context.service_roles))


def _move_back(build_request, source, spec) -> None:
    """Map the server to its cell again: the record has changed."""
    context = build_request._context

    def update(changes):
        try:
            record = objects.Instance.get_by_uuid(
                context, build_request.instance_uuid, expected_attrs=[])
            record.update(changes)
            record.save()
        except exception.InstanceNotFound:
            LOG.debug('The server is deleted.',
                      instance_uuid=build_request.instance_uuid)

    try:
        # No other rebuild saves a request spec of the server until the server
        # is in its cell.
        spec.save_all()
        build_request.convert_to_mapping(source, update)
    except (objects.build_request.LeaseLost, exception.RequestSpecNotFound):
        LOG.debug('The server was deleted, or returned to cell0, meanwhile.',
                  instance_uuid=build_request.instance_uuid)


def _delete_what_was_made(
    request: rebuild_request.Request, tpm_secret: str | None,
) -> None:
    """Delete what hosts have made for a server whose builds have failed.

    The next build makes its own. A failure is only logged.

    :param tpm_secret: the ID of the secret of its TPM, or None
    """
    context, record = request.context, request.record
    request.api._local_cleanup_bdm_volumes(
        [bdm for bdm, made in request.made if 'volume_id' in made],
        record, context)
    secrets = {bdm.encryption_secret_uuid: context
               for bdm, made in request.made
               if 'encryption_secret_uuid' in made}
    if tpm_secret:
        secrets[tpm_secret] = vtpm.get_request_context(context, record.flavor)
    for secret_uuid, owner in secrets.items():
        try:
            crypto.delete_encryption_secret(owner, record.uuid, secret_uuid)
        except Exception as exc:
            LOG.warning('The secret %(secret)s, which a failed build has '
                        'made, is left in the key manager: %(exc)s',
                        {'secret': secret_uuid, 'exc': exc}, instance=record)
    compute_utils.delete_arqs_if_needed(context, record)
    for bdm, made in request.made:
        bdm.update(dict.fromkeys(made))
