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

import testtools

from tools.chaos import report


class ReportTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.lines = []
        self.report = report.Report(7, self.lines.append)

    def test_violation_is_told_with_seed_round_and_server(self):
        self.report.begin(3)
        self.report.wrong('ports', 'two of them', 'abc')
        self.assertThat(self.lines[0], testtools.matchers.EndsWith(
            'VIOLATION seed 7 round 3 server abc: ports: two of them'))
        self.assertEqual(1, self.report.exit_code)
        self.assertEqual(['Seed 7:', '       1  violations: ports'],
                         self.report.summary())

    def test_nothing_is_wrong(self):
        self.report.count('rebuilds', 2)
        self.report.count('rebuilds')
        self.assertEqual(
            ['Seed 7:', '       3  rebuilds', '  no violation'],
            self.report.summary())
        self.assertEqual(0, self.report.exit_code)
