# SPDX-License-Identifier: Apache-2.0

"""What the runner of Tempest makes of a cloud, a list and a result."""

import io

import fixtures
from oslo_serialization import jsonutils
import testtools
from testtools import content

from nova.tests.unit.cloud import base
from tools.tempest import configuration
from tools.tempest import main

NEGATIVE = 'tempest.api.compute.test_quotas.QuotasNegativeTest'


def ended(name, status, **details):
    """Return what testtools says of a test that has ended."""
    return {'id': name, 'status': status, 'details': {
        key: content.text_content(text) for key, text in details.items()}}


class ResultsTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.shown = self.useFixture(fixtures.StringStream('stdout')).stream
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.shown))
        self.results = main.Results()

    def take(self, *tests):
        for test in tests:
            self.results.take(test)
        self.results.finish()

    def test_identifier_is_no_part_of_the_name(self):
        self.take(ended('a.B.test_c[id-1,smoke]', 'exists'),
                  ended('a.B.test_c[id-1,smoke]', 'success'))
        self.assertEqual({'a.B.test_c': 'success'}, self.results.outcomes)
        self.assertEqual([], self.results.failed())

    def test_skipped_class(self):
        self.take(ended(NEGATIVE + '.test_a', 'exists'),
                  ended(NEGATIVE + '.test_b', 'exists'),
                  ended('setUpClass (%s)' % NEGATIVE, 'skip'))
        self.assertEqual(
            {NEGATIVE + '.test_a': 'skip', NEGATIVE + '.test_b': 'skip'},
            self.results.outcomes)

    def test_class_whose_set_up_fails(self):
        self.take(ended(NEGATIVE + '.test_a', 'exists'),
                  ended('setUpClass (%s)' % NEGATIVE, 'fail'))
        self.assertEqual(
            ['setUpClass (%s)' % NEGATIVE, NEGATIVE + '.test_a'],
            self.results.failed())

    def test_test_that_was_never_begun_failed(self):
        self.take(ended('a.B.test_c', 'exists'))
        self.assertEqual(['a.B.test_c'], self.results.failed())

    def test_shows_why(self):
        self.take(ended('a.B.test_c', 'fail', traceback='because of this'),
                  ended('a.B.test_d', 'skip', reason='for this'),
                  ended('a.B.test_e', 'success', traceback='of no interest'))
        self.shown.seek(0)
        shown = self.shown.read()
        self.assertIn('because of this', shown)
        self.assertIn('for this', shown)
        self.assertNotIn('of no interest', shown)

    def test_differences(self):
        ours = 'nova_pending_tempest_plugin.tests.test_a.B.test_c'
        self.take(ended('tempest.a', 'success'), ended('tempest.b', 'fail'),
                  ended('tempest.c', 'skip'), ended(ours, 'success'))
        self.assertEqual(
            ['tempest.b: fail, and success in the other run',
             'tempest.c: skip, and not run in the other run',
             'tempest.d: not run, and success in the other run'],
            self.results.differences({
                'tempest.a': 'success', 'tempest.b': 'success',
                'tempest.d': 'success'}))
        self.assertEqual(
            [ours + ': success, and fail in the other run'],
            self.results.differences({**self.results.outcomes, ours: 'fail'}))


class UnsupportedTestCase(testtools.TestCase):

    def read(self, options=(), tests=()):
        return configuration.Unsupported({
            'options': list(options), 'tests': list(tests)})

    def test_file(self):
        unsupported = configuration.Unsupported.read()
        self.assertFalse(unsupported.options['validation']['run_validation'])
        for test in unsupported.tests:
            self.assertRegex(test, main.THEIRS)

    def test_options_of_one_section(self):
        self.assertEqual(
            {'a': {'b': False, 'c': True}},
            self.read(options=[
                {'reason': 'one', 'options': {'a': {'b': False}}},
                {'reason': 'two', 'options': {'a': {'c': True}}}]).options)

    def test_no_reason(self):
        self.assertRaisesRegex(
            ValueError, 'No reason is given', self.read,
            tests=[{'reason': ' ', 'tests': ['a']}])

    def test_twice(self):
        self.assertRaisesRegex(
            ValueError, 'a is listed twice', self.read,
            tests=[{'reason': 'one', 'tests': ['a']},
                   {'reason': 'two', 'tests': ['a']}])


class ConfigurationTestCase(base.CloudTestCase):

    def test_render(self):
        text = configuration.render(
            self.cloud, {'compute': {'image_ref': 'image'}},
            configuration.Unsupported({
                'options': [{'reason': 'none', 'options': {
                    'compute-feature-enabled': {'resize': False}}}],
                'tests': []}), self.state, 'fill')
        lines = text.splitlines()
        self.assertIn('uri_v3 = http://127.0.0.1:20000/v3', lines)
        self.assertIn('image_ref = image', lines)
        self.assertIn('nova_pending = true', lines)
        self.assertIn('reaper_mode = fill', lines)
        # The list has the last word, and no section is there twice.
        self.assertIn('resize = false', lines)
        self.assertNotIn('resize = true', lines)
        sections = [line for line in lines if line.startswith('[')]
        self.assertEqual(sorted(set(sections)), sorted(sections))


class MainTestCase(testtools.TestCase):
    """The command line, without a cloud."""

    def setUp(self):
        super().setUp()
        self.folder = self.useFixture(fixtures.TempDir())
        self.useFixture(fixtures.MonkeyPatch(
            'signal.signal', lambda *_: None))
        self.useFixture(fixtures.EnvironmentVariable('no_proxy'))
        self.useFixture(fixtures.EnvironmentVariable('NO_PROXY'))
        self.shown = io.StringIO()
        self.useFixture(fixtures.MonkeyPatch('sys.stdout', self.shown))
        self.useFixture(fixtures.MonkeyPatch(
            'tools.tempest.main._TEMPEST', self.folder.join('tempest')))
        self.cloud = self.useFixture(fixtures.MockPatch(
            'tools.tempest.main.Cloud')).mock
        self.tests = {'tempest.a': 'success'}
        self.useFixture(fixtures.MonkeyPatch(
            'tools.tempest.main._prepare', lambda *_: self._configure))
        self.modes = []
        self.useFixture(fixtures.MonkeyPatch(
            'tools.tempest.main._test', self._test))

    def _configure(self, mode):
        self.modes.append(mode)

    def _test(self, args, folder, excluded, results):
        self.excluded = excluded
        results.outcomes.update(self.tests)

    def test_all_passed(self):
        path = self.folder.join('saved')
        self.assertEqual(0, main.main(['--save', path]))
        with open(path) as file:
            self.assertEqual(self.tests, jsonutils.loads(file.read()))
        self.assertEqual('1 passed, 0 failed, 0 skipped',
                         self.shown.getvalue().splitlines()[-1])
        self.cloud.return_value.down.assert_called_once_with()

    def test_one_failed(self):
        self.tests['tempest.b'] = 'fail'
        self.assertEqual(1, main.main([]))
        self.assertIn('tempest.b\n1 passed, 1 failed',
                      self.shown.getvalue())

    def test_no_test_ran(self):
        self.tests.clear()
        self.assertEqual(1, main.main([]))
        self.assertIn('No test ran.', self.shown.getvalue())

    def test_another_outcome_than_elsewhere(self):
        path = self.folder.join('saved')
        with open(path, 'w') as file:
            jsonutils.dump({'tempest.a': 'skip'}, file)
        self.assertEqual(1, main.main(['--stock', '--compare', path]))
        self.assertIs(True, self.cloud.call_args.kwargs['stock'])
        self.assertIs(False, self.cloud.call_args.kwargs['reaper'])
        self.assertEqual(['none'], self.modes)
        self.assertIn('tempest.a: success, and skip', self.shown.getvalue())

    def test_tests_of_the_reaper_come_last_and_alone(self):
        self.assertEqual(0, main.main(['--ours']))
        self.assertIs(True, self.cloud.call_args.kwargs['reaper'])
        self.assertEqual(['observe', 'preempt'], self.modes)
        last, = self.excluded
        name = 'nova_pending_tempest_plugin.tests.test_%s.A.test_b'
        self.assertNotRegex(name % 'reaper', last)
        self.assertRegex(name % 'pending', last)
        self.assertRegex('tempest.api.compute.A.test_b', last)
        self.assertRegex(name % 'reaper', main.REAPER)

    def test_on_the_branch(self):
        self.assertEqual(0, main.main(['--ours', '--in-tree', '/in-tree']))
        self.assertEqual('/in-tree', self.cloud.call_args.kwargs['in_tree'])
        self.assertIs(True, self.cloud.call_args.kwargs['reaper'])
        self.assertEqual(['observe', 'preempt'], self.modes)

    def test_cloud_goes_down_where_it_does_not_come_up(self):
        self.useFixture(fixtures.MonkeyPatch('sys.stderr', io.StringIO()))
        cloud = self.cloud.return_value
        cloud.up.side_effect = main.errors.CloudError('no room')
        self.assertEqual(3, main.main([]))
        cloud.down.assert_called_once_with()

    def test_none_of_our_tests_runs_without_the_layer(self):
        self.useFixture(fixtures.MonkeyPatch('sys.stderr', io.StringIO()))
        for words in (['--ours', '--stock'], ['--in-tree', '--stock']):
            error = self.assertRaises(SystemExit, main.main, words)
            self.assertEqual(2, error.code)
