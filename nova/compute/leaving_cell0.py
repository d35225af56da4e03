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

"""Finds servers that a rebuild takes out of cell0 while they are looked for.

The release looks at build requests first and at cells then, since a server
only ever goes from there to here. A rebuild goes the other way.
"""

from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova import objects
from nova.objects import build_request

# How often a list is made again. Rebuilds that do not end are no reason to.
_TRIES = 3


def show(context, mapping, look, look_again):
    """Return a server of a cell.

    :param context: the request context
    :param mapping: the InstanceMapping of the server, to a cell
    :param look: what looks in that cell
    :param look_again: what looks wherever the server is now
    :returns: what the one or the other returned
    :raises: InstanceNotFound
    """
    try:
        return look()
    except exception.InstanceNotFound:
        if not mapping.cell_mapping.is_cell0():
            raise
        if _is_in_cell0(context, mapping.instance_uuid):
            raise
    # It was set to cell0.
    nova_context.set_target_cell(context, None)
    return look_again()


def _is_in_cell0(context, instance_uuid):
    """Whether a server is mapped to cell0, or not at all any more."""
    try:
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid).cell_mapping
    except exception.InstanceMappingNotFound:
        return True
    return cell is not None and cell.is_cell0()


def find_all(context, look):
    """Return a list of servers.

    :param context: the request context
    :param look: what makes the list
    :returns: what that returned
    """
    for _try in range(_TRIES):
        with build_request.noting() as noted:
            found = look()
        # None are read for a list that cannot hold such a server.
        if not noted or not _rebuilt_since(context, noted[-1]).difference(
                instance.uuid for instance in found):
            break
    return found


@api_db_api.context_manager.reader
def _rebuilt_since(context, noted):
    """Return the IDs of the servers that have left cell0 since.

    :param noted: the IDs of the rows that there were
    """
    # One of a create has not been updated yet.
    query = context.session.query(
        api_models.BuildRequest.id,
        api_models.BuildRequest.instance_uuid).filter(
            api_models.BuildRequest.updated_at.is_not(None))
    if not context.is_admin:
        query = query.filter_by(project_id=context.project_id)
    return {row.instance_uuid for row in query if row.id not in noted}
