# SPDX-License-Identifier: Apache-2.0

from oslo_upgradecheck import upgradecheck

from nova.compute import pending_rollout
import nova.conf
from nova import context as nova_context
from nova.i18n import _
from nova.objects import service as service_obj
import nova_pending

released = nova_pending.released(__name__)

CONF = nova.conf.CONF


def _check_use_pending_state(_commands):
    """Checks whether ``[DEFAULT] use_pending_state`` may be turned on.

    Every nova-osapi_compute, nova-conductor and nova-scheduler that is
    recorded in a cell must have a service version that knows PENDING, which a
    service records when it starts.

    - Success: all of them have such a version.
    - Warning: a service has a lower version, or is recorded nowhere; a cell
      cannot be read; or servers are in PENDING although the option is off in
      this configuration, as in a downgrade that is not finished.
    - Failure: the option is on in this configuration, and some service has
      a lower version; or the option has no valid value.

    The details name each such service and its version.
    """
    try:
        on = CONF.use_pending_state
    except ValueError as exc:
        return upgradecheck.Result(upgradecheck.Code.FAILURE, str(exc))
    older, problems, waiting = pending_rollout.survey(
        nova_context.get_admin_context())
    if waiting and not on:
        problems.append(_(
            '%d servers are in PENDING although use_pending_state is off in '
            'this configuration: before a downgrade, run '
            '"nova-manage pending set_error"') % waiting)
    if not older + problems:
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)
    return upgradecheck.Result(
        upgradecheck.Code.FAILURE if on and older else
        upgradecheck.Code.WARNING, _(
            '%(verdict)s %(problems)s. Upgrade and restart the services '
            'that do not know PENDING; remove the record of a host '
            'that is gone with "openstack --os-compute-api-version 2.53 '
            'compute service delete RECORD".') % {
                'verdict': _('use_pending_state is on, and should be off '
                             'until this is in order:') if on else
                _('Leave use_pending_state off until this is in order:'),
                'problems': '; '.join(problems + older)})


def _check_conductor_pin(_commands):
    """Checks that ``[upgrade_levels] conductor`` is not forgotten.

    While it is set, rebuilds that are interrupted are not undone.

    - Success: it is not set, or some nova-conductor is not upgraded yet.
    - Warning: it is set, and every nova-conductor is upgraded.
    """
    if CONF.upgrade_levels.conductor is None or (
            service_obj.get_minimum_version_all_cells(
                nova_context.get_admin_context(), ['nova-conductor']) <
            service_obj.KNOWS_PENDING):
        return upgradecheck.Result(upgradecheck.Code.SUCCESS)
    return upgradecheck.Result(upgradecheck.Code.WARNING, _(
        '[upgrade_levels] conductor is set although every nova-conductor is '
        'upgraded: no rebuild that is interrupted is undone until the option '
        'is removed from the configuration of nova-api and nova-conductor.'))


@nova_pending.over(released.UpgradeCommands)
class UpgradeCommands:

    _upgrade_checks = released.UpgradeCommands._upgrade_checks + (
        (_('PENDING state'), _check_use_pending_state),
        (_('Pin of nova-conductor'), _check_conductor_pin),
    )
