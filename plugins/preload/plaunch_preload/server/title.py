"""Sets what other processes see of a forked process.

`/proc/PID/cmdline` and `/proc/PID/environ` of a forked process show what its parent was started
with. Python has already copied both, so their memory can be overwritten; each process has its own
copy.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

_PR_SET_NAME = 15
_ARGUMENTS, _ENVIRONMENT = 45, 47  # indices of fields after the name in /proc/PID/stat


def show_name(name: str) -> None:
    """Show `name` where `top` shows the program; at most 15 bytes of it."""
    with contextlib.suppress(OSError, AttributeError):  # only a convenience
        ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()[:15]), 0, 0, 0)


def show_command(command: list[str]) -> None:
    """Show a command where `ps` shows the arguments, cut to the available room."""
    try:
        start, end = _find(_ARGUMENTS)
        shown = b"\0".join(os.fsencode(word) for word in command)[: end - start - 1]
        _write(start, shown.ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError):
        pass  # as above


def show_variable(name: str, value: str) -> None:
    """Show another value of a variable in `/proc/PID/environ`, if there is room.

    Children of this process show it as well. `os.environ` is not changed.
    """
    try:
        start, end = _find(_ENVIRONMENT)
        with open("/proc/self/environ", "rb") as file:
            entries = file.read()[: end - start].split(b"\0")
        before = name.encode() + b"="
        entry = next(entry for entry in entries if entry.startswith(before))
        shown = before + os.fsencode(value)
        if len(shown) <= len(entry):
            at = start + sum(len(other) + 1 for other in entries[: entries.index(entry)])
            _write(at, shown.ljust(len(entry), b":"))
    except (OSError, ValueError, IndexError, StopIteration):
        pass  # as above; the worker is found by its session


def _find(field: int) -> tuple[int, int]:
    with open("/proc/self/stat", "rb") as file:
        # The program's name, in parentheses, may contain any characters.
        fields = file.read().rpartition(b")")[2].split()
    return int(fields[field]), int(fields[field + 1])


def _write(address: int, data: bytes) -> None:
    memory = os.open("/proc/self/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(memory, data, address)
    finally:
        os.close(memory)
