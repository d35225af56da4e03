# SPDX-License-Identifier: Apache-2.0

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

    def test_the_cloud_does_not_come_up(self):
        self.assertEqual(['Seed 7: no round was run'], self.report.summary())

    def test_nothing_is_wrong(self):
        self.report.count('rebuilds', 2)
        self.report.count('rebuilds')
        self.assertEqual(
            ['Seed 7:', '       3  rebuilds', '  no violation'],
            self.report.summary())
        self.assertEqual(0, self.report.exit_code)
