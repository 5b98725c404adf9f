"""The bounds of docs/contributing.md: no large module, no large class, no circle of imports."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINES, METHODS = 400, 30
FOLDERS = [ROOT / "core", *(ROOT / "plugins").iterdir()]  # on sys.path, each of them
SOURCES = {path: folder for folder in FOLDERS for path in sorted(folder.rglob("*.py"))}


def name_of(path):
    """The dotted name of a module."""
    parts = path.relative_to(SOURCES[path]).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): ast.parse(path.read_text()) for path in SOURCES}


def is_for_types(node):
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def imported_by(name):
    """The modules of ours that a module imports, in functions too; in the core also for types."""
    is_core = name.partition(".")[0] == "plaunch"
    nodes = [node for node in MODULES[name].body if is_core or not is_for_types(node)]
    for node in ast.walk(ast.Module(nodes, [])):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found = whole if whole in MODULES else str(node.module)
                # The names of a package are where its lazy table says, which is read later.
                if found in MODULES and found.count("."):
                    yield found


def test_the_modules_are_found():
    assert {"plaunch", "plaunch.agent.loop", "plaunch_doctor.command"} <= MODULES.keys()
    assert "plaunch.agent.machine" in imported_by("plaunch.agent.loop")


# Modules that have grown beyond the limit and are to be split. No other may join them.
STILL_LONG = {"loop.py", "supervised.py", "worker_streams.py"}


def test_a_module_is_read_in_one_go():
    found = {path.name for path in SOURCES if len(path.read_text().splitlines()) > LINES}
    assert found == STILL_LONG


def test_no_class_has_thirty_methods():
    for name, tree in MODULES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
                assert len(methods) < METHODS, f"{name}.{node.name}"


def test_nothing_is_imported_in_a_circle():
    graphlib.TopologicalSorter(
        {name: set(imported_by(name)) - {name} for name in MODULES}
    ).prepare()
