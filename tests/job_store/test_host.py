"""The process that serves a job's store: it starts, ends with the launcher, and is small."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import queue
import signal
import socket
import subprocess
import sys

import pytest
from plaunch.errors import RendezvousConnectionError, ThreadStartError
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.client import StoreClient, StoreRefusedError
from plaunch_job_store.host import StoreProcess
from plaunch_job_store.store import JobStore

from helpers.processes import forks_beside_threads, is_gone
from helpers.waiting import BOUND, wait_until

TOKEN = b"0123456789abcdef"


@pytest.fixture
def hosted():
    listener = socket.create_server(("127.0.0.1", 0))
    hosted = StoreProcess(listener, TOKEN, "jöb", environ={})
    yield hosted
    hosted.close()


def client_of(hosted):
    return StoreClient(
        lambda timeout: socket.create_connection(("127.0.0.1", hosted.port), timeout),
        Authenticator(TOKEN, "jöb"),
        "here",
        BOUND,
        connect_timeout=BOUND,
    )


def test_serves(hosted):
    client = client_of(hosted)
    JobStore(client).set("k", b"v")
    assert JobStore(client).multi_get(["k"]) == [b"v"]
    client.close()


def test_close_ends_it(hosted):
    client = client_of(hosted)
    hosted.close()
    hosted.close()
    assert hosted.exit_code == 0
    wait_until(lambda: client.is_broken, "the client has noticed")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_for_the_launcher_do_not_end_it(hosted, number):
    client = client_of(hosted)
    os.kill(hosted.pid, number)
    JobStore(client).set("k", b"v")
    client.close()


def test_it_knows_the_program_and_the_standard_library_only(hosted):
    client = client_of(hosted)
    with open(f"/proc/{hosted.pid}/maps") as maps:
        assert "libtorch" not in maps.read()
    with open(f"/proc/{hosted.pid}/cmdline", "rb") as file:
        assert TOKEN not in file.read()
    client.close()


def launcher_of(linger):
    """Start a process that hosts a store; it prints the process id and the port of that."""
    program = (
        "import socket, sys; from plaunch_job_store.host import StoreProcess\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        f"hosted = StoreProcess(listener, {TOKEN!r}, 'jöb', environ={{}}, linger={linger})\n"
        "print(hosted.pid, hosted.port, flush=True); sys.stdin.read()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )


def test_it_serves_its_clients_for_a_time_after_the_launcher_was_killed():
    with launcher_of(linger=600.0) as launcher:
        pid, port = map(int, launcher.stdout.readline().split())
        client = StoreClient(
            lambda timeout: socket.create_connection(("127.0.0.1", port), timeout),
            Authenticator(TOKEN, "jöb"),
            "here",
            BOUND,
            connect_timeout=BOUND,
        )
        JobStore(client).set("k", b"v")
        launcher.kill()
        launcher.wait()
        assert JobStore(client).multi_get(["k"]) == [b"v"]
        client.close()
        wait_until(lambda: is_gone(pid), "the server has ended with its last client")


def test_it_ends_with_a_killed_launcher():
    program = (
        "import socket, sys; from plaunch_job_store.host import StoreProcess\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        "hosted = StoreProcess(listener, None, 'job', environ={})\n"
        "print(hosted.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as launcher:
        pid = int(launcher.stdout.readline())
        pidfd = os.pidfd_open(pid)
        launcher.kill()
        with open(pidfd, "rb", closefd=True):
            import select

            assert select.select([pidfd], [], [], 10)[0], "the server has ended"


def test_its_host_gets_the_reports_of_the_server():
    reports = []
    listener = socket.create_server(("127.0.0.1", 0))
    hosted = StoreProcess(listener, TOKEN, "job", environ={}, on_report=reports.append)
    with pytest.raises(StoreRefusedError):
        StoreClient(
            lambda timeout: socket.create_connection(("127.0.0.1", hosted.port), timeout),
            Authenticator(None, "job"),
            "here",
            BOUND,
            connect_timeout=BOUND,
        )
    wait_until(lambda: reports, "the report has arrived")
    hosted.close()
    ((peer, reason, _),) = reports
    assert (peer, reason) == (
        "127.0.0.1",
        "the node has no token, and this job has one; give all nodes the same",
    )


# --- a process that dies --------------------------------------------------------------------------


class Deaths:
    """Waits for the deaths that a host reports."""

    def __init__(self):
        self.seen = queue.SimpleQueue()

    def kill(self, hosted):
        pid = hosted.pid
        os.kill(pid, signal.SIGKILL)
        death = self.seen.get(timeout=60.0)
        assert (death.pid, death.exit_code) == (pid, -signal.SIGKILL)
        return death


@pytest.fixture
def deaths():
    return Deaths()


@pytest.fixture
def mortal(deaths):
    """A store whose deaths are noted; the clock stands still."""
    listener = socket.create_server(("127.0.0.1", 0))
    with contextlib.closing(
        StoreProcess(
            listener, TOKEN, "jöb", environ={}, values={"k": b"v"},
            on_death=deaths.seen.put, clock=lambda: 0.0,
        )
    ) as hosted:  # fmt: skip
        yield hosted


def test_a_successor_serves_the_same_port_without_the_data(mortal, deaths):
    client = client_of(mortal)
    JobStore(client).set("mine", b"x")
    death = deaths.kill(mortal)
    assert (death.incarnation, death.is_final) == (1, False)
    assert mortal.exit_code is None
    wait_until(lambda: client.is_broken, "the session is refused")
    with pytest.raises(RendezvousConnectionError, match="all data is lost"):
        JobStore(client).set("mine", b"y")
    again = client_of(mortal)
    assert JobStore(again).multi_get(["k", "mine"]) == [b"v", None]
    assert (client.incarnation, again.incarnation) == (1, 2)
    again.close()


def test_one_that_keeps_dying_is_not_replaced(mortal, deaths):
    assert [deaths.kill(mortal).is_final for _ in range(3)] == [False, False, True]
    assert mortal.final_death.is_final
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", mortal.port))
    assert "is not replaced again" in mortal.final_death.describe("this node")


def test_rare_deaths_do_not_count(deaths):
    times = itertools.count(0, 60)
    with contextlib.closing(
        StoreProcess(
            socket.create_server(("127.0.0.1", 0)), None, "job", environ={},
            on_death=deaths.seen.put, clock=lambda: float(next(times)),
        )
    ) as hosted:  # fmt: skip
        assert not any(deaths.kill(hosted).is_final for _ in range(5))


def test_a_successor_that_cannot_start_is_tried_again(mortal, deaths, monkeypatch):
    start, left = subprocess.Popen, iter([1])

    def fail_once(*args, **options):
        if next(left, 0):
            raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(*args, **options)

    monkeypatch.setattr(subprocess, "Popen", fail_once)
    death = deaths.kill(mortal)
    assert not death.is_final
    client = client_of(mortal)
    assert JobStore(client).multi_get(["k"]) == [b"v"]
    client.close()


def test_no_process_is_left_if_it_cannot_be_watched(monkeypatch):
    start, started = subprocess.Popen, []

    def note(*args, **options):
        started.append(start(*args, **options))
        return started[-1]

    def start_others(thread, **options):
        if thread.name == "plaunch-store-host":
            raise ThreadStartError("there are no more threads")
        thread.start()

    monkeypatch.setattr(subprocess, "Popen", note)
    monkeypatch.setattr("plaunch.threads.start_thread", start_others)
    listener = socket.create_server(("127.0.0.1", 0))
    with pytest.raises(ThreadStartError):
        StoreProcess(listener, TOKEN, "job", environ={})
    (process,) = started
    assert process.returncode == 0
    assert listener.fileno() < 0


@forks_beside_threads
def test_a_forked_process_keeps_neither_port_nor_server(mortal):
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    mortal.close()
    assert mortal.exit_code == 0
    with socket.create_server(("127.0.0.1", mortal.port)):
        pass
    os.write(go[1], b"x")
    os.waitpid(child, 0)
    for end in (*ready, *go):
        os.close(end)
