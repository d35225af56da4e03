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

import functools

from nova.objects import rebuild_context
from nova.objects import rebuilt_instance
import nova_pending

released = nova_pending.released(__name__)


@nova_pending.over(released.Instance)
class Instance:

    def save(self, expected_vm_state=None, expected_task_state=None,
             admin_state_reset=False):
        rebuilt_instance.save(self, functools.partial(
            released.Instance.save, self,
            expected_vm_state=expected_vm_state,
            expected_task_state=expected_task_state,
            admin_state_reset=admin_state_reset), admin_state_reset)

    def create(self):
        create = functools.partial(released.Instance.create, self)
        rebuild = rebuild_context.rebuild()
        if rebuild is None:
            create()
        else:
            # What an earlier build has left in the cell keeps this one out.
            rebuild.create_record(self, create)
