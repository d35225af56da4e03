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

"""Marks the records of servers that came out of cell0 and were never launched.

The host that is to build such a server, and the conductor of its cell, know
nothing of cell0. By the mark whoever saves the record knows that a failed
build does not end in ERROR: the server waited, and is to wait again.
"""

from oslo_log import log as logging
from oslo_utils import uuidutils

from nova.compute import task_states
from nova.compute import vm_states
from nova import exception
from nova import objects
from nova.objects import base
from nova import utils

LOG = logging.getLogger(__name__)

MARK = 'nova_pending_rebuild'

# What a build leaves in the system metadata.
_TRACES = frozenset((MARK, 'network_allocated', 'boot_roles',
                     'vtpm_secret_uuid', 'clean_attempts'))

#: The task_state of a record that is to return to cell0.
RETURNING = task_states.REBUILD_BLOCK_DEVICE_MAPPING

#: Called with the Instance once its build was given up or it was launched.
on_given_up = on_launched = None


def mark(instance):
    """Mark an Instance that is about to be created in the cell of a host.

    Each record has another value: the server can return, and come again.
    """
    instance.system_metadata = {
        **instance.system_metadata, MARK: uuidutils.generate_uuid()}


def is_marked(instance):
    """Whether an Instance came out of cell0 and was never launched."""
    return ('system_metadata' in instance and
            MARK in instance.system_metadata)


def without_traces(system_metadata):
    """Return the system metadata of a server without those of its build."""
    return {key: value for key, value in system_metadata.items()
            if key not in _TRACES}


def save(instance, released_save, admin_state_reset):
    """Save an Instance, and see what became of its build.

    :param instance: the Instance
    :param released_save: what saves it
    :param admin_state_reset: whether an administrator sets its state
    :raises: InstanceNotFound if a host begins to build, or claims room for,
        what has returned to cell0 since it was asked to, and can have been
        built elsewhere, or a conductor is about to ask one
    """
    then = None
    if _begins(instance) and not _is_there(instance):
        LOG.warning('This build of the server began before it returned to '
                    'cell0, and comes too late. A nova-compute without '
                    'nova-pending deletes all allocations of the server now: '
                    'if it runs elsewhere, see nova-manage placement '
                    'heal_allocations.', instance=instance)
        raise exception.InstanceNotFound(instance_id=instance.uuid)
    # This is on the way of each save. A host has conductors do it.
    if ('vm_state' in instance and
            instance.vm_state in (vm_states.ERROR, vm_states.ACTIVE) and
            base.NovaObject.indirection_api is None and (
                is_marked(instance) or _is_unclaimed(instance) and
                # Loads it.
                MARK in instance.system_metadata)):
        if admin_state_reset or instance.vm_state == vm_states.ACTIVE:
            instance.system_metadata = {
                key: value for key, value in instance.system_metadata.items()
                if key != MARK}
            then = on_launched
        elif instance.launched_at is None and instance.host is None:
            give_up(instance)
            then = on_given_up
    released_save()
    if then is not None:
        try:
            then(instance)
        except Exception:
            # Who saves it has nothing to do with that, and recovery does it.
            LOG.exception('What follows the build cannot be done now.',
                          instance=instance)


def _is_unclaimed(instance):
    """Whether a host sets a server to ERROR that it did not claim room for.

    That is what the release does as nova-compute begins, with no more of the
    server than its row.
    """
    # One of a build request has no context.
    return (instance.vm_state == vm_states.ERROR and
            instance._context is not None and
            instance._context.cell_uuid != objects.CellMapping.CELL0_UUID and
            'system_metadata' not in instance and
            'host' in instance and instance.host is None and
            'launched_at' in instance and instance.launched_at is None)


def _begins(instance):
    """Whether a host is about to build an Instance, to claim room for it, or
    to be asked to.
    """
    if not (base.NovaObject.indirection_api is None and
            'vm_state' in instance and
            instance.vm_state == vm_states.BUILDING and is_marked(instance)):
        return False
    changes = instance.obj_what_changed()
    return bool(
        'task_state' in changes and instance.task_state is None or
        'host' in changes and instance.host or
        # That of the next host.
        'availability_zone' in changes and instance.host is None)


def _is_there(instance):
    """Whether the record of an Instance is the one that it was made of.

    The release finds it by the ID of the server alone. One of a server that
    its owner has deleted is there: that goes on as in the release.
    """
    try:
        # That of a server that returns is deleted for good.
        with utils.temporary_mutation(instance._context, read_deleted='yes'):
            now = objects.Instance.get_by_uuid(
                instance._context, instance.uuid,
                expected_attrs=['system_metadata'])
    except exception.InstanceNotFound:
        return False
    if now.deleted:
        return True
    if is_marked(now):
        return now.system_metadata[MARK] == instance.system_metadata[MARK]
    # An administrator who resets the state takes the mark away. A build
    # that is under way goes on, as in the release.
    return now.host in (None, instance.host) and now.launched_at is None


def is_elsewhere(instance):
    """Whether a server has returned to cell0 since a host was asked for it.

    :param instance: the Instance that a host was, or is, to be asked to build
    """
    return is_marked(instance) and not _is_there(instance)


def give_up(instance):
    """Let an Instance whose build has failed return to cell0, not to ERROR."""
    instance.vm_state = vm_states.BUILDING
    instance.task_state = RETURNING
