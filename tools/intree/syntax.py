# SPDX-License-Identifier: Apache-2.0

"""What a statement of Python is, and which names it has."""

import re

import libcst as cst
from libcst import matchers as m


def code_of(node):
    """Return the source of a node that stands by itself."""
    return cst.Module([]).code_for_node(node)


def flat(node):
    """Return the source of a node in a line, without a comma at its end."""
    return re.sub(r'\s+', ' ', code_of(node)).strip(', ')


def passed_on(theirs, ours):
    """Return how many released parameters ours takes as *args, **kwargs.

    :param theirs: the released parameters
    :param ours: those of the layer
    :returns: None if the other parameters are not the same
    """
    if flat(theirs) == flat(ours):
        return 0
    named = len(ours.params)
    if (theirs.kwonly_params or theirs.star_kwarg or
            isinstance(theirs.star_arg, cst.Param) or
            not flat(ours).endswith('*args, **kwargs') or
            [flat(p) for p in theirs.params[:named]] !=
            [flat(p) for p in ours.params]):
        return None
    return len(theirs.params) - named


def same(node, other):
    return code_of(node) == code_of(other)


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


def root_of(statement):
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
