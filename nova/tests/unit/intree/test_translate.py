# SPDX-License-Identifier: Apache-2.0

"""How each construct of the layer becomes an edit of the released file."""

import hashlib
import textwrap

import testtools

from tools.intree import translate

RELEASED = '''\
# The licence.

"""What the module is for."""

import functools

from oslo_log import log as logging
import webob

from nova import exception
from nova import utils

LOG = logging.getLogger(__name__)

# How many there may be.
LIMIT = 7
NAMES = ['a', 'b']
SUM = NAMES + [
    'c',
    # The last one.
    'd',
]
HISTORY = """
    * 1 - The first.
"""
TABLE = {
    'a': 1,
}


def function(first, second=None):
    """Do something."""
    count = first  # as given
    return count


def _private(first):
    return first


class Base:
    def inherited(self, first):
        return first


class Thing(Base):
    """A thing.

    1.0 - The first.
    """

    # Version 1.0: The first.
    VERSION = '1.0'
    states = ('a', 'b')

    def __init__(self):
        self.known = {}

    # Why it is there.
    def method(self, first,
               second=None):
        """Do it."""
        if first:
            return second   # odd layout stays

    def plain(self, first):
        self.known[first] = first

    @staticmethod
    def static(first):
        return first

    @classmethod
    def made(cls, first):
        return cls()

    @base.remotable
    def destroy(self):
        return self.method(1)

    @utils.synchronized('thing')
    def locked(self, first):
        return first

    @wsgi.response(202)
    @validation.schema(schema.v1, '1.0', '1.9')
    @validation.schema(schema.v2, '2.0')
    @validation.response_body_schema(schema.answer)
    def _action(self, req, body):
        return body

    @property
    def colour(self):
        return 'red'
'''

HEADER = '''\
# SPDX-License-Identifier: Apache-2.0

import functools

from nova.compute import pending
import nova_pending

released = nova_pending.released(__name__)


'''


def digest(source):
    return hashlib.sha256(textwrap.dedent(source).encode()).hexdigest()[:16]


class TranslateTestCase(testtools.TestCase):

    def translate(self, body, header=HEADER, release=RELEASED, **kwargs):
        made = translate.translate(
            'nova/thing.py', header + textwrap.dedent(body), release, **kwargs)
        compile(made, 'thing.py', 'exec')
        return made

    def over(self, members, **kwargs):
        return self.translate(
            '@nova_pending.over(released.Thing)\nclass Thing:\n' +
            textwrap.indent(textwrap.dedent(members), '    '), **kwargs)

    def assertRefused(self, line, why, body, **kwargs):
        exc = self.assertRaises(
            translate.Refused, self.translate, body, **kwargs)
        self.assertEqual('nova/thing.py:%d: %s' % (
            line + HEADER.count('\n'), why), str(exc))

    def assertAdds(self, made, *parts, removes=()):
        """Assert that something was added, and that no more was removed."""
        for part in parts:
            self.assertIn(part, made)
        self.assertEqual(sorted(removes), sorted(
            line for line in RELEASED.split('\n')
            if line and line not in made.split('\n')))


class BodyTestCase(testtools.TestCase):
    """A method of a new module that has another body on a release."""

    MODULE = '''\
from nova import exception
from nova import limits
from nova import utils


class Request:
    def check(self) -> None:
        """Check it."""
        # Why.
        limits.check(self.flavor)
        utils.log(self)

    def other(self):
        raise exception.Invalid
'''
    FUNCTION = '''\
def _check(self):
    """Check the rest.

    More of it.
    """
    utils.log(self.flavor)
'''

    def test_body(self):
        self.assertEqual('''\
from nova import exception
from nova import utils


class Request:
    def check(self) -> None:
        """Check the rest.

        More of it.
        """
        utils.log(self.flavor)

    def other(self):
        raise exception.Invalid
''', translate.with_body(
            'nova/x.py', self.MODULE, 'Request.check', self.FUNCTION))

    def test_no_such_method(self):
        for name in 'Request.gone', 'Other.check':
            exc = self.assertRaises(
                translate.Refused, translate.with_body,
                'nova/x.py', self.MODULE, name, self.FUNCTION)
            self.assertEqual(
                'nova/x.py: %s, which has another body on this release, is '
                'not there' % name, str(exc))


class ModuleTestCase(TranslateTestCase):

    def test_nothing(self):
        self.assertEqual(RELEASED, self.translate(''))

    def test_new_module(self):
        self.assertEqual(
            translate.LICENCE + '\nimport os\n', translate.new_module(
                '# SPDX-License-Identifier: Apache-2.0\n\nimport os\n'))

    def test_part_of_a_new_module(self):
        self.assertEqual('''\
"""A module."""

import os

LIMIT = 1


class Thing:
    """A thing."""

    def first(self):
        return os
''', translate.new_module('''\
"""A module."""

import abc
import math
import os

from nova import utils

LIMIT = 1
LATER = math.pi


class Thing:
    """A thing."""

    later = utils.thing

    def first(self):
        return os

    def last(self):
        pass


class Later(abc.ABC):
    pass
''', 'nova/x.py', lambda name: not {'later', 'last'} & set(
    name.lower().split('.'))))

    def test_new_module_that_asks_for_a_released_name(self):
        exc = self.assertRaises(
            translate.Refused, translate.new_module,
            '\nlimit = thing.released.LIMIT\n', 'nova/new.py')
        self.assertEqual('nova/new.py:2: the branch has no released names '
                         'beside ours', str(exc))

    def test_imports_are_in_order(self):
        made = self.translate('''\
            def added():
                return pending.shown(vm_states.A), oslo_db, functools
            ''', header='''\
import functools
import oslo_db
from nova.compute import pending
from nova.compute import vm_states
import nova_pending
released = nova_pending.released(__name__)
''')
        self.assertIn('''
import functools

import oslo_db
from oslo_log import log as logging
import webob

from nova.compute import pending
from nova.compute import vm_states
from nova import exception
''', made)
        self.assertNotIn('nova_pending', made)

    def test_new_class_without_a_member_of_a_later_feature(self):
        made = self.translate('''\
            class New:
                first = 1

                def later(self):
                    return self.first
        ''', selected=lambda name, path=None: name != 'New.later')
        self.assertIn('class New:\n    first = 1\n', made)
        self.assertNotIn('later', made)

    def test_import_that_nothing_uses(self):
        self.assertNotIn('pending', self.translate('ADDED = 1\n'))

    def test_import_of_a_later_member(self):
        """The release has variables of the name that is imported."""
        made = self.translate('''\
            @nova_pending.over(released.Thing)
            class Thing:
                VERSION = '1.1'

                @nova_pending.new
                def later(self):
                    return first.shown(self)
            ''', header=HEADER.replace('import pending', 'import first'),
            selected=lambda name, path=None: name != 'Thing.later')
        self.assertIn("VERSION = '1.1'", made)
        self.assertNotIn('import first', made)

    def test_import_under_a_name_of_the_release(self):
        self.assertRefused(
            -5, 'utils is something else in the released module', '''\
                def added():
                    return utils
            ''', header=HEADER.replace('import pending', 'import utils'))

    def test_constant(self):
        made = self.translate('LIMIT = 9\n')
        self.assertAdds(made, '# How many there may be.\nLIMIT = 9\n',
                        removes=['LIMIT = 7'])

    def test_the_same_constant(self):
        self.assertEqual(RELEASED, self.translate(
            'LOG = logging.getLogger(__name__)\n'))

    def test_constant_of_a_released_one(self):
        made = self.translate('''\
            MORE = released.LIMIT + 1
            LIMIT = MORE
        ''')
        self.assertAdds(made, 'MORE = 8\n', 'LIMIT = MORE\n',
                        removes=['LIMIT = 7'])
        self.assertTrue(made.index('MORE =') < made.index('LIMIT ='))

    def test_changed_constant_elsewhere(self):
        self.assertRefused(
            1, 'only the definition of NAMES can tell what it was in the '
            'release', '''\
            OTHER = released.NAMES
            NAMES = ['c']
            ''')

    def test_elements_of_a_short_literal(self):
        made = self.translate('NAMES = released.NAMES + [C]\nC = 1\n')
        self.assertIn("NAMES = ['a', 'b', C]\n", made)

    def test_elements_of_a_long_literal(self):
        made = self.translate('''\
            SUM = released.SUM + [
                # Ours.
                'e',
                # And this.
                'f',
            ]
        ''')
        self.assertAdds(made, "    # The last one.\n    'd',\n"
                        "    # Ours.\n    'e',\n"
                        "    # And this.\n    'f',\n]\n")

    def test_a_name_is_added_to_a_sum(self):
        made = self.translate('''\
            OURS = [1]
            SUM = released.SUM + OURS
        ''')
        self.assertIn('    \'d\',\n] + OURS\n', made)
        self.assertTrue(made.index('OURS = ') < made.index('+ OURS'))

    def test_text(self):
        made = self.translate('''\
            HISTORY = released.HISTORY + """
                * 2 - The second.
            """
        ''')
        self.assertIn('    * 1 - The first.\n', made)
        self.assertIn('    * 2 - The second.\n', made)
        self.assertEqual(2, made.count('* '))

    def test_entry(self):
        made = self.translate("TABLE['b'] = 2  # noqa: F821\n")
        self.assertAdds(made, "    'a': 1,\n    'b': 2,\n}\n")

    def test_entry_made_of_another(self):
        made = self.translate("TABLE['b'] = TABLE['a'] + 1\n")
        self.assertAdds(made, "}\nTABLE['b'] = TABLE['a'] + 1\n")

    def test_change_of_a_new_constant(self):
        made = self.translate('''\
            OURS = list(released.NAMES)
            OURS.append('c')
            OURS[0] = 'd'
        ''')
        self.assertTrue(made.endswith(
            "\nOURS = list(NAMES)\nOURS.append('c')\nOURS[0] = 'd'\n"))

    def test_no_place(self):
        for body in ('for name in released.NAMES:\n    print(name)\n',
                     'print(1)\n', 'if 1:\n    A = 1\n'):
            self.assertRefused(1, 'a statement that defines no name has no '
                               'place in the released file', body)

    def test_released_in_another_way(self):
        self.assertRefused(
            2, 'released is used in a way that has no translation', '''\
            def added(name):
                return getattr(released, name)
            ''')

    def test_the_check_of_the_layer(self):
        self.assertRefused(
            1, 'nova_pending_check is of the layer alone',
            'import nova_pending_check\n')

    def test_selected(self):
        made = self.translate('LIMIT = 9\nOTHER = 1\nOTHER2 = 2\n',
                              selected=lambda name: name == 'OTHER')
        self.assertIn('LIMIT = 7', made)
        self.assertIn('OTHER = 1', made)
        self.assertNotIn('OTHER2', made)


class FunctionTestCase(TranslateTestCase):

    def test_around(self):
        made = self.translate('''\
            # Why.
            def function(first, second=None):
                return released.function(pending.shown(first), second)
        ''')
        self.assertAdds(made, '''\


# Why.
def function(first, second=None):
    return _do_function(pending.shown(first), second)


def _do_function(first, second=None):
    """Do something."""
    count = first  # as given
''')

    def test_prologue(self):
        made = self.translate('''\
            def _private(first):
                # Why.
                if first is None:
                    return 0
                return released._private(first)
        ''')
        self.assertAdds(made, '''\
def _private(first):
    # Why.
    if first is None:
        return 0

    return first
''')

    def test_prologue_after_the_docstring(self):
        made = self.translate('''\
            def function(first, second=None):
                second = second or 1
                return released.function(first, second=second)
        ''')
        self.assertAdds(made, '''\
    """Do something."""

    second = second or 1

    count = first  # as given
''')

    def test_prologue_that_passes_parameters_on(self):
        made = self.translate('''\
            def function(first, *args, **kwargs):
                first = pending.shown(first)
                return released.function(first, *args, **kwargs)
        ''')
        self.assertAdds(made, '''\
    """Do something."""

    first = pending.shown(first)

    count = first  # as given
''')

    def test_prologue_that_uses_parameters_it_passes_on(self):
        made = self.translate('''\
            def function(first, *args, **kwargs):
                first = pending.shown(*args)
                return released.function(first, *args, **kwargs)
        ''')
        self.assertIn('return _do_function(first, *args, **kwargs)', made)

    def test_prologue_that_passes_on_less(self):
        made = self.translate('''\
            def function(first, *args, **kwargs):
                first = pending.shown(first)
                return released.function(*args, **kwargs)
        ''')
        self.assertIn('''\
def function(first, second=None):
    first = pending.shown(first)
    return _do_function(
        second)
''', made)

    def test_parameters_that_are_passed_on_have_names(self):
        made = self.translate('''\
            def function(first, *args, **kwargs):
                if first:
                    made = released.function(first, *args, **kwargs)
                return pending.shown(made)
        ''')
        self.assertIn('''\
def function(first, second=None):
    if first:
        made = _do_function(
            first, second)
    return pending.shown(made)
''', made)

    def test_name_of_a_parameter_that_is_passed_on_is_taken(self):
        made = self.translate('''\
            def function(first, *args, **kwargs):
                second = released.function(first, *args, **kwargs)
                return pending.shown(second)
        ''')
        self.assertIn('''\
def function(first, *args, **kwargs):
    second = _do_function(first, *args, **kwargs)
''', made)

    def test_prologue_that_means_something_else(self):
        """A local name of the released body hides a name of the module."""
        made = self.translate('''\
            count = 1


            def function(first, second=None):
                first = count
                return released.function(first, second)
        ''')
        self.assertIn('return _do_function(first, second)', made)

    def test_other_parameters(self):
        made = self.translate('''\
            def _private(*args):
                pending.note()
                return released._private(*args)
        ''')
        self.assertIn('return _do_private(*args)', made)
        self.assertIn('def _do_private(first):', made)

    def test_neither_calls_nor_replaces(self):
        self.assertRefused(
            1, 'it neither calls the released _private nor says that it '
            'replaces it', 'def _private(first):\n    return 1\n')

    def test_replaces(self):
        body = '''\
            @nova_pending.replaces('%s')
            def _private(first):
                return 1
        '''
        found = digest('def _private(first):\n    return first\n')
        made = self.translate(body % found)
        self.assertIn('\n\ndef _private(first):\n    return 1\n', made)
        self.assertRefused(
            1, 'it replaces a body with the digest 0123, and the release has '
            '%s' % found, body % '0123')

    def test_helper_is_before_its_use(self):
        made = self.translate('''\
            class Ours(exception.NovaException):
                pass


            def function(first, second=None):
                if first:
                    raise Ours()
                return released.function(1, second)


            def after():
                return 1
        ''')
        order = [made.index(word) for word in (
            'TABLE = ', 'class Ours', 'def function', 'def _do_function',
            'def after', 'def _private')]
        self.assertEqual(sorted(order), order)

    def test_new_class_on_a_released_one(self):
        made = self.translate('''\
            class Other(Thing):  # noqa: F821
                pass


            def function(first, second=None):
                return released.function(1)
        ''')
        self.assertTrue(made.endswith('\n\n\nclass Other(Thing):\n    pass\n'))

    def test_needed_before_it_can_be_defined(self):
        self.assertRefused(
            1, 'ours is needed before it can be defined', '''\
            ours = _private(1)


            def function(first=ours, second=None):
                return released.function(first)
            ''')


class ClassTestCase(TranslateTestCase):

    def test_around(self):
        made = self.over('''\
            def method(self, first, second=None):
                made = released.Thing.method(self, first, second=second)
                return pending.shown(made)
        ''')
        self.assertAdds(made, '''\
    def method(self, first, second=None):
        made = self._do_method(first, second=second)
        return pending.shown(made)

    # Why it is there.
    def _do_method(self, first,
                   second=None):
        """Do it."""
        if first:
            return second   # odd layout stays
''', removes=['    def method(self, first,', '               second=None):'])

    def test_prologue(self):
        made = self.over('''\
            def plain(self, first):
                first = pending.shown(first)
                released.Thing.plain(self, first)
        ''')
        self.assertAdds(made, '''\
    def plain(self, first):
        first = pending.shown(first)

        self.known[first] = first
''')

    def test_end_of_the_constructor(self):
        made = self.over('''\
            def __init__(self):
                released.Thing.__init__(self)
                self.more = 1
        ''')
        self.assertAdds(made, '''\
        self.known = {}
        self.more = 1
''')

    def test_static_and_class_methods(self):
        made = self.over('''\
            @staticmethod
            def static(first):
                return pending.shown(released.Thing.static(first))

            @classmethod
            def made(cls, first):
                thing = released.Thing.made(first)
                return thing
        ''')
        self.assertAdds(
            made, 'return pending.shown(Thing._do_static(first))',
            '    @staticmethod\n    def _do_static(first):',
            'thing = cls._do_made(first)',
            '    @classmethod\n    def _do_made(cls, first):')

    def test_in_a_closure(self):
        made = self.over('''\
            def plain(self, first):
                return pending.run(
                    lambda: released.Thing.plain(self, first))
        ''')
        self.assertIn('lambda: self._do_plain(first))', made)

    def test_as_a_value(self):
        made = self.over('''\
            def plain(self, first):
                return pending.noted(released.Thing.plain)(self, first)
        ''')
        self.assertIn('pending.noted(Thing._do_plain)(self, first)', made)

    def test_inherited(self):
        made = self.over('''\
            def inherited(self, first):
                return [released.Thing.inherited(self, first),
                        lambda: released.Thing.inherited(self, 1)]
        ''')
        self.assertIn('[super().inherited(first),', made)
        self.assertIn('lambda: super(Thing, self).inherited(1)]', made)

    def test_remotable_goes_with_the_name(self):
        made = self.over('''\
            def destroy(self):
                if self.known:
                    return 1
                try:
                    return released.Thing.destroy(self)
                finally:
                    pending.note()
        ''')
        self.assertIn('    @base.remotable\n    def destroy(self):', made)
        self.assertIn('\n\n    def _do_destroy(self):', made)

    def test_decorator_stays_with_its_body(self):
        made = self.over('''\
            def locked(self, first):
                pending.note()
                return released.Thing.locked(self, first)
        ''')
        self.assertIn("    @utils.synchronized('thing')\n"
                      "    def _do_locked(self, first):", made)

    def test_decorator_that_notes_the_name(self):
        self.assertRefused(
            4, 'the released _action has the decorator wsgi.response, which '
            'needs functools.wraps()', '''\
            @nova_pending.over(released.Thing)
            class Thing:

                def _action(self, req, body):
                    return released.Thing._action(self, req, body)
            ''')

    def test_wraps(self):
        made = self.over('''\
            @nova_pending.in_tree(wsgi.response(200))
            @validation.schema(schema.v4, '2.3')
            @validation.schema(schema.v3, '2.1', '2.2')
            @functools.wraps(validation.ending(
                'request_body_schema', '2.0', released.Thing._action))
            def _action(self, req, body):
                return released.Thing._action(self, req, dict(body))
        ''')
        self.assertIn('''
    @wsgi.response(200)
    @validation.schema(schema.v1, '1.0', '1.9')
    @validation.schema(schema.v2, '2.0', '2.0')
    @validation.schema(schema.v3, '2.1', '2.2')
    @validation.schema(schema.v4, '2.3')
    @validation.response_body_schema(schema.answer)
    def _action(self, req, body):
        return self._do_action(req, dict(body))

    def _do_action(self, req, body):
        return body
''', made)

    def test_wraps_alone(self):
        made = self.over('''\
            @validation.response_body_schema(schema.more, '2.1')
            @functools.wraps(validation.ending(
                'response_body_schema', '2.0', released.Thing._action))
            def _action(self, req, body):
                return released.Thing._action(self, req, body)
        ''')
        self.assertIn('''
    @validation.response_body_schema(schema.answer, '2.0')
    @validation.response_body_schema(schema.more, '2.1')
    def _action(self, req, body):
        return body
''', made)

    def early(self, *later, members=None):
        """Return the file at a commit that does not have some names yet."""
        return self.over(members or '''\
            @nova_pending.in_tree(wsgi.response(200))
            @validation.schema(schema.v4, '2.3')
            @validation.schema(schema.v3, '2.1', '2.2')
            @validation.response_body_schema(schema.more, pending.API_VERSION)
            @functools.wraps(validation.ending(
                'request_body_schema', '2.0', validation.ending(
                    'response_body_schema', '2.4', released.Thing._action)))
            def _action(self, req, body):
                return released.Thing._action(self, req, dict(body))
            ''', header=HEADER.replace('from nova.compute', '''\
from nova.api.openstack.compute.schemas import servers as schema
from nova.compute'''), selected=lambda name, path=None: (
            ':'.join(filter(None, (path, name))) not in later))

    def test_schema_that_comes_later(self):
        made = self.early(
            'nova/api/openstack/compute/schemas/servers.py:v4')
        self.assertIn('''
    @wsgi.response(200)
    @validation.schema(schema.v1, '1.0', '1.9')
    @validation.schema(schema.v2, '2.0', '2.0')
    @validation.schema(schema.v3, '2.1')
    @validation.response_body_schema(schema.answer, '2.4')
    @validation.response_body_schema(schema.more, pending.API_VERSION)
    def _action(self, req, body):
        return self._do_action(req, dict(body))
''', made)

    def test_schema_whose_end_comes_later(self):
        made = self.early(
            'nova/api/openstack/compute/schemas/servers.py:v4',
            'nova/compute/pending.py:API_VERSION', members='''\
            @validation.schema(schema.v4, pending.API_VERSION)
            @validation.schema(schema.v3, '2.1', pending.API_VERSION)
            @functools.wraps(validation.ending(
                'request_body_schema', '2.0', released.Thing._action))
            def _action(self, req, body):
                return released.Thing._action(self, req, dict(body))
            ''')
        self.assertIn("""
    @validation.schema(schema.v2, '2.0', '2.0')
    @validation.schema(schema.v3, '2.1')
""", made)
        self.assertNotIn('schema.v4', made)

    def test_method_that_comes_later_than_its_schemas(self):
        made = self.early(
            'Thing._action',
            'nova/compute/pending.py:API_VERSION')
        self.assertIn('''
    @wsgi.response(202)
    @validation.schema(schema.v1, '1.0', '1.9')
    @validation.schema(schema.v2, '2.0', '2.0')
    @validation.schema(schema.v3, '2.1', '2.2')
    @validation.schema(schema.v4, '2.3')
    @validation.response_body_schema(schema.answer)
    def _action(self, req, body):
        return body
''', made)

    def test_method_that_comes_later_with_its_schemas(self):
        self.assertEqual(RELEASED, self.early(
            'Thing._action', *[
                'nova/api/openstack/compute/schemas/servers.py:' + name
                for name in ('v3', 'v4', 'more')]))

    def test_decorator_that_comes_later(self):
        body = '''\
            def ours(method):
                return method


            @nova_pending.over(released.Thing)
            class Thing:
                @ours
                def plain(self, first):
                    released.Thing.plain(self, 1)
        '''
        self.assertIn('    @ours\n    def plain(self', self.translate(body))
        self.assertNotIn('ours', self.translate(
            body, selected=lambda name, path=None: name != 'ours'))

    def test_attribute_over_a_method(self):
        self.assertRefused(3, 'plain is a method in the release', '''\
            @nova_pending.over(released.Thing)
            class Thing:
                plain = pending.noted(released.Thing.plain)
            ''')

    def test_attributes(self):
        made = self.over('''\
            # Version 1.1: The second.
            VERSION = '1.1'
            states = released.Thing.states + ('c',)
            #: What it is.
            new_one = nova_pending.new(None)
        ''')
        self.assertAdds(made, '''\
    # Version 1.0: The first.
    # Version 1.1: The second.
    VERSION = '1.1'
    states = ('a', 'b', 'c')
    #: What it is.
    new_one = None
''', removes=["    VERSION = '1.0'", "    states = ('a', 'b')"])

    def test_docstring(self):
        made = self.over('''\
            """
            1.1 - The second.
            """
        ''')
        self.assertAdds(
            made, '    1.0 - The first.\n    1.1 - The second.\n    """\n')

    def test_new_methods(self):
        made = self.over('''\
            def plain(self, first):
                released.Thing.plain(self, 1)

            @nova_pending.new
            @staticmethod
            def ours():
                return 1
        ''')
        self.assertIn('''
    def _do_plain(self, first):
        self.known[first] = first

    @staticmethod
    def ours():
        return 1

    @staticmethod
    def static(first):
''', made)

    def test_not_marked_as_new(self):
        self.assertRefused(3, 'ours is not in the release', '''\
            @nova_pending.over(released.Thing)
            class Thing:
                def ours(self):
                    return 1
            ''')

    def test_twice(self):
        self.assertRefused(4, 'Thing.VERSION is laid over twice', '''\
            @nova_pending.over(released.Thing)
            class Thing:
                VERSION = '1.1'
                VERSION = '1.2'
            ''')

    def test_property(self):
        self.assertRefused(4, 'a property cannot be laid over', '''\
            @nova_pending.over(released.Thing)
            class Thing:
                @property
                def colour(self):
                    return released.Thing.colour
            ''')

    def test_no_such_class(self):
        self.assertRefused(2, 'the release has no class Other', '''\
            @nova_pending.over(released.Other)
            class Other:
                VERSION = '1.1'
            ''')

    def test_name_that_is_taken(self):
        made = self.over('''\
            def plain(self, first):
                released.Thing.plain(self, 1)

            @nova_pending.new
            def other(self):
                return 1
        ''', release=RELEASED.replace(
            '    @property', '    def _do_plain(self):\n        pass\n\n'
            '    @property'))
        self.assertIn('self._plain_inner(1)', made)

    def test_two_classes_with_the_same_method(self):
        """self._do_x() of a base would find that of its subclass."""
        made = self.translate('''\
            @nova_pending.over(released.Base)
            class Base:
                def inherited(self, first):
                    return released.Base.inherited(self, 1)


            @nova_pending.over(released.Child)
            class Child:
                def inherited(self, first):
                    return released.Child.inherited(self, 1)
        ''', release=RELEASED + '''

class Child(Base):
    def inherited(self, first):
        return super().inherited(first)
''')
        self.assertIn('return Base._do_inherited(self, 1)', made)
        self.assertIn('return Child._do_inherited(self, 1)', made)

    def test_parameters_without_room(self):
        made = self.over('''\
            def plain(self, *args):
                released.Thing.plain(self, *args)
        ''', release=RELEASED.replace(
            'def plain(self, first):',
            'def plain(self, first, %s=None):' % ('x' * 45)))
        self.assertIn('''
    def _do_plain(
        self, first, %s=None,
    ):
''' % ('x' * 45), made)

    def test_subclass_is_merged(self):
        made = self.translate('''\
            class State(released.State):
                #: Ours.
                C = 'c'

                ALL = released.State.ALL + (C,)
        ''', release='''\
class State(Enum):
    A = 'a'
    B = 'b'

    ALL = (A, B)
''')
        self.assertEqual('''\
class State(Enum):
    A = 'a'
    B = 'b'
    #: Ours.
    C = 'c'

    ALL = (A, B, C)
''', made)

    def test_subclass_with_another_base(self):
        self.assertRefused(
            1, 'a subclass under the name of its class has that class alone '
            'for a base', 'class Thing(released.Thing, Other):\n    pass\n')
