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

import webob.exc

from nova.compute import pending
from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)

_STATE_MAP[vm_states.PENDING] = dict(  # noqa: F821
    _STATE_MAP[vm_states.ERROR], default='PENDING')  # noqa: F821


def status_from_state(vm_state, task_state='default'):
    return released.status_from_state(pending.shown(vm_state), task_state)


def task_and_vm_state_from_status(statuses):
    if pending.is_hidden():
        statuses = [status for status in statuses
                    if status.lower() != vm_states.PENDING]
    return released.task_and_vm_state_from_status(statuses)


def raise_http_conflict_for_instance_invalid_state(exc, action, server_id):
    if 'attr' not in exc.kwargs:
        # The server is refused for something else than an attribute of its
        # state: the sentence of the exception says for what.
        raise webob.exc.HTTPConflict(explanation=exc.format_message())
    released.raise_http_conflict_for_instance_invalid_state(
        exc, action, server_id)
