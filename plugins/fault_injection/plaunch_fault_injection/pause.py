"""A program that suspends the launcher that has started it, and resumes it.

    python pause.py PID SECONDS

A suspended process cannot resume itself. This program ends when the launcher does.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_CHECK_INTERVAL = 0.1  # seconds between two checks whether the launcher has ended


def main(pid: int, seconds: float) -> None:
    """Suspend the parent, if it is `pid`, for `seconds`."""
    if os.getppid() != pid:
        return
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _CHECK_INTERVAL))
        if os.getppid() != pid:
            return
    os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
