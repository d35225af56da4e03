# SPDX-License-Identifier: Apache-2.0

"""The branch that is made of a small tree and a small release."""

import contextlib
import difflib
import importlib.metadata
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tarfile
import textwrap
from unittest import mock

import fixtures
import testtools
import yaml

import nova_pending
from tools.intree import edits
from tools.intree import export
from tools.intree import translate

RELEASED = {
    'PKG-INFO': 'Metadata-Version: 2.1\nName: nova\nVersion: 34.0.0\n',
    'nova/__init__.py': '',
    'nova/thing.py': '''\
        LIMIT = 1


        def function(first):
            return first
    ''',
    'nova/tests/test_thing.py': 'LIMIT = 1\n',
}

OURS = {
    'nova/thing.py': '''\
        # SPDX-License-Identifier: Apache-2.0

        from nova import new
        import nova_pending

        released = nova_pending.released(__name__)

        LIMIT = 2


        def function(first):
            return new.twice(released.function(first + 1))
    ''',
    'nova/new.py': '''\
        # SPDX-License-Identifier: Apache-2.0

        def twice(number):
            return 2 * number
    ''',
    'nova/tests/test_new.py': '''\
        # SPDX-License-Identifier: Apache-2.0
        from nova import new
    ''',
}

# A patch of twice() in nova/new.py.
SUM = '''\
--- a/nova/new.py
+++ b/nova/new.py
@@ -13,2 +13,2 @@
 def twice(number):
-    return 2 * number
+    return number + number
'''
SERIES = {
    'layer': ['nova/service.py'],
    'names': ["'nova_pending'", 'NOVA_PENDING'],
    'features': [
        {'name': 'limit', 'title': 'Another limit',
         'message': 'The reason.\n', 'code': ['nova/thing.py:LIMIT']},
        {'name': 'twice', 'title': 'Twice', 'message': 'The reason.\n',
         'code': ['nova/thing.py', 'nova/new.py'],
         'files': ['nova/tests/test_new.py']},
    ],
}

EDIT = '''\
--- a/nova/tests/test_thing.py
+++ b/nova/tests/test_thing.py
@@ -1 +1 @@
-LIMIT = 1
+LIMIT = 2
'''


TESTS_OF_34 = '# Tests.\n# The top.\nLIMIT = 1\n# The end.\n'

RELEASED_33 = {
    'PKG-INFO': 'Metadata-Version: 2.1\nName: nova\nVersion: 33.0.2\n',
    'nova/tests/test_thing.py': '# Of 33.\n' + TESTS_OF_34,
    'nova/tests/test_last.py': "LAST = '2.103'\n",
}

OURS_33 = {
    'nova/thing.py': '''\
        # SPDX-License-Identifier: Apache-2.0

        import nova_pending

        released = nova_pending.released(__name__)

        #: For Nova 34, from 2.105 (2.104 of Nova 33) on.
        LIMIT = 2


        def thing_v2105():
            return '2.106'
    ''',
    'doc/v2.105/sample.json': '{"version": "2.105", "year": 2013}\n',
}

SERIES_33 = {
    'layer': [], 'names': ["'nova_pending'"],
    'words': {33: {'Nova 34': 'Nova 33', ' (2.104 of Nova 33)': ''}},
    'features': [
        {'name': 'limit', 'title': 'A limit, microversion 2.105',
         'message': 'As of 2.105.\n', 'code': ['nova/thing.py:LIMIT'],
         'files': ['doc/v2.105/*']},
        {'name': 'twice', 'title': 'Twice', 'message': 'The reason.\n',
         'code': ['nova/thing.py:thing_v2105']},
    ],
}

EDIT_OF_BOTH = '''\
--- a/nova/tests/test_thing.py
+++ b/nova/tests/test_thing.py
@@ -2,3 +2,3 @@
 # The top.
-LIMIT = 1
+LIMIT = 2
 # The end.
'''

EDIT_OF_33 = '''\
--- a/nova/tests/test_last.py
+++ b/nova/tests/test_last.py
@@ -1 +1 @@
-LAST = '2.103'
+LAST = '2.105'
'''


def numbered(series):
    """Return a series as export.read_series() does."""
    return yaml.safe_load(yaml.safe_dump({**series, 'features': [
        {**feature, 'number': number} for number, feature in
        enumerate(series['features'], 1)]}))


def check_of_33(self):
    return self.old()


def put(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))


class ExportTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.home = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.here = self.home / 'here'
        put(self.home / 'ours', OURS)
        put(self.here, {'edits/limit/tests.patch': EDIT})
        self.tree = export.Tree(self.home / 'ours', self.here)
        self.output = self.home / 'output'

    def archive(self, name='nova-34.0.0', **changes):
        put(self.home / 'released' / name, {**RELEASED, **changes})
        path = self.home / (name + '.tar.gz')
        with tarfile.open(path, 'w:gz') as file:
            file.add(self.home / 'released' / name, name)
        return path

    def checkout(self, tag='34.0.0'):
        path = self.home / 'checkout'
        shutil.rmtree(path, ignore_errors=True)
        put(path, RELEASED)
        git = export.Git(path)
        git('init', '--quiet')
        git('add', '--all')
        git('commit', '--quiet', '--message=Nova')
        if tag:
            git('tag', tag)
        return path

    def export(self, release=None, checkout=None, names=(), series=SERIES,
               output=None):
        git, branch = export.export(
            release, checkout, output or self.output, names, self.tree,
            numbered(series))
        self.assertEqual('nova-pending/34.0.0', branch)
        return git

    def export_33(self, output=None, series=SERIES_33, **changes):
        git, branch = export.export(
            self.archive('nova-33.0.2', **{**RELEASED_33, **changes}), None,
            output or self.output, (), self.tree, numbered(series))
        self.assertEqual('nova-pending/33.0.2', branch)
        return git

    def assertRefused(self, sentence, *args, **kwargs):
        """Assert that a sentence is told and nothing is left."""
        before = sorted(os.listdir(self.home))
        exc = self.assertRaises(
            (export.ExportError, export.translate.Refused),
            self.export, *args, **kwargs)
        self.assertIn(sentence, str(exc))
        self.assertEqual(before, sorted(os.listdir(self.home)))


class BranchTestCase(ExportTestCase):

    def test_a_commit_for_each_feature(self):
        git = self.export(self.archive())
        self.assertEqual(
            ['Nova 34.0.0 as released', 'Another limit', 'Twice'],
            git('log', '--reverse', '--format=%s').split('\n'))
        self.assertEqual('', git('status', '--porcelain'))
        self.assertEqual(
            'LIMIT = 2\n\n\ndef function(first):\n    return first',
            git('show', 'HEAD~1:nova/thing.py'))
        self.assertEqual('''\
from nova import new

LIMIT = 2


def function(first):
    return new.twice(_do_function(first + 1))


def _do_function(first):
    return first''', git('show', 'HEAD:nova/thing.py'))
        self.assertEqual(
            'nova/new.py\nnova/tests/test_new.py\nnova/thing.py',
            git('diff', '--name-only', 'HEAD~1'))
        for path in 'nova/new.py', 'nova/tests/test_new.py':
            self.assertIn('Licensed under', git('show', 'HEAD:' + path))

    def test_released_tests_are_edited(self):
        git = self.export(self.archive())
        self.assertEqual('LIMIT = 2', git(
            'show', 'HEAD~1:nova/tests/test_thing.py'))

    def test_the_same_commits_again(self):
        archive = self.archive()
        first = self.export(archive)('rev-parse', 'HEAD')
        with mock.patch.dict(os.environ, GIT_AUTHOR_NAME='Somebody',
                             GIT_COMMITTER_DATE='1'):
            second = self.export(archive, output=self.home / 'other')(
                'rev-parse', 'HEAD')
        self.assertEqual(first, second)

    def test_onto_a_checkout(self):
        checkout = self.checkout()
        git = self.export(checkout=checkout)
        self.assertEqual(export.Git(checkout)('rev-parse', 'HEAD'),
                         git('rev-parse', 'HEAD~2'))

    def test_patches_apply(self):
        git = self.export(self.archive())
        git('format-patch', '--quiet', '-o', str(self.home / 'patches'),
            '34.0.0')
        checkout = self.checkout()
        export.Git(checkout)('am', '--quiet', *map(
            str, sorted((self.home / 'patches').iterdir())))
        self.assertEqual(git('rev-parse', 'HEAD^{tree}'),
                         export.Git(checkout)('rev-parse', 'HEAD^{tree}'))

    def test_some_features(self):
        git = self.export(self.archive(), names=['limit'])
        self.assertEqual('2', git('rev-list', '--count', 'HEAD'))

    def test_decorator_of_a_later_feature(self):
        put(self.home / 'ours', {'nova/thing.py': '''\
            from nova import new
            import nova_pending

            released = nova_pending.released(__name__)


            @new.doubled
            def function(first):
                return released.function(first) + 1
        ''', 'nova/new.py': '''\
            def doubled(function):
                return lambda first: 2 * function(first)
        '''})
        features = SERIES['features']
        git = self.export(self.archive(), series={**SERIES, 'features': [
            {**features[0], 'code': ['nova/thing.py']},
            {**features[1], 'code': ['nova/new.py']}]})
        self.assertIn('return _do_function(first) + 1',
                      git('show', 'HEAD~1:nova/thing.py'))
        self.assertNotIn('doubled', git('show', 'HEAD~1:nova/thing.py'))
        self.assertIn('@new.doubled', git('show', 'HEAD:nova/thing.py'))

    def test_decorator_with_a_released_name_of_a_later_file(self):
        put(self.home / 'ours', {'nova/thing.py': '''\
            import functools

            from nova import states
            import nova_pending

            released = nova_pending.released(__name__)


            @functools.lru_cache(states.ACTIVE)
            @functools.lru_cache(states.PENDING)
            def new():
                pass
        ''', 'nova/states.py': 'PENDING = 2\n'})
        features = SERIES['features']
        git = self.export(
            self.archive(**{'nova/states.py': 'ACTIVE = 1\n'}),
            series={**SERIES, 'features': [
                {**features[0], 'code': ['nova/thing.py']},
                {**features[1], 'code': ['nova/states.py', 'nova/new.py']}]})
        self.assertIn('states.ACTIVE', git('show', 'HEAD~1:nova/thing.py'))
        self.assertNotIn('states.PENDING',
                         git('show', 'HEAD~1:nova/thing.py'))
        self.assertIn('states.PENDING', git('show', 'HEAD:nova/thing.py'))

    def test_files_that_grow(self):
        """A new module and a test have parts that come with a later commit."""
        put(self.home / 'ours', {'nova/new.py': '''\
            import math


            def twice(number):
                return 2 * number


            def root(number):
                return math.sqrt(number)
        ''', 'nova/tests/test_new.py': '''\
            class NewTestCase:
                def test_twice(self):
                    pass

                def test_root(self):
                    pass
        '''})
        limit, twice = SERIES['features']
        git = self.export(self.archive(), series={**SERIES, 'features': [
            {**limit, 'code': ['nova/new.py'],
             'files': ['nova/tests/test_new.py']},
            {**twice, 'code': [
                'nova/thing.py', 'nova/new.py:root',
                'nova/tests/test_new.py:NewTestCase.test_root'],
             'files': []}]})
        for path, later in (('nova/new.py', 'import math'),
                            ('nova/new.py', 'def root'),
                            ('nova/tests/test_new.py', 'test_root')):
            self.assertIn('twice', git('show', 'HEAD~1:' + path))
            self.assertNotIn(later, git('show', 'HEAD~1:' + path))
            self.assertIn('twice', git('show', 'HEAD:' + path))
            self.assertIn(later, git('show', 'HEAD:' + path))

    def test_until_a_later_feature(self):
        put(self.here, {'edits/limit/until-twice.patch': SUM})
        features = SERIES['features']
        git = self.export(self.archive(), series={**SERIES, 'features': [
            {**features[0], 'code': ['nova/thing.py', 'nova/new.py']},
            {**features[1], 'code': []}]})
        self.assertIn('number + number', git('show', 'HEAD~1:nova/new.py'))
        self.assertIn('2 * number', git('show', 'HEAD:nova/new.py'))

    def test_a_patch_holds_for_what_a_later_feature_writes(self):
        put(self.home / 'ours', {'nova/new.py': '''\
            def root(number):
                return number ** .5


            def twice(number):
                return 2 * number
        '''})
        put(self.here, {'edits/limit/sum.patch': SUM})
        limit, twice = SERIES['features']
        git = self.export(self.archive(), series={**SERIES, 'features': [
            {**limit, 'code': ['nova/thing.py', 'nova/new.py']},
            {**twice, 'code': ['nova/new.py:root']}]})
        for commit, has_root in ('HEAD~1', False), ('HEAD', True):
            source = git('show', commit + ':nova/new.py')
            self.assertIn('number + number', source)
            self.assertEqual(has_root, 'def root' in source)


class OtherReleaseTestCase(ExportTestCase):
    """The branch of a release before the newest, of the same tree."""

    def setUp(self):
        super().setUp()
        shutil.rmtree(self.home / 'ours')
        put(self.home / 'ours', OURS_33)
        put(self.here, {'edits/limit/tests.patch': EDIT_OF_BOTH,
                        'edits/limit/33/last.patch': EDIT_OF_33})

    def test_numbers_and_words_of_the_release(self):
        git = self.export_33()
        self.assertEqual(
            ['Nova 33.0.2 as released', 'A limit, microversion 2.104',
             'Twice'],
            git('log', '--reverse', '--format=%s').split('\n'))
        self.assertEqual('As of 2.104.', git('show', '-s', '--format=%b',
                                             'HEAD~1'))
        self.assertEqual('''\
#: For Nova 33, from 2.104 on.
LIMIT = 2


def function(first):
    return first''', git('show', 'HEAD~1:nova/thing.py'))
        self.assertIn("""
def thing_v2104():
    return '2.105'
""", git('show', 'HEAD:nova/thing.py') + '\n')
        self.assertEqual('{"version": "2.104", "year": 2013}',
                         git('show', 'HEAD:doc/v2.104/sample.json'))
        self.assertEqual('doc/v2.104/sample.json',
                         git('ls-files', 'doc'))

    def test_edits(self):
        """Patches for all releases fit at other lines; others are for 33."""
        git = self.export_33()
        self.assertEqual(
            '# Of 33.\n# Tests.\n# The top.\nLIMIT = 2\n# The end.',
            git('show', 'HEAD:nova/tests/test_thing.py'))
        self.assertEqual("LAST = '2.104'", git(
            'show', 'HEAD:nova/tests/test_last.py'))

    def test_the_newest_has_none_of_it(self):
        git = self.export(self.archive(**{
            'nova/tests/test_thing.py': TESTS_OF_34}),
            series=SERIES_33)
        self.assertIn('#: For Nova 34, from 2.105 (2.104 of Nova 33) on.',
                      git('show', 'HEAD:nova/thing.py'))
        self.assertIn('thing_v2105', git('show', 'HEAD:nova/thing.py'))
        self.assertEqual('doc/v2.105/sample.json', git('ls-files', 'doc'))
        self.assertEqual('# Tests.\n# The top.\nLIMIT = 2\n# The end.', git(
            'show', 'HEAD:nova/tests/test_thing.py'))

    def test_the_same_commits_again(self):
        self.assertEqual(
            self.export_33()('rev-parse', 'HEAD'),
            self.export_33(self.home / 'other')('rev-parse', 'HEAD'))

    def test_method_with_another_body(self):
        put(self.home / 'ours', {'nova/new.py': '''\
            class Request:
                def check(self):
                    return self.new()
        '''})
        self.useFixture(fixtures.MockPatch(
            'nova_pending_releases.REPLACED',
            {33: {'nova.new': {'Request.check': check_of_33}}}))
        series = {**SERIES_33, 'features': [
            *SERIES_33['features'],
            {'name': 'new', 'title': 'New', 'message': 'The reason.\n',
             'code': ['nova/new.py']}]}
        for git, body in (
                (self.export_33(series=series), 'old'),
                (self.export(self.archive(**{
                    'nova/tests/test_thing.py': TESTS_OF_34}),
                    series=series, output=self.home / 'other'), 'new')):
            self.assertIn('        return self.%s()' % body,
                          git('show', 'HEAD:nova/new.py'))

    def test_edit_that_does_not_apply(self):
        self.assertNotWritten(
            'last.patch does not apply to this release',
            **{'nova/tests/test_last.py': 'LAST = 7\n'})

    def test_another_body_for_what_is_not_there(self):
        self.useFixture(fixtures.MockPatch(
            'nova_pending_releases.REPLACED',
            {33: {'nova.thing': {'Request.check': check_of_33}}}))
        self.assertNotWritten('nova/thing.py: Request.check')

    def assertNotWritten(self, sentence, **changes):
        self.archive('nova-33.0.2')
        before = sorted(os.listdir(self.home))
        exc = self.assertRaises(
            (export.ExportError, translate.Refused), self.export_33, **changes)
        self.assertIn(sentence, str(exc))
        self.assertEqual(before, sorted(os.listdir(self.home)))


class RefusedTestCase(ExportTestCase):

    def test_another_release(self):
        for version in '32.0.0', '35.0.0', '34.0.0.0rc1', '33.0.0.0rc1':
            self.assertRefused(
                'is Nova %s, and this tree is made for Nova 33 and 34: give '
                'it the source of such a release.' % version,
                self.archive('nova-' + version, **{
                    'PKG-INFO': 'Name: nova\nVersion: %s\n' % version}))

    def test_another_archive(self):
        self.assertRefused('is no source archive of Nova', self.archive(
            'other', **{'PKG-INFO': 'Name: other\nVersion: 34.0.0\n'}))
        self.assertRefused('is no source archive of Nova', self.archive(
            'unnumbered', **{'PKG-INFO': 'Name: nova\n'}))
        (self.home / 'text').write_text('text')
        self.assertRefused('cannot be unpacked', self.home / 'text')
        self.assertRefused('cannot be unpacked', self.home / 'missing')
        whole = self.archive('nova-34.0.0', **{
            'PKG-INFO': 'Name: nova\nVersion: 34.0.0\n',
            'bytes': os.urandom(9999).hex()})
        part = self.home / 'part'
        part.write_bytes(whole.read_bytes()[:2000])
        self.assertRefused('cannot be unpacked', part)

    def test_checkout(self):
        checkout = self.checkout()
        (checkout / 'nova' / 'thing.py').write_text('LIMIT = 3\n')
        self.assertRefused('has changes', checkout=checkout)
        self.assertRefused('is not at the tag of a release',
                           checkout=self.checkout(tag=None))
        self.assertRefused('is Nova 32.0.0',
                           checkout=self.checkout(tag='32.0.0'))
        self.assertRefused('is no checkout', checkout=self.home / 'ours')

    def test_output_that_is_there(self):
        self.output.mkdir()
        self.assertRefused('is there already', self.archive())

    def test_no_translation(self):
        archive = self.archive()
        put(self.home / 'ours', {
            'nova/thing.py': OURS['nova/thing.py'] + '''

        for name in 'ab':
            print(name)
        '''})
        self.assertRefused('nova/thing.py:15: a statement that defines no '
                           'name', archive)

    def test_release_with_another_test(self):
        self.assertRefused(
            'tests.patch does not apply to this release', self.archive(**{
                'nova/tests/test_thing.py': 'LIMIT = 7\n'}))

    def test_name(self):
        archive = self.archive()
        put(self.home / 'ours', {'nova/new.py': '''\
            KEY, TYPE = 'nova_pending', 'NOVA_PENDING'

            # Nova-pending needs it.
        '''})
        self.assertRefused('nova/new.py:3: the branch would name nova-pending:'
                           ' # Nova-pending needs it.', archive)
        for text in "KEY = 'NOVA_PENDING_2'\n", '# As nova-reaper does.\n':
            put(self.home / 'ours', {'nova/new.py': text})
            self.assertRefused('nova/new.py:1: ', archive)
        put(self.home / 'ours', {'nova/new.py': "KEY = 'NOVA_PENDING'\n"})
        self.export(archive)

    def test_no_feature(self):
        archive = self.archive()
        put(self.home / 'ours', {'nova/other.py': 'A = 1\n'})
        self.assertRefused('nova/other.py belongs to no feature', archive)

    def test_features(self):
        archive = self.archive()
        self.assertRefused('There is no feature x', archive, names=['x'])
        self.assertRefused('twice stands on limit: name it too', archive,
                           names=['twice'])

    def test_command(self):
        archive, checkout = self.archive(), self.checkout(tag=None)
        (self.home / 'there').mkdir()
        (self.home / 'file').touch()
        before = sorted(os.listdir(self.home))
        for option, source, output, path in (
                ('--release', self.home / 'missing', self.output, None),
                ('--release', archive, self.home / 'there', None),
                ('--release', archive, self.home / 'none' / 'output', None),
                ('--release', archive, self.home / 'file' / 'output', None),
                ('--onto', checkout, self.output, None),
                ('--onto', checkout, self.output, str(self.home))):
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors), mock.patch.dict(
                    os.environ, {'PATH': path} if path else {}):
                code = export.main([
                    option, str(source), '--output', str(output)])
            self.assertEqual(2, code)
            self.assertRegex(errors.getvalue(),
                             r'\Anova-pending export: .+\n\Z')
            self.assertEqual(before, sorted(os.listdir(self.home)))

    def test_signal(self):
        archive = self.archive()
        before = sorted(os.listdir(self.home))
        for number in signal.SIGTERM, signal.SIGHUP:
            handler = signal.getsignal(number)
            with mock.patch.object(export, 'unpack', side_effect=lambda *_: (
                    os.kill(os.getpid(), number))):
                code = self.assertRaises(SystemExit, export.main, [
                    '--release', str(archive), '--output', str(self.output)])
            self.assertEqual(128 + number, code.code)
            self.assertEqual(before, sorted(os.listdir(self.home)))
            self.assertEqual(handler, signal.getsignal(number))


class SeriesTestCase(testtools.TestCase):
    """The series of this checkout."""

    def test_everything_belongs_to_a_feature(self):
        tree, series = export.Tree(), export.Series(export.read_series())
        for path in tree.code():
            if not series.is_of_layer(path) and path in subprocess.run(
                    ['git', 'ls-files', 'nova'], cwd=tree.root, text=True,
                    capture_output=True).stdout and tree.read(path).strip():
                self.assertTrue(any(
                    entry == path or entry.startswith(path + ':')
                    for feature in series.features
                    for entry in feature['code']), path)

    def test_every_test_belongs_to_a_feature_or_to_the_layer(self):
        tree, document = export.Tree(), export.read_series()
        series = export.Series(document)
        exported = {path for feature in document['features']
                    for path in tree.others(feature)}
        for path in subprocess.run(
                ['git', 'ls-files', 'nova/tests/*/test_*.py'], cwd=tree.root,
                text=True, capture_output=True, check=True).stdout.split():
            self.assertTrue(path in exported or series.is_of_layer(path),
                            path)

    def test_what_it_names_is_there(self):
        tree, document = export.Tree(), export.read_series()
        for feature in document['features']:
            self.assertTrue(tree.others(feature) or feature['code'])
            for entry in feature['code']:
                path, _, name = entry.partition(':')
                self.assertIn(name.rpartition('.')[2], tree.read(path))

    def test_tests_call_nothing_that_comes_later(self):
        """Of what a later commit adds to their bases and to their helpers."""
        tree, series = export.Tree(), export.Series(export.read_series())
        for later in series.features:
            for entry in later['code']:
                path, _, name = entry.partition(':')
                member = name.rpartition('.')[2]
                if not path.startswith('nova/tests/') or (
                        member.startswith('test')):
                    continue
                use = 'self.%s(' % member if member != name else '%s.%s' % (
                    pathlib.Path(path).stem, name)
                first = next(feature for feature in series.features
                             if path in tree.others(feature))
                for other in tree.others(first):
                    if not other.endswith('.py') or series.is_of_layer(other):
                        continue
                    text = translate.new_module(
                        tree.read(other), other,
                        lambda name: export._is_there(
                            series.find(other, name), first))
                    self.assertFalse(
                        use in text and 'def %s(' % member not in text,
                        (entry, other))

    def test_diff_of_the_documentation(self):
        """The diff makes of the released file what the exporter makes."""
        path = 'nova/api/openstack/compute/views/servers.py'
        diff = (export.ROOT / 'doc/source/contributor' /
                'in-tree.diff').read_text()
        self.assertEqual({path}, export.Patch('in-tree.diff', diff).paths)
        nova = importlib.metadata.distribution('nova')
        if export.series_of(nova.version) != nova_pending.RELEASE:
            self.skipTest('The diff is that of Nova %d.'
                          % nova_pending.RELEASE)
        release = pathlib.Path(nova.locate_file(path)).read_text()
        git = export.Git(pathlib.Path(
            self.useFixture(fixtures.TempDir()).path))
        put(git.path, {path: release})
        git('init', '--quiet')
        git('apply', '-', stdin=diff)
        series = export.Series(export.read_series())
        self.assertEqual(
            (git.path / path).read_text(), export.module_at(
                export.Tree(), series, series.features[-1], path, release))

    def test_later_features_of_patches(self):
        features = [f['name'] for f in export.read_series()['features']]
        for patch in edits.PATCHES.rglob('until-*'):
            earlier = patch.relative_to(edits.PATCHES).parts[0]
            later = patch.stem.removeprefix('until-')
            self.assertIn(later, features[features.index(earlier) + 1:], patch)

    def test_code_names_no_other_release(self):
        series = export.Series(export.read_series())
        for release in nova_pending.RELEASES:
            tree = export.Tree().on(release, series.words)
            for path in tree.code():
                if not series.is_of_layer(path):
                    self.assertNotRegex(tree.read(path), r'of Nova \d', path)
            for path in (path for feature in series.features
                         for path in tree.others(feature)):
                if path.endswith('.py'):
                    self.assertNotRegex(tree.read(path), r'Nova \d', path)

    def test_parameters_of_the_reference(self):
        """What the reference of GET /servers/{id}/pending names is added."""
        tree = export.Tree()
        named = set(re.findall(
            r'^  - [\w.]+: (\w+)$',
            tree.read('api-ref/source/server-pending.inc'), re.M))
        for release in nova_pending.RELEASES:
            added = {name for feature in export.read_series()['features']
                     for patch in tree.on(release, {}).edits(feature)
                     for name in re.findall(
                         r'^\+(\w+):$', patch.text, re.M)}
            self.assertEqual({'server_id_path'}, named - added)

    def test_edits_are_the_tests_that_fail_under_the_layer(self):
        """Each released test that is edited has an entry, and no other."""
        root, release = export.ROOT, pathlib.Path(
            importlib.metadata.distribution('nova').locate_file(''))
        number = export.series_of(importlib.metadata.version('nova'))
        entries = yaml.safe_load(
            (root / 'nova/tests/released/expected.yaml').read_text())[
                'by_design']
        derived = {entry['edit'] for entry in entries if 'edit' in entry}
        by_hand = {test.rsplit('.', 2)[0].replace('.', '/') + '.py'
                   for entry in entries for test in entry.get('tests', ())}
        edited = {path for number in nova_pending.RELEASES
                  for path in edits.hunks(number)
                  if path.startswith('nova/tests/')}
        # The samples of the versions are in doc.
        by_hand.remove(
            'nova/tests/functional/api_sample_tests/test_versions.py')
        self.assertEqual(edited, derived | by_hand)
        for path in derived:
            # A module of the newest release may be missing in another one.
            self.assertEqual(
                (release / path).exists(),
                bool(edits.tests_of(path, release, number)))
        # What is derived is not listed by hand.
        listed = {test for entry in entries for test in entry.get('tests', ())}
        for path in by_hand:
            try:
                found = edits.tests_of(path, release, number)
            except ValueError:
                continue
            self.assertNotEqual(found, {
                test for test in listed
                if test.startswith(path[:-3].replace('/', '.') + '.')})


class EditsTestCase(testtools.TestCase):
    """The tests that the patches of a directory change."""

    RELEASED = '''\
NUMBERS = {
    'a': 1,
}


class Mixin:
    def test_mixed(self):
        self.use()


class ThingTestCase(Mixin, TestCase):
    def setUp(self):
        self.number = 1

    @ddt.data(1, 2)
    def test_data(self, number):
        def inner():
            pass

    def test_numbers(self):
        self.assertEqual(1, NUMBERS['a'])
'''

    def changed(self, before, after, above=''):
        """Return the tests that a patch changes.

        :param above: what the release has above what the patch is made for
        """
        home = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        path = 'nova/tests/unit/test_thing.py'
        changed = self.RELEASED.replace(before, after)
        put(home, {
            path: above + self.RELEASED,
            'edits/limit/tests.patch': 'diff --git a/x b/x\n' + ''.join(
                difflib.unified_diff(
                    self.RELEASED.splitlines(True), changed.splitlines(True),
                    'a/' + path, 'b/' + path))})
        found = edits.tests_of(path, home, 34, home / 'edits')
        return {test.replace('nova.tests.unit.test_thing.', '')
                for test in found}

    def test_test(self):
        self.assertEqual({'ThingTestCase.test_data'},
                         self.changed('pass', 'return'))
        self.assertEqual({'ThingTestCase.test_data'},
                         self.changed('(1, 2)', '(1, 2, 3)'))
        self.assertEqual({'ThingTestCase.test_data'},
                         self.changed('            pass\n', '''\
            pass
        inner()
'''))

    def test_test_at_another_line(self):
        self.assertEqual(
            {'ThingTestCase.test_data'},
            self.changed('pass', 'return', above='import ddt\n' * 10))

    def test_fits_nowhere(self):
        """A hunk whose lines the release has not is taken by its number."""
        self.assertEqual(
            {'ThingTestCase.test_numbers'},
            edits.tests_at(self.RELEASED, edits.changed_lines(
                self.RELEASED, (20, [' no such', '-line', '+text']))))

    def test_module_that_the_release_lacks(self):
        home = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        put(home, {'edits/limit/tests.patch':
                   '--- a/nova/tests/x.py\n@@ -1 +1 @@\n-a\n+b\n'})
        self.assertEqual(set(), edits.tests_of(
            'nova/tests/x.py', home, 34, home / 'edits'))

    def test_patches_of_a_release(self):
        home = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        text = '--- a/nova/%s.py\n@@ -1 +1 @@\n-a\n+b\n'
        put(home, {'limit/a.patch': text % 'a', 'limit/34/a.patch': text % 'b',
                   'twice/33/a.patch': text % 'c'})
        self.assertEqual(
            {'nova/a.py', 'nova/b.py'}, set(edits.hunks(34, home)))
        self.assertEqual(
            {'nova/a.py', 'nova/c.py'}, set(edits.hunks(33, home)))

    def test_test_of_a_mixin(self):
        self.assertEqual({'ThingTestCase.test_mixed'},
                         self.changed('self.use()', 'self.use(1)'))

    def test_constant(self):
        self.assertEqual({'ThingTestCase.test_numbers'},
                         self.changed("'a': 1", "'a': 2"))

    def test_no_test(self):
        exc = self.assertRaises(ValueError, self.changed, 'number = 1',
                                'number = 2')
        self.assertEqual('nova/tests/unit/test_thing.py: line 13 belongs to '
                         'no test', str(exc))
        exc = self.assertRaises(ValueError, self.changed, 'no such', '')
        self.assertEqual('no patch in tools/intree/edits changes '
                         'nova/tests/unit/test_thing.py', str(exc))

    def test_runs(self):
        for ran in 'm.C.test_a', 'm.C.test_a_1', 'm.C.test_a_2__True_', (
                'm.C.test_a(v2)'):
            self.assertTrue(edits.is_run_of('m.C.test_a', ran))
        for ran in 'm.C.test_ab', 'm.C.test_a_b', 'm.D.test_a':
            self.assertFalse(edits.is_run_of('m.C.test_a', ran))
