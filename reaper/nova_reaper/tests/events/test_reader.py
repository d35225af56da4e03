# SPDX-License-Identifier: Apache-2.0

"""Jobs in other threads, and which hosts are read by them, and when."""

from concurrent import futures
from typing import Any
from unittest import mock

from nova_reaper.events import reader
from nova_reaper import tests


class LineTestCase(tests.TestCase):
    """Two of those that stand in line run at a time."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = mock.Mock(spec=futures.Executor)
        self.jobs = reader.Jobs(self.pool, mock.Mock(), mock.Mock(), 2)
        self.done: list[str] = []

    def line_up(self, name: str, result: str) -> None:
        self.jobs.line_up(name, lambda: result, self.done.append)

    def finish(self) -> None:
        call = self.pool.submit.call_args_list.pop(0)
        call.args[0](*call.args[1:])
        self.jobs.take()

    def test_others_do_not_stand_behind_them(self) -> None:
        for number in range(5):
            self.line_up(f'server {number}', str(number))
        self.assertEqual(2, self.pool.submit.call_count)
        self.assertIn('server 4', self.jobs)
        self.jobs.start('attempt', lambda: 'a', self.done.append)
        self.assertEqual(3, self.pool.submit.call_count)
        while not self.jobs.idle:
            self.finish()
        self.assertEqual(['0', '1', 'a', '2', '3', '4'], self.done)

    def test_one_in_line_is_done_once(self) -> None:
        for result in ('first', 'second', 'third', 'last'):
            self.line_up('server', result)
        self.line_up('other', 'other')
        self.line_up('waits', 'old')
        self.line_up('waits', 'new')
        while not self.jobs.idle:
            self.finish()
        # What ran did not see any more what it was asked for again.
        self.assertEqual(['first', 'other', 'last', 'new'], self.done)


class HostsTestCase(tests.TestCase):
    """Ten hosts; two that have time are read at once."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = mock.Mock(spec=futures.Executor)
        self.jobs = reader.Jobs(self.pool, mock.Mock(), mock.Mock())
        self.source = mock.Mock(spec=reader.Reader)
        self.source.hypervisors = {f'h{number}': mock.Mock()
                                   for number in range(10)}
        self.views: dict[str, Any] = {}
        self.apply = mock.Mock()
        self.hosts = reader.Hosts(self.source, self.views, self.jobs,
                                 self.apply, 2)

    def finish(self, count: int) -> list[str]:
        """Do the first jobs; returns the hosts that they have read."""
        calls = self.pool.submit.call_args_list[:count]
        del self.pool.submit.call_args_list[:count]
        self.source.read_host.reset_mock()
        for call in calls:
            call.args[0](*call.args[1:])
        self.jobs.take()
        return [call.args[0] for call in self.source.read_host.call_args_list]

    def test_a_flood_stands_in_nobodys_way(self) -> None:
        for number in range(9):
            self.hosts.read_later(f'h{number}')
        self.hosts.go_on(False)
        self.hosts.read('h9')
        self.hosts.go_on(False)
        self.assertEqual(['h0', 'h1', 'h9'], self.finish(3))
        self.hosts.go_on(False)
        self.assertEqual(['h2', 'h3'], self.finish(2))

    def test_one_at_a_time_beside_attempts(self) -> None:
        for number in range(9):
            self.hosts.read_later(f'h{number}')
        for number in range(3):
            self.hosts.go_on(True)
            self.assertEqual([f'h{number}'], self.finish(9))

    def test_what_is_read_now_is_not_read_later(self) -> None:
        for _ in range(3):
            self.hosts.read_later('h1')
        self.hosts.read('h1')
        self.hosts.go_on(False)
        self.assertEqual(['h1'], self.finish(9))
        self.hosts.go_on(False)
        self.assertEqual([], self.finish(9))

    def test_what_changes_while_it_is_read_is_read_again(self) -> None:
        self.hosts.read('h1')
        self.hosts.read_later('h1')
        self.hosts.go_on(False)
        self.hosts.read('h1')
        self.assertEqual(['h1'], self.finish(9))
        self.assertEqual(['h1'], self.finish(9))
        self.assertEqual([], self.finish(9))
        self.assertEqual(2, self.apply.call_count)

    def test_all_of_it_is_read_again_if_anybody_wants_that(self) -> None:
        self.views['h1'] = mock.sentinel.view
        self.hosts.read('h1')
        self.hosts.read('h1', whole=True)
        self.hosts.read('h1')
        read = self.source.read_host
        self.finish(1)
        read.assert_called_once_with('h1', before=mock.sentinel.view)
        self.finish(1)
        read.assert_called_once_with('h1', before=None)

    def test_a_host_that_nobody_knows(self) -> None:
        self.hosts.read_later('h17')
        self.hosts.read_later('')
        self.hosts.go_on(False)
        self.hosts.read('h18')
        self.assertEqual([], self.finish(9))

    def test_another_acts(self) -> None:
        for number in range(9):
            self.hosts.read_later(f'h{number}')
        self.hosts.go_on(False)
        self.hosts.forget()
        self.assertEqual(['h0', 'h1'], self.finish(9))
        self.hosts.go_on(False)
        self.assertEqual([], self.finish(9))
