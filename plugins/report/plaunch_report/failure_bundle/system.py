"""Facts about the host: lines of the kernel's log about the job, and versions."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from plaunch import __version__

from plaunch_report.failure_bundle.gathering import File, MissingError
from plaunch_report.failure_bundle.oom_kills import JobProcesses, KillSorter

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

LOG = "/dev/kmsg"
MAX_LINES = 500  # lines
_RECORD = 1 << 14  # bytes; records of the kernel are at most 8 KiB long
_DMESG_TIMEOUT = 5.0  # seconds
_RELEVANT = re.compile(
    r"oom[-_ .]|out of memory|killed process|NVRM|\bXid\b|amdgpu|machine check|\bMCE\b"
    r"|blocked for more than|I/O error",
    re.IGNORECASE,
)
_TIME = re.compile(r"\[ *(\d+\.\d+)\]")  # seconds, at the beginning of a line
# The clock of the kernel's log is not corrected by NTP. It may be behind the monotonic clock by
# this number of seconds, or this fraction of the uptime.
_DRIFT, _DRIFT_RATE = 2.0, 2e-5
_PROCESS = re.compile(r"\[(\d+)\]|\bpid[ =:]+(\d+)|\bprocess (\d+)", re.IGNORECASE)
_DISTRIBUTION = re.compile(r"(?P<name>.+?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
_FILES = {"driver": "/proc/driver/nvidia/version", "AMD driver": "/sys/module/amdgpu/version"}


def find_kernel_lines(pids: Collection[int], began: float, log: str = LOG) -> Iterator[File]:
    """A file with the lines of the kernel's log about the job since the launch began.

    Processes of other jobs that the kernel has killed for lack of memory are counted only.

    Args:
        pids: the process ids of the job.
        began: when the launch began, in seconds of the monotonic clock.
        log: the device of the kernel's log.

    Raises:
        MissingError: it cannot be read, or has no such line.
    """
    job = JobProcesses.here(pids)
    kills = KillSorter(job)
    found = [*kills.select(select_lines(_lines(log), job.pids, began))]
    notes = [*kills.describe()]
    if not found:
        raise MissingError(
            "; ".join(
                (
                    "the kernel's log has no line about these processes, memory or devices since "
                    "the launch began",
                    *notes,
                )
            )
        )
    now = time.monotonic()
    clock = f"the launch began at about {began:.0f} s of the kernel's clock; now it is {now:.0f} s"
    head = "".join(f"{line}\n" for line in (clock, *notes))
    note = f"the last {MAX_LINES} lines" if len(found) > MAX_LINES else ""
    yield File("kernel.txt", (head + "".join(found[-MAX_LINES:])).encode(errors="replace"), note)


def select_lines(lines: Iterable[str], pids: Collection[int], began: float) -> list[str]:
    """Select the lines about these processes, or about memory and devices.

    Lines from before the launch are dropped, because process ids are reused. A line without a time
    is kept, because the kernel writes no times with `printk.time=0`.
    """
    since = began - max(_DRIFT, began * _DRIFT_RATE)
    return [
        line
        for line in lines
        if ((time_ := _TIME.match(line)) is None or float(time_[1]) >= since)
        and (_RELEVANT.search(line) or _names_one(line, pids))
    ]


def _names_one(line: str, pids: Collection[int]) -> bool:
    numbers = (next(filter(None, match.groups())) for match in _PROCESS.finditer(line))
    return any(int(number) in pids for number in numbers)


def _lines(log: str) -> Iterable[str]:
    try:
        fd = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return _dmesg_lines(f"{log} cannot be read ({error.strerror})")
    return _records(fd)


def _records(fd: int) -> Iterator[str]:
    """The records of the kernel's log as lines in dmesg's format; closes `fd`."""
    with open(fd, "rb", buffering=0) as log:
        while True:
            try:
                record = os.read(log.fileno(), _RECORD)
            except BrokenPipeError:
                continue  # records were overwritten; read the next one
            except BlockingIOError:
                return
            if not record:
                return
            head, _, text = record.decode(errors="replace").partition(";")
            fields = head.split(",")
            if len(fields) > 2 and fields[2].isdecimal():
                message = text.partition("\n")[0]
                yield f"[{int(fields[2]) / 1e6:.6f}] {message}\n"


def _dmesg_lines(why: str) -> list[str]:
    try:
        done = subprocess.run(
            ["dmesg"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=True,
            timeout=_DMESG_TIMEOUT,
        )
    except subprocess.CalledProcessError as error:
        text = error.stderr.decode(errors="replace").strip()
        raise MissingError(f"{why}, and dmesg failed: {text}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{why}, and dmesg cannot be run: {error}") from None
    return done.stdout.decode(errors="replace").splitlines(keepends=True)


def find_versions(path: Sequence[str]) -> Iterator[File]:
    """List the versions; `path` are folders of distributions, of which only names are read."""
    system = os.uname()
    lines = [
        f"plaunch {__version__}",
        f"Python {' '.join(sys.version.split())} ({sys.executable})",
        f"{system.sysname} {system.release} {system.version} {system.machine}",
        f"processors: {os.cpu_count()}, of which usable: {len(os.sched_getaffinity(0))}",
    ]
    for what, file_name in _FILES.items():
        with contextlib.suppress(OSError), open(file_name, encoding="utf-8") as file:
            lines.append(f"{what}: {file.readline(1000).strip()}")
    lines += ["", *_distributions(path)]
    yield File("versions.txt", ("\n".join(lines) + "\n").encode(errors="replace"))


def _distributions(path: Sequence[str]) -> list[str]:
    found: dict[str, str] = {}
    for folder in path:
        names: list[str] = []
        with contextlib.suppress(OSError):
            names = os.listdir(folder or ".")
        for match in filter(None, map(_DISTRIBUTION.fullmatch, names)):
            found.setdefault(match["name"], match["version"])  # the first one is imported
    return [f"{name} {found[name]}" for name in sorted(found, key=str.lower)]
