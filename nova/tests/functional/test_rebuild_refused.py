# SPDX-License-Identifier: Apache-2.0

"""A rebuild in cell0 that is refused has changed nothing, anywhere."""

import base64
import contextlib
import copy
from unittest import mock

from oslo_db import exception as db_exc
from oslo_limit import fixture as limit_fixture
from oslo_utils import timeutils

from nova.compute import rebuild_in_cell0
from nova.compute import rebuild_request
from nova.compute import task_states
from nova import context as nova_context
from nova import exception
from nova.limit import local as local_limit
from nova import objects
from nova.objects import build_request
from nova.objects import unbuilt_instance
from nova.tests import fixtures as nova_fixtures
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import microversions
from nova.tests.functional import rebuild_base
from nova.tests.functional import rebuild_twins

RELEASED = microversions.RELEASED
PENDING = microversions.PENDING

IMAGE = glance_fixture.GlanceFixture.image1['id']
OTHER_IMAGE = glance_fixture.GlanceFixture.image2['id']
NETWORK = neutron_fixture.NeutronFixture.network_1['id']
PORT = neutron_fixture.NeutronFixture.port_1['id']
VOLUME = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL
NOTHING = '88888888-0000-4000-8000-000000000001'
SNAPSHOT = '88888888-0000-4000-8000-000000000002'

# Where the API puts its sentence.
REASONS = {400: 'badRequest', 403: 'forbidden', 404: 'itemNotFound',
           409: 'conflictingRequest', 500: 'computeFault',
           503: 'serviceUnavailable'}


class RefusedTestCase(rebuild_base.RebuildInCell0Base):

    def everything(self, server):
        """Return all that a rebuild could change."""
        limits = self.api.api_get('/limits').body['limits']['absolute']
        return copy.deepcopy({
            'stored': self.stored(server),
            'ports': self.neutron._ports,
            'bindings': dict(self.neutron._port_bindings),
            'volumes': self.cinder.volumes,
            'attachments': {
                volume: attached for volume, attached
                in self.cinder.volume_to_attachment.items() if attached},
            'allocations': self.placement.get(
                '/allocations/%s' % server['id']).body,
            'usage': {name: value for name, value in limits.items()
                      if name.endswith('Used')},
        })

    def refuses(self, code, sentence, server, api=None, during=None,
                **body):
        """Fail unless a rebuild is refused and changes nothing.

        :param sentence: a part of what the answer must say
        :param during: a context manager within which it is asked for
        """
        self.before = self.everything(server)
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0') as cast, (
                            during or contextlib.nullcontext()):
            exc = self.assertRaises(
                api_client.OpenStackApiException,
                (api or self.api).post_server_action, server['id'],
                {'rebuild': body})
        self.assertEqual(code, exc.response.status_code, exc)
        self.assertIn(sentence, exc.response.json()[REASONS[code]]['message'])
        cast.assert_not_called()
        self.unchanged(self.before, self.everything(server))

    def unchanged(self, before, after):
        self.assertEqual(before, after)

    def cell0(self):
        return objects.CellMapping.get_by_uuid(
            nova_context.get_admin_context(), objects.CellMapping.CELL0_UUID)

    def change_record(self, server, **fields):
        """Change the record in cell0 as nobody could with the API."""
        context = nova_context.get_admin_context()
        with nova_context.target_cell(context, self.cell0()) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, server['id'])
            instance.update(fields)
            instance.save()

    def image(self, **image):
        properties = dict(glance_fixture.GlanceFixture.image1['properties'],
                          **image.pop('properties', {}))
        image = dict(glance_fixture.GlanceFixture.image1,
                     properties=properties, **image)
        del image['id']
        return self.glance.create(None, image)['id']


class ImageTestCase(RefusedTestCase):

    def test_image_that_cannot_be_used(self):
        server = self.create_waiting()
        queued = self.image(status='queued')
        for sentence, image in (
                ('Image %s could not be found' % NOTHING, NOTHING),
                ('attribute imageRef.', 'mine'),
                ('Image %s is not active' % queued, queued),
                ('disk is too small', self.image(size=2 * 1024 ** 3)),
                ('disk is smaller than the minimum size specified in image '
                 'metadata', self.image(min_disk=2)),
                ('memory is too small', self.image(min_ram=129)),
                ('Architecture name \'abacus\'', self.image(
                    properties={'hw_architecture': 'abacus'})),
                ('encrypted volume is unsupported', self.image(
                    properties={'cinder_encryption_key_id': NOTHING}))):
            self.refuses(400, sentence, server, imageRef=image)

    def test_image_of_the_create_is_gone(self):
        server = self.create_waiting(image_uuid=OTHER_IMAGE)
        del self.glance.images[OTHER_IMAGE]
        self.refuses(400, 'Image %s could not be found' % OTHER_IMAGE, server)

    def test_image_that_the_flavor_contradicts(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000, extra_spec={
                'hw:numa_nodes': '1', 'hw:cpu_policy': 'shared',
                'hw:pci_numa_affinity_policy': 'required'})
        server = self.create_waiting(flavorRef=flavor)
        for sentence, name, value in (
                ('hw_numa_nodes', 'hw_numa_nodes', 2),
                ('hw_cpu_policy', 'hw_cpu_policy', 'dedicated'),
                ('hw_pci_numa_affinity_policy',
                 'hw_pci_numa_affinity_policy', 'preferred')):
            self.refuses(400, sentence, server, imageRef=self.image(
                properties={name: value}))

    def test_disk_configuration_that_the_image_rules_out(self):
        image = self.image(properties={'auto_disk_config': 'disabled'})
        server = self.create_waiting(**{'OS-DCF:diskConfig': 'AUTO'})
        for said in ({}, {'OS-DCF:diskConfig': 'AUTO'}):
            self.refuses(400, 'has automatic disk resize disabled', server,
                         imageRef=image, **said)

    def test_image_that_defines_devices(self):
        server = self.create_waiting()
        self.refuses(
            400, 'defines block devices', server, imageRef=self.image(
                properties={'bdm_v2': True, 'block_device_mapping': [
                    {'source_type': 'blank', 'destination_type': 'volume',
                     'volume_size': 1, 'boot_index': -1}]}))

    def test_another_image_after_one_that_defines_devices(self):
        server = self.create_waiting(image_uuid=self.image(properties={
            'mappings': [{'virtual': 'ephemeral0', 'device': 'sdb'}]}))
        self.refuses(400, 'defines block devices', server, imageRef=IMAGE)


class BodyTestCase(RefusedTestCase):

    def test_what_cannot_be_said(self):
        server = self.create_waiting()
        for sentence, body in (
                ('Keypair no-such-key not found',
                 {'key_name': 'no-such-key'}),
                ('attribute a.', {'metadata': {'a': 'b' * 256}}),
                ('attribute a.', {'metadata': {'a': None}}),
                ('attribute metadata.', {'metadata': ['a']}),
                ('attribute hostname.', {'hostname': 'no host'}),
                ('attribute user_data.', {'user_data': 'abcde'}),
                ('attribute name.', {'name': ''}),
                ('attribute imageRef.', {'imageRef': ''}),
                ('attribute adminPass.', {'adminPass': 1}),
                ('Additional properties', {'flavor': self.small}),
                ('Additional properties', {'personality': []})):
            self.refuses(400, sentence, server, **body)
        self.assertEqual(400, self.assertRaises(
            api_client.OpenStackApiException, self.api.post_server_action,
            server['id'], {'rebuild': None}).response.status_code)


class NetworkTestCase(RefusedTestCase):

    def test_network_is_gone(self):
        server = self.create_waiting(networks=[{'uuid': NETWORK}])
        with mock.patch.object(self.neutron, '_networks', {}):
            self.refuses(400, 'Network %s could not be found' % NETWORK,
                         server)

    def test_network_has_no_subnet_any_more(self):
        server = self.create_waiting(networks=[{'uuid': NETWORK}])
        with mock.patch.dict(self.neutron._networks, {
                NETWORK: dict(self.neutron.network_1, subnets=[])}):
            self.refuses(400, 'requires a subnet', server)

    def test_networks_are_ambiguous_by_now(self):
        server = self.create_waiting(networks='auto')
        self.neutron._networks[self.neutron.network_2['id']] = (
            self.neutron.network_2)
        self.refuses(400, 'Multiple possible networks found', server)

    def test_networks_cannot_be_allocated_any_more(self):
        server = self.create_waiting(networks='auto')
        with mock.patch.object(self.neutron, '_networks', {}), \
                mock.patch('nova.network.neutron.API.'
                           '_can_auto_allocate_network', return_value=False):
            self.refuses(400, 'Unable to automatically allocate', server)

    def test_port_is_gone(self):
        server = self.create_waiting(networks=[{'port': PORT}])
        self.neutron.delete_port(PORT)
        self.refuses(400, PORT, server)

    def test_port_is_in_use(self):
        server = self.create_waiting(
            networks=[{'uuid': NETWORK}, {'port': PORT}])
        self.wait_for(self.api.post_server({'server': self._build_server(
            flavor_id=self.small, networks=[{'port': PORT}])}), 'ACTIVE')
        self.refuses(400, 'Port %s is still in use' % PORT, server)

    def test_port_has_no_address_any_more(self):
        server = self.create_waiting(networks=[{'port': PORT}])
        self.neutron._ports[PORT]['fixed_ips'] = []
        self.refuses(400, 'requires a FixedIP', server)

    def test_fixed_address_is_in_use(self):
        server = self.create_waiting(networks=[
            {'uuid': NETWORK, 'fixed_ip': '192.168.1.77'}])
        with mock.patch.object(self.neutron, 'list_ports',
                               return_value={'ports': [
                                   {'id': PORT, 'device_id': NOTHING}]}):
            self.refuses(400, '192.168.1.77 is already in use', server)

    def test_security_group_is_gone(self):
        group = '88888888-0000-4000-8000-000000000003'
        with mock.patch('nova.network.security_group_api.validate_name',
                        return_value=group):
            server = self.create_waiting(security_groups=[{'name': 'mine'}])
        with mock.patch('nova.network.security_group_api.validate_name',
                        side_effect=exception.SecurityGroupNotFound(
                            security_group_id=group)):
            self.refuses(400, group, server)

    def test_no_port_is_left_in_the_quota(self):
        server = self.create_waiting(networks=[{'uuid': NETWORK}])
        with mock.patch.object(self.neutron, 'show_quota', return_value={
                'quota': {'port': len(self.neutron._ports)}}):
            self.refuses(403, 'Maximum number of ports exceeded', server)


class DevicesTestCase(RefusedTestCase):

    def setUp(self):
        super().setUp()
        self.cinder.volume_snapshots[SNAPSHOT] = {
            'id': SNAPSHOT, 'volume_id': VOLUME, 'size': 1}

    def boot(self, source, uuid=None, image='', **device):
        device = dict(device, source_type=source, boot_index=0,
                      destination_type='volume', volume_size=1)
        if source == 'volume':
            del device['volume_size']
        if uuid:
            device['uuid'] = uuid
        return self.create_waiting(
            imageRef=image, block_device_mapping_v2=[device])

    def gone(self, method, error):
        # The harness has one in its place already.
        return mock.patch('nova.volume.cinder.API.' + method,
                          new=mock.Mock(side_effect=error))

    def test_volume_is_gone(self):
        server = self.boot('volume', VOLUME)
        with self.gone('get', exception.VolumeNotFound(volume_id=VOLUME)):
            self.refuses(400, VOLUME, server)

    def test_volume_that_is_not_the_root_is_gone(self):
        server = self.create_waiting(block_device_mapping_v2=[
            {'source_type': 'image', 'destination_type': 'local',
             'boot_index': 0, 'uuid': IMAGE},
            {'source_type': 'volume', 'destination_type': 'volume',
             'boot_index': -1, 'uuid': VOLUME}], image_uuid=IMAGE)
        with self.gone('get', exception.VolumeNotFound(volume_id=VOLUME)):
            self.refuses(400, VOLUME, server)

    def test_volume_is_in_use_elsewhere(self):
        server = self.boot('volume', VOLUME)
        # Detached behind Nova's back, and attached to another server.
        self.cinder.delete_vol_attachment(VOLUME)
        self.cinder.create_vol_attachment(VOLUME, NOTHING)
        self.refuses(400, 'volume %s is attached to another server' % VOLUME,
                     server)

    def test_volume_is_attached_to_another_server_too(self):
        server = self.boot('volume', VOLUME)
        self.cinder.create_vol_attachment(VOLUME, NOTHING)
        self.refuses(400, 'volume %s is attached to another server' % VOLUME,
                     server)

    def test_volume_is_broken(self):
        server = self.boot('volume', VOLUME)
        volume = self.cinder.fake_get(None, VOLUME)
        with mock.patch('nova.volume.cinder.API.get', new=mock.Mock(
                return_value=dict(volume, status='error'))):
            self.refuses(400, 'in status error', server)

    def test_snapshot_is_gone(self):
        server = self.boot('snapshot', SNAPSHOT)
        with self.gone('get_snapshot', exception.SnapshotNotFound(
                snapshot_id=SNAPSHOT)):
            self.refuses(400, SNAPSHOT, server)

    def test_image_of_the_volume_is_gone(self):
        server = self.boot('image', OTHER_IMAGE)
        del self.glance.images[OTHER_IMAGE]
        self.refuses(400, 'Image %s could not be found' % OTHER_IMAGE, server)

    def test_image_does_not_fit_the_volume(self):
        server = self.boot('image', IMAGE)
        self.glance.images[OTHER_IMAGE]['min_disk'] = 2
        self.refuses(400, 'Volume is smaller than the minimum size', server,
                     imageRef=OTHER_IMAGE)

    def test_volume_type_is_gone(self):
        server = self.boot('image', IMAGE, volume_type='lvm-1')
        with mock.patch('nova.volume.cinder.API.get_all_volume_types',
                        new=mock.Mock(return_value=[])):
            self.refuses(400, 'Volume type lvm-1 could not be found', server)

    def test_another_image_on_a_root_that_is_made_from_none(self):
        for device in (('snapshot', SNAPSHOT), ('blank',)):
            server = self.boot(*device)
            self.refuses(400, 'made from a snapshot or from nothing', server,
                         imageRef=OTHER_IMAGE)

    def test_another_image_on_a_volume_that_is_there(self):
        """Nothing is written to it while the server waits."""
        server = self.boot('volume', VOLUME)
        with mock.patch('nova.volume.cinder.API.reimage_volume',
                        new=mock.Mock()) as reimage:
            self.refuses(
                400, 'its root volume %s is not written to. Name no image'
                % VOLUME, server, imageRef=OTHER_IMAGE)
            # The one that it was made from is no other.
            self.rebuild(server, imageRef=IMAGE)
            self.wait_for(server, 'PENDING')
        reimage.assert_not_called()

    def test_certificates_for_a_volume(self):
        server = self.boot('image', IMAGE)
        self.refuses(400, 'not supported when booting from volume', server,
                     trusted_image_certificates=['one'])

    def test_volumes_that_another_project_would_own(self):
        other = api_client.TestOpenStackClient(
            'admin', self.api.base_url, project_id='of-the-admin',
            roles=['admin', 'member', 'reader'])
        other.microversion = 'latest'
        server = self.boot('image', IMAGE)
        self.refuses(403, 'they would belong to the project of this request',
                     server, api=other)

    def test_secrets_that_another_project_would_own(self):
        other = api_client.TestOpenStackClient(
            'admin', self.api.base_url, project_id='of-the-admin',
            roles=['admin', 'member', 'reader'])
        other.microversion = 'latest'
        for specs, image, refused in (
                ({'hw:tpm_version': '2.0'}, IMAGE, True),
                ({'hw:tpm_version': '2.0',
                  'hw:tpm_secret_security': 'host'}, IMAGE, True),
                ({'hw:tpm_version': '2.0',
                  'hw:tpm_secret_security': 'deployment'}, IMAGE, False),
                ({'hw:tpm_secret_security': 'user'}, IMAGE, False),
                ({'hw:ephemeral_encryption': 'true'}, IMAGE, True),
                ({}, self.image(properties={'hw_tpm_version': '2.0'}), True),
                ({}, self.image(properties={
                    'hw_ephemeral_encryption': 'true'}), True)):
            flavor = self._create_flavor(
                vcpu=1, memory_mb=128, disk=1, ephemeral=2000)
            if specs:
                self.admin_api.post_extra_spec(
                    flavor, {'extra_specs': specs})
            server = self.create_waiting(flavorRef=flavor, image_uuid=image)
            if refused:
                self.refuses(
                    403, 'secrets, of its TPM or its disks, that are made '
                    'when it is built, and they would belong to the project '
                    'of this request', server, api=other)
            for api in (self.api,) if refused else (self.api, other):
                self.assertEqual(202, api.api_post(
                    '/servers/%s/action' % server['id'],
                    {'rebuild': {}}).status)
                self.wait_for(server, 'PENDING')

    def test_accelerators_are_gone(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000)
        self.admin_api.post_extra_spec(flavor, {
            'extra_specs': {'accel:device_profile': 'fast'}})
        with mock.patch('nova.accelerator.cyborg.'
                        'get_device_profile_request_groups',
                        return_value=[]):
            server = self.create_waiting(flavorRef=flavor)
        with mock.patch('nova.accelerator.cyborg.'
                        'get_device_profile_request_groups',
                        side_effect=exception.DeviceProfileError(
                            name='fast', msg='gone')):
            self.refuses(400, 'Device profile name fast: gone', server)


class QuotaTestCase(RefusedTestCase):

    def limits(self, **limits):
        for name, limit in limits.items():
            self.flags(**{name: limit}, group='quota')

    def rebuilds(self, server):
        self.rebuild(server)
        self.wait_for(server, 'PENDING')

    def test_counted_in_the_cells(self):
        server = self.create_waiting()
        # Another server of the project uses a core, too.
        other = self.create_waiting()
        for name, asked in (('instances', 1), ('cores', 1), ('ram', 128)):
            self.limits(**{name: 0})
            self.refuses(
                403, 'Quota exceeded for %s: Requested %s, but already used '
                '%s of 0' % (name, asked, asked), server)
            self.limits(**{name: -1})
        self.api.delete_server(other['id'])
        # It is counted already: nothing more is needed than it has.
        self.limits(instances=1, cores=1, ram=128)
        self.rebuilds(server)

    def test_counted_in_placement(self):
        self.flags(count_usage_from_placement=True, group='quota')
        server = self.create_waiting()
        other = self.wait_for(self.api.post_server(
            {'server': self._build_server(
                flavor_id=self.small, networks='none')}), 'ACTIVE')
        # Placement has the cores and RAM of the other one only.
        for limits, sentence in (
                (dict(instances=1), 'instances'), (dict(cores=1), 'cores'),
                (dict(ram=200), 'ram')):
            self.limits(**limits)
            self.refuses(403, sentence, server)
            self.limits(**dict.fromkeys(limits, -1))
        self.limits(instances=2, cores=2, ram=256)
        self.rebuilds(server)
        self.api.delete_server(other['id'])

    def test_unified_limits(self):
        self.flags(driver='nova.quota.UnifiedLimitsDriver', group='quota')
        server = self.unified(2, 2, 256, self.create_waiting)
        self.unified(2, 2, 256, lambda: self.wait_for(self.api.post_server(
            {'server': self._build_server(
                flavor_id=self.small, networks='none')}), 'ACTIVE'))
        for limits, sentence in (
                ((1, 9, 999), 'servers'), ((9, 1, 999), 'class:VCPU'),
                ((9, 9, 200), 'class:MEMORY_MB')):
            self.unified(*limits, lambda: self.refuses(
                403, sentence, server))
        self.unified(2, 2, 256, lambda: self.rebuilds(server))

    def unified(self, servers, cores, ram, function):
        """Call a function within unified limits."""
        with limit_fixture.LimitFixture({
                local_limit.SERVER_METADATA_ITEMS: 128,
                local_limit.INJECTED_FILES: 5,
                local_limit.INJECTED_FILES_CONTENT: 10 * 1024,
                local_limit.INJECTED_FILES_PATH: 255,
                local_limit.KEY_PAIRS: 100,
                local_limit.SERVER_GROUPS: 10,
                local_limit.SERVER_GROUP_MEMBERS: 1,
                'servers': servers, 'class:VCPU': cores,
                'class:MEMORY_MB': ram, 'class:DISK_GB': 9999}, {}):
            return function()

    def test_quota_of_the_user(self):
        server = self.create_waiting()
        self.admin_api.update_quota(
            {'cores': 0, 'force': True}, user_id=server['user_id'])
        self.refuses(403, 'cores', server)

    def test_quota_is_that_of_the_owner(self):
        server = self.create_waiting()
        other = api_client.TestOpenStackClient(
            'admin', self.api.base_url, project_id='of-the-admin',
            roles=['admin', 'member', 'reader'])
        other.microversion = 'latest'
        self.admin_api.update_quota({'cores': 0, 'force': True})
        self.refuses(403, 'cores', server, api=other)

    def test_metadata_items(self):
        server = self.create_waiting()
        self.limits(metadata_items=1)
        self.refuses(403, 'Maximum number of metadata items exceeds 1',
                     server, metadata={'a': 'b', 'c': 'd'})


class WhoTestCase(RefusedTestCase):

    def client(self, project, *roles):
        client = api_client.TestOpenStackClient(
            'somebody', self.api.base_url, project_id=project, roles=roles)
        client.microversion = 'latest'
        return client

    def test_who_may_not(self):
        server = self.create_waiting()
        # The harness lets everybody.
        self.policy.set_rules({
            'os_compute_api:servers:rebuild': 'role:member'}, overwrite=False)
        self.refuses(403, "Policy doesn't allow", server,
                     api=self.client(self.api.project_id, 'reader'))
        self.refuses(404, 'could not be found', server,
                     api=self.client('other-project', 'reader', 'member'))
        self.refuses(404, 'could not be found', {'id': NOTHING})

    def test_certificates_need_a_policy_of_their_own(self):
        server = self.create_waiting()
        self.policy.set_rules({
            'os_compute_api:servers:rebuild:trusted_certs': '!'},
            overwrite=False)
        self.refuses(403, 'rebuild:trusted_certs', server,
                     trusted_image_certificates=['one'])


class StateTestCase(RefusedTestCase):

    def test_locked(self):
        server = self.create_waiting()
        self.api.post_server_action(server['id'], {'lock': None})
        self.refuses(409, 'Instance %s is locked' % server['id'], server)

    def test_task_in_progress(self):
        server = self.create_waiting()
        self.change_record(server, task_state=task_states.REBUILDING)
        self.refuses(409, 'task_state rebuilding', server)

    def test_launched_before(self):
        server = self.create_waiting()
        self.change_record(server, launched_at=timeutils.utcnow())
        self.refuses(409, 'launched_at', server)

    def test_another_state_in_cell0(self):
        server = self.create_waiting()
        self.change_record(server, vm_state='soft-delete')
        self.refuses(409, 'vm_state soft-delete', server)

    def test_failed_on_a_host(self):
        with mock.patch('nova.virt.fake.FakeDriver.spawn',
                        side_effect=exception.BuildAbortException(
                            instance_uuid=NOTHING, reason='broken')):
            server = self.wait_for(self.api.post_server(
                {'server': self._build_server(
                    flavor_id=self.small, networks='none')}), 'ERROR')
        self.speak(PENDING)
        self.refuses(409, "is in an invalid state for 'rebuild'", server,
                     imageRef=IMAGE)

    def test_being_built(self):
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'schedule_and_build_instances'):
            server = self.api.post_server({'server': self._build_server(
                flavor_id=self.small, networks='none')})
        self.refuses(409, 'vm_state building', server)

    def test_being_rebuilt(self):
        server = self.create_waiting()
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0'):
            self.rebuild(server)
        self.refuses(409, 'vm_state building', server)

    def test_volume_backed_server_that_is_being_rebuilt(self):
        """The image that is not named is not asked for first."""
        server = self.create_waiting(imageRef='', block_device_mapping_v2=[
            {'source_type': 'volume', 'destination_type': 'volume',
             'boot_index': 0, 'uuid': VOLUME}])
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0'):
            self.rebuild(server)
        self.refuses(409, 'vm_state building', server)

    def test_deleted(self):
        server = self.create_waiting()
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)
        self.refuses(404, 'could not be found', server)

    def test_request_spec_is_gone(self):
        server = self.create_waiting()
        objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id']).destroy()
        self.refuses(409, 'The networks that instance %s was created with '
                     'are not known' % server['id'], server)

    def test_created_before_the_upgrade(self):
        server = self.create_waiting()
        self.forget_request(server)
        self.refuses(409, 'The networks that instance %s was created with '
                     'are not known' % server['id'], server)

    def test_created_with_personality_files(self):
        contents = base64.b64encode(b'patience').decode()
        self.speak('2.56')
        server = self.create_waiting(personality=[
            {'path': '/etc/motd', 'contents': contents}])
        self.speak('latest')
        self.assertNotIn(contents, str(self.everything(server)))
        self.refuses(409, 'Instance %s was created with personality files'
                     % server['id'], server)


class DeletedMeanwhileTestCase(RefusedTestCase):

    def unchanged(self, before, after):
        self.assertEqual('', '\n'.join(rebuild_twins.differences(*map(
            rebuild_twins.without_bookkeeping, (before, after)))))

    def deleted_at(self, where, name):
        """Let somebody delete the server when its rebuild comes to a step.

        What the delete leaves is what the refused rebuild must leave.
        """
        step = getattr(where, name)

        def deleted_first(*args):
            [server] = self.api.get_servers()
            self.api.delete_server(server['id'])
            self.before = self.everything(server)
            return step(*args)

        return mock.patch.object(where, name, deleted_first)

    def test_deleted_meanwhile(self):
        for where, name, sentence in (
                (rebuild_request.Request, 'check', 'vm_state deleted'),
                (build_request.BuildRequest, 'create_in_place_of_mapping',
                 'was changed while its rebuild was prepared')):
            server = self.create_waiting(imageRef='', block_device_mapping_v2=[
                {'source_type': 'volume', 'destination_type': 'volume',
                 'boot_index': 0, 'uuid': VOLUME}])
            self.refuses(409, sentence, server,
                         during=self.deleted_at(where, name))
            self.assertEqual([], self.before['stored']['build_requests'])
            self.assertEqual({}, self.before['attachments'])
            self.assertEqual([], self.api.get_servers())

    def test_its_volumes_are_looked_at_while_it_is_deleted(self):
        check = rebuild_request.Request.check
        for last in ('nova.objects.Instance.destroy',
                     'nova.compute.api.API._do_delete'):
            server = self.create_waiting()

            def half_deleted_before(rebuilt):
                with mock.patch(last, side_effect=exception.NovaException()):
                    self.assertRaises(
                        api_client.OpenStackApiException,
                        self.api.delete_server, server['id'])
                check(rebuilt)

            with mock.patch.object(rebuild_request.Request, 'check',
                                   half_deleted_before):
                self.assertIn('vm_state deleted', self.refused(409, server))


class DevicesChangedMeanwhileTestCase(RefusedTestCase):

    def unchanged(self, before, after):
        [before], [after] = (
            {bdm['delete_on_termination'] for bdm in
             everything['stored'].pop('block_device_mapping')
             if bdm['volume_id'] == VOLUME}
            for everything in (before, after))
        self.assertEqual((False, True), (before, after))

    def test_volume_that_is_to_go_with_the_server(self):
        """What was answered with 202 is not lost with the record."""
        server = self.create_waiting(imageRef='', block_device_mapping_v2=[
            {'source_type': 'volume', 'destination_type': 'volume',
             'boot_index': 0, 'uuid': VOLUME}])
        for where, name, mark in (
                (build_request.BuildRequest, 'create_in_place_of_mapping',
                 self.mark),
                (unbuilt_instance, 'destroy_unchanged', self.mark_late)):
            step = getattr(where, name)

            def changed_first(*args, **kwargs):
                mark(server, True)
                return step(*args, **kwargs)

            self.refuses(409, 'was changed while its rebuild was prepared',
                         server, during=mock.patch.object(
                             where, name, changed_first))
            self.assertEqual(
                'PENDING', self.api.get_server(server['id'])['status'])
            self.mark(server, False)
        self.make_room()
        self.rebuild(server)
        self.wait_for(server, 'ACTIVE')

    def mark_late(self, server, value):
        """Do it as one who has looked the server up before."""
        context = nova_context.get_admin_context()
        with nova_context.target_cell(context, self.cell0()) as cctxt:
            bdm = objects.BlockDeviceMapping.get_by_volume_and_instance(
                cctxt, VOLUME, server['id'])
            bdm.delete_on_termination = value
            bdm.save()

    def mark(self, server, value):
        self.api.api_put(
            '/servers/%s/os-volume_attachments/%s' % (server['id'], VOLUME),
            {'volumeAttachment': {'volumeId': VOLUME,
                                  'delete_on_termination': value}})


class MicroversionTestCase(RefusedTestCase):

    def test_before_2_106(self):
        server = self.create_waiting()
        before = ("Instance %s is in an invalid state for 'rebuild'"
                  % server['id'])
        for version, sentence in (
                ('2.1', before), ('2.94', before), (RELEASED, before),
                (PENDING, before + '. It was never built: ask for its '
                 'rebuild with microversion %s or later.'
                 % rebuild_in_cell0.API_VERSION)):
            self.speak(version)
            ex = self.assertRaises(
                api_client.OpenStackApiException, self.api.post_server_action,
                server['id'], {'rebuild': {'imageRef': IMAGE}})
            self.assertEqual(
                {'code': 409, 'message': sentence},
                ex.response.json()['conflictingRequest'])
            self.refuses(409, sentence, server, imageRef=IMAGE)
        for body in ({}, {'imageRef': None}):
            self.refuses(400, 'imageRef', server, **body)


class UnreachableTestCase(RefusedTestCase):

    def test_cell0_does_not_answer(self):
        server = self.create_waiting()
        self.refuses(503, 'cannot be reached', server,
                     during=nova_fixtures.DownCellFixture([self.cell0()]))
        self.speak(PENDING)
        # The rebuild of a server on a host gets this answer, too.
        self.refuses(500, 'Unexpected API Error', server, imageRef=IMAGE,
                     during=nova_fixtures.DownCellFixture([self.cell0()]))

    def test_cell0_goes_away_meanwhile(self):
        server = self.create_waiting()
        for target in (
                'nova.objects.BlockDeviceMappingList.get_by_instance_uuid',
                'nova.compute.action_history.pack'):
            with mock.patch(target, side_effect=db_exc.DBConnectionError()):
                self.refuses(503, 'cannot be reached', server)

    def test_image_service_does_not_answer(self):
        server = self.create_waiting()
        with mock.patch('nova.image.glance.API.get',
                        side_effect=exception.GlanceConnectionFailed(
                            server='here', reason='down')):
            # The rebuild of a server on a host gets this answer, too.
            self.refuses(500, 'GlanceConnectionFailed', server)
