# SPDX-License-Identifier: Apache-2.0

"""Returns servers to cell0 whose build was interrupted.

A server that is in no cell has a build request. If the nova-api or the
nova-conductor that builds the server dies or hangs, the build request gets
old: one query finds it, and one conditional UPDATE takes it, so that neither
a slow conductor nor another recovery has the server too. Nothing else can be
left of a build but a record in the cell that the lease names, and allocations;
both are deleted before the server is in cell0.
"""

import datetime
import typing as ty

from oslo_db import api as oslo_db_api
from oslo_log import log as logging
from oslo_utils import timeutils

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

# How many build requests a run looks at.
_LIMIT = 1000

# A shorter age, in seconds, would undo builds that are under way.
_SHORTEST = 4


class BuildInterrupted(exception.NovaException):
    msg_fmt = _("The build of the server was interrupted. It can be rebuilt.")


class Result(ty.NamedTuple):
    """How many servers a run has returned, and how many it could not."""

    returned: int
    failed: int


def is_pinned() -> bool:
    """Whether stock conductors may be running beside this one.

    A stock conductor that comes late with a server that has returned to cell0
    meanwhile destroys its mapping.
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
    :param seconds: how long nobody else is to have the turn
    """
    rebuilds = CONF.conductor.rebuild_in_cell0_timeout
    creates = CONF.conductor.interrupted_create_timeout
    # A conductor of a cell has no way to build requests.
    if (CONF.api_database.connection is not None and (rebuilds or creates) and
            _take_turn(context, seconds - 1)):
        recover(context, report_client, rebuilds or None, creates or None)


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def _take_turn(context, seconds):
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
    """Return the servers whose build was asked for too long ago to cell0.

    Nothing is done while [upgrade_levels] conductor is set.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param rebuilds_older_than: how many seconds ago the conductor was last
        heard of, None for no rebuilds
    :param creates_older_than: how many seconds ago a create was asked for,
        None for no creates
    :returns: a Result; the log says why servers could not be returned
    """
    rebuilds, creates = _before(rebuilds_older_than), _before(
        creates_older_than)
    uuids = build_request_module.interrupted(
        context, rebuilds, creates, _LIMIT)
    if uuids and is_pinned():
        LOG.warning('%d servers whose build was interrupted stay in BUILD, '
                    'because [upgrade_levels] conductor is set: remove it '
                    'when every nova-conductor is upgraded.', len(uuids))
        return Result(0, 0)
    returned = failed = 0
    for instance_uuid in uuids:
        # A server that cannot be returned must not keep back the others.
        try:
            returned += _recover(
                context, report_client, instance_uuid, rebuilds, creates)
        except build_request_module.LeaseLost:
            LOG.debug('The server was deleted, or somebody else has it.',
                      instance_uuid=instance_uuid)
        except Exception:
            failed += 1
            LOG.exception('The server, whose build was interrupted, could not '
                          'be returned to cell0.', instance_uuid=instance_uuid)
    return Result(returned, failed)


def _before(age):
    return None if age is None else timeutils.utcnow() - datetime.timedelta(
        seconds=max(age, _SHORTEST) if age > 0 else age)


def _recover(context, report_client, instance_uuid, rebuilds, creates):
    """Return a server to cell0, if no other recovery does.

    :returns: whether that was done
    """
    try:
        build_request = objects.BuildRequest.get_by_instance_uuid(
            context, instance_uuid)
    except exception.BuildRequestNotFound:
        return False
    before = creates if build_request.lease is None else rebuilds
    if before is None or not build_request.take(before):
        return False
    if build_request.lease['cell'] is None:
        _purge_everywhere(context, instance_uuid)
    return_to_cell0.return_to_cell0(
        context, report_client, build_request, BuildInterrupted())
    return True


def _purge_everywhere(context, instance_uuid):
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


def _has(cctxt, instance_uuid):
    row = main_models.Instance
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return session.query(row.id).filter_by(
            uuid=instance_uuid).first() is not None
