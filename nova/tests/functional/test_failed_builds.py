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

"""Servers out of cell0 whose build fails on a host."""

import contextvars
import datetime
import threading
import time
from unittest import mock

import oslo_messaging as messaging

from nova.conductor import cell0_rebuild
from nova.conductor import failed_builds
from nova.conductor import manager
from nova.conductor.tasks import host_builds
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova.db.main import models
from nova import exception
from nova import objects
from nova.objects import persisted_request
from nova.objects import rebuilt_instance
from nova.scheduler.client import query
from nova.scheduler.client import report
from nova.scheduler import utils as scheduler_utils
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional import failed_builds_base
from nova.virt import fake
from nova.volume import cinder as volume_cinder

VOLUME = cinder_fixture.CinderFixture.IMAGE_BACKED_VOL
PORT = neutron_fixture.NeutronFixture.port_1['id']


class FailedBuildsTestCase(failed_builds_base.FailedBuildsBase):

    # What fails.

    def test_host_gives_up(self):
        self.make_host()
        with self.abort():
            self.rebuild(self.server)
            self.goes_back('no such disk')
        self.can_be_rebuilt()

    def test_host_gives_up_where_room_was_held(self):
        self.make_host()
        self.make_room()
        self.hold(host='bad')
        with self.abort():
            self.rebuild(self.server)
            self.goes_back('no such disk')

    def test_no_second_try_is_allowed(self):
        self.flags(max_attempts=1, group='scheduler')
        self.make_host()
        with self.reschedule():
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        self.can_be_rebuilt()

    def test_tries_are_exhausted(self):
        self.make_host()
        with self.reschedule():
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        self.can_be_rebuilt()

    def test_all_hosts_fail(self):
        self.make_host('bad')
        self.make_host('worse')
        with self.reschedule(('bad', 'worse')):
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        self.can_be_rebuilt()

    def test_other_host_where_room_was_held(self):
        self.make_host()
        self.make_room()
        self.hold(host='bad')
        with self.reschedule():
            self.rebuild(self.server)
            server = self.wait_for(self.server, 'ACTIVE')
        self.assertEqual('roomy', server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual([self.provider('roomy')],
                         list(self.held()['allocations']))

    def make_nodes(self, *nodes):
        """Start a nova-compute that has several nodes, as one of Ironic."""
        self.make_host('ironic')
        compute = self.computes['ironic'].manager
        compute.driver._set_nodes(nodes)
        # The one that it had as it was started goes.
        with mock.patch.object(fake.FakeDriver, 'is_node_deleted',
                               return_value=True):
            compute.update_available_resource(
                nova_context.get_admin_context())

    def nodes_fail(self, *nodes):
        """Let the build fail on some nodes; note those that try it."""
        spawn, self.tried = fake.FakeDriver.spawn, []

        def failing(driver, context, instance, *args, **kwargs):
            self.tried.append(instance.node)
            if instance.node in nodes:
                raise exception.InternalError(err='no such bridge')
            return spawn(driver, context, instance, *args, **kwargs)

        return mock.patch(failed_builds_base.SPAWN, failing)

    def is_built_on(self, node):
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(node, self.admin_api.get_server(
            self.server['id'])['OS-EXT-SRV-ATTR:hypervisor_hostname'])
        self.assertEqual(
            {self.provider(node): self.RESOURCES},
            {provider: allocation['resources'] for provider, allocation
             in self.held()['allocations'].items()})

    def test_other_node_of_the_host_where_room_was_held(self):
        self.make_nodes('node1', 'node2')
        self.hold(host='node1')
        with self.nodes_fail('node1'):
            self.rebuild(self.server)
            self.is_built_on('node2')
        self.assertEqual(['node1', 'node2'], self.tried)

    def test_each_node_of_a_host_is_tried_once(self):
        self.make_nodes('node1', 'node2', 'node3')
        self.hold(host='node1')
        with self.nodes_fail('node1', 'node2', 'node3'):
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        self.assertEqual(['node1', 'node2', 'node3'], sorted(self.tried))
        self.can_be_rebuilt()

    def test_nodes_of_a_host_are_used_up(self):
        self.flags(max_attempts=5, group='scheduler')
        self.make_nodes('node1', 'node2')
        self.hold(host='node1')
        with self.nodes_fail('node1', 'node2'):
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        self.assertEqual(['node1', 'node2'], self.tried)

    def test_only_node_that_is_left_is_full(self):
        self.make_nodes('node1', 'node2')
        self.hold(host='node1')
        self.fill('node2')
        with self.nodes_fail('node1'):
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        self.assertEqual(['node1'], self.tried)

    def test_deleted_as_another_host_is_looked_for(self):
        self.make_host()
        self.make_room()
        self.hold(host='bad')
        self.deleted_before(manager.ComputeTaskManager, '_schedule_instances')

    def test_deleted_as_another_host_is_claimed(self):
        self.make_host('bad')
        self.make_host('worse')
        self.deleted_before(scheduler_utils, 'claim_resources')

    def deleted_before(self, module, name):
        """Delete the server just before another host is claimed for it."""
        hosts = ['bad', 'worse']
        released = getattr(module, name)
        done = threading.Event()

        def meet(*args, **kwargs):
            if failed:
                # In nova-api.
                contextvars.Context().run(
                    self.api.delete_server, self.server['id'])
            return released(*args, **kwargs)

        def fail(instance):
            failed.append(instance.host)
            return exception.InternalError(err='no such bridge')

        def build(*args, **kwargs):
            build_instances(*args, **kwargs)
            if failed:
                done.set()

        failed = []
        build_instances = manager.ComputeTaskManager.build_instances
        with self.spawn_fails(hosts, fail), mock.patch.object(
                module, name, meet), mock.patch.object(
                manager.ComputeTaskManager, 'build_instances', build):
            self.rebuild(self.server)
            self.assertTrue(done.wait(30))
        self._wait_until_deleted(self.server)
        self.assertEqual(1, len(failed))
        self.assertEqual({}, self.held()['allocations'])

    def test_no_more_tries_than_are_allowed(self):
        self.flags(max_attempts=2, group='scheduler')
        hosts = ('bad', 'worse', 'worst')
        for host in hosts:
            self.make_host(host)
        self.hold(host='bad')
        with self.reschedule(hosts):
            self.rebuild(self.server)
            self.goes_back('no such bridge')

    def test_scheduler_fails_at_the_second_try(self):
        self.make_host()
        self.make_room()
        self.hold(host='bad')
        with self.reschedule(), mock.patch(
                'nova.scheduler.client.query.SchedulerQueryClient.'
                'select_destinations',
                side_effect=exception.InternalError(err='down')):
            self.rebuild(self.server)
            self.goes_back('no such bridge')

    def test_scheduler_answers_late_at_the_second_try(self):
        self.make_host()
        self.make_room()
        self.hold(host='bad')
        asked = []

        def time_out(_client, *args, **kwargs):
            asked.append((args, kwargs))
            # The build on the first host has taken long.
            with self.log_of_rebuilds() as log:
                log.filter(models.TaskLog.message != '').update({
                    'period_ending': datetime.datetime(2020, 1, 2)})
            raise messaging.MessagingTimeout()

        with self.reschedule(), mock.patch.object(
                query.SchedulerQueryClient, 'select_destinations', time_out):
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        # The entry of the rebuild is ended.
        self.recover()
        (context, spec, instance_uuids, *_flags), _kwargs = asked[0]
        self.scheduler.manager.select_destinations(
            context, spec_obj=spec, instance_uuids=instance_uuids,
            return_objects=True, return_alternates=True)
        self.assertEqual([self.provider('roomy')],
                         list(self.held()['allocations']))
        self.recover()
        self.assertEqual({}, self.held()['allocations'])

    def test_nothing_is_left_in_the_log_of_the_second_try(self):
        self.make_host()
        self.make_room()
        self.hold(host='bad')
        with self.reschedule():
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
        self.has_one_entry()

    def has_one_entry(self):
        with self.log_of_rebuilds() as log:
            # That of the rebuild, at which recovery is to look.
            self.assertEqual([self.cell_mappings['cell1'].uuid], [
                entry.message for entry in log])

    def test_nothing_is_left_in_the_log_if_there_is_no_other_host(self):
        self.make_host()
        self.hold(host='bad')
        with self.reschedule():
            self.rebuild(self.server)
            self.goes_back('no such bridge')
        self.has_one_entry()

    def test_create_that_was_never_in_cell0(self):
        self.make_host()
        self.admin_api.put_service(self.admin_api.get_services(
            host=self.compute.host, binary='nova-compute')[0]['id'],
            {'status': 'disabled'})
        for failure in (self.abort, self.reschedule):
            with failure():
                server = self.api.post_server({'server': self._build_server(
                    flavor_id=self.small, networks='none')})
                self.wait_for(server, 'ERROR')
        self.assertEqual((0, 0), self.recover())
        self.assertEqual('ERROR', self.api.get_server(
            server['id'])['status'])

    def test_server_that_fails_later(self):
        self.make_room()
        self.can_be_rebuilt()
        self.admin_api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'error'}})
        self.assertEqual((0, 0), self.recover())
        self.assertEqual('ERROR', self.state()[0])
        self.assertTrue(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))

    # What it had.

    def test_ports(self):
        self.fill_compute()
        self.server = self.create_waiting(networks=[{'port': PORT}])
        self.make_host()
        with self.abort():
            self.rebuild(self.server)
            self.goes_back('no such disk')
        port = self.neutron.show_port(PORT)['port']
        self.assertFalse(port.get('device_id'))
        self.assertFalse(port.get('binding:host_id'))
        self.can_be_rebuilt()
        self.assertEqual(self.server['id'], self.neutron.show_port(PORT)[
            'port']['device_id'])

    def fill_compute(self):
        pass

    def test_volume_that_was_there(self):
        for failure, why in ((self.abort, 'no such disk'),
                             (self.reschedule, 'no such bridge')):
            self.server = self.create_waiting(
                imageRef='', block_device_mapping_v2=[{
                    'source_type': 'volume', 'destination_type': 'volume',
                    'boot_index': 0, 'delete_on_termination': False,
                    'uuid': VOLUME}])
            name = 'bad-' + why[-4:]
            self.make_host(name)
            with failure((name,)):
                self.rebuild(self.server)
                self.goes_back(why)
            self.assertEqual(
                1, len(self.cinder.volume_to_attachment[VOLUME]))
            self.can_be_rebuilt()
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            self.assertEqual({}, self.cinder.volume_to_attachment[VOLUME])
            self.computes[name].stop()
            self.admin_api.put_service_force_down(
                self.admin_api.get_services(
                    host=name, binary='nova-compute')[0]['id'], True)

    def left_without_attachment(self):
        """Let a build fail with a volume, and the conductor then die."""
        self.server = self.create_waiting(
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'volume', 'destination_type': 'volume',
                'boot_index': 0, 'delete_on_termination': False,
                'uuid': VOLUME}])
        self.make_host()
        with self.reschedule(), mock.patch.object(
                manager.ComputeTaskManager, 'build_instances') as asked:
            self.rebuild(self.server)
            self._wait_for_assert(asked.assert_called, max_retries=60)
        self.assertEqual(('BUILD', 'scheduling'), self.state())
        self.assertEqual({}, self.cinder.volume_to_attachment[VOLUME])

    def attachments_have_volumes(self):
        """The fixture does not tell of which volume an attachment is."""
        return mock.patch.object(
            volume_cinder.API, 'attachment_get_all',
            lambda _api, _context, instance_id: [
                dict(attachment, volume_id=volume) for volume, attachments
                in self.cinder.volume_to_attachment.items()
                for attachment in attachments.values()
                if attachment['instance_uuid'] == instance_id])

    def deleted_around(self, name, after):
        """Let its owner delete the server as it is returned to cell0.

        :param name: the function of host_builds that meets it
        :param after: whether that has done its part before
        """
        released = getattr(host_builds, name)

        def meet(*args):
            result = released(*args) if after else None
            # In nova-api.
            contextvars.Context().run(
                self.api.delete_server, self.server['id'])
            return result if after else released(*args)

        with mock.patch.object(host_builds, name, meet), \
                self.attachments_have_volumes():
            self.recover()
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.volume_to_attachment[VOLUME])
        self.assertEqual({}, self.held()['allocations'])
        self.assertEqual((0, 0), self.recover())

    def test_deleted_before_a_volume_is_reserved_again(self):
        self.left_without_attachment()
        self.deleted_around('restore_volumes', after=False)

    def test_deleted_before_a_reserved_volume_is_saved(self):
        self.left_without_attachment()
        self.deleted_around('_restore', after=True)

    def test_deleted_after_its_volumes_are_reserved_again(self):
        self.left_without_attachment()
        self.deleted_around('restore_volumes', after=True)

    def test_killed_as_a_volume_is_reserved_again(self):
        self.left_without_attachment()
        with mock.patch.object(objects.BlockDeviceMapping, 'save',
                               side_effect=SystemExit):
            self.assertRaises(SystemExit, self.recover)
        self.assertEqual(1, len(self.cinder.volume_to_attachment[VOLUME]))
        with self.attachments_have_volumes():
            self.assertEqual((1, 0), self.recover())
        self.assertEqual(1, len(self.cinder.volume_to_attachment[VOLUME]))
        self.can_be_rebuilt()
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.volume_to_attachment[VOLUME])

    def test_volumes_of_a_build_that_no_conductor_goes_on_with(self):
        self.left_without_attachment()
        with mock.patch.object(host_builds, '_restore',
                               side_effect=exception.CinderConnectionFailed(
                                   reason='down')):
            self.assertEqual((0, 1), self.recover())
        self.assertEqual(('BUILD', 'scheduling'), self.state())
        with mock.patch.object(return_to_cell0, '_ask_again',
                               side_effect=exception.InstanceNotFound(
                                   instance_id=self.server['id'])):
            self.assertEqual((0, 0), self.recover())
        self.assertEqual((1, 0), self.recover())
        self.assertEqual('PENDING', self.state()[0])
        self.assertEqual(1, len(self.cinder.volume_to_attachment[VOLUME]))
        self.can_be_rebuilt()
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.cinder.volume_to_attachment[VOLUME])

    def test_volume_that_was_made_from_an_image(self):
        image = self.glance.auto_disk_config_enabled_image['id']
        self.server = self.create_waiting(
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'image', 'destination_type': 'volume',
                'boot_index': 0, 'volume_size': 1, 'uuid': image,
                'delete_on_termination': False}])
        before = set(self.cinder.volumes)
        self.make_host()
        with self.abort(), mock.patch.object(
                volume_cinder.API, 'delete') as delete:
            self.rebuild(self.server)
            self.goes_back('no such disk')
        [made] = set(self.cinder.volumes) - before
        delete.assert_called_once_with(mock.ANY, made)
        [row] = [row for row in self.stored(self.server)[
            'block_device_mapping'] if row['source_type'] == 'image']
        self.assertEqual(
            (image, None, None),
            (row['image_id'], row['volume_id'], row['attachment_id']))
        server = self.can_be_rebuilt()
        [volume] = server['os-extended-volumes:volumes_attached']
        self.assertNotEqual(made, volume['id'])

    def test_personality_files(self):
        self.speak('2.56')
        self.server = self.create_waiting(personality=[{
            'path': '/etc/motd', 'contents': 'aGVsbG8='}])
        self.speak('latest')
        self.server = self.admin_api.get_server(self.server['id'])
        self.make_host()
        given = []
        spawn = fake.FakeDriver.spawn

        def note(driver, context, instance, image_meta, injected_files,
                 *args, **kwargs):
            given.append([tuple(each) for each in injected_files])
            return spawn(driver, context, instance, image_meta,
                         injected_files, *args, **kwargs)

        with mock.patch(failed_builds_base.SPAWN, note):
            with self.abort():
                self.rebuild(self.server)
                self.goes_back('no such disk')
            self.can_be_rebuilt()
        self.assertEqual([[('/etc/motd', b'hello')]], given)

    def test_what_is_told_of_the_return(self):
        self.flags(notify_on_state_change='vm_state', group='notifications')
        self.make_host()
        self.notifier.reset()
        with self.abort():
            self.rebuild(self.server)
            self.goes_back('no such disk')
        self.notifier.wait_for_versioned_notifications(
            'compute_task.build_instances.error')
        changes = [
            tuple(update['nova_object.data'][key] for key in
                  ('old_state', 'state')) for update in (
                one['payload']['nova_object.data']['state_update']
                for one in self.notifier.versioned_notifications
                if one['event_type'] == 'instance.update')]
        self.assertEqual([('pending', 'building'), ('building', 'pending')],
                         [change for change in changes
                          if change[0] != change[1]])
        [error] = [one['payload']['nova_object.data']
                   for one in self.notifier.versioned_notifications if
                   one['event_type'] == 'compute_task.build_instances.error']
        self.assertEqual((self.server['id'], 'pending'),
                         (error['instance_uuid'], error['state']))
        reason = error['reason']['nova_object.data']
        self.assertEqual('BuildFailed', reason['exception'])
        self.assertIn('no such disk', reason['exception_message'])

    def test_volume_that_the_host_has_deleted(self):
        self.server = self.create_waiting(
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'volume', 'destination_type': 'volume',
                'boot_index': 0, 'delete_on_termination': True,
                'uuid': VOLUME}])
        self.make_host()
        with self.abort(), mock.patch.object(
                host_builds, '_exists', return_value=False):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ERROR')
        self.assertEqual((0, 0), self.recover())
        self.wait_for(self.server, 'ERROR')
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)

    # Who dies, and who comes in between.

    def test_conductor_dies_before_it_returns_the_server(self):
        self.left_by_the_conductor()
        # However long ago the rebuild was asked for.
        self.recover_until_returned()
        self.goes_back('no such disk')
        self.assertEqual((0, 0), self.recover())
        self.can_be_rebuilt()

    def left_in_error(self):
        """Let a host give up, and a conductor of the release see to it."""
        self.make_host()
        with self.abort(), mock.patch.object(
                rebuilt_instance, 'is_marked', return_value=False):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ERROR')
            self._wait_for_assert(lambda: self.assertEqual(
                {}, self.held()['allocations']))

    def test_conductor_of_the_release_in_the_cell(self):
        self.left_in_error()
        self.recover_until_returned()
        self.goes_back('no such disk')
        self.can_be_rebuilt()

    def test_conductor_dies_as_it_returns_one_in_error(self):
        self.left_in_error()
        with mock.patch.object(host_builds, 'restore_volumes',
                               side_effect=SystemExit):
            self._wait_for_assert(lambda: self.assertRaises(
                SystemExit, self.recover, age=600))
        self.assertEqual('rebuild_spawning', self.state()[1])
        self._wait_for_assert(lambda: self.assertEqual(
            (1, 0), self.recover()))
        self.goes_back('no such disk')
        self.can_be_rebuilt()

    def test_host_dies(self):
        self.server = self.create_waiting(networks=[{'port': PORT}])
        self.make_host('quarry')
        self.assertEqual([], self.host_dies('quarry'))
        self.goes_back('nova-compute was interrupted')
        for told in (self.api.get_server(self.server['id'])['fault'],
                     self.api.api_get('/servers/%s/pending' % self.server[
                         'id']).body['pending']):
            self.assertIn('nova-compute was interrupted', told['message'])
            self.assertNotIn('quarry', str(told))
        port = self.neutron.show_port(PORT)['port']
        self.assertFalse(port.get('device_id'))
        self.can_be_rebuilt()

    def test_host_dies_with_a_volume(self):
        self.server = self.create_waiting(
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'volume', 'destination_type': 'volume',
                'boot_index': 0, 'delete_on_termination': False,
                'uuid': VOLUME}])
        self.make_host()
        self.host_dies()
        self.goes_back('nova-compute was interrupted')
        self.assertEqual(1, len(self.cinder.volume_to_attachment[VOLUME]))
        self.can_be_rebuilt()

    def test_host_dies_and_cannot_clean_up(self):
        self.make_host()
        with mock.patch('nova.virt.fake.FakeDriver.destroy',
                        side_effect=exception.InternalError(err='no')):
            self.assertEqual([self.server['id']], self.host_dies())
        # As in the release.
        server = self.admin_api.get_server(self.server['id'])
        self.assertEqual(('ERROR', 'bad'), (
            server['status'], server['OS-EXT-SRV-ATTR:host']))

    def test_deleted_before_it_is_returned(self):
        self.left_by_the_conductor()
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.recover()
        self.assertEqual([], self.api.get_servers())
        self.assertEqual({}, persisted_request.load(
            nova_context.get_admin_context(), self.server['id']))

    def test_host_that_has_not_ended_with_it(self):
        self.left_by_the_conductor()
        with mock.patch.object(failed_builds, '_has_ended',
                               return_value=False):
            self.assertEqual((0, 0), self.recover(age=600))
        self.assertEqual(self.GIVEN_UP, self.state())
        self.recover_until_returned()

    def test_two_that_return_it(self):
        self.left_by_the_conductor()
        context = nova_context.get_admin_context()
        client = report.SchedulerReportClient()
        from_cell = return_to_cell0.from_cell

        def other_first(*args, **options):
            self.assertTrue(from_cell(*args, **options))
            return from_cell(*args, **options)

        time.sleep(2)
        with mock.patch.object(return_to_cell0, 'from_cell', other_first):
            self.assertIsNone(failed_builds.return_if_ended(
                context, client, self.server['id']))
        self.goes_back('no such disk')

    def test_build_that_takes_long(self):
        self.make_room()
        spawned = []
        spawn = fake.FakeDriver.spawn

        def slow(*args, **kwargs):
            # Long after the rebuild was asked for.
            self.recover()
            spawned.append(persisted_request.load(
                nova_context.get_admin_context(), self.server['id']))
            return spawn(*args, **kwargs)

        with mock.patch(failed_builds_base.SPAWN, slow):
            self.can_be_rebuilt()
        self.assertIn('injected_files', spawned[0])
        self.recover()
        self.assertEqual('ACTIVE', self.api.get_server(
            self.server['id'])['status'])

    def test_build_that_was_given_up_with_recovery_off(self):
        self.flags(rebuild_in_cell0_timeout=0, group='conductor')
        self.left_by_the_conductor()
        with mock.patch.object(failed_builds, '_has_ended',
                               return_value=True):
            # As nova-manage pending recover does.
            self.assertEqual((1, 0), self.recover())
        self.assertEqual('PENDING', self.state()[0])
        with self.log_of_rebuilds() as log:
            self.assertEqual(0, log.count())

    def test_what_was_kept_is_cleared_with_recovery_off(self):
        self.flags(rebuild_in_cell0_timeout=0, group='conductor')
        self.test_what_was_kept_is_cleared_by_who_can()

    def test_log_of_what_was_launched_with_recovery_off(self):
        self.flags(rebuild_in_cell0_timeout=0, group='conductor')
        self.make_room()
        spawn, ended = fake.FakeDriver.spawn, threading.Event()
        end = cell0_rebuild.Rebuild.end

        def slow(*args, **kwargs):
            self.assertTrue(ended.wait(60))
            return spawn(*args, **kwargs)

        def note(rebuild):
            end(rebuild)
            ended.set()

        with mock.patch(failed_builds_base.SPAWN, slow), \
                mock.patch.object(cell0_rebuild.Rebuild, 'end', note):
            self.can_be_rebuilt()
        with self.log_of_rebuilds() as log:
            self.assertEqual(0, log.count())

    def test_what_was_kept_is_cleared_by_who_can(self):
        self.make_room()
        with mock.patch.object(rebuilt_instance, 'on_launched', None):
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
        context = nova_context.get_admin_context()
        self.assertIn('injected_files', persisted_request.load(
            context, self.server['id']))
        self.recover()
        self.assertEqual({}, persisted_request.load(
            context, self.server['id']))
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            self.assertFalse(rebuilt_instance.is_marked(
                objects.Instance.get_by_uuid(
                    cctxt, self.server['id'],
                    expected_attrs=['system_metadata'])))
