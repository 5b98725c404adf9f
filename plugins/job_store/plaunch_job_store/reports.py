"""What the server reports to its host: nodes that it has refused, and connections that failed.

The server's process writes each report as a line to its standard output, a pipe. The host reads
them on a thread, until the process has ended.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL = 60.0  # seconds between two reports of one peer and reason
MAX_PEERS = 256  # pairs of a peer and a reason within the interval; more are only counted
_MAX_LINE = 2048  # bytes; less than PIPE_BUF, so that a line is written completely or not at all
_JOIN_TIMEOUT = 1.0  # seconds


class ServerReport(NamedTuple):
    """What happened to a connection.

    Args:
        peer: the address of the other end; empty if it is not known.
        reason: what the server has found, as a sentence about "the node", without a final period.
        missed: how many other connections were refused or failed without a report.
    """

    peer: str
    reason: str
    missed: int = 0


def _find_name(address: str) -> str:
    """Return the name of a host; its address if it has none."""
    try:
        return socket.getnameinfo((address, 0), 0)[0]
    except OSError:
        return address


def describe_report(report: ServerReport, find_name: Callable[[str], str] = _find_name) -> str:
    """Return a message about a report, on the host of the store.

    Args:
        report: from the server.
        find_name: returns the name of a host, or its address; may take as long as name servers do.
    """
    from plaunch.texts import printable  # the server's process does without

    name = find_name(report.peer)
    who = name if name == report.peer else f"{name} ({report.peer})"
    others = f"; {report.missed} others were refused as well" if report.missed else ""
    return printable(f"the store of this job has refused {who}: {report.reason}{others}")


class ReportFilter:
    """Passes on each peer and reason once a minute. Called on the server's thread; never blocks.

    Args:
        write: passes on a report; returns at once.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, write: Callable[[ServerReport], None], clock: Callable[[], float]) -> None:
        self._write = write
        self._clock = clock
        self._seen: dict[tuple[str, str], float] = {}  # when, in this order
        self._missed = 0

    def __call__(self, peer: str, reason: str) -> None:
        """Report what happened to a connection from `peer`, unless that is known."""
        now = self._clock()
        for key, when in list(self._seen.items()):
            if now - when < INTERVAL:
                break
            del self._seen[key]
        # Numbers in a reason are the peer's choice.
        key = (peer, "".join(char for char in reason if not char.isdigit()))
        if key in self._seen:
            return
        if len(self._seen) >= MAX_PEERS:
            self._missed += 1
            return
        self._seen[key] = now
        self._write(ServerReport(peer, reason, self._missed))
        self._missed = 0


class ReportPipe:
    """The server's end of the pipe.

    Args:
        descriptor: the end for writing. It becomes non-blocking: reports that a stalled host does
            not read are lost.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor

    def write(self, report: ServerReport) -> None:
        """Write a report."""
        text = "\t".join((report.peer, str(report.missed), " ".join(report.reason.split())))
        with contextlib.suppress(OSError):  # the host is stalled, or has ended
            os.write(self._descriptor, text.encode(errors="replace")[:_MAX_LINE] + b"\n")


class ReportReader:
    """The host's end of the pipe: calls a function for each report, on a thread of its own.

    Args:
        descriptor: the end for reading; it is closed when the server's process has ended.
        on_report: called with each report.

    Raises:
        ThreadStartError: the system has no more threads.
    """

    def __init__(self, descriptor: int, on_report: Callable[[ServerReport], None]) -> None:
        self._descriptor = descriptor
        self._on_report = on_report
        self._thread = threading.Thread(target=self._run, name="plaunch-store-reports", daemon=True)
        from plaunch.threads import start_thread  # the server's process does without

        start_thread(self._thread, blocks_signals=True)

    def join(self) -> None:
        """Wait, for a short time, until all reports of a process that has ended are read."""
        self._thread.join(_JOIN_TIMEOUT)

    def _run(self) -> None:
        with open(self._descriptor, "rb") as lines:
            for line in lines:
                peer, missed, reason = line.decode(errors="replace").rstrip("\n").split("\t", 2)
                self._on_report(ServerReport(peer, reason, int(missed)))


def describe_error(error: BaseException) -> str:
    """Return the type and the text of an unexpected error, and the line that has raised it."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = f" (line {place.tb_lineno} in {place.tb_frame.f_code.co_name})" if place else ""
    return f"{type(error).__name__}: {error}"[:500] + where
