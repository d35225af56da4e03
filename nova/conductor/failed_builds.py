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

"""Returns servers to cell0 whose build on a host has failed.

A server that came out of cell0 has waited, and a bad host must not cost it
its place. It returns when its tries are exhausted or a host has given it up,
as it was, with nothing left of the build.
"""

import threading
import time

from oslo_log import log as logging
from oslo_utils import timeutils
import sqlalchemy as sa

from nova.compute import rebuild_in_cell0
from nova.compute import vm_states
from nova.conductor import cell0
from nova.conductor import rebuild_log
from nova.conductor.tasks import cell0_claim
from nova.conductor.tasks import host_builds
from nova.conductor.tasks import return_to_cell0
import nova.conf
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import persisted_request
from nova.objects import rebuilt_instance
from nova import thread_pool_factory

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)

# A host that has not ended with a server by then is dead, in seconds.
_GRACE = 60
_LEAST = 1
_ASK_EVERY = 0.5


def return_given_up(instance):
    """Return a server soon if reschedule.give_up() was called for it.

    :param instance: the Instance, after all was cleaned up
    """
    if is_given_up(instance) and rebuilt_instance.on_given_up is not None:
        rebuilt_instance.on_given_up(instance)


def start(report_client):
    """Let this conductor return the servers whose builds are given up.

    One of a cell alone has no way to cell0: recovery finds them.

    :param report_client: the client of the placement service
    """
    if CONF.api_database.connection is not None:
        rebuilt_instance.on_given_up = Returner(report_client).add
        rebuilt_instance.on_launched = forget


class Returner:
    """Returns servers to cell0 as soon as their hosts have ended with them.

    It has one thread, and none while there is nothing to do.
    """

    def __init__(self, report_client):
        """:param report_client: the client of the placement service"""
        self.report_client = report_client
        self._waiting = {}
        self._lock = threading.Lock()
        self._runs = False

    def add(self, instance):
        """Return a server soon.

        :param instance: the Instance in its cell, whose build was given up
        """
        # Cinder asks for the token of who had it built.
        context = nova_context.RequestContext.from_dict(
            instance._context.to_dict()).elevated()
        with self._lock:
            self._waiting[instance.uuid] = context
            start, self._runs = not self._runs, True
        if start:
            thread_pool_factory.spawn(self._run)

    def _run(self):
        while True:
            with self._lock:
                waiting = dict(self._waiting)
                if not waiting:
                    self._runs = False
                    return
            for instance_uuid, context in waiting.items():
                try:
                    ended = return_if_ended(
                        context, self.report_client,
                        instance_uuid) is not False
                except Exception:
                    LOG.exception('The server, whose build failed, cannot be '
                                  'returned to cell0 now.',
                                  instance_uuid=instance_uuid)
                    ended = True  # Recovery tries again.
                if ended:
                    with self._lock:
                        self._waiting.pop(instance_uuid, None)
            time.sleep(_ASK_EVERY)


def is_given_up(instance):
    """Whether the build of a server that came out of cell0 was given up.

    :param instance: the Instance in the cell of its host
    """
    if not (rebuilt_instance.is_marked(instance) and
            instance.host is None and instance.launched_at is None):
        return False
    state = instance.vm_state, instance.task_state
    return (state == (vm_states.BUILDING, rebuilt_instance.RETURNING) or
            # Saved by a conductor that does not know of the mark.
            state == (vm_states.ERROR, None) or
            # Somebody has begun to return it.
            state == (vm_states.BUILDING, cell0_claim.CLAIM) and
            instance.fault is not None)


def is_built(instance):
    """Whether a host builds a server that came out of cell0.

    :param instance: the Instance in the cell of its host
    """
    return (instance.launched_at is None and
            instance.vm_state == vm_states.BUILDING)


def delete_mark(cctxt, instance):
    """Delete the mark of a server that cannot return to cell0 any more.

    :param cctxt: a context that is targeted at the cell of the server
    :param instance: the Instance there
    """
    row = models.InstanceSystemMetadata
    with main_db_api.get_context_manager(cctxt).writer.using(cctxt) as session:
        session.query(row).filter_by(
            instance_uuid=instance.uuid, key=rebuilt_instance.MARK,
            value=instance.system_metadata.get(rebuilt_instance.MARK)
        ).delete(synchronize_session=False)


def find_given_up(cctxt, instance_uuids):
    """Return which of some servers may have been given up in a cell."""
    row = models.Instance
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return [uuid for uuid, in session.query(row.uuid).filter(
            row.uuid.in_(instance_uuids), row.deleted == 0,
            row.host.is_(None), row.launched_at.is_(None),
            sa.or_(sa.and_(row.vm_state == vm_states.ERROR,
                           row.task_state.is_(None)),
                   sa.and_(row.vm_state == vm_states.BUILDING,
                           row.task_state == rebuilt_instance.RETURNING)))]


def return_if_ended(context, report_client, instance_uuid,
                    stale_before=None):
    """Return a server to cell0 if its host has ended with it.

    :param context: an administrator's context
    :param report_client: the client of the placement service
    :param instance_uuid: the server
    :param stale_before: as of return_to_cell0.from_cell()
    :returns: None if it is not given up, or not any more; whether it has
        returned otherwise
    """
    cell = cell0.cell_of(context, instance_uuid)
    if cell is None or cell.is_cell0():
        return None
    with nova_context.target_cell(context, cell) as cctxt:
        try:
            instance = objects.Instance.get_by_uuid(
                cctxt, instance_uuid,
                expected_attrs=['system_metadata'])
        except exception.InstanceNotFound:
            return None
        if not is_given_up(instance):
            return None
        if not _has_ended(cctxt, report_client, instance):
            return False
        if not persisted_request.load(context, instance_uuid):
            LOG.warning('The server cannot return to cell0: its build has '
                        'taken longer than its request was kept.',
                        instance=instance)
            host_builds.set_error(instance)
            return None
        reason = (instance.fault.message if instance.fault else
                  _('it was interrupted before a host had claimed room'))
    if not return_to_cell0.from_cell(
            context, report_client, cell, instance_uuid,
            exception.BuildFailed(reason=reason), stale_before,
            given_up=True):
        return None
    _end_unwatched(context, instance_uuid)
    return True


def _has_ended(cctxt, report_client, instance):
    """Whether a host does nothing with a server any more.

    It ends the event of the build, and deletes the allocations last of all.
    Those that the server is given meanwhile would go too.
    """
    updated_at = timeutils.normalize_time(instance.updated_at)
    if timeutils.is_older_than(updated_at, _GRACE):
        return True
    if not timeutils.is_older_than(updated_at, _LEAST):
        return False
    began = host_builds.first_event(cctxt, instance.uuid)
    if began and began.finish_time is None:
        return False
    return not report_client.get_allocs_for_consumer(
        cctxt, instance.uuid)['allocations']


def forget(instance):
    """Clear what was kept of a server that is launched, or is not to return.

    :param instance: the Instance
    """
    context = nova_context.get_admin_context()
    persisted_request.clear(context, instance.uuid)
    _end_unwatched(context, instance.uuid)


def _end_unwatched(context, instance_uuid):
    """End the entries of a server if no conductor looks at them."""
    if not CONF.conductor.rebuild_in_cell0_timeout:
        rebuild_log.end_all(
            context, rebuild_in_cell0.cell0(context), instance_uuid)
