"""Check that the launcher and the workers run the intended Python."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_doctor.context import NodeContext

_WHAT = "interpreter"


def check_interpreter(context: NodeContext) -> Iterator[Finding]:
    """Check the interpreter, the activated environment, and the programs that PATH finds."""
    machine = context.machine
    version = ".".join(map(str, machine.version))
    yield Finding(Status.OK, _WHAT, f"Python {version}, {machine.python}")
    yield from _check_worker_python(context)
    yield from _check_activated(context)
    yield from _check_path(context)


def _check_worker_python(context: NodeContext) -> Iterator[Finding]:
    python = context.environ.get("PYTHON_EXEC")
    if python is None:
        return
    what = "PYTHON_EXEC"
    if not context.machine.which(python, context.environ):
        yield Finding(
            Status.PROBLEM,
            what,
            f"the variable names {python!r}, which is not a program",
            "correct it, or unset it so that workers use the launcher's interpreter",
        )
    elif not _is_same(python, context.machine.python):
        yield Finding(
            Status.WARNING,
            what,
            f"workers run {python}, the launcher runs {context.machine.python}",
            "unset PYTHON_EXEC unless that is on purpose: the packages checked here may be "
            "missing there",
        )


def _check_activated(context: NodeContext) -> Iterator[Finding]:
    machine = context.machine
    own = (machine.prefix, machine.base_prefix)
    for variable in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "CONDA_PREFIX"):
        folder = context.environ.get(variable, "")
        if not os.path.isabs(folder):
            continue
        # A virtual environment created from the conda environment also matches.
        if any(_is_same(folder, prefix) for prefix in own):
            if variable == "VIRTUAL_ENV" and not _is_same(folder, machine.prefix):
                continue
            yield Finding(Status.OK, variable, f"{folder} is the environment of the launcher")
            return
        yield Finding(
            Status.WARNING,
            variable,
            f"{folder} is activated, but the launcher and its workers run in {machine.prefix}",
            "start it as `python -m plaunch` (`uv run python -m plaunch`), which uses the "
            "activated environment, and install plaunch there",
        )
        return


def _check_path(context: NodeContext) -> Iterator[Finding]:
    found = {}
    for program in ("python", "torchrun", "plaunch"):
        found[program] = context.machine.which(program, context.environ)
    text = ", ".join(f"{name}: {path or 'none'}" for name, path in found.items())
    here = os.path.dirname(context.machine.python)
    other = found["plaunch"] and not _is_same(os.path.dirname(found["plaunch"]), here)
    if other:
        yield Finding(
            Status.WARNING,
            "PATH",
            f"{text}; this plaunch runs {context.machine.python}",
            "the plaunch on PATH belongs to another Python: start this one as "
            f"`{context.machine.python} -m plaunch`, or put {here} first on PATH",
        )
    else:
        yield Finding(Status.OK, "PATH", text)


def _is_same(one: str, other: str) -> bool:
    """Whether two paths are the same folder, or spell the same file (links are not resolved)."""
    return os.path.normpath(one) == os.path.normpath(other) or (
        os.path.isdir(one) and os.path.realpath(one) == os.path.realpath(other)
    )
