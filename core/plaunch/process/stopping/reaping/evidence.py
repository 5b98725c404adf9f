"""Which job a process belongs to, by its environment, its command line and its user."""

from __future__ import annotations

import os
import time
import types
from typing import TYPE_CHECKING

from plaunch.process.kernel import proc
from plaunch.process.launcher_variables import is_started_by_launcher
from plaunch.process.stopping.reaping import job_tag
from plaunch.process.stopping.reaping.own_children import POPEN_WAIT, find_held

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch.process.kernel.processes import Identity, Process

_BLANK = 0.2  # seconds; during an execve, a process has no environment for much less than that
_KERNEL_THREADS = 2  # the pid of their parent


class Origin(types.SimpleNamespace):
    """How the processes of one job are recognized."""

    job: bytes  # the name in its tags
    proc: str = proc.PROC  # the folder of processes
    since: int = 0  # the start time of the launcher in clock ticks; older processes do not count
    has_forked: bool = False  # whether workers may be forked, with their tags in the command line
    adopter: int = 0  # the launcher, if it is plaunch's own process and inherits orphans; else 0
    # Whether that is the first process of a container, which also inherits unrelated orphans.
    is_init: bool = False
    spared: Collection[Identity] = ()  # processes that are never the workers'; it may grow
    clock: Callable[[], float] = time.monotonic  # seconds that never go back


class Evidence:
    """Finds the tag of one job, and the mark of its launcher, in single processes."""

    def __init__(self, origin: Origin) -> None:
        self.is_unsure = False  # whether a process cannot be judged yet
        self._origin = origin
        self._proc = origin.proc
        self._unclear_since: dict[Identity, float] = {}
        self._hidden_own: set[Identity] = set()

    def find_rank(self, process: Process) -> int | None:
        """The local rank of a process by its tag; None without a tag."""
        if not process.is_alive or process.start < self._origin.since:  # most processes are older
            return None
        environ = proc.find_environ(process.pid, self._proc)
        if (
            environ == b""
            and process.ppid != _KERNEL_THREADS
            and proc.read_user(process.pid, self._proc) == os.getuid()
        ):
            self._has_been(process, _BLANK)
        rank = job_tag.find_rank(environ or b"", self._origin.job)
        if rank is None and self._origin.has_forked:
            title = proc.read_proc(f"{process.pid}/cmdline", self._proc)
            rank = job_tag.find_rank_in_title(title, self._origin.job)
        if rank is not None and proc.read_user(process.pid, self._proc) != os.getuid():
            return None
        return rank

    def is_launchers(self, process: Process) -> bool:
        """Whether a living process is, or may be, a child of the launcher other than a worker.

        Descendants of such children count as well.
        """
        environ = proc.find_environ(process.pid, self._proc)
        if environ is None:
            return self._is_hidden_launchers(process)
        if not environ:
            return not self._has_been(process, _BLANK)
        if is_started_by_launcher(environ, self._origin.adopter):
            return True
        # Or a fork of the launcher before its execve.
        return not self._origin.has_forked and environ == proc.read_environ(
            self._origin.adopter, self._proc
        )

    def has_mark(self, process: Process) -> bool:
        """Whether a process has the mark of the launcher, or inherited it."""
        environ = proc.read_environ(process.pid, self._proc)
        return is_started_by_launcher(environ, self._origin.adopter)

    def _is_hidden_launchers(self, process: Process) -> bool:
        """The same for a process with a hidden environment: ssh-agent, sudo, other users'."""
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

        Otherwise it may be in the middle of an execve, or have just been started; the last look is
        unsure then.
        """
        now = self._origin.clock()
        since = self._unclear_since.setdefault(process.identity, now)
        has_been = now - since >= seconds
        self.is_unsure |= not has_been
        return has_been
