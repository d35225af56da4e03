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

import contextvars
import datetime
from unittest import mock

from oslo_db import exception as db_exc
from oslo_serialization import jsonutils
from oslo_utils import timeutils

from nova.compute import api as compute_api
from nova.compute import build_results
from nova.compute import cell0_record
from nova.compute import manager as compute_manager
from nova.compute import rebuild_in_cell0
from nova.compute import rpcapi
from nova.conductor import cell0
from nova.conductor import cell0_rebuild
from nova.conductor import cleanup
from nova.conductor import rebuild_log
from nova.conductor.tasks import cell0_claim
from nova.conductor.tasks import recover_rebuilds
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova.db.main import api as main_db_api
from nova.db.main import models as main_models
from nova import exception
from nova import objects
from nova.objects import persisted_request
from nova.scheduler import allocations
from nova.scheduler.client import report
from nova.tests.fixtures import cinder as cinder_fixture
from nova.tests.functional.api import client as api_client
from nova.tests.functional import rebuild_base

CONDUCTOR = 'nova.conductor.manager.ComputeTaskManager.'
BUILD = 'nova.compute.rpcapi.ComputeAPI.build_and_run_instance'


class Killed(BaseException):
    """Ends what runs as a signal does: nothing catches it."""


class Down(Exception):
    """A database or the bus is down."""


class RecoveryTestCase(rebuild_base.RebuildInCell0Base):
    """Each test stops a rebuild at one point and looks at what follows."""

    def setUp(self):
        super().setUp()
        self.report_client = report.SchedulerReportClient()
        self.server = self.create_waiting(
            name='patient', tags=['blue'], metadata={'a': 'b'},
            imageRef='', block_device_mapping_v2=[{
                'source_type': 'volume', 'destination_type': 'volume',
                'boot_index': 0, 'delete_on_termination': False,
                'uuid': cinder_fixture.CinderFixture.IMAGE_BACKED_VOL}])
        self.before = self.stored(self.server)

    def recover(self, age=-1):
        return recover_rebuilds.recover(nova_context.get_admin_context(),
                                self.report_client, age)

    def stop_the_api_at(self, target, after=False, error=Killed):
        """Rebuild, and stop nova-api before or after a function."""
        def stopped(*args, **kwargs):
            if after:
                released(*args, **kwargs)
            raise error()
        module, name = target
        released = getattr(module, name)
        with mock.patch.object(module, name, stopped):
            try:
                self.rebuild(self.server)
            except (Killed, api_client.OpenStackApiException):
                return
        self.fail('The rebuild was not stopped')

    def stop_the_conductor_at(self, method):
        """Rebuild, and stop nova-conductor when it comes to a method."""
        self.make_room()
        with mock.patch(CONDUCTOR + method, side_effect=Down()) as stopped:
            self.rebuild(self.server)
            self._wait_for_assert(stopped.assert_called)

    def status(self):
        return self.api.get_server(self.server['id'])['status']

    def allocations(self):
        return self.report_client.get_allocations_for_consumer(
            nova_context.get_admin_context(), self.server['id'])

    def is_back(self):
        """The server waits as before, and nothing is left anywhere."""
        self.assertEqual('PENDING', self.status())
        self.assertEqual([self.server['id']],
                         [s['id'] for s in self.api.get_servers()])
        shown = self.admin_api.get_server(self.server['id'])
        for key in ('name', 'tags', 'metadata', 'created', 'image', 'flavor',
                    'os-extended-volumes:volumes_attached',
                    'OS-EXT-STS:task_state'):
            self.assertEqual(self.server[key], shown[key], key)
        after = self.stored(self.server)
        self.assertEqual([], after['build_requests'])
        self.assertEqual(self.before['instance_mappings'][0]['cell_id'],
                         after['instance_mappings'][0]['cell_id'])
        self.assertIn('"requested_networks"',
                      after['request_specs'][0]['spec'])
        self.assertEqual({}, self.allocations())
        self.assertEqual(1, len(self.cinder.volume_to_attachment[
            cinder_fixture.CinderFixture.IMAGE_BACKED_VOL]))
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            self.assertRaises(
                exception.InstanceNotFound, objects.Instance.get_by_uuid,
                cctxt, self.server['id'])

    def can_be_rebuilt(self):
        if 'roomy' not in self.computes:
            self.make_room()
        self.rebuild(self.server)
        self.wait_for(self.server, 'ACTIVE')

    def can_be_deleted(self):
        self.api.delete_server(self.server['id'])
        self._wait_until_deleted(self.server)
        self.assertEqual([], self.api.get_servers())
        self.recover()
        self.assertEqual([], self.api.get_servers())
        self.assertEqual([], self.stored(self.server)['build_requests'])
        self.assertEqual({}, self.allocations())
        self.assertEqual({}, self.cinder.volume_to_attachment[
            cinder_fixture.CinderFixture.IMAGE_BACKED_VOL])

    # The crash table: after step 2, the claim.

    def killed_after_the_claim(self):
        self.stop_the_api_at((rebuild_in_cell0._Rebuild, 'move'))
        self.assertEqual(
            'rebuilding',
            self.stored(self.server)['instances'][0]['task_state'])

    def test_killed_after_the_claim(self):
        self.killed_after_the_claim()
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    def test_killed_after_the_claim_and_deleted(self):
        self.killed_after_the_claim()
        self.can_be_deleted()

    def test_claim_that_is_young_is_left_alone(self):
        self.killed_after_the_claim()
        self.assertEqual((0, 0), self.recover(age=60))
        self.assertEqual(
            'rebuilding',
            self.stored(self.server)['instances'][0]['task_state'])

    # After step 3, the exchange in the API database.

    def killed_after_the_exchange(self):
        self.stop_the_api_at((cell0_record, 'destroy_claimed'))
        self.assertEqual('BUILD', self.status())
        self.assertEqual([self.server['id']],
                         [s['id'] for s in self.api.get_servers()])

    def test_killed_after_the_exchange(self):
        self.killed_after_the_exchange()
        self.assertEqual((0, 0), self.recover(age=60))
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    def test_api_database_down_at_the_exchange(self):
        with mock.patch.object(objects.BuildRequest, 'create',
                               side_effect=db_exc.DBConnectionError()):
            self.refused(503, self.server)
        self.is_back()
        self.can_be_rebuilt()

    def test_two_recoveries_of_what_was_exchanged(self):
        # SQLite gives the ID of its last row again.
        self.api.delete_server(self.create_waiting()['id'])
        self.killed_after_the_exchange()
        remove = recover_rebuilds._Recovery._remove_leftover
        requests = recover_rebuilds._Recovery._stale_build_requests

        def hang(*args):
            # In another conductor, which then stops, too.
            with mock.patch.object(
                    recover_rebuilds._Recovery, '_stale_build_requests',
                    requests), mock.patch.object(
                    cell0_claim, 'release_claim', side_effect=Killed()):
                self.assertRaises(
                    Killed, contextvars.Context().run, self.recover)
            return remove(*args)

        with mock.patch.object(recover_rebuilds._Recovery, '_remove_leftover',
                               hang), mock.patch.object(
                recover_rebuilds._Recovery, '_stale_build_requests',
                return_value=[]):
            self.assertEqual((0, 0), self.recover())
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    def test_killed_after_the_exchange_and_deleted(self):
        self.killed_after_the_exchange()
        self.can_be_deleted()

    def test_cell0_down_at_the_delete(self):
        self.stop_the_api_at((cell0_record, '_instance_destroy'),
                             error=Down)
        self.recover()
        self.is_back()

    # After step 4, the hard delete.

    def killed_after_the_delete(self):
        self.stop_the_api_at((cell0_record, 'destroy_claimed'),
                             after=True)
        self.assertEqual('BUILD', self.status())

    def test_killed_after_the_delete(self):
        self.killed_after_the_delete()
        self.assertEqual((0, 0), self.recover(age=60))
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    def test_killed_after_the_delete_and_deleted(self):
        self.killed_after_the_delete()
        self.can_be_deleted()

    def test_bus_down_at_the_cast(self):
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0', side_effect=Down()):
            self.refused(500, self.server)
        self.recover()
        self.is_back()
        self.can_be_rebuilt()

    # After step 5, in the conductor.

    def test_conductor_stopped_before_it_schedules(self):
        self.stop_the_conductor_at('schedule_and_build_instances')
        self.assertEqual('BUILD', self.status())
        self.recover()
        self.is_back()
        self.can_be_rebuilt()

    def test_conductor_stopped_after_it_scheduled(self):
        self.stop_the_conductor_at('_recheck_quota')
        self.assertNotEqual({}, self.allocations())
        self.recover()
        self.is_back()
        self.can_be_rebuilt()

    def test_conductor_stopped_after_it_mapped_the_server(self):
        self.stop_the_conductor_at('_delete_build_request')
        self.assertNotEqual({}, self.allocations())
        self.recover()
        self.is_back()

    def test_archived_after_the_conductor_has_stopped(self):
        self.stop_the_conductor_at('_recheck_quota')
        for cell in self.cell_mappings.values():
            with nova_context.target_cell(
                    nova_context.get_admin_context(), cell) as cctxt:
                main_db_api.archive_deleted_rows(
                    cctxt, max_rows=1000, task_log=True)
        self.recover()
        self.is_back()
        self.can_be_rebuilt()

    def test_conductor_stopped_after_it_scheduled_and_deleted(self):
        self.stop_the_conductor_at('_recheck_quota')
        self.can_be_deleted()

    def test_killed_as_it_deletes_what_is_being_rebuilt(self):
        self.stop_the_conductor_at('_recheck_quota')
        with mock.patch.object(compute_api.API, '_local_cleanup_bdm_volumes',
                               side_effect=Killed()) as killed:
            try:
                self.api.delete_server(self.server['id'])
            except (Killed, api_client.OpenStackApiException):
                pass
        killed.assert_called_once()
        self.assertNotEqual({}, self.allocations())
        self.began_long_ago()
        self.assertEqual((0, 0), self.recover())
        self.assertEqual({}, self.allocations())
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        after = self.stored(self.server)
        for table in ('build_requests', 'instance_mappings',
                      'request_specs', 'instances'):
            self.assertEqual([], after[table], table)
        self.assertEqual([], list(rebuild_log.begun(
            nova_context.get_admin_context(), self.cell_mappings['cell0'],
            timeutils.utcnow())))

    # The build request is gone, and what is kept tells of the rebuild.

    def has_its_history_and_keeps(self, *kept):
        self.assertEqual([], self.stored(self.server)['build_requests'])
        self.assertEqual(
            ['rebuild', 'create'],
            [action['action'] for action in
             self.api.get_instance_actions(self.server['id'])])
        spec = jsonutils.loads(
            self.stored(self.server)['request_specs'][0]['spec'])
        data = spec.get(persisted_request.KEY)
        self.assertEqual(data is not None,
                         'requested_networks' in spec['nova_object.data'])
        self.assertEqual(
            set(kept), set() if data is None else
            {'request'} | set(persisted_request.ON_THE_WAY) & set(data))

    def handed_over(self):
        """Stop the conductor before it asks a host to build the server."""
        self.make_room()
        with mock.patch(BUILD, side_effect=Down()) as stopped:
            self.rebuild(self.server)
            self._wait_for_assert(stopped.assert_called)
        self.has_its_history_and_keeps('request', 'vm_state', 'actions')
        return stopped.call_args

    def test_conductor_stopped_after_the_conversion(self):
        self.handed_over()
        self.assertEqual('BUILD', self.status())
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.assertIsNone(self.admin_api.get_server(self.server['id'])[
            'OS-EXT-SRV-ATTR:host'])
        self.assertEqual(
            '', self.api.get_server(self.server['id'])[
                'OS-EXT-AZ:availability_zone'])
        self.assertEqual((0, 0), self.recover())
        self.can_be_rebuilt()

    def test_conductor_stopped_after_the_conversion_and_deleted(self):
        self.handed_over()
        self.can_be_deleted()

    def test_conversion_that_is_young_is_left_alone(self):
        self.handed_over()
        self.assertEqual((0, 0), self.recover(age=600))
        self.assertEqual('BUILD', self.status())

    def began_long_ago(self):
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, rebuild_in_cell0.cell0(context)) as cctxt:
            with main_db_api.get_context_manager(cctxt).writer.using(cctxt):
                cctxt.session.query(main_models.TaskLog).update(
                    {'period_ending': datetime.datetime(2020, 1, 2)})

    def handed_over_long_ago(self):
        self.handed_over()
        self.began_long_ago()
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            with main_db_api.get_context_manager(cctxt).writer.using(cctxt):
                cctxt.session.query(main_models.Instance).filter_by(
                    uuid=self.server['id']).update(
                        {'updated_at': datetime.datetime(2020, 1, 2)})

    def test_server_for_which_another_host_is_asked(self):
        self.handed_over_long_ago()
        # The conductor saves it before it asks the next host.
        self.api.put_server(
            self.server['id'], {'server': {'description': 'described'}})
        self.assertEqual((0, 0), self.recover(600))
        self.assertEqual('BUILD', self.status())
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def test_change_after_the_conversion_is_kept(self):
        self.handed_over()
        self.api.put_server(
            self.server['id'], {'server': {'name': 'renamed'}})
        self.server['name'] = 'renamed'
        self.recover()
        self.is_back()

    def test_host_that_is_asked_while_the_server_is_taken_back(self):
        asked = self.handed_over()

        results = []
        build = compute_manager.ComputeManager._do_build_and_run_instance

        def record(*args, **kwargs):
            results.append(build(*args, **kwargs))
            return results[-1]

        def ask(*args):
            rpcapi.ComputeAPI().build_and_run_instance(
                *asked.args, **asked.kwargs)
            self._wait_for_assert(
                lambda: self.assertEqual([build_results.FAILED_BY_POLICY],
                                         results))
            return ask_again(*args)

        ask_again = return_to_cell0._ask_again
        with mock.patch.object(return_to_cell0, '_ask_again', ask), \
                mock.patch.object(compute_manager.ComputeManager,
                                  '_do_build_and_run_instance', record):
            self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    def test_host_that_is_asked_before_the_server_is_taken_back(self):
        asked = self.handed_over()

        def built_first(*args):
            rpcapi.ComputeAPI().build_and_run_instance(
                *asked.args, **asked.kwargs)
            self.wait_for(self.server, 'ACTIVE')
            return from_cell(*args)

        from_cell = return_to_cell0.from_cell
        with mock.patch.object(return_to_cell0, 'from_cell', built_first):
            self.assertEqual((0, 0), self.recover())
        self.assertEqual('ACTIVE', self.status())
        self.assertEqual((0, 0), self.recover())
        self.has_its_history_and_keeps()

    def asked_long_ago(self):
        """Return the server while the message to its host is in a queue.

        :returns: what the host is asked in the end
        """
        self.make_room()
        with mock.patch(BUILD) as asked:
            self.rebuild(self.server)
            self._wait_for_assert(
                lambda: self.has_its_history_and_keeps('request', 'vm_state'))
        self._wait_for_assert(
            lambda: self.assertEqual((1, 0), self.recover()))
        return lambda: rpcapi.ComputeAPI().build_and_run_instance(
            *asked.call_args.args, **asked.call_args.kwargs)

    def is_refused(self, ask):
        """The host does not build the server, and leaves what is allocated."""
        before = self.allocations()
        self.assertNotEqual({}, before)
        ended = []
        wrapped = compute_manager.ComputeManager._start_recorded_task

        def record(manager, kind, name, instance, context, function, *args):
            def run(*args):
                try:
                    function(*args)
                finally:
                    ended.append(name)
            wrapped(manager, kind, name, instance, context, run, *args)

        with mock.patch.object(compute_manager.ComputeManager,
                               '_start_recorded_task', record):
            ask()
            self._wait_for_assert(
                lambda: self.assertEqual(['build_instance'], ended))
        self.assertEqual(before, self.allocations())

    def test_host_that_was_asked_long_before_the_server_was_built(self):
        """Its message has waited for it; the server runs elsewhere by now."""
        ask = self.asked_long_ago()
        self.can_be_rebuilt()
        self.is_refused(ask)
        self.assertEqual('ACTIVE', self.status())

    def test_host_that_was_asked_long_before_room_was_held(self):
        ask = self.asked_long_ago()
        provider = self.report_client.get_provider_by_name(
            nova_context.get_admin_context(), 'roomy')['uuid']
        self.report_client.put_allocations(
            nova_context.get_admin_context(), self.server['id'], {
                'allocations': {provider: {'resources': {'VCPU': 1}}},
                'consumer_generation': None,
                'project_id': self.server['tenant_id'],
                'user_id': self.server['user_id']})
        self.is_refused(ask)
        self.assertEqual('PENDING', self.status())

    def test_deleted_while_it_is_taken_back(self):
        self.handed_over()

        def delete(*args):
            build_request = ask_again(*args)
            self.api.delete_server(self.server['id'])
            return build_request

        ask_again = return_to_cell0._ask_again
        with mock.patch.object(return_to_cell0, '_ask_again', delete):
            self.assertEqual((0, 0), self.recover())
        self.assertEqual([], self.api.get_servers())
        self.assertEqual([], self.stored(self.server)['build_requests'])
        self.recover()
        self.assertEqual([], self.api.get_servers())
        self.assertEqual({}, self.allocations())

    def test_deleted_before_it_is_taken_back(self):
        self.handed_over()

        def delete(*args):
            self.api.delete_server(self.server['id'])
            return ask_again(*args)

        ask_again = return_to_cell0._ask_again
        with mock.patch.object(return_to_cell0, '_ask_again', delete):
            self.assertEqual((0, 0), self.recover())
        self.assertEqual([], self.api.get_servers())
        self.assertEqual([], self.stored(self.server)['build_requests'])
        self.assertEqual((0, 0), self.recover())
        self.assertEqual([], self.api.get_servers())

    def test_changed_while_it_is_taken_back(self):
        self.handed_over()

        def rename(*args):
            build_request = ask_again(*args)
            context = nova_context.get_admin_context()
            with nova_context.target_cell(
                    context, self.cell_mappings['cell1']) as cctxt:
                instance = objects.Instance.get_by_uuid(
                    cctxt, self.server['id'])
                instance.display_description = 'described'
                instance.save()
            # It is the build request that is renamed.
            self.api.put_server(
                self.server['id'], {'server': {'name': 'renamed'}})
            return build_request

        ask_again = return_to_cell0._ask_again
        with mock.patch.object(return_to_cell0, '_ask_again', rename):
            self.assertEqual((0, 0), self.recover())
        self.assertEqual('BUILD', self.status())
        self.assertEqual((1, 0), self.recover())
        self.server['name'] = 'renamed'
        self.is_back()
        self.assertEqual('described', self.api.get_server(
            self.server['id'])['description'])

    def recovery_stopped_while_it_takes_a_server_back(self, module, name):
        self.handed_over()
        released = getattr(module, name)

        def stopped(*args, **kwargs):
            released(*args, **kwargs)
            raise Killed()

        with mock.patch.object(module, name, stopped):
            self.assertRaises(Killed, self.recover)
        self.assertEqual('BUILD', self.status())
        self.assertEqual([self.server['id']],
                         [s['id'] for s in self.api.get_servers()])
        self.recover()
        self.is_back()
        self.can_be_rebuilt()

    def test_recovery_stopped_after_it_claimed_a_server(self):
        self.recovery_stopped_while_it_takes_a_server_back(
            cell0_claim, 'set_task_state')

    def test_recovery_stopped_after_it_asked_for_a_server_again(self):
        self.recovery_stopped_while_it_takes_a_server_back(
            return_to_cell0, '_ask_again')

    def test_recovery_stopped_after_it_deleted_a_server_in_its_cell(self):
        self.recovery_stopped_while_it_takes_a_server_back(
            cell0_record, 'destroy_unchanged')

    def test_two_recoveries_of_a_server_that_was_handed_over(self):
        self.handed_over_long_ago()

        def other_first(*args):
            with mock.patch.object(return_to_cell0, '_ask_again', ask_again):
                self.assertEqual((0, 0), self.recover(age=60))
            return ask_again(*args)

        ask_again = return_to_cell0._ask_again
        with mock.patch.object(return_to_cell0, '_ask_again', other_first):
            self.assertEqual((1, 0), self.recover(age=60))
        self.is_back()

    def test_what_a_host_was_asked_for_is_forgotten(self):
        self.make_room()
        with mock.patch.object(cell0_rebuild.Rebuild, 'end',
                               side_effect=Down()) as stopped:
            self.rebuild(self.server)
            self._wait_for_assert(stopped.assert_called)
        self.wait_for(self.server, 'ACTIVE')
        self.assertEqual((0, 0), self.recover())
        self.has_its_history_and_keeps()
        self.assertEqual('ACTIVE', self.status())

    def test_conductor_stopped_after_it_returned_the_server(self):
        convert = objects.BuildRequest.convert_to_mapping

        def stopped(*args):
            convert(*args)
            raise Down()

        with mock.patch.object(objects.BuildRequest, 'convert_to_mapping',
                               stopped):
            self.rebuild(self.server)
            self._wait_for_assert(
                lambda: self.assertEqual('REBUILD', self.status()))
        self.has_its_history_and_keeps('request')
        self.assertEqual((1, 0), self.recover())
        self.is_back()
        self.can_be_rebuilt()

    def test_quota_that_was_used_up_meanwhile(self):
        self.make_room()
        with mock.patch(CONDUCTOR + '_recheck_quota',
                        side_effect=exception.TooManyInstances(
                            overs='cores', req=1, used=1, allowed=1)):
            self.rebuild(self.server)
            self._wait_for_assert(
                lambda: self.assertEqual('PENDING', self.status()))
        self._wait_for_assert(
            lambda: self.has_its_history_and_keeps('request'))
        self.assertEqual({}, self.allocations())
        self.can_be_rebuilt()

    # Who comes late.

    def test_conductor_that_comes_late_goes_no_further(self):
        self.make_room()
        casts = []
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'rebuild_instance_in_cell0',
                        lambda *args: casts.append(args)):
            self.rebuild(self.server)
        self.recover()
        self.conductor.manager.compute_task_mgr.rebuild_instance_in_cell0(
            *casts[0][1:])
        self.is_back()
        self.can_be_rebuilt()

    def test_recovery_while_the_conductor_schedules(self):
        self.make_room()
        manager = self.conductor.manager.compute_task_mgr
        schedule = manager._schedule_instances

        def slow(*args, **kwargs):
            hosts = schedule(*args, **kwargs)
            self.recover()
            return hosts

        with mock.patch.object(manager, '_schedule_instances', slow):
            self.rebuild(self.server)
            self._wait_for_assert(
                lambda: self.assertEqual('PENDING', self.status()))
        self._wait_for_assert(
            lambda: self.assertEqual({}, self.allocations()))
        self.is_back()

    def test_recovery_before_the_conductor_maps_the_server(self):
        self.recovery_before('_map_instance_to_cell')

    def test_recovery_before_the_build_request_is_deleted(self):
        self.recovery_before('_delete_build_request')

    def recovery_before(self, method):
        self.make_room()
        manager = self.conductor.manager.compute_task_mgr
        released = getattr(manager, method)
        done = []

        def late(*args, **kwargs):
            self.recover()
            done.append(True)
            return released(*args, **kwargs)

        with mock.patch.object(manager, method, late):
            self.rebuild(self.server)
            self._wait_for_assert(lambda: self.assertTrue(done))
        self._wait_for_assert(
            lambda: self.assertEqual('PENDING', self.status()))
        self._wait_for_assert(self.is_back)
        self.can_be_rebuilt()

    def test_two_recoveries(self):
        self.killed_after_the_delete()
        take = objects.BuildRequest.take

        def other_first(*args):
            with mock.patch.object(objects.BuildRequest, 'take', take):
                self.assertEqual((1, 0), self.recover())
            return take(*args)

        with mock.patch.object(objects.BuildRequest, 'take', other_first):
            self.assertEqual((0, 0), self.recover())
        self.is_back()

    def test_recovery_stopped_half_way(self):
        self.stop_the_conductor_at('_recheck_quota')
        for module, name in ((return_to_cell0, '_create_record'),
                             (cell0, 'map_to_cell'),
                             (cell0_claim, 'release_claim'),
                             (allocations, 'delete'),
                             (cleanup, 'purge_stale_records')):
            with mock.patch.object(module, name, side_effect=Killed()):
                self.assertRaises(Killed, self.recover)
        self.recover()
        self.is_back()

    def nothing_is_allocated_when_it_waits(self):
        release_claim = cell0_claim.release_claim
        found = []

        def look(*args):
            found.append(self.allocations())
            return release_claim(*args)

        self.assertNotEqual({}, self.allocations())
        with mock.patch.object(cell0_claim, 'release_claim', look):
            self.assertEqual((1, 0), self.recover())
        self.assertEqual([{}], found)
        self.is_back()

    def test_nothing_is_allocated_when_it_waits(self):
        self.stop_the_conductor_at('_recheck_quota')
        self.nothing_is_allocated_when_it_waits()

    def test_nothing_is_allocated_when_it_waits_after_the_conversion(self):
        self.handed_over()
        self.nothing_is_allocated_when_it_waits()

    def test_nothing_is_allocated_when_it_waits_after_two_recoveries(self):
        self.stop_the_conductor_at('_recheck_quota')
        with mock.patch.object(allocations, 'delete', side_effect=Killed()):
            self.assertRaises(Killed, self.recover)
        self.nothing_is_allocated_when_it_waits()

    def test_placement_down_as_it_returns(self):
        self.stop_the_conductor_at('_recheck_quota')
        with mock.patch.object(allocations, 'delete', side_effect=Down()):
            self.assertEqual((1, 0), self.recover())
        self.assertEqual('PENDING', self.status())
        self.recover()
        self.is_back()

    def test_failure_is_counted_and_tried_again(self):
        self.killed_after_the_delete()
        with mock.patch.object(return_to_cell0, '_create_record',
                               side_effect=Down()):
            self.assertEqual((0, 1), self.recover())
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def test_server_that_is_being_created_is_left_alone(self):
        with mock.patch('nova.conductor.rpcapi.ComputeTaskAPI.'
                        'schedule_and_build_instances'):
            created = self.api.post_server({'server': self._build_server(
                flavor_id=self.small, networks='none')})
        self.assertEqual((0, 0), self.recover())
        self.assertEqual(
            'BUILD', self.api.get_server(created['id'])['status'])

    def test_periodic_task(self):
        self.killed_after_the_delete()
        manager = self.conductor.manager
        self.flags(rebuild_in_cell0_timeout=0, group='conductor')
        context = nova_context.get_admin_context()
        self.assertIn('_recover_rebuilds_in_cell0', [
            name for name, _task in manager._periodic_tasks])
        with mock.patch.object(recover_rebuilds, 'recover') as recover:
            manager._recover_rebuilds_in_cell0(context)
            recover.assert_not_called()
            self.flags(rebuild_in_cell0_timeout=60, group='conductor')
            manager._recover_rebuilds_in_cell0(context)
            recover.assert_called_once_with(context, mock.ANY, 60)
            # Another worker, in the same minute.
            manager._recover_rebuilds_in_cell0(context)
            recover.assert_called_once()
            later = timeutils.utcnow() + datetime.timedelta(seconds=60)
            with mock.patch.object(timeutils, 'utcnow', return_value=later):
                manager._recover_rebuilds_in_cell0(context)
                self.assertEqual(2, recover.call_count)
            # The conductor of a cell.
            self.flags(connection=None, group='api_database')
            manager._recover_rebuilds_in_cell0(context)
            self.assertEqual(2, recover.call_count)
