"""The keys of a job, the sessions of its nodes, and those who wait: the store without sockets."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from plaunch_job_store.answers import Answer
from plaunch_job_store.frames import TOO_LARGE, Code, OperationFailed, ProtocolError
from plaunch_job_store.limits import (
    ENTRY_OVERHEAD,
    MAX_BYTES,
    MAX_HELD,
    MAX_KEPT_BYTES,
    MAX_KEPT_RESULTS,
    MAX_REPLY,
    MAX_WAITS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch_job_store.frames import Operation, Result

_MAX_NUMBER = (1 << 63) - 1
_MAX_DIGITS = len(str(-_MAX_NUMBER))
_READS = (Code.GET, Code.COUNT_SESSIONS)


class Session:
    """One client: the keys that it holds, and the results that it may not have received.

    Args:
        session_id: its id, which only the agent knows.
        deliver: sends the answer to the request with a number; replaced at each connection.
    """

    def __init__(self, session_id: bytes) -> None:
        self.session_id = session_id
        self.deliver: Callable[[int, Answer], None] | None = None
        self.held: set[str] = set()
        self.waits: dict[int, _Wait] = {}  # by the number of the request
        self.last_write = 0  # the number of the last request that has written
        self.kept: OrderedDict[int, _KeptAnswer] = OrderedDict()
        self.kept_bytes = 0


class _KeptAnswer:
    """The answer to a request that has written, and how many bytes it takes, about."""

    __slots__ = ("answer", "size")

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.size = ENTRY_OVERHEAD + sum(map(_size_of, answer.results))


class _Wait:
    """A request that is answered once its key has a value.

    Args:
        session: of its client.
        number: of the request.
        key: the key.
        reads: what is read when it has a value.
    """

    __slots__ = ("key", "number", "reads", "session", "size")

    def __init__(self, session: Session, number: int, key: str, reads: Sequence[Operation]) -> None:
        self.session = session
        self.number = number
        self.key = key
        self.reads = reads
        self.size = _size(key) + sum(_size(read.key) for read in reads)


class StoreTable:
    """The data of a job.

    Args:
        values: what it holds at first.
        max_bytes: what all keys, values, kept results and waits may take.
    """

    def __init__(
        self, values: Mapping[str, bytes] | None = None, max_bytes: int = MAX_BYTES
    ) -> None:
        self._max_bytes = max_bytes
        self._values: dict[str, bytes] = dict(values or {})
        self._bytes = sum(_size(key, value) for key, value in self._values.items())
        self._holders: dict[str, Session] = {}
        self._sessions = 0
        self._waiting: dict[str, dict[_Wait, None]] = {}
        # What answers the waits for keys that were written, and these waits. A key may have many,
        # so they are answered some at a time, before the next request.
        self._written: deque[tuple[Answer, dict[_Wait, None]]] = deque()

    @property
    def size(self) -> int:
        """The bytes that are counted to `max_bytes`."""
        return self._bytes

    # --- requests ---------------------------------------------------------------------------------

    def carry_out(self, session: Session, number: int, operations: Sequence[Operation]) -> None:
        """Carry out the operations of a request, all or none of them before any other request.

        A request that was carried out before, under the same number, is only answered again. A
        session numbers the requests that write something in their order.

        Raises:
            ProtocolError: the number is that of a wait.
        """
        known = session.kept.get(number)
        if known is not None:
            _reply(session, number, known.answer)
            return
        first = operations[0]
        if first.code is Code.WAIT:
            self._wait(session, number, first.key, operations[1:])
            return
        if all(operation.code in _READS for operation in operations):
            _reply(session, number, Answer(self._apply_all(session, operations)))
            return
        if number <= session.last_write:
            refusal = OperationFailed("this was carried out before, and its result is not kept")
            _reply(session, number, Answer([refusal] * len(operations)))
            return
        session.last_write = number
        answer = Answer(self._apply_all(session, operations))
        self._keep(session, number, answer)
        _reply(session, number, answer)

    def _apply_all(
        self, session: Session, operations: Sequence[Operation], room: int = MAX_REPLY
    ) -> list[Result]:
        results: list[Result] = []
        for operation in operations:
            result = self._apply(session, operation, room)
            results.append(result)
            if isinstance(result, bytes):
                room -= len(result)
        return results

    def _apply(self, session: Session, operation: Operation, room: int) -> Result:
        """Carry out one operation; it returns a value of at most `room` bytes."""
        code, key = operation.code, operation.key
        if code is Code.GET:
            held = self._values.get(key)
            return held if held is None or len(held) <= room else OperationFailed(TOO_LARGE)
        if code in (Code.ADD, Code.APPEND):
            is_add = code is Code.ADD
            return self._add(key, operation.amount) if is_add else self._append(operation)
        if code is Code.COMPARE_SET:
            return self._compare_set(operation, room)
        if code is Code.COUNT_SESSIONS:
            return self._sessions
        if code is Code.DELETE:
            self._delete(key)
            return None
        return self._set(session, operation)

    def _set(self, session: Session, operation: Operation) -> OperationFailed | None:
        key, is_hold = operation.key, operation.code is Code.HOLD
        if is_hold and key not in session.held and len(session.held) >= MAX_HELD:
            return OperationFailed(f"more than {MAX_HELD} keys that one client holds")
        refusal = self._write(key, operation.value)
        if refusal is None and is_hold:
            self._holders[key] = session
            session.held.add(key)
        return refusal

    def _compare_set(self, operation: Operation, room: int) -> Result:
        held = self._values.get(operation.key)
        is_equal = held == operation.expected
        result = operation.value if is_equal else held
        if result is not None and len(result) > room:
            return OperationFailed(TOO_LARGE)
        return (self._write(operation.key, operation.value) if is_equal else None) or result

    def _add(self, key: str, amount: int) -> Result:
        held = self._values.get(key, b"0")
        try:
            total = int(held or b"0") + amount if len(held) <= _MAX_DIGITS else None
        except ValueError:
            total = None
        if total is None:
            return OperationFailed(f"{key[:80]!r} holds {held[:20]!r}, which is not a number")
        if not -_MAX_NUMBER <= total <= _MAX_NUMBER:
            return OperationFailed(f"{key[:80]!r} would exceed 64 bits")
        return self._write(key, b"%d" % total) or total

    def _append(self, operation: Operation) -> Result:
        ticket = self._add(f"{operation.key}/tickets", 1)
        if not isinstance(ticket, int):
            return ticket
        return self._write(f"{operation.key}/{ticket}", operation.value) or ticket

    def _write(self, key: str, value: bytes) -> OperationFailed | None:
        held = self._values.get(key)
        grown = len(value) - len(held) if held is not None else _size(key, value)
        refusal = self._refuse_growth(grown)
        if refusal is not None:
            return refusal
        self._bytes += grown
        self._values[key] = value
        self._release(key)
        waits = self._waiting.pop(key, None)
        if waits is not None:
            self._written.append((Answer([value], is_for_many=True), waits))
        return None

    def _refuse_growth(self, grown: int) -> OperationFailed | None:
        if grown <= 0 or self._bytes + grown <= self._max_bytes:
            return None
        return OperationFailed(
            f"the store is full: it holds {self._bytes} of {self._max_bytes} bytes"
        )

    def _delete(self, key: str) -> None:
        value = self._values.pop(key, None)
        if value is not None:
            self._bytes -= _size(key, value)
            self._release(key)

    def _release(self, key: str) -> None:
        """Forget which session a key ends with; another one may have written it."""
        holder = self._holders.pop(key, None)
        if holder is not None:
            holder.held.discard(key)

    # --- kept results -----------------------------------------------------------------------------

    def _keep(self, session: Session, number: int, answer: Answer) -> None:
        """Keep the answer to a request until the client must have received it.

        If there is no room, a repeated request is refused, and not carried out again.
        """
        kept = _KeptAnswer(answer)
        session.kept[number] = kept
        session.kept_bytes += kept.size
        self._bytes += kept.size
        while session.kept and (
            len(session.kept) > MAX_KEPT_RESULTS
            or session.kept_bytes > MAX_KEPT_BYTES
            or self._bytes > self._max_bytes
        ):
            _, oldest = session.kept.popitem(last=False)
            session.kept_bytes -= oldest.size
            self._bytes -= oldest.size

    # --- waits ------------------------------------------------------------------------------------

    def _wait(self, session: Session, number: int, key: str, reads: Sequence[Operation]) -> None:
        held = self._values.get(key)
        if held is not None:
            read = self._apply_all(session, reads, MAX_REPLY - len(held))
            _reply(session, number, Answer([held, *read]))
            return
        if number in session.waits:
            raise ProtocolError(f"two waits with the number {number}")
        wait = _Wait(session, number, key, reads)
        refusal = self._refuse_growth(wait.size)
        if len(session.waits) >= MAX_WAITS:
            refusal = OperationFailed(f"more than {MAX_WAITS} waits of one client")
        if refusal is not None:
            _reply(session, number, Answer([refusal, *([None] * len(reads))]))
            return
        session.waits[number] = wait
        self._waiting.setdefault(key, {})[wait] = None
        self._bytes += wait.size

    def has_answers(self) -> bool:
        """Whether waits are to be answered, before the next request."""
        return bool(self._written)

    def answer_waits(self, most: int) -> None:
        """Answer some waits whose keys have been written, `most` at most."""
        for _ in range(most):
            if not self._written:
                return
            answer, waits = self._written[0]
            wait, _ = waits.popitem()
            if not waits:
                self._written.popleft()
            session, number = wait.session, wait.number
            if session.waits.get(number) is wait:  # else its connection has ended
                del session.waits[number]
                self._bytes -= wait.size
                if wait.reads:
                    room = MAX_REPLY - len(answer.value)
                    answer = answer.with_more(self._apply_all(session, wait.reads, room))
                _reply(session, number, answer)

    def cancel(self, session: Session, number: int) -> None:
        """Answer a wait now; nothing happens if it has been answered, or will be with a value."""
        wait = session.waits.get(number)
        if wait is not None and wait in self._waiting.get(wait.key, ()):
            self._forget(wait)
            _reply(session, number, Answer([None] * (1 + len(wait.reads))))

    def _forget(self, wait: _Wait) -> None:
        del wait.session.waits[wait.number]
        self._bytes -= wait.size
        waiting = self._waiting.get(wait.key, {})
        if wait in waiting:
            del waiting[wait]
            if not waiting:
                del self._waiting[wait.key]

    # --- sessions ---------------------------------------------------------------------------------

    def begin(self, session: Session) -> None:
        """Begin a session; it lasts until `end`."""
        self._sessions += 1

    def detach(self, session: Session) -> None:
        """Forget the waits of a session without a connection; its client will send them again."""
        session.deliver = None
        for wait in list(session.waits.values()):
            self._forget(wait)

    def end(self, session: Session, *, is_orderly: bool) -> bool:
        """End a session. Unless it `is_orderly`, the keys that it holds are deleted.

        Returns:
            Whether keys were deleted.
        """
        self._sessions -= 1
        self.detach(session)
        self._bytes -= session.kept_bytes
        session.kept.clear()
        session.kept_bytes = 0
        held = list(session.held)
        for key in held:
            if is_orderly:
                self._release(key)
            else:
                self._delete(key)
        return bool(held) and not is_orderly


def _reply(session: Session, number: int, answer: Answer) -> None:
    if session.deliver is not None:
        session.deliver(number, answer)


def _size(key: str, value: bytes = b"") -> int:
    return ENTRY_OVERHEAD + len(key) + len(value)


def _size_of(result: Result) -> int:
    """Return the bytes of memory that a kept result takes, about."""
    if result is None:
        return 8
    if isinstance(result, bytes):
        return 40 + len(result)
    return 40 if isinstance(result, int) else 160 + len(result.reason)
