# SPDX-License-Identifier: Apache-2.0

"""Why a server waits, as GET /servers/{id}/pending tells it."""

import contextlib
import re
from unittest import mock
from urllib import parse as urlparse

import fixtures
from keystoneauth1 import exceptions as ks_exc
from oslo_db import exception as db_exc
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import api as compute_api
from nova.compute import pending_reason
from nova.compute import rebuild_in_cell0
from nova.compute import utils as compute_utils
from nova.conductor.tasks import recover_builds
import nova.conf
from nova import context as nova_context
from nova import exception
from nova import objects
from nova.scheduler.client import report
from nova.scheduler import host_refusals
from nova.scheduler import pending_verdict
from nova.scheduler import rpcapi
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import microversions
from nova.tests.functional import rebuild_base

RELEASED = microversions.RELEASED
PENDING = microversions.PENDING
REBUILD = rebuild_in_cell0.API_VERSION
REASON = pending_reason.API_VERSION

CONF = nova.conf.CONF

OWNERS = {'since', 'attempts', 'last_attempt', 'reason', 'message', 'advice',
          'asked_to_wait'}
TIME = r'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$'


class PendingReasonBase(rebuild_base.RebuildInCell0Base):

    # A loaded machine has its time.
    timeout = 60

    def setUp(self):
        self.flags(pending_verdict_timeout=self.timeout, group='api')
        self.useFixture(fixtures.MockPatchObject(
            pending_verdict, '_SECONDS', self.timeout))
        # That of the process is used up by the tests before.
        self.useFixture(fixtures.MockPatchObject(
            pending_verdict, '_allowance',
            pending_verdict.Allowance(store=600)))
        super().setUp()

    def get(self, server, api=None, query='', status=200):
        server_id = server if isinstance(server, str) else server['id']
        response = (api or self.api).api_request(
            'servers/%s/pending%s' % (server_id, query),
            check_response_status=[status])
        return response.json()

    def pending(self, *args, **kwargs):
        return self.get(*args, **kwargs)['pending']

    def refusal(self, status, *args, **kwargs):
        (error, ) = self.get(*args, status=status, **kwargs).values()
        self.assertEqual(status, error['code'])
        return error['message']

    def assertReason(self, reason, server):
        """Check the reason of a server, the same for all who ask.

        The owner reads the message of the fault, which names no filter.
        """
        admin = self.pending(server, self.admin_api)
        owner = self.pending(server)
        self.assertEqual(reason, admin['reason'], admin)
        self.assertEqual({key: admin[key] for key in OWNERS - {'message'}},
                         {key: owner[key] for key in OWNERS - {'message'}})
        self.assertEqual(OWNERS, set(owner))
        self.assertEqual(
            self.api.get_server(server['id'])['fault']['message'],
            owner['message'])
        self.assertNotIn('Filter', owner['message'])
        return admin

    def assertReasonForAdministrators(self, reason, server, owners='no_room'):
        """Check what the checks of a rebuild tell, and its owner not."""
        self.assertEqual(owners, self.pending(server)['reason'])
        shown = self.pending(server, self.admin_api)
        self.assertEqual(reason, shown['reason'], shown)
        return shown

    def fill(self):
        """Leave no room on the host."""
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1, ephemeral=1020)
        return self._create_server(flavor_id=flavor, networks='none')

    def waiting(self, **server):
        return self.create_waiting(flavor_id=self.small, **server)

    def create_waiting(self, status='PENDING', api=None, flavor_id=None,
                       **server):
        large, self.large = self.large, flavor_id or self.large
        try:
            return super().create_waiting(status, api, **server)
        finally:
            self.large = large


class ReasonTestCase(PendingReasonBase):

    def test_no_room(self):
        self.fill()
        server = self.waiting()
        shown = self.assertReason('no_room', server)
        self.assertEqual(server['created'], shown['since'])
        self.assertEqual(1, shown['attempts'])
        self.assertLessEqual(shown['since'], shown['last_attempt'])
        self.assertTrue(re.match(TIME, shown['last_attempt']), shown)
        self.assertEqual(server['fault']['message'], shown['message'])
        node, = self.admin_api.api_get('os-hypervisors').body['hypervisors']
        self.assertEqual([{'host': 'compute', 'uuid': node['id'],
                           'refused_by': None}], shown['hosts'])
        request, = shown['requests']
        # Not every scheduler asks for providers of its own.
        self.assertIn(
            urlparse.parse_qs(request),
            [{'resources': ['DISK_GB:11,MEMORY_MB:128,VCPU:1'],
              'root_required': [traits + '!COMPUTE_STATUS_DISABLED']}
             for traits in ('OWNER_NOVA,', '')])

    def test_attempts_are_counted(self):
        self.fill()
        server = self.waiting()
        before = self.pending(server)
        self.rebuild(server)
        server = self.wait_for(server, 'PENDING')
        after = self.pending(server)
        self.assertEqual(before['since'], after['since'])
        self.assertEqual(2, after['attempts'])
        self.assertGreaterEqual(after['last_attempt'], before['last_attempt'])

    def test_attempts_are_counted_though_actions_are_dropped(self):
        self.fill()
        server = self.waiting()
        with mock.patch('nova.compute.action_history.LATEST', 1):
            for _time in range(4):
                self.rebuild(server)
                server = self.wait_for(server, 'PENDING')
        self.assertLess(len(self.api.get_instance_actions(server['id'])), 5)
        self.assertEqual(5, self.pending(server)['attempts'])

    def test_room_since(self):
        blocker = self.fill()
        server = self.waiting()
        self._delete_server(blocker)
        shown = self.assertReason('no_room', server)
        self.assertIn('now: rebuild', shown['advice'])

    def test_larger_than_any_host(self):
        self.assertReason('nothing_fits', self.create_waiting())

    def test_trait_that_nobody_has(self):
        for trait in 'HW_CPU_X86_AVX', 'CUSTOM_NEVER_HEARD_OF':
            flavor = self._create_flavor(
                vcpu=1, memory_mb=128, disk=1, extra_spec={
                    'trait:' + trait: 'required'})
            self.assertReason(
                'nothing_fits', self.create_waiting(flavor_id=flavor))

    def test_nothing_is_said_without_proof(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'trait:HW_CPU_X86_AVX': 'required'})
        server = self.create_waiting(flavor_id=flavor)
        self.useFixture(fixtures.MockPatchObject(
            pending_verdict, '_SECONDS', -1))
        self.assertReason('no_room', server)

    def test_class_that_nobody_has(self):
        for name in 'VGPU', 'CUSTOM_NEVER_HEARD_OF':
            flavor = self._create_flavor(
                vcpu=1, memory_mb=128, disk=1,
                extra_spec={'resources:' + name: '1'})
            self.assertReason(
                'nothing_fits', self.create_waiting(flavor_id=flavor))

    def test_no_host_at_all(self):
        self.fill()
        server = self.waiting()
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            objects.Service.get_by_compute_host(cctxt, 'compute').destroy()
        self.assertEqual([], self.assertReason(
            'nothing_fits', server)['hosts'])

    def test_refused_by_a_filter(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'capabilities:hypervisor_type': 'vmware'})
        shown = self.assertReason(
            'refused', self.create_waiting(flavor_id=flavor))
        self.assertIn('ComputeCapabilitiesFilter', shown['message'])
        self.assertIn('There are not enough hosts', shown['message'])
        self.assertEqual(['ComputeCapabilitiesFilter'], [
            host['refused_by'] for host in shown['hosts']])

    def test_refused_by_a_request_filter(self):
        self.flags(limit_tenants_to_placement_aggregate=True,
                   placement_aggregate_required_for_tenants=True,
                   group='scheduler')
        self._start_compute('other')
        shown = self.assertReason('refused', self.waiting())
        self.assertEqual(['require_tenant_aggregate'] * 2, [
            host['refused_by'] for host in shown['hosts']])
        self.assertTrue(shown['message'].endswith(
            'refused by require_tenant_aggregate.'), shown)

    def test_disabled_host(self):
        service, = self.admin_api.get_services(binary='nova-compute')
        self.admin_api.put_service(service['id'], {'status': 'disabled'})
        shown = self.assertReason('refused', self.waiting())
        self.assertIn('ComputeFilter', shown['message'])
        self.assertEqual('ComputeFilter', shown['hosts'][0]['refused_by'])

    def test_no_such_host(self):
        server = self.create_waiting(
            api=self.admin_api, flavor_id=self.small, az='nova:nowhere')
        shown = self.assertReason('no_such_host', server)
        self.assertIn('No such host - host: nowhere', shown['message'])
        self.assertEqual([], shown['requests'])
        self.assertEqual('force_hosts', shown['hosts'][0]['refused_by'])
        # Another zone replaces the host.
        self.assertIn('names no host', shown['advice'])
        self.rebuild(server, availability_zone=None)
        self.wait_for(server, 'ACTIVE')

    def test_cell_that_does_not_answer(self):
        """It can have the host that would take the server."""
        server = self.create_waiting()
        with mock.patch.object(host_refusals, '_get_rows',
                               side_effect=db_exc.DBConnectionError()):
            # What the last attempt has found.
            self.assertReason('no_room', server)

    def test_forced_host_is_full(self):
        self.fill()
        self._start_compute('other')
        server = self.create_waiting(
            api=self.admin_api, flavor_id=self.small, az='nova:compute')
        shown = self.assertReason('no_room', server)
        self.assertEqual(
            {'compute': None, 'other': 'force_hosts'},
            {host['host']: host['refused_by'] for host in shown['hosts']})

    def test_host_outside_of_the_zone(self):
        aggregate = self.admin_api.post_aggregate(
            {'aggregate': {'name': 'zone', 'availability_zone': 'zone'}})
        self.admin_api.add_host_to_aggregate(aggregate['id'], 'compute')
        self.fill()
        self._start_compute('other')
        shown = self.assertReason('no_room', self.waiting(az='zone'))
        self.assertEqual(
            {'compute': None, 'other': 'map_az_to_placement_aggregate'},
            {host['host']: host['refused_by'] for host in shown['hosts']})

    def test_quota(self):
        server = self.waiting_for_quota()
        shown = self.assertReasonForAdministrators('quota', server)
        self.assertIn('Quota exceeded for cores', shown['message'])
        self.assertEqual(1, len(shown['hosts']))
        self.assertIn(shown['message'], self.refused(403, server))

    def test_quota_of_ports(self):
        self.fill()
        server = self.waiting(networks=[
            {'uuid': self.neutron.network_1['id']}])
        with mock.patch.object(
                self.neutron, 'show_quota', return_value={
                    'quota': {'port': len(self.neutron._ports)}}):
            shown = self.assertReasonForAdministrators('quota', server)
        self.assertIn('number of ports', shown['message'])
        self.assertIsNone(shown['requests'])
        self.assertIsNone(shown['hosts'])
        self.assertEqual(shown['message'], shown['unavailable'])

    def waiting_for_quota(self):
        self.fill()
        server = self.waiting()
        self.admin_api.update_quota(
            {'cores': 1, 'force': True}, self.api.project_id)
        return server

    def test_it_can_never_be_rebuilt(self):
        """All readers learn that only another server helps."""
        self.fill()
        forgotten = self.waiting()
        self.forget_request(forgotten)
        self.speak('2.56')
        with_files = self.waiting(
            personality=[{'path': '/etc/motd', 'contents': 'cGF0aWVuY2U='}])
        self.speak('latest')
        for server in forgotten, with_files:
            said = self.refused(409, server)
            for api in self.api, self.admin_api:
                shown = self.pending(server, api)
                self.assertEqual(
                    ('unknown', 'Delete the server and create it again.'),
                    (shown['reason'], shown['advice']))
                self.assertIn(shown['message'], said)

    def test_rebuild_would_be_refused(self):
        self.fill()
        server = self.waiting()
        self.glance.delete(None, server['image']['id'])
        shown = self.assertReasonForAdministrators('unknown', server)
        self.assertIn('could not be found', shown['message'])
        self.assertIsNone(shown['hosts'])
        self.assertIsNone(shown['requests'])
        self.assertEqual(shown['message'], shown['unavailable'])

    def test_service_is_down(self):
        self.fill()
        server = self.waiting()
        with mock.patch.object(glance_fixture.GlanceFixture, 'show',
                               side_effect=Exception('secret')):
            shown = self.assertReason('no_room', server)
        self.assertIsNone(shown['hosts'])
        self.assertNotIn('secret', shown['unavailable'])

    def test_pinned_processors_are_asked_for_twice(self):
        self.fill()
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'hw:cpu_policy': 'dedicated'})
        shown = self.pending(
            self.create_waiting(flavor_id=flavor), self.admin_api)
        self.assertEqual(2, len(shown['requests']))
        for name, request in zip(('PCPU:1', 'VCPU:1'), shown['requests']):
            self.assertIn(name, urlparse.parse_qs(request)['resources'][0])

    def test_nothing_is_claimed_written_or_notified(self):
        self.fill()
        server = self.waiting()
        before = self.stored(server)
        self.notifier.reset()
        for api in self.api, self.admin_api:
            self.pending(server, api)
        self.assertEqual(before, self.stored(server))
        self.assertEqual([], self.notifier.versioned_notifications)
        self.assertEqual([], self.notifier.notifications)
        self.assertEqual({}, self.placement.get(
            '/allocations/' + server['id']).body['allocations'])


class OwnerTestCase(PendingReasonBase):
    """What owners are told asks the database and a scheduler alone."""

    def test_no_other_service_is_asked(self):
        self.useFixture(cinder_fixture.CinderFixture(self))
        volume = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL
        server = self.create_waiting(imageRef='', block_device_mapping_v2=[{
            'source_type': 'volume', 'destination_type': 'volume',
            'boot_index': 0, 'uuid': volume}], networks=[
                {'uuid': self.neutron.network_1['id']}])

        def fail(*_args, **_kwargs):
            raise AssertionError('A service is asked.')

        with contextlib.ExitStack() as stack:
            for name in ('image.glance.API.get', 'volume.cinder.API.get',
                         'volume.cinder.API.attachment_get',
                         'network.neutron.get_client',
                         'objects.Quotas.count',
                         'objects.Quotas.count_as_dict'):
                stack.enter_context(mock.patch('nova.' + name, fail))
            self.assertEqual('nothing_fits', self.pending(server)['reason'])
            # For an administrator they are asked.
            self.assertIn('failed to get volume', self.pending(
                server, self.admin_api)['unavailable'])

    def test_another_cell_is_down(self):
        server = self.create_waiting()
        original = nova_context.scatter_gather_cells
        asked = []

        def gather(context, cells, *args, **kwargs):
            asked.extend(cell.uuid for cell in cells)
            return original(context, cells, *args, **kwargs)

        with mock.patch.object(
                rpcapi.SchedulerAPI, 'get_pending_verdict', return_value=None
        ), mock.patch.object(nova_context, 'scatter_gather_cells', gather):
            self.pending(server)
        self.assertEqual(
            set(), set(asked) - {objects.CellMapping.CELL0_UUID})


class AskedToWaitTestCase(PendingReasonBase):
    """Whether the owner of a server knows of PENDING."""

    def ask(self, server):
        """Store that the owner asked to wait."""
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])
        spec.rebuild_data = dict(spec.rebuild_data or {}, asked_to_wait=True)
        spec.save_all()

    def shown(self, server, api):
        """Return what each of the three says, None for nothing."""
        listed = {one['id']: one for one in
                  api.api_get('/servers/detail').body['servers']}
        return [
            self.pending(server, api)['asked_to_wait'],
            api.get_server(server['id']).get('asked_to_wait'),
            listed[server['id']].get('asked_to_wait')]

    def test_all_readers(self):
        server = self.create_waiting(name='asked')
        self.ask(server)
        for api in self.api, self.admin_api:
            self.assertEqual([True] * 3, self.shown(server, api))

    def test_who_asks_to_wait(self):
        self.speak(RELEASED)
        server = self.create_waiting()
        self.speak('latest')
        for api, asked in (
                (None, False), (self.admin_api, False), (self.api, True),
                (self.admin_api, True)):
            if api:
                api.post_server_action(server['id'], {'rebuild': {}})
                self.wait_for(server, 'PENDING')
            self.assertEqual(
                asked, self.api.get_server(server['id'])['asked_to_wait'])

    def test_servers_that_were_built_have_none(self):
        self.ask(self.create_waiting())
        other = self._create_server(flavor_id=self.small, networks='none')
        self.flags(use_pending_state=False)
        failed = self.create_waiting('ERROR')
        listed = {one['id']: one for one in
                  self.api.api_get('/servers/detail').body['servers']}
        self.assertEqual(3, len(listed))
        self.assertTrue(listed[failed['id']]['asked_to_wait'])
        for shown in listed[other['id']], self.api.get_server(other['id']):
            self.assertNotIn('asked_to_wait', shown)

    def test_older_microversions(self):
        server = self.create_waiting()
        self.ask(server)
        for version in RELEASED, PENDING, REBUILD:
            self.speak(version)
            for one in (self.api.get_server(server['id']), *self.api.api_get(
                    '/servers/detail').body['servers']):
                self.assertNotIn('asked_to_wait', one)

    def test_one_query_for_a_page(self):
        for _time in range(3):
            self.create_waiting()
        with mock.patch.object(
                objects.RequestSpec, 'get_by_instance_uuids',
                side_effect=objects.RequestSpec.get_by_instance_uuids) as load:
            for version, queries in (REBUILD, 1), (REASON, 2):
                load.reset_mock()
                self.speak(version)
                self.assertEqual(3, len(self.api.api_get(
                    '/servers/detail').body['servers']))
                self.assertEqual(queries, load.call_count)


class FiltersOfUsageTestCase(PendingReasonBase):
    """A filter refuses a host for what runs there."""

    def _setup_scheduler_service(self):
        self.flags(enabled_filters=CONF.filter_scheduler.enabled_filters + [
            'NumInstancesFilter'], group='filter_scheduler')
        return super()._setup_scheduler_service()

    def test_no_room(self):
        self.flags(max_instances_per_host=1, group='filter_scheduler')
        self.fill()
        shown = self.assertReason('no_room', self.waiting())
        self.assertEqual('NumInstancesFilter', shown['hosts'][0]['refused_by'])

    def test_room_in_placement(self):
        self.flags(max_instances_per_host=1, group='filter_scheduler')
        self._create_server(flavor_id=self.small, networks='none')
        shown = self.assertReason(
            'no_room', self.create_waiting(flavor_id=self.small))
        self.assertEqual('NumInstancesFilter', shown['hosts'][0]['refused_by'])

    def test_refused_by_another_filter_elsewhere(self):
        self.flags(max_instances_per_host=1, group='filter_scheduler')
        self.fill()
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'capabilities:hypervisor_type': 'vmware'})
        shown = self.assertReason(
            'refused', self.create_waiting(flavor_id=flavor))
        self.assertIn('ComputeCapabilitiesFilter', shown['message'])


class RouteTestCase(PendingReasonBase):

    def test_microversions(self):
        for api in self.api, self.admin_api:
            for version in 'latest', REASON:
                self.speak(version)
                answer = api.api_get('/pending').body['pending']
                self.assertEqual({'microversions': {
                    'pending': PENDING, 'rebuild': REBUILD,
                    'reason': REASON}}, answer)
            answer = api.api_get('/pending?x=1', check_response_status=[400])
        for version in '2.1', RELEASED, PENDING, REBUILD:
            self.speak(version)
            self.api.api_get('/pending', check_response_status=[404])

    def test_older_microversions(self):
        server = self.create_waiting()
        for version in '2.1', RELEASED, REBUILD:
            self.speak(version)
            self.get(server, status=404)
            self.get(server, self.admin_api, status=404)
        self.speak(REASON)
        self.assertEqual(OWNERS, set(self.pending(server)))

    def test_unknown_and_malformed_ids(self):
        for server_id in uuids.unknown, 'malformed', '1':
            for api in self.api, self.admin_api:
                self.assertEqual(
                    'Instance %s could not be found.' % server_id,
                    self.refusal(404, server_id, api))

    def test_not_waiting(self):
        running = self._create_server(flavor_id=self.small, networks='none')
        self.flags(use_pending_state=False)
        failed = self.create_waiting('ERROR')
        for server in running, failed:
            for api in self.api, self.admin_api:
                self.assertIn(
                    'Instance %s does not wait for a host: it is in vm_state '
                    % server['id'], self.refusal(409, server, api))

    def test_roles(self):
        server = self.create_waiting()
        for api in self.api_fixture.reader_api, self.api_fixture.other_api:
            api.microversion = self.api.microversion
        self.assertEqual(OWNERS, set(self.pending(
            server, self.api_fixture.reader_api)))
        # The harness gives it what the deprecated defaults do.
        self.assertEqual(OWNERS, set(self.pending(
            server, self.api_fixture.other_api)))
        self.policy.set_rules(
            {'compute:server:pending:show': 'role:reader'}, overwrite=False)
        self.assertIn('compute:server:pending:show', self.refusal(
            403, server, self.api_fixture.other_api))
        self.assertIn('could not be found', self.refusal(
            404, server, self.client_of(project_id=uuids.other)))
        self.assertEqual(
            self.pending(server, self.admin_api),
            self.pending(server, self.client_of(
                project_id=uuids.service, roles=['service'])))

    def client_of(self, project_id, roles=('member', 'reader'), user='other'):
        """Return a client of another project, with the roles given."""
        client = api_client.TestOpenStackClient(
            user, self.api.base_url, project_id=project_id,
            roles=list(roles))
        client.microversion = self.api.microversion
        return client

    def test_claimed_by_a_rebuild(self):
        server = self.create_waiting()
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell0']) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, server['id'])
            for task_state in 'rebuilding', 'deleting':
                instance.task_state = task_state
                instance.save()
                self.assertIn('task_state ' + task_state,
                              self.refusal(409, server))

    def test_on_its_way_to_a_host(self):
        server = self.create_waiting()
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0'):
            self.rebuild(server)
        for api in self.api, self.admin_api:
            self.assertIn('task_state scheduling',
                          self.refusal(409, server, api))

    def test_first_build(self):
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'schedule_and_build_instances'):
            server = self.api.post_server({'server': self._build_server(
                flavor_id=self.small, networks='none')})
        self.assertIn('does not wait', self.refusal(409, server))

    def test_back_before_the_look_is_at_its_end(self):
        server = self.create_waiting()
        get = compute_api.API._get_instance_from_cell
        get_mapping = objects.InstanceMapping.get_by_instance_uuid
        met = []

        def goes(*args):
            if not met:
                met.append('is going')
                with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                                'rebuild_instance_in_cell0'):
                    self.rebuild(server)
                met[:] = ['goes']
            return get(*args)

        def comes(*args):
            if met == ['goes']:
                met.append('comes')
                recover_builds.recover(
                    nova_context.get_admin_context(),
                    report.SchedulerReportClient(), -1, None)
            return get_mapping(*args)

        with mock.patch.object(
                compute_api.API, '_get_instance_from_cell', goes
        ), mock.patch.object(objects.InstanceMapping,
                             'get_by_instance_uuid', comes):
            for ask in self.pending, lambda server: self.api.get_server(
                    server['id']):
                met.clear()
                ask(server)
                self.assertEqual(['goes', 'comes'], met)

    def test_deleted_is_looked_for_once(self):
        server = self.create_waiting()
        self._delete_server(server)
        with mock.patch.object(
                objects.Instance, 'get_by_uuid', autospec=True,
                side_effect=objects.Instance.get_by_uuid) as look:
            self.refusal(404, server)
        self.assertEqual(1, look.call_count)

    def test_what_is_loaded_is_the_same_each_time(self):
        server = self.create_waiting()
        before = list(pending_reason.EXPECTED_ATTRS)
        for _time in range(2):
            self.pending(server)
        self.assertEqual(before, list(pending_reason.EXPECTED_ATTRS))

    def test_volumes_that_another_project_would_own(self):
        self.useFixture(cinder_fixture.CinderFixture(self))
        image = self.glance.auto_disk_config_enabled_image['id']
        server = self.create_waiting(imageRef='', block_device_mapping_v2=[{
            'boot_index': 0, 'uuid': image, 'source_type': 'image',
            'destination_type': 'volume', 'volume_size': 1}])
        other = self.client_of(
            uuids.other, ['admin', 'member', 'reader'], user='admin')
        for api in other, self.client_of(uuids.other, ['service']):
            shown = self.pending(server, api)
            self.assertIn('project of this request',
                          shown['rebuild_forbidden'])
            self.assertEqual('nothing_fits', shown['reason'])
        self.assertIn(shown['rebuild_forbidden'],
                      self.refused(403, server, other))
        # Who could.
        own = self.client_of(
            self.api.project_id, ['admin', 'member', 'reader'], user='admin')
        for api in self.api, own:
            self.assertNotIn('rebuild_forbidden', self.pending(server, api))
        # What there is need not be made.
        self.assertNotIn('rebuild_forbidden',
                         self.pending(self.create_waiting(), other))

    def test_secrets_that_another_project_would_own(self):
        self.admin_api.post_extra_spec(self.large, {
            'extra_specs': {'hw:tpm_version': '2.0'}})
        server = self.create_waiting()
        other = self.client_of(
            uuids.other, ['admin', 'member', 'reader'], user='admin')
        shown = self.pending(server, other)
        self.assertIn('secrets', shown['rebuild_forbidden'])
        self.assertIn('made when it is built', shown['rebuild_forbidden'])
        self.assertIn(shown['rebuild_forbidden'],
                      self.refused(403, server, other))
        self.assertNotIn('rebuild_forbidden', self.pending(server))

    def test_its_cell_does_not_answer(self):
        servers = [self.create_waiting(), self._create_server(
            flavor_id=self.small, networks='none')]
        with mock.patch.object(
                nova_context, 'scatter_gather_single_cell',
                side_effect=lambda _context, cell, *_args, **_kwargs: {
                    cell.uuid: nova_context.did_not_respond_sentinel}):
            for server in servers:
                self.assertIn('try again later', self.refusal(503, server))

    def test_cell0_goes_as_it_is_read(self):
        server = self.create_waiting()
        with mock.patch.object(
                objects.InstanceActionList, 'get_by_instance_uuid',
                side_effect=db_exc.DBConnectionError()):
            self.assertIn('try again later', self.refusal(503, server))

    def test_bad_queries(self):
        server = self.create_waiting()
        for query in ('?limit=-1', '?limit=x', '?marker=x', '?limit=1&limit=2',
                      '?colour=red', '?host=', '?host=a%20b'):
            self.get(server, query=query, status=400)
        self.assertEqual(
            'marker [%s] not found' % uuids.gone, self.refusal(
                400, server, self.admin_api, query='?marker=' + uuids.gone))

    def test_hosts_by_name_and_by_page(self):
        server = self.create_waiting()
        for name in 'b', 'c':
            self._start_compute(name)
        every = self.pending(server, self.admin_api)['hosts']
        self.assertEqual({'compute', 'b', 'c'},
                         {host['host'] for host in every})

        def names(query):
            return [host['host'] for host in self.pending(
                server, self.admin_api, query=query)['hosts']]

        self.assertEqual(['b'], names('?host=b'))
        self.assertEqual(['b', 'c'], sorted(names('?host=b&host=c&host=d')))
        self.assertEqual([], names('?host=d'))
        self.assertEqual([], names('?limit=0'))
        paged, query = [], '?limit=1&host=b&host=compute'
        while query:
            page = self.pending(server, self.admin_api, query=query)
            paged += page['hosts']
            link = page.get('hosts_links', [{'href': ''}])[0]['href']
            if link:
                self.assertIn('/servers/%s/pending?' % server['id'], link)
            query = link and '?' + link.partition('?')[2]
        self.assertEqual(
            [host for host in every if host['host'] != 'c'], paged)
        self.flags(max_limit=2, group='api')
        page = self.pending(server, self.admin_api)
        self.assertEqual(every[:2], page['hosts'])
        self.assertIn('marker=' + every[1]['uuid'],
                      page['hosts_links'][0]['href'])
        # The owner is told of none, whatever is asked for.
        self.assertEqual(OWNERS, set(self.pending(server, query='?host=b')))


class PolicyTestCase(PendingReasonBase):

    def test_zero_disk(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=0, ephemeral=2000)
        server = self.create_waiting(api=self.admin_api, flavor_id=flavor)
        owner = self.pending(server)
        # Whether its rebuild would be refused is not asked for the owner.
        self.assertEqual('nothing_fits', owner['reason'])
        self.assertEqual('nothing_fits', self.pending(
            server, self.admin_api)['reason'])


class SchedulerTestCase(PendingReasonBase):

    def stop_scheduler(self):
        self.scheduler.stop()
        self.flags(pending_verdict_timeout=1, group='api')

    def count_asked(self):
        """Return a list that grows with each reason that is looked for."""
        asked = []
        find_reason = pending_verdict._Verdict._find_reason

        def find(verdict, requests):
            asked.append(verdict)
            return find_reason(verdict, requests)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.scheduler.pending_verdict._Verdict._find_reason', find))
        return asked

    def assertFromFault(self, reason, server):
        """Check what is told without a scheduler."""
        owner = self.pending(server)
        self.assertEqual(OWNERS, set(owner))
        self.assertEqual(reason, owner['reason'])
        self.assertEqual(server['fault']['message'], owner['message'])
        admin = self.pending(server, self.admin_api)
        self.assertEqual(owner, {key: admin[key] for key in OWNERS})
        self.assertIsNone(admin['hosts'])
        self.assertIsNone(admin['requests'])
        self.assertIn('No scheduler', admin['unavailable'])

    def test_down(self):
        flavor = self._create_flavor(
            vcpu=1, memory_mb=128, disk=1,
            extra_spec={'capabilities:hypervisor_type': 'vmware'})
        servers = {
            'no_room': self.create_waiting(),
            'refused': self.create_waiting(flavor_id=flavor),
            'no_such_host': self.create_waiting(
                api=self.admin_api, az='nova:nowhere')}
        self.stop_scheduler()
        for reason, server in servers.items():
            self.assertFromFault(reason, server)

    def test_fault_that_tells_no_reason(self):
        self.fill()
        server = self.waiting()
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell0']) as cctxt:
            compute_utils.add_instance_fault_from_exc(
                cctxt, objects.Instance.get_by_uuid(cctxt, server['id']),
                exception.NovaException('The rebuild was interrupted.'))
        self.assertReason('no_room', server)
        server = self.api.get_server(server['id'])
        self.stop_scheduler()
        self.assertFromFault('unknown', server)

    def test_owners_do_not_wait_again_and_again(self):
        server = self.create_waiting()
        with mock.patch.object(
                rpcapi.SchedulerAPI, 'get_pending_verdict',
                side_effect=messaging.MessagingTimeout) as asked:
            for _time in range(3):
                self.assertEqual('no_room', self.pending(server)['reason'])
            self.assertEqual(1, asked.call_count)
            self.pending(server, self.admin_api)
            self.assertEqual(2, asked.call_count)
        # Who is not a tenant finds out that one answers again.
        self.pending(server, self.admin_api)
        self.assertEqual('nothing_fits', self.pending(server)['reason'])

    def test_owners_ask_again_in_a_while(self):
        self.flags(pending_verdict_timeout=1, group='api')
        server = self.create_waiting()
        with mock.patch.object(
                rpcapi.SchedulerAPI, 'get_pending_verdict',
                side_effect=messaging.MessagingTimeout):
            self.assertEqual('no_room', self.pending(server)['reason'])
        self.assertEqual('no_room', self.pending(server)['reason'])
        self.flags(pending_verdict_timeout=self.timeout, group='api')
        self._wait_for_assert(lambda: self.assertEqual(
            'nothing_fits', self.pending(server)['reason']))

    def test_pinned(self):
        server = self.create_waiting()
        self.flags(scheduler='4.6', group='upgrade_levels')
        self.assertFromFault('no_room', server)

    def test_older_scheduler(self):
        server = self.create_waiting()
        with mock.patch.object(
                type(self.scheduler.manager), 'get_pending_verdict',
                side_effect=AttributeError):
            self.assertFromFault('no_room', server)

    def test_placement_is_down(self):
        server = self.create_waiting()
        with mock.patch('nova.scheduler.client.report.SchedulerReportClient.'
                        'get', side_effect=ks_exc.ConnectFailure):
            shown = self.pending(server, self.admin_api)
        self.assertEqual('no_room', shown['reason'])
        # The hosts and the requests are told without it.
        self.assertEqual(1, len(shown['hosts']))
        self.assertEqual(1, len(shown['requests']))

    def test_reason_is_not_looked_for_with_certain_hosts(self):
        server = self.create_waiting()
        asked = self.count_asked()
        shown = self.pending(server, self.admin_api)
        self.assertEqual('nothing_fits', shown['reason'])
        self.assertEqual(1, len(asked))
        for query in '?host=compute', '?marker=' + shown['hosts'][0]['uuid']:
            # What the last attempt has left.
            self.assertEqual('no_room', self.pending(
                server, self.admin_api, query=query)['reason'])
        self.assertEqual(1, len(asked))

    def test_tenants_have_an_allowance(self):
        server = self.create_waiting()
        self.useFixture(fixtures.MockPatchObject(
            pending_verdict, '_allowance',
            pending_verdict.Allowance(share=0, store=0)))
        self.assertEqual('no_room', self.pending(server)['reason'])
        self.assertEqual('nothing_fits', self.pending(
            server, self.admin_api)['reason'])
