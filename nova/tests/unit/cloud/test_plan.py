# SPDX-License-Identifier: Apache-2.0

import threading

import testtools

from tools.cloud import errors
from tools.cloud import plan


class PlanTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.plan = plan.Plan()
        self.ran = []
        self.aborted = []

    def run_plan(self):
        self.done = []
        self.plan.run(lambda name, seconds: self.done.append(name),
                      lambda: self.aborted.append(True))

    def add(self, name, *needs):
        self.plan.add(name, lambda: self.ran.append(name), *needs)

    def test_step_comes_after_all_that_it_needs(self):
        self.add('last', 'middle', 'first')
        self.add('middle', 'first')
        self.add('first')
        self.run_plan()
        self.assertEqual(['first', 'middle', 'last'], self.ran)
        self.assertEqual(self.ran, self.done)
        self.assertEqual([], self.aborted)

    def test_steps_that_do_not_need_one_another_run_side_by_side(self):
        meeting = threading.Barrier(3, timeout=20)
        for name in ('one', 'two', 'three'):
            self.plan.add(name, meeting.wait)
        self.run_plan()
        self.assertEqual({'one', 'two', 'three'}, set(self.done))

    def test_only_the_steps_that_are_named_run(self):
        started = []
        self.add('last', 'middle')
        self.add('middle', 'first')
        self.add('first')
        self.plan.run(lambda *_: None, None, {'first', 'last'},
                      started.append)
        self.assertEqual({'first', 'last'}, set(self.ran))
        self.assertEqual(set(self.ran), set(started))
        self.plan.run(lambda *_: None, None, set())

    def test_steps_that_need_a_step(self):
        self.add('first')
        self.add('middle', 'first')
        self.plan.add('last', None, 'middle', once=True)
        self.assertEqual({'middle'}, self.plan.needing('first'))
        self.assertEqual({'last'}, self.plan.once)

    def test_failure_is_raised_and_nothing_that_needs_it_runs(self):
        def fail():
            raise errors.CloudError('no')

        self.plan.add('fails', fail)
        self.add('later', 'fails')
        error = self.assertRaises(errors.CloudError, self.run_plan)
        self.assertEqual('no', str(error))
        self.assertEqual([], self.ran)
        self.assertEqual([True], self.aborted)

    def test_failure_ends_what_other_steps_are_waiting_for(self):
        ended = threading.Event()

        def fail():
            raise errors.CloudError('no')

        self.plan.add('waits', lambda: self.assertTrue(ended.wait(20)))
        self.plan.add('fails', fail)
        self.assertRaises(errors.CloudError, self.plan.run,
                          lambda *args: None, ended.set)

    def test_signal_in_the_main_thread_ends_the_steps(self):
        ended = threading.Event()

        def interrupt(name, seconds):
            raise errors.Interrupted(15)

        self.plan.add('waits', lambda: self.assertTrue(ended.wait(20)))
        self.add('first')
        self.assertRaises(errors.Interrupted, self.plan.run, interrupt,
                          ended.set)

    def test_seconds_of_a_step_are_told(self):
        told = {}
        self.plan.add('waits', lambda: threading.Event().wait(0.2))
        self.plan.run(told.__setitem__, lambda: None)
        self.assertGreaterEqual(told['waits'], 0.2)
        self.assertLess(told['waits'], 10)
