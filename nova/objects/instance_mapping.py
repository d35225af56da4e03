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

import sqlalchemy as sa

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova.objects import rebuild_context
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.InstanceMapping)
class InstanceMapping:

    @nova_pending.new
    @staticmethod
    @api_db_api.context_manager.writer
    def unmap(context, instance_uuid, cell):
        """Map a server to no cell, if it is mapped to the one it should be.

        The release has no way back there. Of several callers exactly one
        succeeds.

        :param context: the request context
        :param instance_uuid: the server
        :param cell: the CellMapping that it must be mapped to
        :raises: InstanceMappingNotFound if it is not
        """
        if not context.session.query(api_models.InstanceMapping).filter_by(
                instance_uuid=instance_uuid, cell_id=cell.id).update(
                    {'cell_id': None}):
            raise exception.InstanceMappingNotFound(uuid=instance_uuid)

    def save(self):
        # The mapping and the build request of a rebuild change in one
        # transaction: BuildRequest.convert_to_mapping().
        if not rebuild_context.is_rebuild():
            released.InstanceMapping.save(self)

    @staticmethod
    @api_db_api.context_manager.writer
    def _destroy_in_db(context, instance_uuid):
        if rebuild_context.is_rebuild():
            # It can have been put back into cell0 behind the build's back,
            # and have been taken out of it again.
            context.session.query(api_models.InstanceMapping).filter_by(
                instance_uuid=instance_uuid, cell_id=None).filter(
                    ~sa.exists().where(
                        api_models.BuildRequest.instance_uuid ==
                        instance_uuid)).delete(synchronize_session=False)
        else:
            released.InstanceMapping._destroy_in_db(context, instance_uuid)
