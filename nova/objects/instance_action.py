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

from nova.compute import instance_actions
from nova.objects import base
from nova.objects import rebuild_context
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.InstanceAction)
class InstanceAction:

    @classmethod
    @base.remotable
    def action_start(cls, context, instance_uuid, action_name,
                     want_result=True):
        if (action_name == instance_actions.CREATE and
                rebuild_context.is_rebuild()):
            action_name = instance_actions.REBUILD
            # Where two actions began in one second, which is all that MySQL
            # keeps, the row that was made later is the later one.
            rebuild_context.rebuild().restore_actions(context)
        return released.InstanceAction.action_start(
            context, instance_uuid, action_name, want_result=want_result)
