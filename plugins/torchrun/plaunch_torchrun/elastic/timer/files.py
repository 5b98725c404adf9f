"""The requests and the client of timers over a named pipe; names are torchrun's."""

from __future__ import annotations

import json
import math
import os
import select
import signal as signals
import time
from typing import Any

from plaunch.errors import TimerError

from plaunch_torchrun.elastic.timer.api import TimerClient, TimerRequest

_PATIENCE = 1.0  # seconds
_POLL = 0.1  # seconds


class FileTimerRequest(TimerRequest):
    """A request in the pipe: one line of JSON.

    Args:
        worker_pid: the process of the timer.
        scope_id: the name of the timer, unique for a process.
        expiration_time: when it expires, in seconds since the epoch; negative ends the timer.
        signal: the signal that kills the process; 0 or less for none.
    """

    __slots__ = ("signal", "version")

    def __init__(
        self, worker_pid: int, scope_id: str, expiration_time: float, signal: int = 0
    ) -> None:
        super().__init__(worker_pid, scope_id, expiration_time)
        self.version = 1
        self.signal = signal

    @property
    def worker_pid(self) -> int:
        """The process of the timer."""
        return int(self.worker_id)

    def to_json(self) -> str:
        """Serialize the request, without a line end."""
        return json.dumps(
            {
                "version": self.version,
                "pid": self.worker_pid,
                "scope_id": self.scope_id,
                "expiration_time": self.expiration_time,
                "signal": int(self.signal),
            }
        )

    @classmethod
    def from_json(cls, line: str | bytes) -> FileTimerRequest:
        """Parse the output of `to_json`, plaunch's or torch's.

        Raises:
            ValueError: the line is not a request.
        """
        try:
            data = json.loads(line)
            expiration_time = float(data["expiration_time"])
            if math.isnan(expiration_time):
                raise ValueError(f"{line!r} is not a timer request: it has no time")
            return cls(
                int(data["pid"]), str(data["scope_id"]), expiration_time, int(data["signal"])
            )
        except (TypeError, KeyError, OverflowError, RecursionError) as error:
            raise ValueError(f"{line!r} is not a timer request: {error!r}") from error

    def _key(self) -> tuple[Any, ...]:
        return (*super()._key(), self.version, self.signal)


class FileTimerClient(TimerClient):
    """Sends requests for this process to a `FileTimerServer` of plaunch or torch on this host.

    Args:
        file_path: the pipe; `TORCHELASTIC_TIMER_FILE` names that of the agent.
        signal: the signal that kills this process; 0 or less for none.
        patience: seconds to wait for a server.
    """

    def __init__(
        self, file_path: str, signal: int = signals.SIGKILL, *, patience: float = _PATIENCE
    ) -> None:
        self._file_path = file_path
        self._patience = patience
        self.signal = signal

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Start a timer of this process.

        Raises:
            BrokenPipeError: there is no server.
            TimerError: the name is too long for a pipe.
        """
        self._send(FileTimerRequest(os.getpid(), scope_id, expiration_time, self.signal))

    def release(self, scope_id: str) -> None:
        """End a timer of this process; raises what `acquire` does."""
        self._send(FileTimerRequest(os.getpid(), scope_id, -1))

    def _send(self, request: FileTimerRequest) -> None:
        line = (request.to_json() + "\n").encode()
        # Writes of up to this size are atomic.
        if len(line) > select.PIPE_BUF:
            raise TimerError(
                f"the timer {request.scope_id[:40]!r}... makes a request of {len(line)} bytes; a "
                f"pipe accepts {select.PIPE_BUF}: give it a shorter name"
            )
        pipe = self._open()
        try:
            os.set_blocking(pipe, True)
            os.write(pipe, line)
        finally:
            os.close(pipe)

    def _open(self) -> int:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                return os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise BrokenPipeError(
                        f"no timer server reads {self._file_path!r}: {error}"
                    ) from error
            time.sleep(_POLL)
