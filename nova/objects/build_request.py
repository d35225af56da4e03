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

import contextlib
import datetime

from oslo_db import api as oslo_db_api
from oslo_serialization import jsonutils
from oslo_utils import timeutils
from oslo_utils import uuidutils

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova.i18n import _
from nova import objects
from nova.objects import fields
from nova.objects import rebuild_context
import nova_pending

released = nova_pending.released(__name__)

# Before the TagList in its column: the one that no update of a build request
# writes, and that stock Nova loads with it.
_LEASE = '{"nova_pending": '

# What of a server a build request does not store but makes up, and what is an
# object: no user can change that while there is a build request.
_NOT_COMPARED = ('created_at', 'updated_at', 'tags')


class LeaseLost(exception.NovaException):
    msg_fmt = _("Server %(instance_uuid)s was deleted while it was rebuilt, "
                "or its rebuild was taken over.")


@nova_pending.over(released.BuildRequest)
class BuildRequest:

    #: Whether destroy_early() has destroyed it.
    is_destroyed_early = nova_pending.new(False)

    #: Of a rebuild: who has the build request, a dict with the owner, None if
    #: nobody has it yet, and whether it was cast to conductors that may be
    #: stock ones. None for a create.
    lease = nova_pending.new(None)

    #: The CellMapping that convert_to_mapping() has mapped the server to.
    cell = nova_pending.new(None)

    # The tags as they are in the row.
    _stored_tags = nova_pending.new(None)

    def destroy(self):
        if not self.is_destroyed_early:
            released.BuildRequest.destroy(self)

    def _get_update_primitives(self):
        updates = released.BuildRequest._get_update_primitives(self)
        if 'tags' in updates and self.lease is not None:
            updates['tags'] = _with_lease(self.lease, updates['tags'])
        # The release sets no time itself, and columns have no zone.
        return {name: value.replace(tzinfo=None)
                if isinstance(value, datetime.datetime) else value
                for name, value in updates.items()}

    @staticmethod
    def _from_db_object(context, req, db_req):
        req = released.BuildRequest._from_db_object(context, req, db_req)
        req._stored_tags = db_req['tags']
        if (db_req['tags'] or '').startswith(_LEASE):
            req.lease = jsonutils.loads(db_req['tags'])['nova_pending']
        return req

    @staticmethod
    def _get_by_instance_uuid_from_db(context, instance_uuid):
        mine = rebuild_context.build_request()
        try:
            row = released.BuildRequest._get_by_instance_uuid_from_db(
                context, instance_uuid)
        except exception.BuildRequestNotFound:
            if mine is None:
                raise
            row = None
        # The released build destroys the mapping and the allocations of a
        # server without one. By then it can be back in cell0, or built.
        if mine is not None and (row is None or not mine._is_row(row)):
            raise LeaseLost(instance_uuid=instance_uuid)
        return row

    @nova_pending.new
    def destroy_early(self):
        """Destroy it now, and let a destroy() that is to come do nothing.

        One that is gone already is left for destroy() to find.
        """
        with contextlib.suppress(exception.BuildRequestNotFound):
            self.destroy()
            self.is_destroyed_early = True

    @nova_pending.new
    def take(self, stale_before=None):
        """Take the lease of a rebuild, which gives one caller the server.

        Until another one takes it, nobody else builds the server or puts it
        back into cell0.

        :param stale_before: when it must have been renewed last for it to be
            taken from who has it, a datetime. By default it must be free.
        :returns: whether it was taken
        """
        if self.lease is None or (
                stale_before is None and self.lease['owner']):
            return False
        return self._save_lease(
            {'owner': uuidutils.generate_uuid()}, stale_before)

    @nova_pending.new
    def renew_lease(self):
        """Keep the lease for another [conductor] rebuild_in_cell0_timeout.

        :returns: False if the server was deleted, or somebody has taken it
        """
        return self._save_lease(self.lease)

    @nova_pending.new
    def convert_to_mapping(self, cell, update, save_spec=None):
        """Map the server to a cell in place of this build request.

        While a server is rebuilt it has a build request exactly as long as it
        is mapped to no cell: both change in one transaction. Whoever deletes
        the row of the build request has the server.

        :param cell: the CellMapping of the cell that has a record of it
        :param update: what brings the record up to date if a user has changed
            the server meanwhile; it is called with a dict of the attributes
            that are other than before
        :param save_spec: what is to change in the request spec in the same
            transaction, a function without arguments; it can be called twice
        :returns: False if the server was deleted, or somebody has taken it
        """
        while True:
            try:
                now = self._replace(cell, save_spec)
            except exception.BuildRequestNotFound:
                return False
            if now is None:
                self.cell = cell
                return True
            update(_instance_diff(self.instance, now.instance))
            self.instance = now.instance
            self.obj_reset_changes(['instance'])

    @nova_pending.new
    @oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
    def _replace(self, cell, save_spec):
        """Do all of it, or return the BuildRequest if it has changed."""
        with api_db_api.context_manager.writer.using(
                self._context) as session:
            query = self._query(session)
            # The lock keeps an update out that would be lost with the row.
            row = query.with_for_update().one_or_none()
            if row is not None:
                now = objects.BuildRequest._from_db_object(
                    self._context, objects.BuildRequest(), row)
                if _instance_diff(self.instance, now.instance):
                    return now
            if not query.delete():
                raise exception.BuildRequestNotFound(uuid=self.instance_uuid)
            session.query(api_models.InstanceMapping).filter_by(
                instance_uuid=self.instance_uuid).update({'cell_id': cell.id})
            if save_spec is not None:
                save_spec()

    @nova_pending.new
    @oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
    def _save_lease(self, lease, stale_before=None):
        tags = _with_lease(lease, self._stored_tags)
        with api_db_api.context_manager.writer.using(
                self._context) as session:
            query = self._query(session)
            if stale_before is not None:
                query = query.filter(
                    api_models.BuildRequest.updated_at < stale_before)
            if not query.update(
                    {'tags': tags, 'updated_at': timeutils.utcnow()},
                    synchronize_session=False):
                return False
        self.lease, self._stored_tags = lease, tags
        return True

    @nova_pending.new
    def _query(self, session):
        return session.query(api_models.BuildRequest).filter_by(
            id=self.id, tags=self._stored_tags)

    @nova_pending.new
    def _is_row(self, row):
        return (row.id, row.tags) == (self.id, self._stored_tags)


def of_rebuilds(including_pinned):
    """Return the condition of a query for build requests of rebuilds.

    :param including_pinned: whether those count that any conductor may have
        been asked to build, and that none has taken
    """
    tags = api_models.BuildRequest.tags
    condition = tags.startswith(_LEASE, autoescape=True)
    if not including_pinned:
        condition &= ~tags.startswith(
            _with_lease({'owner': None, 'pinned': True}, '{}')[:-1],
            autoescape=True)
    return condition


def _with_lease(lease, tags):
    primitive = jsonutils.loads(tags)
    primitive.pop('nova_pending', None)
    return jsonutils.dumps({'nova_pending': lease, **primitive})


def _instance_diff(before, after):
    """Return a dict of what of an Instance is other than before."""
    return {
        name: getattr(after, name)
        for name, field in objects.Instance.fields.items()
        if not isinstance(field, fields.ObjectField) and
        name not in _NOT_COMPARED and name in before and name in after and
        getattr(before, name) != getattr(after, name)}
