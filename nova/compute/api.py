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

from nova.compute import rebuild_in_cell0
from nova.compute import rebuild_request
from nova.compute import vm_states
from nova import exception
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


@nova_pending.over(released.API)
class API:

    rescue = _refused_as_in_error(released.API.rescue)

    evacuate = _refused_as_in_error(released.API.evacuate)

    def _get_instance_from_cell(self, context, im, expected_attrs,
                                cell_down_support):
        try:
            return released.API._get_instance_from_cell(
                self, context, im, expected_attrs, cell_down_support)
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

    def rebuild(self, context, instance, image_href, admin_password,
                files_to_inject=None, reimage_boot_volume=False, **kwargs):
        if rebuild_in_cell0.applies(context):
            rebuild_in_cell0.rebuild(
                self, context, instance, image_href, admin_password,
                files_to_inject=files_to_inject, **kwargs)
        else:
            if image_href is None:
                image_href = rebuild_request.image_of(self, context, instance)
            _refused_as_in_error(released.API.rebuild)(
                self, context, instance, image_href, admin_password,
                files_to_inject=files_to_inject,
                reimage_boot_volume=reimage_boot_volume, **kwargs)
