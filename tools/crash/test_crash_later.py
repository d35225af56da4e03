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

"""What dies after a rebuild was interrupted, or after it was handed over."""

import contextlib

from keystoneauth1 import exceptions

from tools.crash import base

_REBUILD = 'nova.compute.rebuild_in_cell0:'
_RECORD = 'nova.compute.cell0_record:'
_UNMAP = _REBUILD + 'unmap_and_create_build_request'
_RETURN = 'nova.conductor.tasks.return_to_cell0:'


class SecondCrashTestCase(base.CrashTestCase):
    """What cleans up is killed, too."""

    def recovery_killed(self, where, *points):
        """Kill the conductor at each of these points as it recovers.

        :param where: where the rebuild fails before
        """
        points += ('after %s_create_record' % _RETURN,
                   'after nova.conductor.cell0:map_to_cell')
        self.make_waiting()
        self.cloud.set_room(True)
        with self.watched(*self.servers):
            self.fail_at(where, 'kill', *self.servers)
            for point in points:
                self.cloud.arm(point, 'kill')
            with self.cloud.recovery():
                for point in points:
                    self.cloud.wait_reached(point)
                for server in self.servers:
                    self.back_in_time(server)
            for server in self.servers:
                self.can_be_rebuilt(server)

    def test_conductor_killed_as_it_recovers(self):
        self.recovery_killed('after %s_Rebuild.move' % _REBUILD)

    def test_conductor_killed_as_it_takes_back(self):
        self.recovery_killed(
            'after nova.conductor.manager:ComputeTaskManager.'
            '_delete_build_request',
            'after nova.conductor.tasks.cell0_claim:set_task_state',
            'after %s_ask_again' % _RETURN,
            'after %sdestroy_unchanged' % _RECORD)

    def test_api_killed_as_it_deletes(self):
        point = 'before %sremove_leftover' % _REBUILD
        self.make_waiting()
        self.cloud.set_room(True)
        self.fail_at('after ' + _UNMAP, 'kill', *self.servers)
        for server in self.servers:
            self.cloud.arm(point, 'kill')
            with contextlib.suppress(exceptions.ConnectFailure):
                self.cloud.request('nova', 'DELETE', '/servers/' + server)
            self.cloud.wait_reached(point)
        with self.cloud.recovery():
            for server in self.servers:
                self.cloud.wait_for(
                    'nothing to be left of %s' % server,
                    lambda server=server: not self.cloud.leftovers(server))
        for server in self.servers:
            self.assertIsNone(self.cloud.show(server))


class ComputeCrashTestCase(base.CrashTestCase):
    """nova-compute, that of the release, is killed while it builds.

    It ends what it had claimed in ERROR when it is started again, and a
    recovery finds what it had not.
    """

    def host_killed(self, where, status):
        self.make_waiting()
        self.cloud.set_room(True)
        with self.watched(*self.servers) as seen, self.cloud.recovery():
            self.fail_at(where, 'kill', *self.servers)
            for server in self.servers:
                self.assertEqual('BUILD', self.cloud.show(server)['status'])
            seen.may_go(self.other)
            self.cloud.delete(self.other)
            self.is_gone(self.other)
            self.cloud.wait_for(
                'server %s in %s' % (self.patient, status),
                lambda: self.cloud.show(self.patient)['status'] == status)
            self.is_kept(self.patient)
            seen.may_go(self.patient)
            self.cloud.delete(self.patient)
            self.is_gone(self.patient)

    def test_killed_before_it_builds(self):
        self.host_killed(
            'before nova.compute.manager:ComputeManager.'
            '_build_and_run_instance', 'PENDING')

    def test_killed_after_it_started_the_guest(self):
        self.host_killed('after nova.virt.fake:FakeDriver.spawn', 'ERROR')
