# SPDX-License-Identifier: Apache-2.0

"""Conductors and schedulers that come late to a server."""

import contextvars
import datetime
from unittest import mock

from oslo_utils.fixture import uuidsentinel as uuids

from nova.compute import api as compute_api
from nova.compute import rpcapi as compute_rpcapi
from nova.conductor import manager
from nova.conductor.tasks import rebuild_in_cell0 as task
from nova.conductor.tasks import return_to_cell0
from nova import context as nova_context
from nova import objects
from nova.objects import unbuilt_instance
from nova.scheduler import allocations
from nova.scheduler import lost_claims
from nova.tests.functional import held_room_base
from nova.tests.functional import stopped_builds

_Manager = manager.ComputeTaskManager


class LateBuildersTestCase(stopped_builds.StoppedBuildsBase,
                           held_room_base.HeldRoomBase):

    def returns(self):
        self.assertEqual((1, 0), self.recover())
        self.is_back()

    def hold_again(self):
        self.returns()
        self.assertEqual(204, self.hold())

    def is_held(self):
        self.assertEqual('PENDING', self.state()[0])
        self.assertEqual('NOVA_PENDING', self.held()['consumer_type'])

    def test_message_comes_twice(self):
        self.make_room()
        message = self.ask_for_rebuild()
        message.arrives()
        with self.no_host_is_asked():
            message.arrives()
        self.is_built()

    def test_message_comes_twice_at_once(self):
        self.make_room()
        message = self.ask_for_rebuild()
        with self.no_host_is_asked():
            self.meets(_Manager, '_schedule_instances', lambda: (
                self.stopped(task.RebuildInCell0Task, 'select',
                             message.arrives)), message.arrives)
        self.returns()

    def test_message_comes_after_the_server_has_returned(self):
        self.make_room()
        message = self.ask_for_rebuild()
        self.returns()
        with self.no_host_is_asked():
            message.arrives()
        self.is_back()

    def test_message_comes_after_the_next_rebuild(self):
        self.make_room()
        message = self.ask_for_rebuild()
        # SQLite gives the ID of its last row again, which others do not.
        with self.message('schedule_and_build_instances'):
            self.api.post_server({'server': self._build_server(
                flavor_id=self.small, networks='none')})
        self.assertEqual((1, 0), self.recover())
        following = self.ask_for_rebuild()
        with self.no_host_is_asked():
            message.arrives()
        following.arrives()
        self.is_built()

    def test_scheduler_answers_after_the_server_has_returned(self):
        self.make_room()
        for step in ('_schedule_instances', '_recheck_quota'):
            with self.no_host_is_asked():
                self.meets(_Manager, step, self.ask_for_rebuild().arrives,
                           self.returns, after=True)
            self.is_back()

    def test_scheduler_answers_after_room_is_held_again(self):
        self.make_room()
        self.meets(_Manager, '_schedule_instances',
                   self.ask_for_rebuild().arrives, self.hold_again,
                   after=True)
        self.is_held()
        self.rebuild(self.server)
        self.is_built()

    def test_no_host_was_found_before_room_is_held_again(self):
        self.make_room()
        self.fill()

        def meanwhile():
            self.returns()
            self.placement.delete('/allocations/%s' % uuids.filler)
            self.assertEqual(204, self.hold())

        self.meets(task.RebuildInCell0Task, 'rollback',
                   self.ask_for_rebuild().arrives, meanwhile)
        self.is_held()

    def test_record_in_cell0_is_replaced(self):
        """Recovery has returned the server as the conductor goes on."""
        self.make_room()
        self.fill()

        def create(step, cctxt, *args):
            def copy(step, bdm):
                self.replace_record(cctxt)
                return step(bdm)

            with stopped_builds.patched(
                    unbuilt_instance, 'copy_of_mapping', copy):
                step(cctxt, *args)

        message = self.ask_for_rebuild()
        with stopped_builds.patched(
                return_to_cell0, '_create_record', create):
            message.arrives()
        self.has_only_a_record()

    def test_next_rebuild_has_a_record_in_the_cell(self):
        self.make_room()
        before = []

        def meanwhile():
            self.returns()
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')
            before.append(self.written())

        self.meets(_Manager, '_recheck_quota',
                   self.ask_for_rebuild().arrives, meanwhile)
        self.assertEqual(before, [self.written()])
        self.is_built()

    def test_record_is_replaced_before_devices_are_written(self):
        self.make_room()
        with self.no_host_is_asked():
            self.meets(_Manager, '_create_block_device_mapping',
                       self.ask_for_rebuild().arrives, self.lose)
        self.assertEqual([[], []], self.written())
        self.returns()

    def test_rebuilt_before_the_conductor_sets_it_to_error(self):
        """An administrator has reset the state of the server meanwhile."""
        self.make_room()
        before = []

        def meanwhile():
            arq.stop()
            self.admin_api.post_server_action(
                self.server['id'], {'os-resetState': {'state': 'error'}})
            # SQLite gives the ID of its last row again, which others do not.
            self._create_server(flavor_id=self.small, networks='none')
            with mock.patch.object(compute_rpcapi.ComputeAPI,
                                   'build_and_run_instance'):
                self.ask_for_rebuild().arrives()
            before.extend((self.state(), self.allocations()))

        arq = mock.patch.object(
            _Manager, '_create_and_bind_arq_for_instance',
            side_effect=stopped_builds.Down())
        arq.start()
        self.assertRaises(
            stopped_builds.Down, self.meets, task.RebuildInCell0Task,
            '_set_error', self.ask_for_rebuild().arrives, meanwhile)
        self.assertEqual(('BUILD', 'scheduling'), before[0])
        self.assertEqual(1, len(before[1]))
        self.assertEqual(before, [self.state(), self.allocations()])

    def test_deleted_while_the_scheduler_is_asked(self):
        self.make_room()
        with self.no_host_is_asked():
            self.meets(_Manager, '_schedule_instances',
                       self.ask_for_rebuild().arrives, lambda: (
                           self.api.delete_server(self.server['id'])),
                       after=True)
        self.is_gone()

    def test_deleted_before_it_has_a_record(self):
        self.make_room()
        with self.no_host_is_asked():
            self.meets(objects.Instance, 'create',
                       self.ask_for_rebuild().arrives, lambda: (
                           self.api.delete_server(self.server['id'])))
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))
        self.is_gone()

    def test_deleted_as_it_is_mapped(self):
        self.make_room()
        with self.no_host_is_asked():
            self.meets(objects.BuildRequest, 'convert_to_mapping',
                       self.ask_for_rebuild().arrives, lambda: (
                           self.api.delete_server(self.server['id'])))
        self.is_gone()
        self.assertFalse(self.in_cell(
            self.cell_mappings['cell1'].uuid, self.server))

    def test_renamed_as_it_is_mapped(self):
        self.make_room()
        self.meets(objects.BuildRequest, 'convert_to_mapping',
                   self.ask_for_rebuild().arrives, lambda: (
                       self.api.put_server(self.server['id'], {
                           'server': {'name': 'renamed'}})))
        self.assertEqual(
            'renamed', self.wait_for(self.server, 'ACTIVE')['name'])

    # Deletes that begin with a build request.

    def deleted_as_it_moves_twice(self, rebuild):
        """Delete a server that returns to cell0 and is rebuilt meanwhile."""
        self.make_room()
        self.ask_for_rebuild()
        met = []

        def once(what):
            def meanwhile(step, *args, **kwargs):
                result = None if what is recover else step(*args, **kwargs)
                if what not in met:
                    met.append(what)
                    contextvars.Context().run(what)
                return step(*args, **kwargs) if what is recover else result
            return meanwhile

        def recover():
            self.assertEqual((1, 0), self.recover())

        with stopped_builds.patched(
                compute_api.API, '_attempt_delete_of_buildrequest',
                once(recover)), stopped_builds.patched(
                    compute_api.API, '_lookup_instance', once(rebuild)):
            self.api.delete_server(self.server['id'])
        self.assertEqual([recover, rebuild], met)

    def test_deleted_as_it_returns_and_is_asked_for_again(self):
        messages = []
        self.deleted_as_it_moves_twice(
            lambda: messages.append(self.ask_for_rebuild()))
        with self.no_host_is_asked():
            messages[0].arrives()
        self.is_gone()

    def test_deleted_as_it_returns_and_is_built_again(self):
        def build():
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')

        self.deleted_as_it_moves_twice(build)
        self._wait_until_deleted(self.server)
        self.assertEqual({}, self.allocations())

    def test_scheduler_looks_at_its_claim_as_the_server_is_built(self):
        self.make_room()
        context = nova_context.get_admin_context()
        context.timestamp -= datetime.timedelta(hours=1)

        def build():
            self.rebuild(self.server)
            self.wait_for(self.server, 'ACTIVE')

        def look():
            lost_claims.check(
                context, self.report_client, self.server['id'])

        self.meets(allocations, 'delete', look, build)
        self.is_built()
