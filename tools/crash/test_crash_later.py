# SPDX-License-Identifier: Apache-2.0

"""What dies after a rebuild was interrupted, or after it was handed over."""

import contextlib

from keystoneauth1 import exceptions

from tools.crash import base

_BUILD_REQUEST = 'nova.objects.build_request:BuildRequest.'
_MOVE = _BUILD_REQUEST + 'create_in_place_of_mapping'
_MOVED = 'nova.compute.rebuild_in_cell0:_move'
_RETURN = 'nova.conductor.tasks.return_to_cell0:'
_TASKS = 'nova.conductor.manager:ComputeTaskManager.'


class SecondCrashTestCase(base.CrashTestCase):
    """What cleans up is killed, too."""

    def test_conductor_killed_as_it_recovers(self):
        points = ('after %stake' % _BUILD_REQUEST,
                  'after nova.objects.unbuilt_instance:purge',
                  'after nova.scheduler.allocations:delete',
                  'after %s_create_record' % _RETURN)
        self.make_waiting()
        self.cloud.set_room(True)
        with self.watched(*self.servers):
            self.fail_at('before %s_recheck_quota' % _TASKS, 'kill',
                         *self.servers)
            for point in points:
                self.cloud.arm(point, 'kill')
            with self.cloud.recovery():
                for point in points:
                    self.cloud.wait_reached(point)
                for server in self.servers:
                    self.back_in_time(server)
            for server in self.servers:
                self.can_be_rebuilt(server)

    def test_api_killed_as_it_deletes(self):
        point = 'before %s_delete_all_rows' % _BUILD_REQUEST
        self.make_waiting()
        self.cloud.set_room(True)
        self.fail_at('after ' + _MOVE, 'kill', *self.servers)
        for server in self.servers:
            self.cloud.arm(point, 'kill')
            with contextlib.suppress(exceptions.ConnectFailure):
                self.cloud.request('nova', 'DELETE', '/servers/' + server)
            self.cloud.wait_reached(point)
        # The servers that were not deleted wait again, and can be deleted.
        with self.cloud.recovery():
            for server in self.servers:
                self.back_in_time(server)
        for server in self.servers:
            self.cloud.delete(server)
            self.is_gone(server)


class CreateCrashTestCase(base.CrashTestCase):
    """A conductor is killed while it schedules servers that are new."""

    def create_killed(self, where):
        volumes = self.make_volumes(2)
        self.cloud.set_room(True)
        self.addCleanup(self.cloud.disarm)
        self.cloud.arm(where, 'kill', count=2)
        servers = self.cloud.create(*volumes)
        self.addCleanup(self.clean_up, *servers)
        self.cloud.wait_reached(where)
        for server in servers:
            self.assertEqual('BUILD', self.cloud.show(server)['status'])
        with self.cloud.recovery():
            for server in servers:
                self.cloud.wait_for(
                    'server %s in ERROR' % server,
                    lambda server=server: self.cloud.show(
                        server)['status'] == 'ERROR')
        for server in servers:
            self.assertEqual({}, self.cloud.leftovers(server))
            self.cloud.rebuild(server)
            self.cloud.wait_for(
                'server %s to be built' % server,
                lambda server=server: self.cloud.show(
                    server)['status'] == 'ACTIVE')
            self.cloud.delete(server)
            self.is_gone(server, builds=1)

    def test_killed_as_it_begins(self):
        self.create_killed('before %sschedule_and_build_instances' % _TASKS)

    def test_killed_after_it_made_the_record(self):
        self.create_killed('before %s_recheck_quota' % _TASKS)

    def test_killed_before_it_maps_the_server(self):
        self.create_killed('before %s_map_instance_to_cell' % _TASKS)


class ComputeCrashTestCase(base.CrashTestCase):
    """nova-compute, that of the release, is killed while it builds.

    It ends what it was building in ERROR when it is started again.
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
            '_build_and_run_instance', 'ERROR')

    def test_killed_after_it_started_the_guest(self):
        self.host_killed('after nova.virt.fake:FakeDriver.spawn', 'ERROR')
