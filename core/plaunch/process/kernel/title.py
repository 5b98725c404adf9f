"""What others see of a forked process: its command line and environment, which are its parent's.

Without a program of its own a process keeps the memory in which its parent's arguments and
variables are. There is no danger in writing there: Python has copied them long ago, and the parent
has a copy of its own of what is written to.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.process.kernel.processes import PROC, read_stat

if TYPE_CHECKING:
    from collections.abc import Callable

_ARGUMENTS, _ENVIRONMENT = 45, 47  # where `read_stat` says that they begin, and then end


def set_title(*candidates: str, proc: str = PROC) -> bool:
    """Show the first of `candidates` that fits in; False if none does, or the system refuses."""
    try:
        start, end = _read_range(proc, _ARGUMENTS)
        for candidate in candidates:
            title = candidate.encode("utf-8", "replace")
            if 0 < len(title) < end - start:
                _write_memory(proc, start, title.ljust(end - start, b"\0"))
                return True
    except (OSError, IndexError, ValueError, OverflowError):
        pass  # it is a convenience; nothing depends on it alone
    return False


def blank_variables(is_meant: Callable[[str], bool], *, proc: str = PROC) -> bool:
    """Show no variables of these names any more; False if the system refuses.

    It is about what others see in `/proc/PID/environ`. `os.environ` stays as it is.

    Args:
        is_meant: is given the name of a variable.
        proc: where the system tells its processes.
    """
    try:
        start, end = _read_range(proc, _ENVIRONMENT)
        with open(f"{proc}/self/environ", "rb", buffering=0) as file:
            area = file.readall()[: end - start]
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
