"""The source modules of the core and the plugins."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = [ROOT / "core", *(ROOT / "plugins").iterdir()]  # on sys.path, each of them


def _name_of(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# By dotted name.
PATHS = {_name_of(path, folder): path for folder in FOLDERS for path in folder.rglob("*.py")}


@functools.cache
def parse_all() -> dict[str, ast.Module]:
    """Return the syntax tree of each module, by dotted name."""
    return {name: ast.parse(path.read_text()) for name, path in PATHS.items()}


def targets_of(node: ast.AST) -> list[str]:
    """Return the modules that a statement imports; none if it is not an import.

    `from PACKAGE import NAME` imports the module of that name if there is one, or else the package.
    """
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        wholes = (f"{node.module}.{alias.name}" for alias in node.names)
        return [whole if whole in PATHS else str(node.module) for whole in wholes]
    return []
