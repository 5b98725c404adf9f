"""The command line that a forked process shows, which otherwise is its parent's.

Without a program of its own a process keeps the memory in which its parent's arguments are. There
is no danger in writing there: Python has copied them long ago.
"""

from __future__ import annotations

import os

from plaunch.process.reaping.table import PROC

_ARG_START, _ARG_END = 45, 46  # fields of /proc/PID/stat behind the name


def set_title(*candidates: str, proc: str = PROC) -> bool:
    """Show the first of `candidates` that fits in; False if none does, or the system refuses."""
    try:
        with open(f"{proc}/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        for candidate in candidates:
            title = candidate.encode("utf-8", "replace")
            if 0 < len(title) < end - start:
                memory = os.open(f"{proc}/self/mem", os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.pwrite(memory, title.ljust(end - start, b"\0"), start)
                finally:
                    os.close(memory)
                return True
    except (OSError, IndexError, ValueError, OverflowError):
        pass  # it is a convenience; nothing depends on it alone
    return False
