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


"""Returns a server to cell0 that no host builds.

It is in a cell, or in none and has a build request. Whoever returns it has
taken it: the build request by its lease, the record in a cell by its
task_state.
"""

import sys

from oslo_log import log as logging
import oslo_messaging as messaging
from oslo_utils import excutils
from oslo_utils import timeutils
from oslo_utils import uuidutils

from nova.compute import action_history
from nova.compute import asked_devices
from nova.compute import cell0_record
from nova.compute import rebuild_in_cell0
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.conductor import cell0
from nova.conductor import cleanup
from nova.conductor.tasks import cell0_claim
from nova.conductor.tasks import host_builds
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova import objects
from nova.objects import build_request_lease
from nova.objects import persisted_request
from nova.objects import rebuilt_instance
from nova import utils

LOG = logging.getLogger(__name__)


def from_build_request(context, report_client, build_request, exc):
    """Return a server to cell0 that only a build request stands for.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param build_request: the BuildRequest, which the caller has taken
    :param exc: why the server was not built
    :returns: False if its owner has deleted it, or somebody has taken it
    """
    instance = _create_and_map(context, build_request, exc)
    if instance is None:
        return False
    cell0_claim.delete_allocations(context, report_client, instance.uuid)
    return cell0_claim.release_claim(instance, exc)


def from_rebuild(rebuild, exc, record_failure):
    """Return a server to cell0 that this conductor was to build.

    :param rebuild: the nova.conductor.cell0_rebuild.Rebuild
    :param exc: why the server was not built
    :param record_failure: what adds the failed event to its actions, called
        with a context that is targeted at cell0, the Instance and exc
    """
    # A scheduler can answer when nobody waits any more.
    rebuild.is_open = isinstance(exc, messaging.MessagingException)
    instance = _create_and_map(
        rebuild.context, rebuild.build_request, exc, record_failure)
    if instance is None:
        return
    # The release leaves a host allocated that was found.
    if not cell0_claim.delete_allocations(
            rebuild.context, rebuild.report_client, instance.uuid):
        rebuild.is_open = True
    cell0_claim.release_claim(instance, exc)


def _create_and_map(context, build_request, exc, record_failure=None):
    """Put a record into cell0, claimed, in place of a build request.

    :returns: the Instance; None if its owner has deleted the server, or
        somebody has taken it
    """
    mapping = rebuild_in_cell0.cell0(context)
    with nova_context.target_cell(context, mapping) as cctxt:
        instance = _create_record(cctxt, build_request, exc)
        if record_failure is not None:
            record_failure(cctxt, instance, exc)
        if cell0.map_to_cell(context, build_request, instance, mapping):
            return instance
        cell0.destroy_own_record(context, instance, mapping)


def from_cell(context, report_client, cell, instance_uuid, exc,
              stale_before=None, given_up=False):
    """Return a server to cell0 that no host of its cell builds.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param cell: the CellMapping of the cell that the server is mapped to
    :param instance_uuid: the server
    :param exc: why it was not built
    :param stale_before: when another caller must have claimed it for it to be
        taken from that one, and the record be unchanged since, a datetime. By
        default nobody may have.
    :param given_up: whether a host has given the build up. By default no host
        was asked to build it, or it is to be tried on another one.
    :returns: False if a host has it or has deleted a volume of it, its owner
        has deleted or changed it, or somebody else returns it
    """
    row = main_models.Instance
    building = row.vm_state == vm_states.BUILDING
    free = building & (row.task_state == (
        rebuilt_instance.RETURNING if given_up else task_states.SCHEDULING))
    if given_up:
        free |= ((row.vm_state == vm_states.ERROR) &
                 row.task_state.is_(None) & row.launched_at.is_(None))
    if stale_before is not None:
        if not given_up:
            # A host that has died before its claim left no task_state.
            free |= building & row.task_state.is_(None)
            # A conductor that asks another host after the first has failed
            # saves the record before it does.
            free &= row.updated_at.is_(None) | (row.updated_at < stale_before)
        free |= building & (row.task_state == cell0_claim.CLAIM) & (
            row.updated_at < stale_before)
    with nova_context.target_cell(context, cell) as cctxt:
        # A host that begins to build the server sets its task_state. Whoever
        # dies with the claim has left a server that is BUILDING.
        if not cell0_claim.set_task_state(
                cctxt, instance_uuid, cell0_claim.CLAIM, row.host.is_(None),
                free, vm_state=vm_states.BUILDING):
            return False
        instance = objects.Instance.get_by_uuid(
            cctxt, instance_uuid, expected_attrs=[
                'info_cache', 'security_groups', 'system_metadata'])
    returned = False
    try:
        returned = _return_claimed(
            context, report_client, cell, instance, exc, given_up)
    finally:
        if not returned:
            host_builds.release_if_deleted(instance._context, instance)
    return returned


def _return_claimed(context, report_client, cell, instance, exc, given_up):
    """Do what from_cell() does with a record that the caller has claimed."""
    cctxt = instance._context
    actions = action_history.pack(cctxt, instance.uuid)
    bdms = None
    if given_up or host_builds.first_event(cctxt, instance.uuid):
        try:
            bdms = _restore_volumes(cctxt, instance, given_up)
        except host_builds.VolumeGone:
            return False
    secrets = host_builds.secrets_of(instance, bdms or ())
    try:
        build_request = _ask_again(context, cell, instance, bdms, actions)
    except (exception.InstanceMappingNotFound, exception.InstanceNotFound):
        return False
    try:
        cell0_record.destroy_unchanged(instance, cell0_claim.CLAIM)
    except (exception.ConstraintNotMet, exception.InstanceNotFound,
            cell0_record.ChangedMeanwhile):
        cell0.map_to_cell(context, build_request, instance, cell)
        return False
    host_builds.delete_secrets(cctxt, instance, secrets)
    compute_utils.delete_arqs_if_needed(context, instance)
    return from_build_request(context, report_client, build_request, exc)


def _restore_volumes(cctxt, instance, given_up):
    """Do so, or drop the claim on the record.

    :returns: the BlockDeviceMappingList that the server is to have
    :raises: VolumeGone if the server is in ERROR for good
    """
    try:
        return host_builds.restore_volumes(cctxt, instance)
    except host_builds.VolumeGone as exc:
        with excutils.save_and_reraise_exception():
            LOG.warning('The server cannot return to cell0: %s', exc,
                        instance=instance)
            host_builds.set_error(instance)
    except Exception:
        with excutils.save_and_reraise_exception():
            cell0_claim.set_task_state(
                cctxt, instance.uuid, rebuilt_instance.RETURNING if given_up
                else task_states.SCHEDULING,
                main_models.Instance.task_state == cell0_claim.CLAIM)


def _ask_again(context, cell, instance, bdms=None, actions=None):
    """Replace the mapping of a server to a cell by a build request.

    :param instance: the Instance in that cell
    :param bdms: the BlockDeviceMappingList that the server is to have, None
        for the one that it has
    :param actions: the actions of the server, packed
    :returns: the BuildRequest, which the caller has
    """
    unsaved = cell0_record.unsaved_instance(instance)
    unsaved.system_metadata = rebuilt_instance.without_traces(
        unsaved.system_metadata)
    spec = objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    # In a cell it is that of the host.
    unsaved.availability_zone = spec.availability_zone
    bdms = bdms or cell0_record.unsaved_bdms(instance)
    if spec.rebuild_data is not None:
        asked_devices.restore(
            spec.rebuild_data.get('devices'), unsaved, bdms)
    if actions is not None:
        spec.rebuild_data = dict(spec.rebuild_data, actions=actions)
    return rebuild_in_cell0.unmap_and_create_build_request(
        context, cell, unsaved, bdms, instance.tags, instance.created_at,
        timeutils.utcnow(), spec, owner=uuidutils.generate_uuid())


def _create_record(cctxt, build_request, exc):
    """Create the record in cell0, claimed, all of it or nothing.

    What is there already counts for nothing while there is the build request:
    a nova-api that died has not deleted it.
    """
    instance = build_request.get_new_instance(cctxt)
    instance.vm_state = cell0.vm_state_after(cctxt, instance.uuid, exc)
    instance.task_state = cell0_claim.CLAIM
    left = cleanup.row_of(cctxt, instance.uuid)
    # Another database: its answer must not hold up the transaction here.
    actions = persisted_request.load(cctxt, instance.uuid).get('actions', [])
    if not build_request.renew_lease():
        raise build_request_lease.LeaseLost(instance_uuid=instance.uuid)
    manager = main_db_api.get_context_manager(cctxt)
    with manager.writer.using(cctxt) as session:
        history = []
        if left is not None:
            history = action_history.pack(cctxt, instance.uuid)
            with utils.temporary_mutation(cctxt, read_deleted='yes'):
                cell0_record.destroy_record(cctxt, instance.uuid, id=left)
        instance.create()
        for bdm in build_request.block_device_mappings:
            bdm = cell0_record.unsaved(bdm)
            bdm._context = cctxt
            bdm.instance_uuid = instance.uuid
            bdm.create()
        if build_request.tags:
            objects.TagList.create(
                cctxt, instance.uuid, [tag.tag for tag in build_request.tags])
        compute_utils.add_instance_fault_from_exc(
            cctxt, instance, exc, sys.exc_info())
        action_history.unpack_in_transaction(
            cctxt, instance.uuid, history + actions)
        # The age of the claim, which the server does not share.
        session.query(main_models.Instance).filter_by(
            uuid=instance.uuid).update({'updated_at': timeutils.utcnow()})
    return instance
