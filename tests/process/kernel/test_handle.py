"""The exit code of a worker: known once it has ended, not lost, and never taken for a success."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from plaunch.process.kernel.handle import LOST_EXIT_CODE, ProcessHandle

from helpers.processes import wait_for_end


def start(code):
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
    program, worker = start(code)
    wait_for_end(program.pid)
    assert worker.poll() == exitcode
    assert worker.poll() == exitcode
    assert program.returncode is None, "it was reaped, and its number may be given to another"
    worker.reap()
    assert program.returncode == exitcode


@pytest.mark.parametrize("exitcode", [0, 3])
def test_what_was_reaped_through_its_own_handle_is_known(exitcode):
    program, worker = start(f"raise SystemExit({exitcode})")
    program.wait()
    assert worker.poll() == exitcode


def test_what_somebody_else_has_reaped_is_no_success(caplog):
    program, worker = start("")
    os.waitpid(program.pid, 0)  # as a program does that waits for any child
    assert worker.poll() == LOST_EXIT_CODE
    assert f"pid {program.pid} was reaped by other code" in caplog.text
    worker.reap()


def test_systems_without_waitid_reap(monkeypatch):
    program, worker = start("raise SystemExit(4)")
    wait_for_end(program.pid)
    monkeypatch.delattr(os, "waitid")
    assert worker.poll() == 4
    assert program.returncode == 4


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
