"""The logs of the pods of a job, each of which a thread follows."""

from __future__ import annotations

import datetime
import http.client
import re
import threading
import time
from typing import TYPE_CHECKING

from plaunch.cli import STDERR
from plaunch.errors import PlaunchError
from plaunch.threads import start_thread

from plaunch_engines.kubernetes_client import ClusterError, ObjectNotFoundError
from plaunch_engines.records import MAX_LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from plaunch_engines.kubernetes_client import Cluster

    Stamp = tuple[float, bytes]  # seconds since the epoch, digits of the fraction

_RETRY = 1.0  # seconds until a log is requested again
_MAX_RETRY = 10.0  # seconds, after several errors
_OVERLAP = 5  # seconds that are requested again, as no clock is exact; known lines are skipped
_CHUNK = 1 << 16  # bytes
_STAMP = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d) ")


class PodLogs:
    """Shows the lines of all pods as they arrive, each with its node's name in front.

    A status line is below them, if there is one.

    A stalled reader stalls the threads and so the connections: at most one line of each pod is in
    memory, of at most `MAX_LINE` bytes.

    Args:
        cluster: the cluster.
        show: prints a line on standard output.
        say: writes a message.
        clock: a monotonic clock, in seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        show: Callable[[str], None],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._show = show
        self._clock = clock
        self._lock = threading.Lock()
        self._has_reader = True
        self._shown_at = 0.0
        self._logs: dict[str, _PodLog] = {}

    def follow(self, pod: str, node: str) -> None:
        """Begin to show the lines of a pod; a no-op if that has begun."""
        if pod not in self._logs:
            self._logs[pod] = _PodLog(self._cluster, pod, self._writer(node), self._say)

    def end(self, pod: str) -> None:
        """Note that a pod writes nothing any more."""
        if pod in self._logs:
            self._logs[pod].ended.set()

    def finish(self, seconds: float) -> bool:
        """Wait for what has been written until now; return whether all of it was shown.

        Args:
            seconds: without a line, after which it gives up.
        """
        for log in self._logs.values():
            log.ended.set()
        self._shown_at = self._clock()
        while alive := [log for log in self._logs.values() if log.thread.is_alive()]:
            left = self._shown_at + seconds - self._clock()
            if left <= 0:
                return False
            alive[0].thread.join(left)
        return True

    def show_status(self, text: str) -> None:
        """Show a status line, unless a line of a pod is being written; empty to erase it."""
        if self._lock.acquire(blocking=False):
            try:
                STDERR.show(text)
            finally:
                self._lock.release()

    def _writer(self, node: str) -> Callable[[bytes], None]:
        def write(line: bytes) -> None:
            with self._lock:
                if not self._has_reader:
                    return
                STDERR.show("")
                try:
                    self._show(f"[{node}] {line.decode(errors='replace')}")
                except PlaunchError:  # standard output is closed; the job continues
                    self._has_reader = False
                self._shown_at = self._clock()

        return write


class _PodLog:
    """Follows the log of one pod; a connection that ends early is replaced."""

    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        write: Callable[[bytes], None],
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self.ended = threading.Event()
        self._cluster = cluster
        self._pod = pod
        self._write = write
        self._last: Stamp | None = None  # of the last line
        self._read_at = 0.0  # when it was read, on the monotonic clock
        self.thread = threading.Thread(target=self._run, name=f"log-{pod}", daemon=True)
        start_thread(self.thread, blocks_signals=True)

    def _run(self) -> None:
        delay = _RETRY
        while True:
            was_ended = self.ended.is_set()
            try:
                if self._read() and was_ended:
                    return
                delay = _RETRY
            except ObjectNotFoundError:  # the pod was deleted
                return
            except ClusterError as error:
                if error.status == http.client.BAD_REQUEST:  # its container has not started
                    if was_ended:
                        return
                elif not error.is_temporary:
                    self._say(str(error))
                    return
                delay = min(2 * delay, _MAX_RETRY)
            if was_ended:
                time.sleep(delay)
            else:
                self.ended.wait(delay)

    def _read(self) -> bool:
        """Show the lines that are not known yet; return whether the server ended the log.

        Raises:
            ClusterError: the log cannot be read; with status 400, the container has not started.
        """
        known = self._last
        is_known = False
        response = self._cluster.open_log(self._pod, self._age())
        try:
            for is_start, line in split_lines(response.stream(_CHUNK)):
                text = line
                stamp, length = read_stamp(line) if is_start else (None, 0)
                if stamp is not None:
                    text = line[length:]
                    is_known = known is not None and stamp <= known
                    if not is_known:
                        self._last, self._read_at = stamp, time.monotonic()
                elif is_start:  # from the kubelet, which has no log
                    is_known = False
                if not is_known:
                    self._write(text)
        except self._cluster.unreachable:
            return False
        finally:
            response.close()
            response.release_conn()
        return True

    def _age(self) -> int | None:
        """Return for how many seconds lines are requested; None for all.

        A line may be read long after it was written, if the output is slow, and the clock of this
        machine may differ from that of the node: the larger age counts.
        """
        if self._last is None:
            return None
        age = max(time.monotonic() - self._read_at, time.time() - self._last[0])
        return int(age) + _OVERLAP


def read_stamp(line: bytes) -> tuple[Stamp | None, int]:
    """Return the time stamp at the beginning of a line, and its length; None if there is none."""
    match = _STAMP.match(line)
    if match is None:
        return None, 0
    zone = "+00:00" if match[3] == b"Z" else match[3].decode()
    moment = datetime.datetime.fromisoformat(match[1].decode() + zone)
    return (moment.timestamp(), (match[2] or b"").ljust(9, b"0")), match.end()


def split_lines(chunks: Iterable[bytes]) -> Iterator[tuple[bool, bytes]]:
    """Yield lines without their ends, each with whether it begins a line.

    A line of more than `MAX_LINE` bytes is yielded in parts.
    """
    rest, is_start = b"", True
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line or is_start:
                yield is_start, line
            is_start = True
        while len(rest) > MAX_LINE:
            yield is_start, rest[:MAX_LINE]
            rest, is_start = rest[MAX_LINE:], False
    if rest:
        yield is_start, rest
