# SPDX-License-Identifier: Apache-2.0

"""Victims that leave, or do not, in the moment in which nobody looks."""

from typing import Any
from unittest import mock

from nova_reaper.act.attempts import Attempt
from nova_reaper.act.attempts import Outcome
from nova_reaper.act.attempts import Step
from nova_reaper.cloud.model import Result
from nova_reaper.tests.act import test_preempt
from nova_reaper.tests import fakes

FOUR = test_preempt.FOUR


class LeftTestCase(test_preempt.FullHostTestCase):
    """They have left as they are to get their room again."""

    def ending(self) -> Attempt:
        self.nova.slow = True
        current = self.actor.advance(self.at(Step.END, self.start()))
        assert isinstance(current, Attempt)
        return current

    def lives_on(self, outcome: Outcome) -> None:
        self.assertEqual(Result.GONE, outcome.result)
        self.assertEqual({}, self.room.has(self.victims[0]))
        self.assertEqual(FOUR, self.room.has(self.victims[1]))
        self.assertEqual(1, outcome.attempt.ended)

    def test_deleted(self) -> None:
        current = self.ending()
        self.nova.finish(self.victims[0])
        self.nova.finish(self.waiting)
        self.lives_on(self.outcome(current))

    def test_shelved(self) -> None:
        for victim in self.victims:
            self.nova.servers[victim]['image'] = ''
        current = self.ending()
        self.nova.finish(self.victims[0])
        self.assertEqual('SHELVED_OFFLOADED', self.status(self.victims[0]))
        self.nova.finish(self.waiting)
        self.lives_on(self.outcome(current))

    def test_as_it_is_written(self) -> None:
        current = self.ending()
        self.nova.finish(self.waiting)
        write = self.room.placement.write

        def wrote(consumers: Any) -> None:
            write(consumers)
            if self.victims[0] in self.nova.servers:
                del self.nova.servers[self.victims[0]]

        with mock.patch.object(self.room.placement, 'write', wrote):
            outcome = self.outcome(current)
        self.assertEqual(Result.GONE, outcome.result)
        self.assertEqual({}, self.room.has(self.victims[0]))
        self.assertEqual(FOUR, self.room.has(self.victims[1]))

    def test_before_it_is_known_that_their_room_was_taken(self) -> None:
        current = self.at(Step.SWAP, self.start())
        self.room.adapter.lost['POST'] = 504
        result = self.actor.advance(current)
        assert isinstance(result, Attempt)
        for victim in self.victims:
            self.nova.finish(victim)
        self.assertEqual(Result.ACTIVE, self.outcome(result).result)
        for victim in self.victims:
            self.assertEqual({}, self.room.has(victim))


class MovedTestCase(test_preempt.FullHostTestCase):
    """They migrate after Nova was asked where they are."""

    def test_what_they_have_elsewhere_is_theirs(self) -> None:
        self.nova.add_host('h2', 8)
        current = self.at(Step.SWAP, self.start())
        steps = self.actor
        objection = steps._objection

        def asked(*args: Any, **more: Any) -> Any:
            answer = objection(*args, **more)
            for victim in self.victims:
                has = self.room.placement.consumer(victim)
                self.room.placement.write([has.with_amounts(
                    {self.nova.hosts['h2']: FOUR})])
                self.nova.servers[victim]['OS-EXT-SRV-ATTR:host'] = 'h2'
            return answer

        with mock.patch.object(steps, '_objection', asked):
            result = self.actor.advance(current)
        assert isinstance(result, Outcome)
        self.assertEqual(Result.CONFLICT, result.result)
        self.nobody_was_ended()


class PageTestCase(test_preempt.FullHostTestCase):
    """What answers is a proxy, and not Nova."""

    def test_a_page_ends_nobody(self) -> None:
        current = self.at(Step.END, self.start())
        page = fakes.Answer(404, b'<html>404 Not Found</html>', 'Not Found')
        self.nova.before += [('GET', victim, lambda: page)
                             for victim in self.victims]
        outcome = self.outcome(current)
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(['forceDelete', 'forceDelete', 'rebuild'],
                         self.actions())

    def test_no_token_is_no_reason_to_spare_a_victim(self) -> None:
        self.nova.before.append(
            ('POST', 'metadata', lambda: self.nova.error(401)))
        outcome = self.outcome(self.start())
        self.assertEqual((Result.CONFLICT, ()),
                         (outcome.result, outcome.avoid))


class StoppedTestCase(test_preempt.GraceTestCase):
    """Their guests were stopped, and they live on."""

    def stopped(self) -> Attempt:
        current = self.actor.advance(self.at(Step.END, self.start()))
        assert isinstance(current, Attempt)
        self.assertEqual('SHUTOFF', self.status(self.victims[0]))
        self.nova.finish(self.waiting)
        return current

    def test_the_notice_cannot_be_withdrawn(self) -> None:
        current = self.stopped()
        self.nova.before.append(
            ('DELETE', f'{self.victims[0]}/metadata/reaper:for',
             lambda: self.nova.error(503)))
        self.outcome(current)
        self.assertEqual('ACTIVE', self.status(self.victims[0]))
        self.assertEqual({self.victims[0]}, self.ends.later)

    def test_a_guest_cannot_be_started(self) -> None:
        current = self.stopped()
        self.nova.before.append(
            ('os-start', 'action', lambda: self.nova.error(503)))
        self.outcome(current)
        # The notice stays, by which it is found again.
        [stays] = [victim for victim in self.victims
                   if self.status(victim) == 'SHUTOFF']
        self.assertIn('reaper:for', self.nova.servers[stays]['metadata'])
        self.assertEqual({stays}, self.ends.later)

    def test_its_owner_makes_an_image(self) -> None:
        current = self.stopped()
        self.nova.servers[self.victims[0]]['OS-EXT-STS:task_state'] = (
            'image_uploading')
        self.outcome(current)
        self.assertIn('reaper:for',
                      self.nova.servers[self.victims[0]]['metadata'])
        self.assertEqual({self.victims[0]}, self.ends.later)
