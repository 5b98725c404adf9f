from __future__ import annotations

import errno
import os

import pytest
from plaunch_logs_default.streams.backlog import Backlog
from plaunch_logs_default.streams.consoles import Console
from plaunch_logs_default.streams.lines import (
    PROMPT_HOLD,
    PROMPT_HOLD_IN_LOG,
    LinesToConsole,
    MatchesToFile,
    Prefix,
)
from plaunch_logs_default.streams.sinks import (
    HOLD,
    KEPT_BYTES,
    KEPT_LINES,
    LONG_HOLD,
    MAX_HELD,
    FileSink,
    LastLinesSink,
    RawToConsole,
    TracebackFinder,
    read_last_lines,
    split_last_lines,
)

from helpers.clock import Clock
from helpers.recorded_warnings import RecordedWarnings
from helpers.sinks import Kept


class Screen(Console):
    """A console that records its output; it need not be started."""

    def __init__(self, *, is_terminal=False):
        self._kept, self._taken = Backlog(), b""
        super().__init__(1, "stdout", RecordedWarnings(), backlog=self._kept)
        self.is_terminal = is_terminal

    @property
    def content(self):
        while self._kept.size:
            self._taken += self._kept.take(self._kept.size)
        return self._taken


class Disk:
    """A disk that accepts a limited number of bytes."""

    def __init__(self, room):
        self.room = room
        self.error = errno.ENOSPC

    def write(self, fd, data):
        if self.room <= 0:
            raise OSError(self.error, os.strerror(self.error))
        done = os.write(fd, data[: self.room])
        self.room -= done
        return done


class TestFile:
    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "stdout.log"

    @pytest.fixture
    def open_sink(self, path, log):
        def open_sink(write=os.write):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            return FileSink(fd, str(path), log, write)

        return open_sink

    @pytest.mark.parametrize("most", [3, 100], ids=["short writes", "whole writes"])
    def test_gets_the_unchanged_bytes(self, path, log, open_sink, most):
        sink = open_sink(lambda fd, data: os.write(fd, data[:most]))
        for piece in (b"one\ntw", b"", b"o\r\n\xff\x00", b"no end"):
            sink.write(piece)
        sink.close()
        assert path.read_bytes() == b"one\ntwo\r\n\xff\x00no end"
        assert log.messages == []

    @pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
    def test_a_full_disk_is_reported_once_and_its_lines_are_counted(
        self, path, log, open_sink, error
    ):
        disk = Disk(room=8)
        disk.error = error
        sink = open_sink(disk.write)
        sink.write(b"one\ntwo\nthree\n")
        (message,) = log.messages
        assert message == (
            f"cannot write to {str(path)!r} ({os.strerror(error)}): lines are missing there until "
            "it is possible again; the job continues"
        )
        sink.write(b"four\n")
        sink.write(b"fi")
        sink.write(b"ve")
        assert len(log.messages) == 1
        sink.close()
        assert path.read_bytes() == b"one\ntwo\n"
        assert log.messages[1:] == [f"lines missing in {str(path)!r}: 3"]

    @pytest.mark.parametrize(
        ("room", "pieces", "more", "content", "lost"),
        [
            (4, [b"one\ntwo\n"], [b"three\n"], b"one\nthree\n", 1),
            (4, [b"one\ntwo"], [b" rest\nthree\n"], b"one\nthree\n", 1),
            (4, [b"one\ntwo"], [b" rest", b" of it\nthree\n"], b"one\nthree\n", 1),
            (6, [b"one\ntwo\n"], [b"three\n"], b"one\ntw\nthree\n", 1),
            (6, [b"one\ntwo"], [b" rest\nthree\n"], b"one\ntw\nthree\n", 1),
            (6, [b"one\ntwo", b"\n"], [b"three"], b"one\ntw\nthree", 1),
            (0, [b"one\ntwo\n"], [b"three\n"], b"three\n", 2),
            (0, [b"one"], [b"", b"two", b"\n"], b"", 1),
        ],
    )
    def test_continues_with_a_whole_line_when_there_is_space_again(
        self, path, log, open_sink, room, pieces, more, content, lost
    ):
        disk = Disk(room)
        sink = open_sink(disk.write)
        for piece in pieces:
            sink.write(piece)
        disk.room = 1000
        for piece in more:
            sink.write(piece)
        sink.close()
        assert path.read_bytes() == content
        assert sink.lost_lines == lost

    def test_an_error_at_the_close_is_reported(self, path, log):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT)
        sink = FileSink(fd, str(path), log)
        os.close(fd)
        sink.close()
        assert "may be missing (Bad file descriptor)" in log.messages[0]

    def test_matching_lines_of_several_streams_share_a_file(self, path, open_sink):
        file = open_sink()
        matches = [
            MatchesToFile(Prefix(text).format_lines, [b"loss"], file) for text in ("0:", "1:")
        ]
        matches[0].write(b"nothing\nloss=1\nlo")
        matches[1].write(b"loss=2\nnothing\n")
        matches[0].write(b"ss=3")
        for match in matches:
            match.close()
        file.close()
        assert path.read_bytes() == b"0:loss=1\n1:loss=2\n0:loss=3\n"


class TestRaw:
    @pytest.fixture
    def screen(self):
        return Screen()

    @pytest.fixture
    def clock(self):
        return Clock()

    def test_lines_are_shown_immediately(self, screen, clock):
        raw = RawToConsole(screen, clock)
        for piece in (b"10%", b"\r20%", b"\rdone\n", b"prompt: "):
            raw.write(piece)
        assert screen.content == b"10%\r20%\rdone\n"
        raw.flush()
        assert screen.content == b"10%\r20%\rdone\nprompt: "
        assert raw.due is None

    @pytest.mark.parametrize("size", [1, 99, 838, 3097, 4095, 8191])
    def test_a_line_in_pieces_stays_whole(self, screen, clock, size):
        """Wherever a read ends: a quarter of the reads from a terminal end inside a line."""
        raws = [RawToConsole(screen, clock) for _ in range(2)]
        lines = [b"%d" % rank * 120 + b"\n" for rank in range(2)]
        texts = [line * 100 for line in lines]
        for start in range(0, len(texts[0]), size):
            for raw, text in zip(raws, texts, strict=True):
                raw.write(text[start : start + size])
        assert {*screen.content.splitlines(keepends=True)} == {*lines}

    def test_a_slowly_growing_line_is_shown_as_it_grows(self, screen, clock):
        raw = RawToConsole(screen, clock)
        raw.write(b"dots: ")
        due = raw.due
        for _ in range(10):
            clock.now += HOLD / 4
            raw.write(b".")
        assert raw.due == due < clock.now
        raw.flush()
        assert screen.content == b"dots: .........."

    def test_a_long_write_is_held_back_longer(self, screen, clock):
        raw, other = RawToConsole(screen, clock), RawToConsole(screen, clock)
        raw.write(b"x" * 4092 + b"\nhal")
        assert raw.due == clock.now + LONG_HOLD
        other.write(b"other\n")
        raw.write(b"f\n")
        assert raw.due is None
        assert screen.content == b"x" * 4092 + b"\nother\nhalf\n"

    def test_the_wait_ends(self, screen, clock):
        raw = RawToConsole(screen, clock)
        raw.write(b"x" * 4092 + b"\nhalf")
        raw.flush()
        assert raw.due is None
        assert screen.content.endswith(b"\nhalf")
        raw.write(b"x" * 4092 + b"\nend")
        raw.close()
        assert screen.content.endswith(b"\nend")

    def test_a_progress_bar_is_not_held_back(self, screen, clock):
        RawToConsole(screen, clock).write(b"x" * 5000 + b"\r")
        assert screen.content == b"x" * 5000 + b"\r"

    def test_a_line_without_end_is_shown_in_parts(self, screen, clock):
        raw = RawToConsole(screen, clock)
        for _ in range(MAX_HELD // 4096 + 1):
            raw.write(b"x" * 4096)
        assert len(screen.content) > MAX_HELD


class TestLines:
    def test_are_prefixed_and_whole(self):
        screen = Screen()
        a = LinesToConsole(Prefix("[a]:"), screen)
        b = LinesToConsole(Prefix("[b]:"), screen)
        a.write(b"one\nhal")
        b.write(b"two\n")
        a.write(b"f\nend")
        b.close()
        a.close()
        assert screen.content == b"[a]:one\n[b]:two\n[a]:half\n[a]:end\n"

    def test_the_state_of_a_bar_is_shown_on_a_terminal(self):
        screen, clock = Screen(is_terminal=True), Clock()
        bar = LinesToConsole(Prefix("[a]:"), screen, clock)
        bar.write(b"\r10%")
        assert (screen.content, bar.due) == (b"[a]:\r", clock.now + HOLD)
        bar.flush()
        assert (screen.content, bar.due) == (b"[a]:\r[a]:10%", None)
        bar.write(b"\r20%")
        assert bar.due is not None
        bar.flush()
        bar.write(b"\n")
        bar.close()
        assert screen.content == b"[a]:\r[a]:10%\r[a]:20%\n"
        assert bar.due is None

    def test_the_state_of_a_bar_is_shown_again_after_an_interruption(self):
        screen, clock = Screen(is_terminal=True), Clock()
        bar = LinesToConsole(Prefix("[a]:"), screen, clock)
        other = LinesToConsole(Prefix("[b]:"), screen, clock)
        bar.write(b"\r10%")
        bar.flush()
        other.write(b"line\n")
        bar.write(b" of 3\r20%\n")
        assert screen.content == b"[a]:\r[a]:10%\n[b]:line\n[a]:10% of 3\r[a]:20%\n"

    def test_the_state_of_a_bar_is_not_shown_in_a_log(self):
        screen = Screen()
        lines = LinesToConsole(Prefix("[a]:"), screen)
        lines.write(b"\r10%")
        assert lines.due is None
        lines.write(b" done\n")
        assert screen.content == b"[a]:\r[a]:10% done\n"

    @pytest.mark.parametrize(
        ("is_terminal", "hold"), [(True, PROMPT_HOLD), (False, PROMPT_HOLD_IN_LOG)]
    )
    def test_a_prompt_is_shown_after_a_while(self, is_terminal, hold):
        screen, clock = Screen(is_terminal=is_terminal), Clock()
        lines = LinesToConsole(Prefix("[a]:"), screen, clock)
        lines.write(b"one\n(Pd")
        assert (screen.content, lines.due) == (b"[a]:one\n", clock.now + hold)
        due = lines.due
        clock.now += hold / 2
        lines.write(b"b) ")
        assert lines.due == due
        lines.flush()
        assert (screen.content, lines.due) == (b"[a]:one\n[a]:(Pdb) ", None)
        lines.write(b"p x\n3\n")
        assert (screen.content, lines.due) == (b"[a]:one\n[a]:(Pdb) p x\n[a]:3\n", None)

    def test_a_line_that_is_complete_in_time_is_shown_once(self):
        screen, clock = Screen(is_terminal=True), Clock()
        lines = LinesToConsole(Prefix("[a]:"), screen, clock)
        lines.write(b"Loading ...")
        lines.write(b" done\n")
        assert (screen.content, lines.due) == (b"[a]:Loading ... done\n", None)

    def test_lines_of_others_do_not_mix_with_a_prompt(self):
        screen, clock = Screen(is_terminal=True), Clock()
        prompt = LinesToConsole(Prefix("[a]:"), screen, clock)
        other = LinesToConsole(Prefix("[b]:"), screen, clock)
        prompt.write(b"(Pdb) ")
        prompt.flush()
        other.write(b"line\n")
        prompt.write(b"p x\n")
        assert screen.content == b"[a]:(Pdb) \n[b]:line\n[a]:(Pdb) p x\n"


@pytest.mark.parametrize(
    ("pieces", "picked"),
    [
        ([b"a\nb\n"], b""),
        ([b"a\nloss=1\nb\n"], b"[r0]:loss=1\n"),
        ([b"an error\na loss\n"], b"[r0]:an error\n[r0]:a loss\n"),
        ([b"lo", b"ss", b"=1\nb\n"], b"[r0]:loss=1\n"),
        ([b"lo\nss\n"], b""),
        ([b"a\nloss without end"], b"[r0]:loss without end\n"),
        ([b"\n\nloss\n"], b"[r0]:loss\n"),
        # a line without an end is written in parts
        ([b"loss", b"x" * 20, b"yyy\n"], b"[r0]:lossxxxxxxxxxxxxxxxxxxxx\n"),
    ],
)
def test_lines_with_a_substring_match(pieces, picked):
    file = Kept()
    sink = MatchesToFile(Prefix("[r0]:").format_lines, [b"loss", b"error"], file, max_line=20)
    for piece in pieces:
        sink.write(piece)
    sink.close()
    assert file.data == picked


# --- the last lines ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n\n", []),
        (b"one", ["one"]),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\n\ntwo\n\n\n", ["one", "", "two"]),
        (b"dos\r\nline\r\n", ["dos", "line"]),
        (b"\r10%\r20%\r\nboom\n", ["20%", "boom"]),
        (b"10%\r20%\r", ["20%"]),
        (b"\x1b[31mred\x1b[0m\n", ["\x1b[31mred\x1b[0m"]),
        (b"caf\xc3\xa9 \xff\n", ["café \ufffd"]),
    ],
)
def test_last_lines_of_a_short_stream(data, lines):
    assert split_last_lines(data) == lines


def test_only_the_last_lines_are_kept():
    data = b"".join(b"%d\n" % n for n in range(100))
    assert split_last_lines(data) == [str(n) for n in range(100 - KEPT_LINES, 100)]


def test_a_cut_first_line_is_omitted_unless_it_is_the_only_one():
    assert split_last_lines(b"ginning\nwhole\n", is_cut=True) == ["whole"]
    assert split_last_lines(b"ginning of one long line\n", is_cut=True) == [
        "ginning of one long line"
    ]


CRASH = b"Traceback (most recent call last):\n  File ...\nRuntimeError: bad batch\n"


class TestLastLinesSink:
    @pytest.mark.parametrize(
        ("writes", "kept_bytes", "lines"),
        [
            ([b"one\ntw", b"o\n"], KEPT_BYTES, ["one", "two"]),
            ([b"beginning\nend\n"], 8, ["end"]),  # cut by a single write
            ([b"abc\nd", b"ef\n"], 8, ["abc", "def"]),  # it just fits
        ],
    )
    def test_keeps_the_last_lines(self, writes, kept_bytes, lines):
        ring = LastLinesSink(kept_bytes=kept_bytes)
        for data in writes:
            ring.write(data)
        assert ring.last_lines() == lines

    @pytest.mark.parametrize("piece", [1, 7, 64, 1000])
    def test_keeps_the_end_in_bounded_memory(self, piece):
        stream = b"".join(b"%04d\n" % n for n in range(200))
        ring = LastLinesSink(kept_bytes=32)
        for start in range(0, len(stream), piece):
            ring.write(stream[start : start + piece])
            assert len(ring._data) <= 64
        assert ring.last_lines() == ["0194", "0195", "0196", "0197", "0198", "0199"]

    @pytest.mark.parametrize("piece", [1, 7, 1000])
    def test_knows_when_the_last_traceback_began(self, piece):
        clock = Clock(0.0)
        ring = LastLinesSink(kept_bytes=256, clock=clock)
        assert ring.traceback_time is None
        for number, data in enumerate((b"step\n" * 40, CRASH, b"step\n" * 40, CRASH, b"end\n")):
            clock.now = float(number)
            for start in range(0, len(data), piece):
                ring.write(data[start : start + piece])
            assert ring.traceback_time == [None, 1.0, 1.0, 3.0, 3.0][number]


class TestTracebackFinder:
    def test_knows_when_the_last_traceback_was_found_by_the_clock_of_this_machine(self, tmp_path):
        path = tmp_path / "stderr.log"
        path.write_bytes(CRASH)
        clock = Clock(0.0)
        finder = TracebackFinder(str(path), len(CRASH), clock)
        assert finder.traceback_time() is None  # of another worker
        found = []
        for number, data in enumerate((b"step\n", CRASH[:20], CRASH[20:], b"\xff" * 70_000, CRASH)):
            with path.open("ab") as file:
                file.write(data)
            os.utime(path, (1e6, 1e6))  # of another machine
            clock.now = float(number)
            found.append(finder.traceback_time())
        assert found == [None, None, 2.0, 2.0, 4.0]

    @pytest.mark.parametrize("kind", ["gone", "pipe"])
    def test_what_cannot_be_read_has_none(self, tmp_path, kind):
        path = tmp_path / "stderr.log"
        if kind == "pipe":
            os.mkfifo(path)
        assert TracebackFinder(str(path), 0).traceback_time() is None


class TestReadLastLines:
    @pytest.mark.parametrize(
        ("content", "start", "lines"),
        [
            (
                b"".join(b"line %d\n" % n for n in range(50_000)),
                0,
                [f"line {n}" for n in range(49_980, 50_000)],
            ),
            # a long last line loses its beginning
            (b"first\n" + b"x" * (KEPT_BYTES - 6) + b"\nlast\n", 0, ["last"]),
            # earlier output of others is omitted
            (b"old\nnew\n", 4, ["new"]),
            (b"old\nnew\n", 8, []),
            # a file that was truncated is read from its beginning
            (b"new\n", 100, ["new"]),
        ],
        ids=["many lines", "a long line", "some old", "all old", "truncated"],
    )
    def test_reads_the_end(self, tmp_path, content, start, lines):
        path = tmp_path / "stderr.log"
        path.write_bytes(content)
        assert read_last_lines(str(path), start=start) == lines

    def test_a_file_that_is_not_regular_has_none(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        for path in (tmp_path / "fifo", os.devnull, "/dev/zero", tmp_path, tmp_path / "missing"):
            assert read_last_lines(str(path)) == []
