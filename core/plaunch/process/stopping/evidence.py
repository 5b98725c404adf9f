"""Whose a process is: a worker's, by its tag, or a child that the launcher has started itself."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import time
import types
from typing import TYPE_CHECKING

from plaunch.process.marks import find_rank, find_rank_in_title, is_started_by_launcher
from plaunch.process.proc import PROC, find_environ, read_environ, read_proc, read_user

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch.process.proc import Identity, Process


_POPEN = ("subprocess", "multiprocessing.popen_fork")  # modules with a class of that name

# Seconds after which code that has started a process has created its `Popen` object.
POPEN_WAIT = 1.0


def find_held() -> set[int]:
    """Find the ids of all processes with a `Popen` object in this process.

    This goes through all objects of the interpreter, which takes milliseconds.
    """
    kinds = tuple(
        kind
        for module in _POPEN
        if isinstance(kind := getattr(sys.modules.get(module), "Popen", None), type)
    )
    if not kinds:
        return set()
    return {
        pid
        for thing in gc.get_objects()
        if issubclass(type(thing), kinds) and isinstance(pid := getattr(thing, "pid", None), int)
    }


class ZombieReaper:
    """Reaps orphans that were re-parented to the launcher and have ended.

    Their exit codes are not needed. A child that a plugin has started is not reaped: it is in the
    launcher's session, or was seen with the launcher's mark, or has a `Popen` object. A process
    that was never seen alive is reaped after a second.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._own: set[Identity] = set()  # children that the launcher has started
        self._suspects: dict[Identity, float] = {}

    def reap(self, children: Iterable[Process], is_launchers: Callable[[Process], bool]) -> None:
        """Reap those of the launcher's children that are orphans, and have ended.

        Args:
            children: the launcher's children, without workers, their known orphans, and the guard.
            is_launchers: whether the launcher has, or may have, started a living child.
        """
        session = os.getsid(0)
        own: set[Identity] = set()
        unclear: list[Process] = []
        for process in children:
            if process.session == session:
                continue
            if process.identity in self._own:
                own.add(process.identity)
            elif process.session != process.pid:
                if not process.is_alive:
                    reap(process.pid)
            elif not process.is_alive:
                unclear.append(process)
            elif is_launchers(process):
                own.add(process.identity)
        self._own = own
        # Leaders of sessions that were not seen alive are reaped, unless a `Popen` object waits.
        now = self._clock()
        self._suspects = {
            process.identity: self._suspects.get(process.identity, now) for process in unclear
        }
        due = {pid for (pid, _), since in self._suspects.items() if now - since >= POPEN_WAIT}
        for pid in due - find_held() if due else ():
            reap(pid)


def reap(pid: int) -> bool:
    """Reap a child if it has ended; return whether it had.

    By its id: waiting for any child would take exit codes away from other code.
    """
    with contextlib.suppress(ChildProcessError):
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None
    return False


_EMPTY = 1.0  # seconds; one scan may miss a process that forks and exits, but not all scans
_BLANK = 0.2  # seconds; during an execve, a process has no environment for much less than that
_KERNEL_THREADS = 2  # the pid of their parent


class Origin(types.SimpleNamespace):
    """How the processes of one job are recognized."""

    job: bytes  # the name in its tags
    proc: str = PROC  # the folder of processes
    since: int = 0  # the start time of the launcher in clock ticks; older processes do not count
    has_forked: bool = False  # whether workers may be forked, with their tags in the command line
    adopter: int = 0  # the launcher, if it is plaunch's own process and inherits orphans; else 0
    # Whether that is the first process of a container, which also inherits unrelated orphans.
    is_init: bool = False
    spared: set[Identity]  # processes that are never the workers'; it may grow
    clock: Callable[[], float] = time.monotonic  # seconds that never go back

    def __init__(self, **fields: object) -> None:
        super().__init__(**{"spared": set(), **fields})


class Evidence:
    """Finds the tag of one job, and the mark of its launcher, in single processes."""

    def __init__(self, origin: Origin) -> None:
        self.is_unsure = False  # whether a process cannot be judged yet
        self._origin = origin
        self._proc = origin.proc
        self._unclear_since: dict[Identity, float] = {}
        self._hidden_own: set[Identity] = set()

    def find_rank(self, process: Process) -> int | None:
        """Find the local rank of a process by its tag; None without a tag."""
        if not process.is_alive or process.start < self._origin.since:  # most processes are older
            return None
        environ = find_environ(process.pid, self._proc)
        if (
            environ == b""
            and process.ppid != _KERNEL_THREADS
            and read_user(process.pid, self._proc) == os.getuid()
        ):
            self._has_been(process, _BLANK)
        rank = find_rank(environ or b"", self._origin.job)
        if rank is None and self._origin.has_forked:
            title = read_proc(f"{process.pid}/cmdline", self._proc)
            rank = find_rank_in_title(title, self._origin.job)
        if rank is not None and read_user(process.pid, self._proc) != os.getuid():
            return None
        return rank

    def is_launchers(self, process: Process) -> bool:
        """Whether a living process is, or may be, a child of the launcher other than a worker.

        Descendants of such children count as well.
        """
        environ = find_environ(process.pid, self._proc)
        if environ is None:
            return self._is_hidden_launchers(process)
        if not environ:
            return not self._has_been(process, _BLANK)
        if is_started_by_launcher(environ, self._origin.adopter):
            return True
        # Or a fork of the launcher before its execve.
        return not self._origin.has_forked and environ == read_environ(
            self._origin.adopter, self._proc
        )

    def has_mark(self, process: Process) -> bool:
        """Whether a process has the mark of the launcher, or inherited it."""
        environ = read_environ(process.pid, self._proc)
        return is_started_by_launcher(environ, self._origin.adopter)

    def _is_hidden_launchers(self, process: Process) -> bool:
        """Judge a process with a hidden environment: ssh-agent, sudo, other users'."""
        identity = process.identity
        if identity in self._hidden_own:
            return True
        try:
            os.kill(process.pid, 0)
        except PermissionError:
            return True  # if it is an orphan, it cannot be ended anyway
        except ProcessLookupError:
            return False
        if not self._has_been(process, POPEN_WAIT):
            return True
        if process.pid in find_held():
            self._hidden_own.add(identity)
            return True
        return False

    def _has_been(self, process: Process, seconds: float) -> bool:
        """Whether a process has been without an environment for so long that it can be judged.

        Otherwise it may be in the middle of an execve, or have just been started; the last scan is
        unsure then.
        """
        now = self._origin.clock()
        since = self._unclear_since.setdefault(process.identity, now)
        has_been = now - since >= seconds
        self.is_unsure |= not has_been
        return has_been


class SessionOwners:
    """The local ranks of sessions, as long as the ids of the sessions cannot have been reused.

    An id is reserved while the session has a member. Process groups need no record: each is inside
    one session.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._ranks: dict[int, int] = {}
        self._empty_since: dict[int, float] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._ranks

    def add(self, number: int, rank: int) -> None:
        """Record a session that a process of this local rank leads."""
        self._ranks[number] = rank
        self._empty_since.pop(number, None)

    def find_rank(self, process: Process) -> int | None:
        """Find the local rank of a process by its session; None if the session is unknown."""
        return self._ranks.get(process.session)

    def confirm(self, process: Process) -> None:
        """Record that the session of a process has a member."""
        self._empty_since.pop(process.session, None)

    def forget(self, number: int) -> None:
        """Record that the id now belongs to another program."""
        self._ranks.pop(number, None)
        self._empty_since.pop(number, None)

    def update(self, table: Mapping[int, Process], owners: Mapping[int, int]) -> None:
        """Update from a table of all processes; `owners` has the ranks of the job's processes."""
        for pid, rank in owners.items():
            if table[pid].session == pid:
                self.add(pid, rank)
        inhabited = {process.session for process in table.values()}.union(owners)
        now = self._clock()
        for number in list(self._ranks):
            if number in table and number not in owners:
                self.forget(number)
            elif number in inhabited:  # or its leader runs, and has not made the session yet
                self._empty_since.pop(number, None)
            elif now - self._empty_since.setdefault(number, now) >= _EMPTY:
                self.forget(number)
