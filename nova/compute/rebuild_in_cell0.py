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

"""Takes a server that was never built out of cell0 and has it built again.

A server for which no host was found is a record in cell0, an instance mapping
to cell0 and a request spec. rebuild() turns it back into what it was before
it was scheduled, a build request and a mapping to no cell, with what the
rebuild request changes, and casts it to the conductor. From there on it is
built, or buried again, like a server that is being created.
"""

import contextlib
import contextvars

from oslo_log import log as logging
from oslo_utils import timeutils

from nova.accelerator import cyborg
from nova import block_device
from nova.compute import action_history
from nova.compute import power_state
from nova.compute import task_states
from nova.compute import utils as compute_utils
from nova.compute import vm_states
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova.db.main import api as main_db_api
from nova import exception
from nova.i18n import _
from nova.network import model as network_model
from nova import objects
from nova import utils

LOG = logging.getLogger(__name__)

#: The microversion from which the rebuild action takes servers out of cell0.
API_VERSION = '2.106'

_asked_for = contextvars.ContextVar('rebuild_in_cell0', default=False)

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


class RebuildRefused(exception.InvalidRequest):
    msg_fmt = _("The server cannot be rebuilt: %(reason)s")


class NetworksUnknown(exception.InstanceInvalidState):
    msg_fmt = _("The networks that instance %(instance_uuid)s was created "
                "with are not known, so it cannot be rebuilt: delete it and "
                "create it again.")


@contextlib.contextmanager
def asked_for(yes):
    """Tell rebuild() of the compute API whether the client may ask for it.

    :param yes: whether the request is at API_VERSION or later
    """
    token = _asked_for.set(yes)
    try:
        yield
    finally:
        _asked_for.reset(token)


def applies(context, instance):
    """Whether a rebuild of this server takes it out of cell0."""
    return (_asked_for.get() and
            instance.vm_state in (vm_states.PENDING, vm_states.ERROR) and
            instance.launched_at is None and
            context.cell_uuid == objects.CellMapping.CELL0_UUID)


def image_of(api, context, instance):
    """Return the image that a server is rebuilt from if none is named.

    :param api: the compute API
    :param context: the request context, targeted at the server's cell
    :param instance: the Instance, in cell0 or not
    :returns: the ID of the image, '' if its root volume was made from none
    """
    if instance.image_ref:
        return instance.image_ref
    root = objects.BlockDeviceMappingList.get_by_instance_uuid(
        context, instance.uuid).root_bdm()
    if root is None:
        return ''
    if root.volume_id:
        volume = api.volume_api.get(context, root.volume_id)
        return volume.get('volume_image_metadata', {}).get('image_id', '')
    return root.image_id or ''


def rebuild(api, context, instance, image_href, admin_password,
            files_to_inject=None, **changes):
    """Take a server out of cell0 and have it built under the same ID.

    :param api: the compute API
    :param context: the request context, targeted at cell0
    :param instance: the Instance as it is in cell0
    :param image_href: the ID of the image to build from
    :param admin_password: the password to set in the guest
    :param files_to_inject: personality files, as in a create
    :param changes: the attributes of the server that the request replaces
    :raises: InstanceIsLocked, InstanceInvalidState or NetworksUnknown (409),
        OverQuota (403), RebuildRefused and what the released rebuild raises
        for bad input (400); nothing has changed then
    """
    if instance.locked and not context.is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    rebuilt = _Rebuild(api, context, instance, image_href,
                       files_to_inject or [], changes)
    rebuilt.check()
    _claim(instance)
    rebuilt.move()
    api.compute_task_api.rebuild_instance_in_cell0(
        context, rebuilt.build_request, rebuilt.request_spec, rebuilt.image,
        admin_password, rebuilt.files, rebuilt.networks, rebuilt.bdms,
        rebuilt.tags)


def _claim(instance):
    """Let exactly one of several requests have the server.

    :raises: InstanceInvalidState if another one has it
    """
    claimed = objects.Instance.get_by_uuid(instance._context, instance.uuid)
    claimed.task_state = task_states.REBUILDING
    try:
        claimed.save(expected_vm_state=instance.vm_state,
                     expected_task_state=[None])
    except exception.UnexpectedTaskStateError:
        raise _in_progress(instance)


class _Rebuild:
    """The request for a server, made again from its record in cell0."""

    def __init__(self, api, context, instance, image_href, files, changes):
        self.api = api
        self.context = context
        self.buried = instance
        self.image_href = image_href
        self.files = files
        self.changes = changes

    def check(self):
        """Find everything that must refuse the request; change nothing."""
        if self.buried.task_state is not None:
            raise exception.InstanceInvalidState(
                attr='task_state', instance_uuid=self.buried.uuid,
                state=self.buried.task_state, method='rebuild')
        self.request_spec = objects.RequestSpec.get_by_instance_uuid(
            self.context, self.buried.uuid)
        if not self.request_spec.is_buried:
            raise NetworksUnknown(instance_uuid=self.buried.uuid)
        self.networks = self.request_spec.recall_request()
        self.files = self.files or self.request_spec.injected_files
        self._find_image()
        # A server in cell0 is counted already: nothing is added to the usage.
        compute_utils.check_num_instances_quota(
            self.context, self.buried.flavor, 0, 0, orig_num_req=1,
            project_id=self.buried.project_id, user_id=self.buried.user_id)
        self._make_instance()
        self._make_request_spec()
        self.tags = objects.TagList(objects=[
            objects.Tag(self.context, resource_id=self.buried.uuid,
                        tag=tag.tag) for tag in self.buried.tags])

    def _find_image(self):
        buried_bdms = objects.BlockDeviceMappingList.get_by_instance_uuid(
            self.context, self.buried.uuid)
        self.bdms = objects.BlockDeviceMappingList(
            objects=[unsaved(bdm) for bdm in buried_bdms])
        root = self.bdms.root_bdm()
        if root is None or root.is_image:
            image_id, self.image = self.api._get_image(
                self.context, self.image_href)
            if root is not None:
                root.image_id = image_id
        else:
            self.image = block_device.get_bdm_image_metadata(
                self.context, self.api.image_api, self.api.volume_api,
                self.bdms, legacy_bdm=False)
            image_id = image_of(self.api, self.context, self.buried)
            if self.image_href != image_id:
                raise exception.ImageUnacceptable(
                    image_id=self.image_href,
                    reason=_('the server boots from a volume that was made '
                             'before it, with another image'))
        self.api._check_auto_disk_config(
            image=self.image,
            auto_disk_config=self.changes.get('auto_disk_config'))
        self.api._check_image_arch(image=self.image)
        self.api._checks_for_create_and_rebuild(
            self.context, image_id, self.image, self.buried.flavor,
            self.changes.get('metadata', {}), self.files, root,
            self._oldest_compute())

    def _oldest_compute(self):
        return objects.service.get_minimum_version_all_cells(
            self.context, ['nova-compute'])

    def _make_instance(self):
        """Make the instance of the build request, as a create does."""
        new = self.instance = objects.Instance(self.context)
        for field in objects.Instance.fields:
            if field not in _NOT_CARRIED:
                setattr(new, field, getattr(self.buried, field))
        self._apply_changes(new)
        options = self._validated_options(new)
        for field in _FROM_IMAGE:
            setattr(new, field, options[field])
        if self.buried.image_ref:
            new.image_ref = self.image_href
        new.vm_state = vm_states.BUILDING
        new.task_state = task_states.SCHEDULING
        new.power_state = power_state.NOSTATE
        new.progress = 0
        new.info_cache = objects.InstanceInfoCache(
            instance_uuid=new.uuid, network_info=network_model.NetworkInfo())
        new.security_groups = objects.SecurityGroupList()
        new.old_flavor = new.new_flavor = None
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
        new.update(changes)

    def _change_key(self, new, name):
        # Users own keys; as in the released rebuild, the one who asks.
        keys = [objects.KeyPair.get_by_name(
            self.context, self.context.user_id, name)] if name else []
        new.keypairs = objects.KeyPairList(objects=keys)
        new.key_name = keys[0].name if keys else None
        new.key_data = keys[0].public_key if keys else None

    def _validated_options(self, new):
        """Validate as a create does, and keep what it works out."""
        flavor = new.flavor.obj_clone()
        # Whoever has a server of a flavor may rebuild it, as in the release.
        flavor.disabled = False
        groups = [group.identifier
                  for group in self.request_spec.security_groups]
        try:
            options, networks_count, _key, groups, self.network_metadata = (
                self.api._validate_and_build_base_options(
                    self.context, flavor, self.image, new.image_ref, None,
                    None, None, new.display_name, new.display_description,
                    new.hostname, new.key_name, new.key_data or '',
                    groups or ['default'], new.availability_zone,
                    new.user_data, new.metadata, new.access_ip_v4,
                    new.access_ip_v6, self.networks, new.config_drive,
                    self.changes.get('auto_disk_config'), new.reservation_id,
                    1, True, self._oldest_compute()))
        except (exception.NotFound, exception.PortInUse,
                exception.NetworkAmbiguous,
                exception.FixedIpAlreadyInUse) as exc:
            raise RebuildRefused(reason=exc.format_message())
        if networks_count < 1:
            raise exception.PortLimitExceeded()
        self.options = options
        return options

    def _make_request_spec(self):
        spec = self.request_spec
        self.buried_image = spec.image
        spec.image = objects.ImageMeta.from_dict(self.image)
        spec.numa_topology = self.options['numa_topology']
        spec.pci_requests = self.options['pci_requests']
        # Members of a multi-create are rebuilt one by one.
        spec.num_instances = 1
        spec.requested_resources = list(
            self.options['port_resource_requests'] or [])
        profile = self.buried.flavor.extra_specs.get('accel:device_profile')
        if profile:
            spec.requested_resources.extend(
                cyborg.get_device_profile_request_groups(
                    self.context, profile))
        if self.options['request_level_params']:
            spec.request_level_params = self.options['request_level_params']
        if self.network_metadata:
            spec.network_metadata = self.network_metadata

    def move(self):
        """Turn the record in cell0 into a build request.

        :raises: InstanceInvalidState if the claim was lost,
            InstanceNotFound if the server was deleted
        """
        build_request = objects.BuildRequest(
            self.context, instance=self.instance,
            instance_uuid=self.instance.uuid,
            project_id=self.instance.project_id,
            block_device_mappings=self.bdms, tags=self.tags)
        self.request_spec.remembered = dict(
            self.request_spec.remembered,
            vm_state=self.buried.vm_state,
            actions=action_history.pack(self.context, self.buried.uuid))
        # The save drops what the release does not persist.
        resources = self.request_spec.requested_resources
        try:
            self.build_request = _exchange(
                self.context, build_request, self.request_spec,
                self.buried.created_at)
        except exception.InstanceMappingNotFound:
            raise _in_progress(self.buried)
        self.request_spec.requested_resources = resources
        try:
            destroy_claimed(self.context, self.buried.uuid)
        except (exception.ConstraintNotMet,
                exception.InstanceNotFound) as exc:
            # Deleted or reset meanwhile: the claim is gone.
            self.request_spec.image = self.buried_image
            if put_back(self.context, self.build_request):
                self.request_spec.save()
            if isinstance(exc, exception.InstanceNotFound):
                raise
            raise _in_progress(self.buried)
        LOG.info('The server was taken out of cell0 to be rebuilt.',
                 instance=self.instance)


@api_db_api.context_manager.writer
def _exchange(context, build_request, request_spec, created_at):
    """Replace a mapping to cell0 by a build request, in one transaction.

    :param created_at: when the server was created. The server has the time
        of its build request; how long the rebuild takes is told by the time
        at which the build request was updated.
    :returns: the BuildRequest
    :raises: InstanceMappingNotFound if the server is not mapped to cell0
    """
    objects.InstanceMapping.exchange_cell(
        context, build_request.instance_uuid, cell0(context), None)
    build_request.create()
    context.session.query(api_models.BuildRequest).filter_by(
        id=build_request.id).update({
            'created_at': created_at.replace(tzinfo=None),
            'updated_at': timeutils.utcnow()})
    request_spec.save()
    context.session.expire_all()
    return objects.BuildRequest.get_by_instance_uuid(
        context, build_request.instance_uuid)


def destroy_claimed(context, instance_uuid,
                    claim=task_states.REBUILDING):
    """Delete the record of a server in cell0 for good while it is claimed.

    :param context: a context that is targeted at cell0
    :param instance_uuid: the server
    :param claim: the task_state that the record must have
    :raises: ConstraintNotMet if it is not claimed, InstanceNotFound
    """
    main_db_api.instance_destroy(
        context, instance_uuid, hard_delete=True,
        constraint=main_db_api.constraint(
            task_state=main_db_api.equal_any(claim)))


def remove_leftover(context, instance_uuid):
    """Delete what an interrupted rebuild has left in cell0.

    :param context: the request context
    :param instance_uuid: a server whose build request was deleted
    """
    with nova_context.target_cell(context, cell0(context)) as cctxt:
        try:
            destroy_claimed(cctxt, instance_uuid)
        except (exception.ConstraintNotMet, exception.InstanceNotFound):
            pass


@api_db_api.context_manager.writer
def put_back(context, build_request):
    """Replace a build request by a mapping to cell0, in one transaction.

    Whoever deletes the row of the build request has the server, as in the
    release.

    :returns: whether it was this caller
    """
    if not context.session.query(api_models.BuildRequest).filter_by(
            id=build_request.id).delete():
        return False
    context.session.query(api_models.InstanceMapping).filter_by(
        instance_uuid=build_request.instance_uuid).update(
            {'cell_id': cell0(context).id})
    return True


def cell0(context):
    """Return the CellMapping of cell0."""
    return objects.CellMapping.get_by_uuid(
        context, objects.CellMapping.CELL0_UUID)


def _in_progress(instance):
    return exception.InstanceInvalidState(
        attr='task_state', instance_uuid=instance.uuid,
        state=task_states.REBUILDING, method='rebuild')


def unsaved(bdm):
    """Return a copy of a block device mapping that can be created anew."""
    copy = objects.BlockDeviceMapping(bdm._context)
    for field in objects.BlockDeviceMapping.fields:
        if field in bdm and field not in (
                'id', 'uuid', 'instance', 'created_at', 'updated_at',
                'deleted', 'deleted_at'):
            setattr(copy, field, getattr(bdm, field))
    return copy
