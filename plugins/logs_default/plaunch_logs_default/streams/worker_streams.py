"""The output streams of one start of a worker group: where they go, and what reads them."""

from __future__ import annotations

import math
import os
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from plaunch.process import OutputCounts

from plaunch_logs_default.streams.consoles import Consoles
from plaunch_logs_default.streams.reader import FollowedFile, Reader, Source
from plaunch_logs_default.streams.routes import (
    Route,
    RouteKind,
    StandardStream,
    close_quietly,
    open_log,
    open_pipe,
    open_sink,
    through_sink,
)
from plaunch_logs_default.streams.sinks import (
    FileSink,
    LastLinesSink,
    RawToConsole,
    TracebackFinder,
    read_last_lines,
)
from plaunch_logs_default.streams.writer import WarningLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from plaunch.process import LogsDest, Sink, Streams

    from plaunch_logs_default.streams.consoles import Console
    from plaunch_logs_default.streams.log_sinks import LogSinkWriter
    from plaunch_logs_default.streams.sinks import ByteSink
    from plaunch_logs_default.streams.writer import OutputWriter

FINISH_TIMEOUT = 5.0  # seconds without progress
NOTICE_AFTER = 1.0  # seconds of waiting for a console before the wait is logged
_CATCH_UP_TIMEOUT = 0.2  # seconds; usually less than a millisecond, unless a file system hangs


def open_worker_streams(
    dest: LogsDest,
    nprocs: int,
    *,
    prefixes: Mapping[int, str],
    stdout_filters: Sequence[str] = (),
    stderr_filters: Sequence[str] = (),
    capture_stderr: bool = True,
    keeps_daemons: bool = False,
    stdout_fd: int = 1,
    stderr_fd: int = 2,
    **options: Any,
) -> WorkerStreams:
    """Choose where the output of each worker goes; the default of `LogsSpecs.open_streams`.

    Args:
        dest: where the streams go.
        nprocs: number of local ranks.
        prefixes: see `WorkerStreams`.
        stdout_filters: substrings; teed lines that contain one are also written, with their
            prefix, to the filtered file of `dest`.
        stderr_filters: the same for stderr.
        capture_stderr: pass stderr that is neither redirected nor teed through the launcher, so
            that its last lines are known.
        keeps_daemons: whether processes may write after the launcher has ended. Then no stream
            passes through a pipe of the launcher: `capture_stderr` has no effect, and no sinks are
            opened.
        stdout_fd: the console for stdout. If Python code has replaced `sys.stdout` or `sys.stderr`,
            teed lines go to the replacement.
        stderr_fd: the console for stderr.
        options: `open_sink` and `before`; see `WorkerStreams`.
    """
    create = partial(StandardStream.create, dest=dest, nprocs=nprocs, keeps_daemons=keeps_daemons)
    captures = capture_stderr and not keeps_daemons
    stdout = create("stdout", stdout_fd, filters=stdout_filters, capture=False)
    stderr = create("stderr", stderr_fd, filters=stderr_filters, capture=captures)
    if keeps_daemons:
        options["open_sink"] = None
    return WorkerStreams(stdout, stderr, prefixes, **options)


class WorkerStreams:
    """Connects the output streams of one start of a worker group, and reads those with a pipe.

    Call `child_fds` for each worker, start the workers, call `start`, wait for their end, call
    `finish`. After an error in between, `finish` releases everything. Threads start in `start`, and
    only if a stream passes through the launcher.

    Args:
        stdout: the workers' stdout.
        stderr: the workers' stderr; if its console is a terminal, each worker gets a
            pseudo-terminal.
        prefixes: what precedes each teed line on the console, by local rank.
        open_sink: opens the sink of a stream, given the local rank and "stdout" or "stderr"; None
            stands for no sink.
        before: the streams of the previous start; the consoles first show the rest of these.
    """

    def __init__(
        self,
        stdout: StandardStream,
        stderr: StandardStream,
        prefixes: Mapping[int, str],
        *,
        open_sink: Callable[[int, str], Sink | None] | None = None,
        before: Streams | None = None,
    ) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._prefixes = prefixes
        self._open_sink = open_sink
        self._log = WarningLog()
        self._child_ends: list[int] = []
        self._sources: dict[int, list[Source]] = {}  # by local rank
        earlier = before._consoles if isinstance(before, WorkerStreams) else None
        self._is_escalated = False
        self._consoles: Consoles = Consoles(self._log, lambda: self._is_escalated, earlier)
        self._log_sinks: list[LogSinkWriter] = []
        self._filtered: dict[str, FileSink] = {}  # files of filtered lines, by the stream's name
        self._last_lines: dict[int, Callable[[], list[str]]] = {}  # of stderr, by local rank
        self._traceback_times: dict[int, Callable[[], float | None]] = {}  # the same
        self._reader: Reader | None = None
        self._is_finished = False
        self._leaves_rest = False  # to `show_rest`
        self._is_reader_stuck = False  # the reader has not caught up in time, once

    def child_fds(self, local_rank: int) -> tuple[int | None, int | None]:
        """The descriptors for stdout and stderr of a worker; None means the launcher's own.

        Called once for each rank. The descriptors are close-on-exec, and valid until `start`.

        Raises:
            LogDirectoryError: a log file cannot be opened.
            StreamsError: too many descriptors are open.
            PluginError: a sink cannot be opened.
        """
        return self._connect(self._stdout, local_rank), self._connect(self._stderr, local_rank)

    def _connect(self, stream: StandardStream, rank: int) -> int | None:
        route = stream.routes[rank]
        label = f"{stream.name} of local rank {rank}"
        log_sink = None
        if self._open_sink is not None:
            route, log_sink = self._add_log_sink(self._open_sink, route, rank, stream.name)
        if route.kind is RouteKind.INHERIT:
            return None
        if route.kind is RouteKind.FILE:
            fd = open_log(route.file, label)
            self._child_ends.append(fd)
            if stream is self._stderr:
                start = os.fstat(fd).st_size
                self._last_lines[rank] = partial(read_last_lines, route.file, start)
                self._traceback_times[rank] = TracebackFinder(route.file, start).traceback_time
            return fd
        source, child_end = self._open_source(stream, route, label, is_large=log_sink is not None)
        self._sources.setdefault(rank, []).append(source)
        self._child_ends.append(child_end)
        if log_sink is not None:
            source.add(log_sink)
        if stream is self._stderr:
            lines = LastLinesSink()
            source.add(lines)
            self._last_lines[rank] = partial(self._lines_of, lines, source)
            self._traceback_times[rank] = lambda: lines.traceback_time
        if route.file:
            source.add(FileSink(open_log(route.file, label), route.file, self._log))
        if route.kind is RouteKind.TEE:
            self._tee(stream, source, self._prefixes[rank], route.file)
        elif route.is_shown and (console := self._consoles.open(stream, route.file)):
            source.add(RawToConsole(console))
        return child_end

    def _add_log_sink(
        self, opens: Callable[[int, str], Sink | None], route: Route, rank: int, stream: str
    ) -> tuple[Route, ByteSink | None]:
        """Open the logs spec's sink for a stream; the stream's route and what feeds the sink."""
        sink = open_sink(opens, rank, stream)
        if sink is None:
            return route, None
        # Imported only if a logs spec has sinks.
        from plaunch_logs_default.streams.log_sinks import LogSinkWriter, ToLogSink

        writer = LogSinkWriter(sink, f"{stream} of local rank {rank}", self._log)
        self._log_sinks.append(writer)
        route = through_sink(route, keeps_file=bool(getattr(sink, "keeps_file", False)))
        return route, ToLogSink(writer)

    def _tee(
        self,
        stream: StandardStream,
        source: Source,
        text: str,
        file: str,
        *,
        is_delayed: bool = False,
    ) -> None:
        """Show a stream that `file` gets as well.

        Args:
            stream: stdout or stderr.
            source: what reads the stream.
            text: the prefix, or a template for the line.
            file: the stream's log file; empty for none.
            is_delayed: whether lines may be read long after they were written, so that the prefix
                has no time.
        """
        to_console: Callable[[Console], ByteSink]
        from plaunch_logs_default.streams import lines  # only for teed streams

        if lines.LINE_MACRO in text:
            from plaunch_logs_default.streams import json_lines  # only for --log-format=json

            line_format = json_lines.LineFormat(text, stream.name, is_delayed=is_delayed)
            to_console = partial(json_lines.JsonLinesToConsole, line_format)
            format_lines: Callable[[Iterable[bytes]], bytes] = line_format
        else:
            prefix = lines.Prefix(text.replace(lines.TIME_MACRO, "") if is_delayed else text)
            to_console = partial(lines.LinesToConsole, prefix)
            format_lines = prefix.format_lines
        if console := self._consoles.open(stream, file, teed=True):
            source.add(to_console(console))
        if stream.filters and stream.filtered_path:
            if stream.name not in self._filtered:
                fd = open_log(stream.filtered_path, f"the filtered lines of {stream.name}")
                self._filtered[stream.name] = FileSink(fd, stream.filtered_path, self._log)
            substrings = [lines.encode(text) for text in stream.filters]
            file_sink = self._filtered[stream.name]
            source.add(lines.MatchesToFile(format_lines, substrings, file_sink))

    def _open_source(
        self, stream: StandardStream, route: Route, label: str, *, is_large: bool
    ) -> tuple[Source, int]:
        if route.kind is RouteKind.CAPTURE and route.is_shown and os.isatty(stream.fd):
            from plaunch_logs_default.streams import terminal  # only with a terminal

            try:
                master, slave = terminal.open_terminal(stream.fd)
            except OSError as error:
                self._log.warn(
                    "no pseudo-terminal for %s (%s): the worker gets a pipe", label, error
                )
            else:
                source = Source(master, label, self._log)
                source.add(terminal.WindowSizeSync(stream.fd, master))
                return source, slave
        is_large = is_large or route.kind is RouteKind.TEE
        read_end, write_end = open_pipe(label, is_large=is_large)
        return Source(read_end, label, self._log), write_end

    def start(self) -> None:
        """Begin to read; called once, after all workers have been started.

        Closes the descriptors of `child_fds`: from now on only the workers have them.

        Raises:
            OSError: a file for filtered lines cannot be opened, or too many descriptors are open.
            RuntimeError: no more threads can be started.
        """
        self._close_child_ends()
        for stream in (self._stdout, self._stderr):
            for rank, route in stream.routes.items():
                if route.tail:
                    file = FollowedFile(route.tail, self._log)
                    self._sources.setdefault(rank, []).append(file)
                    self._tee(stream, file, self._prefixes[rank], route.tail, is_delayed=True)
        if not self._sources:
            return
        for writer in self._writers():
            writer.start()
        sources = [*chain.from_iterable(self._sources.values())]
        reader = Reader(sources, shared=self._filtered.values(), report_held=self._report_held)
        reader.start()
        self._reader = reader

    def is_reading(self) -> bool:
        """Whether any stream passes through the launcher, so that `finish` may take long."""
        return self._reader is not None

    def escalate(self) -> None:
        """Do not wait for a slow console or sink in `finish` and `show_rest`, even in progress.

        May be called in a signal handler.
        """
        self._is_escalated = True

    def leave_rest(self) -> None:
        """Make `finish` leave to `show_rest` what a console does not accept at once."""
        self._leaves_rest = True

    def finish(self, timeout: float = FINISH_TIMEOUT) -> None:
        """Pass on all that the workers have written, then close everything.

        Called once all workers have ended, possibly without `start`. Another call does nothing.

        If another process still has a pipe open, its output is read for a short time only. Waits
        for a slow console or sink as long as it accepts something at least every `timeout` seconds.
        Output that it does not accept is reported, and so are lines that did not fit on a full
        disk. After `leave_rest`, does not wait for consoles; they keep their unshown output.
        """
        if self._is_finished:
            return
        self._is_finished = True
        with ExitStack() as stack:  # runs all callbacks, last first, even if one is interrupted
            stack.callback(self._log.flush, timeout=1.0)
            stack.callback(self._consoles.finish, timeout, leave_rest=self._leaves_rest)
            for sink_writer in self._log_sinks:
                stack.callback(sink_writer.close, timeout, lambda: self._is_escalated)
            for writer in self._writers():  # first all of them: they write at the same time
                stack.callback(writer.request_end)
            if self._reader is not None:
                stack.callback(self._finish_reader, self._reader, timeout)
            else:  # `start` was not called, or there is nothing to read
                for file in self._filtered.values():
                    stack.callback(file.close)
                for source in chain.from_iterable(self._sources.values()):
                    stack.callback(source.close)
            stack.callback(self._close_child_ends)

    def show_rest(self, timeout: float = math.inf, *, notice_after: float = NOTICE_AFTER) -> None:
        """Wait, after `finish`, until the consoles have shown everything, also of earlier starts.

        Does not wait for a console whose reader is gone: writing to it fails. After `notice_after`
        seconds the log says that the launcher waits, unless the slow console is the one that shows
        the log. Output that is not shown after `timeout` seconds, or after `escalate`, is reported.
        """
        try:
            self._consoles.show_rest(timeout, notice_after, self._stderr.file)
        finally:
            self._log.flush(timeout=1.0)

    def _finish_reader(self, reader: Reader, timeout: float) -> None:
        if not reader.finish(timeout):
            self._log.warn(
                "a log file system does not answer; the end of the workers' output may be missing"
            )

    def _report_held(self, streams: Mapping[int, str]) -> None:
        from plaunch_logs_default.streams.holders import report_holders  # rarely needed

        report_holders(streams, self._log)

    def _close_child_ends(self) -> None:
        while self._child_ends:
            close_quietly(self._child_ends.pop())

    def last_lines(self, local_rank: int) -> list[str]:
        """The last lines of that rank's stderr, complete once it has ended; empty if unknown."""
        return self._last_lines.get(local_rank, list)()

    def _lines_of(self, lines: LastLinesSink, source: Source) -> list[str]:
        if self._reader is not None and not self._is_reader_stuck:
            self._is_reader_stuck = not source.catch_up(_CATCH_UP_TIMEOUT)
        return lines.last_lines()

    def traceback_time(self, local_rank: int) -> float | None:
        """When that rank last began a traceback on stderr, in seconds since the epoch, or None."""
        return self._traceback_times.get(local_rank, lambda: None)()

    def is_shown(self, local_rank: int) -> bool:
        """Whether the launcher's own stderr shows all that this rank writes to stderr."""
        stream = self._stderr
        route = stream.routes[local_rank]
        if not route.is_shown and not route.tail:
            return False
        if route.kind is RouteKind.INHERIT:
            return stream.file is not None
        is_teed = route.kind is RouteKind.TEE or bool(route.tail)
        # Messages go to the replacement of `sys.stderr`; of the workers' output only teed lines do.
        if stream.replaced is not None and not is_teed:
            return False
        return self._consoles.shows_all(stream, teed=is_teed)

    def counts(self) -> OutputCounts:
        """The current counts; called by any thread."""
        writers = self._writers()
        return OutputCounts(
            0 if self._reader is None else self._reader.read_bytes,
            sum(writer.waiting_bytes for writer in (*writers, *self._consoles.earlier())),
            sum(writer.missing_lines for writer in writers),
            {
                rank: sum(source.read_bytes for source in sources)
                for rank, sources in self._sources.items()
            },
        )

    def last_shown(self) -> float:
        """When a console or a sink last accepted output, on the monotonic clock."""
        return max((writer.last_progress for writer in self._writers()), default=-math.inf)

    def _writers(self) -> list[OutputWriter]:
        return [*self._consoles.current(), *self._log_sinks]
