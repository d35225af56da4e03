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

"""Makes the request for a server again from its record in cell0.

Request.check() asks and checks what a create asks and checks, in the same
released code, so that the server is built as it was asked for or not at all.
It changes nothing outside of itself.
"""

import contextlib

from cinderclient import exceptions as cinder_exception
from oslo_utils import strutils

from nova.accelerator import cyborg
from nova import block_device
from nova.compute import power_state
from nova.compute import reimage_record
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
import nova.conf
from nova import context as nova_context
from nova import exception
from nova.i18n import _
from nova.limit import placement as placement_limits
from nova.network import model as network_model
from nova import objects
from nova import quota
from nova.scheduler import utils as scheduler_utils
from nova import utils

CONF = nova.conf.CONF

# What of the record in cell0 is not what the owner asked for: identity of the
# row, what its life there left, and what the build makes anew.
_NOT_CARRIED = frozenset((
    'id', 'created_at', 'updated_at', 'deleted', 'deleted_at', 'host', 'node',
    'compute_id', 'launched_at', 'launched_on', 'terminated_at', 'cell_name',
    'fault', 'services', 'pci_devices', 'resources', 'tags', 'ec2_ids',
    'migration_context', 'device_metadata', 'vcpu_model', 'cleaned', 'hidden',
    'info_cache', 'security_groups', 'old_flavor', 'new_flavor',
    'disable_terminate'))

# What the validation of a create works out from the image.
_FROM_IMAGE = ('kernel_id', 'ramdisk_id', 'os_type', 'architecture', 'vm_mode',
               'auto_disk_config', 'root_device_name', 'numa_topology',
               'pci_requests')

# What a server that waits in cell0 is like.
_STATE = (('task_state', (None,)),
          ('vm_state', (vm_states.PENDING, vm_states.ERROR)),
          ('launched_at', (None,)))

# What of the request spec is made anew.
_FROM_REQUEST = ('image', 'numa_topology', 'pci_requests', 'num_instances',
                 'requested_resources')

# What a create answers with 400 or 409 and a rebuild, in the release, with
# 500. None of it is a NotFound or Invalid.
_BAD_REQUESTS = (
    exception.DeviceProfileError,
    exception.FixedIpAlreadyInUse,
    exception.ImageNotAuthorized,
    exception.ImagePCINUMAPolicyForbidden,
    exception.InstanceUserDataMalformed,
    exception.MixedInstanceNotSupportByComputeService,
    exception.NoUniqueMatch)

# A volume that is reserved for a server has one of these, or in-use if it can
# be attached to several.
_RESERVED = ('reserved', 'in-use', 'attaching', 'available')


class RebuildRefused(exception.InvalidRequest):
    msg_fmt = _("The server cannot be rebuilt: %(reason)s")


class RequestUnknown(exception.InstanceInvalidState):
    msg_fmt = _("The networks and files that instance %(instance_uuid)s was "
                "created with are not known, so it cannot be rebuilt: delete "
                "it and create it again.")


class VolumesOfOtherProject(exception.Forbidden):
    msg_fmt = _("Instance %(instance_uuid)s has volumes that are made when it "
                "is built, and they would belong to the project of this "
                "request: rebuild it with a token of the project that it "
                "belongs to.")


@contextlib.contextmanager
def _refusals():
    """Answer what is wrong with the request as a bad request."""
    try:
        yield
    except (exception.InstanceNotFound, exception.InstanceInvalidState,
            RebuildRefused):
        raise
    except (exception.NotFound, exception.Invalid, *_BAD_REQUESTS) as exc:
        raise RebuildRefused(reason=exc.format_message())


def image_of(api, context, instance, bdms=None):
    """Return the image that a server is rebuilt from if none is named.

    :param api: the compute API
    :param context: the request context, targeted at the server's cell
    :param instance: the Instance, in cell0 or not
    :param bdms: its BlockDeviceMappingList, loaded if it is not given
    :returns: the ID of the image, '' if its root volume was made from none
    """
    if instance.image_ref:
        return instance.image_ref
    if bdms is None:
        bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
            context, instance.uuid)
    root = bdms.root_bdm()
    if root is None:
        return ''
    volume_id = root.volume_id
    if root.snapshot_id and not volume_id:
        volume_id = api.volume_api.get_snapshot(
            context, root.snapshot_id)['volume_id']
    if volume_id:
        volume = api.volume_api.get(context, volume_id)
        return volume.get('volume_image_metadata', {}).get('image_id', '')
    return root.image_id or ''


def current_image(api, context, instance):
    """Return the image that a server outside of cell0 is rebuilt from.

    :param api: the compute API
    :param context: the request context, targeted at the server's cell
    :param instance: the Instance
    :returns: the ID of the image, where the request names none
    :raises: RebuildRefused (400) if its root volume was made from none, or
        cannot be asked
    """
    with _refusals():
        image_id = image_of(api, context, instance)
    if not image_id:
        raise RebuildRefused(
            reason=_('its volume was made from no image, so name one'))
    return image_id


def unsaved(bdm):
    """Return a copy of a block device mapping that can be created anew."""
    copy = objects.BlockDeviceMapping(bdm._context)
    for field in objects.BlockDeviceMapping.fields:
        if field in bdm and field not in (
                'id', 'uuid', 'instance', 'created_at', 'updated_at',
                'deleted', 'deleted_at'):
            setattr(copy, field, getattr(bdm, field))
    return copy


def unsaved_bdms(instance):
    """Return copies of the block device mappings of an instance.

    :param instance: the Instance
    :returns: a BlockDeviceMappingList that can be created anew
    """
    # Devices get their names in this order; the database has none.
    return objects.BlockDeviceMappingList(objects=[
        unsaved(bdm) for bdm in sorted(
            objects.BlockDeviceMappingList.get_by_instance_uuid(
                instance._context, instance.uuid),
            key=lambda bdm: bdm.id)])


def unsaved_instance(instance):
    """Return a copy of an instance, as a build request has it.

    :param instance: an Instance that is on no host
    :returns: an Instance that is being scheduled
    """
    new = objects.Instance(instance._context)
    for field in objects.Instance.fields:
        if field not in _NOT_CARRIED:
            setattr(new, field, getattr(instance, field))
    new.vm_state = vm_states.BUILDING
    new.task_state = task_states.SCHEDULING
    new.power_state = power_state.NOSTATE
    new.progress = 0
    new.info_cache = objects.InstanceInfoCache(
        instance_uuid=new.uuid, network_info=network_model.NetworkInfo())
    new.security_groups = objects.SecurityGroupList()
    new.old_flavor = new.new_flavor = None
    return new


class Request:
    """The request for a server, made again from its record in cell0.

    After check() it has what a create hands to the conductor: instance (for
    the build request), request_spec, image, files, networks, bdms and tags.
    """

    def __init__(self, api, context, instance, image_href, files, changes):
        """:param api: the compute API

        :param context: the request context, targeted at cell0
        :param instance: the Instance as it is in cell0
        :param image_href: the ID of the image to build from, None for the
            image of the create
        :param files: personality files that replace those of the create
        :param changes: the attributes of the server that the request replaces
        """
        self.api = api
        self.context = context
        self.buried = instance
        self.image_href = image_href
        self.files = files
        self.changes = changes
        # Networks, groups and quota are those of the server's owner, whoever
        # asks for the rebuild.
        self.owner = context
        if (context.project_id, context.user_id) != (
                instance.project_id, instance.user_id):
            self.owner = nova_context.RequestContext.from_dict(
                context.to_dict())
            self.owner.project_id = instance.project_id
            self.owner.user_id = instance.user_id

    def check(self):
        """Find everything that must refuse the request; change nothing.

        :raises: InstanceInvalidState or RequestUnknown (409), RebuildRefused
            and what the released rebuild raises for bad input (400),
            OverQuota or VolumesOfOtherProject (403)
        """
        for attribute, allowed in _STATE:
            if getattr(self.buried, attribute) not in allowed:
                raise exception.InstanceInvalidState(
                    attr=attribute, instance_uuid=self.buried.uuid,
                    state=getattr(self.buried, attribute), method='rebuild')
        self._find_request_spec()
        with _refusals():
            # Once: it asks every cell.
            self.oldest_compute = objects.service.\
                get_minimum_version_all_cells(self.context, ['nova-compute'])
            self._find_image()
            self._make_instance()
            self._check_devices()
            self._make_request_spec()
            self._check_quota()
        self.tags = objects.TagList(objects=[
            objects.Tag(self.context, resource_id=self.buried.uuid,
                        tag=tag.tag) for tag in self.buried.tags])

    def _find_request_spec(self):
        try:
            self.request_spec = objects.RequestSpec.get_by_instance_uuid(
                self.context, self.buried.uuid)
        except exception.RequestSpecNotFound:
            raise RequestUnknown(instance_uuid=self.buried.uuid)
        if not self.request_spec.is_buried:
            raise RequestUnknown(instance_uuid=self.buried.uuid)
        self.networks = self.request_spec.recall_request()
        self.files = self.files or self.request_spec.injected_files

    # The image.

    def _find_image(self):
        self.bdms = unsaved_bdms(self.buried)
        self.root = self.bdms.root_bdm()
        made_from = self.buried.image_ref or (self.root and self.root.image_id)
        self.image_id = self.image_href or made_from
        self.replaces_image = self.image_href is not None and (
            self.image_href != image_of(
                self.api, self.context, self.buried, self.bdms))
        self.reimages = (
            self.image_href is not None and self._has_volume() and
            (self.replaces_image or self.api.volume_api.get(
                self.context, self.root.volume_id)['status'] in (
                    'error', 'available')))
        if made_from or self.reimages:
            _id, self.image = self.api._get_image(self.context, self.image_id)
        else:
            self.image = block_device.get_bdm_image_metadata(
                self.context, self.api.image_api, self.api.volume_api,
                self.bdms, legacy_bdm=False)
        if self.replaces_image and not self.reimages:
            self._replace_image(made_from)
        self.api._check_auto_disk_config(
            image=self.image,
            auto_disk_config=self.changes.get('auto_disk_config'))
        self.api._check_image_arch(image=self.image)
        self.api._update_ephemeral_encryption_bdms(
            self.buried.flavor, self.image, self.bdms)
        self.api._checks_for_create_and_rebuild(
            self.context,
            # As in a create: no image is booted where a volume is.
            self.image_id if self.buried.image_ref or self.reimages else None,
            self.image, self.buried.flavor, self.changes.get('metadata', {}),
            self.files, self.root, self.oldest_compute)

    def _has_volume(self):
        """Whether the root is a volume that was there before the server."""
        return bool(self.root and self.root.source_type == 'volume' and
                    self.root.volume_id and not self.buried.image_ref)

    def _replace_image(self, made_from):
        """Put another image where the one of the create was."""
        if made_from is None or (
                self.root is not None and self.root.image_id != made_from):
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
            if self.api._get_image_defined_bdms(
                    self.buried.flavor, image, 'vda'):
                raise exception.ImageUnacceptable(
                    image_id=self.image_href,
                    reason=_('it or the image that the server was created '
                             'from defines block devices'))
        if self.root is not None:
            self.root.image_id = self.image_id
        for bdm in self.bdms:
            if bdm.is_local:
                bdm.encrypted = False
                bdm.encryption_format = None

    # The instance.

    def _make_instance(self):
        """Make the instance of the build request, as a create does."""
        new = self.instance = unsaved_instance(self.buried)
        if self.buried.image_ref:
            new.image_ref = self.image_id
        self._apply_changes(new)
        self._validate_options(new)
        for field in _FROM_IMAGE:
            setattr(new, field, self.options[field])
        new.system_metadata = {
            key: value for key, value in self.buried.system_metadata.items()
            if not key.startswith(utils.SM_IMAGE_PROP_PREFIX)}
        new.system_metadata.update(utils.get_system_metadata_from_image(
            self.image, new.flavor))
        new.system_metadata.setdefault('image_base_image_ref', new.image_ref)

    def _apply_changes(self, new):
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

    def _change_key(self, new, name):
        # Users own keys; as in the released rebuild, the one who asks.
        keys = [objects.KeyPair.get_by_name(
            self.context, self.context.user_id, name)] if name else []
        new.keypairs = objects.KeyPairList(objects=keys)
        new.key_name = keys[0].name if keys else None
        new.key_data = keys[0].public_key if keys else None

    def _auto_disk_config(self):
        """Return what the owner said of the disk, None if it is the image's.

        What is not the default of the image was said.
        """
        if 'auto_disk_config' in self.changes:
            return self.changes['auto_disk_config']
        before = strutils.bool_from_string(
            utils.get_auto_disk_config_from_instance(self.buried))
        said = self.buried.auto_disk_config
        return None if said == before else said

    def _validate_options(self, new):
        """Validate as a create does, and keep what it works out."""
        flavor = new.flavor.obj_clone()
        # Whoever has a server of a flavor may rebuild it, as in the release.
        flavor.disabled = False
        groups = [group.identifier
                  for group in self.request_spec.security_groups]
        (self.options, networks_count, _key, _groups,
         self.network_metadata) = self.api._validate_and_build_base_options(
            self.owner, flavor, self.image, new.image_ref, None, None, None,
            new.display_name, new.display_description, new.hostname,
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

    def _check_devices(self):
        """Check all that the server is to be attached to."""
        if self.context.project_id != self.buried.project_id and any(
                bdm.is_volume and not bdm.volume_id for bdm in self.bdms):
            raise VolumesOfOtherProject(instance_uuid=self.buried.uuid)
        checked = []
        for bdm in self.bdms:
            if bdm.volume_id:
                self._check_volume(bdm)
                bdm = unsaved(bdm)
                # Or it would be reserved once more.
                bdm.volume_id = None
            checked.append(bdm)
        self.api._validate_bdm(
            self.context, self.instance, self.buried.flavor,
            objects.BlockDeviceMappingList(objects=checked),
            {self.image_id: (self.image_id, self.image)}, {})

    def _check_volume(self, bdm):
        """Check that a volume is still reserved for the server alone."""
        volume = self.api.volume_api.get(self.context, bdm.volume_id)
        others = set(volume.get('attachments', ())) - {self.buried.uuid}
        if others and not volume.get('multiattach'):
            raise exception.InvalidVolume(
                reason=_('volume %s is attached to another server') %
                bdm.volume_id)
        allowed = _RESERVED
        if self.reimages and bdm.volume_id == self.root.volume_id:
            # Cinder re-images none that could be attached elsewhere.
            allowed = ('reserved', 'error', 'available')
        if volume['status'] not in allowed:
            raise exception.InvalidVolume(
                reason=_('volume %(id)s is in status %(status)s') % volume)
        try:
            self.api.volume_api.attachment_get(
                self.context, bdm.attachment_id)
        except (exception.VolumeAttachmentNotFound,
                cinder_exception.NotFound):
            if not (self.reimages and reimage_record.is_left_in_cell0(
                    self.context, self.api.volume_api, self.buried, bdm,
                    volume['status'])):
                raise exception.InvalidVolume(
                    reason=_('volume %s is not reserved for the server any '
                             'more') % bdm.volume_id)

    # The request spec.

    def _make_request_spec(self):
        spec = self.request_spec
        self._before = {name: getattr(spec, name) for name in _FROM_REQUEST}
        self._remembered = spec.remembered
        spec.image = objects.ImageMeta.from_dict(self.image)
        spec.numa_topology = self.options['numa_topology']
        spec.pci_requests = self.options['pci_requests']
        # Members of a multi-create are rebuilt one by one.
        spec.num_instances = 1
        self.port_resources = self.options['port_resource_requests'] or []
        spec.requested_resources = list(self.port_resources)
        spec.generate_request_groups_from_pci_requests()
        profile = self.buried.flavor.extra_specs.get('accel:device_profile')
        self.accelerators = cyborg.get_device_profile_request_groups(
            self.context, profile) if profile else []
        spec.requested_resources.extend(self.accelerators)
        spec.request_level_params = (
            self.options['request_level_params'] or
            objects.RequestLevelParams())
        if self.network_metadata:
            spec.network_metadata = self.network_metadata

    def restore_request_spec(self):
        """Undo what check() has done to the request spec, but for its save."""
        for name, value in self._before.items():
            setattr(self.request_spec, name, value)
        self.request_spec.remembered = self._remembered

    # The quota.

    def _check_quota(self):
        """Check what is not counted yet.

        A server in cell0 is an instance, and where cores and RAM are counted
        in the cells they are counted in cell0 too. Placement knows nothing of
        it.
        """
        flavor = self.buried.flavor
        project_id = self.buried.project_id
        if (CONF.quota.count_usage_from_placement and
                quota._user_id_queued_for_delete_populated(
                    self.owner, project_id)):
            objects.Quotas.check_deltas(
                self.owner, {'instances': 0, 'cores': flavor.vcpus,
                             'ram': flavor.memory_mb},
                project_id, user_id=self.buried.user_id,
                check_project_id=project_id,
                check_user_id=self.buried.user_id)
        else:
            compute_utils.check_num_instances_quota(
                self.owner, flavor, 0, 0, orig_num_req=1,
                project_id=project_id, user_id=self.buried.user_id)
        # Does nothing where there are no unified limits.
        placement_limits.enforce_num_instances_and_resources(
            self.owner, project_id,
            scheduler_utils.request_spec_for_limits(
                flavor, self.request_spec.is_bfv, self.port_resources,
                self.accelerators),
            1, 1, delta_updates={'servers': 0})
