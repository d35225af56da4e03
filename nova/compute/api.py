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

from nova.compute import cell0_lookup
from nova.compute import rebuild_image
from nova.compute import rebuild_in_cell0
from nova.compute import reimage_state
from nova.compute import retry_if_moved
from nova.compute import vm_states
from nova import exception
from nova.objects import rebuild_context
import nova_pending

released = nova_pending.released(__name__)


def _refused_as_in_error(method):
    """Refuse a server in PENDING with what one in ERROR in cell0 is refused.

    The released check of the vm_state lets ERROR pass. A later one refuses
    the server, at the latest because it was never launched.
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
    """Refuse what the released rebuild refuses first."""


@nova_pending.over(released.API)
class API:

    def _get_instance_from_cell(self, context, im, expected_attrs,
                                cell_down_support):
        try:
            return cell0_lookup.get_with_retry(
                context, im,
                lambda: released.API._get_instance_from_cell(
                    self, context, im, expected_attrs, cell_down_support),
                lambda: self._get_instance(
                    context, im.instance_uuid, expected_attrs,
                    cell_down_support))
        except exception.InstanceNotFound:
            raise
        except exception.NovaException:
            if rebuild_in_cell0.is_asked_for() and im.cell_mapping.is_cell0():
                raise rebuild_in_cell0.Cell0Unreachable()
            raise

    def _attempt_delete_of_buildrequest(self, context, instance):
        deleted = released.API._attempt_delete_of_buildrequest(
            self, context, instance)
        if deleted:
            rebuild_in_cell0.remove_leftover(context, instance.uuid)
        return deleted

    def _delete(self, context, instance, delete_type, cb, **instance_attrs):
        retry_if_moved.delete(
            self, context, instance,
            lambda context, instance: released.API._delete(
                self, context, instance, delete_type, cb, **instance_attrs))
        rebuild_in_cell0.clear_if_deleted(context, instance.uuid)

    def _local_delete(self, context, instance, bdms, delete_type, cb):
        if instance.host:
            # Of a nova-compute that has died.
            reimage_state.delete_leftovers(
                context.elevated(), self.volume_api, instance, bdms)
        released.API._local_delete(
            self, context, instance, bdms, delete_type, cb)

    def update_instance(self, context, instance, updates):
        return retry_if_moved.update(
            self, context, instance,
            lambda context, instance: released.API.update_instance(
                self, context, instance, updates))

    def rebuild(self, context, instance, image_href, admin_password,
                files_to_inject=None, reimage_boot_volume=False, **kwargs):
        if rebuild_in_cell0.applies(context):
            rebuild_in_cell0.rebuild(
                self, context, instance, image_href, admin_password,
                files_to_inject=files_to_inject, **kwargs)
        else:
            rebuild_in_cell0.refuse_correction(instance)
            if image_href is None:
                # Or a server that is being built is refused for having no
                # volume yet: its image is asked for before.
                _refused_as_in_error(_check_lock_and_state)(
                    self, context, instance)
                image_href = rebuild_image.current_image(
                    self, context, instance)
            # A server without an image has its root on a volume.
            reimage = reimage_boot_volume and not instance.image_ref
            before = (reimage_state.changed(instance, kwargs) if reimage
                      else None)
            with rebuild_context.asking(before), reimage_state.checking(
                    instance, reimage):
                _refused_as_in_error(released.API.rebuild)(
                    self, context, instance, image_href, admin_password,
                    files_to_inject=files_to_inject,
                    reimage_boot_volume=reimage_boot_volume, **kwargs)

    def _record_action_start(self, context, instance, action):
        # The first that a rebuild does once the server is its own.
        reimage_state.save_original(context, instance)
        released.API._record_action_start(self, context, instance, action)

    def _check_volume_status(self, context, bdms):
        released.API._check_volume_status(self, context, [
            bdm for bdm in bdms
            if not (bdm.volume_id and reimage_state.is_left_by_failure(
                context, self.volume_api, bdm))])
