"""Where nodes with given ranks tell each other what they run, once, before their workers start.

Node 0 listens at the master's address and port, where the workers' store is later. Every other node
connects and sends one line of JSON: its rank, its role and how many workers it runs. An empty line
says that it was heard. When all have come, node 0 sends each the ranks of its workers, as a line of
JSON too, and lets the port go.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

from plaunch.durations import LONGEST
from plaunch.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousTimeoutError,
)
from plaunch.rendezvous import world_ranks
from plaunch_network import join_host_port, open_listener, resolve_host

from plaunch_rendezvous_static.messages import (
    MOST_LINE,
    SEATED,
    Introduction,
    read_answer,
    read_introduction,
    to_line,
)

if TYPE_CHECKING:
    from plaunch.rendezvous import WorldRanks

_log = logging.getLogger("plaunch")

_MOST_STRANGERS = 64  # connections that have said nothing yet
_MOST_NAMED = 8  # ranks in a message
# What every client of torch's TCPStore sends first.
_STORE_GREETING = b"\0" + (0x3C85F7CE).to_bytes(4, "little")

_LOOK = 0.2  # seconds between two looks at whether the wait is over
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0  # seconds between two attempts to reach node 0
_CONNECT_TIMEOUT = 5.0  # seconds for one of them
_SEAT_WAIT = 3.0  # seconds for the empty line; torch's store, say, answers nothing at all
_FAREWELL = 1.0  # seconds for the others to close their connections first
# Seconds after a sign that workers of this job run already, until that is believed: what is behind
# a proxy, or was left by another job, looks the same for a moment. A launcher that comes is a sign
# that they do not.
_RUNNING_WAIT = 10.0

_ALIKE = (
    "where all nodes run the same number of workers, TORCH_ELASTIC_WORKER_IDENTICAL=1 on all of "
    "them starts the workers without waiting for the others"
)


class Meeting:
    """One exchange, as the node that is introduced takes part in it.

    Args:
        node: this node.
        host, port: where node 0 listens.
        timeout: seconds until all nodes must have come.
    """

    def __init__(self, node: Introduction, host: str, port: int, timeout: float) -> None:
        self._node = node
        self._host = host
        self._port = port
        self._timeout = min(timeout, LONGEST)
        self._deadline = 0.0  # on the monotonic clock
        self._closed = threading.Event()
        self._running_since: float | None = None  # on that clock: signs of workers that run
        self._seated: dict[int, _Guest] = {}  # on node 0, the others that have come, by rank
        self._trouble = ""  # elsewhere, why node 0 has not answered yet

    @property
    def _where(self) -> str:
        return join_host_port(self._host, self._port)

    def take_part(self) -> WorldRanks | None:
        """Meet the other nodes, and return the ranks of this node's workers.

        Blocks; `close` ends it from another thread. None if the workers of the other nodes run
        already, since a launcher of this job has been started again: then nobody is left to say
        what each node runs.

        Raises:
            RendezvousTimeoutError: not all nodes have come in time.
            RendezvousClosedError: node 0 refuses this node.
            RendezvousConnectionError: the port cannot be listened on.
        """
        self._deadline = time.monotonic() + self._timeout
        ranks = self._welcome() if self._node.rank == 0 else self._visit()
        if ranks is None:
            _log.warning(
                "the workers of other nodes run already: this launcher, or theirs, was started "
                "again. Ranks are right only if all nodes run as many workers as this one (%d)",
                self._node.local_world_size,
            )
        return ranks

    def describe(self) -> str:
        """Say in a few words what is being waited for."""
        if self._node.rank == 0:
            return f"{self._node.nodes} nodes; missing: index {self._missing()}"
        return f"node 0 at {self._where}" + (f": {self._trouble}" if self._trouble else "")

    def close(self) -> None:
        """End the wait, if there is one."""
        self._closed.set()

    # --- node 0 -----------------------------------------------------------------------------------

    def _welcome(self) -> WorldRanks | None:
        with contextlib.ExitStack() as stack:
            door = stack.enter_context(self._listen())
            visitors = stack.enter_context(selectors.DefaultSelector())
            visitors.register(door, selectors.EVENT_READ)
            stack.callback(_close_guests, visitors)
            while len(self._seated) < self._node.nodes - 1:
                if self._has_been_running():
                    return None
                self._check_time()
                ready = [key.data for key, _ in visitors.select(_LOOK)]
                for guest in filter(None, ready):
                    if not self._hear(guest):
                        _send_away(guest, visitors)
                if None in ready:  # the last one, since it may send others away
                    _let_in(door, visitors)
            visitors.unregister(door)
            door.close()  # what connects from now on looks for the workers' store
            return self._answer_all()

    def _listen(self) -> socket.socket:
        places: list[tuple[socket.AddressFamily, str]] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):  # a name: others may resolve it to another address
                socket.inet_pton(family, self._host)
                places.append((family, self._host))
        places += [(socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")]  # noqa: S104 - for others
        problem: OSError | None = None
        for place in places:
            try:
                door = open_listener(*place, self._port, self._node.nodes + _MOST_STRANGERS)
            except OSError as error:
                problem = error
            else:
                door.setblocking(False)
                return door
        raise RendezvousConnectionError(
            f"node 0 cannot listen for the other nodes on port {self._port} (--master-port): "
            f"{problem}; choose another port"
        ) from problem

    def _hear(self, guest: _Guest) -> bool:
        """Take what a guest says; whether it may stay."""
        try:
            said = guest.connection.recv(MOST_LINE)
        except BlockingIOError:
            return True
        except OSError:
            said = b""
        guest.said += said
        if guest.said.startswith(_STORE_GREETING):
            self._note_running()
        if not said or len(guest.said) > MOST_LINE or guest.said[:1] not in (b"", b"{"):
            if guest.node is not None:
                del self._seated[guest.node.rank]  # its launcher has gone, and may come again
            return False
        if guest.node is not None or not guest.said.endswith(b"\n"):
            return True
        try:
            node = read_introduction(guest.said)
        except ValueError:
            return False
        problem = self._objection(node)
        if problem:
            guest.tell(to_line({"refused": problem}))
            return False
        guest.node = node
        self._running_since = None  # a launcher that waits: its workers do not run
        guest.tell(SEATED)
        self._seated[node.rank] = guest
        return True

    def _objection(self, node: Introduction) -> str:
        """Why a node cannot take part; empty if it can."""
        own, who = self._node, f"node {node.host} with rank {node.rank} (--node-rank)"
        if node.run_id != own.run_id:
            return f"{who} belongs to job {node.run_id!r}, and node 0 to {own.run_id!r} (--rdzv-id)"
        if node.nodes != own.nodes:
            return f"{who} is of {node.nodes} nodes, and node 0 of {own.nodes} (--nnodes)"
        if not 0 < node.rank < own.nodes:
            return f"{who} is no other node of {own.nodes}"
        guest = self._seated.get(node.rank)
        if guest is not None and guest.node is not None:
            return f"{who} is one too many: {guest.node.host} has the same rank"
        return ""

    def _answer_all(self) -> WorldRanks:
        nodes = [self._node]
        nodes += [guest.node for _, guest in sorted(self._seated.items()) if guest.node is not None]
        first, *others = world_ranks((node.role, node.local_world_size) for node in nodes)
        for (_, guest), ranks in zip(sorted(self._seated.items()), others, strict=True):
            guest.tell(to_line({"ranks": asdict(ranks)}))
        # Whoever closes first keeps the port for a while. Some programs cannot bind it then.
        until = time.monotonic() + _FAREWELL
        for guest in self._seated.values():
            guest.wait_for_end(until - time.monotonic())
        return first

    def _missing(self) -> str:
        absent = [rank for rank in range(1, self._node.nodes) if rank not in self._seated]
        named = ", ".join(map(str, absent[:_MOST_NAMED]))
        return named + (f" and {len(absent) - _MOST_NAMED} more" if absent[_MOST_NAMED:] else "")

    # --- another node -----------------------------------------------------------------------------

    def _visit(self) -> WorldRanks | None:
        pause = _FIRST_PAUSE
        while not self._has_been_running():
            self._check_time()
            try:
                with self._connect() as connection:
                    answer = self._ask(connection)
            except (OSError, RendezvousConnectionError) as error:
                self._trouble = str(getattr(error, "strerror", None) or error)
                self._running_since = None
            else:
                if answer:
                    return read_answer(answer)
                self._trouble = "no launcher answers there"
                self._note_running()
            self._closed.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
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

    def _ask(self, connection: socket.socket) -> bytes:
        """The line that node 0 answers; empty if there is no launcher that answers."""
        connection.sendall(to_line(asdict(self._node)))
        connection.settimeout(_LOOK)
        said = b""
        seated_until = time.monotonic() + _SEAT_WAIT
        while not said.strip() or not said.endswith(b"\n"):
            self._check_time()
            if not said and time.monotonic() > seated_until:
                return b""
            try:
                more = connection.recv(MOST_LINE)
            except TimeoutError:  # also of the kernel's, after which there is nothing to read
                continue
            except ConnectionError:
                more = b""
            said += more
            if not more or len(said) > MOST_LINE:
                return b""
            self._trouble = "it waits for other nodes"
            self._running_since = None  # it is a launcher, and its workers do not run
        return said.strip()

    # --- both -------------------------------------------------------------------------------------

    def _note_running(self) -> None:
        if self._running_since is None:
            self._running_since = time.monotonic()

    def _has_been_running(self) -> bool:
        since = self._running_since
        return since is not None and time.monotonic() - since >= _RUNNING_WAIT

    def _check_time(self) -> None:
        if self._closed.is_set():
            raise RendezvousClosedError("the launcher has stopped waiting for the other nodes")
        if time.monotonic() < self._deadline:
            return
        within = f"within {self._timeout:g} s (--rdzv-conf join_timeout)"
        if self._node.rank == 0:
            text = f"not all of {self._node.nodes} nodes have come to node 0 at {self._where} "
            text += f"{within}; missing: index {self._missing()}"
            for guest in self._seated.values():
                guest.tell(to_line({"timeout": text}))
        else:
            text = f"node 0 at {self._where} has not answered {within}: {self._trouble}"
        raise RendezvousTimeoutError(f"{text}. See whether their launchers run; {_ALIKE}")


class _Guest:
    """A connection to node 0, of a node or of a stranger."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.said = b""
        self.node: Introduction | None = None  # once it has said all of it

    def tell(self, line: bytes) -> None:
        """Send it something that fits into any buffer; one that has gone does not matter."""
        with contextlib.suppress(OSError):
            self.connection.sendall(line)

    def wait_for_end(self, seconds: float) -> None:
        """Wait until it has closed the connection."""
        with contextlib.suppress(OSError):
            self.connection.settimeout(max(seconds, _FIRST_PAUSE))
            self.connection.recv(1)


def _let_in(door: socket.socket, visitors: selectors.BaseSelector) -> None:
    try:
        connection, _ = door.accept()
    except (BlockingIOError, ConnectionError):
        return  # it has gone already
    except OSError as error:
        raise RendezvousConnectionError(
            f"node 0 cannot take the connection of another node: {error.strerror}; see `ulimit -n`"
        ) from error
    connection.setblocking(False)
    _keep_alive(connection)
    visitors.register(connection, selectors.EVENT_READ, _Guest(connection))
    strangers = [guest for guest in _guests(visitors) if guest.node is None]
    for stranger in strangers[:-_MOST_STRANGERS]:
        _send_away(stranger, visitors)


def _keep_alive(sock: socket.socket) -> None:
    """Have an error within half a minute if the other host has gone without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _guests(visitors: selectors.BaseSelector) -> list[_Guest]:
    """All that are connected, in the order in which they came."""
    return [key.data for key in visitors.get_map().values() if key.data is not None]


def _send_away(guest: _Guest, visitors: selectors.BaseSelector) -> None:
    visitors.unregister(guest.connection)
    guest.connection.close()


def _close_guests(visitors: selectors.BaseSelector) -> None:
    for guest in _guests(visitors):
        guest.connection.close()
