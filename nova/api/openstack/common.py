# SPDX-License-Identifier: Apache-2.0

import webob

from nova.compute import pending
from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)

_STATE_MAP[vm_states.PENDING] = dict(  # noqa: F821
    _STATE_MAP[vm_states.ERROR], default='PENDING')  # noqa: F821


def status_from_state(vm_state, task_state='default'):
    vm_state = pending.shown(vm_state)
    return released.status_from_state(vm_state, task_state)


def task_and_vm_state_from_status(statuses):
    if pending.is_hidden():
        statuses = [status for status in statuses
                    if status.upper() != 'PENDING']
    return released.task_and_vm_state_from_status(statuses)


def raise_http_conflict_for_instance_invalid_state(exc, action, server_id):
    if 'attr' not in exc.kwargs:
        # The server is refused for something else than an attribute of its
        # state: the sentence of the exception says for what.
        raise webob.exc.HTTPConflict(explanation=exc.format_message())
    released.raise_http_conflict_for_instance_invalid_state(
        exc, action, server_id)
