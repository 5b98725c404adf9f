"""The state of a process, read from /proc."""

from __future__ import annotations

import os

from plaunch_stacks.stack import KernelState

PROC = "/proc"

_MOST = 1 << 14  # bytes of a file
_TITLE = 200  # characters
_TICKS = os.sysconf("SC_CLK_TCK")


def read_kernel_state(pid: int, proc: str = PROC) -> KernelState | None:
    """Read the state of a process; None if it has ended."""
    fields = _read(pid, "stat", proc).rpartition(b")")[2].split()
    if len(fields) < 13:
        return None
    place = _read(pid, "wchan", proc).decode(errors="replace").strip()
    # Only root can read it. Lines are "[<0>] futex_wait_queue+0x60/0x90".
    stack = tuple(
        line.rpartition("] ")[2].partition("+")[0]
        for line in _read(pid, "stack", proc).decode(errors="replace").splitlines()
    )
    return KernelState(
        state=fields[0].decode(errors="replace"),
        place=place if place not in ("", "0") else (stack[0] if stack else ""),
        call=_read(pid, "syscall", proc).decode(errors="replace").strip(),
        stack=stack,
        seconds=(_number(fields[11]) + _number(fields[12])) / _TICKS,
        tracer=_number(
            _read(pid, "status", proc).partition(b"\nTracerPid:")[2].partition(b"\n")[0].strip()
        ),
    )


def read_title(pid: int, proc: str = PROC) -> str:
    """The beginning of the command line of a process, or its short name."""
    words = _read(pid, "cmdline", proc) or _read(pid, "comm", proc)
    text = " ".join(words.replace(b"\0", b" ").decode(errors="replace").split())
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 3]}..."


def _read(pid: int, name: str, proc: str) -> bytes:
    try:
        fd = os.open(f"{proc}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, _MOST)
    except OSError:
        return b""
    finally:
        os.close(fd)


def _number(text: bytes) -> int:
    return int(text) if text.isdigit() else 0
