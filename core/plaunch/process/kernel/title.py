"""Changes the command line and environment that others see of a forked process.

Without an execve, these are its parent's, and so is the memory that has them. Writing there is
safe: Python copied both at its start, and the parent has its own copy of each page.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.process.kernel.proc import PROC, read_proc, read_stat

if TYPE_CHECKING:
    from collections.abc import Callable

_ARGUMENTS, _ENVIRONMENT = 45, 47  # fields of `read_stat`: begin, and then end


def set_title(*candidates: str, proc: str = PROC) -> bool:
    """Show the first of `candidates` that fits; False if none does, or the system refuses."""
    try:
        start, end = _read_range(proc, _ARGUMENTS)
        for candidate in candidates:
            title = candidate.encode("utf-8", "replace")
            if 0 < len(title) < end - start:
                _write_memory(proc, start, title.ljust(end - start, b"\0"))
                return True
    except (OSError, IndexError, ValueError, OverflowError):
        pass  # nothing depends on the title alone
    return False


def blank_variables(is_meant: Callable[[str], bool], *, proc: str = PROC) -> bool:
    """Hide variables in `/proc/PID/environ`; False if the system refuses. `os.environ` stays.

    Args:
        is_meant: whether to hide the variable of this name.
        proc: the folder of processes.
    """
    try:
        start, end = _read_range(proc, _ENVIRONMENT)
        area = read_proc("self/environ", proc)[: end - start]
        shown = [
            b"\0" * len(entry) if is_meant(os.fsdecode(entry.partition(b"=")[0])) else entry
            for entry in area.split(b"\0")
        ]
        blanked = b"\0".join(shown)
        if blanked != area:
            _write_memory(proc, start, blanked)
    except (OSError, IndexError, ValueError, OverflowError):
        return False
    return True


def _read_range(proc: str, first: int) -> tuple[int, int]:
    fields = read_stat("self", proc)
    return int(fields[first]), int(fields[first + 1])


def _write_memory(proc: str, address: int, data: bytes) -> None:
    memory = os.open(f"{proc}/self/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(memory, data, address)
    finally:
        os.close(memory)
