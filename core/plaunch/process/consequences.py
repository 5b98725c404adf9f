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


# Gloo's messages begin with a file and a line of its source. Of the system's errors, the table has
# those that only a peer can cause.
_GLOO = r"/gloo/\S+\.(?:cc|h):\d+\] (?P<words>"
_BROKEN = r"(?:Connection reset by peer|Broken pipe)"
_NO_ANSWER = r"(?:Connection refused|Connection timed out)"
_GLOO_CALL = _GLOO + r"(?:Read error|Write error|writev|connect|SO_ERROR)?,? ?\[[^\]]*\](?::\d+)?: "

# The texts that say so, as regular expressions, each with its source: a file of the library, or a
# public issue. A headline shows the group `words` of a match, or all of it. The first match counts.
PEER_ERRORS = (
    # gloo/transport/tcp/pair.cc, Pair::read; pytorch/pytorch#75512
    (_GONE, _GLOO + r"Connection closed by peer \[[^\]]*\](?::\d+)?)"),
    # gloo/transport/tcp/pair.cc, Pair::read and Pair::write; pytorch/pytorch#132644
    (_GONE, _GLOO_CALL + _BROKEN + ")"),
    # gloo/transport/tcp/pair.cc, Pair::read and Pair::write; a host that is down
    (_SILENT, _GLOO_CALL + _NO_ANSWER + ")"),
    # gloo/transport/tcp/pair.cc
    (_GONE, _GLOO + r"Socket closed \[[^\]]*\](?::\d+)?)"),
    # gloo/transport/tcp/pair.cc
    (
        _SILENT,
        _GLOO + r"(?:Read timeout|Write timeout|Connect timeout) \[[^\]]*\](?::\d+)?"
        r"|Application timeout caused pair closure)",
    ),
    # gloo/transport/tcp/unbound_buffer.cc, UnboundBuffer::waitRecv and waitSend
    (_SILENT, _GLOO + r"Timed out waiting \d+ms for (?:recv|send) operation to complete)"),
    # gloo/rendezvous/context.cc; sgl-project/sglang#3226
    (_SILENT, r"Gloo connectFullMesh failed with .*"),
    # torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, monitoredBarrier
    (
        _SILENT,
        r"(?:Ranks? [\d, ]+ failed to pass monitoredBarrier in \d+ ms"
        r"|Rank \d+ timed out in monitoredBarrier after \d+ ms)",
    ),
    # torch/csrc/distributed/c10d/Utils.hpp, recvBytes and sendBytes; pytorch/pytorch#153586
    (_GONE, r"[Ff]ailed to (?:recv, got|send, sent) 0 bytes"),
    # torch/csrc/distributed/c10d/Utils.hpp: a system call for the TCPStore's socket failed
    (_GONE, r"DistNetworkError: (?P<words>" + _BROKEN + ")"),
    # torch/csrc/distributed/c10d/Utils.hpp: the same
    (_SILENT, r"DistNetworkError: (?P<words>" + _NO_ANSWER + ")"),
    # torch/csrc/distributed/c10d/socket.cpp; pytorch/pytorch#105782
    (_SILENT, r"The client socket has timed out after \S+ while trying to connect to \([^)]*\)"),
    # torch/csrc/distributed/c10d/TCPStore.cpp, waitForWorkers; pytorch/pytorch#111805
    (
        _SILENT,
        r"Timed out after \d+ seconds waiting for (?:clients|workers)\. "
        r"\d+/\d+ (?:clients|workers) joined",
    ),
    # torch/csrc/distributed/c10d/TCPStore.cpp, doWait; pytorch/pytorch#131808
    (_SILENT, r"wait timeout after \d+ms, keys: \S+"),
    # torch/csrc/distributed/c10d/Utils.hpp, before torch 2.5; pytorch/pytorch#55571
    (_SILENT, r"(?:RuntimeError|DistStoreError): (?P<words>Socket Timeout)"),
    # nccl/src/init.cc, ncclGetErrorString of ncclRemoteError; NVIDIA/nccl#2076
    (_GONE, r"remote process exited or there was a network error"),
    # torch/csrc/distributed/c10d/NCCLUtils.cpp, getNcclErrorDetailStr; pytorch/pytorch#85887
    (
        _GONE,
        r"ncclRemoteError: A call failed possibly due to a network error or a remote process "
        r"exiting prematurely",
    ),
    # nccl/src/misc/socket.cc; NVIDIA/nccl#795
    (_GONE, r"(?:NCCL WARN |Last error:\s)[^\n]*(?P<words>Connection closed by remote peer)"),
    # torch/csrc/distributed/c10d/NCCLUtils.cpp, NCCLComm::getNcclComm
    (_SILENT, r"NCCL communicator was aborted on rank \d+"),
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, WorkNCCL::checkTimeout
    (_SILENT, r"Watchdog caught collective operation timeout"),
    # torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp; tatsu-lab/stanford_alpaca#207
    (_SILENT, r"Some NCCL operations have failed or timed out"),
)


@lru_cache(16)  # called several times for each failure
def find_consequence(text: str) -> Consequence | None:
    """Find the consequence that `text` describes; None if it is not about a peer.

    Args:
        text: the text of an exception that ended a worker, or of one of its causes.
    """
    for is_gone, pattern in PEER_ERRORS:
        if found := re.search(pattern, text):
            return Consequence(found.groupdict().get("words") or found.group(), is_gone)
    return None
