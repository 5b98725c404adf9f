"""The server of a job's store in the model: the real table, with the costs of the real server."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

from plaunch_job_store import frames
from plaunch_job_store.frames import Code
from plaunch_job_store.limits import RESUME_TIMEOUT
from plaunch_job_store.sessions import make_session_id
from plaunch_job_store.store import JobStore
from plaunch_job_store.table import Session, StoreTable
from timeline import Core, Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from costs import StoreCosts
    from plaunch_job_store.answers import Answer
    from plaunch_job_store.frames import Operation, Result
    from plaunch_membership.operations import StoreOperation

_FRAME = 4  # bytes of its length
_NUMBER = 9  # bytes of the kind and the number of a request or a reply
_HANDSHAKES = 5  # one-way trips until the server has a client's HELLO: TCP's, CHALLENGE, HELLO
_RETRANSMIT = 1.0  # seconds until the kernel repeats a connection that found no room
_READS = (Code.GET, Code.COUNT_SESSIONS)


class ServerModel:
    """One server: a core, a table, and connections.

    Args:
        timeline: the virtual time.
        costs: what it costs, in seconds.
        latency: seconds of a message's way.
        backlog: connections that the kernel keeps until the server accepts them.
    """

    def __init__(self, timeline: Timeline, costs: StoreCosts, latency: float, backlog: int) -> None:
        self.core = Core(timeline)
        self.table = StoreTable()
        self.incarnation = 1
        self.requests = self.received = self.sent = self.greetings = 0
        self.most_waiting = 0  # connections in the backlog
        self.repeated = 0  # connections that found no room
        self.longest_queue = 0.0  # seconds that a message has waited for the core
        self.clients: set[ClientModel] = set()
        self.timeline = timeline
        self.costs = costs
        self.latency = latency
        self._backlog = backlog
        self._waiting: deque[float] = deque()  # when each of these is accepted

    def greet(self, client: ClientModel, opened: Callable[[], None]) -> None:
        """Accept a client, and call `opened` when it has its session."""
        timeline = self.timeline

        def arrive() -> None:
            while self._waiting and self._waiting[0] <= timeline.now:
                self._waiting.popleft()
            if len(self._waiting) >= self._backlog:
                self.repeated += 1
                timeline.at(timeline.now + _RETRANSMIT, arrive)
                return
            done = self.take(self.costs.greeting)
            self._waiting.append(done - self.costs.greeting)
            self.most_waiting = max(self.most_waiting, len(self._waiting))
            self.greetings += 1
            timeline.at(done + self.latency, welcome)

        def welcome() -> None:
            client.begin()
            opened()

        timeline.at(timeline.now + _HANDSHAKES * self.latency, arrive)

    def take(self, seconds: float) -> float:
        """Work for so long; return when that is done."""
        self.longest_queue = max(self.longest_queue, self.core.free_at - self.timeline.now)
        return self.core.take(seconds)

    def carry_out(self, client: ClientModel, number: int, operations: Sequence[Operation]) -> None:
        """Carry out a request that has arrived, and answer the waits that it ends."""
        costs = self.costs
        size = _FRAME + _NUMBER + len(frames.encode_operations(operations))
        self.requests += 1
        self.received += size
        if operations[0].code is Code.WAIT:
            self.take(costs.wait)
        else:
            writes = any(operation.code not in _READS for operation in operations)
            self.take(
                costs.request
                + costs.operation * len(operations)
                + costs.byte * size
                + (costs.write if writes else 0.0)
            )
        self.table.carry_out(client.session, number, operations)
        while self.table.has_answers():
            self.core.take(costs.wake)
            self.table.answer_waits(1)

    def end(self, client: ClientModel) -> None:
        """A client's process has ended: its session ends soon, and all others are notified."""
        self.clients.discard(client)
        session = client.session
        self.table.detach(session)

        def end() -> None:
            self.take(self.costs.end)
            if self.table.end(session, is_orderly=False):
                for other in list(self.clients):
                    done = self.take(self.costs.wake)
                    self.timeline.at(done + self.latency, other.on_loss)

        self.timeline.at(self.timeline.now + RESUME_TIMEOUT, end)

    def crash(self) -> list[ClientModel]:
        """End the process, and start its successor; return the clients that have lost it."""
        self.incarnation += 1
        self.table = StoreTable()
        self.take(self.costs.start)
        lost, self.clients = list(self.clients), set()
        return lost


class _PendingWait(Exception):  # noqa: N818 - not an error
    """A request is answered later."""

    def __init__(self, number: int, timeout: float) -> None:
        self.number = number
        self.timeout = timeout


class ClientModel:
    """The connection of a node; what a `JobStore` calls.

    Args:
        server: the server.
        on_loss: called when another session has ended, or this one is lost.
    """

    endpoint = "the model"

    def __init__(self, server: ServerModel, on_loss: Callable[[], None]) -> None:
        self.session = Session(b"")
        self.on_loss = on_loss
        self.store = JobStore(self)  # type: ignore[arg-type]  # it has what a store uses
        self.calls = 0
        self.replied_at = 0.0  # when the server has sent its last reply
        self._server = server
        self._numbers = itertools.count(1)
        self._answers: dict[int, list[Result]] = {}
        self._waits: dict[int, Callable[[list[Result]], None]] = {}
        self._awaited: list[Result] | None = None  # what the next call returns

    def begin(self) -> None:
        """Take a session."""
        server = self._server
        self.session = Session(make_session_id(server.incarnation))
        self.session.deliver = self._deliver
        self._waits.clear()
        server.table.begin(self.session)
        server.clients.add(self)

    def run(self, operation: StoreOperation, answered: Callable[[object], None]) -> None:
        """Carry out an operation of a routine that has arrived; its answer arrives later."""
        server, timeline = self._server, self._server.timeline
        before = self.calls
        try:
            result = operation.run(self.store)
        except _PendingWait as wait:
            self._begin_wait(wait, operation, answered)
            return
        trips = 2 * (self.calls - before) - 1
        replied = max(self.replied_at, timeline.now)
        timeline.at(replied + trips * server.latency, lambda: answered(result))

    def call(
        self, owner: object, operations: Sequence[Operation], wait: float | None = None
    ) -> list[Result]:
        """Carry out a request that has arrived; return its results."""
        if self._awaited is not None:
            results, self._awaited = self._awaited, None
            return results
        self.calls += 1
        number = next(self._numbers)
        self._server.carry_out(self, number, operations)
        if wait is not None and number not in self._answers:
            raise _PendingWait(number, wait)
        return self._answers.pop(number)

    def fail(self, owner: object) -> None:
        """Nothing is in progress between two events."""

    def _begin_wait(
        self, wait: _PendingWait, operation: StoreOperation, answered: Callable[[object], None]
    ) -> None:
        server, number = self._server, wait.number
        timeline, session = server.timeline, self.session

        def deliver(results: list[Result]) -> None:
            timeline.at(server.core.free_at + server.latency, lambda: finish(results))

        def finish(results: list[Result]) -> None:
            self._awaited = results  # for the same call
            answered(operation.run(self.store))

        def give_up() -> None:
            if number in self._waits and self.session is session:
                server.take(server.costs.wait)
                server.table.cancel(session, number)

        self._waits[number] = deliver
        timeline.at(timeline.now + wait.timeout, give_up)

    def _deliver(self, number: int, answer: Answer) -> None:
        server = self._server
        size = len(answer.reply(number))
        server.sent += size
        server.core.take(server.costs.byte * size)
        wait = self._waits.pop(number, None)
        if wait is not None and len(answer.results) > 1:  # reads behind the wait
            server.core.take(server.costs.operation * (len(answer.results) - 1))
        if wait is None:
            self._answers[number] = answer.results
            self.replied_at = server.core.free_at
        else:
            wait(answer.results)
