"""Failures that only say that a peer is gone: how they are known, and that they come last."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
from dataclasses import replace

import pytest
from plaunch.process import CONSEQUENCE_WINDOW, Consequence, ProcessFailure
from plaunch.process.consequences import PEER_ERRORS, find_consequence
from plaunch.process.failure import first_failure

from helpers.ports import free_port
from helpers.programs import running_python
from helpers.tracebacks import DIRECT, HEADER, WHILE, failure_with

FRAME = '  File "/me/train.py", line 39, in step'
GLOO = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by "
    "peer [127.0.0.1]:53469. This is typically caused by a remote worker crashing."
)
NEVER = "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /never"
REMOTE = "node-b:7:9 [0] misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer node-b"
ILLEGAL = "  what():  CUDA error: an illegal memory access was encountered"
WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'",
    "  what():  [PG ID 0 Rank 0] Process group watchdog thread terminated with exception: [Rank 0] "
    "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1) ran for 600081 milliseconds",
)


def failure(*lines, exitcode=1, at=0.0, rank=0):
    return replace(failure_with(lines, exitcode, rank), timestamp=1000.0 + at)


def raised(text, **more):
    return failure(HEADER, FRAME, text, **more)


# --- the table ------------------------------------------------------------------------------------


# Whether the peer is gone, and what the library says.
EXAMPLES = [
    (
        True,
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:53469. This is typically caused by a remote worker crashing.",
    ),
    (
        True,
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [192.168.70.92]:25266: "
        "Connection reset by peer",
    ),
    (
        False,
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [192.168.70.92]:25266: "
        "Connection timed out",
    ),
    (True, "[../third_party/gloo/gloo/transport/tcp/pair.cc:145] Socket closed [10.0.0.7]:2345"),
    (False, "[../third_party/gloo/gloo/transport/tcp/pair.cc:145] Connect timeout [10.0.0.7]:2345"),
    (
        False,
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
        "2000ms for recv operation to complete",
    ),
    (
        False,
        "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
        "error",
    ),
    (False, "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 10000 ms"),
    (
        True,
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown "
        "or crash?",
    ),
    (True, "torch.distributed.DistNetworkError: Broken pipe"),
    (False, "torch.distributed.DistNetworkError: Connection timed out"),
    (
        False,
        "The client socket has timed out after 6000ms while trying to connect to (10.0.0.1, 295).",
    ),
    (False, "Timed out after 301 seconds waiting for clients. 1/2 clients joined."),
    (False, "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /never"),
    (False, "RuntimeError: Socket Timeout"),
    (
        True,
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or "
        "there was a network error, NCCL version 2.21.5",
    ),
    (
        True,
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
    ),
    (True, "misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer node-b<47861>"),
    (False, "NCCL communicator was aborted on rank 2. Original reason for failure was: ..."),
    (
        False,
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
        "OpType=BROADCAST) ran for 600081 milliseconds before timing out.",
    ),
    (
        False,
        "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the "
        "asynchronous nature of CUDA kernels, subsequent GPU operations might run on bad data.",
    ),
]


@pytest.mark.parametrize(("is_gone", "text"), EXAMPLES)
def test_texts_about_a_peer(is_gone, text) -> None:
    found = find_consequence(text)
    assert found
    assert found.is_gone == is_gone


def test_each_row_has_an_example() -> None:
    for is_gone, pattern in PEER_ERRORS:
        assert any(gone == is_gone and re.search(pattern, text) for gone, text in EXAMPLES), pattern


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: bad shape",
        "torch.cuda.OutOfMemoryError: CUDA out of memory.",
        # Of the worker's own connections, not of those to its peers.
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE",
        "Process group watchdog thread terminated with exception: CUDA error: an illegal memory "
        "access was encountered",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
        # Not NCCL's words.
        "MyConfigError: the S3 proxy says: Connection closed by remote peer",
        "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.",
    ],
)
def test_faults_of_the_worker_itself_are_none(text) -> None:
    assert find_consequence(text) is None


# --- real ones ------------------------------------------------------------------------------------

GLOO_JOB = """
import datetime, os, sys
import torch, torch.distributed as dist
rank, port, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
wait = datetime.timedelta(seconds=2 if how == "silent" else 30)
where = f"tcp://127.0.0.1:{port}"
dist.init_process_group("gloo", rank=rank, world_size=2, init_method=where, timeout=wait)
tensor = torch.ones(4)
dist.all_reduce(tensor)
if rank == 1:
    if how == "silent":
        sys.stdin.read()
    os.kill(os.getpid(), 9)
while True:
    dist.all_reduce(tensor)
"""
STORE_JOB = """
import datetime, os, sys
import torch.distributed as dist
from plaunch_network import create_tcp_store
rank, port, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
wait = datetime.timedelta(seconds=2)
where = {"host_name": "127.0.0.1", "port": port, "world_size": 2, "is_master": rank == 1}
store = create_tcp_store(dist.TCPStore, **where, timeout=wait)
if rank == 1:
    store.get("ready")
    if how == "silent":
        sys.stdin.read()
    os.kill(os.getpid(), 9)
store.set("ready", "")
if how == "write":
    while True:
        store.set("x", "y")
store.get("never")
"""
JOBS = {"gloo": GLOO_JOB, "store": STORE_JOB}
# By the job and what becomes of its rank 1: the words of rank 0, of which one must be there.
PEERS = {
    ("gloo", "killed"): ["Connection closed by peer [127.0.0.1]", "Connection reset by peer"],
    ("gloo", "silent"): ["Timed out waiting 2000ms for recv operation to complete"],
    ("store", "killed"): ["Failed to recv, got 0 bytes", "Connection reset by peer"],
    ("store", "write"): [
        *("Failed to recv", "Failed to send", "Broken pipe", "Connection reset by peer")
    ],
    ("store", "silent"): ["wait timeout after 2000ms, keys: /never"],
}
# Runs all jobs at once. Their workers are forks, since importing torch takes seconds for each.
RUN_JOBS = """
import json, os, runpy, signal, sys, traceback
import torch.distributed
def become(job, rank, port, how, err):
    os.chdir(job)
    os.dup2(os.open(err, os.O_WRONLY | os.O_CREAT), 2)
    sys.argv = ["train.py", str(rank), str(port), how]
    try:
        runpy.run_path("train.py", run_name="__main__")
    except BaseException:
        traceback.print_exc()
        os._exit(1)
waiting, others = {}, []
for job, how, port in json.loads(sys.argv[1]):
    for rank in range(2):
        err = os.path.abspath(f"{job}-{how}-{rank}.err")
        pid = os.fork()
        if pid == 0:
            become(job, rank, port, how, err)
        if rank == 0:
            waiting[pid] = job, how, err
        else:
            others.append(pid)
found = []
for pid, (job, how, err) in waiting.items():
    _, status = os.waitpid(pid, 0)
    found.append([job, how, os.waitstatus_to_exitcode(status), open(err).read()])
for pid in others:
    os.kill(pid, signal.SIGKILL)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_errors_of_torch_for_a_lost_peer(tmp_path) -> None:
    """Real jobs of two, whose rank 1 is killed or falls silent."""
    pytest.importorskip("torch.distributed")
    for job, script in JOBS.items():
        (tmp_path / job).mkdir()
        (tmp_path / job / "train.py").write_text(script)
    given = json.dumps([[job, how, free_port()] for job, how in PEERS])
    with running_python("-c", RUN_JOBS, given, cwd=tmp_path, start_new_session=True) as process:
        try:
            # Workers that fall silent wait for the end of stdin, which stays open.
            found = json.loads(process.stdout.readline())
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert [(job, how) for job, how, *_ in found] == list(PEERS)
    for job, how, exitcode, said in found:
        ended = failure(*said.splitlines(), exitcode=exitcode)
        assert ended.consequence, said
        assert ended.consequence.is_gone == (how != "silent")
        words = ended.consequence.words.lower()  # older versions of torch begin with a small letter
        assert any(word.lower() in words for word in PEERS[job, how]), said
        assert ended.place.startswith("train.py:")


# --- where it is looked for -----------------------------------------------------------------------


def test_the_headline_has_the_words_that_matter() -> None:
    found = raised(GLOO)
    closed = "Connection closed by peer [127.0.0.1]:53469"
    assert found.headline == f"RuntimeError: {closed} (train.py:39)"
    assert found.brief.startswith("RuntimeError: [/pytorch/third_party/gloo/")


def test_an_error_raised_from_a_consequence_is_one() -> None:
    lines = [HEADER, FRAME, GLOO, "", DIRECT, "", HEADER, FRAME, "OSError: no checkpoint"]
    found = failure(*lines)
    assert found.consequence == ("Connection closed by peer [127.0.0.1]:53469", True)
    assert found.headline == "OSError: no checkpoint (train.py:39)"


def test_what_went_wrong_while_it_was_handled_is_none() -> None:
    lines = [HEADER, FRAME, NEVER, "", WHILE, "", HEADER, FRAME, "FileNotFoundError: 'ckpt.pt'"]
    found = failure(*lines)
    assert not found.is_consequence
    assert found.headline == "FileNotFoundError: 'ckpt.pt' (train.py:39)"
    lines += ["", DIRECT, "", HEADER, FRAME, "RuntimeError: no step"]
    assert not failure(*lines).is_consequence
    # A second one of a peer is.
    assert failure(HEADER, FRAME, NEVER, "", WHILE, "", HEADER, FRAME, GLOO).is_consequence


def test_an_error_file_with_both_gives_the_same_result(child_file) -> None:
    for link, is_one in ((DIRECT, True), (WHILE, False)):
        lines = [HEADER, FRAME, GLOO, "", link, "", HEADER, FRAME, "OSError: no checkpoint"]
        extra = {"py_callstack": "\n".join(lines)}
        message = {"message": "OSError: no checkpoint", "extraInfo": extra}
        found = ProcessFailure(0, 7, 1, child_file({"message": message}))
        assert found.is_consequence == is_one
        assert found.headline == "OSError: no checkpoint (train.py:39)"


@pytest.mark.parametrize("mark", ["", "[rank0]:"])
@pytest.mark.parametrize(
    "log",
    [
        "[W1124 10:22:33.1 ProcessGroupNCCL.cpp:1683] [PG ID 0 PG GUID 0(default_pg) Rank 0] Failed"
        " to check the flag with error: failed to recv, got 0 bytes",
        "[E1124 10:22:33.1 TCPStore.cpp:106] [c10d] recvValue failed: Failed to recv, got 0 bytes",
    ],
)
def test_lines_of_torchs_log_after_an_exception_are_none(mark, log) -> None:
    found = failure(
        HEADER, FRAME, "ValueError: bad batch", mark + log, "Failed to recv, got 0 bytes"
    )
    assert not found.is_consequence
    assert found.headline == "ValueError: bad batch (train.py:39)"


def test_what_was_only_shown_before_is_none() -> None:
    assert not failure(GLOO, HEADER, FRAME, "ValueError: bad").is_consequence
    assert not failure(HEADER, FRAME, GLOO, "caught it", HEADER, FRAME, "E: no").is_consequence
    assert not failure(HEADER, FRAME, GLOO, exitcode=3).is_consequence


def test_a_consequence_is_found_in_an_error_file(child_file) -> None:
    message = {"message": GLOO, "extraInfo": {"py_callstack": f"{HEADER}\n{FRAME}\n{GLOO}"}}
    found = ProcessFailure(0, 7, 1, child_file({"message": message}))
    assert (found.is_consequence, found.place) == (True, "train.py:39")


def test_the_abort_of_the_watchdog_is_one_and_other_signals_are_none() -> None:
    found = failure(*WATCHDOG, exitcode=-6)
    assert found.headline == (
        "killed by SIGABRT (signal 6): Watchdog caught collective operation timeout"
    )
    assert not failure(*WATCHDOG, exitcode=-9).is_consequence
    assert not failure("free(): double free detected", exitcode=-6).is_consequence


@pytest.mark.parametrize(
    "lines",
    [
        [REMOTE, "terminate called after throwing an instance of 'c10::Error'", ILLEGAL],
        ["wait timeout after 300000ms, keys: /optional (retrying)", "malloc(): corrupted top size"],
        [*WATCHDOG, "train.cu:7: step: block: [0,0,0] Assertion `index < size` failed."],
        [REMOTE, "terminate called without an active exception"],
        [REMOTE],
    ],
)
def test_an_abort_for_a_fault_of_its_own_is_none(lines) -> None:
    assert not failure(*lines, exitcode=-6).is_consequence


def test_the_log_line_of_the_watchdog_is_enough() -> None:
    line = "[rank0]:[E1124 10:22:33.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective"
    assert failure(f"{line} operation timeout: WorkNCCL(SeqNum=1)", exitcode=-6).is_consequence


@pytest.mark.parametrize(
    ("found", "verb"),
    [
        (raised(GLOO), "lost a peer"),
        (failure(HEADER, FRAME, GLOO, "", DIRECT, "", HEADER, FRAME, "E: no"), "lost a peer"),
        (raised(NEVER), "failed"),
        (failure(*WATCHDOG, exitcode=-6), "failed"),
        (raised("ValueError: bad"), "failed"),
    ],
)
def test_a_peer_that_is_silent_is_not_lost(found, verb) -> None:
    assert found.verb == verb


def test_neither_a_hang_nor_a_launcher_is_one() -> None:
    assert not replace(raised(GLOO), hung=True).is_consequence
    assert not raised(GLOO, rank=-1).is_consequence


def test_what_another_node_has_found_stays_also_through_a_pickle() -> None:
    known = Consequence("Broken pipe", is_gone=True)
    found = replace(failure("nothing"), known_consequence=known)
    assert pickle.loads(pickle.dumps(found)).is_consequence


# --- what it means --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "first"),
    [
        ({}, 0),
        ({1: raised("ValueError: bad", at=0.1, rank=1)}, 1),
        ({1: failure(exitcode=-9, at=2.0, rank=1)}, 1),
        ({1: raised(GLOO, at=-1.0, rank=1)}, 1),
        ({1: raised("ValueError: bad", at=CONSEQUENCE_WINDOW + 1, rank=1)}, 0),
        ({1: raised(GLOO, at=0.1, rank=1), 2: failure(exitcode=3, at=0.2, rank=2)}, 2),
    ],
)
def test_it_comes_after_every_other_failure_within_the_window(others, first) -> None:
    assert first_failure({0: raised(GLOO), **others})[0] == first


def test_a_hang_outweighs_it() -> None:
    hang = replace(failure(exitcode=116, at=5.0, rank=1), hung=True)
    assert first_failure({0: raised(GLOO), 1: hang})[0] == 1
