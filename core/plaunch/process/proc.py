"""Reads /proc: its files, one process, the table of processes.

Everything in plaunch that reads /proc does so through these functions. A process may end, and a
file may be forbidden, at any time: the result is then empty.
"""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING, NamedTuple

from plaunch.texts import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

PROC = "/proc"

Identity = tuple[int, int]  # pid and start time

_MAX_BYTES = 1 << 24  # of one file; a process may change its own command line and environment
_STAT_BYTES = 4096
_MOST_READS = 16  # of the lists of children, while threads end
_ENDED = ("Z", "X", "x")  # states of processes that have ended
_SHELLS = frozenset({"ash", "bash", "busybox", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})


# --- files ----------------------------------------------------------------------------------------


def read_proc(name: str, proc: str = PROC) -> bytes:
    """Read a file of /proc, such as `self/status`; empty if it is gone or may not be read."""
    try:
        return _read(name, proc)
    except OSError:
        return b""


def list_numbers(folder: str = "", proc: str = PROC) -> set[int]:
    """List the numbers in a folder such as `self/task`; by default, of all processes."""
    try:
        return {int(name) for name in os.listdir(f"{proc}/{folder}") if name.isdigit()}
    except OSError:
        return set()


def read_link(name: str, proc: str = PROC) -> str:
    """Read the target of a link, such as `self/exe`; empty if it is gone or may not be read."""
    try:
        return os.readlink(f"{proc}/{name}")
    except OSError:
        return ""


def read_fds(pid: int | str, proc: str = PROC) -> dict[int, str]:
    """Read the open files of a process by descriptor: a path, or a name such as `socket:[1234]`."""
    targets = {fd: read_link(f"{pid}/fd/{fd}", proc) for fd in list_numbers(f"{pid}/fd", proc)}
    return {fd: target for fd, target in targets.items() if target}


def find_field(status: bytes, name: str) -> str:
    """Find the value of a field of `status`, such as `Uid`; empty if it is missing."""
    value = status.partition(f"\n{name}:".encode())[2].partition(b"\n")[0]
    return value.decode(errors="replace").strip()


def find_variable(environ: bytes, name: str) -> str:
    """Find the value of a variable in an environment of /proc; empty if it is missing."""
    value = (b"\0" + environ).partition(f"\0{name}=".encode())[2].partition(b"\0")[0]
    return os.fsdecode(value)


def read_stat(pid: int | str, proc: str = PROC) -> list[bytes]:
    """Read the fields of `stat` from the state on; empty if the process is gone."""
    try:
        fd = os.open(f"{proc}/{pid}/stat", os.O_RDONLY)
        try:
            data = os.read(fd, _STAT_BYTES)
        finally:
            os.close(fd)
    except OSError:
        return []
    # The name in parentheses may contain anything, parentheses and spaces too.
    return data.rpartition(b")")[2].split()


def _read(name: str, proc: str) -> bytes:
    with open(f"{proc}/{name}", "rb", buffering=0) as file:
        return file.readall()[:_MAX_BYTES]


def _first_line(name: str, proc: str) -> str:
    return read_proc(name, proc).partition(b"\n")[0].decode("utf-8", "replace").strip()


# --- one process ----------------------------------------------------------------------------------


def find_environ(pid: int, proc: str = PROC) -> bytes | None:
    """Find the environment that a program was started with; None if it may not be read.

    Empty if the process is gone, and during its execve.
    """
    try:
        return _read(f"{pid}/environ", proc)
    except PermissionError:
        return None
    except OSError:
        return b""


def read_environ(pid: int, proc: str = PROC) -> bytes:
    """Read the environment that a program was started with; empty if it may not be read."""
    return find_environ(pid, proc) or b""


def read_state(pid: int, proc: str = PROC) -> str:
    """Read the state letter of a process (`D` sleeps uninterruptibly); empty if it is gone."""
    fields = read_stat(pid, proc)
    return fields[0].decode() if fields else ""


def read_user(pid: int, proc: str = PROC) -> int:
    """Read the real user id of a process; -1 if it is gone."""
    user = find_field(read_proc(f"{pid}/status", proc), "Uid")
    return int(user.split()[0]) if user else -1


def read_command(pid: int | str, proc: str = PROC) -> list[str]:
    """Read the words of the command line of a process; empty if it is gone."""
    return [os.fsdecode(word) for word in read_proc(f"{pid}/cmdline", proc).split(b"\0")[:-1]]


def read_name(pid: int | str, proc: str = PROC) -> str:
    """Read the short name of a process, which it chooses itself; empty if it is gone."""
    return printable(_first_line(f"{pid}/comm", proc))


def read_masks(proc: str = PROC) -> tuple[int, int] | None:
    """Read the signals that this process ignores and catches; Python knows only its handlers.

    Returns:
        Both masks, with bit n-1 for signal n; None if they cannot be read, for want of a descriptor
        for instance.
    """
    status = read_proc("self/status", proc)
    try:
        ignored, caught = (find_field(status, name) for name in ("SigIgn", "SigCgt"))
        return (int(ignored or "0", 16), int(caught or "0", 16)) if status else None
    except ValueError:
        return None


def read_adopted(proc: str = PROC) -> set[int] | None:
    """Read the process ids of the main thread's children; None if the kernel does not list them.

    The kernel gives orphans, and the children of threads that have ended, to the first thread that
    runs, which is the main thread. Reading only that costs one file instead of one per thread.
    """
    try:
        return set(map(int, _read(f"self/task/{os.getpid()}/children", proc).split()))
    except (OSError, ValueError):
        return None


def read_children(proc: str = PROC) -> set[int] | None:
    """Read the process ids of this process's children; None if the kernel does not list them.

    Each thread has its own. When one ends, its children pass to another thread, which may have been
    read already: then all are read again. None as well if threads end all the time.
    """
    folder = f"{proc}/self/task"
    for _ in range(_MOST_READS):
        children: set[int] = set()
        task = ""
        try:
            tasks = os.listdir(folder)
            for task in tasks:
                children.update(map(int, _read(f"self/task/{task}/children", proc).split()))
            if len(tasks) == 1 or set(tasks).issubset(os.listdir(folder)):
                return children
        except (FileNotFoundError, ProcessLookupError):
            if os.path.exists(f"{folder}/{task}") or not os.path.exists(folder):
                return None
        except (OSError, ValueError):
            return None
    return None


def find_processor_wait(proc: str = PROC) -> float | None:
    """Find the seconds that this thread waited for a processor; None if unknown."""
    fields = read_proc("thread-self/schedstat", proc).split()
    return int(fields[1]) / 1e9 if len(fields) > 1 and fields[1].isdigit() else None


def may_signal(pid: int) -> bool:
    """Whether this user may signal a process; also if it is gone."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True


def is_waiting_for_child(pid: int, proc: str = PROC) -> bool:
    """Whether a process is a shell, or its first thread only waits for a child to end."""
    if read_name(pid, proc) in _SHELLS:
        return True
    return _first_line(f"{pid}/wchan", proc).startswith("do_wait")


def read_stack(pid: int, proc: str = PROC) -> list[str]:
    """Read the kernel functions that a process is in, the innermost first; only root may."""
    # Lines are "[<0>] io_schedule+0x46/0x80".
    lines = read_proc(f"{pid}/stack", proc).decode(errors="replace").splitlines()
    return [line.rpartition("] ")[2].partition("+")[0] for line in lines]


def read_waiting_place(pid: int, proc: str = PROC) -> str:
    """Find the kernel function that a process sleeps in; empty if the kernel does not say."""
    place = _first_line(f"{pid}/wchan", proc)
    return place if place not in ("", "0") else next(iter(read_stack(pid, proc)), "")


def describe_process(pid: int, proc: str = PROC) -> str:
    """Describe a process: its pid, its state, and where it waits as far as the kernel says."""
    state = read_state(pid, proc)
    if not state:
        return f"pid {pid} (state unknown)"
    place = read_waiting_place(pid, proc)
    return f"pid {pid} (state {state}{f', waits in {place}' if place else ''})"


# --- the table of processes -----------------------------------------------------------------------


class Process(NamedTuple):
    """One process as it was when the table was read.

    A pid is reused once its process is gone; pid and `start` together are unique. `start` is in
    clock ticks since the system was booted, or -1 if unknown.
    """

    pid: int
    ppid: int = -1
    pgrp: int = -1
    session: int = -1
    state: str = ""
    start: int = -1
    is_alive: bool = True

    @property
    def identity(self) -> Identity:
        """Pid and start time, which no other process has."""
        return self.pid, self.start

    def send_signal(self, signum: signal.Signals, proc: str = PROC) -> bool:
        """Send a signal to this process, never to another one that has reused its pid.

        Returns:
            Whether it was sent; False if the process is gone.

        Raises:
            PermissionError: it runs as another user.
        """
        pidfd = open_pidfd(self.pid)
        try:
            now = read_process(self.pid, proc)
            if now is None or now.start != self.start:
                return False
            if pidfd >= 0:
                signal.pidfd_send_signal(pidfd, signum)
            else:
                os.kill(self.pid, signum)
        except ProcessLookupError:
            return False
        finally:
            if pidfd >= 0:
                os.close(pidfd)
        return True


def open_pidfd(pid: int) -> int:
    """Open a descriptor of a process, which is readable when the process has ended.

    -1 on old kernels, in containers that forbid it, without free descriptors, for a process that is
    gone, and with `PLAUNCH_NO_PIDFD=1` in the environment.
    """
    if os.environ.get("PLAUNCH_NO_PIDFD", "0") not in ("", "0") or not hasattr(os, "pidfd_open"):
        return -1
    try:
        return os.pidfd_open(pid)
    except OSError:
        return -1


def wait_for_end(pidfd: int, seconds: float) -> None:
    """Wait at most so long for the end of the process of a pidfd; do not wait for -1."""
    if pidfd >= 0:
        from plaunch.durations import milliseconds  # not in the guard

        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.poll(milliseconds(seconds))


def check_table(proc: str = PROC) -> None:
    """Check that /proc lists processes, where the launcher finds what workers have started.

    Raises:
        UsageError: it does not, as in a chroot in which it is not mounted.
    """
    if not os.path.exists(f"{proc}/self/stat") and not os.path.exists(f"{proc}/{os.getpid()}/stat"):
        from plaunch.errors import UsageError  # not in the guard

        raise UsageError(
            f"{proc} does not show processes here, and plaunch finds those of workers there; mount "
            f"it: mount -t proc proc {proc}"
        )


def read_process(pid: int, proc: str = PROC) -> Process | None:
    """Read one process; None if it is gone or cannot be read."""
    try:
        fields = read_stat(pid, proc)
        state = fields[0].decode()
        return Process(
            pid,
            ppid=int(fields[1]),
            pgrp=int(fields[2]),
            session=int(fields[3]),
            state=state,
            start=int(fields[19]),
            # If only the first thread has ended, the process looks like a zombie.
            is_alive=state not in _ENDED or (state == "Z" and int(fields[17]) > 1),
        )
    except (IndexError, ValueError):
        return None


def find_identity(pid: int, proc: str = PROC) -> Identity:
    """Find the pid of a process, and its start time; -1 if that cannot be read."""
    process = read_process(pid, proc)
    return (pid, -1) if process is None else process.identity


def read_table(proc: str = PROC) -> dict[int, Process]:
    """Read all processes by pid, with zombies; empty without /proc.

    It is read process by process, so that a process that starts meanwhile may be missing.
    """
    processes = (read_process(pid, proc) for pid in list_numbers(proc=proc))
    return {process.pid: process for process in processes if process is not None}


def ancestors_of(table: Mapping[int, Process], pid: int) -> set[int]:
    """Return the pids of a process, its parent, and so on."""
    found: set[int] = set()
    while pid in table and pid not in found:
        found.add(pid)
        pid = table[pid].ppid
    return found


def children_by_parent(table: Mapping[int, Process]) -> dict[int, list[int]]:
    """Return the pids of the children of each process that has any."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.ppid, []).append(process.pid)
    return children


def descend(
    owners: dict[int, int], children: Mapping[int, list[int]], excluded: Collection[int]
) -> None:
    """Add the descendants of the processes in `owners`, with the same owner."""
    open_ends = list(owners)
    while open_ends:
        pid = open_ends.pop()
        for child in children.get(pid, ()):
            if child not in owners and child not in excluded:
                owners[child] = owners[pid]
                open_ends.append(child)
