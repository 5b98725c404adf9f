"""A program that stops the launcher which has started it, and lets it go on.

    python pause.py PID SECONDS

A process that is stopped cannot wake itself. This one ends when the launcher does.
"""

from __future__ import annotations

import os
import signal
import sys
import time

_LOOK_EVERY = 0.1  # seconds between two looks whether the launcher has ended


def main(pid: int, seconds: float) -> None:
    """Stop the parent, if it is `pid`, for so many seconds."""
    if os.getppid() != pid:
        return
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(left, _LOOK_EVERY))
        if os.getppid() != pid:
            return
    os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
