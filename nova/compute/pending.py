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

"""Who may see the vm_state PENDING.

Requests at a microversion that does not know the state see ERROR in its
place. The REST API notes which of the two it is for each request; whatever
speaks of a vm_state while the request is handled asks here.
"""

import contextvars

from nova import context_value

#: The microversion that shows PENDING.
API_VERSION = '2.105'

#: What stands for the column vm_state where the state is hidden.
HIDDEN_COLUMN = '_vm_state_hidden'

_hidden = contextvars.ContextVar('pending_hidden', default=False)


def hidden(yes):
    """Hide the state, or not, from what runs within the context manager.

    :param yes: whether what runs within serves a client that does not know
        the state
    """
    return context_value.within(_hidden, yes)


def is_hidden():
    """Whether this thread serves a request that does not know the state."""
    return _hidden.get()


def shown(vm_state):
    """Return the vm_state that the client of this request may see."""
    from nova.compute import vm_states
    if vm_state == vm_states.PENDING and is_hidden():
        return vm_states.ERROR
    return vm_state


def column(name):
    """Return the column of instances that the client means by a filter or key.

    :param name: the name of a filter or of a sort key
    """
    if name == 'vm_state' and is_hidden():
        return HIDDEN_COLUMN
    return name
