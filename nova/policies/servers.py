# SPDX-License-Identifier: Apache-2.0

"""Services list the servers of all projects with details, as GET
/servers/{id}/pending tells services why a server of any project waits.
"""

from oslo_policy import policy

from nova.policies import base
import nova_pending

released = nova_pending.released(__name__)

_CHECKS = {
    # A service that has no other role reaches detail:get_all_tenants.
    released.SERVERS % 'detail': ' or '.join(
        (base.PROJECT_READER_OR_ADMIN, base.SERVICE_ROLE)),
    released.SERVERS % 'detail:get_all_tenants': ' or '.join(
        (base.ADMIN, base.SERVICE_ROLE)),
}


def list_rules():
    return [_changed(rule) if rule.name in _CHECKS else rule
            for rule in released.list_rules()]


def _changed(rule):
    return policy.DocumentedRuleDefault(
        rule.name, _CHECKS[rule.name], rule.description, rule.operations,
        scope_types=rule.scope_types)
