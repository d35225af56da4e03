# SPDX-License-Identifier: Apache-2.0

"""Nova judges a host without the victims before they are given notice."""

from collections.abc import Collection
from typing import Any

from nova_reaper.act import attempts
from nova_reaper.act.attempts import Step
from nova_reaper.cloud import model
from nova_reaper.cloud.model import Result
from nova_reaper.tests.act import test_preempt
from nova_reaper.tests import fakes
from nova_reaper.tests import test_engine


class FullHostTestCase(test_preempt.FullHostTestCase):
    """All that is on the host are the two victims."""

    def test_a_filter_that_refuses_the_host_as_it_is(self) -> None:
        self.nova.pinned['h1'] = 0
        outcome = self.outcome(self.start())
        self.assertEqual((Result.ACTIVE, 2),
                         (outcome.result, outcome.attempt.ended))

    def test_a_filter_that_refuses_it_without_them_too(self) -> None:
        self.nova.add_host('h2', 8)
        self.nova.add_host('h3', 8)
        self.nova.refused_by['h2'] = 'ComputeFilter'
        self.nova.pinned.update(h1=-1, h3=-1)
        outcome = self.outcome(self.start(others=('h2', 'h3')))
        self.assertEqual((Result.REFUSED, model.Reason.REFUSED),
                         (outcome.result, outcome.reason))
        self.assertEqual('NUMATopologyFilter would refuse the host all the '
                         'same.', outcome.detail)
        # What is on the third host now is not what will be there then.
        self.assertEqual({'h1': 'NUMATopologyFilter', 'h2': 'ComputeFilter'},
                         outcome.refused)
        self.nobody_was_ended()

    def test_the_host_changes_after_the_notice(self) -> None:
        self.nova.pinned['h1'] = 0
        current = self.at(Step.SWAP, self.start())
        self.nova.pinned['h1'] = -1
        outcome = self.outcome(current)
        self.assertEqual(Result.REFUSED, outcome.result)
        self.nobody_was_ended()

    def test_a_victim_has_left_the_host(self) -> None:
        self.nova.servers[self.victims[1]]['OS-EXT-SRV-ATTR:host'] = 'h2'
        outcome = self.outcome(self.start())
        self.assertEqual((Result.CONFLICT, model.Reason.NO_ROOM,
                          self.victims[1:]),
                         (outcome.result, outcome.reason, outcome.avoid))
        self.assertEqual([], self.actions())

    def test_a_victim_leaves_while_nova_judges(self) -> None:
        def refuse() -> fakes.Answer:
            return self.nova.error(409, 'The servers x are not on host h1, or '
                                   'are about to change: ask again.')

        self.nova.before.append(('GET', 'without', refuse))
        outcome = self.outcome(self.start())
        self.assertEqual((Result.CONFLICT, model.Reason.NO_ROOM, ()),
                         (outcome.result, outcome.reason, outcome.avoid))
        self.nobody_was_ended()
        # After the notice the question is asked again, for a time.
        current = self.at(Step.SWAP, self.start())
        self.nova.before.append(('GET', 'without', refuse))
        outcome = self.outcome(current)
        self.assertEqual(Result.CONFLICT, outcome.result)
        self.nobody_was_ended()

    def test_the_server_waits_no_more_while_nova_judges(self) -> None:
        def refuse() -> fakes.Answer:
            self.nova.servers[self.waiting]['status'] = 'BUILD'
            return self.nova.error(409, 'It does not wait.')

        self.nova.before.append(('GET', 'without', refuse))
        self.assertEqual(Result.GONE, self.outcome(self.start()).result)
        self.nobody_was_ended()

    def test_no_scheduler_answers(self) -> None:
        self.nova.unavailable[self.waiting] = 'No scheduler tells.'
        outcome = self.outcome(self.start())
        self.assertEqual((Result.CONFLICT, model.Reason.UNKNOWN),
                         (outcome.result, outcome.reason))
        self.nobody_was_ended()


class FragmentsTestCase(test_preempt.FullHostTestCase):
    """Placement has room on the host, and a filter has none."""

    def setUp(self) -> None:
        super().setUp()
        self.waiting = self.nova.add_server('w', 2)
        self.nova.add_host('h2', 8)
        self.victims = tuple(
            self.nova.add_server(f't{number}', 2, 'h2', preemptible=True)
            for number in (1, 2, 3))

    def test_those_that_need_not_end_are_left_alone(self) -> None:
        for most, ended in ((3, 0), (2, 1), (1, 1)):
            self.nova.pinned['h2'] = most
            waiting = self.nova.add_server('w', 2)
            outcome = self.outcome(self.begin(
                waiting, 'h2', tuple(
                    victim for victim in self.victims
                    if victim in self.nova.servers)))
            self.assertEqual((Result.ACTIVE, ended),
                             (outcome.result, outcome.attempt.ended))
            self.nova.finish(waiting)

    def test_the_last_one_has_to_end(self) -> None:
        self.nova.pinned['h2'] = 0
        outcome = self.outcome(self.begin(self.waiting, 'h2', self.victims))
        self.assertEqual((Result.ACTIVE, 3),
                         (outcome.result, outcome.attempt.ended))

    def test_room_turns_up_after_the_notice(self) -> None:
        self.nova.pinned['h2'] = 2
        current = self.at(Step.SWAP, self.begin(
            self.waiting, 'h2', self.victims))
        self.assertEqual(1, len(current.victims))
        del self.nova.pinned['h2']
        outcome = self.outcome(current)
        self.assertEqual((Result.ACTIVE, 0),
                         (outcome.result, outcome.attempt.ended))
        for victim in self.victims:
            self.assertEqual('ACTIVE', self.status(victim))
            self.assertEqual(set(), fakes.NOTICE & self.nova.servers[
                victim]['metadata'].keys())


class CrowdedTestCase(test_engine.EngineTestCase):
    """The reaper finds out by itself that a filter has no room."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.victims = [
            self.nova.add_server('s', 2, 'h1', preemptible=True)
            for _ in range(3)]

    def test_there_is_room_once_servers_have_ended(self) -> None:
        self.nova.pinned['h1'] = 2
        waiting = self.nova.add_server('w', 2)
        self.turns(40)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(2, len(self.nova.servers.keys() & {*self.victims}))

    def test_there_would_be_none(self) -> None:
        self.nova.pinned['h1'] = -1
        waiting = self.nova.add_server('w', 2)
        self.turns(40)
        self.assertEqual([], self.actions())
        entry = self.shown.entry(waiting)
        assert entry and entry.decision
        self.assertEqual(model.Reason.REFUSED, entry.decision.reason)
        self.assertIn('NUMATopologyFilter', entry.decision.detail)
        # Nova is not asked again before the host changes.
        del self.nova.judged[:]
        self.turns(20)
        self.assertEqual([], self.nova.judged)

    def test_a_full_host(self) -> None:
        self.nova.add_server('s', 2, 'h1', preemptible=True)
        self.nova.pinned['h1'] = 2
        waiting = self.nova.add_server('w', 2)
        self.turns(40)
        # A single end makes room enough by the amounts, and not for Nova.
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual(2, len(self.nova.servers) - 1)

    def test_only_fills(self) -> None:
        self.conf.set_override('mode', 'fill', 'reaper')
        self.nova.pinned['h1'] = 2
        self.nova.add_server('w', 2)
        self.turns(40)
        self.assertEqual([], self.actions())


class NodesTestCase(test_engine.EngineTestCase):
    """A host of two NUMA nodes of four processors; a server is on a node."""

    def setUp(self) -> None:
        super().setUp()
        self.nova.add_host('h1', 8)
        self.node: dict[str, int] = {}
        self.size = 4
        self.nova._by_usage = (  # type: ignore[method-assign]
            self.refused_by)

    def refused_by(self, host: str, server: dict[str, Any],
                   without: Collection[str] = ()) -> str | None:
        free = {0: self.size, 1: self.size}
        for uuid in self.nova._servers_on(host).difference(without):
            if uuid in self.node:
                free[self.node[uuid]] -= (
                    self.nova.servers[uuid]['flavor']['vcpus'])
        return (None if max(free.values()) >= server['flavor']['vcpus']
                else 'NUMATopologyFilter')

    def add(self, node: int, vcpus: int = 2, preemptible: bool = True,
            priority: int = 0, project: str = 'owner', host: str = 'h1'
            ) -> str:
        server = self.nova.add_server(
            's', vcpus, host, preemptible=preemptible, project=project,
            **dict[str, Any]({'reaper:priority': str(priority)}))
        self.node[server] = node
        return server

    def waits(self, *there: str) -> str:
        """Nobody is ended for a server, which is told the filter."""
        waiting = self.nova.add_server('w', 4)
        self.turns(40)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual([], self.actions())
        self.assertEqual([True] * len(there), self.left(*there))
        self.assertIn('NUMATopologyFilter', self.detail(waiting))
        # Nova is not asked again before the host changes.
        del self.nova.judged[:]
        self.turns(20)
        self.assertEqual([], self.nova.judged)
        return waiting

    def built(self, *there: str) -> list[bool]:
        """A server is built; returns which servers are left."""
        waiting = self.nova.add_server('w', 4)
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        return self.left(*there)

    def test_the_cheapest_servers_are_on_different_nodes(self) -> None:
        there = [self.add(node, priority=priority) for node, priority in (
            (0, -2), (0, -1), (1, -2), (1, 0))]
        self.assertEqual([False, False, True, True], self.built(*there))

    def test_a_server_that_is_larger(self) -> None:
        there = [self.add(0), self.add(0, preemptible=False),
                 self.add(1, 3), self.add(1, 1)]
        self.assertEqual([True, True, False, False], self.built(*there))

    def test_room_on_the_host_and_on_no_node(self) -> None:
        """The servers have less than the server that waits asks for."""
        kept = self.add(0, preemptible=False)
        there = [self.add(0, 1), self.add(1, 1), self.add(1, 1)]
        self.assertEqual([True, False, False], self.built(*there))
        self.assertEqual([True], self.left(kept))

    def test_room_on_several_hosts_and_on_no_node(self) -> None:
        self.nova.add_host('h2', 8)
        fixed = [self.add(node, 1, preemptible=False) for node in (0, 1)]
        there = [self.add(node, 1) for node in (0, 1)]
        others = [self.add(0, 1, host='h2'),
                  self.add(1, 1, host='h2', preemptible=False)]
        self.assertEqual([False, True], self.built(*others))
        self.assertEqual([True] * 4, self.left(*fixed, *there))

    def test_no_node_would_be_free(self) -> None:
        there = [self.add(node, preemptible=preemptible)
                 for node in (0, 1) for preemptible in (True, False)]
        waiting = self.waits(*there)
        self.nova.delete(there[1])
        self.engine.source.read_preemptible()
        self.engine._hosts.read('h1', whole=True)
        self.turns(60)
        self.assertEqual('ACTIVE', self.status(waiting))
        self.assertEqual([False, True, True], self.left(there[0], *there[2:]))

    def test_the_servers_of_a_node_may_not_end(self) -> None:
        there = [self.add(node) for node in (0, 0, 1, 1)]
        for server in there[1::2]:
            self.nova.servers[server]['OS-EXT-STS:task_state'] = 'pausing'
        self.waits(*there)

    def test_a_project_may_lose_one(self) -> None:
        self.conf.set_override('max_ends_per_project_hour', 1, 'reaper')
        self.start()
        there = [self.add(node, project=project) for node, project in (
            (0, 'a'), (0, 'a'), (1, 'b'), (1, 'b'))]
        waiting = self.nova.add_server('w', 4)
        self.turns(60)
        self.assertEqual('PENDING', self.status(waiting))
        self.assertEqual([True] * 4, self.left(*there))

    def test_the_host_changes_before_the_swap(self) -> None:
        there = [self.add(node) for node in (0, 1, 0, 1)]

        def change() -> None:
            self.size = 3

        self.change_at(attempts.Step.SWAP, self.nova.add_server('w', 4),
                       change)
        self.assertEqual([True] * 4, self.left(*there))
