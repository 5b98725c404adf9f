"""Check for processes that earlier jobs left running."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.process import JOBS_VARIABLE, read_environ, read_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch.doctor import DoctorContext

_TORCHRUN = "TORCHELASTIC_RUN_ID"
_REAPERS = ("systemd", "init", "tini", "dumb-init", "catatonit", "s6-svscan", "slurmstepd")
_SHOWN = 5


@dataclass(frozen=True)
class _JobProcess:
    pid: int
    label: str  # the innermost job that the process belongs to
    command: str


def check_leftovers(context: DoctorContext) -> Iterator[Finding]:
    """Find workers whose launcher is gone: they hold devices, memory and ports.

    The parent of such a worker is the system's first process, or another reaper. Processes of other
    users are not found, because their environment cannot be read.
    """
    what = "leftovers"
    marked, left = _find(context)
    if left:
        shown = ", ".join(f"pid {m.pid} ({m.command}, {m.label})" for m in left[:_SHOWN])
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        yield Finding(
            Status.WARNING,
            what,
            f"{len(left)} process(es) of earlier jobs whose launcher is gone: {shown}{more}",
            f"end them if they are not needed: kill {' '.join(str(m.pid) for m in left[:_SHOWN])}",
        )
    elif marked:
        yield Finding(
            Status.OK, what, f"none; {marked} process(es) of jobs that are running on this node"
        )
    else:
        yield Finding(Status.OK, what, "none: no process of an earlier job is on this node")


def _find(context: DoctorContext) -> tuple[int, list[_JobProcess]]:
    """Count the processes of jobs, and find those whose topmost process was orphaned."""
    proc = context.path("/proc")
    own = _job_label(_variables(read_environ(os.getpid(), proc))) if context.root == "/" else ""
    table = read_table(proc)
    words: dict[int, str] = {}
    for pid, process in table.items():
        if process.is_alive:
            word = _job_label(_variables(read_environ(pid, proc)))
            if word and word != own:
                words[pid] = word
    left = []
    for pid, word in sorted(words.items()):
        top = pid
        while table[top].ppid in words:
            top = table[top].ppid
        parent = table[top].ppid
        name = context.read(f"/proc/{parent}/comm")
        if parent == 0 or name in _REAPERS or (parent == 1 and not _is_launcher(proc, parent)):
            command = context.read(f"/proc/{pid}/comm")
            left.append(_JobProcess(pid, word, command))
    return len(words), left


def _is_launcher(proc: str, pid: int) -> bool:
    """Whether the first process of a container runs Python, so that it may be a launcher."""
    try:
        with open(f"{proc}/{pid}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
    except OSError:
        return False
    return any(word in b" ".join(words) for word in (b"plaunch", b"torchrun", b"python"))


def _variables(environ: bytes) -> dict[str, str]:
    entries = (entry.partition(b"=") for entry in environ.split(b"\0"))
    return {
        name.decode(): value.decode("utf-8", "replace")
        for name, _, value in entries
        if name in (JOBS_VARIABLE.encode(), _TORCHRUN.encode())
    }


def _job_label(variables: dict[str, str]) -> str:
    jobs = variables.get(JOBS_VARIABLE, "")
    if jobs:
        return "job " + jobs.rpartition(":")[2].partition(".")[0]
    run_id = variables.get(_TORCHRUN, "")
    return f"torchrun's job {run_id}" if run_id else ""
