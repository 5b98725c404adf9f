"""The tags of a job's processes: a variable in their environment, which children inherit.

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
