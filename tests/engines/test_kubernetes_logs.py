"""The lines of pods."""

import threading

import pytest
from plaunch_engines.kubernetes_logs import PodLogs, read_stamp, split_lines
from plaunch_engines.records import MAX_LINE

from helpers.clock import Clock


def test_long_lines_are_split():
    chunks = [b"a", b"b\n\nc", b"x" * (2 * MAX_LINE), b"\nd"]
    found = list(split_lines(chunks))
    assert found[:2] == [(True, b"ab"), (True, b"")]
    assert [is_start for is_start, _ in found] == [True, True, True, False, False, True]
    assert max(len(line) for _, line in found) == MAX_LINE
    assert b"".join(line for _, line in found[2:5]) == b"c" + b"x" * (2 * MAX_LINE)
    assert found[-1] == (True, b"d")


def test_time_stamps_can_be_compared_across_zones():
    first, length = read_stamp(b"2026-10-25T02:59:59.9+02:00 a b")
    assert (length, first) == (28, (1792889999.0, b"900000000"))
    later, _ = read_stamp(b"2026-10-25T02:00:00.000000001+01:00 a")  # after the clock was set back
    assert later > first
    assert read_stamp(b"2026-10-25T01:00:00Z a")[0] == (1792890000.0, b"000000000")
    assert read_stamp(b"unable to retrieve container logs") == (None, 0)


class LogServer:
    """Serves the log of one pod, in one connection for each list of lines."""

    unreachable = (OSError,)

    def __init__(self, *connections):
        self._connections = list(connections)
        self.ages = []

    def open_log(self, pod, since):
        self.ages.append(since)
        self._lines = self._connections.pop(0)
        return self

    def stream(self, size):
        for line in self._lines:
            if isinstance(line, BaseException):
                raise line
            yield line

    def close(self):
        pass

    release_conn = close


def lines_of(server, *, is_over=True):
    shown, said = [], []
    logs = PodLogs(server, shown.append, said.append)
    logs.follow("x-0-abcde", "x-0")
    if is_over:
        logs.end("x-0-abcde")
    assert logs.finish(10)
    assert said == []
    return shown


def test_known_lines_are_skipped_after_a_lost_connection():
    lines = [f"2026-01-01T00:00:0{n}.5Z line {n}\n".encode() for n in range(5)]
    server = LogServer([*lines[:3], OSError("reset")], lines, [])
    assert lines_of(server) == [f"[x-0] line {n}" for n in range(5)]
    # As old as the last line is, by the clock of this machine: the output may have been slow.
    assert server.ages[0] is None
    assert server.ages[1] > 86400


@pytest.mark.parametrize("is_over", [True, False])
def test_text_of_the_kubelet_has_no_time_stamp(is_over):
    text = b"unable to retrieve container logs for containerd://1"
    lines = [b"2026-01-01T00:00:00.5Z a\n", b"2026-01-01T00:00:01.5Z b\n"]
    server = LogServer([text], [], [])
    assert lines_of(server, is_over=is_over) == [f"[x-0] {text.decode()}"]
    server = LogServer([lines[0], text, OSError()], lines, [])
    assert lines_of(server, is_over=is_over)[-1] == "[x-0] b"


class WaitingClock(Clock):
    """A clock whose first reader has come if `is_read` is set."""

    def __init__(self):
        super().__init__()
        self.is_read = threading.Event()

    def __call__(self):
        self.is_read.set()
        return super().__call__()


def test_a_slow_reader_gets_all_lines_at_the_end():
    """The limit begins anew with each line."""
    clock, shown = WaitingClock(), []

    def show(line):
        assert clock.is_read.wait(20)
        clock.now += 10
        shown.append(line)

    lines = [f"2026-01-01T00:00:0{n}.5Z line {n}\n".encode() for n in range(5)]
    logs = PodLogs(LogServer(lines, []), show, print, clock)
    logs.follow("x-0-abcde", "x-0")
    assert logs.finish(15)
    assert len(shown) == 5
