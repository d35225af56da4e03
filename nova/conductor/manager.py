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

import functools

from oslo_db import exception as db_exc
from oslo_log import log as logging
import oslo_messaging as messaging
from oslo_service import periodic_task
from oslo_utils import excutils

from nova.compute import volume_reimage
from nova.conductor import cell0
from nova.conductor import cell0_rebuild
from nova.conductor import failed_builds
from nova.conductor import held_destination
from nova.conductor import reschedule
from nova.conductor.tasks import recover_rebuilds
from nova.conductor.tasks import return_to_cell0
from nova.objects import rebuild_context
from nova.objects import rebuilt_instance
import nova_pending

LOG = logging.getLogger(__name__)

released = nova_pending.released(__name__)


@nova_pending.over(released.ComputeTaskManager)
class ComputeTaskManager:

    target = messaging.Target(namespace='compute_task', version='1.27')

    def _bury_in_cell0(self, context, request_spec, exc,
                       build_requests=None, instances=None,
                       block_device_mapping=None, tags=None):
        rebuild = rebuild_context.rebuild()
        if rebuild is not None:
            return return_to_cell0.from_rebuild(
                rebuild, exc, self._create_instance_action_for_cell0)
        with cell0.of(build_requests):
            released.ComputeTaskManager._bury_in_cell0(
                self, context, request_spec, exc,
                build_requests=build_requests, instances=instances,
                block_device_mapping=block_device_mapping, tags=tags)

    def _set_vm_state_and_notify(self, context, instance_uuid, method,
                                 updates, ex, request_spec):
        if reschedule.give_up(context, instance_uuid, ex):
            return
        if cell0.is_target(context):
            updates = dict(updates, vm_state=cell0.vm_state_after(
                context, instance_uuid, ex))
            cell0.keep_request(context, instance_uuid, request_spec)
            cell0.destroy_build_request(instance_uuid)
        try:
            released.ComputeTaskManager._set_vm_state_and_notify(
                self, context, instance_uuid, method, updates, ex,
                request_spec)
        except db_exc.DBReferenceError:
            # The fault comes after the state. Other servers of the request
            # are still to be put into cell0.
            if not cell0.is_target(context):
                raise
            LOG.info('The server was taken out of cell0 as soon as it was '
                     'shown there.', instance_uuid=instance_uuid)

    def _schedule_instances(self, context, request_spec, instance_uuids=None,
                            return_alternates=False):
        schedule = functools.partial(
            released.ComputeTaskManager._schedule_instances, self, context,
            request_spec, instance_uuids=instance_uuids,
            return_alternates=return_alternates)
        rebuild = rebuild_context.rebuild()
        if rebuild is None:
            return schedule()
        host_lists = held_destination.schedule(
            context, self.report_client, self.query_client, request_spec,
            schedule)
        rebuild.select(host_lists[0][0])
        return host_lists

    def schedule_and_build_instances(self, context, build_requests,
                                     request_specs, image,
                                     admin_password, injected_files,
                                     requested_networks, block_device_mapping,
                                     tags=None):
        if (not rebuild_context.is_rebuild() and
                cell0_rebuild.is_rebuild(context, build_requests)):
            # From an API that takes this for an older conductor.
            return self.rebuild_instance_in_cell0(
                context, build_requests[0], request_specs[0], image,
                admin_password, injected_files, requested_networks,
                block_device_mapping, tags)
        for request_spec in request_specs:
            # Where keep_request() finds them. No field: they go nowhere else.
            request_spec.injected_files = injected_files or ()
        released.ComputeTaskManager.schedule_and_build_instances(
            self, context, build_requests, request_specs, image,
            admin_password, injected_files, requested_networks,
            block_device_mapping, tags=tags)

    def _create_block_device_mapping(self, cell, flavor, instance_uuid,
                                     block_device_mapping):
        rebuild = rebuild_context.rebuild()
        if rebuild is not None:
            rebuild.check_record(cell.uuid)
        return released.ComputeTaskManager._create_block_device_mapping(
            self, cell, flavor, instance_uuid, block_device_mapping)

    @staticmethod
    def _map_instance_to_cell(context, instance, cell):
        # The mapping of a rebuild changes when its build request goes.
        if not rebuild_context.is_rebuild():
            return released.ComputeTaskManager._map_instance_to_cell(
                context, instance, cell)

    def _delete_build_request(self, context, build_request, instance, cell,
                              instance_bdms, instance_tags):
        if rebuild_context.is_rebuild():
            if cell0.map_to_cell(context, build_request, instance, cell):
                return True
            if cell0.is_mapped(context, instance.uuid):
                cell0.destroy_own_record(context, instance, cell)
                return False
        return released.ComputeTaskManager._delete_build_request(
            self, context, build_request, instance, cell, instance_bdms,
            instance_tags)

    def _cleanup_build_artifacts(self, context, exc, instances,
                                 build_requests, request_specs,
                                 block_device_mappings, tags,
                                 cell_mapping_cache):
        rebuild = rebuild_context.rebuild()
        if rebuild is None:
            return released.ComputeTaskManager._cleanup_build_artifacts(
                self, context, exc, instances, build_requests, request_specs,
                block_device_mappings, tags, cell_mapping_cache)
        # The release leaves the server in ERROR in a cell, where it cannot be
        # rebuilt, and destroys its request spec.
        if rebuild.build_request.cell is not None:
            rebuild.unscheduled = exc
            return
        for instance in filter(None, instances):
            cell0.destroy_own_record(
                context, instance, cell_mapping_cache[instance.uuid])
        self._bury_in_cell0(
            context, request_specs[0], exc, build_requests=build_requests,
            block_device_mapping=block_device_mappings, tags=tags)

    def build_instances(self, context, instances, image, filter_properties,
                        admin_password, injected_files, requested_networks,
                        security_groups, block_device_mapping=None,
                        legacy_bdm=True, request_spec=None, host_lists=None):
        # What follows is done to the server of this ID, whoever builds it.
        if rebuilt_instance.is_elsewhere(instances[0]):
            LOG.warning('The server has returned to cell0 since another host '
                        'was to be tried; none is.', instance=instances[0])
            return
        # The release takes the reason out.
        reason = filter_properties.get('retry', {}).get('exc_reason')
        with reschedule.trying_again(
                context, self.report_client, instances[0], reason):
            released.ComputeTaskManager.build_instances(
                self, context, instances, image, filter_properties,
                admin_password, injected_files, requested_networks,
                security_groups, block_device_mapping=block_device_mapping,
                legacy_bdm=legacy_bdm, request_spec=request_spec,
                host_lists=reschedule.find_more_hosts(
                    self, context, instances[0], filter_properties,
                    request_spec, host_lists))

    def _cleanup_when_reschedule_fails(
            self, context, instance, exception, legacy_request_spec,
            requested_networks):
        # The scheduler or Placement can have kept this conductor waiting.
        if rebuilt_instance.is_elsewhere(instance):
            LOG.warning('The server has returned to cell0 since another host '
                        'was looked for; nothing of it is deleted.',
                        instance=instance)
            return
        released.ComputeTaskManager._cleanup_when_reschedule_fails(
            self, context, instance, exception, legacy_request_spec,
            requested_networks)
        failed_builds.return_given_up(instance)

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
                    volume_reimage.restore_unasked(
                        context, instance, orig_sys_metadata)

    @nova_pending.new
    def rebuild_instance_in_cell0(self, context, build_request, request_spec,
                                  image, admin_password, injected_files,
                                  requested_networks, block_device_mapping,
                                  tags):
        """Build a server that the API has taken out of cell0.

        If that fails the server is put back into cell0, with all that the
        next try needs. Nothing is done if the build request is not the one
        that stands for the server any more, or somebody has taken it.
        """
        cell0_rebuild.build(
            self, context, build_request, request_spec, image, admin_password,
            injected_files, requested_networks, block_device_mapping, tags)


@nova_pending.over(released.ConductorManager)
class ConductorManager:

    def __init__(self, *args, **kwargs):
        released.ConductorManager.__init__(self, *args, **kwargs)
        self.add_periodic_task(
            ConductorManager._recover_rebuilds_in_cell0)
        failed_builds.start(self.compute_task_mgr.report_client)

    @nova_pending.new
    @periodic_task.periodic_task(spacing=60)
    def _recover_rebuilds_in_cell0(self, context):
        recover_rebuilds.run_in_turn(
            context, self.compute_task_mgr.report_client,
            self._periodic_spacing['_recover_rebuilds_in_cell0'])
