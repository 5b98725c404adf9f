"""Checks of the interpreter, of torch, and of the installed plugins."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.doctor import DoctorContext

    from plaunch_doctor.context import NodeCheck, NodeContext
    from plaunch_doctor.listing import PluginStatus

_WHAT = "interpreter"
_TESTED = ((3, 10), (3, 13))
_TORCH = (2, 3)  # the lower bound in the extra `c10d`
_PLUGINS = "plugins"


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


def _uses_store_of_torch(context: NodeContext) -> bool:
    configs = context.settings.get("rdzv_configs")
    options = configs if isinstance(configs, dict) else {}
    is_chosen = options.get("store") == "torch" or options.get("store_type") == "file"
    return is_chosen and context.backend.rpartition(":")[2] == "c10d"


def check_versions(context: NodeContext) -> Iterator[Finding]:
    """Check Python and torch in the launcher's environment. Does not import torch."""
    python = context.machine.version
    if not _TESTED[0] <= python[:2] <= _TESTED[1]:
        yield Finding(
            Status.WARNING,
            "Python",
            f"{'.'.join(map(str, python))}; plaunch is tested with 3.10 to 3.13",
            "use one of those if anything looks odd",
        )
    found = context.machine.distribution("torch")
    if found is None:
        is_needed = _uses_store_of_torch(context)
        yield Finding(
            Status.PROBLEM if is_needed else Status.WARNING,
            "torch",
            f"not installed in {context.machine.prefix}"
            + (", but this store of the backend c10d needs it" if is_needed else ""),
            "pip install 'plaunch[c10d]'"
            if is_needed
            else "install it here if the workers use it (plaunch itself does not)",
        )
        return
    version, folder = found
    built_for = _built_for(folder, version)
    text = f"{version}, built for {built_for}"
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _TORCH:
        yield Finding(
            Status.WARNING,
            "torch",
            f"{text}; plaunch's extra c10d asks for {'.'.join(map(str, _TORCH))} or newer",
            "pip install -U torch",
        )
        return
    vendor = _vendor(context)
    if vendor and built_for == "CPU":
        yield Finding(
            Status.WARNING,
            "torch",
            f"{text}, but this node has devices of {vendor}",
            f"install a build for {vendor}: https://pytorch.org/get-started/locally",
        )
        return
    yield Finding(Status.OK, "torch", text)


def _vendor(context: NodeContext) -> str:
    devices = context.list("/dev")
    if any(re.fullmatch(r"nvidia\d+", name) for name in devices):
        return "NVIDIA"
    return "AMD" if "kfd" in devices else ""


def _built_for(folder: str, version: str) -> str:
    """Return the platform from torch's `version.py`, such as CUDA 12.6, ROCm 6.2, or CPU."""
    try:
        with open(os.path.join(folder, "torch", "version.py"), encoding="utf-8") as file:
            text = file.read(1 << 16)
    except OSError:
        text = ""
    for name, label in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        if match is not None:
            return f"{label} {match[1]}"
    return "CPU" if text or version.endswith("+cpu") else "an unknown platform"


def plugins_check(
    rows: Callable[[], Sequence[PluginStatus]], chosen: Mapping[str, str]
) -> NodeCheck:
    """Make the check of all installed plugins.

    Args:
        rows: returns all plugins and their state, as for `--list-plugins`.
        chosen: the names that the options select, by kind.
    """

    def check(context: DoctorContext) -> Iterator[Finding]:
        """Load every plugin, and report the broken and ambiguous ones."""
        found = rows()
        for row in found:
            title = f"{row.kind}:{row.name} of {row.distribution} {row.version}"
            # Lifecycle plugins are always loaded. Others only matter if they are selected.
            is_used = row.is_always_on or chosen.get(row.kind) in (
                row.name,
                f"{row.distribution}:{row.name}",
            )
            block = f"-p no:{row.kind}:{row.name}"
            if row.is_broken:
                yield Finding(
                    Status.PROBLEM if is_used else Status.WARNING,
                    _PLUGINS,
                    f"{title} is broken: {row.detail}",
                    f"repair or remove it, or block it with {block}"
                    if row.is_always_on
                    else "repair or remove it, or select another one",
                )
            elif row.rivals and is_used:
                yield Finding(
                    Status.PROBLEM,
                    _PLUGINS,
                    f"{title} has the same name as one of {', '.join(row.rivals)}",
                    f"select {row.distribution}:{row.name}, or block one with -p no:DISTRIBUTION:"
                    f"{row.name}",
                )
        usable = sum(row.is_usable for row in found)
        owners = sorted({f"{r.distribution} {r.version}" for r in found if r.distribution != "-"})
        yield Finding(Status.OK, _PLUGINS, f"{usable} can be used, of {', '.join(owners)}")

    return check
