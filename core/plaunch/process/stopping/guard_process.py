"""The code of the guard: it waits for the end of the launcher, then kills what the workers left.

The guard is small on purpose. It has its own session, ignores every signal that can be ignored,
holds two descriptors and none of the launcher's, and writes nothing.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from plaunch.process.marks import MAX_LINE
from plaunch.process.own_process import hide_secrets, set_title
from plaunch.process.proc import PROC, list_numbers
from plaunch.process.stopping.evidence import Origin
from plaunch.process.stopping.tree import ProcessTree

if TYPE_CHECKING:
    from collections.abc import Callable

_POLL = 0.25  # seconds between two polls of the launcher without a pidfd
_SHORT_PAUSE = 0.002  # seconds between two passes, at first
_LONG_PAUSE = 0.05
_UNKILLABLE = 10.0  # seconds after SIGKILL after which the guard gives up
_MANY_DESCRIPTORS = 1 << 12
_SETTLED = 0.05  # seconds without a find, for children of processes that were just killed
_LATE_COMER = 10.0  # seconds for a process that holds the pipe to get its title


def run_guard(pipe: int, pidfd: int, launcher: int, proc: str = PROC) -> None:
    """Guard the workers of `launcher`, this process's parent; return when nothing is left to kill.

    Args:
        pipe: receives the lines of the protocol.
        pidfd: a pidfd of the launcher, or -1 to poll the parent's process id.
        launcher: its process id.
        proc: the folder of processes.
    """
    _become_guard((pipe, pidfd), launcher, proc)
    os.set_blocking(pipe, False)
    state = GuardState(pipe, proc)
    _wait_for_end(state, pidfd, launcher)
    clear(state)
    if state.folder:
        _remove(state.folder)


def clear(state: GuardState, *, clock: Callable[[], float] = time.monotonic) -> None:
    """Kill in passes until nothing is found and no unknown process can appear.

    A worker that was just forked cannot be found yet, but it holds the pipe. A process in the
    middle of an execve can be judged a little later.
    """
    pause = _SHORT_PAUSE
    quiet_since = first_found = None
    while True:
        state.receive()
        found = _kill_all(state.tree)
        now = clock()
        if found:
            quiet_since = None
            first_found = now if first_found is None else first_found
            if now - first_found > _UNKILLABLE:
                return
        else:
            first_found = None
            quiet_since = now if quiet_since is None else quiet_since
            is_clear = state.is_over and (state.tree is None or state.tree.is_sure())
            if now - quiet_since > (_SETTLED if is_clear else _LATE_COMER):
                return
        state.wait(pause)
        pause = min(pause * 1.5, _LONG_PAUSE)


def _kill_all(tree: ProcessTree | None) -> bool:
    """Kill everything that is found; return whether there was a process that may be killed."""
    if tree is None:
        return False
    found = [process for processes in tree.scan().values() for process in processes]
    killed, refused = tree.kill_all(found)
    return len(killed) > len(refused)


class GuardState:
    """What the guard has received through its end of the pipe."""

    def __init__(self, pipe: int, proc: str = PROC) -> None:
        self.tree: ProcessTree | None = None
        self.folder = ""
        self.pipe = pipe
        self.is_over = False  # whether no process holds the other end
        self._proc = proc
        self._rest = b""

    def receive(self) -> None:
        """Read the lines that have come; invalid ones are ignored."""
        while not self.is_over:
            try:
                data = os.read(self.pipe, 1 << 16)
            except BlockingIOError:
                return
            self.is_over = not data
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                # A worker may have written to the descriptor by mistake.
                if len(line) <= MAX_LINE:
                    with contextlib.suppress(ValueError):
                        self._take(line.decode("ascii").split(" "))
            self._rest = self._rest[: MAX_LINE + 1]

    def wait(self, seconds: float) -> None:
        """Wait at most `seconds` for a line."""
        if self.is_over:
            time.sleep(seconds)
            return
        poller = select.poll()
        poller.register(self.pipe, select.POLLIN)
        poller.poll(seconds * 1000)

    def _take(self, fields: list[str]) -> None:
        if fields[0] == "job":
            _, job, since, has_forked, folder = fields
            path = "" if folder == "-" else os.fsdecode(bytes.fromhex(folder))
            self.tree = ProcessTree(
                Origin(
                    job=job.encode(),
                    proc=self._proc,
                    since=int(since),
                    has_forked=has_forked == "1",
                )
            )
            self.folder = path
        elif fields[0] == "process" and self.tree is not None:
            _, rank, pid, start = fields
            if int(pid) > 1 and int(start) >= 0:
                self.tree.add_leader(int(rank), int(pid), int(start))


def _wait_for_end(state: GuardState, pidfd: int, launcher: int) -> None:
    """Read lines until the launcher is gone.

    The end of the pipe alone does not show that: a launcher may close it and keep running, and
    workers may hold it when the launcher is gone.
    """
    while True:
        poller = select.poll()
        if not state.is_over:
            poller.register(state.pipe, select.POLLIN)
        if pidfd >= 0:
            poller.register(pidfd, select.POLLIN)
        ready = poller.poll(None if pidfd >= 0 else _POLL * 1000)
        state.receive()
        if any(fd == pidfd for fd, _ in ready) or os.getppid() != launcher:
            return


def _become_guard(kept: tuple[int, ...], launcher: int, proc: str) -> None:
    for signum in signal.valid_signals():
        # SIGKILL, SIGSTOP and the signals of the C library cannot be ignored.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    if os.getsid(0) != os.getpid():
        os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    _close_all_but({0, 1, 2, *kept})
    # A user who kills by name (pkill -f train.py) means the launcher, not its guard.
    set_title(f"workers-guard of pid {launcher}", f"guard of {launcher}", "guard", proc=proc)
    hide_secrets(proc)  # a forked guard has the launcher's
    with contextlib.suppress(OSError), open(f"{proc}/self/comm", "w") as comm:
        comm.write("workers-guard")


def _close_all_but(kept: set[int]) -> None:
    for fd in (list_numbers("self/fd") or {*range(_MANY_DESCRIPTORS)}) - kept:
        with contextlib.suppress(OSError):  # one was that of the listing
            os.close(fd)


def _remove(folder: str) -> None:
    from plaunch.process.logs import remove_temporary  # only after the launcher

    with contextlib.suppress(OSError):
        remove_temporary(folder)
