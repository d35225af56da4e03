# SPDX-License-Identifier: Apache-2.0

"""Carries the actions of a server from one cell's database to another's."""

import typing as ty

from oslo_db import api as oslo_db_api
from oslo_utils import timeutils

from nova.compute import instance_actions
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models
from nova import objects
from nova.objects import base

#: How many of the latest actions are carried, besides the first: the create.
#: A server that waits can be rebuilt every few minutes for months.
LATEST = 20


def pack(
    context: nova_context.RequestContext, instance_uuid: str,
) -> list[tuple[dict, list[dict]]]:
    """Return the first and the latest actions of a server, to be stored.

    :param context: a context that is targeted at the server's cell
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
def unpack(
    context: nova_context.RequestContext,
    instance_uuid: str,
    packed: list[ty.Any],
    rebuild_request_id: str | None = None,
) -> None:
    """Create the actions that pack() gave.

    :param context: a context that is targeted at the server's cell
    :param instance_uuid: the server, whose record was just created
    :param packed: what pack() returned
    :param rebuild_request_id: the ID of the request whose action was recorded
        already, as a create. The action becomes a rebuild, and its row
        follows those of the others: of actions that began in the same second,
        which is all that MySQL keeps, the latest row is the latest action.
    """
    model = models.InstanceAction
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        values, events = [], {}
        for action, its_events in packed:
            action = base.NovaObject.obj_from_primitive(action)
            values.append(_values(action, model))
            events[_key(action)] = its_events
        if rebuild_request_id is not None:
            mine = session.query(model).filter_by(
                instance_uuid=instance_uuid, request_id=rebuild_request_id,
                action=instance_actions.CREATE).one()
            values.append(dict(
                {column: getattr(mine, column)
                 for column in model.__table__.columns.keys()
                 if column != 'id'}, action=instance_actions.REBUILD))
            session.delete(mine)
            session.flush()
        if not values:
            return
        session.execute(model.__table__.insert(), values)
        if not any(events.values()):
            return
        ids = _ids_of(session, instance_uuid)
        session.execute(models.InstanceActionEvent.__table__.insert(), [
            dict(_values(base.NovaObject.obj_from_primitive(event),
                         models.InstanceActionEvent), action_id=ids[key])
            for key, its_events in events.items()
            for event in reversed(its_events)])


def delete_create(
    context: nova_context.RequestContext, instance_uuid: str,
) -> None:
    """Delete the create that this request has recorded of a server."""
    with main_db_api.get_context_manager(context).writer.using(
            context) as session:
        session.query(models.InstanceAction).filter_by(
            instance_uuid=instance_uuid, request_id=context.request_id,
            action=instance_actions.CREATE).delete()


def _ids_of(session, instance_uuid: str) -> dict[tuple, int]:
    """Return the row IDs of the actions of a server, by _key()."""
    model = models.InstanceAction
    return {_key(row): row.id for row in session.query(
        model.id, model.request_id, model.start_time).filter_by(
            instance_uuid=instance_uuid, deleted=0)}


def _key(action) -> tuple:
    return action.request_id, timeutils.normalize_time(action.start_time)


def _values(thing, model) -> dict[str, ty.Any]:
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
