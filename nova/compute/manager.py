# SPDX-License-Identifier: Apache-2.0

import contextlib
import functools

from oslo_log import log as logging
import oslo_messaging as messaging
from oslo_utils import excutils
from oslo_utils import timeutils

from nova.compute import build_results
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova.compute import volume_reimage
from nova import exception
from nova import objects
import nova_pending

LOG = logging.getLogger(__name__)

# A message that reaches its host within this time is not late.
_YOUNG_SECONDS = 60

released = nova_pending.released(__name__)


@nova_pending.over(released.ComputeManager)
class ComputeManager:

    @functools.wraps(released.ComputeManager._do_build_and_run_instance)
    def _do_build_and_run_instance(
            self, context, instance, image, request_spec, filter_properties,
            admin_password, injected_files, requested_networks,
            security_groups, block_device_mapping, node=None, limits=None,
            host_list=None, accel_uuids=None):
        # A save gives the Instance the ID of the record that has the UUID.
        record_id = instance.id if 'id' in instance else None

        def keeps_allocations():
            # Before a host sets the server to ERROR, the host deletes what is
            # allocated itself.
            return (instance.vm_state == vm_states.ERROR or
                    self._keeps_allocations(context, instance, record_id))

        try:
            if self._has_other_record(context, instance):
                LOG.warning('The server was rebuilt since this host was asked '
                            'to build it, and is not built here.',
                            instance=instance)
                return build_results.FAILED_BY_POLICY
            result = released.ComputeManager._do_build_and_run_instance(
                self, context, instance, image, request_spec,
                filter_properties, admin_password, injected_files,
                requested_networks, security_groups, block_device_mapping,
                node=node, limits=limits, host_list=host_list,
                accel_uuids=accel_uuids)
            is_kept = (result == build_results.FAILED and
                       keeps_allocations())
        except Exception:
            # Most calls to the cell fail once the record is gone from it.
            with excutils.save_and_reraise_exception() as failure:
                is_kept = keeps_allocations()
                failure.reraise = not is_kept
        if is_kept:
            # After any other failure the caller deletes whatever is allocated
            # to the server.
            self._build_failed(node)
            return build_results.FAILED_BY_POLICY
        return result

    @nova_pending.new
    @staticmethod
    def _keeps_allocations(context, instance, record_id):
        """Whether this host must not delete the allocations of a server.

        The host must not deallocate the networks of the server then, either. A
        rebuild takes the record out of the cell, for good: both can be those
        of the next build. A user who deletes the server leaves a record that
        is marked as deleted. A server in ACTIVE was built, and the host has
        only failed to record the end. If the cell does not answer, the
        allocations stay until the server is deleted.
        """
        try:
            now = objects.Instance.get_by_uuid(
                context.elevated(read_deleted='yes'), instance.uuid,
                expected_attrs=[])
        except exception.InstanceNotFound:
            return True
        except messaging.MessagingException:
            LOG.exception('It is not known whether the server was built: its '
                          'allocations stay.', instance=instance)
            return True
        except Exception:
            return False
        return now.id != record_id or now.vm_state == vm_states.ACTIVE

    @nova_pending.new
    @staticmethod
    def _has_other_record(context, instance):
        """Whether the host was asked to build an older record of the server.

        Instance.save() finds the record by UUID. A host that takes its message
        late would build a server again that a rebuild has placed elsewhere. If
        the record is the one that the host was asked to build, the build has
        begun after this.
        """
        try:
            record_id = instance.id
            if objects.Instance.get_by_uuid(
                    context, instance.uuid, expected_attrs=[]
                    ).id != record_id:
                return True
        except Exception:
            # The first save of the build tells that the record is gone, or
            # that the cell does not answer.
            return False
        # Another record can appear between this look and the first save of
        # the build. Nobody replaces a record that young.
        if not timeutils.is_older_than(instance.created_at, _YOUNG_SECONDS):
            return False
        # A server that was built has neither of these states.
        instance.vm_state = vm_states.BUILDING
        instance.task_state = None
        try:
            instance.save(
                expected_vm_state=[vm_states.BUILDING, vm_states.ERROR],
                expected_task_state=(task_states.SCHEDULING, None))
        except (exception.InstanceNotFound,
                exception.UnexpectedTaskStateError):
            return False
        except exception.InstanceUpdateConflict:
            return True
        return instance.id != record_id

    @nova_pending.new
    @staticmethod
    def _was_built(context, instance):
        """Whether the cell has recorded that the host has built a server."""
        try:
            return objects.Instance.get_by_uuid(
                context, instance.uuid, expected_attrs=[]
                ).vm_state == vm_states.ACTIVE
        except Exception:
            # The released handlers find out that the record is gone.
            return False

    def _build_and_run_instance(self, context, instance, *args, **kwargs):
        record_id = instance.id
        try:
            released.ComputeManager._build_and_run_instance(
                self, context, instance, *args, **kwargs)
        except Exception:
            # The clean-up after any other failure goes by UUID. It would also
            # take a server that runs, whose end of the build was not recorded,
            # off this host.
            with excutils.save_and_reraise_exception():
                if self._was_built(context, instance) or (
                        compute_utils.is_replaced(
                            context, instance.uuid, record_id)):
                    raise exception.InstanceNotFound(instance_id=instance.uuid)

    def _set_instance_obj_error_state(self, instance, clean_task_state=False):
        # A server in ERROR and on no host can be rebuilt: from then on the
        # allocations can be those of the next build. A host that starts also
        # sets servers to ERROR whose message the host has not taken yet. The
        # host builds these servers when it takes the messages.
        context = instance._context
        if instance.vm_state == vm_states.BUILDING and (
                instance.host is None and
                instance.task_state != task_states.SCHEDULING and
                not self._keeps_allocations(context, instance, instance.id)):
            try:
                self.reportclient.delete_allocation_for_instance(
                    context, instance.uuid, force=True)
            except Exception:
                LOG.exception('The allocations of the server stay.',
                              instance=instance)
        released.ComputeManager._set_instance_obj_error_state(
            self, instance, clean_task_state=clean_task_state)

    def _cleanup_allocated_networks(self, context, instance,
                                    requested_networks):
        if self._keeps_allocations(context, instance, instance.id):
            return
        released.ComputeManager._cleanup_allocated_networks(
            self, context, instance, requested_networks)

    def _do_rebuild_instance(
            self, context, instance, orig_image_ref, image_meta,
            injected_files, new_pass, orig_sys_metadata, bdms, evacuate,
            on_shared_storage, preserve_ephemeral, migration, request_spec,
            allocations, request_group_resource_providers_mapping,
            accel_uuids, reimage_boot_volume, target_state):
        under_way = contextlib.nullcontext()
        if reimage_boot_volume and not evacuate:
            if bdms is None:
                bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
                    context, instance.uuid)
            root = compute_utils.get_root_bdm(context, instance, bdms)
            # A volume that was attached before Cinder 3.27 has no attachment.
            if root and root.is_volume and root.attachment_id:
                under_way = volume_reimage.under_way(
                    self, context, instance, bdms, image_meta.id,
                    orig_sys_metadata, allocations)
        with under_way:
            released.ComputeManager._do_rebuild_instance(
                self, context, instance, orig_image_ref, image_meta,
                injected_files, new_pass, orig_sys_metadata, bdms, evacuate,
                on_shared_storage, preserve_ephemeral, migration,
                request_spec, allocations,
                request_group_resource_providers_mapping, accel_uuids,
                reimage_boot_volume, target_state)

    @nova_pending.replaces('19b0edb45188cbd1')
    def _rebuild_default_impl(
            self, context, instance, image_meta, injected_files,
            admin_password, allocations, bdms, detach_block_devices,
            attach_block_devices, network_info=None, evacuate=False,
            block_device_info=None, preserve_ephemeral=False,
            accel_uuids=None, reimage_boot_volume=False):
        if (reimage_boot_volume and not evacuate and
                volume_reimage.UNFINISHED in instance.system_metadata):
            return volume_reimage.rebuild(
                self, context, instance, image_meta, injected_files,
                admin_password, allocations, bdms, attach_block_devices,
                network_info, block_device_info, preserve_ephemeral)
        released.ComputeManager._rebuild_default_impl(
            self, context, instance, image_meta, injected_files,
            admin_password, allocations, bdms, detach_block_devices,
            attach_block_devices, network_info=network_info,
            evacuate=evacuate, block_device_info=block_device_info,
            preserve_ephemeral=preserve_ephemeral, accel_uuids=accel_uuids,
            reimage_boot_volume=reimage_boot_volume)

    def _shutdown_instance(self, context, instance, bdms, *args, **kwargs):
        released.ComputeManager._shutdown_instance(
            self, context, instance, bdms, *args, **kwargs)
        volume_reimage.delete_leftovers(
            context.elevated(), self.volume_api, instance, bdms)
