# SPDX-License-Identifier: Apache-2.0

"""The crash table of a rebuild in cell0, on processes that are killed."""

from tools.crash import base

_CHECK = 'nova.compute.rebuild_request:Request.check'
_BUILD_REQUEST = 'nova.objects.build_request:BuildRequest.'
_MOVE = _BUILD_REQUEST + 'create_in_place_of_mapping'
_CONVERT = _BUILD_REQUEST + 'convert_to_mapping'
_DESTROY = 'nova.objects.unbuilt_instance:destroy_unchanged'
_MOVED = 'nova.compute.rebuild_in_cell0:_move'
_CAST = 'nova.conductor.rpcapi:ComputeTaskAPI.rebuild_instance_in_cell0'
_TASKS = 'nova.conductor.manager:ComputeTaskManager.'
_BUILD = 'nova.conductor.manager:_RebuildTaskManager.'
_RETURN = 'nova.conductor.tasks.return_to_cell0:'


class CrashTableTestCase(base.CrashTestCase):
    """Each test is a row of the crash table, with two servers.

    The rebuild of both fails at the same point. One server is then deleted
    while what the fault left still stands; the other server must come back by
    itself, and be built once when its owner asks again.
    """

    def row(self, where, how='kill', status='BUILD', room=True,
            follows=None):
        """Check one row.

        :param where: where the services fail (faults.arm)
        :param how: how they fail
        :param status: what the servers are shown with then
        :param room: whether there is room for them
        :param follows: what must follow with the server that is not deleted;
            that it is back and can be rebuilt if not given
        """
        self.make_waiting()
        self.cloud.set_room(room)
        with self.watched(*self.servers) as seen:
            self.fail_at(where, how, *self.servers)
            for server in self.servers:
                self.cloud.wait_for(
                    'server %s in %s' % (server, status),
                    lambda server=server: self.cloud.show(
                        server)['status'] == status, 30)
            seen.may_go(self.other)
            self.cloud.delete(self.other)
            (follows or self.comes_back)()
            self.is_gone(self.other)
            seen.may_go(self.patient)
            self.cloud.delete(self.patient)
        self.assertEqual({}, self.cloud.leftovers(self.patient))

    def comes_back(self):
        with self.cloud.recovery():
            self.back_in_time(self.patient)
        self.can_be_rebuilt(self.patient)

    def waits_at_once(self):
        self.back_in_time(self.patient, seconds=0)
        self.can_be_rebuilt(self.patient)

    def comes_back_by_command(self):
        self.cloud.recover_by_command()
        self.back_in_time(self.patient, seconds=0)
        self.can_be_rebuilt(self.patient)

    def is_stuck(self):
        """Check that the server is in BUILD, with what its owner gave it."""
        self.assertEqual('BUILD', self.cloud.show(self.patient)['status'])
        self.is_kept(self.patient)

    def is_for_an_administrator(self):
        """Check that a rebuild is refused until the server is set to ERROR."""
        self.assertEqual(409, self.cloud.rebuild(self.patient))
        self.cloud.set_error(self.patient)
        self.can_be_rebuilt(self.patient)

    # Step 1: the checks.

    def test_api_killed_after_the_checks(self):
        self.row('after ' + _CHECK, status='PENDING',
                 follows=self.waits_at_once)

    # Step 2: the move in the API database.

    def test_api_database_gone_at_the_move(self):
        self.row('in ' + _MOVE, 'statement', status='PENDING',
                 follows=self.waits_at_once)

    def test_api_database_gone_at_the_commit_of_the_move(self):
        self.row('in ' + _MOVE, 'commit', status='PENDING',
                 follows=self.waits_at_once)

    def test_api_database_gone_before_it_confirms_the_move(self):
        self.row('in ' + _MOVE, 'answer')

    def test_api_killed_after_the_move(self):
        self.row('after ' + _MOVE)

    # Step 3: the delete of the record.

    def test_cell0_gone_at_the_delete(self):
        self.row('in ' + _DESTROY, 'statement')

    def test_cell0_gone_before_it_confirms_the_delete(self):
        self.row('in ' + _DESTROY, 'answer')

    def test_api_killed_after_the_delete(self):
        self.row('after ' + _MOVED)

    def test_api_killed_after_the_delete_and_recovered_by_command(self):
        self.row('after ' + _MOVED, follows=self.comes_back_by_command)

    def test_bus_gone_at_the_cast(self):
        self.row('before ' + _CAST, 'undelivered')

    # Steps 4 to 7: the conductor.

    def test_conductor_killed_as_it_begins(self):
        self.row('before %srebuild_instance_in_cell0' % _TASKS)

    def test_conductor_killed_after_it_took_the_lease(self):
        self.row('after %stake' % _BUILD_REQUEST)

    def test_conductor_killed_after_it_scheduled(self):
        self.row('after %s_schedule_instances' % _BUILD)

    def test_conductor_killed_after_it_made_the_record(self):
        self.row('before %s_recheck_quota' % _TASKS)

    def test_conductor_killed_after_it_completed_the_record(self):
        self.row('after %s_create_block_device_mapping' % _BUILD)

    def test_conductor_killed_before_the_conversion(self):
        self.row('before %s_delete_build_request' % _BUILD)

    # The return to cell0 converts, too: the fault is that of the build alone.

    def test_api_database_gone_at_the_conversion(self):
        self.row('in %s_delete_build_request' % _BUILD, 'statement',
                 status='PENDING', follows=self.waits_at_once)

    def test_api_database_gone_at_the_commit_of_the_conversion(self):
        self.row('in %s_delete_build_request' % _BUILD, 'commit',
                 status='PENDING', follows=self.waits_at_once)

    # Step 8: the host. A create that ends here stays in BUILD, too.

    def test_conductor_killed_after_the_conversion(self):
        self.row('after %s_delete_build_request' % _BUILD,
                 follows=self.is_stuck)

    def test_bus_gone_at_the_cast_to_the_host(self):
        self.row('before nova.compute.rpcapi:ComputeAPI.'
                 'build_and_run_instance', 'undelivered', status='ERROR',
                 follows=self.is_for_an_administrator)

    def test_conductor_killed_after_it_asked_the_host(self):
        # A host that has begun needs the conductor, and would fail with it.
        self.make_waiting()
        self.cloud.set_room(True)
        with self.watched(*self.servers):
            self.cloud.arm(
                'before nova.compute.manager:ComputeManager.'
                'build_and_run_instance', 'hold', count=2)
            self.fail_at(
                'after nova.compute.rpcapi:ComputeAPI.build_and_run_instance',
                'kill', *self.servers)
            self.cloud.disarm()
            with self.cloud.recovery():
                for server in self.servers:
                    self.is_built(server)

    # Where there is no room again.

    def test_conductor_killed_before_it_returns(self):
        self.row('before %s_bury_in_cell0' % _BUILD, room=False)

    def test_conductor_killed_after_it_deleted_the_allocations(self):
        self.row('after nova.scheduler.allocations:delete', room=False)

    def test_conductor_killed_after_it_made_the_record_in_cell0(self):
        self.row('after %s_create_record' % _RETURN, room=False)

    def test_conductor_killed_after_it_returned(self):
        self.row('after ' + _CONVERT, room=False, status='PENDING',
                 follows=self.waits_at_once)

    def test_scheduler_does_not_answer(self):
        self.row('before nova.scheduler.client.query:SchedulerQueryClient.'
                 'select_destinations', 'timeout')
