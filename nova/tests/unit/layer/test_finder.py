# SPDX-License-Identifier: Apache-2.0

import shutil
import textwrap

import testtools

from nova.tests.unit.layer import base
from nova.tests.unit.layer import fake_release

EXTENDING = base.HEADER + '''
class Base(released.Base):
    def inherited(self):
        return 'laid ' + super().inherited()


@nova_pending.over(released.Thing)
class Thing:
    def method(self, first, second=None):
        return 'laid ' + released.Thing.method(self, first, second)


def function(first, second=None):
    return 'laid ' + released.function(first, second)


def added():
    raise KeyError('added')
'''


class FinderTest(base.LayerTestCase):
    """How modules are found and loaded when all is in order."""

    def test_package_of_the_release(self):
        self.fake.release('api/__init__.py', 'LIMIT = 1')
        self.fake.release('api/stock.py', 'WHO = "release"')
        self.fake.release('api/both.py', 'WHO = "release"')
        self.fake.lay('api/__init__.py', base.HEADER +
                      'from nova.api import stock\n'
                      'LIMIT = released.LIMIT + 1\n')
        self.fake.lay('api/both.py', 'WHO += " and tree"')
        self.fake.lay('api/own.py', 'from . import both\n'
                                    'WHO = "tree and " + both.WHO\n')
        done = self.fake.run('''
            from nova import api
            from nova.api import both
            from nova.api import own
            from nova.api import stock
            print(api.LIMIT, stock.WHO, both.WHO, own.WHO, sep=', ')
        ''')
        self.assertEqual(
            '2, release, release and tree, tree and release and tree\n',
            done.stdout, done.stderr)

    def test_new_package(self):
        self.fake.lay('reaper/__init__.py', 'from nova.reaper import queue')
        self.fake.lay('reaper/queue/__init__.py', 'from .. import places')
        self.fake.lay('reaper/queue/order.py', 'from ..places import HERE')
        self.fake.lay('reaper/places.py', 'HERE = __name__')
        self.fake.lay('reaper/data.txt', 'data')
        done = self.fake.run('''
            import importlib.resources
            import importlib.util
            import nova.reaper.queue.order as order
            print(order.HERE, order.__file__, order.__spec__.origin)
            print((importlib.resources.files('nova.reaper') / 'data.txt')
                  .read_text())
            print(importlib.util.find_spec('nova.reaper.missing'))
        ''')
        path = self.fake.tree / 'reaper' / 'queue' / 'order.py'
        self.assertEqual(
            'nova.reaper.places %s %s\ndata\nNone\n' % (path, path),
            done.stdout, done.stderr)

    def test_new_package_beside_a_left_over_directory(self):
        (self.fake.site / 'nova' / 'reaper' / '__pycache__').mkdir(
            parents=True)
        self.fake.lay('reaper/__init__.py', 'HERE = __file__')
        done = self.fake.run('import nova.reaper; print(nova.reaper.HERE)')
        self.assertEqual(
            '%s\n' % (self.fake.tree / 'reaper' / '__init__.py'),
            done.stdout, done.stderr)

    def test_module_that_neither_has(self):
        done = self.fake.run('import nova.missing')
        self.assertEqual("ModuleNotFoundError: No module named "
                         "'nova.missing'", done.stderr.splitlines()[-1])

    def test_module_says_where_the_release_is(self):
        self.fake.release('thing.py', '"""As released."""\n' + base.RELEASED)
        self.fake.release('template.txt', 'template')
        self.fake.lay('thing.py', '"""Of the tree."""' + EXTENDING)
        done = self.fake.run('''
            import importlib.resources
            import os
            import nova.thing as t
            print(t.__doc__, t.__file__, t.__spec__.origin)
            print(os.path.basename(t.__cached__),
                  t.__loader__ is t.__spec__.loader)
            print((importlib.resources.files('nova') / 'template.txt')
                  .read_text())
        ''')
        path = self.fake.site / 'nova' / 'thing.py'
        first, second, third = done.stdout.splitlines()
        self.assertEqual('As released. %s %s' % (path, path), first)
        self.assertThat(second, testtools.matchers.MatchesRegex(
            r'thing\.cpython-3\d+\.pyc True'))
        self.assertEqual('template', third)

    def test_sources(self):
        self.fake.lay('thing.py', EXTENDING)
        self.assertEqual(
            ["    return 'laid ' + released.function(first, second)",
             "    return 'released %s %s' % (first, second)",
             "        return 'laid ' + released.Thing.method(self, first, "
             "second)",
             "        return 'noted ' + function(*args, **kwargs)"],
            self.values('line(t.function)', 'line(t.released.function)',
                        'line(t.Thing.method)',
                        'line(t.Thing.decorated.__code__)',
                        setup='import inspect\ndef line(f):\n'
                        '    return inspect.getsource(f).splitlines()[-1]'))

    def test_traceback(self):
        path = self.fake.lay('thing.py', EXTENDING)
        done = self.fake.run('import nova.thing; nova.thing.added()')
        number = EXTENDING.splitlines().index("    raise KeyError('added')")
        lines = done.stderr.splitlines()
        self.assertIn('  File "%s", line %d, in added' % (path, number + 1),
                      lines)
        self.assertIn("    raise KeyError('added')", lines)

    def test_pickle(self):
        self.fake.lay('thing.py', EXTENDING)
        self.assertEqual(
            ['laid inherited', 'laid released 1 None',
             'laid released 1 None'],
            self.values('again(t.Base()).inherited()',
                        'again(t.Thing()).method(1)',
                        'again(t.function)(1)',
                        setup='import pickle\n'
                        'def again(x): return pickle.loads(pickle.dumps(x))'))

    def test_pickle_between_processes_with_and_without_the_tree(self):
        self.fake.lay('thing.py', EXTENDING)
        write = '''
            import pickle, sys, nova.thing as t
            open('%s', 'wb').write(pickle.dumps([t.Base(), t.Thing('b')]))
        '''
        read = '''
            import pickle
            one, two = pickle.load(open('%s', 'rb'))
            print(one.inherited(), two.method(two.name))
        '''
        self.fake.run(write % 'laid')
        self.fake.run(write % 'stock', NOVA_PENDING='off')
        self.assertEqual(
            'laid inherited laid released b None\n',
            self.fake.run(read % 'stock').stdout)
        self.assertEqual(
            'inherited released b None\n',
            self.fake.run(read % 'laid', NOVA_PENDING='off').stdout)

    def test_copies_of_module_specs(self):
        self.fake.lay('thing.py', EXTENDING)
        done = self.fake.run('''
            import copy
            import nova.thing
            spec = copy.copy(nova.thing.__spec__)
            loader = copy.copy(spec.loader)
            print(loader.layer == spec.loader.layer,
                  loader.is_package('nova.thing'))
        ''')
        self.assertEqual('True False\n', done.stdout, done.stderr)

    def test_reload(self):
        path = self.fake.lay('thing.py', EXTENDING)
        first, second = 'laid released 1 None', 'again released 1 None'
        done = self.fake.run('''
            import importlib
            import pathlib
            import nova.thing as t
            print(t.Thing().method(1), hasattr(t, 'added'))
            importlib.reload(t)
            print(t.Thing().method(1), hasattr(t, 'added'))
            path = pathlib.Path('%s')
            path.write_text(path.read_text().replace(
                "'laid '", "'again ' * 1"))
            importlib.reload(t)
            print(t.Thing().method(1), hasattr(t, 'added'))
            print(t.released.Thing.method(t.Thing(), 1))
        ''' % path, '-B')
        self.assertEqual(
            [first + ' True', first + ' True', second + ' True',
             'released 1 None'], done.stdout.splitlines(), done.stderr)

    def test_reload_of_a_package_keeps_its_modules(self):
        self.fake.release('api/__init__.py', 'LIMIT = 1')
        self.fake.release('api/stock.py', 'WHO = "release"')
        self.fake.lay('api/__init__.py', base.HEADER +
                      'from nova.api import stock\n'
                      'LIMIT = released.LIMIT + 1\n')
        done = self.fake.run('''
            import importlib
            from nova import api
            importlib.reload(api)
            print(api.LIMIT, api.stock.WHO, api.released.LIMIT)
        ''')
        self.assertEqual('2 release 1\n', done.stdout, done.stderr)

    def test_imports_in_many_threads(self):
        for number in range(8):
            self.fake.release('m%d.py' % number, '''
                import time
                %s
                time.sleep(0.01)
                PLACES = ['release']
            ''' % ('from nova import m%d' % (number + 1) if number < 7
                   # Many threads cannot import a circle: Python sees a
                   # deadlock.
                   else ''))
            self.fake.lay('m%d.py' % number, '''
                import time
                time.sleep(0.01)
                PLACES.append('tree')
            ''')
        done = self.fake.run('''
            import importlib
            import threading
            seen = []
            start = threading.Barrier(16)

            def load(number):
                start.wait()
                module = importlib.import_module('nova.m%d' % (number % 8))
                seen.append(module)

            threads = [threading.Thread(target=load, args=(number,))
                       for number in range(16)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(len(seen), len(set(seen)),
                  {tuple(module.PLACES) for module in seen})
        ''')
        self.assertEqual("16 8 {('release', 'tree')}\n", done.stdout,
                         done.stderr)

    def test_hook_ahead_that_asks_the_other_finders(self):
        self.fake.lay('thing.py', EXTENDING)
        self.assertEqual(['laid released 1 None'], self.values(
            't2.Thing().method(1)', setup='''
import importlib.util
import sys

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name == 'nova.thing':
            for finder in sys.meta_path[1:]:
                spec = finder.find_spec(name, path, target)
                if spec:
                    return spec

sys.meta_path.insert(0, Hook())
del sys.modules['nova.thing']
t2 = importlib.import_module('nova.thing')
'''))

    def test_start_up_imports_nothing_else(self):
        show = 'import sys; print(*sorted(sys.modules))'
        with_tree = set(self.fake.run(show).stdout.split())
        # Python imports something to read a file of this kind at all.
        (self.fake.site / 'nova_pending.pth').write_text('import sys\n')
        without = set(self.fake.run(show).stdout.split())
        self.assertEqual({'nova_pending'}, with_tree - without)

    def test_tree_is_not_read_at_start(self):
        shutil.rmtree(self.fake.tree)
        done = self.fake.run('print("started")')
        self.assertEqual(('started\n', ''), (done.stdout, done.stderr))

    def test_lay_twice_is_once(self):
        self.fake.lay('thing.py', 'FLAG += 1')
        with (self.fake.site / 'nova_pending.pth').open('a') as pth:
            pth.write('import nova_pending; nova_pending.lay()\n')
        self.assertEqual([2], self.values('t.FLAG'))

    def test_entry_point_of_later_pythons(self):
        self.fake.lay('thing.py', 'FLAG += 1')
        (self.fake.site / 'nova_pending.pth').unlink()
        entry, = (fake_release.CHECKOUT / 'nova_pending.start'
                  ).read_text().splitlines()
        done = self.fake.run('''
            import pkgutil
            pkgutil.resolve_name('%s')()
            import nova.thing
            print(nova.thing.FLAG)
        ''' % entry)
        self.assertEqual('2\n', done.stdout, done.stderr)


class PlaceTest(testtools.TestCase):
    """Where the tree may lie, and what else may lie on sys.path."""

    def setUp(self):
        super().setUp()
        self.fake = self.useFixture(fake_release.FakeRelease())
        self.fake.release('thing.py', 'WHO = "release"')
        self.fake.lay('thing.py', 'WHO += " and wheel"')

    def who(self, *options, **environment):
        done = self.fake.run('import nova.thing; print(nova.thing.WHO)',
                             *options, **environment)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout.strip()

    def checkout(self):
        path = self.fake.path / 'checkout'
        (path / 'nova').mkdir(parents=True)
        (path / 'nova' / 'thing.py').write_text('WHO += " and checkout"')
        shutil.copy(self.fake.site / 'nova_pending.py', path)
        return path

    def test_beside_the_module(self):
        self.assertEqual('release and wheel', self.who())

    def test_checkout(self):
        path = self.checkout()
        shutil.rmtree(self.fake.tree)
        (self.fake.site / 'nova_pending.py').unlink()
        (self.fake.site / '__editable__.pth').write_text('%s\n' % path)
        self.assertEqual('release and checkout', self.who())

    def test_first_of_two_copies_on_the_path(self):
        self.assertEqual('release and checkout',
                         self.who(PYTHONPATH=str(self.checkout())))

    def test_checkout_as_the_working_directory(self):
        path = self.checkout()
        self.assertEqual('release and wheel', self.fake.run('''
            import os, sys
            os.chdir('%s')
            sys.path.insert(0, '')
            import nova.thing
            print(nova.thing.WHO)
        ''' % path).stdout.strip())

    def test_two_environments_with_the_package(self):
        other = self.fake.path / 'other'
        other.mkdir()
        for name in ('nova_pending.py', 'nova_pending.pth'):
            shutil.copy(self.fake.site / name, other)
        (self.fake.site / 'zz.pth').write_text(
            'import site; site.addsitedir(%r)\n' % str(other))
        self.assertEqual('release and wheel', self.who())

    def test_isolated_interpreter(self):
        self.assertEqual('release and wheel', self.who('-I'))

    def test_interpreter_without_site(self):
        self.assertEqual('release',
                         self.who('-S', PYTHONPATH=str(self.fake.site)))

    def test_switched_off(self):
        for value in ('off', 'OFF', ' Off '):
            self.assertEqual('release', self.who(NOVA_PENDING=value))

    def test_switched_on(self):
        for value in ('', 'on', 'ON'):
            self.assertEqual('release and wheel', self.who(NOVA_PENDING=value))

    def test_tree_is_gone(self):
        shutil.rmtree(self.fake.tree)
        done = self.fake.run('import nova')
        self.assertEqual(1, done.returncode)
        self.assertEqual(
            'nova_pending.LayerError: The files of nova-pending are not '
            'beside %s: install nova-pending again.' % (
                self.fake.site / 'nova_pending.py'),
            done.stderr.splitlines()[-1])

    def test_nova_was_imported_before(self):
        (self.fake.site / 'a.pth').write_text('import nova.thing\n')
        done = self.fake.run('import nova.thing; print(nova.thing.WHO)')
        self.assertEqual('release\n', done.stdout)
        self.assertIn('nova_pending.LayerError: nova was imported before '
                      'nova-pending could be laid over it: start a new '
                      'process.', done.stderr)

    def test_nova_is_found_by_someone_else(self):
        (self.fake.site / 'zz.pth').write_text('import hook\n')
        (self.fake.site / 'hook.py').write_text(textwrap.dedent('''
            import importlib.machinery
            import sys

            class Hook:
                def find_spec(self, name, path=None, target=None):
                    if name == 'nova':
                        return importlib.machinery.PathFinder.find_spec(name)

            sys.meta_path.insert(0, Hook())
        '''))
        self.assertEqual('release and wheel', self.who())


class RefusalTest(testtools.TestCase):
    """What is refused at import, whole and again at the next try."""

    def setUp(self):
        super().setUp()
        self.fake = self.useFixture(fake_release.FakeRelease())
        self.fake.release('thing.py', 'WHO = "release"')

    def assertRefused(self, sentence, module='nova', **environment):
        done = self.fake.run('''
            import sys
            for attempt in range(2):
                try:
                    import %(module)s
                except Exception as exc:
                    print('%%s: %%s' %% (type(exc).__name__, exc))
                print('%(module)s' in sys.modules)
        ''' % {'module': module}, **environment)
        self.assertEqual([sentence, 'False'] * 2, done.stdout.splitlines(),
                         done.stderr)

    def test_release(self):
        for version in ('32.3.0', '35.0.0', '3.4', '340.0.0', '35.0.0.0rc1',
                        '34.0.0.0rc1', '34.0.0.0b2', '34.0.0.dev7',
                        '34.0.dev7', '33.0.0.0rc1', '0+unknown'):
            self.fake.set_version(version)
            self.assertRefused(
                'LayerError: nova-pending is made for Nova 33 and 34, and '
                'this environment has nova %s: install "nova>=33,<35" or the '
                'nova-pending of that release, or set NOVA_PENDING=off to '
                'run Nova without it.' % version)

    def test_release_in_the_range(self):
        for version in ('34.0.0', '34', '34.0.1', '34.2.0', '34.0.1.dev5',
                        '34.1.0.0rc1', '34.0.0+vendor.1', '34.0.0.post1',
                        '33.0.0', '33', '33.0.2', '33.1.0.0rc1'):
            self.fake.set_version(version)
            done = self.fake.run('import nova')
            self.assertEqual((0, ''), (done.returncode, done.stderr), version)

    def test_release_without_metadata(self):
        shutil.rmtree(self.fake.site / 'nova.dist-info')
        self.assertRefused(
            'LayerError: nova-pending is made for Nova 33 and 34, and this '
            'environment has none installed: install "nova>=33,<35" or the '
            'nova-pending of that release, or set NOVA_PENDING=off to run '
            'Nova without it.')

    def test_release_is_not_looked_at_when_switched_off(self):
        self.fake.set_version('35.0.0')
        done = self.fake.run('import nova', NOVA_PENDING='off')
        self.assertEqual((0, ''), (done.returncode, done.stderr))

    def test_processes_without_nova_do_not_mind(self):
        self.fake.set_version('35.0.0')
        done = self.fake.run('import json', NOVA_PENDING='of')
        self.assertEqual((0, ''), (done.returncode, done.stderr))

    def test_exit_code(self):
        self.fake.set_version('35.0.0')
        done = self.fake.run('import nova')
        self.assertEqual(1, done.returncode)
        self.assertThat(
            done.stderr.splitlines()[-1], testtools.matchers.StartsWith(
                'nova_pending.LayerError: nova-pending is made for Nova 33 '
                'and 34, '))

    def test_unknown_value_of_the_switch(self):
        for value in ('0', 'no', 'false', 'of'):
            self.assertRefused(
                'LayerError: NOVA_PENDING=%s is neither "on" nor "off": set '
                'it to "off" to run Nova without nova-pending, or unset it.'
                % value, NOVA_PENDING=value)

    def test_file_that_raises(self):
        self.fake.lay('thing.py', 'WHO = "half"\nundefined\n')
        self.assertRefused("NameError: name 'undefined' is not defined",
                           'nova.thing')

    def test_file_with_a_syntax_error_stops_before_the_release_runs(self):
        self.fake.release('thing.py', 'print("release")')
        path = self.fake.lay('thing.py', 'WHO = = "half"\n')
        self.assertRefused('SyntaxError: invalid syntax (thing.py, line 1)',
                           'nova.thing')
        self.assertIn('File "%s", line 1' % path,
                      self.fake.run('import nova.thing').stderr)

    def test_file_that_imports_what_is_not_there(self):
        self.fake.lay('thing.py', 'import nova.missing\n')
        self.assertRefused("ModuleNotFoundError: No module named "
                           "'nova.missing'", 'nova.thing')

    def test_module_that_imports_a_broken_one(self):
        self.fake.lay('thing.py', 'undefined\n')
        self.fake.release('user.py', 'from nova import thing')
        self.assertRefused("NameError: name 'undefined' is not defined",
                           'nova.user')

    def test_released_module_that_raises(self):
        self.fake.release('thing.py', 'undefined\n')
        self.fake.lay('thing.py', 'print("tree")')
        self.assertRefused("NameError: name 'undefined' is not defined",
                           'nova.thing')

    def test_broken_file_once_mended(self):
        path = self.fake.lay('thing.py', 'undefined\n')
        done = self.fake.run('''
            try:
                import nova.thing
            except NameError:
                open('%s', 'w').write('WHO += " and tree"')
            import importlib
            importlib.invalidate_caches()
            import nova.thing
            print(nova.thing.WHO)
        ''' % path, '-B')
        self.assertEqual('release and tree\n', done.stdout, done.stderr)

    def test_running_a_module_as_a_script(self):
        self.fake.lay('thing.py', 'print("tree")')
        done = self.fake.python('-m', 'nova.thing')
        self.assertEqual(1, done.returncode)
        self.assertIn('nova.thing is laid over: import it, it cannot be run '
                      'as a script', done.stderr)
        self.assertEqual('', done.stdout)


class InterpretersTest(testtools.TestCase):
    """The same in every supported interpreter that the machine has."""

    def test_layer(self):
        for python in fake_release.pythons():
            fake = self.useFixture(fake_release.FakeRelease(python=python))
            fake.release('registry.py', 'def register(cls): return cls')
            fake.release('thing.py', base.RELEASED)
            fake.release('broken.py', '')
            fake.lay('thing.py', EXTENDING)
            fake.lay('own/__init__.py', 'from nova.own import part')
            fake.lay('own/part.py', 'WHO: str = "tree"')
            fake.lay('broken.py', 'undefined')
            fake.release('binary.py', base.RELEASED)
            fake.lay('binary.py', base.HEADER + '''
@nova_pending.over(released.Child)
class Child:
    """Lays a method over."""

    other: int

    @nova_pending.replaces('0' * 16)
    def method(self, first, second=None):
        return released.Thing.method(self, first)
''')
            done = fake.run('''
                import importlib
                import inspect
                import nova.binary
                import nova.own
                import nova.thing as t
                importlib.reload(t)
                print(t.Child().method(1), t.Base().inherited())
                print(nova.own.part.WHO, nova.binary.Child().method(2))
                print(inspect.getsource(t.function).splitlines()[-1])
                try:
                    import nova.broken
                except NameError as exc:
                    print(exc)
            ''')
            self.assertEqual([
                'child laid released 1 None laid inherited',
                'tree released 2 None',
                "    return 'laid ' + released.function(first, second)",
                "name 'undefined' is not defined",
            ], done.stdout.splitlines(), python + done.stderr)
            (fake.tree / 'broken.py').unlink()
            done = fake.status()
            self.assertEqual('drift: nova.binary.Child.method',
                             done.stdout.split(' replaces')[0], python)
            for body, sentence in (('''
class Thing(released.Thing):
    limit = 2
''', 'Thing must be changed with over(): super(Thing, self) in the release '
     'would recurse in a subclass'), ('''
@nova_pending.over(released.Thing)
class Thing:
    def method(self, first, second=None):
        released.Thing.method
        return super().method(first)
''', 'Thing.method uses super() or __class__, which is '
            'the body')):
                fake.lay('thing.py', base.HEADER + body)
                self.assertEqual(
                    'refused: nova.thing.%s\n' % sentence,
                    fake.status().stdout, python)
