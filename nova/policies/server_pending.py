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

from oslo_policy import policy

from nova.policies import base

BASE_POLICY_NAME = 'compute:server:pending:%s'

_OPERATIONS: list[policy.Operation] = [
    {'method': 'GET', 'path': '/servers/{server_id}/pending'}]

server_pending_policies = [
    policy.DocumentedRuleDefault(
        name=BASE_POLICY_NAME % 'show',
        check_str=base.PROJECT_READER_OR_ADMIN,
        description="Show why a server waits for a host",
        operations=_OPERATIONS,
        scope_types=['project']),
    policy.DocumentedRuleDefault(
        # Who may read requests to Placement, names of hosts and of filters
        name=BASE_POLICY_NAME % 'hosts:show',
        check_str=base.SERVICE_ROLE,
        description="Show why a server of any project waits for a host, with "
        "the requests to Placement that the scheduler makes for it and the "
        "hosts that are refused",
        operations=_OPERATIONS,
        scope_types=['project']),
]


def list_rules():
    return server_pending_policies
