# SPDX-License-Identifier: Apache-2.0

import os
import re
import subprocess
import sys

from oslo_serialization import jsonutils
import testtools

from nova.tests.unit.layer import base
from nova.tests.unit.layer import fake_release
import nova_pending
import nova_pending_check

EXIT_ACTIVE = 0

VARIABLE = 'OS_NOVA_DISABLE_EVENTLET_PATCHING'


class StatusTest(base.LayerTestCase):
    """What ``nova-pending status`` writes, and its exit code."""

    def status(self, *options, arguments='status', **environment):
        done = self.fake.command(arguments, *options, **environment)
        self.assertEqual('', done.stderr)
        return done.returncode, done.stdout.splitlines()

    def digest(self, name):
        """Return the digest of something in the released nova.thing."""
        done = self.fake.run(
            'import nova_pending_check as c, nova.thing;'
            'print(c.digest(nova.thing.%s))' % name,
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
            'nova 34.0.0, laid over from %s: 3 modules, no drift' %
            self.fake.tree,
        ]), self.status(arguments='status -v'))
        self.assertEqual((EXIT_ACTIVE, [
            'nova 34.0.0, laid over from %s: 3 modules, no drift' %
            self.fake.tree]), self.status())
        code, lines = self.status(arguments='status -f json')
        found = jsonutils.loads(''.join(lines))
        self.assertEqual(
            (EXIT_ACTIVE, 'active', '34.0.0', str(self.fake.tree), [], None),
            (code, found['state'], found['release'], found['tree'],
             found['drifts'], found['modules']['nova.own']))
        self.assertEqual(
            {'extends': ['Base', 'Base.inherited', 'TABLE', 'Thing.static',
                         'function'], 'replaces': ['Thing.method'],
             'changes': ['FLAG', 'Thing.limit'],
             'adds': ['Base.size', 'OWN', 'Thing.grow']},
            found['modules']['nova.thing'])

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
        self.assertEqual(nova_pending_check.EXIT_DRIFT, code)
        self.assertEqual([
            'drift: nova.thing.Thing.method replaces a body with the digest '
            '%s, and the release has %s' % (
                digest, self.digest('Thing.method')),
            'drift: nova.thing.function replaces a body with the digest '
            '0123456789abcdef, and the release has %s' % (
                self.digest('function')),
            'nova 34.0.0, laid over from %s: 1 modules, 2 drifts' %
            self.fake.tree], lines)
        code, lines = self.status(arguments='status -f json')
        found = jsonutils.loads(''.join(lines))
        self.assertEqual(
            (nova_pending_check.EXIT_DRIFT, 'drift', 2),
            (code, found['state'], len(found['drifts'])))

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
        self.assertEqual(nova_pending_check.EXIT_DRIFT, code)
        self.assertEqual(
            'drift: nova.thing.function replaces a body with the digest '
            '0123456789abcdef, and the release has no source', lines[-2])

    def test_release_is_refused(self):
        self.fake.set_version('35.1.0')
        self.assertEqual((nova_pending_check.EXIT_REFUSED, [
            'refused: nova-pending is made for Nova 33 and 34, and this '
            'environment has nova 35.1.0: install "nova>=33,<35" or the '
            'nova-pending of that release, or set NOVA_PENDING=off to run '
            'Nova without it.',
        ]), self.status())

    def test_file_is_refused(self):
        self.lay('FLAG = 2')
        self.fake.lay('registry.py', '''
            def register(cls):
                return cls
        ''')
        self.assertEqual((nova_pending_check.EXIT_REFUSED, [
            'refused: nova.registry.register does not call the released one: '
            'call released.register or mark it with nova_pending.replaces()',
        ]), self.status())

    def test_file_that_raises(self):
        self.lay('undefined')
        self.assertEqual((nova_pending_check.EXIT_REFUSED, [
            "refused: nova.thing: NameError: name 'undefined' is not "
            "defined"]), self.status())

    def test_new_directory_that_is_no_package(self):
        self.fake.lay('own/part.py', '')
        self.assertEqual((nova_pending_check.EXIT_REFUSED, [
            "refused: nova.own.part: ModuleNotFoundError: No module named "
            "'nova.own'"]), self.status())

    def test_unknown_value_of_the_switch(self):
        self.assertEqual((nova_pending_check.EXIT_REFUSED, [
            'refused: NOVA_PENDING=no is neither "on" nor "off": set it to '
            '"off" to run Nova without nova-pending, or unset it.',
        ]), self.status(NOVA_PENDING='no'))

    def test_switched_off(self):
        self.fake.set_version('35.1.0')
        self.assertEqual((nova_pending_check.EXIT_INACTIVE, [
            'inactive: NOVA_PENDING=Off is set in this environment',
        ]), self.status(NOVA_PENDING='Off'))

    def test_interpreter_without_site(self):
        self.assertEqual((nova_pending_check.EXIT_INACTIVE, [
            'inactive: this interpreter did not run nova_pending.pth; '
            'install nova-pending into the site-packages that holds nova',
        ]), self.status('-S', PYTHONPATH=str(self.fake.site)))

    def test_nova_was_imported_before(self):
        (self.fake.site / 'a.pth').write_text('import nova\n')
        done = self.fake.status()
        self.assertEqual(
            (nova_pending_check.EXIT_INACTIVE, 'inactive: nova was imported '
             'before nova-pending could be laid over it\n'),
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
                'import sys, nova_pending_check as c; sys.argv[1:] = %r;'
                'sys.exit(c.main())' % arguments)
            self.assertEqual(code, done.returncode)
            self.assertIn('usage: nova-pending', getattr(done, stream))


class RefusalTest(base.LayerTestCase):
    """What ``nova-pending status`` refuses and the import of a file does not.

    Most of it would work, and mislead whoever reads the file.
    """

    def refuse(self, member, sentence):
        self.lay(base.body_with(member))
        self.assertRefusedByCheck(sentence)

    def test_super_without_arguments(self):
        self.refuse('''
            def method(self, first, second=None):
                released.Thing.method
                return super().method(first, second)
        ''', 'Thing.method uses super() or __class__, which is '
            'the body')

    def test_super_in_a_nested_function(self):
        self.refuse('''
            def method(self, first, second=None):
                def inner():
                    return __class__
                return released.Thing.method(self, first, inner())
        ''', 'Thing.method uses super() or __class__, which is '
            'the body')

    def test_super_in_a_new_method(self):
        self.refuse('''
            @nova_pending.new
            def grow(self):
                return super().grow()
        ''', 'Thing.grow uses super() or __class__, which is '
            'the body')

    def test_special_method(self):
        self.refuse('''
            def __repr__(self):
                return released.Thing.__repr__(self)
        ''', 'Thing.__repr__ is a special name: it cannot be laid over')

    def test_special_method_marked_as_new(self):
        self.refuse('''
            @nova_pending.new
            def __len__(self):
                return 1
        ''', 'Thing.__len__ is a special name: it cannot be laid over')

    def test_slots(self):
        self.refuse('__slots__ = ()', 'Thing.__slots__ is a special name: it '
                    'cannot be laid over')

    def test_method_that_does_not_call_the_released_one(self):
        self.refuse('''
            def method(self, first, second=None):
                return 'replaced'
        ''', 'Thing.method does not call the released one: call '
            'released.Thing.method or mark it with nova_pending.replaces()')

    def test_method_that_calls_another_released_one(self):
        self.refuse('''
            def method(self, first, second=None):
                return released.Child.method(self, first)
        ''', 'Thing.method does not call the released one: call '
            'released.Thing.method or mark it with nova_pending.replaces()')

    def test_method_over_a_value(self):
        self.refuse('''
            def limit(self):
                return released.Thing.limit
        ''', 'Thing.limit is released as a int')

    def test_body_of_another_name(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Other:
                limit = 2
        ''')
        self.assertRefusedByCheck(
            'Thing must be laid over by a class of its name, without a base, '
            'in the file of its module')

    def test_body_with_a_base(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing(Base):
                limit = 2
        ''')
        self.assertRefusedByCheck(
            'Thing must be laid over by a class of its name, without a base, '
            'in the file of its module')

    def test_body_in_the_file_of_another_module(self):
        self.lay('')
        self.fake.release('other.py', 'import nova.thing')
        self.fake.lay('other.py', '''
            import nova_pending

            @nova_pending.over(nova.thing.Thing)
            class Thing:
                limit = 2
        ''')
        self.assertRefusedByCheck(
            'Thing must be laid over by a class of its name, '
            'without a base, in the file of its module')

    def test_method_twice(self):
        body = '''
            @nova_pending.over(released.Thing)
            class Thing:
                def inherited(self):
                    return released.Thing.inherited(self)
        '''
        self.lay(body + body)
        self.assertRefusedByCheck('Thing.inherited is laid over twice')

    def test_method_that_the_class_lists(self):
        self.fake.release('registry.py', '''
            known = []

            def register(cls):
                known.append(cls)
                cls._periodic_tasks = [('method', cls.method)]
                return cls
        ''')
        self.refuse('''
            def method(self, first, second=None):
                return released.Thing.method(self, first, second)
        ''', 'Thing.method is a periodic task, and the released one '
            'would run')

    def test_class_is_bound_again(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def inherited(self):
                    return released.Thing.inherited(self)

            Thing = type('Thing', (Thing,), {})
        ''')
        self.assertRefusedByCheck(
            'Thing is bound to something else after over()')

    def test_property(self):
        for released in ('@property', '@functools.cached_property'):
            self.fake.release('thing.py', base.RELEASED.replace(
                '    @functools.cached_property\n', '    %s\n' % released))
            self.refuse('''
                @property
                def cached(self):
                    return 'laid ' + released.Thing.cached
            ''', 'Thing.cached is a property: what takes its place cannot be '
                'compared')


class OwnTreeTest(testtools.TestCase):
    """The tree of this project over the release that is installed."""

    def status(self, threads=None):
        """Run ``nova-pending status``.

        :param threads: the value of the variable by which Nova chooses between
            native threads and eventlet, or None
        """
        environment = {**os.environ, VARIABLE: threads or ''}
        if threads is None:
            del environment[VARIABLE]
        done = subprocess.run(
            [sys.executable, '-c', 'import sys, nova_pending_check as c;'
             'sys.argv[1:] = ["status", "-v"]; sys.exit(c.main())'],
            capture_output=True, text=True, env=environment)
        self.assertEqual(
            (EXIT_ACTIVE, ''), (done.returncode, done.stderr), done.stdout)
        return done.stdout.splitlines()

    def test_native_threads_and_eventlet(self):
        lines = self.status()
        for threads in ('', 'true', 'false'):
            self.assertEqual(lines, self.status(threads))

    def test_no_drift(self):
        lines = self.status()
        modules = nova_pending_check.modules()
        self.assertThat(lines[-1], testtools.matchers.MatchesRegex(
            r'nova %s, laid over from %s: %d modules, no drift$' % (
                re.escape(nova_pending.release()), nova_pending.tree(),
                len(modules))))
        shown = [line for line in lines if line.startswith('nova.')]
        self.assertEqual(modules, shown)
        # A file that does nothing would have no line below its name.
        for name, line in zip(lines, lines[1:]):
            if name in shown:
                self.assertThat(line, testtools.matchers.StartsWith('    '))

    def test_no_file_makes_the_tree_a_package(self):
        # The release is a regular package, and wins over a directory of its
        # name on sys.path only as long as that is none.
        self.assertFalse((fake_release.CHECKOUT / 'nova' / '__init__.py'
                          ).exists())
