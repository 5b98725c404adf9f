"""Counting the output of workers."""

from __future__ import annotations

import math
import os

from plaunch.process.streams.logs import LogsDest
from plaunch.process.streams.traffic import Traffic
from plaunch_streams.console import Console
from plaunch_streams.notices import Notices
from plaunch_streams.worker_streams import Streams


class Told:
    def __init__(self, waiting_bytes=0, missing_lines=0, last_progress=0.0):
        self.waiting_bytes = waiting_bytes
        self.missing_lines = missing_lines
        self.last_progress = last_progress


def test_before_any_start():
    traffic = Traffic()
    assert traffic.counts() == (0, 0, 0)
    assert traffic.last_shown() == -math.inf


def test_what_was_dropped_stays_counted_over_starts():
    traffic, old = Traffic(), Told(waiting_bytes=5, missing_lines=2, last_progress=7.0)
    traffic.shows_on([old, Told(last_progress=3.0)])
    assert (*traffic.counts(), traffic.last_shown()) == (0, 5, 2, 7.0)
    traffic.shows_on([Told(missing_lines=1)])
    assert (*traffic.counts(), traffic.last_shown()) == (0, 0, 3, 0.0)


def test_a_console_tells_how_far_it_is_behind():
    written, now = [], 5.0

    def write(fd, data):
        written.append(console.waiting_bytes)
        return min(len(data), 4)

    console = Console(1, "stdout", Notices(), write=write, clock=lambda: now)
    console.put(b"0123456789\n", None)
    assert console.waiting_bytes == 11
    console.start()
    console.close(5.0)
    assert written == [11, 7, 3]
    assert console.waiting_bytes == 0
    assert (console.missing_lines, console.last_progress) == (0, now)


def test_streams_count_what_they_read(tmp_path):
    traffic, console = Traffic(), os.open(tmp_path / "console", os.O_CREAT | os.O_WRONLY)
    dest = LogsDest(
        stdouts={0: str(tmp_path / "0"), 1: str(tmp_path / "1")},
        stderrs={0: "", 1: ""},
        tee_stdouts={0: str(tmp_path / "0"), 1: str(tmp_path / "1")},
    )
    for _ in range(2):
        prefixes = {0: "[0]:", 1: "[1]:"}
        streams = Streams(
            dest, 2, prefixes=prefixes, stdout_fd=console, stderr_fd=-1, traffic=traffic
        )
        fds = [streams.child_fds(rank)[0] for rank in range(2)]
        for fd in fds:
            os.write(fd, b"12345\n")
        streams.start()
        streams.finish()
    os.close(console)
    assert traffic.counts() == (24, 0, 0)
    assert traffic.last_shown() > 0
