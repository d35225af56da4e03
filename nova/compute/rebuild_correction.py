# SPDX-License-Identifier: Apache-2.0

"""Another flavor or availability zone for a server that was never built.

From API_VERSION on a rebuild can name both. They have the same effect as if
the create had named them.
"""

import typing as ty

from nova.availability_zones import get_availability_zones
from nova import block_device
from nova.compute import flavors
from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova import objects

if ty.TYPE_CHECKING:
    from nova.compute import api as compute

#: The microversion from which a rebuild corrects the request.
API_VERSION = '2.107'


class Correction:
    """The flavor and the availability zone that a rebuild names."""

    def __init__(
        self,
        flavor_id: str | None = None,
        zone: tuple[str | None, str | None, str | None] | None = None,
    ) -> None:
        """:param flavor_id: the ID of the flavor, None to keep the flavor

        :param zone: a tuple of availability zone, forced host and forced
            node, each of them None if it is not asked for; None for those of
            the create
        """
        self.flavor_id = flavor_id
        self.zone = zone

    def find_flavor(
        self, context: nova_context.RequestContext, flavor: 'objects.Flavor',
    ) -> 'objects.Flavor':
        """Return the flavor that the server is to have.

        :param flavor: the Flavor that the server has
        :raises: FlavorNotFound if there is none that the context may use
        """
        if self.flavor_id is None:
            # A server keeps its own flavor, also if an administrator has
            # disabled the flavor since.
            flavor = flavor.obj_clone()
            flavor.disabled = False
            return flavor
        return flavors.get_flavor_by_flavor_id(
            ctxt=context, flavorid=self.flavor_id, read_deleted='no')

    def check_zone(
        self,
        api: 'compute.API',
        context: nova_context.RequestContext,
        destination: 'objects.Destination | None',
    ) -> None:
        """Check the availability zone as a create does.

        :param destination: the Destination of the create, or None
        :raises: InvalidRequest if the zone is not available, or names a host
            although the create has named a host
        """
        if self.zone is None:
            return
        zone, host, node = self.zone
        if (host or node) and destination is not None and any(
                name in destination and getattr(destination, name)
                for name in ('host', 'node')):
            raise exception.InvalidRequest(
                _('The server was created for a host, and cannot be forced '
                  'to one by its availability zone.'))
        if zone and host is None and zone not in get_availability_zones(
                context.elevated(), api.host_api, get_only_available=True):
            raise exception.InvalidRequest(
                _('The requested availability zone is not available'))

    def check_volumes(self, api: 'compute.API', volumes: list[dict]) -> None:
        """Check that volumes can be attached in the availability zone.

        :param volumes: a list of dicts of Cinder's volumes
        :raises: MismatchVolumeAZException
        """
        if self.zone is not None:
            zone, host, node = self.zone
            # The zone of the volumes counts for a server without a zone.
            self.zone = (api._validate_vol_az_for_create(zone, volumes) or
                         zone, host, node)

    def apply_to_instance(
        self, instance: 'objects.Instance', flavor: 'objects.Flavor',
    ) -> None:
        """Give an instance the flavor and the zone.

        :param instance: the Instance, unsaved
        :param flavor: what find_flavor() returned
        """
        if self.flavor_id is not None:
            instance.flavor = flavor
            instance.instance_type_id = flavor.id
            for name in 'memory_mb', 'vcpus', 'root_gb', 'ephemeral_gb':
                setattr(instance, name, getattr(flavor, name))
        if self.zone is not None:
            instance.availability_zone = self.zone[0]

    def apply_to_spec(
        self, spec: 'objects.RequestSpec', flavor: 'objects.Flavor',
    ) -> None:
        """Give a request spec the flavor and the zone.

        :param flavor: what find_flavor() returned
        """
        # The record says which flavor the server has. Another request may
        # have saved an older request spec meanwhile.
        spec.flavor = flavor
        if self.zone is not None:
            spec.availability_zone, host, node = self.zone
            spec.force_hosts = [host] if host else None
            spec.force_nodes = [node] if node else None

    def apply_to_devices(
        self,
        context: nova_context.RequestContext,
        api: 'compute.API',
        bdms: 'objects.BlockDeviceMappingList',
        before: 'objects.Flavor',
        flavor: 'objects.Flavor',
    ) -> 'objects.BlockDeviceMappingList':
        """Replace the ephemeral and swap disks that the flavor has defined.

        Disks that the owner has asked for in another way stay.

        :param bdms: the BlockDeviceMappingList, unsaved
        :param before: the Flavor that defined them
        :param flavor: the Flavor that the server is to have
        :returns: the BlockDeviceMappingList that the server is to have
        """
        if self.flavor_id is None:
            return bdms
        kept = _without_defined(
            bdms, block_device.new_format_is_ephemeral, before.ephemeral_gb)
        kept = _without_defined(
            kept, block_device.new_format_is_swap, before.swap)
        added = objects.block_device.block_device_make_list_from_dicts(
            context, api._get_flavor_defined_bdms(flavor, kept))
        return objects.BlockDeviceMappingList(
            objects=kept + list(added))


def _without_defined(bdms, is_one, size: int) -> list:
    """Leave out the disk of a kind, if it is as the flavor defines it.

    A flavor only says the size of a disk.
    """
    found = [bdm for bdm in bdms if is_one(bdm)]
    if len(found) != 1 or found[0].volume_size != size or (
            found[0].tag or found[0].disk_bus):
        return list(bdms)
    return [bdm for bdm in bdms if bdm is not found[0]]
