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

from oslo_db import api as oslo_db_api
from oslo_utils import timeutils

from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import objects
from nova.objects import base

#: How many of the latest actions are carried, besides the first: the create.
#: A server that waits can be rebuilt every few minutes for months.
LATEST = 20

#: The actions of a server in cell0 that have looked for a host for it.
ATTEMPTS = ('create', 'rebuild')


def pack(context, instance_uuid):
    """Return the first and the latest actions of a server, to be stored.

    :param context: a context that is targeted at the server's cell
    :param instance_uuid: the server
    :returns: a list of primitives, each action with its events
    """
    actions = objects.InstanceActionList.get_by_instance_uuid(
        context, instance_uuid).objects
    actions = actions[:LATEST] + actions[LATEST:][-1:]
    events = _events_of(context, [action.id for action in actions])
    # The oldest first: actions of one second are told apart by their row IDs.
    return [
        (action.obj_to_primitive(),
         [event.obj_to_primitive() for event in events
          if event.action_id == action.id])
        for action in reversed(actions)]


def count_attempts(packed):
    """Return how many of packed actions have looked for a host.

    :param packed: what pack() returned
    """
    return sum(action['nova_object.data']['action'] in ATTEMPTS
               for action, _events in packed)


def _events_of(context, action_ids):
    """Return the events of several actions, the latest first."""
    model = models.InstanceActionEvent
    with main_db_api.get_context_manager(context).reader.using(
            context) as session:
        return [
            objects.InstanceActionEvent._from_db_object(
                context, objects.InstanceActionEvent(), row)
            for row in session.query(model).filter(
                model.action_id.in_(action_ids), model.deleted == 0).order_by(
                    model.created_at.desc(), model.id.desc())]


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def unpack(context, instance_uuid, packed):
    """Create the actions that pack() gave, where they are not there yet.

    :param context: a context that is targeted at the server's cell
    :param instance_uuid: the server
    :param packed: what pack() returned
    """
    unpack_in_transaction(context, instance_uuid, packed)


def unpack_in_transaction(context, instance_uuid, packed):
    """Do what unpack() does in the transaction of a caller who retries it."""
    if not packed:
        return
    # An action that was created without its events would stay so.
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        there = _ids_of(session, instance_uuid)
        missing = {}
        for action, events in packed:
            action = base.NovaObject.obj_from_primitive(action)
            if _key(action) not in there:
                missing[_key(action)] = (action, events)
        if not missing:
            return
        session.execute(models.InstanceAction.__table__.insert(), [
            _values(action, models.InstanceAction)
            for action, _events in missing.values()])
        ids = _ids_of(session, instance_uuid)
        events = [
            dict(_values(base.NovaObject.obj_from_primitive(event),
                         models.InstanceActionEvent), action_id=ids[key])
            for key, (_action, events) in missing.items()
            for event in reversed(events)]
        if events:
            session.execute(
                models.InstanceActionEvent.__table__.insert(), events)


def _ids_of(session, instance_uuid):
    """Return the row IDs of the actions of a server, by what tells them."""
    model = models.InstanceAction
    return {_key(row): row.id for row in session.query(
        model.id, model.request_id, model.start_time).filter_by(
            instance_uuid=instance_uuid, deleted=0)}


def _key(action):
    return action.request_id, timeutils.normalize_time(action.start_time)


def _values(thing, model):
    """Return the columns of an action or event, but for its ID."""
    values = {}
    for column in model.__table__.columns.keys():
        if column != 'id' and column in thing:
            value = getattr(thing, column)
            # An object's times have a zone, and a column's have none.
            values[column] = (timeutils.normalize_time(value)
                              if hasattr(value, 'tzinfo') else value)
    # The column holds the ID of a deleted row, the object whether it is one.
    values['deleted'] = 0
    return values
