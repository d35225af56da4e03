# SPDX-License-Identifier: Apache-2.0

"""How what is put into a file of Nova is laid out there."""

import sys
import textwrap

import libcst as cst

from tools.intree import syntax

WIDTH = 79

BLANK = cst.EmptyLine(indent=False)


def with_blanks(statement, number):
    """Put a number of blank lines, and its comments, before a statement."""
    lines = [line for line in statement.leading_lines if line.comment]
    return statement.with_changes(leading_lines=[BLANK] * number + lines)


def blanks(statement):
    """Return how many blank lines come before a statement."""
    return sum(line.comment is None for line in statement.leading_lines)


def starts_with_blank(statement):
    if statement.leading_lines and not statement.leading_lines[0].comment:
        return statement
    return statement.with_changes(
        leading_lines=[BLANK, *statement.leading_lines])


def without(statements, is_left_out):
    """Leave out statements; what follows takes over the blank lines.

    :param is_left_out: called with a statement
    """
    left, number = [], 0
    for statement in statements:
        if is_left_out(statement):
            number = max(number, blanks(statement))
            continue
        if number > blanks(statement):
            statement = with_blanks(statement, number)
        left.append(statement)
        number = 0
    return left


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
    lines = '\n' in syntax.code_of(theirs)
    elements = list(theirs.elements)
    final = elements[-1].comma
    one_line = column + sum(len(syntax.code_of(e)) + 2 for e in (
        *theirs.elements, *ours.elements)) < WIDTH
    if lines and not (one_line and '\n' not in ''.join(
            syntax.code_of(e) for e in elements[:-1])):
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
    elements[-1] = elements[-1].with_changes(
        comma=_with_comments(comma, opening))
    for index, element in enumerate(added[:-1]):
        added[index] = element.with_changes(
            comma=_with_comments(comma, element.comma.whitespace_after))
    multiline = isinstance(final, cst.Comma) and lines
    added[-1] = added[-1].with_changes(
        comma=final if multiline else cst.MaybeSentinel.DEFAULT)
    return theirs.with_changes(elements=elements + added)


def _with_comments(comma, whitespace):
    """Return a comma that is followed by the comments of a whitespace."""
    if not getattr(whitespace, 'empty_lines', None) or not isinstance(
            comma.whitespace_after, cst.ParenthesizedWhitespace):
        return comma
    return comma.with_changes(
        whitespace_after=comma.whitespace_after.with_changes(
            empty_lines=whitespace.empty_lines))


def with_entry(literal, key, value):
    """Append an entry to a literal of a dict that has one a line."""
    elements = list(literal.elements)
    final = elements[-1].comma
    comma = elements[0].comma if len(elements) > 1 else cst.Comma(
        whitespace_after=literal.lbrace.whitespace_after)
    elements[-1] = elements[-1].with_changes(comma=comma)
    return literal.with_changes(elements=[
        *elements, cst.DictElement(key, value, comma=final)])


def in_one_line(call, column):
    """Return a call without line breaks, if it has room from a column on."""
    args = [arg.with_changes(
        whitespace_after_arg=cst.SimpleWhitespace(''),
        comma=cst.Comma(whitespace_after=cst.SimpleWhitespace(' ')))
        for arg in call.args]
    if args:
        args[-1] = args[-1].with_changes(
            comma=cst.MaybeSentinel.DEFAULT)
    flat = call.with_changes(
        args=args, whitespace_before_args=cst.SimpleWhitespace(''))
    text = syntax.code_of(flat)
    return flat if '\n' not in text and (
        column + len(text) < WIDTH) else call


def realigned(function, before, column):
    """Shift parameters that are aligned with the opening bracket.

    Where they have no room any more they are filled into new lines.
    """
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
    header = syntax.code_of(shifted.with_changes(
        decorators=[], leading_lines=[], body=cst.SimpleStatementSuite(
            [cst.Pass()], cst.SimpleWhitespace(''))))
    lines = textwrap.indent(
        header.replace(':pass', ':'), ' ' * column).split('\n')
    if max(map(len, lines)) <= WIDTH:
        return shifted
    parameters = syntax.flat(function.params)
    filled = textwrap.fill(
        parameters + ',', WIDTH - column, initial_indent=' ' * 4,
        subsequent_indent=' ' * 4, break_long_words=False,
        break_on_hyphens=False)
    made = cst.parse_statement('def %s(\n%s\n): pass' % (
        function.name.value, filled))
    return function.with_changes(
        params=made.params,
        whitespace_before_params=made.whitespace_before_params)


class _Named(cst.CSTTransformer):
    """Passes parameters on by name, in place of *args, **kwargs.

    :param names: of the parameters
    :param column: where the function begins
    """

    def __init__(self, names, column):
        self._names, self._column = names, column

    def visit_IndentedBlock(self, node):
        self._column += 4

    def leave_IndentedBlock(self, original_node, updated_node):
        self._column -= 4
        return updated_node

    def leave_Call(self, original_node, updated_node):
        passed = [syntax.flat(arg) for arg in updated_node.args]
        if passed[-2:] != ['*args', '**kwargs']:
            return updated_node
        filled = textwrap.fill(
            ', '.join([*passed[:-2], *self._names]),
            WIDTH - self._column - len(')'), initial_indent=' ' * 4,
            subsequent_indent=' ' * 4)
        made = cst.parse_expression('call(\n%s)' % filled)
        return updated_node.with_changes(
            args=made.args, whitespace_before_args=made.whitespace_before_args)


def with_parameters(function, theirs, column):
    """Name the parameters that a function passes on as *args, **kwargs.

    :param function: what stands over the released function
    :param theirs: the released function
    :param column: where both begin
    :returns: the function as it is, if it does not only pass them on, or if
        such a name means something else in its body
    """
    number = syntax.passed_on(theirs.params, function.params)
    if not number:
        return function
    names = [p.name.value for p in theirs.params.params[-number:]]
    made = function.with_changes(body=function.body.visit(
        _Named(names, column)))
    if ({'args', 'kwargs'} & syntax.uses(made.body).names or
            set(names) & syntax.assigned(function.body.body).names):
        return function
    return made.with_changes(
        params=theirs.params,
        whitespace_before_params=theirs.whitespace_before_params)


def long_line_marked(decorator):
    """Say to linters what Nova says of a schema that needs a long line."""
    text = syntax.code_of(decorator).rstrip('\n')
    if '\n' in text or decorator.trailing_whitespace.comment or len(
            text) + 4 <= WIDTH:
        return decorator
    return decorator.with_changes(trailing_whitespace=cst.TrailingWhitespace(
        cst.SimpleWhitespace('  '), cst.Comment('# noqa: E501')))


def blank_before(body, name):
    """Move the blank line before a member above which others were put."""
    out = []
    for statement in body:
        if syntax.name_of(statement) == name:
            statement = with_blanks(statement, 1)
        out.append(statement)
    return out


def spaced(body):
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
    module = _sort_key(statement).partition('.')[0]
    if module in sys.stdlib_module_names:
        return 0
    return 2 if module == 'nova' else 1


def _sort_key(statement):
    return next(iter(syntax.bound_names(statement).values())).lower()


def end_of_imports(body):
    """Return where the first function, class or constant stands."""
    return next((i for i, s in enumerate(body)
                 if isinstance(s, (cst.FunctionDef, cst.ClassDef)) or
                 syntax.assignment(s) is not None), len(body))


def with_import(body, statement):
    """Insert an import in the order that hacking checks."""
    imports = [i for i in range(end_of_imports(body))
               if syntax.is_import(body[i])]
    end = imports[-1] + 1 if imports else (
        1 if body and syntax.is_docstring(body[0]) else 0)
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
