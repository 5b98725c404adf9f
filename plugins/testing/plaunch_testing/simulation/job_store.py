"""The store of plaunch's own server: its real table, with simulated sessions and connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch_job_store.limits import RESUME_TIMEOUT, SILENCE_TIMEOUT
from plaunch_job_store.sessions import make_session_id
from plaunch_job_store.table import Session, StoreTable
from plaunch_membership import StoreAccess

from plaunch_testing.simulation.job_client import JobStoreClients, SessionClient, SessionServer
from plaunch_testing.simulation.stores import ENDPOINT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_job_store.frames import Operation

    from plaunch_testing.simulation.hub import Hub, SimulatedHost, SimulatedProcess
    from plaunch_testing.simulation.network import SimulatedNetwork

__all__ = ["JobStoreServer"]


class JobStoreServer(SessionServer):
    """plaunch's own server; one that starts again has lost its data, and says so."""

    def __init__(self, hub: Hub, network: SimulatedNetwork, host: SimulatedHost) -> None:
        super().__init__(hub, network, host)
        self.table = StoreTable()
        self.incarnation = 1
        self.sessions: dict[bytes, Session] = {}
        self._clients: dict[SimulatedProcess, SessionClient] = {}

    def access(self, process: SimulatedProcess) -> StoreAccess:
        """Return how a process reaches the store."""
        connector = JobStoreClients(self, process)
        return StoreAccess(
            connector.connect,
            process.host.name,
            ENDPOINT,
            release=connector.close,
            subscribe=connector.listeners.append,
            has_lost_data=connector.has_lost_data,
        )

    def key_list(self) -> Sequence[str]:
        """Return the keys that have a value."""
        return sorted(self.table._values)

    def connections_of(self, process: SimulatedProcess) -> int:
        """How many connections a process has not closed."""
        return int(process in self._clients and not self._clients[process].is_broken)

    def crash(self) -> None:
        """End the server's process."""
        self.is_running = False
        self.sessions.clear()
        for client in list(self._clients.values()):
            client.break_off()
        self.network.wake()

    def restart(self, *, keeps_data: bool) -> None:
        """Start another server; it has no data, whatever is asked for."""
        self.incarnation += 1
        self.table = StoreTable()
        self.is_running = True

    def add_client(self, process: SimulatedProcess, client: SessionClient) -> None:
        """A process has connected."""
        self._clients[process] = client

    def forget_client(self, process: SimulatedProcess) -> None:
        """A process has closed its connection."""
        self._clients.pop(process, None)

    def end_process(self, process: SimulatedProcess) -> None:
        """The connection of a process was closed by its system: the session ends soon."""
        client = self._clients.pop(process, None)
        if client is not None:
            self._end_later(client, 0.0)

    def lose_host(self, host: SimulatedHost) -> None:
        """Connections to a host are silent: the kernel gives them up after some seconds."""
        for process, client in list(self._clients.items()):
            if process.host is host:
                self._end_later(client, SILENCE_TIMEOUT)

    def _end_later(self, client: SessionClient, silence: float) -> None:
        """End the session of a client in `silence` seconds, unless it can be reached again."""
        hub, host = self.hub, client.process.host
        session = client.session

        def end() -> None:
            hub.sleep(silence)
            if client.process.is_alive and self.reaches(host):
                return
            client.break_off()
            self.await_resume()
            hub.sleep(RESUME_TIMEOUT)
            self.await_resume()
            if session is not None and client.session is session:
                self.end_session(session, is_orderly=False)

        hub.spawn(end, f"end of the session of {host.name}")

    def reaches(self, host: SimulatedHost) -> bool:
        """Whether packets get from a host to the server, and back."""
        network = self.network
        return network.reaches(host, self.host) and network.reaches(self.host, host)

    def end_session(self, session: Session, *, is_orderly: bool) -> None:
        """End a session; the others are notified if keys were deleted."""
        if self.sessions.pop(session.session_id, None) is None:
            return
        if self.table.end(session, is_orderly=is_orderly):
            for client in list(self._clients.values()):
                if client.session is not session and client.process.is_alive:
                    client.notify_later()

    def open_session(self, former: bytes) -> Session:
        """Return the session with this id, or another one."""
        session = self.sessions.get(former)
        if session is None:
            session = Session(make_session_id(self.incarnation))
            self.sessions[session.session_id] = session
            self.table.begin(session)
        return session

    def carry_out(self, session: Session, number: int, operations: Sequence[Operation]) -> None:
        """Carry out a request, and answer the waits that it ends."""
        self.table.carry_out(session, number, operations)
        while self.table.has_answers():
            self.table.answer_waits(1)
