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

"""Who may ask what of the reaper."""

from collections.abc import Iterable

from oslo_config import cfg
from oslo_policy import policy

LIST = 'pending:list'
LIST_ALL = 'pending:list:all_projects'
SHOW = 'pending:show'
SHOW_HOST = 'pending:show:host'
DRY_RUN = 'pending:dry_run'
NOTICES = 'notices:list'

READER = 'rule:project_reader_or_admin'
ADMIN = 'rule:admin_or_service'


def _rule(name: str, check: str, text: str, path: str
          ) -> policy.DocumentedRuleDefault:
    return policy.DocumentedRuleDefault(
        name, check, text, [{'method': 'GET', 'path': path}])


def list_rules() -> Iterable[policy.RuleDefault]:
    """All rules, for the generators of oslo.policy."""
    return [
        policy.RuleDefault(
            'admin_or_service', 'role:admin or role:service',
            'Administrators, and other services.'),
        policy.RuleDefault(
            'project_reader_or_admin', 'rule:admin_or_service or '
            '(role:reader and project_id:%(project_id)s)',
            'Whoever may read in the project that the server belongs to.'),
        _rule(LIST, READER, 'List the servers of a project that wait.',
              '/v1/pending'),
        _rule(LIST_ALL, ADMIN, 'List the servers of all projects.',
              '/v1/pending'),
        _rule(SHOW, READER, 'Show why a server waits.',
              '/v1/pending/{server_id}'),
        _rule(SHOW_HOST, ADMIN,
              'See hosts, and the servers that have to go for another.',
              '/v1/pending/{server_id}'),
        _rule(DRY_RUN, ADMIN, 'See who would be ended for a server.',
              '/v1/pending/{server_id}?dry_run=true'),
        _rule(NOTICES, READER, 'List the servers of a project that are '
              'under notice.', '/v1/notices')]


def enforcer(conf: cfg.ConfigOpts) -> policy.Enforcer:
    """An enforcer that knows all rules."""
    made = policy.Enforcer(conf)
    made.register_defaults(list_rules())
    return made


def generator_enforcer() -> policy.Enforcer:
    """An enforcer for ``oslopolicy-policy-generator``."""
    conf = cfg.ConfigOpts()
    conf([], project='nova-reaper')
    return enforcer(conf)
