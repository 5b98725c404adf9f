"""What one process shows of itself beyond its line in the table, and how it is described."""

from __future__ import annotations

import os

from plaunch.process.kernel.processes import PROC, read_state

STATUS = "/proc/self/status"

_MAX_BYTES = 1 << 22  # of an environment, to be on the safe side of a process that changes its own
_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})


def find_environ(pid: int, proc: str = PROC) -> bytes | None:
    """The environment that a program was started with; None if it may not be read.

    It is empty if the process is gone, and while it becomes another program.
    """
    try:
        return _read_all(f"{proc}/{pid}/environ")
    except PermissionError:
        return None
    except OSError:
        return b""


def read_environ(pid: int, proc: str = PROC) -> bytes:
    """The same, but empty if it may not be read."""
    return find_environ(pid, proc) or b""


def read_title(pid: int, proc: str = PROC) -> bytes:
    """The command line of a process; empty if it is gone or not to be read."""
    return read_file(f"{proc}/{pid}/cmdline")


def read_user(pid: int, proc: str = PROC) -> int:
    """The real user id of a process; -1 if it is gone."""
    user = find_field(read_file(f"{proc}/{pid}/status"), b"Uid:")
    return int(user.split()[0]) if user else -1


def read_masks(path: str = STATUS) -> tuple[int, int] | None:
    """What this process does at signals; Python knows only what it has done itself.

    Returns:
        The masks of what is ignored and what is caught, with bit n-1 for signal n. None where the
        kernel does not tell, or no descriptor is left to ask it.
    """
    status = read_file(path)
    try:
        ignored, caught = (find_field(status, name) for name in (b"SigIgn:", b"SigCgt:"))
        return (int(ignored or b"0", 16), int(caught or b"0", 16)) if status else None
    except ValueError:
        return None


def find_processor_wait(proc: str = PROC) -> float | None:
    """For how many seconds this thread could run and had no processor; None if that is unknown."""
    fields = read_file(f"{proc}/thread-self/schedstat").split()
    return int(fields[1]) / 1e9 if len(fields) > 1 and fields[1].isdigit() else None


def find_field(status: bytes, name: bytes) -> bytes:
    """The value of a field of a file such as /proc/self/status; empty if it is not there."""
    return status.partition(b"\n" + name)[2].partition(b"\n")[0].strip()


def read_file(path: str) -> bytes:
    """A whole file of /proc; empty if it is gone, or may not be read."""
    try:
        return _read_all(path)
    except OSError:
        return b""


def _read_all(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()[:_MAX_BYTES]


def may_signal(pid: int) -> bool:
    """Whether this user may signal a process; also if it is gone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def describe_process(pid: int, proc: str = PROC) -> str:
    """One process in words: its pid, its state, and what it waits in as far as the kernel says."""
    state = read_state(pid, proc)
    if not state:
        return f"pid {pid} (state unknown)"
    place = _waiting_place(pid, proc)
    return f"pid {pid} (state {state}{f', waits in {place}' if place else ''})"


def is_waiting_for_child(pid: int, proc: str = PROC) -> bool:
    """Whether a process is a shell, or its first thread only waits for a child to end."""
    if _first_line(f"{proc}/{pid}/comm") in _SHELLS:
        return True
    return _first_line(f"{proc}/{pid}/wchan").startswith("do_wait")


def _waiting_place(pid: int, proc: str) -> str:
    """The function of the kernel that a process sleeps in; empty if the kernel does not say."""
    place = _first_line(f"{proc}/{pid}/wchan")
    if place not in ("", "0"):
        return place
    # Lines are "[<0>] io_schedule+0x46/0x80"; only root may read them.
    return _first_line(f"{proc}/{pid}/stack").rpartition(" ")[2].partition("+")[0]


def _first_line(path: str) -> str:
    return read_file(path).partition(b"\n")[0].decode("utf-8", "replace").strip()
