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


"""Requests that meet a rebuild in cell0, at each of its steps and anywhere."""

import functools
from unittest import mock

from oslo_db import exception as db_exc

from nova.conductor import cell0
from nova import objects
from nova.tests.functional import rebuild_races


class MetAtEachStepTestCase(rebuild_races.RacesBase):
    """A request that comes when the rebuild has come to a step."""

    def rounds(self, request, expect, room=True, steps=None):
        """Let a request meet a rebuild at each step, one after the other.

        :param request: a function of a server
        :param expect: a function that gets the server, the answer to the
            rebuild and that to the request
        :param room: whether the rebuild finds a host
        """
        if room:
            self.make_room()
        for step in steps or (rebuild_races.STEPS if room else
                              rebuild_races.STEPS_INTO_CELL0):
            server = self.waiting(name='before')
            met, patch = self.meeting(step, lambda: request(server))
            rebuilt = self.ask_rebuild(server)
            self.until(self.is_answered, met)
            patch.stop()
            try:
                self.until(self.is_settled, server)
                expect(server, rebuilt, met[0])
            except Exception as exc:
                raise AssertionError('%s.%s: %s %s: %s' % (
                    *step, rebuilt, met, exc)) from exc
            self.end(server)

    def is_answered(self, met):
        self.assertNotIn(met, ([], [None]))

    def second(self, server, first, second):
        self.assertEqual([202, 409], sorted([first, second]))
        self.exists(server)

    def test_second_rebuild(self):
        self.rounds(self.ask_rebuild, self.second)

    def test_second_rebuild_without_room(self):
        self.rounds(self.ask_rebuild, self.second, room=False)

    def test_delete(self):
        self.rounds(self.ask_delete, self.deleted)

    def test_delete_without_room(self):
        self.rounds(self.ask_delete, self.deleted, room=False)

    def test_rename(self):
        self.rounds(self.ask_rename, self.renamed)

    def test_rename_without_room(self):
        self.rounds(self.ask_rename, self.renamed, room=False)

    def test_reset_state(self):
        self.rounds(self.ask_reset, self.reset)

    def test_reset_state_without_room(self):
        self.rounds(self.ask_reset, self.reset, room=False)

    def test_recovery(self):
        self.rounds(self.recover, self.recovered)

    def test_recovery_without_room(self):
        self.rounds(self.recover, self.recovered, room=False)


class WhileItIsPutIntoCell0TestCase(rebuild_races.RacesBase):
    """A rebuild that comes before the create has ended."""

    def create(self, **request):
        request = {**self._build_server(
            flavor_id=self.large, networks=[{'uuid': rebuild_races.NETWORK}]),
            **request}
        return self.api.post_server({'server': request})

    def rebuilt_at_the_end(self):
        """Ask for a rebuild when the release has put servers into cell0."""
        destroy = objects.BuildRequest.destroy
        self.answers = []

        def met(build_request):
            # No request is answered while the conductor is at a cell.
            if build_request.is_destroyed_early or not self.lets_go:
                self.answers += self.together(functools.partial(
                    self.ask_rebuild, {'id': build_request.instance_uuid}))
            destroy(build_request)

        return mock.patch.object(objects.BuildRequest, 'destroy', met)

    def are_answered(self, *answers):
        self.assertEqual(list(answers), self.answers)

    def test_as_soon_as_it_waits(self):
        self.lets_go = True
        with self.rebuilt_at_the_end():
            self.create(min_count=2)
            self.until(self.are_answered, 202, 202)
            for server in self.api.get_servers():
                self.assertEqual(
                    'PENDING', self.until(self.exists, server)['status'])

    def test_before_the_fault_is_stored(self):
        # What a database says that looks for the server of a fault.
        with mock.patch('nova.compute.utils.add_instance_fault_from_exc',
                        side_effect=db_exc.DBReferenceError(
                            'instance_faults', '', '', '')) as store:
            self.create(min_count=2)
            for server in self.api.get_servers():
                self.until(self.exists, server)
            self.assertEqual(2, store.call_count)

    def test_of_a_stock_conductor(self):
        self.lets_go = False
        with mock.patch.object(cell0, 'destroy_build_request'), (
                self.rebuilt_at_the_end()):
            server = self.create()
            self.until(self.are_answered, 409)
        self.assertEqual(
            'PENDING', self.until(self.exists, server)['status'])
        self.assertEqual(202, self.ask_rebuild(server))
        self.until(self.exists, server)


class RacesTestCase(rebuild_races.Races, rebuild_races.RacesBase):
    """Requests that come at the same time."""

    rounds = 20
