# SPDX-License-Identifier: Apache-2.0

import copy

from nova.api.validation import parameter_types
import nova_pending

released = nova_pending.released(__name__)

_server_status_v2105 = copy.deepcopy(released._server_status)
_server_status_v2105['enum'].append('PENDING')

rebuild_v2106 = copy.deepcopy(released.rebuild_v294)
rebuild_v2106['properties']['rebuild']['properties']['imageRef'] = {
    'oneOf': [
        rebuild_v2106['properties']['rebuild']['properties']['imageRef'],
        {'type': 'null'},
    ],
}
rebuild_v2106['properties']['rebuild']['required'].remove('imageRef')

rebuild_v2107 = copy.deepcopy(rebuild_v2106)
rebuild_v2107['properties']['rebuild']['properties'].update({
    'flavorRef': parameter_types.flavor_ref,
    'availability_zone': {
        'oneOf': [parameter_types.name, {'type': 'null'}],
    },
})


_DETAIL = ('servers', 'items', 'oneOf', 0)
_SHOW = ('server', 'oneOf', 0)


def _with(response, *path, **properties):
    """Copy a response, and set properties of the server schema at a path."""
    response = copy.deepcopy(response)
    server = response['properties']
    for key in path:
        server = server[key]
    server['properties'].update(properties)
    return response


detail_response_v2105 = _with(
    released.detail_response_v2100, *_DETAIL, status=_server_status_v2105)
show_response_v2105 = _with(
    released.show_response_v2100, *_SHOW, status=_server_status_v2105)
update_response_v2105 = _with(
    released.update_response_v2100, 'server', status=_server_status_v2105)
rebuild_response_v2105 = _with(
    released.rebuild_response_v2100, 'server', status=_server_status_v2105)

detail_response_v2107 = _with(
    detail_response_v2105, *_DETAIL, asked_to_wait={'type': 'boolean'})
show_response_v2107 = _with(
    show_response_v2105, *_SHOW, asked_to_wait={'type': 'boolean'})
