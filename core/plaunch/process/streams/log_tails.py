"""Tee for workers that write straight into their log files, as torchrun's contexts do."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from plaunch.process.streams.tail import TailLog

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import TextIO

    from plaunch.process.streams.logs import LogsDest


class LogTails:
    """The threads that copy the log files of teed streams to the console, and matches to a file."""

    def __init__(
        self,
        name: str,
        dest: LogsDest,
        prefixes: Mapping[int, str],
        *,
        stdout_filters: Sequence[str],
        stderr_filters: Sequence[str],
    ) -> None:
        self._name = name
        self._dest = dest
        self._prefixes = dict(prefixes)
        self._stdout_filters = stdout_filters
        self._stderr_filters = stderr_filters
        self._tails: list[TailLog] = []
        self._collected: list[TextIO] = []

    def start(self) -> None:
        """Begin to follow the files; those that do not exist yet are waited for."""
        dest = self._dest
        self._follow(dest.tee_stdouts, sys.stdout, self._stdout_filters, dest.filtered_stdout)
        self._follow(dest.tee_stderrs, sys.stderr, self._stderr_filters, dest.filtered_stderr)

    def stop(self) -> None:
        """Copy what is left, and end; may be called more than once."""
        while self._tails:
            self._tails.pop().stop()
        while self._collected:
            self._collected.pop().close()

    def _follow(
        self, paths: Mapping[int, str], console: TextIO, needles: Sequence[str], collected: str
    ) -> None:
        files = {rank: path for rank, path in paths.items() if path and path != os.devnull}
        if not files:
            return
        self._tails.append(TailLog(self._name, files, console, self._prefixes).start())
        if needles:
            target = open(collected, "w", errors="replace", buffering=1)  # noqa: SIM115 - see stop
            self._collected.append(target)

            def is_wanted(line: str) -> bool:
                return any(needle in line for needle in needles)

            tail = TailLog(self._name, files, target, self._prefixes, log_line_filter=is_wanted)
            self._tails.append(tail.start())
