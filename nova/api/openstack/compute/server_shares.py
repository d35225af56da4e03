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

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ServerSharesController)
class ServerSharesController:

    def _check_instance_in_valid_state(self, context, server_id, action):
        if action == 'delete share':
            instance = self._get_instance_from_server_uuid(context, server_id)
            # As a server in ERROR: neither has a host that mounts the share.
            if instance.vm_state == vm_states.PENDING:
                return instance
        return released.ServerSharesController._check_instance_in_valid_state(
            self, context, server_id, action)
