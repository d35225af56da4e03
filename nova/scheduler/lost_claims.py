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

"""Deletes what was claimed for servers that nobody builds any more.

A scheduler that hangs claims room when its conductor has given up. Either the
scheduler looks at the server after the claim, or the conductor deletes the
claim after the server has its place: whoever comes last finds the claim.
"""

from keystoneauth1 import exceptions as ks_exc
from oslo_log import log as logging

from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler import allocations
from nova.scheduler.client import report
from nova.scheduler import held_room

LOG = logging.getLogger(__name__)


def delete(
    context: nova_context.RequestContext,
    report_client: report.SchedulerReportClient,
    instance_uuid: str,
) -> None:
    """Delete what was claimed for a server, if nobody builds the server.

    A failure is logged only: it must not fail the build of another server.

    :param context: the request context
    :param report_client: the client of the placement service
    :param instance_uuid: the server
    """
    try:
        allocations.delete(
            context, report_client, instance_uuid,
            lambda: _is_lost(context, report_client, instance_uuid))
    except (exception.NovaException, ks_exc.ClientException) as exc:
        LOG.warning('What may be claimed for the server cannot be deleted: '
                    '%s', exc, instance_uuid=instance_uuid)


def _is_lost(context, report_client, instance_uuid):
    try:
        cell = objects.InstanceMapping.get_by_instance_uuid(
            context, instance_uuid).cell_mapping
    except exception.InstanceMappingNotFound:
        return True
    if cell is not None:
        # Room can be held for a server that waits again.
        return cell.uuid == objects.CellMapping.CELL0_UUID and (
            not held_room.find(context, report_client, instance_uuid))
    try:
        objects.BuildRequest.get_by_instance_uuid(context, instance_uuid)
    except exception.BuildRequestNotFound:
        return True
    return False
