# SPDX-License-Identifier: Apache-2.0

"""The schemas of answers that nova-pending extends."""

import copy
import types

from tempest.lib.services.compute import servers_client


def servers(microversions):
    """Return the schema_versions_info of a ServersClient.

    :param microversions: the microversion of each feature
    """
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
    # The rebuild is the last before the reason.
    return [*before, {**last, 'max': microversions['rebuild']},
            {'min': microversions['reason'], 'max': None, 'schema': schema}]
