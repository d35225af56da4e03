# SPDX-License-Identifier: Apache-2.0

from nova.compute import vm_states
import nova_pending

released = nova_pending.released(__name__)


def may_have_ports_or_volumes(instance):
    # Volumes are reserved for a server as soon as it is requested, and its
    # delete must free them.
    if instance.vm_state == vm_states.PENDING:
        return True
    return released.may_have_ports_or_volumes(instance)
