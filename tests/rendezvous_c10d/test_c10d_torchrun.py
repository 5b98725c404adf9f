"""Agents of torchrun and of plaunch on one store, with torch's own classes and its launcher."""

from __future__ import annotations

import subprocess
from datetime import timedelta

import pytest
from plaunch.errors import RendezvousClosedError
from plaunch.rendezvous import RendezvousParameters
from plaunch_network import create_tcp_store
from plaunch_rendezvous_c10d import create_c10d_handler
from torch.distributed import FileStore, TCPStore
from torch.distributed.elastic.rendezvous.api import RendezvousStateError
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend

from helpers.ports import free_port
from helpers.programs import run_python, running_python
from helpers.torchs_torchrun import allow_any_store

SAYS = r"torchrun.*'job'.*start all nodes with plaunch"


def torchruns(port=0, *, is_master=True):
    return create_tcp_store(
        TCPStore,
        host_name="127.0.0.1",
        port=port,
        is_master=is_master,
        wait_for_workers=False,
        timeout=timedelta(seconds=30),
    )


def test_a_store_of_torchruns_is_refused(prepare):
    store = torchruns()
    C10dRendezvousBackend(store, "job")
    with prepare(f"127.0.0.1:{store.port}", max_nodes=2, store="torch") as backend:
        assert not backend.hosts_store()
        with pytest.raises(RendezvousClosedError, match=SAYS):
            backend.connect()


def test_a_job_of_torchruns_with_another_run_id_is_ignored(prepare):
    store = torchruns()
    C10dRendezvousBackend(store, "another")
    with prepare(f"127.0.0.1:{store.port}", max_nodes=2, store="torch") as backend:
        backend.connect().set("key", b"x")


def test_a_file_of_torchruns_is_refused(prepare, tmp_path):
    path = str(tmp_path / "store")
    C10dRendezvousBackend(FileStore(path), "job")
    with (
        prepare(path, max_nodes=2, store_type="file") as backend,
        pytest.raises(RendezvousClosedError, match=SAYS),
    ):
        backend.connect()


def test_torchrun_does_not_form_its_own_world_on_a_store_of_plaunchs(prepare):
    with prepare("127.0.0.1:0", max_nodes=2, store="torch") as backend:
        backend.connect()
        port = int(backend.endpoint.rpartition(":")[2])
        theirs = C10dRendezvousBackend(torchruns(port, is_master=False), "job")
        with pytest.raises(RendezvousStateError):
            theirs.get_state()
        backend.connect().set("key", b"x")  # and it deletes nothing


@pytest.mark.slow
def test_a_node_that_joins_a_job_of_torchruns_ends_with_the_cause(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys; print('up', flush=True); sys.stdin.read()\n")
    endpoint = f"127.0.0.1:{free_port()}"
    options = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", "--rdzv-id=job"]
    program = f"{allow_any_store()}\nfrom torch.distributed.run import main\nmain()\n"
    words = ["-c", program, "--nnodes=1:2", *options]
    words += ["--rdzv-conf=last_call_timeout=1", script]
    with running_python(*words, stderr=subprocess.DEVNULL) as torchrun:
        assert torchrun.stdout.readline() == "up\n"
        words = ["-m", "plaunch", "--nnodes=1:2", *options]
        ended = run_python(*words, script)
        forced = run_python(*words, "--rdzv-conf=store=torch", script)
        torchrun.terminate()
        torchrun.wait()
    assert ended.returncode == 112
    assert f"the program at {endpoint} is a TCPStore of torch" in ended.stderr
    assert forced.returncode == 112
    assert "start all nodes with plaunch" in forced.stderr
    assert ended.stdout == forced.stdout == ""


def test_the_handler_raises_it_in_next_rendezvous():
    store = torchruns()
    C10dRendezvousBackend(store, "job")
    handler = create_c10d_handler(
        RendezvousParameters("c10d", f"127.0.0.1:{store.port}", "job", 1, 2, store="torch")
    )
    try:
        with pytest.raises(RendezvousClosedError, match=SAYS):
            handler.next_rendezvous()
    finally:
        handler.leave()
