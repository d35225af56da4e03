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

import contextlib
import contextvars

#: The microversion that shows PENDING.
API_VERSION = '2.105'

_hidden = contextvars.ContextVar('pending_hidden', default=False)


@contextlib.contextmanager
def hidden(yes):
    """Hide the state, or not, from what runs within the context manager.

    :param yes: whether what runs within serves a client that does not know
        the state
    """
    token = _hidden.set(yes)
    try:
        yield
    finally:
        _hidden.reset(token)


def is_hidden():
    """Whether this thread serves a request that does not know the state."""
    return _hidden.get()


def shown(vm_state):
    """Return the vm_state that the client of this request may see."""
    from nova.compute import vm_states
    if vm_state == vm_states.PENDING and is_hidden():
        return vm_states.ERROR
    return vm_state


def searched(vm_state):
    """Return the vm_states that a client means by the filter vm_state.

    :param vm_state: the value of the filter, a string
    :returns: the same value, or a list of values, empty if nothing can match
    """
    from nova.compute import vm_states
    if not is_hidden():
        return vm_state
    if vm_state.lower() == vm_states.PENDING:
        return []
    if vm_state == vm_states.ERROR:
        return [vm_states.ERROR, vm_states.PENDING]
    if vm_state.lower() == vm_states.ERROR:
        # Whether this matches is up to the collation of the database, and
        # so it must be for the state that is hidden behind it.
        return [vm_state, vm_states.PENDING.upper()]
    return vm_state
