from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import socket
import tempfile
import threading

import pytest
from plaunch_logs_default.streams.backlog import Backlog
from plaunch_logs_default.streams.consoles import Console
from plaunch_logs_default.streams.writer import WarningLog

from helpers.waiting import wait_until

FOREVER = 60.0  # seconds; a test that waits that long fails


class Piped(Console):
    """A console that is a pipe, with or without a reader."""

    def __init__(self, *words, **options):
        self.read_end, self.write_end = os.pipe()
        super().__init__(self.write_end, *words, **options)

    def close_and_read(self, **options):
        """Close the console and return the rest of its output."""
        reader = Reader(self.read_end)
        self.close(**{"timeout": FOREVER, **options})
        os.close(self.write_end)
        reader.join()
        return reader.data


@pytest.fixture
def pipe(log):
    """Create consoles that are pipes, and start them."""
    consoles = []

    def pipe(name="stdout", start=True, **options):
        consoles.append(Piped(name, log, **options))
        if start:
            consoles[-1].start()
        return consoles[-1]

    yield pipe
    for console in consoles:
        for fd in (console.read_end, console.write_end):
            with contextlib.suppress(OSError):
                os.close(fd)


class Reader:
    """Reads a descriptor to its end on a thread."""

    def __init__(self, fd):
        self.data = b""
        self._fd = fd
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while piece := os.read(self._fd, 1 << 16):
            self.data += piece

    def join(self):
        self._thread.join(FOREVER)


def lines(first, count):
    return b"".join(b"line %08d\n" % n for n in range(first, first + count))


def test_shows_everything_in_order(pipe, log):
    console = pipe()
    for n in range(500):
        console.put(lines(n * 10, 10), f"owner {n}")
    assert console.close_and_read() == lines(0, 5000)
    assert log.messages == []


def test_the_thread_ends_with_the_console(pipe):
    before = threading.active_count()
    console = pipe(start=False)
    assert threading.active_count() == before
    console.start()
    assert threading.active_count() == before + 1
    console.close(FOREVER)
    assert threading.active_count() == before


def test_a_console_that_was_never_started_closes(pipe, log):
    pipe(start=False).close(FOREVER)
    assert log.messages == []


SHOWN = {"shown": 7}  # bytes
RAW = {"is_raw": True}


@pytest.mark.parametrize(
    ("puts", "shown"),
    [
        ([("a", b"1\n"), ("b", b"2\n")], b"1\n2\n"),
        ([("a", b"10%\r"), ("a", b"20%\r"), ("a", b"done\n")], b"10%\r20%\rdone\n"),
        ([("a", b"10%\r"), ("b", b"2\n"), ("a", b"20%\r")], b"10%\r\n2\n20%\r"),
        ([("a", b"10%\r"), ("b", b"5%\r"), ("a", b"20%\r")], b"10%\r\n5%\r\n20%\r"),
        ([("a", b""), ("b", b"2\n")], b"2\n"),
        # raw data follows raw data unchanged
        ([("a", b"no line", RAW), ("b", b" end", RAW), ("c", b"1\n")], b"no line end\n1\n"),
        ([("c", b"10%\r"), ("a", b"raw\n", RAW)], b"10%\r\nraw\n"),
        # a line that is partly shown is continued
        (
            [("a", b"[a]:10%"), ("a", b"[a]:10%", SHOWN), ("a", b"[a]:10% of 3\n", SHOWN)],
            b"[a]:10% of 3\n",
        ),
        # and shown again after other output
        (
            [("a", b"[a]:10%"), ("b", b"[b]:line\n"), ("a", b"[a]:10%\r", SHOWN)],
            b"[a]:10%\n[b]:line\n[a]:10%\r",
        ),
    ],
)
def test_lines_of_different_owners_start_on_a_new_line(tmp_path, log, puts, shown):
    path = tmp_path / "console"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    console = Console(fd, "stdout", log)
    for owner, data, *options in puts:
        console.put(data, owner, **dict(*options))
    console.start()
    console.close(FOREVER)
    os.close(fd)
    assert path.read_bytes() == shown


def test_waiting_bytes_and_progress(log):
    written, now = [], 5.0

    def write(fd, data):
        written.append(console.waiting_bytes)
        return min(len(data), 4)

    console = Console(1, "stdout", log, write=write, clock=lambda: now)
    console.put(b"0123456789\n", None)
    assert console.waiting_bytes == 11
    console.start()
    console.close(5.0)
    assert written == [11, 7, 3]
    assert console.waiting_bytes == 0
    assert (console.missing_lines, console.last_progress) == (0, now)


class TestSlowConsole:
    def test_put_never_blocks_and_memory_is_bounded(self, pipe, log):
        backlog = Backlog(100_000)
        console = pipe(backlog=backlog)
        for n in range(100):  # there is no reader: a `put` that blocked would block forever
            console.put(lines(n * 1000, 1000), self)
            assert backlog.in_memory <= 100_000
        assert backlog.size > 1_000_000
        assert console.close_and_read() == lines(0, 100_000)
        assert log.messages == []

    def test_catches_up(self, pipe, log):
        backlog = Backlog(10_000)
        console = pipe(backlog=backlog)
        console.put(lines(0, 20_000), self)
        reader = Reader(console.read_end)
        wait_until(lambda: not backlog.size, "it has caught up")
        console.put(lines(20_000, 10), self)
        console.close(FOREVER)
        os.close(console.write_end)
        reader.join()
        assert reader.data == lines(0, 20_010)

    @pytest.mark.parametrize("disk", [0, 3])
    def test_a_full_disk_drops_the_oldest_lines_with_a_note_in_their_place(self, pipe, log, disk):
        files = []

        def open_file():
            if sum(not file.closed for file in files) >= disk:
                raise OSError(errno.ENOSPC, "No space left on device")
            files.append(tempfile.TemporaryFile(buffering=0))
            return files[-1]

        def pwrite(fd, data, position):
            if position + len(data) > 150_000:
                raise OSError(errno.ENOSPC, "No space left on device")
            return os.pwrite(fd, data, position)

        backlog = Backlog(100_000, open_file, pwrite)
        console = pipe(backlog=backlog)
        for n in range(1000):
            console.put(lines(n * 100, 100), self)
            assert backlog.in_memory <= 100_000
        expected = dropped = 0
        for line in console.close_and_read().splitlines():
            gap = re.fullmatch(rb"plaunch: lines missing here: (\d+) \(.*\)", line)
            if gap:
                expected += int(gap[1])
                dropped += int(gap[1])
            else:
                assert line == b"line %08d" % expected
                expected += 1
        assert expected == 100_000
        assert dropped > 50_000
        first, last = log.messages
        assert "the oldest lines are dropped" in first
        assert last.endswith(f"output dropped: {dropped}")

    def test_output_not_taken_at_the_end_is_reported(self, pipe, log):
        console = pipe("stderr")
        console.put(lines(0, 100_000), self)
        console.close(timeout=0.05)
        (message,) = log.messages
        size, count = map(int, re.findall(r"\d+", message))
        assert message.startswith("stderr has not taken all")
        # A pipe holds 64 KiB of the 1.4 MB.
        assert 1_300_000 <= size < 1_400_000
        assert 92_000 < count < 100_000
        # The console is read before the launcher ends, so nothing is lost.
        data = b""
        while len(data) < 1_400_000:
            data += os.read(console.read_end, 1 << 16)
        assert data == lines(0, 100_000)

    def test_close_waits_for_a_console_that_makes_progress(self, pipe, log):
        now, looks = 0.0, 0

        def clock():
            nonlocal looks
            looks += threading.current_thread() is threading.main_thread()
            return now

        def slow_write(fd, data):
            nonlocal now
            now += 4.0  # seconds
            seen = looks
            wait_until(lambda: looks > seen, "`close` has looked at the clock")
            return os.write(fd, data[:1000])

        console = pipe(start=False, write=slow_write, clock=clock)
        console.put(lines(0, 400), self)
        console.start()
        assert console.close_and_read(timeout=5.0) == lines(0, 400)
        assert now >= 24.0
        assert log.messages == []

    def test_an_escalation_ends_the_wait(self, pipe, log):
        console = pipe()
        console.put(lines(0, 100_000), self)
        console.close(FOREVER * 2, is_escalated=lambda: True)
        assert "not shown" in log.messages[0]
        console.close_and_read()

    def test_nothing_is_missing_if_all_was_shown(self, pipe, log):
        console = pipe()
        console.close(FOREVER, is_escalated=lambda: True)
        console.close(FOREVER)
        assert log.messages == []

    def test_writes_end_with_whole_lines_if_possible(self, pipe, log):
        written = []

        def write(fd, data):
            written.append(data)
            return len(data)

        console = pipe(start=False, write=write)
        console.put(lines(0, 20_000), self)
        console.put(b"x" * 200_000, self)
        console.start()
        console.close(FOREVER)
        assert b"".join(written) == lines(0, 20_000) + b"x" * 200_000
        assert len(written) > 5
        assert all(piece.endswith(b"\n") for piece in written if b"line" in piece)


class TestConsoleInTrouble:
    def test_output_without_a_reader_is_discarded_and_reported_once(self, pipe, log):
        backlog = Backlog(10_000)
        console = pipe(start=False, backlog=backlog)
        os.close(console.read_end)
        console.put(lines(0, 10_000), self)
        console.start()
        wait_until(lambda: log.messages, "a warning")
        for n in range(10):
            console.put(lines(n, 1000), self)
        assert backlog.size == 0
        console.close(FOREVER)
        (message,) = log.messages
        assert "stdout cannot be written to any more (Broken pipe)" in message

    def test_a_terminal_that_is_gone(self, log):
        master, slave = os.openpty()
        os.close(master)
        console = Console(slave, "stderr", log)
        console.put(b"line\n", self)
        console.start()
        console.close(FOREVER)
        os.close(slave)
        assert "(Input/output error)" in log.messages[0]

    def test_a_file_on_a_full_disk_counts_missing_lines(self, log):
        fd = os.open("/dev/full", os.O_WRONLY)
        console = Console(fd, "stdout", log)
        console.put(lines(0, 10), self)
        console.start()
        wait_until(lambda: log.messages, "a warning")
        console.put(lines(10, 20), self)
        console.close(FOREVER)
        os.close(fd)
        assert len(log.messages) == 2
        assert "(No space left on device)" in log.messages[0]
        assert log.messages[1].endswith("missing there: 30")

    def test_a_file_continues_when_it_can_grow_again(self, tmp_path, log):
        written = []

        def write(fd, data):
            if not written and len(data) == len(lines(0, 10)):
                written.append(b"")
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(data)
            return len(data)

        fd = os.dup(1)
        console = Console(fd, "stdout", log, write=write)
        console.start()
        console.put(lines(0, 10), self)
        wait_until(lambda: log.messages, "a warning")
        console.put(lines(10, 5), self)
        console.close(FOREVER)
        os.close(fd)
        assert b"".join(written) == lines(10, 5)
        assert log.messages[-1].endswith("missing there: 10")

    def test_a_non_blocking_console(self, log):
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        console = Console(ours.fileno(), "stdout", log)
        console.start()
        console.put(lines(0, 100_000), self)
        reader = Reader(theirs.fileno())
        console.close(FOREVER)
        ours.close()
        reader.join()
        theirs.close()
        assert reader.data == lines(0, 100_000)
        assert log.messages == []


class TestWarningLog:
    def test_are_logged_before_the_flush_ends(self, caplog):
        log = WarningLog()
        log.warn("%d lines are missing in %r", 3, "a.log")
        log.flush(FOREVER)
        assert caplog.messages == ["3 lines are missing in 'a.log'"]
        assert caplog.records[0].levelno == logging.WARNING

    def test_do_not_wait_for_a_log_that_blocks(self):
        entered, free = threading.Event(), threading.Event()

        class Blocked(logging.Handler):
            def emit(self, record):
                entered.set()
                free.wait(FOREVER)

        handler = Blocked()
        logger = logging.getLogger("plaunch")
        logger.addHandler(handler)
        log = WarningLog()
        try:
            log.warn("first")
            assert entered.wait(FOREVER)
            log.warn("second")
            log.flush(timeout=0.01)
        finally:
            free.set()
            logger.removeHandler(handler)
            for thread in threading.enumerate():
                if thread.name == "plaunch-warning":
                    thread.join(FOREVER)

    def test_are_logged_by_flush_if_no_thread_can_start(self, caplog, monkeypatch):
        def fail(thread):
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", fail)
        log = WarningLog()
        log.warn("no %s", "thread")
        log.flush(FOREVER)
        assert caplog.messages == ["no thread"]
