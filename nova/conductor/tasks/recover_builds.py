# SPDX-License-Identifier: Apache-2.0

"""Returns servers to cell0 whose build was interrupted.

A server that is in no cell has a build request. If the nova-api or the
nova-conductor that builds the server dies or hangs, the build request gets
old. One query finds the build request, and one conditional UPDATE takes it, so
that neither a slow conductor nor another recovery has the server too. A build
can only leave a record in the cell that the lease names, and allocations;
both are deleted before the server is in cell0.

A server whose build request is gone is in its cell. If its conductor dies
before it asks the first or the next host, no host ever begins. A host that
loses its conductor as it begins gives the build up, and cannot say so. One
query in each cell finds such servers: they have no host. Recovery sets them
to ERROR, where they can be deleted.
"""

import collections.abc
import datetime
import functools
import typing as ty

from oslo_db import api as oslo_db_api
from oslo_log import log as logging
from oslo_utils import timeutils
import sqlalchemy as sa

from nova.compute import task_states
from nova.compute import vm_states
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
from nova.objects import build_request as build_request_module
from nova.objects import unbuilt_instance
from nova.scheduler.client import report

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# How many build requests, and servers of each cell, a run looks at.
_LIMIT = 1000

# A shorter age, in seconds, would undo builds that are under way.
_SHORTEST = 4


class BuildInterrupted(exception.NovaException):
    msg_fmt = _("The build of the server was interrupted. It can be rebuilt.")


class NoHostBegan(exception.NovaException):
    msg_fmt = _("No host has begun to build the server. Delete the server, or "
                "have an administrator reset its state and rebuild it then.")


class Result(ty.NamedTuple):
    """How many servers a run has brought out of BUILD, and failed to."""

    recovered: int
    failed: int


class _NotBegun(ty.NamedTuple):
    """The record of a server that is on no host.

    The task state is None if a host has begun to build the server, and has not
    set itself as the host of the record.
    """

    row_id: int
    task_state: str | None


def is_pinned() -> bool:
    """Whether older conductors may be running beside this one.

    An older conductor that is late with a server destroys the mapping of the
    server, even if the server has returned to cell0 meanwhile.
    """
    return bool(CONF.upgrade_levels.conductor)


def run_in_turn(
    context: nova_context.RequestContext,
    report_client: report.SchedulerReportClient,
    seconds: int,
) -> None:
    """Recover what the options say, if this worker takes the turn.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param seconds: for how long no other worker takes the turn
    """
    rebuilds = CONF.conductor.rebuild_in_cell0_timeout
    creates = CONF.conductor.interrupted_create_timeout
    # A conductor of a cell cannot read build requests.
    if (CONF.api_database.connection is not None and (rebuilds or creates) and
            _take_turn(context, seconds - 1)):
        recover(context, report_client, rebuilds or None, creates or None)


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def _take_turn(context, seconds: int) -> bool:
    """Take the turn to recover, which one worker of all conductors has.

    The turn is noted in updated_at of the mapping of cell0, which nothing
    else reads.

    :returns: whether it was taken
    """
    row = api_models.CellMapping
    now = timeutils.utcnow()
    free = (row.uuid == objects.CellMapping.CELL0_UUID) & (
        row.updated_at.is_(None) |
        (row.updated_at <= now - datetime.timedelta(seconds=seconds)))
    # Most workers find that the turn is taken, and a read locks nothing.
    with api_db_api.context_manager.reader.using(context) as session:
        if session.query(row.id).filter(free).first() is None:
            return False
    with api_db_api.context_manager.writer.using(context) as session:
        return bool(session.query(row).filter(free).update(
            {'updated_at': now}, synchronize_session=False))


def recover(
    context: nova_context.RequestContext,
    report_client: report.SchedulerReportClient,
    rebuilds_older_than: int | None,
    creates_older_than: int | None,
) -> Result:
    """Bring servers out of BUILD whose build was asked for too long ago.

    While [upgrade_levels] conductor is set, no server is returned to cell0;
    servers in their cells go to ERROR all the same.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param rebuilds_older_than: how many seconds ago the conductor was last
        heard of, None for no rebuilds
    :param creates_older_than: how many seconds ago a create was asked for,
        or a server in its cell was to be sent to a host; None for neither
    :returns: a Result; the log says why servers could not be recovered
    """
    rebuilds, creates = _before(rebuilds_older_than), _before(
        creates_older_than)
    recovered, failed = (
        Result(0, 0) if creates is None
        else _give_up_in_cells(context, creates))
    uuids = build_request_module.interrupted(
        context, rebuilds, creates, _LIMIT)
    if uuids and is_pinned():
        LOG.warning('%d servers whose build was interrupted stay in BUILD, '
                    'because [upgrade_levels] conductor is set: remove it '
                    'when every nova-conductor is upgraded.', len(uuids))
        return Result(recovered, failed)
    returned = _one_by_one(uuids, lambda instance_uuid: _recover(
        context, report_client, instance_uuid, rebuilds, creates))
    return Result(recovered + returned.recovered, failed + returned.failed)


def _one_by_one(
    instance_uuids: collections.abc.Iterable[str],
    recover_server: collections.abc.Callable[[str], bool],
) -> Result:
    """Recover servers; one that fails must not keep back the others.

    :param recover_server: recovers a server; returns whether that was done
    """
    recovered = failed = 0
    for instance_uuid in instance_uuids:
        try:
            recovered += recover_server(instance_uuid)
        except build_request_module.LeaseLost:
            LOG.debug('The server was deleted, or somebody else has it.',
                      instance_uuid=instance_uuid)
        except Exception:
            failed += 1
            LOG.exception('The server, whose build was interrupted, could not '
                          'be recovered.', instance_uuid=instance_uuid)
    return Result(recovered, failed)


def _before(age: int | None) -> datetime.datetime | None:
    return None if age is None else timeutils.utcnow() - datetime.timedelta(
        seconds=max(age, _SHORTEST) if age > 0 else age)


def _recover(context, report_client, instance_uuid, rebuilds, creates) -> bool:
    """Return a server to cell0, if no other recovery does.

    :returns: whether that was done
    """
    try:
        build_request = objects.BuildRequest.get_by_instance_uuid(
            context, instance_uuid)
    except exception.BuildRequestNotFound:
        return False
    before = rebuilds
    if build_request.lease is None or before is None:
        before = creates
    if before is None or not build_request.take(before):
        return False
    if build_request.lease['cell'] is None:
        _purge_everywhere(context, instance_uuid)
    return_to_cell0.return_to_cell0(
        context, report_client, build_request, BuildInterrupted())
    return True


def _purge_everywhere(context, instance_uuid: str) -> None:
    """Delete the record of an interrupted create.

    Nobody has noted in which cell its conductor has created the record.

    :raises: CellTimeout if a cell that may have the record does not answer,
        InstanceExists if a host builds the server
    """
    found = nova_context.scatter_gather_skip_cell0(
        context, _has, instance_uuid)
    for cell_uuid, has in found.items():
        if nova_context.is_cell_failure_sentinel(has):
            raise exception.CellTimeout()
        if has and not unbuilt_instance.purge(
                context, objects.CellMapping.get_by_uuid(context, cell_uuid),
                instance_uuid):
            raise exception.InstanceExists(name=instance_uuid)


def _has(cctxt, instance_uuid: str) -> bool:
    row = main_models.Instance
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return session.query(row.id).filter_by(
            uuid=instance_uuid).first() is not None


def _give_up_in_cells(context, before: datetime.datetime) -> Result:
    """Set servers to ERROR that no host has begun to build.

    A cell whose database does not answer counts as a failure.

    :param before: since when nothing has happened to the servers
    """
    recovered = failed = 0
    found = nova_context.scatter_gather_skip_cell0(
        context, _not_begun, before)
    for cell_uuid, servers in found.items():
        if nova_context.is_cell_failure_sentinel(servers):
            LOG.warning('Servers of cell %s may stay in BUILD, because its '
                        'database does not answer.', cell_uuid)
            failed += 1
            continue
        result = _one_by_one(servers, functools.partial(
            _give_up, context, cell_uuid, servers))
        recovered += result.recovered
        failed += result.failed
    return Result(recovered, failed)


def _give_up(context, cell_uuid: str, servers: dict[str, _NotBegun],
             instance_uuid: str) -> bool:
    """Set a server to ERROR, if no host has begun to build it.

    The record of a server that was deleted, or is in another cell, is deleted:
    its conductor created the record after another process moved the server.

    :param servers: what _not_begun() has returned for the cell
    """
    place = build_request_module.place_of(context, instance_uuid)
    if place is not None and place.has_build_request:
        # Recovery returns the server to cell0, and purges this record.
        return False
    cell = objects.CellMapping.get_by_uuid(context, cell_uuid)
    record = servers[instance_uuid]
    if place is None or place.cell_uuid != cell_uuid:
        return unbuilt_instance.purge(
            context, cell, instance_uuid, record.row_id)
    return return_to_cell0.leave_in_error(
        context, cell, instance_uuid, record.row_id,
        NoHostBegan() if record.task_state else BuildInterrupted(),
        record.task_state)


def _not_begun(
    cctxt: nova_context.RequestContext, before: datetime.datetime,
) -> dict[str, _NotBegun]:
    """Return the servers of a cell in BUILD and on no host, by UUID."""
    row, action = main_models.Instance, main_models.InstanceAction
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return {uuid: _NotBegun(*record) for uuid, *record in session.query(
            row.uuid, row.id, row.task_state).filter(
            row.host.is_(None), row.deleted == 0,
            row.vm_state == vm_states.BUILDING,
            row.task_state.is_(None) |
            (row.task_state == task_states.SCHEDULING),
            row.updated_at.is_(None) | (row.updated_at < before),
            # A record that was not updated has the time of its create, which
            # can be long before the rebuild.
            ~sa.exists().where(action.instance_uuid == row.uuid,
                               action.start_time >= before),
        ).order_by(row.id).limit(_LIMIT)}
