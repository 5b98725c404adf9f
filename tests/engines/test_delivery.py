"""`deliver` waits for the readers of the output at the end."""

import os
import signal

import pytest
from plaunch_engines.delivery import deliver
from plaunch_engines.output import STDOUT, MergedOutput

from helpers.waiting import wait_until

BLOCK = b"x" * 99 + b"\n"


@pytest.fixture
def ends():
    """The ends of a pipe for output, and of one for the numbers of signals."""
    pipes = [*os.pipe(), *os.pipe()]
    yield pipes
    for fd in pipes:
        os.close(fd)


class SteppingClock:
    """A clock that advances with each look."""

    def __init__(self, step):
        self.now = 0.0
        self._step = step

    def __call__(self):
        self.now += self._step
        return self.now


def test_a_paused_reader_gets_all(ends):
    """As from any program that writes to a pipe, whatever time it takes."""
    reader, writer, signals, _ = ends
    output = MergedOutput(lambda text, level: text, stdout=writer)
    output.write(STDOUT, "", BLOCK * 5000)
    read = []

    def say(text, level):
        """The first message begins to read."""
        assert text.startswith("all agents have ended; waiting for the reader of the output, which")
        assert text.endswith("(Ctrl-C or SIGTERM ends the wait)")
        size = 0
        while size < 5000 * len(BLOCK):
            read.append(os.read(reader, 1 << 20))
            size += len(read[-1])

    deliver(output, signals, {signal.SIGINT}, say, clock=SteppingClock(100.0))
    assert b"".join(read) == BLOCK * 5000


@pytest.mark.parametrize("is_stopped", [False, True])
def test_two_signals_end_the_wait_and_what_is_missing_is_reported(ends, is_stopped):
    _, writer, signals, notify = ends
    output = MergedOutput(lambda text, level: text, stdout=writer, clock=lambda: 0.0)
    output.write(STDOUT, "", BLOCK * 5000)
    wait_until(lambda: output.losses()[0].lines < 5000, output.losses)
    os.write(notify, bytes([signal.SIGUSR1, signal.SIGINT, signal.SIGUSR1, signal.SIGINT]))
    said = []
    deliver(
        output, signals, {signal.SIGINT}, lambda *words: said.append(words),
        is_stopped=is_stopped, clock=lambda: 0.0,
    )  # fmt: skip
    assert said == [
        (f"output of the nodes is missing ({output.losses()[0]})", "WARNING"),
    ]


def test_after_a_stop_a_reader_that_takes_nothing_is_not_waited_for(ends):
    _, writer, signals, _ = ends
    output = MergedOutput(lambda text, level: text, stdout=writer, clock=lambda: 0.0)
    output.write(STDOUT, "", BLOCK * 5000)
    said = []
    clock = SteppingClock(2.0)
    deliver(
        output, signals, {signal.SIGINT}, lambda *words: said.append(words), is_stopped=True,
        clock=clock,
    )  # fmt: skip
    assert len(said) == 1
    assert "lines: its reader has not taken it" in said[0][0]
    assert 5 <= clock.now <= 12


def test_after_a_signal_a_reader_that_takes_something_gets_all(ends):
    """Ctrl-C in the last moment of a job does not cut output that is being read."""
    reader, writer, signals, notify = ends
    os.write(notify, bytes([signal.SIGINT]))
    output = MergedOutput(lambda text, level: text, stdout=writer, clock=lambda: 0.0)
    output.write(STDOUT, "", BLOCK * 5000)
    read = []

    def clock():
        """Read something between two looks."""
        if sum(map(len, read)) < 5000 * len(BLOCK):
            read.append(os.read(reader, 1 << 20))
        return 0.0

    deliver(output, signals, {signal.SIGINT}, lambda *_: None, clock=clock)
    while sum(map(len, read)) < 5000 * len(BLOCK):
        read.append(os.read(reader, 1 << 20))
    assert b"".join(read) == BLOCK * 5000


def test_after_a_signal_a_reader_that_takes_nothing_is_not_waited_for(ends):
    _, writer, signals, notify = ends
    os.write(notify, bytes([signal.SIGTERM]))
    output = MergedOutput(lambda text, level: text, stdout=writer, clock=lambda: 0.0)
    output.write(STDOUT, "", BLOCK * 5000)
    said = []
    deliver(
        output, signals, {signal.SIGTERM}, lambda *words: said.append(words),
        clock=SteppingClock(0.3),
    )  # fmt: skip
    assert "its reader has not taken it" in said[-1][0]


def test_after_a_stop_a_reader_that_had_nothing_to_take_gets_all(ends):
    """The output was silent for longer than the limit, and the last lines come at the end."""
    reader, writer, signals, _ = ends
    output = MergedOutput(lambda text, level: text, stdout=writer, clock=lambda: 0.0)
    times = iter([100.0, 100.2, 100.4])
    read = []

    def clock():
        """Let the reader begin after the second look."""
        now = next(times, 100.4)
        while now > 100.2 and sum(map(len, read)) < 5000 * len(BLOCK):
            read.append(os.read(reader, 1 << 20))
        return now

    output.write(STDOUT, "", BLOCK * 5000)
    deliver(
        output, signals, {signal.SIGINT}, lambda *words: None, is_stopped=True, clock=clock
    )  # fmt: skip
    assert b"".join(read) == BLOCK * 5000
    assert output.is_written()
