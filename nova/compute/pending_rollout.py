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

"""Whether use_pending_state may be turned on, as far as the databases tell."""

import sqlalchemy as sa

from oslo_upgradecheck import upgradecheck
from oslo_utils import timeutils

from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.i18n import _
from nova.objects import service as service_obj

CONF = nova.conf.CONF

#: What shows a server in PENDING and what puts one there, as recorded.
API = 'nova-osapi_compute'
CONDUCTOR = 'nova-conductor'


def _read(context):
    """Read one cell, without the object model, which newer rows may not fit.

    :param context: a context that is targeted at the cell
    :returns: the records of the services, and how many servers are in PENDING
    """
    meta = sa.MetaData()
    engine = main_db_api.get_engine(context=context)
    services = sa.Table('services', meta, autoload_with=engine)
    instances = sa.Table('instances', meta, autoload_with=engine)
    with engine.connect() as conn:
        records = conn.execute(
            sa.select(services).where(
                services.c.deleted == 0,
                services.c.binary.in_((API, CONDUCTOR)))).all()
        waiting = conn.execute(
            sa.select(sa.func.count()).select_from(instances).where(
                instances.c.deleted == 0,
                instances.c.vm_state == vm_states.PENDING)).scalar()
    return records, waiting


def _is_silent(record):
    """Whether a record says that its service has stopped.

    An API does not renew its record while it runs.
    """
    if record.binary != CONDUCTOR or CONF.servicegroup_driver != 'db':
        return False
    seen = record.last_seen_up or record.created_at
    return timeutils.is_older_than(seen, CONF.service_down_time)


def _names(records):
    return ', '.join('%s on %s (record %s)' % (
        record.binary, record.host, record.uuid) for record in records)


class Rollout:
    """What the cells say of the processes that must know PENDING."""

    def __init__(self, cells):
        """Read the cells.

        :param cells: the CellMappings, that of cell0 included
        """
        results = nova_context.scatter_gather_cells(
            nova_context.get_admin_context(), cells,
            nova_context.CELL_TIMEOUT, _read)
        self.unread = []
        self.waiting = 0
        records = []
        for cell in cells:
            result = results[cell.uuid]
            if nova_context.is_cell_failure_sentinel(result):
                self.unread.append(cell.name or cell.uuid)
                continue
            records.extend(result[0])
            # Only what is buried can be PENDING.
            self.waiting += result[1] if cell.is_cell0() else 0
        records.sort(key=lambda one: (one.binary, one.host))
        self.missing = [binary for binary in (API, CONDUCTOR)
                        if binary not in {one.binary for one in records}]
        self.other_release = [
            one for one in records
            if one.version != service_obj.SERVICE_VERSION]
        self.silent = [one for one in records if _is_silent(one)]
        self.here = [one for one in records if one.host == CONF.host]
        self.elsewhere = [one for one in records
                          if one not in self.here + self.other_release]

    def _against(self):
        """Yield a sentence for each thing that the cells say against it."""
        if self.other_release:
            yield _('Not of this release, whose service version is %(ours)d: '
                    '%(those)s; upgrade and restart them.') % {
                'ours': service_obj.SERVICE_VERSION,
                'those': ', '.join('%s has %s' % (_names([one]), one.version)
                                   for one in self.other_release)}
        if self.silent:
            yield _('Not seen for more than %(seconds)d seconds: %(those)s; '
                    'see that they have nova-pending before they start '
                    'again.') % {'seconds': CONF.service_down_time,
                                 'those': _names(self.silent)}
        if self.unread:
            yield _('Not read, so nothing is known of what runs in them: '
                    '%s.') % ', '.join(self.unread)
        if self.missing:
            yield _('Not recorded in any cell that was read: '
                    '%s.') % ', '.join(self.missing)
        if self.elsewhere:
            yield _('The databases cannot tell whether nova-pending is active '
                    'in a process; all processes of a service that have the '
                    'same host name, such as WSGI workers and replicas behind '
                    'a load balancer, share one record; and an API does not '
                    'renew its record while it runs. Look up by hand: %s. '
                    'There, in the environment of the service, "nova-pending '
                    'status" must end with the exit code 0, the service must '
                    'have been restarted after nova-pending was installed, '
                    'and "GET /" of every API process must show a maximum '
                    'microversion of 2.105 or later.') % _names(self.elsewhere)
        if self.other_release or self.silent or self.elsewhere:
            yield _('The record of a host that is gone is removed with '
                    '"openstack --os-compute-api-version 2.53 compute '
                    'service delete ID".')

    def result(self):
        """Return the upgradecheck.Result, as the check documents it."""
        details = list(self._against())
        code = (upgradecheck.Code.WARNING if details
                else upgradecheck.Code.SUCCESS)
        if CONF.use_pending_state:
            verdict = _('use_pending_state is on in this configuration.')
            if self.other_release:
                code = upgradecheck.Code.FAILURE
                verdict = _('use_pending_state is on in this configuration '
                            'and must be off until everything is of this '
                            'release.')
        elif details:
            verdict = _('Do not turn use_pending_state on before this is in '
                        'order.')
        else:
            verdict = _('use_pending_state may be turned on.')
        if self.here:
            details.append(_(
                'On this host nova-pending is installed; what was started '
                'before that must be restarted: %s.') % _names(self.here))
        if self.waiting and not CONF.use_pending_state:
            code = upgradecheck.Code.WARNING
            details.append(_(
                'Servers in PENDING although use_pending_state is off in this '
                'configuration: %d. Before nova-pending is removed, run '
                '"nova-manage pending set_error".') % self.waiting)
        return upgradecheck.Result(code, ' '.join([verdict] + details))
