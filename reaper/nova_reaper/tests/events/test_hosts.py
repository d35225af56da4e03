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

"""Which hosts are read, and when."""

from concurrent import futures
from unittest import mock

from nova_reaper.cloud import world
from nova_reaper.events import jobs
from nova_reaper.events import reader
from nova_reaper import tests


class HostsTestCase(tests.TestCase):
    """Ten hosts; two that have time are read at once."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = mock.Mock(spec=futures.Executor)
        self.jobs = jobs.Jobs(self.pool, mock.Mock(), mock.Mock())
        self.source = mock.Mock(spec=reader.Reader)
        self.source.hypervisors = {f'h{number}': mock.Mock()
                                   for number in range(10)}
        self.world = mock.Mock(spec=world.World)
        self.world.views = {}
        self.apply = mock.Mock()
        self.hosts = jobs.Hosts(self.source, self.world, self.jobs,
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
        self.world.views = {'h1': mock.sentinel.view}
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
