"""Files that other programs write are followed until `finish`."""

from __future__ import annotations

import os

import pytest
from plaunch_logs_default.streams.reader import FollowedFile, Reader, Source

from helpers.sinks import Kept, Plain
from helpers.waiting import BOUND, wait_until


class Following:
    """Follows files, from `start` to `stop`."""

    def __init__(self, log):
        self.log = log
        self.sources = []
        self.reader = None

    def add(self, path, sink=None):
        self.sources.append(FollowedFile(str(path), self.log))
        sink = sink or Kept()
        self.sources[-1].add(sink)
        return sink

    def start(self):
        self.reader = Reader(self.sources)
        self.reader.start()

    def stop(self):
        assert self.reader.finish(BOUND)


@pytest.fixture
def following(log):
    following = Following(log)
    yield following
    if following.reader is not None:
        following.stop()


def test_a_growing_file_is_read_even_if_created_late(following, tmp_path):
    kept = following.add(tmp_path / "log")
    following.start()
    with open(tmp_path / "log", "wb", buffering=0) as file:
        for text in (b"one\n", b"tw", b"o\r\xff\n"):
            file.write(text)
            wait_until(lambda text=text: kept.data.endswith(text), lambda: kept.data)
    assert not kept.is_closed
    following.stop()
    following.stop()
    assert kept.data == b"one\ntwo\r\xff\n"
    assert kept.is_closed
    assert following.reader.read_bytes == len(kept.data)


@pytest.mark.parametrize("size", [1_000_000, None], ids=["just before the end", "never"])
def test_data_written_just_before_the_end_is_read(following, tmp_path, log, size):
    kept = following.add(tmp_path / "log")
    following.start()
    if size is not None:
        (tmp_path / "log").write_bytes(b"x" * size)
    following.stop()
    assert (len(kept.data), log.messages) == (size or 0, [])


def test_finish_does_not_wait_for_a_file_that_keeps_growing(following, tmp_path):
    """The sink writes to the file whenever it is read."""
    with open(tmp_path / "log", "ab", buffering=0) as file:
        file.write(b"again\n")
        echoed = []
        following.add(tmp_path / "log", Plain(lambda data: echoed.append(file.write(data))))
        following.start()
        following.stop()
    assert echoed


def test_an_unreadable_file_is_reported_once_and_others_continue(following, tmp_path, log):
    (tmp_path / "log").write_bytes(b"one\n")
    paths = [tmp_path, tmp_path / "log" / "below", tmp_path / "log"]
    kept = [following.add(path) for path in paths]
    following.start()
    wait_until(lambda: kept[2].data == b"one\n", lambda: kept[2].data)
    following.stop()
    directory, below_file = sorted(log.messages)
    assert "Is a directory" in directory
    assert "Not a directory" in below_file


def test_a_truncated_file_is_read_beyond_its_old_size(following, tmp_path):
    path = tmp_path / "log"
    path.write_bytes(b"one\n")
    kept = following.add(path)
    following.start()
    wait_until(lambda: kept.data == b"one\n", lambda: kept.data)
    path.write_bytes(b"")
    path.write_bytes(b"two\nthree\n")
    following.stop()
    assert kept.data == b"one\nthree\n"


def test_an_endless_file_does_not_delay_pipes(following, log):
    """A device has no size, so it is not read."""
    endless = following.add("/dev/zero")
    read_end, write_end = os.pipe()
    source, kept = Source(read_end, "stdout of local rank 0", log), Kept()
    source.add(kept)
    following.sources.append(source)
    following.start()
    os.write(write_end, b"one\n")
    wait_until(lambda: kept.data == b"one\n", lambda: kept.data)
    os.close(write_end)
    following.stop()
    assert endless.data == b""
    assert kept.is_closed
