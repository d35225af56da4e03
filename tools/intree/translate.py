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
import textwrap

import libcst as cst
from libcst import matchers as m
from libcst import metadata

from tools.intree import layout
from tools.intree import syntax

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


class Refused(Exception):
    """A file of the layer cannot be translated; says where and why."""


def new_module(source, path='a new module', selected=lambda name: True):
    """Return a module that the release does not have, as Nova writes it.

    :param selected: called with a name of the module, as ``function`` or
        ``Class.member``, returns whether it is taken. What is not is left out,
        and with it the imports that nothing else uses
    :raises: Refused if it asks for what another module has released
    """
    for number, line in enumerate(source.split('\n'), 1):
        if re.search(r'^\s*import nova_pending|\w\.released\b(?!\()', line):
            raise Refused('%s:%d: the branch has no released names beside '
                          'ours' % (path, number))
    return re.sub(r'\A# SPDX-License-Identifier: Apache-2.0\n+',
                  LICENCE + '\n', _selection(source, selected))


def _selection(source, selected):
    """Return a module without the names that are not selected."""
    tree = cst.parse_module(source)
    body = []
    for statement in tree.body:
        name = syntax.name_of(statement)
        if name is not None and not selected(name):
            continue
        if isinstance(statement, cst.ClassDef):
            statement = _selected_members(statement, selected)
        body.append(statement)
    return _without_unused_imports(tree, tree.with_changes(body=body)).code


def _selected_members(cls, selected):
    """Return a class without the members that are not selected."""
    members = [x for x in cls.body.body if syntax.name_of(x) is None or
               selected('%s.%s' % (cls.name.value, syntax.name_of(x)))]
    if len(members) == len(cls.body.body):
        return cls
    return cls.with_changes(body=cls.body.with_changes(body=members))


def _without_unused_imports(before, after):
    """Return a module without the imports that only what it was before uses.
    """
    unused = set.difference(*(
        syntax.uses(*(x for x in module.body if not syntax.is_import(x))).names
        for module in (before, after)))
    return after.with_changes(body=layout.without(after.body, lambda x: (
        syntax.is_import(x) and unused & set(syntax.bound_names(x)))))


def with_body(path, source, name, function):
    """Return a new module in which a method has the body of a function.

    What nothing uses then is no longer imported.

    :param path: the path of the module, for sentences
    :param name: as Class.method
    :param function: the source of the function
    :raises: Refused if there is no such method
    """
    cls, name = name.split('.')
    tree = cst.parse_module(source)
    # Docstrings have the indentation of where they stand.
    other = cst.parse_module(
        'class %s:\n%s' % (cls, textwrap.indent(function, ' ' * 4)))
    for statement in tree.body:
        if isinstance(statement, cst.ClassDef) and (
                statement.name.value == cls):
            for member in statement.body.body:
                if isinstance(member, cst.FunctionDef) and (
                        member.name.value == name):
                    made = tree.deep_replace(
                        member.body, other.body[0].body.body[0].body)
                    return _without_unused_imports(tree, made).code
    raise Refused('%s: %s.%s, which has another body on this release, is not '
                  'there' % (path, cls, name))


def translate(path, layer, release, selected=lambda name, path=None: True):
    """Make the difference that a file of the layer holds.

    :param path: the path of the file, for sentences
    :param layer: the source of the file of the layer
    :param release: the source of the released module
    :param selected: called with a name of the layer, as ``function`` or
        ``Class.member``, and with the path of its file if that is another,
        returns whether it is taken. What is not is left out, and with it the
        decorators that name it. The schemas of a method that are taken stand
        over the released body if its body is not
    :returns: the source of the module
    :raises: Refused
    """
    return _Edit(path, layer, release, selected).make()


class _Clean(cst.CSTTransformer):
    """Takes away what linters of the layer have to be told."""

    def leave_TrailingWhitespace(self, original_node, updated_node):
        if updated_node.comment and re.fullmatch(
                r'#\s*noqa: F821', updated_node.comment.value):
            return updated_node.with_changes(
                comment=None, whitespace=cst.SimpleWhitespace(''))
        return updated_node


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
        """Say whether the node is in a function, not in its decorators."""
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
        kind = self._kind or syntax.kind_of(outer)
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
        return layout.in_one_line(
            made, self._edit.column_of(original_node))


class _Edit:
    """The translation of one file."""

    def __init__(self, path, layer, release, selected):
        self.path = path
        self._selected = selected
        self._at = None
        self._release_text = release
        layer = metadata.MetadataWrapper(
            cst.parse_module(layer), unsafe_skip_copy=True)
        self._lines = dict(layer.resolve(metadata.PositionProvider))
        self._layer = layer.module
        release = metadata.MetadataWrapper(
            cst.parse_module(release), unsafe_skip_copy=True)
        self._columns = release.resolve(metadata.PositionProvider)
        self._release = release.module
        self._place = {}
        for index, statement in enumerate(self._release.body):
            if syntax.name_of(statement):
                self._place.setdefault(syntax.name_of(statement), index)
        self._ours = {syntax.name_of(s) for s in self._layer.body} - {
            None, 'released', *self._place}
        self.released_classes = {
            syntax.name_of(s): s for s in self._release.body
            if isinstance(s, cst.ClassDef)}
        # The parts of the file.
        self._imports = []
        self._modules = {}    # name -> module that it is bound to
        self._bodies = {}     # released class -> members
        self._schemas = set()  # (class, method) that is left out but for them
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

    def refuse(self, node, why):
        # What is made of a node has no place: that of its statement is told.
        line = self._lines.get(node, self._at).start.line
        raise Refused('%s:%d: %s' % (self.path, line, why))

    def column_of(self, node):
        return self._lines[node].start.column

    # Reading the file.

    def make(self):
        for statement in self._layer.body:
            self._read(statement)
        self._name_what_is_called()
        body = list(self._release.body)
        before = {}
        self._edit_in_place(body)
        self._place_new_items(body, before)
        return self._write(body, before)

    def _read(self, statement):
        if syntax.is_docstring(statement) or m.matches(
                statement, m.SimpleStatementLine(body=[m.Assign(value=m.Call(
                    m.Attribute(m.Name('nova_pending'),
                                m.Name('released'))))])):
            return
        if syntax.is_import(statement):
            names = syntax.bound_names(statement)
            if 'nova_pending_check' in names:
                self.refuse(statement, 'nova_pending_check is of the layer '
                            'alone')
            if 'nova_pending' not in names:
                self._imports.append(statement)
                self._modules.update(names)
            return
        name = syntax.name_of(statement)
        if isinstance(statement, cst.ClassDef):
            return self._read_class(statement)
        if isinstance(statement, cst.FunctionDef):
            if not self._selected(name):
                return
            statement = self._without_later(statement)
            if isinstance(self._released(name), cst.FunctionDef):
                self._functions[name] = statement
                self._items.append(('over', name, statement))
            elif name in self._place:
                self.refuse(statement, '%s is no function in the release'
                            % name)
            else:
                self._items.append(('new', name, statement))
            return
        root = syntax.root_of(statement)
        if any(root == n for kind, n, _ in self._items if kind == 'new'):
            # It changes what the file has just made: a schema, say.
            self._items.append(('new', root + '+', statement))
            return
        if root in self._ours and not self._selected(root):
            return
        if m.matches(statement, m.SimpleStatementLine(body=[m.Assign(
                targets=[m.AssignTarget(m.Subscript(m.Name()))])])):
            target = statement.body[0].targets[0].target
            table = target.value.value
            key = syntax.code_of(target.slice[0])
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
            if syntax.assignment(theirs) is None:
                self.refuse(statement, '%s is no constant in the release'
                            % name)
            if syntax.same(theirs.body[0], statement.body[0]):
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
                if syntax.called(d) == 'nova_pending.over']
        bases = [syntax.code_of(base.value) for base in statement.bases]
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
                made = _selected_members(statement, self._selected)
                self._lines[made] = self._lines[statement]
                self._items.append(('new', name, made))
            return
        if name not in self.released_classes:
            self.refuse(statement, 'the release has no class %s' % name)
        members = []
        for member in statement.body.body:
            if syntax.is_docstring(member):
                if self._selected(name + '.__doc__'):
                    self._docstrings[name] = member
                    members.append(member)
                continue
            if m.matches(member, m.SimpleStatementLine(body=[m.Pass()])):
                continue
            label = syntax.name_of(member)
            if label is None or isinstance(member, cst.ClassDef):
                self.refuse(member, 'a member is a method or an attribute')
            if self._selected('%s.%s' % (name, label)):
                members.append(self._without_later(member))
            elif isinstance(member, cst.FunctionDef):
                member = self._without_later(member, schemas_alone=True)
                if any(syntax.called(d) != 'functools.wraps'
                       for d in member.decorators):
                    self._schemas.add((name, label))
                    members.append(member)
        if members:
            where.setdefault(name, []).extend(
                x for x in members if not syntax.is_docstring(x))
            self._items.append(('over', name, cst.IndentedBlock(members)))

    def _comes_later(self, decorator):
        """Say whether a decorator names what is not taken."""
        return any(
            name in self._ours and not self._selected(name) or
            any(not self._selected(
                x.attr.value, self._modules[name].replace('.', '/') + '.py')
                for x in m.findall(decorator, m.Attribute(m.Name(name)))
                if name in self._modules)
            for name in syntax.uses(decorator).names)

    def _without_later(self, member, schemas_alone=False):
        """Return a member without the decorators that come later.

        If a later schema has given the schema before it an end, the end is
        left out, too.
        """
        if not isinstance(member, cst.FunctionDef):
            return member
        later = [d for d in member.decorators
                 if self._comes_later(self._without_end(d))]
        without_end = {syntax.called(d) for d in later} & set(SCHEMAS.values())
        kept = []
        for decorator in member.decorators:
            name = syntax.called(decorator)
            if decorator in later or schemas_alone and name not in (
                    'functools.wraps', *SCHEMAS.values()):
                continue
            if name in without_end:
                without_end.remove(name)
                decorator = self._without_end(decorator)
            kept.append(decorator)
        made = member.with_changes(decorators=kept)
        self._lines[made] = self._lines[member]
        return made

    @staticmethod
    def _without_end(decorator):
        """Return a schema without the microversion that it ends with."""
        call = decorator.decorator
        if syntax.called(decorator) not in SCHEMAS.values() or len(
                call.args) < 3:
            return decorator
        return decorator.with_changes(decorator=call.with_changes(
            args=[call.args[0], call.args[1].with_changes(
                comma=cst.MaybeSentinel.DEFAULT)]))

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
            if self._calls(ours, name):
                self.function_names[name] = self._inner_name(
                    ours, name, self._place)
        given = {}
        for cls, members in self._bodies.items():
            theirs = {syntax.name_of(x): x for x in
                      self.released_classes[cls].body.body}
            for x in self.released_classes[cls].body.body:
                if isinstance(x, cst.FunctionDef):
                    self.kinds[cls, x.name.value] = syntax.kind_of(x)
            for ours in members:
                name = syntax.name_of(ours)
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
        return m.findall(ours, _reference(path))

    def constant(self, reference):
        """Return what stands for a released constant that is changed."""
        name = reference.attr.value
        if name not in self._constants:
            return None
        value = syntax.assignment(self._released(name)).value
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
            names = syntax.uses(node).names
            for name in ('released', 'nova_pending'):
                if name in names:
                    told = {id(x.value) for x in m.findall(
                        original, m.Attribute(m.Name(name)))}
                    alone = [x for x in m.findall(original, m.Name(name))
                             if id(x) not in told]
                    self.refuse((alone or [original])[0], '%s is used in a '
                                'way that has no translation' % name)
        return node

    # Editing what is there.

    def _edit_in_place(self, body):
        for name, ours in self._functions.items():
            index = self._place[name]
            self._at = self._lines[ours]
            body[index] = self._over_function(
                body[index], syntax.without_marks(ours), syntax.marks(ours),
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
        if not syntax.is_docstring(first):
            self.refuse(docstring, 'the released class has no docstring')
        value = first.body[0].value
        return cls.deep_replace(
            value, layout.joined_text(value, docstring.body[0].value))

    def _over_constant(self, theirs, ours, *path):
        """Return a released assignment with our value."""
        value = syntax.assignment(ours).value
        cls = path[0] if len(path) > 1 else None
        if m.matches(value, m.BinaryOperation(_reference(path), m.Add())):
            old = syntax.assignment(theirs).value
            literal = layout.literal_end(old)
            column = 0
            if isinstance(literal, (cst.List, cst.Tuple)):
                column = self._columns[literal.elements[0]].start.column
            value = layout.joined(
                old, self._finished(value.right, cls), column)
        else:
            value = self._finished(value, cls)
        comments = [line for line in ours.leading_lines if line.comment]
        return theirs.with_changes(
            leading_lines=[*theirs.leading_lines, *comments],
            body=[syntax.assignment(theirs).with_changes(value=value)])

    def _entry(self, table, theirs, entry):
        made = syntax.assignment(theirs)
        value = entry.body[0].value
        key = entry.body[0].targets[0].target.slice[0].slice.value
        if (made is not None and isinstance(made.value, cst.Dict) and
                table not in syntax.uses(value).names and not [
                    line for line in entry.leading_lines if line.comment]):
            literal = layout.with_entry(made.value, self._finished(key),
                                 self._finished(value))
            return [theirs.with_changes(
                body=[made.with_changes(value=literal)])]
        return [theirs, self._finished(layout.with_blanks(entry, 0))]

    def _over_function(self, theirs, ours, marked, path, inner, cls):
        """Return what stands in the place of a released function."""
        if any(syntax.called(d) in ('property', 'functools.cached_property')
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
        plain = [d for d in theirs.decorators if syntax.called(d) not in (
            'staticmethod', 'classmethod', *GO_WITH_THE_NAME)]
        if not plain and len(calls) == 1:
            inlined = self._inlined(theirs, ours, path, calls[0], cls)
            if inlined is not None:
                return [inlined]
        wraps = [d for d in ours.decorators
                 if syntax.called(d) == 'functools.wraps']
        decorators = [self._finished(d, cls) for d in ours.decorators
                      if d not in wraps]
        if wraps:
            endings = self._endings(wraps[0].decorator.args[0].value, path)
            decorators = self._decorators(
                theirs.decorators, decorators, endings)
            if path[1:] in self._schemas or (
                    len(ours.body.body) == 1 and
                    self._is_plain_call(
                        ours.body.body[0], theirs, ours, path)):
                return [theirs.with_changes(decorators=decorators)]
            kept = []
        else:
            for decorator in theirs.decorators:
                if NOTE_THE_NAME.search(syntax.called(decorator)):
                    self.refuse(ours, 'the released %s has the decorator %s, '
                                'which needs functools.wraps()' % (
                                    path[-1], syntax.called(decorator)))
            moved = [d for d in theirs.decorators
                     if syntax.called(d) in GO_WITH_THE_NAME]
            kept = [d for d in theirs.decorators if d not in moved]
            decorators = [*moved, *decorators]
        ours = self._finished(
            ours.with_changes(decorators=[]), cls, syntax.kind_of(ours))
        column = self._columns[theirs].start.column
        ours = layout.with_parameters(
            ours.with_changes(decorators=decorators), theirs, column)
        theirs_now = theirs.with_changes(
            name=cst.Name(inner), decorators=kept,
            lines_after_decorators=(
                theirs.lines_after_decorators if kept else []))
        theirs_now = layout.realigned(theirs_now, theirs, column)
        gap = 1 if cls else 2
        return [layout.with_blanks(ours, gap),
                theirs_now.with_changes(leading_lines=[
                    *[layout.BLANK] * (gap - layout.blanks(theirs_now)),
                    *theirs_now.leading_lines])]

    def _check_digest(self, theirs, decorator, path):
        wanted = decorator.decorator.args[0].value.raw_value
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
        if ours.decorators and syntax.kind_of(ours) == 'method':
            return None
        passed_on = syntax.passed_on(theirs.params, ours.params)
        if passed_on is None:
            return None
        statements = list(ours.body.body)
        if syntax.is_docstring(statements[0]):
            statements = statements[1:]
        places = [index for index, s in enumerate(statements)
                  if self._is_plain_call(s, theirs, ours, path)]
        if len(places) != 1:
            return None
        place = places[0]
        others = statements[:place] + statements[place + 1:]
        if passed_on and {'args', 'kwargs'} & syntax.uses(*others).names:
            return None
        known = {p.name.value for p in theirs.params.params} | {
            p.name.value for p in theirs.params.kwonly_params}
        body = list(theirs.body.body)
        behind = int(syntax.is_docstring(body[0]))
        head, rest = body[:behind], body[behind:]
        result = syntax.assigned(rest)
        if place == len(statements) - 1:
            last = statements[-1]
            if result.returns and not m.matches(last, m.SimpleStatementLine(
                    body=[m.Return()])):
                return None
            mine = statements[:-1]
            made = syntax.assigned(mine).names - known
            if not mine or made & syntax.uses(*rest).names or (
                    (syntax.uses(*mine).names - known) & result.names):
                return None
            mine = [self._in_method(s, ours, cls) for s in mine]
            rest = [layout.starts_with_blank(rest[0]), *rest[1:]]
            body = [*head, *([layout.starts_with_blank(mine[0])] if head
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
                        if syntax.called(d).endswith('method')],
            body=cst.IndentedBlock([statement]))
        return self._finished(inside, cls).body.body[0]

    @staticmethod
    def _is_plain_call(statement, theirs, ours, path):
        """Say whether a statement calls the release with all parameters."""
        if not m.matches(statement, m.SimpleStatementLine(
                body=[m.Return(m.Call()) | m.Expr(m.Call())])):
            return False
        call = statement.body[0].value
        if syntax.code_of(call.func) != '.'.join(path):
            return False
        parameters = theirs.params
        names = [p.name.value for p in parameters.params]
        if len(path) == 3 and syntax.kind_of(theirs) == 'classmethod':
            names = names[1:]
        passed = [arg.star + (arg.keyword.value + '=' if arg.keyword else '') +
                  syntax.code_of(arg.value) for arg in call.args]
        in_place = sum(not arg.star and arg.keyword is None
                       for arg in call.args)
        passed_on = syntax.passed_on(parameters, ours.params)
        if passed_on:
            return passed == [
                *names[:len(names) - passed_on], '*args', '**kwargs']
        wanted = {'%s=%s' % (name, name) for name in names[in_place:] + [
            p.name.value for p in parameters.kwonly_params]}
        if isinstance(parameters.star_arg, cst.Param):
            wanted.add('*' + parameters.star_arg.name.value)
        if parameters.star_kwarg:
            wanted.add('**' + parameters.star_kwarg.name.value)
        return (passed[:in_place] == names[:in_place] and
                set(passed[in_place:]) == wanted)

    def _endings(self, node, path):
        """Return the ends that validation.ending() gives, by decorator."""
        ends = {}
        while m.matches(node, m.Call(m.Attribute(
                m.Name('validation'), m.Name('ending')))):
            kind, version = (ast.literal_eval(syntax.code_of(arg.value))
                             for arg in node.args[:2])
            ends[SCHEMAS[kind]] = version
            node = node.args[2].value
        if syntax.code_of(node) != '.'.join(path):
            self.refuse(node, '%s is not the released method'
                        % syntax.code_of(node))
        return ends

    @staticmethod
    def _decorators(theirs, ours, endings):
        """Put our decorators among the released decorators of a method."""
        made = list(theirs)
        for name, version in endings.items():
            if name not in map(syntax.called, ours):
                continue
            last = max(i for i, d in enumerate(made)
                       if syntax.called(d) == name)
            call = made[last].decorator
            made[last] = made[last].with_changes(decorator=call.with_changes(
                args=[*[a.with_changes(comma=cst.MaybeSentinel.DEFAULT)
                        for a in call.args],
                      cst.Arg(cst.SimpleString("'%s'" % version))]))
        for decorator in reversed(ours):
            name = syntax.called(decorator)
            same = [i for i, d in enumerate(made) if syntax.called(d) == name]
            if same and name in SCHEMAS.values():
                made.insert(same[-1] + 1, decorator)
            elif len(same) == 1:
                made[same[0]] = decorator
            else:
                made.insert(0, decorator)
        # A schema is in one line.
        return [layout.long_line_marked(d) for d in made]

    def _over_class(self, theirs, cls, members, merge=False):
        mine = {}
        for member in members:
            if syntax.name_of(member) in mine:
                self.refuse(member, '%s.%s is laid over twice' % (
                    cls, syntax.name_of(member)))
            mine[syntax.name_of(member)] = member
        have = {syntax.name_of(x) for x in theirs.body.body} - {None}
        out = list(theirs.body.body)
        places = {}
        for index, x in enumerate(out):
            name = syntax.name_of(x)
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
                    out[previous].append(layout.with_blanks(made, 0))
                else:
                    attributes.append(made)
            elif previous is None or previous < first_function:
                late.append(made)
            else:
                out[previous].append(layout.with_blanks(made, 1))
        if late:
            out.append([layout.with_blanks(x, 1) for x in late])
        if attributes:
            out.insert(first_function, [
                x if i and not layout.blanks(x) else
                layout.starts_with_blank(x)
                for i, x in enumerate(attributes)])
        body = [x for part in out for x in part]
        if merge and 'ALL' in places:
            body = layout.blank_before(body, 'ALL')
        for i in range(1, len(body)):
            if isinstance(body[i], cst.FunctionDef) and (
                    not layout.blanks(body[i])):
                body[i] = layout.starts_with_blank(body[i])
        return theirs.with_changes(body=theirs.body.with_changes(body=body))

    def _over_member(self, theirs, ours, cls, merge):
        self._at = self._lines[ours]
        if isinstance(ours, cst.FunctionDef):
            if not isinstance(theirs, cst.FunctionDef):
                self.refuse(ours, '%s is no method in the release'
                            % syntax.name_of(ours))
            marked = syntax.marks(ours)
            if 'new' in marked:
                self.refuse(ours, 'the release has %s' % syntax.name_of(ours))
            return self._over_function(
                theirs, syntax.without_marks(ours), marked,
                ('released', cls, syntax.name_of(ours)),
                self.member_names.get((cls, syntax.name_of(ours))), cls)
        if isinstance(theirs, cst.FunctionDef):
            self.refuse(ours, '%s is a method in the release'
                        % syntax.name_of(ours))
        if syntax.code_of(syntax.assignment(theirs).value) == syntax.code_of(
                syntax.assignment(ours).value):
            return [theirs]
        return [self._over_constant(theirs, ours, cls, syntax.name_of(ours))]

    def _new_member(self, member, cls, name, merge):
        self._at = self._lines[member]
        if isinstance(member, cst.FunctionDef):
            if not (merge or 'new' in syntax.marks(member) or
                    self._calls(member, cls, name)):
                self.refuse(member, '%s is not in the release' % name)
            return self._finished(syntax.without_marks(member), cls)
        value = syntax.assignment(member).value
        if m.matches(value, m.Call(m.Attribute(
                m.Name('nova_pending'), m.Name('new')))):
            member = member.with_changes(body=[
                syntax.assignment(member).with_changes(
                    value=value.args[0].value)])
        return self._finished(member, cls)

    # Where new things stand.

    def _place_new_items(self, body, before):
        """Choose the place of each new function, class and constant."""
        places = {name: self._place[name] for kind, name, _ in self._items
                  if kind == 'over'}
        order = [(kind, name) for kind, name, _ in self._items]
        firsts = [syntax.uses(*part).first for part in body]
        head = next((i for i, part in enumerate(body) if isinstance(
            part[0], (cst.FunctionDef, cst.ClassDef))), len(body))
        last_place = 0
        defined = {}
        for number, (kind, name, node) in enumerate(self._items):
            if kind == 'over':
                continue
            self._at = self._lines[node]
            node = self._finished(node)
            needs = syntax.uses(node).first
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
                if syntax.assignment(node) is not None and lower <= head:
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
        changed = [s for part in before.values() for s in part] + [
            s for index, part in enumerate(body) for s in part
            if s is not self._release.body[index]]
        # The release may have a variable of the name of a module of ours.
        wanted = syntax.uses(*changed).names & syntax.uses(
            *(node for _, _, node in self._items)).names
        new_body = self._with_imports(new_body, wanted)
        return self._release.with_changes(body=layout.spaced(new_body)).code

    def _with_imports(self, body, wanted):
        have = {}
        for statement in body[:layout.end_of_imports(body)]:
            if syntax.is_import(statement):
                for name, module in syntax.bound_names(statement).items():
                    have.setdefault(name, set()).add(module)
        for statement in self._imports:
            names = syntax.bound_names(statement)
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
            body = layout.with_import(body, layout.with_blanks(statement, 0))
        return body


def _reference(path):
    """Return the matcher of released.a, or released.a.b."""
    pattern = m.Name('released')
    for part in path:
        pattern = m.Attribute(pattern, m.Name(part))
    return pattern


class _Sums(cst.CSTTransformer):
    """Adds up numbers: a constant of the release plus one."""

    def leave_BinaryOperation(self, original_node, updated_node):
        if m.matches(updated_node, m.BinaryOperation(
                m.Integer(), m.Add(), m.Integer())):
            return cst.Integer(str(
                int(updated_node.left.value) + int(updated_node.right.value)))
        return updated_node
