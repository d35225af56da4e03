# SPDX-License-Identifier: Apache-2.0

"""A rebuild that gives a server in cell0 another flavor and another zone."""

import contextvars
from unittest import mock

from oslo_serialization import jsonutils
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import rebuild_in_cell0
from nova import context as nova_context
from nova.db.api import api as api_db_api
from nova.db.api import models as api_models
from nova import exception
from nova import objects
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import cyborg as cyborg_fixture
from nova.tests.functional.api import client
from nova.tests.functional import microversions
from nova.tests.functional import rebuild_base

PENDING = microversions.PENDING
REBUILD = rebuild_in_cell0.API_VERSION

SELECT = 'nova.scheduler.client.query.SchedulerQueryClient.select_destinations'


class CorrectedBase(rebuild_base.RebuildInCell0Base):

    def make_zone(self, name, *hosts):
        aggregate = self.admin_api.post_aggregate(
            {'aggregate': {'name': name, 'availability_zone': name}})
        for host in hosts:
            self.admin_api.add_host_to_aggregate(aggregate['id'], host)

    def refused_unchanged(self, code, server, **kwargs):
        before = self.stored(server)
        message = self.refused(code, server, **kwargs)
        self.assertEqual(before, self.stored(server))
        return message

    def allocated(self, server):
        provider, = self.placement.get(
            '/allocations/' + server['id']).body['allocations'].values()
        return provider['resources']

    def spec(self, server):
        return objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])


class FlavorTestCase(CorrectedBase):

    def test_smaller_flavor_is_built(self):
        server = self.create_waiting()
        small = self.admin_api.get_flavor(self.small)
        answer = self.rebuild(server, flavorRef=self.small)
        self.assertEqual('BUILD', answer['status'])
        self.assertEqual(small['name'], answer['flavor']['original_name'])
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual(
            {'vcpus': 1, 'ram': 128, 'disk': 1, 'ephemeral': 10, 'swap': 0,
             'original_name': small['name'], 'extra_specs': {}},
            server['flavor'])
        self.assertEqual(
            {'VCPU': 1, 'MEMORY_MB': 128, 'DISK_GB': 11},
            self.allocated(server))
        spec = self.spec(server)
        self.assertEqual(self.small, spec.flavor.flavorid)
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, server['id'])
            self.assertEqual(
                (spec.flavor.id, 128, 1, 1, 10),
                (instance.instance_type_id, instance.memory_mb,
                 instance.vcpus, instance.root_gb, instance.ephemeral_gb))
            self.assertEqual(
                [10], [bdm.volume_size for bdm in
                       objects.BlockDeviceMappingList.get_by_instance_uuid(
                           cctxt, server['id']) if bdm.source_type == 'blank'])

    def test_flavor_that_an_older_request_spec_does_not_have(self):
        server = self.create_waiting()
        older = self.spec(server)
        with mock.patch(SELECT, side_effect=exception.NoValidHost(reason='')):
            self.rebuild(server, flavorRef=self.small)
            self.wait_for(server, 'PENDING')
        older.save_all()
        self.rebuild(server)
        self.wait_for(server, 'ACTIVE')
        self.assertEqual(
            {'VCPU': 1, 'MEMORY_MB': 128, 'DISK_GB': 11},
            self.allocated(server))

    def test_another_that_does_not_fit_is_kept(self):
        server = self.create_waiting()
        other = self._create_flavor(
            vcpu=1, memory_mb=256, disk=1, ephemeral=3000, swap=512,
            extra_spec={'hw:cpu_policy': 'dedicated'})
        self.rebuild(server, flavorRef=other)
        server = self.wait_for(server, 'PENDING')
        self.assertEqual(256, server['flavor']['ram'])
        spec = self.spec(server)
        self.assertEqual(other, spec.flavor.flavorid)
        self.assertIsNotNone(spec.numa_topology)
        # What it has now counts for the next rebuild.
        self.rebuild(server)
        server = self.wait_for(server, 'PENDING')
        self.assertEqual(256, server['flavor']['ram'])
        self.rebuild(server, flavorRef=self.small)
        server = self.wait_for(server, 'ACTIVE')
        self.assertIsNone(self.spec(server).numa_topology)

    def test_disks_of_the_owner_stay(self):
        swap = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000, swap=512)
        self.large = swap
        server = self.create_waiting(block_device_mapping_v2=[
            {'boot_index': 0, 'uuid': self.image_id(),
             'source_type': 'image', 'destination_type': 'local'},
            {'boot_index': -1, 'source_type': 'blank', 'volume_size': 5,
             'destination_type': 'local'}])
        self.assertIn(
            'Ephemeral disks requested are larger',
            self.refused_unchanged(400, server, flavorRef=self._create_flavor(
                vcpu=1, memory_mb=128, disk=1, ephemeral=4)))
        self.rebuild(server, flavorRef=self.small)
        self.wait_for(server, 'ACTIVE')

    def test_disk_of_the_owner_that_is_as_large_as_the_flavor_s(self):
        server = self.create_waiting(block_device_mapping_v2=[
            {'boot_index': 0, 'uuid': self.image_id(),
             'source_type': 'image', 'destination_type': 'local'},
            {'boot_index': -1, 'source_type': 'blank', 'tag': 'scratch',
             'volume_size': 2000,
             'destination_type': 'local'}])
        self.assertIn(
            'Ephemeral disks requested are larger',
            self.refused_unchanged(400, server, flavorRef=self.small))

    def image_id(self):
        return self.glance.auto_disk_config_enabled_image['id']

    def test_bad_flavors(self):
        server = self.create_waiting()
        private = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, is_public=False)
        for flavor_id in 'unknown', private:
            self.assertIn('Flavor %s could not be found' % flavor_id,
                          self.refused_unchanged(
                              400, server, flavorRef=flavor_id))
        for flavor_id in None, '', {}, []:
            self.refused_unchanged(400, server, flavorRef=flavor_id)
        self.rebuild_as_admin(server, private)

    def rebuild_as_admin(self, server, flavor_id):
        # An administrator may use each flavor, as in a create.
        self.admin_api.post_server_action(
            server['id'], {'rebuild': {'flavorRef': flavor_id}})
        self.wait_for(server, 'ACTIVE')

    def test_disabled_flavor(self):
        server = self.create_waiting()
        context = nova_context.get_admin_context()
        with api_db_api.context_manager.writer.using(context):
            context.session.query(api_models.Flavors).update(
                {'disabled': True})
        self.assertIn('could not be found', self.refused_unchanged(
            400, server, flavorRef=self.small))
        # The server may be built with the flavor that it has.
        self.rebuild(server)
        self.wait_for(server, 'PENDING')

    def test_image_too_big(self):
        server = self.create_waiting()
        tiny = self._create_flavor(vcpu=1, memory_mb=1, disk=1)
        image = self.glance.show(None, server['image']['id'])
        image['min_ram'] = 64
        self.glance.images[image['id']] = image
        self.assertIn("Flavor's memory is too small",
                      self.refused_unchanged(400, server, flavorRef=tiny))

    def test_quota(self):
        server = self.create_waiting()
        big = self._create_flavor(vcpu=3, memory_mb=128, disk=1)
        self.admin_api.update_quota({'cores': 2}, self.api.project_id)
        self.assertIn(
            'Quota exceeded for cores: Requested 3, but already used 0 of 2',
            self.refused_unchanged(403, server, flavorRef=big))
        # It is counted once, and with the flavor that it is to have.
        self.admin_api.update_quota({'cores': 3}, self.api.project_id)
        self.rebuild(server, flavorRef=big)
        self.wait_for(server, 'PENDING')
        self.admin_api.update_quota(
            {'cores': 1, 'force': True}, self.api.project_id)
        self.assertIn(
            'Quota exceeded for cores: Requested 3, but already used 0 of 1',
            self.refused_unchanged(403, server))
        self.rebuild(server, flavorRef=self.small)
        self.wait_for(server, 'ACTIVE')

    def test_volume_backed(self):
        self.useFixture(cinder_fixture.CinderFixture(self))
        server = self.create_waiting(block_device_mapping_v2=[
            {'boot_index': 0, 'uuid':
             cinder_fixture.CinderFixture.IMAGE_BACKED_VOL,
             'source_type': 'volume', 'destination_type': 'volume'}],
            imageRef='')
        self.rebuild(server, flavorRef=self.small)
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual(
            {'VCPU': 1, 'MEMORY_MB': 128, 'DISK_GB': 10},
            self.allocated(server))

    def test_accelerators(self):
        cyborg = self.useFixture(cyborg_fixture.CyborgFixture())
        server = self.create_waiting()
        profile = 'nova.accelerator.cyborg.get_device_profile_request_groups'
        wanted = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'accel:device_profile': cyborg.dp_name})
        with mock.patch(profile, side_effect=exception.DeviceProfileError(
                name='fast', msg='gone')):
            self.assertIn(
                'Device profile name fast: gone',
                self.refused_unchanged(400, server, flavorRef=wanted))
        # No host has one.
        self.rebuild(server, flavorRef=wanted)
        server = self.wait_for(server, 'PENDING')
        self.rebuild(server, flavorRef=self.small)
        self.wait_for(server, 'ACTIVE')
        self.assertEqual(
            {'VCPU': 1, 'MEMORY_MB': 128, 'DISK_GB': 11},
            self.allocated(server))

    def test_devices(self):
        self.flags(alias=[jsonutils.dumps({
            'vendor_id': '8086', 'product_id': '1528', 'name': 'card'})],
            group='pci')
        server = self.create_waiting()

        def flavor(alias):
            return self._create_flavor(
                vcpu=1, memory_mb=128, disk=1,
                extra_spec={'pci_passthrough:alias': alias})

        self.assertIn('is not defined', self.refused_unchanged(
            400, server, flavorRef=flavor('unknown:1')))
        self.rebuild(server, flavorRef=flavor('card:2'))
        # The host finds no such devices. The server is rebuilt from its cell.
        server = self.wait_for(server, 'ERROR')
        [request] = self.spec(server).pci_requests.requests
        self.assertEqual(('card', 2), (request.alias_name, request.count))
        self.rebuild(server, flavorRef=self.small)
        self.wait_for(server, 'ACTIVE')
        self.assertEqual([], self.spec(server).pci_requests.requests)

    def test_one_of_two_wins(self):
        server = self.create_waiting()
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0'):
            self.rebuild(server, flavorRef=self.small)
            self.refused(409, server, flavorRef=self.small)
            self.refused(409, server)

    def test_not_in_cell0(self):
        server = self._create_server(flavor_id=self.small, networks='none')
        other = self._create_flavor(vcpu=1, memory_mb=128, disk=1)
        for body in ({'flavorRef': other}, {'flavorRef': self.small},
                     {'availability_zone': None}):
            self.assertIn('never built', self.refused(400, server, **body))
        self.assertEqual('ACTIVE', self.api.get_server(
            server['id'])['status'])

    def test_older_microversions(self):
        server = self.create_waiting()
        for version in PENDING, REBUILD:
            self.speak(version)
            for body in ({'flavorRef': self.small},
                         {'availability_zone': 'nova'}):
                self.assertIn('Additional properties', self.refused_unchanged(
                    400, server, imageRef=server['image']['id'], **body))

    def test_malformed_at_older_microversions(self):
        server = self.create_waiting()
        before = self.stored(server)
        image = server['image']['id']
        for version in '2.1', PENDING, REBUILD:
            self.speak(version)
            for body in (None, 'x', {'imageRef': image,
                                     'availability_zone': 5},
                         {'imageRef': image,
                          'availability_zone': 'nova:compute'}):
                exc = self.assertRaises(
                    client.OpenStackApiException,
                    self.api.post_server_action, server['id'],
                    {'rebuild': body})
                self.assertEqual(400, exc.response.status_code, exc)
        self.assertEqual(before, self.stored(server))

    def test_legacy_endpoint_drops_what_it_does_not_know(self):
        server = self._create_server(flavor_id=self.small, networks='none')
        api = client.TestOpenStackClient(
            'fake', self.api.base_url.replace('/v2.1', '/v2'),
            self.api.project_id, roles=['reader', 'member'])
        api.post_server_action(
            server['id'], {'rebuild': {
                'imageRef': server['image']['id'], 'flavorRef': 'unknown',
                'availability_zone': 'nova:compute'}},
            check_response_status=[202])
        self._wait_for_state_change(server, 'ACTIVE')


class PolicyTestCase(CorrectedBase):
    """A rebuild gives nobody what a create or a resize would refuse."""

    def refuse(self, rule):
        self.policy.set_rules(
            {'os_compute_api:servers:' + rule: '!'}, overwrite=False)

    def assertRefusedFor(self, rule, server, **body):
        with mock.patch('nova.compute.flavors.get_flavor_by_flavor_id'
                        ) as flavor, mock.patch(
                'nova.compute.rebuild_correction.get_availability_zones'
        ) as zones:
            self.assertIn('servers:' + rule, self.refused_unchanged(
                403, server, **body))
        flavor.assert_not_called()
        zones.assert_not_called()

    def test_create(self):
        server = self.create_waiting()
        self.refuse('create')
        for body in ({'flavorRef': self.small}, {'flavorRef': 'unknown'},
                     {'availability_zone': 'nova'},
                     {'availability_zone': None}):
            self.assertRefusedFor('create', server, **body)
        # A rebuild that names neither needs its own policy alone.
        self.rebuild(server)
        self.wait_for(server, 'PENDING')

    def test_resize(self):
        server = self.create_waiting()
        self.refuse('resize')
        self.assertRefusedFor('resize', server, flavorRef=self.small)
        self.rebuild(server, availability_zone='nova')
        self.wait_for(server, 'PENDING')

    def test_rebuild(self):
        server = self.create_waiting()
        self.refuse('rebuild')
        for body in ({'flavorRef': 'unknown'},
                     {'availability_zone': 'nowhere'}):
            self.assertRefusedFor('rebuild', server, **body)

    def test_policy_of_the_zone(self):
        server = self.create_waiting()
        self.policy.set_rules(
            {'os_compute_api:servers:create': "'nova':%(availability_zone)s"},
            overwrite=False)
        self.assertRefusedFor('create', server, availability_zone='other')
        self.rebuild(server, availability_zone='nova')
        self.wait_for(server, 'PENDING')

    def test_locked(self):
        server = self.create_waiting()
        self.api.post_server_action(server['id'], {'lock': None})
        for body in ({'flavorRef': 'unknown'},
                     {'availability_zone': 'nowhere'}):
            self.assertIn('is locked', self.refused_unchanged(
                409, server, **body))


class ZoneTestCase(CorrectedBase):

    def setUp(self):
        super().setUp()
        self.make_zone('zone1', 'compute')
        self._start_compute('other')
        self.make_zone('zone2', 'other')

    def filled(self, zone='zone1', api=None):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=1020)
        self._create_server(flavor_id=flavor, networks='none', az='zone1')
        large, self.large = self.large, self.small
        try:
            return self.create_waiting(az=zone, api=api)
        finally:
            self.large = large

    def test_another_zone_has_room(self):
        server = self.filled()
        answer = self.rebuild(server, availability_zone='zone2')
        self.assertEqual('zone2', answer['OS-EXT-AZ:availability_zone'])
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual('other', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual('zone2', server['OS-EXT-AZ:availability_zone'])
        self.assertEqual('zone2', server['pinned_availability_zone'])

    def test_any_zone(self):
        server = self.filled()
        self.rebuild(server, availability_zone=None)
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual('other', server['OS-EXT-SRV-ATTR:host'])
        self.assertIsNone(server['pinned_availability_zone'])

    def test_unpinned_while_it_is_rebuilt(self):
        if microversions.RELEASED == '2.103':
            self.skipTest('No request changes the zone of a server.')
        server = self.filled()
        other = self._create_flavor(
            vcpu=1, memory_mb=256, disk=1, ephemeral=2000)
        save, late = objects.RequestSpec.save, []

        def save_late(spec):
            if not late:
                late.append(spec)
                contextvars.Context().run(
                    self.rebuild, server, flavorRef=other)
                self.wait_for(server, 'PENDING')
            save(spec)

        with mock.patch.object(objects.RequestSpec, 'save', save_late):
            answer = self.api.put_server(server['id'], {
                'server': {'pinned_availability_zone': None}})
        self.assertIsNone(answer['server']['pinned_availability_zone'])
        spec = self.spec(server)
        self.assertIsNone(spec.availability_zone)
        self.assertEqual(other, spec.flavor.flavorid)
        self.assertEqual(2, spec.rebuild_data['attempts'])
        self.rebuild(server, flavorRef=self.small)
        self.assertEqual('other', self.wait_for(server, 'ACTIVE')[
            'OS-EXT-SRV-ATTR:host'])

    def test_unpinned_after_the_rebuild_has_read_the_zone(self):
        if microversions.RELEASED == '2.103':
            self.skipTest('No request changes the zone of a server.')
        server = self.filled()
        create = objects.BuildRequest.create_in_place_of_mapping

        def late(build_request, *args):
            contextvars.Context().run(self.api.put_server, server['id'], {
                'server': {'pinned_availability_zone': None}})
            create(build_request, *args)

        with mock.patch.object(
                objects.BuildRequest, 'create_in_place_of_mapping', late):
            self.assertIn('try again', self.refused(409, server))
        self.assertIsNone(self.spec(server).availability_zone)
        self.rebuild(server)
        self.assertEqual('other', self.wait_for(server, 'ACTIVE')[
            'OS-EXT-SRV-ATTR:host'])

    def test_none_named(self):
        server = self.filled()
        self.rebuild(server)
        server = self.wait_for(server, 'PENDING')
        self.assertEqual('zone1', server['pinned_availability_zone'])

    def test_bad_zones(self):
        server = self.filled()
        self.assertIn(
            'The requested availability zone is not available',
            self.refused_unchanged(400, server, availability_zone='nowhere'))
        for zone in '', 12, 'a:b:c:d':
            self.refused_unchanged(400, server, availability_zone=zone)
        self.assertIn('create:forced_host', self.refused_unchanged(
            403, server, availability_zone='zone2:other'))

    def test_zone_for_a_server_that_is_not_there(self):
        for zone in 'zone2', 'zone2:other', 'a:b:c:d':
            self.refused(404, {'id': uuids.missing}, availability_zone=zone)

    def test_host_of_the_administrator(self):
        server = self.filled('zone1:compute', self.admin_api)
        self.admin_api.post_server_action(
            server['id'],
            {'rebuild': {'availability_zone': 'zone2:other'}})
        self.wait_for(server, 'ACTIVE')
        self.assertEqual(['other'], self.spec(server).force_hosts)

    def test_another_host_than_it_was_created_for(self):
        server = self.create_waiting(api=self.admin_api, host='compute')
        self.assertIn('was created for a host', self.refused_unchanged(
            400, server, api=self.admin_api,
            availability_zone='zone2:other'))

    def test_volume_of_another_zone(self):
        self.flags(cross_az_attach=False, group='cinder')
        self.useFixture(cinder_fixture.CinderFixture(self, az='zone2'))
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=2000)
        self.large = flavor
        server = self.create_waiting(
            az='zone2', imageRef='', block_device_mapping_v2=[{
                'boot_index': 0, 'source_type': 'volume',
                'destination_type': 'volume', 'uuid':
                cinder_fixture.CinderFixture.IMAGE_BACKED_VOL}])
        self.assertIn('are not in the same availability zone',
                      self.refused_unchanged(
                          400, server, availability_zone='zone1'))
        # In any zone, but it has to be that of the volume.
        self.rebuild(server, availability_zone=None, flavorRef=self.small)
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual('other', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual('zone2', server['pinned_availability_zone'])

    def test_both(self):
        server = self.filled()
        tiny = self._create_flavor(vcpu=1, memory_mb=64, disk=1)
        self.rebuild(server, flavorRef=tiny, availability_zone='zone2')
        server = self.wait_for(server, 'ACTIVE')
        self.assertEqual((64, 'other'), (
            server['flavor']['ram'], server['OS-EXT-SRV-ATTR:host']))
