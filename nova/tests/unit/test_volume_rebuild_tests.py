# SPDX-License-Identifier: Apache-2.0

"""Holds the table of the tests of volume-backed rebuilds against the tests."""

import ast
import csv
import pathlib

import testtools

import nova_pending

ROOT = pathlib.Path(nova_pending.__file__).resolve().parent
TABLE = ROOT / 'doc/source/contributor/volume-backed-rebuild.csv'
MODULES = [ROOT / 'nova/tests/functional' / name for name in (
    'layer/test_stock_compute.py',
    'test_reimage_untouched.py', 'test_volume_reimage.py',
    'test_volume_reimage_exchange.py', 'test_volume_reimage_refused.py')]
TRIALS = ROOT / 'tools/volume_rebuild.py'


def methods(path):
    """Return the names of the methods of the classes of a module."""
    return {'%s.%s' % (node.name, method.name)
            for node in ast.parse(path.read_text()).body
            if isinstance(node, ast.ClassDef)
            for method in node.body if isinstance(method, ast.FunctionDef)}


class TableTestCase(testtools.TestCase):

    def setUp(self):
        super().setUp()
        with TABLE.open(newline='') as file:
            self.rows = list(csv.DictReader(file))

    def named(self, column):
        return {name for row in self.rows for name in row[column].split()}

    def test_tests(self):
        """Each test is in the table, and each that is in it is there."""
        tests = {name for module in MODULES for name in methods(module)
                 if '.test_' in name}
        self.assertEqual(tests, self.named('Functional tests'))

    def test_trials(self):
        trials = {name.partition('.')[2] for name in methods(TRIALS)}
        self.assertEqual(set(), self.named('Trials') - trials)
