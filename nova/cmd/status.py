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

from nova.compute import pending_rollout
from nova.i18n import _
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.UpgradeCommands)
class UpgradeCommands:

    @nova_pending.new
    def _check_use_pending_state(self):
        """Checks whether ``[DEFAULT] use_pending_state`` may be turned on.

        Every nova-osapi_compute and nova-conductor that is recorded in a
        cell must know PENDING. The databases show its release, not whether
        nova-pending is active in it.

        - Success: all of them are recorded on this host, where nova-pending
          is installed, and have the service version of this release.
        - Warning: some are on other hosts and must be looked up by hand,
          have another service version, have not been seen lately or are not
          recorded; a cell cannot be read; or servers are in PENDING although
          the option is off in this configuration, as in a downgrade that is
          not finished.
        - Failure: the option is on in this configuration, and some have
          another service version.

        The details name each record and what is to be looked up.
        """
        return pending_rollout.Rollout(self._get_cell_mappings()).result()

    _upgrade_checks = released.UpgradeCommands._upgrade_checks + (
        (_('PENDING state'), _check_use_pending_state),
    )
