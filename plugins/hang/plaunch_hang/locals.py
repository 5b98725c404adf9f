"""The local variables of a process in short: they change in a loop that is always on one line."""

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
from plaunch_stacks import find_py_spy

if TYPE_CHECKING:
    from collections.abc import Collection

_LOOK = 3.0  # seconds
_LOOKS = 10.0  # seconds for all of them
_AT_A_TIME = 4  # if there are as many processors


def read_all_locals(pids: Collection[int]) -> dict[int, bytes]:
    """What `read_locals` tells of these processes, without those of which it tells nothing in time.

    They are read side by side.
    """
    waiting, found = deque(pids), {}
    until = time.monotonic() + _LOOKS

    def read() -> None:
        while waiting and time.monotonic() < until:
            with contextlib.suppress(IndexError):  # another one was faster
                pid = waiting.popleft()
                found[pid] = read_locals(pid)

    calls = []
    with contextlib.suppress(ThreadStartError):
        for number in range(min(_AT_A_TIME, os.cpu_count() or 1, len(waiting))):
            calls.append(BoundedCall(f"locals-{number}", read))
    for call in calls:
        call.wait(until - time.monotonic())
    return {pid: value for pid, value in dict(found).items() if value is not None}


def read_locals(pid: int) -> bytes | None:
    """What the local variables of its main thread are, as a number without their values.

    While a thread stands still, so does this; numbers that count and objects that are made anew
    change it. It has the variables of functions, and not those of modules. None if they cannot be
    read. The process is not stopped.
    """
    try:
        done = subprocess.run(
            [find_py_spy(), "dump", "--locals", "--nonblocking", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_LOOK,
            check=True,
            env={},
        )
        threads = json.loads(done.stdout)
        (main,) = (thread for thread in threads if thread["os_thread_id"] in (pid, None))
        text = json.dumps([frame["locals"] for frame in main["frames"]])
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError):
        return None
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
