"""The logs of the pods of a job, each of which a thread follows."""

from __future__ import annotations

import http.client
import threading
import time
from typing import TYPE_CHECKING

from plaunch.errors import PlaunchError
from plaunch.threads import start_thread

from plaunch_engines.kubernetes_client import ClusterError
from plaunch_engines.records import MAX_LINE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from plaunch_engines.kubernetes_client import Cluster

_RETRY = 1.0  # seconds
_OVERLAP = 5  # seconds that are requested again, as no clock is exact; known lines are skipped
_CHUNK = 1 << 16  # bytes


class PodLogs:
    """Shows the lines of all pods as they arrive, each with its node's name in front.

    A stalled reader stalls the threads and so the connections: at most one line of each pod is in
    memory, of at most `MAX_LINE` bytes.

    Args:
        cluster: the cluster.
        container: the container of each pod.
        show: prints a line on standard output.
        say: writes a message.
    """

    def __init__(
        self,
        cluster: Cluster,
        container: str,
        show: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self._cluster = cluster
        self._say = say
        self._container = container
        self._show = show
        self._lock = threading.Lock()
        self._has_reader = True
        self._logs: dict[str, _PodLog] = {}

    def follow(self, pod: str, node: str) -> None:
        """Begin to show the lines of a pod; a no-op if that has begun."""
        if pod not in self._logs:
            self._logs[pod] = _PodLog(
                self._cluster, pod, self._container, self._writer(node), self._say
            )

    def end(self, pod: str) -> None:
        """Note that a pod writes nothing any more."""
        if pod in self._logs:
            self._logs[pod].ended.set()

    def finish(self, seconds: float) -> bool:
        """Wait for what has been written until now; return whether all of it was shown."""
        until = time.monotonic() + seconds
        for log in self._logs.values():
            log.ended.set()
        for log in self._logs.values():
            log.thread.join(max(until - time.monotonic(), 0))
        return not any(log.thread.is_alive() for log in self._logs.values())

    def _writer(self, node: str) -> Callable[[bytes], None]:
        def write(line: bytes) -> None:
            with self._lock:
                if not self._has_reader:
                    return
                try:
                    self._show(f"[{node}] {line.decode(errors='replace')}")
                except PlaunchError:  # standard output is closed; the job continues
                    self._has_reader = False

        return write


class _PodLog:
    """Follows the log of one pod; a connection that ends early is replaced."""

    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        container: str,
        write: Callable[[bytes], None],
        say: Callable[[str], None],
    ) -> None:
        self._say = say
        self.ended = threading.Event()
        self._cluster = cluster
        self._pod = pod
        self._container = container
        self._write = write
        self._last = b""  # the time stamp of the last line
        self._read_at = 0.0
        self.thread = threading.Thread(target=self._run, name=f"log-{pod}", daemon=True)
        start_thread(self.thread, blocks_signals=True)

    def _run(self) -> None:
        while True:
            was_ended = self.ended.is_set()
            try:
                if self._read() and was_ended:
                    return
            except ClusterError as error:
                if not (error.is_temporary or error.status == http.client.BAD_REQUEST):
                    if error.status != http.client.NOT_FOUND:  # the pod was deleted
                        self._say(str(error))
                    return
            if was_ended:
                time.sleep(_RETRY)
            else:
                self.ended.wait(_RETRY)

    def _read(self) -> bool:
        """Show the lines that are not known yet; return whether the server ended the log.

        Raises:
            ClusterError: the log cannot be read; with status 400, the container has not started.
        """
        since = int(time.monotonic() - self._read_at) + _OVERLAP if self._last else None
        known = self._last
        is_known = False
        response = self._cluster.open_log(self._pod, self._container, since)
        try:
            for is_start, line in split_lines(response.stream(_CHUNK)):
                text = line
                if is_start:
                    stamp, _, text = line.partition(b" ")
                    is_known = bool(known) and stamp <= known
                    if not is_known:
                        self._last, self._read_at = stamp, time.monotonic()
                if not is_known:
                    self._write(text)
        except self._cluster.unreachable:
            return False
        finally:
            response.close()
            response.release_conn()
        return True


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
