"""What a process itself shows about its origin: its environment, its title, its user."""

from __future__ import annotations

import os
import time
import types
from typing import TYPE_CHECKING

from plaunch.process.kernel import details
from plaunch.process.kernel.processes import PROC, Identity, Process
from plaunch.process.launcher_variables import is_started_by_launcher
from plaunch.process.stopping.reaping import job_tag
from plaunch.process.stopping.reaping.own_children import POPEN_WAIT, find_held

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_BLANK = 0.2  # seconds; who becomes another program has no environment for much less than that
_KERNEL_THREADS = 2  # the number of the parent of all of them


class Origin(types.SimpleNamespace):
    """Where the processes of one job come from: what a look at all processes goes by."""

    job: bytes  # the name in its tags
    proc: str = PROC  # where the system tells its processes
    since: int = 0  # the start of the launcher in clock ticks; nothing older can be a worker's
    has_forked: bool = False  # whether workers may be forked, and then have their tags as title
    adopter: int = 0  # the launcher, if it is plaunch's own process and inherits orphans; else 0
    # Whether that is the first process of a container, which inherits those of strangers as well.
    is_init: bool = False
    spared: Collection[Identity] = ()  # processes that are never the workers'; it may grow
    clock: Callable[[], float] = time.monotonic  # seconds that never go back


class Evidence:
    """Asks single processes for the tag of one job, and for the mark of its launcher."""

    def __init__(self, origin: Origin) -> None:
        self.is_unsure = False  # whether somebody may turn out to be another one in a moment
        self._origin = origin
        self._proc = origin.proc
        self._unclear_since: dict[Identity, float] = {}
        self._hidden_own: set[Identity] = set()

    def find_rank(self, process: Process) -> int | None:
        """The local rank of a process by its tag; None if it has none."""
        if not process.is_alive or process.start < self._origin.since:  # most are older
            return None
        environ = details.find_environ(process.pid, self._proc)
        if (
            environ == b""
            and process.ppid != _KERNEL_THREADS
            and details.read_user(process.pid, self._proc) == os.getuid()
        ):
            self._has_been(process, _BLANK)
        rank = job_tag.find_rank(environ or b"", self._origin.job)
        if rank is None and self._origin.has_forked:
            title = details.read_title(process.pid, self._proc)
            rank = job_tag.find_rank_in_title(title, self._origin.job)
        if rank is not None and details.read_user(process.pid, self._proc) != os.getuid():
            return None
        return rank

    def is_launchers(self, process: Process) -> bool:
        """Whether the launcher, or what it has started, has started a living process, or may have.

        Workers and what they have started are none of these.
        """
        environ = details.find_environ(process.pid, self._proc)
        if environ is None:
            return self._is_hidden_launchers(process)
        if not environ:
            return not self._has_been(process, _BLANK)
        if is_started_by_launcher(environ, self._origin.adopter):
            return True
        # Or a fork of the launcher, which is still to become another program.
        return not self._origin.has_forked and environ == details.read_environ(
            self._origin.adopter, self._proc
        )

    def has_mark(self, process: Process) -> bool:
        """Whether a process shows that the launcher, or what it has started, has started it."""
        environ = details.read_environ(process.pid, self._proc)
        return is_started_by_launcher(environ, self._origin.adopter)

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
        if not self._has_been(process, POPEN_WAIT):
            return True
        if process.pid in find_held():
            self._hidden_own.add(identity)
            return True
        return False

    def _has_been(self, process: Process, seconds: float) -> bool:
        """Whether a process has been without an environment for so long, to be sure of it.

        It may also be in the middle of becoming another program, and would be taken for a stranger,
        or have been started a moment ago: the last look is not sure of it then.
        """
        now = self._origin.clock()
        since = self._unclear_since.setdefault(process.identity, now)
        has_been = now - since >= seconds
        self.is_unsure |= not has_been
        return has_been
