# SPDX-License-Identifier: Apache-2.0

import copy
import functools

from oslo_log import log as logging
import oslo_messaging as messaging
from oslo_service import periodic_task
from oslo_utils import excutils

from nova.compute import action_history
from nova.compute import rebuild_rollback
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.conductor import cell0
from nova.conductor import held_destination
from nova.conductor.tasks import rebuild_in_cell0
from nova.conductor.tasks import recover_builds
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler import lost_claims
import nova_pending

LOG = logging.getLogger(__name__)

released = nova_pending.released(__name__)


@nova_pending.over(released.ComputeTaskManager)
class ComputeTaskManager:

    target = messaging.Target(namespace='compute_task', version='1.27')

    def _set_vm_state_and_notify(self, context, instance_uuid, method,
                                 updates, ex, request_spec):
        if cell0.is_target(context):
            updates = dict(updates, vm_state=cell0.vm_state_after(ex))
        released.ComputeTaskManager._set_vm_state_and_notify(
            self, context, instance_uuid, method, updates, ex, request_spec)

    def schedule_and_build_instances(self, context, build_requests,
                                     request_specs, image,
                                     admin_password, injected_files,
                                     requested_networks, block_device_mapping,
                                     tags=None):
        if rebuild_in_cell0.is_rebuild(context, build_requests):
            # nova-api has sent the message of a create, because it takes this
            # conductor for an older one.
            return self.rebuild_instance_in_cell0(
                context, build_requests[0], request_specs[0], image,
                admin_password, injected_files, requested_networks,
                block_device_mapping, tags)
        context.builds = build_requests
        try:
            released.ComputeTaskManager.schedule_and_build_instances(
                self, context, build_requests, request_specs, image,
                admin_password, injected_files, requested_networks,
                block_device_mapping, tags=tags)
        except objects.build_request.LeaseLost:
            for build_request in build_requests:
                lost_claims.delete(
                    context, self.report_client, build_request.instance_uuid)
            raise
        finally:
            context.builds = ()

    @nova_pending.replaces('175f224de5f2e02a')
    def _bury_in_cell0(self, context, request_spec, exc,
                       build_requests=None, instances=None,
                       block_device_mapping=None,
                       tags=None):
        """Ensure all provided build_requests and instances end up in cell0.

        Cell0 is the fake cell we schedule dead instances to when we can't
        schedule them somewhere real. Requests that don't yet have instances
        will get a new instance, created in cell0. Instances that have not yet
        been created will be created in cell0. All build requests are destroyed
        after we're done, in the transaction that maps the instance to cell0.
        Failure to delete a build request will trigger the instance deletion,
        just like the happy path in schedule_and_build_instances() below.
        """
        try:
            mapping = objects.CellMapping.get_by_uuid(
                context, objects.CellMapping.CELL0_UUID)
        except exception.CellMappingNotFound:
            # Not yet setup for cellsv2. Instances will need to be written
            # to the configured database. This will become a deployment
            # error in Ocata.
            LOG.error('No cell mapping found for cell0 while '
                      'trying to record scheduling failure. '
                      'Setup is incomplete.')
            return

        build_requests = build_requests or []
        instances = instances or []
        instances_by_uuid = {inst.uuid: inst for inst in instances}
        for build_request in build_requests:
            if build_request.instance_uuid not in instances_by_uuid:
                # This is an instance object with no matching db entry.
                instance = build_request.get_new_instance(context)
                instances_by_uuid[instance.uuid] = instance

        updates = {'vm_state': vm_states.ERROR, 'task_state': None}
        lost = set()
        for instance in instances_by_uuid.values():

            inst_mapping = None
            try:
                # We don't need the cell0-targeted context here because the
                # instance mapping is in the API DB.
                inst_mapping = \
                    objects.InstanceMapping.get_by_instance_uuid(
                        context, instance.uuid)
            except exception.InstanceMappingNotFound:
                # The API created the instance mapping record so it should
                # definitely be here. Log an error but continue to create the
                # instance in the cell0 database.
                LOG.error('While burying instance in cell0, no instance '
                          'mapping was found.', instance=instance)

            if self._is_lost(context, instance.uuid):
                lost.add(instance.uuid)
                continue

            # Perform a final sanity check that the instance is not mapped
            # to some other cell already because of maybe some crazy
            # clustered message queue weirdness.
            if inst_mapping and inst_mapping.cell_mapping is not None:
                LOG.error('When attempting to bury instance in cell0, the '
                          'instance is already mapped to cell %s. Ignoring '
                          'bury in cell0 attempt.',
                          inst_mapping.cell_mapping.identity,
                          instance=instance)
                continue

            with released.obj_target_cell(instance, mapping) as cctxt:
                instance.create()

                try:
                    with return_to_cell0.locked(
                            cctxt, instance.uuid, instance.id):
                        # Record an instance action with a failed event.
                        self._create_instance_action_for_cell0(
                            cctxt, instance, exc)

                        # NOTE(mnaser): In order to properly clean-up volumes
                        #               after being buried in cell0, we need to
                        #               store BDMs.
                        if block_device_mapping:
                            self._create_devices(
                                cctxt, instance, block_device_mapping)

                        self._create_tags(cctxt, instance.uuid, tags)
                except objects.build_request.LeaseLost:
                    lost.add(instance.uuid)
                    continue

                # Use the context targeted to cell0 here since the instance is
                # now in cell0.
                self._set_vm_state_and_notify(
                    cctxt, instance.uuid, 'build_instances', updates,
                    exc, request_spec)

        for build_request in build_requests:
            inst = instances_by_uuid[build_request.instance_uuid]
            if inst.uuid in lost:
                continue
            if 'id' in inst:
                build_request.record_cell = mapping
            try:
                build_request.destroy()
            except exception.BuildRequestNotFound:
                # Instance was deleted before we finished scheduling
                with released.obj_target_cell(inst, mapping):
                    inst.destroy()
            except objects.build_request.LeaseLost:
                return_to_cell0.purge_lost(context, mapping, inst)
                lost.add(inst.uuid)

        # A scheduler that did not answer can have claimed room.
        for build_request in context.builds:
            if build_request.instance_uuid in lost or (
                    build_request in build_requests and
                    not cell0.found_no_host(exc)):
                lost_claims.delete(
                    context, self.report_client, build_request.instance_uuid)

    @nova_pending.new
    @staticmethod
    def _is_lost(context, instance_uuid):
        """Whether recovery has taken a server whose create took long."""
        if instance_uuid not in [build_request.instance_uuid
                                 for build_request in context.builds]:
            return False
        try:
            objects.BuildRequest.get_by_instance_uuid(context, instance_uuid)
        except exception.BuildRequestNotFound:
            return False
        except objects.build_request.LeaseLost:
            return True
        return False

    def _create_block_device_mapping(self, cell, flavor, instance_uuid,
                                     block_device_mapping):
        if cell is None or not block_device_mapping:
            return released.ComputeTaskManager._create_block_device_mapping(
                self, cell, flavor, instance_uuid, block_device_mapping)
        bdms = copy.deepcopy(block_device_mapping)
        context = bdms[0]._context
        with nova_context.target_cell(context, cell) as cctxt:
            try:
                # A process that takes the server over waits for this lock
                # before that process replaces the record.
                with return_to_cell0.locked(cctxt, instance_uuid):
                    if self._is_lost(context, instance_uuid):
                        raise objects.build_request.LeaseLost(
                            instance_uuid=instance_uuid)
                    self._complete_actions(cctxt, instance_uuid)
                    for bdm in bdms:
                        bdm._context = cctxt
                    return released.ComputeTaskManager.\
                        _create_block_device_mapping(
                            self, None, flavor, instance_uuid, bdms)
            except objects.build_request.LeaseLost:
                # The conductor has just recorded the build.
                action_history.delete_create(cctxt, instance_uuid)
                raise

    def _create_tags(self, context, instance_uuid, tags):
        if not tags:
            return tags
        with return_to_cell0.locked(context, instance_uuid):
            # A server that is lost is given up as its build request is
            # deleted. Tags that have not come over the bus have no context.
            if tags._context and self._is_lost(tags._context, instance_uuid):
                return tags
            return released.ComputeTaskManager._create_tags(
                self, context, instance_uuid, tags)

    @nova_pending.new
    def _create_devices(self, cctxt, instance, block_device_mapping):
        """Create the devices of a server in the transaction of a context.

        The other servers of the request have the same mappings, and the
        context of the request in them.
        """
        bdms = copy.deepcopy(block_device_mapping)
        for bdm in bdms:
            bdm._context = cctxt
        self._create_block_device_mapping(
            None, instance.flavor, instance.uuid, bdms)

    @nova_pending.new
    def _complete_actions(self, cctxt, instance_uuid):
        """Do nothing: the create is the first action of the server."""

    @nova_pending.replaces('f1461f12f9d3f78a')
    def _cleanup_build_artifacts(self, context, exc, instances, build_requests,
                                 request_specs, block_device_mappings, tags,
                                 cell_mapping_cache):
        for (instance, build_request, request_spec) in zip(
                instances, build_requests, request_specs):
            # Skip placeholders that were buried in cell0 or had their
            # build requests deleted by the user before instance create.
            if instance is None:
                continue
            cell = cell_mapping_cache[instance.uuid]
            # _delete_build_request() is called when both are written.
            is_complete = build_request.record_cell is not None
            try:
                # An administrator can have let the owner rebuild the server.
                with nova_context.target_cell(context, cell) as cctxt, (
                        return_to_cell0.locked(
                            cctxt, instance.uuid, instance.id)):
                    # In order to properly clean-up volumes when deleting a
                    # server in ERROR status with no host, we need to store
                    # BDMs in the same cell.
                    if block_device_mappings and not is_complete:
                        self._create_devices(
                            cctxt, instance, block_device_mappings)

                    # Like BDMs, the server tags provided by the user when
                    # creating the server should be persisted in the same cell
                    # so they can be shown from the API.
                    if tags and not is_complete:
                        self._create_tags(cctxt, instance.uuid, tags)

                return_to_cell0.leave_in_error(
                    context, cell, instance.uuid, instance.id, exc,
                    instance.task_state, {'task_state': None}, request_spec,
                    instance.vm_state)

                # The server is mapped after the record is complete. The
                # request spec stays: a rebuild builds the server by its spec.
                build_request.record_cell = cell
                build_request.destroy()
            except (exception.BuildRequestNotFound,
                    objects.build_request.LeaseLost):
                return_to_cell0.purge_lost(context, cell, instance)

    @nova_pending.new
    @staticmethod
    def _was_rebuilt(context, instance):
        """Whether a rebuild has replaced the record of a rescheduled build."""
        if compute_utils.is_replaced(
                context, instance.uuid, instance.id, gone=True):
            LOG.info('The server was rebuilt meanwhile.', instance=instance)
            return True
        return False

    def build_instances(self, context, instances, *args, **kwargs):
        # A host asks for the next host, for one server. If the message of the
        # host comes late, the claim would move the allocations of the next
        # build to that host.
        if self._was_rebuilt(context, instances[0]):
            return
        released.ComputeTaskManager.build_instances(
            self, context, instances, *args, **kwargs)

    @nova_pending.replaces('226adf693922e712')
    def _cleanup_when_reschedule_fails(
            self, context, instance, exception, legacy_request_spec,
            requested_networks):
        """Set the instance state and clean up.

        It is only used in case build_instance fails while rescheduling the
        instance
        """

        if self._was_rebuilt(context, instance):
            return

        try:
            self._cleanup_allocated_networks(
                context, instance, requested_networks)

            arq_uuids = None
            # arqs have not bound to port/instance yet
            if requested_networks:
                arq_uuids = [req.arq_uuid
                    for req in requested_networks if req.arq_uuid]
            compute_utils.delete_arqs_if_needed(context, instance, arq_uuids)
        finally:
            # The state is set last: from then on the server can be rebuilt,
            # and a clean-up would hit the networks of the next build.
            updates = {'vm_state': vm_states.ERROR,
                       'task_state': None}
            self._set_vm_state_and_notify(
                context, instance.uuid, 'build_instances', updates, exception,
                legacy_request_spec)

    @staticmethod
    @nova_pending.replaces('9d0850d1ea5d880c')
    def _map_instance_to_cell(context, instance, cell):
        """Do nothing: _delete_build_request() maps the server.

        If recovery has returned the server meanwhile, a rebuild may have built
        the server. So the server is mapped in the transaction that deletes the
        build request.
        """

    def _delete_build_request(self, context, build_request, instance, cell,
                              instance_bdms, instance_tags):
        build_request.record_cell = cell
        try:
            return released.ComputeTaskManager._delete_build_request(
                self, context, build_request, instance, cell, instance_bdms,
                instance_tags)
        except objects.build_request.LeaseLost:
            return_to_cell0.purge_lost(context, cell, instance)
            lost_claims.delete(context, self.report_client, instance.uuid)
            return False

    def rebuild_instance(self, context, instance, orig_image_ref, image_ref,
                         injected_files, new_pass, orig_sys_metadata,
                         bdms, recreate, on_shared_storage,
                         preserve_ephemeral=False, host=None,
                         request_spec=None, reimage_boot_volume=False,
                         target_state=None):
        on_volume = reimage_boot_volume and not instance.image_ref
        try:
            released.ComputeTaskManager.rebuild_instance(
                self, context, instance, orig_image_ref, image_ref,
                injected_files, new_pass, orig_sys_metadata, bdms, recreate,
                on_shared_storage, preserve_ephemeral=preserve_ephemeral,
                host=host, request_spec=request_spec,
                reimage_boot_volume=reimage_boot_volume,
                target_state=target_state)
        except Exception:
            with excutils.save_and_reraise_exception():
                if on_volume:
                    rebuild_rollback.restore_unasked(
                        context, instance, orig_sys_metadata)

    @nova_pending.new
    def rebuild_instance_in_cell0(self, context, build_request, request_spec,
                                  image, admin_password, injected_files,
                                  requested_networks, block_device_mapping,
                                  tags):
        """Build a server that the API has taken out of its cell.

        If no host is asked to build the server, it is put into cell0, with all
        that the next try needs. Nothing is done if the server has another
        build request by now, or another process has taken this one.
        """
        task = rebuild_in_cell0.RebuildInCell0Task(
            context, build_request,
            functools.partial(_RebuildTaskManager, self), [request_spec],
            image, admin_password, injected_files, requested_networks,
            block_device_mapping, tags)
        try:
            task.execute()
        except (rebuild_in_cell0.NotBuilt, objects.build_request.LeaseLost):
            LOG.debug('No host was asked to build the server.',
                      instance_uuid=build_request.instance_uuid)


class _RebuildTaskManager(ComputeTaskManager):
    """Builds one server that was taken out of its cell.

    What differs from the build of a create is in the methods that
    schedule_and_build_instances() calls.
    """

    def __init__(self, manager, task):
        """:param manager: the ComputeTaskManager, whose clients are used

        :param task: the RebuildInCell0Task
        """
        # The constructor would make new clients of all services.
        vars(self).update(vars(manager))
        self.task = task

    def _schedule_instances(self, context, request_spec,
                            instance_uuids=None, return_alternates=False):
        host_lists = held_destination.schedule(
            context, self.report_client, self.query_client, request_spec,
            self.task.build_request, functools.partial(
                super()._schedule_instances, context, request_spec,
                instance_uuids=instance_uuids,
                return_alternates=return_alternates))
        self.task.select(host_lists[0][0])
        return host_lists

    def _bury_in_cell0(self, context, request_spec, exc,
                       build_requests=None, instances=None,
                       block_device_mapping=None, tags=None):
        raise rebuild_in_cell0.NotBuilt(exc) from exc

    def _cleanup_build_artifacts(self, context, exc, instances,
                                 build_requests, request_specs,
                                 block_device_mappings, tags,
                                 cell_mapping_cache):
        """Do nothing: the rollback of the task cleans up after the build."""

    def _complete_actions(self, cctxt, instance_uuid):
        # The conductor has just recorded the rebuild as if it was a create.
        action_history.unpack(
            cctxt, instance_uuid, self.task.build_request.before['actions'],
            cctxt.request_id)

    def _create_block_device_mapping(self, *args):
        self.bdms = super()._create_block_device_mapping(*args)
        return self.bdms

    def _delete_build_request(self, context, build_request, instance, cell,
                              instance_bdms, instance_tags):
        self.task.convert_to_mapping(instance, cell)
        return True

    def _create_and_bind_arq_for_instance(
            self, context, instance, hostname, request_spec,
            requested_networks=None):
        build_request = self.task.build_request
        if build_request.before['reserve']:
            with nova_context.target_cell(
                    context, build_request.cell) as cctxt:
                for bdm in self.bdms:
                    with bdm.obj_alternate_context(cctxt):
                        self._validate_existing_attachment_ids(
                            cctxt, instance, [bdm])
        return super()._create_and_bind_arq_for_instance(
            context, instance, hostname, request_spec, requested_networks)


@nova_pending.over(released.ConductorManager)
class ConductorManager:

    @nova_pending.new
    @periodic_task.periodic_task(spacing=60)
    def _recover_builds(self, context):
        recover_builds.run_in_turn(
            context, self.compute_task_mgr.report_client,
            self._periodic_spacing['_recover_builds'])
