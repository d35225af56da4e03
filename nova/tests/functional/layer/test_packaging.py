# SPDX-License-Identifier: Apache-2.0

"""The package in real environments with the released Nova from PyPI.

What is built is what git has: changes that are not committed are not tested.
"""

import base64
import configparser
import csv
import email
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import testtools

from nova.tests.unit.layer import fake_release
from nova.tests.unit import requirements_of_tests
import nova_pending_check

CHECKOUT = fake_release.CHECKOUT

#: What the wheel has beside the layer, under its own name.
PLUGIN = 'nova_pending_tempest_plugin'

#: A release before those that the tree is made for.
OTHER_RELEASE = 'nova>=32,<33'

# What of the environment of this process must not reach the others.
FOREIGN = ('PYTHON', 'NOVA_PENDING', 'COVERAGE_', 'OS_NOVA', 'PBR_', 'SKIP_',
           'VIRTUAL_ENV')


def run(*command, cwd=None, **environment):
    """Run a command and return what became of it."""
    inherited = {name: value for name, value in os.environ.items()
                 if not name.startswith(FOREIGN)}
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True,
        cwd=cwd, env={**inherited, **environment})


def must(*command, **kwargs):
    """Run a command that has to succeed, and return what it printed."""
    done = run(*command, **kwargs)
    if done.returncode:
        raise AssertionError('%s\n%s\n%s' % (
            ' '.join(map(str, command)), done.stdout, done.stderr))
    return done.stdout


def contents(top):
    """Return a digest, or the target of a link, for each path below one."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                value = 'to ' + os.readlink(path)
            elif os.path.isdir(path):
                value = 'a directory'
            else:
                with open(path, 'rb') as stream:
                    value = hashlib.sha256(stream.read()).hexdigest()
            found[os.path.relpath(path, top)] = value
    return found


class PackageTestCase(testtools.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.top = pathlib.Path(tempfile.mkdtemp(prefix='nova-pending-'))
        cls.addClassCleanup(shutil.rmtree, cls.top)
        cls.clone = cls.top / 'clone'
        done = run('git', 'clone', '-q', '--no-tags', CHECKOUT, cls.clone)
        if done.returncode:
            requirements_of_tests.lacks(
                cls, 'The package is built from a git clone, and %s is none: '
                '%s' % (CHECKOUT, done.stderr.strip()))
        cls.tools = cls.make_environment('tools')
        done = run(cls.tools / 'bin' / 'pip', 'install', '-q', 'build')
        if done.returncode:
            requirements_of_tests.lacks(
                cls, 'PyPI cannot be reached, from which build and the '
                'released Nova are installed: %s'
                % done.stderr.strip().splitlines()[-1])

    @classmethod
    def make_environment(cls, name):
        path = cls.top / name
        must(sys.executable, '-m', 'venv', path)
        return path

    @classmethod
    def build(cls, source, kind='wheel'):
        """Build in isolation, as from PyPI, and return the path."""
        target = pathlib.Path(tempfile.mkdtemp(dir=cls.top))
        must(cls.tools / 'bin' / 'python', '-m', 'build', '--' + kind,
             '--outdir', target, source)
        built, = target.iterdir()
        return built

    def version_of(self, wheel):
        return wheel.name.split('-')[1]


class BuildTest(PackageTestCase):
    """What is built, and from what it can be built."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.wheel = cls.build(cls.clone)

    def setUp(self):
        super().setUp()
        archive = zipfile.ZipFile(self.wheel)
        self.addCleanup(archive.close)
        self.files = {name: archive.read(name) for name in archive.namelist()}
        self.info = next(name.split('/')[0] for name in self.files
                         if name.endswith('.dist-info/METADATA'))

    def tree_of(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()
                    if '.dist-info/' not in name}

    def test_wheel_holds_the_layer_and_nothing_of_nova(self):
        tracked = must('git', 'ls-files', 'nova', cwd=self.clone).split()
        tree = {'_nova_pending_tree/' + name.split('/', 1)[1]
                for name in tracked
                if not name.startswith('nova/tests/') and
                not name.endswith('.rst')}
        plugin = set(must('git', 'ls-files', PLUGIN, cwd=self.clone).split())
        self.assertNotEqual(set(), tree)
        self.assertNotEqual(set(), plugin)
        self.assertEqual(
            tree | plugin | {'nova_pending.py', 'nova_pending.pth',
                             'nova_pending.start', 'nova_pending_check.py',
                             'nova_pending_releases.py'},
            {name for name in self.files
             if not name.startswith(self.info + '/')})
        self.assertThat(self.wheel.name,
                        testtools.matchers.EndsWith('-py3-none-any.whl'))

    def test_wheel_holds_the_files_of_the_clone(self):
        for name, data in self.files.items():
            if not name.startswith(self.info + '/'):
                source = name.replace('_nova_pending_tree/', 'nova/')
                self.assertEqual((self.clone / source).read_bytes(), data)

    def test_record_lists_every_file(self):
        record = self.info + '/RECORD'
        rows = list(csv.reader(io.StringIO(self.files[record].decode())))
        self.assertEqual(sorted(self.files), sorted(row[0] for row in rows))
        for name, digest, size in rows:
            if name == record:
                self.assertEqual(('', ''), (digest, size))
                continue
            data = self.files[name]
            self.assertEqual(str(len(data)), size)
            self.assertEqual('sha256=' + base64.urlsafe_b64encode(
                hashlib.sha256(data).digest()).decode().rstrip('='), digest)

    def test_metadata(self):
        metadata = email.message_from_bytes(
            self.files[self.info + '/METADATA'])
        self.assertEqual('nova-pending', metadata['Name'])
        self.assertEqual('Apache-2.0', metadata['License'])
        self.assertEqual('>=3.11', metadata['Requires-Python'])
        # Anything else could change what is installed, and taking the
        # package out would not change it back.
        self.assertEqual(
            [{'nova', '>=33', '<35'}],
            [set(re.findall(r'^\w+|[<>=]+\d+', value))
             for value in metadata.get_all('Requires-Dist')])
        self.assertEqual(
            (CHECKOUT / 'LICENSE').read_bytes(),
            self.files[self.info + '/licenses/LICENSE'])
        entry_points = configparser.ConfigParser()
        entry_points.read_string(
            self.files[self.info + '/entry_points.txt'].decode())
        self.assertEqual(
            {'console_scripts': {'nova-pending': 'nova_pending_check:main'},
             'tempest.test_plugins': {
                 'nova_pending':
                     PLUGIN + '.plugin:NovaPendingTempestPlugin'}},
            {name: dict(entry_points[name])
             for name in entry_points.sections()})

    def test_version_is_that_of_git(self):
        # Without a tag a version counts the commits, and names the last one.
        commit = must('git', 'rev-parse', '--short=7', 'HEAD', cwd=self.clone)
        self.assertThat(
            self.version_of(self.wheel),
            testtools.matchers.MatchesRegex(
                r'34\.0\.0\.dev[1-9]\d*\+g%s$' % commit.strip()))

    def test_other_distributions_have_the_same_version(self):
        for name in ('dashboard', 'osc', 'reaper'):
            wheel = self.build(self.clone / name)
            self.assertEqual(self.version_of(self.wheel),
                             self.version_of(wheel))
            # An sdist keeps the version, far from the clone.
            unpacked = self.unpack(self.build(self.clone / name, 'sdist'))
            self.assertEqual(wheel.name, self.build(unpacked).name)

    def test_version_of_a_tag(self):
        tagged = self.top / 'tagged'
        must('git', 'clone', '-q', self.clone, tagged)
        must('git', '-c', 'user.name=a', '-c', 'user.email=a@example.org',
             'tag', '-a', '-m', '34.1.0', '34.1.0', cwd=tagged)
        self.assertEqual('34.1.0', self.version_of(self.build(tagged)))

    def test_build_leaves_nothing_that_git_would_see(self):
        self.assertEqual(
            '', must('git', 'status', '--porcelain', cwd=self.clone))

    def unpack(self, source):
        """Unpack an sdist, and return the path of its tree."""
        target = pathlib.Path(tempfile.mkdtemp(dir=self.top))
        with tarfile.open(source) as archive:
            archive.extractall(target, filter='data')
        unpacked, = target.iterdir()
        return unpacked

    def assertSourceDistribution(self, source):
        """Assert that an sdist of a tree has all files; returns its wheel."""
        unpacked = self.unpack(self.build(source, 'sdist'))
        tracked = must('git', 'ls-files', cwd=self.clone).split('\n')[:-1]
        self.assertEqual(['.gitignore'], [
            name for name in tracked if not (unpacked / name).exists()])
        wheel = self.build(unpacked)
        self.assertEqual(self.tree_of(self.wheel), self.tree_of(wheel))
        return wheel

    def test_source_distribution(self):
        self.assertEqual(self.wheel.name,
                         self.assertSourceDistribution(self.clone).name)

    def test_source_distribution_of_an_archive(self):
        wheel = self.assertSourceDistribution(
            self.make_archive(self.top / 'for-sdist'))
        self.assertEqual('34.0.0.dev0', self.version_of(wheel))

    def make_archive(self, folder):
        folder.mkdir(parents=True)
        archive = self.top / 'archive.tar'
        must('git', 'archive', '-o', archive, 'HEAD', cwd=self.clone)
        with tarfile.open(archive) as stream:
            stream.extractall(folder, filter='data')
        return folder

    def assertFallback(self, source):
        wheel = self.build(source)
        self.assertEqual('34.0.0.dev0', self.version_of(wheel))
        self.assertEqual(self.tree_of(self.wheel), self.tree_of(wheel))

    def test_archive_without_git_data(self):
        self.assertFallback(self.make_archive(self.top / 'archive'))

    def test_archive_inside_another_repository(self):
        outer = self.top / 'outer'
        outer.mkdir()
        must('git', 'init', '-q', cwd=outer)
        must('git', '-c', 'user.name=a', '-c', 'user.email=a@example.org',
             'commit', '-q', '--allow-empty', '-m', 'outer', cwd=outer)
        self.assertFallback(self.make_archive(outer / 'vendor' / 'pending'))

    def test_clone_without_the_git_command(self):
        bare = self.top / 'without-git'
        must('git', 'clone', '-q', self.clone, bare)
        target = self.top / 'built-without-git'
        must(self.tools / 'bin' / 'python', '-m', 'build', '--wheel',
             '--outdir', target, bare, PATH=str(self.tools / 'bin'))
        wheel, = target.iterdir()
        self.assertEqual('34.0.0.dev0', self.version_of(wheel))
        self.assertEqual(self.tree_of(self.wheel), self.tree_of(wheel))


class InstallTest(PackageTestCase):
    """The package put into an environment with Nova, and taken out."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.wheel = cls.build(cls.clone)
        cls.environment = cls.make_environment('environment')
        cls.python = cls.environment / 'bin' / 'python'
        cls.command = cls.environment / 'bin' / 'nova-pending'
        must(cls.python, '-m', 'pip', 'install', '-q', '-c',
             CHECKOUT / 'constraints.txt', 'nova>=34,<35')
        cls.site = next(cls.environment.glob('lib/python*/site-packages'))
        cls.before = contents(cls.environment)

    def pip(self, *arguments, python=None):
        return must(python or self.python, '-m', 'pip', '-q', *arguments)

    def uninstall(self):
        if self.command.exists():
            self.pip('uninstall', '-y', 'nova-pending')

    def microversion(self, python=None, **environment):
        return must(
            python or self.python, '-W', 'ignore', '-c',
            'from nova.api.openstack import api_version_request as v;'
            'print(v.max_api_version().get_string())', cwd=self.top,
            **environment).strip()

    def assertWorks(self, tree):
        """Assert that the layer is on, and off where it is switched off."""
        done = run(self.command, 'status', cwd=self.top)
        self.assertEqual((0, ''), (done.returncode, done.stderr), done.stdout)
        self.assertThat(done.stdout, testtools.matchers.MatchesRegex(
            r'nova 34\.\S+, laid over from %s: \d+ modules, no drift\n$' %
            re.escape(str(tree))))
        self.assertEqual(
            'nova-pending %s\n' % self.version_of(self.wheel),
            must(self.command, '--version', cwd=self.top))
        self.assertEqual('2.107', self.microversion())
        self.assertEqual('2.104', self.microversion(NOVA_PENDING='off'))
        done = run(self.command, 'status', cwd=self.top, NOVA_PENDING='off')
        self.assertEqual((nova_pending_check.EXIT_INACTIVE, ''),
                         (done.returncode, done.stderr))

    def assertStock(self):
        self.assertEqual('2.104', self.microversion())
        self.assertEqual(self.before, contents(self.environment))

    def added(self):
        """Return the files that are new, all others being as before."""
        now = contents(self.environment)
        self.assertEqual(self.before, {
            name: now.get(name) for name in self.before})
        return sorted(set(now) - set(self.before))

    def test_wheel(self):
        self.addCleanup(self.uninstall)
        self.pip('install', self.wheel)
        site = re.escape(str(self.site.relative_to(self.environment)))
        ours = re.compile(
            r'%s/(nova_pending\.(py|pth|start)'
            r'|nova_pending_(check|releases)\.py'
            r'|__pycache__/nova_pending(_check|_releases)?\.[^/]+\.pyc'
            r'|_nova_pending_tree(/.*)?|nova_pending-[^/]+\.dist-info(/.*)?'
            r'|%s(/.*)?)$|bin/nova-pending$' % (site, PLUGIN))
        added = self.added()
        self.assertNotEqual([], added)
        self.assertEqual([], [name for name in added if not ours.match(name)])
        self.pip('check')
        self.assertWorks(self.site / '_nova_pending_tree')
        self.uninstall()
        self.assertStock()

    def test_wheel_over_itself(self):
        """Bytecode that pip did not write is taken out as well."""
        self.addCleanup(self.uninstall)
        self.pip('install', '--no-compile', self.wheel)
        self.assertEqual('2.107', self.microversion())
        self.pip('install', '--no-compile', '--force-reinstall', '--no-deps',
                 self.wheel)
        self.assertEqual('2.107', self.microversion())
        self.assertIn('_nova_pending_tree/api/openstack/__pycache__', ' '.join(
            self.added()))
        self.uninstall()
        self.assertStock()

    def test_editable(self):
        self.addCleanup(self.uninstall)
        self.pip('install', '-e', self.clone)
        self.assertEqual([], [
            name for name in self.added()
            if 'nova_pending' not in name and name != 'bin/nova-pending'])
        self.assertWorks(self.clone / 'nova')
        # What is edited is what runs.
        path = self.clone / 'nova/api/openstack/api_version_request.py'
        source = path.read_text()
        self.addCleanup(path.write_text, source)
        path.write_text(source + "\n_MAX_API_VERSION = '2.105'\n")
        self.assertEqual('2.105', self.microversion())
        path.write_text(source)
        self.uninstall()
        self.assertStock()
        self.assertEqual(
            '', must('git', 'status', '--porcelain', cwd=self.clone))

    def test_release_before(self):
        """The same wheel is laid over the release before the newest."""
        environment = self.make_environment('before')
        python = environment / 'bin' / 'python'
        self.pip('install', '--no-compile', '-c',
                 CHECKOUT / 'constraints-33.txt', 'nova>=33,<34', self.wheel,
                 python=python)
        self.pip('check', python=python)
        done = run(environment / 'bin' / 'nova-pending', 'status',
                   cwd=self.top)
        self.assertEqual((0, ''), (done.returncode, done.stderr), done.stdout)
        self.assertThat(done.stdout, testtools.matchers.MatchesRegex(
            r'nova 33\.\S+, laid over from \S+: \d+ modules, no drift\n$'))
        self.assertEqual('2.106', self.microversion(python))
        self.assertEqual('2.103', self.microversion(
            python, NOVA_PENDING='off'))

    def test_other_release(self):
        environment = self.make_environment('other')
        python = environment / 'bin' / 'python'
        self.pip('install', '--no-deps', '--no-compile', OTHER_RELEASE,
                 self.wheel, python=python)
        found = must(python, '-c', 'from importlib import metadata;'
                     'print(metadata.version("nova"))').strip()
        sentence = (
            'nova-pending is made for Nova 33 and 34, and this environment '
            'has nova %s: install "nova>=33,<35" or the nova-pending of that '
            'release, or set NOVA_PENDING=off to run Nova without it.'
            % found)
        done = run(python, '-c', 'import nova', cwd=self.top)
        self.assertEqual(1, done.returncode)
        self.assertEqual('nova_pending.LayerError: ' + sentence,
                         done.stderr.splitlines()[-1])
        done = run(environment / 'bin' / 'nova-pending', 'status',
                   cwd=self.top)
        self.assertEqual(
            (nova_pending_check.EXIT_REFUSED, 'refused: %s\n' % sentence, ''),
            (done.returncode, done.stdout, done.stderr))
        must(python, '-c', 'import nova', cwd=self.top, NOVA_PENDING='off')
        self.pip('uninstall', '-y', 'nova-pending', python=python)
        must(python, '-c', 'import nova', cwd=self.top)

    def test_without_nova(self):
        environment = self.make_environment('without')
        self.pip('install', '--no-deps', self.wheel,
                 python=environment / 'bin' / 'python')
        done = run(environment / 'bin' / 'nova-pending', 'status',
                   cwd=self.top)
        self.assertEqual(nova_pending_check.EXIT_REFUSED, done.returncode)
        self.assertIn('this environment has none installed', done.stdout)
