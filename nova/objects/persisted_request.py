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

"""What the row of a request spec keeps for the rebuild of a server in cell0.

The networks are the field requested_networks of the RequestSpec, which stock
Nova ignores when it loads a row. What has no field, or none that a load would
give back, is the rebuild data, a dict beside the object:

requested_destination, injected_files
    of the request with which the server was to be scheduled
vm_state, actions
    of the record in cell0, while the server is on its way out of it
devices
    that the owner has named, until the server is launched

A save by stock Nova drops all of it.
"""

from oslo_db import api as oslo_db_api
from oslo_serialization import jsonutils

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova import objects

#: The key of the rebuild data in the JSON of the row. Scheduler hints, whose
#: keys are the owner's, are deeper in it.
KEY = 'nova_pending.rebuild_data'

#: The keys of the rebuild data that a server needs only on its way.
ON_THE_WAY = ('vm_state', 'actions')


def _row(context, instance_uuid):
    return context.session.query(api_models.RequestSpec).filter_by(
        instance_uuid=instance_uuid)


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
@api_db_api.context_manager.writer
def save(context, instance_uuid, request_spec):
    """Persist what a server was asked for with, as it is put into cell0.

    :param context: the request context
    :param instance_uuid: the server
    :param request_spec: the RequestSpec with which it was to be scheduled,
        for a multi-create that of the first server
    :raises: RequestSpecNotFound
    """
    row = _row(context, instance_uuid).with_for_update().one_or_none()
    if row is None:
        raise exception.RequestSpecNotFound(instance_uuid=instance_uuid)
    destination = request_spec.requested_destination
    before = jsonutils.loads(row.spec).get(KEY) or {}
    row.spec = with_rebuild_data(row.spec, request_spec, {
        # What a recovery needs if this conductor dies now.
        **{name: before[name] for name in (*ON_THE_WAY, 'attempts')
           if name in before},
        'requested_destination':
            destination and destination.obj_to_primitive(),
        'injected_files': list(request_spec.injected_files),
    })


def with_rebuild_data(spec, request_spec, rebuild_data):
    """Return the JSON of a row with what a rebuild needs.

    :param spec: the JSON
    :param request_spec: the RequestSpec that has the networks
    :param rebuild_data: the dict
    """
    spec = jsonutils.loads(spec)
    networks = (request_spec.requested_networks
                if 'requested_networks' in request_spec
                else objects.NetworkRequestList(objects=[]))
    spec['nova_object.data']['requested_networks'] = (
        networks.obj_to_primitive())
    spec[KEY] = rebuild_data
    return jsonutils.dumps(spec)


@api_db_api.context_manager.reader
def load(context, instance_uuid):
    """Return the rebuild data of a server, without the rest of its row.

    :param context: the request context
    :param instance_uuid: the server
    :returns: a dict, empty if the server is deleted or nothing is kept
    """
    row = _row(context, instance_uuid).one_or_none()
    return row and jsonutils.loads(row.spec).get(KEY) or {}


@api_db_api.context_manager.writer
def clear_in_transaction(context, instance_uuid, *names):
    """Do what clear() does in the transaction of a caller who retries it."""
    row = _row(context, instance_uuid).with_for_update().one_or_none()
    spec = row and jsonutils.loads(row.spec)
    if not spec or KEY not in spec:
        return
    for name in names:
        spec[KEY].pop(name, None)
    if not names:
        del spec[KEY]
        spec['nova_object.data'].pop('requested_networks', None)
    row.spec = jsonutils.dumps(spec)


@oslo_db_api.wrap_db_retry(max_retries=5, retry_on_deadlock=True)
def clear(context, instance_uuid, *names, cell=None):
    """Delete what a row keeps for a rebuild.

    :param context: the request context
    :param instance_uuid: the server, which can be deleted
    :param names: keys of the rebuild data. Without any the networks go too,
        and the server cannot be rebuilt in cell0 any more.
    :param cell: the CellMapping that the server must be mapped to for
        anything to be done, None if it does not matter
    """
    with api_db_api.context_manager.writer.using(context) as session:
        # The lock keeps it from leaving the cell before the commit.
        if cell is None or session.query(api_models.InstanceMapping).filter_by(
                instance_uuid=instance_uuid,
                cell_id=cell.id).with_for_update().first():
            clear_in_transaction(context, instance_uuid, *names)
