"""How processes are marked: as the launcher's, or as those of one job; and secrets.

Children of the command line have its mark; workers do not, and have no secrets either. A process of
a job has a tag, with the name of one start of workers and a local rank, as in `3f9a12cd45ef.0`. A
launcher that runs inside a worker adds its tag to those that it has inherited, so that the outer
job finds the processes of the inner one as well.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# --- the launcher's mark, and secrets -------------------------------------------------------------

# Has the process id of plaunch's command line, which sets it (plaunch.cli.entry). All its children
# but the workers inherit the variable.
LAUNCHER_VARIABLE = "PLAUNCH_LAUNCHER"
# Has the run id of a launch for a process that describes it, and would generate another one.
RUN_ID_VARIABLE = "PLAUNCH_DESCRIBED_RUN_ID"

# Secrets of any plugin: PLAUNCH_RDZV_TOKEN, PLAUNCH_ETCD_PASSWORD.
_PREFIX, _SECRETS = "PLAUNCH_", ("_TOKEN", "_PASSWORD")


def owns_process() -> bool:
    """Whether this process is plaunch's command line."""
    return os.environ.get(LAUNCHER_VARIABLE) == str(os.getpid())


def reported_exit_code(code: int) -> int:
    """Convert `code` to the exit code of the command line, as `PLAUNCH_EXIT_CODE` says."""
    if os.environ.get("PLAUNCH_EXIT_CODE") == "torchrun" and code not in (0, 2):
        return 1
    return code


def is_started_by_launcher(environ: bytes, launcher: int) -> bool:
    """Whether the command line with pid `launcher` started a process with this environment."""
    return f"{LAUNCHER_VARIABLE}={launcher}".encode() in environ.split(b"\0")


def is_secret(name: str) -> bool:
    """Whether a variable of this name is a secret of the launcher."""
    return name.startswith(_PREFIX) and name.endswith(_SECRETS)


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Copy `environ` for a helper process of the launcher, which needs no secrets."""
    return {name: value for name, value in environ.items() if not is_secret(name)}


def inheritable(environ: Mapping[str, str]) -> dict[str, str]:
    """Copy `environ` for a worker: without secrets, and without the launcher's mark."""
    return {name: v for name, v in without_secrets(environ).items() if name != LAUNCHER_VARIABLE}


# --- the tags of a job ----------------------------------------------------------------------------

JOBS_VARIABLE = "PLAUNCH_JOBS"
# Instead of a rank: a helper process of the launcher, which ends with the job.
HELPER = "helper"
# The "rank" of processes whose worker is unknown, and of helpers.
ADOPTED = -1

_JOBS_ENTRY = JOBS_VARIABLE.encode() + b"="


def make_job_id() -> str:
    """Make a name for one start of workers: 12 random hexadecimal digits."""
    return os.urandom(6).hex()


def make_tags(job: str, rank: int | str, inherited: str | None) -> str:
    """Make the value of `PLAUNCH_JOBS` for one worker: the tags of outer jobs, then its own.

    A helper has `HELPER` instead of the rank.
    """
    tag = f"{job}.{rank}"
    return f"{inherited}:{tag}" if inherited else tag


def find_rank(environ: bytes, job: bytes) -> int | None:
    """Find the local rank whose tag of `job` is in an environment; None if there is none."""
    if _JOBS_ENTRY not in environ:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_JOBS_ENTRY):
            return _rank_among(entry[len(_JOBS_ENTRY) :].split(b":"), job)
    return None


def find_rank_in_title(title: bytes, job: bytes) -> int | None:
    """Find the rank in a command line, in which a forked worker has written its tags."""
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


# --- lines to the guard ---------------------------------------------------------------------------

MAX_LINE = 4096  # bytes that the kernel writes in one piece


def job_line(job: str, *, since: int, has_forked: bool, folder: str | None) -> bytes:
    """Return the line that reports a start of workers; earlier starts are over.

    Args:
        job: its name.
        since: the start time of the launcher in clock ticks.
        has_forked: whether workers may be forked.
        folder: a temporary folder to remove after the launcher.
    """
    path = "" if folder is None else os.fsencode(folder).hex()
    line = f"job {job} {since} {int(has_forked)} {path or '-'}\n".encode()
    if len(line) > MAX_LINE:
        return job_line(job, since=since, has_forked=has_forked, folder=None)
    return line


def process_line(rank: int, pid: int, start: int) -> bytes:
    """Return the line that reports a process: a worker's, or with a negative rank an orphan's."""
    return f"process {rank} {pid} {start}\n".encode()
