# SPDX-License-Identifier: Apache-2.0

"""Rebuilds of servers whose build failed in a cell."""

import contextlib
import datetime
import functools
import threading
from unittest import mock

import fixtures
import oslo_messaging as messaging
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import manager
from nova.compute import rebuild_in_cell0
from nova.compute import resource_tracker
from nova.compute import rpcapi as compute_rpcapi
from nova.compute import task_states
from nova.conductor import manager as conductor_manager
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova import exception
from nova import objects
from nova.objects import service as service_obj
from nova.objects import unbuilt_instance
from nova.scheduler.client import report
from nova.tests.fixtures import glance as glance_fixture
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional import failed_builds_base
from nova.tests.functional import held_room_base
from nova.tests.functional import microversions
from nova.tests.functional import stopped_builds
from nova.tests.functional import test_rebuild_recovery
from nova.volume import cinder

PENDING = microversions.PENDING

IMAGE = glance_fixture.GlanceFixture.image1['id']
PORT = neutron_fixture.NeutronFixture.port_1['id']
VOLUME = stopped_builds.VOLUME

# The method of nova-compute that looks whether a rebuild has replaced the
# server before it builds the server. A Nova that has the series in its own
# tree calls that method _build_and_keep_allocations.
BUILD = ('_build_and_keep_allocations'
         if hasattr(manager.ComputeManager, '_build_and_keep_allocations')
         else '_do_build_and_run_instance')


class FailedBuildsTestCase(failed_builds_base.FailedBuildsBase):

    # What failed.

    def is_built(self, actions=('rebuild', 'create'), **body):
        self.rebuild(self.server, **body)
        server = self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, len(self.held()['allocations']))
        self.assertEqual(list(actions), self.actions())
        return server

    def test_host_gives_up(self):
        self.failed(self.abort)
        self.is_built()

    def test_tries_are_exhausted(self):
        self.failed(self.reschedule)
        self.is_built()

    def test_the_rebuild_fails_too(self):
        self.failed()
        with self.abort():
            self.rebuild(self.server)
            self.wait_for(self.server, 'ERROR')
        self._wait_for_assert(lambda: self.assertEqual({}, self.allocations()))
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(['rebuild', 'rebuild', 'create'], self.actions())

    def test_rebuilt_before_the_host_has_cleaned_up(self):
        self.rebuilt_before_the_host_goes_on()

    def test_rebuilt_before_the_host_has_an_answer(self):
        """The conductor dies as the host tells it of the failed build."""
        self.rebuilt_before_the_host_goes_on(messaging.MessagingTimeout())

    def test_rebuilt_before_the_cell_is_lost(self):
        """The host cannot ask whether the record is the one it has built."""
        get = objects.Instance.get_by_uuid

        def no_answer(context, uuid, *args, **kwargs):
            if context.read_deleted == 'yes' and (
                    kwargs.get('expected_attrs') == []):
                raise messaging.MessagingTimeout()
            return get(context, uuid, *args, **kwargs)

        with mock.patch.object(objects.Instance, 'get_by_uuid', no_answer):
            self.rebuilt_before_the_host_goes_on(messaging.MessagingTimeout())

    def test_nothing_is_deleted_once_it_can_be_rebuilt(self):
        """The allocations can be those of a rebuild then."""
        states = []

        def delete(step, client, context, uuid, *args, **kwargs):
            states.append(self.api.get_server(uuid)['status'])
            return step(client, context, uuid, *args, **kwargs)

        with stopped_builds.patched(
                report.SchedulerReportClient, 'delete_allocation_for_instance',
                delete):
            self.failed()
        self.assertEqual(['BUILD'], states)

    def test_allocations_are_deleted_once_before_the_next_host_is_asked(self):
        deleted = []

        def delete(step, client, context, uuid, *args, **kwargs):
            deleted.append(uuid)
            return step(client, context, uuid, *args, **kwargs)

        with stopped_builds.patched(
                report.SchedulerReportClient, 'delete_allocation_for_instance',
                delete):
            self.failed(self.reschedule)
        self.assertEqual([self.server['id']], deleted)

    def rebuilt_before_the_host_goes_on(self, failure=None):
        """Rebuild a server as its host sets it to ERROR.

        :param failure: what the host has instead of an answer then
        """
        set_error = manager.ComputeManager._set_instance_obj_error_state
        failing = self.abort()
        failing.start()
        self.addCleanup(failing.stop)

        def meet(compute, instance, *args, **kwargs):
            set_error(compute, instance, *args, **kwargs)
            failing.stop()
            # SQLite gives the ID of the last row to the next row.
            self._create_server(networks='none')
            self.server = self.api.get_server(instance.uuid)
            self.rebuild(self.server)
            # The host is asked at the end, and begins when this build ends.
            self._wait_for_assert(lambda: self.assertTrue(
                self.in_cell(self.cell_mappings['cell1'].uuid, self.server)))
            self._wait_for_assert(lambda: self.assertEqual(
                [], self.stored(self.server)['build_requests']))
            if failure:
                raise failure

        with mock.patch.object(
                manager.ComputeManager, '_set_instance_obj_error_state', meet):
            server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self.wait_for(server, 'ACTIVE')
        self.assertEqual([self.provider('bad')], list(self.allocations()))

    def test_host_starts_before_it_takes_the_message(self):
        """The host sets the server to ERROR, and builds the server then."""
        messages = []
        with stopped_builds.patched(
                compute_rpcapi.ComputeAPI, 'build_and_run_instance',
                lambda step, *args, **kwargs: messages.append(
                    functools.partial(step, *args, **kwargs))):
            self.server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self._wait_for_assert(
                lambda: self.assertEqual(1, len(messages)))
        self.restart_compute_service(self.computes['bad'])
        self.assertEqual(
            'ERROR', self.api.get_server(self.server['id'])['status'])
        messages[0]()
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual([self.provider('bad')], list(self.allocations()))

    def test_conductor_dies_before_it_asks_the_host(self):
        with mock.patch('nova.compute.rpcapi.ComputeAPI.'
                        'build_and_run_instance'):
            self.server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self._wait_for_assert(lambda: self.assertTrue(self.in_cell(
                self.cell_mappings['cell1'].uuid, self.server)))
            self._wait_for_assert(lambda: self.assertEqual(
                [], self.stored(self.server)['build_requests']))
        self.refused(409, self.server)
        self.assertEqual((0, 0), self.recover())
        self.assertEqual((0, 0), self.recover(creates=60))
        self.assertEqual('BUILD', self.state()[0])
        self.assertEqual((1, 0), self.recover(creates=-1))
        self.assertEqual((0, 0), self.recover(creates=-1))
        server = self.wait_for(self.server, 'ERROR')
        self.assertIn('No host has begun', server['fault']['message'])
        # A host may still have the message.
        self.refused(409, self.server)
        self.admin_api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'error'}})
        # What is left allocated would be taken for that of a resize.
        self.assertEqual(1, len(self.allocations()))
        self.fill('bad')
        self.make_room()
        server = self.is_built(('rebuild', 'resetState', 'create'))
        self.assertEqual([self.provider(server['OS-EXT-SRV-ATTR:host'])],
                         list(self.allocations()))

    def test_recovery_fails_for_a_server(self):
        """The other servers are recovered all the same."""
        with mock.patch('nova.compute.rpcapi.ComputeAPI.'
                        'build_and_run_instance') as cast:
            for _number in range(2):
                self.server = self.api.post_server({
                    'server': self._build_server(
                        flavor_id=self.large, networks='none')})
            self._wait_for_assert(
                lambda: self.assertEqual(2, cast.call_count))

        def fails_for_it(leave, context, cell, instance_uuid, *args):
            if instance_uuid == self.server['id']:
                raise stopped_builds.Down()
            return leave(context, cell, instance_uuid, *args)

        with stopped_builds.patched(
                return_to_cell0, 'leave_in_error', fails_for_it):
            self.assertEqual((1, 1), self.recover(creates=-1))
        self.assertEqual('BUILD', self.state()[0])
        self.assertEqual((1, 0), self.recover(creates=-1))

    def test_host_begins_after_all(self):
        with mock.patch.object(
                compute_rpcapi.ComputeAPI, 'build_and_run_instance') as cast:
            self.server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self._wait_for_assert(lambda: cast.assert_called_once())
        self.assertEqual((1, 0), self.recover(creates=-1))
        context, *_args = cast.call_args.args
        compute_rpcapi.ComputeAPI().build_and_run_instance(
            context, **cast.call_args.kwargs)
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, len(self.allocations()))

    def test_host_loses_its_conductor_as_it_begins(self):
        save, failing = objects.Instance.save, [True]

        def lost(instance, *args, **kwargs):
            if failing and instance.task_state is None and (
                    kwargs.get('expected_task_state') == (
                        task_states.SCHEDULING, None)):
                save(instance, *args, **kwargs)
                failing.clear()
                raise messaging.MessagingTimeout()
            return save(instance, *args, **kwargs)

        with mock.patch.object(objects.Instance, 'save', lost):
            self.server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self._wait_for_assert(lambda: self.assertFalse(failing))
            self._wait_for_assert(
                lambda: self.assertEqual({}, self.allocations()))
        self.assertEqual(('BUILD', None), self.state())
        self.refused(409, self.server)
        self.assertEqual((0, 0), self.recover(creates=60))
        self.assertEqual((1, 0), self.recover(creates=-1))
        server = self.wait_for(self.server, 'ERROR')
        self.assertIn('can be rebuilt', server['fault']['message'])
        self.is_built()

    def test_host_loses_its_conductor_as_it_ends(self):
        """The server runs, and the host cannot say that it has built it."""
        ended = threading.Event()

        def lost(finish, *args, **kwargs):
            if 'compute__do_build_and_run_instance' in args:
                raise messaging.MessagingTimeout()
            return finish(*args, **kwargs)

        def build_failed(count, *args):
            count(*args)
            ended.set()

        with stopped_builds.patched(
                objects.InstanceActionEvent, 'event_finish_with_failure',
                lost), stopped_builds.patched(
                    manager.ComputeManager, '_build_failed', build_failed):
            self.server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self.assertTrue(ended.wait(30))
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(1, len(self.allocations()))

    def test_conductor_dies_before_it_asks_the_next_host(self):
        with self.reschedule(), mock.patch(
                'nova.conductor.rpcapi.ComputeTaskAPI.build_instances'):
            self.server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self._wait_for_assert(lambda: self.assertEqual(
                ('scheduling', None), tuple(self.admin_api.get_server(
                    self.server['id'])[key] for key in (
                        'OS-EXT-STS:task_state', 'OS-EXT-SRV-ATTR:host'))))
            self._wait_for_assert(
                lambda: self.assertEqual({}, self.allocations()))
        self.assertEqual((1, 0), self.recover(creates=-1))
        self.wait_for(self.server, 'ERROR')
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)

    def test_cell_is_down_as_servers_are_looked_for(self):
        with mock.patch.object(
                nova_context, 'scatter_gather_skip_cell0', lambda *args: {
                    uuids.cell: nova_context.did_not_respond_sentinel}):
            self.assertEqual((0, 1), self.recover(creates=-1))

    def test_networks_of_the_project(self):
        """An empty list of networks asks for those of the project."""
        self.api.microversion = '2.36'
        self.failed(networks=[])
        self.api.microversion = 'latest'
        self.is_built()

    def test_quota_was_used_up_as_a_host_was_found(self):
        over = exception.TooManyInstances(
            overs='instances', req=1, used=1, allowed=1)
        with mock.patch.object(
                conductor_manager.ComputeTaskManager, '_recheck_quota',
                side_effect=over):
            self.server = self.create_waiting('ERROR')
        self.assertTrue(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        # The create was not recorded by then.
        self.is_built(('rebuild',))

    def test_rebuilt_as_the_conductor_cleans_up(self):
        """The conductor is slow after the last host has failed."""
        states = []

        def slow(clean_up, conductor, context, instance, *args):
            states.append(self.admin_api.get_server(instance.uuid)['status'])
            clean_up(conductor, context, instance, *args)

        with stopped_builds.patched(
                conductor_manager.ComputeTaskManager,
                '_cleanup_allocated_networks', slow):
            self.failed(self.reschedule, networks=[{'port': PORT}])
        self.assertEqual(['BUILD'], states)
        self.is_built()

    def test_record_is_replaced_before_the_conductor_cleans_up(self):
        """An administrator has reset the state, and the owner rebuilt it."""
        cleaned_up = threading.Event()

        def late(clean_up, conductor, context, instance, *args):
            self.server = self.api.get_server(instance.uuid)
            self.replace_record_in_cell()
            clean_up(conductor, context, instance, *args)
            cleaned_up.set()

        with self.reschedule(), stopped_builds.patched(
                conductor_manager.ComputeTaskManager,
                '_cleanup_when_reschedule_fails', late):
            self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self.assertTrue(cleaned_up.wait(30))
        self.assertEqual(('BUILD', 'scheduling'), self.state())

    def late_reschedule(self, meanwhile):
        """A host that gave up asks for the next host after a rebuild."""
        asked = threading.Event()

        def late(build, conductor, context, instances, *args, **kwargs):
            self.server = self.api.get_server(instances[0].uuid)
            self.before = self.allocations()
            meanwhile(context)
            build(conductor, context, instances, *args, **kwargs)
            asked.set()

        # There is a next host.
        self._start_compute('good')
        failed = exception.InternalError(err='no such bridge')
        with mock.patch(failed_builds_base.SPAWN, side_effect=failed), \
                stopped_builds.patched(
                    conductor_manager.ComputeTaskManager, 'build_instances',
                    late):
            self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks='none')})
            self.assertTrue(asked.wait(30))
        self.assertEqual(self.before, self.allocations())

    def test_record_is_replaced_before_the_next_host_is_asked(self):
        self.late_reschedule(lambda context: self.replace_record_in_cell())
        self.assertEqual(('BUILD', 'scheduling'), self.state())

    def test_built_in_another_cell_before_the_next_host_is_asked(self):
        """The cell has no record of the server any more."""
        def destroy(context):
            objects.Instance.get_by_uuid(
                context, self.server['id']).destroy(hard_delete=True)

        self.late_reschedule(destroy)

    # What is refused.

    def unchanged(self, actions=('create',)):
        self.assertEqual('ERROR', self.state()[0])
        self.assertTrue(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        self.assertEqual([], self.stored(self.server)['build_requests'])
        self.assertEqual(list(actions), self.actions())

    def test_up_to_2_105(self):
        self.failed()
        self.api.microversion = PENDING
        self.refused(409, self.server, imageRef=IMAGE)
        self.api.microversion = 'latest'
        self.unchanged()

    def test_launched(self):
        self.failed()
        self.is_built()
        self.admin_api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'error'}})
        self.rebuild(self.server, imageRef=IMAGE)
        self.wait_for(self.server, 'ACTIVE')
        self.assertTrue(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))

    def test_compute_service_of_a_release(self):
        """Such a service would build the server again if it comes late."""
        self.failed()
        with mock.patch.object(
                objects.service, 'get_minimum_version_all_cells',
                return_value=service_obj.KNOWS_PENDING - 1):
            self.assertIn('when all compute services are upgraded',
                          self.refused(409, self.server))
        self.unchanged()
        self.is_built()

    def test_on_a_host(self):
        self.failed()
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, self.server['id'])
            instance.host = 'bad'
            instance.save()
        self.refused(409, self.server)
        self.unchanged()

    # What it had.

    def waits_and_is_built(self, **body):
        """Rebuild where there is no room, and then where there is."""
        self.fill('bad')
        self.rebuild(self.server)
        self.wait_for(self.server, 'PENDING')
        self.is_back(actions=('rebuild', 'create'))
        self.placement.delete('/allocations/%s' % uuids.filler)
        self.rebuild(self.server, **body)
        return self.wait_for(self.server, 'ACTIVE')

    def test_what_the_owner_asked_for(self):
        self.failed(name='patient', tags=['blue'], metadata={'a': 'b'},
                    networks=[{'port': PORT}], user_data='aGVsbG8=')
        self.assertFalse(self.neutron.show_port(PORT)['port'].get('device_id'))
        server = self.waits_and_is_built()
        for name in ('name', 'tags', 'metadata', 'created', 'flavor',
                     'OS-EXT-SRV-ATTR:user_data',
                     'OS-EXT-SRV-ATTR:reservation_id'):
            self.assertEqual(self.server[name], server[name], name)
        self.assertEqual(self.server['id'], self.neutron.show_port(PORT)[
            'port']['device_id'])

    def test_other_flavor(self):
        self.failed()
        server = self.is_built(flavorRef=self.small)
        self.assertEqual(10, server['flavor']['ephemeral'])

    # Volumes.

    def failed_with_volume(self, failure=None):
        self.failed(failure, imageRef='', block_device_mapping_v2=[{
            'source_type': 'volume', 'destination_type': 'volume',
            'boot_index': 0, 'delete_on_termination': False,
            'uuid': VOLUME}])

    def attachments(self):
        return self.cinder.volume_to_attachment[VOLUME]

    def test_volume(self):
        self.failed_with_volume()
        self.waits_and_is_built()
        self.assertEqual(1, len(self.attachments()))
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.attachments())

    def test_volume_that_its_host_has_given_back(self):
        self.failed_with_volume(self.reschedule)
        self.assertEqual({}, self.attachments())
        self.is_built()
        self.assertEqual(1, len(self.attachments()))

    def test_volume_that_another_server_has(self):
        self.failed_with_volume(self.reschedule)
        with mock.patch.object(
                cinder.API, 'get', lambda _api, _context, volume_id: {
                    'id': volume_id, 'status': 'in-use', 'size': 1,
                    'multiattach': False, 'attachments': {uuids.other: {}}}):
            self.assertIn('attached to another server',
                          self.refused(400, self.server))
        self.unchanged()

    def test_volume_that_is_deleted(self):
        self.failed_with_volume(self.reschedule)

        def get(_api, _context, volume_id):
            raise exception.VolumeNotFound(volume_id=volume_id)

        with mock.patch.object(cinder.API, 'get', get):
            self.refused(400, self.server)
        self.unchanged()

    def made_by_the_build(self):
        """Let a build make a volume, and fail; return what was deleted."""
        deleted = []
        for name, call in (
                ('create', lambda *args, **kwargs: {
                    'id': VOLUME, 'status': 'available'}),
                ('delete', lambda _api, _context, volume: (
                    deleted.append(volume)))):
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.API.' + name, call))
        self.failed(block_device_mapping_v2=[
            {'source_type': 'image', 'destination_type': 'volume',
             'uuid': IMAGE, 'boot_index': 0, 'volume_size': 1,
             'delete_on_termination': True}], imageRef='')
        return deleted

    def test_volume_that_the_build_has_made(self):
        deleted = self.made_by_the_build()
        self.assertIn(VOLUME, deleted)
        server = self.is_built()
        self.assertEqual([VOLUME], [volume['id'] for volume in server[
            'os-extended-volumes:volumes_attached']])
        self.assertEqual(1, len(self.attachments()))

    def left_by_the_build(self):
        """Let a build make a volume that its host cannot delete.

        :returns: the volumes, and the list of those that are deleted later
        """
        volumes, deleted = [], []

        def create(*args, **kwargs):
            volumes.append(getattr(uuids, 'made%d' % len(volumes)))
            return {'id': volumes[-1], 'status': 'available'}

        def delete_attachment(_api, context, attachment_id):
            # The client of Cinder only logs that there is none.
            with contextlib.suppress(exception.VolumeAttachmentNotFound):
                self.cinder.fake_attachment_delete(context, attachment_id)

        for name, call in (
                ('attachment_delete', delete_attachment),
                ('create', create),
                ('get', lambda _api, _context, volume_id, **kwargs: {
                    'id': volume_id, 'status': 'available', 'size': 1,
                    'multiattach': False, 'attach_status': 'detached',
                    'volume_image_metadata': {}})):
            self.useFixture(fixtures.MonkeyPatch(
                'nova.volume.cinder.API.' + name, call))
        with mock.patch('nova.volume.cinder.API.delete',
                        side_effect=stopped_builds.Down()):
            self.failed(block_device_mapping_v2=[
                {'source_type': 'image', 'destination_type': 'volume',
                 'uuid': IMAGE, 'boot_index': 0, 'volume_size': 1,
                 'delete_on_termination': True}], imageRef='')
        self.useFixture(fixtures.MonkeyPatch(
            'nova.volume.cinder.API.delete',
            lambda _api, _context, volume: deleted.append(volume)))
        return volumes, deleted

    def api_dies_before_the_volume_is_deleted(self):
        volumes, deleted = self.left_by_the_build()
        self.stopped(rebuild_in_cell0, '_delete_what_was_made',
                     lambda: self.rebuild(self.server))
        self.assertEqual([], deleted)
        return volumes, deleted

    def test_volume_that_is_left_and_the_api_dies(self):
        for end in ('rebuild', 'delete', 'delete while it is in BUILD'):
            volumes, deleted = self.api_dies_before_the_volume_is_deleted()
            if end != 'delete while it is in BUILD':
                self.assertEqual((1, 0), self.recover())
                self.assertEqual(('ERROR', None), self.state())
            if end == 'rebuild':
                self.is_built()
                self.assertEqual(2, len(volumes))
                self.assertEqual(volumes[:1], deleted)
                self.assertEqual(volumes[1:], [
                    volume['id'] for volume in self.api.get_server(
                        self.server['id'])[
                            'os-extended-volumes:volumes_attached']])
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
            self._wait_for_assert(
                lambda: self.assertEqual(volumes, deleted))

    def test_volume_is_deleted_and_the_api_dies(self):
        volumes, deleted = self.left_by_the_build()
        self.stopped(objects.BuildRequest, 'save_devices',
                     lambda: self.rebuild(self.server))
        self.assertEqual(volumes, deleted)
        self.assertEqual((1, 0), self.recover())
        self.is_built()
        self.assertEqual(2, len(volumes))

    def test_volume_that_is_left(self):
        volumes, deleted = self.left_by_the_build()
        self.is_built()
        self.assertEqual(2, len(volumes))
        self.assertEqual(volumes[:1], deleted)

    def test_volume_whose_mapping_is_archived(self):
        self.made_by_the_build()
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            main_db_api.archive_deleted_rows(cctxt, max_rows=1000)
        self.assertIn('block devices', self.refused(409, self.server))
        self.unchanged()

    # Who dies, and who comes late.

    def test_api_dies(self):
        for step in test_rebuild_recovery.API:
            self.failed(tags=['blue'])
            self.stopped(*step[:2], lambda: self.rebuild(self.server),
                         after=step[2])
            self.assertEqual('BUILD', self.state()[0])
            self.assertEqual((1, 0), self.recover())
            self.is_back('ERROR')
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)

    def test_conductor_dies(self):
        for step in test_rebuild_recovery.BUILD:
            self.failed(tags=['blue'])
            self.stopped(*step[:2], self.ask_for_rebuild().arrives,
                         after=step[2])
            self.assertEqual((1, 0), self.recover())
            self.is_back('ERROR')
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)

    def left_to_a_late_host(self, networks='none'):
        """Return the message to a host, and the server is set to ERROR."""
        casts = []
        with mock.patch('nova.compute.rpcapi.ComputeAPI.'
                        'build_and_run_instance',
                        lambda *args, **kwargs: casts.append(kwargs)):
            self.server = self.api.post_server({'server': self._build_server(
                flavor_id=self.large, networks=networks)})
            self._wait_for_assert(lambda: self.assertTrue(casts))
        self.admin_api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'error'}})
        self.server = self.admin_api.get_server(self.server['id'])
        return casts[0]

    def test_host_comes_late_to_a_server_that_was_rebuilt(self):
        """The next host is in the same cell: that has a record again."""
        message = self.left_to_a_late_host()
        self.admin_api.put_service(
            self.computes['bad'].service_ref.uuid, {'status': 'disabled'})
        self.make_room()
        # SQLite gives the ID of the last row to the next row.
        self._create_server(flavor_id=self.small, networks='none')
        self.rebuild(self.server)
        built = self.wait_for(self.server, 'ACTIVE')
        self.assertEqual('roomy', built['OS-EXT-SRV-ATTR:host'])
        before = self.allocations()
        self.assertEqual([self.provider('roomy')], list(before))
        results = []

        def take(build, *args, **kwargs):
            results.append(build(*args, **kwargs))
            return results[0]

        with mock.patch(failed_builds_base.SPAWN) as spawn, (
                stopped_builds.patched(manager.ComputeManager, BUILD, take)):
            compute_rpcapi.ComputeAPI().build_and_run_instance(
                nova_context.get_admin_context(), **message)
            self._wait_for_assert(lambda: self.assertTrue(results))
        spawn.assert_not_called()
        self.assertEqual(('ACTIVE', None), self.state())
        self.assertEqual(built, self.admin_api.get_server(self.server['id']))
        self.assertEqual(before, self.allocations())

    def test_host_begins_after_the_server_was_rebuilt(self):
        """The host has looked for its record, and hangs before it begins."""
        self.meets_a_rebuild(objects.Instance, 'save')

    def test_host_claims_after_the_server_was_rebuilt(self):
        """The host has begun the build, and hangs before it claims room."""
        self.meets_a_rebuild(
            resource_tracker.ResourceTracker, 'instance_claim',
            lambda: self.assertEqual((1, 0), self.recover(creates=-1)))

    def test_host_cannot_claim_after_the_server_was_rebuilt(self):
        def claim(step, tracker, *args, **kwargs):
            if tracker.host == 'bad':
                raise exception.ComputeResourcesUnavailable(reason='')
            return step(tracker, *args, **kwargs)

        with stopped_builds.patched(
                resource_tracker.ResourceTracker, 'instance_claim', claim):
            self.test_host_claims_after_the_server_was_rebuilt()

    def meets_a_rebuild(self, target, name, first=lambda: None):
        message = self.left_to_a_late_host([{'port': PORT}])
        message.pop('host')
        message['instance'].created_at -= datetime.timedelta(hours=1)

        def rebuild():
            first()
            self.admin_api.put_service(
                self.computes['bad'].service_ref.uuid,
                {'status': 'disabled'})
            self.make_room()
            # SQLite gives the ID of the last row to the next row.
            self._create_server(flavor_id=self.small, networks='none')
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
            self.server = self.admin_api.get_server(self.server['id'])

        self.meets(
            target, name, lambda: (
                getattr(self.computes['bad'].manager, BUILD)(
                    message['instance']._context, **message)), rebuild)
        self.assertEqual(
            self.server, self.admin_api.get_server(self.server['id']))
        self.assertEqual('roomy', self.server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual([self.provider('roomy')], list(self.allocations()))
        self.assertEqual(self.server['id'], self.neutron.show_port(
            PORT)['port']['device_id'])

    def claim(self):
        """Let the host claim the record, as the resource tracker does."""
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            instance = objects.Instance.get_by_uuid(cctxt, self.server['id'])
            instance.host = 'bad'
            instance.save()

    def test_host_claims_before_the_record_goes(self):
        self.left_to_a_late_host()
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0') as cast:
            self.meets(unbuilt_instance, 'destroy_unchanged',
                       lambda: self.refused(409, self.server), self.claim)
        cast.assert_not_called()
        self.unchanged(('resetState', 'create'))
        self.assertEqual('bad', self.admin_api.get_server(
            self.server['id'])['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(1, len(self.allocations()))

    def test_host_claims_and_the_api_dies(self):
        self.left_to_a_late_host()
        self.stopped(unbuilt_instance, 'destroy_unchanged',
                     lambda: self.rebuild(self.server))
        self.claim()
        self.recover()
        self.unchanged(('resetState', 'create'))
        self.assertEqual(1, len(self.allocations()))

    # Held room.

    def test_room_is_held(self):
        self.failed()
        self.fill('bad', left=2001)
        self.assertEqual(204, self.hold(host='bad'))
        self.rebuild(self.server)
        held_room_base.HeldRoomBase.is_built(self, host='bad')
