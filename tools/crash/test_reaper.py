# SPDX-License-Identifier: Apache-2.0

"""nova-reaper is killed after each of its steps, and others as it works."""

import time

from tools.cloud import reaper
from tools.crash import reaping

_HOLDS = 'nova_reaper.act.holds:Holds.'
_NOVA = 'nova_reaper.clients.nova:Nova.'
_NOTIFY = 'nova_reaper.act.ending:Victims.notify'
_REBUILD = 'nova_reaper.clients.nova:Owners.rebuild'
_TASKS = 'nova.conductor.manager:ComputeTaskManager.'
_BUILD = 'nova.conductor.manager:_RebuildTaskManager.'


class ReaperKilledTestCase(reaping.ReaperTestCase):
    """It is started again each time, and goes on with what stands."""

    def killed_at(self, *points):
        """Kill the reaper at each of these points, one after the other."""
        for point in points:
            self.cloud.arm(point, 'kill')
        self.start_reaper()
        for point in points:
            self.cloud.wait_reached(point)

    def test_where_there_is_room(self):
        victims = self.create_victims('delete')
        waiting = self.create_waiting()
        self.reaper_options(mode='fill')
        self.cloud.delete(victims[0])
        self.killed_at('after %stake' % _HOLDS, 'before ' + _REBUILD,
                       'after ' + _REBUILD)
        self.lands(waiting)
        self.assertEqual([victims[0]], self.ended(victims))
        self.nothing_is_held()

    def test_where_it_deletes(self):
        victims = self.create_victims('delete')
        waiting = self.create_waiting()
        self.killed_at('after ' + _NOTIFY, 'before %sswap' % _HOLDS,
                       'after %sswap' % _HOLDS, 'after %sstop' % _NOVA,
                       'after %sforce_delete' % _NOVA, 'before ' + _REBUILD,
                       'after ' + _REBUILD)
        self.lands(waiting)
        self.one_is_ended(victims)

    def test_where_it_shelves(self):
        victims = self.create_victims('shelve')
        waiting = self.create_waiting()
        self.killed_at('after ' + _NOTIFY, 'after %sswap' % _HOLDS,
                       'after %sshelve' % _NOVA)
        self.lands(waiting)
        self.one_is_ended(victims)
        shelved, = self.ended(victims)
        # And as it comes back.
        self.cloud.arm('before %sunshelve' % _NOVA, 'kill')
        self.cloud.arm('after %sunshelve' % _NOVA, 'kill')
        self.cloud.delete(waiting)
        self.cloud.wait_reached('before %sunshelve' % _NOVA)
        self.cloud.wait_reached('after %sunshelve' % _NOVA)
        self.is_unharmed(shelved)
        self.nothing_is_held()

    def test_where_it_ends_before_it_holds(self):
        victims = self.create_victims('delete')
        waiting = self.create_waiting()
        self.reaper_options(mode='preempt', strict_accounting=True)
        self.killed_at('after ' + _NOTIFY, 'after %sforce_delete' % _NOVA,
                       'after %stake' % _HOLDS)
        self.lands(waiting)
        self.one_is_ended(victims)

    def test_and_the_waiting_server_is_deleted_meanwhile(self):
        victims = self.create_victims('delete')
        waiting = self.create_waiting()
        # Between the swap and the end of anybody.
        self.cloud.arm('after %sswap' % _HOLDS, 'hold')
        self.start_reaper()
        self.cloud.wait_reached('after %sswap' % _HOLDS)
        self.cloud.pause(reaper.NAME)
        self.cloud.delete(waiting)
        self.cloud.disarm()
        self.start_reaper()
        for server in victims:
            self.is_unharmed(server)
        self.nothing_is_held()
        self.assertEqual([], self.ended(victims))


class OthersKilledTestCase(reaping.ReaperTestCase):
    """What the reaper asks is killed at a moment of its work."""

    def setUp(self):
        super().setUp()
        self.victims = self.create_victims('delete')
        self.waiting = self.create_waiting()

    def while_it_is_at(self, point, *what):
        """Do something while the reaper stands at a point of its work."""
        self.cloud.arm(point, 'hold')
        self.start_reaper()
        self.cloud.wait_reached(point)
        for each in what:
            each()
        self.cloud.disarm()
        self.lands(self.waiting)
        self.one_is_ended(self.victims)

    def test_api_as_it_gives_notice(self):
        self.while_it_is_at('before ' + _NOTIFY,
                            lambda: self.cloud.kill('nova-api'))

    def test_api_as_it_ends_a_server(self):
        self.while_it_is_at('before %sforce_delete' % _NOVA,
                            lambda: self.cloud.kill('nova-api'))

    def test_api_as_it_asks_for_the_rebuild(self):
        self.while_it_is_at('before ' + _REBUILD,
                            lambda: self.cloud.kill('nova-api'))

    def test_api_in_the_rebuild(self):
        point = ('after nova.objects.build_request:BuildRequest.'
                 'create_in_place_of_mapping')
        self.cloud.arm(point, 'kill')
        with self.cloud.recovery():
            self.start_reaper()
            self.cloud.wait_reached(point)
            self.lands(self.waiting)
        self.one_is_ended(self.victims)

    def test_conductor_in_the_rebuild(self):
        for point in ('before %srebuild_instance_in_cell0' % _TASKS,
                      'after %s_schedule_instances' % _BUILD):
            self.cloud.arm(point, 'kill')
        with self.cloud.recovery():
            self.start_reaper()
            self.cloud.wait_reached('after %s_schedule_instances' % _BUILD)
            self.lands(self.waiting)
        self.one_is_ended(self.victims)

    def test_placement_as_it_swaps(self):
        self.while_it_is_at('before %sswap' % _HOLDS,
                            lambda: self.cloud.kill('placement-api'))

    def test_placement_as_it_asks_for_the_rebuild(self):
        self.while_it_is_at('before ' + _REBUILD,
                            lambda: self.cloud.kill('placement-api'))

    def test_bus_as_it_ends_a_server(self):
        self.while_it_is_at('before %sforce_delete' % _NOVA, self.cut_bus)

    def test_bus_as_it_asks_for_the_rebuild(self):
        with self.cloud.recovery():
            self.while_it_is_at('before ' + _REBUILD, self.cut_bus)

    def cut_bus(self):
        # Nothing can be sent as the reaper goes on.
        with self.cloud.settings.bus.gone():
            self.cloud.disarm()
            time.sleep(3)
