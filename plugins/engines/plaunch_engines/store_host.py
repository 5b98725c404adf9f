"""The rendezvous store of a job, hosted by the command if all nodes reach it.

No job of these engines outlives its command. So the job survives the loss of any node if the
command hosts the store.
"""

from __future__ import annotations

import math
import os
import threading
from ipaddress import ip_address
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

from plaunch.errors import UsageError
from plaunch.process import raise_descriptor_limit, without_secrets
from plaunch.threads import start_thread
from plaunch_job_store.authentication import Authenticator
from plaunch_job_store.host import ServerDeath, StoreProcess
from plaunch_job_store.identity import IDENTITY, JOB_OF_HOST, make_identity
from plaunch_job_store.reports import describe_report
from plaunch_job_store.server import StoreServer
from plaunch_network import (
    HeldPort,
    SocketAddress,
    find_local_address,
    is_loop_back,
    is_own_address,
    join_host_port,
    listen_at_first,
    numeric_place,
)

from plaunch_engines.store_probe import PROBE_TIMEOUT

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Sequence

    from plaunch_job_store.reports import ServerReport

    from plaunch_engines.agents import ConnectedNode
    from plaunch_engines.plan import OfferedStore

MAX_ROUND_TRIP = 0.05  # seconds
_ANSWER_TIMEOUT = PROBE_TIMEOUT + 8.0  # seconds for an answer of a node on a busy machine
_MAX_CANDIDATES = 8
_MAX_PROBES = 4096  # connections
_BACKLOG = 4096
# Seconds for agents after the end of this process. They end within 7 s, or do not notice it.
_LINGER = 15.0


class StoreOffer:
    """Offers a store to the nodes, and hosts it once all of them have reached it.

    It listens at each address that a node could reach until they have answered, and then only at
    the chosen one.

    Args:
        request: which store.
        clock: a monotonic clock, in seconds.

    Attributes:
        endpoint: of the store, once this command hosts it; empty before.
        problem: why it does not; empty before that is known.
    """

    def __init__(self, request: OfferedStore, clock: Callable[[], float]) -> None:
        self.endpoint = ""
        self.problem = request.problem
        self._request = request
        self._clock = clock
        self._candidates: list[OfferedAddress] = []
        self._asked: dict[int, float] = {}  # until when an answer is waited for, by node
        self._process: StoreProcess | None = None
        self._reports: SimpleQueue[ServerReport | ServerDeath] = SimpleQueue()

    @property
    def pid(self) -> int:
        """The process of the store; 0 if this command does not host it."""
        return 0 if self._process is None else self._process.pid

    def is_decided(self, nodes: Sequence[ConnectedNode]) -> bool:
        """Ask nodes, and decide once all have answered; returns whether that has happened.

        Args:
            nodes: those that wait for their settings; call it again with them until it is decided.

        """
        if self.endpoint or self.problem:
            return True
        if not self._candidates:
            self._listen(find_candidates(nodes, self._request.address))
        if self.problem:
            return True
        has_answered = [self._has_answered(node) for node in nodes]  # asks all
        if not all(has_answered):
            return False
        limit = math.inf if self._request.is_required else MAX_ROUND_TRIP
        problems = [_find_problem(c.endpoint, nodes, limit) for c in self._candidates]
        best = min(range(len(problems)), key=lambda index: problems[index].failed)
        self.problem = problems[best].text
        if not self.problem:
            self._host(self._candidates[best])
        for candidate in self._candidates:
            candidate.close()
        return True

    def problem_of(self, node: ConnectedNode) -> str | None:
        """Ask a node that comes later; return why it cannot take part.

        Returns:
            An empty string if it can; None if it has not answered yet.
        """
        if not self.endpoint:
            return ""
        if not self._has_answered(node):
            return None
        error = node.network.error_at(self.endpoint)
        return error and f"{node.name} cannot join, as this command hosts the store: {error}"

    def take_reports(self) -> list[str]:
        """Return messages about refused nodes, and deaths of the process, since the last call."""
        found = []
        while not self._reports.empty():
            report = self._reports.get()
            found.append(
                report.describe("this command")
                if isinstance(report, ServerDeath)
                else describe_report(report, lambda address: address)
            )
        return found

    def close(self) -> None:
        """End the store; may be called again."""
        for candidate in self._candidates:
            candidate.close()
        if self._process is not None:
            self._process.close()

    def _listen(self, addresses: Iterable[str]) -> None:
        raise_descriptor_limit()  # all nodes connect at once
        authenticator = Authenticator(self._request.token, self._request.run_id)
        try:
            held = HeldPort.any(self._request.port_range)
        except (OSError, UsageError) as error:
            self.problem = f"no port for it can be opened: {error}"
            return
        try:
            for address in addresses:
                try:
                    self._candidates.append(OfferedAddress(address, held.port, authenticator))
                except OSError as error:
                    self.problem = f"{join_host_port(address, held.port)}: {error.strerror}"
        finally:
            held.close()
        if self._candidates:
            self.problem = ""
        elif not self.problem:
            self.problem = "this machine has no address that the nodes could reach"

    def _has_answered(self, node: ConnectedNode) -> bool:
        """Ask a node if that has not been done; return whether there is anything to wait for."""
        if node.index not in self._asked:
            self._asked[node.index] = self._clock() + _ANSWER_TIMEOUT
            endpoints = [self.endpoint] if self.endpoint else [c.endpoint for c in self._candidates]
            node.probe(endpoints, self._request.token, self._request.run_id)
        return (
            not node.is_alive
            or node.network.has_answered()
            or self._clock() >= self._asked[node.index]
        )

    def _host(self, chosen: OfferedAddress) -> None:
        try:
            self._process = StoreProcess(
                chosen.take(),
                self._request.token,
                self._request.run_id,
                environ=without_secrets(os.environ),
                values={
                    IDENTITY: make_identity().encode(),
                    JOB_OF_HOST: self._request.run_id.encode(errors="surrogateescape"),
                },
                on_report=self._reports.put,
                on_death=self._reports.put,
                linger=_LINGER,
            )
        except OSError as error:
            self.problem = f"the process of the store cannot be started: {error.strerror}"
        else:
            self.endpoint = chosen.endpoint


class OfferedAddress:
    """Listens at an address of this machine, so that nodes can try to reach it.

    Args:
        address: numeric.
        port: reserved.
        authenticator: of the job.

    Raises:
        OSError: this machine has no such address, or the port is taken.
    """

    def __init__(self, address: str, port: int, authenticator: Authenticator) -> None:
        self.endpoint = join_host_port(address, port)
        self._listener = listen_at_first(numeric_place(address), port, _BACKLOG)
        server = StoreServer(self._listener.dup(), authenticator, max_connections=_MAX_PROBES)
        self._reader, self._writer = os.pipe()
        server.watch(self._reader, server.stop)
        self._thread = threading.Thread(target=server.serve, name="plaunch-probed", daemon=True)
        start_thread(self._thread, blocks_signals=True)

    def take(self) -> socket.socket:
        """End the server of this process; return a socket that still listens."""
        listener = self._listener.dup()
        self.close()
        return listener

    def close(self) -> None:
        """End the server, and do not listen any more; may be called again."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1
            self._thread.join()
            os.close(self._reader)
            self._listener.close()


class _Problem(NamedTuple):
    """Why an endpoint cannot be used, and by how many nodes; an empty text if it can."""

    failed: float
    text: str


def _find_problem(endpoint: str, nodes: Sequence[ConnectedNode], limit: float) -> _Problem:
    failed = [(node, error) for node in nodes if (error := node.network.error_at(endpoint))]
    if failed:
        node, error = failed[0]
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        return _Problem(len(failed), f"{node.name}{more}: {error}")
    slowest = max(nodes, key=lambda node: node.network.round_trip_to(endpoint))
    seconds = slowest.network.round_trip_to(endpoint)
    if seconds <= limit:
        return _Problem(0, "")
    return _Problem(
        0.5,
        f"a round trip to {slowest.name} takes {seconds * 1000:.0f} ms, and more than "
        f"{limit * 1000:.0f} ms would slow down all nodes",
    )


def find_candidates(nodes: Sequence[ConnectedNode], address: str = "") -> list[str]:
    """Return the addresses of this machine that the nodes could reach, the most likely ones first.

    Args:
        nodes: have reported their own addresses, and from where ssh has reached them.
        address: given by the user, instead of all.
    """
    if address:
        return [address]
    found = [node.network.client for node in nodes if is_own_numeric(node.network.client)]
    for node in nodes:
        found += _find_routes([node.address])
    for node in nodes:
        if not is_loop_back(node.address):  # else it is a part of this machine
            found += _find_routes(node.network.addresses)
    return [*dict.fromkeys(found)][:_MAX_CANDIDATES]


def _find_routes(addresses: Iterable[str]) -> list[str]:
    """Return the addresses of this machine on its routes to those of one node.

    A node and this machine may both have the address of a bridge: such a route leads nowhere,
    unless the node is this machine.
    """
    routes = {address: route for address in addresses if (route := find_local_address(address))}
    real = [route for address, route in routes.items() if route != address]
    return real or [*routes]


def is_own_numeric(address: str) -> bool:
    """Whether text is a numeric address of this machine, and of it alone."""
    return any(
        is_own_address(SocketAddress(family, (host, 0))) and not ip_address(host).is_unspecified
        for family, host in numeric_place(address)
    )
