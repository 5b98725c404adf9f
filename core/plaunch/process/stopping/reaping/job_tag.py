"""How a process tells which job it belongs to: a word in its environment, which children inherit.

The word names one start of workers and a local rank, as in `3f9a12cd45ef.0`. A launcher that runs
inside a worker adds its own word behind those that it has inherited, so that the outer job finds
the processes of the inner one as well.
"""

from __future__ import annotations

import os

from plaunch.process.kernel.processes import PROC

JOBS_VARIABLE = "PLAUNCH_JOBS"
# In the place of a rank: a process of the launcher's own, which ends with the job.
HELPER = "helper"
# The "rank" of processes whose worker nobody knows any more, and of those that have none.
ADOPTED = -1
# The process id of plaunch's command line, which sets it for itself (plaunch.cli.entry). What it
# starts inherits the variable; workers do not get it.
LAUNCHER_VARIABLE = "PLAUNCH_LAUNCHER"

_JOBS_ENTRY = JOBS_VARIABLE.encode() + b"="
_MAX_BYTES = 1 << 22  # of an environment, to be on the safe side of a process that changes its own


def make_job_id() -> str:
    """Make up the name of one start of workers: 12 hexadecimal digits at random."""
    return os.urandom(6).hex()


def make_words(job: str, rank: int | str, inherited: str | None) -> str:
    """The value of `PLAUNCH_JOBS` for one worker: the words of outer jobs, then its own.

    A helper of the launcher's has `HELPER` in the place of the rank.
    """
    word = f"{job}.{rank}"
    return f"{inherited}:{word}" if inherited else word


def owns_process() -> bool:
    """Whether this process is plaunch's command line."""
    return os.environ.get(LAUNCHER_VARIABLE) == str(os.getpid())


def is_started_by_launcher(environ: bytes, launcher: int) -> bool:
    """Whether a process with this environment was started by the command line `launcher` itself."""
    return f"{LAUNCHER_VARIABLE}={launcher}".encode() in environ.split(b"\0")


def find_rank(environ: bytes, job: bytes) -> int | None:
    """The local rank whose word for `job` is in an environment; None if there is none."""
    if _JOBS_ENTRY not in environ:
        return None
    for entry in environ.split(b"\0"):
        if entry.startswith(_JOBS_ENTRY):
            return _rank_among(entry[len(_JOBS_ENTRY) :].split(b":"), job)
    return None


def find_rank_in_title(title: bytes, job: bytes) -> int | None:
    """The same for a command line, which a forked worker has made its words part of."""
    if job not in title:
        return None
    return _rank_among(title.replace(b"\0", b" ").replace(b":", b" ").split(), job)


def _rank_among(words: list[bytes], job: bytes) -> int | None:
    for word in words:
        name, dot, rank = word.partition(b".")
        if dot and name == job and rank == HELPER.encode():
            return ADOPTED
        if dot and name == job and rank.isdigit():
            return int(rank)
    return None


def find_environ(pid: int, proc: str = PROC) -> bytes | None:
    """The environment that a program was started with; None if it may not be read.

    It is empty if the process is gone, and while it becomes another program.
    """
    try:
        return _read_all(f"{proc}/{pid}/environ")
    except PermissionError:
        return None
    except OSError:
        return b""


def read_environ(pid: int, proc: str = PROC) -> bytes:
    """The same, but empty if it may not be read."""
    return find_environ(pid, proc) or b""


def read_title(pid: int, proc: str = PROC) -> bytes:
    """The command line of a process; empty if it is gone or not to be read."""
    return _read(f"{proc}/{pid}/cmdline")


def read_user(pid: int, proc: str = PROC) -> int:
    """The real user id of a process; -1 if it is gone."""
    for line in _read(f"{proc}/{pid}/status").splitlines():
        if line.startswith(b"Uid:"):
            return int(line.split()[1])
    return -1


def _read(path: str) -> bytes:
    try:
        return _read_all(path)
    except OSError:
        return b""


def _read_all(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()[:_MAX_BYTES]
