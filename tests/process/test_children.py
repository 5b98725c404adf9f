"""Handles of child processes, and the wait for their exits."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import subprocess
import sys
import threading
import time

import pytest
from plaunch.process import children
from plaunch.process.children import LOST_EXIT_CODE, ExitPoller, ProcessHandle

from helpers.processes import wait_for_end


def start_child(code):
    program = subprocess.Popen([sys.executable, "-c", code])
    return program, ProcessHandle(program, release=lambda: None)


@pytest.mark.parametrize(
    ("code", "exitcode"),
    [
        ("", 0),
        ("raise SystemExit(17)", 17),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
    ],
)
def test_the_exit_code_is_read_without_reaping(code, exitcode):
    program, worker = start_child(code)
    wait_for_end(program.pid)
    assert worker.poll() == exitcode
    assert worker.poll() == exitcode
    assert program.returncode is None, "it was reaped, and its number may be given to another"
    worker.reap()
    assert program.returncode == exitcode


@pytest.mark.parametrize("exitcode", [0, 3])
def test_what_was_reaped_through_its_own_handle_is_known(exitcode):
    program, worker = start_child(f"raise SystemExit({exitcode})")
    program.wait()
    assert worker.poll() == exitcode


def test_a_process_that_other_code_has_reaped_did_not_succeed(caplog):
    program, worker = start_child("")
    os.waitpid(program.pid, 0)  # as a program does that waits for any child
    assert worker.poll() == LOST_EXIT_CODE
    assert f"pid {program.pid} was reaped by other code" in caplog.text
    worker.reap()


def test_a_running_child_gets_its_signal_and_needs_no_descriptor():
    program = subprocess.Popen(["sleep", "600"])
    released = []
    worker = ProcessHandle(program, release=lambda: released.append(program.pid))
    assert worker.poll() is None
    assert worker.exit_fd() is None
    worker.send_signal(signal.SIGTERM)
    wait_for_end(program.pid)
    assert worker.poll() == -signal.SIGTERM
    worker.send_signal(signal.SIGTERM)  # it has ended, and nobody gets it
    assert worker.owns_pid()
    worker.reap()
    assert not worker.owns_pid()
    worker.send_signal(signal.SIGTERM)
    worker.release()
    assert released == [program.pid]


HAS_PIDFDS = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there are no pidfds here")
# Tests of one way only.
PIDFDS = pytest.mark.parametrize("poller", [pytest.param(True, marks=HAS_PIDFDS)], indirect=True)
LOOKING = pytest.mark.parametrize("poller", [False], indirect=True)


@pytest.fixture(params=[pytest.param(True, marks=HAS_PIDFDS), False], ids=["pidfd", "looking"])
def poller(request, monkeypatch):
    if not request.param:
        monkeypatch.setenv("PLAUNCH_NO_PIDFD", "1")
    poller = ExitPoller()
    yield poller
    poller.close()


@pytest.fixture
def start():
    started = []

    def start(*command):
        program = subprocess.Popen(command, stdin=subprocess.PIPE)
        started.append(program)
        return program

    yield start
    for program in started:
        program.kill()
        program.wait()
        program.stdin.close()


def add(poller, key, program):
    process = ProcessHandle(program, release=lambda: None)
    poller.add(key, program.pid, lambda: process.poll() is not None)


def start_all(poller, start, count):
    """So many programs, by their keys, that end when their stdin is closed."""
    programs = {key: start("cat") for key in range(count)}
    for key, program in programs.items():
        add(poller, key, program)
    return programs


def wait_a_short_while(poller):
    began = time.monotonic()
    poller.wait(20)
    assert time.monotonic() - began < 10, "it slept until the time-out"


def wait_for_all(poller, keys, seconds=20.0):
    deadline = time.monotonic() + seconds
    seen = []
    while len(seen) < len(keys) and time.monotonic() < deadline:
        poller.wait(deadline - time.monotonic())
        seen += poller.ended()
    assert sorted(seen) == sorted(keys)
    return seen


def test_an_end_wakes_it_and_is_named_once(poller, start):
    program = start("cat")
    add(poller, 7, program)
    assert poller.ended() == []
    program.stdin.close()
    wait_a_short_while(poller)
    assert poller.ended() == [7]
    assert poller.ended() == []


def test_a_process_that_has_ended_before_it_is_added_is_noticed(poller, start):
    program = start("true")
    wait_for_end(program.pid)
    add(poller, 0, program)
    poller.wait(20)
    assert poller.ended() == [0]


def test_many_processes_are_each_named_once(poller, start):
    programs = start_all(poller, start, 12)
    for program in programs.values():
        program.stdin.close()
    wait_for_all(poller, programs)


def test_ends_come_in_the_order_in_which_they_happened(poller, start):
    programs = start_all(poller, start, 3)
    seen = []
    for key in (2, 0, 1):
        programs[key].stdin.close()
        seen += wait_for_all(poller, [key])
    assert seen == [2, 0, 1]


@PIDFDS
def test_ends_between_two_looks_keep_their_order(poller, start):
    programs = start_all(poller, start, 5)
    for key in (3, 1, 4, 0, 2):
        programs[key].stdin.close()
        wait_for_end(programs[key].pid)
    assert poller.ended() == [3, 1, 4, 0, 2]


def test_it_returns_when_the_time_is_over(poller, start):
    start_all(poller, start, 1)
    began = time.monotonic()
    poller.wait(0.05)
    assert 0.04 < time.monotonic() - began < 5
    assert poller.ended() == []


def test_a_wake_ends_the_wait(poller, start):
    start_all(poller, start, 1)
    waker = threading.Timer(0.05, poller.wake)
    waker.start()
    wait_a_short_while(poller)
    waker.join()
    assert poller.ended() == []


def test_an_early_wake_is_not_lost_and_counts_once(poller, start):
    start_all(poller, start, 1)
    for _ in range(100_000):  # more than a pipe holds
        poller.wake()
    poller.wait(20)
    began = time.monotonic()
    poller.wait(0.05)
    assert time.monotonic() - began > 0.04


def test_a_wake_from_a_signal_handler(poller, start):
    start_all(poller, start, 1)
    previous = signal.signal(signal.SIGALRM, lambda *_: poller.wake())
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        wait_a_short_while(poller)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_other_descriptors_wake_it_too(poller, start):
    start_all(poller, start, 1)
    reader, writer = os.pipe()
    poller.add_fd(reader)
    os.write(writer, b"x")
    wait_a_short_while(poller)
    assert poller.ended() == []
    poller.remove_fd(reader)
    os.close(reader)
    os.close(writer)


def test_a_given_descriptor_stands_for_the_process(poller):
    reader, writer = os.pipe()
    poller.add(3, os.getpid(), lambda: bool(select.select([reader], [], [], 0)[0]), fd=reader)
    assert poller.ended() == []
    os.write(writer, b"x")
    poller.wait(20)
    assert poller.ended() == [3]
    os.fstat(reader)  # still the caller's
    os.close(reader)
    os.close(writer)


@PIDFDS
def test_fileno_is_readable_when_there_is_something_to_do(poller, start):
    programs = start_all(poller, start, 2)
    fd = poller.fileno()
    polled = select.poll()
    polled.register(fd, select.POLLIN)
    assert polled.poll(0) == []
    programs[1].stdin.close()
    assert polled.poll(20_000)
    assert poller.ended() == [1]
    assert polled.poll(0) == []
    assert poller.fileno() == fd
    poller.wake()
    assert polled.poll(0)
    poller.ended()
    assert polled.poll(0) == [], "a wake-up was left behind"


@LOOKING
def test_the_environment_switches_pidfds_off(poller, start):
    start_all(poller, start, 1)
    assert poller.fileno() is None


@PIDFDS
def test_a_process_without_a_pidfd_is_polled(poller, start, monkeypatch):
    asked, given = [], os.pidfd_open

    def refuse_the_second(pid):
        asked.append(pid)
        if len(asked) == 2:
            raise OSError(24, "Too many open files")
        return given(pid)

    monkeypatch.setattr(os, "pidfd_open", refuse_the_second)
    programs = start_all(poller, start, 3)
    assert poller.fileno() is None
    for program in programs.values():
        program.stdin.close()
    wait_for_all(poller, programs)


@PIDFDS
def test_a_copy_of_the_pidfd_in_a_forked_child_does_not_wake_it_for_ever(poller, start):
    """An epoll forgets a closed descriptor only once all its copies are closed."""
    programs = start_all(poller, start, 2)
    pidfd = next(fd for fd in poller.own_fds() if "pidfd" in os.readlink(f"/proc/self/fd/{fd}"))
    copy = os.dup(pidfd)  # what a fork would have made
    programs[0].stdin.close()
    wait_for_all(poller, [0])
    began = time.monotonic()
    poller.wait(0.05)
    assert time.monotonic() - began > 0.04
    os.close(copy)


def test_closing_gives_every_descriptor_back(start):
    program = start("cat")
    before = set(os.listdir("/proc/self/fd"))
    poller = ExitPoller()
    add(poller, 0, program)
    poller.close()
    poller.close()
    poller.wake()
    assert poller.ended() == []
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_wake_from_another_thread_never_writes_to_a_closed_descriptor(poller, monkeypatch):
    """The number may be another file's by then."""
    write, is_writing, go_on = os.write, threading.Event(), threading.Event()

    def slow_write(fd, data):
        is_writing.set()
        go_on.wait(20)
        return write(fd, data)

    monkeypatch.setattr(os, "write", slow_write)
    waker = threading.Thread(target=poller.wake)
    waker.start()
    assert is_writing.wait(20)
    closer = threading.Thread(target=poller.close)
    closer.start()
    closer.join(0.1)
    os.fstat(poller._wake_w)  # it is still open while somebody writes to it
    go_on.set()
    waker.join()
    closer.join()
    poller.wake()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(poller._wake_w)


def test_a_wake_in_a_signal_handler_while_it_is_closed(poller, monkeypatch):
    """It may come in the middle of closing, on the same thread."""
    close = os.close

    def close_and_wake(fd):
        poller.wake()
        close(fd)

    monkeypatch.setattr(os, "close", close_and_wake)
    poller.close()


class InterruptAtInstruction(BaseException):
    pass


def ended_interrupted(poller, number):
    """Whether a call of `ended` was interrupted, at an instruction of it or of the selector."""
    count = 0
    files = {children.__file__, selectors.__file__}

    def trace(frame, event, arg):
        nonlocal count
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == number:
                raise InterruptAtInstruction
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        assert poller.ended([KEY]) == [KEY]
    except InterruptAtInstruction:
        return True
    finally:
        sys.settrace(previous)
    return False


KEY = 7


def test_an_interrupt_at_any_instruction_of_a_look_loses_no_end():
    number, is_interrupted = 0, True
    while is_interrupted:
        number += 1
        with contextlib.closing(ExitPoller()) as poller:
            read, write = os.pipe()
            os.close(write)  # now it is readable
            poller.add(KEY, os.getpid(), lambda: True, fd=read)
            is_interrupted = ended_interrupted(poller, number)
            assert not is_interrupted or poller.ended([KEY]) == [KEY], number
            assert poller.ended() == []
            os.close(read)
    assert number > 100


@LOOKING
def test_looking_is_seldom_while_nothing_happens(poller):
    """No busy loop without pidfds: the pauses grow."""
    looks = []

    def has_ended():
        looks.append(time.monotonic())
        return len(looks) > 12

    poller.add(0, os.getpid(), has_ended)
    poller.wait(20)
    assert looks[-1] - looks[-4] > 0.045


def test_a_wait_that_another_thread_ends_by_closing_returns():
    poller = ExitPoller()
    poller.close()
    poller.wait(0)


def test_a_descriptor_that_cannot_be_waited_for_is_an_error(poller):
    """It would be waited for again and again."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, poller.own_fds()[2])  # other code has closed the selector's, and reused it
    os.close(null)
    with pytest.raises(OSError, match="Invalid argument"):
        poller.wait(0)
