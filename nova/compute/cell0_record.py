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

"""The record in cell0 of a server that is to be rebuilt.

A rebuild copies it into a build request, claims it with its task_state and
deletes it for good, if it is still what was copied.
"""

from oslo_db import api as oslo_db_api
from oslo_log import log as logging

from nova.compute import power_state
from nova.compute import task_states
from nova.compute import vm_states
import nova.conf
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova.i18n import _
from nova.network import model as network_model
from nova.notifications import base as notifications
from nova import objects
from nova import safe_utils

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# What of the record in cell0 is not what the owner asked for: identity of the
# row, what its life there left, and what the build makes anew.
_FIELDS_NOT_COPIED = frozenset((
    'id', 'created_at', 'updated_at', 'deleted', 'deleted_at', 'host', 'node',
    'compute_id', 'launched_at', 'launched_on', 'terminated_at', 'cell_name',
    'fault', 'services', 'pci_devices', 'resources', 'tags', 'ec2_ids',
    'migration_context', 'device_metadata', 'vcpu_model', 'cleaned', 'hidden',
    'info_cache', 'security_groups', 'old_flavor', 'new_flavor',
    'disable_terminate'))

# What a rebuild itself changes of the record in cell0, by its claim.
_CLAIM_CHANGES = ('task_state', 'updated_at')

# The released function retries on a deadlock, which within a transaction of
# the caller would lose what that has done before.
_instance_destroy = safe_utils.get_wrapped_function(
    main_db_api.instance_destroy)


class ChangedMeanwhile(exception.InstanceInvalidState):
    msg_fmt = _("Instance %(instance_uuid)s was changed while its rebuild was "
                "prepared: try again.")


def unsaved(bdm):
    """Return a copy of a block device mapping that can be created anew."""
    copy = objects.BlockDeviceMapping(bdm._context)
    for field in objects.BlockDeviceMapping.fields:
        if field in bdm and field not in (
                'id', 'uuid', 'instance', 'created_at', 'updated_at',
                'deleted', 'deleted_at'):
            setattr(copy, field, getattr(bdm, field))
    return copy


def unsaved_bdms(instance, stored=None):
    """Return copies of the block device mappings of an instance.

    :param instance: the Instance
    :param stored: its BlockDeviceMappingList, loaded if it is not given
    :returns: a BlockDeviceMappingList that can be created anew
    """
    if stored is None:
        stored = objects.BlockDeviceMappingList.get_by_instance_uuid(
            instance._context, instance.uuid)
    # Devices get their names in this order; the database has none.
    return objects.BlockDeviceMappingList(objects=[
        unsaved(bdm) for bdm in sorted(stored, key=lambda bdm: bdm.id)])


def unsaved_instance(instance):
    """Return a copy of an instance, as a build request has it.

    :param instance: an Instance that is on no host
    :returns: an Instance that is being scheduled
    """
    new = objects.Instance(instance._context)
    for field in objects.Instance.fields:
        if field not in _FIELDS_NOT_COPIED:
            setattr(new, field, getattr(instance, field))
    new.vm_state = vm_states.BUILDING
    new.task_state = task_states.SCHEDULING
    new.power_state = power_state.NOSTATE
    new.progress = 0
    new.info_cache = objects.InstanceInfoCache(
        instance_uuid=new.uuid, network_info=network_model.NetworkInfo())
    new.security_groups = objects.SecurityGroupList()
    new.old_flavor = new.new_flavor = None
    return new


def is_deleted(context, instance_uuid):
    """Whether the owner of a server has deleted it in cell0.

    The record of one that was taken out of it is not there.

    :param context: a context that is targeted at cell0
    :param instance_uuid: the server
    """
    row = main_models.Instance
    with main_db_api.get_context_manager(context).reader.using(
            context) as session:
        return session.query(row.id).filter(
            row.uuid == instance_uuid, row.deleted != 0).first() is not None


def claim(instance):
    """Let exactly one of several requests have the server.

    :raises: InstanceInvalidState if another one has it, InstanceNotFound
    """
    if not _update_unclaimed(instance):
        now = objects.Instance.get_by_uuid(
            instance._context, instance.uuid, expected_attrs=[])
        if now.task_state is not None:
            raise in_progress(instance)
        raise ChangedMeanwhile(instance_uuid=instance.uuid)
    _notify_claim(instance)
    try:
        # Now that nobody else can rebuild it: what was checked must hold.
        check_unchanged(instance)
    except ChangedMeanwhile:
        drop_claim(instance)
        raise


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def _update_unclaimed(instance):
    # The row alone, as in check_unchanged(): each server is claimed.
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


def drop_claim(instance):
    try:
        claimed = objects.Instance.get_by_uuid(
            instance._context, instance.uuid)
        claimed.task_state = None
        claimed.save(expected_task_state=[task_states.REBUILDING])
    except (exception.InstanceNotFound, exception.UnexpectedTaskStateError):
        LOG.debug('The claim is gone already.', instance=instance)


def check_unchanged(instance):
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
    if _differs(instance, row, _CLAIM_CHANGES):
        raise ChangedMeanwhile(instance_uuid=instance.uuid)


def _check_devices_unchanged(session, instance, bdms):
    """Refuse block devices that were changed since they were read.

    Who changes one now waits for the end of the transaction.

    :raises: ChangedMeanwhile
    """
    table = main_models.BlockDeviceMapping.__table__
    rows = {row.id: row for row in session.query(table).filter(
        table.c.instance_uuid == instance.uuid,
        table.c.deleted == 0).with_for_update()}
    if rows.keys() != {bdm.id for bdm in bdms} or any(
            _differs(bdm, rows[bdm.id]) for bdm in bdms):
        raise ChangedMeanwhile(instance_uuid=instance.uuid)


def _differs(thing, row, apart=()):
    """Whether an object is other than its row."""
    for name, value in row._mapping.items():
        field = thing.fields.get(name)
        if field and name not in apart and getattr(
                thing, name) != field.coerce(thing, name, value):
            return True
    return False


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def destroy_unchanged(instance, claim=task_states.REBUILDING, bdms=None):
    """Delete a claimed record for good if all of it is in a build request.

    :param instance: the Instance that the build request was made of
    :param claim: the task_state that the record must have
    :param bdms: the BlockDeviceMappingList that the one of the build request
        was made of, not compared if it is not given
    :raises: ChangedMeanwhile, ConstraintNotMet if the claim was lost,
        InstanceNotFound
    """
    context = instance._context
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        # Who changes it now, waits, and finds that it is gone.
        session.query(main_models.Instance.id).filter_by(
            uuid=instance.uuid).with_for_update().all()
        check_unchanged(instance)
        if bdms is not None:
            _check_devices_unchanged(session, instance, bdms)
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
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        _delete_history(session, instance_uuid)
        _instance_destroy(
            context, instance_uuid, hard_delete=True,
            constraint=main_db_api.constraint(**{
                column: main_db_api.equal_any(value)
                for column, value in values.items()}))


def _delete_history(session, instance_uuid):
    """Delete the actions of a server, which the release does one by one."""
    action, event = main_models.InstanceAction, main_models.InstanceActionEvent
    actions = session.query(action).filter_by(instance_uuid=instance_uuid)
    # MySQL scans a table that it deletes from with a subquery.
    ids = [row.id for row in actions.with_entities(action.id)]
    session.query(event).filter(event.action_id.in_(ids)).delete(
        synchronize_session=False)
    actions.delete(synchronize_session=False)


def in_progress(instance):
    return exception.InstanceInvalidState(
        attr='task_state', instance_uuid=instance.uuid,
        state=task_states.REBUILDING, method='rebuild')
