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

from nova.compute import vm_states
from nova.scheduler.client import report
from nova.scheduler import held_room
import nova_pending

released = nova_pending.released(__name__)


class _Noting:
    """Stands for the controller, and notes the state of the server.

    Who does not wait has no hold, and Placement need not be asked.
    """

    def __init__(self, controller):
        self._compute_api = controller.compute_api
        self.compute_api = self
        self.vm_state = None

    def get(self, *args, **kwargs):
        instance = self._compute_api.get(*args, **kwargs)
        self.vm_state = instance.vm_state
        return instance


@nova_pending.over(released.AdminActionsController)
class AdminActionsController:

    @functools.wraps(released.AdminActionsController._reset_state)
    def _reset_state(self, req, id, body):
        noting = _Noting(self)
        answer = released.AdminActionsController._reset_state(
            noting, req=req, id=id, body=body)
        if noting.vm_state == vm_states.PENDING:
            held_room.drop_any(req.environ['nova.context'],
                               report.report_client_singleton, id)
        return answer
