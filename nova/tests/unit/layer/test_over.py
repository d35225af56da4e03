# SPDX-License-Identifier: Apache-2.0

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

    def test_new_periodic_task(self):
        """The class that collects such tasks was made without it."""
        self.lay('''
            def task(function):
                function._periodic_task = True
                return function

            released.Thing._add_periodic_task = classmethod(
                lambda cls, function: setattr(cls, 'tasks', [
                    function.__name__]))

            @nova_pending.over(released.Thing)
            class Thing:
                @nova_pending.new
                @task
                def regularly(self):
                    pass
        ''')
        self.assertEqual([['regularly']], self.values('t.Thing.tasks'))

    def test_decorator_of_the_branch(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                @nova_pending.in_tree(noted)
                def method(self, first, second=None):
                    return 'laid'
        ''')
        self.assertEqual(['laid'], self.values('t.Thing().method(1)'))

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

    def test_static_method_and_class_method(self):
        self.lay('''
            @nova_pending.over(released.Thing)
            class Thing:
                @staticmethod
                def static(first):
                    return 'laid ' + released.Thing.static(first)

                @classmethod
                def made(cls, first):
                    return 'laid ' + released.Thing.made(first)
        ''')
        self.assertEqual(['laid released 1', 'laid released Thing 1'],
                         self.values('t.Thing.static(1)', 't.Thing.made(1)'))

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
                def method(self, first, *args, **kwargs):
                    return 'laid ' + released.Thing.method(
                        self, first, *args, **kwargs)

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
        ''')
        self.assertEqual(
            ['replaced', 'child replaced'],
            self.values('t.Thing().method(1)', 't.Child().method(1)'))


class OverRefusalTest(base.LayerTestCase):
    """What over() refuses at import, so that nothing of it has changed."""

    def refuse(self, member, sentence):
        """Lay a good member and a bad one over the class Thing."""
        self.lay(base.body_with(member))
        self.assertRefused(sentence)

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

    def test_method_over_a_static_method(self):
        self.refuse('''
            def static(self, first):
                return released.Thing.static(first)
        ''', 'Thing.static is released as a staticmethod')

    def test_static_method_over_a_method(self):
        self.refuse('''
            @staticmethod
            def method(self, first, second=None):
                return released.Thing.method(self, first)
        ''', 'Thing.method is released as a function')

    def test_property_over_a_method(self):
        self.refuse('''
            @property
            def method(self):
                return released.Thing.method
        ''', 'Thing.method is released as a function')

    def test_value_over_a_method(self):
        self.refuse('method = None', 'Thing.method is released as a function')

    def refuse_parameters(self, method, parameters, why):
        self.refuse('''
            def %(method)s(%(parameters)s):
                return released.Thing.%(method)s(self)
        ''' % {'method': method, 'parameters': parameters},
            'Thing.%s %s' % (method, why))

    def cannot_be_called(self, method, parameters, why):
        self.refuse_parameters(method, parameters,
                               'cannot be called as released: ' + why)

    def test_parameter_is_lacking(self):
        self.cannot_be_called('method', 'self, first',
                              'too many positional arguments')

    def test_optional_parameter_has_no_place(self):
        self.cannot_be_called('method', 'self, first, **kwargs',
                              'too many positional arguments')

    def test_optional_parameter_has_no_name(self):
        self.cannot_be_called('method', 'self, first, *args',
                              "got an unexpected keyword argument 'second'")

    def test_parameter_is_in_another_place(self):
        self.refuse_parameters('method', 'self, second=None, first=None',
                               'takes second where callers pass first')

    def test_parameter_is_keyword_only(self):
        self.cannot_be_called('method', 'self, first, *, second=None',
                              'too many positional arguments')

    def test_parameter_is_positional_only(self):
        self.lay('''
            def function(first, /, second=None):
                return released.function(first)
        ''')
        done = self.fake.run('import nova.thing')
        self.assertIn('nova_pending.LayerError: nova.thing.function cannot be '
                      'called as released: ', done.stderr.splitlines()[-1])

    def test_optional_parameter_is_required(self):
        self.cannot_be_called('method', 'self, first, second',
                              "missing a required argument: 'second'")

    def test_keyword_is_lacking(self):
        self.cannot_be_called('named', 'self, *, key',
                              "got an unexpected keyword argument 'other'")

    def test_added_parameter_is_required(self):
        self.cannot_be_called('method', 'self, first, second=None, *, third',
                              "missing a required argument: 'third'")

    def test_added_parameter_takes_the_place_of_a_released_one(self):
        self.refuse_parameters(
            'method', 'self, first, third=None, **kwargs',
            'takes third where callers pass second')

    def test_added_parameter_takes_one_of_any(self):
        self.refuse_parameters(
            'any', 'self, third=None, *args, **kwargs',
            'takes third where callers pass args')

    def test_any_arguments_are_lacking(self):
        self.cannot_be_called('any', 'self, **kwargs',
                              'too many positional arguments')

    def test_any_keywords_are_lacking(self):
        self.cannot_be_called('any', 'self, *args',
                              "got an unexpected keyword argument 'kwargs'")

    def test_class_of_a_module_that_is_not_laid_over(self):
        self.lay('''
            @nova_pending.over(__import__('collections').OrderedDict)
            class OrderedDict:
                limit = 2
        ''')
        self.assertImportFails(
            'collections is not laid over a released module')
