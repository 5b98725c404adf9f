"""The start of the process that exports traces: it waits before it imports the SDK.

The import of the SDK takes half a second of CPU time. The process runs at idle priority, but two
processors are often two threads of one core, and a short launch would be slowed down. Started as
`python -m plaunch_events.otel_process TRACE_ID`, with the events on stdin.
"""

from __future__ import annotations

import os
import select
import sys
import time

START_WAIT = 1.0  # seconds for the start of the workers
EXIT_WAIT = 0.1  # seconds for the launcher to exit after its last event
_POLL = 0.01  # seconds


def wait_for_launch(fd: int, launcher: int, start_wait: float = START_WAIT) -> None:
    """Wait until the launch has probably started its workers, or has ended.

    Args:
        fd: the file descriptor of the events.
        launcher: the process id of the launcher, which writes them.
        start_wait: seconds to wait, unless the events end earlier.
    """
    poller = select.poll()
    poller.register(fd, 0)  # wait only for the end of the stream
    if not poller.poll(start_wait * 1000):
        return
    deadline = time.monotonic() + EXIT_WAIT
    while os.getppid() == launcher and time.monotonic() < deadline:
        time.sleep(_POLL)


if __name__ == "__main__":
    wait_for_launch(sys.stdin.fileno(), os.getppid())

    from plaunch_events.otel_export import main  # after the wait

    status = main(sys.argv[1], sys.stdin)
    sys.stdout.flush()
    os._exit(status)
