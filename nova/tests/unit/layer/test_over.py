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

import textwrap

from nova.tests.unit.layer import base


class OverTest(base.LayerTestCase):
    """What can be laid over a released class."""

    def test_method_calls_the_released_one(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def method(self, first, second=None):
                    return 'laid ' + released.Thing.method(
                        self, first, second=second)
        ''')
        self.assertEqual(
            ['laid released 1 2', 'child laid released 1 None'],
            self.values('t.Thing().method(1, 2)', 't.Child().method(1)'))

    def test_class_is_the_released_one(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                limit = 2
        ''')
        self.assertEqual(
            [True, True, 2], self.values(
                't.Thing is nova.registry.known[0]',
                'isinstance(t.Child(), t.Thing)', 't.Child().limit',
                setup='import nova.registry'))

    def test_init(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def __init__(self, name='b'):
                    released.Thing.__init__(self, 'laid ' + name)
        ''')
        self.assertEqual(['laid b', 'laid child'],
                         self.values('t.Thing().name', 't.Child().name'))

    def test_released_init_without_one_laid_over(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def method(self, first, second=None):
                    released.Thing.__init__(self, 'again')
                    return released.Thing.method(self, self.name, second)
        ''')
        self.assertEqual(['released again None'],
                         self.values('t.Thing().method(1)'))

    def test_inherited_method(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def inherited(self):
                    return 'laid ' + released.Thing.inherited(self)
        ''')
        self.assertEqual(['laid inherited', 'inherited'],
                         self.values('t.Thing().inherited()',
                                     't.Base().inherited()'))

    def test_private_method(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def __private(self):
                    return 'laid ' + released.Thing.__private(self)
        ''')
        self.assertEqual(['laid released'],
                         self.values('t.Thing().private()'))

    def test_static_method_class_method_and_properties(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                @staticmethod
                def static(first):
                    return 'laid ' + released.Thing.static(first)

                @classmethod
                def made(cls, first):
                    return 'laid ' + released.Thing.made(first)

                @property
                def colour(self):
                    return 'laid ' + released.Thing.colour.fget(self)

                @colour.setter
                def colour(self, value):
                    released.Thing.colour.fset(self, 'laid ' + value)

                @functools.cached_property
                def cached(self):
                    return 'laid ' + released.Thing.cached.func(self)
        ''')
        self.assertEqual(
            ['laid released 1', 'laid released Thing 1', 'laid released',
             'laid red', 'laid released'],
            self.values('t.Thing.static(1)', 't.Thing.made(1)', 'one.colour',
                        'one.painted', 'one.cached',
                        setup='one = t.Thing(); one.colour = "red"'))

    def test_decorator_around_the_released_method(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                method = noted(released.Thing.method)
                decorated = noted(released.Thing.decorated)
        ''')
        self.assertEqual(
            ['noted released 1 2', 'noted noted released'],
            self.values('t.Thing().method(1, 2)', 't.Thing().decorated(1)'))

    def test_marks_of_the_released_method_are_kept(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def marked(self):
                    return 'laid ' + released.Thing.marked(self)
        ''')
        self.assertEqual(['laid released', 202], self.values(
            't.Thing().marked()', 't.Thing.marked.code'))

    def test_own_marks_win(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def marked(self):
                    return 'laid ' + released.Thing.marked(self)
                marked.code = 204
        ''')
        self.assertEqual([204], self.values('t.Thing.marked.code'))

    def test_optional_parameters_may_be_swallowed(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def method(self, first, **kwargs):
                    return 'laid ' + released.Thing.method(
                        self, first, **kwargs)

                def named(self, **kwargs):
                    return 'laid ' + released.Thing.named(self, **kwargs)

                def any(self, *args, extra=None, **kwargs):
                    return 'laid ' + released.Thing.any(
                        self, *args, **kwargs)
        ''')
        self.assertEqual(
            ['laid released 1 2', 'laid released 3',
             "laid released (1,) ['b']"],
            self.values('t.Thing().method(1, second=2)',
                        't.Thing().named(key=3)',
                        't.Thing().any(1, extra=5, b=2)'))

    def test_parameter_may_be_added(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def method(self, first, second=None, third=3):
                    return '%s %s' % (
                        released.Thing.method(self, first, second), third)
        ''')
        self.assertEqual(['released 1 2 3'],
                         self.values('t.Thing().method(1, 2)'))

    def test_new_members(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                size = nova_pending.new(5)

                @nova_pending.new
                def grow(self):
                    return self.size + 1

                @nova_pending.new
                @property
                def bigger(self):
                    return self.grow() + 1

                @nova_pending.new
                @classmethod
                def make(cls):
                    return cls.__name__
        ''')
        self.assertEqual([5, 6, 7, 'Child'], self.values(
            't.Thing.size', 't.Thing().grow()', 't.Child().bigger',
            't.Child.make()'))

    def test_several_bodies_over_one_class(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def method(self, first, second=None):
                    return 'laid ' + released.Thing.method(
                        self, first, second)

            @nova_pending.over(released.Thing)
            class Thing:
                def inherited(self):
                    return released.Thing.method(self, 1)

                inherited = nova_pending.replaces('0' * 16)(inherited)
        ''')
        self.assertEqual(
            ['laid released 1 None', 'released 1 None'],
            self.values('t.Thing().method(1)', 't.Thing().inherited()'))

    def test_two_arguments_of_super(self):
        self.lay('''
            @nova_pending.over(released.Child)
            class Child:
                @nova_pending.replaces('0' * 16)
                def method(self, first, second=None):
                    return 'laid ' + super(Child, self).method(first, second)
        ''')
        self.assertEqual(['laid released 1 None'],
                         self.values('t.Child().method(1)'))

    def test_replaced_body(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                @nova_pending.replaces('0' * 16)
                def method(self, first, second=None):
                    return 'replaced'

                @property
                @nova_pending.replaces('0' * 16)
                def colour(self):
                    return 'replaced'

                colour = colour.setter(
                    nova_pending.replaces('0' * 16)(lambda self, value: None))
        ''')
        self.assertEqual(
            ['replaced', 'child replaced', 'replaced'],
            self.values('t.Thing().method(1)', 't.Child().method(1)',
                        't.Thing().colour'))


class OverRefusalTest(base.LayerTestCase):
    """What over() refuses at import, so that nothing of it has changed."""

    def refuse(self, member, sentence):
        """Lay a good member and a bad one over the class Thing."""
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                limit = 2

%s
        ''' % textwrap.indent(
            textwrap.dedent(member), ' ' * 16))
        self.assertRefused(sentence)

    def test_super_without_arguments(self):
        self.refuse('''
            def method(self, first, second=None):
                released.Thing.method
                return super().method(first, second)
        ''', 'Thing.method uses super() without arguments, or __class__')

    def test_super_in_a_nested_function(self):
        self.refuse('''
            def method(self, first, second=None):
                def inner():
                    return __class__
                return released.Thing.method(self, first, inner())
        ''', 'Thing.method uses super() without arguments, or __class__')

    def test_super_below_a_decorator_that_hides_it(self):
        self.refuse('''
            def hide(function):
                def method(self, first, second=None):
                    released.Thing.method
                    return function(self, first, second)
                return method

            @hide
            def method(self, first, second=None):
                return super().method(first, second)

            del hide
        ''', 'Thing.method uses super() without arguments, or __class__')

    def test_super_in_a_new_method(self):
        self.refuse('''
            @nova_pending.new
            def grow(self):
                return super().grow()
        ''', 'Thing.grow uses super() without arguments, or __class__')

    def test_super_in_a_new_property(self):
        self.refuse('''
            @nova_pending.new
            @property
            def bigger(self):
                return super().bigger
        ''', 'Thing.bigger uses super() without arguments, or __class__')

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

    def test_name_that_the_release_lacks(self):
        self.refuse('''
            def grow(self):
                return 1
        ''', 'Thing.grow is not in the release: mark it with '
            'nova_pending.new()')

    def test_attribute_that_the_release_lacks(self):
        self.refuse('size = 1', 'Thing.size is not in the release: mark it '
                    'with nova_pending.new()')

    def test_new_name_that_the_release_has(self):
        self.refuse('''
            @nova_pending.new
            def method(self, first, second=None):
                return released.Thing.method(self, first)
        ''', 'Thing.method is marked as new, and the release has it')

    def test_new_attribute_that_the_release_inherits(self):
        self.refuse('inherited = nova_pending.new(1)', 'Thing.inherited is '
                    'marked as new, and the release has it')

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

    def test_property_that_does_not_call_the_released_one(self):
        self.refuse('''
            @property
            def colour(self):
                return 'replaced'

            @colour.setter
            def colour(self, value):
                released.Thing.colour.fset(self, value)
        ''', 'Thing.colour does not call the released one: call '
            'released.Thing.colour or mark it with nova_pending.replaces()')

    def test_property_without_the_released_setter(self):
        self.refuse('''
            @property
            def colour(self):
                return released.Thing.colour.fget(self)
        ''', 'Thing.colour lacks the fset of the release')

    def test_cached_property_that_does_not_call_the_released_one(self):
        self.refuse('''
            @functools.cached_property
            def cached(self):
                return 'replaced'
        ''', 'Thing.cached does not call the released one: call '
            'released.Thing.cached or mark it with nova_pending.replaces()')

    def test_method_over_a_static_method(self):
        self.refuse('''
            def static(self, first):
                return released.Thing.static(first)
        ''', 'Thing.static is released as a staticmethod')

    def test_property_over_a_method(self):
        self.refuse('''
            @property
            def method(self):
                return released.Thing.method
        ''', 'Thing.method is released as a function')

    def test_value_over_a_method(self):
        self.refuse('method = None', 'Thing.method is released as a function')

    def test_method_over_a_value(self):
        self.refuse('''
            def limit(self):
                return released.Thing.limit
        ''', 'Thing.limit is released as a int')

    def refuse_parameters(self, method, parameters, why):
        self.refuse('''
            def %(method)s(%(parameters)s):
                return released.Thing.%(method)s(self)
        ''' % {'method': method, 'parameters': parameters},
            'Thing.%s %s' % (method, why))

    def test_parameter_is_lacking(self):
        self.refuse_parameters('method', 'self, first',
                               'does not take second')

    def test_required_parameter_is_swallowed_by_keywords_only(self):
        self.refuse_parameters('method', 'self, **kwargs',
                               'does not take first')

    def test_parameter_is_in_another_place(self):
        self.refuse_parameters('method', 'self, second=None, first=None',
                               'takes first in another place')

    def test_parameter_is_keyword_only(self):
        self.refuse_parameters('method', 'self, first, *, second=None',
                               'takes second in another place')

    def test_parameter_is_positional_only(self):
        self.lay('''
            def function(first, /, second=None):
                return released.function(first)
        ''')
        self.assertRefused('function takes first in another place')

    def test_optional_parameter_is_required(self):
        self.refuse_parameters('method', 'self, first, second',
                               'wants second, which callers may leave out')

    def test_added_parameter_is_required(self):
        self.refuse_parameters('method', 'self, first, second=None, *, third',
                               'wants third, which callers do not pass')

    def test_added_parameter_takes_the_place_of_a_released_one(self):
        self.refuse_parameters(
            'method', 'self, first, third=None, **kwargs',
            'takes third where callers pass something else')

    def test_added_parameter_takes_one_of_any(self):
        self.refuse_parameters(
            'any', 'self, third=None, *args, **kwargs',
            'takes third where callers pass something else')

    def test_any_arguments_are_lacking(self):
        self.refuse_parameters('any', 'self, **kwargs',
                               'does not take *args')

    def test_any_keywords_are_lacking(self):
        self.refuse_parameters('any', 'self, *args',
                               'does not take **kwargs')

    def test_body_of_another_name(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Other:
                limit = 2
        ''')
        self.assertRefused(
            'Thing must be laid over by a class of its name, without a base, '
            'in the file of its module')

    def test_body_with_a_base(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing(Base):
                limit = 2
        ''')
        self.assertRefused(
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
        self.assertImportFails(
            'nova.thing.Thing must be laid over by a class of its name, '
            'without a base, in the file of its module', 'nova.other')

    def test_class_of_a_module_that_is_not_laid_over(self):
        self.lay('''
            @nova_pending.over(__import__('collections').OrderedDict)
            class OrderedDict:
                limit = 2
        ''')
        self.assertImportFails(
            'collections is not laid over a released module')

    def test_class_that_the_tree_made(self):
        self.lay('''
            class Own:
                limit = 1

            @nova_pending.over(Own)
            class Own:
                limit = 2
        ''')
        self.assertRefused('Own is not a class as released')

    def test_no_class(self):
        self.lay('''
            @nova_pending.over(released.function)
            class function:
                limit = 2
        ''')
        done = self.fake.run('import nova.thing')
        self.assertIn('nova_pending.LayerError: over() takes a class, not '
                      '<function function', done.stderr.splitlines()[-1])

    def test_method_twice(self):
        body = '''
            @nova_pending.over(released.Thing)
            class Thing:
                def inherited(self):
                    return released.Thing.inherited(self)
        '''
        self.lay(body + body)
        self.assertRefused('Thing.inherited is laid over twice')

    def test_method_that_the_class_lists(self):
        self.fake.release('registry.py', '''
            known = []

            def register(cls):
                known.append(cls)
                cls.tasks = [('static', cls.made), ('method', cls.method)]
                return cls
        ''')
        self.refuse('''
            def method(self, first, second=None):
                return released.Thing.method(self, first, second)
        ''', 'Thing.method is listed in Thing.tasks, where the released one '
            'would stay')

    def test_class_is_bound_again(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                def inherited(self):
                    return released.Thing.inherited(self)

            Thing = type('Thing', (Thing,), {})
        ''')
        self.assertImportFails(
            'nova.thing.Thing is bound to something else after over()')
