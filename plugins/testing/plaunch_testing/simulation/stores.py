"""Stores with the semantics of TCPStore and etcd: what they keep, lose, repeat and wake.

A request travels to the server, is carried out there, and its reply travels back. Each way can take
long or fail, so an operation that has failed for its caller may have taken effect.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError, RendezvousStateError
from plaunch_membership import RendezvousStore, StoreAccess, StoreNotListeningError

from plaunch_testing.simulation.network import UnreachableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from plaunch_testing.simulation.hub import Hub, SimulatedHost, SimulatedProcess, SimulatedTask
    from plaunch_testing.simulation.network import SimulatedNetwork

    T = TypeVar("T")

__all__ = ["KeyServer", "SimulatedEtcd", "SimulatedStore", "SimulatedTcpStore"]

ENDPOINT = "store:29400"
CONNECT_TIMEOUT = 5.0  # seconds, of one attempt to connect
REQUEST_TIMEOUT = 10.0  # seconds without a reply
_NEXT_REQUEST = 10.0  # seconds to wait for a request of a process
LEASE = 15.0  # seconds that etcd keeps the heartbeat of a process that is gone


class SimulatedStore(abc.ABC):
    """The server of a store, on a host of its own.

    Args:
        hub: has the clock.
        network: between its clients and the server.
        host: where it runs.

    Attributes:
        is_running: whether the server's process runs.
        is_suspended: whether it is stopped, as by SIGSTOP.
        work: the mean time of one request, in seconds; a slow server has more.
        loss: the probability that a message ends its connection.
        operations: the number of requests.
    """

    def __init__(self, hub: Hub, network: SimulatedNetwork, host: SimulatedHost) -> None:
        self.hub = hub
        self.network = network
        self.host = host
        self.is_running = True
        self.is_suspended = False
        self.resumed: dict[SimulatedTask, None] = {}  # tasks that wait until it runs again
        self._late: list[Callable[[], object]] = []  # requests that arrived while it was suspended
        self._counted: dict[SimulatedProcess, tuple[int, SimulatedTask]] = {}
        self.work = 0.0
        self.loss = 0.0
        self.operations = 0

    @abc.abstractmethod
    def access(self, process: SimulatedProcess) -> StoreAccess:
        """Return how a process reaches the store."""

    @abc.abstractmethod
    def key_list(self) -> Sequence[str]:
        """Return the keys that have a value."""

    @abc.abstractmethod
    def connections_of(self, process: SimulatedProcess) -> int:
        """How many connections a process has not closed."""

    @abc.abstractmethod
    def crash(self) -> None:
        """End the server's process; its host stays up, and refuses connections."""

    @abc.abstractmethod
    def restart(self, *, keeps_data: bool) -> None:
        """Start the server's process again."""

    def suspend(self) -> None:
        """Stop the server's process; requests wait."""
        self.is_suspended = True

    def resume(self) -> None:
        """Continue: carry out what has arrived meanwhile."""
        self.is_suspended = False
        late, self._late = self._late, []
        for request in late:
            request()
        self.hub.wake_all(self.resumed)

    def carry_out_later(self, request: Callable[[], object]) -> None:
        """Carry out a request as soon as the server runs again."""
        self._late.append(request)

    def await_resume(self) -> None:
        """Wait while the server is suspended."""
        while self.is_suspended:
            self.hub.wait(self.resumed)

    def await_requests(self, process: SimulatedProcess, count: int) -> None:
        """Wait until a process has made so many requests more, whose last one has no reply yet."""
        task = self.hub.current
        assert task is not None
        self._counted[process] = count, task
        self.hub.wait(None, _NEXT_REQUEST)
        self._counted.pop(process, None)

    def note_request(self, process: SimulatedProcess) -> None:
        """A request was carried out."""
        self.operations += 1
        if process in self._counted:
            left, task = self._counted[process]
            self._counted[process] = left - 1, task
            if left == 1:
                self.hub.wake(task)

    def end_process(self, process: SimulatedProcess) -> None:  # noqa: B027 - TCPStore does not care
        """A client's process has ended, and its system has closed its connections."""

    def lose_host(self, host: SimulatedHost) -> None:  # noqa: B027 - as above
        """A client's host has failed, or cannot be reached; no connection was closed."""


class KeyServer(SimulatedStore):
    """A server that keeps values by key."""

    def __init__(self, hub: Hub, network: SimulatedNetwork, host: SimulatedHost) -> None:
        super().__init__(hub, network, host)
        self.values: dict[str, bytes] = {}
        self.generation = 0  # of its process; connections to an earlier one are broken
        self.waiting: dict[str, dict[SimulatedTask, None]] = {}
        self.connections: dict[SimulatedProcess, list[_KeyConnection]] = {}

    def key_list(self) -> Sequence[str]:
        """Return the keys that have a value."""
        return sorted(self.values)

    def connections_of(self, process: SimulatedProcess) -> int:
        """How many connections a process has not closed."""
        return sum(not one.is_closed for one in self.connections.get(process, ()))

    def crash(self) -> None:
        """End the server's process."""
        self.is_running = False
        self.generation += 1
        for waiters in self.waiting.values():
            self.hub.wake_all(waiters)
        self.network.wake()

    def restart(self, *, keeps_data: bool) -> None:
        """Start the server's process again."""
        if not keeps_data:
            self.values.clear()
        self.is_running = True

    def write(self, key: str, value: bytes) -> None:
        """Write a value, and wake those that wait for it."""
        self.values[key] = value
        waiters = self.waiting.get(key)
        if waiters:
            self.hub.wake_all(waiters)

    def delete(self, key: str) -> None:
        """Delete a value."""
        self.values.pop(key, None)


class _KeyConnection(RendezvousStore):
    """One connection of a process to a `KeyServer`."""

    def __init__(self, server: KeyServer, process: SimulatedProcess) -> None:
        self._server = server
        self._process = process
        self._generation = server.generation
        self._is_closed = False
        self._is_broken = False
        self._caller: SimulatedTask | None = None  # the task inside an operation
        self._exchange(lambda: None, timeout=CONNECT_TIMEOUT)
        server.connections.setdefault(process, []).append(self)

    @property
    def is_closed(self) -> bool:
        """Whether the process has closed it."""
        return self._is_closed

    # --- operations -------------------------------------------------------------------------------

    def set(self, key: str, value: bytes) -> None:
        self._exchange(lambda: self._server.write(key, value))

    def add(self, key: str, amount: int) -> int:
        def run() -> int | None:
            try:
                total = int(self._server.values.get(key, b"0")) + amount
            except ValueError:
                return None
            self._server.write(key, b"%d" % total)
            return total

        total = self._exchange(run)
        if total is None:
            raise RendezvousStateError(f"{key!r} does not hold a number")
        return total

    def compare_set(self, key: str, expected: bytes | None, desired: bytes) -> bytes | None:
        def run() -> bytes | None:
            if self._server.values.get(key) == expected:
                self._server.write(key, desired)
            return self._server.values.get(key)

        return self._exchange(run)

    def multi_get(self, keys: Sequence[str]) -> list[bytes | None]:
        return self._exchange(lambda: [self._server.values.get(key) for key in keys])

    def multi_set(self, items: Mapping[str, bytes]) -> None:
        def run() -> None:
            for key, value in items.items():
                self._server.write(key, value)

        self._exchange(run)

    def delete(self, key: str) -> None:
        self._exchange(lambda: self._server.delete(key))

    def wait(self, key: str, timeout: float) -> bytes | None:
        server = self._server
        self._caller = server.hub.current
        try:
            self._go(server.host, REQUEST_TIMEOUT)
            until = server.hub.now + timeout
            waiters = server.waiting.setdefault(key, {})
            while key not in server.values and (left := until - server.hub.now) > 0:
                self._check()
                server.hub.wait(waiters, left)
            if server.is_suspended:
                self._await_server(lambda: None, REQUEST_TIMEOUT)
            value = server.values.get(key)
            self._check()
            self._go(self._process.host, REQUEST_TIMEOUT)
            return value
        finally:
            self._caller = None

    def close(self) -> None:
        self._is_closed = True
        if self._caller is not None and self._ends_calls():
            self._server.hub.wake(self._caller)

    def _ends_calls(self) -> bool:
        """Whether `close` ends an operation of another thread."""
        return True

    # --- the way ----------------------------------------------------------------------------------

    def _exchange(self, run: Callable[[], T], timeout: float = REQUEST_TIMEOUT) -> T:
        server = self._server
        self._caller = server.hub.current
        try:
            self._go(server.host, timeout)
            if server.work:
                server.hub.sleep(server.hub.random.expovariate(1.0) * server.work)
                self._check()
            if server.is_suspended:
                self._await_server(run, timeout)
            result = run()
            server.note_request(self._process)
            self._go(self._process.host, timeout)
            return result
        finally:
            self._caller = None

    def _await_server(self, run: Callable[[], object], timeout: float) -> None:
        """Wait while the server is suspended; after a time-out the request is not lost."""
        server = self._server
        until = server.hub.now + timeout
        while server.is_suspended:
            left = until - server.hub.now
            if left <= 0:
                server.carry_out_later(run)
                self._is_broken = True
                raise RendezvousConnectionError(
                    f"the simulated store does not answer within {timeout:g} s"
                )
            server.hub.wait(server.resumed, left)
            self._check()

    def _go(self, target: SimulatedHost, timeout: float) -> None:
        server = self._server
        self._check()
        source = self._process.host if target is server.host else server.host
        try:
            server.network.carry(source, target, timeout)
        except UnreachableError:
            self._is_broken = True
            raise RendezvousConnectionError(
                f"the simulated store does not answer within {timeout:g} s"
            ) from None
        if server.loss and server.hub.random.random() < server.loss:
            self._is_broken = True
        self._check()

    def _check(self) -> None:
        server = self._server
        if self._is_closed:
            raise RendezvousConnectionError("the connection to the simulated store is closed")
        if not server.is_running:
            raise StoreNotListeningError("the simulated store is not listening")
        if self._is_broken or self._generation != server.generation:
            self._is_broken = True
            raise RendezvousConnectionError("the connection to the simulated store is broken")


class _TcpConnection(_KeyConnection):
    """torch's client: its calls are in C++, and another thread cannot end them."""

    def _ends_calls(self) -> bool:
        return False


class SimulatedTcpStore(KeyServer):
    """torch's TCPStore: it knows no clients, and its data ends with its process."""

    def access(self, process: SimulatedProcess) -> StoreAccess:
        """Return how a process reaches the store."""
        return StoreAccess(lambda: _TcpConnection(self, process), process.host.name, ENDPOINT)


class _EtcdConnection(_KeyConnection):
    def __init__(self, server: SimulatedEtcd, process: SimulatedProcess) -> None:
        self._etcd = server
        super().__init__(server, process)

    def beat(self, key: str, value: bytes) -> float:
        self._exchange(lambda: self._etcd.renew(key, value))
        return LEASE


class SimulatedEtcd(KeyServer):
    """etcd: it keeps its data, deletes heartbeats whose lease has expired, and outlives the job."""

    def __init__(self, hub: Hub, network: SimulatedNetwork, host: SimulatedHost) -> None:
        super().__init__(hub, network, host)
        self._renewed: dict[str, float] = {}  # heartbeats by key

    def access(self, process: SimulatedProcess) -> StoreAccess:
        """Return how a process reaches the store."""
        return StoreAccess(
            lambda: _EtcdConnection(self, process),
            process.host.name,
            ENDPOINT,
            outlives_job=True,
        )

    def restart(self, *, keeps_data: bool) -> None:
        """Start the server's process again; leases begin anew, as etcd's do."""
        super().restart(keeps_data=keeps_data)
        for key in self._renewed:
            self.renew(key, self.values.get(key, b""))

    def resume(self) -> None:
        """Continue; leases that were not renewed meanwhile have expired."""
        for key, renewed in list(self._renewed.items()):
            if renewed + LEASE <= self.hub.now:
                self.delete(key)
        super().resume()

    def renew(self, key: str, value: bytes) -> None:
        """Renew the lease of a heartbeat, and write it if it is not there."""
        if not value:
            return
        if key not in self.values or self.values[key] != value:
            self.write(key, value)
        is_new = key not in self._renewed
        self._renewed[key] = self.hub.now
        if is_new:
            self.hub.spawn(lambda: self._expire(key), f"lease of {key}")

    def _expire(self, key: str) -> None:
        while (left := self._renewed[key] + LEASE - self.hub.now) > 0 or not self._works():
            self.hub.sleep(max(left, 1.0))
        del self._renewed[key]
        self.delete(key)

    def _works(self) -> bool:
        return self.is_running and not self.is_suspended
