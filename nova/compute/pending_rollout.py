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

"""Where nova-pending is active, as services say when they start.

A service that needs nova-pending keeps a row of its own in task_log, a table
that stock Nova asks for 'instance_usage_audit' alone, beside its record in
services. It holds the service version, so that it says nothing of the next
release.
"""

import datetime

from oslo_db import api as oslo_db_api
from oslo_db import exception as db_exc
from oslo_log import log as logging
from oslo_utils import timeutils
import sqlalchemy as sa

from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova.i18n import _
from nova.objects import service as service_obj
import nova_pending_check

CONF = nova.conf.CONF

LOG = logging.getLogger(__name__)

#: What shows a server in PENDING, puts it there, and holds room for it.
SERVICES = ('nova-osapi_compute', 'nova-conductor', 'nova-scheduler')

_TASK = main_db_api.ROLLOUT_TASK
_PERIOD = datetime.datetime(1970, 1, 1)


def service_started(host, binary):
    """Record that nova-pending is active in a service, and what has drifted.

    :param host: the host name of the service
    :param binary: its name in the services table
    """
    for sentence in nova_pending_check.drift():
        LOG.warning('The release has changed below nova-pending, whose code '
                    'runs in its place: %s', sentence)
    if binary not in SERVICES:
        return
    try:
        _record(nova_context.get_admin_context(), host, binary)
    except db_exc.DBDuplicateEntry:
        LOG.debug('Another worker of %s has recorded it', binary)
    except db_exc.DBError as exc:
        LOG.warning('It could not be recorded that nova-pending is active in '
                    '%s; "nova-status upgrade check" will not know: %s',
                    binary, exc)


# Services that start together deadlock on MySQL: each has locked the gap in
# which the other one's row is to be.
@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
@main_db_api.pick_context_manager_writer
def _record(context, host, binary):
    key = {'task_name': _TASK + binary, 'host': host,
           'period_beginning': _PERIOD, 'period_ending': _PERIOD}
    values = {'state': 'active', 'message': str(service_obj.SERVICE_VERSION)}
    # db archive_deleted_rows --task-log leaves what was never updated.
    if not context.session.query(models.TaskLog).filter_by(**key).update(
            dict(values, updated_at=None)):
        context.session.add(models.TaskLog(**key, **values))


@main_db_api.pick_context_manager_writer
def clear(context):
    """Delete what the services of a cell have recorded."""
    return context.session.query(models.TaskLog).filter(
        models.TaskLog.task_name.in_([_TASK + name for name in SERVICES]),
        models.TaskLog.period_beginning == _PERIOD).delete()


def _read(context):
    """Read one cell, without the object model, which newer rows may not fit.

    :param context: a context that is targeted at the cell
    :returns: the records of the services, the (binary, host) of those in
        which nova-pending is active, and how many servers are in PENDING
    """
    meta = sa.MetaData()
    engine = main_db_api.get_engine(context=context)
    services, tasks, instances = (
        sa.Table(name, meta, autoload_with=engine)
        for name in ('services', 'task_log', 'instances'))
    with engine.connect() as conn:
        records = conn.execute(sa.select(services).where(
            services.c.deleted == 0, services.c.binary.in_(SERVICES))).all()
        active = conn.execute(sa.select(tasks.c.task_name, tasks.c.host).where(
            tasks.c.task_name.in_([_TASK + name for name in SERVICES]),
            tasks.c.period_beginning == _PERIOD,
            tasks.c.message == str(service_obj.SERVICE_VERSION))).all()
        waiting = conn.execute(
            sa.select(sa.func.count()).select_from(instances).where(
                instances.c.deleted == 0,
                instances.c.vm_state == vm_states.PENDING)).scalar()
    return (records, {(task.removeprefix(_TASK), host)
                      for task, host in active}, waiting)


def _problem(record, active):
    """Say what is against a service, as its record has it, or None."""
    if record.version != service_obj.SERVICE_VERSION:
        return _('has service version %(its)s and not %(ours)d') % {
            'its': record.version, 'ours': service_obj.SERVICE_VERSION}
    # An API does not renew its record while it runs.
    if record.binary != SERVICES[0] and CONF.servicegroup_driver == 'db' and (
            timeutils.is_older_than(record.last_seen_up or record.created_at,
                                    CONF.service_down_time)):
        return _('was not seen for %d seconds') % CONF.service_down_time
    if (record.binary, record.host) not in active:
        return _('has not started with nova-pending')


def survey(cells):
    """Ask the cells for the services that must know PENDING.

    :param cells: the CellMappings, that of cell0 included
    :returns: pairs of a service or cell and what is against it, whether a
        service is of another release, and how many servers are in PENDING
    """
    results = nova_context.scatter_gather_cells(
        nova_context.get_admin_context(), cells, nova_context.CELL_TIMEOUT,
        _read)
    problems, records, waiting = [], [], 0
    for cell in cells:
        if nova_context.is_cell_failure_sentinel(results[cell.uuid]):
            problems.append((cell.name or cell.uuid, _('could not be read')))
            continue
        found, active, count = results[cell.uuid]
        records += [(record, _problem(record, active)) for record in found]
        # Only what is in cell0 can be PENDING.
        waiting += count if cell.is_cell0() else 0
    names = {record.binary for record, _problem in records}
    problems += [(binary, _('is recorded in no cell'))
                 for binary in SERVICES if binary not in names]
    problems += sorted(
        (_('%(binary)s on %(host)s (record %(uuid)s)') % record._mapping, why)
        for record, why in records if why)
    return problems, any(
        record.version != service_obj.SERVICE_VERSION
        for record, _problem in records), waiting
