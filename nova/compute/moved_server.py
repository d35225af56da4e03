# SPDX-License-Identifier: Apache-2.0

"""Finds a server that a rebuild moves while a request works on it.

nova-api looks for a build request first and then for a record in a cell,
because a create turns the build request into a record. A rebuild goes the
other way. So a request may find no record of a server that exists, and a
delete would take the server for deleted.
"""

import collections.abc
import copy
import typing as ty

from oslo_utils import excutils
from sqlalchemy.orm import exc as orm_exc

from nova.compute import task_states
from nova import context as nova_context
from nova import exception
from nova import objects

if ty.TYPE_CHECKING:
    from nova.compute import api as compute

_DELETING = (task_states.DELETING, task_states.SOFT_DELETING)

_ATTRIBUTES = ('flavor', 'numa_topology', 'tags', 'services')

_Do = collections.abc.Callable[
    [nova_context.RequestContext, 'objects.Instance'], object]


def get(
    context: nova_context.RequestContext,
    mapping: 'objects.InstanceMapping',
    get_from_cell: collections.abc.Callable[[], 'objects.Instance'],
    get_anywhere: collections.abc.Callable[[], 'objects.Instance'],
) -> 'objects.Instance':
    """Get a server from its cell, or from where it is now.

    :param context: the request context
    :param mapping: the InstanceMapping of the server, to a cell
    :param get_from_cell: looks in that cell
    :param get_anywhere: looks wherever the server is now
    :returns: what the successful function returned
    :raises: InstanceNotFound
    """
    try:
        return get_from_cell()
    except exception.InstanceNotFound:
        try:
            now = objects.InstanceMapping.get_by_instance_uuid(
                context, mapping.instance_uuid)
        except exception.InstanceMappingNotFound:
            now = None
        if now is None or now.queued_for_delete:
            raise
    if now.cell_mapping is not None and (
            now.cell_mapping.uuid == mapping.cell_mapping.uuid):
        # The server is back already, or belongs to another project.
        return get_from_cell()
    # The context was targeted at that cell.
    nova_context.set_target_cell(context, None)
    return get_anywhere()


def delete(
    api: 'compute.API',
    context: nova_context.RequestContext,
    instance: 'objects.Instance',
    do: _Do,
) -> None:
    """Delete a server, wherever it is in the end.

    :param api: the compute API
    :param context: the request context
    :param instance: the Instance as it was read
    :param do: deletes an Instance
    """
    has_failed = False
    while True:
        is_record = 'id' in instance
        try:
            do(context, instance)
        except Exception:
            # A delete takes for granted that the server stays where it is.
            # A server that is back by now is deleted once more.
            with excutils.save_and_reraise_exception() as raised:
                found = _elsewhere(api, context, instance, has_failed)
                raised.reraise = found is None
            has_failed = True
        else:
            # The record has no ID any more if this request has destroyed the
            # record. If another process had, destroy() did nothing and raised
            # nothing.
            if is_record and 'id' not in instance:
                return
            # A server that had a build request may have another by now.
            found = _elsewhere(api, context, instance, is_record)
            if found is not None and found[1].task_state in _DELETING:
                return
        if found is None:
            return
        context, instance = found


def update(
    api: 'compute.API',
    context: nova_context.RequestContext,
    instance: 'objects.Instance',
    do: _Do,
) -> object:
    """Change a server, wherever it is in the end.

    :param api: the compute API
    :param context: the request context
    :param instance: the Instance as it was read
    :param do: changes an Instance
    :returns: what that returned
    """
    while True:
        try:
            return do(context, instance)
        except (exception.InstanceNotFound, orm_exc.StaleDataError):
            with excutils.save_and_reraise_exception() as raised:
                found = _elsewhere(api, context, instance)
                raised.reraise = found is None
        context, instance = found


def _elsewhere(api, context, instance, is_moved=True):
    """Look for a server that is not where it was read.

    :param is_moved: whether the server must be elsewhere
    :returns: a context and the Instance, or None if the server is gone or
        still there
    """
    # A server that has been on a host is not rebuilt out of its cell.
    if instance.host or instance.launched_at:
        return None
    context = copy.copy(context)
    nova_context.set_target_cell(context, None)
    try:
        now = api.get(context, instance.uuid,
                      expected_attrs=list(_ATTRIBUTES))
    except exception.InstanceNotFound:
        return None
    if is_moved and _place(now) == _place(instance):
        return None
    return context, now


def _place(instance: 'objects.Instance') -> tuple | None:
    """Return what tells the records of one server apart."""
    if 'id' not in instance:
        return None
    return instance._context.cell_uuid, instance.id
