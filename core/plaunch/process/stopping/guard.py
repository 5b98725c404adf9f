"""Keeps a guard running, a process that ends the workers if the launcher is killed."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import sys
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.process.marks import process_line
from plaunch.process.proc import (
    PROC,
    find_identity,
    list_numbers,
    open_pidfd,
    read_proc,
    wait_for_end,
)

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from plaunch.process.children import ExitPoller
    from plaunch.process.proc import Identity

_log = logging.getLogger("plaunch")

_GUARDS, _GUARDS_PERIOD = 5, 10.0  # at most so many guards in so many seconds, if they are killed
_END_WAIT = 2.0  # seconds for a killed guard to end
_END_POLL = 0.001  # seconds between two polls without a pidfd

_PROGRAM = """\
import sys
sys.path.append({path!r})
from plaunch.process.stopping.guard_process import run_guard
run_guard({pipe}, {pidfd}, {launcher}, {proc!r})
"""


class Guard:
    """The running guard of this process; see `start_guard`."""

    def __init__(self, pid: int, line: int, program: subprocess.Popen[bytes] | None) -> None:
        self.pid = pid
        self.line_fd: int = line
        self._program = program
        self._is_gone = False
        self._pidfd = open_pidfd(pid)
        self._poller: ExitPoller | None = None

    def send(self, line: bytes) -> None:
        """Send it a line if it still runs; never waits."""
        if self._is_gone:
            return
        try:
            os.write(self.line_fd, line)
        except BlockingIOError:
            _log.warning("the guard (pid %d) does not read; it may miss workers", self.pid)
        except OSError:
            self._is_gone = True  # it was killed

    def is_alive(self) -> bool:
        """Whether it still runs; reaps it if it has ended."""
        if not self._is_gone:
            self._is_gone = self._reap()
        return not self._is_gone

    def dismiss(self) -> None:
        """Kill and reap it, because there is nothing left to guard."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                if self._pidfd >= 0:
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                else:
                    os.kill(self.pid, signal.SIGKILL)
            self._wait()
        self.close()

    def wake(self, poller: ExitPoller | None) -> None:
        """Wake this poller, and no other, when the guard ends."""
        if self._pidfd >= 0:
            if self._poller is not None:
                self._poller.remove_fd(self._pidfd)
            if poller is not None:
                poller.add_fd(self._pidfd)
        self._poller = poller

    def own_fds(self) -> list[int]:
        """Return all its descriptors in the launcher, which a forked child must close."""
        return [fd for fd in (self.line_fd, self._pidfd) if fd >= 0]

    def close(self) -> None:
        """Release the descriptors; may be called more than once."""
        self.wake(None)
        for fd in self.own_fds():
            os.close(fd)
        self.line_fd = self._pidfd = -1

    def _wait(self) -> None:
        """Reap it after SIGKILL; give up if it does not end within a bound."""
        deadline = time.monotonic() + _END_WAIT
        wait_for_end(self._pidfd, _END_WAIT)
        while not self._reap() and time.monotonic() < deadline:
            time.sleep(_END_POLL)
        self._is_gone = True

    def _reap(self) -> bool:
        """Reap it if it has ended; return whether it has."""
        if self._program is not None:
            return self._program.poll() is not None
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] == self.pid
        except ChildProcessError:
            return True  # other code in this process has reaped it


def is_forkable(most: int = 96 << 20) -> bool:
    """Whether this process is small and has one thread, counting those of C code.

    Args:
        most: bytes; forking a larger process takes longer than starting an interpreter.
    """
    try:
        resident = int(read_proc("self/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (IndexError, ValueError):
        return False
    return resident <= most and len(list_numbers("self/task")) == 1


def start_guard(
    proc: str = PROC,
    *,
    is_repeated: bool = False,
    can_fork: Callable[[], bool] = is_forkable,
) -> Guard | None:
    """Start a guard of this process; logs a warning and returns None if the system refuses.

    A small process without threads is forked. Otherwise another interpreter is started, which takes
    longer but runs in parallel.

    Args:
        proc: the folder of processes.
        is_repeated: whether the system has refused before, so that the warning was logged.
        can_fork: whether to fork this process.
    """
    reader = line = launcher_fd = -1
    try:
        reader, line = os.pipe()
        # Not 0, 1 or 2, which the guard replaces; they are free if a launcher was started without.
        reader = _raised(reader)
        line = _raised(line)
        os.set_blocking(line, False)
        launcher_fd = _raised(open_pidfd(os.getpid()))
        if can_fork():
            return Guard(_fork_guard(reader, launcher_fd, proc), line, None)
        program = _start_program(reader, launcher_fd, proc)
        return Guard(program.pid, line, program)
    except (OSError, ValueError) as error:
        from plaunch.capacity import explain  # errors only

        if line >= 0:
            os.close(line)
        _log.log(
            logging.DEBUG if is_repeated else logging.WARNING,
            "no guard process; workers may outlive this launcher if it gets SIGKILL: %s",
            explain(error),
        )
        return None
    finally:
        for fd in (reader, launcher_fd):
            if fd >= 0:
                os.close(fd)


def _fork_guard(reader: int, launcher_fd: int, proc: str) -> int:
    from plaunch.process.stopping.guard_process import run_guard  # forked guards only

    launcher = os.getpid()
    # Until the guard ignores signals, the launcher's handlers would run in it. Real-time signals
    # without a name have no handlers, and would take Python a millisecond.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.Signals)
    try:
        pid = os.fork()
        if pid:
            return pid
        try:
            signal.set_wakeup_fd(-1)
            run_guard(reader, launcher_fd, launcher, proc)
        finally:
            # None of the launcher's code may run here, not even its report of an exception.
            os._exit(0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _start_program(reader: int, launcher_fd: int, proc: str) -> subprocess.Popen[bytes]:
    import subprocess  # only where the guard is not forked

    from plaunch.process.marks import without_secrets  # as above

    if not sys.executable:
        raise OSError("this process does not know its Python interpreter")
    code = _PROGRAM.format(
        path=os.path.dirname(sys.modules[__name__.partition(".")[0]].__path__[0]),
        pipe=reader,
        pidfd=launcher_fd,
        launcher=os.getpid(),
        proc=proc,
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", code],
        env=without_secrets(os.environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[fd for fd in (reader, launcher_fd) if fd >= 0],
        start_new_session=True,
    )


def _raised(fd: int) -> int:
    if fd < 0 or fd > 2:
        return fd
    raised = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return raised


class GuardKeeper:
    """Keeps a guard running, and reports to it the processes of the workers that run.

    Args:
        is_enabled: whether there is a guard at all.
        proc: the folder of processes.
        clock: seconds that never go back.
        can_fork: whether the guard is a fork of this process, and not another program.
    """

    def __init__(
        self,
        *,
        is_enabled: bool,
        proc: str,
        clock: Callable[[], float],
        can_fork: Callable[[], bool],
    ) -> None:
        self.guard: Guard | None = None
        self._is_enabled = is_enabled
        self._proc = proc
        self._clock = clock
        self._can_fork = can_fork
        # What a guard must know: the job and its processes, except orphans that have ended.
        self._lines: dict[Identity | None, bytes] = {}
        self._spared: set[Identity] = set()
        self._poller: ExitPoller | None = None
        self._started_at: deque[float] = deque(maxlen=_GUARDS)
        self._was_refused = False  # the last guard could not be started

    def prepare(self) -> None:
        """Start the guard early, while it can be forked: before there are other threads."""
        if self._is_enabled and self.guard is None and self._can_fork():
            self.guard = start_guard(self._proc, can_fork=self._can_fork)

    def begin(self, job: bytes, spared: set[Identity], poller: ExitPoller | None) -> None:
        """Begin another start of workers, with a guard.

        Args:
            job: the `job_line` of the start.
            spared: receives the guards, which are not orphans.
            poller: woken when the guard ends, so that the caller calls `replace_killed`.
        """
        self._lines = {None: job}
        self._spared = spared
        self._poller = poller
        self._drop_dead()
        if self.guard is not None:
            self._brief(self.guard)
        elif self._is_enabled:
            self._start()

    def replace_killed(self) -> None:
        """Replace a guard that was killed; call it whenever the poller has woken, also in a stop.

        The new guard starts at once, unless guards keep being killed. If the system refuses one,
        this tries again every ten seconds.
        """
        if not (self._lines and self._is_enabled):
            return
        killed = self._drop_dead()
        starts = self._started_at
        since = starts[-1] if self._was_refused else starts[0] if len(starts) == _GUARDS else None
        is_soon = since is not None and self._clock() - since < _GUARDS_PERIOD
        if self.guard is None and not is_soon:
            self._start()
        if killed:  # logged last: a message takes time, during which workers would have no guard
            _log.warning("the guard (pid %d) was killed; another one takes over", killed.pid)

    def report(self, rank: int, identity: Identity) -> None:
        """Report a process of the job to this guard and to later ones, unless they know it."""
        line = process_line(rank, *identity)
        if self._lines.get(identity) == line:
            return
        self._lines[identity] = line
        if self.guard is not None:
            self.guard.send(line)

    def forget(self, identity: Identity) -> None:
        """Do not report a process to later guards, because it has ended."""
        self._lines.pop(identity, None)

    def line_fd(self) -> int | None:
        """Return the pipe which a worker holds until it can be found; None without a guard.

        It is close-on-exec, and belongs to the guard.
        """
        return self.guard.line_fd if self.guard is not None and self.guard.is_alive() else None

    def own_fds(self) -> list[int]:
        """Return all descriptors that a forked worker must close."""
        return [] if self.guard is None else self.guard.own_fds()

    def close(self) -> None:
        """End the guard; the workers are gone, or are spared."""
        self._lines = {}
        if self.guard is not None:
            self.guard.dismiss()
            self.guard = None

    def _drop_dead(self) -> Guard | None:
        if self.guard is None or self.guard.is_alive():
            return None
        dead, self.guard = self.guard, None
        dead.close()
        return dead

    def _start(self) -> None:
        self._started_at.append(self._clock())
        self.guard = guard = start_guard(
            self._proc, is_repeated=self._was_refused, can_fork=self._can_fork
        )
        if guard is not None:
            if self._was_refused:
                _log.info("the guard process (pid %d) has started now", guard.pid)
            self._brief(guard)
        self._was_refused = guard is None

    def _brief(self, guard: Guard) -> None:
        guard.wake(self._poller)
        self._spared.add(find_identity(guard.pid, self._proc))
        for line in self._lines.values():
            guard.send(line)
