# SPDX-License-Identifier: Apache-2.0


"""What is put beside the installed Nova for its test harness."""

import pathlib
import subprocess
import sys
import tarfile
from unittest import mock

import fixtures
import testtools

TOOLS = pathlib.Path(__file__).resolve().parents[4] / 'tools'


class HarnessTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch(
            'sys.path', [str(TOOLS)] + sys.path))
        import harness
        self.harness = harness
        self.prefix = pathlib.Path(
            self.useFixture(fixtures.TempDir()).path).resolve()
        self.site = self.prefix / 'lib' / 'site-packages'
        self.site.mkdir(parents=True)
        (self.prefix / 'etc' / 'nova').mkdir(parents=True)
        for name, value in (('harness.site', self.site),
                            ('sysconfig.get_path', str(self.prefix))):
            patch = mock.patch(name, return_value=value)
            patch.start()
            self.addCleanup(patch.stop)

    def _pip(self, command, check):
        """Do as pip does: leave the source archive where it is asked to."""
        self.assertTrue(check)
        self.assertEqual('nova==34.0.0', command[-1])
        source = self.prefix / 'source'
        (source / 'doc' / 'api_samples').mkdir(parents=True)
        (source / 'doc' / 'api_samples' / 'sample.json').write_text('{}')
        dest = pathlib.Path(command[command.index('--dest') + 1])
        with tarfile.open(dest / 'nova-34.0.0.tar.gz', 'w:gz') as archive:
            archive.add(source, 'nova-34.0.0')

    def fetch(self, run):
        with mock.patch('importlib.metadata.version', return_value='34.0.0'), \
                mock.patch('subprocess.run', run):
            self.harness.fetch_documents()

    def test_etc_is_linked_and_may_be_moved_with_the_environment(self):
        self.harness.link_etc()
        link = self.site / 'etc' / 'nova'
        self.assertEqual(self.prefix / 'etc' / 'nova', link.resolve())
        self.assertFalse(link.readlink().is_absolute())
        self.harness.link_etc()
        self.assertTrue(link.is_dir())

    def test_etc_of_another_package_stays(self):
        other = self.site / 'etc' / 'other'
        other.mkdir(parents=True)
        self.harness.link_etc()
        self.assertTrue(other.is_dir())
        self.assertTrue((self.site / 'etc' / 'nova').is_dir())

    def test_documents_are_those_of_the_source_archive(self):
        run = mock.Mock(side_effect=self._pip)
        self.fetch(run)
        self.assertEqual(
            '{}', (self.site / 'doc/api_samples/sample.json').read_text())
        self.assertEqual(['doc'], [path.name for path in self.site.iterdir()])

    def test_documents_are_fetched_once(self):
        run = mock.Mock(side_effect=self._pip)
        self.fetch(run)
        self.fetch(run)
        run.assert_called_once()

    def test_a_fetch_that_fails_leaves_nothing(self):
        run = mock.Mock(side_effect=subprocess.CalledProcessError(1, 'pip'))
        self.assertRaises(subprocess.CalledProcessError, self.fetch, run)
        self.assertEqual([], list(self.site.iterdir()))
