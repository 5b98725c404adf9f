"""Reading the stacks of real processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys

import pytest
from plaunch_hang.stacks import own_stacks, stack, take, taking
from plaunch_hang.stacks.taking import read_kernel_state

from helpers.programs import running_python
from helpers.stacks import readable_stacks  # noqa: F401 - a fixture
from helpers.waiting import wait_until

ENDED = 2**22 + 1  # above every process

WAITS = """
import threading
def load_batch():
    input()
threading.Thread(target=load_batch, name="loader", daemon=True).start()
print(flush=True)
threading.Event().wait()
"""
STARTS_TWO = """
import subprocess, sys
subprocess.Popen(["sleep", "60"])
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print(flush=True)
input()
"""


@contextlib.contextmanager
def waiting(code, **options):
    with running_python("-c", code, start_new_session=True, **options) as process:
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def place_of(process):
    return [frame.function for frame in process.main.frames] if process.main else process.reason


@pytest.mark.usefixtures("readable_stacks")
def test_all_threads_of_a_worker():
    with waiting(WAITS) as pid:
        wait_until(lambda: "load_batch" in str(take({3: pid})[3].threads), lambda: take({3: pid}))
        seen = take({3: pid})[3]
    assert seen.reason == ""
    assert [thread.name for thread in seen.threads] == ["MainThread", "loader"]
    assert seen.threads[0].is_main
    assert seen.threads[1].frames[0] == stack.StackFrame("load_batch", "<string>", 4)
    assert seen.kernel.state == "S"
    assert "-c" in seen.title


@pytest.mark.usefixtures("readable_stacks")
def test_own_stacks_are_equal_while_nothing_moves():
    with waiting(WAITS) as pid:
        wait_until(lambda: "wait" in str(own_stacks({0: pid})[0].main), lambda: take({0: pid}))
        first, second = (own_stacks({0: pid})[0] for _ in range(2))
    assert not first.children
    assert not first.title
    assert first.main.frames == second.main.frames


@pytest.mark.usefixtures("readable_stacks")
def test_child_processes_are_read_too():
    with waiting(STARTS_TWO) as pid:
        wait_until(
            lambda: (
                [place_of(child) for child in take({0: pid})[0].children]
                == ["it is not Python", ["<module>"]]
            ),
            lambda: take({0: pid}),
        )


@pytest.mark.usefixtures("readable_stacks")
def test_the_python_child_of_a_wrapper_has_its_stack():
    """For a shell that starts one Python program, the stack of the program is used."""
    command = f"{sys.executable} -c 'print(flush=True); input()'; true"
    with subprocess.Popen(
        ["sh", "-c", command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        process.stdout.readline()
        try:
            seen = take({0: process.pid})[0]
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert seen.threads == ()
    assert place_of(seen) == ["<module>"]


def test_a_worker_that_has_ended():
    seen = take({0: ENDED})[0]
    assert seen == stack.ProcessStacks(ENDED, -1, reason="it has ended")


def test_a_reused_pid(monkeypatch):
    """The stack that was read is not the worker's."""
    starts = iter([100, 200])
    monkeypatch.setattr(taking, "_find_start", lambda pid: next(starts))
    seen = take({0: os.getpid()}, children=False)[0]
    assert seen.reason == "it has ended"
    assert seen.threads == ()


def test_without_py_spy_the_kernels_state_is_returned(monkeypatch):
    def refuse():
        raise FileNotFoundError("py-spy is not installed")

    monkeypatch.setattr(taking, "find_py_spy", refuse)
    with waiting(WAITS) as pid:
        wait_until(lambda: read_kernel_state(pid).state == "S", "it waits")
        seen = take({0: pid})[0]
    assert seen.reason == "py-spy is not installed"
    assert seen.main is None
    assert seen.kernel.state == "S"


def test_two_hundred_workers_are_read_within_the_timeout(monkeypatch, tmp_path):
    """Workers that were not read in time have that as their reason; every rank has an entry."""
    program = tmp_path / "py-spy"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(taking, "find_py_spy", lambda: str(program))
    seen = take(dict.fromkeys(range(256), os.getpid()), timeout=0.3, children=False)
    assert len(seen) == 256
    assert all("within 0." in process.reason for process in seen.values())
    assert all(process.kernel is not None for process in seen.values())


def test_a_read_that_failed_is_tried_again(monkeypatch):
    results = iter([taking.UnreadableError("torn", is_lasting=False), "threads"])

    def read(program, pid, seconds):
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return (stack.ThreadStack("MainThread", pid, (), is_main=True),)

    monkeypatch.setattr(taking, "find_py_spy", lambda: "py-spy")
    monkeypatch.setattr(taking, "read_threads", read)
    seen = take({0: os.getpid()}, children=False)[0]
    assert (len(seen.threads), seen.reason) == (1, "")


# --- the kernel's state ---------------------------------------------------------------------------


def test_the_state_of_a_process_in_proc(tmp_path):
    folder = tmp_path / "7"
    folder.mkdir()
    (folder / "stat").write_text("7 (a ) b) S " + " ".join(map(str, range(1, 30))))
    (folder / "wchan").write_text("0")
    (folder / "status").write_text("Name:\tx\nTracerPid:\t12\nUid:\t0\n")
    (folder / "stack").write_text("[<0>] futex_wait_queue+0x60/0x90\n[<0>] do_futex+0x1/0x2\n")
    state = read_kernel_state(7, str(tmp_path))
    assert (state.state, state.place, state.tracer) == ("S", "futex_wait_queue", 12)
    assert state.stack == ("futex_wait_queue", "do_futex")
    assert state.seconds == (11 + 12) / os.sysconf("SC_CLK_TCK")
    assert str(state) == "state S, waits in futex_wait_queue, traced by pid 12"
    assert read_kernel_state(8, str(tmp_path)) is None
