"""Timers over a named pipe: what is written into it, and who writes; names are torchrun's."""

from __future__ import annotations

import json
import math
import os
import select
import signal as signals
import time
from typing import Any

from plaunch.errors import TimerError

from plaunch_timer.api import TimerClient, TimerRequest

_PATIENCE = 1.0  # seconds that a client waits for a server to be there
_LOOK = 0.1


class FileTimerRequest(TimerRequest):
    """A request as it goes through the pipe: one line of JSON.

    Args:
        worker_pid: the process that the timer is about.
        scope_id: the name of the timer; a process has one of each name.
        expiration_time: when it expires, in seconds since the epoch; negative ends the timer.
        signal: what the process is killed with; 0 or less leaves it alone.
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
        """The process that the timer is about."""
        return int(self.worker_id)

    def to_json(self) -> str:
        """The line, without its end."""
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
        """Read what `to_json` wrote, here or in torch.

        Raises:
            ValueError: it is something else.
        """
        try:
            data = json.loads(line)
            expiration_time = float(data["expiration_time"])
            if math.isnan(expiration_time):
                raise ValueError(f"{line!r} is not a timer request: it has no time")
            return cls(
                int(data["pid"]), str(data["scope_id"]), expiration_time, int(data["signal"])
            )
        except (TypeError, KeyError, OverflowError) as error:
            raise ValueError(f"{line!r} is not a timer request: {error!r}") from error

    def _key(self) -> tuple[Any, ...]:
        return (*super()._key(), self.version, self.signal)


class FileTimerClient(TimerClient):
    """Asks a `FileTimerServer` on the same host, ours or torch's, about this process.

    Args:
        file_path: the pipe; `TORCHELASTIC_TIMER_FILE` names the agent's.
        signal: what this process is killed with; 0 or less leaves it alone.
    """

    def __init__(self, file_path: str, signal: int = signals.SIGKILL) -> None:
        self._file_path = file_path
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
        # The system keeps what is no longer than this in one piece, whoever else writes.
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
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return os.open(self._file_path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if time.monotonic() > deadline:
                    raise BrokenPipeError(
                        f"no timer server reads {self._file_path!r}: {error}"
                    ) from error
            time.sleep(_LOOK)
