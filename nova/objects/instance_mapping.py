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

import nova_pending
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception

released = nova_pending.released(__name__)


@nova_pending.over(released.InstanceMapping)
class InstanceMapping:

    @nova_pending.new
    @staticmethod
    @api_db_api.context_manager.writer
    def unmap(context, instance_uuid, cell_mapping):
        """Take a server out of a cell, if it is in that cell.

        The release has no way back to a mapping without a cell. Of several
        callers exactly one succeeds.

        :param context: the request context
        :param instance_uuid: the server
        :param cell_mapping: the CellMapping of the cell that it must be in
        :raises: InstanceMappingNotFound if it is not in that cell
        """
        if not context.session.query(api_models.InstanceMapping).filter_by(
                instance_uuid=instance_uuid, cell_id=cell_mapping.id).update(
                    {'cell_id': None}):
            raise exception.InstanceMappingNotFound(uuid=instance_uuid)
