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

from oslo_upgradecheck import upgradecheck

from nova.compute import pending_rollout
import nova.conf
from nova.i18n import _
import nova_pending

released = nova_pending.released(__name__)

CONF = nova.conf.CONF


def _check_use_pending_state(commands):
    """Checks whether ``[DEFAULT] use_pending_state`` may be turned on.

    Every nova-osapi_compute, nova-conductor and nova-scheduler that is
    recorded in a cell must have started with nova-pending; each records
    that, for all processes of the service on its host.

    - Success: all of them have.
    - Warning: some have not, have another service version, or have not
      been seen lately; a service is recorded nowhere; a cell cannot be
      read; or servers are in PENDING although the option is off in this
      configuration, as in a downgrade that is not finished.
    - Failure: the option is on in this configuration, and some service
      has another service version; or the option has no valid value.

    The details name each service and what is against it.
    """
    try:
        on = CONF.use_pending_state
    except ValueError as exc:
        return upgradecheck.Result(upgradecheck.Code.FAILURE, str(exc))
    problems, mixed, waiting = pending_rollout.survey(
        commands._get_cell_mappings())
    if waiting and not on:
        problems.append((
            _('%d servers') % waiting, _(
                'are in PENDING although use_pending_state is off in this '
                'configuration: before nova-pending is removed, run '
                '"nova-manage pending set_error"')))
    if not problems:
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)
    code = (upgradecheck.Code.FAILURE if on and mixed
            else upgradecheck.Code.WARNING)
    return upgradecheck.Result(code, _(
        '%(verdict)s %(problems)s. Install nova-pending where it is '
        'missing and restart the services; remove the record of a host '
        'that is gone with "openstack --os-compute-api-version 2.53 '
        'compute service delete RECORD".') % {
            'verdict': _('use_pending_state is on, and should be off '
                         'until this is in order:') if on else
            _('Leave use_pending_state off until this is in order:'),
            'problems': '; '.join(map(' '.join, problems))})


@nova_pending.over(released.UpgradeCommands)
class UpgradeCommands:

    _upgrade_checks = released.UpgradeCommands._upgrade_checks + (
        (_('PENDING state'), _check_use_pending_state),
    )
