# SPDX-License-Identifier: Apache-2.0

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
        check_str=' or '.join((base.ADMIN, base.SERVICE_ROLE)),
        description="Show why a server of any project waits for a host, with "
        "the requests to Placement that the scheduler makes for it and the "
        "hosts that are refused. Say the same of a server that is not created",
        operations=[*_OPERATIONS, {'method': 'POST', 'path': '/pending'}],
        scope_types=['project']),
]


def list_rules():
    return server_pending_policies
