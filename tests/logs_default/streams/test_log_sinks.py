"""Sinks of logs specs: they get the workers' output, and their failures do not affect the job."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from contextlib import suppress

import pytest
from plaunch.errors import LogDirectoryError, PluginError
from plaunch.process import LogsDest
from plaunch_logs_default.streams import StreamsError, open_worker_streams
from plaunch_logs_default.streams.backlog import Backlog
from plaunch_logs_default.streams.log_sinks import LogSinkWriter

from helpers.waiting import BOUND, wait_until

LINES = b"".join(b"line %05d\n" % number for number in range(2000))


class Collected:
    """A sink that records its data."""

    def __init__(self):
        self.data = b""
        self.threads = set()
        self.closed = 0

    def write(self, data):
        self.threads.add(threading.current_thread().name)
        self.data += data

    def close(self):
        self.closed += 1


class Failing(Collected):
    """A sink whose writes raise the given errors, and then succeed."""

    def __init__(self, *errors):
        super().__init__()
        self.errors = list(errors)

    def write(self, data):
        if self.errors:
            raise self.errors.pop(0)
        super().write(data)


class Held(Collected):
    """A sink that blocks in `write` or `close` until the gate opens."""

    def __init__(self, gate, method="write"):
        super().__init__()
        self._gate, self._method = gate, method
        self.is_waiting = threading.Event()

    def _wait(self, method):
        if method == self._method:
            self.is_waiting.set()
            self._gate.wait(BOUND)

    def write(self, data):
        self._wait("write")
        super().write(data)

    def close(self):
        self._wait("close")
        super().close()


@pytest.fixture
def writer(log):
    """Create and start the writer of a sink."""

    def writer(sink, **options):
        made = LogSinkWriter(sink, "stdout of local rank 3", log, **options)
        made.start()
        return made

    return writer


# --- one sink -------------------------------------------------------------------------------------


def test_a_sink_is_written_and_closed_on_its_own_thread(writer, log):
    sink = Collected()
    behind = writer(sink)
    for start in range(0, len(LINES), 7):
        behind.put(LINES[start : start + 7])
    behind.close(BOUND)
    behind.close(BOUND)
    assert (sink.data, sink.closed, log.messages) == (LINES, 1, [])
    assert sink.threads == {"plaunch-sink-the log sink Collected of stdout of local rank 3"}


@pytest.mark.parametrize("error", [ValueError("no link"), SystemExit(3), OSError(errno.EPIPE, "x")])
def test_a_sink_that_raises_gets_no_more_lines(writer, log, error):
    sink = Failing(error)
    behind = writer(sink)
    behind.put(b"one\ntwo\n")
    wait_until(lambda: log.messages, "what is said of it")
    behind.put(b"three\n")
    behind.close(BOUND)
    assert (sink.data, sink.closed, behind.missing_lines) == (b"", 1, 3)
    first, last = log.messages
    who = "the log sink Failing of stdout of local rank 3"
    assert first.startswith(f"{who} cannot be written to any more (")
    assert (str(error) in first) or (error.strerror in first)
    assert first.endswith("the job continues")
    assert last == f"{who} lacks lines of the workers' output: 3"


@pytest.mark.parametrize("code", [errno.EPIPE, errno.ENOSPC])
def test_a_lost_line_in_pieces_counts_once(writer, log, code):
    """`python -u`, as torchrun starts it, writes each argument of `print` by itself."""
    behind = writer(Failing(*[OSError(code, "x")] * 4))
    for number, piece in enumerate((b"one", b" ", b"1", b"\n"), 1):
        behind.put(piece)
        wait_until(lambda number=number: not behind.waiting_bytes, f"piece {number}")
    behind.close(BOUND)
    assert behind.missing_lines == 1


def test_a_sink_with_a_full_disk_is_tried_again(writer, log):
    sink = Failing(OSError(errno.ENOSPC, "full"))
    behind = writer(sink)
    behind.put(b"one\ntwo\n")
    wait_until(lambda: log.messages, "what is said of it")
    behind.put(b"three\n")
    behind.close(BOUND)
    assert (sink.data, behind.missing_lines) == (b"three\n", 2)
    assert "cannot grow (No space left on device)" in log.messages[0]
    assert log.messages[1].endswith("lacks lines of the workers' output: 2")


def test_close_abandons_a_hanging_sink(writer, log, gate):
    sink = Held(gate)
    behind = writer(sink)
    behind.put(b"one\n")
    assert sink.is_waiting.wait(BOUND)
    behind.put(LINES)
    behind.close(0.01)
    assert behind.missing_lines == 2001
    assert behind.waiting_bytes == len(b"one\n")  # the write in progress
    left, missing = log.messages
    assert left.endswith(f"does not take the rest of its output: {len(LINES) + 4} bytes")
    assert missing.endswith("lacks lines of the workers' output: 2001")
    gate.set()
    wait_until(lambda: sink.closed, "its close")
    assert sink.data == b"one\n"


def test_a_hanging_close_is_reported(writer, log, gate):
    behind = writer(Held(gate, "close"))
    behind.put(LINES)
    behind.close(0.05)
    (message,) = log.messages
    assert message.endswith("has not returned from close; its end may be missing")
    assert behind.missing_lines == 0


def test_a_failing_close_is_reported(writer, log):
    sink = Collected()
    sink.close = lambda: 1 / 0
    writer(sink).close(BOUND)
    (message,) = log.messages
    assert "cannot be closed (ZeroDivisionError: division by zero)" in message


def test_a_slow_sink_drops_the_oldest_lines_and_reports_how_many(writer, log, gate):
    sink = Held(gate)
    behind = writer(sink, backlog=Backlog(1 << 10, limit=10 << 20))
    behind.put(b"first\n")
    assert sink.is_waiting.wait(BOUND)
    for _ in range(1000):  # twice the limit
        behind.put(LINES)
        assert behind.waiting_bytes <= (10 << 20) + len(LINES)
    dropped = behind.missing_lines
    assert 0 < dropped < 2_000_000
    assert "does not accept the workers' output fast enough" in log.messages[0]
    gate.set()
    behind.close(BOUND)
    first, said, rest = sink.data.split(b"\n", 2)
    assert first == b"first"
    assert said == b"plaunch: lines missing here: %d (the log sink was too slow)" % dropped
    assert rest.count(b"\n") == 2_000_000 - dropped
    assert rest.endswith(LINES)
    assert log.messages[-1].endswith(f"lacks lines of the workers' output: {dropped}")


def test_a_sink_without_output_is_closed(log):
    sink = Collected()
    LogSinkWriter(sink, "stdout of local rank 3", log).close(BOUND)
    assert sink.closed == 1


# --- the sinks of a start of workers --------------------------------------------------------------

PROGRAM = "import os; os.write(1, b'to stdout\\n'); os.write(2, b'to stderr\\n')"


class Started:
    """Workers whose streams have sinks; files stand in for the console."""

    def __init__(self, folder, dest, open_sink, nprocs=1, **options):
        self._folder = folder
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._fds = [os.open(folder / name, flags) for name in ("out", "err")]
        self.streams = open_worker_streams(
            dest,
            nprocs,
            prefixes={rank: f"[r{rank}]:" for rank in range(nprocs)},
            stdout_fd=self._fds[0],
            stderr_fd=self._fds[1],
            open_sink=open_sink,
            **options,
        )
        self._nprocs = nprocs

    def run(self, timeout=BOUND):
        """Run the program in each worker; the content of stdout and stderr."""
        workers = []
        for rank in range(self._nprocs):
            out, err = self.streams.child_fds(rank)
            command = [sys.executable, "-S", "-c", PROGRAM]
            workers.append(subprocess.Popen(command, stdout=out, stderr=err))
        self.streams.start()
        assert [worker.wait(BOUND) for worker in workers] == [0] * self._nprocs
        self.streams.finish(timeout)
        return tuple((self._folder / name).read_bytes() for name in ("out", "err"))

    def close(self):
        for fd in self._fds:
            os.close(fd)


@pytest.fixture
def started(tmp_path):
    made = []

    def started(*words, **options):
        made.append(Started(tmp_path, *words, **options))
        return made[-1]

    yield started
    for one in made:
        with suppress(Exception):
            one.streams.finish(0.0)
        one.close()


@pytest.fixture
def many_files():
    """Raise the limit of open files, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192
    if hard not in (-1, resource.RLIM_INFINITY) and hard < wanted:
        pytest.skip(f"no more than {hard} files can be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def open_files():
    return len(os.listdir("/proc/self/fd"))


def sinks_for(nprocs=1, make=Collected):
    return {(rank, name): make() for rank in range(nprocs) for name in ("stdout", "stderr")}


def places(folder, *, tee=False, hidden=False, console=False):
    paths = [str(folder / name) for name in ("stdout.log", "stderr.log")]
    if hidden or console:
        paths = [os.devnull if hidden else ""] * 2
    dest = LogsDest({0: paths[0]}, {0: paths[1]})
    if tee:
        dest.tee_stdouts, dest.tee_stderrs = dict(dest.stdouts), dict(dest.stderrs)
    return dest


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ({}, (b"", b"")),
        ({"hidden": True}, (b"", b"")),
        ({"tee": True}, (b"[r0]:to stdout\n", b"[r0]:to stderr\n")),
        ({"console": True}, (b"to stdout\n", b"to stderr\n")),
    ],
)
@pytest.mark.parametrize("keeps_file", [False, True])
@pytest.mark.parametrize("capture", [False, True])
def test_sinks_replace_files(started, tmp_path, where, shown, keeps_file, capture):
    sinks = sinks_for()
    for sink in sinks.values():
        sink.keeps_file = keeps_file
    job = started(
        places(tmp_path, **where),
        lambda rank, stream: sinks[rank, stream],
        capture_stderr=capture,
    )
    assert job.run() == shown
    assert sinks[0, "stdout"].data == b"to stdout\n"
    assert sinks[0, "stderr"].data == b"to stderr\n"
    assert [sink.closed for sink in sinks.values()] == [1, 1]
    has_file = keeps_file and not {"hidden", "console"} & set(where)
    files = {path.name: path.read_bytes() for path in tmp_path.glob("*.log")}
    expected = {"stdout.log": b"to stdout\n", "stderr.log": b"to stderr\n"}
    assert files == (expected if has_file else {})
    assert job.streams.last_lines(0) == ["to stderr"]  # for the report


def test_a_stream_without_a_sink_keeps_its_route(started, tmp_path):
    sink = Collected()
    job = started(places(tmp_path), lambda _, stream: sink if stream == "stderr" else None)
    assert job.run() == (b"", b"")
    assert (tmp_path / "stdout.log").read_bytes() == b"to stdout\n"
    assert not (tmp_path / "stderr.log").exists()
    assert sink.data == b"to stderr\n"


def test_no_sinks_with_daemons(started, tmp_path):
    def open_sink(rank, stream):
        raise AssertionError((rank, stream))

    job = started(places(tmp_path), open_sink, keeps_daemons=True)
    job.run()
    assert (tmp_path / "stdout.log").read_bytes() == b"to stdout\n"


def test_matching_lines_of_ranks_that_have_sinks(started, tmp_path):
    dest = places(tmp_path, tee=True)
    dest.filtered_stdout = str(tmp_path / "matches")
    sinks = sinks_for()
    open_sink = lambda rank, stream: sinks[rank, stream]  # noqa: E731
    started(dest, open_sink, stdout_filters=["stdout"]).run()
    assert (tmp_path / "matches").read_bytes() == b"[r0]:to stdout\n"


def test_a_hanging_sink_does_not_delay_others(started, tmp_path, gate):
    sinks = {**sinks_for(3), (1, "stdout"): Held(gate), (1, "stderr"): Held(gate)}
    nothing = dict.fromkeys(range(3), os.devnull)
    open_sink = lambda rank, stream: sinks[rank, stream]  # noqa: E731
    job = started(LogsDest(dict(nothing), dict(nothing)), open_sink, nprocs=3)
    job.run(timeout=0.3)
    assert sinks[0, "stdout"].data == sinks[2, "stdout"].data == b"to stdout\n"
    assert sinks[0, "stderr"].closed == sinks[2, "stderr"].closed == 1
    assert job.streams.last_lines(1) == ["to stderr"]
    assert job.streams.counts().dropped_lines == 2
    gate.set()
    for name in ("stdout", "stderr"):
        wait_until(lambda name=name: sinks[1, name].closed, "its close")


@pytest.mark.parametrize(
    ("opened", "error", "message"),
    [
        (LogDirectoryError("no room"), LogDirectoryError, "^no room$"),
        (ConnectionError("no link"), PluginError, "stdout of local rank 0: ConnectionError: no li"),
        (OSError(errno.EMFILE, "too many"), StreamsError, "stdout of local rank 0: too many"),
        (
            object(),
            PluginError,
            "open_sink for stdout of local rank 0, not an object with write",
        ),
    ],
)
def test_a_sink_that_cannot_be_opened_is_an_error(started, tmp_path, opened, error, message):
    def open_sink(_rank, _stream):
        if isinstance(opened, Exception):
            raise opened
        return opened

    job = started(places(tmp_path), open_sink)
    with pytest.raises(error, match=message):
        job.streams.child_fds(0)
    job.streams.finish()


def test_a_thousand_sinks_leave_no_descriptor_open(tmp_path, many_files):
    ranks, before = range(1000), (open_files(), threading.active_count())
    nothing = dict.fromkeys(ranks, os.devnull)

    class OnDisk(Collected):
        def __init__(self, rank, stream):
            super().__init__()
            self._file = (tmp_path / f"{rank}.{stream}").open("wb", 0)

        def close(self):
            super().close()
            self._file.write(self.data)
            self._file.close()

    streams = open_worker_streams(
        LogsDest(dict(nothing), dict(nothing)),
        len(ranks),
        prefixes=dict.fromkeys(ranks, ""),
        open_sink=OnDisk,
    )
    for rank in ranks:
        for fd in streams.child_fds(rank):
            os.write(fd, b"hello\n")
    streams.start()
    streams.finish(BOUND)
    assert (open_files(), threading.active_count()) == before
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"hello\n"}


def test_sinks_are_closed_if_workers_never_start(started, tmp_path):
    sinks = sinks_for()
    job = started(places(tmp_path), lambda rank, stream: sinks[rank, stream])
    job.streams.child_fds(0)
    job.streams.finish()
    assert [sink.closed for sink in sinks.values()] == [1, 1]
