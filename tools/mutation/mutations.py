"""The changes that can be made to a line: of the usual kinds, found in the syntax tree.

What only changes the wording of a message is left out, by these rules:

- text with a space in it, f-strings and docstrings do not change;
- nothing changes inside of a raised exception, of a warning or of a call of a logger; the statement
  that raises or logs may be removed, but not one that logs for debugging only;
- help texts and annotations do not change, nor do names that are exported;
- the name of a logger does not change: tests/test_messages.py checks all of them.

Nor are tuning values: a number with a point that stands alone, as a constant of a module or class,
or as the default of a parameter. A test could only repeat it.
"""

from __future__ import annotations

import ast
import copy
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATORS = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
TEXT_ARGUMENTS = {"help", "metavar", "epilog", "description", "doc", "summary", "hint"}
STATEMENTS = (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete)
DESCRIBED = 90  # characters of a description
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Mutation:
    """One change of a module.

    Args:
        module: its path, relative to the checkout.
        where: the function or class that has the line, or an empty text.
        number: of the line, from 1.
        line: its text.
        what: the change, in one line.
        start, end: what is replaced, as offsets into the module.
        replacement: by what.
        covered: the lines whose tests are chosen.
    """

    module: str
    where: str
    number: int
    line: str
    what: str
    start: int = field(compare=False)
    end: int = field(compare=False)
    replacement: str = field(compare=False)
    covered: tuple[int, ...] = field(compare=False)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies it, also after other lines have moved."""
        return self.module, self.where, self.line, self.what

    def apply(self, source: str) -> str:
        """Return the changed module."""
        return source[: self.start] + self.replacement + source[self.end :]


def find_mutations(module: str, source: str) -> list[Mutation]:
    """Return all changes that can be made to a module, in the order of its lines."""
    finder = _Finder(module, source)
    finder.visit_body(ast.parse(source))
    found = {each.key: each for each in finder.found}
    return sorted(found.values(), key=lambda each: (each.number, each.start, each.what))


class _Finder:
    def __init__(self, module: str, source: str) -> None:
        self.found: list[Mutation] = []
        self._module = module
        self._source = source
        self._lines = source.splitlines()
        # Offsets of nodes are in bytes of a line; those of a mutation in characters of the module.
        lengths = (len(line) for line in source.splitlines(keepends=True))
        self._starts = [0, *itertools.accumulate(lengths)]
        self._scope: list[ast.AST] = []

    def visit_body(self, node: ast.AST) -> None:
        """Visit the statements of a module, class or function."""
        self._scope.append(node)
        docstring = ast.get_docstring(node, clean=False)  # type: ignore[arg-type]
        for statement in node.body[docstring is not None :]:  # type: ignore[attr-defined]
            self.visit_statement(statement)
        self._scope.pop()

    def visit_statement(self, node: ast.stmt) -> None:
        """Add the changes of a statement, and visit what it consists of."""
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            if not isinstance(node, ast.ClassDef):
                self.visit_defaults(node)
            if not _is_contract(node):
                self.visit_body(node)
            return
        if self._is_never_changed(node):
            return
        self.change_statement(node)
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                self.visit_expression(node.value, node)
            return
        for child in ast.iter_child_nodes(node):
            self.visit_child(child, node)

    def visit_child(self, child: ast.AST, node: ast.stmt) -> None:
        """Visit a statement or an expression that a statement has."""
        if isinstance(child, ast.stmt):
            self.visit_statement(child)
        elif isinstance(child, ast.expr):
            self.visit_expression(child, node)
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            for each in child.body:
                self.visit_statement(each)
        elif isinstance(child, ast.withitem):
            self.visit_expression(child.context_expr, node)

    def visit_defaults(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Change the defaults of parameters; the tests are those that call the function."""
        self._scope.append(node)
        for default in [*node.args.defaults, *node.args.kw_defaults]:
            if default is not None:
                self.visit_expression(default, None)
        self._scope.pop()

    def change_statement(self, node: ast.stmt) -> None:
        """Add the changes of a whole statement."""
        if isinstance(node, STATEMENTS) and not _is_yield(node):
            self.add("removed statement", node, "pass", node)
        if isinstance(node, ast.Break):
            self.add("break", node, "continue", node)
        if isinstance(node, ast.Continue):
            self.add("continue", node, "break", node)
        if isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            self.add("returned value", node, "return None", node)
        if isinstance(node, (ast.If, ast.While)):
            self.add("negated condition", node.test, f"not ({ast.unparse(node.test)})", node)
        if isinstance(node, ast.Try):
            self.empty_block(node.finalbody)
            for handler in node.handlers:
                self.empty_block(handler.body)

    def empty_block(self, body: list[ast.stmt]) -> None:
        """Replace the body of `finally` or `except`, if it is more than one simple statement."""
        if not body or (len(body) == 1 and isinstance(body[0], (*STATEMENTS, ast.Pass))):
            return
        if any(isinstance(each, ast.Raise) for each in body):
            return  # removed alone
        start, end = self.offset_of(body[0])[0], self.offset_of(body[-1])[1]
        covered = range(body[0].lineno, (body[-1].end_lineno or 0) + 1)
        self.append("emptied block", body[0].lineno, (start, end), "pass", tuple(covered))

    def visit_expression(self, node: ast.expr, statement: ast.stmt | None) -> None:
        """Add the changes of an expression and its parts.

        Args:
            node: the expression.
            statement: the one that it is in, or `None` for the default of a parameter.
        """
        if isinstance(node, ast.JoinedStr) or _is_wording(node):
            return
        if _is_tuning(node) and not (statement and isinstance(self._scope[-1], FUNCTIONS)):
            return
        for what, changed in _changes_of(node):
            self.add(what, node, changed, statement)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                if child.arg not in TEXT_ARGUMENTS:
                    self.visit_expression(child.value, statement)
            elif isinstance(child, ast.comprehension):
                for each in (child.iter, *child.ifs):
                    self.visit_expression(each, statement)
            elif isinstance(child, ast.expr) and not _is_type(node, child):
                self.visit_expression(child, statement)

    def add(self, what: str, node: ast.AST, replacement: str, statement: ast.stmt | None) -> None:
        """Add a change of a node."""
        span = self.offset_of(node)
        line = node.lineno  # type: ignore[attr-defined]
        self.append(what, line, span, replacement, self.covered_lines(statement))

    def append(
        self,
        what: str,
        number: int,
        span: tuple[int, int],
        replacement: str,
        covered: tuple[int, ...],
    ) -> None:
        """Add a change of a part of the module."""
        before = " ".join(self._source[slice(*span)].split())
        after = " ".join(replacement.split())
        if before == after:
            return
        described = f"{what}: {_shorten(before)} -> {_shorten(after)}"
        names = [each.name for each in self._scope if hasattr(each, "name")]
        line = self._lines[number - 1].strip()
        self.found.append(
            Mutation(
                self._module, ".".join(names), number, line, described, *span, replacement, covered
            )
        )

    def covered_lines(self, statement: ast.stmt | None) -> tuple[int, ...]:
        """Return the lines whose tests may notice a change.

        Those of the statement, if it is in a function. Otherwise it runs at import, and those of
        all functions of the class or the module: what it sets is used there.
        """
        scope = self._scope[-1]
        if statement is not None and isinstance(scope, FUNCTIONS):
            body = getattr(statement, "body", None)
            last = body[0].lineno - 1 if body else statement.end_lineno or statement.lineno
            return tuple(range(statement.lineno, max(last, statement.lineno) + 1))
        inner = [node for node in ast.walk(scope) if isinstance(node, FUNCTIONS)]
        if isinstance(scope, ast.ClassDef) and not inner:  # a record, which others make and read
            inner = [node for node in ast.walk(self._scope[0]) if isinstance(node, FUNCTIONS)]
        return tuple(
            {
                line
                for node in inner
                for each in node.body
                for line in range(each.lineno, (each.end_lineno or each.lineno) + 1)
            }
        )

    def offset_of(self, node: ast.AST) -> tuple[int, int]:
        """Return where a node starts and ends in the module."""
        return (
            self.character(node.lineno, node.col_offset),  # type: ignore[attr-defined]
            self.character(node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]
        )

    def character(self, line: int, column: int) -> int:
        """Return the offset of a position that is given in bytes of a line."""
        text = self._lines[line - 1].encode()[:column].decode()
        return self._starts[line - 1] + len(text)

    def _is_never_changed(self, node: ast.stmt) -> bool:
        if isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass, ast.Global, ast.Nonlocal)):
            return True
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return True
        if isinstance(node, ast.Assign):
            names = {ast.unparse(target) for target in node.targets}
            is_alias = isinstance(node.value, ast.Subscript) and len(self._scope) == 1
            return (
                "__all__" in names
                or is_alias  # of a type
                or (
                    isinstance(node.value, ast.Call)
                    and ast.unparse(node.value.func) in {"TypeVar", "ParamSpec", "NewType"}
                )
            )
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant):
                return True  # a docstring of an attribute, or `...`
            return isinstance(node.value, ast.Call) and _log_method(node.value) == "debug"
        return False


def _changes_of(node: ast.expr) -> Iterator[tuple[str, str]]:
    """Return what a node alone can be changed to."""
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[index] = OPERATORS[type(operator)]()
            yield "comparison", ast.unparse(changed)
    elif isinstance(node, ast.BoolOp):
        changed_bool = copy.deepcopy(node)
        changed_bool.op = OPERATORS[type(node.op)]()
        # An `or` in place of an `and` may need parentheses.
        yield "boolean operator", f"({ast.unparse(changed_bool)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "removed not", f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        if not _is_text(node.left) and not _is_text(node.right):
            changed_binary = copy.deepcopy(node)
            changed_binary.op = OPERATORS[type(node.op)]()
            yield "arithmetic", f"({ast.unparse(changed_binary)})"
    elif isinstance(node, ast.IfExp):
        swapped = ast.IfExp(test=node.test, body=node.orelse, orelse=node.body)
        yield "swapped branches", f"({ast.unparse(swapped)})"
    elif isinstance(node, ast.Constant):
        yield from _changed_constants(node.value)


def _changed_constants(value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, bool):
        yield "constant", repr(not value)
    elif isinstance(value, (int, float)):
        yield "constant", repr(value + 1)
        if value:
            yield "constant", repr(type(value)(0))
    elif isinstance(value, str):
        if value and " " not in value and value.strip():
            yield "constant", repr(f"{value}_changed")
    elif isinstance(value, bytes) and value:
        yield "constant", repr(value + b"_changed")


def _is_wording(node: ast.expr) -> bool:
    """Return whether a call only makes a message: of an exception, a warning or the log."""
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func).rpartition(".")[2]
    is_error = name[:1].isupper() and name.endswith(("Error", "Exception", "Warning", "Exit"))
    called = ast.unparse(node.func)
    return is_error or bool(_log_method(node)) or called in {"warnings.warn", "logging.getLogger"}


def _log_method(node: ast.Call) -> str:
    """Return the method of a logger that is called, or an empty text."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in LOG_METHODS:
        return ""
    owner = ast.unparse(node.func.value).lower()
    return node.func.attr if owner.rpartition(".")[2].strip("_()") in {"log", "logger"} else ""


def _is_contract(node: ast.stmt) -> bool:
    """Return whether a function or class is for type checkers only, or a hook's specification."""
    decorators = {ast.unparse(each) for each in getattr(node, "decorator_list", [])}
    if decorators & {"overload", "typing.overload", "abstractmethod", "abc.abstractmethod"}:
        return True
    return isinstance(node, ast.ClassDef) and any(
        ast.unparse(base).startswith(("Protocol", "typing.Protocol")) for base in node.bases
    )


def _is_yield(node: ast.stmt) -> bool:
    """Return whether a statement makes its function a generator."""
    return isinstance(node, ast.Expr) and isinstance(node.value, (ast.Yield, ast.YieldFrom))


def _is_type(node: ast.expr, child: ast.expr) -> bool:
    """Return whether a part of an expression is a type: cast(TYPE, value)."""
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"cast", "typing.cast"}
        and bool(node.args)
        and child is node.args[0]
    )


def _is_tuning(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, (str, bytes))
    )


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _shorten(text: str) -> str:
    return text if len(text) <= DESCRIBED else f"{text[: DESCRIBED - 3]}..."
