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

from nova import objects
from nova.scheduler.client import report
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.AdminActionsController)
class AdminActionsController:

    @functools.wraps(released.AdminActionsController._reset_state)
    def _reset_state(self, req, id, body):
        answer = released.AdminActionsController._reset_state(
            self, req=req, id=id, body=body)
        context = req.environ['nova.context']
        # The server does not wait any more, so no room is held for it. The
        # look-up of the server has targeted the context at its cell; room is
        # held for servers in cell0 only.
        if context.cell_uuid == objects.CellMapping.CELL0_UUID:
            report.drop_held_room(context, id)
        return answer
