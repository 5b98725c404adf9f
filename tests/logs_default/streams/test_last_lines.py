from __future__ import annotations

import os

import pytest
from plaunch_logs_default.streams.last_lines import (
    KEPT_BYTES,
    KEPT_LINES,
    LastLinesSink,
    read_last_lines,
    split_last_lines,
)


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


class TestFile:
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
