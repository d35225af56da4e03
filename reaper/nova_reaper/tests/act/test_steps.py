# SPDX-License-Identifier: Apache-2.0

"""Free room is held, and the server rebuilt."""

import functools
from unittest import mock

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Step
from nova_reaper.act import steps
from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.tests import acting
from nova_reaper.tests import fakes

BUSY = "Cannot 'rebuild' instance x while it is in task_state rebuilding"


class FillTestCase(acting.ActingTestCase):
    """One server waits, one host has room."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.waiting = self.nova.add_server('w', 4)

    def test_it_runs(self) -> None:
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(['rebuild'], self.actions())
        self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                         self.room.has(self.waiting))
        self.assertEqual(0, self.room.placement.count_holds(fakes.SERVICE))

    def test_the_room_is_held_before_the_rebuild(self) -> None:
        current = self.at(Step.REBUILD, self.begin(self.waiting))
        self.assertIsNotNone(current.held)
        self.assertEqual(1, self.room.placement.count_holds(fakes.SERVICE))
        self.assertEqual([], self.actions())

    def test_no_room_any_more(self) -> None:
        self.room.allocate(fakes.new_id(), self.nova.hosts['h1'], 'x',
                           VCPU=6, MEMORY_MB=1)
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(Result.CONFLICT, outcome.result)
        self.assertEqual([], self.actions())
        self.assertEqual({}, self.room.has(self.waiting))

    def test_its_owner_reads_no_name_of_a_host(self) -> None:
        host = self.nova.hosts['h1']
        current = self.at(Step.HOLD, self.begin(self.waiting))
        with mock.patch.object(
                self.room.holds, 'take', side_effect=rest.Conflict(
                    'placement', 'PUT', f'Unable to allocate from {host}')):
            outcome = self.outcome(current)
        self.assertEqual(Result.CONFLICT, outcome.result)
        self.assertNotIn(host, outcome.detail)

    def test_another_was_faster_after_the_look(self) -> None:
        current = self.at(Step.HOLD, self.begin(self.waiting))
        self.room.holds.take(self.waiting, {
            self.nova.hosts['h1']: {'VCPU': 4}})
        outcome = self.outcome(current)
        self.assertEqual(Result.CONFLICT, outcome.result)
        self.assertEqual([], self.actions())
        # The other's hold stays.
        self.assertEqual({'VCPU': 4}, self.room.has(self.waiting))
        self.assertEqual(1, self.value('conflicts_total', step='hold'))

    def test_only_observes(self) -> None:
        self.mode = model.Mode.OBSERVE
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(Result.WITHDRAWN, outcome.result)
        self.assertEqual({}, self.room.has(self.waiting))

    def test_a_filter_refuses(self) -> None:
        self.nova.refused_by['h1'] = 'NUMATopologyFilter'
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual((Result.REFUSED, model.Reason.REFUSED),
                         (outcome.result, outcome.reason))
        self.assertIn('NUMATopologyFilter', outcome.detail)
        self.assertEqual({'h1': 'NUMATopologyFilter'}, outcome.refused)
        self.assertEqual([], self.actions())

    def test_over_quota_before(self) -> None:
        self.nova.reason[self.waiting] = 'quota'
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual((Result.REFUSED, model.Reason.QUOTA),
                         (outcome.result, outcome.reason))

    def test_the_rebuild_is_refused(self) -> None:
        needs_owner = model.Hindrance.NEEDS_OWNER
        for status, message, result, reason, hindrance in (
                (400, 'no', Result.REFUSED, model.Reason.REFUSED, None),
                (403, 'Quota exceeded for cores: Requested 1, but already '
                 'used 4 of 4 cores', Result.REFUSED, model.Reason.QUOTA,
                 None),
                (403, 'Project p is over a limit for [...]', Result.REFUSED,
                 model.Reason.QUOTA, None),
                (403, 'Maximum number of ports exceeded', Result.REFUSED,
                 model.Reason.QUOTA, None),
                (403, "Policy doesn't allow os_compute_api:servers:rebuild "
                 "to be performed.", Result.REFUSED, model.Reason.REFUSED,
                 None),
                (403, 'Only volume-backed servers are allowed for flavors '
                 'with zero disk.', Result.REFUSED, model.Reason.REFUSED,
                 None),
                (403, fakes.VOLUMES, Result.REFUSED, model.Reason.REFUSED,
                 needs_owner),
                (404, 'no', Result.GONE, None, None),
                (409, 'no', Result.REFUSED, model.Reason.UNKNOWN, None)):
            # The token of the owner's project, and that of the reaper.
            del self.nova.before[:]
            for _ in range(2):
                self.nova.before.append((
                    'rebuild', 'action',
                    functools.partial(self.nova.error, status, message)))
            outcome = self.outcome(self.begin(self.waiting))
            self.assertEqual(
                (result, reason, hindrance),
                (outcome.result, outcome.reason, outcome.hindrance), message)
            self.assertEqual(message if result == Result.REFUSED else
                             outcome.detail, outcome.detail)
            self.assertEqual({}, self.room.has(self.waiting))

    def test_it_waits_again(self) -> None:
        self.nova.builds = 'PENDING'
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual((Result.PENDING, model.Reason.NO_ROOM),
                         (outcome.result, outcome.reason))
        self.assertEqual({}, self.room.has(self.waiting))

    def test_its_build_fails(self) -> None:
        self.nova.builds = 'ERROR'
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual((Result.ERROR, model.Reason.BUILD_FAILED),
                         (outcome.result, outcome.reason))
        self.assertEqual({}, self.room.has(self.waiting))

    def test_its_build_never_ends(self) -> None:
        self.nova.builds = 'BUILD'
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(Result.TIMEOUT, outcome.result)
        self.assertIsNone(self.room.holds.find(self.waiting))

    def test_deleted_at_each_step(self) -> None:
        for step in (Step.HOLD, Step.REBUILD, Step.WATCH):
            server = self.nova.add_server('w', 1)
            current = self.at(step, self.begin(server))
            # Every delete of Nova takes the allocation along.
            self.nova.finish(server)
            outcome = self.outcome(current)
            self.assertEqual(Result.GONE, outcome.result)
            self.assertEqual({}, self.room.has(server))

    def test_somebody_else_rebuilds_it(self) -> None:
        self.nova.servers[self.waiting]['status'] = 'BUILD'
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(Result.GONE, outcome.result)
        self.assertEqual([], self.actions())

    def test_somebody_else_rebuilds_it_once_room_is_held(self) -> None:
        for status, task_state in (('BUILD', None), ('PENDING', 'rebuilding')):
            current = self.at(Step.REBUILD, self.begin(self.waiting))
            self.nova.servers[self.waiting].update({
                'status': status, 'OS-EXT-STS:task_state': task_state})
            # The token of the owner's project, and that of the reaper.
            for _ in range(2):
                self.nova.before.append((
                    'rebuild', 'action',
                    functools.partial(self.nova.error, 409, 'no')))
            current = self.at(Step.WATCH, current)
            current = self.at(Step.WATCH, current)
            self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                             self.room.has(self.waiting))
            # The rebuild by the owner finds no host. The reaper, which holds
            # the room, asks again.
            del self.nova.before[:]
            self.nova.servers[self.waiting].update({
                'status': 'PENDING', 'OS-EXT-STS:task_state': None})
            self.assertEqual(Result.ACTIVE, self.outcome(current).result)
            self.nova.finish(self.waiting)
            self.waiting = self.nova.add_server('w', 4)

    def test_a_build_of_its_owner_fails(self) -> None:
        def rebuild() -> fakes.Answer:
            self.nova.servers[self.waiting]['status'] = 'ERROR'
            return self.nova.error(409, BUSY)

        self.nova.before.append(('rebuild', 'action', rebuild))
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual((Result.ERROR, model.Reason.BUILD_FAILED),
                         (outcome.result, outcome.reason))
        self.assertEqual([], self.actions())

    def test_nova_says_for_long_that_it_is_busy(self) -> None:
        begun = self.now
        self.nova.before.extend([(
            'rebuild', 'action', lambda: self.nova.error(409, BUSY))] * 500)
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual((Result.CONFLICT, model.Reason.UNKNOWN),
                         (outcome.result, outcome.reason))
        self.assertTrue(steps.PATIENCE < self.now - begun < 2 * steps.PATIENCE)
        self.assertLess(self.value('conflicts_total', step='rebuild'), 70)
        self.assertEqual({}, self.room.has(self.waiting))

    def test_no_answer_is_asked_again(self) -> None:
        current = self.begin(self.waiting)
        self.nova.before.append((
            'GET', 'pending', lambda: self.nova.error(503)))
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)

    def test_no_scheduler_answers(self) -> None:
        self.nova.unavailable[self.waiting] = 'No scheduler tells it.'
        begun = self.now
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual((Result.CONFLICT, model.Reason.UNKNOWN),
                         (outcome.result, outcome.reason))
        self.assertIn('No scheduler', outcome.detail)
        self.assertTrue(steps.PATIENCE < self.now - begun < 2 * steps.PATIENCE)

    def test_nova_is_away(self) -> None:
        """Its owner is not told where Nova is."""
        current = self.begin(self.waiting)
        with mock.patch.object(
                self.actor._nova, 'server', side_effect=rest.Unavailable(
                    'nova', 'GET', 'No connection to http://inside:8774')):
            outcome = self.outcome(current)
        self.assertEqual(Result.CONFLICT, outcome.result)
        self.assertNotIn('inside', outcome.detail)

    def test_no_answer_once_it_is_rebuilt(self) -> None:
        current = self.at(Step.WATCH, self.begin(self.waiting))
        for _ in range(20):
            self.nova.before.append((
                'GET', 'servers', lambda: self.nova.error(503)))
        self.assertEqual(Result.ACTIVE, self.outcome(current).result)

    def test_it_has_to_be_corrected(self) -> None:
        self.nova.message = 'Its image is gone.'
        self.nova.unavailable[self.waiting] = self.nova.message
        begun = self.now
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(
            (Result.REFUSED, model.Reason.UNKNOWN, 'Its image is gone.'),
            (outcome.result, outcome.reason, outcome.detail))
        self.assertEqual(begun, self.now)

    def test_the_answer_to_the_rebuild_is_lost(self) -> None:
        def lose() -> fakes.Answer:
            self.nova._rebuild(self.nova.servers[self.waiting], {})
            return self.nova.error(504)

        self.nova.before.append(('rebuild', 'action', lose))
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual([], self.actions())

    def test_the_rebuild_is_lost(self) -> None:
        self.nova.before.append((
            'rebuild', 'action', lambda: self.nova.error(503)))
        outcome = self.outcome(self.begin(self.waiting))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(['rebuild'], self.actions())

    def test_two_reapers(self) -> None:
        other = self.new_actor()
        first = self.at(Step.HOLD, self.begin(self.waiting))
        second = self.to(Step.HOLD, self.begin(self.waiting), other)
        self.assertEqual(Result.ACTIVE, self.outcome(first).result)
        assert isinstance(second, attempts.Attempt)
        late = self.to(None, second, other)
        assert isinstance(late, attempts.Outcome)
        self.assertEqual(Result.CONFLICT, late.result)
        self.assertEqual(['rebuild'], self.actions())
        self.assertEqual('ACTIVE', self.nova.servers[self.waiting]['status'])
        self.assertEqual({'VCPU': 4, 'MEMORY_MB': 4096},
                         self.room.has(self.waiting))

    def test_given_up(self) -> None:
        waiting = self.begin(self.waiting).waiting
        self.assertTrue(self.actor.give_up(waiting))
        self.assertEqual('ERROR', self.nova.servers[self.waiting]['status'])
        self.assertFalse(self.actor.give_up(waiting))


class ReturnTestCase(acting.ActingTestCase):
    """A server that was shelved for another comes back."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.shelved = self.nova.add_server(
            's', 4, status='SHELVED_OFFLOADED', preemptible=True,
            metadata={'reaper:shelved_at': fakes.NOW})

    def test_it_comes_back(self) -> None:
        outcome = self.outcome(self.begin(self.shelved))
        self.assertEqual(Result.ACTIVE, outcome.result)
        self.assertEqual(['unshelve'], self.actions())
        self.assertEqual({}, self.nova.servers[self.shelved]['metadata'])

    def test_no_room(self) -> None:
        self.room.allocate(fakes.new_id(), self.nova.hosts['h1'], 'x',
                           VCPU=6, MEMORY_MB=1)
        outcome = self.outcome(self.begin(self.shelved))
        self.assertEqual(Result.CONFLICT, outcome.result)
        self.assertEqual([], self.actions())

    def test_the_owner_was_faster(self) -> None:
        current = self.begin(self.shelved)
        self.nova.servers[self.shelved]['status'] = 'ACTIVE'
        self.assertEqual(Result.GONE, self.outcome(current).result)
        self.assertEqual([], self.actions())

    def test_without_the_mark_it_is_its_owners(self) -> None:
        self.nova.servers[self.shelved]['metadata'] = {}
        outcome = self.outcome(self.begin(self.shelved))
        self.assertEqual(Result.GONE, outcome.result)
