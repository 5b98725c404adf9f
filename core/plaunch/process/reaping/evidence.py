"""What a process itself tells of where it came from: its environment, its title, its user."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from plaunch.process.reaping import marker
from plaunch.process.reaping.table import PROC, Process

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
        self.has_blanks = False  # whether somebody was in the middle of becoming another program
        self._job = job.encode()
        self._proc = proc
        self._since = since  # most processes are older, and need no second look
        self._has_forked = has_forked
        self._launcher = launcher
        self._clock = clock
        self._blank_since: dict[tuple[int, int], float] = {}

    def find_rank(self, process: Process) -> int | None:
        """The local rank of a process by its word; None if it has none."""
        if not process.is_alive or process.start < self._since:
            return None
        environ = marker.read_environ(process.pid, self._proc)
        if (
            not environ
            and process.ppid != _KERNEL_THREADS
            and marker.read_user(process.pid, self._proc) == os.getuid()
        ):
            self._note_blank(process)
        rank = marker.find_rank(environ, self._job)
        if rank is None and self._has_forked:
            title = marker.read_title(process.pid, self._proc)
            rank = marker.find_rank_in_title(title, self._job)
        if rank is not None and marker.read_user(process.pid, self._proc) != os.getuid():
            return None
        return rank

    def is_launchers(self, process: Process) -> bool:
        """Whether the launcher itself has started a process that leads a session, or may have."""
        environ = marker.read_environ(process.pid, self._proc)
        if not environ:
            return not self._note_blank(process)
        if marker.is_started_by_launcher(environ, self._launcher):
            return True
        # Or a fork of the launcher, which is still to become another program.
        return not self._has_forked and environ == marker.read_environ(self._launcher, self._proc)

    def _note_blank(self, process: Process) -> bool:
        """Whether a process has indeed no environment.

        It may also be in the middle of becoming another program, and would be taken for a stranger:
        the last look is not sure of it then.
        """
        now = self._clock()
        since = self._blank_since.setdefault((process.pid, process.start), now)
        is_blank = now - since >= _BLANK
        self.has_blanks |= not is_blank
        return is_blank
