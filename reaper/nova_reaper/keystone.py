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

"""What the reaper asks of Keystone: what operators write on projects."""

from collections.abc import Mapping

from oslo_log import log

from nova_reaper import clients

LOG = log.getLogger(__name__)
PREFIX = 'reaper:'


class Keystone:
    """Keystone, as far as the reaper needs it."""

    def __init__(self, client: clients.Client) -> None:
        self.client = client
        self._refused = False

    def project_properties(self) -> Mapping[str, Mapping[str, str]]:
        """The properties whose names begin with ``reaper:``, by project.

        Where the reaper may not list projects it does without, and says so
        once.
        """
        try:
            projects = list(self.client.list(
                '/projects', 'projects', limit=None))
        except clients.Forbidden as error:
            if not self._refused:
                LOG.warning('No priorities of projects: %s', error)
            self._refused = True
            return {}
        found: dict[str, dict[str, str]] = {}
        for project in projects:
            properties = {key: str(value) for key, value in project.items()
                          if key.startswith(PREFIX)}
            if properties:
                found[project['id']] = properties
        return found
