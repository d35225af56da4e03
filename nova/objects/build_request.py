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
import contextvars
import datetime

from nova import exception
from nova.objects import rebuild_scope
import nova_pending

released = nova_pending.released(__name__)

_noted = contextvars.ContextVar('noted_build_requests', default=None)


@contextlib.contextmanager
def noting():
    """Note which build requests are read for lists.

    :returns: within it, a list with a set of the IDs of the rows for each
        time that they were read
    """
    noted = []
    token = _noted.set(noted)
    try:
        yield noted
    finally:
        _noted.reset(token)


@nova_pending.over(released.BuildRequest)
class BuildRequest:

    #: Whether let_go() has destroyed it.
    is_let_go = nova_pending.new(False)

    def destroy(self):
        if self.is_let_go:
            return
        # The release deletes by the server, which can have a newer one.
        if rebuild_scope.is_rebuild() and not self.is_current():
            raise exception.BuildRequestNotFound(uuid=self.instance_uuid)
        released.BuildRequest.destroy(self)

    def _get_update_primitives(self):
        updates = released.BuildRequest._get_update_primitives(self)
        # The release sets no time itself, and columns have no zone.
        return {name: value.replace(tzinfo=None)
                if isinstance(value, datetime.datetime) else value
                for name, value in updates.items()}

    @nova_pending.new
    def let_go(self):
        """Destroy it now, and let a destroy() that is to come do nothing.

        One that is gone already is left for destroy() to find.
        """
        with contextlib.suppress(exception.BuildRequestNotFound):
            self.destroy()
            self.is_let_go = True

    @nova_pending.new
    def is_current(self):
        """Whether it still stands for its server, and no newer one does."""
        try:
            return type(self).get_by_instance_uuid(
                self._context, self.instance_uuid).id == self.id
        except exception.BuildRequestNotFound:
            return False


@nova_pending.over(released.BuildRequestList)
class BuildRequestList:

    @staticmethod
    def _get_all_from_db(context):
        rows = released.BuildRequestList._get_all_from_db(context)
        if _noted.get() is not None:
            _noted.get().append({row.id for row in rows})
        return rows
