# SPDX-License-Identifier: Apache-2.0

from nova.compute import vm_states
from nova import exception
from nova import objects
import nova_pending

released = nova_pending.released(__name__)


def may_have_ports_or_volumes(instance):
    # Volumes are reserved for a server as soon as it is requested, and its
    # delete must free them.
    if instance.vm_state == vm_states.PENDING:
        return True
    return released.may_have_ports_or_volumes(instance)


def is_replaced(context, instance_uuid, record_id, gone=False):
    """Whether a rebuild has replaced the record of a build.

    :param context: a context that is targeted at the cell
    :param instance_uuid: the server
    :param record_id: the ID of the record of the caller's build
    :param gone: what is returned if the cell has no record. A rebuild into
        another cell leaves none, and a user who deletes the server leaves a
        record that is marked as deleted.
    :returns: False, too, if the cell does not answer
    """
    try:
        return objects.Instance.get_by_uuid(
            context.elevated(read_deleted='yes'), instance_uuid,
            expected_attrs=[]).id != record_id
    except exception.InstanceNotFound:
        return gone
    except Exception:
        return False
