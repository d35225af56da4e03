# SPDX-License-Identifier: Apache-2.0
"""What the REST API says of a waiting server and lets its owner do."""

from unittest import mock

from nova.compute import pending
from nova import context as nova_context
from nova.db.main import api as db_api
from nova.db.main import models
from nova import objects
from nova import rpc
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import full_cloud
from nova.tests.functional import microversions

RELEASED = microversions.RELEASED
PENDING = microversions.PENDING

PORT = neutron_fixture.NeutronFixture.port_1['id']
VOLUME = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL

# Those that change the answers about servers, and the last without PENDING.
OLD = ('2.1', '2.2', '2.37', '2.38', '2.47', '2.73', '2.96', RELEASED)
NEW = (PENDING, 'latest')


class PendingTestCase(full_cloud.FullCloudTestCase):

    def store(self, server, **values):
        """Change a server in cell0 in the database."""
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt:
            with db_api.get_context_manager(cctxt).writer.using(cctxt):
                self.assertEqual(1, cctxt.session.query(
                    models.Instance).filter_by(uuid=server['id']).update(
                        dict(values, updated_at=models.Instance.updated_at),
                        synchronize_session=False))

    def test_answers(self):
        server = self.create_waiting(name='patient')
        for version in OLD + NEW:
            self.speak(version)
            status, vm_state = (('PENDING', 'pending') if version in NEW
                                else ('ERROR', 'error'))
            update = {'server': {'name': 'renamed-' + version}}
            path = '/servers/' + server['id']
            for api in self.api, self.admin_api:
                updated = api.api_put(path, update).body['server']
                self.assertEqual('renamed-' + version, updated['name'])
                self.assertEqual(status, updated['status'])
                # The answer to an update has it from 2.75 on.
                self.assertEqual(
                    vm_state, updated.get('OS-EXT-STS:vm_state', vm_state))
                listed, = api.api_get('/servers/detail').body['servers']
                for shown in api.api_get(path).body['server'], listed:
                    self.assertEqual(status, shown['status'])
                    self.assertEqual(vm_state, shown['OS-EXT-STS:vm_state'])
                    self.assertIsNone(shown['OS-EXT-STS:task_state'])
                    self.assertEqual(0, shown['OS-EXT-STS:power_state'])
                    self.assertNotIn('progress', shown)
                    self.assertEqual(500, shown['fault']['code'])
                    self.assertIn('No valid host was found',
                                  shown['fault']['message'])
                    self.assertEqual(api is self.admin_api,
                                     'details' in shown['fault'])

    def test_legacy_endpoint(self):
        server = self.create_waiting()
        legacy = api_client.TestOpenStackClient(
            'fake', self.api.base_url.replace('/v2.1', '/v2'),
            project_id=self.api.project_id, roles=['reader', 'member'])
        for microversion in (None, PENDING, 'latest'):
            # Version 2 has no microversions; the header is not read.
            legacy.microversion = microversion
            shown = legacy.get_server(server['id'])
            self.assertEqual('ERROR', shown['status'])
            self.assertEqual('error', shown['OS-EXT-STS:vm_state'])
            self.assertEqual(
                [server['id']],
                [s['id'] for s in legacy.get_servers(
                    search_opts={'status': 'ERROR'})])
            self.assertEqual([], legacy.get_servers(
                search_opts={'status': 'PENDING'}))
            renamed = legacy.put_server(
                server['id'], {'server': {'name': 'renamed'}})
            self.assertEqual('ERROR', renamed['server']['status'])

    def test_option_off_changes_no_answer(self):
        self.flags(use_pending_state=False)
        server = self.create_waiting('ERROR')
        for version in ('2.1', RELEASED, PENDING, 'latest'):
            self.speak(version)
            for api in self.api, self.admin_api:
                shown = api.get_server(server['id'])
                self.assertEqual('ERROR', shown['status'])
                self.assertEqual('error', shown['OS-EXT-STS:vm_state'])
                self.assertEqual(
                    [server['id']],
                    [s['id'] for s in api.get_servers(
                        search_opts={'status': 'ERROR'})])
        self.assertEqual(
            [], self.api.get_servers(search_opts={'status': 'PENDING'}))

    def test_option_is_read_for_each_server(self):
        for on, status in (
                (True, 'PENDING'), (False, 'ERROR'), (True, 'PENDING')):
            self.flags(use_pending_state=on)
            self.create_waiting(status)

    def test_what_the_owner_may_change(self):
        server = self.create_waiting(name='before')
        for version in (RELEASED, PENDING):
            self.speak(version)
            changes = {'name': 'after-' + version,
                       'description': 'waits ' + version,
                       'hostname': 'host-' + version.replace('.', '-')}
            for key, value in changes.items():
                self.api.put_server(server['id'], {'server': {key: value}})
            shown = self.api.get_server(server['id'])
            self.assertEqual(changes['name'], shown['name'])
            self.assertEqual(changes['description'], shown['description'])
            self.assertEqual(changes['hostname'],
                             shown['OS-EXT-SRV-ATTR:hostname'])
            self.api.post_server_action(
                server['id'], {'lock': {'locked_reason': 'mine'}})
            shown = self.api.get_server(server['id'])
            self.assertTrue(shown['locked'])
            self.assertEqual('mine', shown['locked_reason'])
            self.assertEqual(
                [server['id']], [s['id'] for s in self.api.get_servers(
                    search_opts={'locked': True, 'status': shown['status']})])
            self.api.post_server_action(server['id'], {'unlock': None})
            self.assertFalse(self.api.get_server(server['id'])['locked'])
        self.wait_for(server, 'PENDING')

    def test_actions_are_listed(self):
        server = self.create_waiting()
        for version in ('2.1', RELEASED, PENDING):
            self.speak(version)
            for api in self.api, self.admin_api:
                action, = api.get_instance_actions(server['id'])
                self.assertEqual('create', action['action'])
                shown = api.get_instance_action_details(
                    server['id'], action['request_id'])
                if 'events' in shown:
                    event, = shown['events']
                    self.assertEqual(
                        'conductor_schedule_and_build_instances',
                        event['event'])
                    self.assertEqual('Error', event['result'])

    def test_reset_state(self):
        for state, status in ('error', 'ERROR'), ('active', 'ACTIVE'):
            server = self.create_waiting()
            body = {'os-resetState': {'state': state}}
            refused = self.api.api_post(
                '/servers/%s/action' % server['id'], body,
                check_response_status=[403])
            self.assertEqual(403, refused.status)
            # Nobody can put a server into the state.
            self.admin_api.api_post(
                '/servers/%s/action' % server['id'],
                {'os-resetState': {'state': 'pending'}},
                check_response_status=[400])
            self.wait_for(server, 'PENDING')
            self.admin_api.post_server_action(server['id'], body)
            shown = self.api.get_server(server['id'])
            self.assertEqual(status, shown['status'])
            self.assertEqual(state, shown['OS-EXT-STS:vm_state'])
            self.assertEqual([], self.api.get_servers(
                search_opts={'status': 'PENDING'}))

    def _delete(self, server):
        self.api.delete_server(server['id'])

    def _force_delete(self, server):
        # Nova sends a notification that its own tests do not list.
        with mock.patch.object(rpc.LegacyValidatingNotifier, 'fatal', False):
            self.api.post_server_action(server['id'], {'forceDelete': None})

    def test_delete_frees_ports_and_volumes(self):
        for delete, soft in ((self._delete, 0), (self._force_delete, 0),
                             (self._delete, 60)):
            self.flags(reclaim_instance_interval=soft)
            server = self.create_waiting(
                networks=[{'port': PORT}], image_uuid='',
                block_device_mapping_v2=[{
                    'source_type': 'volume', 'uuid': VOLUME,
                    'destination_type': 'volume', 'boot_index': 0}])
            self.assertEqual(
                [VOLUME],
                [v['id'] for v in
                 server['os-extended-volumes:volumes_attached']])
            self.assertEqual(
                1, len(self.cinder.volume_to_attachment[VOLUME]))
            delete(server)
            self._wait_until_deleted(server)
            self.assertEqual(
                0, len(self.cinder.volume_to_attachment[VOLUME]))
            # It was made before the server and stays.
            self.assertEqual(
                '', self.neutron.show_port(PORT)['port']['device_id'])
            gone, = self.admin_api.get_servers(search_opts={
                'deleted': True, 'uuid': server['id']})
            self.assertEqual('DELETED', gone['status'])

    def test_locked_server_is_not_deleted(self):
        server = self.create_waiting()
        self.admin_api.post_server_action(server['id'], {'lock': None})
        answer = self.api.api_request(
            '/servers/' + server['id'], method='DELETE')
        self.assertEqual(409, answer.status_code)
        self.wait_for(server, 'PENDING')

    def test_usage_lists_what_was_launched(self):
        self.create_waiting()
        answer = self.admin_api.api_get(
            '/os-simple-tenant-usage?detailed=1').body
        self.assertEqual([], answer['tenant_usages'])

    def test_limits_and_quota_count_it_as_one_in_error(self):
        server = self.create_waiting()

        def counted():
            project = self.api.project_id
            return [self.admin_api.api_get(path).body for path in (
                '/limits', '/os-quota-sets/%s/detail' % project)]

        for count_from_placement in False, True:
            self.flags(count_usage_from_placement=count_from_placement,
                       group='quota')
            as_pending = counted()
            self.assertEqual(
                1, as_pending[1]['quota_set']['instances']['in_use'])
            self.assertEqual(
                1, as_pending[0]['limits']['absolute']['totalInstancesUsed'])
            self.store(server, vm_state='error')
            self.assertEqual(as_pending, counted())
            self.store(server, vm_state='pending')
        self.flags(instances=1, group='quota')
        refused = self.api.api_post(
            '/servers', {'server': self._build_server(
                flavor_id=self.small, networks='none')},
            check_response_status=[403])
        self.assertIn('1 of 1 instances', refused.content.decode())
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)
        self.wait_for(self.api.post_server({'server': self._build_server(
            flavor_id=self.small, networks='none')}), 'ACTIVE')

    def test_server_group(self):
        group = self.api.post_server_groups(
            {'name': 'apart', 'policy': 'anti-affinity'})
        hints = {'group': group['id']}
        request = self._build_server(flavor_id=self.large, networks='none')
        waits = self.wait_for(self.api.post_server(
            {'server': request, 'os:scheduler_hints': hints}), 'PENDING')
        for version in '2.71', RELEASED, PENDING:
            self.speak(version)
            self.assertEqual([group['id']], self.api.get_server(
                waits['id'])['server_groups'])
            shown = self.api.get_server_group(group['id'])
            self.assertEqual([waits['id']], shown['members'])
        # A member that waits takes no host from the others.
        request['flavorRef'] = self.small
        built = self.wait_for(self.api.post_server(
            {'server': request, 'os:scheduler_hints': hints}), 'ACTIVE')
        # The only host has a member now: no valid host, by policy.
        self.wait_for(self.api.post_server(
            {'server': request, 'os:scheduler_hints': hints}), 'PENDING')
        self.api.delete_server(waits['id'])
        self._wait_until_deleted(waits)
        members = self.api.get_server_group(group['id'])['members']
        self.assertNotIn(waits['id'], members)
        self.assertIn(built['id'], members)
        self.assertEqual(2, len(members))

    def test_multi_create(self):
        request = dict(self._build_server(
            name='many', flavor_id=self.large, networks='none'),
            min_count=2, max_count=3, return_reservation_id=True, tags=['t'])
        reservation = self.api.post_server(
            {'server': request})['reservation_id']
        path = '/servers/detail?reservation_id=' + reservation
        for server in self.api.api_get(path).body['servers']:
            self.wait_for(server, 'PENDING')
        for version, status in (RELEASED, 'ERROR'), (PENDING, 'PENDING'):
            self.speak(version)
            found = self.api.api_get(
                '%s&status=%s' % (path, status)).body['servers']
            self.assertCountEqual(['many-1', 'many-2', 'many-3'],
                                  [server['name'] for server in found])
            for server in found:
                self.assertEqual(status, server['status'])
                self.assertIn('No valid host', server['fault']['message'])
                self.assertEqual(['t'], server['tags'])
                self.assertEqual('create', self.api.get_instance_actions(
                    server['id'])[0]['action'])

    def test_schemas_refuse_what_a_microversion_does_not_know(self):
        server = self.create_waiting()
        for path in '/servers/' + server['id'], '/servers/detail':
            for version in '2.1', '2.2', '2.73', '2.100', RELEASED:
                self.speak(version)
                self.assertEqual(
                    200, self.api.api_request(path).status_code)
                with mock.patch.object(pending, 'shown', lambda state: state):
                    answer = self.api.api_request(path)
                self.assertEqual(400, answer.status_code, (path, version))
            for version in NEW:
                self.speak(version)
                with mock.patch('nova.api.openstack.common.status_from_state',
                                return_value='WAITING'):
                    answer = self.api.api_request(path)
                self.assertEqual(400, answer.status_code, (path, version))
