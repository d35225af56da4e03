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

"""Tries again what a request does to a server that a rebuild has moved.

A request reads a server once and works on what it has read. A rebuild takes
the record out of cell0 behind its back, and a delete takes a record that is
gone for one that somebody else has deleted.
"""

import copy

from oslo_utils import excutils
from sqlalchemy.orm import exc as orm_exc

from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception

# What a server is shown with after an update.
_ATTRIBUTES = ('flavor', 'numa_topology', 'tags', 'services')


def delete(api, context, instance, do):
    """Delete a server, wherever it is in the end.

    :param api: the compute API
    :param context: the request context
    :param instance: the Instance as it was read
    :param do: what deletes it, a function of a context and an Instance
    """
    while True:
        try:
            do(context, instance)
        except Exception:
            # The release takes for granted that the server stays mapped.
            with excutils.save_and_reraise_exception() as raised:
                found = _elsewhere(api, context, instance)
                raised.reraise = found is None
        else:
            found = _elsewhere(api, context, instance)
        if found is None:
            return
        context, instance = found


def update(api, context, instance, do):
    """Change a server, wherever it is in the end.

    :param api: the compute API
    :param context: the request context
    :param instance: the Instance as it was read
    :param do: what changes it, a function of a context and an Instance
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


def _elsewhere(api, context, instance):
    """Look for a server that is not where it was read.

    :returns: a context and the Instance, or None if it is gone or still there
    """
    # A server that has been on a host is not rebuilt out of cell0.
    if instance.host or instance.launched_at or (
            'id' not in instance and _is_requested(context, instance.uuid)):
        return None
    context = copy.copy(context)
    nova_context.set_target_cell(context, None)
    try:
        now = api.get(context, instance.uuid,
                      expected_attrs=list(_ATTRIBUTES))
    except exception.InstanceNotFound:
        return None
    return None if _place(now) == _place(instance) else (context, now)


@api_db_api.context_manager.reader
def _is_requested(context, instance_uuid):
    """Whether a server has a build request, and so no record in any cell."""
    return context.session.query(api_models.BuildRequest.id).filter_by(
        instance_uuid=instance_uuid).first() is not None


def _place(instance):
    """Return what tells a record of a server from others of it."""
    if 'id' not in instance:
        return None
    return instance._context.cell_uuid, instance.id
