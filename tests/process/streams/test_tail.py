"""Files that others write are followed until they are said to be complete."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest
from plaunch.process import LogsDest
from plaunch.process.streams.sinks import Sink
from plaunch.process.streams.tail import LogTails, TeedFiles

from helpers.notices import Recorded
from helpers.waiting import wait_until


class Kept(Sink):
    def __init__(self):
        self.data = b""
        self.is_closed = False

    def write(self, data):
        self.data += data

    def close(self):
        self.is_closed = True


class Screen(io.StringIO):
    """A stream without a `buffer`."""


@pytest.fixture
def notices():
    return Recorded()


@pytest.fixture
def tails(notices):
    tails = LogTails(notices)
    yield tails
    tails.stop()


def follow(tails, path):
    kept = Kept()
    tails.add(str(path)).add(kept)
    return kept


def test_a_file_is_read_as_it_grows_also_if_it_comes_late(tails, tmp_path):
    kept = follow(tails, tmp_path / "log")
    tails.start()
    with open(tmp_path / "log", "wb", buffering=0) as file:
        for text in (b"one\n", b"tw", b"o\r\xff\n"):
            file.write(text)
            wait_until(lambda text=text: kept.data.endswith(text), lambda: kept.data)
    assert not kept.is_closed
    tails.stop()
    tails.stop()
    assert kept.data == b"one\ntwo\r\xff\n"
    assert kept.is_closed


def test_what_was_written_just_before_the_end_is_read(tails, tmp_path):
    kept = follow(tails, tmp_path / "log")
    tails.start()
    (tmp_path / "log").write_bytes(b"x" * 1_000_000)
    tails.stop()
    assert len(kept.data) == 1_000_000


def test_a_file_that_never_comes_is_no_trouble(tails, tmp_path, notices):
    kept = follow(tails, tmp_path / "log")
    tails.start()
    tails.stop()
    assert (kept.data, notices.messages) == (b"", [])


def test_one_who_goes_on_writing_is_not_waited_for(tails, tmp_path):
    """Here whatever is read is written once more."""
    with open(tmp_path / "log", "ab", buffering=0) as file:
        file.write(b"again\n")
        echoed = []

        class Echo(Sink):
            def write(self, data):
                echoed.append(file.write(data))

        tails.add(str(tmp_path / "log")).add(Echo())
        tails.start()
        tails.stop()
    assert echoed


def test_a_file_that_cannot_be_read_is_told_once_and_the_others_go_on(tails, tmp_path, notices):
    (tmp_path / "log").write_bytes(b"one\n")
    paths = [tmp_path, tmp_path / "log" / "below", tmp_path / "log"]
    kept = [follow(tails, path) for path in paths]
    tails.start()
    wait_until(lambda: kept[2].data == b"one\n", lambda: kept[2].data)
    tails.stop()
    told = sorted(notices.messages)
    assert len(told) == 2
    assert "Is a directory" in told[0]
    assert "Not a directory" in told[1]


def test_nothing_to_follow_needs_no_thread(tails):
    threads = threading.active_count()
    tails.start()
    assert threading.active_count() == threads


def test_lines_are_shown_with_their_prefix_and_matches_collected(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.stdout", Screen())
    monkeypatch.setattr("sys.stderr", None)
    for rank, text in enumerate((b"10%\rloss 1\nbad \xff byte\n", b"loss 2")):
        (tmp_path / str(rank)).write_bytes(text)
    paths = {rank: str(tmp_path / str(rank)) for rank in (0, 1)}
    matches = tmp_path / "matches"
    dest = LogsDest(
        tee_stdouts={**paths, 2: "", 3: os.devnull},
        tee_stderrs=paths,
        filtered_stdout=str(matches),
    )
    files = TeedFiles(dest, {0: "${time}[0]:", 1: "[1]:"}, ["loss"], [])
    files.stop()
    files.stop()
    shown = "[0]:10%\r[0]:loss 1\n[0]:bad \ufffd byte\n[1]:loss 2\n"

    assert sorted(sys.stdout.getvalue().splitlines()) == sorted(shown.splitlines())
    assert sorted(matches.read_text().splitlines()) == ["[0]:10%", "[1]:loss 2", "loss 1"]


def test_a_stream_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch, caplog):
    class Broken(Screen):
        def write(self, text):
            raise ValueError("closed")

    shown = Screen()
    monkeypatch.setattr("sys.stdout", Broken())
    monkeypatch.setattr("sys.stderr", shown)
    (tmp_path / "log").write_bytes(b"one\n")
    paths = {0: str(tmp_path / "log")}
    TeedFiles(LogsDest(tee_stdouts=paths, tee_stderrs=paths), {0: "> "}, [], []).stop()
    assert shown.getvalue() == "> one\n"
    assert "LinesToText is given up: ValueError('closed')" in caplog.text
