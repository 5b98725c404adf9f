"""The processes that workers have started, in a made-up /proc and as real processes."""

from __future__ import annotations

import os
import signal

import pytest
from plaunch_hang.process import ProcessFacts

from helpers.programs import running_python
from helpers.waiting import wait_until

JOB, OTHER = "0123456789ab", "fedcba987654"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """A folder of processes, and a function that adds one."""

    def add(pid, ppid=1, *, start=100, session=1, tags="", title="python"):
        folder = tmp_path / str(pid)
        folder.mkdir()
        fields = ["S", str(ppid), "0", str(session), *["0"] * 15, str(start), *["0"] * 9]
        (folder / "stat").write_text(f"{pid} (a (b) c) {' '.join(fields)}\n")
        (folder / "environ").write_text(f"HOME=/\0PLAUNCH_JOBS={tags}\0" if tags else "HOME=/\0")
        (folder / "cmdline").write_text(f"{title}\0")

    def find(*pids):
        with monkeypatch.context() as launcher:
            launcher.setattr(os, "getpid", lambda: 5)  # the real one may be that of a process here
            return ProcessFacts(str(tmp_path)).find_parents(pids)

    add.find = find
    return add


def test_processes_that_have_left_their_worker_are_found_by_their_tag(table):
    table(10, tags=f"{OTHER}.1:{JOB}.0", session=10)
    table(11, tags=f"{JOB}.1", session=11)
    table(12, ppid=10, tags=f"{OTHER}.1:{JOB}.0")
    table(20, tags=f"{OTHER}.1:{JOB}.0", session=20)
    table(21, ppid=20)  # whose environment was cleared
    table(22, tags=f"{JOB}.1:{OTHER}.0", session=22)  # of a launcher in a worker
    table(30, tags=f"{JOB}.helper")  # of the launcher
    table(31, tags=f"{OTHER}.0")
    table(32)
    table(33, start=99, tags=f"{JOB}.0")  # older than all workers
    assert table.find(10, 11) == {10: {12: 10, 20: 10, 21: 20}, 11: {22: 11}}


def test_processes_that_have_left_their_worker_are_found_by_its_session(table):
    table(10, session=10)
    table(20, session=10)
    table(21, session=21)
    assert table.find(10) == {10: {20: 10}}


def test_forked_workers_have_their_tag_in_the_command_line(table):
    table(10, tags=f"{OTHER}.3", title=f"worker 0 {OTHER}.3:{JOB}.0")
    table(20, tags=f"{OTHER}.3", title=f"{JOB}.0")
    table(30, tags=f"{OTHER}.3", title=f"python {JOB}.0")
    assert table.find(10) == {10: {20: 10}}


def test_the_launcher_belongs_to_no_worker(table):
    table(5, tags=f"{JOB}.0", session=10)
    table(10, tags=f"{JOB}.0", session=10)
    assert table.find(10) == {10: {}}


def test_a_process_that_is_gone(table):
    table(10)
    assert table.find(10, 99) == {10: {}, 99: {}}


LEAVES = """\
import os, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        signal.pause()
    os._exit(0)
os.wait()
signal.pause()
"""


def test_a_service_that_forks_twice_belongs_to_its_worker():
    env = {**os.environ, "PLAUNCH_JOBS": f"{JOB}.0"}
    with running_python("-c", LEAVES, env=env, start_new_session=True) as worker:
        pid = int(worker.stdout.readline())
        facts = ProcessFacts()
        try:
            wait_until(
                lambda: facts.find_parents([worker.pid])[worker.pid] == {pid: worker.pid},
                lambda: facts.find_parents([worker.pid]),
            )
        finally:
            os.kill(pid, signal.SIGKILL)
