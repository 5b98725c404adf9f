"""What torch's own server in a worker knows: its flight recorder, and its stacks.

A script that uses `torch.distributed.elastic.control_plane.worker_main` has a server at the Unix
socket `TORCH_WORKER_SERVER_SOCKET`. Nothing here needs torch.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from plaunch.process import read_environ, read_proc

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
FOLDER = "plaunch-torch-"  # begins the name of the folder of sockets that plaunch has chosen
# The flight recorder has another name in older versions, with NCCL.
PAGES = ("fr_trace_json", "dump_nccl_trace_json", "dump_traceback")
MOST_BYTES = 8 << 20  # of one answer; 2,000 collectives are about 1 MB
MOST_OF_ALL = 64 << 20  # of all answers at one time
PROC = "/proc"

_PATIENCE = 0.5  # seconds for one answer, which takes a millisecond
_CREDENTIALS = struct.Struct("3i")
_ACCEPTS = 1 << 16  # the flag of a socket that listens, in /proc/net/unix


def find_servers(pids: Collection[int], proc: str = PROC) -> dict[int, str]:
    """The sockets of torch's servers in these processes, by process.

    A process that was forked has its variables nowhere in /proc, and one that has inherited the
    variable has no server. So it is the kernel that tells whose socket it is.
    """
    listening = set(_listening(proc))
    chosen = {
        path for path in listening if os.path.basename(os.path.dirname(path)).startswith(FOLDER)
    }
    told = {_variable_of(pid, proc) for pid in pids} if listening else set()
    found = {}
    for path in chosen | (told & listening):
        pid = _owner(path)
        if pid in pids:
            found[pid] = path
    return found


def ask(path: str, until: float, most: int = MOST_BYTES) -> dict[str, str]:
    """What a server tells of its process, by page; those that it has not answered are missing.

    Args:
        path: of the socket.
        until: on the monotonic clock.
        most: bytes of each answer.
    """
    answers = {}
    try:
        names = json.loads(_exchange(path, "GET", "/handler/", until, most))
        for page in PAGES:
            if page in names:
                body = _exchange(path, "POST", f"/handler/{page}", until, most)
                answers[page] = body.decode(errors="replace")
    except (OSError, ValueError, TypeError, RecursionError):
        pass  # it is at its end, say, or no such server; the stacks tell more
    return answers


def _listening(proc: str) -> Iterator[str]:
    for line in os.fsdecode(read_proc("net/unix", proc)).splitlines()[1:]:
        # Num RefCount Protocol Flags Type St Inode Path
        fields = line.split(None, 7)
        if len(fields) == 8 and int(fields[3], 16) & _ACCEPTS:
            yield fields[7]


def _variable_of(pid: int, proc: str) -> str:
    beginning = f"{VARIABLE}=".encode()
    for entry in read_environ(pid, proc).split(b"\0"):
        if entry.startswith(beginning):
            return os.fsdecode(entry[len(beginning) :])
    return ""


def _owner(path: str) -> int:
    """The process that listens at a socket; 0 if nobody does who may be asked."""
    with socket.socket(socket.AF_UNIX) as asking:
        try:
            asking.settimeout(_PATIENCE)
            asking.connect(path)
            told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        except (OSError, ValueError):
            return 0
    pid: int = _CREDENTIALS.unpack(told)[0]
    return pid


def _exchange(path: str, method: str, page: str, until: float, most: int) -> bytes:
    """The body of an answer.

    Raises:
        OSError: it has not come in time.
        ValueError: it is too long, or none of HTTP, or an error.
    """
    until = min(until, time.monotonic() + _PATIENCE)
    request = f"{method} {page} HTTP/1.0\r\nHost: plaunch\r\nContent-Length: 0\r\n\r\n"
    pieces, size = [], 0
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(max(until - time.monotonic(), 0.001))
        asking.connect(path)
        asking.sendall(request.encode())
        while True:
            asking.settimeout(max(until - time.monotonic(), 0.001))
            piece = asking.recv(1 << 16)
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
