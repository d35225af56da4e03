# SPDX-License-Identifier: Apache-2.0

from nova.api.validation import parameter_types
from nova.api.validation import response_types

_uuid = {'type': 'string', 'format': 'uuid'}

# Nova shows administrators and services the queries of Placement that the
# scheduler makes for a server, and the hosts that the filters judge.
_requests = {
    'type': 'array',
    'items': {'type': 'string'},
}
_hosts = {
    'type': 'array',
    'items': {
        'type': 'object',
        'properties': {
            'host': {'type': 'string'},
            'uuid': _uuid,
            'refused_by': {'type': ['string', 'null']},
        },
        'required': ['host', 'uuid', 'refused_by'],
        'additionalProperties': False,
    },
}

index_query = {
    'type': 'object',
    'properties': {},
    'additionalProperties': False,
}

index_response = {
    'type': 'object',
    'properties': {
        'pending': {
            'type': 'object',
            'properties': {
                'microversions': {
                    'type': 'object',
                    'additionalProperties': {
                        'type': 'string',
                        'pattern': r'^2\.\d+$',
                    },
                },
            },
            'required': ['microversions'],
            'additionalProperties': False,
        },
    },
    'required': ['pending'],
    'additionalProperties': False,
}

create = {
    'type': 'object',
    'properties': {
        'pending': {
            'type': 'object',
            'properties': {
                'server': {
                    'type': 'object',
                    'properties': {
                        'project_id': parameter_types.project_id,
                        'flavorRef': parameter_types.flavor_ref,
                        'imageRef': parameter_types.image_id,
                        'availability_zone': parameter_types.name,
                    },
                    'required': ['project_id', 'flavorRef'],
                    'additionalProperties': False,
                },
                'hosts': {
                    'type': 'array',
                    'items': parameter_types.fqdn,
                    'maxItems': 80,
                },
                'without': {
                    'type': 'array',
                    'items': _uuid,
                    'maxItems': 80,
                },
            },
            'required': ['server'],
            'additionalProperties': False,
        },
    },
    'required': ['pending'],
    'additionalProperties': False,
}

create_response = {
    'type': 'object',
    'properties': {
        'pending': {
            'type': 'object',
            'properties': {
                'reason': {
                    'type': ['string', 'null'],
                    'enum': ['fits', 'no_room', 'refused', 'nothing_fits',
                             None],
                },
                'requests': _requests,
                'hosts': _hosts,
            },
            'required': ['reason', 'requests', 'hosts'],
            'additionalProperties': False,
        },
    },
    'required': ['pending'],
    'additionalProperties': False,
}

show_query = {
    'type': 'object',
    'properties': {
        'host': parameter_types.multi_params(parameter_types.fqdn),
        'limit': parameter_types.single_param(
            parameter_types.non_negative_integer),
        'marker': parameter_types.single_param(_uuid),
        # The IDs fit into the longest URL that WSGI servers take.
        'without': {
            **parameter_types.multi_params(_uuid),
            'maxItems': 80,
        },
    },
    'additionalProperties': False,
}

show_response = {
    'type': 'object',
    'properties': {
        'pending': {
            'type': 'object',
            'properties': {
                'since': {'type': 'string', 'format': 'date-time'},
                'attempts': {'type': 'integer', 'minimum': 1},
                'last_attempt': {'type': 'string', 'format': 'date-time'},
                'reason': {
                    'type': 'string',
                    'enum': ['no_room', 'refused', 'no_such_host',
                             'nothing_fits', 'build_failed', 'quota',
                             'unknown'],
                },
                'message': {'type': 'string'},
                'advice': {'type': 'string'},
                'asked_to_wait': {'type': 'boolean'},
                # Only administrators and services see the following. What
                # could not be found out is null.
                'rebuild_forbidden': {'type': 'string'},
                'requests': {**_requests, 'type': ['array', 'null']},
                'hosts': {**_hosts, 'type': ['array', 'null']},
                'hosts_links': response_types.collection_links,
                'unavailable': {'type': 'string'},
            },
            'required': ['since', 'attempts', 'last_attempt', 'reason',
                         'message', 'advice', 'asked_to_wait'],
            'additionalProperties': False,
        },
    },
    'required': ['pending'],
    'additionalProperties': False,
}
