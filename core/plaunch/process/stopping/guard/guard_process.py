"""What runs in the guard: wait for the launcher's end, then end what its workers have become.

The guard is small on purpose. It has a session of its own, ignores every signal that can be
ignored, holds two descriptors and nothing of the launcher's, and writes to nobody.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from typing import TYPE_CHECKING

from plaunch.process.contexts.secrets import is_secret
from plaunch.process.kernel.processes import PROC
from plaunch.process.stopping.guard.protocol import Briefing
from plaunch.process.stopping.guard.title import blank_variables, set_title
from plaunch.process.stopping.reaping.hunt import hunt

if TYPE_CHECKING:
    from collections.abc import Callable

    from plaunch.process.kernel.processes import Process

_LOOK = 0.25  # seconds between two looks at the launcher where there is no pidfd
_SHORT_PAUSE = 0.002  # seconds between two passes, at first
_LONG_PAUSE = 0.05
_UNKILLABLE = 10.0  # seconds after which what outlives SIGKILL is left to its fate
_MANY_DESCRIPTORS = 1 << 12
_SETTLED = 0.05  # seconds without a find, for who is started by one that was killed a moment ago
_LATE_COMER = 10.0  # seconds for somebody who holds the pipe to become known


def run_guard(pipe: int, pidfd: int, launcher: int, proc: str = PROC) -> None:
    """Be the guard of `launcher`, this process's parent; returns when there is no more to do.

    Args:
        pipe: where lines come from.
        pidfd: a pidfd of the launcher, or -1 to look at who the parent is.
        launcher: its process id.
        proc: where the system tells its processes.
    """
    _become_guard((pipe, pidfd), launcher, proc)
    os.set_blocking(pipe, False)
    briefing = Briefing(proc)
    line = _Line(pipe, briefing)
    _wait_for_end(line, pidfd, launcher)
    clear(briefing, line)
    if briefing.folder:
        _remove(briefing.folder)


def clear(
    briefing: Briefing,
    line: _Line,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Kill in passes until nothing is found, and nobody can come who is not known yet.

    Between its start and its first own step, a worker has nothing by which it could be found; but
    it holds the pipe. Who is in the middle of becoming another program can be told a moment later.
    """
    pause = _SHORT_PAUSE
    quiet_since = first_found = None
    while True:
        line.drain()
        found = _kill_all(briefing)
        now = clock()
        if found:
            quiet_since = None
            first_found = now if first_found is None else first_found
            if now - first_found > _UNKILLABLE:
                return
        else:
            first_found = None
            quiet_since = now if quiet_since is None else quiet_since
            is_clear = line.is_over and (briefing.tree is None or briefing.tree.is_sure())
            if now - quiet_since > (_SETTLED if is_clear else _LATE_COMER):
                return
        line.wait(pause)
        pause = min(pause * 1.5, _LONG_PAUSE)


def _kill_all(briefing: Briefing) -> bool:
    """Kill everything that is found; whether there was anything that can be killed."""
    if briefing.tree is None:
        return False
    found: list[Process] = []
    for processes in briefing.tree.look().values():
        found.extend(processes)
    result = hunt(briefing.tree, found)
    return len(result.found) > len(result.refused)


class _Line:
    """The guard's end of the pipe."""

    def __init__(self, fd: int, briefing: Briefing) -> None:
        self.fd = fd
        self.is_over = False
        self._briefing = briefing

    def drain(self) -> None:
        """Take what has been written."""
        while not self.is_over:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            self.is_over = not data
            self._briefing.feed(data)

    def wait(self, seconds: float) -> None:
        """Wait until something is written, at most `seconds`."""
        if self.is_over:
            time.sleep(seconds)
            return
        poller = select.poll()
        poller.register(self.fd, select.POLLIN)
        poller.poll(seconds * 1000)


def _wait_for_end(line: _Line, pidfd: int, launcher: int) -> None:
    """Take lines until the launcher is gone.

    The end of the pipe alone does not say so: a launcher may close it and live on, and others may
    hold it when the launcher is gone.
    """
    while True:
        poller = select.poll()
        if not line.is_over:
            poller.register(line.fd, select.POLLIN)
        if pidfd >= 0:
            poller.register(pidfd, select.POLLIN)
        ready = poller.poll(None if pidfd >= 0 else _LOOK * 1000)
        line.drain()
        if any(fd == pidfd for fd, _ in ready) or os.getppid() != launcher:
            return


def _become_guard(kept: tuple[int, ...], launcher: int, proc: str) -> None:
    for signum in signal.valid_signals():
        # SIGKILL, SIGSTOP and those that belong to the C library cannot be ignored.
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
    # Whoever ends a job by name (pkill -f train.py) means the launcher, not its guard.
    set_title(f"workers-guard of pid {launcher}", f"guard of {launcher}", "guard", proc=proc)
    blank_variables(is_secret, proc=proc)  # a forked one has the launcher's
    with contextlib.suppress(OSError), open(f"{proc}/self/comm", "w") as comm:
        comm.write("workers-guard")


def _close_all_but(kept: set[int]) -> None:
    try:
        fds = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        fds = list(range(_MANY_DESCRIPTORS))
    for fd in fds:
        if fd not in kept:
            with contextlib.suppress(OSError):  # among them the one that listed the others
                os.close(fd)


def _remove(folder: str) -> None:
    from plaunch.process.streams.log_folders import remove_temporary  # noqa: PLC0415 - after the launcher's end

    with contextlib.suppress(OSError):
        remove_temporary(folder)
