# SPDX-License-Identifier: Apache-2.0

from nova.tests.unit.layer import base


class ModuleTest(base.LayerTestCase):
    """What a file of the tree may do to the names of its module."""

    def test_released_code_sees_the_names_of_the_tree(self):
        self.lay('FLAG = released.FLAG + 1')
        self.fake.release('user.py', '''
            from nova import thing

            def flag():
                return thing.FLAG
        ''')
        self.assertEqual([2, 2], self.values(
            't.FLAG', 'user.flag()', setup='from nova import user'))

    def test_function_calls_the_released_one(self):
        self.lay('''
            def function(first, second=None):
                return 'laid ' + released.function(first, second)

            def remembered(first):
                return 'laid ' + released.remembered(first)
        ''')
        self.assertEqual(
            ['laid released 1 None', 'laid released 2'],
            self.values('t.function(1)', 't.remembered(2)'))

    def test_function_that_does_not_call_the_released_one(self):
        self.lay('''
            def function(first, second=None):
                return 'replaced'
        ''')
        self.assertRefusedByCheck(
            'function does not call the released one: call '
            'released.function or mark it with nova_pending.replaces()')

    def test_replaced_function(self):
        self.lay('''
            @nova_pending.replaces('0' * 16)
            def function(first, second=None):
                return 'replaced'
        ''')
        self.assertEqual(['replaced'], self.values('t.function(1)'))

    def test_function_that_callers_do_not_fit(self):
        self.lay('''
            def function(first):
                return released.function(first)
        ''')
        self.assertRefused('function cannot be called as released: too many '
                           'positional arguments')

    def test_value_over_a_function(self):
        self.lay('function = None')
        self.assertRefused('function is released as a function')

    def test_deleted_name(self):
        self.lay('del FLAG')
        self.assertRefused('FLAG is deleted, and the release uses it')

    def test_subclass(self):
        self.lay('''
            class Base(released.Base):
                size = 2

                def inherited(self):
                    return 'laid ' + super().inherited()
        ''')
        self.assertEqual(['laid inherited', 2], self.values(
            't.Base().inherited()', 't.Base().size'))

    def test_subclass_method_that_does_not_call_the_released_one(self):
        self.lay('''
            class Base(released.Base):
                def inherited(self):
                    return 'replaced'
        ''')
        self.assertRefusedByCheck(
            'Base.inherited does not call the released one: call '
            'released.Base.inherited or mark it with '
            'nova_pending.replaces()')

    def test_subclass_method_that_callers_do_not_fit(self):
        self.lay('''
            class Base(released.Base):
                def inherited(self, first):
                    return super().inherited()
        ''')
        self.assertRefusedByCheck(
            "Base.inherited cannot be called as released: missing a required "
            "argument: 'first'")

    def test_subclass_that_would_recurse(self):
        self.lay('''
            class Thing(released.Thing):
                limit = 2
        ''')
        self.assertRefusedByCheck(
            'Thing must be changed with over(): super(Thing, self) in the '
            'release would recurse in a subclass')

    def test_class_that_is_no_subclass(self):
        self.lay('''
            class Base:
                def inherited(self):
                    return released.Base.inherited(self)
        ''')
        self.assertRefusedByCheck('Base is no subclass of the released class')

    def test_what_a_decorator_puts_into_a_subclass_is_not_judged(self):
        self.fake.release('registry.py', '''
            known = []

            def register(cls):
                known.append(cls)
                cls.inherited = lambda self: 'registered'
                return cls
        ''')
        self.lay('''
            import nova.registry

            @nova.registry.register
            class Base(released.Base):
                size = 2
        ''')
        self.assertEqual(['registered'], self.values('t.Base().inherited()'))

    def test_released_of_a_module_that_is_not_laid_over(self):
        self.lay('nova_pending.released("nova.registry")')
        self.assertImportFails(
            'nova.registry is not laid over a released module')

    def test_released_of_a_new_module(self):
        self.fake.lay('own.py', 'import nova_pending\n'
                                'nova_pending.released(__name__)\n')
        self.assertImportFails(
            'nova.own is not laid over a released module', 'nova.own')

    def test_mock_replaces_the_one_name(self):
        self.lay('''
            def function(first, second=None):
                return 'laid ' + released.function(first, second)
        ''')
        self.fake.release('user.py', '''
            from nova import thing

            def call():
                return thing.function(1)
        ''')
        self.assertEqual(
            [7, 'laid released 1 None'], self.values(
                'mocked', 'user.call()', setup='from unittest import mock\n'
                'from nova import user\n'
                'with mock.patch("nova.thing.function", return_value=7):\n'
                '    mocked = user.call()'))
