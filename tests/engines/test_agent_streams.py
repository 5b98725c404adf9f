"""`AgentStreams` reads the two streams of an agent."""

from __future__ import annotations

import os

import pytest
from plaunch_engines.agent_streams import AgentStreams
from plaunch_engines.records import encode

from helpers.clock import Clock
from helpers.played_handles import PlayedHandle

HELD = 0.1


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def handle():
    handle = PlayedHandle()
    yield handle
    handle.close()


@pytest.fixture
def streams(handle, clock):
    streams = AgentStreams(handle, clock)
    streams.expect()
    return streams


@pytest.fixture
def write(streams, handle):
    """Write to stdout as the agent; return what was read."""

    def write(data):
        os.write(handle.out, data)
        return streams.read(handle.stdout)

    return write


@pytest.fixture
def take(streams, handle, clock):
    """Let time pass, and return the incomplete lines."""

    def take(seconds):
        clock.now += seconds
        return [
            (fd == handle.stderr, text) for fd, text in streams.take_prompts(lambda is_error: HELD)
        ]

    return take


def test_a_line_without_an_end_is_taken_after_a_hold(write, take):
    assert write(b"one\n(Pdb) ") == [b"one\n"]
    assert take(0.05) == []
    assert take(0.06) == [(False, b"(Pdb) ")]
    assert take(60) == []
    assert write(b"c\ntwo\n") == [b"c\ntwo\n"]


def test_a_line_that_grows_does_not_wait_longer(write, take):
    write(b"Loading")
    assert take(0.06) == []
    write(b".")
    assert take(0.06) == [(False, b"Loading.")]
    write(b".")
    assert take(0.2) == [(False, b".")]


def test_a_line_that_ends_in_time_is_whole(write, take):
    write(b"Loading")
    assert take(0.05) == []
    assert write(b" done\nnext") == [b"Loading done\n"]
    assert take(0.06) == []
    assert take(0.06) == [(False, b"next")]


@pytest.mark.parametrize("cut", [1, 5, 20, 44, 60])
def test_a_record_is_never_taken_for_a_line(streams, write, take, cut):
    record = encode(streams.nonce, kind="workers_ended")
    text = write(b"(Pdb) " + record[:cut]) + [text for _, text in take(1)]
    assert text == [b"(Pdb) "]
    assert take(9) == []
    assert write(record[cut:]) == [{"kind": "workers_ended"}]


def test_what_looks_like_a_record_and_is_none_ends_as_a_line(write, take):
    write(b"a\x1eplaunch ")
    assert take(1) == [(False, b"a")]
    assert write(b"is fine\n") == [b"\x1eplaunch is fine\n"]


def test_a_progress_bar_is_no_prompt(write, take):
    write(b" 10%\r 20%")
    assert take(9) == []
    assert write(b"\n") == [b" 10%\r 20%\n"]


def test_each_stream_has_its_own_hold(streams, handle, clock):
    os.write(handle.out, b"out")
    os.write(handle.err, b"err")
    for fd in streams.fds():
        streams.read(fd)
    clock.now += 0.5
    assert [text for _, text in streams.take_prompts(lambda is_error: 1.0 - is_error)] == [b"err"]
    clock.now += 0.6
    assert [text for _, text in streams.take_prompts(lambda is_error: 1.0)] == [b"out"]


def test_the_end_returns_the_rest(streams, handle, write, take):
    write(b"rest")
    assert streams.end(handle.stdout) == [b"rest"]
    assert take(9) == []
    assert streams.fds() == [handle.stderr]
    assert not streams.have_ended
