"""The keys of a job, the sessions of its nodes, and those who wait: the store without sockets."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from plaunch_job_store.frames import Code, Operation, OperationFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_job_store.frames import Result

MAX_BYTES = 256 << 20  # of all keys and values
MAX_WAITS = 256  # of one session
_OVERHEAD = 128  # bytes that an entry takes beside its key and its value, about
_MAX_NUMBER = (1 << 63) - 1
_READS = (Code.GET, Code.COUNT_SESSIONS)
_KEPT_REPLIES = 64  # per session; a client has fewer threads


class Session:
    """One client: the keys that it holds, and the results that it may not have received.

    Args:
        session_id: its id, which only the agent knows.
        deliver: sends the results of the request with a number; replaced at each connection.
    """

    def __init__(self, session_id: bytes) -> None:
        self.session_id = session_id
        self.deliver: Callable[[int, list[Result]], None] | None = None
        self.held: set[str] = set()
        self.waits: dict[int, str] = {}  # the key by the number of the request
        self.replies: OrderedDict[int, list[Result]] = OrderedDict()


class StoreTable:
    """The data of a job.

    Args:
        values: what it holds at first.
        max_bytes: what all keys and values may take.
    """

    def __init__(
        self, values: Mapping[str, bytes] | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._values: dict[str, bytes] = dict(values or {})
        self._bytes = sum(_size(key, value) for key, value in self._values.items())
        self._holders: dict[str, Session] = {}
        self._sessions = 0
        self._waiting: dict[str, dict[tuple[bytes, int], Session]] = {}

    # --- requests ---------------------------------------------------------------------------------

    def carry_out(self, session: Session, number: int, operations: Sequence[Operation]) -> None:
        """Carry out the operations of a request, all or none of them before any other request.

        A request that was carried out before, under the same number, is only answered again.
        """
        if (known := session.replies.get(number)) is not None:
            self._reply(session, number, known)
            return
        first = operations[0]
        if first.code is Code.WAIT:
            self._wait(session, number, first.key)
            return
        results = [self._apply(session, operation) for operation in operations]
        if any(operation.code not in _READS for operation in operations):
            session.replies[number] = results
            if len(session.replies) > _KEPT_REPLIES:
                session.replies.popitem(last=False)
        self._reply(session, number, results)

    def _apply(self, session: Session, operation: Operation) -> Result:
        code, key, held = operation.code, operation.key, self._values.get(operation.key)
        if code is Code.ADD:
            return self._add(key, held, operation.amount)
        if code is Code.COMPARE_SET:
            if held != operation.expected:
                return held
            return self._write(key, operation.value) or operation.value
        if code is Code.GET:
            return held
        if code is Code.COUNT_SESSIONS:
            return self._sessions
        refusal: OperationFailed | None = None
        if code is Code.DELETE:
            self._delete(key)
        else:
            refusal = self._write(key, operation.value)
            if refusal is None and code is Code.HOLD:
                self._hold(session, key)
        return refusal

    def _add(self, key: str, held: bytes | None, amount: int) -> Result:
        try:
            total = int(held or b"0") + amount
        except ValueError:
            return OperationFailed(f"{key!r} holds {held!r:.60}, which is not a number")
        if not -_MAX_NUMBER <= total <= _MAX_NUMBER:
            return OperationFailed(f"{key!r} would exceed 64 bits")
        return self._write(key, b"%d" % total) or total

    def _write(self, key: str, value: bytes) -> OperationFailed | None:
        held = self._values.get(key)
        grown = len(value) - len(held) if held is not None else _size(key, value)
        if grown > 0 and self._bytes + grown > self._max_bytes:
            return OperationFailed(
                f"the store is full: it holds {self._bytes} of {self._max_bytes} bytes"
            )
        self._bytes += grown
        self._values[key] = value
        self._release(key)
        for (_, number), session in self._waiting.pop(key, {}).items():
            session.waits.pop(number, None)
            self._reply(session, number, [value])
        return None

    def _delete(self, key: str) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._bytes -= _size(key, value)
            self._release(key)

    def _hold(self, session: Session, key: str) -> None:
        self._holders[key] = session
        session.held.add(key)

    def _release(self, key: str) -> None:
        """Forget which session a key ends with; another one may have written it."""
        holder = self._holders.pop(key, None)
        if holder is not None:
            holder.held.discard(key)

    def _reply(self, session: Session, number: int, results: list[Result]) -> None:
        if session.deliver is not None:
            session.deliver(number, results)

    # --- waits ------------------------------------------------------------------------------------

    def _wait(self, session: Session, number: int, key: str) -> None:
        held = self._values.get(key)
        if held is not None:
            self._reply(session, number, [held])
            return
        if len(session.waits) >= MAX_WAITS:
            refusal = OperationFailed(f"more than {MAX_WAITS} waits of one client")
            self._reply(session, number, [refusal])
            return
        session.waits[number] = key
        self._waiting.setdefault(key, {})[session.session_id, number] = session

    def cancel(self, session: Session, number: int) -> None:
        """Answer a wait now; nothing happens if it has been answered."""
        if number in session.waits:
            self._forget_wait(session, number)
            self._reply(session, number, [None])

    def _forget_wait(self, session: Session, number: int) -> None:
        key = session.waits.pop(number)
        waiting = self._waiting.get(key, {})
        waiting.pop((session.session_id, number), None)
        if not waiting:
            self._waiting.pop(key, None)

    # --- sessions ---------------------------------------------------------------------------------

    def begin(self, session: Session) -> None:
        """Begin a session; it lasts until `end`."""
        self._sessions += 1

    def detach(self, session: Session) -> None:
        """Forget the waits of a session without a connection; its client will send them again."""
        session.deliver = None
        for number in list(session.waits):
            self._forget_wait(session, number)

    def end(self, session: Session, *, is_orderly: bool) -> bool:
        """End a session. Unless it `is_orderly`, the keys that it holds are deleted.

        Returns:
            Whether keys were deleted.
        """
        self._sessions -= 1
        self.detach(session)
        held = list(session.held)
        for key in held:
            if is_orderly:
                self._release(key)
            else:
                self._delete(key)
        return bool(held) and not is_orderly


def _size(key: str, value: bytes) -> int:
    return _OVERHEAD + len(key) + len(value)
