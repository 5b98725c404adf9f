"""The list of what the core calls outside of itself."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from plaunch import parts

PARTS = {name: value for name, value in vars(parts).items() if name.isupper() and ":" in str(value)}


@pytest.mark.parametrize("name", PARTS)
def test_each_part_exists(name):
    """The modules are read instead of imported: some need torch."""
    module, _, attribute = PARTS[name].partition(":")
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
    words = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.alias))}
    words |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    words |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    words |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    assert attribute in words
