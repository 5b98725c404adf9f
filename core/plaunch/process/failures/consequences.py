"""The errors of workers whose peer is gone: consequences of a failure, and not its cause.

A text is in the table if it shows that the fault is not in the worker that reports it. Loaded after
a failure.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

_GONE, _SILENT = True, False  # whether the peer is gone


class Consequence(NamedTuple):
    """That a failure was caused by a peer, which has failed, has ended, or never came.

    Args:
        words: the words of the failure, for a headline.
        is_gone: whether the peer is gone; otherwise it did not answer in time.
    """

    words: str
    is_gone: bool


class PeerError(NamedTuple):
    """A text of a library that says that a peer is gone or silent.

    Args:
        is_gone: whether the peer is gone; a silent peer has not answered in time, or never came.
        pattern: a regular expression; a headline shows its group `words`, or all of the match.
        source: the origin of the text: a file of the library, or a public issue.
        example: a text that the pattern matches.
    """

    is_gone: bool
    pattern: str
    source: str
    example: str


# Gloo's messages begin with a file and a line of its source. Of the system's errors, the table has
# those that only a peer can cause.
_GLOO = r"/gloo/\S+\.(?:cc|h):\d+\] (?P<words>"
_BROKEN = r"(?:Connection reset by peer|Broken pipe)"
_NO_ANSWER = r"(?:Connection refused|Connection timed out)"
_GLOO_CALL = _GLOO + r"(?:Read error|Write error|writev|connect|SO_ERROR)?,? ?\[[^\]]*\](?::\d+)?: "

PEER_ERRORS = (
    PeerError(
        _GONE,
        _GLOO + r"Connection closed by peer \[[^\]]*\](?::\d+)?)",
        "gloo/transport/tcp/pair.cc, Pair::read; pytorch/pytorch#75512",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
        "[127.0.0.1]:53469. This is typically caused by a remote worker crashing.",
    ),
    PeerError(
        _GONE,
        _GLOO_CALL + _BROKEN + ")",
        "gloo/transport/tcp/pair.cc, Pair::read and Pair::write; pytorch/pytorch#132644",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [192.168.70.92]:25266: "
        "Connection reset by peer",
    ),
    PeerError(
        _SILENT,
        _GLOO_CALL + _NO_ANSWER + ")",
        "gloo/transport/tcp/pair.cc, Pair::read and Pair::write; a host that is down",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:589] Read error [192.168.70.92]:25266: "
        "Connection timed out",
    ),
    PeerError(
        _GONE,
        _GLOO + r"Socket closed \[[^\]]*\](?::\d+)?)",
        "gloo/transport/tcp/pair.cc",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:145] Socket closed [10.0.0.7]:2345",
    ),
    PeerError(
        _SILENT,
        _GLOO + r"(?:Read timeout|Write timeout|Connect timeout) \[[^\]]*\](?::\d+)?"
        r"|Application timeout caused pair closure)",
        "gloo/transport/tcp/pair.cc",
        "[../third_party/gloo/gloo/transport/tcp/pair.cc:145] Connect timeout [10.0.0.7]:2345",
    ),
    PeerError(
        _SILENT,
        _GLOO + r"Timed out waiting \d+ms for (?:recv|send) operation to complete)",
        "gloo/transport/tcp/unbound_buffer.cc, UnboundBuffer::waitRecv and waitSend",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting "
        "2000ms for recv operation to complete",
    ),
    PeerError(
        _SILENT,
        r"Gloo connectFullMesh failed with .*",
        "gloo/rendezvous/context.cc; sgl-project/sglang#3226",
        "Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] no "
        "error",
    ),
    PeerError(
        _SILENT,
        r"(?:Ranks? [\d, ]+ failed to pass monitoredBarrier in \d+ ms"
        r"|Rank \d+ timed out in monitoredBarrier after \d+ ms)",
        "torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, monitoredBarrier",
        "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 10000 ms",
    ),
    PeerError(
        _GONE,
        r"[Ff]ailed to (?:recv, got|send, sent) 0 bytes",
        "torch/csrc/distributed/c10d/Utils.hpp, recvBytes and sendBytes; pytorch/pytorch#153586",
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown "
        "or crash?",
    ),
    PeerError(
        _GONE,
        r"DistNetworkError: (?P<words>" + _BROKEN + ")",
        "torch/csrc/distributed/c10d/Utils.hpp: a system call for the TCPStore's socket failed",
        "torch.distributed.DistNetworkError: Broken pipe",
    ),
    PeerError(
        _SILENT,
        r"DistNetworkError: (?P<words>" + _NO_ANSWER + ")",
        "torch/csrc/distributed/c10d/Utils.hpp: the same",
        "torch.distributed.DistNetworkError: Connection timed out",
    ),
    PeerError(
        _SILENT,
        r"The client socket has timed out after \S+ while trying to connect to \([^)]*\)",
        "torch/csrc/distributed/c10d/socket.cpp; pytorch/pytorch#105782",
        "The client socket has timed out after 6000ms while trying to connect to (10.0.0.1, 295).",
    ),
    PeerError(
        _SILENT,
        r"Timed out after \d+ seconds waiting for (?:clients|workers)\. "
        r"\d+/\d+ (?:clients|workers) joined",
        "torch/csrc/distributed/c10d/TCPStore.cpp, waitForWorkers; pytorch/pytorch#111805",
        "Timed out after 301 seconds waiting for clients. 1/2 clients joined.",
    ),
    PeerError(
        _SILENT,
        r"wait timeout after \d+ms, keys: \S+",
        "torch/csrc/distributed/c10d/TCPStore.cpp, doWait; pytorch/pytorch#131808",
        "torch.distributed.DistStoreError: wait timeout after 2000ms, keys: /never",
    ),
    PeerError(
        _SILENT,
        r"(?:RuntimeError|DistStoreError): (?P<words>Socket Timeout)",
        "torch/csrc/distributed/c10d/Utils.hpp, before torch 2.5; pytorch/pytorch#55571",
        "RuntimeError: Socket Timeout",
    ),
    PeerError(
        _GONE,
        r"remote process exited or there was a network error",
        "nccl/src/init.cc, ncclGetErrorString of ncclRemoteError; NVIDIA/nccl#2076",
        "NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or "
        "there was a network error, NCCL version 2.21.5",
    ),
    PeerError(
        _GONE,
        r"ncclRemoteError: A call failed possibly due to a network error or a remote process "
        r"exiting prematurely",
        "torch/csrc/distributed/c10d/NCCLUtils.cpp, getNcclErrorDetailStr; pytorch/pytorch#85887",
        "ncclRemoteError: A call failed possibly due to a network error or a remote process "
        "exiting prematurely.",
    ),
    PeerError(
        _GONE,
        r"(?:NCCL WARN |Last error:\s)[^\n]*(?P<words>Connection closed by remote peer)",
        "nccl/src/misc/socket.cc; NVIDIA/nccl#795",
        "misc/socket.cc:538 NCCL WARN Net : Connection closed by remote peer node-b<47861>",
    ),
    PeerError(
        _SILENT,
        r"NCCL communicator was aborted on rank \d+",
        "torch/csrc/distributed/c10d/NCCLUtils.cpp, NCCLComm::getNcclComm",
        "NCCL communicator was aborted on rank 2. Original reason for failure was: ...",
    ),
    PeerError(
        _SILENT,
        r"Watchdog caught collective operation timeout",
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, WorkNCCL::checkTimeout",
        "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, "
        "OpType=BROADCAST) ran for 600081 milliseconds before timing out.",
    ),
    PeerError(
        _SILENT,
        r"Some NCCL operations have failed or timed out",
        "torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; tatsu-lab/stanford_alpaca#207",
        "[E ProcessGroupNCCL.cpp:455] Some NCCL operations have failed or timed out. Due to the "
        "asynchronous nature of CUDA kernels, subsequent GPU operations might run on bad data.",
    ),
)


@lru_cache(16)  # called several times for each failure
def find_consequence(text: str) -> Consequence | None:
    """The consequence that `text` describes; None if it is not about a peer.

    Args:
        text: the text of an exception that ended a worker, or of one of its causes.
    """
    for one in PEER_ERRORS:
        if found := re.search(one.pattern, text):
            words = found.groupdict().get("words") or found.group()
            return Consequence(words, is_gone=one.is_gone)
    return None
