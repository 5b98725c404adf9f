"""The end of the output: a command waits for its readers, and reports what they have not taken."""

from __future__ import annotations

import math
import os
import select
import time
from typing import TYPE_CHECKING

from plaunch.durations import milliseconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from plaunch_engines.output import MergedOutput

_INTERVAL = 0.2  # seconds
_STALLED = 5.0  # seconds in which a reader takes nothing, if the job was stopped
_STALLED_AFTER_SIGNAL = 1.0  # the same after a stop signal during the wait
_NOTICE_AFTER = 1.0  # seconds of waiting


def deliver(
    output: MergedOutput,
    signals: int,
    stops: Collection[int],
    say: Callable[[str, str], None],
    *,
    is_stopped: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Wait for the readers of the output, and report what they have not taken.

    Waits without a limit, as any program that writes to a pipe; if the job was stopped, only while
    they take something. So it does after a stop signal, and a second one ends the wait at once.

    Args:
        output: is written to its end.
        signals: a descriptor with the numbers of signals; see `signal.set_wakeup_fd`.
        stops: the stop signals.
        say: writes a message with a level, although the output may be blocked.
        is_stopped: whether a signal has ended the job.
        clock: a monotonic clock, in seconds.
    """
    output.request_end()
    notice_at = math.inf if is_stopped else clock() + _NOTICE_AFTER
    poller = select.poll()
    poller.register(signals, select.POLLIN)
    poller.register(output.fileno(), select.POLLIN)
    stalled = _STALLED if is_stopped else math.inf
    began = clock()  # the reader may have had nothing to take before
    received = 0  # stop signals
    while received < 2 and not output.is_written():
        for fd, _ in poller.poll(milliseconds(_INTERVAL)):
            if fd == signals:
                received += sum(number in stops for number in os.read(fd, 4096))
        output.is_full()  # empties its descriptor
        if received:
            stalled = _STALLED_AFTER_SIGNAL
        if clock() - max(output.progressed_at, began) >= stalled:
            break
        if clock() >= notice_at:
            notice_at = math.inf
            size = sum(loss.size for loss in output.losses())
            say(
                f"all agents have ended; waiting for the reader of the output, which has not taken "
                f"{size} bytes (Ctrl-C or SIGTERM ends the wait)",
                "WARNING",
            )
    for loss in output.losses():
        say(f"output of the nodes is missing ({loss})", "WARNING")
