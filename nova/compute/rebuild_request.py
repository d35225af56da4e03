# SPDX-License-Identifier: Apache-2.0

"""Makes the request for a server again from its record in a cell.

Request.check() asks and checks what a create asks and checks, in the same
code, so that Nova builds what the owner has asked for or nothing. It changes
nothing outside of the Request.
"""

import copy
import typing as ty

from cinderclient import exceptions as cinder_exception
from keystoneauth1 import exceptions as ks_exc
from oslo_utils import strutils

from nova.accelerator import cyborg
from nova import block_device
from nova.compute import rebuild_correction
from nova.compute import rebuild_image
from nova.compute import utils as compute_utils
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova.limit import placement as placement_limits
from nova.limit import utils as limit_utils
from nova import objects
from nova.objects import request_spec
from nova.objects import service as service_obj
from nova.objects import unbuilt_instance
from nova import quota
from nova.scheduler import held_room
from nova.scheduler import utils as scheduler_utils
from nova import utils
from nova.virt import hardware
from nova import vtpm

if ty.TYPE_CHECKING:
    from nova.compute import api as compute

CONF = nova.conf.CONF

# What the validation of a create works out from the image.
_FROM_IMAGE = ('kernel_id', 'ramdisk_id', 'os_type', 'architecture', 'vm_mode',
               'auto_disk_config', 'root_device_name', 'numa_topology',
               'pci_requests')

# The attributes of a server that was never built and is on no host.
_STATE = (('task_state', (None,)),
          ('vm_state', (vm_states.PENDING, vm_states.ERROR)),
          ('launched_at', (None,)),
          ('host', (None,)))

# A volume that is reserved for a server has one of these statuses. In-use is
# for a volume that can be attached to several servers.
_RESERVED = ('reserved', 'in-use', 'attaching', 'available')


class RequestUnknown(exception.InstanceInvalidState):
    msg_fmt = _("The %(what)s that instance %(instance_uuid)s was created "
                "with are not known, so it cannot be rebuilt: delete it and "
                "create it again.")


class PersonalityUnknown(RequestUnknown):
    msg_fmt = _("Instance %(instance_uuid)s was created with personality "
                "files, which are kept nowhere, so it cannot be rebuilt: "
                "delete it and create it again.")


class MayBeBuilt(exception.InstanceInvalidState):
    msg_fmt = _("Instance %(instance_uuid)s cannot be rebuilt now: the host "
                "that was asked to build it may still do so. Ask for the "
                "rebuild again when all compute services are upgraded.")


class OfOtherProject(exception.Forbidden):
    """The requester would own parts of the server, in place of its owner."""
    # Clients look for the words "made when it is built".
    msg_fmt = _("Instance %(instance_uuid)s has %(what)s that are made when "
                "it is built, and they would belong to the project of this "
                "request: rebuild it with a token of the project that it "
                "belongs to.")


def accelerators_of(
    context: nova_context.RequestContext, flavor: 'objects.Flavor',
) -> list['objects.RequestGroup']:
    """Return what the device profile of a flavor asks of Placement.

    :raises: DeviceProfileError if Cyborg does not answer, or does not know
        the profile
    """
    profile = flavor.extra_specs.get('accel:device_profile')
    return cyborg.get_device_profile_request_groups(
        context, profile) if profile else []


def check_known(spec: 'objects.RequestSpec') -> None:
    """Check that a request spec keeps all that its server was created with.

    :raises: RequestUnknown
    """
    if spec.rebuild_data is None:
        raise RequestUnknown(
            instance_uuid=spec.instance_uuid, what=_('networks'))
    if spec.rebuild_data['personality']:
        raise PersonalityUnknown(instance_uuid=spec.instance_uuid)


class Request:
    """The request for a server, made again from its record in a cell.

    After check() it has what a create hands to the conductor: instance (for
    the build request), request_spec, image, networks and bdms.
    """

    def __init__(
        self,
        api: 'compute.API',
        context: nova_context.RequestContext,
        instance: 'objects.Instance',
        image_href: str | None,
        changes: dict[str, ty.Any],
        correction: rebuild_correction.Correction | None = None,
    ) -> None:
        """:param api: the compute API

        :param context: the request context, targeted at the server's cell
        :param instance: the Instance as it is in the cell
        :param image_href: the ID of the image to build from, None for the
            image of the create
        :param changes: the attributes of the server that the request replaces
        :param correction: the Correction of flavor and zone, or None
        """
        self.api = api
        self.context = context
        #: Whether a volume is to be reserved for the server anew.
        self.reserve = False
        #: What failed builds have made: fields that name a volume or a secret
        #: in the stored mapping, and are None in that of the next build.
        self.made: list[tuple['objects.BlockDeviceMapping',
                              dict[str, str]]] = []
        self.record = instance
        self.image_href = image_href
        self.changes = changes
        self.correction = correction or rebuild_correction.Correction()
        # Networks, groups and quota are those of the server's owner, whoever
        # asks for the rebuild.
        self.owner = context
        if (context.project_id, context.user_id) != (
                instance.project_id, instance.user_id):
            self.owner = nova_context.RequestContext.from_dict(
                context.to_dict())
            self.owner.project_id = instance.project_id
            self.owner.user_id = instance.user_id

    def check(self) -> None:
        """Find everything that must refuse the request; change nothing.

        :raises: InstanceInvalidState, RequestUnknown or MayBeBuilt (409),
            RebuildRefused and what another rebuild raises for bad input
            (400), OverQuota or OfOtherProject (403)
        """
        for attribute, allowed in _STATE:
            if getattr(self.record, attribute) not in allowed:
                raise exception.InstanceInvalidState(
                    attr=attribute, instance_uuid=self.record.uuid,
                    state=getattr(self.record, attribute),
                    method='rebuild')
        self.make()
        if (self.oldest_compute < service_obj.KNOWS_PENDING and
                self.context.cell_uuid != objects.CellMapping.CELL0_UUID):
            # The compute service of a release does not notice that a rebuild
            # has replaced the record that the service was asked to build.
            raise MayBeBuilt(instance_uuid=self.record.uuid)
        with rebuild_image.refusals():
            self.check_quota()

    def make(self) -> None:
        """Make the instance and request_spec of the build; change nothing."""
        self._find_request_spec()
        with rebuild_image.refusals():
            # This query asks every cell, so it is made only once.
            self.oldest_compute = objects.service.\
                get_minimum_version_all_cells(self.context, ['nova-compute'])
            self._find_flavor()
            self._find_image()
            self._make_instance()
            self.check_devices()
            self._make_request_spec()

    def _find_request_spec(self) -> None:
        uuid = self.record.uuid
        try:
            self.request_spec = objects.RequestSpec.get_by_instance_uuid(
                self.context, uuid)
        except exception.RequestSpecNotFound:
            raise RequestUnknown(instance_uuid=uuid, what=_('networks'))
        #: The request spec as it is stored, if the server stays in its cell.
        self.stored_spec = copy.copy(self.request_spec)
        check_known(self.request_spec)
        self.request_spec.load_request()
        # None, as in a create, if the owner asked for no networks.
        self.networks = (self.request_spec.requested_networks
                         if 'requested_networks' in self.request_spec
                         else None)

    def _find_flavor(self) -> None:
        self.flavor = self.correction.find_flavor(
            self.context, self.record.flavor)
        self.correction.check_zone(
            self.api, self.context, self.request_spec.requested_destination)

    # The image.

    def _find_image(self) -> None:
        self.instance = unbuilt_instance.copy_of(self.record)
        self.bdms = self.correction.apply_to_devices(
            self.context, self.api, self._forget_builds(),
            self.record.flavor, self.flavor)
        self.root = self.bdms.root_bdm()
        made_from = self.record.image_ref or (
            self.root and self.root.image_id)
        self.image_id = self.image_href or made_from
        if made_from:
            _id, self.image = self.api._get_image(self.context, self.image_id)
        else:
            self.image = block_device.get_bdm_image_metadata(
                self.context, self.api.image_api, self.api.volume_api,
                self.bdms, legacy_bdm=False)
        is_replaced = self.image_href is not None and (
            self.image_href != rebuild_image.image_of(
                self.api, self.context, self.record, self.bdms))
        if is_replaced:
            self._replace_image(made_from)
        if is_replaced or self.correction.flavor_id is not None:
            # Flavor and image tell again whether disks are encrypted.
            for bdm in self.bdms:
                if bdm.is_local:
                    bdm.encrypted = False
                    bdm.encryption_format = None
        self.api._check_auto_disk_config(
            image=self.image,
            auto_disk_config=self.changes.get('auto_disk_config'))
        self.api._check_image_arch(image=self.image)
        self.api._update_ephemeral_encryption_bdms(
            self.flavor, self.image, self.bdms)
        self.api._checks_for_create_and_rebuild(
            self.context,
            # As in a create: no image is booted where a volume is.
            self.image_id if self.record.image_ref else None,
            self.image, self.flavor, self.changes.get('metadata', {}), [],
            self.root, self.oldest_compute)

    def _replace_image(self, made_from: str | None) -> None:
        """Replace the image of the create.

        :param made_from: the ID of the image of the create, None if its root
            volume was made from none
        :raises: RebuildRefused, ImageUnacceptable
        """
        root = self.root
        if root is not None and root.volume_id:
            raise rebuild_image.RebuildRefused(reason=_(
                'its root volume %s is not written to. Name no image, or '
                'delete the server and create it from another volume')
                % root.volume_id)
        if made_from is None or (
                root is not None and root.image_id != made_from):
            raise exception.ImageUnacceptable(
                image_id=self.image_href,
                reason=_('the root volume of the server is to be made from a '
                         'snapshot or from nothing'))
        properties = self.request_spec.image.properties
        before = {'properties': {
            name: getattr(properties, 'img_' + name)
            for name in ('block_device_mapping', 'bdm_v2', 'mappings')
            if 'img_' + name in properties}}
        for image in (before, self.image):
            if self.api._get_image_defined_bdms(self.flavor, image, 'vda'):
                raise exception.ImageUnacceptable(
                    image_id=self.image_href,
                    reason=_('it or the image that the server was created '
                             'from defines block devices'))
        if root is not None:
            root.image_id = self.image_id

    def _forget_builds(self) -> 'objects.BlockDeviceMappingList':
        """Take back what the hosts of failed builds have filled in.

        :returns: the block device mappings that the owner asked for
        """
        self.instance.availability_zone = self.request_spec.availability_zone
        # A host that gives up deletes a volume that is to go with the server,
        # and marks its mapping as deleted. No user can detach a volume from a
        # server that was never launched. No host has had a server of cell0.
        is_in_cell0 = self.context.cell_uuid == objects.CellMapping.CELL0_UUID
        with utils.temporary_mutation(
                self.context, read_deleted='no' if is_in_cell0 else 'yes'):
            stored = sorted(
                objects.BlockDeviceMappingList.get_by_instance_uuid(
                    self.context, self.record.uuid), key=lambda bdm: bdm.id)
        self.stored_bdms = objects.BlockDeviceMappingList(
            objects=[bdm for bdm in stored if not bdm.deleted])
        bdms = unbuilt_instance.copy_of_mappings(stored)
        if not request_spec.restore_devices(
                self.request_spec.rebuild_data['devices'], self.instance,
                bdms):
            raise RequestUnknown(
                instance_uuid=self.record.uuid, what=_('block devices'))
        for bdm, before in zip(bdms, stored):
            made = ['encryption_secret_uuid']
            if bdm.is_volume and bdm.source_type != 'volume':
                made += ['volume_id', 'attachment_id']
                bdm.volume_id = bdm.attachment_id = None
                bdm.connection_info = None
            named = {name: before[name] for name in made if before[name]}
            if named:
                self.made.append((bdm, named))
        return bdms

    # The instance.

    def _make_instance(self) -> None:
        """Make the instance of the build request, as a create does."""
        new = self.instance
        self.correction.apply_to_instance(new, self.flavor)
        if self.record.image_ref:
            new.image_ref = self.image_id
        self._apply_changes(new)
        self._validate_options(new)
        for field in _FROM_IMAGE:
            setattr(new, field, self.options[field])
        new.system_metadata = {
            key: value
            for key, value in new.system_metadata.items()
            if not key.startswith(utils.SM_IMAGE_PROP_PREFIX)}
        new.system_metadata.update(utils.get_system_metadata_from_image(
            self.image, new.flavor))
        new.system_metadata.setdefault('image_base_image_ref', new.image_ref)

    def _apply_changes(self, new: 'objects.Instance') -> None:
        changes = dict(self.changes)
        changes.pop('preserve_ephemeral', None)
        if 'key_name' in changes:
            self._change_key(new, changes.pop('key_name'))
        if 'trusted_certs' in changes:
            new.trusted_certs = self.api._retrieve_trusted_certs_object(
                self.context, changes.pop('trusted_certs'), rebuild=True)
            if new.trusted_certs and not new.image_ref:
                raise exception.CertificateValidationFailed(
                    message=_('Image certificate validation is not supported '
                              'when booting from volume'))
        new.update(changes)

    def _change_key(self, new: 'objects.Instance', name: str | None) -> None:
        # Users own keys: the key belongs to the user who asks.
        keys = [objects.KeyPair.get_by_name(
            self.context, self.context.user_id, name)] if name else []
        new.keypairs = objects.KeyPairList(objects=keys)
        new.key_name = keys[0].name if keys else None
        new.key_data = keys[0].public_key if keys else None

    def _auto_disk_config(self) -> bool | None:
        """Return what the owner chose, None if the image decides.

        A value other than the default of the image was chosen by the owner.
        """
        if 'auto_disk_config' in self.changes:
            return self.changes['auto_disk_config']
        before = strutils.bool_from_string(
            utils.get_auto_disk_config_from_instance(self.record))
        said = self.record.auto_disk_config
        return None if said == before else said

    def _validate_options(self, new: 'objects.Instance') -> None:
        """Validate as a create does, and keep the options that result."""
        groups = [group.identifier
                  for group in self.request_spec.security_groups]
        (self.options, networks_count, _key, _groups,
         self.network_metadata) = self.api._validate_and_build_base_options(
            self.owner, self.flavor, self.image, new.image_ref, None, None,
            None, new.display_name, new.display_description, new.hostname,
            # The key is stored with the server and need not exist any more.
            new.key_name, new.key_data or '', groups or ['default'],
            new.availability_zone, new.user_data, new.metadata,
            new.access_ip_v4, new.access_ip_v6, self.networks,
            new.config_drive, self._auto_disk_config(), new.reservation_id,
            1, True, self.oldest_compute)
        self.api._check_compute_service_for_mixed_instance(
            self.options['numa_topology'], self.oldest_compute)
        if networks_count < 1:
            raise exception.PortLimitExceeded()

    # The block devices.

    def check_devices(self) -> None:
        """Check all that the server is to be attached to."""
        self.check_project()
        checked, volumes = [], []
        for bdm in self.bdms:
            if bdm.volume_id:
                volumes.append(self.check_volume(bdm))
                bdm = unbuilt_instance.copy_of_mapping(bdm)
                # _validate_bdm() reserves each volume that it sees.
                bdm.volume_id = None
            checked.append(bdm)
        self.correction.check_volumes(self.api, volumes)
        self.correction.apply_to_instance(self.instance, self.flavor)
        self.api._validate_bdm(
            self.context, self.instance, self.flavor,
            objects.BlockDeviceMappingList(objects=checked),
            {self.image_id: (self.image_id, self.image)}, {})

    def check_project(self) -> None:
        """Check that the project of the server will own all that is made."""
        if self.context.project_id == self.record.project_id:
            return
        if any(bdm.is_volume and not bdm.volume_id for bdm in self.bdms):
            raise OfOtherProject(
                instance_uuid=self.record.uuid, what=_('volumes'))
        if self._has_secrets():
            raise OfOtherProject(
                instance_uuid=self.record.uuid,
                what=_('secrets, of its TPM or its disks,'))

    def _has_secrets(self) -> bool:
        """Whether a host makes secrets with the token of the request."""
        if any(bdm.is_local and bdm.encrypted for bdm in self.bdms):
            return True
        # The secrets of a deployment are made with the token of Nova.
        return vtpm.get_instance_tpm_secret_security(
            self.flavor) != 'deployment' and bool(
                hardware.get_vtpm_constraint(
                    self.flavor, objects.ImageMeta.from_dict(self.image)))

    def check_volume(
        self, bdm: 'objects.BlockDeviceMapping',
    ) -> dict[str, ty.Any]:
        """Return a volume that is still reserved for the server alone."""
        volume = self.api.volume_api.get(self.context, bdm.volume_id)
        others = set(volume.get('attachments', ())) - {
            self.record.uuid}
        if others and not volume.get('multiattach'):
            raise exception.InvalidVolume(
                reason=_('volume %s is attached to another server') %
                bdm.volume_id)
        if volume['status'] not in _RESERVED:
            raise exception.InvalidVolume(
                reason=_('volume %(id)s is in status %(status)s') % volume)
        try:
            self.api.volume_api.attachment_get(
                self.context, bdm.attachment_id)
        except (exception.VolumeAttachmentNotFound,
                cinder_exception.NotFound):
            # A host that fails to build a server gives its volumes back.
            if volume['status'] != 'available' and not volume.get(
                    'multiattach'):
                raise exception.InvalidVolume(reason=_(
                    'volume %s is not reserved for the server any more')
                    % bdm.volume_id)
            self.reserve = True
        return volume

    # The request spec.

    def _make_request_spec(self) -> None:
        spec = self.request_spec
        spec.image = objects.ImageMeta.from_dict(self.image)
        spec.numa_topology = self.options['numa_topology']
        spec.pci_requests = self.options['pci_requests']
        self.correction.apply_to_spec(spec, self.flavor)
        # Members of a multi-create are rebuilt one by one.
        spec.num_instances = 1
        self.port_resources = self.options['port_resource_requests'] or []
        spec.requested_resources = list(self.port_resources)
        spec.generate_request_groups_from_pci_requests()
        self.accelerators = accelerators_of(self.context, self.flavor)
        spec.requested_resources.extend(self.accelerators)
        spec.request_level_params = (
            self.options['request_level_params'] or
            objects.RequestLevelParams())
        if self.network_metadata:
            spec.network_metadata = self.network_metadata

    # The quota.

    def check_quota(self) -> None:
        """Check the usage that the rebuild adds.

        A server in a cell counts as an instance. If cores and RAM are counted
        in the cells, those of its flavor count, too. Placement counts what is
        allocated to the server: room that is held for it, or what an
        interrupted build has left.

        :raises: OverQuota
        """
        self.owner.uncounted = self._find_allocations()
        try:
            self._check_usage()
        finally:
            self.owner.uncounted = None

    def _find_allocations(self) -> dict[str, ty.Any] | None:
        """Return what is allocated to the server, if usage counts it."""
        if not (CONF.quota.count_usage_from_placement or
                limit_utils.use_unified_limits()):
            return None
        try:
            return held_room.get_allocations(
                self.context, self.api.placementclient, self.record.uuid)
        except ks_exc.ClientException:
            # The count of the usage fails in the same way, and says so.
            return None

    def _check_usage(self) -> None:
        project_id, user_id = self.record.project_id, self.record.user_id
        asked = {'instances': 1, 'cores': self.flavor.vcpus,
                 'ram': self.flavor.memory_mb}
        # check_deltas() counts these amounts of the server as used already.
        counted = {'instances': 1, 'cores': 0, 'ram': 0}
        if not (CONF.quota.count_usage_from_placement and
                quota._user_id_queued_for_delete_populated(
                    self.owner, project_id)):
            counted.update(cores=self.record.flavor.vcpus,
                           ram=self.record.flavor.memory_mb)
        deltas = {name: asked[name] - counted[name] for name in asked}
        # Without a quota of the user, the usage of the user is not counted.
        if not asked.keys() & objects.Quotas.get_all_by_project_and_user(
                self.owner, project_id, user_id).keys():
            user_id = None
        try:
            objects.Quotas.check_deltas(
                self.owner, deltas, project_id, user_id=user_id,
                check_project_id=project_id, check_user_id=user_id)
        except exception.OverQuota as exc:
            # Use the words of a create.
            overs, quotas = exc.kwargs['overs'], exc.kwargs['quotas']
            headroom = {
                name: quotas[name] - exc.kwargs['usages'][name] + counted[name]
                for name in overs}
            overs, req, allowed, used = compute_utils.get_over_quota_detail(
                headroom, overs, quotas, asked)
            raise exception.TooManyInstances(
                overs=overs, req=req, used=used, allowed=allowed)
        self._enforce_unified_limits()

    def _enforce_unified_limits(self) -> None:
        # Does nothing where there are no unified limits.
        placement_limits.enforce_num_instances_and_resources(
            self.owner, self.record.project_id,
            scheduler_utils.request_spec_for_limits(
                self.flavor, self.request_spec.is_bfv, self.port_resources,
                self.accelerators),
            1, 1, delta_updates={'servers': 0})
