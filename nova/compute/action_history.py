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

"""Carries the actions of a server from one cell's database to another's."""

from nova.conductor.tasks import cross_cell_migrate
from nova import objects
from nova.objects import base


def pack(context, instance_uuid):
    """Return the actions of a server in a form that can be stored.

    :param context: a context that is targeted at the server's cell
    :param instance_uuid: the server
    :returns: a list of primitives, each action with its events
    """
    return [
        (action.obj_to_primitive(),
         [event.obj_to_primitive() for event in
          objects.InstanceActionEventList.get_by_action(context, action.id)])
        for action in objects.InstanceActionList.get_by_instance_uuid(
            context, instance_uuid)]


def unpack(context, instance_uuid, packed):
    """Create the actions that pack() gave, where they are not there yet.

    :param context: a context that is targeted at the server's cell
    :param instance_uuid: the server
    :param packed: what pack() returned
    """
    there = {(action.request_id, action.start_time) for action in
             objects.InstanceActionList.get_by_instance_uuid(
                 context, instance_uuid)}
    for action, events in packed:
        action = base.NovaObject.obj_from_primitive(action)
        if (action.request_id, action.start_time) in there:
            continue
        cross_cell_migrate.clone_creatable_object(context, action).create()
        for event in events:
            event = base.NovaObject.obj_from_primitive(event)
            cross_cell_migrate.clone_creatable_object(
                context, event, delete_fields=['action_id']).create(
                    instance_uuid, action.request_id)
