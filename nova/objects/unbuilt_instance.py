# SPDX-License-Identifier: Apache-2.0
"""The record of a server that was never built, in the cell that has it.

A rebuild copies the record into a build request and deletes the record for
good, if nobody has changed the record since it was read.
"""

import collections.abc

from oslo_db import api as oslo_db_api

from nova.compute import power_state
from nova.compute import task_states
from nova.compute import vm_states
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova.i18n import _
from nova.network import model as network_model
from nova import objects
from nova import safe_utils
from nova import utils

# Fields of the record that the owner has not asked for: the identity of the
# row, what its time in the cell has left, and what the build makes anew.
_FIELDS_NOT_COPIED = frozenset((
    'id', 'created_at', 'updated_at', 'deleted', 'deleted_at', 'host', 'node',
    'compute_id', 'launched_at', 'launched_on', 'terminated_at', 'cell_name',
    'fault', 'services', 'pci_devices', 'resources', 'tags', 'ec2_ids',
    'migration_context', 'device_metadata', 'vcpu_model', 'cleaned', 'hidden',
    'info_cache', 'security_groups', 'old_flavor', 'new_flavor',
    'disable_terminate'))

# A failed build leaves these keys in the system metadata.
_TRACES = frozenset((
    'network_allocated', 'boot_roles', 'vtpm_secret_uuid', 'clean_attempts'))

# instance_destroy() tries again after a deadlock. Within a transaction of the
# caller a second try would lose what the caller has written before.
_instance_destroy = safe_utils.get_wrapped_function(
    main_db_api.instance_destroy)


class ChangedMeanwhile(exception.InstanceInvalidState):
    msg_fmt = _("Instance %(instance_uuid)s was changed while its rebuild was "
                "prepared: try again.")


def applies_to(instance: 'objects.Instance') -> bool:
    """Whether a server was never built, and no host is to build it."""
    return (instance.launched_at is None and instance.host is None and
            instance.vm_state in (vm_states.PENDING, vm_states.ERROR))


def copy_of_mapping(
    bdm: 'objects.BlockDeviceMapping',
) -> 'objects.BlockDeviceMapping':
    """Return a copy of a block device mapping that can be created anew."""
    copy = objects.BlockDeviceMapping(bdm._context)
    for field in objects.BlockDeviceMapping.fields:
        if field in bdm and field not in (
                'id', 'uuid', 'instance', 'created_at', 'updated_at',
                'deleted', 'deleted_at'):
            setattr(copy, field, getattr(bdm, field))
    return copy


def copy_of_mappings(
    stored: collections.abc.Iterable['objects.BlockDeviceMapping'],
) -> 'objects.BlockDeviceMappingList':
    """Return copies of block device mappings that can be created anew."""
    # Devices get their names in this order; the database has none.
    return objects.BlockDeviceMappingList(objects=[
        copy_of_mapping(bdm)
        for bdm in sorted(stored, key=lambda bdm: bdm.id)])


def copy_of(instance: 'objects.Instance') -> 'objects.Instance':
    """Return a copy of an Instance as the build request of a create has it.

    :param instance: an Instance that is on no host
    """
    new = objects.Instance(instance._context)
    for field in objects.Instance.fields:
        if field not in _FIELDS_NOT_COPIED:
            setattr(new, field, getattr(instance, field))
    new.vm_state = vm_states.BUILDING
    new.task_state = task_states.SCHEDULING
    new.power_state = power_state.NOSTATE
    new.progress = 0
    new.system_metadata = {
        key: value for key, value in instance.system_metadata.items()
        if key not in _TRACES}
    new.info_cache = objects.InstanceInfoCache(
        instance_uuid=new.uuid, network_info=network_model.NetworkInfo())
    new.security_groups = objects.SecurityGroupList()
    new.update({'old_flavor': None, 'new_flavor': None})
    return new


def _differs(
    thing: 'objects.Instance | objects.BlockDeviceMapping',
    row: collections.abc.Mapping,
) -> bool:
    """Whether an object differs from its row."""
    for name, value in row.items():
        field = thing.fields.get(name)
        if field and getattr(thing, name) != field.coerce(thing, name, value):
            return True
    return False


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def destroy_unchanged(
    instance: 'objects.Instance',
    bdms: 'objects.BlockDeviceMappingList',
) -> None:
    """Delete a record for good, if it still is what was read.

    :param instance: the Instance that was read, on no host
    :param bdms: the BlockDeviceMappingList that was read
    :raises: ChangedMeanwhile if one of them was changed or deleted
    """
    context = instance._context
    table = main_models.Instance.__table__
    bdm_table = main_models.BlockDeviceMapping.__table__
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        # A request that changes the record now waits for the end of the
        # transaction, and finds no record then. Only the row is read: to load
        # an Instance takes ten times as long.
        row = session.query(table).filter(
            table.c.uuid == instance.uuid,
            table.c.deleted == 0).with_for_update().one_or_none()
        rows = {row.id: row for row in session.query(bdm_table).filter(
            bdm_table.c.instance_uuid == instance.uuid,
            bdm_table.c.deleted == 0).with_for_update()}
        if (row is None or _differs(instance, row._mapping) or
                rows.keys() != {bdm.id for bdm in bdms} or
                any(_differs(bdm, rows[bdm.id]._mapping) for bdm in bdms)):
            raise ChangedMeanwhile(instance_uuid=instance.uuid)
        _destroy_row(context, session, instance.uuid)


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def purge(
    context: nova_context.RequestContext,
    cell: 'objects.CellMapping',
    instance_uuid: str,
    row_id: int | None = None,
) -> bool:
    """Delete the record that a build has left in a cell for good.

    The server is mapped to another cell, or has a build request. A record
    that is only marked as deleted would keep the next build out of the cell,
    because the ID of a server is unique in a cell, and nova-manage db
    archive_deleted_rows would delete the request spec of the existing server.

    :param row_id: the ID of the row, None for any row that the server has
    :returns: False if a host has set itself as the host of that record
    """
    row = main_models.Instance
    with nova_context.target_cell(context, cell) as cctxt:
        database = main_db_api.get_context_manager(cctxt)
        with database.reader.using(cctxt) as session:
            found = session.query(row.id, row.host).filter_by(
                uuid=instance_uuid).one_or_none()
        if found is None or row_id not in (None, found.id):
            return True
        if found.host is not None:
            return False
        try:
            with (utils.temporary_mutation(cctxt, read_deleted='yes'),
                  database.writer.using(cctxt) as session):
                _destroy_row(cctxt, session, instance_uuid, id=found.id)
        except exception.InstanceNotFound:
            pass
        except exception.ConstraintNotMet:
            return False
    return True


def _destroy_row(context, session, instance_uuid: str, **values) -> None:
    """Delete the row of a server on no host, and all that refers to it.

    :param values: columns and the values that they must have
    :raises: ConstraintNotMet, InstanceNotFound
    """
    action, event = main_models.InstanceAction, main_models.InstanceActionEvent
    actions = session.query(action).filter_by(instance_uuid=instance_uuid)
    # One query for the events of each action would be many queries. With a
    # subquery in the DELETE, MySQL scans the whole table.
    ids = [row.id for row in actions.with_entities(action.id)]
    session.query(event).filter(event.action_id.in_(ids)).delete(
        synchronize_session=False)
    actions.delete(synchronize_session=False)
    _instance_destroy(
        context, instance_uuid, hard_delete=True,
        constraint=main_db_api.constraint(**{
            column: main_db_api.equal_any(value)
            for column, value in {'host': None, **values}.items()}))
