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

from concurrent import futures
from unittest import mock

from nova_reaper.events import jobs
from nova_reaper import tests


class LineTestCase(tests.TestCase):
    """Two of those that stand in line run at a time."""

    def setUp(self) -> None:
        super().setUp()
        self.pool = mock.Mock(spec=futures.Executor)
        self.jobs = jobs.Jobs(self.pool, mock.Mock(), mock.Mock(), 2)
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
