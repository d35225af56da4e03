# SPDX-License-Identifier: Apache-2.0

"""What costs a server that waits its place in the queue, and what does not."""

import datetime
from typing import Any

import fixtures
from oslo_utils import timeutils

from nova_reaper.clients import rest
from nova_reaper.cloud import model
from nova_reaper.events import bus
from nova_reaper.report import answers
from nova_reaper import tests
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine
from nova_reaper import world

NOW: datetime.datetime = timeutils.utcnow(True)
INTERRUPTED = 'The build of the server was interrupted. It can be rebuilt.'


def later(seconds: float) -> datetime.datetime:
    return NOW + datetime.timedelta(seconds=seconds)


class HistoryTestCase(tests.TestCase):
    """What became of one server."""

    def of(self, *causes: world.Cause) -> model.Waiting:
        known = world.History()
        for cause in causes:
            known.came_to_nothing(cause, model.Reason.NO_ROOM, 'h1', NOW, 10)
        return known.of(model.Waiting('w', model.Shape(()), NOW))

    def test_what_counts(self) -> None:
        cause = world.Cause
        for causes, failures, avoid, pause in (
                ((cause.SERVER,), 1, None, None),
                ((cause.HOST,), 0, 'h1', None),
                ((cause.HOST, cause.HOST), 1, 'h1', None),
                ((cause.INTERRUPTED,) * 9, 0, 'h1', None),
                ((cause.SERVICE,) * 9, 0, None, later(10))):
            waiting = self.of(*causes)
            self.assertEqual(
                (failures, avoid, pause),
                (waiting.failures, waiting.avoid, waiting.paused_until))


class MissesTestCase(tests.TestCase):
    """For which kinds of servers others were ended in vain."""

    def test_each_counts_for_an_hour(self) -> None:
        misses = world.Misses()
        for at in (0, 60):
            misses.add('a', world.Miss(later(at), f'Because of {at}.'))
        misses.add('b', world.Miss(NOW, 'Otherwise.'))
        self.assertEqual('', misses.objection('b', 2, later(61)))
        said = misses.objection('a', 2, later(61))
        self.assertIn(f'until {later(3600):%Y-%m-%dT%H:%M:%SZ}', said)
        self.assertIn('2 of its kind', said)
        self.assertIn('Because of 60.', said)
        self.assertEqual('', misses.objection('a', 2, later(3601)))
        misses.add('c', world.Miss(later(3601), 'Again.'))
        self.assertEqual({'a': 2, 'c': 1}, {key: len(value) for key, value
                                    in misses._misses.items()})


class PlaceTestCase(test_engine.EngineTestCase):
    """The first of the queue stays the first."""

    mode = 'fill'

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 4)
        self.filler = self.nova.add_server('o', 4, 'h1')
        self.first = self.nova.add_server('first', 4)
        self.nova.servers[self.first]['created'] = '2026-01-01T00:00:00Z'
        self.second = self.nova.add_server('second', 4)

    def leave(self) -> None:
        self.nova.finish(self.filler)
        self.hint(bus.Kind.HOST, host='h1')

    def runs(self) -> tuple[str | None, str | None]:
        return self.status(self.first), self.status(self.second)

    def test_its_owner_rebuilds_it(self) -> None:
        self.turns(10)
        for _ in range(4):
            self.nova.rebuild_in_vain(self.first)
            self.hint(bus.Kind.WAITS, server=self.first)
            self.turns(3)
        entry = self.shown.entry(self.first)
        assert entry
        self.assertEqual((1, None), (entry.position, entry.next_attempt))
        self.leave()
        self.turns(20)
        self.assertEqual(('ACTIVE', 'PENDING'), self.runs())

    def test_its_owner_rebuilds_it_at_the_same_moment(self) -> None:
        self.collide('PENDING')
        self.leave()
        self.turns(20)
        self.assertEqual([], self.nova.before)
        self.assertEqual(('ACTIVE', 'PENDING'), self.runs())

    def test_its_owner_rebuilds_it_at_the_same_moment_for_a_time(self) -> None:
        self.collide('BUILD')
        self.leave()
        self.turns(5)
        self.assertEqual(('BUILD', 'PENDING'), self.runs())
        # The conductor has given the hold back.
        self.room.holds.release(self.first)
        self.nova.servers[self.first]['status'] = 'PENDING'
        self.turns(20)
        self.assertEqual(('ACTIVE', 'PENDING'), self.runs())

    def collide(self, status: str) -> None:
        """Have the owner's rebuild, then in a status, come before another."""
        def rebuild() -> fakes.Answer:
            self.nova.rebuild_in_vain(self.first)
            self.nova.servers[self.first]['status'] = status
            return self.nova.error(409, "Cannot 'rebuild' instance x while it "
                                   'is in task_state rebuilding')

        self.turns(10)
        self.nova.before.append(('rebuild', self.first, rebuild))

    def test_races_that_are_lost(self) -> None:
        self.turns(10)
        lost: list[str] = []

        def take(*args: Any) -> Any:
            if len(lost) < 10:
                lost.append(args[0])
                # Something has changed on the host, in whatever way.
                self.nova.finish(self.nova.add_server('x', 4, 'h1'))
                raise rest.Conflict('placement', 'POST', 'full', 409)
            return original(*args)

        holds = self.engine._recovery._holds
        original = holds.take
        setattr(holds, 'take', take)
        self.leave()
        self.turns(120)
        # Nobody has overtaken it.
        self.assertEqual([self.first] * 10, lost)
        self.assertEqual(('ACTIVE', 'PENDING'), self.runs())

    def test_placement_has_none_where_there_seems_to_be_some(self) -> None:
        self.turns(10)
        holds = self.engine._recovery._holds
        asked: list[Any] = []

        def take(*args: Any) -> Any:
            asked.append(args)
            raise rest.Conflict('placement', 'POST', 'full', 409)

        setattr(holds, 'take', take)
        self.leave()
        self.turns(60)
        # Not again and again: after each pause.
        self.assertLess(len(asked), 10)
        self.assertEqual([0, 0], [entry.waiting.failures
                                  for entry in self.shown.entries()])

    def test_services_that_fail(self) -> None:
        self.turns(10)
        self.nova.message = 'Timed out waiting for a reply to message ID 1'
        self.nova.reason = dict.fromkeys((self.first, self.second), 'unknown')
        self.nova.builds = 'PENDING'
        self.leave()
        self.turns(60)
        self.assertEqual([0, 0], [entry.waiting.failures
                                  for entry in self.shown.entries()])
        self.nova.builds = 'ACTIVE'
        self.turns(15)
        self.assertIn('ACTIVE', self.runs())

    def test_the_answer_to_a_rebuild_is_lost(self) -> None:
        self.turns(10)
        self.nova.message = INTERRUPTED
        self.nova.reason[self.first] = 'unknown'
        self.nova.builds = 'PENDING'

        def lose() -> fakes.Answer:
            self.nova._rebuild(self.nova.servers[self.first], {})
            return self.nova.error(504)

        self.nova.before.append(('rebuild', self.first, lose))
        self.leave()
        self.turns(30)
        self.assertEqual([], self.nova.before)
        self.assertEqual([0, 0], [entry.waiting.failures
                                  for entry in self.shown.entries()])

    def test_interrupted_and_built_elsewhere_at_once(self) -> None:
        self.nova.add_host('h2', 4)
        self.nova.add_server('p', 4, 'h2')
        self.turns(5)
        build = self.nova._build
        hosts: list[str] = []

        def interrupt(server: dict[str, Any]) -> fakes.Answer:
            consumer = self.room.placement.consumer(server['id'])
            hosts.extend(name for name, uuid in self.nova.hosts.items()
                         if uuid in consumer.amounts)
            if len(hosts) > 1:
                return build(server)
            self.nova.message = INTERRUPTED
            self.nova.reason[server['id']] = 'unknown'
            return fakes.Answer(202, b'')

        setattr(self.nova, '_build', interrupt)
        self.nova.delete(self.second)
        for server in list(self.nova.servers):
            if self.nova.servers[server]['OS-EXT-SRV-ATTR:host']:
                self.nova.finish(server)
        for name in ('h1', 'h2'):
            self.hint(bus.Kind.HOST, host=name)
        self.turns(12)
        self.assertEqual('ACTIVE', self.status(self.first))
        self.assertEqual({'h1', 'h2'}, set(hosts))

    def test_interrupted_and_no_other_host(self) -> None:
        self.turns(5)
        build = self.nova._build
        calls: list[str] = []

        def interrupt(server: dict[str, Any]) -> fakes.Answer:
            calls.append(server['id'])
            if len(calls) > 1:
                return build(server)
            self.nova.message = INTERRUPTED
            self.nova.reason[server['id']] = 'unknown'
            return fakes.Answer(202, b'')

        setattr(self.nova, '_build', interrupt)
        self.leave()
        self.turns(12)
        self.assertEqual([self.first] * 2, calls)
        self.assertEqual('ACTIVE', self.status(self.first))


class LostSwapTestCase(test_engine.EngineTestCase):
    """Two servers wait for the room of the only victim."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 4)
        self.victim = self.nova.add_server('s', 4, 'h1', preemptible=True)
        self.first, self.second = [
            self.nova.add_server(name, 4) for name in ('first', 'second')]
        self.nova.servers[self.first]['created'] = '2026-01-01T00:00:00Z'

    def lose(self, most: int) -> list[str]:
        """Have so many swaps lost; returns the servers, which go on."""
        lost: list[str] = []

        def swap(server: str, *args: Any) -> Any:
            if len(lost) < most:
                lost.append(server)
                raise rest.Conflict('placement', 'POST', 'changed', 409)
            return original(server, *args)

        holds = self.engine._recovery._holds
        original = holds.swap
        setattr(holds, 'swap', swap)
        return lost

    def test_nobody_overtakes_the_server(self) -> None:
        lost = self.lose(4)
        self.turns(80)
        self.assertEqual([self.first] * 4, lost)
        self.assertEqual(('ACTIVE', 'PENDING', None), tuple(map(
            self.status, (self.first, self.second, self.victim))))

    def test_swaps_that_are_always_lost(self) -> None:
        lost = self.lose(1000)
        self.turns(100)
        # The reaper tries again after each pause, and not all the time.
        self.assertTrue(4 < len(lost) < 12, lost)
        self.assertEqual({self.first}, set(lost))
        self.assertEqual([True], self.left(self.victim))


class MissedTestCase(test_engine.EngineTestCase):
    """Others were ended, and the server does not run."""

    options = {'max_misses': 1}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        for number in range(4):
            self.nova.add_server(f's{number}', 2, 'h1', preemptible=True)
        self.waiting = self.nova.add_server('w', 2)
        self.nova.builds = 'PENDING'

    def test_services_that_fail_do_not_count(self) -> None:
        self.nova.message = 'ConnectFailure: no Placement'
        self.nova.reason[self.waiting] = 'unknown'
        self.turns(60)
        self.assertEqual({}, self.engine.world.misses._misses)
        self.nova.builds = 'ACTIVE'
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual(1, self.actions().count('forceDelete'))

    def test_its_owner_rebuilds_it_in_vain(self) -> None:
        server = self.nova.servers[self.waiting]
        for status in 'PENDING', 'BUILD':
            def rebuild(status: str = status) -> fakes.Answer:
                self.nova.rebuild_in_vain(self.waiting)
                server['status'] = status
                return self.nova.error(409, "Cannot 'rebuild' instance x "
                                       'while it is in task_state rebuilding')

            self.nova.before.append(('rebuild', self.waiting, rebuild))
        self.nova.builds = 'ACTIVE'
        self.turns(20)
        self.assertEqual('BUILD', self.status(self.waiting))
        server['status'] = 'PENDING'
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(self.waiting))
        self.assertEqual({}, self.engine.world.misses._misses)
        self.assertEqual(1, self.actions().count('forceDelete'))
        self.assertEqual(0, self.value('needless_victims_total'))

    def test_what_it_was_told_stays_while_its_owner_rebuilds_it(self) -> None:
        self.conf.set_override('mode', 'fill', 'reaper')
        waiting = self.waiting
        self.turns(5)
        history = self.engine.world.history[waiting]
        history.came_to_nothing(world.Cause.SERVER, model.Reason.REFUSED,
                                'h1', timeutils.utcnow(True), 10)
        for status in 'BUILD', 'PENDING':
            self.nova.servers[waiting]['status'] = status
            self.hint(bus.Kind.SERVER, server=waiting)
            self.turns(2)
        self.assertEqual(1, self.engine.world.history[waiting].failures)
        del self.nova.servers[waiting]
        self.hint(bus.Kind.ENDED, server=waiting)
        self.turns(2)
        self.assertNotIn(waiting, self.engine.world.history)

    def test_a_refusal_counts_for_an_hour_and_says_so(self) -> None:
        def refuse(server: dict[str, Any]) -> fakes.Answer:
            # Somebody else has the room at once.
            self.room.holds.release(server['id'])
            self.nova.add_server('x', 2, 'h1')
            return fakes.Answer(202, b'')

        build = self.nova._build
        setattr(self.nova, '_build', refuse)
        self.turns(60)
        self.assertEqual(1, self.actions().count('forceDelete'))
        decision = self.engine.world.told.last[self.waiting].decision
        self.assertIn('did not run within the hour', decision.detail)
        self.assertEqual((model.Reason.NO_ROOM, 'misses'),
                         (decision.reason, decision.word))
        self.assertEqual(
            'No host that could take it has room. No server is ended for it '
            'for an hour, because servers like it did not run after others '
            'had been ended for them.', answers.why(decision))
        self.assertIn('No valid host was found', decision.detail)
        self.assertNotIn('only Placement', decision.detail)
        setattr(self.nova, '_build', build)
        self.nova.builds = 'ACTIVE'
        self.offset += 3600
        self.turns(60)
        self.assertEqual(2, self.actions().count('forceDelete'))
        self.assertEqual('ACTIVE', self.status(self.waiting))


class SlotsTestCase(test_engine.EngineTestCase):
    """Nobody is held up by others that take long."""

    mode = 'fill'
    options = {'max_rebuilds': 2, 'max_rebuilds_per_project': 1}

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 64)
        self.stuck = [self.nova.add_server(f's{number}', 2, project='stuck')
                      for number in range(4)]

    def test_what_a_host_builds_counts_for_nobody(self) -> None:
        other = self.nova.add_server('w', 2)
        build = self.nova._build

        def hang(server: dict[str, Any]) -> fakes.Answer:
            if server['id'] == other:
                return build(server)
            server['status'] = 'BUILD'
            return fakes.Answer(202, b'')

        setattr(self.nova, '_build', hang)
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(other))
        self.assertEqual(['BUILD'] * 4, [self.status(server)
                                         for server in self.stuck])
        self.assertEqual(4, self.value('rebuilds_in_flight'))

    def test_a_project_has_its_share_of_them(self) -> None:
        self.conf.set_override('max_rebuilds', 3, 'reaper')
        self.nova.unavailable = dict.fromkeys(self.stuck, 'No answer.')
        others = [self.nova.add_server(f'w{number}', 1)
                  for number in range(8)]
        self.turns(45)
        self.assertEqual(['ACTIVE'] * 8, [self.status(server)
                                          for server in others])

    def test_the_queue_passes_over_a_project(self) -> None:
        queue = self.engine.world.queue
        for number, project in enumerate('aab'):
            queue.put(model.Waiting(
                f'{project}{number}', model.Shape.of({'VCPU': number + 1}),
                later(number), project), NOW)
        queue.close({'a'})
        found = queue.pop(NOW)
        self.assertEqual('b2', found and found.id)
        self.assertIsNone(queue.pop(NOW))
        queue.close(())
        self.assertEqual(['a0', 'a1'], [
            item.id for _ in range(2) if (item := queue.pop(NOW))])


class SinceTestCase(test_engine.EngineTestCase):
    """Time is counted from the moment in which the waiting began."""

    def test_a_shelved_server_waits_since_its_shelving(self) -> None:
        self.nova.add_host('h1', 4)
        self.nova.add_server('o', 4, 'h1')
        begun: datetime.datetime = timeutils.utcnow(True)

        def before(seconds: float) -> datetime.datetime:
            return begun - datetime.timedelta(seconds=seconds)

        for at, expected in ((before(60), 60), (before(9e6), 600),
                             (None, 300)):
            shelved = self.nova.add_server(
                's', 4, status='SHELVED_OFFLOADED', preemptible=True,
                metadata={'reaper:shelved_at': 'nonsense' if at is None else
                          f'{at:%Y-%m-%dT%H:%M:%SZ}'})
            self.nova.servers[shelved] |= {
                'created': f'{before(6000):%Y-%m-%dT%H:%M:%SZ}',
                'updated': f'{before(300):%Y-%m-%dT%H:%M:%SZ}',
                'OS-SRV-USG:launched_at':
                    f'{before(600):%Y-%m-%dT%H:%M:%S.000000}'}
            self.engine = self.start()
            self.turns(3)
            entry = self.shown.entry(shelved)
            assert entry
            self.assertAlmostEqual(expected, (
                begun - entry.waiting.created_at).total_seconds(), delta=2)
            self.assertAlmostEqual(expected, self.value(
                'oldest_pending_seconds', state='shelved') - self.offset,
                delta=60)
            del self.nova.servers[shelved]

    def test_the_age_of_servers_that_run_at_last(self) -> None:
        self.nova.add_host('h1', 8)
        begun = timeutils.utcnow(True)

        def before(seconds: float) -> str:
            at = begun - datetime.timedelta(seconds=seconds)
            return f'{at:%Y-%m-%dT%H:%M:%S}'

        waiting = self.nova.add_server('w', 4)
        self.nova.servers[waiting]['created'] = f'{before(600)}Z'
        shelved = self.nova.add_server(
            's', 4, status='SHELVED_OFFLOADED', preemptible=True,
            metadata={'reaper:shelved_at': f'{before(60)}Z'})
        self.nova.servers[shelved] |= {
            'created': f'{before(6000)}Z',
            'OS-SRV-USG:launched_at': f'{before(5000)}.000000'}
        self.turns(20)
        self.assertEqual(['ACTIVE'] * 2,
                         list(map(self.status, (waiting, shelved))))
        for state, age in ('pending', 600), ('shelved', 60):
            self.assertEqual(1, self.value('pending_age_seconds_count',
                                           state=state))
            self.assertAlmostEqual(age, self.value(
                'pending_age_seconds_sum', state=state), delta=30)


class FailedTestCase(test_engine.EngineTestCase):
    """A build that failed leaves a server in ERROR, and in the queue."""

    mode = 'fill'

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 4)
        self.nova.builds = 'ERROR'

    def forbid(self, project: str) -> None:
        """Have the operator say that servers of a project do not wait."""
        self.useFixture(fixtures.MockPatchObject(
            self.engine.source._keystone, 'project_properties',
            lambda: {project: {'reaper:wait': 'never'}}))

    def add_failed(self, **others: Any) -> str:
        server = self.nova.add_server('w', 4, status='ERROR', **others)
        self.nova.servers[server]['fault'] = {
            'message': 'Exceeded maximum number of retries.'}
        return server

    def test_it_is_built_again(self) -> None:
        waiting = self.nova.add_server('w', 4, asked=False,
                                       metadata={'reaper:wait': 'true'})
        self.turns(20)
        self.assertEqual('ERROR', self.status(waiting))
        # At once, then after the back-off.
        self.assertEqual(['rebuild'] * 2, self.actions())
        entry = self.shown.entry(waiting)
        assert entry
        shown = entry.to_dict(False)
        self.assertEqual(('error', 1, 3, 'build_failed'), (
            shown['state'], shown['position'], shown['attempts'],
            shown['reason']))
        self.assertIsNotNone(shown['next_attempt'])
        self.assertEqual({}, self.room.has(waiting))
        self.nova.builds = 'ACTIVE'
        self.turns(20, 20)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_a_host_speaks_of_an_interruption(self) -> None:
        build = self.nova._build

        def fail(server: dict[str, Any]) -> fakes.Answer:
            answer = build(server)
            server['fault'] = {'message': 'Build of instance x aborted: The '
                               'download of the image was interrupted.'}
            return answer

        setattr(self.nova, '_build', fail)
        self.nova.add_server('w', 4)
        self.turns(30)
        # The host has failed, and has not died: the server backs off.
        self.assertEqual(['rebuild'] * 2, self.actions())

    def test_after_a_restart(self) -> None:
        waiting = self.nova.add_server('w', 4)
        self.turns(20)
        self.start()
        self.turns(3)
        self.assertIsNotNone(self.shown.entry(waiting))
        self.nova.builds = 'ACTIVE'
        self.turns(40, 20)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_nobody_has_asked(self) -> None:
        self.conf.set_override('wait', 'all', 'reaper')
        self.forbid('never')
        for others in ({'asked': False}, {'project': 'never'},
                       {'metadata': {'reaper:wait': 'false'}},
                       {'metadata': {}, 'launched': True},
                       {'fault': 'No valid host was found. '}):
            launched = others.pop('launched', False)
            fault = others.pop('fault', None)
            waiting = self.add_failed(**others)
            if launched:
                self.nova.servers[waiting][
                    'OS-SRV-USG:launched_at'] = '2026-01-01T00:00:00.000000'
            if fault:
                self.nova.servers[waiting]['fault']['message'] = fault
        self.turns(30)
        self.assertEqual([], self.actions())
        self.assertEqual([], list(self.shown.entries()))

    def test_the_operator_allows_no_more_builds(self) -> None:
        waiting = self.nova.add_server('w', 4)
        self.turns(10)
        self.assertEqual('ERROR', self.status(waiting))
        self.forbid('owner')
        self.turns(12, 61)
        before = self.actions()
        self.turns(40, 61)
        self.assertEqual(before, self.actions())

    def test_past_its_deadline(self) -> None:
        self.nova.add_server('o', 4, 'h1')
        waiting = self.add_failed()
        self.turns(3)
        self.assertIn(waiting, self.engine.world.servers)
        self.conf.set_override('pending_timeout', 5, 'reaper')
        self.turns(20, 61)
        self.assertNotIn(waiting, self.engine.world.servers)
        self.assertEqual([], self.actions())

    def test_its_cell_is_down(self) -> None:
        self.nova.add_server('o', 4, 'h1')
        waiting = self.add_failed()
        self.turns(3)
        self.nova.cell_down.add(waiting)
        other = self.nova.add_server('v', 2)
        # The second list is one of all.
        for turns in 4, 12:
            self.turns(turns, 61)
            self.assertEqual({waiting, other},
                             self.engine.world.servers.keys())

    def test_nobody_is_ended_for_it(self) -> None:
        self.conf.set_override('mode', 'preempt', 'reaper')
        victim = self.nova.add_server('s', 4, 'h1', preemptible=True)
        self.add_failed()
        self.turns(30)
        self.assertEqual('ACTIVE', self.status(victim))
        entry, = self.shown.entries()
        assert entry.decision
        self.assertIn('build failed', entry.decision.detail)


class OptionsTestCase(test_engine.EngineTestCase):
    """What is known survives a change of the mode, or of an option."""

    mode = 'fill'

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.victim = self.nova.add_server('s', 8, 'h1', preemptible=True,
                                           project='spot')
        self.nova.servers[self.victim]['OS-SRV-USG:launched_at'] = (
            f'{later(-100):%Y-%m-%dT%H:%M:%S.000000}')
        self.nova.refused_by['h1'] = 'ComputeFilter'
        self.waiting = self.nova.add_server('w', 4)
        self.turns(10)
        item = self.engine.world.queue.get(self.waiting)
        assert item
        self.engine.world.index.exclusions.refuse(
            item.shape, {'h1': 'ComputeFilter'})

    def test_refusals_and_shares_stay(self) -> None:
        known = self.engine.world
        index, queue = known.index, known.queue
        item = known.queue.get(self.waiting)
        assert item
        queue.share.give('owner', {'VCPU': 4}, {'VCPU': 8}, NOW)
        for mode in ('fill', 'preempt', 'observe', 'fill'):
            self.conf.set_override('mode', mode, 'reaper')
            self.turns(2)
        self.assertEqual((index, queue), (known.index, known.queue))
        self.assertEqual({'h1': 'ComputeFilter'},
                         index.exclusions.refusals(item.shape))
        self.assertEqual(0.5, queue.share.of('owner'))

    def test_protection_counts_anew(self) -> None:
        slots = self.engine.world.index.slots
        for seconds in (600, 60, 0):
            self.conf.set_override('min_run_time', seconds, 'reaper')
            self.turns(2)
            at = slots.segment(slots.row_of[self.victim]).start
            self.assertAlmostEqual(
                seconds - 100, slots.safe_until[at] / 1e6 - NOW.timestamp(),
                delta=2)

    def test_shares_by_another_half_life(self) -> None:
        queue = self.engine.world.queue
        queue.share.give('owner', {'VCPU': 4}, {'VCPU': 8}, NOW)
        item = queue.get(self.waiting)
        assert item
        queue.grant(item, {'VCPU': 8}, later(86400))
        self.assertAlmostEqual(1.5, queue.share.of('owner'), 1)
        self.conf.set_override('fair_share_half_life', 60, 'reaper')
        self.offset = 86400
        self.turns(1)
        # What is given now counts as much as before the change.
        self.assertAlmostEqual(0.75, queue.share.of('owner'), 1)
        queue.give_back(self.waiting, later(86400))
        self.assertAlmostEqual(0.25, queue.share.of('owner'), 1)

    def test_a_shorter_back_off(self) -> None:
        known = self.engine.world.queue
        self.engine.world.history[self.waiting].came_to_nothing(
            world.Cause.SERVER, model.Reason.NO_ROOM, 'h1',
            timeutils.utcnow(True), 10)
        self.conf.set_override('retry_interval', 600, 'reaper')
        self.turns(2)
        self.engine.world.put_again(self.waiting)
        self.assertEqual(1, len(known._later))
        self.conf.set_override('retry_interval', 1, 'reaper')
        self.turns(3)
        self.assertEqual([], known._later)


class ReserveTestCase(test_engine.EngineTestCase):
    """A host is kept for a server."""

    mode = 'fill'
    options = {'reserve': True}

    def test_the_host_stays_kept_while_its_owner_rebuilds_it(self) -> None:
        self.nova.add_host('h1', 8)
        others = [self.nova.add_server('o', 4, 'h1') for _ in range(2)]
        first, second = (self.nova.add_server('w', size) for size in (8, 4))
        self.nova.servers[first]['created'] = '2026-01-01T00:00:00Z'
        self.turns(10)
        self.nova.finish(others[0])
        for status in 'BUILD', 'PENDING':
            self.nova.servers[first]['status'] = status
            self.hint(bus.Kind.SERVER, server=first)
            self.hint(bus.Kind.HOST, host='h1')
            self.turns(5)
            self.assertEqual('PENDING', self.status(second))
        self.nova.finish(others[1])
        self.hint(bus.Kind.HOST, host='h1')
        self.turns(20)
        self.assertEqual('ACTIVE', self.status(first))
