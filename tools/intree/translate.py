# SPDX-License-Identifier: Apache-2.0

"""Turns a file of the layer into an edit of the released file.

A file of the layer holds the difference to a released module, in the idioms
of doc/source/contributor/layer.rst. translate() returns the released source
with that difference made in it: released bodies stay where they are, and what
no rule below covers is refused with the file and the line.
"""

import ast
import hashlib
import re
import sys
import textwrap

import libcst as cst
from libcst import matchers as m
from libcst import metadata

LICENCE = '''\
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
'''

#: Released decorators that go with the name of a method: the fingerprints of
#: objects list remotable methods by name.
GO_WITH_THE_NAME = ('base.remotable', 'base.remotable_classmethod')

#: Released decorators that note the name of the method, or that the method is
#: there: they cannot stay on a method that has got another name.
NOTE_THE_NAME = re.compile(
    r'wsgi\.|validation\.|periodic_task|wrap_instance_event|registry')

#: The decorator that nova.api.validation.ending() gives an end.
SCHEMAS = {'request_body_schema': 'validation.schema',
           'response_body_schema': 'validation.response_body_schema'}

WIDTH = 79


class Refused(Exception):
    """A file of the layer cannot be translated; says where and why."""


def code_of(node):
    """Return the source of a node that stands by itself."""
    return cst.Module([]).code_for_node(node)


def new_module(source, path='a new module'):
    """Return a module that the release does not have, as Nova writes it.

    :raises: Refused if it asks for what another module has released
    """
    for number, line in enumerate(source.split('\n'), 1):
        if re.search(r'^\s*import nova_pending|\w\.released\.', line):
            raise Refused('%s:%d: the branch has no released names beside '
                          'ours' % (path, number))
    return re.sub(r'\A# SPDX-License-Identifier: Apache-2.0\n+',
                  LICENCE + '\n', source)


def translate(path, layer, release, selected=lambda name: True, stage=None):
    """Make the difference that a file of the layer holds.

    :param path: the path of the file, for sentences
    :param layer: the source of the file of the layer
    :param release: the source of the released module
    :param selected: whether a name of the layer, as ``function`` or
        ``Class.member``, is taken; the others are left out
    :param stage: the source of a file that has a simpler form of some of what
        is left out
    :returns: the source of the module
    :raises: Refused
    """
    return _Edit(path, layer, release, selected, stage).make()


# What a statement is.

def name_of(statement):
    """Return the name that a statement defines, or None."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return statement.name.value
    assigned = assignment(statement)
    if assigned is not None:
        target = (assigned.targets[0].target
                  if isinstance(assigned, cst.Assign) else assigned.target)
        return target.value if isinstance(target, cst.Name) else None


def assignment(statement):
    """Return the assignment that a statement is, or None."""
    if m.matches(statement, m.SimpleStatementLine(
            body=[m.Assign(targets=[m.AssignTarget()]) | m.AnnAssign()])):
        return statement.body[0]


def is_docstring(statement):
    return m.matches(statement, m.SimpleStatementLine(
        body=[m.Expr(m.SimpleString())]))


def is_import(statement):
    return m.matches(statement, m.SimpleStatementLine(
        body=[m.Import() | m.ImportFrom()]))


def _root_of(statement):
    """Return the name of what a statement changes, as a.b['c'].d() does a."""
    node = None
    if m.matches(statement, m.SimpleStatementLine(body=[m.Expr(m.Call())])):
        node = statement.body[0].value.func
    elif m.matches(statement, m.SimpleStatementLine(body=[m.Assign(
            targets=[m.AssignTarget(m.Subscript())])])):
        node = statement.body[0].targets[0].target
    while isinstance(node, (cst.Attribute, cst.Subscript, cst.Call)):
        node = node.func if isinstance(node, cst.Call) else node.value
    return node.value if isinstance(node, cst.Name) else None


def called(decorator):
    """Return the source of the function that a decorator is, or calls."""
    node = decorator.decorator
    return code_of(node.func if isinstance(node, cst.Call) else node)


def marks(function):
    """Return the decorators of nova_pending by name."""
    return {called(d).partition('.')[2]: d for d in function.decorators
            if called(d).startswith('nova_pending.')}


def without_marks(function):
    """Return a function without the decorators of nova_pending.

    What in_tree() names is one in the branch.
    """
    return function.with_changes(decorators=[
        d.with_changes(decorator=d.decorator.args[0].value)
        if called(d) == 'nova_pending.in_tree' else d
        for d in function.decorators
        if called(d) == 'nova_pending.in_tree' or
        not called(d).startswith('nova_pending.')])


def kind_of(function):
    """Return 'staticmethod', 'classmethod' or 'method'."""
    for decorator in function.decorators:
        name = called(decorator)
        if name == 'staticmethod':
            return name
        if name == 'classmethod' or name.endswith('remotable_classmethod'):
            return 'classmethod'
    return 'method'


def bound_names(statement):
    """Return the names that an import statement binds, with their modules."""
    node = statement.body[0]
    names = {}
    for alias in node.names:
        module = code_of(alias.name)
        if isinstance(node, cst.ImportFrom):
            module = '%s.%s' % (code_of(node.module), module)
        bound = alias.asname.name.value if alias.asname else (
            code_of(alias.name) if isinstance(node, cst.ImportFrom)
            else module.partition('.')[0])
        names[bound] = module
    return names


class _Uses(cst.CSTVisitor):
    """Collects the names that a node uses.

    :ivar names: all of them
    :ivar first: those that are used when the node is imported
    """

    def __init__(self):
        self.names, self.first, self._depth = set(), set(), 0

    def visit_FunctionDef(self, node):
        for part in (*node.decorators, node.params):
            part.visit(self)
        if node.returns:
            node.returns.visit(self)
        self._depth += 1
        node.body.visit(self)
        self._depth -= 1
        return False

    def visit_Lambda(self, node):
        self._depth += 1

    def leave_Lambda(self, original_node):
        self._depth -= 1

    def visit_Attribute(self, node):
        node.value.visit(self)
        return False

    def visit_Arg(self, node):
        node.value.visit(self)
        return False

    def visit_Param(self, node):
        for part in (node.annotation, node.default):
            if part is not None:
                part.visit(self)
        return False

    def visit_Name(self, node):
        self.names.add(node.value)
        if not self._depth:
            self.first.add(node.value)


def uses(*nodes):
    found = _Uses()
    for node in nodes:
        node.visit(found)
    return found


class _Assigned(cst.CSTVisitor):
    """Collects the names that statements assign to, and what they return."""

    def __init__(self):
        self.names, self.returns = set(), False

    def visit_FunctionDef(self, node):
        self.names.add(node.name.value)
        return False

    def visit_Lambda(self, node):
        return False

    def visit_AssignTarget(self, node):
        self._take(node.target)

    def visit_For(self, node):
        self._take(node.target)

    def visit_AsName(self, node):
        self._take(node.name)

    def visit_NamedExpr(self, node):
        self._take(node.target)

    def visit_Return(self, node):
        self.returns = self.returns or node.value is not None

    def visit_Yield(self, node):
        self.returns = True

    def _take(self, target):
        self.names |= {name.value for name in m.findall(target, m.Name())}


def assigned(statements):
    found = _Assigned()
    for statement in statements:
        statement.visit(found)
    return found


# What is written.

BLANK = cst.EmptyLine(indent=False)


def with_blanks(statement, number, comments_of=None):
    """Put a number of blank lines, and its comments, before a statement."""
    lines = [line for line in (comments_of or statement).leading_lines
             if line.comment]
    return statement.with_changes(leading_lines=[BLANK] * number + lines)


def blanks(statement):
    """Return how many blank lines come before a statement."""
    return sum(line.comment is None for line in statement.leading_lines)


def starts_with_blank(statement):
    if statement.leading_lines and not statement.leading_lines[0].comment:
        return statement
    return statement.with_changes(
        leading_lines=[BLANK, *statement.leading_lines])


class _Clean(cst.CSTTransformer):
    """Takes away what linters of the layer have to be told."""

    def leave_TrailingWhitespace(self, original_node, updated_node):
        if updated_node.comment and re.fullmatch(
                r'#\s*noqa: F821', updated_node.comment.value):
            return updated_node.with_changes(
                comment=None, whitespace=cst.SimpleWhitespace(''))
        return updated_node


def literal_end(node):
    """Return the literal at the right end of a sum, or None."""
    while isinstance(node, cst.BinaryOperation):
        node = node.right
    return node if isinstance(
        node, (cst.List, cst.Tuple, cst.SimpleString)) else None


def joined(theirs, ours, column):
    """Return the sum of two expressions, one literal where both are one.

    :param theirs: the released expression
    :param ours: what is added to it
    :param column: of the first element of their literal
    """
    literal = literal_end(theirs)
    if type(literal) is not type(ours):
        if isinstance(theirs, cst.BinaryOperation):
            return cst.BinaryOperation(
                theirs.with_changes(lpar=[], rpar=[]), theirs.operator, ours,
                lpar=theirs.lpar, rpar=theirs.rpar)
        return cst.BinaryOperation(theirs, cst.Add(), ours)
    if isinstance(literal, cst.SimpleString):
        merged = joined_text(literal, ours)
    else:
        merged = _joined_elements(literal, ours, column)
    return theirs.deep_replace(literal, merged)


def joined_text(theirs, ours):
    """Append the text of one literal to another, before its last line."""
    end = len(theirs.quote)
    head, newline, last = theirs.value[:-end].rpartition('\n')
    text = ours.value[len(ours.prefix) + len(ours.quote):-len(ours.quote)]
    if newline and not last.strip():
        text = text.strip('\n').rstrip()
        return theirs.with_changes(
            value='%s\n%s\n%s%s' % (head, text, last, theirs.quote))
    return theirs.with_changes(value=theirs.value[:-end] + text + theirs.quote)


def _joined_elements(theirs, ours, column):
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(' '))
    lines = '\n' in code_of(theirs)
    elements = list(theirs.elements)
    final = elements[-1].comma
    one_line = column + sum(len(code_of(e)) + 2 for e in (
        *theirs.elements, *ours.elements)) < WIDTH
    if lines and not (one_line and '\n' not in ''.join(
            code_of(e) for e in elements[:-1])):
        between = next(
            (e.comma for e in elements[:-1]
             if isinstance(e.comma.whitespace_after,
                           cst.ParenthesizedWhitespace)), None)
        comma = between or cst.Comma(
            whitespace_after=cst.ParenthesizedWhitespace(
                last_line=cst.SimpleWhitespace(' ' * column)))
        if len(elements) == 1 and isinstance(
                theirs, cst.List) and isinstance(
                theirs.lbracket.whitespace_after, cst.ParenthesizedWhitespace):
            comma = cst.Comma(
                whitespace_after=theirs.lbracket.whitespace_after)
        # Comments between two elements are of these.
        comma = comma.with_changes(
            whitespace_after=comma.whitespace_after.with_changes(
                empty_lines=[], first_line=cst.TrailingWhitespace()))
    elif not one_line:
        comma = cst.Comma(whitespace_after=cst.ParenthesizedWhitespace(
            last_line=cst.SimpleWhitespace(' ' * column)))
    added = list(ours.elements)
    # The comments before the first of ours stand in its opening bracket.
    opening = ours.lbracket.whitespace_after if isinstance(
        ours, cst.List) else ours.lpar[0].whitespace_after
    first = comma
    if getattr(opening, 'empty_lines', None) and isinstance(
            comma.whitespace_after, cst.ParenthesizedWhitespace):
        first = comma.with_changes(
            whitespace_after=comma.whitespace_after.with_changes(
                empty_lines=opening.empty_lines))
    elements[-1] = elements[-1].with_changes(comma=first)
    for index, element in enumerate(added[:-1]):
        added[index] = element.with_changes(comma=comma)
    multiline = isinstance(final, cst.Comma) and lines
    added[-1] = added[-1].with_changes(
        comma=final if multiline else cst.MaybeSentinel.DEFAULT)
    return theirs.with_changes(elements=elements + added)


def with_entry(literal, key, value):
    """Append an entry to a literal of a dict that has one a line."""
    elements = list(literal.elements)
    final = elements[-1].comma
    comma = elements[0].comma if len(elements) > 1 else cst.Comma(
        whitespace_after=literal.lbrace.whitespace_after)
    elements[-1] = elements[-1].with_changes(comma=comma)
    return literal.with_changes(elements=[
        *elements, cst.DictElement(key, value, comma=final)])


class _References(cst.CSTTransformer):
    """Rewrites what a piece of the layer says of the release.

    :param edit: the _Edit
    :param cls: the name of the class that the piece is put into, or None
    :param kind: of the method that the piece is, if not by its decorators
    """

    def __init__(self, edit, cls=None, kind=None):
        self._edit, self._cls, self._kind = edit, cls, kind
        self._functions = []
        self._decorators = 0
        # What has been made of released.x and released.C.m, by its identity.
        self._made = {}

    def visit_Decorator(self, node):
        self._decorators += 1

    def leave_Decorator(self, original_node, updated_node):
        self._decorators -= 1
        return updated_node

    def visit_FunctionDef(self, node):
        self._functions.append(node)

    def leave_FunctionDef(self, original_node, updated_node):
        self._functions.pop()
        return updated_node

    def visit_Lambda(self, node):
        self._functions.append(node)

    def leave_Lambda(self, original_node, updated_node):
        self._functions.pop()
        return updated_node

    def _keep(self, node, what):
        self._made[id(node)] = node, what
        return node

    def _what(self, node):
        return self._made.get(id(node), (None, None))[1]

    def _in_body(self):
        """Whether a function of the class is around, not its decorators."""
        return self._functions and not self._decorators

    def leave_Attribute(self, original_node, updated_node):
        edit, name = self._edit, updated_node.attr.value
        if m.matches(original_node.value, m.Name('released')):
            target = edit.constant(original_node)
            if target is not None:
                return target
            return self._keep(cst.Name(edit.function_names.get(name, name)),
                              name)
        owner = self._what(updated_node.value)
        if owner is None or owner not in edit.released_classes:
            return updated_node
        member = edit.member_names.get((owner, name), name)
        if not self._in_body() and owner == self._cls:
            return self._keep(cst.Name(member), (owner, name))
        return self._keep(updated_node.with_changes(attr=cst.Name(member)),
                          (owner, name))

    def leave_Call(self, original_node, updated_node):
        what = self._what(updated_node.func)
        if (not isinstance(what, tuple) or what[0] != self._cls or
                not self._in_body()):
            return updated_node
        owner, name = what
        outer = self._functions[0]
        kind = self._kind or kind_of(outer)
        inherited = (owner, name) in self._edit.inherited
        args = updated_node.args
        if kind == 'staticmethod' or not outer.params.params:
            if inherited:
                self._edit.refuse(
                    original_node, 'a static method cannot call what '
                    '%s inherits' % owner)
            return updated_node
        first = outer.params.params[0].name.value
        of_name = self._edit.kinds.get((owner, name), 'method')
        if of_name == 'method' and kind == 'method':
            if not args or args[0].keyword or not m.matches(
                    args[0].value, m.Name(first)):
                self._edit.refuse(
                    original_node, '%s.%s is not called on %s' % (
                        owner, name, first))
            args = args[1:]
            if (owner, name) in self._edit.ambiguous:
                return updated_node
        receiver = cst.Name(first)
        if inherited:
            receiver = cst.Call(cst.Name('super')) if len(
                self._functions) == 1 else cst.Call(cst.Name('super'), [
                    cst.Arg(cst.Name(owner)), cst.Arg(cst.Name(first))])
        member = updated_node.func.attr if isinstance(
            updated_node.func, cst.Attribute) else updated_node.func
        made = updated_node.with_changes(
            func=cst.Attribute(receiver, member), args=args)
        return self._edit.in_one_line(original_node, made)


class _Edit:
    """The translation of one file."""

    def __init__(self, path, layer, release, selected, stage=None):
        self.path = path
        self._selected = self._noting(selected)
        self._left_out = set()
        self._at = None
        self._release_text = release
        layer = metadata.MetadataWrapper(
            cst.parse_module(layer), unsafe_skip_copy=True)
        self._lines = dict(layer.resolve(metadata.PositionProvider))
        self._layer = layer.module
        self._stage = None
        if stage is not None:
            stage = metadata.MetadataWrapper(
                cst.parse_module(stage), unsafe_skip_copy=True)
            self._lines.update(stage.resolve(metadata.PositionProvider))
            self._stage = stage.module
        release = metadata.MetadataWrapper(
            cst.parse_module(release), unsafe_skip_copy=True)
        self._columns = release.resolve(metadata.PositionProvider)
        self._release = release.module
        self._place = {}
        for index, statement in enumerate(self._release.body):
            if name_of(statement):
                self._place.setdefault(name_of(statement), index)
        self.released_classes = {
            name_of(s): s for s in self._release.body
            if isinstance(s, cst.ClassDef)}
        # The parts of the file.
        self._imports = []
        self._bodies = {}     # released class -> members
        self._docstrings = {}  # released class -> docstring to append
        self._merges = {}     # released class -> members of the subclass
        self._functions = {}  # over a released function
        self._constants = {}  # over a released constant
        self._entries = []    # TABLE[key] = value
        self._items = []      # (kind, name, node) in the order of the file
        # The names that released functions get.
        self.function_names = {}
        self.member_names = {}
        self.kinds = {}
        self.inherited = set()
        self.ambiguous = set()

    def _noting(self, selected):
        """Note what is left out, for which a stage may have a form."""
        def select(name):
            taken = selected(name)
            if not taken:
                self._left_out.add(name)
            return taken
        return select

    def refuse(self, node, why):
        # What is made of a node has no place: that of its statement is told.
        line = self._lines.get(node, self._at).start.line
        raise Refused('%s:%d: %s' % (self.path, line, why))

    # Reading the file.

    def make(self):
        for statement in self._layer.body:
            self._read(statement)
        if self._stage is not None:
            taken, self._left_out = self._left_out, set()
            select = self._selected
            self._selected = lambda name: name in taken
            for statement in self._stage.body:
                self._read(statement)
            self._selected = select
        self._name_what_is_called()
        body = list(self._release.body)
        before = {}
        self._edit_in_place(body)
        self._place_new_items(body, before)
        return self._write(body, before)

    def _read(self, statement):
        if is_docstring(statement) or m.matches(
                statement, m.SimpleStatementLine(body=[m.Assign(value=m.Call(
                    m.Attribute(m.Name('nova_pending'),
                                m.Name('released'))))])):
            return
        if is_import(statement):
            if bound_names(statement) == {'nova_pending': 'nova_pending'}:
                return
            if 'nova_pending_check' in bound_names(statement):
                self.refuse(statement, 'nova_pending_check is of the layer '
                            'alone')
            self._imports.append(statement)
            return
        name = name_of(statement)
        if isinstance(statement, cst.ClassDef):
            return self._read_class(statement)
        if isinstance(statement, cst.FunctionDef):
            if not self._selected(name):
                return
            if isinstance(self._released(name), cst.FunctionDef):
                self._functions[name] = statement
                self._items.append(('over', name, statement))
            elif name in self._place:
                self.refuse(statement, '%s is no function in the release'
                            % name)
            else:
                self._items.append(('new', name, statement))
            return
        root = _root_of(statement)
        if any(root == n for kind, n, _ in self._items if kind == 'new'):
            # It changes what the file has just made: a schema, say.
            self._items.append(('new', root + '+', statement))
            return
        if root in self._left_out:
            return
        if m.matches(statement, m.SimpleStatementLine(body=[m.Assign(
                targets=[m.AssignTarget(m.Subscript(m.Name()))])])):
            target = statement.body[0].targets[0].target
            table = target.value.value
            key = code_of(target.slice[0])
            if table not in self._place:
                self.refuse(statement, '%s is not in the release' % table)
            if self._selected('%s[%s]' % (table, key)):
                self._entries.append((table, statement))
                self._items.append(('over', table, statement))
            return
        if name is None:
            self.refuse(statement, 'a statement that defines no name has no '
                        'place in the released file')
        if not self._selected(name):
            return
        if name in self._place:
            theirs = self._release.body[self._place[name]]
            if assignment(theirs) is None:
                self.refuse(statement, '%s is no constant in the release'
                            % name)
            if code_of(theirs.with_changes(leading_lines=[])) == code_of(
                    statement.with_changes(leading_lines=[])):
                return
            self._constants[name] = statement
            self._items.append(('over', name, statement))
        else:
            self._items.append(('new', name, statement))

    def _released(self, name):
        return self._release.body[self._place[name]] if (
            name in self._place) else None

    def _read_class(self, statement):
        name = statement.name.value
        over = [d for d in statement.decorators
                if called(d) == 'nova_pending.over']
        bases = [code_of(base.value) for base in statement.bases]
        if over:
            if not m.matches(over[0].decorator, m.Call(args=[m.Arg(
                    m.Attribute(m.Name('released'), m.Name(name)))])):
                self.refuse(statement, 'a body over a class bears the name '
                            'of the class')
            where = self._bodies
        elif 'released.' + name in bases:
            if bases != ['released.' + name] or statement.decorators:
                self.refuse(statement, 'a subclass under the name of its '
                            'class has that class alone for a base')
            where = self._merges
        else:
            if name in self._place:
                self.refuse(statement, '%s is in the release, and neither '
                            'laid over nor made a subclass of' % name)
            if self._selected(name):
                self._items.append(('new', name, statement))
            return
        if name not in self.released_classes:
            self.refuse(statement, 'the release has no class %s' % name)
        members = []
        for member in statement.body.body:
            if is_docstring(member):
                if self._selected(name + '.__doc__'):
                    self._docstrings[name] = member
                    members.append(member)
                continue
            if m.matches(member, m.SimpleStatementLine(body=[m.Pass()])):
                continue
            label = name_of(member)
            if label is None or isinstance(member, cst.ClassDef):
                self.refuse(member, 'a member is a method or an attribute')
            if self._selected('%s.%s' % (name, label)):
                members.append(member)
        if members:
            where.setdefault(name, []).extend(
                x for x in members if not is_docstring(x))
            self._items.append(('over', name, statement))

    # What released functions are called.

    def _inner_name(self, node, name, taken):
        stem = name.strip('_') if name.startswith('__') else name.lstrip('_')
        for candidate in (
                '_do_' + stem, '_%s_inner' % stem):
            # _do_do_x would be no name.
            if candidate not in taken and not candidate.startswith('_do_do_'):
                return candidate
        self.refuse(node, 'there is no free name for the released %s' % name)

    def _name_what_is_called(self):
        for name, ours in self._functions.items():
            if 'replaces' in marks(ours) and not self._calls(ours, name):
                continue
            self.function_names[name] = self._inner_name(
                ours, name, self._place)
        given = {}
        for cls, members in self._bodies.items():
            theirs = {name_of(x): x for x in
                      self.released_classes[cls].body.body}
            for x in self.released_classes[cls].body.body:
                if isinstance(x, cst.FunctionDef):
                    self.kinds[cls, x.name.value] = kind_of(x)
            for ours in members:
                name = name_of(ours)
                before = theirs.get(name)
                if before is None:
                    self.inherited.add((cls, name))
                elif isinstance(before, cst.FunctionDef):
                    inner = self._inner_name(ours, name, theirs)
                    self.member_names[cls, name] = inner
                    given.setdefault(inner, []).append((cls, name))
        for same in given.values():
            if len(same) > 1:
                # self._do_x() would find that of the subclass.
                self.ambiguous.update(same)

    @staticmethod
    def _calls(ours, *path):
        """Return the references in a node to released.a or released.a.b."""
        pattern = m.Name('released')
        for part in path:
            pattern = m.Attribute(pattern, m.Name(part))
        return m.findall(ours, pattern)

    def constant(self, reference):
        """Return what stands for a released constant that is changed."""
        name = reference.attr.value
        if name not in self._constants:
            return None
        value = assignment(self._released(name)).value
        if isinstance(value, cst.Integer):
            return value
        self.refuse(reference, 'only the definition of %s can tell what it '
                    'was in the release' % name)

    def _finished(self, node, cls=None, kind=None):
        """Return a piece of the layer as it stands in the released file."""
        original = node
        node = node.visit(_References(self, cls, kind)).visit(_Clean()).visit(
            _Sums())
        if node is not None:
            names = uses(node).names
            for name in ('released', 'nova_pending'):
                if name in names:
                    told = {id(x.value) for x in m.findall(
                        original, m.Attribute(m.Name(name)))}
                    alone = [x for x in m.findall(original, m.Name(name))
                             if id(x) not in told]
                    self.refuse((alone or [original])[0], '%s is used in a '
                                'way that has no translation' % name)
        return node

    def in_one_line(self, before, call):
        """Return a call without line breaks, if it has room for that."""
        args = [arg.with_changes(
            whitespace_after_arg=cst.SimpleWhitespace(''),
            comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(' ')))
            for arg in call.args]
        if args:
            args[-1] = args[-1].with_changes(
                comma=cst.MaybeSentinel.DEFAULT)
        flat = call.with_changes(
            args=args, whitespace_before_args=cst.SimpleWhitespace(''))
        text = code_of(flat)
        return flat if '\n' not in text and (
            self._lines[before].start.column + len(text) < WIDTH) else call

    # Editing what is there.

    def _edit_in_place(self, body):
        for name, ours in self._functions.items():
            index = self._place[name]
            self._at = self._lines[ours]
            body[index] = self._over_function(
                body[index], without_marks(ours), marks(ours),
                ('released', name), self.function_names.get(name), None)
        for name, ours in self._constants.items():
            index = self._place[name]
            self._at = self._lines[ours]
            body[index] = [self._over_constant(body[index], ours, name)]
        for table, entry in self._entries:
            index = self._place[table]
            self._at = self._lines[entry]
            now = body[index][-1] if isinstance(body[index], list) else (
                body[index])
            rest = body[index][:-1] if isinstance(body[index], list) else []
            body[index] = rest + self._entry(table, now, entry)
        for cls, members in self._bodies.items():
            index = self._place[cls]
            body[index] = [self._over_class(body[index], cls, members)]
        for cls, members in self._merges.items():
            index = self._place[cls]
            body[index] = [self._over_class(body[index], cls, members, True)]
        for cls, docstring in self._docstrings.items():
            index = self._place[cls]
            body[index] = [self._longer_docstring(body[index][0], docstring)]
        for index, statement in enumerate(body):
            if not isinstance(statement, list):
                body[index] = [statement]

    def _longer_docstring(self, cls, docstring):
        first = cls.body.body[0]
        if not is_docstring(first):
            self.refuse(docstring, 'the released class has no docstring')
        value = first.body[0].value
        return cls.deep_replace(
            value, joined_text(value, docstring.body[0].value))

    def _over_constant(self, theirs, ours, *path):
        """Return a released assignment with our value."""
        value = assignment(ours).value
        pattern = m.Name('released')
        for part in path:
            pattern = m.Attribute(pattern, m.Name(part))
        if m.matches(value, m.BinaryOperation(pattern, m.Add())):
            old = assignment(theirs).value
            literal = literal_end(old)
            column = 0
            if isinstance(literal, (cst.List, cst.Tuple)):
                column = self._columns[literal.elements[0]].start.column
            cls = path[0] if len(path) > 1 else None
            value = joined(old, self._finished(value.right, cls), column)
        else:
            value = self._finished(
                value, path[0] if len(path) > 1 else None)
        comments = [line for line in ours.leading_lines if line.comment]
        return theirs.with_changes(
            leading_lines=[*theirs.leading_lines, *comments],
            body=[assignment(theirs).with_changes(value=value)])

    def _entry(self, table, theirs, entry):
        made = assignment(theirs)
        value = entry.body[0].value
        key = entry.body[0].targets[0].target.slice[0].slice.value
        if (made is not None and isinstance(made.value, cst.Dict) and
                table not in uses(value).names and not [
                    line for line in entry.leading_lines if line.comment]):
            literal = with_entry(made.value, self._finished(key),
                                 self._finished(value))
            return [theirs.with_changes(
                body=[made.with_changes(value=literal)])]
        return [theirs, self._finished(with_blanks(entry, 0))]

    def _over_function(self, theirs, ours, marked, path, inner, cls):
        """Return what stands in the place of a released function."""
        if any(called(d) in ('property', 'functools.cached_property')
               for d in (*theirs.decorators, *ours.decorators)):
            self.refuse(ours, 'a property cannot be laid over')
        digest = marked.get('replaces')
        if digest is not None:
            self._check_digest(theirs, digest, path[1:])
        calls = self._calls(ours, *path[1:])
        if digest is not None and not calls:
            decorators = ours.decorators
            return [self._finished(ours, cls).with_changes(
                decorators=[self._finished(d, cls) for d in decorators],
                leading_lines=theirs.leading_lines)]
        if not calls:
            self.refuse(ours, 'it neither calls the released %s nor says '
                        'that it replaces it' % path[-1])
        plain = [d for d in theirs.decorators if called(d) not in (
            'staticmethod', 'classmethod', *GO_WITH_THE_NAME)]
        if not plain and len(calls) == 1:
            inlined = self._inlined(theirs, ours, path, calls[0], cls)
            if inlined is not None:
                return [inlined]
        wraps = [d for d in ours.decorators if called(d) == 'functools.wraps']
        ours_decorators = [d for d in ours.decorators if d not in wraps]
        kept = theirs.decorators
        if wraps:
            endings = self._endings(wraps[0].decorator.args[0].value, path)
            decorators = self._decorators(
                theirs.decorators, [self._finished(d, cls)
                                    for d in ours_decorators], endings)
            kept = []
        else:
            for decorator in theirs.decorators:
                if NOTE_THE_NAME.search(called(decorator)):
                    self.refuse(ours, 'the released %s has the decorator %s, '
                                'which needs functools.wraps()' % (
                                    path[-1], called(decorator)))
            moved = [d for d in theirs.decorators
                     if called(d) in GO_WITH_THE_NAME]
            kept = [d for d in theirs.decorators if d not in moved]
            decorators = [*moved, *[self._finished(d, cls)
                                    for d in ours_decorators]]
        ours = self._finished(
            ours.with_changes(decorators=[]), cls, kind_of(ours)).with_changes(
                decorators=decorators)
        theirs_now = theirs.with_changes(
            name=cst.Name(inner), decorators=kept,
            lines_after_decorators=(
                theirs.lines_after_decorators if kept else []))
        theirs_now = self._realigned(theirs_now, theirs)
        gap = 1 if cls else 2
        return [with_blanks(ours, max(gap, 0)),
                theirs_now.with_changes(leading_lines=[
                    *[BLANK] * (gap - blanks(theirs_now)),
                    *theirs_now.leading_lines])]

    def _realigned(self, function, before):
        """Shift parameters that are aligned with the opening bracket.

        Where they have no room any more they are filled into new lines.
        """
        column = self._columns[before].start.column
        head = column + len('def %s(' % before.name.value)
        shift = len(function.name.value) - len(before.name.value)

        class Shift(cst.CSTTransformer):
            def leave_ParenthesizedWhitespace(self, original_node,
                                              updated_node):
                last = updated_node.last_line.value
                if len(last) + updated_node.indent * column != head:
                    return updated_node
                return updated_node.with_changes(
                    last_line=cst.SimpleWhitespace(last + ' ' * shift))

        shifted = function.with_changes(params=function.params.visit(Shift()))
        header = code_of(shifted.with_changes(
            decorators=[], leading_lines=[], body=cst.SimpleStatementSuite(
                [cst.Pass()], cst.SimpleWhitespace(''))))
        lines = textwrap.indent(
            header.replace(':pass', ':'), ' ' * column).split('\n')
        if max(map(len, lines)) <= WIDTH:
            return shifted
        parameters = re.sub(r'\s+', ' ', code_of(function.params)).strip(', ')
        filled = textwrap.fill(
            parameters + ',', WIDTH - column, initial_indent=' ' * 4,
            subsequent_indent=' ' * 4, break_long_words=False,
            break_on_hyphens=False)
        made = cst.parse_statement('def %s(\n%s\n): pass' % (
            function.name.value, filled))
        return function.with_changes(
            params=made.params,
            whitespace_before_params=made.whitespace_before_params)

    def _check_digest(self, theirs, decorator, path):
        wanted = ast.literal_eval(code_of(decorator.decorator.args[0].value))
        body = ast.parse(self._release_text).body
        for part in path:
            node = [x for x in body if getattr(x, 'name', None) == part][-1]
            body = node.body
        start = min([node.lineno] + [d.lineno for d in node.decorator_list])
        source = ''.join(self._release_text.splitlines(True)[
            start - 1:node.end_lineno])
        found = hashlib.sha256(
            textwrap.dedent(source).encode()).hexdigest()[:16]
        if found != wanted:
            self.refuse(decorator, 'it replaces a body with the digest %s, '
                        'and the release has %s' % (wanted, found))

    def _inlined(self, theirs, ours, path, call, cls):
        """Put a prologue into a released body, or what follows its end.

        :returns: None unless ours is a prologue and a last statement that
            calls the release with the parameters as they are, or such a call
            and what follows, and a name means the same in both
        """
        if ours.decorators and kind_of(ours) == 'method':
            return None
        parameters = code_of(theirs.params)
        if (re.sub(r'\s+', ' ', parameters).strip().rstrip(',') !=
                re.sub(r'\s+', ' ', code_of(ours.params)).strip().rstrip(',')):
            return None
        statements = list(ours.body.body)
        if is_docstring(statements[0]):
            statements = statements[1:]
        places = [index for index, s in enumerate(statements)
                  if self._is_plain_call(s, theirs, path)]
        if len(places) != 1:
            return None
        place = places[0]
        known = {p.name.value for p in theirs.params.params} | {
            p.name.value for p in theirs.params.kwonly_params}
        body = list(theirs.body.body)
        head, rest = (body[:1], body[1:]) if is_docstring(body[0]) else (
            [], body)
        result = assigned(rest)
        if place == len(statements) - 1:
            last = statements[-1]
            if result.returns and not m.matches(last, m.SimpleStatementLine(
                    body=[m.Return()])):
                return None
            mine = statements[:-1]
            if ((assigned(mine).names - known) & uses(*rest).names or
                    (uses(*mine).names - known) & result.names):
                return None
            mine = [self._in_method(s, ours, cls) for s in mine]
            if not mine:
                return None
            rest = [starts_with_blank(rest[0]), *rest[1:]]
            body = [*head, *([starts_with_blank(mine[0])] if head
                             else mine[:1]), *mine[1:], *rest]
        elif (place == 0 and path[-1] == '__init__' and
                not m.findall(theirs.body, m.Return())):
            mine = [self._in_method(s, ours, cls) for s in statements[1:]]
            body += mine
        else:
            return None
        return theirs.with_changes(
            body=theirs.body.with_changes(body=body))

    def _in_method(self, statement, method, cls):
        """Finish a statement as if it stood in its method."""
        inside = method.with_changes(
            decorators=[d for d in method.decorators
                        if called(d) in ('staticmethod', 'classmethod')],
            body=cst.IndentedBlock([statement]))
        return self._finished(inside, cls).body.body[0]

    @staticmethod
    def _is_plain_call(statement, theirs, path):
        """Whether a statement calls the release with all parameters."""
        if not m.matches(statement, m.SimpleStatementLine(
                body=[m.Return(m.Call()) | m.Expr(m.Call())])):
            return False
        call = statement.body[0].value
        if code_of(call.func) != '.'.join(path):
            return False
        parameters = theirs.params
        placed = [p.name.value for p in parameters.params]
        if len(path) == 3 and kind_of(theirs) == 'classmethod':
            placed = placed[1:]
        star = isinstance(parameters.star_arg, cst.Param)
        wanted = set(placed) | {
            p.name.value for p in parameters.kwonly_params}
        passed = set()
        for index, arg in enumerate(call.args):
            text = code_of(arg.value)
            if arg.star == '*':
                name = '*' + text
                if not star or text != parameters.star_arg.name.value:
                    return False
            elif arg.star == '**':
                name = '**' + text
                if not parameters.star_kwarg or (
                        text != parameters.star_kwarg.name.value):
                    return False
            elif arg.keyword is not None:
                name = arg.keyword.value
                if text != name:
                    return False
            else:
                name = text
                if index >= len(placed) or placed[index] != text:
                    return False
            passed.add(name)
        if star:
            wanted.add('*' + parameters.star_arg.name.value)
        if parameters.star_kwarg:
            wanted.add('**' + parameters.star_kwarg.name.value)
        return passed == wanted

    def _endings(self, node, path):
        """Return the ends that validation.ending() gives, by decorator."""
        ends = {}
        while m.matches(node, m.Call(m.Attribute(
                m.Name('validation'), m.Name('ending')))):
            kind, version = (ast.literal_eval(code_of(arg.value))
                             for arg in node.args[:2])
            ends[SCHEMAS[kind]] = version
            node = node.args[2].value
        if code_of(node) != '.'.join(path):
            self.refuse(node, '%s is not the released method' % code_of(node))
        return ends

    @staticmethod
    def _decorators(theirs, ours, endings):
        """Put our decorators among the released ones of a method."""
        made = list(theirs)
        for name, version in endings.items():
            last = max(i for i, d in enumerate(made) if called(d) == name)
            call = made[last].decorator
            made[last] = made[last].with_changes(decorator=call.with_changes(
                args=[*[a.with_changes(comma=cst.MaybeSentinel.DEFAULT)
                        for a in call.args],
                      cst.Arg(cst.SimpleString("'%s'" % version))]))
        for decorator in reversed(ours):
            name = called(decorator)
            same = [i for i, d in enumerate(made) if called(d) == name]
            if same and name in SCHEMAS.values():
                made.insert(same[-1] + 1, decorator)
            elif len(same) == 1:
                made[same[0]] = decorator
            else:
                made.insert(0, decorator)
        # A schema is in one line.
        return [_long_line_marked(d) for d in made]

    def _over_class(self, theirs, cls, members, merge=False):
        mine = {}
        for member in members:
            if name_of(member) in mine:
                self.refuse(member, '%s.%s is laid over twice' % (
                    cls, name_of(member)))
            mine[name_of(member)] = member
        have = {name_of(x) for x in theirs.body.body} - {None}
        out = list(theirs.body.body)
        places = {}
        for index, x in enumerate(out):
            name = name_of(x)
            if name in mine:
                places[name] = index
                out[index] = self._over_member(x, mine[name], cls, merge)
            else:
                out[index] = [x]
        first_function = next(
            (i for i, x in enumerate(theirs.body.body)
             if isinstance(x, (cst.FunctionDef, cst.ClassDef))), len(out))
        previous = None
        attributes, late = [], []
        for name, member in mine.items():
            if name in have:
                previous = places[name]
                continue
            made = self._new_member(member, cls, name, merge)
            if not isinstance(made, cst.FunctionDef):
                if merge and 'ALL' in places:
                    out[places['ALL']].insert(0, made)
                elif previous is not None and previous < first_function:
                    out[previous].append(with_blanks(made, 0))
                else:
                    attributes.append(made)
            elif previous is None or previous < first_function:
                late.append(made)
            else:
                out[previous].append(with_blanks(made, 1))
        if late:
            out.append([with_blanks(x, 1) for x in late])
        if attributes:
            out.insert(first_function, [
                starts_with_blank(x) if blanks(x) or i == 0 else x
                for i, x in enumerate(attributes)])
        body = [x for part in out for x in part]
        if merge and 'ALL' in places:
            body = _blank_before(body, 'ALL')
        for i in range(1, len(body)):
            if isinstance(body[i], cst.FunctionDef) and not blanks(body[i]):
                body[i] = starts_with_blank(body[i])
        return theirs.with_changes(body=theirs.body.with_changes(body=body))

    def _over_member(self, theirs, ours, cls, merge):
        self._at = self._lines[ours]
        if isinstance(ours, cst.FunctionDef):
            if not isinstance(theirs, cst.FunctionDef):
                self.refuse(ours, '%s is no method in the release'
                            % name_of(ours))
            marked = marks(ours)
            if 'new' in marked:
                self.refuse(ours, 'the release has %s' % name_of(ours))
            return self._over_function(
                theirs, without_marks(ours), marked,
                ('released', cls, name_of(ours)),
                self.member_names.get((cls, name_of(ours))), cls)
        if isinstance(theirs, cst.FunctionDef):
            return self._wrapped(theirs, ours, cls)
        if code_of(assignment(theirs).value) == code_of(
                assignment(ours).value):
            return [theirs]
        return [self._over_constant(theirs, ours, cls, name_of(ours))]

    def _wrapped(self, theirs, ours, cls):
        """Put decorators over a released method: x = deco(released.C.x)."""
        path = 'released', cls, name_of(ours)
        node, decorators = assignment(ours).value, []
        while code_of(node) != '.'.join(path) and not m.matches(
                node, m.Call(m.Attribute(
                    m.Name('validation'), m.Name('ending')))):
            if not isinstance(node, cst.Call) or len(node.args) != 1:
                self.refuse(ours, 'it is not made of decorators and the '
                            'released %s' % path[-1])
            decorators.append(cst.Decorator(self._finished(node.func, cls)))
            node = node.args[0].value
        endings = self._endings(node, path)
        return [theirs.with_changes(decorators=self._decorators(
            theirs.decorators, decorators, endings))]

    def _new_member(self, member, cls, name, merge):
        self._at = self._lines[member]
        if isinstance(member, cst.FunctionDef):
            if 'new' not in marks(member) and not merge and not self._calls(
                    member, cls, name):
                self.refuse(member, '%s is not in the release' % name)
            return self._finished(without_marks(member), cls)
        value = assignment(member).value
        if m.matches(value, m.Call(m.Attribute(
                m.Name('nova_pending'), m.Name('new')))):
            member = member.with_changes(body=[
                assignment(member).with_changes(value=value.args[0].value)])
        return self._finished(member, cls)

    # Where new things stand.

    def _place_new_items(self, body, before):
        """Choose the place of each new function, class and constant."""
        places = {name: self._place[name] for kind, name, _ in self._items
                  if kind == 'over'}
        order = [(kind, name) for kind, name, _ in self._items]
        firsts = [uses(*part).first for part in body]
        head = next((i for i, part in enumerate(body) if isinstance(
            part[0], (cst.FunctionDef, cst.ClassDef))), len(body))
        last_place = 0
        defined = {}
        for number, (kind, name, node) in enumerate(self._items):
            if kind == 'over':
                continue
            self._at = self._lines[node]
            node = self._finished(node)
            needs = uses(node).first
            lower = max([self._place[x] + 1 for x in needs
                         if x in self._place] +
                        [defined[x] for x in needs if x in defined] + [0])
            upper = min([i for i, first in enumerate(firsts)
                         if name in first], default=len(body))
            earlier = [places[n] for k, n in order[:number] if k == 'over']
            later = [places[n] for k, n in order[number:] if k == 'over']
            if earlier:
                place = max(earlier[-1] + 1, last_place)
            elif later:
                place = later[0]
                if assignment(node) is not None and lower <= head:
                    place = min(place, head)
            else:
                place = len(body)
            place = max(min(place, upper), lower)
            if place > upper:
                self.refuse(node, '%s is needed before it can be defined'
                            % name)
            defined[name] = last_place = place
            if not earlier:
                last_place = 0
            before.setdefault(place, []).append(node)

    def _write(self, body, before):
        new_body = []
        for index in range(len(body) + 1):
            new_body += before.get(index, [])
            if index < len(body):
                new_body += body[index]
        wanted = set()
        changed = [s for part in before.values() for s in part] + [
            s for index, part in enumerate(body) for s in part
            if s is not self._release.body[index]]
        wanted = uses(*changed).names if changed else set()
        new_body = self._with_imports(new_body, wanted)
        return self._release.with_changes(body=_spaced(new_body)).code

    def _with_imports(self, body, wanted):
        have = {}
        for statement in body[:_end_of_imports(body)]:
            if is_import(statement):
                for name, module in bound_names(statement).items():
                    have.setdefault(name, set()).add(module)
        for statement in self._imports:
            names = bound_names(statement)
            ((name, module),) = names.items()
            if name not in wanted or module in have.get(name, ()):
                continue
            # "import a" and "import a.b" bind the same.
            if any(not (x + '.').startswith(name + '.') or
                   not (module + '.').startswith(name + '.')
                   for x in have.get(name, ())) or name in self._place:
                self.refuse(statement, '%s is something else in the released '
                            'module' % name)
            have.setdefault(name, set()).add(module)
            body = _with_import(body, with_blanks(statement, 0))
        return body


class _Sums(cst.CSTTransformer):
    """Adds up numbers: a constant of the release plus one."""

    def leave_BinaryOperation(self, original_node, updated_node):
        if m.matches(updated_node, m.BinaryOperation(
                m.Integer(), m.Add(), m.Integer())):
            return cst.Integer(str(
                int(updated_node.left.value) + int(updated_node.right.value)))
        return updated_node


def _long_line_marked(decorator):
    """Say to linters what Nova says of a schema that needs a long line."""
    text = code_of(decorator).rstrip('\n')
    if '\n' in text or decorator.trailing_whitespace.comment or len(
            text) + 4 <= WIDTH:
        return decorator
    return decorator.with_changes(trailing_whitespace=cst.TrailingWhitespace(
        cst.SimpleWhitespace('  '), cst.Comment('# noqa: E501')))


def _blank_before(body, name):
    """Move the blank line before a member above which others were put."""
    out = []
    for statement in body:
        if name_of(statement) == name:
            statement = with_blanks(statement, 1)
        out.append(statement)
    return out


def _spaced(body):
    """Put two blank lines around functions and classes."""
    out = body[:1]
    for statement in body[1:]:
        around = isinstance(
            statement, (cst.FunctionDef, cst.ClassDef)) or isinstance(
            out[-1], (cst.FunctionDef, cst.ClassDef))
        missing = 2 - blanks(statement)
        if around and missing > 0 and hasattr(statement, 'leading_lines'):
            statement = statement.with_changes(
                leading_lines=[BLANK] * missing + list(
                    statement.leading_lines))
        out.append(statement)
    return out


def _group_of(statement):
    """Return which of Nova's groups of imports a statement belongs to."""
    module = next(iter(bound_names(statement).values())).partition('.')[0]
    if module in sys.stdlib_module_names:
        return 0
    return 2 if module == 'nova' else 1


def _sort_key(statement):
    return next(iter(bound_names(statement).values())).lower()


def _end_of_imports(body):
    """Return where the first function, class or constant stands."""
    return next((i for i, s in enumerate(body)
                 if isinstance(s, (cst.FunctionDef, cst.ClassDef)) or
                 assignment(s) is not None), len(body))


def _with_import(body, statement):
    """Insert an import in the order that hacking checks."""
    imports = [i for i in range(_end_of_imports(body)) if is_import(body[i])]
    end = imports[-1] + 1 if imports else (
        1 if body and is_docstring(body[0]) else 0)
    group = _group_of(statement)
    same = [i for i in imports if _group_of(body[i]) == group]
    if same:
        for i in same:
            if _sort_key(body[i]) > _sort_key(statement):
                # The blank line and the comments above stay on top of the
                # group.
                lines = body[i].leading_lines
                if i == same[0]:
                    statement = statement.with_changes(leading_lines=lines)
                    lines = []
                return [*body[:i], statement,
                        body[i].with_changes(leading_lines=lines),
                        *body[i + 1:]]
        return [*body[:same[-1] + 1], statement, *body[same[-1] + 1:]]
    later = [i for i in imports if _group_of(body[i]) > group]
    if later:
        i = later[0]
        return [*body[:i],
                statement.with_changes(leading_lines=body[i].leading_lines),
                with_blanks(body[i], 1), *body[i + 1:]]
    return [*body[:end], with_blanks(statement, 1 if end else 0),
            *([starts_with_blank(body[end])] if end < len(body) else []),
            *body[end + 1:]]
