# SPDX-License-Identifier: Apache-2.0

"""Which released tests the patches in edits/ change.

Such a test fails under the wheel, which has the test of the release beside
code that does otherwise by design.
"""

import ast
import pathlib
import re

PATCHES = pathlib.Path(__file__).resolve().parent / 'edits'


def patches(feature, release):
    """Return the patches of a feature for a release, in their order.

    :param feature: its directory
    :param release: the series of the release: a patch of a directory under
        that name is for it alone
    """
    return [*sorted(feature.glob('*.patch')),
            *sorted(feature.glob('%d/*.patch' % release))]


def hunks(release, place=PATCHES):
    """Return the hunks of the patches for a release by path.

    :returns: lists of a line number, and lines
    """
    found = {}
    for patch in (patch for feature in sorted(place.iterdir())
                  for patch in patches(feature, release)):
        path, lines = None, []
        for line in patch.read_text().splitlines():
            begin = re.match(r'@@ -(\d+)', line)
            if line.startswith('--- a/'):
                path, lines = line[6:], []
            elif begin:
                lines = []
                found.setdefault(path, []).append((int(begin[1]), lines))
            elif line.startswith('diff '):
                lines = []
            else:
                lines.append(line or ' ')
    return found


def changed_lines(source, hunk):
    """Return the numbers of the lines of a module that a hunk changes.

    What a hunk inserts counts as a change of the line before it. The hunk is
    looked for where it fits next to its number, which is another one in
    another release, and taken to be at its number if it fits nowhere.
    """
    number, lines = hunk
    lines = [line for line in lines if line[0] in ' -+']
    before = [line[1:] for line in lines if line[0] != '+']
    source = source.split('\n')
    places = [n for n in range(1, len(source) + 1)
              if source[n - 1:n - 1 + len(before)] == before]
    place = min(places or [number], key=lambda n: abs(n - number))
    found = set()
    for line in lines:
        if line[0] != ' ':
            found.add(place - (line[0] == '+'))
        place += line[0] != '+'
    return found


def tests_at(source, lines):
    """Return the tests that lines of a module belong to, as Class.test.

    Those of a constant are the tests that use it.

    :raises: ValueError if lines belong to no test
    """
    module = ast.parse(source)
    classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
    found = set()
    for line in lines:
        node = _at(module.body, line)
        if isinstance(node, ast.ClassDef):
            tests = [(node, _at(node.body, line))]
        else:
            names = {target.id for target in getattr(node, 'targets', ())}
            tests = [(cls, test) for cls in classes for test in cls.body
                     if names & {name.id for name in ast.walk(test)
                                 if isinstance(name, ast.Name)}]
        if not tests or not all(
                getattr(test, 'name', '').startswith('test')
                for _, test in tests):
            raise ValueError('line %d belongs to no test' % line)
        # The tests of a mixin run in the classes that have it.
        for cls, test in tests:
            heirs = [heir for heir in classes
                     if cls.name in map(ast.unparse, heir.bases)]
            if set(map(ast.unparse, cls.bases)) - {'object'}:
                heirs.append(cls)
            found |= {'%s.%s' % (heir.name, test.name) for heir in heirs}
    return found


def _at(nodes, line):
    """Return the statement that has a line, with its decorators, or None."""
    for node in nodes:
        first = min([node.lineno] + [
            x.lineno for x in getattr(node, 'decorator_list', ())])
        if first <= line <= node.end_lineno:
            return node


def tests_of(path, released, release, place=PATCHES):
    """Return the IDs of the tests of a released module that patches change.

    :param path: of the module, as nova/tests/unit/test_x.py
    :param released: the directory that has the released package nova
    :param release: the series of that release
    :param place: the directory of the patches
    :returns: none for a module that the release lacks
    :raises: ValueError if no patch changes it, or what is no test
    """
    is_released = (released / path).exists()
    changes = hunks(release, place).get(path)
    if not (changes if is_released else any(
            '--- a/%s\n' % path in patch.read_text()
            for patch in place.rglob('*.patch'))):
        raise ValueError('no patch in tools/intree/edits changes %s' % path)
    if not is_released:
        return set()
    source = (released / path).read_text()
    try:
        lines = set().union(*(changed_lines(source, x) for x in changes))
        return {'%s.%s' % (path[:-3].replace('/', '.'), test)
                for test in tests_at(source, lines)}
    except ValueError as exc:
        raise ValueError('%s: %s' % (path, exc))


def is_run_of(test, ran):
    """Say whether an ID is of a test, or of a test that ddt made of it."""
    return re.fullmatch(re.escape(test) + r'(_\d+(_.*)?)?(\(.*\))?', ran)
