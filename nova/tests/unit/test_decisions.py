# SPDX-License-Identifier: Apache-2.0

"""Holds the table of decisions against the release that is installed.

A state is a word that a large tree compares, lists and stores. For each place
that does, somebody has decided what it means for PENDING. A new release has
new places: they are found here.
"""

import ast
import collections
import csv
import importlib.metadata
import pathlib
import re

import testtools

import nova_pending

TABLE = (pathlib.Path(nova_pending.__file__).resolve().parent /
         'doc' / 'source' / 'contributor' / 'decisions.csv')

# Names that speak of the state of a server.
NAMES = re.compile(
    r'vm_state|InstanceState\b|InstanceStateField|status_from_state|'
    r'instance_state\b|^_STATE_MAP$|^_(fault|progress)_statuses$|'
    r'^_server_status')

# Strings that may be a state, a status or the name of a field for one.
STRINGS = re.compile(r'(error|pending|\S*vm_state\S*)$', re.IGNORECASE)


class _Places(ast.NodeVisitor):
    """Finds the functions and classes of a module that name a state."""

    def __init__(self, module):
        self.module = module
        self.scope = []
        self.named = set()
        self.defined = set()

    def _place(self):
        return ':'.join(filter(None, (self.module, '.'.join(self.scope))))

    def _look(self, name, pattern=NAMES):
        if name and pattern.search(name):
            self.named.add(self._place())

    def _visit_definition(self, node):
        self.scope.append(node.name)
        self.defined.add(self._place())
        self._look(node.name)
        body = node.body
        if ast.get_docstring(node, clean=False) is not None:
            body = body[1:]
        for part in (node.decorator_list, [getattr(node, 'args', None)],
                     getattr(node, 'bases', []), body):
            for child in filter(None, part):
                self.visit(child)
        self.scope.pop()

    visit_FunctionDef = _visit_definition
    visit_AsyncFunctionDef = _visit_definition
    visit_ClassDef = _visit_definition

    def visit_Name(self, node):
        self._look(node.id)

    def visit_Attribute(self, node):
        self._look(node.attr)
        self.generic_visit(node)

    def visit_arg(self, node):
        self._look(node.arg)

    def visit_keyword(self, node):
        self._look(node.arg)
        self.generic_visit(node)

    def visit_Dict(self, node):
        for key, value in zip(node.keys, node.values):
            # 'error' as a key is a parameter of a message.
            if key is not None and getattr(key, 'value', None) != 'error':
                self.visit(key)
            self.visit(value)

    def visit_Constant(self, node):
        if isinstance(node.value, str) and STRINGS.match(node.value):
            self.named.add(self._place())


def _release():
    """Yield a module name and its source for each module of the release."""
    for path in importlib.metadata.files('nova'):
        if path.suffix == '.py' and path.parts[0] == 'nova' and (
                path.parts[1] != 'tests'):
            name = '.'.join(path.with_suffix('').parts)
            yield name.removesuffix('.__init__'), path.read_text('utf-8')


def find_places():
    """Return the places that name a state and those that could."""
    named, defined = set(), set()
    for module, source in _release():
        places = _Places(module)
        tree = ast.parse(source)
        if ast.get_docstring(tree, clean=False) is not None:
            del tree.body[0]
        places.visit(tree)
        named |= places.named
        defined |= places.defined | {module}
    return named, defined


class FindPlacesTestCase(testtools.TestCase):

    def _named(self, source):
        places = _Places('m')
        places.visit(ast.parse(source))
        return places.named

    def test_comparison_in_a_method(self):
        self.assertEqual({'m:A.b'}, self._named(
            'class A:\n'
            '    def b(self, server):\n'
            '        return server.vm_state == 1\n'))

    def test_decorator_counts_for_its_method(self):
        self.assertEqual({'m:b'}, self._named(
            '@check(vm_state=[1])\n'
            'def b():\n'
            '    pass\n'))

    def test_status_in_a_list_of_the_module(self):
        self.assertEqual({'m'}, self._named('STATUSES = ["ERROR"]\n'))

    def test_words_in_messages_and_docstrings_do_not_count(self):
        self.assertEqual(set(), self._named(
            'def b():\n'
            '    "error"\n'
            '    log("Its vm_state is gone", {"error": 1})\n'))


class DecisionsTestCase(testtools.TestCase):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.named, cls.defined = find_places()

    def setUp(self):
        super().setUp()
        if not TABLE.exists():
            self.skipTest('The table of decisions is in a checkout only: '
                          '%s is not there.' % TABLE)
        with TABLE.open(newline='') as table:
            header, *rows = csv.reader(table)
        self.assertEqual(['Place', 'In the release', 'Decision for PENDING',
                          'Only in'], header)
        installed = 'Nova %d' % nova_pending.check_environment()
        #: the rows about the release that is installed
        self.rows = [row[:3] for row in rows
                     if ''.join(row[3:]) in ('', installed)]

    def test_every_place_of_the_release_is_decided(self):
        decided = {row[0] for row in self.rows}
        self.assertEqual([], sorted(self.named - decided))

    def test_every_decision_is_about_a_place_of_the_release(self):
        gone = [row[0] for row in self.rows if row[0] not in self.defined]
        self.assertEqual([], gone)

    def test_each_place_is_decided_once(self):
        counted = collections.Counter(row[0] for row in self.rows)
        self.assertEqual([], [p for p, n in counted.items() if n > 1])

    def test_a_decision_says_what_is_laid_over_or_why_nothing_is(self):
        for place, does, decision in self.rows:
            self.assertTrue(does.strip(), place)
            self.assertRegex(decision, r'(Nothing: |Laid over: nova/)\S',
                             place)

    def test_what_is_laid_over_is_in_the_tree(self):
        tree = pathlib.Path(nova_pending.tree()).parent
        for place, _does, decision in self.rows:
            for name in re.findall(r'nova/[\w/]+\.py', decision):
                self.assertTrue((tree / name).exists(), (place, name))
