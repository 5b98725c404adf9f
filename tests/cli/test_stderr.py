"""Messages of the launcher, for readers of every kind."""

from __future__ import annotations

import io
import os
import sys
import threading

import pytest
from plaunch.cli.stderr import Stderr

from helpers.faults import raising
from helpers.pipes import fill
from helpers.programs import run_python
from helpers.waiting import wait_until

BOUND = 60.0  # seconds


class Pipe:
    """A stream into a pipe that takes little before somebody reads."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        self.stream = open(self.writer, "w", encoding="utf-8", closefd=False)

    def read(self, size):
        data = b""
        while len(data) < size:
            data += os.read(self.reader, size - len(data))
        return data

    def close(self):
        self.stream.close()
        os.close(self.writer)
        os.close(self.reader)


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    pipe.close()


@pytest.fixture
def stderr(pipe, monkeypatch):
    """Makes the object that is tested, with the pipe in the place of stderr.

    Called in the test itself, since pytest's own capturing begins between the fixtures and it.
    """

    def stderr():
        monkeypatch.setattr(sys, "stderr", pipe.stream)
        return Stderr()

    return stderr


def test_a_message_is_written_when_write_returns_and_no_thread_stays(pipe, stderr):
    threads = threading.active_count()
    stderr = stderr()
    stderr.write("one\n")
    stderr.write("two, with a lone surrogate: \udcff\n")
    assert os.read(pipe.reader, 4096) == b"one\ntwo, with a lone surrogate: \\udcff\n"
    assert stderr.finish(BOUND)
    # It has nothing more to do, and is about to end.
    wait_until(lambda: threading.active_count() <= threads, "its thread has ended")


def test_a_reader_who_does_not_read_is_not_waited_for(pipe, stderr):
    stderr = stderr()
    size = fill(pipe.writer)
    for number in range(1000):
        stderr.write(f"{number}\n")
    assert not stderr.finish(0.01)
    # As soon as somebody reads, all of it arrives, in order.
    pipe.read(size)
    expected = "".join(f"{number}\n" for number in range(1000)).encode()
    assert pipe.read(len(expected)) == expected
    assert stderr.finish(BOUND)


def test_a_slow_reader_gets_everything(pipe, stderr):
    stderr = stderr()
    text = "".join(f"{number:07d}\n" for number in range(50_000))
    received = []
    reader = threading.Thread(target=lambda: received.append(pipe.read(len(text))))
    stderr.write(text)  # more than the pipe takes, and nobody has read yet
    reader.start()
    assert stderr.finish(BOUND)
    reader.join(BOUND)
    assert received == [text.encode()]


def test_a_reader_who_made_the_pipe_non_blocking_gets_everything(pipe, stderr):
    stderr = stderr()
    size = fill(pipe.writer)
    os.set_blocking(pipe.writer, False)
    stderr.write("late\n")
    pipe.read(size)
    assert pipe.read(5) == b"late\n"


def test_a_reader_who_is_gone_is_no_trouble(monkeypatch):
    other_reader, writer = os.pipe()
    os.close(other_reader)
    with open(writer, "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        stderr = Stderr()
        stderr.write("to nobody\n")
        assert stderr.finish(BOUND)


def test_a_stderr_that_is_no_file_is_written_to_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    Stderr().write("to a notebook\n")
    assert sys.stderr.getvalue() == "to a notebook\n"


CLOSED = io.StringIO()
CLOSED.close()


@pytest.mark.parametrize("stream", [None, CLOSED])
def test_without_a_stderr_messages_are_lost(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    Stderr().write("to nobody\n")


def test_a_forked_child_can_write_while_its_parent_is_stuck(pipe, stderr):
    stderr = stderr()
    size = fill(pipe.writer)
    stderr.write("parent\n")
    pid = os.fork()
    if pid == 0:
        # The parent's thread does not exist here; the message that it has in hand is the parent's.
        code = 1
        try:
            stderr.write("child\n")
            code = 0 if stderr.finish(BOUND) else 2
        finally:
            os._exit(code)
    pipe.read(size)
    received = sorted(pipe.read(len("parent\nchild\n")).decode().splitlines())
    assert received == ["child", "parent"]
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_threads_messages_are_written_all_the_same(pipe, stderr, monkeypatch):
    stderr = stderr()
    refuse = raising(RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    stderr.write("said\n")
    assert os.read(pipe.reader, 100) == b"said\n"
    assert stderr.finish(0)


def test_what_is_held_is_not_written_if_all_goes_well_at_once(pipe, stderr):
    threads = threading.active_count()
    stderr = stderr()
    with stderr.holding("held\n", BOUND) as keep_time:
        assert threading.active_count() == threads
        keep_time()
    assert threading.active_count() == threads
    stderr.write("after\n")
    assert pipe.read(6) == b"after\n"


def test_what_is_held_comes_before_the_first_message(pipe, stderr):
    stderr = stderr()
    with stderr.holding("held\n", BOUND):
        stderr.write("one\n")
        stderr.write("two\n")
    stderr.write("three\n")
    assert pipe.read(19) == b"held\none\ntwo\nthree\n"


def test_what_is_held_is_written_when_the_time_is_over(pipe, stderr):
    with stderr().holding("held\n", 0) as keep_time:
        keep_time()
        assert pipe.read(5) == b"held\n"


def test_what_is_held_is_written_at_the_end_if_that_comes_late(pipe, stderr):
    with stderr().holding("held\n", 0):
        pass
    assert pipe.read(5) == b"held\n"


def test_what_is_held_is_written_if_something_goes_wrong(pipe, stderr):
    stderr = stderr()
    with pytest.raises(ValueError, match="so"), stderr.holding("held\n", BOUND):
        raise ValueError("so")
    stderr.write("after\n")
    assert pipe.read(11) == b"held\nafter\n"


def test_without_threads_nothing_is_held(pipe, stderr, monkeypatch):
    stderr = stderr()
    refuse = raising(RuntimeError("can't start new thread"))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with stderr.holding("held\n", BOUND) as keep_time:
        keep_time()
        assert os.read(pipe.reader, 100) == b"held\n"


MISSING = """\
import os, sys
from plaunch.cli.entry import open_missing_streams
for fd in {closed}:
    os.close(fd)
open_missing_streams()
links = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in (0, 1, 2)]
inherited = [os.get_inheritable(fd) for fd in (0, 1, 2)]
next_fd = os.open("/", os.O_RDONLY)
with open({path!r}, "w") as file:
    print(links, inherited, next_fd, file=file)
"""


@pytest.mark.parametrize("closed", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_streams_that_are_closed_are_opened_to_nothing(tmp_path, closed):
    path = tmp_path / "said"
    program = MISSING.format(closed=closed, path=str(path))
    given = tmp_path / "given"
    with given.open("w+") as file:
        streams = {"stdin": file, "stdout": file, "stderr": file}
        run_python("-c", program, check=True, capture_output=False, **streams)
    links = ["/dev/null" if fd in closed else str(given) for fd in range(3)]
    assert path.read_text() == f"{links} [True, True, True] 3\n"
