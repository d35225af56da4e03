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
