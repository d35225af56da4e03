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

"""What is remembered of a server in cell0, in the row of its request spec.

A request spec that is loaded has it too, but takes ten times as long, and a
save of it writes what others have saved meanwhile.
"""

from oslo_serialization import jsonutils

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models

#: Beside the object in its row, where the release does not look: a save by
#: stock Nova drops it.
KEY = 'nova_pending'


def _row(context, instance_uuid):
    return context.session.query(api_models.RequestSpec).filter_by(
        instance_uuid=instance_uuid)


@api_db_api.context_manager.reader
def get(context, instance_uuid):
    """Return what is remembered of a server.

    :param context: the request context
    :param instance_uuid: the server
    :returns: a dict, empty if the server is deleted or nothing is kept
    """
    row = _row(context, instance_uuid).one_or_none()
    return row and jsonutils.loads(row.spec).get(KEY) or {}


@api_db_api.context_manager.writer
def forget(context, instance_uuid, *kept):
    """Forget what was remembered for the rebuild of a server.

    :param context: the request context
    :param instance_uuid: the server, which can be deleted
    :param kept: the keys of what is still needed. If there are none, the
        server is not buried any more.
    """
    row = _row(context, instance_uuid).with_for_update().one_or_none()
    spec = row and jsonutils.loads(row.spec)
    if spec and KEY in spec:
        remembered = spec.pop(KEY)
        if kept:
            spec[KEY] = {what: value for what, value in remembered.items()
                         if what in kept}
        row.spec = jsonutils.dumps(spec)


def is_there():
    """Return the condition of a query that get() returns something."""
    return api_models.RequestSpec.spec.contains(
        '"%s": ' % KEY, autoescape=True)
