"""The bounds of docs/contributing.md: no large module, no large class, no circle of imports."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter

from helpers.sources import PATHS, parse_all, targets_of

LINES, METHODS = 400, 30


def imported_by(name):
    """The modules of ours that a module imports, in functions and for types, too."""
    for node in ast.walk(parse_all()[name]):
        for found in targets_of(node):
            # The names of a package are where its lazy table says, which is read later.
            if found in PATHS and (found.count(".") or isinstance(node, ast.Import)):
                yield found


def test_the_modules_are_found():
    assert {"plaunch", "plaunch.agent.loop", "plaunch_doctor.command"} <= PATHS.keys()
    assert "plaunch.agent.machine" in imported_by("plaunch.agent.loop")


# Modules that have grown beyond the limit and are to be split. No other may join them.
STILL_LONG: set[str] = set()


def test_a_module_is_read_in_one_go():
    found = {path.name for path in PATHS.values() if len(path.read_text().splitlines()) > LINES}
    assert found == STILL_LONG


def test_no_class_has_thirty_methods():
    for name, tree in parse_all().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                assert len(methods) < METHODS, f"{name}.{node.name}"


def test_the_name_of_a_class_is_used_once():
    counts = Counter(
        node.name
        for tree in parse_all().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in counts.items() if count > 1] == []


def test_nothing_is_imported_in_a_circle():
    graphlib.TopologicalSorter({name: set(imported_by(name)) - {name} for name in PATHS}).prepare()
