"""Which agent of a machine hosts the store, if the endpoint names that machine."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from plaunch_membership import StoreNotListeningError

from plaunch_rendezvous_c10d.hosting import HostingDecision

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from plaunch.rendezvous import Store
    from plaunch_membership import RendezvousStore

    from plaunch_rendezvous_c10d.hosting import HostedRendezvousStore, StoreConnector

_log = logging.getLogger("plaunch")


class HostElection:
    """Hosts the store, or connects to the process that does. Thread-safe.

    The kernel elects the host: it lets one process listen on a port. It may refuse all of those
    that try at the same moment, and a connection may have the port for a while. So this node tries
    again before each attempt to connect, until it hosts the store or a store has answered. The
    caller pauses between two attempts, for a random time.

    Args:
        decide: tries to listen on the port; see `decide_hosting`.
        host: hosts the store on a listening socket.
        joined: connects to the endpoint.
        check: called before the first connection to a store that this node hosts; raises an error
            if other nodes would reach another store.
    """

    def __init__(
        self,
        decide: Callable[[], tuple[HostingDecision, socket.socket | None]],
        host: Callable[[socket.socket], HostedRendezvousStore],
        joined: StoreConnector,
        check: Callable[[HostedRendezvousStore], None] = lambda hosted: None,
    ) -> None:
        self._decide = decide
        self._host = host
        self._joined = joined
        self._check = check
        self._lock = threading.Lock()
        self._hosted: HostedRendezvousStore | None = None
        self._is_checked = False
        self._has_joined = False
        self._is_closed = False
        self._listeners: list[Callable[[], None]] = []
        self.subscribe = None if joined.subscribe is None else self._subscribe
        if joined.subscribe is not None:
            joined.subscribe(self._notify)

    @property
    def hosted(self) -> HostedRendezvousStore | None:
        """The store that this node hosts, once it does."""
        return self._hosted

    def is_host(self) -> bool:
        """Whether this node hosts the store; final after the first successful `connect`."""
        return self._hosted is not None

    def has_guests(self) -> bool:
        """Whether other processes are connected to the store that this node hosts."""
        return self._hosted is not None and self._hosted.has_guests()

    def try_to_host(self) -> None:
        """Host the store if the port is free, and no store has answered yet.

        Raises:
            UsageError: this node may not host it, or another process does although this one should.
            StoreNotListeningError: no process listens on the port, but it is in use.
        """
        with self._lock:
            if self._is_closed or self._has_joined or self._hosted is not None:
                return
            decision, listener = self._decide()
            if listener is not None:
                self._hosted = self._host(listener)
                if self._hosted.connector.subscribe is not None:
                    self._hosted.connector.subscribe(self._notify)
                _log.info("this node hosts the rendezvous store")
        if decision is HostingDecision.TRY_AGAIN:
            raise StoreNotListeningError(
                f"no process hosts the rendezvous store {self._joined.endpoint.name!r}, and its "
                "port is in use: by a connection that has it as its own port, or by another agent "
                "that is about to host the store. This node tries to host it again"
            )

    def connect(self) -> RendezvousStore:
        """Open a connection to the store; errors as in `StoreConnector` and `try_to_host`."""
        self.try_to_host()
        if self._hosted is None:
            store = self._joined.connect()
            self._has_joined = True
            return store
        with self._lock:  # other threads wait for the check
            if not self._is_checked:
                self._check(self._hosted)
                self._is_checked = True
        return self._hosted.connector.connect()

    def open_store(self, prefix: str) -> Store:
        """Open torch's store under a prefix, for programs."""
        return self._connector.open_store(prefix)

    def has_lost_data(self) -> bool:
        """Whether the store has lost data that it once had."""
        return self._connector.has_lost_data()

    @property
    def _connector(self) -> StoreConnector:
        return self._joined if self._hosted is None else self._hosted.connector

    def close(self) -> None:
        """Stop hosting the store, and close the connections. May be called twice."""
        with self._lock:
            self._is_closed = True
        self._joined.close()
        if self._hosted is not None:
            self._hosted.close()

    def _subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def _notify(self) -> None:
        for listener in self._listeners:
            listener()
