# SPDX-License-Identifier: Apache-2.0

import functools

from nova.api.openstack.compute import server_pending
import nova_pending

released = nova_pending.released(__name__)

pending_controller = functools.partial(
    _create_controller, server_pending.PendingController, [])  # noqa: F821

server_pending_controller = functools.partial(
    _create_controller,  # noqa: F821
    server_pending.ServerPendingController, [])

ROUTE_LIST = released.ROUTE_LIST + (
    ('/pending', {
        'GET': [pending_controller, 'index'],
        'POST': [pending_controller, 'create'],
    }),
    ('/servers/{server_id}/pending', {
        'GET': [server_pending_controller, 'show'],
    }),
)
