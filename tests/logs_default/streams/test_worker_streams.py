from __future__ import annotations

import errno
import io
import math
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from plaunch.errors import LogDirectoryError, PlaunchError
from plaunch.process import LogsDest
from plaunch_logs_default.streams import StreamsError, open_worker_streams
from plaunch_logs_default.streams.reader import Reader
from plaunch_logs_default.streams.sinks import FileSink

from helpers.calls import meanwhile
from helpers.limits import limited
from helpers.programs import run_python
from helpers.waiting import wait_until

NULL = os.devnull
FOREVER = 60.0  # seconds


@pytest.fixture(autouse=True)
def _leaves_nothing_behind():
    # Threads of earlier tests may end meanwhile.
    fds, threads = len(os.listdir("/proc/self/fd")), {*threading.enumerate()}
    yield
    assert len(os.listdir("/proc/self/fd")) == fds
    assert {*threading.enumerate()} <= threads


class Files:
    """Two files that stand in for the launcher's own stdout and stderr."""

    def __init__(self, folder):
        self.folder = folder
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.stdout_fd = os.open(folder / "console.out", flags)
        self.stderr_fd = os.open(folder / "console.err", flags)

    @property
    def stdout(self):
        return (self.folder / "console.out").read_bytes()

    @property
    def stderr(self):
        return (self.folder / "console.err").read_bytes()

    def path(self, name):
        return str(self.folder / name)

    def streams(self, dest, nprocs=1, **options):
        options = {
            "prefixes": {rank: f"[r{rank}]:" for rank in range(nprocs)},
            "stdout_fd": self.stdout_fd,
            "stderr_fd": self.stderr_fd,
            **options,
        }
        return open_worker_streams(dest, nprocs, **options)


@pytest.fixture
def files(tmp_path):
    files = Files(tmp_path)
    yield files
    os.close(files.stdout_fd)
    os.close(files.stderr_fd)


BOTH = "import os; os.write(1, b'to stdout\\n'); os.write(2, b'to stderr\\n')"


def start(streams, programs):
    """Start one Python program per rank, on the descriptors of `streams`."""
    processes = []
    for rank, program in programs.items():
        stdout, stderr = streams.child_fds(rank)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-S", "-c", program],
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        )
    streams.start()
    return processes


def run(streams, programs=None):
    """Run one Python program per rank to its end; return the exit codes."""
    codes = [process.wait(FOREVER) for process in start(streams, programs or {0: BOTH})]
    streams.finish()
    return codes


def dest(stdout="", stderr="", tee="", nprocs=1, **fields):
    """The same paths for every rank: `{}` becomes the rank; `tee` names the teed streams."""
    ranks = range(nprocs)
    stdouts = {rank: stdout.format(rank) for rank in ranks}
    stderrs = {rank: stderr.format(rank) for rank in ranks}
    return LogsDest(
        stdouts,
        stderrs,
        dict(stdouts) if "out" in tee else {},
        dict(stderrs) if "err" in tee else {},
        **fields,
    )


class Terminal:
    """A pseudo-terminal that stands in for the user's, with a thread that reads it."""

    def __init__(self):
        self.master, self.slave = os.openpty()
        self.shown = b""
        self._reader = threading.Thread(target=self._read)

    def _read(self):
        try:
            while data := os.read(self.master, 1 << 16):
                self.shown += data
        except OSError:
            pass  # the other side is closed

    def __enter__(self):
        self._reader.start()
        return self

    def __exit__(self, *_):
        os.close(self.slave)
        self._reader.join(FOREVER)
        os.close(self.master)


def links_to(target):
    """The number of descriptors of this process for `target`."""
    fds = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(fd) and os.readlink(fd) == target for fd in fds)


class TestInherited:
    @pytest.mark.parametrize("is_redirected", [False, True])
    def test_without_capture_there_is_no_thread_and_no_descriptor(self, files, is_redirected):
        fds, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        paths = [files.path("{}.out"), files.path("{}.err")] if is_redirected else []
        streams = files.streams(dest(*paths, nprocs=2), 2, capture_stderr=is_redirected)
        children = [streams.child_fds(rank) for rank in range(2)]
        assert is_redirected or children == [(None, None)] * 2
        streams.start()
        assert len(os.listdir("/proc/self/fd")) == fds
        assert threading.active_count() == threads
        streams.finish()
        assert streams.last_lines(0) == []

    def test_no_thread_before_the_start(self, files):
        threads = threading.active_count()
        streams = files.streams(dest())
        stdout, stderr = streams.child_fds(0)
        assert stdout is None
        assert stderr is not None
        assert not os.get_inheritable(stderr)
        assert threading.active_count() == threads
        pipe = os.readlink(f"/proc/self/fd/{stderr}")
        kept = os.dup(stderr)
        streams.start()
        assert threading.active_count() > threads
        assert links_to(pipe) == 2  # the read end and `kept`: the worker's end is closed
        os.close(kept)
        streams.finish()


@pytest.mark.parametrize(
    ("stderr", "tee", "options", "is_shown"),
    [
        ("", "", {}, True),
        ("", "", {"capture_stderr": False}, True),
        ("", "", {"stderr_fd": 999}, False),  # it is closed
        (NULL, "", {}, False),
        ("{}", "", {}, False),
        ("{}", "err", {}, True),
        ("{}", "err", {"keeps_daemons": True}, True),
        ("{}", "out", {}, False),
    ],
)
def test_is_shown(files, stderr, tee, options, is_shown):
    path = files.path(stderr) if stderr == "{}" else stderr
    streams = files.streams(dest(stderr=path, stdout=NULL, tee=tee), **options)
    run(streams)
    assert streams.is_shown(0) == is_shown
    assert (b"to stderr" in files.stderr) == (is_shown and options.get("capture_stderr", True))


@pytest.mark.parametrize(("tee", "is_shown"), [("", False), ("err", True)])
def test_only_teed_lines_go_to_the_replacement_of_stderr(files, monkeypatch, tee, is_shown):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    streams = files.streams(dest(stdout=NULL, tee=tee), stderr_fd=2)
    streams.child_fds(0)
    streams.start()
    streams.finish()
    assert streams.is_shown(0) == is_shown


def test_a_broken_console_shows_nothing(files):
    reader, writer = os.pipe()
    os.close(reader)
    streams = files.streams(dest(stdout=NULL), stderr_fd=writer)
    run(streams)
    os.close(writer)
    assert not streams.is_shown(0)


class TestRedirected:
    def test_the_worker_writes_its_files(self, files):
        streams = files.streams(dest(files.path("{}.out"), files.path("{}.err"), nprocs=2), 2)
        assert run(streams, {0: BOTH, 1: BOTH}) == [0, 0]
        for rank in range(2):
            assert Path(files.path(f"{rank}.out")).read_bytes() == b"to stdout\n"
            assert Path(files.path(f"{rank}.err")).read_bytes() == b"to stderr\n"
            assert streams.last_lines(rank) == ["to stderr"]
        assert files.stdout == files.stderr == b""

    def test_an_existing_file_is_appended_to(self, files):
        path = Path(files.path("e"))
        path.write_bytes(b"of an earlier start\n")
        streams = files.streams(dest(stderr=str(path), stdout=NULL))
        run(streams)
        assert path.read_bytes() == b"of an earlier start\nto stderr\n"
        assert streams.last_lines(0) == ["to stderr"]


class TestTee:
    def test_the_file_is_raw_and_the_console_prefixed(self, files):
        streams = files.streams(
            dest(files.path("{}.out"), files.path("{}.err"), tee="out err", nprocs=2), 2
        )
        program = "import os; os.write(1, b'one\\n\\xff\\xfe\\nend'); os.write(2, b'10%\\r20%\\n')"
        run(streams, {0: program, 1: program})
        for rank in (b"0", b"1"):
            path = files.path(rank.decode())
            assert Path(path + ".out").read_bytes() == b"one\n\xff\xfe\nend"
            assert Path(path + ".err").read_bytes() == b"10%\r20%\n"
            assert b"[r%b]:one\n[r%b]:\xff\xfe\n" % (rank, rank) in files.stdout
            assert b"[r%b]:end\n" % rank in files.stdout
            assert b"[r%b]:10%%\r[r%b]:20%%\n" % (rank, rank) in files.stderr
            assert streams.last_lines(int(rank)) == ["20%"]

    @pytest.mark.parametrize("paths", [(NULL, NULL), ("", ""), ("", NULL)])
    def test_without_a_file(self, files, paths):
        path, tee = ({0: each} for each in paths)
        run(files.streams(LogsDest(path, path, tee, tee)))
        assert files.stdout == b"[r0]:to stdout\n"
        assert files.stderr == b"[r0]:to stderr\n"

    def test_one_console_for_both_streams_keeps_lines_whole(self, files):
        program = """
import os, random
for n in range(2000):
    os.write(1 + n % 2, b'%d %b end\\n' % (n, b'x' * random.randrange(200)))
"""
        same = os.dup(files.stdout_fd)
        streams = files.streams(dest(tee="out err", nprocs=4), 4, stderr_fd=same)
        run(streams, dict.fromkeys(range(4), program))
        os.close(same)
        seen = {}
        for line in files.stdout.splitlines():
            match = re.fullmatch(rb"\[r(\d)\]:(\d+) x* end", line)
            assert match, line
            rank, n = int(match[1]), int(match[2])
            seen.setdefault((rank, n % 2), []).append(n)
        assert seen == {
            (rank, first): list(range(first, 2000, 2)) for rank in range(4) for first in (0, 1)
        }

    def test_a_worker_killed_while_writing_loses_no_line(self, files):
        program = """
import os, signal
for n in range(20000):
    os.write(1, b'line %d\\n' % n)
os.write(2, b'last words')
os.kill(os.getpid(), signal.SIGKILL)
"""
        streams = files.streams(dest(files.path("{}.out"), tee="out", nprocs=2), 2)
        assert run(streams, {0: program, 1: program}) == [-signal.SIGKILL] * 2
        written = b"".join(b"line %d\n" % n for n in range(20000))
        for rank in range(2):
            assert Path(files.path(f"{rank}.out")).read_bytes() == written
            prefix = b"[r%d]:" % rank
            mine = [li for li in files.stdout.splitlines(keepends=True) if li.startswith(prefix)]
            assert b"".join(mine).replace(prefix, b"") == written
            assert streams.last_lines(rank) == ["last words"]

    def test_a_full_disk_drops_lines_in_the_file_only(self, files, caplog):
        run(files.streams(dest("/dev/full", tee="out", stderr=NULL)), {0: BOTH})
        assert files.stdout == b"[r0]:to stdout\n"
        assert sorted(caplog.messages) == [
            "cannot write to '/dev/full' (No space left on device): lines are missing there until "
            "it is possible again; the job continues",
            "lines missing in '/dev/full': 1",
        ]

    def test_a_tee_of_another_file_shows_that_file(self, files):
        other = files.path("other")
        spec = LogsDest({0: files.path("o")}, {0: ""}, {0: other}, {})
        spec.filtered_stdout = files.path("filtered")
        streams = files.streams(spec, stdout_filters=["loss"])
        program = BOTH + f"; open({other!r}, 'w').write('theirs\\nloss=1\\n')"
        run(streams, {0: program})
        assert Path(files.path("o")).read_bytes() == b"to stdout\n"
        assert files.stdout == b"[r0]:theirs\n[r0]:loss=1\n"
        assert Path(files.path("filtered")).read_bytes() == b"[r0]:loss=1\n"


class TestFilters:
    PROGRAM = "import os; os.write(1, b'a\\nloss=1\\n'); os.write(2, b'b\\nerror 1\\n')"

    def test_matching_lines_of_teed_ranks_also_go_to_one_file(self, files):
        spec = dest(
            tee="out err",
            nprocs=3,
            filtered_stdout=files.path("f.out"),
            filtered_stderr=files.path("f.err"),
        )
        del spec.tee_stdouts[2], spec.tee_stderrs[1]
        streams = files.streams(spec, 3, stdout_filters=["none", "loss"], stderr_filters=["error"])
        run(streams, dict.fromkeys(range(3), self.PROGRAM))
        out, err = (Path(files.path(name)).read_bytes().splitlines() for name in ("f.out", "f.err"))
        assert sorted(out) == [b"[r0]:loss=1", b"[r1]:loss=1"]
        assert sorted(err) == [b"[r0]:error 1", b"[r2]:error 1"]
        assert files.stderr.count(b"]:b\n") == 2
        assert files.stderr.count(b"b\n") == 3

    @pytest.mark.parametrize("path", ["", NULL, NULL + "/filtered_stdout.log"])
    def test_without_a_path_there_is_no_file(self, files, path):
        spec = dest(tee="out", stderr=NULL, filtered_stdout=path)
        run(files.streams(spec, stdout_filters=["loss"]), {0: self.PROGRAM})
        assert files.stdout == b"[r0]:a\n[r0]:loss=1\n"

    def test_without_a_teed_rank_there_is_no_file(self, files):
        spec = dest(NULL, filtered_stdout=files.path("f.out"))
        run(files.streams(spec, stdout_filters=["loss"]), {0: self.PROGRAM})
        assert not os.path.exists(files.path("f.out"))


def on_terminal(terminal, nprocs=1):
    """Streams whose stderr is shown on a terminal."""
    spec = dest(stdout=NULL, nprocs=nprocs)
    return open_worker_streams(spec, nprocs, prefixes={}, stderr_fd=terminal.slave)


class TestCaptured:
    def test_passes_unchanged_and_its_last_lines_are_known(self, files):
        program = """
import os, sys
assert not os.isatty(2)
for n in range(30):
    print('line', n, file=sys.stderr)
os.write(2, b'10%\\r20%\\r\\xff')
"""
        streams = files.streams(dest(stdout=NULL))
        assert run(streams, {0: program}) == [0]
        lines = [f"line {n}" for n in range(30)]
        assert files.stderr == "\n".join(lines).encode() + b"\n10%\r20%\r\xff"
        assert streams.last_lines(0) == [*lines[11:], "\ufffd"]

    def test_is_shown_at_once_even_without_a_line_end(self, tmp_path):
        read_end, write_end = os.pipe()
        streams = open_worker_streams(dest(stdout=NULL), 1, prefixes={}, stderr_fd=write_end)
        (process,) = start(
            streams, {0: "import os, signal; os.write(2, b'Continue? '); signal.pause()"}
        )
        try:
            assert os.read(read_end, 100) == b"Continue? "
            assert process.poll() is None
        finally:
            process.kill()
            process.wait(FOREVER)
            streams.finish()
            os.close(read_end)
            os.close(write_end)

    def test_last_lines_are_kept_with_the_null_device(self, files):
        streams = files.streams(dest(NULL, NULL))
        run(streams)
        assert files.stderr == b""
        assert streams.last_lines(0) == ["to stderr"]

    def test_without_capture_the_null_device_keeps_nothing(self, files):
        streams = files.streams(dest(NULL, NULL), capture_stderr=False)
        stderr = streams.child_fds(0)[1]
        assert stderr is not None
        assert os.readlink(f"/proc/self/fd/{stderr}") == NULL
        run(streams)
        assert streams.last_lines(0) == []

    @pytest.mark.parametrize(
        ("end", "code", "count"),
        # All output of a dying worker is shown.
        [("", 0, 2), ("os.abort()", -signal.SIGABRT, 5000)],
    )
    def test_a_terminal_stays_a_terminal(self, end, code, count):
        write = f"for n in range({count}): os.write(2, b'%060d\\n' % n)"
        with Terminal() as terminal:
            streams = open_worker_streams(
                dest(stdout=NULL), 1, prefixes={}, stderr_fd=terminal.slave
            )
            assert run(streams, {0: f"import os; assert os.isatty(2)\n{write}\n{end}"}) == [code]
        # The real terminal adds the `\r`.
        assert terminal.shown == b"".join(b"%060d\r\n" % n for n in range(count))
        assert streams.last_lines(0) == [f"{n:060d}" for n in range(count)][-20:]

    def test_lines_of_ranks_that_share_a_terminal_stay_whole(self):
        program = "import os\nfor n in range(5000): os.write(2, b'{}' * (20 + n % 60) + b'\\n')"
        with Terminal() as terminal:
            streams = on_terminal(terminal, nprocs=3)
            run(streams, {rank: program.format(rank) for rank in range(3)})
        expected = [b"%d" % rank * (20 + n % 60) for rank in range(3) for n in range(5000)]
        assert sorted(terminal.shown.split()) == sorted(expected)

    def test_without_an_available_terminal(self, monkeypatch, caplog):
        def fail():
            raise OSError(errno.ENOSPC, "No space left on device")

        with Terminal() as terminal:
            monkeypatch.setattr(os, "openpty", fail)
            streams = open_worker_streams(
                dest(stdout=NULL), 1, prefixes={}, stderr_fd=terminal.slave
            )
            run(streams)
        assert terminal.shown == b"to stderr\r\n"
        assert "the worker gets a pipe" in caplog.text

    def test_teed_stderr_is_a_pipe_even_on_a_terminal(self):
        with Terminal() as terminal:
            streams = open_worker_streams(
                dest(stdout=NULL, tee="err"), 1, prefixes={0: "[r0]:"}, stderr_fd=terminal.slave
            )
            program = "import os; assert not os.isatty(2); os.write(2, b'one\\n')"
            assert run(streams, {0: program}) == [0]
        assert terminal.shown == b"[r0]:one\r\n"


def wait_until_threads_end():
    while ours := [t for t in threading.enumerate() if t.name.startswith("plaunch-")]:
        ours[0].join(FOREVER)
        assert not ours[0].is_alive()


class Unread:
    """A console that is a pipe without a reader until `read`."""

    def __init__(self):
        self.read_end, self.write_end = os.pipe()

    def streams(self, stdout="", tee="out", stderr_fd=2, before=None):
        """Streams that are teed to it."""
        return open_worker_streams(
            dest(stdout, NULL, tee),
            1,
            prefixes={0: "[0]:"},
            stdout_fd=self.write_end,
            stderr_fd=stderr_fd,
            before=before,
        )

    def read(self, count):
        """Read until there are `count` lines."""
        shown = b""
        while shown.count(b"\n") < count:
            shown += os.read(self.read_end, 1 << 20)
        return shown

    def stop_reading(self):
        os.close(self.read_end)
        self.read_end = -1

    def close(self):
        if self.read_end >= 0:
            self.stop_reading()
        wait_until_threads_end()  # they find the pipe broken
        os.close(self.write_end)


class TestFinish:
    def test_does_not_wait_for_an_orphan(self, files):
        program = """
import subprocess, sys
child = subprocess.Popen(['sleep', '300'], start_new_session=True)
print(child.pid, flush=True)
print('last words', file=sys.stderr)
"""
        streams = files.streams(dest(files.path("o"), tee="out"))
        run(streams, {0: program})
        pid = int(Path(files.path("o")).read_bytes())
        try:
            os.kill(pid, 0)  # it still runs: `finish` has not waited for its end
        finally:
            os.kill(pid, signal.SIGKILL)
        assert streams.last_lines(0) == ["last words"]
        assert files.stdout == b"[r0]:%d\n" % pid

    def test_may_be_called_again(self, files):
        streams = files.streams(dest())
        run(streams)
        streams.finish()
        assert streams.last_lines(0) == ["to stderr"]

    @pytest.mark.parametrize("before", ["descriptors", "the start", "its end"])
    def test_releases_everything_after_a_failed_start(self, files, monkeypatch, before):
        def fail(reader):
            raise RuntimeError("can't start new thread")

        streams = files.streams(dest(files.path("o"), files.path("e"), tee="out err"))
        if before != "descriptors":
            streams.child_fds(0)
        if before == "its end":
            monkeypatch.setattr(Reader, "start", fail)
            with pytest.raises(RuntimeError, match="new thread"):
                streams.start()
        streams.finish()

    def test_completes_when_it_is_interrupted(self, files, monkeypatch):
        def interrupt(reader, timeout):
            finish(reader, timeout)
            raise KeyboardInterrupt

        finish = Reader.finish
        monkeypatch.setattr(Reader, "finish", interrupt)
        streams = files.streams(dest(stdout=NULL))
        processes = start(streams, {0: BOTH})
        assert processes[0].wait(FOREVER) == 0
        with pytest.raises(KeyboardInterrupt):
            streams.finish()
        assert files.stderr == b"to stderr\n"

    def test_does_not_wait_for_a_hanging_file_system(self, files, monkeypatch, caplog):
        free = threading.Event()

        def hang(sink, data):
            assert free.wait(FOREVER)
            write(sink, data)

        write = FileSink.write
        monkeypatch.setattr(FileSink, "write", hang)
        spec = dest(files.path("o"), NULL, tee="out", filtered_stdout=files.path("f"))
        streams = files.streams(spec, stdout_filters=["stdout"])
        processes = start(streams, {0: BOTH})
        assert processes[0].wait(FOREVER) == 0
        streams.finish(timeout=0.05)
        assert "a log file system does not answer" in caplog.text
        free.set()
        wait_until_threads_end()
        # The file was still open when its thread continued.
        assert Path(files.path("f")).read_bytes() == b"[r0]:to stdout\n"

    @pytest.fixture
    def unread(self):
        """Streams teed to a console without a reader, and the read end of the console."""
        read_end, write_end = os.pipe()
        spec = dest(tee="out", stderr=NULL)
        yield open_worker_streams(spec, 1, prefixes={0: "[0]:"}, stdout_fd=write_end), read_end
        os.close(read_end)  # the thread finds the pipe broken
        wait_until_threads_end()
        os.close(write_end)

    def test_a_blocked_console_does_not_delay_it(self, unread, caplog):
        streams, read_end = unread
        program = "import os\nfor n in range(10000): os.write(1, b'%0100d\\n' % n)"
        for process in start(streams, {0: program}):
            assert process.wait(FOREVER) == 0  # although the console has no reader
        streams.finish(timeout=0.05)
        assert "stdout has not taken all" in caplog.text
        shown = b""
        while shown.count(b"\n") < 10000:
            shown += os.read(read_end, 1 << 20)
        assert shown == b"".join(b"[0]:%0100d\n" % n for n in range(10000))

    def test_an_escalation_from_a_signal_handler_ends_the_wait(self, unread, caplog):
        streams, _ = unread
        program = "import os; os.write(1, b'x' * 1000000)"
        for process in start(streams, {0: program}):
            process.wait(FOREVER)
        previous = signal.signal(signal.SIGALRM, lambda *_: streams.escalate())
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            streams.finish(timeout=FOREVER * 2)
        finally:
            signal.signal(signal.SIGALRM, previous)
        assert "stdout has not taken all" in caplog.text


class TestShowRest:
    """After `leave_rest`, `finish` returns before a slow console has shown everything."""

    COUNT = 10_000
    PROGRAM = f"import os\nfor n in range({COUNT}): os.write(1, b'%0100d\\n' % n)"
    LINES = b"".join(b"[0]:%0100d\n" % n for n in range(COUNT))

    @pytest.fixture
    def console(self):
        console = Unread()
        yield console
        console.close()

    def left(self, streams):
        """Run the program; `finish` then leaves most of its output unshown."""
        streams.leave_rest()
        assert run(streams, {0: self.PROGRAM}) == [0]
        assert streams.counts().lag_bytes > 900_000
        return streams

    def test_waits_for_a_slow_reader_and_logs_that_once(self, console, files, caplog):
        streams = self.left(console.streams(stderr_fd=files.stderr_fd))
        with meanwhile(lambda: streams.show_rest(notice_after=0.0)):
            wait_until(lambda: caplog.text, "the wait is reported")
            assert console.read(self.COUNT) == self.LINES
        (message,) = [record.getMessage() for record in caplog.records]
        assert re.fullmatch(
            r"waiting for stdout, which has not taken \d+ bytes of the workers' output; "
            r"the workers have ended \(Ctrl-C or SIGTERM ends the wait\)",
            message,
        )
        assert streams.counts()[:3] == (101 * self.COUNT, 0, 0)

    def test_is_not_reported_on_the_slow_console(self, console, caplog):
        streams = self.left(console.streams(stderr_fd=console.write_end))
        streams.show_rest(timeout=0.05, notice_after=0.0)
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.startswith("stdout has not taken all of the workers' output; not shown: ")

    def test_ends_without_a_reader(self, console, caplog):
        streams = self.left(console.streams())
        console.stop_reading()
        streams.show_rest()
        (message,) = [record.getMessage() for record in caplog.records]
        assert message.startswith("stdout cannot be written to any more (Broken pipe)")

    @pytest.mark.parametrize("has_files", [True, False])
    def test_output_left_by_an_escalation_is_counted(self, console, files, caplog, has_files):
        stdout = files.path("a/o") if has_files else ""
        os.mkdir(files.path("a"))
        streams = self.left(console.streams(stdout))
        streams.escalate()
        streams.show_rest()
        (message,) = [record.getMessage() for record in caplog.records]
        size, lines = map(int, re.findall(r"(\d+) bytes, (\d+) lines", message)[0])
        # A pipe holds 64 KiB; a write may still be in progress.
        assert 0 <= len(self.LINES) - size <= 64 << 10
        assert 0 < lines < self.COUNT
        assert message.endswith(f"; {stdout!r} has all of it" if has_files else "lines")

    def test_the_next_start_continues_where_the_last_one_was(self, console, files, caplog):
        os.mkdir(files.path("0")), os.mkdir(files.path("1"))
        first = self.left(console.streams(files.path("0/o")))
        between = console.streams(stdout=NULL, tee="", before=first)  # shows nothing itself
        run(between)
        second = self.left(console.streams(files.path("1/o"), before=between))
        assert second.counts().lag_bytes > 1_900_000
        with meanwhile(second.show_rest):
            assert console.read(2 * self.COUNT) == 2 * self.LINES
        assert caplog.text == ""

    def test_the_report_covers_earlier_starts(self, console, files, caplog):
        os.mkdir(files.path("0")), os.mkdir(files.path("1"))
        first = self.left(console.streams(files.path("0/o")))
        second = self.left(console.streams(files.path("1/o"), before=first))
        second.escalate()
        second.show_rest()
        (message,) = [record.getMessage() for record in caplog.records]
        assert int(re.findall(r"(\d+) bytes", message)[0]) > 1_900_000
        assert message.endswith(f"; the log files in {str(files.folder)!r} have all of it")


class TestCounts:
    def test_read_bytes_and_last_shown(self, files):
        streams = files.streams(
            dest(files.path("{}"), NULL, tee="out", nprocs=2), 2, capture_stderr=False
        )
        assert (streams.counts(), streams.last_shown()) == ((0, 0, 0, {}), -math.inf)
        run(streams, dict.fromkeys(range(2), "print('12345')"))
        assert streams.counts() == (12, 0, 0, {0: 6, 1: 6})
        assert streams.last_shown() > 0


class TestErrors:
    @pytest.mark.parametrize("stream", ["stdout", "stderr"])
    @pytest.mark.parametrize("tee", ["", "out err"])
    def test_a_log_file_that_cannot_be_opened(self, files, stream, tee):
        path = files.path("missing/file")
        streams = files.streams(dest(**{stream: path, "tee": tee}))
        with pytest.raises(LogDirectoryError) as caught:
            streams.child_fds(0)
        assert str(caught.value) == (
            f"cannot open {path!r} for {stream} of local rank 0: No such file or directory; check "
            "the log directory and its permissions"
        )
        streams.finish()

    def test_too_many_open_files(self, files):
        streams = files.streams(dest())
        with limited(resource.RLIMIT_NOFILE, 0):
            with pytest.raises(StreamsError, match=r"stderr of local rank 0.*ulimit -n") as caught:
                streams.child_fds(0)
        assert isinstance(caught.value, PlaunchError)
        assert isinstance(caught.value, OSError)
        streams.finish()

    def test_a_closed_console_shows_nothing(self, files):
        closed = os.dup(1)
        os.close(closed)
        spec = dest(files.path("o"), tee="out")
        streams = files.streams(spec, stdout_fd=closed, stderr_fd=closed)
        run(streams)
        assert Path(files.path("o")).read_bytes() == b"to stdout\n"
        assert streams.last_lines(0) == ["to stderr"]

    def test_a_file_with_the_number_of_a_closed_console_gets_no_output(self, files):
        spec = dest(files.path("{}"), stderr=NULL, tee="out", nprocs=2)
        closed = os.dup(1)
        os.close(closed)
        streams = files.streams(spec, 2, stdout_fd=closed)
        other = os.open(files.path("other"), os.O_WRONLY | os.O_CREAT)
        assert other == closed
        run(streams, {0: BOTH, 1: BOTH})
        os.close(other)
        assert Path(files.path("other")).read_bytes() == b""

    def test_a_launcher_without_standard_streams(self, tmp_path):
        script = tmp_path / "launcher.py"
        script.write_text(
            """
import os, sys
os.closerange(0, 3)
from plaunch.process import LogsDest
from plaunch_logs_default.streams import open_worker_streams
out = sys.argv[1]
streams = open_worker_streams(LogsDest({0: out}, {0: ""}, {0: out}, {}), 1, prefixes={0: "[0]:"})
fds = streams.child_fds(0)
owned = sorted(int(fd) for fd in os.listdir("/proc/self/fd"))
os.write(fds[0], b"to stdout\\n")
os.write(fds[1], b"to stderr\\n")
streams.start()
streams.finish()
with open(sys.argv[2], "w") as result:
    print(min(fds) > 2, streams.last_lines(0), file=result)
"""
        )
        result = tmp_path / "result"
        assert run_python(script, tmp_path / "o", result).returncode == 0
        assert result.read_text() == "True ['to stderr']\n"
        assert (tmp_path / "o").read_bytes() == b"to stdout\n"
