# SPDX-License-Identifier: Apache-2.0

import base64
from unittest import mock

from oslo_serialization import jsonutils
from oslo_utils import fixture as utils_fixture
from oslo_utils import timeutils

from nova.compute import rebuild_request
from nova.conductor import rpcapi as conductor_rpcapi
from nova import context as nova_context
from nova import objects
from nova.objects import unbuilt_instance
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import rebuild_base


class RebuildInCell0TestCase(rebuild_base.RebuildInCell0Base):

    def test_builds_under_the_same_id(self):
        server = self.create_waiting(
            name='patient', description='waits', hostname='patient-host',
            networks=[{'port': neutron_fixture.NeutronFixture.port_1['id'],
                       'tag': 'nic'}],
            tags=['blue'], metadata={'a': 'b'},
            user_data=base64.b64encode(b'#!/bin/sh').decode())
        self.make_room()
        server = self.created_long_ago(server)
        answer = self.rebuild(server)
        self.assertEqual(server['id'], answer['id'])
        self.assertEqual('BUILD', answer['status'])
        self.assertIn('adminPass', answer)
        active = self.wait_for(server, 'ACTIVE')
        for key in ('name', 'description', 'image', 'flavor', 'metadata',
                    'tags', 'OS-EXT-SRV-ATTR:hostname',
                    'OS-EXT-SRV-ATTR:user_data', 'config_drive',
                    'OS-EXT-SRV-ATTR:reservation_id', 'tenant_id', 'user_id',
                    'OS-EXT-SRV-ATTR:launch_index', 'OS-DCF:diskConfig',
                    'created'):
            self.assertEqual(server[key], active[key], key)
        self.assertEqual('roomy', active['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(
            [neutron_fixture.NeutronFixture.port_1['id']],
            [port['port_id'] for port
             in self.api.get_port_interfaces(server['id'])])
        self.assertFalse(self.in_cell(objects.CellMapping.CELL0_UUID, server))

    def test_image_that_is_named_replaces_the_one_of_the_create(self):
        server = self.create_waiting()
        self.make_room()
        other = glance_fixture.GlanceFixture.image2['id']
        self.assertNotEqual(other, server['image']['id'])
        self.rebuild(server, imageRef=other, name='other', metadata={'c': 'd'})
        active = self.wait_for(server, 'ACTIVE')
        self.assertEqual(other, active['image']['id'])
        self.assertEqual('other', active['name'])
        self.assertEqual({'c': 'd'}, active['metadata'])
        spec = objects.RequestSpec.get_by_instance_uuid(
            nova_context.get_admin_context(), server['id'])
        self.assertEqual(other, spec.image.id)

    def test_server_in_error_in_cell0(self):
        self.flags(use_pending_state=False)
        server = self.create_waiting(status='ERROR')
        self.make_room()
        self.rebuild(server)
        self.wait_for(server, 'ACTIVE')

    def test_in_cell0_again_without_room_and_rebuilt_later(self):
        server = self.create_waiting(
            networks=[{'port': neutron_fixture.NeutronFixture.port_1['id']}],
            tags=['blue'])
        for _try in range(2):
            self.rebuild(server)
            again = self.wait_for(server, 'PENDING')
            self.assertEqual(['blue'], again['tags'])
            self.assertIn('No valid host', again['fault']['message'])
        self.make_room()
        self.rebuild(server, imageRef=None)
        self.wait_for(server, 'ACTIVE')
        self.assertEqual(
            [neutron_fixture.NeutronFixture.port_1['id']],
            [port['port_id'] for port
             in self.api.get_port_interfaces(server['id'])])

    def test_requested_host_is_kept(self):
        server = dict(self._build_server(
            flavor_id=self.large, networks='none', host='compute'))
        server = self.admin_api.post_server({'server': server})
        server = self.wait_for(server, 'PENDING')
        self.make_room()
        self.admin_api.post_server_action(server['id'], {'rebuild': {}})
        # There is room, and not where the owner wants it.
        self.wait_for(server, 'PENDING')

    def test_what_was_asked_for_stays_with_the_request_spec(self):
        server = self.create_waiting()
        context = nova_context.get_admin_context()
        asked = objects.RequestSpec.get_by_instance_uuid(
            context, server['id']).rebuild_data
        self.assertTrue(asked['asked_to_wait'])
        self.make_room()
        self.rebuild(server)
        self.wait_for(server, 'ACTIVE')
        spec = objects.RequestSpec.get_by_instance_uuid(context, server['id'])
        self.assertEqual(
            dict(asked, attempts=2), spec.rebuild_data)
        # They would tell the scheduler where a server that runs may go.
        self.assertNotIn('requested_networks', spec)
        self.assertIsNone(spec.requested_destination)

    def actions(self, server):
        return [(action['action'], self.admin_api.get_instance_action_details(
            server['id'], action['request_id'])['events'])
            for action in self.api.get_instance_actions(server['id'])]

    def test_history_and_notifications(self):
        self.flags(notify_on_state_change='vm_state', group='notifications')
        server = self.create_waiting()
        [(action, [failed_create])] = self.actions(server)
        self.assertEqual('create', action)
        self.assertEqual('Error', failed_create['result'])
        self.notifier.reset()
        self.rebuild(server)
        self.wait_for(server, 'PENDING')
        self._wait_for_assert(lambda: self.assertEqual(
            ['rebuild', 'create'], [a for a, _ in self.actions(server)]))
        self.make_room()
        self.rebuild(server)
        self.wait_for(server, 'ACTIVE')
        self._wait_for_assert(lambda: self.assertEqual(
            ['rebuild', 'rebuild', 'create'],
            [a for a, _ in self.actions(server)]))
        history = self.actions(server)
        [(_action, [event])] = history[2:]
        for key in ('event', 'result', 'host', 'details', 'traceback'):
            self.assertEqual(failed_create[key], event[key])
        # Objects carry times in whole seconds.
        self.assertEqual(failed_create['start_time'][:19],
                         event['start_time'][:19])
        self.assertEqual('Error', history[1][1][0]['result'])
        self.assertEqual('compute__do_build_and_run_instance',
                         history[0][1][0]['event'])
        self.assertEqual(
            [('pending', 'building'), ('building', 'pending'),
             ('pending', 'building'), ('building', 'active')],
            [(update['old_state'], update['state'])
             for update in self.updates()
             if update['old_state'] != update['state']])

    def updates(self):
        return [
            notification['payload']['nova_object.data']['state_update'][
                'nova_object.data']
            for notification in self.notifier.versioned_notifications
            if notification['event_type'] == 'instance.update']

    def test_history_of_one_second_is_in_order(self):
        # MySQL keeps whole seconds of the time at which a row was made.
        self.useFixture(utils_fixture.TimeFixture(
            timeutils.utcnow().replace(microsecond=0)))
        server = self.create_waiting()
        for room, status, actions in (
                (False, 'PENDING', ['rebuild', 'create']),
                (True, 'ACTIVE', ['rebuild', 'rebuild', 'create'])):
            if room:
                self.make_room()
            self.rebuild(server)
            self.wait_for(server, status)
            self._wait_for_assert(lambda: self.assertEqual(
                actions, [a for a, _ in self.actions(server)]))

    def test_history_while_it_is_in_no_cell(self):
        server = self.create_waiting()
        self.rebuild(server)
        self.wait_for(server, 'PENDING')
        self._wait_for_assert(lambda: self.assertEqual(
            ['rebuild', 'create'], [a for a, _ in self.actions(server)]))
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0') as cast:
            self.rebuild(server)
        # As for a server that is being created: no cell has its actions.
        self.assertEqual('BUILD', self.api.get_server(server['id'])['status'])
        self.assertEqual([], self.actions(server))
        ex = self.assertRaises(
            api_client.OpenStackApiException, self.api.api_get,
            '/servers/%s/os-instance-actions/req-none' % server['id'])
        self.assertEqual(404, ex.response.status_code)
        conductor_rpcapi.ComputeTaskAPI().rebuild_instance_in_cell0(
            *cast.call_args.args, **cast.call_args.kwargs)
        self.wait_for(server, 'PENDING')
        self._wait_for_assert(lambda: self.assertEqual(
            ['rebuild', 'rebuild', 'create'],
            [a for a, _ in self.actions(server)]))

    def test_boot_from_image_to_volume(self):
        image = glance_fixture.GlanceFixture.image1['id']
        server = self.create_waiting(
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'image', 'destination_type': 'volume',
                'boot_index': 0, 'uuid': image, 'volume_size': 1}])
        self.make_room()
        self.rebuild(server)
        active = self.wait_for(server, 'ACTIVE')
        self.assertEqual('', active['image'])
        self.assertEqual(
            1, len(active['os-extended-volumes:volumes_attached']))

    def test_boot_from_existing_volume(self):
        volume = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL
        server = self.create_waiting(
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'volume', 'destination_type': 'volume',
                'boot_index': 0, 'uuid': volume,
                'delete_on_termination': True}])
        self.make_room()
        self.rebuild(server)
        active = self.wait_for(server, 'ACTIVE')
        self.assertEqual(
            [{'id': volume, 'delete_on_termination': True}],
            active['os-extended-volumes:volumes_attached'])
        self.assertEqual(
            1, len(self.cinder.volume_to_attachment[volume]))

    def test_member_of_a_multi_create(self):
        asked = self._build_server(flavor_id=self.large, networks='none')
        asked.update(min_count=2, name='pair')
        self.api.post_server({'server': asked})
        self._wait_for_assert(lambda: self.assertEqual(
            2, len(self.api.get_servers(
                search_opts={'status': 'PENDING'}))))
        waiting = self.api.get_servers(search_opts={'status': 'PENDING'})
        self.make_room()
        self.rebuild(waiting[0])
        active = self.wait_for(waiting[0], 'ACTIVE')
        self.assertEqual(waiting[0]['name'], active['name'])
        self.assertEqual('PENDING',
                         self.api.get_server(waiting[1]['id'])['status'])

    def test_deletable_between_api_and_conductor(self):
        server = self.create_waiting()
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0') as cast:
            self.rebuild(server)
            cast.assert_called_once()
        self.assertEqual('BUILD', self.api.get_server(server['id'])['status'])
        self.assertEqual([server['id']],
                         [s['id'] for s in self.api.get_servers()])
        self.api.delete_server(server['id'])
        self._wait_until_deleted(server)
        self.assertFalse(self.in_cell(objects.CellMapping.CELL0_UUID, server))

    def test_older_conductor_gets_what_it_knows(self):
        server = self.create_waiting()
        self.make_room()
        with mock.patch('oslo_messaging.RPCClient.can_send_version',
                        lambda client, version=None: version != '1.27'):
            self.rebuild(server)
            self.wait_for(server, 'ACTIVE')

    def test_image_may_be_left_out_for_a_running_server_too(self):
        asked = self._build_server(flavor_id=self.small, networks='none')
        server = self.wait_for(self.api.post_server({'server': asked}),
                               'ACTIVE')
        self.rebuild(server)
        active = self.wait_for(server, 'ACTIVE')
        self.assertEqual(server['image']['id'], active['image']['id'])

    def test_image_must_be_named_where_a_running_server_has_none(self):
        asked = self._build_server(flavor_id=self.small, networks='none')
        asked.update(imageRef='', block_device_mapping_v2=[{
            'source_type': 'blank', 'destination_type': 'volume',
            'boot_index': 0, 'volume_size': 1}])
        server = self.wait_for(
            self.api.post_server({'server': asked}), 'ACTIVE')
        for body in ({}, {'imageRef': None}):
            self.assertIn('made from no image',
                          self.refused(400, server, **body))
        self.assertEqual(server, self.wait_for(server, 'ACTIVE'))


class RefusedRebuildTestCase(rebuild_base.RebuildInCell0Base):
    """A request that is refused has changed nothing."""

    def setUp(self):
        super().setUp()
        self.server = self.create_waiting()
        self.before = self.stored(self.server)

    def unchanged(self):
        self.assertEqual(self.before, self.stored(self.server))

    def test_locked(self):
        self.api.post_server_action(self.server['id'], {'lock': None})
        self.before = self.stored(self.server)
        self.assertIn('locked', self.refused(409, self.server))
        self.unchanged()

    def test_task_in_progress(self):
        context = nova_context.get_admin_context()
        cell0 = objects.CellMapping.get_by_uuid(
            context, objects.CellMapping.CELL0_UUID)
        with nova_context.target_cell(context, cell0) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, self.server['id'])
            instance.task_state = 'rebuilding'
            instance.save()
        self.before = self.stored(self.server)
        self.assertIn('rebuilding', self.refused(409, self.server))
        self.unchanged()

    def test_changed_after_the_check(self):
        check = rebuild_request.Request.check

        def slow_check(rebuilt):
            check(rebuilt)
            other = objects.Instance.get_by_uuid(
                rebuilt.record._context, rebuilt.record.uuid)
            other.task_state = 'deleting'
            other.save()

        with mock.patch.object(rebuild_request.Request, 'check',
                               slow_check):
            self.refused(409, self.server)
        after = self.stored(self.server)
        self.assertEqual([], after['build_requests'])
        self.assertEqual('deleting', after['instances'][0]['task_state'])

    def test_deleted_between_the_check_and_the_move(self):
        exchange = objects.BuildRequest.create_in_place_of_mapping

        def deleted_first(*args, **kwargs):
            self.api.delete_server(self.server['id'])
            return exchange(*args, **kwargs)

        before = self.before['request_specs'][0]['spec']
        with mock.patch.object(
                objects.BuildRequest, 'create_in_place_of_mapping',
                deleted_first):
            self.refused(409, self.server,
                         imageRef=glance_fixture.GlanceFixture.image2['id'])
        self._wait_until_deleted(self.server)
        after = self.stored(self.server)
        self.assertEqual([], after['build_requests'])
        self.assertEqual(
            jsonutils.loads(before)['nova_object.data']['image'],
            jsonutils.loads(after['request_specs'][0]['spec'])[
                'nova_object.data']['image'])
        self.assertEqual([], self.api.get_servers())

    def test_state_reset_between_the_check_and_the_move(self):
        exchange = objects.BuildRequest.create_in_place_of_mapping

        def reset_first(*args, **kwargs):
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'error'}})
            return exchange(*args, **kwargs)

        with mock.patch.object(
                objects.BuildRequest, 'create_in_place_of_mapping',
                reset_first):
            self.refused(409, self.server)
        self.assertEqual('ERROR',
                         self.api.get_server(self.server['id'])['status'])
        self.assertEqual([], self.stored(self.server)['build_requests'])
        self.make_room()
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')

    def test_deleted_while_it_is_moved(self):
        destroy = unbuilt_instance.destroy_unchanged

        def deleted_first(*args, **kwargs):
            self.api.delete_server(self.server['id'])
            destroy(*args, **kwargs)

        with mock.patch.object(unbuilt_instance, 'destroy_unchanged',
                               deleted_first):
            self.refused(409, self.server)
        self._wait_until_deleted(self.server)
        self.assertEqual([], self.api.get_servers())
        self.assertEqual([], self.stored(self.server)['build_requests'])

    def test_networks_not_known(self):
        self.forget_request(self.server)
        self.before = self.stored(self.server)
        self.assertIn('networks', self.refused(409, self.server))
        self.unchanged()

    def test_unknown_image(self):
        self.refused(400, self.server,
                     imageRef='11111111-2222-3333-4444-555555555555')
        self.refused(400, self.server, imageRef='no uuid')
        self.unchanged()

    def test_unknown_key(self):
        self.refused(400, self.server, key_name='no-such-key')
        self.unchanged()

    def test_over_quota(self):
        self.flags(cores=0, group='quota')
        self.assertIn('cores', self.refused(403, self.server))
        self.unchanged()

    def test_of_another_tenant(self):
        other = api_client.TestOpenStackClient(
            'other', self.api.base_url, project_id='other-project',
            roles=['reader', 'member'])
        other.microversion = 'latest'
        self.refused(404, self.server, api=other)
        self.unchanged()

    def test_port_is_gone(self):
        port = neutron_fixture.NeutronFixture.port_1['id']
        server = self.create_waiting(networks=[{'port': port}])
        before = self.stored(server)
        self.neutron.delete_port(port)
        self.assertIn(port, self.refused(400, server))
        self.assertEqual(before, self.stored(server))

    def test_port_was_taken(self):
        port = neutron_fixture.NeutronFixture.port_1['id']
        server = self.create_waiting(networks=[{'port': port}])
        before = self.stored(server)
        self.wait_for(self.api.post_server({'server': self._build_server(
            flavor_id=self.small, networks=[{'port': port}])}), 'ACTIVE')
        self.assertIn(port, self.refused(400, server))
        self.assertEqual(before, self.stored(server))

    def test_of_no_server(self):
        self.refused(404, {'id': '11111111-2222-3333-4444-555555555555'})
