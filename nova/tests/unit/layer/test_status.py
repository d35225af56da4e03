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

import subprocess
import sys

import testtools

from nova.tests.unit.layer import base
from nova.tests.unit.layer import fake_release
import nova_pending

EXIT_ACTIVE = 0


class StatusTest(base.LayerTestCase):
    """What ``nova-pending status`` writes, and its exit code."""

    def status(self, *options, **environment):
        done = self.fake.status(*options, **environment)
        self.assertEqual('', done.stderr)
        return done.returncode, done.stdout.splitlines()

    def digest(self, name):
        """Return the digest of something in the released nova.thing."""
        done = self.fake.run(
            'import nova_pending, nova.thing;'
            'print(nova_pending.digest(nova.thing.%s))' % name,
            NOVA_PENDING='off')
        return done.stdout.strip()

    def test_each_module_with_what_the_tree_does_to_it(self):
        self.lay('''
            import json

            class Base(released.Base):
                size = 1

                def inherited(self):
                    return super().inherited()

            @nova_pending.over(released.Thing)
            class Thing:
                limit = 2

                @nova_pending.replaces('%s')
                def method(self, first, second=None):
                    return 'replaced'

                @staticmethod
                def static(first):
                    return released.Thing.static(first)

                @nova_pending.new
                def grow(self):
                    return 1

            def function(first, second=None):
                return released.function(first, second)

            TABLE['deep']['list'].append(2)
            FLAG = 2
            OWN = 1
        ''' % self.digest('Thing.method'))
        self.fake.lay('own/__init__.py', '')
        self.fake.lay('own/part.py', '')
        self.fake.lay('tests/unit/test_own.py', 'undefined')
        self.assertEqual((EXIT_ACTIVE, [
            'nova 34.0.0, laid over from %s' % self.fake.tree,
            'nova.own',
            '    new module',
            'nova.own.part',
            '    new module',
            'nova.thing',
            '    extends   Base, Base.inherited, TABLE, Thing.static, '
            'function',
            '    replaces  Thing.method',
            '    changes   FLAG, Thing.limit',
            '    adds      Base.size, OWN, Thing.grow',
            '3 modules, no drift',
        ]), self.status())

    def test_drift(self):
        digest = self.digest('Thing.method')
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                @nova_pending.replaces('%s')
                def method(self, first, second=None):
                    return 'replaced'

            @nova_pending.replaces('0123456789abcdef')
            def function(first, second=None):
                return 'replaced'
        ''' % digest)
        self.fake.release('thing.py', base.RELEASED.replace(
            "return 'released %s %s' % (first, second)",
            "return 'moved %s %s' % (first, second)"))
        code, lines = self.status()
        self.assertEqual(nova_pending.EXIT_DRIFT, code)
        self.assertEqual([
            'drift: nova.thing.Thing.method replaces a body with the digest '
            '%s, and the release has %s' % (
                digest, self.digest('Thing.method')),
            'drift: nova.thing.function replaces a body with the digest '
            '0123456789abcdef, and the release has %s' % (
                self.digest('function')),
            '1 modules, 2 drifts'], lines[-3:])

    def test_digest_counts_decorators_and_not_indentation(self):
        self.fake.release('thing.py', base.RELEASED + '''
if True:
    def outer(function):
        return function

    @outer
    def indented(first):
        return first

def same(function):
    def indented(first):
        return first
    return function

def indented_too(first):
    return first
''')
        first = self.digest('indented')
        self.fake.release('thing.py', base.RELEASED + '''
def outer(function):
    return function

@outer
def indented(first):
    return first
''')
        self.assertEqual(first, self.digest('indented'))
        self.fake.release('thing.py', base.RELEASED + '''
def indented(first):
    return first
''')
        self.assertNotEqual(first, self.digest('indented'))

    def test_drift_of_a_property(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                @property
                @nova_pending.replaces('0123456789abcdef')
                def colour(self):
                    return 'replaced'

                @colour.setter
                def colour(self, value):
                    released.Thing.colour.fset(self, value)
        ''')
        code, lines = self.status()
        self.assertEqual(nova_pending.EXIT_DRIFT, code)
        self.assertIn('    extends   Thing.colour', lines)
        self.assertIn('    replaces  Thing.colour', lines)

    def test_drift_of_a_release_without_sources(self):
        self.lay('''
            @nova_pending.replaces('0123456789abcdef')
            def function(first, second=None):
                return 'replaced'
        ''')
        path = self.fake.site / 'nova' / 'thing.py'
        self.fake.run(
            'import py_compile; py_compile.compile("%s", cfile="%sc")' % (
                path, path))
        path.unlink()
        code, lines = self.status()
        self.assertEqual(nova_pending.EXIT_DRIFT, code)
        self.assertEqual(
            'drift: nova.thing.function replaces a body with the digest '
            '0123456789abcdef, and the release has no source', lines[-2])

    def test_release_is_refused(self):
        self.fake.set_version('35.1.0')
        self.assertEqual((nova_pending.EXIT_REFUSED, [
            'refused: nova-pending is made for Nova 34, and this environment '
            'has nova 35.1.0: install "nova>=34,<35" or the nova-pending of '
            'that release, or set NOVA_PENDING=off to run Nova without it.',
        ]), self.status())

    def test_file_is_refused(self):
        self.lay('FLAG = 2')
        self.fake.lay('registry.py', '''
            def register(cls):
                return cls
        ''')
        self.assertEqual((nova_pending.EXIT_REFUSED, [
            'refused: nova.registry.register does not call the released one: '
            'call released.register or mark it with nova_pending.replaces()',
        ]), self.status())

    def test_file_that_raises(self):
        self.lay('undefined')
        self.assertEqual((nova_pending.EXIT_REFUSED, [
            "refused: nova.thing: NameError: name 'undefined' is not "
            "defined"]), self.status())

    def test_new_directory_that_is_no_package(self):
        self.fake.lay('own/part.py', '')
        self.assertEqual((nova_pending.EXIT_REFUSED, [
            "refused: nova.own.part: ModuleNotFoundError: No module named "
            "'nova.own'"]), self.status())

    def test_unknown_value_of_the_switch(self):
        self.assertEqual((nova_pending.EXIT_REFUSED, [
            'refused: NOVA_PENDING=no is neither "on" nor "off": set it to '
            '"off" to run Nova without nova-pending, or unset it.',
        ]), self.status(NOVA_PENDING='no'))

    def test_switched_off(self):
        self.fake.set_version('35.1.0')
        self.assertEqual((nova_pending.EXIT_INACTIVE, [
            'inactive: NOVA_PENDING=Off is set in this environment',
        ]), self.status(NOVA_PENDING='Off'))

    def test_interpreter_without_site(self):
        self.assertEqual((nova_pending.EXIT_INACTIVE, [
            'inactive: this interpreter did not run nova_pending.pth; '
            'install nova-pending into the site-packages that holds nova',
        ]), self.status('-S', PYTHONPATH=str(self.fake.site)))

    def test_nova_was_imported_before(self):
        (self.fake.site / 'a.pth').write_text('import nova\n')
        done = self.fake.status()
        self.assertEqual(
            (nova_pending.EXIT_INACTIVE, 'inactive: nova was imported before '
             'nova-pending could be laid over it\n'),
            (done.returncode, done.stdout))

    def test_what_the_release_says_at_import_is_left_out(self):
        self.fake.release('thing.py', '''
            import logging
            import warnings
            warnings.warn('deprecated', DeprecationWarning)
            logging.warning('deprecated')
        ''')
        self.fake.lay('thing.py', 'OWN = 1')
        self.assertEqual(EXIT_ACTIVE, self.status()[0])

    def test_usage(self):
        for arguments, code, stream in (
                ([], 2, 'stderr'), (['other'], 2, 'stderr'),
                (['--help'], 0, 'stdout')):
            done = self.fake.run(
                'import sys, nova_pending; sys.argv[1:] = %r;'
                'sys.exit(nova_pending.main())' % arguments)
            self.assertEqual(code, done.returncode)
            self.assertIn('usage: nova-pending', getattr(done, stream))


class OwnTreeTest(testtools.TestCase):
    """The tree of this project over the release that is installed."""

    def test_no_drift(self):
        done = subprocess.run(
            [sys.executable, '-c', 'import sys, nova_pending;'
             'sys.argv[1:] = ["status"]; sys.exit(nova_pending.main())'],
            capture_output=True, text=True)
        self.assertEqual(
            (EXIT_ACTIVE, ''), (done.returncode, done.stderr), done.stdout)
        lines = done.stdout.splitlines()
        self.assertThat(lines[0], testtools.matchers.MatchesRegex(
            r'nova 34\.\S+, laid over from %s$' % nova_pending.tree()))
        self.assertEqual('%d modules, no drift' % len(nova_pending.modules()),
                         lines[-1])
        shown = [line for line in lines if line.startswith('nova.')]
        self.assertEqual(nova_pending.modules(), shown)
        # A file that does nothing would have no line below its name.
        for name, line in zip(lines[1:], lines[2:]):
            if name in shown:
                self.assertThat(line, testtools.matchers.StartsWith('    '))

    def test_no_file_makes_the_tree_a_package(self):
        # The release is a regular package, and wins over a directory of its
        # name on sys.path only as long as that is none.
        self.assertFalse((fake_release.CHECKOUT / 'nova' / '__init__.py'
                          ).exists())
