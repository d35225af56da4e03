# SPDX-License-Identifier: Apache-2.0

import dataclasses

import testtools

from tools.chaos import draw

_SERVICES = ('nova-api', 'nova-compute@a', 'nova-compute@b')


class DrawTestCase(testtools.TestCase):

    def draw(self, seed=1, number=0, **others):
        return draw.draw(seed, number, **{
            'servers': 7, 'services': _SERVICES, 'faults': 50, 'span': 30,
            'longest': 16, **others})

    def test_round_is_the_same_again(self):
        self.assertEqual(self.draw(number=3), self.draw(number=3))

    def test_seed_and_number_make_a_difference(self):
        faults = self.draw().faults
        self.assertNotEqual(faults, self.draw(seed=2).faults)
        self.assertNotEqual(faults, self.draw(number=1).faults)

    def test_faults_are_ordered_within_the_span_and_of_all_services(self):
        faults = self.draw().faults
        moments = [fault.at for fault in faults]
        self.assertEqual(sorted(moments), moments)
        self.assertTrue(0 <= moments[0] <= moments[-1] <= 30)
        self.assertEqual(set(_SERVICES), {fault.service for fault in faults})

    def test_services_die_and_hang_for_a_time(self):
        hangs = [fault.hangs for fault in self.draw().faults]
        self.assertIn(0, hangs)
        self.assertTrue(0.5 <= max(hangs) <= 16)
        self.assertEqual([], [each for each in hangs if 0 < each < 0.5])

    def test_all_kinds_of_servers_are_there_and_all_are_rebuilt(self):
        drawn = self.draw()
        self.assertEqual(set(draw.KINDS), set(drawn.kinds))
        self.assertEqual((7, 7), (len(drawn.kinds), len(drawn.asked_at)))

    def test_creates_change_nothing_else(self):
        drawn = self.draw(creates=4)
        self.assertEqual(draw.CREATED * 2,
                         tuple(kind for _at, kind in drawn.creates))
        self.assertTrue(all(0 <= at <= 30 for at, _kind in drawn.creates))
        self.assertEqual(self.draw(), dataclasses.replace(drawn, creates=()))

    def test_fault_is_told(self):
        self.assertEqual('2.0 s: x is killed', str(draw.Fault(2, 'x', 0)))
        self.assertEqual('2.0 s: x hangs for 3.1 s',
                         str(draw.Fault(2, 'x', 3.14)))

    def test_services_are_chosen_with_and_without_their_host(self):
        self.assertEqual(['nova-compute@a', 'nova-compute@b'],
                         draw.chosen(['nova-compute'], _SERVICES))
        self.assertEqual(['nova-api', 'nova-compute@b'], draw.chosen(
            ['nova-compute@b', 'nova-api'], _SERVICES))

    def test_unknown_service_is_refused(self):
        error = self.assertRaises(
            ValueError, draw.chosen, ['nova'], _SERVICES)
        self.assertIn('nova-compute@a', str(error))

    def test_who_survives_hangs(self):
        faults = self.draw(
            services=['nova-compute@a', 'nova-api'], faults=50,
            survives=('nova-compute',)).faults
        self.assertEqual({True, False}, {
            bool(fault.hangs) for fault in faults
            if fault.service == 'nova-api'})
        self.assertEqual({True}, {
            bool(fault.hangs) for fault in faults
            if fault.service == 'nova-compute@a'})
