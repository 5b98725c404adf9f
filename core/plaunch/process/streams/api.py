"""The contract of what carries the workers' output, and how much of it has passed through."""

from __future__ import annotations

import contextlib
import math
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class OutputCounts(NamedTuple):
    """How much output of the workers has passed through the launcher.

    Args:
        read_bytes: bytes that were read from the workers.
        lag_bytes: bytes that wait for the console, or for a sink of the logs spec.
        dropped_lines: lines that neither one of these nor the disk could take.
        by_worker: bytes that were read from each worker since it started, by local rank; empty if
            the streams do not count them.
    """

    read_bytes: int = 0
    lag_bytes: int = 0
    dropped_lines: int = 0
    by_worker: Mapping[int, int] = MappingProxyType({})


class Sink(Protocol):
    """Takes what one worker writes to one stream; what `LogsSpecs.open_sink` opens.

    It takes the place of the file that `LogsDest` names for the stream. If it has an attribute
    `keeps_file` that is true, the launcher writes that file as well.

    A sink has a thread of its own, which calls its methods one after the other. So it may take its
    time, and never holds up the workers, the console or other sinks. What it cannot take yet waits
    within limits; of more, the oldest lines are dropped, which a line in the output says. What is
    missing is counted, and reported at the end.
    """

    def write(self, data: bytes) -> object:
        """Take the next piece of the stream, at most 64 KiB, with whole lines where it can be.

        What it raises is reported, the lines of the piece count as missing, and the sink gets no
        more; except that after an `OSError` that says that the disk is full, it gets the next one.
        """

    def close(self) -> object:
        """The stream is over; called once, also after an error.

        Called when the worker has ended, or could not be started. A sink that takes nothing for
        five seconds then is waited for no longer.
        """


class Streams(Protocol):
    """The output streams of one start of a worker group; what `LogsSpecs.open_streams` opens.

    `child_fds` is called for each worker, then the workers start, `start` is called, and when they
    have ended, `finish`. After an error in between, `finish` gives everything back. All but
    `start`, `finish` and `last_lines` are to return at once. A context that was written for
    torchrun starts its workers without `child_fds`: only files that other programs write are to be
    shown then.
    """

    def child_fds(self, local_rank: int) -> tuple[int | None, int | None]:
        """Descriptors that the worker gets as stdout and stderr; None means the launcher's own.

        Called once for each rank. The descriptors are close-on-exec, and valid until `start`,
        which closes them.

        Raises:
            LogDirectoryError: a log file cannot be opened.
            OSError: too many descriptors are open, say.
        """

    def start(self) -> None:
        """Begin to read; called once, after all workers have been started.

        Raises:
            OSError: too many descriptors are open, say.
            RuntimeError: the system gives no more threads.
        """

    def is_reading(self) -> bool:
        """Whether a stream passes through the launcher; `finish` then runs on its own thread."""

    def escalate(self) -> None:
        """Let `finish`, also one in progress, not wait for what is slow.

        May be called in a signal handler.
        """

    def finish(self) -> None:
        """Pass on all that the workers have written, then close everything; once all have ended.

        May be called again, which does nothing, and without `start`.
        """

    def last_lines(self, local_rank: int) -> Sequence[str]:
        """The last lines of that rank's stderr, oldest first; complete after `finish`.

        Empty if they are not known. Called for a rank that has failed, once that is seen and again
        at the end. What is on its way then should be waited for, for a moment: restart policies
        read the exception in these lines.
        """

    def is_shown(self, local_rank: int) -> bool:
        """Whether the launcher's own stderr has shown, or will, what that rank writes to stderr.

        The launcher then does not repeat it in its message about a failure. Streams without this
        method are taken to show nothing.
        """

    def counts(self) -> OutputCounts:
        """The numbers of this moment; called by any thread, at any time after `start`."""

    def last_shown(self) -> float:
        """When the console took something last, on the monotonic clock; `-math.inf` if never.

        Called by any thread, at any time after `start`. A slow console, or whatever else takes the
        output, may take long for the last of it; meanwhile this shows that the launcher is alive.
        """


class PatientStreams(Streams, Protocol):
    """Streams that can wait for a slow console after `finish`, at the end of the run.

    So a console that stands still holds up neither a restart nor other nodes.
    """

    def leave_rest(self) -> None:
        """Let `finish` leave to `show_rest` what the console does not take at once.

        Called before `finish`, if at all.
        """

    def show_rest(self, timeout: float) -> None:
        """Wait, after `finish`, until the console has shown everything.

        That includes what earlier starts of the workers have left, if `open_streams` got them as
        `before`. Called once, at the end of the run, on its own thread. Ends after `timeout`
        seconds, which may be infinite, after `escalate`, and when the console's reader is gone.
        What is not shown is reported.
        """


def is_shown(streams: Streams, local_rank: int) -> bool:
    """The result of `is_shown`; False if the streams have no such method, or it fails."""
    ask = getattr(streams, "is_shown", None)
    with contextlib.suppress(Exception):  # a plugin's bug must not change the result of the job
        return bool(ask(local_rank)) if callable(ask) else False
    return False


def leave_rest(streams: Streams) -> None:
    """Let `finish` leave what a slow console does not take, if the streams can."""
    leave = getattr(streams, "leave_rest", None)
    if callable(leave):
        leave()


def show_rest(streams: Streams, timeout: float) -> None:
    """Wait for a slow console, as `PatientStreams` do; others have done so in `finish`."""
    show = getattr(streams, "show_rest", None)
    if callable(show):
        show(timeout)


class Traffic:
    """Counts over all starts of a worker group, which any thread may read."""

    def __init__(self) -> None:
        # In one attribute, so that no reader finds the one without the other.
        self._before_and_now: tuple[OutputCounts, Streams | None] = (OutputCounts(), None)

    @property
    def streams(self) -> Streams | None:
        """The streams of the workers that started last."""
        return self._before_and_now[1]

    def follow(self, streams: Streams) -> None:
        """New workers have started, with these streams; what passed before stays counted."""
        self._before_and_now = (self.counts()._replace(lag_bytes=0), streams)

    def counts(self) -> OutputCounts:
        """The numbers of this moment."""
        before, streams = self._before_and_now
        if streams is None:
            return before
        now = streams.counts()
        return OutputCounts(
            before.read_bytes + now.read_bytes,
            now.lag_bytes,
            before.dropped_lines + now.dropped_lines,
            now.by_worker,
        )

    def last_shown(self) -> float:
        """When a console took something last, on the monotonic clock."""
        return -math.inf if self.streams is None else self.streams.last_shown()
