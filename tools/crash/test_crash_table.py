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

"""The crash table of a rebuild in cell0, on processes that are killed."""

from tools.crash import base

_REBUILD = 'nova.compute.rebuild_in_cell0:'
_RECORD = 'nova.compute.cell0_record:'
_UNMAP = _REBUILD + 'unmap_and_create_build_request'
_CAST = 'nova.conductor.rpcapi:ComputeTaskAPI.rebuild_instance_in_cell0'
_TASKS = 'nova.conductor.manager:ComputeTaskManager.'


class CrashTableTestCase(base.CrashTestCase):
    """Each test is a row of the crash table, with two servers.

    The rebuild of both fails at the same point. One is then deleted while
    what the fault left still stands; the other one must come back by itself,
    and be built once when its owner asks again.
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

    # Step 1: the checks.

    def test_api_killed_after_the_checks(self):
        self.row('before %sclaim' % _RECORD, status='PENDING')

    # Step 2: the claim.

    def test_api_killed_after_the_claim(self):
        self.row('after %sclaim' % _RECORD, status='REBUILD')

    def test_cell0_gone_at_the_claim(self):
        self.row('in %sclaim' % _RECORD, 'commit', status='PENDING')

    def test_cell0_gone_before_it_confirms_the_claim(self):
        self.row('in %sclaim' % _RECORD, 'answer', status='REBUILD')

    # Step 3: the exchange in the API database.

    def test_api_database_gone_at_the_exchange(self):
        self.row('in ' + _UNMAP, 'statement', status='PENDING',
                 follows=self.waits_at_once)

    def test_api_database_gone_at_the_commit_of_the_exchange(self):
        self.row('in ' + _UNMAP, 'commit', status='PENDING',
                 follows=self.waits_at_once)

    def test_api_database_gone_before_it_confirms_the_exchange(self):
        self.row('in ' + _UNMAP, 'answer')

    def test_api_killed_after_the_exchange(self):
        self.row('after ' + _UNMAP)

    # Step 4: the delete in cell0.

    def test_cell0_gone_at_the_delete(self):
        self.row('in %sdestroy_unchanged' % _RECORD, 'statement')

    def test_cell0_gone_before_it_confirms_the_delete(self):
        self.row('in %sdestroy_unchanged' % _RECORD, 'answer')

    def test_api_killed_after_the_delete(self):
        self.row('after %s_Rebuild.move' % _REBUILD)

    def test_api_killed_after_the_delete_and_recovered_by_command(self):
        self.row('after %s_Rebuild.move' % _REBUILD,
                 follows=self.comes_back_by_command)

    # Step 5: the cast, and the conductor.

    def test_bus_gone_at_the_cast(self):
        self.row('before ' + _CAST, 'undelivered')

    def test_conductor_killed_as_it_begins(self):
        self.row('before %srebuild_instance_in_cell0' % _TASKS)

    def test_conductor_killed_after_it_scheduled(self):
        self.row('after %s_schedule_instances' % _TASKS)

    def test_conductor_killed_after_it_made_the_instance(self):
        self.row('before %s_recheck_quota' % _TASKS)

    def test_conductor_killed_before_the_conversion(self):
        self.row('before %s_delete_build_request' % _TASKS)

    def test_api_database_gone_at_the_conversion(self):
        self.row('in nova.objects.build_request:'
                 'BuildRequest.convert_to_mapping', 'statement')

    def test_api_database_gone_at_the_commit_of_the_conversion(self):
        self.row('in nova.objects.build_request:'
                 'BuildRequest.convert_to_mapping', 'commit')

    def test_api_database_gone_before_it_confirms_the_conversion(self):
        self.row('in nova.objects.build_request:'
                 'BuildRequest.convert_to_mapping', 'answer')

    def test_conductor_killed_after_the_conversion(self):
        self.row('after %s_delete_build_request' % _TASKS)

    def test_bus_gone_at_the_cast_to_the_host(self):
        self.row('before nova.compute.rpcapi:ComputeAPI.'
                 'build_and_run_instance', 'undelivered')

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

    # Step 5 where there is no room again.

    def test_conductor_killed_before_it_puts_into_cell0(self):
        self.row('before %s_bury_in_cell0' % _TASKS, room=False)

    def test_conductor_killed_after_it_made_the_record(self):
        self.row('before %s_create_instance_action_for_cell0' % _TASKS,
                 room=False)

    def test_conductor_killed_after_it_mapped_it_to_cell0(self):
        self.row('after nova.conductor.cell0:map_to_cell', room=False,
                 status='REBUILD')

    def test_conductor_killed_after_it_put_into_cell0(self):
        self.row('after %s_bury_in_cell0' % _TASKS, room=False,
                 status='PENDING')

    def test_scheduler_does_not_answer(self):
        self.row('before nova.scheduler.client.query:SchedulerQueryClient.'
                 'select_destinations', 'timeout', status='PENDING')
