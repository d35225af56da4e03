# SPDX-License-Identifier: Apache-2.0

from oslo_serialization import jsonutils

from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.objects import base
import nova_pending

released = nova_pending.released(__name__)

_KEY = 'nova_pending.rebuild_data'


@nova_pending.over(released.RequestSpec)
class RequestSpec:

    #: What save() persists beside the fields, for the rebuild of a server
    #: that was never built: a dict with the keys
    #:
    #: networks, destination: the primitives of requested_networks and of
    #:     requested_destination, as the create asked for them, or None
    #: personality: whether the create injected files, which are kept nowhere
    #: devices: what the owner has chosen for the devices
    #: asked_to_wait: whether the owner knows of PENDING
    #: attempts: how often a host was looked for
    #:
    #: None if that is not known. The networks and the destination are not
    #: loaded into their fields, because these fields tell the scheduler where
    #: a running server may go. The dict is replaced, not changed in place.
    rebuild_data = nova_pending.new(None)

    #: The column of the spec as it is in the row.
    stored = nova_pending.new(None)

    @nova_pending.new
    def keep_request(self, build_request):
        """Keep what the create asked for and save() would not persist.

        :param build_request: the BuildRequest of the create
        """
        destination = self.requested_destination
        self.rebuild_data = dict(
            self.rebuild_data,
            destination=destination and destination.obj_to_primitive(),
            devices=pack_devices(build_request.instance,
                                 build_request.block_device_mappings))

    @nova_pending.new
    def load_request(self):
        """Ask for the networks and the destination of the create again."""
        networks, destination = (
            value and base.NovaObject.obj_from_primitive(value) for value in (
                self.rebuild_data['networks'],
                self.rebuild_data['destination']))
        self.requested_destination = destination
        if networks is not None:
            self.requested_networks = networks

    @nova_pending.new
    def save_all(self):
        """Save all fields, even if none has changed.

        After a save that was rolled back no field counts as changed.
        """
        self.instance_uuid = self.instance_uuid
        self.save()

    @classmethod
    def from_components(
        cls, context, instance_uuid, image, flavor, numa_topology,
        pci_requests, filter_properties, instance_group, availability_zone,
        security_groups=None, project_id=None, user_id=None,
        port_resource_requests=None, request_level_params=None,
    ):
        spec = released.RequestSpec.from_components(
            context, instance_uuid, image, flavor, numa_topology,
            pci_requests, filter_properties, instance_group,
            availability_zone, security_groups=security_groups,
            project_id=project_id, user_id=user_id,
            port_resource_requests=port_resource_requests,
            request_level_params=request_level_params)
        if 'rebuild_data' in filter_properties:
            spec.rebuild_data = filter_properties['rebuild_data']
        return spec

    def save(self):
        if self._changed_fields != {'availability_zone'}:
            released.RequestSpec.save(self)
            return
        with api_db_api.context_manager.writer.using(
                self._context) as session:
            # An update of a server reads its request spec, changes the zone
            # and saves the request spec. Another request may have saved other
            # fields meanwhile. From here on other requests wait for the end of
            # this transaction.
            zone = self.availability_zone
            row = session.query(api_models.RequestSpec).filter_by(
                instance_uuid=self.instance_uuid).with_for_update().first()
            if row is not None:
                self._from_db_object(self._context, self, row)
                self.availability_zone = zone
            released.RequestSpec.save(self)

    def _get_update_primitives(self):
        updates = released.RequestSpec._get_update_primitives(self)
        if updates and self.rebuild_data is not None:
            updates['spec'] = jsonutils.dumps({
                **jsonutils.loads(updates['spec']), _KEY: self.rebuild_data})
        return updates

    @staticmethod
    def _from_db_object(context, spec, db_spec):
        spec = released.RequestSpec._from_db_object(context, spec, db_spec)
        spec.stored = db_spec['spec']
        if _KEY in spec.stored:
            spec.rebuild_data = jsonutils.loads(spec.stored).get(_KEY)
        return spec


_OF_INSTANCE = (
    'root_device_name', 'default_ephemeral_device', 'default_swap_device')
_OF_MAPPING = (
    'device_name', 'disk_bus', 'device_type', 'encryption_secret_uuid',
    'encryption_format', 'encryption_options')


def pack_devices(instance, bdms):
    """Return what the owner of a server has chosen for its devices.

    A host fills in what the owner has left open, by its driver, the image and
    the flavor. The next build may have another driver, image and flavor.

    :param instance: the Instance, which no host has had yet
    :returns: a dict that can be stored as JSON and given to restore_devices()
    """
    return {'instance': _pack(instance, _OF_INSTANCE),
            'mappings': [_pack(bdm, _OF_MAPPING) for bdm in bdms]}


def restore_devices(packed, instance, bdms):
    """Take back what a host has filled in.

    :param packed: what pack_devices() returned
    :param instance: the Instance, unsaved
    :param bdms: its BlockDeviceMappingList, in the order of its records
    :returns: False if these are not the block devices that were packed
    """
    if len(packed['mappings']) != len(bdms):
        return False
    instance.update(packed['instance'])
    for bdm, names in zip(bdms, packed['mappings']):
        bdm.update(names)
    return True


def _pack(thing, names):
    return {name: getattr(thing, name) if name in thing else None
            for name in names}
