# SPDX-License-Identifier: Apache-2.0

"""What tests of steps share: an actor in a cloud of this process."""

from concurrent import futures
from typing import Any
from unittest import mock

import fixtures
from oslo_utils import timeutils

from nova_reaper.act import attempts
from nova_reaper.act import ending
from nova_reaper.act import steps
from nova_reaper.clients import rest
from nova_reaper.clients import shapes
from nova_reaper.cloud import model
from nova_reaper.events import reader
from nova_reaper.report import health
from nova_reaper import tests
from nova_reaper.tests import fakes

SOON = 1e9


class ActingTestCase(tests.TestCase):
    """An actor, a Nova and a real Placement; the clock is the test's."""

    options: dict[str, Any] = {}

    def setUp(self) -> None:
        super().setUp()
        self.room: fakes.PlacementFixture = self.useFixture(
            fakes.PlacementFixture())
        self.nova = fakes.Nova(self.room)
        self.now = 1000.0
        self.useFixture(fixtures.MockPatch(
            'time.monotonic', lambda: self.now))
        self.mode = model.Mode.PREEMPT
        self.metrics = health.Metrics()
        self.conf = fakes.configuration(
            **({'mode': 'preempt', 'grace_period': 0, 'stop_timeout': 0} |
               self.options))
        self.actor = self.new_actor()

    def new_actor(self) -> steps.Actor:
        source = reader.Reader(
            self.nova.nova, self.room.placement,
            mock.Mock(spec=rest.Keystone),
            mock.Mock(spec=futures.Executor), self.conf)
        self.book = fakes.book(self.conf)
        self.ends = ending.Victims(
            self.conf, self.nova.nova, self.book,
            self.metrics, source)
        return steps.Actor(
            self.conf, self.nova.nova, self.room.placement, self.room.holds,
            self.ends, self.nova.owners, self.metrics, self.book,
            lambda: self.mode)

    def begin(self, server: str, host: str = 'h1',
              victims: tuple[str, ...] = (), **changes: Any
              ) -> attempts.Attempt:
        item = self.nova.nova.server(server)
        query = shapes.query(item)
        if item.waits:
            query = self.nova.nova.pending(server).requests[0]
        waiting = model.Waiting(
            id=server, shape=shapes.shape(query, '', {}),
            created_at=timeutils.utcnow(True),
            project=item.project, name=item.name, shelved=item.shelved,
            attempts=1, requests=(query,))
        return attempts.Attempt(
            waiting, host, self.nova.hosts[host],
            victims=tuple(attempts.Victim(
                victim, 'v', 'owner', shapes.action(
                    self.nova.nova.server(victim), 40)) for victim in victims),
            **{'since': self.now} | changes)

    def to(self, step: attempts.Step | None, current: attempts.Attempt,
           actor: steps.Actor | None = None
           ) -> attempts.Attempt | attempts.Outcome:
        """Advance until the step is the next one, or there is an outcome."""
        for _ in range(500):
            result = (actor or self.actor).advance(current)
            if isinstance(result, attempts.Outcome):
                return result
            current = result
            self.now = max(self.now, current.wake_at)
            if current.step == step:
                return current
        raise AssertionError(f'It stays at {current}.')

    def outcome(self, current: attempts.Attempt) -> attempts.Outcome:
        result = self.to(None, current)
        assert isinstance(result, attempts.Outcome)
        return result

    def at(self, step: attempts.Step, current: attempts.Attempt
           ) -> attempts.Attempt:
        result = self.to(step, current)
        assert isinstance(result, attempts.Attempt), result
        return result

    def actions(self) -> list[str]:
        return [action for action, _ in self.nova.calls]

    def value(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(
            f'nova_reaper_{name}', labels) or 0.0
