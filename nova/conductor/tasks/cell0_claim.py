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

"""The claim on a record in cell0, by which a server is returned there.

Who has it has all of the server; whoever drops it tells of the server, which
can be rebuilt from then on.
"""

from oslo_log import log as logging
from oslo_utils import timeutils

from nova.compute import rebuild_in_cell0
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.conductor import cell0
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova.notifications import base as notifications
from nova import objects
from nova import rpc
from nova.scheduler import allocations

LOG = logging.getLogger(__name__)

#: The claim on a record in cell0 that is returned. A nova-api that comes back
#: to life can delete a record only while it has its own claim, REBUILDING.
CLAIM = task_states.REBUILD_SPAWNING


def set_task_state(cctxt, instance_uuid, task_state, *conditions, **states):
    """Set a task_state if the record is as it should be.

    :param cctxt: a context that is targeted at the cell of the record
    :param instance_uuid: the server
    :param task_state: what to set
    :param conditions: what must hold of its row
    :param states: what else to set, by the name of the column
    :returns: whether it was set, which one of several callers has done
    """
    row = main_models.Instance
    with main_db_api.get_context_manager(cctxt).writer.using(cctxt) as session:
        return bool(session.query(row).filter(
            row.uuid == instance_uuid, row.deleted == 0, *conditions).update(
                dict(states, task_state=task_state,
                     updated_at=timeutils.utcnow()),
                synchronize_session=False))


def is_unscheduled(instance):
    """Whether a record is as the conductor has made it: no host claimed it."""
    return (instance.host is None and
            instance.vm_state == vm_states.BUILDING and
            instance.task_state in (task_states.SCHEDULING, None, CLAIM))


def delete_allocations(context, report_client, instance_uuid):
    """Delete what a server has allocated, before release_claim().

    Once it waits, its owner or who makes room for it can come at once, and
    what it has on a host would be in its own way. A failure is logged only:
    recovery looks again, by the log of the rebuilds.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param instance_uuid: the server, which is mapped to cell0 and claimed
    :returns: whether nothing is left. What is left of a server that is not
        its caller's any more, recovery tells from held room.
    """
    def is_current():
        # Once another one has dropped the claim, room can be held for it.
        return cell0.is_mapped_to(
            context, instance_uuid, objects.CellMapping.CELL0_UUID
        ) and _is_claimed(context, instance_uuid)

    try:
        return allocations.delete(
            context, report_client, instance_uuid, is_current)
    except Exception:
        LOG.exception('What the rebuild has allocated will be deleted by '
                      'recovery, and room that was held by the next rebuild.',
                      instance_uuid=instance_uuid)
        return False


def _is_claimed(context, instance_uuid):
    """Whether the record of a server in cell0 has the CLAIM."""
    row = main_models.Instance
    with nova_context.target_cell(
            context, rebuild_in_cell0.cell0(context)) as cctxt:
        with main_db_api.get_context_manager(cctxt).reader.using(
                cctxt) as session:
            return session.query(row.id).filter_by(
                uuid=instance_uuid, task_state=CLAIM,
                deleted=0).first() is not None


def release_claim(instance, exc):
    """Drop the claim on a record in cell0 that has all of the server.

    :param instance: the Instance in cell0, which the caller has claimed
    :param exc: why the server is there again, None if it never left
    :returns: whether that was done
    """
    cctxt = instance._context
    if not set_task_state(cctxt, instance.uuid, None,
                          main_models.Instance.task_state == CLAIM):
        return False
    instance.task_state = None
    instance.obj_reset_changes(['task_state'])
    if exc is None:
        LOG.warning('The rebuild of the server was interrupted before it left '
                    'cell0.', instance=instance)
    else:
        LOG.log(logging.INFO if instance.vm_state == vm_states.PENDING and
                cell0.found_no_host(exc) else logging.WARNING,
                'The server is back in cell0: %s', exc, instance=instance)
    _notify(instance, exc)
    return True


def _notify(instance, exc):
    """Send what is sent of a server that is put into cell0."""
    cctxt = instance._context
    if exc is None:
        notifications.send_update_with_states(
            cctxt, instance, instance.vm_state, instance.vm_state,
            task_states.REBUILDING, None, service='conductor')
        return
    notifications.send_update_with_states(
        cctxt, instance, vm_states.BUILDING, instance.vm_state,
        task_states.SCHEDULING, None, service='conductor')
    spec = objects.RequestSpec.get_by_instance_uuid(
        cctxt, instance.uuid).to_legacy_request_spec_dict()
    rpc.get_notifier('compute_task').error(
        cctxt, 'compute_task.build_instances', {
            'request_spec': spec,
            'instance_properties': spec.get('instance_properties', {}),
            'instance_id': instance.uuid, 'state': instance.vm_state,
            'method': 'build_instances', 'reason': exc})
    try:
        # The notification has the place where it was raised.
        raise exc
    except type(exc):
        compute_utils.notify_about_compute_task_error(
            cctxt, 'build_instances', instance.uuid, spec, instance.vm_state,
            exc)
