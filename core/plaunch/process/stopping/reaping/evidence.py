"""What a process itself tells of where it came from: its environment, its title, its user."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from plaunch.process.kernel.processes import PROC, Identity, Process
from plaunch.process.stopping.reaping import job_tag
from plaunch.process.stopping.reaping.handles import HANDLE_WAIT, find_handled

if TYPE_CHECKING:
    from collections.abc import Callable

_BLANK = 0.2  # seconds; who becomes another program has no environment for much less than that
_KERNEL_THREADS = 2  # the number of the parent of all of them


class Evidence:
    """Asks single processes for the word of one job, and for the mark of its launcher.

    Args:
        job: the name in the words of `PLAUNCH_JOBS`.
        proc: where the system tells its processes.
        since: the start of the launcher in clock ticks; nothing older can be a worker's.
        has_forked: whether workers may be forked, and then show their words in their title.
        launcher: the number of the launcher, if orphans are to be told from its own children.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        job: str,
        *,
        proc: str = PROC,
        since: int = 0,
        has_forked: bool = False,
        launcher: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_unsure = False  # whether somebody may turn out to be another one in a moment
        self._job = job.encode()
        self._proc = proc
        self._since = since  # most processes are older, and need no second look
        self._has_forked = has_forked
        self._launcher = launcher
        self._clock = clock
        self._unclear_since: dict[Identity, float] = {}
        self._hidden_own: set[Identity] = set()

    def find_rank(self, process: Process) -> int | None:
        """The local rank of a process by its word; None if it has none."""
        if not process.is_alive or process.start < self._since:
            return None
        environ = job_tag.find_environ(process.pid, self._proc)
        if (
            environ == b""
            and process.ppid != _KERNEL_THREADS
            and job_tag.read_user(process.pid, self._proc) == os.getuid()
        ):
            self._has_been(process, _BLANK)
        rank = job_tag.find_rank(environ or b"", self._job)
        if rank is None and self._has_forked:
            title = job_tag.read_title(process.pid, self._proc)
            rank = job_tag.find_rank_in_title(title, self._job)
        if rank is not None and job_tag.read_user(process.pid, self._proc) != os.getuid():
            return None
        return rank

    def is_launchers(self, process: Process) -> bool:
        """Whether the launcher, or what it has started, has started a living process, or may have.

        Workers and what they have started are none of these.
        """
        environ = job_tag.find_environ(process.pid, self._proc)
        if environ is None:
            return self._is_hidden_launchers(process)
        if not environ:
            return not self._has_been(process, _BLANK)
        if job_tag.is_started_by_launcher(environ, self._launcher):
            return True
        # Or a fork of the launcher, which is still to become another program.
        return not self._has_forked and environ == job_tag.read_environ(self._launcher, self._proc)

    def has_mark(self, process: Process) -> bool:
        """Whether a process shows that the launcher, or what it has started, has started it."""
        environ = job_tag.read_environ(process.pid, self._proc)
        return job_tag.is_started_by_launcher(environ, self._launcher)

    def _is_hidden_launchers(self, process: Process) -> bool:
        """The same of one that does not show its environment: ssh-agent, sudo, other users'."""
        identity = process.identity
        if identity in self._hidden_own:
            return True
        try:
            os.kill(process.pid, 0)
        except PermissionError:
            return True  # if it is an orphan after all, nothing can be done about it
        except ProcessLookupError:
            return False
        if not self._has_been(process, HANDLE_WAIT):
            return True
        if process.pid in find_handled():
            self._hidden_own.add(identity)
            return True
        return False

    def _has_been(self, process: Process, seconds: float) -> bool:
        """Whether a process has been without an environment for so long, to be sure of it.

        It may also be in the middle of becoming another program, and would be taken for a stranger,
        or have been started a moment ago: the last look is not sure of it then.
        """
        now = self._clock()
        since = self._unclear_since.setdefault(process.identity, now)
        has_been = now - since >= seconds
        self.is_unsure |= not has_been
        return has_been
