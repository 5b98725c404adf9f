"""The variables of a process in short: they change in a loop that stays on one line.

Those of functions come from py-spy, those of the main module from `main_globals`.
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
from plaunch_hang.stacks import Frame, count_waiting, find_py_spy, waits_for_thread

if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

_LOOK = 3.0  # seconds
_LOOKS = 10.0  # seconds for all of them
_AT_A_TIME = 4  # if there are as many processors


def read_all_variables(pids: Collection[int]) -> dict[int, bytes]:
    """Read the variables of these processes side by side.

    Processes that `read_variables` cannot read, or not in time, are left out.
    """
    waiting, found = deque(pids), {}
    until = time.monotonic() + _LOOKS

    def read() -> None:
        while waiting and time.monotonic() < until:
            with contextlib.suppress(IndexError):  # another one was faster
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
    """The local variables of the main thread and the globals of the main module, as a hash.

    Those of functions do not count that wait in a library (`stacks.count_waiting`). If the main
    thread may wait for another thread, the lines and variables count of those that do not wait
    themselves.
    The hash stays the same while the thread waits. Numbers that count and objects that are made
    anew change it. None if the local variables cannot be read; globals that cannot be read are left
    out. The process is not stopped.
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


def _frames_of(thread: dict[str, Any]) -> list[Frame]:
    return [Frame(frame["name"], frame["filename"]) for frame in thread["frames"]]
