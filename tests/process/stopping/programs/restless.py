"""A worker that leaves something behind which forks and ends, and is another process each time.

    restless.py FIFO KIND LINKS SECONDS

KIND is `chain`, where all links are in one session, or `roaming`, where each makes its own. After
LINKS of them, the last one stays; with a negative number they go on for some seconds. Each holds
FIFO, so that a reader sees without a gap whether somebody is left. The worker itself ends after
SECONDS.
"""

from __future__ import annotations

import os
import sys
import time

_LONGEST = 20.0  # seconds, so that nothing bad stays if a test fails


def main(fifo, kind, links, seconds):
    end = time.monotonic() + _LONGEST
    os.write(os.open(fifo, os.O_WRONLY), b"x")
    if os.fork():
        time.sleep(float(seconds))
        os._exit(0)
    os.setsid()
    count = int(links)
    while count and time.monotonic() < end:
        count -= 1
        if os.fork():
            os._exit(0)
        if kind == "roaming":
            os.setsid()
        if count < 0:
            time.sleep(0.0002)  # or their zombies would use up the numbers of the system
    while time.monotonic() < end:
        time.sleep(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
