"""The pipe for return values."""

from __future__ import annotations

import os
import pickle
import select
import time

import pytest
from plaunch_multiprocessing.return_values import ResultPipe, send_result

from helpers.calls import Call


@pytest.fixture
def pipe():
    pipe = ResultPipe()
    yield pipe
    pipe.close()


def receive_all(pipe, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not pipe.is_over and time.monotonic() < deadline:
        pipe.receive(time.monotonic() + 0.05)


def test_a_small_value_arrives_at_once(pipe):
    send_result(pipe.child_fd, pickle.dumps({"loss": 0.5}))
    pipe.receive(0.0)
    assert pipe.is_complete
    assert pipe.take_value() == {"loss": 0.5}


def test_receive_does_not_wait_for_the_first_byte(pipe, monkeypatch):
    def wait():
        raise AssertionError("it waits though nothing is coming")

    monkeypatch.setattr(select, "poll", wait)
    pipe.receive(time.monotonic() + 20)
    assert not pipe.is_complete
    assert not pipe.is_over


def test_a_large_value_arrives_and_receive_respects_its_deadline(pipe):
    value = os.urandom(30_000_000)
    sender = Call(send_result, pipe.child_fd, pickle.dumps(value))
    while not select.select([pipe.fd], [], [], 20)[0]:
        pass
    pipe.receive(deadline=0.0)
    assert not pipe.is_over
    receive_all(pipe)
    assert sender.ended()
    assert pipe.is_complete
    assert pipe.take_value() == value


@pytest.mark.parametrize(
    ("written", "is_closed", "is_over"),
    [
        (b"", True, True),
        (b"printed to a descriptor of another library", False, True),
        (b"pla", False, False),  # less than a header
    ],
)
def test_malformed_frames(pipe, written, is_closed, is_over):
    os.write(pipe.child_fd, written)
    if is_closed:
        pipe.close_child_end()
    pipe.receive(0.0)
    assert pipe.is_over is is_over
    assert not pipe.is_complete


def test_a_truncated_value_is_incomplete(pipe):
    data = pickle.dumps("x" * 1000)
    reader, writer = os.pipe()
    send_result(writer, data)
    frame = os.read(reader, 1 << 16)
    os.write(pipe.child_fd, frame[:-1])
    pipe.close_child_end()
    pipe.receive_rest()
    assert pipe.is_over
    assert not pipe.is_complete
    os.close(reader)
    os.close(writer)


def test_a_value_is_complete_while_others_have_the_pipe_open(pipe):
    held = os.dup(pipe.child_fd)  # like that of a grandchild
    send_result(pipe.child_fd, pickle.dumps(1))
    pipe.close_child_end()
    pipe.receive_rest()
    assert pipe.is_over
    assert pipe.take_value() == 1
    os.close(held)


def test_receive_rest_does_not_wait_for_a_grandchild(pipe):
    began = time.monotonic()
    pipe.receive_rest()
    assert time.monotonic() - began < 10
    assert not pipe.is_complete


def test_close_is_idempotent():
    pipe = ResultPipe()
    pipe.close()
    other = os.dup(0)
    pipe.close()
    os.fstat(other)
    os.close(other)
