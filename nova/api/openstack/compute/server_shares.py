# SPDX-License-Identifier: Apache-2.0

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.ServerSharesController)
class ServerSharesController:

    def _check_instance_in_valid_state(self, context, server_id, action):
        if action == 'delete share':
            server = self._get_instance_from_server_uuid(context, server_id)
            # As a server in ERROR: neither has a host that mounts the share.
            if server.vm_state == vm_states.PENDING:
                return server
        return released.ServerSharesController._check_instance_in_valid_state(
            self, context, server_id, action)
