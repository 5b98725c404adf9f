"""The local variables of a process in short: they change in a loop that is always on one line."""

from __future__ import annotations

import hashlib
import json
import subprocess

from plaunch_stacks import find_py_spy

_LOOK = 3.0  # seconds


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
