"""The output streams of one start of a worker group: where they go, and who reads them."""

from __future__ import annotations

import math
import os
import time
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from plaunch.process import OutputCounts
from plaunch.values import Record, plain_dataclass

from plaunch_logs_default.streams.console import Console, find_replaced, text_writer
from plaunch_logs_default.streams.descriptors import (
    close_quietly,
    open_log,
    open_pipe,
    open_sink,
    open_terminal,
)
from plaunch_logs_default.streams.last_lines import Ring, read_last_lines
from plaunch_logs_default.streams.lines import (
    LINE_MACRO,
    TIME_MACRO,
    LinesToConsole,
    MatchesToFile,
    Prefix,
    encode,
)
from plaunch_logs_default.streams.notices import Notices
from plaunch_logs_default.streams.reader import FollowedFile, Reader, Source
from plaunch_logs_default.streams.routes import Route, Way, choose_route, outliving, through_sink
from plaunch_logs_default.streams.sinks import FileSink, RawToConsole, SizeKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import TextIO

    from plaunch.process import LogsDest, Sink, Streams

    from plaunch_logs_default.streams.log_sinks import LogSinkWriter
    from plaunch_logs_default.streams.sinks import ByteSink
    from plaunch_logs_default.streams.writer import Writer

FINISH_TIMEOUT = 5.0  # seconds without progress
_MESSAGE_ORDER_WAIT = 0.1  # seconds; a console that is read shows what it has before messages come
NOTICE_AFTER = 1.0  # seconds of waiting for a console after which the log says so
_CATCH_UP_TIMEOUT = 0.2  # seconds; as a rule less than a millisecond, unless a file system hangs


@plain_dataclass
class _Stream(Record):
    """What all ranks' stdout, or all ranks' stderr, have in common."""

    name: str
    fd: int
    file: tuple[int, int] | None  # what is behind `fd`; None if it is closed: nothing is shown
    replaced: TextIO | None  # for lines that are teed
    filters: Sequence[bytes]
    filtered_path: str
    routes: Mapping[int, Route]


def _choose(dest: LogsDest, stream: str, rank: int, *, capture: bool) -> Route:
    paths: dict[int, str] = getattr(dest, f"{stream}s")
    tee_paths: dict[int, str] = getattr(dest, f"tee_{stream}s")
    return choose_route(paths.get(rank, ""), tee_paths.get(rank), capture=capture)


def _file_behind(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _describe_files(files: Collection[str]) -> str:
    """Where all is that a console shows; empty if some of it is in no file."""
    if not all(files):
        return ""
    if len(files) == 1:
        return f"{next(iter(files))!r} has all of it"
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(file)) for file in files])
    return f"the log files in {folder!r} have all of it"


class WorkerStreams:
    """Connects the output streams of one start of a worker group, and reads those that it must.

    Use: `child_fds` for each worker, start the workers, `start`, wait for their end, `finish`.
    After an error in between, `finish` gives everything back. There is no thread before `start`,
    and none at all if no stream comes to the launcher.

    Args:
        dest: where the streams go.
        nprocs: number of local ranks.
        prefixes: what precedes each line on the console, by local rank.
        stdout_filters: substrings; lines of teed ranks that contain one are added, with their
            prefix, to the file that `dest` names for that.
        stderr_filters: the same for stderr.
        capture_stderr: pass stderr that is neither redirected nor teed through the launcher, so
            that its last lines are known.
        stdout_fd: the console for stdout; teed lines go to what is in the place of `sys.stdout`
            and `sys.stderr`, where that is something else.
        stderr_fd: the console for stderr; a terminal gets each worker a pseudo-terminal.
        keeps_daemons: whether something may be left that writes when the launcher is gone. No
            stream passes through a pipe of the launcher then, so that `capture_stderr` is nothing,
            and no sinks are opened.
        open_sink: opens the sink of a stream, given the local rank and "stdout" or "stderr"; None
            stands for no sink.
        before: the streams of the start before this one; what their consoles have not shown yet
            comes first.
    """

    def __init__(
        self,
        dest: LogsDest,
        nprocs: int,
        *,
        prefixes: Mapping[int, str],
        stdout_filters: Sequence[str] = (),
        stderr_filters: Sequence[str] = (),
        capture_stderr: bool = True,
        stdout_fd: int = 1,
        stderr_fd: int = 2,
        keeps_daemons: bool = False,
        open_sink: Callable[[int, str], Sink | None] | None = None,
        before: Streams | None = None,
    ) -> None:
        self._prefixes = prefixes
        self._open_its_sink = None if keeps_daemons else open_sink
        self._notices = Notices()
        captures = capture_stderr and not keeps_daemons

        def describe(name: str, fd: int, filters: Sequence[str], *, capture: bool) -> _Stream:
            routes = {rank: _choose(dest, name, rank, capture=capture) for rank in range(nprocs)}
            if keeps_daemons:
                routes = {rank: outliving(route) for rank, route in routes.items()}
            path: str = getattr(dest, f"filtered_{name}")
            if path == os.devnull or path.startswith(os.devnull + os.sep):
                path = ""  # torch's spec puts it "below" /dev/null when there are to be no files
            # Asked now: while workers are started, a number that is closed may be given to a file.
            file, replaced = _file_behind(fd), find_replaced(name, fd)
            found = [encode(text) for text in filters]
            return _Stream(name, fd, file, replaced, found, path, routes)

        self._stdout = describe("stdout", stdout_fd, stdout_filters, capture=False)
        self._stderr = describe("stderr", stderr_fd, stderr_filters, capture=captures)
        self._child_ends: list[int] = []
        self._sources: dict[int, list[Source]] = {}  # by local rank
        self._consoles: dict[object, Console] = {}  # those that something is shown on
        self._unshown: dict[object, Console] = {}  # with output that `finish` has left to them
        self._earlier: dict[object, Console] = {}  # those of earlier starts
        self._shown_files: dict[object, set[str]] = {}  # that have what a console shows; "": none
        if isinstance(before, WorkerStreams):
            self._earlier = before._unshown_consoles()
            self._shown_files = {key: {*before._shown_files[key]} for key in self._earlier}
        self._log_sinks: list[LogSinkWriter] = []
        self._matches: dict[str, FileSink] = {}  # for the filtered lines, by the stream's name
        self._last_lines: dict[int, Callable[[], list[str]]] = {}  # of stderr, by local rank
        self._reader: Reader | None = None
        self._is_finished = False
        self._is_escalated = False
        self._leaves_rest = False  # to `show_rest`
        self._is_late = False  # whether the reader was once waited for in vain

    def child_fds(self, local_rank: int) -> tuple[int | None, int | None]:
        """Descriptors that the worker gets as stdout and stderr; None means the launcher's own.

        Called once for each rank. The descriptors are close-on-exec, and valid until `start`.

        Raises:
            LogDirectoryError: a log file cannot be opened.
            StreamsError: too many descriptors are open.
            PluginError: a sink cannot be opened.
        """
        return self._connect(self._stdout, local_rank), self._connect(self._stderr, local_rank)

    def _connect(self, stream: _Stream, rank: int) -> int | None:
        route = stream.routes[rank]
        label = f"{stream.name} of local rank {rank}"
        writer = None
        if self._open_its_sink is not None:
            route, writer = self._add_sink(self._open_its_sink, route, rank, stream.name)
        if route.way is Way.INHERIT:
            return None
        if route.way is Way.FILE:
            fd = open_log(route.file, label)
            self._child_ends.append(fd)
            if stream is self._stderr:
                start = os.fstat(fd).st_size
                self._last_lines[rank] = partial(read_last_lines, route.file, start)
            return fd
        source, child_end = self._open_source(stream, route, label, is_large=writer is not None)
        self._sources.setdefault(rank, []).append(source)
        self._child_ends.append(child_end)
        if writer is not None:
            source.add(writer)
        if stream is self._stderr:
            ring = Ring()
            source.add(ring)
            self._last_lines[rank] = partial(self._lines_of, ring, source)
        if route.file:
            source.add(FileSink(open_log(route.file, label), route.file, self._notices))
        if route.way is Way.TEE:
            self._tee(stream, source, self._prefixes[rank], route.file)
        elif route.is_shown and (console := self._console(stream, route.file)):
            source.add(RawToConsole(console))
        return child_end

    def _add_sink(
        self,
        open_its: Callable[[int, str], Sink | None],
        route: Route,
        rank: int,
        stream: str,
    ) -> tuple[Route, ByteSink | None]:
        """The way of a stream that the logs spec may have a sink for, and what feeds that."""
        sink = open_sink(open_its, rank, stream)
        if sink is None:
            return route, None
        from plaunch_logs_default.streams.log_sinks import LogSinkWriter, ToLogSink  # if any

        writer = LogSinkWriter(sink, f"{stream} of local rank {rank}", self._notices)
        self._log_sinks.append(writer)
        route = through_sink(route, keeps_file=bool(getattr(sink, "keeps_file", False)))
        return route, ToLogSink(writer)

    def _tee(
        self, stream: _Stream, source: Source, text: str, file: str, *, is_late: bool = False
    ) -> None:
        """Show a stream that `file` gets as well; its lines may be read long after they came."""
        to_console: Callable[[Console], ByteSink]
        to_matches: Callable[[Sequence[bytes], ByteSink], ByteSink]
        if LINE_MACRO in text:
            from plaunch_logs_default.streams import json_lines  # if asked for

            form = json_lines.LineFormat(text, stream.name, is_late=is_late)
            to_console = partial(json_lines.JsonLinesToConsole, form)
            to_matches = partial(json_lines.JsonMatchesToFile, form)
        else:
            prefix = Prefix(text.replace(TIME_MACRO, "") if is_late else text)
            to_console = partial(LinesToConsole, prefix)
            to_matches = partial(MatchesToFile, prefix)
        if console := self._console(stream, file, teed=True):
            source.add(to_console(console))
        if stream.filters and stream.filtered_path:
            if stream.name not in self._matches:
                fd = open_log(stream.filtered_path, f"the filtered lines of {stream.name}")
                matches = FileSink(fd, stream.filtered_path, self._notices)
                self._matches[stream.name] = matches
            source.add(to_matches(stream.filters, self._matches[stream.name]))

    def _console(self, stream: _Stream, file: str, *, teed: bool = False) -> Console | None:
        """The console of a stream, for teed lines or others; None if nothing can be shown.

        `file` has what is shown as well, unless it is empty.
        """
        replaced = stream.replaced if teed else None
        # One console for `2>&1`: the order is kept, and lines of the two do not mix.
        key = stream.file if replaced is None else id(replaced)
        if key is None:
            return None
        self._shown_files.setdefault(key, set()).add(file)
        if key in self._consoles:
            return self._consoles[key]
        after = self._earlier.pop(key, None)
        if replaced is None:
            console = Console(stream.fd, stream.name, self._notices, after=after)
        else:
            name, write = f"sys.{stream.name}", text_writer(replaced)
            console = Console(stream.fd, name, self._notices, after=after, write=write)
        self._consoles[key] = console
        return console

    def _open_source(
        self, stream: _Stream, route: Route, label: str, *, is_large: bool
    ) -> tuple[Source, int]:
        if route.way is Way.CAPTURE and route.is_shown and os.isatty(stream.fd):
            try:
                master, slave = open_terminal(stream.fd)
            except OSError as error:
                self._notices.warn(
                    "no pseudo-terminal for %s (%s): the worker gets a pipe", label, error
                )
            else:
                source = Source(master, label, self._notices)
                source.add(SizeKeeper(stream.fd, master))
                return source, slave
        read_end, write_end = open_pipe(label, is_large=is_large or route.way is Way.TEE)
        return Source(read_end, label, self._notices), write_end

    def start(self) -> None:
        """Begin to read; called once, after all workers have been started.

        The descriptors of `child_fds` are closed: from now on only the workers hold them.

        Raises:
            OSError: a file for filtered lines cannot be opened, or too many descriptors are open.
            RuntimeError: the system gives no more threads.
        """
        self._close_child_ends()
        for stream in (self._stdout, self._stderr):
            for rank, route in stream.routes.items():
                if route.tail:
                    file = FollowedFile(route.tail, self._notices)
                    self._sources.setdefault(rank, []).append(file)
                    self._tee(stream, file, self._prefixes[rank], route.tail, is_late=True)
        if not self._sources:
            return
        for writer in self._writers():
            writer.start()
        sources = [*chain.from_iterable(self._sources.values())]
        reader = Reader(sources, shared=self._matches.values(), report_held=self._report_held)
        reader.start()
        self._reader = reader

    def is_reading(self) -> bool:
        """Whether any stream passes through the launcher, so that `finish` may take long."""
        return self._reader is not None

    def escalate(self) -> None:
        """Let `finish` and `show_rest`, also in progress, not wait for a slow console or sink.

        May be called in a signal handler.
        """
        self._is_escalated = True

    def leave_rest(self) -> None:
        """Let `finish` leave to `show_rest` what a console does not take at once."""
        self._leaves_rest = True

    def finish(self, timeout: float = FINISH_TIMEOUT) -> None:
        """Pass on all that the workers have written, then close everything; once all have ended.

        Somebody else who still holds a pipe is listened to for a moment only. A slow console or
        sink is waited for as long as it takes something at least every `timeout` seconds; what it
        does not take is reported. Lines that did not fit on a full disk are reported. May be called
        again, which does nothing, and without `start`. After `leave_rest`, consoles keep what they
        have not shown, and nothing waits for them.
        """
        if self._is_finished:
            return
        self._is_finished = True
        with ExitStack() as stack:  # last in, first out; and all of them, whatever interrupts one
            stack.callback(self._notices.flush, timeout=1.0)
            for key, console in self._consoles.items():
                stack.callback(self._finish_console, key, console, timeout)
            for sink_writer in self._log_sinks:
                stack.callback(sink_writer.close, timeout, lambda: self._is_escalated)
            for writer in self._writers():  # all before any is waited for: they share the time
                stack.callback(writer.ask_to_end)
            if self._reader is not None:
                stack.callback(self._finish_reader, self._reader, timeout)
            else:  # never read: there was no start
                for file in self._matches.values():
                    stack.callback(file.close)
                for source in chain.from_iterable(self._sources.values()):
                    stack.callback(source.close)
            stack.callback(self._close_child_ends)

    def _finish_console(self, key: object, console: Console, timeout: float) -> None:
        if not self._leaves_rest:
            console.close(timeout, lambda: self._is_escalated)
            return
        until = time.monotonic() + _MESSAGE_ORDER_WAIT
        if console.wait(lambda: self._is_escalated or time.monotonic() >= until):
            console.report_missing()
        else:
            self._unshown[key] = console

    def show_rest(self, timeout: float = math.inf, *, notice_after: float = NOTICE_AFTER) -> None:
        """Wait, after `finish`, until the consoles have shown everything; also of earlier starts.

        A console whose reader is gone is not waited for: writing to it fails. After `notice_after`
        seconds the log says that the launcher waits, unless that would go to a console that is
        waited for. What is not shown after `timeout` seconds, or after `escalate`, is reported.
        """
        began = time.monotonic()

        def is_over() -> bool:
            return self._is_escalated or time.monotonic() - began >= timeout

        def is_notice_due() -> bool:
            return is_over() or time.monotonic() - began >= notice_after

        try:
            consoles = self._unshown_consoles()
            for console in consoles.values():
                if not console.wait(is_notice_due):
                    self._report_wait(consoles, timeout)
                    break
            for key, console in consoles.items():
                if console.wait(is_over):
                    console.report_missing()
                else:
                    console.report_rest(_describe_files(self._shown_files[key]))
        finally:
            self._unshown, self._earlier = {}, {}
            self._notices.flush(timeout=1.0)

    def _unshown_consoles(self) -> dict[object, Console]:
        """The consoles, by what is behind them, that may have something to show after `finish`."""
        consoles = {**self._earlier, **self._unshown}
        return {key: console for key, console in consoles.items() if console.is_writing()}

    def _report_wait(self, consoles: Mapping[object, Console], timeout: float) -> None:
        behind = {key: console for key, console in consoles.items() if console.is_writing()}
        if self._is_escalated or self._stderr.file in behind:
            return
        self._notices.warn(
            "waiting for %s, which has not taken %d bytes of the workers' output; the workers have "
            "ended (%s)",
            " and ".join(console.label for console in behind.values()),
            sum(console.waiting_bytes for console in behind.values()),
            "Ctrl-C or SIGTERM ends the wait" if timeout == math.inf else f"at most {timeout:g} s",
        )

    def _finish_reader(self, reader: Reader, timeout: float) -> None:
        if not reader.finish(timeout):
            self._notices.warn(
                "a log file system does not answer; the end of the workers' output may be missing"
            )

    def _report_held(self, streams: Mapping[int, str]) -> None:
        from plaunch_logs_default.streams.holders import report_holders  # rare

        report_holders(streams, self._notices)

    def _close_child_ends(self) -> None:
        while self._child_ends:
            close_quietly(self._child_ends.pop())

    def last_lines(self, local_rank: int) -> list[str]:
        """The last lines of that rank's stderr, oldest first; of one that has ended, all of them.

        Empty if the launcher sees nothing of it and there is no file.
        """
        return self._last_lines.get(local_rank, list)()

    def _lines_of(self, ring: Ring, source: Source) -> list[str]:
        if self._reader is not None and not self._is_late:
            self._is_late = not source.catch_up(_CATCH_UP_TIMEOUT)
        return ring.last_lines()

    def is_shown(self, local_rank: int) -> bool:
        """Whether the launcher's own stderr shows all that this rank writes to stderr."""
        stream = self._stderr
        route = stream.routes[local_rank]
        if not route.is_shown and not route.tail:
            return False
        if route.way is Way.INHERIT:
            return stream.file is not None
        is_teed = route.way is Way.TEE or bool(route.tail)
        replaced = stream.replaced
        # What is not teed goes past what is in the place of `sys.stderr`, where messages go.
        if replaced is not None and not is_teed:
            return False
        key = stream.file if replaced is None else id(replaced)
        console = self._consoles.get(key)
        return console is not None and console.is_complete

    def counts(self) -> OutputCounts:
        """How much has passed until now."""
        writers = self._writers()
        return OutputCounts(
            0 if self._reader is None else self._reader.read_bytes,
            sum(writer.waiting_bytes for writer in (*writers, *self._earlier.values())),
            sum(writer.missing_lines for writer in writers),
            {rank: sum(one.read_bytes for one in found) for rank, found in self._sources.items()},
        )

    def last_shown(self) -> float:
        """When a console or a sink took something last, on the monotonic clock."""
        return max((writer.last_progress for writer in self._writers()), default=-math.inf)

    def _writers(self) -> list[Writer]:
        return [*self._consoles.values(), *self._log_sinks]
