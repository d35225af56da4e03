# SPDX-License-Identifier: Apache-2.0

"""What keeps the reaper from something is logged once, and seen to end."""

import fixtures

from nova_reaper.events import bus
from nova_reaper.tests import test_engine


class DegradedTestCase(test_engine.EngineTestCase):
    """A host, and a preemptible server that leaves no room on it."""

    def setUp(self) -> None:
        super().setUp()
        self.log = self.useFixture(fixtures.FakeLogger())
        self.nova.add_host('h1', 8)
        self.victim = self.nova.add_server('s', 8, 'h1', preemptible=True)

    def said(self, text: str) -> int:
        """How many lines of the log have a text."""
        return int(self.log.output.count(text))

    def test_nova_is_one_that_can_be_used_by_now(self) -> None:
        waiting = self.nova.add_server('w', 8)
        self.nova.has_reason = False
        self.turns(3)
        self.assertEqual('PENDING', self.status(waiting))
        self.nova.has_reason = True
        self.turns(20, 61)
        self.assertEqual('ACTIVE', self.status(waiting))

    def test_notifications_fall_silent(self) -> None:
        begins = 'Degraded: notifications: none for '
        over = 'Not degraded any more: notifications: last one'
        for count in (1, 2):
            self.engine.guard.event(bus.Kind.HOST)
            self.turns(13, 61)
            self.assertEqual(count - 1, self.said(begins))
            self.turns(25, 61)
            self.assertEqual((count, count - 1),
                             (self.said(begins), self.said(over)))
            self.engine.guard.event(bus.Kind.HOST)
            for _ in range(2):
                self.engine.guard.tell()
            self.assertEqual((count, count),
                             (self.said(begins), self.said(over)))

    def test_who_stands_by_does_not_listen(self) -> None:
        guard = self.engine.guard
        guard.event(bus.Kind.HOST)
        for _ in range(2):
            guard.active = False
            self.offset += 10000
            guard.tell()
            guard.active = True
            guard.tell()
            self.assertEqual('ok', guard._check_notifications().status)
        self.assertEqual(0, self.said('Degraded'))
        self.offset += 10000
        guard.tell()
        self.assertEqual(1, self.said('Degraded'))

    def test_notifications_are_turned_off(self) -> None:
        self.conf.set_override('enabled', False, 'notifications')
        self.turns(30, 61)
        self.assertEqual(1, self.said('Degraded: notifications: turned off'))

    def test_what_could_not_be_read_once(self) -> None:
        self.turns(5)
        for what in ('sweep', 'list of what has changed'):
            self.engine.guard.failed(what, 'no answer')
            check = self.engine.guard._check_lists()
            self.assertEqual('degraded', check.status)
            self.turns(12, 61)
            check = self.engine.guard._check_lists()
            self.assertEqual('ok', check.status, check.detail)
