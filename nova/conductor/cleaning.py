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

"""Removes what builds of a server that is on no host have left."""

from oslo_log import log as logging

from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova import objects

LOG = logging.getLogger(__name__)


def clean_up(context, report_client, instance_uuid):
    """Delete what builds of a server have left in the cells and in placement.

    :param context: the request context
    :param report_client: the client of the placement service
    :param instance_uuid: a server that is on no host
    """
    purge(context, instance_uuid)
    report_client.delete_allocation_for_instance(
        context, instance_uuid, force=True)


def clear_the_way(context, report_client, instance_uuid):
    """Do what clean_up() does as far as it can be done, before a build.

    The build can do without the rest: no host is chosen in a cell that is
    down, and none at all without the placement service.
    """
    for cell in _cells_with_hosts(context):
        try:
            _purge_cell(context, cell, instance_uuid)
        except Exception:
            LOG.exception('Cell %s cannot be searched for what an earlier '
                          'build has left.', cell.identity,
                          instance_uuid=instance_uuid)
    give_back(context, report_client, instance_uuid)


def give_back(context, report_client, instance_uuid):
    """Delete the allocations of a server that is on no host, if possible."""
    try:
        report_client.delete_allocation_for_instance(
            context, instance_uuid, force=True)
    except Exception:
        LOG.exception('What a build has allocated cannot be given back.',
                      instance_uuid=instance_uuid)


def purge(context, instance_uuid):
    """Delete for good what builds of a server have left in the cells.

    :param context: the request context
    :param instance_uuid: a server that is on no host
    """
    for cell in _cells_with_hosts(context):
        _purge_cell(context, cell, instance_uuid)


def _cells_with_hosts(context):
    return [cell for cell in objects.CellMappingList.get_all(context)
            if not cell.is_cell0()]


def _purge_cell(context, cell, instance_uuid):
    """Delete the row of a server for good.

    One that is only marked as deleted keeps the next build out of the cell:
    the ID of a server is unique in it.
    """
    with nova_context.target_cell(context, cell) as cctxt:
        if row_of(cctxt, instance_uuid) is None:
            return
        cctxt.read_deleted = 'yes'
        try:
            main_db_api.instance_destroy(
                cctxt, instance_uuid, hard_delete=True,
                constraint=main_db_api.constraint(
                    host=main_db_api.equal_any(None)))
        except exception.InstanceNotFound:
            pass


def row_of(cctxt, instance_uuid):
    """Return the ID of the row of a server in a cell, deleted or not."""
    with main_db_api.get_context_manager(cctxt).reader.using(cctxt) as session:
        return session.query(main_models.Instance.id).filter_by(
            uuid=instance_uuid).scalar()
