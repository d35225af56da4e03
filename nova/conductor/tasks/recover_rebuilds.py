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

"""Recovers servers whose rebuild in cell0 was interrupted.

A rebuild moves a server through two databases and over the bus, and what does
it can die, hang or come late after each step. What then stands is told by
three things, each found by an index or in a small table, a part at a time:

* a build request whose lease nobody renews: the server returns to cell0;
* a claim on a record in cell0 (its task_state) that is old: it is dropped;
* an entry in the log of the rebuilds that a conductor began: what is left of
  the build is removed. The server returns to cell0 if it was mapped to a cell
  and no host was asked to build it.

No cell is asked but the one that the server is mapped to, and the one that a
conductor had chosen. Each server is taken, with one conditional UPDATE,
before anything about it is changed, so that neither a slow conductor nor
another recovery has it too.
"""

import collections
import contextlib
import datetime

from oslo_db import exception as db_exc
from oslo_log import log as logging
from oslo_messaging import opts as messaging_opts
from oslo_utils import timeutils

from nova.compute import cell0_record
from nova.compute import rebuild_in_cell0
from nova.compute import task_states
from nova.conductor import cell0
from nova.conductor import cleanup
from nova.conductor import failed_builds
from nova.conductor import rebuild_log
from nova.conductor.tasks import cell0_claim
from nova.conductor.tasks import return_to_cell0
import nova.conf
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import build_request_lease
from nova.objects import persisted_request
from nova.scheduler import allocations
from nova.scheduler import held_room
from nova.scheduler import utils as scheduler_utils

CONF = nova.conf.CONF
# oslo.messaging registers it with the first client of a process, and
# nova-manage has none.
CONF.register_opts([opt for group, opts in messaging_opts.list_opts()
                    if group is None for opt in opts
                    if opt.name == 'rpc_response_timeout'])
LOG = logging.getLogger(__name__)

# How many build requests and claims a run looks at. Each gets younger by that.
_LIMIT = 1000

# What nothing was heard of for so long is not looked at any more.
_LONGEST_BUILD = datetime.timedelta(days=1)

# What asking a cell ends in whose database is down.
_SILENCE = (db_exc.DBConnectionError, db_exc.CantStartEngineError)

# Less than this, in seconds, undoes rebuilds that nothing is wrong with.
_SHORTEST = 4


class RebuildInterrupted(exception.NovaException):
    msg_fmt = _("The rebuild of the server was interrupted. It can be rebuilt "
                "again.")


def is_pinned():
    """Whether stock conductors may be running beside this one.

    One that comes late with a server that has returned to cell0 meanwhile
    destroys its mapping.
    """
    return bool(CONF.upgrade_levels.conductor)


def take_turn(context, seconds):
    """Take the turn to recover, which one worker of all conductors has.

    :param context: an administrator's context
    :param seconds: how long nobody else is to have it
    :returns: whether it was taken
    """
    return not is_pinned() and rebuild_log.take_turn(
        context, rebuild_in_cell0.cell0(context), seconds - 1)


def run_in_turn(context, report_client, seconds):
    """Recover what the option says, if this worker takes the turn.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param seconds: how long nobody else is to have the turn
    """
    # A conductor of a cell has no way to cell0 and to build requests.
    if (CONF.api_database.connection is not None and
            CONF.conductor.rebuild_in_cell0_timeout and
            take_turn(context, seconds)):
        recover(context, report_client,
                CONF.conductor.rebuild_in_cell0_timeout)


def recover(context, report_client, age, including_pinned=False):
    """Recover the rebuilds in cell0 that were asked for too long ago.

    Nothing is done while [upgrade_levels] conductor is set.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param age: how long ago, in seconds
    :param including_pinned: whether those are undone that a stock conductor
        may still be asked to build: no message of them may be left
    :returns: how many servers were put back or let go, and for how many it
        failed; the log says why
    """
    if is_pinned():
        LOG.debug('No rebuild is undone while [upgrade_levels] conductor is '
                  'set.')
        return 0, 0
    return _Recovery(context, report_client, age).run(including_pinned)


class _Recovery:
    """One run."""

    def __init__(self, context, report_client, age):
        self.context = context
        self.report_client = report_client
        self.cell0 = rebuild_in_cell0.cell0(context)
        self.now = timeutils.utcnow()
        self.before = self.now - datetime.timedelta(
            seconds=max(age, _SHORTEST) if age > 0 else age)
        self._silent = set()

    def run(self, including_pinned):
        recovered, failed = set(), set()
        for function, things in (
                (self._recover_build_request,
                 lambda: self._stale_build_requests(including_pinned)),
                (self._recover_claimed, self._stale_claims),
                (self._recover_given_up, self._given_up),
                (self._recover_begun, self._begun)):
            for instance_uuid, thing in things():
                # It must not keep the others from being recovered.
                try:
                    if function(instance_uuid, thing):
                        recovered.add(instance_uuid)
                except exception.CellTimeout:
                    failed.add(instance_uuid)
                except Exception:
                    failed.add(instance_uuid)
                    LOG.exception('An interrupted rebuild in cell0 could not '
                                  'be undone.', instance_uuid=instance_uuid)
        return len(recovered), len(failed - recovered)

    # A build request stands for the server.

    def _stale_build_requests(self, including_pinned):
        row = api_models.BuildRequest
        with api_db_api.context_manager.reader.using(
                self.context) as session:
            return session.query(row.instance_uuid, row.id).filter(
                row.updated_at < self.before,
                build_request_lease.of_rebuilds(including_pinned)).order_by(
                    row.updated_at).limit(_LIMIT).all()

    def _recover_build_request(self, instance_uuid, build_request_id):
        """Return a server to cell0 that a build request stands for."""
        try:
            build_request = objects.BuildRequest.get_by_instance_uuid(
                self.context, instance_uuid)
        except exception.BuildRequestNotFound:
            return False
        if build_request.id != build_request_id or not build_request.take(
                self.before):
            return False
        return return_to_cell0.from_build_request(
            self.context, self.report_client, build_request,
            RebuildInterrupted())

    # A claim on the record in cell0.

    def _stale_claims(self):
        row = main_models.Instance
        with self._in_cell0() as cctxt, main_db_api.get_context_manager(
                cctxt).reader.using(cctxt) as session:
            return session.query(row.uuid, row.task_state).filter(
                row.task_state.in_(
                    (task_states.REBUILDING, cell0_claim.CLAIM)),
                row.updated_at < self.before, row.deleted == 0).limit(
                    # In no order: one would have another index used.
                    _LIMIT).all()

    def _recover_claimed(self, instance_uuid, task_state):
        """Let a server go whose claim is old, if no other recovery does."""
        row = main_models.Instance
        with self._in_cell0() as cctxt:
            if not cell0_claim.set_task_state(
                    cctxt, instance_uuid, cell0_claim.CLAIM,
                    row.task_state == task_state,
                    row.updated_at < self.before):
                return False
            row_id = cleanup.row_of(cctxt, instance_uuid)
            if cell0.is_mapped_to(
                    self.context, instance_uuid, self.cell0.uuid):
                exc = None
                held_room.drop_any(
                    self.context, lambda: self.report_client, instance_uuid)
                if task_state == cell0_claim.CLAIM:
                    exc = RebuildInterrupted()
                    cell0_claim.delete_allocations(
                        self.context, self.report_client, instance_uuid)
                return cell0_claim.release_claim(
                    objects.Instance.get_by_uuid(cctxt, instance_uuid), exc)
            return self._remove_leftover(cctxt, instance_uuid, row_id)

    def _remove_leftover(self, cctxt, instance_uuid, row_id):
        """Delete a record in cell0 of a server that is elsewhere or gone.

        By its ID: by now another recovery can have made the next one.
        """
        try:
            # While there is a build request the server is not elsewhere yet.
            objects.BuildRequest.get_by_instance_uuid(
                self.context, instance_uuid)
            return False
        except exception.BuildRequestNotFound:
            with contextlib.suppress(
                    exception.ConstraintNotMet, exception.InstanceNotFound):
                cell0_record.destroy_record(
                    cctxt, instance_uuid, id=row_id,
                    task_state=cell0_claim.CLAIM)
                return True
            return False

    def _in_cell0(self):
        return nova_context.target_cell(self.context, self.cell0)

    # An entry in the log: a conductor began to build the server.

    def _given_up(self):
        """Find the servers whose build was given up, however long ago."""
        for page in rebuild_log.begun(self.context, self.cell0, self.now):
            by_cell = collections.defaultdict(list)
            for entry in page:
                if entry.message:
                    by_cell[entry.message].append(entry.host)
            for cell_uuid, instance_uuids in by_cell.items():
                try:
                    found = self._ask(
                        objects.CellMapping.get_by_uuid(
                            self.context, cell_uuid),
                        failed_builds.find_given_up, instance_uuids)
                except (exception.CellMappingNotFound, exception.CellTimeout):
                    continue
                except Exception:
                    LOG.exception('Cell %s cannot be asked for builds that '
                                  'were given up.', cell_uuid)
                    continue
                for instance_uuid in found:
                    yield instance_uuid, None

    def _recover_given_up(self, instance_uuid, _thing):
        return failed_builds.return_if_ended(
            self.context, self.report_client, instance_uuid)

    def _begun(self):
        for page in rebuild_log.begun(self.context, self.cell0, self.before):
            for entry in page:
                yield entry.host, entry

    def _recover_begun(self, instance_uuid, entry):
        """Remove what is left of a build that began a while ago.

        :returns: whether the server was returned to cell0
        """
        cell = cell0.cell_of(self.context, instance_uuid)
        if cell is None and not rebuild_in_cell0.remove_if_deleted(
                self.context, instance_uuid):
            return False  # It is being built again.

        def is_current():
            return cell0.is_mapped_to(
                self.context, instance_uuid, cell and cell.uuid)

        if cell is None or cell.is_cell0():
            returned = False
            allocations.delete(
                self.context, self.report_client, instance_uuid,
                # Room can be held for a server that waits again.
                lambda: is_current() and not (cell and held_room.find(
                    self.context, self.report_client, instance_uuid)))
        else:
            returned = self._look_in_cell(
                cell, instance_uuid, is_current, entry)
            if returned is None:
                return False
        if entry.message and (cell is None or entry.message != cell.uuid):
            with contextlib.suppress(exception.CellMappingNotFound):
                self._ask(
                    objects.CellMapping.get_by_uuid(
                        self.context, entry.message),
                    cleanup.purge_stale_records, instance_uuid, is_current)
        if self.now - entry.period_ending > _claimed_within(entry):
            rebuild_log.end(self.context, self.cell0, entry.id)
        return returned

    def _look_in_cell(self, cell, instance_uuid, is_current, entry):
        """Look at a server that was mapped to the cell of a host.

        :returns: whether it was returned to cell0, None if it may be yet
        """
        instance = self._ask(cell, _get_instance, instance_uuid)
        if instance is None:
            if not is_current():
                return None  # Somebody returns it just now.
            # Deleted, with all that it had.
            persisted_request.clear(self.context, instance_uuid, cell=cell)
            return False
        if failed_builds.is_given_up(instance):
            return failed_builds.return_if_ended(
                self.context, self.report_client, instance_uuid,
                self.before) or None
        if cell0_claim.is_unscheduled(instance):
            if instance.updated_at and timeutils.normalize_time(
                    instance.updated_at) >= self.before:
                return None  # Another host is about to be asked.
            # Who comes between may leave it as nobody else would find it.
            return return_to_cell0.from_cell(
                self.context, self.report_client, cell, instance_uuid,
                RebuildInterrupted(), self.before) or None
        if failed_builds.is_built(instance) and timeutils.normalize_time(
                instance.updated_at) > self.now - _LONGEST_BUILD:
            return None
        persisted_request.clear(self.context, instance_uuid, cell=cell)
        with nova_context.target_cell(self.context, cell) as cctxt:
            failed_builds.delete_mark(cctxt, instance)
            is_clean = cleanup.delete_other_allocations(
                cctxt, self.report_client, instance_uuid, is_current,
                scheduler_utils.resources_from_flavor)
        return False if is_clean or (
            entry.period_ending <= self.now - _LONGEST_BUILD) else None

    def _ask(self, cell, function, *args):
        """Call a function in a cell, which may not answer.

        :raises: CellTimeout, without waiting again for the same cell
        """
        if cell.uuid not in self._silent:
            [result] = nova_context.scatter_gather_cells(
                self.context, [cell], nova_context.CELL_TIMEOUT, function,
                *args).values()
            if not (result is nova_context.did_not_respond_sentinel or
                    isinstance(result, _SILENCE)):
                if isinstance(result, Exception):
                    raise result
                return result
            self._silent.add(cell.uuid)
            LOG.warning('Cell %s does not answer. What rebuilds have left '
                        'there will be removed when it does.', cell.identity)
        raise exception.CellTimeout()


def _claimed_within(entry):
    """Return how long a scheduler that was asked may claim something.

    :param entry: of nova.conductor.rebuild_log
    """
    seconds = CONF.rpc_response_timeout
    if not entry.message:
        # None has answered. The bus keeps what one was asked for so long,
        # also while none runs; and who hangs has taken it already.
        seconds += CONF.long_rpc_timeout
    return datetime.timedelta(seconds=seconds)


def _get_instance(cctxt, instance_uuid):
    """Return the Instance in a cell, None if it is not there."""
    try:
        instance = objects.Instance.get_by_uuid(
            cctxt, instance_uuid,
            expected_attrs=['info_cache', 'system_metadata'])
    except exception.InstanceNotFound:
        return None
    instance.obj_load_attr('fault')
    return instance
