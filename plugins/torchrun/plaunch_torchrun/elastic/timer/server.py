"""The server of timers over a named pipe; the name is torchrun's."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable

from plaunch.durations import PERIOD, milliseconds
from plaunch.process import read_process
from plaunch.threads import start_thread

from plaunch_torchrun.elastic.timer.files import FileTimerRequest

logger = logging.getLogger("plaunch")

LogEvent = Callable[[str, "FileTimerRequest | None"], None]
_CHUNK = 64 << 10
_IDLE = 10.0  # seconds between two checks without timers
_MAX_LINE = 1 << 20  # bytes without a line end; clients write at most 4096


def _log_nothing(name: str, request: FileTimerRequest | None) -> None:
    del name, request


def _kill(pid: int, signum: int, reason: str) -> None:
    del reason
    os.kill(pid, signum)


class FileTimerServer:
    """Kills processes of this host whose timers have expired, with the signal in their requests.

    Unlike torchrun's, it never sends a signal to its own process. It wakes for requests and when a
    timer expires, and rarely otherwise.

    Args:
        file_path: the pipe to create; an existing file is replaced.
        run_id: the id of the job, for messages.
        max_interval: how long `stop` waits for the thread, in seconds.
        daemon: whether the process may end while the thread runs.
        log_event: called with `watchdog started`, `timer expired`, `kill worker process` and
            `watchdog stopped`, on the thread where it happens.
        kill: sends a signal to a process; called with the process id, the signal, and the reason as
            a part of a sentence. It raises OSError on failure.

    Raises:
        OSError: the pipe cannot be created.
        UsageError: `max_interval` is invalid.
    """

    def __init__(
        self,
        file_path: str,
        run_id: str,
        max_interval: float = 10,
        daemon: bool = True,
        log_event: LogEvent | None = None,
        *,
        kill: Callable[[int, int, str], None] | None = None,
    ) -> None:
        PERIOD.check(max_interval, "max_interval")
        self._file_path = file_path
        self._run_id = run_id
        self._max_interval = max_interval
        self._daemon = daemon
        self._log_event = log_event or _log_nothing
        self._kill = kill or _kill
        self._timers: dict[tuple[int, str], FileTimerRequest] = {}
        self._starts: dict[int, int | None] = {}  # the start times of the processes
        self._unread = b""
        self._has_client = False
        self._progress = int(time.time())
        self._is_ending = False
        self._thread: threading.Thread | None = None
        with contextlib.suppress(FileNotFoundError):
            os.remove(file_path)
        os.mkfifo(file_path, 0o600)
        # Also open it for writing: without a writer, poll would always report the end of the pipe.
        self._pipe = os.open(file_path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake_up, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def start(self) -> None:
        """Start the thread."""
        thread = threading.Thread(
            target=self._watchdog_loop, name="plaunch-timer", daemon=self._daemon
        )
        self._log_event("watchdog started", None)
        start_thread(thread)
        self._thread = thread

    def stop(self) -> None:
        """Stop the thread and remove the pipe; may be called more than once."""
        if self._pipe < 0:
            return
        self._end_thread()
        self._close()
        self._log_event("watchdog stopped", None)

    def run_once(self) -> None:
        """Read the pipe and check the timers once, then close."""
        self._end_thread()
        self._turn(0.0)
        self._close()

    @staticmethod
    def is_process_running(pid: int) -> bool:
        """Whether there is a process of that id."""
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True

    def register_timers(self, timer_requests: list[FileTimerRequest]) -> None:
        """Start timers, and end those of requests with a negative time."""
        for request in timer_requests:
            key = (request.worker_pid, request.scope_id)
            if request.expiration_time < 0:
                self._timers.pop(key, None)
            else:
                self._timers[key] = request
                self._starts[request.worker_pid] = _start_of(request.worker_pid)

    def clear_timers(self, worker_pids: set[int]) -> None:
        """Remove the timers of these processes, and of processes that have ended."""
        for key in list(self._timers):
            if key[0] in worker_pids or not self._is_same(key[0]):
                del self._timers[key]
        known = {pid for pid, _ in self._timers}
        self._starts = {pid: start for pid, start in self._starts.items() if pid in known}

    def get_expired_timers(self, deadline: float) -> dict[int, list[FileTimerRequest]]:
        """Return the timers that expire at `deadline` or before, by process, earliest first."""
        expired: dict[int, list[FileTimerRequest]] = {}
        for request in sorted(self._timers.values(), key=lambda timer: timer.expiration_time):
            if request.expiration_time <= deadline:
                expired.setdefault(request.worker_pid, []).append(request)
        return expired

    def get_last_progress_time(self) -> int:
        """Return when timers were last checked, in seconds since the epoch; now without clients."""
        return self._progress if self._has_client else int(time.time())

    # --- the thread -------------------------------------------------------------------------------

    def _watchdog_loop(self) -> None:
        while not self._is_ending:
            try:
                self._turn(self._until_next())
            except Exception:
                logger.exception("the timers of job %r could not be checked", self._run_id)
                time.sleep(min(self._max_interval, 1.0))

    def _until_next(self) -> float:
        """Return the seconds until the next check."""
        if not self._timers:
            return _IDLE
        soonest = min(request.expiration_time for request in self._timers.values())
        # At most a second, because the clock may be set, or a process may end.
        return min(max(0.0, soonest - time.time()), 1.0)

    def _turn(self, timeout: float) -> None:
        poller = select.poll()
        poller.register(self._pipe, select.POLLIN)
        poller.register(self._wake_up, select.POLLIN)
        # Round up, so that the check does not come just before a timer expires.
        ready = dict(poller.poll(milliseconds(timeout + 0.001)))
        if self._pipe in ready:
            self.register_timers(self._read())
        self._progress = int(time.time())
        self.clear_timers(set())
        expired = self.get_expired_timers(time.time())
        self.clear_timers({pid for pid, timers in expired.items() if self._end(pid, timers)})

    def _read(self) -> list[FileTimerRequest]:
        requests = []
        *lines, self._unread = (self._unread + os.read(self._pipe, _CHUNK)).split(b"\n")
        if len(self._unread) > _MAX_LINE:
            self._unread = b""
        for line in filter(None, lines):
            try:
                requests.append(FileTimerRequest.from_json(line))
            except ValueError as error:
                logger.warning("input from %s is dropped: %s", self._file_path, error)
        self._has_client = self._has_client or bool(requests)
        return requests

    def _end(self, pid: int, timers: list[FileTimerRequest]) -> bool:
        """Kill a process whose timers have expired; return False to try again."""
        timer = None
        for timer in timers:
            self._log_event("timer expired", timer)
            if timer.signal > 0:
                break
        if timer is None or timer.signal <= 0:
            logger.warning(
                "the time of process %d for %s has expired; no signal is configured",
                pid,
                timers[0].scope_id,
            )
            return True
        name = _signal_name(timer.signal)
        if pid <= 1 or pid == os.getpid():
            logger.warning("process %d may not get %s for its timer", pid, name)
            return True
        late = time.time() - timer.expiration_time
        logger.warning(
            "process %d gets %s: its timer %r expired %.1f s ago", pid, name, timer.scope_id, late
        )
        reason = f"its timer {timer.scope_id!r} had expired, so plaunch sent it {name}"
        if not self._reap_worker(pid, timer.signal, reason):
            return False
        self._log_event("kill worker process", timer)
        return True

    def _reap_worker(self, worker_pid: int, signal: int, reason: str) -> bool:
        try:
            self._kill(worker_pid, signal, reason)
        except ProcessLookupError:
            return True  # it has already ended
        except OSError as error:
            logger.warning("signal %d cannot be sent to process %d: %s", signal, worker_pid, error)
            return False
        return True

    def _is_same(self, pid: int) -> bool:
        """Whether a process still runs, and its pid was not reused."""
        if not self.is_process_running(pid):
            return False
        start = self._starts.get(pid)
        return start is None or _start_of(pid) in (start, None)

    def _end_thread(self) -> None:
        self._is_ending = True
        thread, self._thread = self._thread, None
        if thread is not None:
            os.write(self._waker, b"x")
            thread.join(self._max_interval)

    def _close(self) -> None:
        for fd in (self._pipe, self._wake_up, self._waker):
            os.close(fd)
        self._pipe = -1
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._file_path)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _start_of(pid: int) -> int | None:
    """Find the start time of a process, in clock ticks since boot; None if unknown."""
    process = read_process(pid)
    return None if process is None else process.start
