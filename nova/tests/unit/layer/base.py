# SPDX-License-Identifier: Apache-2.0

import ast
import textwrap

import testtools

from nova.tests.unit.layer import fake_release

RELEASED = '''
import functools
import nova.registry

def noted(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return 'noted ' + function(*args, **kwargs)
    return wrapper

def marked(function):
    function.code = 202
    return function

class Base:
    def inherited(self):
        return 'inherited'

@nova.registry.register
class Thing(Base):
    limit = 1

    def __init__(self, name='a'):
        super(Thing, self).__init__()
        self.name = name

    def method(self, first, second=None):
        return 'released %s %s' % (first, second)

    def named(self, *, key, other=None):
        return 'released %s' % key

    def any(self, *args, **kwargs):
        return 'released %s %s' % (args, sorted(kwargs))

    @noted
    def decorated(self, first):
        return 'released'

    @marked
    def marked(self):
        return 'released'

    @staticmethod
    def static(first):
        return 'released %s' % first

    @classmethod
    def made(cls, first):
        return 'released %s %s' % (cls.__name__, first)

    @property
    def colour(self):
        return 'released'

    @colour.setter
    def colour(self, value):
        self.painted = value

    @functools.cached_property
    def cached(self):
        return 'released'

    def __private(self):
        return 'released'

    def private(self):
        return self.__private()

class Child(Thing):
    def __init__(self):
        super(Child, self).__init__('child')

    def method(self, first, second=None):
        return 'child ' + super(Child, self).method(first, second)

def function(first, second=None):
    return 'released %s %s' % (first, second)

@functools.lru_cache
def remembered(first):
    return 'released %s' % first

TABLE = {'deep': {'list': [1]}}
FLAG = 1
'''

HEADER = '''
import functools
import nova_pending
released = nova_pending.released(__name__)

'''


def body_with(member):
    """Return a body over the class Thing with a good member and another."""
    return '''
            @nova_pending.over(released.Thing)
            class Thing:
                limit = 2

%s
        ''' % textwrap.indent(textwrap.dedent(member), ' ' * 16)


class LayerTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        self.fake = self.useFixture(fake_release.FakeRelease())
        self.fake.release('registry.py', '''
            known = []

            def register(cls):
                known.append(cls)
                return cls
        ''')
        self.fake.release('thing.py', RELEASED)

    def lay(self, body, header=HEADER):
        path = self.fake.lay('thing.py', body)
        path.write_text(header + path.read_text())

    def values(self, *expressions, setup=''):
        """Return what expressions about nova.thing, as t, are worth."""
        done = self.fake.run('import nova.thing as t\n%s\nprint([%s])' % (
            setup, ', '.join(expressions)))
        self.assertEqual(0, done.returncode, done.stderr)
        return ast.literal_eval(done.stdout)

    def assertImportFails(self, sentence, module='nova.thing'):
        """Assert that the import of a module ends with a LayerError."""
        done = self.fake.run('import ' + module)
        self.assertEqual(1, done.returncode)
        self.assertEqual('nova_pending.LayerError: ' + sentence,
                         done.stderr.splitlines()[-1])

    def assertRefusedByCheck(self, sentence, module='nova.thing'):
        """Assert that ``nova-pending status`` refuses a module."""
        done = self.fake.status()
        self.assertEqual(
            (2, 'refused: %s.%s\n' % (module, sentence), ''),
            (done.returncode, done.stdout, done.stderr))

    def assertRefused(self, sentence):
        """Assert that nova.thing is refused and the release left as it is."""
        done = self.fake.run('''
            import nova.registry
            for attempt in range(2):
                try:
                    import nova.thing
                except ImportError as exc:
                    print('%s: %s' % (type(exc).__name__, exc))
            for cls in nova.registry.known:
                print(cls().method(1), cls.limit)
        ''')
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertEqual(
            ['LayerError: nova.thing.' + sentence] * 2 +
            ['released 1 None 1'] * 2, done.stdout.splitlines())
