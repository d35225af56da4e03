# SPDX-License-Identifier: Apache-2.0

from keystoneauth1 import exceptions as ks_exc
from oslo_db import exception as db_exc
from oslo_log import log as logging
import sqlalchemy.exc

from nova.cmd import common as cmd_common
from nova.compute import pending_rollout
from nova.compute import vm_states
from nova.conductor.tasks import recover_builds
import nova.conf
from nova import context
from nova.db.main import api as db
from nova.db.main import models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.scheduler.client import report

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

_FAILURES = (exception.CellMappingNotFound, ks_exc.ClientException,
             db_exc.DBError, db_exc.CantStartEngineError,
             sqlalchemy.exc.SQLAlchemyError)


def _explain(failure):
    """Say what to do about one of _FAILURES."""
    if isinstance(failure, exception.CellMappingNotFound):
        return _('There is no cell0: run "nova-manage cell_v2 map_cell0", or '
                 'use the configuration of a nova-conductor.')
    if isinstance(failure, ks_exc.ClientException):
        return _('The placement service cannot be used, look at [placement] '
                 'in the configuration: %s') % failure
    return _('The database failed, run this again when it is up: '
             '%s') % str(failure).split('\n')[0]


def _lower_service_versions():
    """Lower the service versions in each cell, and tell where that failed.

    :returns: whether a cell could not be reached
    """
    results = context.scatter_gather_all_cells(
        context.get_admin_context(), pending_rollout.lower_service_versions)
    failed = [cell_uuid for cell_uuid, result in results.items()
              if context.is_cell_failure_sentinel(result)]
    for cell_uuid in failed:
        print(_('The service versions in cell %s are as before, because the '
                'cell could not be reached: run this again when its database '
                'is up.') % cell_uuid)
    return bool(failed)


class PendingCommands:
    """Commands for servers that wait in PENDING."""

    description = _('Commands for servers that wait in PENDING.')

    @cmd_common.action_description(
        _('Set all servers that are in PENDING in cell0 to ERROR, before a '
          'downgrade to a Nova that does not know PENDING. '
          'Also write the service version of that Nova into the records of '
          'the services, or its services would not start. '
          'The command can be interrupted and repeated. Turn [DEFAULT] '
          'use_pending_state off first, in every nova-conductor.'))
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
        * 1: servers are left in PENDING, because a task is in progress on
          them, room that may be held for them cannot be given back, they were
          put into cell0 meanwhile or the command was interrupted; or a cell
          could not be reached: run it again.
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
        run, failed = None, False
        try:
            admin = context.get_admin_context()
            cell0 = objects.CellMapping.get_by_uuid(
                admin, objects.CellMapping.CELL0_UUID)
            with context.target_cell(admin, cell0) as cctxt:
                run = _SetError(cctxt, dry_run)
                left = run.run(batch_size)
            if not dry_run:
                failed = _lower_service_versions()
        except _FAILURES as exc:
            print(_explain(exc))
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
        return 2 if refused else 1 if left or failed else 0

    @cmd_common.action_description(
        _('Write the service version of a Nova that does not know PENDING '
          'into the records of the services, before services of the next '
          'release start beside them: the next release may mean something '
          'else by the version that these services have. Servers that wait go '
          'on waiting.'))
    def lower_service_versions(self):
        """Write the version of a Nova without PENDING into the records.

        Return codes:

        * 0: done, in every cell.
        * 1: a cell could not be reached: run it again.
        * 3: the API database fails.
        """
        try:
            return 1 if _lower_service_versions() else 0
        except _FAILURES as exc:
            print(_explain(exc))
            return 3

    @cmd_common.action_description(
        _('Bring servers out of BUILD whose build was interrupted. A '
          'nova-conductor does so by itself, if [conductor] '
          'rebuild_in_cell0_timeout and interrupted_create_timeout are not '
          '0.'))
    @cmd_common.args(
        '--older-than', dest='older_than', metavar='<seconds>', type=int,
        help=_('Undo rebuilds without a sign of life for this time (default: '
               '600). A rebuild that is merely slow is undone too.'))
    @cmd_common.args(
        '--creates-older-than', dest='creates_older_than',
        metavar='<seconds>', type=int,
        help=_('Also end creates that were requested at least this time ago. '
               'A create that is merely slow is ended, too. By default no '
               'create is ended.'))
    def recover(self, older_than=600, creates_older_than=None):
        """Bring servers out of BUILD whose build was interrupted.

        Return codes:

        * 0: all such servers are recovered, or there was none.
        * 1: servers could not be recovered, or a cell was not reached; the log
          says why. Run it again.
        * 2: the number of seconds is negative, or [upgrade_levels] conductor
          is set in this configuration.
        * 3: there is no cell0, or its database, the API database or the
          placement service fails.
        """
        if older_than < 0 or (creates_older_than or 0) < 0:
            print(_('--older-than and --creates-older-than must not be '
                    'negative.'))
            return 2
        if recover_builds.is_pinned():
            print(_('[upgrade_levels] conductor is set in this configuration, '
                    'so there may be nova-conductors that are not upgraded: '
                    'a late one would lose a server that was recovered. Run '
                    'this again when every nova-conductor is upgraded and the '
                    'option is removed.'))
            return 2
        try:
            recovered, failed = recover_builds.recover(
                context.get_admin_context(),
                report.report_client_singleton(), older_than,
                creates_older_than)
        except _FAILURES as exc:
            print(_explain(exc))
            return 3
        print(_('Servers recovered: %(recovered)d, failures: %(failed)d')
              % {'recovered': recovered, 'failed': failed})
        return 1 if failed else 0


@db.pick_context_manager_reader
def _batch(context, after, last, limit):
    """Return id, uuid and task_state of servers in PENDING, by id."""
    row = models.Instance
    return db.model_query(
        context, row, (row.id, row.uuid, row.task_state)).filter(
        row.vm_state == vm_states.PENDING, row.id > after,
        row.id <= last).order_by(row.id).limit(limit).all()


class _SetError:
    """Sets the servers in PENDING in cell0 to ERROR.

    Each server is changed by a conditional update of its own, so a run can be
    interrupted and repeated, and other processes cannot disturb it.

    :ivar changed: how many servers were set to ERROR so far, or would be
    :ivar skipped: how many were left alone so far
    """

    def __init__(self, context, dry_run):
        """:param context: an admin context that is targeted at cell0"""
        self.context = context
        self.dry_run = dry_run
        self.changed = self.skipped = 0

    def run(self, batch_size):
        """Set all servers to ERROR that are in PENDING now.

        A server with a task in progress is left alone: it is being rebuilt or
        deleted.

        :param batch_size: how many servers are read at a time
        :returns: how many servers are left in PENDING, or would be
        """
        total, last = pending_rollout.find_extent(self.context)
        seen = after = 0
        while batch := _batch(self.context, after, last or 0, batch_size):
            for server in batch:
                self._look_at(server)
            seen += len(batch)
            after = batch[-1].id
            # Progress is seen in a pipe, too.
            print((_('Servers looked at: %(seen)d of %(total)d')
                   if self.dry_run else
                   _('Servers done: %(seen)d of %(total)d')) % {
                'seen': seen, 'total': total}, flush=True)
        if self.dry_run:
            return self.skipped
        # Servers that were put into cell0 during the run are left, too.
        return pending_rollout.find_extent(self.context)[0]

    def _look_at(self, server):
        """Set a server to ERROR, or tell why not, and count it."""
        why = None
        if server.task_state is not None:
            why = _('its task state is %s') % server.task_state
        elif not self.dry_run:
            why = self._set_error(server.uuid)
        if why:
            self.skipped += 1
            print(_('%(uuid)s: left alone, %(why)s') % {
                'uuid': server.uuid, 'why': why})
            return
        self.changed += 1
        if self.dry_run:
            print(_('%s: would be set to ERROR') % server.uuid)

    def _set_error(self, uuid):
        """Set a server to ERROR, or return why it is left alone."""
        try:
            instance = objects.Instance.get_by_uuid(self.context, uuid)
            if (instance.vm_state, instance.task_state) == (
                    vm_states.PENDING, None):
                # The hold goes first: the next run finds no server in ERROR.
                if not report.drop_held_room(self.context, uuid):
                    return _('the room that may be held for it cannot be '
                             'given back')
                instance.vm_state = vm_states.ERROR
                instance.save(expected_vm_state=vm_states.PENDING,
                              expected_task_state=[None])
                # A service may have written a new hold meanwhile.
                report.drop_held_room(self.context, uuid)
                return None
        except (exception.InstanceNotFound, exception.InstanceUpdateConflict):
            LOG.debug('The server has changed.', instance_uuid=uuid)
        return _('it was changed or deleted meanwhile')


CATEGORIES['pending'] = PendingCommands  # noqa: F821
