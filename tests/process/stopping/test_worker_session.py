"""Whom signals reach and which orphans are found, with real process groups."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys

import pytest
from plaunch.process.children import ProcessHandle
from plaunch.process.proc import describe_process, read_process, read_state
from plaunch.process.stopping.evidence import Origin
from plaunch.process.stopping.stop_sequence import WorkerSession
from plaunch.process.stopping.tree import ProcessTree
from plaunch.process.watches import HeldProcesses

from helpers.processes import is_gone, wait_for_end
from helpers.waiting import wait_until

# Starts children as told by its arguments, prints their pids, then waits for its stdin to close.
LEADER = """
import subprocess, sys
for how in sys.argv[1:]:
    child = subprocess.Popen(["sleep", "600"], start_new_session=how == "own-session")
    print(child.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def start():
    started = []

    def start(*children):
        program = subprocess.Popen(
            [sys.executable, "-c", LEADER, *children],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        started.append(program)
        pids = [int(program.stdout.readline()) for _ in children]
        return program, pids

    yield start
    for program in started:
        program.stdin.close()
        program.stdout.close()
        try:
            os.killpg(program.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        program.wait()


class FoundJob:
    """The processes of one worker, looked for at every question."""

    def __init__(self, pid, proc="/proc"):
        self.tree = ProcessTree(Origin(job=b"0123456789ab", proc=proc))
        leader = read_process(pid)
        self.tree.add_leader(0, pid, -1 if leader is None else leader.start)

    def processes(self, rank):
        return self.tree.scan().get(rank, [])

    def orphans(self, rank):
        return self.tree.orphans().get(rank, [])

    def signal(self, rank, processes, signum):
        return self.tree.signal(processes, signum)


def session_of(program, holds=None, **options):
    job = FoundJob(program.pid, **options)
    handle = ProcessHandle(program, release=lambda: None)
    return WorkerSession(handle, 0, job, holds or HeldProcesses())


def test_a_signal_to_the_leader_reaches_no_other_process(start):
    program, [child] = start("plain")
    assert not session_of(program).ask_to_end(signal.SIGTERM)
    wait_for_end(program.pid)
    assert not is_gone(child)


def test_daemons_are_not_the_program_that_a_worker_ran(start):
    program, [child, daemon] = start("plain", "own-session")
    session = session_of(program)
    session.survivors()  # which finds the daemon while its parent lives
    program.kill()
    wait_for_end(program.pid)
    assert session.runs_program()
    os.kill(child, signal.SIGKILL)
    wait_until(lambda: is_gone(child), "the end of the child")
    assert not session.runs_program()
    assert session.survivors() == [daemon]
    os.kill(daemon, signal.SIGKILL)


def test_a_worker_that_is_suspended_is_continued_to_end(start):
    program, _ = start()
    program.send_signal(signal.SIGSTOP)
    wait_until(lambda: read_state(program.pid) == "T", "the worker is suspended")
    session_of(program).ask_to_end(signal.SIGTERM)
    assert program.wait(20) == -signal.SIGTERM


def test_a_hold_is_described_with_its_time(start):
    program, _ = start()
    how = {program.pid: "traced by gdb (pid 7)"}
    holds = HeldProcesses(describe=how.get, wall_clock=lambda: 0.0)
    session = session_of(program, holds=holds)
    (held,) = holds.sample([program.pid]).values()
    assert session.describe_hold() == str(held)
    assert re.fullmatch(r"traced by gdb \(pid 7\) since \d\d:\d\d:00", str(held))
    how[program.pid] = ""
    assert session.describe_hold() == ""


WAITING = {
    "shell": ["sh", "-c", "sleep 600 & echo $!; wait $!; true"],
    "shell that waits for it": ["sh", "-c", "sleep 600; true"],
    "python": [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '600'])"],
}


@pytest.mark.parametrize("command", WAITING.values(), ids=WAITING)
def test_the_child_of_a_waiting_worker_gets_the_soft_signal(command):
    """A shell that dies of the signal, and a script that handles it, pass nothing on."""
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    session = session_of(program)
    job = FoundJob(program.pid)

    def child():
        return next((p.pid for p in job.processes(0) if p.pid != program.pid), 0)

    wait_until(
        lambda: child() and read_state(program.pid) == "S" and "sleep" in describe_name(child()),
        "the worker waits for its child",
    )
    pid = child()
    assert session.ask_to_end(signal.SIGTERM)
    program.wait(20)
    wait_until(lambda: is_gone(pid), "the child is gone")


def describe_name(pid):
    try:
        with open(f"/proc/{pid}/comm") as comm:
            return comm.read()
    except OSError:
        return ""


def test_the_soft_signal_is_sent_once_to_each_process():
    program = subprocess.Popen(
        ["sh", "-c", "(trap 'echo asked' TERM; echo ready; while :; do sleep 0.05; done) & wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert program.stdout.readline() == b"ready\n"
    session = session_of(program)
    assert session.ask_to_end(signal.SIGTERM)
    program.wait(20)
    assert program.stdout.readline() == b"asked\n"
    assert session.survivors()
    session.ask_rest_to_end(signal.SIGTERM)
    session.kill()
    wait_until(lambda: session.survivors() == [], "no orphan is left")
    assert program.stdout.read() == b""
    program.stdout.close()


def test_a_signal_to_all_reaches_the_children_also_in_sessions_of_their_own(start):
    program, children = start("plain", "own-session")
    session_of(program).kill()
    wait_for_end(program.pid)
    wait_until(lambda: all(map(is_gone, children)), "the children are gone")


def test_orphans_of_a_worker_are_found_until_they_end(start):
    program, [child] = start("plain")
    session = session_of(program)
    program.kill()
    wait_for_end(program.pid)
    assert session.survivors() == [child]
    session.ask_rest_to_end(signal.SIGTERM)
    wait_until(lambda: session.survivors() == [], "no orphan is left")


def test_a_worker_without_children_leaves_nothing_behind(start):
    program, _ = start()
    session = session_of(program)
    program.kill()
    wait_for_end(program.pid)
    assert session.survivors() == []
    assert program.returncode == -signal.SIGKILL, "it was not reaped"


def test_signals_to_a_worker_that_has_ended_are_ignored(start):
    program, _ = start()
    session = session_of(program)
    program.kill()
    program.wait()
    session.ask_to_end(signal.SIGTERM)
    session.ask_rest_to_end(signal.SIGTERM)
    session.kill()


# The grandchild's parent leaves the session but stays alive without reaping it.
LEAVES_A_ZOMBIE = """
import os, time
if os.fork() == 0:
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.setsid()
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    print(os.getpid(), pid, flush=True)
    time.sleep(600)
os.wait()
"""


def test_a_zombie_is_not_an_orphan():
    """Process 1 of a container often reaps nothing; its zombies keep the group alive for ever."""
    options = {"stdout": subprocess.PIPE, "start_new_session": True}
    program = subprocess.Popen([sys.executable, "-c", LEAVES_A_ZOMBIE], **options)
    keeper, zombie = map(int, program.stdout.readline().split())
    try:
        program.kill()
        wait_for_end(program.pid)
        assert (read_process(zombie).state, read_process(zombie).pgrp) == ("Z", program.pid)
        assert session_of(program).survivors() == []
    finally:
        os.kill(keeper, signal.SIGKILL)
        program.wait()
        program.stdout.close()


def test_a_worker_that_must_not_be_signalled_is_logged(start, monkeypatch, caplog):
    program, _ = start()

    session = session_of(program)

    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    monkeypatch.setattr(os, "killpg", refuse)
    session.ask_to_end(signal.SIGTERM)
    session.kill()
    monkeypatch.undo()
    assert [message.split(" to pid")[0] for message in caplog.messages] == [
        "may not send SIGTERM",
        "may not send SIGCONT",
        "may not send SIGKILL",
    ]


def test_a_worker_that_does_not_lead_its_group_yet_is_killed_alone(sleep):
    program = sleep()  # in our own group, as just after a fork
    session_of(program).kill()
    assert program.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("wchan", "stack", "words"),
    [
        ("nfs_wait_bit_killable", None, "pid 77 (state D, waits in nfs_wait_bit_killable)"),
        ("0", None, "pid 77 (state D)"),
        (
            "0",
            "[<0>] io_schedule+0x46/0x80\n[<0>] other+0x1/0x2\n",
            "pid 77 (state D, waits in io_schedule)",
        ),
        (None, None, "pid 77 (state D)"),
    ],
)
def test_a_stuck_process_is_described(tmp_path, wchan, stack, words):
    (tmp_path / "77").mkdir()
    # From minflt on: 0, one thread, started at 4711.
    stat = "77 (python) D 1 77 77 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4711 0 0\n"
    for name, text in (("stat", stat), ("wchan", wchan), ("stack", stack)):
        if text is not None:
            (tmp_path / "77" / name).write_text(text)
    assert describe_process(77, str(tmp_path)) == words
    assert describe_process(78, str(tmp_path)) == "pid 78 (state unknown)"
