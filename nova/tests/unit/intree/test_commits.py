# SPDX-License-Identifier: Apache-2.0

"""The tests of a small branch that run at their commits."""

import contextlib
import io
import pathlib
from unittest import mock

import fixtures
import testtools

from tools.intree import commits
from tools.intree import export

TEST = '''
import unittest

from nova import thing


class ThingTestCase(unittest.TestCase):
    def test_limit(self):
        self.assertEqual(%d, thing.LIMIT)
'''


class CommitsTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        # The tests of the branch run without nova-pending, which is here.
        self.useFixture(fixtures.EnvironmentVariable('NOVA_PENDING', 'off'))
        self.useFixture(fixtures.MockPatchObject(
            commits, '_IS_THERE', 'pass'))
        self.place = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.git = export.Git(self.place)
        self.git('init', '--quiet', '--initial-branch=nova-pending/34.0.0')
        self.commit('Nova', {
            'nova/__init__.py': '', 'nova/tests/__init__.py': '',
            'nova/tests/unit/__init__.py': '', 'nova/thing.py': 'LIMIT = 1\n',
            'nova/tests/unit/test_other.py': TEST % 1})
        self.git('tag', '34.0.0')

    def commit(self, title, files):
        for path, text in files.items():
            path = self.place / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.git('add', '--all')
        self.git('commit', '--quiet', '--message=' + title)

    def run_commits(self, *arguments):
        """Return the exit code and what was printed."""
        output = io.StringIO()
        with contextlib.redirect_stdout(output), \
                contextlib.redirect_stderr(output):
            code = commits.main([str(self.place), *arguments])
        return code, output.getvalue()

    def test_each_commit_with_its_own_tests(self):
        self.commit('Two', {'nova/thing.py': 'LIMIT = 2\n',
                            'nova/tests/unit/test_thing.py': TEST % 2})
        # The last commit changes what the test of the one before asserts.
        self.commit('Three', {'nova/thing.py': 'LIMIT = 3\n'})
        code, output = self.run_commits()
        self.assertThat(output, testtools.matchers.MatchesRegex(
            r'\w+ Two: 1 tests in \d+ s, passed\n'
            r'\w+ Three: no unit tests\n$'))
        self.assertEqual(0, code)
        self.assertEqual(1, self.git('worktree', 'list').count('\n') + 1)

    def test_failure(self):
        self.commit('Two', {'nova/thing.py': 'LIMIT = 2\n',
                            'nova/tests/unit/test_thing.py': TEST % 3})
        code, output = self.run_commits()
        self.assertEqual(1, code)
        self.assertIn('Two: 1 tests in ', output)
        self.assertIn('FAILED\n', output)
        self.assertIn('AssertionError: 3 != 2', output)

    def test_what_cannot_be_imported(self):
        self.commit('Two', {'nova/tests/unit/test_thing.py':
                            'import none\n\nnone.run()\n'})
        code, output = self.run_commits()
        self.assertEqual(1, code)
        self.assertIn("No module named 'none'", output)

    def test_style(self):
        self.commit('Two', {'nova/thing.py': 'import os\nLIMIT = 1\n'})
        self.commit('Three', {'nova/thing.py': 'LIMIT = 1\n'})
        code, output = self.run_commits()
        self.assertEqual(1, code)
        self.assertIn("Two: style\nnova/thing.py:1:1: F401 'os'", output)
        self.assertIn('Three: no unit tests', output)

    def test_one_commit(self):
        self.commit('Two', {'nova/tests/unit/test_thing.py': TEST % 1})
        self.commit('Three', {'nova/tests/unit/test_thing.py': TEST % 3})
        code, output = self.run_commits('--commit', 'HEAD~1')
        self.assertEqual(0, code)
        self.assertNotIn('Three', output)

    def test_another_suite(self):
        self.commit('Two', {'nova/tests/unit/test_thing.py': TEST % 1})
        code, output = self.run_commits('--suite', 'functional')
        self.assertEqual(0, code)
        self.assertIn('Two: no functional tests', output)

    def test_nova_pending_is_installed(self):
        self.commit('Two', {'nova/tests/unit/test_thing.py': TEST % 1})
        with mock.patch.object(commits, '_IS_THERE', 'raise SystemExit(1)'):
            code, output = self.run_commits()
        self.assertEqual(2, code)
        self.assertIn('commits: nova-pending is installed beside ', output)

    def test_no_repository(self):
        with mock.patch.object(self, 'place', self.place / 'none'):
            code, output = self.run_commits()
        self.assertEqual(2, code)
        self.assertIn('commits: git branch: ', output)
