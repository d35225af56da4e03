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

"""Who comes late to a server that has returned to cell0, or goes there."""

import contextlib
import contextvars
import datetime
from unittest import mock

import fixtures
from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import build_results
from nova.compute import manager as compute_manager
from nova.compute import resource_tracker
from nova.compute import rpcapi
from nova.conductor import cell0_rebuild
from nova.conductor import failed_builds
from nova.conductor import manager
from nova.conductor.tasks import cell0_claim
from nova.conductor.tasks import recover_rebuilds
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova.network import neutron
from nova import objects
from nova.objects import persisted_request
from nova.objects import rebuilt_instance
from nova.scheduler.client import report
from nova.scheduler import utils as scheduler_utils
from nova.tests.fixtures import neutron as neutron_fixture
from nova.tests.functional import failed_builds_base

PORT = neutron_fixture.NeutronFixture.port_1['id']


class Killed(BaseException):
    """Ends what runs as a signal does: nothing catches it."""


class LateConductorsTestCase(failed_builds_base.FailedBuildsBase):

    def fails_on_the_first_host(self):
        """Let a conductor be asked to try another host, and not do so yet.

        :returns: the arguments of build_instances()
        """
        self.make_host('bad')
        self.make_host('other')
        with self.reschedule(('bad', 'other')), mock.patch.object(
                manager.ComputeTaskManager, 'build_instances') as asked:
            self.rebuild(self.server)
            self._wait_for_assert(asked.assert_called, max_retries=60)
        [[alternate]] = asked.call_args.kwargs['host_lists']
        self.alternate = alternate.service_host
        return asked.call_args

    def asked_for_another_host(self):
        """Return a server to cell0 while a conductor is to try another host.

        :returns: the arguments of build_instances()
        """
        asked = self.fails_on_the_first_host()
        self.assertEqual(('BUILD', 'scheduling'), self.state())
        self.assertEqual((1, 0), self.recover())
        self.assertEqual('PENDING', self.state()[0])
        self.assertEqual({}, self.held()['allocations'])
        return asked

    def try_another_host(self, asked, **changes):
        """Let the conductor do so now; return how often it asks a host."""
        with mock.patch.object(
                rpcapi.ComputeAPI, 'build_and_run_instance') as build:
            self.conductor.manager.compute_task_mgr.build_instances(
                *asked.args, **{**asked.kwargs, **changes})
        return build.call_count

    def built_elsewhere(self):
        """Build the server on another host than the one still to be tried."""
        self.admin_api.put_service(self.admin_api.get_services(
            host=self.alternate, binary='nova-compute')[0]['id'],
            {'status': 'disabled'})
        server = self.can_be_rebuilt()
        self.assertNotEqual(self.alternate,
                            server['OS-EXT-SRV-ATTR:host'])
        return server

    def is_as_before(self, before, allocations):
        server = self.admin_api.get_server(self.server['id'])
        self.assertEqual('ACTIVE', server['status'])
        self.assertEqual(before['OS-EXT-SRV-ATTR:host'],
                         server['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(allocations, self.held()['allocations'])

    def test_other_host_for_a_server_that_waits_again(self):
        asked = self.asked_for_another_host()
        self.assertEqual(0, self.try_another_host(asked))
        self.assertEqual({}, self.held()['allocations'])
        self.assertEqual('PENDING', self.state()[0])
        self.can_be_rebuilt()

    def test_other_host_for_a_server_that_runs(self):
        asked = self.asked_for_another_host()
        server = self.built_elsewhere()
        allocations = self.held()['allocations']
        self.assertEqual(0, self.try_another_host(asked))
        self.is_as_before(server, allocations)

    def test_no_other_host_for_a_server_that_runs(self):
        self.server = self.create_waiting(networks=[{'port': PORT}])
        asked = self.asked_for_another_host()
        server = self.built_elsewhere()
        allocations = self.held()['allocations']
        self.assertEqual(0, self.try_another_host(asked, host_lists=[[]]))
        self.is_as_before(server, allocations)
        self.assertEqual(self.server['id'], self.neutron.show_port(PORT)[
            'port']['device_id'])

    def test_server_that_runs_as_another_host_was_found(self):
        asked = self.asked_for_another_host()
        released = scheduler_utils.claim_resources
        build = mock.patch.object(rpcapi.ComputeAPI, 'build_and_run_instance')

        def hang(*args):
            self.assertTrue(released(*args))
            self.placement.delete('/allocations/%s' % self.server['id'])
            with mock.patch.object(scheduler_utils, 'claim_resources',
                                   released):
                self.built_elsewhere()
            self.addCleanup(build.stop)
            self.built = build.start()
            return True

        with mock.patch.object(scheduler_utils, 'claim_resources', hang), \
                mock.patch.object(rebuilt_instance, 'is_elsewhere',
                                  return_value=False):
            self.conductor.manager.compute_task_mgr.build_instances(
                *asked.args, **asked.kwargs)
        self.built.assert_not_called()

    # They wake from a look at the scheduler, or at Placement.

    def hangs_before_its_claim(self, meanwhile, claimed):
        """Let another host be tried, and the server return before its claim.

        :param meanwhile: what happens after that, in other services
        :param claimed: whether there is room for it on the other host
        """
        asked = self.fails_on_the_first_host()
        released = scheduler_utils.claim_resources
        build = rpcapi.ComputeAPI.build_and_run_instance

        def others():
            # The entry of the rebuild is ended, too.
            with self.log_of_rebuilds() as log:
                log.update({'period_ending': datetime.datetime(2020, 1, 1)})
            self.assertEqual((1, 0), self.recover())
            self.assertEqual('PENDING', self.state()[0])
            self.assertEqual({}, self.held()['allocations'])
            with mock.patch.object(
                    scheduler_utils, 'claim_resources', released
            ), mock.patch.object(
                    rpcapi.ComputeAPI, 'build_and_run_instance', build):
                meanwhile()

        def hang(*args, **kwargs):
            contextvars.Context().run(others)
            return claimed and released(*args, **kwargs)

        with mock.patch.object(scheduler_utils, 'claim_resources', hang):
            self.assertEqual(0, self.try_another_host(asked))

    def test_server_that_waits_as_another_host_is_claimed(self):
        self.hangs_before_its_claim(lambda: None, claimed=True)
        self.recover()
        self.assertEqual({}, self.held()['allocations'])
        self.assertEqual('PENDING', self.state()[0])
        self.can_be_rebuilt()

    def test_server_that_runs_as_another_host_has_no_room(self):
        self.server = self.create_waiting(networks=[{'port': PORT}])
        before = []

        def build():
            before.extend((self.built_elsewhere(),
                           self.held()['allocations']))

        self.hangs_before_its_claim(build, claimed=False)
        self.is_as_before(*before)
        self.assertEqual(self.server['id'], self.neutron.show_port(PORT)[
            'port']['device_id'])


class LateHostsTestCase(failed_builds_base.FailedBuildsBase):

    def waits_as_before(self):
        """The server waits, nothing of a build is left, and it can be built.
        """
        self._wait_for_assert(
            lambda: self.assertEqual(('PENDING', None), self.state()))
        self.assertEqual({}, self.held()['allocations'])
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        self.can_be_rebuilt()

    def test_host_that_hangs_before_it_deletes_allocations(self):
        self.make_host()
        self.make_room()
        self.hold(host='bad')
        hosts = ['bad']
        released = report.SchedulerReportClient.delete_allocation_for_instance

        def hang(*args, **kwargs):
            if hosts:
                hosts.clear()
                self.assertEqual((1, 0), self.recover())
                self.rebuild(self.server)
                self._wait_for_assert(lambda: self.assertTrue(self.in_cell(
                    self.cell_mappings['cell1'].uuid, self.server)))
            return released(*args, **kwargs)

        with self.reschedule(hosts), mock.patch.object(
                report.SchedulerReportClient,
                'delete_allocation_for_instance', hang):
            self.rebuild(self.server)
            server = self.wait_for(self.server, 'ACTIVE')
        self.assertEqual(
            [self.provider(server['OS-EXT-SRV-ATTR:host'])],
            list(self.held()['allocations']))

    def test_host_that_gives_up_has_deleted_allocations(self):
        self.make_host()
        hosts = []
        released = report.SchedulerReportClient.delete_allocation_for_instance

        def look(*args, **kwargs):
            hosts.append(self.admin_api.get_server(
                self.server['id'])['OS-EXT-SRV-ATTR:host'])
            return released(*args, **kwargs)

        with mock.patch.object(
                report.SchedulerReportClient,
                'delete_allocation_for_instance', look):
            self.host_dies()
        self.assertEqual(['bad'], hosts)
        self.goes_back('was interrupted')

    def test_host_that_dies_before_its_claim(self):
        self.dies_before_its_claim()
        self.assertEqual((0, 0), self.recover(age=600))
        self.assertEqual((1, 0), self.recover())
        self.waits_as_before()

    def dies_before_its_claim(self):
        self.make_room()
        with mock.patch.object(resource_tracker.ResourceTracker,
                               'instance_claim', side_effect=Killed()) as dies:
            self.rebuild(self.server)
            self._wait_for_assert(dies.assert_called)
        self.assertEqual(('BUILD', None), self.state())

    def begins_again(self):
        """nova-compute sets to ERROR what it has not claimed."""
        compute = self.computes['roomy'].manager
        context = nova_context.get_admin_context()
        with nova_context.target_cell(
                context, self.cell_mappings['cell1']) as cctxt:
            compute._error_out_instances_whose_build_was_interrupted(
                cctxt, set(), [self.provider('roomy')])

    def test_host_that_begins_again_after_its_claim_was_interrupted(self):
        self.dies_before_its_claim()
        with mock.patch.object(failed_builds, '_GRACE', 0):
            self.begins_again()
            self.goes_back('was interrupted')
        self.can_be_rebuilt()

    def test_host_that_begins_again_as_the_server_is_returned(self):
        self.dies_before_its_claim()
        released = return_to_cell0._ask_again

        def meanwhile():
            # As a conductor saves it that does not know of the mark.
            with nova_context.target_cell(
                    nova_context.get_admin_context(),
                    self.cell_mappings['cell1']) as cctxt:
                self.assertTrue(cell0_claim.set_task_state(
                    cctxt, self.server['id'], None, vm_state='error'))

        def meet(*args):
            contextvars.Context().run(meanwhile)
            return released(*args)

        with self.log_of_rebuilds() as log:
            log.update({'period_ending': datetime.datetime(2020, 1, 1)})
        with mock.patch.object(return_to_cell0, '_ask_again', meet):
            self.assertEqual((0, 0), self.recover())
        self.assertEqual(('ERROR', None), self.state())
        with mock.patch.object(failed_builds, '_GRACE', 0):
            self.assertEqual((1, 0), self.recover())
        self.waits_as_before()

    def test_host_that_hangs_before_its_claim(self):
        self.make_room()
        released = resource_tracker.ResourceTracker.instance_claim
        recovered, results = [], []
        released_build = (
            compute_manager.ComputeManager._do_build_and_run_instance)

        def build(*args, **kwargs):
            results.append(released_build(*args, **kwargs))
            return results[-1]

        def hang(*args, **kwargs):
            recovered.append(self.recover())
            return released(*args, **kwargs)

        with mock.patch.object(
                resource_tracker.ResourceTracker, 'instance_claim', hang
        ), mock.patch.object(
                neutron.API, 'deallocate_for_instance'
        ) as deallocate, mock.patch.object(
                compute_manager.ComputeManager,
                '_do_build_and_run_instance', build):
            self.rebuild(self.server)
            self._wait_for_assert(
                lambda: self.assertEqual([build_results.FAILED_BY_POLICY],
                                         results))
        self.assertEqual([(1, 0)], recovered)
        deallocate.assert_not_called()
        self.assertEqual(
            [], self.computes['roomy'].manager.driver.list_instance_uuids())
        self.waits_as_before()

    def test_server_that_returns_while_recovery_looks(self):
        self.left_by_the_conductor()
        released = recover_rebuilds._get_instance

        def returned_first(*args):
            with mock.patch.object(failed_builds, '_has_ended',
                                   return_value=True):
                self.assertTrue(failed_builds.return_if_ended(
                    nova_context.get_admin_context(),
                    report.SchedulerReportClient(), self.server['id']))
            return released(*args)

        with mock.patch.object(
                failed_builds, 'find_given_up', return_value=[]
        ), mock.patch.object(
                recover_rebuilds, '_get_instance', returned_first):
            self.recover()
        self.goes_back('no such disk')
        self.can_be_rebuilt()

    def test_request_is_cleared_only_where_the_server_is(self):
        context = nova_context.get_admin_context()
        before = persisted_request.load(context, self.server['id'])
        persisted_request.clear(context, self.server['id'],
                                cell=self.cell_mappings['cell1'])
        self.assertNotEqual({}, before)
        self.assertEqual(before, persisted_request.load(
            context, self.server['id']))

    # After more than a day.

    def test_host_that_begins_again_the_day_after(self):
        self.make_host()
        self.host_builds()
        with mock.patch.object(recover_rebuilds, '_LONGEST_BUILD',
                               datetime.timedelta(days=-1)):
            self.assertEqual((0, 0), self.recover())
        self.host_begins_again()
        self.is_in_error()

    def test_build_that_is_given_up_the_day_after(self):
        self.left_by_the_conductor()
        persisted_request.clear(
            nova_context.get_admin_context(), self.server['id'])
        with mock.patch.object(failed_builds, '_has_ended',
                               return_value=True):
            self.assertEqual((0, 0), self.recover())
        self.is_in_error()

    def is_in_error(self):
        """As in the release, for good."""
        self.assertEqual(('ERROR', None), self.state())
        self.assertEqual((0, 0), self.recover())
        self.assertEqual(('ERROR', None), self.state())


class LateRebuildsTestCase(failed_builds_base.FailedBuildsBase):
    """A conductor hangs while it rebuilds a server, which is returned."""

    def setUp(self):
        super().setUp()
        self.ended = []
        end = cell0_rebuild.Rebuild.end

        def note(rebuild):
            end(rebuild)
            self.ended.append(rebuild)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.conductor.cell0_rebuild.Rebuild.end', note))

    @contextlib.contextmanager
    def hang(self, module, name, function, after=False):
        """Call a function before, or after, the first call of another."""
        released = getattr(module, name)
        calls = []

        def hang(*args, **kwargs):
            calls.append(name)
            if len(calls) > 1:
                return released(*args, **kwargs)
            result = released(*args, **kwargs) if after else None
            # Others do it, in other services.
            contextvars.Context().run(function)
            return result if after else released(*args, **kwargs)

        with mock.patch.object(module, name, hang):
            yield

    def has_ended(self, times=1):
        self._wait_for_assert(
            lambda: self.assertEqual(times, len(self.ended)), max_retries=60)

    def return_and_hold(self):
        self.recover()
        self.assertEqual({}, self.held()['allocations'])
        self.placement.delete('/allocations/%s' % uuids.filler)
        self.assertEqual(204, self.hold())

    def is_held(self):
        self.assertEqual('PENDING', self.state()[0])
        self.assertEqual('NOVA_PENDING', self.held()['consumer_type'])
        self.recover()
        self.assertEqual('NOVA_PENDING', self.held()['consumer_type'])

    def test_room_that_is_held_since_it_was_scheduled(self):
        self.make_room()
        with self.hang(manager.ComputeTaskManager, '_schedule_instances',
                       self.return_and_hold, after=True):
            self.rebuild(self.server)
            self.has_ended()
        self.is_held()

    def test_room_that_is_held_since_it_was_mapped_to_cell0(self):
        self.make_room()
        self.fill()
        with self.hang(cell0_claim, 'delete_allocations',
                       self.return_and_hold):
            self.rebuild(self.server)
            self.has_ended()
        self.is_held()

    def test_record_that_is_the_next_rebuild_s(self):
        self.make_room()
        before = []

        def build():
            self.recover()
            self.can_be_rebuilt()
            before.append(self.with_its_record())

        with self.hang(manager.ComputeTaskManager, '_recheck_quota', build):
            self.rebuild(self.server)
            self.has_ended(2)
        self.assertEqual(before, [self.with_its_record()])
        self.assertEqual('ACTIVE', self.state()[0])

    def with_its_record(self):
        """Return what goes by the ID of the server in its cell."""
        with nova_context.target_cell(
                nova_context.get_admin_context(),
                self.cell_mappings['cell1']) as cctxt:
            return [
                sorted(each.id for each in objects_of.get_by_instance_uuid(
                    cctxt, self.server['id']))
                for objects_of in (objects.BlockDeviceMappingList,
                                   objects.InstanceActionList)]
