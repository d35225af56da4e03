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

import functools

from keystoneauth1 import exceptions as ks_exc
from oslo_db import exception as db_exc
import sqlalchemy.exc

from nova.cmd import common as cmd_common
from nova.compute import pending_downgrade
from nova.compute import pending_rollout
from nova.conductor.tasks import recover_rebuilds
import nova.conf
from nova import context
from nova import exception
from nova.i18n import _
from nova import objects
from nova.scheduler.client import report
import nova_pending

released = nova_pending.released(__name__)

CONF = nova.conf.CONF

_DATABASE_FAILURES = (db_exc.DBError, db_exc.CantStartEngineError,
                      sqlalchemy.exc.SQLAlchemyError)


class PendingCommands:
    """Commands for servers that wait in PENDING."""

    description = _('Commands for servers that wait in PENDING.')

    @cmd_common.action_description(
        _('Set all servers that are in PENDING in cell0 to ERROR, before '
          'nova-pending is removed, and give the services the version of the '
          'release in their records, or they would not start without it. It '
          'can be interrupted and repeated. Turn [DEFAULT] use_pending_state '
          'off first, in every nova-conductor.'))
    @cmd_common.args(
        '--batch-size', dest='batch_size', metavar='<number>', type=int,
        help=_('How many servers are read from the database at a time '
               '(default: 50).'))
    @cmd_common.args(
        '--dry-run', dest='dry_run', action='store_true',
        help=_('Only show which servers would be set to ERROR.'))
    def set_error(self, batch_size=50, dry_run=False):
        """Set the servers in PENDING to ERROR.

        Return codes:

        * 0: no server in PENDING is left, or would be left.
        * 1: some are left, because a task is in progress on them, the room
          that may be held for them cannot be given back, they were put into
          cell0 meanwhile or the command was interrupted: run it again.
        * 2: the batch size is not a positive number, or use_pending_state is
          on in this configuration or has no valid value.
        * 3: there is no cell0, or its database or the API database fails.

        A dry run changes nothing, shows the servers, and returns what a run
        would return.
        """
        if batch_size < 1:
            print(_('--batch-size must be a positive number.'))
            return 2
        try:
            refused = CONF.use_pending_state
        except ValueError as exc:
            print(exc)
            return 2
        if refused:
            print(_('use_pending_state is on in this configuration, so '
                    'servers would go on getting into PENDING: turn it off, '
                    'in every nova-conductor.'))
            if not dry_run:
                return 2
        run = None
        try:
            admin = context.get_admin_context()
            cell0 = objects.CellMapping.get_by_uuid(
                admin, objects.CellMapping.CELL0_UUID)
            with context.target_cell(admin, cell0) as cctxt:
                # Progress is seen in a pipe, too.
                run = pending_downgrade.Downgrade(
                    cctxt, report.report_client_singleton,
                    functools.partial(print, flush=True), dry_run)
                left = run.run(batch_size)
            if not dry_run:
                context.scatter_gather_all_cells(
                    admin, pending_rollout.lower_service_versions)
        except exception.CellMappingNotFound:
            print(_no_cell0())
            return 3
        except _DATABASE_FAILURES as exc:
            print(_database_failed(exc))
            return 3
        except KeyboardInterrupt:
            left = 1
            print(_('Interrupted.'))
        finally:
            if run:
                print((_('Servers that would be set to ERROR: %(changed)d, '
                         'left alone: %(skipped)d') if dry_run else
                       _('Servers set to ERROR: %(changed)d, left alone: '
                         '%(skipped)d')) % vars(run))
        if left and not dry_run:
            print(_('Servers are left in PENDING: run this again when nothing '
                    'is in progress on them and Placement answers.'))
        return 2 if refused else 1 if left else 0

    @cmd_common.action_description(
        _('Undo the rebuilds of servers in cell0 that were interrupted. A '
          'nova-conductor does so by itself, if [conductor] '
          'rebuild_in_cell0_timeout is not 0.'))
    @cmd_common.args(
        '--older-than', dest='older_than', metavar='<seconds>', type=int,
        help=_('Undo what was asked for at least so long ago (default: 600). '
               'A rebuild that is merely slow is undone too. Wait until no '
               'nova-conductor without nova-pending is left.'))
    def recover(self, older_than=600):
        """Put servers back into cell0 whose rebuild was interrupted.

        Return codes:

        * 0: all of them are back, or there was none.
        * 1: some could not be put back; the log says why. Run it again.
        * 2: the number of seconds is negative, or [upgrade_levels] conductor
          is set in this configuration.
        * 3: there is no cell0, or its database, the API database or the
          placement service fails.
        """
        if older_than < 0:
            print(_('--older-than must not be negative.'))
            return 2
        if recover_rebuilds.is_pinned():
            print(_('[upgrade_levels] conductor is set in this configuration, '
                    'so there may be nova-conductors without nova-pending: '
                    'one that comes late with a server that was put back '
                    'would lose it. Run this again when all of them are '
                    'upgraded and the option is removed.'))
            return 2
        try:
            recovered, failed = recover_rebuilds.recover(
                context.get_admin_context(),
                report.report_client_singleton(), older_than,
                including_pinned=True)
        except exception.CellMappingNotFound:
            print(_no_cell0())
            return 3
        except _DATABASE_FAILURES as exc:
            print(_database_failed(exc))
            return 3
        except ks_exc.ClientException as exc:
            print(_('The placement service cannot be used, look at '
                    '[placement] in the configuration: %s') % exc)
            return 3
        print(_('Servers put back: %(recovered)d, not put back: %(failed)d')
              % {'recovered': recovered, 'failed': failed})
        return 1 if failed else 0


def _no_cell0():
    return _('There is no cell0: run "nova-manage cell_v2 map_cell0", or use '
             'the configuration of a nova-conductor.')


def _database_failed(exc):
    return _('The database failed, run this again when it is up: '
             '%s') % str(exc).split('\n')[0]


CATEGORIES['pending'] = PendingCommands  # noqa: F821
