"""What the guard is told: lines through a pipe, from the launcher and from function workers.

A line is one `write`, so that those of several processes do not mix.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from plaunch.process.kernel.processes import PROC, read_process
from plaunch.process.stopping.reaping.tree import make_tree

if TYPE_CHECKING:
    from plaunch.process.stopping.reaping.tree import Tree

_MAX_LINE = 4096  # bytes that the kernel writes in one piece


def job_line(job: str, *, since: int, has_forked: bool, folder: str | None) -> bytes:
    """Another start of workers begins; earlier ones are over.

    Args:
        job: its name.
        since: the start of the launcher in clock ticks.
        has_forked: whether workers may be forked.
        folder: a temporary folder that nobody needs once the launcher is gone.
    """
    path = "" if folder is None else os.fsencode(folder).hex()
    line = f"job {job} {since} {int(has_forked)} {path or '-'}\n".encode()
    if len(line) > _MAX_LINE:
        return job_line(job, since=since, has_forked=has_forked, folder=None)
    return line


def process_line(rank: int, pid: int, start: int) -> bytes:
    """A process that belongs to the job: a worker, or with a negative rank an orphan."""
    return f"process {rank} {pid} {start}\n".encode()


def own_line(rank: int) -> bytes:
    """The line of the calling process, a worker."""
    own = read_process(os.getpid())
    return process_line(rank, os.getpid(), -1 if own is None else own.start)


class Briefing:
    """What a guard knows from the lines that have come so far."""

    def __init__(self, proc: str = PROC) -> None:
        self.tree: Tree | None = None
        self.folder = ""
        self._proc = proc
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Take what was read from the pipe; a line that makes no sense is left out."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                self._take(line.decode("ascii").split(" "))
            except ValueError:
                continue  # a worker has written to the descriptor by mistake

    def _take(self, words: list[str]) -> None:
        if words[0] == "job":
            _, job, since, has_forked, folder = words
            path = "" if folder == "-" else os.fsdecode(bytes.fromhex(folder))
            self.tree = make_tree(
                job, proc=self._proc, since=int(since), has_forked=has_forked == "1"
            )
            self.folder = path
        elif words[0] == "process" and self.tree is not None:
            _, rank, pid, start = words
            self.tree.add_leader(int(rank), int(pid), int(start))
