# SPDX-License-Identifier: Apache-2.0

"""What the runner of the released suites says about what it ran."""

import contextlib
import io
import pathlib
import subprocess
import sys
from unittest import mock

import fixtures
import testtools

import nova_pending

TOOLS = pathlib.Path(__file__).resolve().parents[4] / 'tools'

SUITE = '''
import os
import unittest


class Servers(unittest.TestCase):
    def test_as_released(self):
        pass

    def test_newest_microversion(self):
        # Fails with the layer and passes without it.
        self.assertEqual('off', os.environ['NOVA_PENDING'])

    def test_template(self):
        self.fail('no template')

    def test_elsewhere(self):
        self.skipTest('not on this machine')
'''

SCENARIOS = '''
import unittest

import testscenarios


class Views(testscenarios.WithScenarios, unittest.TestCase):
    scenarios = [('v2', {}), ('v2_1', {})]

    def test_show(self):
        pass
'''

OURS = 'nova.tests.unit.test_ours.Ours.test_newest_microversion'
BASE = 'nova.tests.unit.test_servers.Servers.'


class ReleasedSuitesTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'sys.path', [str(TOOLS)] + sys.path))
        import harness
        import released_suites
        self.runner = released_suites
        self.root = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.site = self.root / 'site'
        for name in released_suites.SUITES:
            self.write('site/nova/tests/%s/__init__.py' % name, '')
        self.write('site/nova/tests/__init__.py', '')
        self.write('site/nova/__init__.py', '')
        self.write('site/nova/tests/unit/test_servers.py', SUITE)
        self.expect(
            [{'reason': 'no template', 'tests': [BASE + 'test_template']}],
            [{'reason': 'it is ours', 'counterpart': OURS,
              'tests': [BASE + 'test_newest_microversion']}])
        for target, value in (
                (harness, {'site': mock.Mock(return_value=self.site),
                           'link_etc': mock.DEFAULT,
                           'fetch_documents': mock.DEFAULT}),
                (released_suites, {
                    'ROOT': self.root, 'LISTS': self.root,
                    'newest': mock.Mock(return_value=True),
                    'our_tests': mock.Mock(return_value={OURS})})):
            patch = mock.patch.multiple(target, **value)
            patch.start()
            self.addCleanup(patch.stop)

    def write(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def expect(self, without_the_layer_too, by_design,
               not_on_native_threads=()):
        # JSON is YAML.
        self.write('expected.yaml', str({
            'not_on_native_threads': list(not_on_native_threads),
            'without_the_layer_too': without_the_layer_too,
            'by_design': by_design}))

    def run_suites(self, *arguments):
        """Return the exit code and what was printed, in lines."""
        output = io.StringIO()
        with mock.patch('sys.argv', ['released_suites.py', *arguments]), \
                contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(output):
            try:
                code = self.runner.main()
            except SystemExit as exc:
                code = exc.code
        return code, output.getvalue().splitlines()

    def assertRefused(self, sentence, end, *arguments):
        code, lines = self.run_suites(*arguments)
        self.assertEqual((1, end), (code, lines[-1]), lines)
        self.assertIn(sentence, lines)

    def test_what_fails_as_listed_is_no_failure(self):
        code, lines = self.run_suites('unit')
        self.assertEqual(0, code, lines)
        self.assertEqual('1 passed, 0 failed, 1 skipped', lines[-1])
        self.assertThat(lines[-2], testtools.matchers.MatchesRegex(
            r'unit, (native threads|eventlet): 4 tests in \d+ s, 2 listed '
            r'tests failed: 1 without the layer too, 1 by design'))

    def test_our_tests_can_run_afterwards(self):
        self.run_suites('unit')
        subprocess.run([sys.executable, '-m', 'stestr', 'init'],
                       cwd=self.root, check=True, capture_output=True)
        self.assertTrue((self.root / '.stestr/format').exists())

    def test_an_unlisted_failure_is_told_with_its_traceback(self):
        self.expect([], [{
            'reason': 'it is ours', 'counterpart': OURS,
            'tests': [BASE + 'test_newest_microversion']}])
        self.assertRefused('not listed: ' + BASE + 'test_template',
                           '1 passed, 1 failed, 1 skipped', 'unit')
        self.assertIn('no template', '\n'.join(self.run_suites('unit')[1]))

    def test_a_listed_test_that_passes_is_refused(self):
        self.expect([{'reason': 'none', 'tests': [
            BASE + 'test_template', BASE + 'test_as_released']}],
            [{'reason': 'it is ours', 'counterpart': OURS,
              'tests': [BASE + 'test_newest_microversion']}])
        self.assertRefused(
            'listed, but it does not fail: ' + BASE + 'test_as_released',
            '1 passed, 0 failed, 1 skipped', 'unit')

    def test_tests_that_the_branch_edits_may_fail(self):
        """Of the tests that ddt makes of one, some have to fail."""
        self.write('site/nova/tests/unit/test_servers.py', SUITE + '''
    def test_edited(self):
        self.fail('edited')

    def test_edited_1__True_(self):
        pass

    test_edited_2__False_ = test_edited
    del test_edited
''')
        by_design = [{'reason': 'it is ours', 'counterpart': OURS,
                      'tests': [BASE + 'test_newest_microversion']}]
        template = [{'reason': 'no template',
                     'tests': [BASE + 'test_template']}]
        self.expect(template, by_design)
        self.assertRefused('not listed: ' + BASE + 'test_edited_2__False_',
                           '2 passed, 1 failed, 1 skipped', 'unit')
        by_design.append({'reason': 'it is edited', 'counterpart': OURS,
                          'edit': 'nova/tests/unit/test_servers.py'})
        self.expect(template, by_design)
        tests_of = mock.patch.object(
            self.runner.edits, 'tests_of',
            return_value={BASE + 'test_edited'})
        with tests_of as derive:
            code, lines = self.run_suites('unit')
            self.assertEqual((0, '2 passed, 0 failed, 1 skipped'),
                             (code, lines[-1]), lines)
            derive.assert_called_once_with(
                'nova/tests/unit/test_servers.py', self.site,
                nova_pending.check_environment())
            derive.return_value = {BASE + 'test_as_released'}
            self.assertRefused(
                'listed, but it does not fail: ' + BASE + 'test_as_released',
                '2 passed, 1 failed, 1 skipped', 'unit')

    def test_a_listed_test_that_is_not_in_the_suite_is_refused(self):
        gone = BASE + 'test_gone'
        self.expect(
            [{'reason': 'none', 'tests': [BASE + 'test_template', gone]}],
            [{'reason': 'it is ours', 'counterpart': OURS,
              'tests': [BASE + 'test_newest_microversion']}])
        self.assertRefused('listed, but it does not fail: ' + gone,
                           '1 passed, 0 failed, 1 skipped', 'unit')

    def test_a_part_is_judged_by_what_it_ran(self):
        code, lines = self.run_suites(BASE + 'test_as_released')
        self.assertEqual((0, '1 passed, 0 failed, 0 skipped'),
                         (code, lines[-1]), lines)

    def test_the_part_of_a_suite_is_what_its_list_names(self):
        self.write('part.yaml', str({
            'unit': [BASE + 'test_as_released', BASE + 'test_elsewhere'],
            'functional': []}))
        code, lines = self.run_suites('--part', 'unit')
        self.assertEqual((0, '1 passed, 0 failed, 1 skipped'),
                         (code, lines[-1]), lines)

    def test_a_part_that_is_not_there_is_refused(self):
        self.assertRefused(
            'no test ran: nova.tests.unit.test_gone',
            '1 passed, 0 failed, 0 skipped',
            BASE + 'test_as_released', 'nova.tests.unit.test_gone')

    def test_a_part_may_be_missing_in_an_older_release(self):
        self.runner.newest.return_value = False
        code, lines = self.run_suites(
            BASE + 'test_as_released', 'nova.tests.unit.test_gone')
        self.assertEqual((0, '1 passed, 0 failed, 0 skipped'),
                         (code, lines[-1]), lines)

    def test_a_suite_without_tests_is_refused(self):
        self.assertRefused('no test ran: functional',
                           '0 passed, 0 failed, 0 skipped', 'functional')

    def test_a_counterpart_that_is_not_there_is_refused(self):
        self.runner.our_tests.return_value = set()
        self.assertRefused('a counterpart that is not there: ' + OURS,
                           '1 passed, 0 failed, 1 skipped', 'unit')

    def test_without_the_layer_only_the_first_list_counts(self):
        code, lines = self.run_suites('--without-layer', 'unit')
        self.assertEqual((0, '2 passed, 0 failed, 1 skipped'),
                         (code, lines[-1]), lines)

    def test_what_is_not_run_on_native_threads(self):
        self.write('site/nova/tests/unit/test_servers.py', SUITE + '''
    def test_crash(self):
        pass

    def test_crash_twice(self):
        pass
''')
        self.expect([{'reason': 'no template',
                      'tests': [BASE + 'test_template']}],
                    [{'reason': 'it is ours', 'counterpart': OURS,
                      'tests': [BASE + 'test_newest_microversion']}],
                    [{'reason': 'it hangs', 'tests': [BASE + 'test_crash']}])
        sentence = 'not run on native threads: ' + BASE + 'test_crash'
        for value, passed in (('True', 2), ('False', 3), ('', 3)):
            self.useFixture(fixtures.EnvironmentVariable(
                'OS_NOVA_DISABLE_EVENTLET_PATCHING', value))
            code, lines = self.run_suites('unit')
            self.assertEqual(
                (0, '%d passed, 0 failed, 1 skipped' % passed),
                (code, lines[-1]), lines)
            self.assertEqual(passed == 2, sentence in lines)

    def test_a_process_that_dies_is_a_failure(self):
        self.write('site/nova/tests/unit/test_servers.py', SUITE + '''
    def test_dies(self):
        os._exit(9)
''')
        code, lines = self.run_suites('--concurrency', '1', 'unit')
        self.assertEqual(1, code, lines)
        for name in ('test_dies', 'test_elsewhere'):
            # The second was to run after the first in that process.
            self.assertIn('not listed: ' + BASE + name, lines)

    def test_a_test_with_scenarios_counts_once_for_each(self):
        self.write('site/nova/tests/unit/test_views.py', SCENARIOS)
        code, lines = self.run_suites('nova.tests.unit.test_views')
        self.assertEqual((0, '2 passed, 0 failed, 0 skipped'),
                         (code, lines[-1]), lines)

    def test_an_unknown_suite_is_refused(self):
        code, lines = self.run_suites('integration')
        self.assertEqual(2, code)
        self.assertIn('integration is neither unit, functional nor in one of '
                      'the two', lines[-1])

    def test_a_test_that_is_listed_twice_is_refused(self):
        self.assertRaisesRegex(
            ValueError, 'listed twice: ' + BASE + 'test_template',
            self.runner.Expected, {
                'not_on_native_threads': [], 'by_design': [],
                'without_the_layer_too': [
                {'reason': 'one', 'tests': [BASE + 'test_template']},
                {'reason': 'two', 'tests': [BASE + 'test_template']}]})

    def test_without_the_layer_no_edit_is_looked_for(self):
        """The tests of the branch of Nova are edited already."""
        document = {
            'not_on_native_threads': [], 'without_the_layer_too': [],
            'by_design': [{'reason': 'one', 'counterpart': 'two',
                           'edit': 'nova/tests/unit/test_missing.py'}]}
        self.assertEqual(
            set(), self.runner.Expected(document, layer=False).by_design)
        self.assertRaisesRegex(ValueError, 'no patch', self.runner.Expected,
                               document)

    def test_a_reason_must_be_given(self):
        self.assertRaisesRegex(
            ValueError, 'no reason',
            self.runner.Expected, {
                'not_on_native_threads': [], 'by_design': [],
                'without_the_layer_too': [
                {'reason': ' ', 'tests': [BASE + 'test_template']}]})
