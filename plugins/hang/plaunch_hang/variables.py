"""Digests of the variables of a process, which change in a loop that stays on one line.

Local variables come from py-spy, globals of the main module from `main_globals`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import time
from collections import deque
from typing import TYPE_CHECKING

from plaunch.errors import ThreadStartError
from plaunch.threads import BoundedCall

from plaunch_hang.main_globals import read_main_globals
from plaunch_hang.stacks import StackFrame, count_waiting, find_py_spy, waits_for_thread

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

_READ_TIMEOUT = 3.0  # seconds for one process
_TOTAL_TIMEOUT = 10.0  # seconds for all processes
_AT_A_TIME = 4  # threads, if there are as many CPUs


def read_all_variables(pids: Collection[int]) -> dict[int, bytes]:
    """Read the variables of processes in parallel.

    Processes that `read_variables` cannot read in time are left out.
    """
    waiting, found = deque(pids), {}
    until = time.monotonic() + _TOTAL_TIMEOUT

    def read() -> None:
        while waiting and time.monotonic() < until:
            with contextlib.suppress(IndexError):  # another thread was faster
                pid = waiting.popleft()
                found[pid] = read_variables(pid)

    calls = []
    with contextlib.suppress(ThreadStartError):
        for number in range(min(_AT_A_TIME, os.cpu_count() or 1, len(waiting))):
            calls.append(BoundedCall(f"variables-{number}", read))
    for call in calls:
        call.wait(until - time.monotonic())
    return {pid: value for pid, value in dict(found).items() if value is not None}


def read_variables(pid: int) -> bytes | None:
    """Hash the local variables of the main thread and the globals of the main module.

    Functions that wait in a library (`plaunch_hang.stacks.count_waiting`) are left out. If the main
    thread may wait for another thread, the stacks and variables of threads that do not wait are
    included. The hash stays the same while the thread waits; counters and new objects change it.
    Return None if the local variables cannot be read; unreadable globals are left out. The process
    is not paused.
    """
    try:
        done = subprocess.run(
            [find_py_spy(), "dump", "--locals", "--nonblocking", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_READ_TIMEOUT,
            check=True,
            env={},
        )
        threads = json.loads(done.stdout)
        (main,) = (thread for thread in threads if thread["os_thread_id"] in (pid, None))
        frames = _frames_of(main)
        shown = [frame["locals"] for frame in main["frames"][count_waiting(frames) :]]
        if waits_for_thread(frames):
            shown += [
                thread["frames"]
                for thread in threads
                if thread is not main and not count_waiting(_frames_of(thread))
            ]
        text = json.dumps(shown)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError):
        return None
    main_globals = read_main_globals(pid) or b""
    return hashlib.blake2b(text.encode() + main_globals, digest_size=16).digest()


def _frames_of(thread: dict[str, Any]) -> list[StackFrame]:
    return [StackFrame(frame["name"], frame["filename"]) for frame in thread["frames"]]
