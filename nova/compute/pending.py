# SPDX-License-Identifier: Apache-2.0

"""Who may see the vm_state PENDING.

A request at a microversion that does not know the state is answered with ERROR
in its place. The REST API notes for each request whether the microversion
knows the state. Code that shows a vm_state to a client asks this module.
"""

import collections.abc
import contextlib
import contextvars

#: The microversion that shows PENDING.
API_VERSION = '2.105'

#: The column that is read in place of vm_state where the state is hidden.
HIDDEN_COLUMN = '_vm_state_hidden'

_hidden = contextvars.ContextVar('pending_hidden', default=False)


@contextlib.contextmanager
def hidden(yes: bool) -> collections.abc.Iterator[None]:
    """Hide the state, or show it, within a with statement.

    :param yes: whether the code within serves a client that does not know the
        state
    """
    token = _hidden.set(yes)
    try:
        yield
    finally:
        _hidden.reset(token)


def is_hidden() -> bool:
    """Whether this thread serves a client that does not know the state."""
    return _hidden.get()


def as_error(vm_state: str | None) -> str | None:
    """Return the vm_state for a client that does not know the state."""
    # nova.exception imports this module, and vm_states imports nova.exception.
    from nova.compute import vm_states
    return vm_states.ERROR if vm_state == vm_states.PENDING else vm_state


def shown(vm_state: str | None) -> str | None:
    """Return the vm_state that the client of this request may see."""
    return as_error(vm_state) if is_hidden() else vm_state


def column(name: str) -> str:
    """Return the column of instances that the client means by a filter or key.

    :param name: the name of a filter or of a sort key
    """
    if name == 'vm_state' and is_hidden():
        return HIDDEN_COLUMN
    return name
