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

from oslo_utils import uuidutils

from nova import exception
from nova.objects import build_request_lease
from nova.objects import rebuild_context
import nova_pending

released = nova_pending.released(__name__)


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

    #: The tags as they are in the row.
    stored_tags = nova_pending.new(None)

    def destroy(self):
        if not self.is_destroyed_early:
            released.BuildRequest.destroy(self)

    def _get_update_primitives(self):
        updates = released.BuildRequest._get_update_primitives(self)
        if 'tags' in updates and self.lease is not None:
            updates['tags'] = build_request_lease.join(
                self.lease, updates['tags'])
        # The release sets no time itself, and columns have no zone.
        return {name: value.replace(tzinfo=None)
                if isinstance(value, datetime.datetime) else value
                for name, value in updates.items()}

    @staticmethod
    def _from_db_object(context, req, db_req):
        req = released.BuildRequest._from_db_object(context, req, db_req)
        req.stored_tags = db_req['tags']
        if build_request_lease.is_in(db_req['tags']):
            req.lease = build_request_lease.load(db_req['tags'])
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
            raise build_request_lease.LeaseLost(instance_uuid=instance_uuid)
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
        return build_request_lease.save(
            self, {'owner': uuidutils.generate_uuid()}, stale_before)

    @nova_pending.new
    def renew_lease(self):
        """Keep the lease for another [conductor] rebuild_in_cell0_timeout.

        :returns: False if the server was deleted, or somebody has taken it
        """
        return build_request_lease.save(self, self.lease)

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
                now = build_request_lease.replace(self, cell, save_spec)
            except exception.BuildRequestNotFound:
                return False
            if now is None:
                self.cell = cell
                return True
            update(build_request_lease.instance_diff(
                self.instance, now.instance))
            self.instance = now.instance
            self.obj_reset_changes(['instance'])

    @nova_pending.new
    def _is_row(self, row):
        return (row.id, row.tags) == (self.id, self.stored_tags)
