"""The state of a process, read from /proc."""

from __future__ import annotations

import os

from plaunch.process import find_field, read_proc, read_stack, read_stat, read_waiting_place

from plaunch_hang.stacks.stack import KernelState

PROC = "/proc"

_TITLE = 200  # characters
_TICKS = os.sysconf("SC_CLK_TCK")


def read_kernel_state(pid: int, proc: str = PROC) -> KernelState | None:
    """Read the state of a process; None if it has ended."""
    fields = read_stat(pid, proc)
    if len(fields) < 13:
        return None
    tracer = find_field(read_proc(f"{pid}/status", proc), "TracerPid")
    return KernelState(
        state=fields[0].decode(errors="replace"),
        place=read_waiting_place(pid, proc),
        call=read_proc(f"{pid}/syscall", proc).decode(errors="replace").strip(),
        stack=tuple(read_stack(pid, proc)),
        seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        tracer=int(tracer) if tracer.isdigit() else 0,
    )


def read_title(pid: int, proc: str = PROC) -> str:
    """The beginning of the command line of a process, or its short name."""
    words = read_proc(f"{pid}/cmdline", proc) or read_proc(f"{pid}/comm", proc)
    text = " ".join(words.replace(b"\0", b" ").decode(errors="replace").split())
    return text if len(text) <= _TITLE else f"{text[: _TITLE - 3]}..."
