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

from nova.compute import reimage_record
from nova.compute import vm_states
from nova.conductor import burial
from nova.conductor import cleaning
from nova.conductor import recovery
from nova.conductor import volume_reimage
import nova.conf
from nova import objects
from nova.objects import rebuild_scope
import nova_pending

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# What was left while no conductor ran is found by the first run.
_LOOK_BACK_SECONDS = 24 * 60 * 60

released = nova_pending.released(__name__)


@nova_pending.over(released.ComputeTaskManager)
class ComputeTaskManager:

    target = messaging.Target(namespace='compute_task', version='1.27')

    def __init__(self):
        # Options are parsed when they are read. A value that is no boolean
        # is to end the start of the service, not the first burial.
        CONF.use_pending_state
        released.ComputeTaskManager.__init__(self)

    def _bury_in_cell0(self, context, request_spec, exc,
                       build_requests=None, instances=None,
                       block_device_mapping=None, tags=None):
        with burial.servers_named_on_failure(context, build_requests):
            if rebuild_scope.is_rebuild():
                if not burial.found_no_host(exc) and burial.current(
                        context, build_requests[0]):
                    # One was found, and the release leaves it allocated.
                    cleaning.give_back(context, self.report_client,
                                       request_spec.instance_uuid)
                return burial.bury_again(
                    context, build_requests[0], functools.partial(
                        released.ComputeTaskManager._bury_in_cell0,
                        self, context, request_spec, exc,
                        block_device_mapping=block_device_mapping, tags=tags))
            with burial.of(build_requests):
                released.ComputeTaskManager._bury_in_cell0(
                    self, context, request_spec, exc,
                    build_requests=build_requests, instances=instances,
                    block_device_mapping=block_device_mapping, tags=tags)

    def _set_vm_state_and_notify(self, context, instance_uuid, method,
                                 updates, ex, request_spec):
        if burial.is_burial(context):
            burial.keep_request(context, instance_uuid, request_spec)
            burial.let_go(instance_uuid)
            if burial.use_pending_state() and (
                    burial.found_no_host(ex) or
                    isinstance(ex, volume_reimage.FAILURES)):
                updates = dict(updates, vm_state=vm_states.PENDING)
        try:
            released.ComputeTaskManager._set_vm_state_and_notify(
                self, context, instance_uuid, method, updates, ex,
                request_spec)
        except db_exc.DBReferenceError:
            # The fault comes after the state. Other servers of the request
            # are still to be buried.
            if not burial.is_burial(context):
                raise
            LOG.info('The server was taken out of cell0 as soon as it was '
                     'shown there.', instance_uuid=instance_uuid)

    def schedule_and_build_instances(self, context, build_requests,
                                     request_specs, image,
                                     admin_password, injected_files,
                                     requested_networks, block_device_mapping,
                                     tags=None):
        if (not rebuild_scope.is_rebuild() and
                burial.is_rebuild(context, build_requests)):
            # From an API that takes this for an older conductor.
            return self.rebuild_instance_in_cell0(
                context, build_requests[0], request_specs[0], image,
                admin_password, injected_files, requested_networks,
                block_device_mapping, tags)
        for request_spec in request_specs:
            # Where a burial finds them. No field: they go nowhere else.
            request_spec.injected_files = injected_files or ()
        released.ComputeTaskManager.schedule_and_build_instances(
            self, context, build_requests, request_specs, image,
            admin_password, injected_files, requested_networks,
            block_device_mapping, tags=tags)

    @staticmethod
    def _map_instance_to_cell(context, instance, cell):
        # The mapping of a rebuild changes when its build request goes.
        if not rebuild_scope.is_rebuild():
            return released.ComputeTaskManager._map_instance_to_cell(
                context, instance, cell)

    def _delete_build_request(self, context, build_request, instance, cell,
                              instance_bdms, instance_tags):
        if rebuild_scope.is_rebuild():
            if burial.hand_over(context, build_request, instance, cell):
                return True
            if not burial.is_own(context, instance, cell):
                return False
        return released.ComputeTaskManager._delete_build_request(
            self, context, build_request, instance, cell, instance_bdms,
            instance_tags)

    def _cleanup_build_artifacts(self, context, exc, instances,
                                 build_requests, request_specs,
                                 block_device_mappings, tags,
                                 cell_mapping_cache):
        if (rebuild_scope.is_rebuild() and
                burial.current(context, build_requests[0])):
            # The release leaves it in a cell, without a request spec.
            cleaning.clean_up(context, self.report_client,
                              build_requests[0].instance_uuid)
            return self._bury_in_cell0(
                context, request_specs[0], exc, build_requests=build_requests,
                block_device_mapping=block_device_mappings, tags=tags)
        released.ComputeTaskManager._cleanup_build_artifacts(
            self, context, exc, instances, build_requests, request_specs,
            block_device_mappings, tags, cell_mapping_cache)

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
                    # No host was asked to do it.
                    instance.image_ref = ''
                    reimage_record.bring_back(
                        context, instance, orig_sys_metadata)
                    instance.save()

    @nova_pending.new
    def rebuild_instance_in_cell0(self, context, build_request, request_spec,
                                  image, admin_password, injected_files,
                                  requested_networks, block_device_mapping,
                                  tags):
        """Build a server that the API has taken out of cell0.

        If it finds no host again it is buried again, with all that the next
        try needs. Nothing is done if the build request is not the one that
        stands for the server any more.
        """
        with rebuild_scope.rebuilding(burial.restore_history):
            build_request = burial.current(context, build_request)
            if build_request is None:
                LOG.info('The rebuild of the server in cell0 was undone.',
                         instance_uuid=request_spec.instance_uuid)
                # It has none any more if the server was deleted.
                objects.InstanceMapping(
                    context, instance_uuid=request_spec.instance_uuid
                ).destroy()
                return
            cleaning.clear_the_way(context, self.report_client,
                                   build_request.instance_uuid)
            burial.notify_rebuild(context, build_request)
            try:
                if not volume_reimage.run(
                        context, self.volume_api, self.image_api,
                        build_request, block_device_mapping):
                    return
            except volume_reimage.FAILURES as exc:
                LOG.warning('The server is not built: %s', exc,
                            instance=build_request.instance)
                return self._bury_in_cell0(
                    context, request_spec, exc, build_requests=[build_request],
                    block_device_mapping=block_device_mapping, tags=tags)
            self.schedule_and_build_instances(
                context, [build_request], [request_spec], image,
                admin_password, injected_files, requested_networks,
                block_device_mapping, tags)
            burial.forget_built(context, build_request.instance_uuid)


@nova_pending.over(released.ConductorManager)
class ConductorManager:

    def __init__(self, *args, **kwargs):
        released.ConductorManager.__init__(self, *args, **kwargs)
        self.add_periodic_task(
            ConductorManager._recover_rebuilds_in_cell0)
        self._look_back = None

    @nova_pending.new
    @periodic_task.periodic_task(spacing=60)
    def _recover_rebuilds_in_cell0(self, context):
        # A conductor of a cell has no way to cell0 and to build requests.
        if (CONF.api_database.connection is not None and
                CONF.conductor.rebuild_in_cell0_timeout):
            recovery.recover(
                context, self.compute_task_mgr.report_client,
                CONF.conductor.rebuild_in_cell0_timeout, self._look_back)
            self._look_back = _LOOK_BACK_SECONDS
