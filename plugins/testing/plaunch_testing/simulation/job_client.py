"""The client of plaunch's own server in the simulator: sessions, and calls over connections."""

from __future__ import annotations

import abc
import itertools
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError
from plaunch_job_store.client import CONNECT_TIMEOUT, RECONNECT_TIMEOUT
from plaunch_job_store.limits import RESUME_TIMEOUT
from plaunch_job_store.store import JobStore
from plaunch_membership import StoreNotListeningError

from plaunch_testing.simulation.job_links import LinkDirection, StoreCall
from plaunch_testing.simulation.network import UnreachableError
from plaunch_testing.simulation.stores import ENDPOINT, REQUEST_TIMEOUT, SimulatedStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch_job_store.answers import Answer
    from plaunch_job_store.frames import Operation, Result
    from plaunch_job_store.table import Session, StoreTable

    from plaunch_testing.simulation.hub import SimulatedProcess, SimulatedTask

# An address gets half of the time of an attempt to connect.
_DIAL_TIMEOUT = CONNECT_TIMEOUT / 2  # seconds

__all__ = ["JobStoreClients", "SessionClient", "SessionServer"]


class SessionServer(SimulatedStore):
    """A server with sessions, as its clients see it.

    Attributes:
        table: what it holds.
        sessions: by their ids.
    """

    table: StoreTable
    sessions: dict[bytes, Session]

    @abc.abstractmethod
    def add_client(self, process: SimulatedProcess, client: SessionClient) -> None:
        """A process has connected."""

    @abc.abstractmethod
    def forget_client(self, process: SimulatedProcess) -> None:
        """A process has closed its connection."""

    @abc.abstractmethod
    def open_session(self, former: bytes) -> Session:
        """Return the session with this id, or another one."""

    @abc.abstractmethod
    def end_session(self, session: Session, *, is_orderly: bool) -> None:
        """End a session; the others are notified if keys were deleted."""

    @abc.abstractmethod
    def carry_out(self, session: Session, number: int, operations: Sequence[Operation]) -> None:
        """Carry out a request, and answer the waits that it ends."""


class JobStoreClients:
    """The connection that all threads of a process share; `JobStoreConnector` in the simulator."""

    def __init__(self, server: SessionServer, process: SimulatedProcess) -> None:
        self.listeners: list[Callable[[], None]] = []
        self._server = server
        self._process = process
        self._client: SessionClient | None = None
        self._is_closed = False
        self._opener: SimulatedTask | None = None
        self._waiters: dict[SimulatedTask, None] = {}

    def connect(self) -> JobStore:
        """Return a store over the shared connection; open that if it is broken."""
        hub = self._server.hub
        while self._opener is not None and self._opener is not hub.current:
            hub.wait(self._waiters)
        client = self._client
        if client is None or client.is_broken:
            self._opener = hub.current
            try:
                client = SessionClient(self._server, self._process, self._notify)
                self._client = client
            finally:
                self._opener = None
                hub.wake_all(self._waiters)
            if self._is_closed:
                client.close()
        return JobStore(client)  # type: ignore[arg-type]  # it has what a store uses

    def has_lost_data(self) -> bool:
        """Whether the server is the successor of one whose data is lost."""
        return self._client is not None and self._client.incarnation > 1

    def close(self) -> None:
        """Say goodbye."""
        self._is_closed = True
        if self._client is not None:
            self._client.close()

    def _notify(self) -> None:
        for listener in self.listeners:
            listener()


class SessionClient:
    """One connection with one session; `StoreClient` in the simulator.

    Raises:
        RendezvousConnectionError: the server cannot be reached.
    """

    endpoint = ENDPOINT

    def __init__(
        self, server: SessionServer, process: SimulatedProcess, on_loss: Callable[[], None]
    ) -> None:
        self.process = process
        self.session: Session | None = None
        self.is_broken = False
        self._server = server
        self._on_loss = on_loss
        self._hub = server.hub
        self._numbers = itertools.count(1)
        self._calls: dict[int, StoreCall] = {}
        self._is_connected = False
        self._is_resuming = False
        self._open(_DIAL_TIMEOUT)
        server.add_client(process, self)

    @property
    def incarnation(self) -> int:
        """The incarnation of the server that has given the session."""
        return 0 if self.session is None else self.session.session_id[3]

    # --- what a store calls -----------------------------------------------------------------------

    def call(
        self, owner: object, operations: Sequence[Operation], wait: float | None = None
    ) -> list[Result]:
        """Send operations, and return their results."""
        if self.is_broken:
            raise RendezvousConnectionError(f"the connection to {ENDPOINT} is closed")
        call = StoreCall(owner, next(self._numbers), operations)
        self._calls[call.number] = call
        try:
            self._send(call)
            if wait is not None and not self._await(call, wait):
                session = self.session
                if session is not None and self._is_connected:
                    self._server.table.cancel(session, call.number)
            if not self._await(call, REQUEST_TIMEOUT):
                call.error = f"no reply within {REQUEST_TIMEOUT:g} s"
        finally:
            del self._calls[call.number]
        if call.error:
            raise RendezvousConnectionError(f"the rendezvous store at {ENDPOINT}: {call.error}")
        assert call.results is not None
        return call.results

    def fail(self, owner: object) -> None:
        """End the calls of `owner`; connect again if one of them may have been carried out."""
        own = [call for call in self._calls.values() if call.owner is owner]
        for call in own:
            self._finish(call, error="the connection is closed")
        if any(not call.may_repeat for call in own):
            self.break_off()

    def close(self) -> None:
        """End the session; the keys that it holds remain."""
        if self.is_broken:
            return
        self._fail_all("the connection is closed")
        self.is_broken = True
        self._server.forget_client(self.process)
        if self._is_connected and self.session is not None:
            session = self.session
            # The goodbye is sent behind all requests.
            self._requests.send(lambda: self._server.end_session(session, is_orderly=True))
            self._replies.is_closed = True
        self._is_connected = False

    # --- messages ---------------------------------------------------------------------------------

    def _await(self, call: StoreCall, timeout: float) -> bool:
        if not call.is_over:
            self._hub.wait(call.waiters, timeout)
        return call.is_over

    def _send(self, call: StoreCall) -> None:
        """Let a request arrive later; without a connection it is sent when there is one."""
        server, session = self._server, self.session
        if not self._is_connected or session is None:
            return

        def arrive() -> None:
            if call.is_over or not server.is_running:
                return
            if server.loss and self._hub.random.random() < server.loss:
                self.break_off()
                return
            if server.is_suspended:
                server.carry_out_later(arrive)
                return
            server.carry_out(session, call.number, call.operations)
            server.note_request(self.process)

        self._later(arrive, server.work)

    def _deliver(self, session: Session) -> Callable[[int, Answer], None]:
        def deliver(number: int, answer: Answer) -> None:
            def arrive() -> None:
                call = self._calls.get(number)
                if call is None:
                    return
                if self._server.loss and self._hub.random.random() < self._server.loss:
                    self.break_off()
                    return
                self._finish(call, results=answer.results)

            self._later(arrive, is_reply=True)

        return deliver

    def _later(
        self, arrive: Callable[[], None], work: float = 0.0, *, is_reply: bool = False
    ) -> None:
        (self._replies if is_reply else self._requests).send(arrive, work)

    def _finish(
        self, call: StoreCall, *, results: list[Result] | None = None, error: str = ""
    ) -> None:
        if not call.is_over:
            call.results, call.error = results, error
            self._hub.wake_all(call.waiters)

    def _fail_all(self, reason: str) -> None:
        for call in list(self._calls.values()):
            self._finish(call, error=reason)

    def notify_later(self) -> None:
        """The server has ended the session of another client."""
        self._later_on_client(self._on_loss)

    def _later_on_client(self, function: Callable[[], None]) -> None:
        def run() -> None:
            if self.process.is_alive:
                self._hub.spawn(function, "plaunch-store", self.process)

        self._later(run, is_reply=True)

    # --- the connection ---------------------------------------------------------------------------

    def break_off(self) -> None:
        """The connection has broken; the client tries to resume its session."""
        if not self._is_connected:
            return
        self._hang_up()
        session = self.session
        if session is not None and session.session_id in self._server.sessions:
            self._server.table.detach(session)
            self._hub.spawn(lambda: self._give_up(session), "end of a detached session")
        if self.process.is_alive and not self._is_resuming:
            self._is_resuming = True
            self._hub.spawn(self._resume, "plaunch-store", self.process)

    def _hang_up(self) -> None:
        self._is_connected = False
        self._requests.is_closed = self._replies.is_closed = True

    def _give_up(self, session: Session) -> None:
        self._server.await_resume()  # before, it does not see that the connection has ended
        self._hub.sleep(RESUME_TIMEOUT)
        self._server.await_resume()
        if not (self._is_connected and self.session is session):
            self._server.end_session(session, is_orderly=False)

    def _resume(self) -> None:
        former = self.session
        try:
            self._open(RECONNECT_TIMEOUT)
        except RendezvousConnectionError as error:
            self._is_resuming = False
            self.is_broken = True
            self._fail_all(str(error))
            self._on_loss()
            return
        self._is_resuming = False
        is_same = self.session is former
        for call in list(self._calls.values()):
            if not (is_same or call.may_repeat):
                self._finish(call, error="the connection was lost, and the session has ended")
            elif not call.is_over:
                self._send(call)
        if not is_same:
            self._on_loss()

    def _open(self, timeout: float) -> None:
        """Connect and take a session; a message each way for the handshake, and for the greeting.

        The server's challenge travels with the end of the handshake.
        """
        server, hub, host = self._server, self._hub, self.process.host
        until = hub.now + timeout
        while True:
            try:
                for _ in range(2):
                    server.network.carry(host, server.host, max(until - hub.now, 0.0))
                    if not server.is_running:
                        raise StoreNotListeningError(f"{ENDPOINT} is not listening")  # noqa: TRY301
                    while server.is_suspended:
                        if until <= hub.now:
                            raise UnreachableError  # noqa: TRY301
                        hub.wait(server.resumed, until - hub.now)
                    server.network.carry(server.host, host, max(until - hub.now, 0.0))
            except UnreachableError:
                raise RendezvousConnectionError(f"the store at {ENDPOINT} is silent") from None
            except StoreNotListeningError:
                if self.session is None or hub.now >= until or self.is_broken:
                    raise
                hub.sleep(0.02)
                continue
            break
        if self.is_broken:
            raise RendezvousConnectionError("the connection is closed")
        session = server.open_session(b"" if self.session is None else self.session.session_id)
        self.session = session
        self._requests = LinkDirection(hub, server.network, host, server.host)
        self._replies = LinkDirection(hub, server.network, server.host, host)
        session.deliver = self._deliver(session)
        self._is_connected = True
