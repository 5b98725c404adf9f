"""Files that others write are followed until they are said to be complete."""

from __future__ import annotations

import threading

import pytest
from plaunch.process.streams.sinks import Sink
from plaunch.process.streams.tail import LogTails

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
