"""Workers of multiprocessing's fork server: signals reach them, and no other process."""

from __future__ import annotations

import signal
import subprocess
import types

import pytest
from plaunch.process import Process, read_process
from plaunch.process.stopping.stop_sequence import WorkerSession
from plaunch.process.watches import HeldProcesses
from plaunch_multiprocessing import fork_server


@pytest.fixture
def unrelated():
    program = subprocess.Popen(["sleep", "600"])
    yield program
    program.kill()
    program.wait()


def in_server(pid):
    """The handle of a fork server's worker; the server does not send the exit code."""
    handle = types.SimpleNamespace(pid=pid, returncode=None, sentinel=-1)
    handle.poll = handle.close = lambda: None
    return fork_server.ForkServerHandle(handle)


def test_a_worker_of_a_fork_server_gets_its_signal(unrelated):
    worker = in_server(unrelated.pid)
    assert worker.owns_pid()
    worker.send_signal(signal.SIGTERM)
    assert unrelated.wait() == -signal.SIGTERM
    assert not worker.owns_pid()
    worker.send_signal(signal.SIGTERM)
    worker.release()


def test_a_reused_pid_gets_no_signal(unrelated, monkeypatch):
    """The server reaps before it sends the exit code; then another process may have the pid."""
    here = read_process(unrelated.pid)
    earlier = Process(unrelated.pid, start=here.start - 1)
    monkeypatch.setattr(fork_server, "read_process", lambda pid: earlier)
    worker = in_server(unrelated.pid)
    monkeypatch.undo()
    assert not worker.owns_pid()
    worker.send_signal(signal.SIGTERM)
    job = types.SimpleNamespace(orphans=lambda rank: [], signal=lambda *_: [])
    WorkerSession(worker, 0, job, HeldProcesses()).kill()
    worker.release()
    assert unrelated.poll() is None
