"""The catalogue of messages: the literals of the product that are sentences."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, NamedTuple

from helpers.sources import parse_all

if TYPE_CHECKING:
    from collections.abc import Iterator


class Message(NamedTuple):
    """A text with at least one space; each `{...}` of an f-string is its source."""

    module: str
    line: int
    text: str


@functools.cache
def find_messages() -> list[Message]:
    """Return the literals with a space, without docstrings and without the lists of lazy names."""
    return [*_find_messages()]


def _find_messages() -> Iterator[Message]:
    for module, tree in parse_all().items():
        skipped = {id(node) for node in _docstrings(tree)} | {id(n) for n in _lazy_names(tree)}
        inside = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        for node in ast.walk(tree):
            if id(node) in skipped or id(node) in inside:
                continue
            text = _text(node)
            if " " in text.strip():
                yield Message(module, node.lineno, text)


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if not isinstance(node, ast.JoinedStr):
        return ""
    return "".join(
        part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
        for part in node.values
    )


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    return (node.value for node in ast.walk(tree) if isinstance(node, ast.Expr))


def _lazy_names(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("attach"):
            yield from ast.walk(node)
