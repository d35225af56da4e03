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

"""Gives up builds during which nova-compute has died.

The release leaves such a server in ERROR on its host. One that came out of
cell0 returns there as if the host had given it up by itself, once all is
removed that was made for it.
"""

from oslo_log import log as logging

from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import rebuilt_instance

LOG = logging.getLogger(__name__)


def give_up(manager, context, instance):
    """Let a server return to cell0 that the host was building as it died.

    :param manager: the ComputeManager, which begins its service
    :param context: an administrator's context
    :param instance: an Instance of the host
    :returns: False if that cannot be done or it is no such server: what
        follows is the release's to do
    """
    if (instance.vm_state != vm_states.BUILDING or
            instance.launched_at is not None):
        return False
    try:
        # What the list of a host's servers does not load is loaded now.
        if rebuilt_instance.MARK not in instance.system_metadata:
            return False
        _clean(manager, context, instance)
    except Exception:
        # No server keeps a host from beginning its service.
        LOG.exception('The build was interrupted, and what it has made cannot '
                      'be removed.', instance=instance)
        return False
    return True


def _clean(manager, context, instance):
    bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
        context, instance.uuid)
    spec = objects.RequestSpec.get_by_instance_uuid(context, instance.uuid)
    # The ports of its owner, which the host may not have stored as such yet.
    networks = (spec.requested_networks if 'requested_networks' in spec
                else None)
    manager._shutdown_instance(context, instance, bdms, networks,
                               notify=False)
    compute_utils.add_instance_fault_from_exc(
        context, instance, exception.BuildAbortException(
            instance_uuid=instance.uuid,
            # The owner reads it, and is not told the name of the host.
            reason=_('nova-compute was interrupted')))
    LOG.warning('The build on %s was interrupted; the server returns to '
                'cell0.', instance.host, instance=instance)
    # Without a host it can be returned, and built elsewhere.
    manager.reportclient.delete_allocation_for_instance(
        context, instance.uuid, force=True)
    manager._nil_out_instance_obj_host_and_node(instance)
    manager._set_instance_obj_error_state(instance, clean_task_state=True)
