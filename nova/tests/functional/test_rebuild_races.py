# SPDX-License-Identifier: Apache-2.0


"""Requests that meet a rebuild in cell0, at each of its steps and anywhere."""

import functools
from unittest import mock

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

    def test_conductor_has_not_deleted_the_build_request_yet(self):
        destroy = objects.BuildRequest.destroy
        answers = []

        def met(build_request):
            answers.extend(self.together(functools.partial(
                self.refused_as_too_early, build_request.instance_uuid)))
            destroy(build_request)

        request = self._build_server(
            flavor_id=self.large, networks=[{'uuid': rebuild_races.NETWORK}])
        with mock.patch.object(objects.BuildRequest, 'destroy', met):
            self.api.post_server({'server': dict(request, min_count=2)})
            self.until(lambda: self.assertEqual(2, len(answers)))
        self.assertIn('vm_state building', answers[0])
        for server in self.api.get_servers():
            self.assertEqual(
                'PENDING', self.until(self.exists, server)['status'])
            self.assertEqual(202, self.ask_rebuild(server))
            self.until(self.exists, server)

    def refused_as_too_early(self, instance_uuid):
        before = self.stored({'id': instance_uuid})
        sentence = self.refused(409, {'id': instance_uuid})
        self.assertEqual(before, self.stored({'id': instance_uuid}))
        return sentence


class RacesTestCase(rebuild_races.Races, rebuild_races.RacesBase):
    """Requests that come at the same time."""

    rounds = 20
