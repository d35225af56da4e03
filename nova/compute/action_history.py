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

from nova.compute import vm_states
from nova.conductor.tasks import cross_cell_migrate
from nova.db.main import api as main_db_api
from nova import exception
from nova import objects
from nova.objects import base
from nova.objects import request_memory


def pack(context, instance_uuid):
    """Return the actions of a server in a form that can be stored.

    :param context: a context that is targeted at the server's cell
    :param instance_uuid: the server
    :returns: a list of primitives, each action with its events
    """
    # The oldest first: actions of one second are told apart by their row IDs.
    return [
        (action.obj_to_primitive(),
         [event.obj_to_primitive() for event in
          objects.InstanceActionEventList.get_by_action(context, action.id)])
        for action in reversed(objects.InstanceActionList.get_by_instance_uuid(
            context, instance_uuid).objects)]


def unpack(context, instance_uuid, packed):
    """Create the actions that pack() gave, where they are not there yet.

    :param context: a context that is targeted at the server's cell
    :param instance_uuid: the server
    :param packed: what pack() returned
    """
    # An action that was created without its events would stay so.
    with main_db_api.get_context_manager(context).writer.using(context):
        _create_missing(context, instance_uuid, packed)


def _create_missing(context, instance_uuid, packed):
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


def is_on_the_way(instance):
    """Whether a server is in no cell, so that no database has its actions.

    :param instance: the Instance as the compute API has found it
    """
    return ('id' not in instance and 'vm_state' in instance and
            instance.vm_state == vm_states.BUILDING)


def find_all(context, instance_uuid, limit=None, marker=None, filters=None):
    """Return the actions of a server that is on the way.

    As InstanceActionList.get_by_instance_uuid() does of one in a cell.
    """
    actions = [action for action, _events in reversed(list(_packed_of(
        context, instance_uuid)))]
    if marker is not None:
        request_ids = [action.request_id for action in actions]
        if marker not in request_ids:
            raise exception.MarkerNotFound(marker=marker)
        actions = actions[request_ids.index(marker) + 1:]
    since, before = (
        (filters or {}).get(key) for key in ('changes-since',
                                             'changes-before'))
    return objects.InstanceActionList(context, objects=[
        action for action in actions
        if (since is None or action.updated_at >= since) and
        (before is None or action.updated_at <= before)][:limit])


def find(context, instance_uuid, request_id):
    """Return an action of a server that is on the way, or None."""
    for action, _events in _packed_of(context, instance_uuid):
        if action.request_id == request_id:
            return action


def find_events(context, instance_uuid, action_id):
    """Return the events of an action of a server that is on the way."""
    for action, events in _packed_of(context, instance_uuid):
        if action.id == action_id:
            return objects.InstanceActionEventList(context, objects=events)


def _packed_of(context, instance_uuid):
    for action, events in request_memory.get(
            context, instance_uuid).get('actions', ()):
        yield (base.NovaObject.obj_from_primitive(action),
               [base.NovaObject.obj_from_primitive(event)
                for event in events])
