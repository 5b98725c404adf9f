"""Finds out from its system call whether a process waits for input from a terminal."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from plaunch.process import read_link

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

PROC = "/proc"

_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")
_NEVER = 0xFFFFFFFF  # the timeout of `poll` without a time limit
_READABLE = 0x1  # POLLIN
_MOST_FDS = 1024
_POLLFD = struct.Struct("@ihh")  # descriptor, requested events, returned events

# The system calls by machine and number.
_CALLS = {
    "x86_64": {0: "read", 7: "poll", 23: "select", 270: "select", 271: "ppoll"},
    "aarch64": {63: "read", 72: "select", 73: "ppoll"},
}


def find_terminal(pid: int, call: str, proc: str = PROC, machine: str = os.uname().machine) -> str:
    """Find the terminal from which the main thread of a process waits for input.

    It reads a terminal, or waits without a time limit until it can read terminals and nothing else,
    as `input()` with readline does.

    Args:
        pid: the process.
        call: the text of its `syscall` in /proc: a number and six arguments, if it is in a call.
        proc: the folder of processes.
        machine: the architecture, which has its own numbers of system calls.

    Returns:
        The path of the terminal; empty if it waits for something else, or if that cannot be read.
    """
    number, _, arguments = call.partition(" ")
    words = arguments.split()
    name = _CALLS.get(machine, {}).get(int(number)) if number.isdecimal() else None
    if name is None or len(words) < 5:
        return ""
    try:
        fds = _find_fds(name, [int(word, 16) for word in words], pid, proc)
    except (OSError, ValueError, OverflowError, struct.error):
        return ""
    files = [read_link(f"{pid}/fd/{fd}", proc) for fd in fds]
    if not files or not all(file.startswith(_TERMINALS) for file in files):
        return ""
    return files[0]


def _find_fds(name: str, words: Sequence[int], pid: int, proc: str) -> Collection[int]:
    """The descriptors that a system call waits for until they are readable; empty with a limit."""
    if name == "read":
        return words[:1]
    if name == "select":
        count, readable, *_, limit = words[:5]
        if limit or not readable:
            return ()
        size = min(count, _MOST_FDS)
        bits = int.from_bytes(_read_memory(pid, readable, (size + 7) // 8, proc), "little")
        return [fd for fd in range(size) if bits >> fd & 1]
    polled, count, limit = words[:3]
    if (limit & _NEVER != _NEVER) if name == "poll" else limit:
        return ()
    data = _read_memory(pid, polled, min(count, _MOST_FDS) * _POLLFD.size, proc)
    return [fd for fd, events, _ in _POLLFD.iter_unpack(data) if events & _READABLE]


def _read_memory(pid: int, address: int, size: int, proc: str) -> bytes:
    fd = os.open(f"{proc}/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, address)
    finally:
        os.close(fd)
