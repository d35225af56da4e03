# SPDX-License-Identifier: Apache-2.0

"""The schemas of answers that nova-pending extends."""

import copy
import types

from tempest.lib.services.compute import servers_client


def _with_asked_to_wait():
    """Return the versions of the schemas of servers, with that of 2.107."""
    *before, last = servers_client.ServersClient.schema_versions_info
    schema = types.SimpleNamespace(**vars(last['schema']))
    schema.get_server = copy.deepcopy(last['schema'].get_server)
    schema.list_servers_detail = copy.deepcopy(
        last['schema'].list_servers_detail)
    asked_to_wait = {'asked_to_wait': {'type': 'boolean'}}
    schema.get_server['response_body']['properties']['server'][
        'properties'].update(asked_to_wait)
    schema.list_servers_detail['response_body']['properties']['servers'][
        'items']['properties'].update(asked_to_wait)
    return [*before, {**last, 'max': '2.106'},
            {'min': '2.107', 'max': None, 'schema': schema}]


#: The schema_versions_info of a ServersClient.
SERVERS = _with_asked_to_wait()
