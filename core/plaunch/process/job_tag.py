"""How the processes of a job are marked in their environment, and reported to the guard.

A tag has the name of one start of workers and a local rank, as in `3f9a12cd45ef.0`. A launcher that
runs inside a worker adds its tag to those that it has inherited, so that the outer job finds the
processes of the inner one as well.
"""

from __future__ import annotations

import os

JOBS_VARIABLE = "PLAUNCH_JOBS"
# Instead of a rank: a helper process of the launcher, which ends with the job.
HELPER = "helper"
# The "rank" of processes whose worker is unknown, and of helpers.
ADOPTED = -1

_JOBS_ENTRY = JOBS_VARIABLE.encode() + b"="


def make_job_id() -> str:
    """A name for one start of workers: 12 random hexadecimal digits."""
    return os.urandom(6).hex()


def make_tags(job: str, rank: int | str, inherited: str | None) -> str:
    """The value of `PLAUNCH_JOBS` for one worker: the tags of outer jobs, then its own.

    A helper has `HELPER` instead of the rank.
    """
    tag = f"{job}.{rank}"
    return f"{inherited}:{tag}" if inherited else tag


def find_rank(environ: bytes, job: bytes) -> int | None:
    """The local rank whose tag of `job` is in an environment; None if there is none."""
    if _JOBS_ENTRY not in environ:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_JOBS_ENTRY):
            return _rank_among(entry[len(_JOBS_ENTRY) :].split(b":"), job)
    return None


def find_rank_in_title(title: bytes, job: bytes) -> int | None:
    """The same for a command line, in which a forked worker has written its tags."""
    if job not in title:
        return None
    return _rank_among(title.replace(b"\0", b" ").replace(b":", b" ").split(), job)


def _rank_among(tags: list[bytes], job: bytes) -> int | None:
    for tag in tags:
        name, dot, rank = tag.partition(b".")
        if dot and name == job and rank == HELPER.encode():
            return ADOPTED
        if dot and name == job and rank.isdigit():
            return int(rank)
    return None


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
