"""Torch's own server in a worker: its answers, and the last collective operation in them.

A script that uses `torch.distributed.elastic.control_plane.worker_main` has a server on the Unix
socket `TORCH_WORKER_SERVER_SOCKET`. This module does not need torch.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from plaunch.numbers import format_ranks
from plaunch.process import find_variable, read_environ, read_proc
from plaunch.texts import printable

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from plaunch_hang.stacks.stack import ProcessStacks

VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
FOLDER = "plaunch-torch-"  # the prefix of plaunch's folders of sockets
# In older versions, the flight recorder has another name, with NCCL.
PAGES = ("fr_trace_json", "dump_nccl_trace_json", "dump_traceback")
MOST_BYTES = 8 << 20  # of one answer; 2,000 collectives are about 1 MB
MOST_OF_ALL = 64 << 20  # of all answers at one time
PROC = "/proc"

_PATIENCE = 0.5  # seconds for one answer, which takes a millisecond
_CREDENTIALS = struct.Struct("3i")
_ACCEPTS = 1 << 16  # the flag of listening sockets in /proc/net/unix
_MOST = 200  # characters of one operation
_MOST_LINES = 20


def find_servers(pids: Collection[int], proc: str = PROC) -> dict[int, str]:
    """Find the sockets of torch's servers in these processes, by pid.

    The variables of a forked process are not in /proc, and a process may inherit the variable
    without having a server. So the owner of each socket is determined by the kernel.
    """
    listening = set(_listening(proc))
    chosen = {
        path for path in listening if os.path.basename(os.path.dirname(path)).startswith(FOLDER)
    }
    given = {find_variable(read_environ(pid, proc), VARIABLE) for pid in pids if listening}
    found = {}
    for path in chosen | (given & listening):
        pid = _owner(path)
        if pid in pids:
            found[pid] = path
    return found


def ask(path: str, until: float, most: int = MOST_BYTES) -> dict[str, str]:
    """Query a server; return the answers by page, without pages that failed.

    Args:
        path: the path of the socket.
        until: the deadline on the monotonic clock.
        most: the maximum size of an answer in bytes.
    """
    answers = {}
    try:
        names = json.loads(_exchange(path, "GET", "/handler/", until, most))
        for page in PAGES:
            if page in names:
                body = _exchange(path, "POST", f"/handler/{page}", until, most)
                answers[page] = body.decode(errors="replace")
    except (OSError, ValueError, TypeError, RecursionError):
        pass  # it is ending, or it is another server; the stacks are still there
    return answers


def _listening(proc: str) -> Iterator[str]:
    for line in os.fsdecode(read_proc("net/unix", proc)).splitlines()[1:]:
        # Num RefCount Protocol Flags Type St Inode Path
        fields = line.split(None, 7)
        if len(fields) == 8 and int(fields[3], 16) & _ACCEPTS:
            yield fields[7]


def _owner(path: str) -> int:
    """The pid of the process that listens on a socket; 0 if it cannot be reached."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.settimeout(_PATIENCE)
            client.connect(path)
            raw = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except (OSError, ValueError):
            return 0
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid


def _exchange(path: str, method: str, page: str, until: float, most: int) -> bytes:
    """Send a request and return the body of the answer.

    Raises:
        OSError: the answer did not arrive in time.
        ValueError: the answer is too long, invalid, or an error.
    """
    until = min(until, time.monotonic() + _PATIENCE)
    request = f"{method} {page} HTTP/1.0\r\nHost: plaunch\r\nContent-Length: 0\r\n\r\n"
    pieces, size = [], 0
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(max(until - time.monotonic(), 0.001))
        client.connect(path)
        client.sendall(request.encode())
        while True:
            client.settimeout(max(until - time.monotonic(), 0.001))
            piece = client.recv(1 << 16)
            if not piece:
                break
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise ValueError(f"the answer to {page} has more than {most} bytes")
    head, _, body = b"".join(pieces).partition(b"\r\n\r\n")
    if head.split(None, 2)[1:2] != [b"200"]:
        raise ValueError(f"no answer to {page}: {head[:60]!r}")
    return body


def last_operations(stacks: Mapping[int, ProcessStacks]) -> dict[str, tuple[int, ...]]:
    """The last recorded operations, each with the ranks that began it."""
    return merge_operations(
        {operation: (rank,)}
        for rank, process in stacks.items()
        if (
            operation := describe_last_operation(
                answer for one in process.walk() for answer in one.torch_answers
            )
        )
    )


def merge_operations(many: Iterable[Mapping[str, Iterable[int]]]) -> dict[str, tuple[int, ...]]:
    """Merge the operations of several nodes; the operation of the fewest ranks comes first."""
    found: dict[str, set[int]] = {}
    for operations in many:
        for operation, ranks in operations.items():
            found.setdefault(operation, set()).update(ranks)
    sets = sorted(found.items(), key=lambda item: (len(item[1]), sorted(item[1])))
    return {operation: tuple(sorted(ranks)) for operation, ranks in sets}


def format_operations(operations: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Format operations as lines; empty if there are none."""
    lines = ["last operations in torch's flight recorder:"] if operations else []
    for operation, ranks in [*operations.items()][:_MOST_LINES]:
        word = "rank" if len(ranks) == 1 else "ranks"
        lines.append(f"{len(ranks)} {word}: {format_ranks(ranks).replace(',', ', ')} {operation}")
    if len(operations) > _MOST_LINES:
        lines.append(f"and {len(operations) - _MOST_LINES} more operations")
    return lines


def describe_last_operation(answers: Iterable[tuple[str, str]]) -> str:
    """Describe the last collective operation that a process began; empty if unknown.

    Args:
        answers: the answers of its server, as pairs of a page and a text.
    """
    for page, text in answers:
        if page.endswith("trace_json"):
            try:
                last = json.loads(text)["entries"][-1]
                kind = "p2p_seq_id" if last.get("is_p2p") else "collective_seq_id"
                names = last["process_group"]
                group = names[-1] or names[0]
                found = f"{last['profiling_name']}, number {last[kind]} in {group}"
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                continue
            return printable(found, _MOST)
    return ""
