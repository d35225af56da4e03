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

_server_response_v2105 = copy.deepcopy(released._server_response_v2100)
_server_response_v2105['properties']['status'] = _server_status_v2105

_server_detail_response_v2105 = copy.deepcopy(
    released._server_detail_response_v2100)
_server_detail_response_v2105['properties']['status'] = _server_status_v2105

detail_response_v2105 = copy.deepcopy(released.detail_response_v2100)
detail_response_v2105['properties']['servers']['items'] = {
    'oneOf': [
        _server_detail_response_v2105,
        released._server_detail_cell_down_response,
    ],
}

show_response_v2105 = copy.deepcopy(released.show_response_v2100)
show_response_v2105['properties']['server'] = {
    'oneOf': [
        _server_response_v2105, released._server_cell_down_response_v271,
    ],
}

update_response_v2105 = copy.deepcopy(released.update_response_v2100)
update_response_v2105['properties']['server']['properties'].update({
    'status': _server_status_v2105,
})

rebuild_response_v2105 = copy.deepcopy(released.rebuild_response_v2100)
rebuild_response_v2105['properties']['server']['properties'].update({
    'status': _server_status_v2105,
})

_server_response_v2107 = copy.deepcopy(_server_response_v2105)
_server_response_v2107['properties']['asked_to_wait'] = {'type': 'boolean'}

_server_detail_response_v2107 = copy.deepcopy(_server_detail_response_v2105)
_server_detail_response_v2107['properties']['asked_to_wait'] = {
    'type': 'boolean',
}

detail_response_v2107 = copy.deepcopy(detail_response_v2105)
detail_response_v2107['properties']['servers']['items'] = {
    'oneOf': [
        _server_detail_response_v2107,
        released._server_detail_cell_down_response,
    ],
}

show_response_v2107 = copy.deepcopy(show_response_v2105)
show_response_v2107['properties']['server'] = {
    'oneOf': [
        _server_response_v2107, released._server_cell_down_response_v271,
    ],
}
