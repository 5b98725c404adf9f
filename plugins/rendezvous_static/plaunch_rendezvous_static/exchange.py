"""The exchange by which nodes with given ranks learn how many workers each of them runs.

It happens once, before the workers start. Node 0 listens at the master's address and port, where
the workers' store is later. Every other node connects and sends one line of JSON: its rank, its
role and its number of workers. Node 0 answers with an empty line. When all nodes have connected,
node 0 sends each the ranks of its workers, as a line of JSON, and closes the port.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from plaunch.durations import LONGEST
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from plaunch.numbers import quote
from plaunch.rendezvous import world_ranks
from plaunch_network import (
    EVERYWHERE,
    join_host_port,
    listen_at_first,
    numeric_place,
    resolve_host,
)

from plaunch_rendezvous_static.messages import (
    ACCEPTED,
    MAX_LINE,
    Introduction,
    read_answer,
    read_introduction,
    to_line,
)

if TYPE_CHECKING:
    from plaunch.rendezvous import WorldRanks

_log = logging.getLogger("plaunch")

_MAX_NAMED = 8  # ranks in a message
# The first bytes of every client of torch's TCPStore.
_STORE_GREETING = b"\0" + (0x3C85F7CE).to_bytes(4, "little")

_POLL_INTERVAL = 0.2  # seconds between two checks whether the wait is over
_FIRST_PAUSE = 0.02  # seconds between the first two attempts to reach node 0; doubled each time
_CONNECT_TIMEOUT = 5.0  # seconds for one attempt
_CLOSE_TIMEOUT = 1.0  # seconds for the other nodes to close their connections

_IDENTICAL_WORKERS_ADVICE = (
    "where all nodes run the same number of workers, TORCH_ELASTIC_WORKER_IDENTICAL=1 on all of "
    "them starts the workers without waiting for the others"
)


@dataclass(frozen=True)
class ExchangeBounds:
    """The bounds of an exchange.

    Args:
        max_unknown: the maximum number of connections without an introduction.
        longest_pause: the longest time between two attempts to reach node 0, in seconds.
        accept_timeout: seconds that a node waits for the empty line. torch's store, for example,
            sends nothing.
        running_wait: seconds between the first sign that workers of this job are running and the
            conclusion that they are. A proxy, or a process of an earlier job, may look the same
            for a short time. If a launcher connects meanwhile, they are not running.
    """

    max_unknown: int = 64
    longest_pause: float = 1.0
    accept_timeout: float = 3.0
    running_wait: float = 10.0


class RankExchange:
    """The exchange, from the side of this node.

    Args:
        node: the introduction of this node.
        host, port: the address of node 0.
        timeout: seconds in which all nodes must connect.
        bounds: all other bounds; None for the usual ones.
    """

    def __init__(
        self,
        node: Introduction,
        host: str,
        port: int,
        timeout: float,
        bounds: ExchangeBounds | None = None,
    ) -> None:
        self._bounds = bounds or ExchangeBounds()
        self._node = node
        self._host = host
        self._port = port
        self._timeout = min(timeout, LONGEST)
        self._deadline = 0.0  # on the monotonic clock
        self._closed = threading.Event()
        self._running_since: float | None = None  # on that clock: since when workers seem to run
        self._accepted: dict[int, _Connection] = {}  # on node 0: the connected nodes, by rank
        self._problem = ""  # elsewhere: why node 0 has not answered yet

    @property
    def _where(self) -> str:
        return join_host_port(self._host, self._port)

    def run(self) -> WorldRanks | None:
        """Exchange introductions with the other nodes, and return the ranks of this node's workers.

        Blocks; `close` ends it from another thread. Returns None if the workers of other nodes are
        already running, because a launcher of this job was restarted. Then this node cannot learn
        how many workers the others run.

        Raises:
            RendezvousTimeoutError: not all nodes have connected in time.
            RendezvousClosedError: node 0 rejects this node.
            RendezvousConnectionError: node 0 cannot listen on the port.
        """
        self._deadline = time.monotonic() + self._timeout
        ranks = self._gather() if self._node.rank == 0 else self._join()
        if ranks is None:
            _log.warning(
                "the workers of other nodes are already running: this launcher or another one was "
                "restarted. Ranks are correct only if all nodes run as many workers as this one "
                "(%d)",
                self._node.local_world_size,
            )
        return ranks

    def describe(self) -> str:
        """Describe what this node waits for."""
        if self._node.rank == 0:
            return f"{self._node.nodes} nodes; missing: index {self._missing()}"
        return f"node 0 at {self._where}" + (f": {self._problem}" if self._problem else "")

    def close(self) -> None:
        """End the wait, if there is one."""
        self._closed.set()

    # --- node 0 -----------------------------------------------------------------------------------

    def _gather(self) -> WorldRanks | None:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(self._listen())
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(listener, selectors.EVENT_READ)
            stack.callback(_close_connections, selector)
            while len(self._accepted) < self._node.nodes - 1:
                if self._workers_have_been_running():
                    return None
                self._check_time()
                ready = [key.data for key, _ in selector.select(_POLL_INTERVAL)]
                for peer in filter(None, ready):
                    if not self._receive(peer):
                        _disconnect(peer, selector)
                if None in ready:  # last, because it may disconnect others
                    _accept(listener, selector, self._bounds.max_unknown)
            selector.unregister(listener)
            listener.close()  # later connections are for the workers' store
            return self._answer_all()

    def _listen(self) -> socket.socket:
        places = [*numeric_place(self._host), *EVERYWHERE]
        try:
            listener = listen_at_first(
                places, self._port, self._node.nodes + self._bounds.max_unknown
            )
        except OSError as error:
            raise RendezvousConnectionError(
                f"node 0 cannot listen for the other nodes on port {self._port} (--master-port): "
                f"{error}; choose another port"
            ) from error
        listener.setblocking(False)
        return listener

    def _receive(self, peer: _Connection) -> bool:
        """Receive data of a peer; returns whether to keep the connection."""
        try:
            data = peer.connection.recv(MAX_LINE)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        peer.received += data
        if peer.received.startswith(_STORE_GREETING):
            self._note_workers_running()
        if not data or len(peer.received) > MAX_LINE or peer.received[:1] not in (b"", b"{"):
            if peer.node is not None:
                del self._accepted[peer.node.rank]  # its launcher has exited, and may be restarted
            return False
        if peer.node is not None or not peer.received.endswith(b"\n"):
            return True
        try:
            node = read_introduction(peer.received)
        except ValueError:
            return False
        problem = self._objection(node)
        if problem:
            peer.send(to_line({"refused": problem}))
            return False
        peer.node = node
        self._running_since = None  # a launcher that waits has no running workers
        peer.send(ACCEPTED)
        self._accepted[node.rank] = peer
        return True

    def _objection(self, node: Introduction) -> str:
        """Return why a node is rejected; empty if it is not."""
        own, who = self._node, f"node {node.host} with rank {node.rank} (--node-rank)"
        if node.run_id != own.run_id:
            theirs = quote(node.run_id)
            return f"{who} belongs to job {theirs}, and node 0 to {own.run_id!r} (--rdzv-id)"
        if node.nodes != own.nodes:
            return f"{who} is of {node.nodes} nodes, and node 0 of {own.nodes} (--nnodes)"
        if not 0 < node.rank < own.nodes:
            return f"{who} is outside of the other nodes' ranks, 1 to {own.nodes - 1}"
        peer = self._accepted.get(node.rank)
        if peer is not None and peer.node is not None:
            return f"{who} is a duplicate: {peer.node.host} has the same rank"
        return ""

    def _answer_all(self) -> WorldRanks:
        nodes = [self._node]
        nodes += [peer.node for _, peer in sorted(self._accepted.items()) if peer.node is not None]
        first, *others = world_ranks((node.role, node.local_world_size) for node in nodes)
        for (_, peer), ranks in zip(sorted(self._accepted.items()), others, strict=True):
            peer.send(to_line({"ranks": asdict(ranks)}))
        # The side that closes first keeps the port for a while, and some programs cannot bind it
        # then.
        until = time.monotonic() + _CLOSE_TIMEOUT
        for peer in self._accepted.values():
            peer.wait_for_end(until - time.monotonic())
        return first

    def _missing(self) -> str:
        absent = [rank for rank in range(1, self._node.nodes) if rank not in self._accepted]
        named = ", ".join(map(str, absent[:_MAX_NAMED]))
        return named + (f" and {len(absent) - _MAX_NAMED} more" if absent[_MAX_NAMED:] else "")

    # --- another node -----------------------------------------------------------------------------

    def _join(self) -> WorldRanks | None:
        pause = _FIRST_PAUSE
        while not self._workers_have_been_running():
            self._check_time()
            try:
                with self._connect() as connection:
                    answer = self._exchange(connection)
            except (OSError, RendezvousConnectionError) as error:
                self._problem = str(getattr(error, "strerror", None) or error)
                self._running_since = None
            else:
                if answer:
                    return read_answer(answer)
                self._problem = "no launcher answers there"
                self._note_workers_running()
            self._closed.wait(pause)
            pause = min(2 * pause, self._bounds.longest_pause)
        return None

    def _connect(self) -> socket.socket:
        problem: OSError | None = None
        for address in resolve_host(self._host, self._port):
            try:
                with contextlib.ExitStack() as stack:
                    sock = socket.socket(address.family, socket.SOCK_STREAM)
                    stack.enter_context(sock)
                    sock.settimeout(_CONNECT_TIMEOUT)
                    sock.connect(address.sockaddr)
                    _keep_alive(sock)
                    stack.pop_all()
                    return sock
            except OSError as error:
                problem = error
        raise problem or OSError(f"host {self._host!r} has no address")

    def _exchange(self, connection: socket.socket) -> bytes:
        """Return node 0's answer; empty if no launcher answers."""
        connection.sendall(to_line(asdict(self._node)))
        connection.settimeout(_POLL_INTERVAL)
        received = b""
        accept_deadline = time.monotonic() + self._bounds.accept_timeout
        while not received.strip() or not received.endswith(b"\n"):
            self._check_time()
            if not received and time.monotonic() > accept_deadline:
                return b""
            try:
                more = connection.recv(MAX_LINE)
            except TimeoutError:  # also the kernel's, after which nothing can be read
                continue
            except ConnectionError:
                more = b""
            received += more
            if not more or len(received) > MAX_LINE:
                return b""
            self._problem = "it waits for other nodes"
            self._running_since = None  # a launcher that answers has no running workers
        return received.strip()

    # --- both -------------------------------------------------------------------------------------

    def _note_workers_running(self) -> None:
        if self._running_since is None:
            self._running_since = time.monotonic()

    def _workers_have_been_running(self) -> bool:
        since = self._running_since
        return since is not None and time.monotonic() - since >= self._bounds.running_wait

    def _check_time(self) -> None:
        if self._closed.is_set():
            raise RendezvousClosedError("the launcher has stopped waiting for the other nodes")
        if time.monotonic() < self._deadline:
            return
        within = f"within {self._timeout:g} s (--rdzv-conf join_timeout)"
        if self._node.rank == 0:
            text = f"not all of {self._node.nodes} nodes have reached node 0 at {self._where} "
            text += f"{within}; missing: index {self._missing()}"
            for peer in self._accepted.values():
                peer.send(to_line({"timeout": text}))
        else:
            text = f"node 0 at {self._where} has not answered {within}: {self._problem}"
        raise RendezvousTimeoutError(
            f"{text}. Check that their launchers run; {_IDENTICAL_WORKERS_ADVICE}"
        )


class _Connection:
    """A connection to node 0, of a node or of an unknown client."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.received = b""
        self.node: Introduction | None = None  # once its introduction is complete

    def send(self, line: bytes) -> None:
        """Send a line, which fits into any buffer; errors of a closed connection are ignored."""
        with contextlib.suppress(OSError):
            self.connection.sendall(line)

    def wait_for_end(self, seconds: float) -> None:
        """Wait until it has closed the connection."""
        with contextlib.suppress(OSError):
            self.connection.settimeout(max(seconds, _FIRST_PAUSE))
            self.connection.recv(1)


def _accept(listener: socket.socket, selector: selectors.BaseSelector, max_unknown: int) -> None:
    try:
        connection, _ = listener.accept()
    except (BlockingIOError, ConnectionError):
        return  # it has been closed already
    except OSError as error:
        raise RendezvousConnectionError(
            f"node 0 cannot accept another node's connection: {error.strerror}; see `ulimit -n`"
        ) from error
    connection.setblocking(False)
    _keep_alive(connection)
    selector.register(connection, selectors.EVENT_READ, _Connection(connection))
    unknown = [peer for peer in _connections(selector) if peer.node is None]
    for client in unknown[:-max_unknown]:
        _disconnect(client, selector)


def _keep_alive(sock: socket.socket) -> None:
    """Detect within half a minute that the other host has disappeared."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _connections(selector: selectors.BaseSelector) -> list[_Connection]:
    """Return all connections, in order of arrival."""
    return [key.data for key in selector.get_map().values() if key.data is not None]


def _disconnect(peer: _Connection, selector: selectors.BaseSelector) -> None:
    selector.unregister(peer.connection)
    peer.connection.close()


def _close_connections(selector: selectors.BaseSelector) -> None:
    for peer in _connections(selector):
        peer.connection.close()
