"""Timers of workers: clients and servers."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
import time

import plaunch_torchrun.elastic.timer as timer
import pytest
from plaunch.errors import UsageError
from plaunch_torchrun.elastic.timer import FileTimerClient, FileTimerRequest, FileTimerServer

from helpers.programs import running_python

TIMEOUT = 30.0


@pytest.fixture
def sleeper():
    with running_python("-c", "import time; time.sleep(600)") as process:
        yield process


@pytest.fixture
def logged_events():
    return []


@pytest.fixture
def server(tmp_path, logged_events):
    changed = threading.Event()

    def log_event(name, request):
        logged_events.append((name, None if request is None else request.scope_id))
        changed.set()

    server = FileTimerServer(str(tmp_path / "pipe"), "job", log_event=log_event)
    server.changed = changed
    yield server
    server.stop()


def ask(server, *requests):
    """Write requests as a client does."""
    with open(server._file_path, "w") as pipe:
        for request in requests:
            pipe.write(request.to_json() + "\n")


def test_a_request_through_json():
    request = FileTimerRequest(7, "scope", 1.5, signal.SIGTERM)
    assert FileTimerRequest.from_json(request.to_json()) == request
    assert request.worker_pid == request.worker_id == 7
    assert request != FileTimerRequest(7, "scope", 1.5)
    assert request != timer.TimerRequest(7, "scope", 1.5)
    assert hash(request) == hash(FileTimerRequest(7, "scope", 1.5, 15))


def test_a_request_of_torch():
    of_torch = pytest.importorskip("torch.distributed.elastic.timer")
    request = of_torch.FileTimerRequest(7, "scope", 1.5, 9)
    assert FileTimerRequest.from_json(request.to_json()) == FileTimerRequest(7, "scope", 1.5, 9)
    assert FileTimerRequest(7, "scope", 1.5, 9).to_json() == request.to_json()


def test_an_expired_timer(server, logged_events, sleeper):
    ask(server, FileTimerRequest(sleeper.pid, "a", time.time() - 1, signal.SIGTERM))
    server.start()
    assert sleeper.wait(TIMEOUT) == -signal.SIGTERM
    server.stop()
    assert logged_events == [
        ("watchdog started", None),
        ("timer expired", "a"),
        ("kill worker process", "a"),
        ("watchdog stopped", None),
    ]
    assert not os.path.exists(server._file_path)


def test_a_timer_expires_without_other_requests(server, sleeper):
    server.start()
    ask(server, FileTimerRequest(sleeper.pid, "a", time.time() + 0.3, signal.SIGKILL))
    assert sleeper.wait(TIMEOUT) == -signal.SIGKILL


def test_the_server_does_not_kill_itself(server, logged_events, caplog):
    ask(server, FileTimerRequest(os.getpid(), "a", 1.0, signal.SIGKILL))
    server.run_once()
    assert "may not get" in caplog.text
    assert logged_events == [("timer expired", "a")]


@pytest.mark.parametrize("pid", [0, 1, -1])
def test_other_processes_are_not_killed(server, pid, monkeypatch):
    monkeypatch.setattr(server, "_reap_worker", lambda *_: pytest.fail("killed"))
    server._end(pid, [FileTimerRequest(pid, "a", 1.0, signal.SIGKILL)])


def test_timers_that_were_released_or_have_no_process(server, logged_events, sleeper):
    ask(
        server,
        FileTimerRequest(sleeper.pid, "a", 1.0, signal.SIGKILL),
        FileTimerRequest(sleeper.pid, "a", -1),
        FileTimerRequest(2**22 + 1, "b", 1.0, signal.SIGKILL),  # above the largest pid
    )
    server.run_once()
    assert logged_events == []
    assert sleeper.poll() is None


def test_a_process_with_a_reused_pid(server, logged_events, sleeper):
    server.register_timers([FileTimerRequest(sleeper.pid, "a", 1.0, signal.SIGKILL)])
    server._starts[sleeper.pid] = "1"
    server.run_once()
    assert logged_events == []


def test_a_timer_without_a_signal(server, logged_events, sleeper, caplog):
    ask(server, FileTimerRequest(sleeper.pid, "a", 1.0, 0))
    server.run_once()
    assert logged_events == [("timer expired", "a")]
    assert "no signal is configured" in caplog.text
    assert sleeper.poll() is None


def test_of_several_the_first_with_a_signal_counts(server, logged_events, sleeper):
    ask(
        server,
        FileTimerRequest(sleeper.pid, "third", 3.0, signal.SIGKILL),
        FileTimerRequest(sleeper.pid, "first", 1.0, 0),
        FileTimerRequest(sleeper.pid, "second", 2.0, signal.SIGTERM),
    )
    server.run_once()
    assert sleeper.wait(TIMEOUT) == -signal.SIGTERM
    assert logged_events[-1] == ("kill worker process", "second")


def test_invalid_requests_are_dropped(server, logged_events, sleeper, caplog):
    with open(server._file_path, "w") as pipe:
        pipe.write('not json\n{"pid": 1}\n[1]\n')
    ask(server, FileTimerRequest(sleeper.pid, "a", 1.0, signal.SIGKILL))
    server.run_once()
    assert caplog.text.count("is dropped") == 3
    assert sleeper.wait(TIMEOUT) == -signal.SIGKILL


def test_a_request_in_two_pieces(server, sleeper):
    line = FileTimerRequest(sleeper.pid, "a", time.time() + 600, signal.SIGKILL).to_json() + "\n"
    os.write(server._pipe, line[:10].encode())
    server._turn(0)
    assert server.get_expired_timers(time.time() + 1000) == {}
    os.write(server._pipe, line[10:].encode())
    server._turn(0)
    assert list(server.get_expired_timers(time.time() + 1000)) == [sleeper.pid]


def test_progress(server, monkeypatch):
    assert server.get_last_progress_time() >= int(time.time()) - 1
    server._has_client, server._progress = True, 12
    assert server.get_last_progress_time() == 12


def test_a_file_in_the_place_of_the_pipe_is_replaced(tmp_path):
    (tmp_path / "pipe").write_text("old")
    server = FileTimerServer(str(tmp_path / "pipe"), "job")
    assert (tmp_path / "pipe").is_fifo()
    server.stop()
    server.stop()


def test_the_client(server, sleeper):
    client = FileTimerClient(server._file_path, signal=signal.SIGTERM)
    client.acquire("a", time.time() + 600)
    client.acquire("b", time.time() + 600)
    client.release("a")
    server._turn(0)
    (timers,) = server.get_expired_timers(time.time() + 1000).values()
    assert [(t.worker_pid, t.scope_id, t.signal) for t in timers] == [
        (os.getpid(), "b", signal.SIGTERM)
    ]


def test_the_client_with_torchs_server(tmp_path, sleeper):
    of_torch = pytest.importorskip("torch.distributed.elastic.timer")
    path = str(tmp_path / "pipe")
    server = of_torch.FileTimerServer(path, "job", max_interval=0.1)
    server.start()
    client = FileTimerClient(path)
    client.acquire("a", time.time() + 600)
    client.release("a")
    client.acquire("b", time.time() + 600)
    server.run_once()
    assert [scope for _, scope in server._timers] == ["b"]


def test_a_client_without_a_server(tmp_path):
    with pytest.raises(BrokenPipeError, match="no timer server reads"):
        FileTimerClient(str(tmp_path / "pipe"), patience=0.0).release("a")


class Kept(timer.TimerClient):
    def __init__(self):
        self.all = []

    def acquire(self, scope_id, expiration_time):
        self.all.append((scope_id, expiration_time))

    def release(self, scope_id):
        self.all.append((scope_id, None))


def fail_in_time(client):
    with timer.expires(after=60, client=client):
        raise KeyError


def test_a_block_with_a_timer():
    kept = Kept()
    before = time.time()
    with pytest.raises(KeyError):
        fail_in_time(kept)
    (scope, expiration), (released, _) = kept.all
    line = fail_in_time.__code__.co_firstlineno + 1
    assert scope == released == f"{__file__}#{line}"
    assert before + 60 <= expiration <= time.time() + 60


def test_errors_of_torchs_type(monkeypatch, tmp_path):
    monkeypatch.setattr("plaunch_torchrun.elastic.timer.api._ProcessClient.client", None)
    with pytest.raises(RuntimeError, match="configure") as raised, timer.expires(after=1):
        pass
    assert isinstance(raised.value, UsageError)
    with pytest.raises(RuntimeError, match="a shorter name") as raised:
        FileTimerClient(str(tmp_path / "pipe")).acquire("x" * select.PIPE_BUF, 1.0)
    assert isinstance(raised.value, UsageError)


def test_the_configured_client(monkeypatch):
    monkeypatch.setattr("plaunch_torchrun.elastic.timer.api._ProcessClient.client", None)
    kept = Kept()
    timer.configure(kept)
    with timer.expires(after=1, scope="mine"):
        pass
    assert [scope for scope, _ in kept.all] == ["mine", "mine"]


@pytest.fixture
def queue():
    queue = multiprocessing.get_context("spawn").Queue()
    yield queue
    queue.close()
    queue.join_thread()


def test_timers_over_a_queue(queue, sleeper):
    server = timer.LocalTimerServer(queue, max_interval=0.01)
    client = timer.LocalTimerClient(queue)
    client.acquire("mine", time.time() + 600)
    client.release("mine")
    queue.put(timer.TimerRequest(sleeper.pid, "a", time.time() - 1))
    server.start()
    assert sleeper.wait(TIMEOUT) == -signal.SIGKILL
    server.stop()
    assert server.get_expired_timers(time.time() + 1000) == {}


def test_a_server_continues_after_an_error(queue, caplog):
    class Server(timer.LocalTimerServer):
        def _reap_worker(self, worker_id):
            raise ValueError("no")

    server = Server(queue, max_interval=0.01)
    server.register_timers([timer.TimerRequest(1, "a", 1.0)])
    server._run_watchdog()
    assert "could not be killed" in caplog.text
    assert server.get_expired_timers(time.time()) == {}
