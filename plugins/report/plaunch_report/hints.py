"""Hints for finding a cause that a failed worker could not report itself.

A hint says what was found on this host: an interpreter, or the free space of a file system. Words
count only where an exception or an abort of C++ has them, and not in other output.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from typing import TYPE_CHECKING

from plaunch.process import abort_in_output, is_python
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from plaunch.process import ProcessFailure

_CRASHES = frozenset(
    -signal.Signals[f"SIG{name}"] for name in ("SEGV", "BUS", "FPE", "ILL", "ABRT")
)
_FAULT_HANDLER = "Fatal Python error: "
_LATE_ABORT = "terminate called without an active exception"
_MISSING_MODULE = re.compile(r"No module named '?([\w.]+)'?")
_ENVIRONMENTS = ("VIRTUAL_ENV", "CONDA_PREFIX")
_SHARED = "/dev/shm"  # noqa: S108 - not a file of plaunch's
_MOUNTS = "/proc/self/mounts"
# Texts of exceptions while a file is written.
_NO_SPACE = re.compile(r"No space left on device(?:: '(?P<path>[^'\n]+)')?")
_CUT_OFF = re.compile(
    r"enforce fail at inline_container\.cc:\d+\]\s*\. (?:unexpected pos \d+ vs \d+"
    r"|PytorchStreamWriter failed writing file)"
)
_NEARLY_FULL = 0.01  # of a file system is free
_PATIENCE = 2.0  # seconds for file systems, which may be those of a host that is down
# Their space does not change, or is not that of a disk.
_OTHER_FILE_SYSTEMS = frozenset({"squashfs", "iso9660", "erofs", "efivarfs", "proc", "sysfs"})


def find_hints(failure: ProcessFailure, early_ends: Sequence[str] = ()) -> Iterator[str]:
    """Yield the hints for the first failure of a job, each a sentence without its full stop."""
    consequence = failure.consequence
    if consequence and early_ends:
        yield "a worker that ends before the others closes its connections to them"
    elif consequence:
        what = "was gone" if consequence.is_gone else "did not answer in time"
        yield f"a peer {what}; no other failure is known"
    is_here = failure.host == os.uname().nodename
    if is_here:
        yield from _of_exception(failure)
    if failure.has_reply:
        return
    if failure.exitcode == -signal.SIGKILL and not failure.oom_killed:
        yield "SIGKILL comes from outside: a scheduler, a limit of the container, or a user"
    if failure.exitcode == -signal.SIGBUS and failure.shared_memory is not None:
        yield _describe_shared_memory(*failure.shared_memory)
    is_dumped = any(_FAULT_HANDLER in line for line in failure.last_lines)
    if _is_late_abort(failure):
        yield (
            "a thread of C++ code still ran when the interpreter exited; a script that uses "
            "torch.distributed must call destroy_process_group() at its end"
        )
    elif failure.exitcode in _CRASHES and not is_dumped:
        yield "with PYTHONFAULTHANDLER=1 in its environment, python shows where it crashed"
    if not failure.last_lines and any(map(_is_on_full_disk, failure.log_files)):
        yield "the disk of its log files is full"


def _of_exception(failure: ProcessFailure) -> Iterator[str]:
    """Yield hints about the exception that ended a worker of this host."""
    raised = failure.raised
    name = raised.exception.rpartition(".")[2]
    first_line = raised.text.partition("\n")[0]
    if name == "ModuleNotFoundError" and (missing := _MISSING_MODULE.search(first_line)):
        yield from describe_interpreter(missing[1], failure.program, os.environ)
    elif raised.exception and (no_space := _NO_SPACE.search(raised.text)):
        yield from _describe_space("", no_space["path"] or "")
    elif raised.exception and _CUT_OFF.search(raised.text):
        yield from _describe_space("torch could not write a whole file, often for lack of space: ")


# --- the interpreter ------------------------------------------------------------------------------


def describe_interpreter(module: str, program: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what is known of the interpreter that did not find a module.

    Args:
        module: the name of the module.
        program: the path of the program that the worker ran.
        environ: the environment variables of the launcher.
    """
    if not is_python(program):
        return
    program = shutil.which(program) or program
    name = module.partition(".")[0]
    text = f"its interpreter is {program}"
    if os.path.exists(f"{name}.py") or os.path.isdir(name):
        yield (
            f"{text}, which does not look for {name!r} in the working folder; write PYTHONPATH=. "
            "before the command, or start the script with -m"
        )
        return
    own = sys.prefix if program == sys.executable else _prefix_of(program)
    for variable in _ENVIRONMENTS:
        if (other := environ.get(variable)) and not _is_same(other, own):
            yield (
                f"{text}, but {variable} is {other}, another environment; to use that one, write "
                f"{os.path.join(other, 'bin', 'python')} -m plaunch, with plaunch installed there"
            )
            return
    yield f"{text}; install the module for it, or start plaunch with the interpreter that has it"


def _prefix_of(program: str) -> str:
    return os.path.dirname(os.path.dirname(os.path.abspath(program)))


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


# --- space ----------------------------------------------------------------------------------------


def _describe_shared_memory(free: int, total: int) -> str:
    state = f"{_SHARED} had {_size(free)} of {_size(total)} free when it ended"
    if free <= total * _NEARLY_FULL:
        return (
            f"SIGBUS, because {_SHARED} is full: {state}; give it more space (docker run "
            "--shm-size, in Kubernetes an emptyDir with medium: Memory), or use fewer workers of "
            "data loaders"
        )
    full = _call_bounded(_full_ones)
    return (
        "SIGBUS often means that the file system of a mapped file is full, or that the file was "
        f"cut; {state}{full and f'; {full}'}"
    )


def _describe_space(cause: str, path: str = "") -> Iterator[str]:
    """Yield how full the file system of `path` is; without a path, name those that are full."""
    if text := _call_bounded(lambda: _of_path(path) or _full_ones() or _none_is_full()):
        yield cause + text


def _call_bounded(function: Callable[[], str]) -> str:
    """Call a function that reads file systems; return "" if one of them does not answer."""
    call = BoundedCall("free-space", function)
    return str(call.result) if call.wait(_PATIENCE) and call.error is None else ""


def _of_path(path: str) -> str:
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return path and f"the file system of {path} has {_space(path)}"


def _full_ones() -> str:
    found: list[str] = []
    for folder in _writable_mounts():
        try:
            status = os.statvfs(folder)
        except OSError:  # not for this user
            continue
        if status.f_blocks > 0 and status.f_bavail <= status.f_blocks * _NEARLY_FULL:
            found.append(f"{folder} has {_space(folder)}")
        elif status.f_files > 0 and status.f_favail == 0:
            found.append(f"{folder} has no free inodes")
    names = " and ".join(dict.fromkeys(found))
    return names and f"of the file systems of this host, {names}"


def _none_is_full() -> str:
    return (
        "no file system of this host is full now; a quota of the user, or a storage server that "
        f"went away, has the same effect (the working folder has {_space('.')})"
    )


def _writable_mounts() -> Iterator[str]:
    with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            _, folder, kind, options, *_ = line.split(" ")
            if kind not in _OTHER_FILE_SYSTEMS and "ro" not in options.split(","):
                yield re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), folder)


def _space(path: str) -> str:
    status = os.statvfs(path)
    unit = status.f_frsize
    return f"{_size(status.f_bavail * unit)} of {_size(status.f_blocks * unit)} free"


def _size(count: int) -> str:
    for unit, size in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _is_on_full_disk(path: str) -> bool:
    try:
        status = os.statvfs(path)
    except OSError:  # a file of another host
        return False
    # Some file systems, such as those of FUSE, report 0 of 0 blocks.
    return status.f_bavail == 0 and status.f_blocks > 0


# --- aborts ---------------------------------------------------------------------------------------


def _is_late_abort(failure: ProcessFailure) -> bool:
    """Whether C++ aborted because a thread of its own still ran, after the script had ended."""
    return (
        failure.exitcode == -signal.SIGABRT
        and not failure.raised.exception
        and not failure.place
        and abort_in_output(failure.last_lines) == _LATE_ABORT
    )
