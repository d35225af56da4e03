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

"""Finds a server that a rebuild takes out of cell0 while it is looked for.

The release looks for a build request first and in a cell then, since a server
only ever goes from there to here. A rebuild goes the other way, and if no host
is found the server can be back before the look is at its end.
"""

from nova import context as nova_context
from nova import exception
from nova import objects


def get_with_retry(context, mapping, get, get_again):
    """Get a server from its cell, or from where it has gone meanwhile.

    :param context: the request context
    :param mapping: the InstanceMapping of the server, to a cell
    :param get: what looks in that cell
    :param get_again: what looks wherever the server is now
    :returns: what the one or the other returned
    :raises: InstanceNotFound
    """
    try:
        return get()
    except exception.InstanceNotFound:
        # From cell0 a rebuild takes it, and back from the cell of a host it
        # goes if no host could build it.
        now = _get_mapping(context, mapping.instance_uuid)
        if now is None:
            raise
        is_back = (now.cell_mapping is not None and
                   now.cell_mapping.uuid == mapping.cell_mapping.uuid)
        if is_back and now.queued_for_delete:
            raise
    if is_back:
        return get()
    # The context was targeted at that cell.
    nova_context.set_target_cell(context, None)
    return get_again()


def _get_mapping(context, instance_uuid):
    """Return the InstanceMapping of a server, None if it is deleted."""
    try:
        return objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid)
    except exception.InstanceMappingNotFound:
        return None
