# SPDX-License-Identifier: Apache-2.0

"""Which state a server has in cell0 after its build has failed."""

from oslo_config import cfg
from oslo_log import log as logging

from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import exception
from nova import objects

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)


def is_target(context: nova_context.RequestContext) -> bool:
    """Whether a context is targeted at cell0."""
    return context.cell_uuid == objects.CellMapping.CELL0_UUID


def found_no_host(exc: Exception) -> bool:
    """Whether a build failed because no host had room.

    :param exc: why the build failed. MaxRetriesExceeded, a NoValidHost too,
        says that hosts had room and the build failed on each of them.
    """
    return (isinstance(exc, exception.NoValidHost) and
            not isinstance(exc, exception.MaxRetriesExceeded))


def use_pending_state() -> bool:
    """Return the option; a value that is not a boolean counts as off."""
    try:
        return CONF.use_pending_state
    except cfg.ConfigFileValueError as exc:
        LOG.error('Servers for which no host is found are set to ERROR: %s',
                  exc)
        return False


def vm_state_after(exc: Exception, before: str = vm_states.ERROR) -> str:
    """Return the vm_state of a server in cell0 after its build has failed.

    If there was no valid host, the option decides. After any other failure of
    a rebuild the server has the state that it had before.

    :param exc: why the build failed
    :param before: the vm_state that the server had before its rebuild
    """
    state = vm_states.PENDING if found_no_host(exc) else before
    # With the option off no server gets into PENDING, or an operator could
    # not take the last server out of it.
    return (state if state != vm_states.PENDING or use_pending_state()
            else vm_states.ERROR)
