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

"""Gives a server that a build request stands for to a cell.

While a server is rebuilt out of cell0 it has a build request exactly as long
as it is mapped to no cell: both change in one transaction. Whoever deletes
the row of the build request has the server.
"""

from oslo_db import api as oslo_db_api

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova import objects
from nova.objects import fields

# What of a server a build request does not store but makes up, and what is an
# object: no user can change that while there is a build request.
_NOT_COMPARED = ('created_at', 'updated_at', 'tags')


def give(context, build_request, cell, update, save_spec=None):
    """Replace a build request by a mapping to a cell.

    :param context: the request context
    :param build_request: the BuildRequest as the record in the cell was made
        of it
    :param cell: the CellMapping of the cell that has the record
    :param update: what brings the record up to date if the server was changed
        meanwhile; it is called with the BuildRequest as it is now and a dict
        of the attributes of the server that are other than before
    :param save_spec: what is to change in the request spec in the same
        transaction, a function without arguments; it can be called twice
    :returns: whether it was this caller that had the server to give
    """
    while True:
        try:
            now = _replace(context, build_request, cell, save_spec)
        except exception.BuildRequestNotFound:
            return False
        if now is None:
            return True
        update(now, changes(build_request.instance, now.instance))
        build_request = now


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
@api_db_api.context_manager.writer
def _replace(context, build_request, cell, save_spec):
    """Do all of it, or return the BuildRequest if it has changed."""
    query = context.session.query(api_models.BuildRequest).filter_by(
        id=build_request.id)
    # The lock keeps an update out that would be lost with the row.
    row = query.with_for_update().one_or_none()
    if row is not None:
        now = objects.BuildRequest._from_db_object(
            context, objects.BuildRequest(), row)
        if changes(build_request.instance, now.instance):
            return now
    if not query.delete():
        raise exception.BuildRequestNotFound(uuid=build_request.instance_uuid)
    context.session.query(api_models.InstanceMapping).filter_by(
        instance_uuid=build_request.instance_uuid).update(
            {'cell_id': cell.id})
    if save_spec is not None:
        save_spec()


def changes(before, after):
    """Return what of a server is other than before.

    :param before: an Instance
    :param after: the same server later
    :returns: a dict of the attributes and their values after it
    """
    return {
        name: getattr(after, name)
        for name, field in objects.Instance.fields.items()
        if not isinstance(field, fields.ObjectField) and
        name not in _NOT_COMPARED and name in before and name in after and
        getattr(before, name) != getattr(after, name)}
