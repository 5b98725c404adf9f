"""Finding the program of a name on PATH, as a shell does."""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

_MOST_BYTES = 1 << 16  # of a script on PATH
_IMPORT = re.compile(rb"^\s*from\s+([\w.]+)\s+import\s+(\w+)", re.MULTILINE)
# The form that older versions of setuptools write.
_ENTRY = re.compile(rb"['\"]([\w.-]+)(?:==[^'\"]*)?['\"],\s*['\"]console_scripts['\"]")
_PYTHON = re.compile(rb"#!.*python")


class Program(NamedTuple):
    """A program of an installed package.

    Args:
        entry_point: its entry point; None if the package has only a file.
        path: its file on PATH; empty if there is none.
    """

    entry_point: EntryPoint | None
    path: str


def find_program(name: str) -> Program | None:
    """Find the program of an installed package with this name; None if no package has one.

    Several packages may have a program of one name, but only one has the file on PATH. So the file
    decides, unless it does not show which entry point it calls (a shim of another tool).

    Raises:
        UsageError: the file on PATH is another program, or nothing decides between packages.
    """
    found = list(
        {one.value: one for one in entry_points(group="console_scripts", name=name)}.values()
    )
    if not found:
        return _find_script(name)
    path = shutil.which(name) or ""
    script = _read(path) if path else b""
    called = [one for one in found if _calls(script, one)]
    if len(called) == 1:
        return Program(called[0], path)
    if _IMPORT.search(script) or _PYTHON.match(script):
        raise UsageError(
            f"{name!r} on PATH is {path}, which is not a program of a package installed with "
            f"{sys.executable}; that has a program of this name in {_describe(found)}; put the "
            "folder of the one to run first on PATH, or write -m with its module"
        )
    if len(found) > 1:
        raise UsageError(
            f"{name!r} is a program of several packages installed with {sys.executable}: "
            f"{_describe(found)}; put the folder of the one to run on PATH, or write -m with its "
            "module"
        )
    return Program(found[0], path)


def _find_script(name: str) -> Program | None:
    """Find a script that a package installed as a file, such as DeepSpeed's; None if there is none.

    Its first lines name the interpreter that it belongs to.
    """
    path = shutil.which(name) or os.path.join(sysconfig.get_path("scripts"), name)
    python = os.path.join(os.path.dirname(sys.executable), "python").encode()
    first_lines = _read(path).split(b"\n", 2)[:2]
    is_own = first_lines[0].startswith(b"#!") and python in b"".join(first_lines)
    return Program(None, path) if is_own else None


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:  # it may be executable, but not readable
        return b""


def _calls(script: bytes, entry_point: EntryPoint) -> bool:
    """Whether a script of an installer calls this entry point."""
    called = entry_point.module.encode(), entry_point.attr.partition(".")[0].encode()
    if called in _IMPORT.findall(script):
        return True
    dist = entry_point.dist
    named = {_normalize(one.decode()) for one in _ENTRY.findall(script)}
    return dist is not None and _normalize(dist.name) in named


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _describe(found: Iterable[EntryPoint]) -> str:
    """Packages and what their programs call, sorted."""
    return ", ".join(
        sorted(
            one.value if one.dist is None else f"{one.dist.name} {one.dist.version} ({one.value})"
            for one in found
        )
    )
