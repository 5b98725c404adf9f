"""The first moments of the process that exports traces: it lets the launch have the processors.

The SDK takes half a second of a processor to import. The kernel gives this process what nobody else
wants, but two processors are often one, and a launch that ends at once would wait for half of it.
It is started as `python -m plaunch_events.otel_process TRACE_ID`, with the events on stdin.
"""

from __future__ import annotations

import os
import select
import sys
import time

REST = 1.0  # seconds after the start, or until there are no more events
LAST_REST = 0.1  # seconds for the launcher to end, then
_LOOK = 0.01


def rest(fd: int, launcher: int) -> None:
    """Wait until the launch is likely to be busy with nothing but its workers, or over.

    Args:
        fd: where the events come from.
        launcher: the number of the process that writes them.
    """
    poller = select.poll()
    poller.register(fd, 0)  # only its end counts
    if not poller.poll(REST * 1000):
        return
    deadline = time.monotonic() + LAST_REST
    while os.getppid() == launcher and time.monotonic() < deadline:
        time.sleep(_LOOK)


if __name__ == "__main__":
    rest(sys.stdin.fileno(), os.getppid())

    from plaunch_events.otel_export import main  # only now, on purpose

    status = main(sys.argv[1], sys.stdin)
    sys.stdout.flush()
    os._exit(status)
