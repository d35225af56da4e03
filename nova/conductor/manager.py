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

from oslo_log import log as logging
import oslo_messaging as messaging
from oslo_service import periodic_task

from nova.compute import vm_states
from nova.conductor import burial
from nova.conductor import recovery
import nova.conf
from nova import exception
from nova import objects
from nova.objects import rebuild_scope
import nova_pending

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

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
            released.ComputeTaskManager._bury_in_cell0(
                self, context, request_spec, exc,
                build_requests=build_requests, instances=instances,
                block_device_mapping=block_device_mapping, tags=tags)

    def _set_vm_state_and_notify(self, context, instance_uuid, method,
                                 updates, ex, request_spec):
        if burial.is_burial(context):
            burial.keep_request(context, instance_uuid, request_spec)
            if burial.use_pending_state() and burial.found_no_host(ex):
                updates = dict(updates, vm_state=vm_states.PENDING)
        released.ComputeTaskManager._set_vm_state_and_notify(
            self, context, instance_uuid, method, updates, ex, request_spec)

    def schedule_and_build_instances(self, context, build_requests,
                                     request_specs, image,
                                     admin_password, injected_files,
                                     requested_networks, block_device_mapping,
                                     tags=None):
        for request_spec in request_specs:
            # Where a burial finds them. No field: they go nowhere else.
            request_spec.injected_files = injected_files or ()
        released.ComputeTaskManager.schedule_and_build_instances(
            self, context, build_requests, request_specs, image,
            admin_password, injected_files, requested_networks,
            block_device_mapping, tags=tags)

    @staticmethod
    def _map_instance_to_cell(context, instance, cell):
        if not rebuild_scope.is_rebuild():
            return released.ComputeTaskManager._map_instance_to_cell(
                context, instance, cell)
        try:
            objects.InstanceMapping.exchange_cell(
                context, instance.uuid, None, cell)
        except exception.InstanceMappingNotFound:
            # Put back by a recovery, which has taken the build request too:
            # without that the build goes no further.
            LOG.info('The server is not mapped to cell %s.', cell.identity,
                     instance=instance)
        return objects.InstanceMapping.get_by_instance_uuid(
            context, instance.uuid)

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
        if burial.is_outdated(context, build_request):
            LOG.info('The rebuild of the server in cell0 was undone.',
                     instance_uuid=build_request.instance_uuid)
            return
        recovery.purge(context, build_request.instance_uuid)
        burial.notify_rebuild(context, build_request)
        with rebuild_scope.rebuilding():
            self.schedule_and_build_instances(
                context, [build_request], [request_spec], image,
                admin_password, injected_files, requested_networks,
                block_device_mapping, tags)
        burial.settle(context, build_request.instance_uuid)


@nova_pending.over(released.ConductorManager)
class ConductorManager:

    def __init__(self, *args, **kwargs):
        released.ConductorManager.__init__(self, *args, **kwargs)
        self.add_periodic_task(
            ConductorManager._recover_rebuilds_in_cell0)

    @nova_pending.new
    @periodic_task.periodic_task(spacing=60)
    def _recover_rebuilds_in_cell0(self, context):
        # A conductor of a cell has no way to cell0 and to build requests.
        if (CONF.api_database.connection is not None and
                CONF.conductor.rebuild_in_cell0_timeout):
            recovery.recover(
                context, self.compute_task_mgr.report_client,
                CONF.conductor.rebuild_in_cell0_timeout)
