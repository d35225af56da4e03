# SPDX-License-Identifier: Apache-2.0

import functools

from nova import objects
from nova.scheduler.client import report
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.AdminActionsController)
class AdminActionsController:

    @functools.wraps(released.AdminActionsController._reset_state)
    def _reset_state(self, req, id, body):
        released.AdminActionsController._reset_state(
            self, req=req, id=id, body=body)
        context = req.environ['nova.context']
        # The server no longer waits, so its hold is given back. The look-up of
        # the server has targeted the context at its cell. A server in another
        # cell hardly ever has a hold: the service that wrote such a hold gives
        # it back.
        if context.cell_uuid == objects.CellMapping.CELL0_UUID:
            report.drop_held_room(context, id)
