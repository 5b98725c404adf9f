from __future__ import annotations

import os

import pytest
from plaunch.process.streams.last_lines import (
    KEPT_BYTES,
    KEPT_LINES,
    Ring,
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


def test_a_line_whose_beginning_is_gone_is_left_out_unless_it_is_the_only_one():
    assert split_last_lines(b"ginning\nwhole\n", is_cut=True) == ["whole"]
    assert split_last_lines(b"ginning of one long line\n", is_cut=True) == [
        "ginning of one long line"
    ]


class TestRing:
    def test_remembers_what_was_written(self):
        ring = Ring()
        ring.write(b"one\ntw")
        ring.write(b"o\n")
        assert ring.last_lines() == ["one", "two"]

    @pytest.mark.parametrize("piece", [1, 7, 64, 1000])
    def test_keeps_the_end_in_bounded_memory(self, piece):
        stream = b"".join(b"%04d\n" % n for n in range(200))
        ring = Ring(kept_bytes=32)
        for start in range(0, len(stream), piece):
            ring.write(stream[start : start + piece])
            assert len(ring._data) <= 64
        assert ring.last_lines() == ["0194", "0195", "0196", "0197", "0198", "0199"]

    def test_one_write_that_fills_it_is_known_to_be_cut(self):
        ring = Ring(kept_bytes=8)
        ring.write(b"beginning\nend\n")
        assert ring.last_lines() == ["end"]

    def test_nothing_is_cut_from_a_stream_that_just_fits(self):
        ring = Ring(kept_bytes=8)
        ring.write(b"abc\nd")
        ring.write(b"ef\n")
        assert ring.last_lines() == ["abc", "def"]


class TestFile:
    def test_reads_the_end(self, tmp_path):
        path = tmp_path / "stderr.log"
        path.write_bytes(b"".join(b"line %d\n" % n for n in range(50_000)))
        assert path.stat().st_size > KEPT_BYTES
        assert read_last_lines(str(path)) == [f"line {n}" for n in range(49_980, 50_000)]

    def test_a_long_last_line_is_cut_at_its_beginning(self, tmp_path):
        path = tmp_path / "stderr.log"
        path.write_bytes(b"first\n" + b"x" * (KEPT_BYTES - 6) + b"\nlast\n")
        assert read_last_lines(str(path)) == ["last"]

    def test_leaves_out_what_others_wrote_before(self, tmp_path):
        path = tmp_path / "stderr.log"
        path.write_bytes(b"old\nnew\n")
        assert read_last_lines(str(path), start=4) == ["new"]
        assert read_last_lines(str(path), start=8) == []

    def test_a_file_that_was_truncated_is_read_from_its_beginning(self, tmp_path):
        path = tmp_path / "stderr.log"
        path.write_bytes(b"new\n")
        assert read_last_lines(str(path), start=100) == ["new"]

    def test_what_is_not_a_regular_file_has_none(self, tmp_path):
        os.mkfifo(tmp_path / "fifo")
        assert read_last_lines(str(tmp_path / "fifo")) == []
        assert read_last_lines(os.devnull) == []
        assert read_last_lines("/dev/zero") == []
        assert read_last_lines(str(tmp_path)) == []
        assert read_last_lines(str(tmp_path / "missing")) == []
