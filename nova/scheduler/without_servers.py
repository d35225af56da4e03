# SPDX-License-Identifier: Apache-2.0

"""A host as it would be if some of its servers were gone.

What these servers use is given back to the HostState that the filters look at.
Nothing is written, and the HostState is forgotten after the filters have run.
"""

import typing as ty

from nova.compute import stats
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.pci import manager as pci_manager
from nova.pci import stats as pci_stats
from nova.pci import utils as pci_utils
from nova.scheduler import host_manager
from nova.virt import hardware

# The keys of a PCI request that are no properties of a device.
_OF_REQUEST = frozenset(pci_stats.PciDeviceStats.ignored_spec_tags)

# The keys that a pool takes from the extra_info of its devices.
_OF_EXTRA_INFO = ('live_migratable', 'parent_ifname', 'rp_uuid')


def take_out(context: nova_context.RequestContext,
             state: host_manager.HostState, uuids: ty.Iterable[str]
             ) -> set[str]:
    """Give back to a host what some of its servers use.

    Disks are not given back: only the host knows how much of a disk it stores.
    Devices are not given back that the host removes once they are free.

    :param context: an administrator's context, targeted at the host's cell
    :param state: the HostState, which is changed
    :param uuids: the UUIDs of the servers
    :returns: the UUIDs of the servers that were taken out. Any other server is
        not on the host, or the host does not use what the record of the server
        says: the server or the host is about to change.
    """
    instances = objects.InstanceList.get_by_filters(
        context, {'uuid': list(uuids), 'host': state.host,
                  'node': state.nodename, 'deleted': False,
                  'soft_deleted': True},
        expected_attrs=['flavor', 'numa_topology', 'pci_requests'])
    taken = {}
    usage = stats.Stats()
    for instance in instances:
        try:
            state.numa_topology = hardware.numa_usage_from_instance_numa(
                state.numa_topology, instance.numa_topology, free=True)
        except (exception.CPUUnpinningInvalid, exception.CPUUnpinningUnknown):
            continue
        state.free_ram_mb += instance.flavor.memory_mb
        state.vcpus_used -= instance.flavor.vcpus
        usage.update_stats_for_instance(instance)
        taken[instance.uuid] = instance
    state.num_instances -= usage.num_instances
    state.num_io_ops -= usage.io_workload
    # The host manager shares the dict, so it is replaced, not changed.
    state.instances = {uuid: instance for uuid, instance
                       in state.instances.items() if uuid not in taken}
    if taken:
        _give_back_devices(context, state, taken)
    return set(taken)


def _give_back_devices(context, state, instances) -> None:
    """:param instances: the Instances that are taken out, by their UUIDs"""
    node = objects.ComputeNode.get_by_uuid(context, state.uuid)
    devices = objects.PciDeviceList.get_by_compute_node(context, node.id)
    # A physical function and its virtual functions exclude each other.
    pci_manager.PciDevTracker._build_device_tree(devices)
    for device in devices:
        if device.instance_uuid in instances and (
                pci_manager.REMOVED_WHEN_FREED not in device.extra_info):
            tags = _find_tags(device, instances[device.instance_uuid])
            for freed in device.free():
                _add(state.pci_stats.pools, freed,
                     tags if freed is device else {})


def _find_tags(device, instance) -> dict[str, ty.Any]:
    """Return the tags that a server asked for, which its device therefore has.

    Only the configuration of the host has all tags of a device.
    """
    for request in instance.pci_requests.requests:
        if request.request_id == device.request_id and len(request.spec) == 1:
            return {name: value for name, value in request.spec[0].items()
                    if name not in _OF_REQUEST}
    return {}


def _add(pools: list[pci_stats.Pool], device: 'objects.PciDevice',
         tags: dict[str, ty.Any]) -> None:
    """Add a device to its pool, or to a new pool: a host drops empty pools.

    PciDeviceStats.add_device() needs the configuration of the host.
    """
    pool = {**tags, 'address': device.parent_addr or device.address,
            **{name: getattr(device, name)
               for name in pci_stats.PciDeviceStats.pool_keys}}
    for found in pools:
        if pci_utils.pci_device_prop_match(found, [pool]):
            found['count'] += 1
            return
    pool.update({name: device.extra_info[name] for name in _OF_EXTRA_INFO
                 if name in device.extra_info}, count=1)
    pci_stats.PciDeviceStats._ensure_remote_managed_tag(device, pool)
    pools.append(pool)
