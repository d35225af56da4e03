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

"""Sets the servers in PENDING to ERROR, for a Nova without nova-pending."""

from oslo_log import log as logging
import sqlalchemy as sa

from nova.compute import pending_rollout
from nova.compute import vm_states
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.scheduler import held_room

LOG = logging.getLogger(__name__)


def _waiting(context, *columns):
    """Return a query for columns of the servers in PENDING."""
    return main_db_api.model_query(
        context, models.Instance, columns).filter(
        models.Instance.vm_state == vm_states.PENDING)


@main_db_api.pick_context_manager_reader
def _extent(context):
    """Return how many servers are in PENDING, and the highest id."""
    return _waiting(context, sa.func.count(),
                    sa.func.max(models.Instance.id)).one()


@main_db_api.pick_context_manager_reader
def _batch(context, after, last, limit):
    """Return id, uuid and task_state of servers in PENDING, by id."""
    return _waiting(
        context, models.Instance.id, models.Instance.uuid,
        models.Instance.task_state).filter(
        models.Instance.id > after, models.Instance.id <= last).order_by(
        models.Instance.id).limit(limit).all()


class Downgrade:
    """Sets the servers in PENDING in cell0 to ERROR.

    Each server is changed by a conditional update of its own, so that a run
    can be interrupted and repeated and races with nobody.

    :ivar changed: how many servers were set to ERROR so far, or would be
    :ivar skipped: how many were left alone so far
    """

    def __init__(self, context, get_report_client, write, dry_run):
        """:param context: an admin context that is targeted at cell0

        :param get_report_client: returns the client of the placement service,
            where room can be held for the servers; a function
        :param write: called with each line that tells what is done
        :param dry_run: whether to tell only what would be done
        """
        self.context = context
        self.get_report_client = get_report_client
        self.write = write
        self.dry_run = dry_run
        self.changed = self.skipped = 0

    def run(self, batch_size):
        """Set all servers to ERROR that are in PENDING now.

        A server with a task in progress is left alone: it is being rebuilt or
        deleted.

        :param batch_size: how many servers are read at a time
        :returns: how many servers are left in PENDING, or would be
        """
        total, last = _extent(self.context)
        seen = after = 0
        while batch := _batch(self.context, after, last or 0, batch_size):
            for server in batch:
                self._look_at(server)
            seen += len(batch)
            after = batch[-1].id
            self.write((_('Servers looked at: %(seen)d of %(total)d')
                        if self.dry_run else
                        _('Servers done: %(seen)d of %(total)d')) % {
                'seen': seen, 'total': total})
        if self.dry_run:
            return self.skipped
        # Those that were put there meanwhile are left too.
        return pending_rollout.count_waiting(self.context)

    def _look_at(self, server):
        """Set a server to ERROR, or tell why not, and count it."""
        if server.task_state is not None:
            why = _('its task state is %s') % server.task_state
        else:
            why = None if self.dry_run else self._set_error(server.uuid)
        if why:
            self.skipped += 1
            self.write(_('%(uuid)s: left alone, %(why)s') % {
                'uuid': server.uuid, 'why': why})
            return
        self.changed += 1
        if self.dry_run:
            self.write(_('%s: would be set to ERROR') % server.uuid)

    def _set_error(self, uuid):
        """Set a server to ERROR, or return why it is left alone."""
        try:
            instance = objects.Instance.get_by_uuid(self.context, uuid)
            if (instance.vm_state, instance.task_state) == (
                    vm_states.PENDING, None):
                # First, or the next run would not find the server.
                if not self._drop_hold(uuid):
                    return _('the room that may be held for it cannot be '
                             'given back')
                instance.vm_state = vm_states.ERROR
                instance.save(expected_vm_state=vm_states.PENDING,
                              expected_task_state=[None])
                # A service that makes room may have held it again meanwhile.
                self._drop_hold(uuid)
                return
        except (exception.InstanceNotFound, exception.InstanceUpdateConflict):
            LOG.debug('The server has changed.', instance_uuid=uuid)
        return _('it was changed or deleted meanwhile')

    def _drop_hold(self, uuid):
        return held_room.drop_any(
            self.context, self.get_report_client, uuid)
