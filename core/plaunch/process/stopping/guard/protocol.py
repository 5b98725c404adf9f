"""The messages to the guard: lines through a pipe, from the launcher and from function workers.

A line is one `write`, so that lines of several processes do not mix.
"""

from __future__ import annotations

import os

_MAX_LINE = 4096  # bytes that the kernel writes in one piece


def job_line(job: str, *, since: int, has_forked: bool, folder: str | None) -> bytes:
    """Reports that a start of workers begins; earlier ones are over.

    Args:
        job: its name.
        since: the start time of the launcher in clock ticks.
        has_forked: whether workers may be forked.
        folder: a temporary folder to remove after the launcher.
    """
    path = "" if folder is None else os.fsencode(folder).hex()
    line = f"job {job} {since} {int(has_forked)} {path or '-'}\n".encode()
    if len(line) > _MAX_LINE:
        return job_line(job, since=since, has_forked=has_forked, folder=None)
    return line


def process_line(rank: int, pid: int, start: int) -> bytes:
    """Reports a process of the job: a worker, or with a negative rank an orphan."""
    return f"process {rank} {pid} {start}\n".encode()
