"""What the kernel has logged about the job's processes, memory and devices."""

from __future__ import annotations

import os
import re
import subprocess
import time
from typing import TYPE_CHECKING

from plaunch_report.failure_bundle.gathering import File, MissingError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

LOG = "/dev/kmsg"
MOST = 500  # lines
_RECORD = 1 << 14  # bytes; no record of the kernel is longer than 8 KiB
_DMESG_TIMEOUT = 0.5  # seconds
_TOLD = re.compile(
    r"oom[-_ ]|out of memory|killed process|NVRM|\bXid\b|amdgpu|machine check|\bMCE\b"
    r"|blocked for more than|I/O error",
    re.IGNORECASE,
)
_TIME = re.compile(r"\[ *(\d+\.\d+)\]")  # seconds, at the beginning of a line
# The kernel stamps its log with a clock that nobody corrects: seconds by which it may be behind the
# monotonic clock, and which part of the time since the machine started.
_DRIFT, _DRIFT_RATE = 2.0, 2e-5
_PROCESS = re.compile(r"\[(\d+)\]|\bpid[ =:]+(\d+)|\bprocess (\d+)", re.IGNORECASE)


def find_kernel_lines(pids: Collection[int], began: float, log: str = LOG) -> Iterator[File]:
    """The lines of the kernel's log since a launch began that concern its job, in a file.

    Args:
        pids: the job's processes.
        began: when the launch began, in seconds of the monotonic clock, which is about the
            kernel's.
        log: where the kernel's log is.

    Raises:
        MissingError: it cannot be read, or has no such line.
    """
    found = select_lines(_lines(log), pids, began)
    if not found:
        raise MissingError(
            "the kernel's log has no line about these processes, memory or devices since the "
            "launch began"
        )
    now = time.monotonic()
    head = f"the launch began at about {began:.0f} s of the kernel's clock; now it is {now:.0f} s\n"
    note = f"the last {MOST} lines" if len(found) > MOST else ""
    yield File("kernel.txt", (head + "".join(found[-MOST:])).encode(errors="replace"), note)


def select_lines(lines: Iterable[str], pids: Collection[int], began: float) -> list[str]:
    """Those about the processes, or about memory and devices, with which jobs fail.

    Earlier lines are about other jobs, also if a process id is the same. A line without a time is
    kept: the kernel writes none with `printk.time=0`.
    """
    since = began - max(_DRIFT, began * _DRIFT_RATE)
    return [
        line
        for line in lines
        if ((time_ := _TIME.match(line)) is None or float(time_[1]) >= since)
        and (_TOLD.search(line) or _names_one(line, pids))
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
    """One line for each record, as dmesg has it; closes `fd`."""
    with open(fd, "rb", buffering=0) as log:
        while True:
            try:
                record = os.read(log.fileno(), _RECORD)
            except BrokenPipeError:
                continue  # some were overwritten, and the next one is there
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
        said = error.stderr.decode(errors="replace").strip()
        raise MissingError(f"{why}, and dmesg failed: {said}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingError(f"{why}, and neither can dmesg be run: {error}") from None
    return done.stdout.decode(errors="replace").splitlines(keepends=True)
