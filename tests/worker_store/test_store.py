"""The workers' store, with a fake torch, real sockets and real processes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import subprocess
import sys

import pytest
from plaunch.errors import WorkerStoreError, WorkerStoreHostError
from plaunch.process import is_python
from plaunch_worker_store import loading
from plaunch_worker_store.connection_filter import ConnectionFilter
from plaunch_worker_store.store import StoreBounds

from helpers.clock import Clock
from helpers.faults import raising
from helpers.processes import is_gone, is_reaped
from helpers.waiting import BOUND, wait_until

# The first bytes of a client of TCPStore.
GREETING = bytes([0, 0xCE, 0xF7, 0x85, 0x3C])


def test_nothing_is_started_without_clients(stage):
    stage.open()
    stage.store.watch([os.getpid()])
    assert stage.store.tend() is None
    assert stage.store.due() > 0
    assert stage.pids == []


def test_early_clients_are_served(stage):
    stage.open()
    guest = stage.connect()
    assert stage.hear(guest) == "lean"
    assert stage.hear(stage.connect()) == "lean"
    assert len(stage.pids) == 1


def test_the_launcher_closes_its_socket_once_it_is_served(stage):
    stage.open()
    (mine,) = stage.store.fds()
    socket_of = os.readlink(f"/proc/self/fd/{mine}")
    stage.hear(stage.connect())
    fd = f"/proc/self/fd/{mine}"
    assert stage.turn(lambda: not os.path.lexists(fd) or os.readlink(fd) != socket_of) is None


@contextlib.contextmanager
def mapping(folder, *words):
    """A process that maps a library of torch's on demand; `words` precede Python's command line."""
    library = folder / "torch" / "lib" / "libtorch_cpu.so"
    library.parent.mkdir(parents=True, exist_ok=True)
    library.write_bytes(b"x" * 4096)
    code = (
        "import mmap, sys; input(); f = open(sys.argv[1], 'rb')\n"
        "m = mmap.mmap(f.fileno(), 0, access=1); print(1, flush=True); input()"
    )
    with subprocess.Popen(
        [*words, sys.executable, "-c", code, str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def load(worker):
    worker.stdin.write(b"\n")
    worker.stdin.flush()
    worker.stdout.readline()


def test_a_server_is_started_when_a_worker_has_loaded_torch(stage, tmp_path):
    """It need not have connected by then."""
    with mapping(tmp_path) as worker:
        stage.open()
        stage.store.watch([worker.pid])
        load(worker)
        assert stage.turn(lambda: stage.pids) is None
        found = loading.find_torch([worker.pid])
        assert found == (os.path.realpath(sys.executable), str(tmp_path))


def test_the_checks_become_rare_and_end(tmp_path):
    clock = Clock()
    watch = loading.TorchWatch(1, began=clock(), proc=str(tmp_path), clock=clock)
    pauses = []
    while (due := watch.due()) is not None:
        clock.now += due
        assert not watch.check()
        pauses.append(due)
    assert pauses[0] == 0
    assert 10 < len(pauses) < 25
    assert 30 < sum(pauses) < 100


def test_a_torch_that_cannot_be_loaded_partially_is_loaded_completely(stage):
    """Here the attempt even aborts the process."""
    stage.open(FAKE="aborts")
    assert stage.hear(stage.connect()) == "whole"
    assert len(stage.pids) == 2


def test_a_torch_without_libuv_serves_with_its_other_server(stage):
    stage.open(FAKE="no libuv")
    assert stage.hear(stage.connect()) == "lean"
    assert len(stage.pids) == 1


def test_a_torch_that_cannot_serve_a_given_socket_binds_the_port(stage):
    """Earlier connections are closed; torch's clients retry."""
    stage.open(FAKE="old")
    guest = stage.connect()
    assert stage.turn(stage.is_served) is None
    with pytest.raises(ConnectionError):
        guest.recv(1)
    assert stage.hear(stage.connect()) == "lean"


def test_a_torch_that_cannot_serve_is_reported_with_its_last_output(stage):
    stage.open(FAKE="dies")
    stage.connect()
    lost = stage.turn(lambda: False)
    assert isinstance(lost, WorkerStoreError)
    assert "RuntimeError: this torch has no server" in str(lost)
    assert "--worker-store=rank0" in str(lost)
    assert stage.store.fds() == []


@pytest.mark.parametrize("no_pidfd", ["", "1"], ids=["", "without pidfds"])
def test_the_exit_of_a_server_is_detected_at_once(stage, monkeypatch, no_pidfd):
    monkeypatch.setenv("PLAUNCH_NO_PIDFD", no_pidfd)
    stage.serve()
    os.kill(stage.pids[0], signal.SIGKILL)
    lost = stage.turn(lambda: False)
    assert f"the workers' store at 127.0.0.1:{stage.port} was lost" in str(lost)
    assert f"pid {stage.pids[0]}, killed by SIGKILL" in str(lost)
    assert is_reaped(stage.pids[0])


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_the_host_ignores_signals_to_the_whole_job(stage, signum):
    stage.serve()
    os.kill(stage.pids[0], signum)
    assert stage.hear(stage.connect()) == "lean"


def test_the_host_ends_with_the_round_and_the_next_one_is_new(stage):
    stage.serve()
    stage.store.close()
    assert is_reaped(stage.pids[0])
    stage.serve()
    assert len(stage.pids) == 2


def test_the_host_ends_with_the_launcher(torch_folder):
    """Also after SIGKILL of the launcher."""
    code = f"""\
import os, socket, sys
sys.path.insert(0, {os.path.dirname(__file__)!r})
from conftest import Stage
stage = Stage({str(torch_folder)!r})
stage.serve()
print(stage.pids[0], flush=True)
os.kill(os.getpid(), 9)
"""
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        check=False,
    )
    pid = int(done.stdout)
    wait_until(lambda: is_gone(pid), f"the end of process {pid}")


# --- interpreters ---------------------------------------------------------------------------------


def test_an_interpreter_without_torch_is_replaced_by_that_of_a_worker_with_it(
    stage, bare, torch_folder
):
    """Such as one that a shell script starts, which the launcher does not know."""
    with mapping(torch_folder, "sh", "-c", '"$@"; exit 0', "sh") as worker:
        load(worker)
        stage.open(python=bare, PYTHONPATH="")
        stage.store.watch([worker.pid])
        assert stage.hear(stage.connect()) == "lean"
        worker.stdin.close()


@pytest.fixture
def bare(tmp_path):
    """A Python without torch; a virtual environment would find this one's."""
    path = tmp_path / "bare-python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    return str(path)


def test_without_torch_other_clients_are_disconnected_silently(stage, bare, capfd):
    stage.open(python=bare)
    guest = stage.connect()
    assert stage.turn(lambda: len(stage.store.fds()) == 1 and stage.pids) is None
    assert stage.turn(lambda: is_reaped(stage.pids[0])) is None
    guest.sendall(b"GET / HTTP/1.1\r\n")
    assert stage.hear(guest) == ""  # its end
    assert capfd.readouterr().err == ""


def test_without_torch_a_client_of_torchs_is_recognised(stage, bare):
    stage.open(python=bare, options={"bounds": StoreBounds(torch_wait=0.0)})
    stage.connect().sendall(GREETING)
    lost = stage.turn(lambda: False)
    assert f"{bare!r} has no torch, but a worker that uses torch has connected from" in str(lost)
    assert isinstance(lost, WorkerStoreHostError)  # a restart cannot fix this
    assert "PYTHON_EXEC" in str(lost)


def test_a_worker_that_loads_torch_after_a_client_connects_is_waited_for(stage, bare, torch_folder):
    """Other workers are faster, and a disconnected client of torch's reconnects."""
    with mapping(torch_folder) as worker:
        options = {"bounds": StoreBounds(search_interval=0.0)}
        stage.open(python=bare, PYTHONPATH="", options=options)
        stage.store.watch([worker.pid])
        early = stage.connect()
        early.sendall(GREETING)
        assert stage.turn(lambda: stage.pids and is_reaped(stage.pids[0])) is None
        load(worker)
        assert stage.hear(early) == ""  # its end
        assert stage.hear(stage.connect()) == "lean"


def test_a_program_that_is_not_an_interpreter_is_not_started_again(tmp_path):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "exe").symlink_to("/opt/app/my_trainer")
    (tmp_path / "7" / "stat").write_text("7 (my_trainer) S 1 7 7 0 -1 0" + " 0" * 40)
    (tmp_path / "7" / "maps").write_text("7f-80 r--p 0 0 0    /venv/torch/lib/libtorch.so\n")
    assert loading.find_libraries(7, str(tmp_path)) == ["/venv/torch/lib/libtorch.so"]
    assert loading.find_torch([7], str(tmp_path)) is None


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("/home/me/libtorch-env/lib/libc.so", []),
        ("/venv/torch/lib/libtorch.so (deleted)", []),
        ("/home/me/libtorch-env/lib/torch/lib/libtorch_cpu.so", None),
        ("/opt/lib/libtorch.so.2", None),
    ],
)
def test_a_library_is_recognised_by_its_own_name(tmp_path, line, found):
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "maps").write_text(
        f"7f00-7f01 r--p 0 0 0    /lib/libc.so\n7f01-7f02 r--p 0 0 0    {line}\n"
    )
    expected = [line] if found is None else found
    assert loading.find_libraries(7, str(tmp_path)) == expected


@pytest.mark.parametrize(
    ("program", "answer"),
    [
        ("/usr/bin/python3.11", True),
        ("python", True),
        ("/opt/python3.13t", True),
        ("/opt/app/my_trainer", False),
        ("/usr/bin/pythonista", False),
    ],
)
def test_an_interpreter_is_recognised_by_its_name(program, answer):
    assert is_python(program) is answer


def test_a_client_that_has_disconnected_still_has_its_name():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection_filter = ConnectionFilter(listener)
        client = socket.create_connection(listener.getsockname())
        port = client.getsockname()[1]
        client.sendall(GREETING)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # with a reset
        assert connection_filter.check() in ("", f"127.0.0.1 (port {port})")
        connection_filter.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.EINVAL])
def test_after_a_failed_accept_there_is_a_pause(code):
    """A lack of descriptors may pass; permanent errors must not cause a busy loop."""

    class Listener:
        def accept(self):
            raise OSError(code, os.strerror(code))

        def setblocking(self, _):
            pass

        def fileno(self):
            return 0

    clock = Clock()
    connection_filter = ConnectionFilter(Listener(), clock=clock)
    assert connection_filter.fds() == [0]
    assert connection_filter.check() == ""
    assert connection_filter.fds() == []
    if code == errno.EMFILE:
        clock.now += connection_filter.due()
        assert connection_filter.fds() == [0]


def test_a_torch_that_is_not_loaded_in_time_is_reported(stage):
    stage.open(FAKE="hangs", options={"bounds": StoreBounds(start_timeout=1)})
    stage.connect()
    lost = stage.turn(lambda: False)
    assert "has not served it within 1 s" in str(lost)


def test_a_client_that_connects_while_torch_is_loaded_is_a_guest(stage, caplog):
    stage.open(FAKE="hangs")
    stage.connect()
    assert stage.turn(lambda: stage.pids) is None
    stage.store.wait_for_guests(patience=0)
    assert "--exit-barrier-timeout" in caplog.text


def test_a_missing_interpreter_is_reported(stage):
    stage.open(python="/no/such/python")
    stage.connect()
    assert "'/no/such/python' cannot be started" in str(stage.turn(lambda: False))


def test_the_host_has_the_module_search_path_of_functions(stage, torch_folder):
    stage.serve(folders=(str(torch_folder), *filter(None, sys.path)), PYTHONPATH="")


def test_the_host_gets_the_relevant_environment(stage):
    env = {"TORCH_SHOW_CPP_STACKTRACES": "1", "PYTHONWARNINGS": "error", "PLAUNCH_RDZV_TOKEN": "s"}
    stage.serve(**env, LOCAL_RANK="0", MY_LIBRARY="x", CUDA_VISIBLE_DEVICES="3")
    with open(f"/proc/{stage.pids[0]}/environ", "rb") as file:
        shown = dict(entry.split("=", 1) for entry in file.read().decode().split("\0") if entry)
    assert not {*env, "LOCAL_RANK"} & set(shown)
    assert shown["MY_LIBRARY"] == "x"
    assert shown["CUDA_VISIBLE_DEVICES"] == ""
    assert shown["TORCH_CPP_LOG_LEVEL"] == "ERROR"


# --- guests ---------------------------------------------------------------------------------------


def test_guests_are_waited_for_until_they_disconnect(stage):
    """The fake's server is not its own client, as torch's is; the first guest takes that role."""
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 2:
            guest.close()
        assert len(naps) < 1000

    stage.open(nodes=2, options={"sleep": nap})
    own, guest = stage.connect(), stage.connect()
    assert stage.hear(own) == stage.hear(guest) == "lean"
    stage.turn(stage.is_served)
    stage.store.wait_for_guests(patience=BOUND)
    assert len(naps) >= 2


def test_guests_are_waited_for_until_the_timeout(stage, caplog):
    stage.open(nodes=2)
    assert [stage.hear(stage.connect()) for _ in range(2)] == ["lean", "lean"]
    stage.turn(stage.is_served)
    stage.store.wait_for_guests(patience=0)
    assert "--exit-barrier-timeout" in caplog.text


def test_without_guests_there_is_no_wait(stage, caplog):
    stage.open(options={"sleep": raising(AssertionError("waits"))})
    stage.store.wait_for_guests(patience=BOUND)
    assert caplog.messages == []
