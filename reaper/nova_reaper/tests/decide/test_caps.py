# SPDX-License-Identifier: Apache-2.0

"""How many servers of a project are ended in an hour."""

from typing import Any

from nova_reaper.tests import test_engine


class CapTestCase(test_engine.EngineTestCase):
    """Three hosts with a preemptible server each; who waits needs one."""

    def setUp(self) -> None:
        super().setUp()
        for host in ('h1', 'h2', 'h3'):
            self.nova.add_host(host, 8)
            self.nova.add_server('s', 8, host, preemptible=True)

    def cap(self, most: int, **options: Any) -> None:
        options['max_ends_per_project_hour'] = most
        for name, value in options.items():
            self.conf.set_override(name, value, 'reaper')

    def serve(self) -> str | None:
        waiting = self.nova.add_server('w', 8, project='other')
        self.turns(30, 10)
        return self.status(waiting)

    def test_two(self) -> None:
        self.cap(2)
        self.assertEqual(['ACTIVE', 'ACTIVE', 'PENDING'],
                         [self.serve() for _ in range(3)])

    def test_counted_in_every_mode(self) -> None:
        self.cap(1)
        self.assertEqual('ACTIVE', self.serve())
        self.conf.set_override('mode', 'observe', 'reaper')
        self.assertEqual('PENDING', self.serve())
        self.conf.set_override('mode', 'preempt', 'reaper')
        self.assertEqual('PENDING', self.serve())
        self.assertEqual(1, self.actions().count('forceDelete'))

    def test_what_was_only_looked_at_is_not_counted(self) -> None:
        self.cap(1, mode='observe')
        self.assertEqual('PENDING', self.serve())
        self.conf.set_override('mode', 'preempt', 'reaper')
        self.assertEqual('PENDING', self.serve())
        self.assertEqual(1, self.actions().count('forceDelete'))

    def test_one_that_came_to_nothing(self) -> None:
        self.cap(1, grace_period=100000)
        first = self.nova.add_server('w', 8, project='other')
        self.turns(5)
        self.assertIn(first, self.engine.attempts.under_way)
        self.nova.delete(first)
        self.turns(30)
        self.cap(1, grace_period=0)
        self.assertEqual('ACTIVE', self.serve())
