# SPDX-License-Identifier: Apache-2.0

from nova.api.validation import parameter_types
from nova.api.validation import response_types

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

show_query = {
    'type': 'object',
    'properties': {
        'host': parameter_types.multi_params(parameter_types.fqdn),
        'limit': parameter_types.single_param(
            parameter_types.non_negative_integer),
        'marker': parameter_types.single_param(
            {'type': 'string', 'format': 'uuid'}),
        'without': parameter_types.multi_params(
            {'type': 'string', 'format': 'uuid'}),
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
                'requests': {
                    'type': ['array', 'null'],
                    'items': {'type': 'string'},
                },
                'hosts': {
                    'type': ['array', 'null'],
                    'items': {
                        'type': 'object',
                        'properties': {
                            'host': {'type': 'string'},
                            'uuid': {'type': 'string', 'format': 'uuid'},
                            'refused_by': {'type': ['string', 'null']},
                        },
                        'required': ['host', 'uuid', 'refused_by'],
                        'additionalProperties': False,
                    },
                },
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
