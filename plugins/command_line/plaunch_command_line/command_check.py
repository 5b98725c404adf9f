"""Finds out whether the system and Python would run the workers' command, without running it.

A launch does not need this: its workers fail with the same error.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pkgutil
import shutil
import stat
import sys
import warnings
import zipfile
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

from plaunch.cli import reads_stdin
from plaunch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plaunch.cli import Arguments

_ELF = b"\x7fELF"
_OTHER_FORMATS = "/proc/sys/fs/binfmt_misc"  # programs that run files of other formats
_NOT_FORMATS = frozenset({"register", "status"})
_MAIN = "__main__"
# Variables that decide where a Python finds modules.
_SEARCH_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH", "PYTHONNOUSERSITE")


def check_command(args: Arguments, entrypoint: object, variables: Mapping[str, str]) -> None:
    """Check the command of a launch.

    Args:
        args: the options, which say what the command runs.
        entrypoint: the function or the program of `worker_command`.
        variables: those of a worker.

    Raises:
        UsageError: the system or Python would not run it.
    """
    if isinstance(entrypoint, str):
        check_program(entrypoint)
    if args.no_python and not args.run_path:
        return
    if isinstance(entrypoint, str) and entrypoint != sys.executable:
        return  # what another Python finds and compiles is not known
    if args.module:
        check_module(str(args.training_script), variables)
    elif not reads_stdin(args):
        check_script(str(args.training_script))


def check_program(program: str) -> None:
    """Check that the system can execute a program, which exists and may be executed.

    Raises:
        UsageError: it cannot.
    """
    path = shutil.which(program) or program
    try:
        with open(path, "rb") as file:
            line = file.readline(4096)
    except OSError:
        return  # executing it needs no right to read it
    if line.startswith(b"#!"):
        words = line[2:].split(maxsplit=1)
        interpreter = os.fsdecode(words[0]) if words else ""
        if not os.access(interpreter, os.X_OK):
            raise UsageError(
                f"the program {program!r} is a script, and the interpreter after its '#!', "
                f"{interpreter!r}, does not exist or may not be executed"
            )
    elif not line.startswith(_ELF) and not _has_other_formats():
        raise UsageError(
            f"the program {program!r} is neither a binary for this system nor a script that begins "
            "with '#!'"
        )


def check_script(path: str) -> None:
    """Compile the file of a Python script, unless it is a folder, a zip file or not a file.

    Raises:
        UsageError: it has a syntax error.
    """
    try:
        if os.path.isdir(path):
            path = os.path.join(path, f"{_MAIN}.py")
        if not stat.S_ISREG(os.stat(path).st_mode) or zipfile.is_zipfile(path):
            return
        with open(path, "rb") as file:
            source = file.read()
    except OSError:
        return
    if not source.startswith(importlib.util.MAGIC_NUMBER):
        _compile(source, path, f"the script {path!r}")


def check_module(name: str, variables: Mapping[str, str]) -> None:
    """Check that Python finds a module and can run it, as far as this is known without importing.

    Args:
        name: what follows `-m`.
        variables: those of a worker.

    Raises:
        UsageError: Python would not run it.
    """
    if name.startswith("."):
        raise UsageError(f"-m needs the full name of a module, and {name!r} is relative")
    if not _searches_as_here(variables):
        return
    spec = _find_module(name)
    if spec is not None and spec.submodule_search_locations is not None:
        name = f"{name}.{_MAIN}"
        spec = _find_module(name)
    if spec is not None:
        _check_code(spec, name)
    elif not _changes_its_path(name):
        raise UsageError(f"-m names {_why_not_found(name)}")


def _why_not_found(name: str) -> str:
    package, _, last = name.rpartition(".")
    if last == _MAIN and package:
        return f"{package!r}, a package without a {_MAIN}.py; name a module in it"
    file = name if last == "py" else f"{name.replace('.', os.sep)}.py"
    hint = f"; for the file {file!r} leave out -m" if os.path.isfile(file) else ""
    return (
        f"{name!r}, which Python ({sys.executable}) does not find; check the spelling, the working "
        f"folder and PYTHONPATH{hint}"
    )


def _check_code(spec: ModuleSpec, name: str) -> None:
    if spec.origin == "built-in":
        raise UsageError(f"-m names {name!r}, which is built into Python and cannot be run")
    if spec.origin is not None and spec.origin.endswith(".py") and os.path.isfile(spec.origin):
        with open(spec.origin, "rb") as file:
            _compile(file.read(), spec.origin, f"the module {name!r}")


def _has_other_formats() -> bool:
    """Whether the system may run files of other formats, such as those of other processors."""
    try:
        return not _NOT_FORMATS.issuperset(os.listdir(_OTHER_FORMATS))
    except OSError:
        return False


def _compile(source: bytes, path: str, what: str) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{path}:{error.lineno}" if error.lineno else path
        raise UsageError(f"{what} has a syntax error: {error.msg} ({where})") from error
    except (ValueError, RecursionError) as error:  # NUL characters, before Python 3.12
        raise UsageError(f"{what} is not Python: {error}") from error


def _searches_as_here(variables: Mapping[str, str]) -> bool:
    """Whether a worker's Python finds the same modules as this one."""
    is_usual = not (sys.flags.isolated or sys.flags.no_site or sys.flags.ignore_environment)
    return is_usual and all(
        variables.get(name, os.environ.get(name)) == os.environ.get(name)
        for name in _SEARCH_VARIABLES
    )


def _find_module(name: str) -> ModuleSpec | None:
    """Find a module from its outermost package on, as `python -m` would; imports nothing.

    Python puts the working folder in front of its path, instead of the folder of this program.
    """
    first = [] if getattr(sys.flags, "safe_path", False) else [""]
    path: Sequence[str] | None = None
    spec, whole = None, ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = _find_by_others(whole, path)
        if spec is None:
            spec = _find_on_path(whole, [*first, *sys.path] if path is None else path)
        if spec is None:
            return None
        path = spec.submodule_search_locations or []
    return spec


def _find_by_others(name: str, path: Sequence[str] | None) -> ModuleSpec | None:
    """Ask for modules of Python itself, and of packages that are installed for editing."""
    for finder in sys.meta_path:
        if finder is PathFinder:
            continue
        with contextlib.suppress(ImportError, OSError, ValueError):
            spec = finder.find_spec(name, path)
            if spec is not None:
                return spec
    return None


def _find_on_path(name: str, path: Iterable[str]) -> ModuleSpec | None:
    """As `PathFinder`, which wants to have imported the packages around the module."""
    portions: list[str] = []  # of a namespace package
    for folder in path:
        finder = pkgutil.get_importer(folder or os.getcwd())
        find = getattr(finder, "find_spec", None)
        spec: ModuleSpec | None = None if find is None else find(name)
        if spec is not None and spec.loader is not None:
            return spec
        if spec is not None:
            portions += spec.submodule_search_locations or []
    if not portions:
        return None
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = portions
    return spec


def _changes_its_path(name: str) -> bool:
    """Whether a package around a module decides on import where its modules are."""
    parents = name.split(".")[:-1]
    for count in range(1, len(parents) + 1):
        spec = _find_module(".".join(parents[:count]))
        if spec is not None and (spec.origin or "").endswith(".py"):
            with contextlib.suppress(OSError), open(str(spec.origin), "rb") as file:
                if b"__path__" in file.read():
                    return True
    return False
