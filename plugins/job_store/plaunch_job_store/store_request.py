"""A request of a client, from the call to the reply."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.frames import MessageKind

if TYPE_CHECKING:
    from plaunch_job_store.frames import Result


class StoreRequest:
    """A request without a reply yet.

    Args:
        owner: see `StoreClient.fail`.
        operations: encoded.
        may_repeat: whether it can be sent again in another session.
    """

    def __init__(self, owner: object, operations: bytes, *, may_repeat: bool) -> None:
        self.owner = owner
        self.operations = operations
        self.may_repeat = may_repeat
        self.number = 0  # in the order in which they are sent
        self.is_sent = False
        self.is_cancelled = False
        self.is_answered = False
        self.results: list[Result] = []
        self.error = ""
        self._is_pending = threading.Lock()  # cheaper than an Event, which has two
        self._is_pending.acquire()

    def encode(self) -> bytes:
        """Return what is sent, or sent again."""
        number = frames.u64(self.number)
        data = frames.frame(MessageKind.REQUEST, number, self.operations)
        return data + frames.frame(MessageKind.CANCEL, number) if self.is_cancelled else data

    def answer(self, results: list[Result]) -> None:
        """Let the caller return `results`."""
        self.results = results
        self._finish()

    def fail(self, error: str) -> None:
        """Let the caller raise `error`, unless there is an answer, or another error."""
        if not self.is_answered:
            self.error = error
            self._finish()

    def wait(self, timeout: float) -> bool:
        """Wait for the answer; False if there is none within `timeout` seconds."""
        return self.is_answered or self._is_pending.acquire(timeout=timeout)

    def _finish(self) -> None:
        self.is_answered = True
        with contextlib.suppress(RuntimeError):  # another thread was faster
            self._is_pending.release()
