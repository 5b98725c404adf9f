"""The contracts of streams and sinks, which carry the output of workers, and calls of streams.

Streams may come from a plugin, whose bugs must not change the result of the job.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from plaunch._names import class_name
from plaunch.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_log = logging.getLogger("plaunch")

# Seconds for which a console holds back a line without an end that may be a prompt: on a terminal,
# and elsewhere, where it could appear twice.
PROMPT_HOLD = 0.1
PROMPT_HOLD_IN_LOG = 1.0


class OutputCounts(NamedTuple):
    """How much output of the workers has passed through the launcher.

    Args:
        read_bytes: bytes that were read from the workers.
        lag_bytes: bytes that wait for the console, or for a sink of the logs spec.
        dropped_lines: lines for which neither these nor the disk had room.
        by_worker: bytes that were read from each worker since it started, by local rank; empty if
            the streams do not count them.
    """

    read_bytes: int = 0
    lag_bytes: int = 0
    dropped_lines: int = 0
    by_worker: Mapping[int, int] = MappingProxyType({})


class Sink(Protocol):
    """Receives what one worker writes to one stream; opened by `LogsSpecs.open_sink`.

    It replaces the file that `LogsDest` names for the stream. If its attribute `keeps_file` is
    true, the launcher writes that file as well.

    Each sink has its own thread, which calls its methods one at a time. So a sink may block without
    delaying the workers, the console or other sinks. Pending output is kept within limits. Beyond
    them the oldest lines are dropped, and a line in the output says so. Dropped lines are counted,
    and reported at the end.
    """

    def write(self, data: bytes) -> object:
        """Receive the next piece of the stream: at most 64 KiB, of whole lines where possible.

        An exception is reported, the lines of the piece count as dropped, and the sink gets no more
        output. Only after an `OSError` because the disk is full does it get the next piece.
        """

    def close(self) -> object:
        """Called once at the end of the stream, also after an error.

        The worker has ended, or could not be started. The launcher abandons a sink that receives
        nothing for five seconds then.
        """


class Streams(Protocol):
    """The output streams of one start of a worker group; opened by `LogsSpecs.open_streams`.

    `child_fds` is called for each worker, then the workers start, and `start` is called. `finish`
    is called when they have ended; after an error in between, it releases everything. All methods
    but `start`, `finish` and `last_lines` must return at once. A context that was written for
    torchrun starts its workers without `child_fds`; the streams then only show files that other
    programs write.
    """

    def child_fds(self, local_rank: int) -> tuple[int | None, int | None]:
        """Return the descriptors for stdout and stderr of a worker; None means the launcher's own.

        Called once for each rank. The descriptors are close-on-exec, and valid until `start`, which
        closes them.

        Raises:
            LogDirectoryError: a log file cannot be opened.
            OSError: for instance, too many descriptors are open.
        """

    def start(self) -> None:
        """Begin to read; called once, after all workers have been started.

        Raises:
            OSError: for instance, too many descriptors are open.
            RuntimeError: no more threads can be started.
        """

    def is_reading(self) -> bool:
        """Whether output passes through the launcher; `finish` is then called on its own thread."""

    def escalate(self) -> None:
        """Do not wait for slow consumers in `finish`, also if that is in progress.

        May be called in a signal handler.
        """

    def finish(self) -> None:
        """Pass on all that the workers have written, and close everything.

        Called once all workers have ended, possibly without `start`. Another call does nothing.
        """

    def last_lines(self, local_rank: int) -> Sequence[str]:
        """Return the last lines of that rank's stderr, oldest first; complete after `finish`.

        Empty if unknown. Called for a rank that has failed, once its exit is seen and again at the
        end. The first call should wait briefly for output in transit: restart policies read the
        exception in these lines.
        """

    def is_shown(self, local_rank: int) -> bool:
        """Whether the launcher's own stderr shows what that rank writes to stderr.

        The launcher then does not repeat it in its message about a failure. Streams without this
        method count as showing nothing.
        """

    def traceback_time(self, local_rank: int) -> float | None:
        """Return when that rank last wrote the head of a traceback to stderr; None if it did not.

        In seconds since the epoch; the time may be some seconds late. Called on any thread while
        the worker runs. For streams without this method it is unknown.
        """

    def counts(self) -> OutputCounts:
        """Return the current counts; called by any thread, at any time after `start`."""

    def last_shown(self) -> float:
        """Return when the console last accepted output, on the monotonic clock; or `-math.inf`.

        Called by any thread, at any time after `start`. While a slow consumer takes long for the
        last output, this shows that the launcher is alive.
        """


class PatientStreams(Streams, Protocol):
    """Streams that can wait for a slow console after `finish`, at the end of the run.

    So a blocked console delays neither a restart nor other nodes.
    """

    def leave_rest(self) -> None:
        """Make `finish` leave to `show_rest` what the console does not accept at once.

        Called before `finish`, if at all.
        """

    def show_rest(self, timeout: float) -> None:
        """Wait until the console has shown everything; called after `finish`.

        That includes the rest of earlier starts, if `open_streams` got their streams as `before`.
        Called once, at the end of the run, on its own thread. Ends after `timeout` seconds, which
        may be infinite, after `escalate`, and when the console's reader is gone. Output that was
        not shown is reported.
        """


def last_lines(streams: Streams, local_rank: int) -> list[str]:
    """Call `last_lines` of the streams; empty if it fails, which is logged."""
    try:
        return [str(line) for line in streams.last_lines(local_rank)]
    except Exception as error:  # noqa: BLE001 - a plugin's
        _log.warning("%s failed in last_lines: %s", class_name(streams), one_line(error))
        return []


def is_shown(streams: Streams, local_rank: int) -> bool:
    """Call `is_shown` of the streams; False if they have no such method, or it fails."""
    ask = getattr(streams, "is_shown", None)
    with contextlib.suppress(Exception):  # a plugin's
        return bool(ask(local_rank)) if callable(ask) else False
    return False


def traceback_time(streams: Streams, local_rank: int) -> float | None:
    """Call `traceback_time` of the streams; None if they have no such method, or it fails."""
    ask = getattr(streams, "traceback_time", None)
    with contextlib.suppress(Exception):  # a plugin's
        return ask(local_rank) if callable(ask) else None
    return None


def leave_rest(streams: Streams) -> None:
    """Call `leave_rest` of the streams, if they have it."""
    leave = getattr(streams, "leave_rest", None)
    if callable(leave):
        leave()


def show_rest(streams: Streams, timeout: float) -> None:
    """Call `show_rest` of the streams, if they have it; others have waited in `finish`."""
    show = getattr(streams, "show_rest", None)
    if callable(show):
        show(timeout)


class LastOutput:
    """The output that streams pass on when the workers have ended.

    It calls `finish` of the streams, on its own thread if that may take long. An error is logged,
    and a thread that shows nothing for a long time is abandoned.

    Args:
        streams: the output.
        wake: called when `finish` has returned, on any thread.
        shows_rest: whether to wait for a slow console, without a limit. If not, the caller does so
            at the end of the run, if the streams support it.
        timeout: seconds for which the streams may show nothing.
        escalated_timeout: the same after `escalate`.
    """

    def __init__(
        self,
        streams: Streams,
        wake: Callable[[], None],
        *,
        shows_rest: bool,
        timeout: float = 60.0,
        escalated_timeout: float = 10.0,
    ) -> None:
        self.is_begun = False
        self.is_over = False
        self._streams = streams
        self._wake = wake
        self._shows_rest = shows_rest
        self._timeout = timeout
        self._hurried_timeout = escalated_timeout
        self._begun_at = 0.0
        self._is_finished = False
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Call `finish` of the streams; called once."""
        self.is_begun = True
        self._begun_at = time.monotonic()
        if self._streams.is_reading():
            thread = threading.Thread(target=self._run, name="plaunch-output", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: signals are handled later
                thread.start()
                self._thread = thread
        if self._thread is None:
            self._run()

    def escalate(self) -> None:
        """Do not wait for a slow console; may be called in a signal handler."""
        self._timeout = self._hurried_timeout
        with contextlib.suppress(Exception):  # a plugin's bug must not prevent the SIGKILL
            self._streams.escalate()

    def is_stuck(self) -> bool:
        """Whether `finish` has neither returned nor shown anything for too long."""
        if self._is_finished:
            return False  # the wait for a slow console has no limit
        shown = self._begun_at
        with contextlib.suppress(Exception):
            shown = max(shown, self._streams.last_shown())
        return time.monotonic() - shown >= self._timeout

    def end(self) -> None:
        """Wait for the thread to exit; abandon it if it is stuck."""
        if not self.is_over:
            _log.warning(
                "%s has not returned from finish; workers' output may be missing",
                class_name(self._streams),
            )
        elif self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            leave_rest(self._streams)
            self._streams.finish()
            self._is_finished = True
            if self._shows_rest:
                show_rest(self._streams, math.inf)
        except BaseException as error:  # noqa: BLE001 - also SystemExit of a plugin
            _log.warning(
                "%s failed in finish: %s; workers' output may be missing",
                class_name(self._streams),
                one_line(error),
            )
        self.is_over = True
        self._wake()


class OutputStats:
    """Counts the output of all starts of a worker group. Any thread may read the counts."""

    def __init__(self) -> None:
        # One attribute, so that readers on other threads see both values change at once.
        self._before_and_now: tuple[OutputCounts, Streams | None] = (OutputCounts(), None)

    @property
    def streams(self) -> Streams | None:
        """The streams of the workers that started last."""
        return self._before_and_now[1]

    def follow(self, streams: Streams) -> None:
        """Also count the streams of workers that have just started."""
        self._before_and_now = (self.counts()._replace(lag_bytes=0), streams)

    def counts(self) -> OutputCounts:
        """Return the current counts."""
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
        """Return when the console last accepted output, on the monotonic clock; or `-math.inf`."""
        return -math.inf if self.streams is None else self.streams.last_shown()
