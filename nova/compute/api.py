# SPDX-License-Identifier: Apache-2.0

import functools

from nova.compute import moved_server
from nova.compute import pending
from nova.compute import rebuild_image
from nova.compute import rebuild_in_cell0
from nova.compute import vm_states
from nova.compute import volume_reimage
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import unbuilt_instance
import nova_pending

released = nova_pending.released(__name__)


def _refused_as_in_error(method):
    """Refuse a server in PENDING in the words for ERROR in cell0.

    The check of the vm_state lets ERROR pass. A later check refuses the
    server, at the latest because the server was never launched.
    """
    @functools.wraps(method)
    def inner(self, context, instance, *args, **kwargs):
        if instance.vm_state == vm_states.PENDING:
            instance = instance.obj_clone()
            instance.vm_state = vm_states.ERROR
        return method(self, context, instance, *args, **kwargs)
    return inner


@released.check_instance_lock
@released.check_instance_state(vm_state=[
    vm_states.ACTIVE, vm_states.STOPPED, vm_states.ERROR])
def _check_lock_and_state(_api, _context, _instance):
    """Refuse a locked server or a wrong state, as a rebuild does first."""


def _taken_out_if_unbuilt(method):
    """Have a server that was never built taken out of its cell and built.

    The rebuild of another server may name no image: the image that the server
    has is found here.
    """
    @functools.wraps(method)
    def inner(self, context, instance, image_href, admin_password,
              files_to_inject=None, reimage_boot_volume=False, **kwargs):
        asked = context.rebuild
        if asked is not None and (
                unbuilt_instance.applies_to(instance) or
                # Whatever is in cell0 is on no host that could rebuild it.
                context.cell_uuid == objects.CellMapping.CELL0_UUID):
            # The schema of this microversion takes no files.
            rebuild_in_cell0.rebuild(
                self, context, instance, image_href, admin_password, **kwargs)
            return
        if asked is not None:
            rebuild_in_cell0.refuse_correction(asked, instance)
        if image_href is None:
            # The state is checked first: the look for the image would fail
            # for a server in BUILD, whose volume is not made yet.
            _refused_as_in_error(_check_lock_and_state)(
                self, context, instance)
            image_href = rebuild_image.current_image(self, context, instance)
        method(self, context, instance, image_href, admin_password,
               files_to_inject=files_to_inject,
               reimage_boot_volume=reimage_boot_volume, **kwargs)
    return inner


@nova_pending.over(released.API)
class API:

    def _get_instance_from_cell(self, context, im, expected_attrs,
                                cell_down_support):
        try:
            return moved_server.get(
                context, im,
                lambda: released.API._get_instance_from_cell(
                    self, context, im, expected_attrs, cell_down_support),
                lambda: self._get_instance(
                    context, im.instance_uuid, expected_attrs,
                    cell_down_support))
        except exception.InstanceNotFound:
            raise
        except exception.NovaException:
            if context.rebuild is not None:
                raise rebuild_in_cell0.CellUnreachable()
            raise

    def _create_instance(
        self, context, flavor, image_href, kernel_id, ramdisk_id, min_count,
        max_count, display_name, display_description, hostname, key_name,
        key_data, security_groups, availability_zone, user_data, metadata,
        injected_files, admin_password, access_ip_v4, access_ip_v6,
        requested_networks, config_drive, block_device_mapping,
        auto_disk_config, filter_properties, *args, **kwargs,
    ):
        filter_properties = dict(filter_properties, rebuild_data={
            # An empty list asks for the networks of the project.
            'networks': None if requested_networks is None
            else requested_networks.obj_to_primitive(),
            'personality': bool(injected_files),
            'asked_to_wait': not pending.is_hidden()})
        return released.API._create_instance(
            self, context, flavor, image_href, kernel_id, ramdisk_id,
            min_count, max_count, display_name, display_description, hostname,
            key_name, key_data, security_groups, availability_zone, user_data,
            metadata, injected_files, admin_password, access_ip_v4,
            access_ip_v6, requested_networks, config_drive,
            block_device_mapping, auto_disk_config, filter_properties, *args,
            **kwargs)

    @staticmethod
    def _create_reqspec_buildreq_instmapping(context, rs, br, im):
        if rs.rebuild_data is not None:
            rs.keep_request(br)
        released.API._create_reqspec_buildreq_instmapping(context, rs, br, im)

    def _delete(self, context, instance, delete_type, cb, **instance_attrs):
        moved_server.delete(
            self, context, instance,
            lambda context, instance: released.API._delete(
                self, context, instance, delete_type, cb, **instance_attrs))

    def _local_delete(self, context, instance, bdms, delete_type, cb):
        if instance.host:
            # A nova-compute that has died may have left attachments.
            volume_reimage.delete_leftovers(
                context.elevated(), self.volume_api, instance, bdms)
        released.API._local_delete(
            self, context, instance, bdms, delete_type, cb)

    def update_instance(self, context, instance, updates):
        return moved_server.update(
            self, context, instance,
            lambda context, instance: released.API.update_instance(
                self, context, instance, updates))

    @_taken_out_if_unbuilt
    @_refused_as_in_error
    def rebuild(self, context, instance, image_href, admin_password,
                files_to_inject=None, reimage_boot_volume=False, **kwargs):
        # A server without an image has its root on a volume.
        if reimage_boot_volume and not instance.image_ref:
            volume_reimage.check_host(context, instance)
            context.reimaged = instance
        elif volume_reimage.UNFINISHED in instance.system_metadata:
            _check_lock_and_state(self, context, instance)
            raise exception.InvalidVolume(reason=_(
                'the last re-image of the root volume has failed: rebuild '
                'the server with microversion 2.93 or later'))
        released.API.rebuild(
            self, context, instance, image_href, admin_password,
            files_to_inject=files_to_inject,
            reimage_boot_volume=reimage_boot_volume, **kwargs)

    def _check_volume_status(self, context, bdms):
        try:
            released.API._check_volume_status(self, context, bdms)
        except exception.InvalidVolume:
            if context.reimaged is None or (
                    not volume_reimage.is_left_by_failure(
                        context, self.volume_api, context.reimaged, bdms)):
                raise
