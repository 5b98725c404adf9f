"""An environment for each library, with plaunch as it is in this repository."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from libraries import Library

ROOT = Path(__file__).resolve().parents[2]
_LIMIT = 1800.0  # seconds for pip, or for what a library compiles
_COMPLETE = "complete"


class LibraryEnvironmentError(Exception):
    """An environment cannot be made; the message has the last line of the output."""


def prepare_environment(library: Library, folder: Path) -> Path:
    """Create the environment of a library, or use an earlier one; return its interpreter.

    In an earlier one, only plaunch is installed again.

    Args:
        library: what is installed, beside torch and plaunch.
        folder: of the environment.

    Raises:
        LibraryEnvironmentError: pip failed, or what the library compiles first.
    """
    python = folder / "bin/python"
    complete = folder / _COMPLETE
    if complete.is_file() and complete.read_text() == library.versions:
        _call([python, "-m", "pip", "install", "--force-reinstall", "--no-deps", ROOT], folder)
        return python
    _call([sys.executable, "-m", "venv", "--clear", folder], folder)
    constraints = folder / "constraints.txt"
    constraints.write_text(read_constraints(library.freed))
    _call(
        [
            *(python, "-m", "pip", "install", "--no-compile", "--constraint", constraints),
            *(f"{ROOT}[c10d]", *library.requirements),
        ],
        folder,
    )
    if library.prepare:
        _call([python, "-c", library.prepare], folder)
    complete.write_text(library.versions)
    return python


def read_constraints(freed: tuple[str, ...]) -> str:
    """Return `constraints.txt` without these packages."""
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if re.split(r"[=;#\s]", line)[0] not in freed)


def _call(command: list[str | Path], folder: Path) -> None:
    """Run one command, with what it compiles in the folder of the environment."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
                "TORCH_EXTENSIONS_DIR": str(folder / "torch_extensions"),
            },
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise LibraryEnvironmentError(f"{command[1:4]} did not end within {_LIMIT:g} s") from None
    if done.returncode != 0:
        raise LibraryEnvironmentError((done.stderr or done.stdout).strip().rpartition("\n")[2])
