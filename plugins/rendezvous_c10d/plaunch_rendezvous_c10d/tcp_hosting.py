"""Hosts a TCPStore of torch, in this process (`--rdzv-conf store=torch`)."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.errors import RendezvousConnectionError
from plaunch_job_store.identity import IDENTITY, JOB_OF_HOST, make_identity
from plaunch_network import create_tcp_store

from plaunch_rendezvous_c10d.connection_limiter import ConnectionLimiter
from plaunch_rendezvous_c10d.endpoint import CONNECT_BOUNDS, StoreEndpoint
from plaunch_rendezvous_c10d.guests import find_guests
from plaunch_rendezvous_c10d.hosting import own_address
from plaunch_rendezvous_c10d.tcp_connecting import TcpStoreConnector, run_bounded
from plaunch_rendezvous_c10d.torch_import import load_distributed
from plaunch_rendezvous_c10d.torch_stores import first_line

if TYPE_CHECKING:
    import socket

_CONNECTIONS = 3  # per node, including one that is being replaced


class HostedTcpStore:
    """A TCPStore in this process, until `close`.

    Args:
        listener: the listening socket to serve; it belongs to torch from now on.
        run_id: the id of the host's job, with which the store ends; for warnings of other jobs.
        read_timeout: the limit of one operation of this node, in seconds.
        max_nodes: how many nodes will connect. With more than one, descriptors are kept free for
            the launcher.

    Raises:
        RendezvousConnectionError: torch cannot host it.
    """

    def __init__(
        self,
        listener: socket.socket,
        run_id: str = "",
        read_timeout: float = 60.0,
        max_nodes: int = 1,
    ) -> None:
        self.port: int = listener.getsockname()[1]
        loop_back = own_address(listener)  # the server is its own first client
        self.identity = make_identity()
        # Readable when a client connects.
        self._listener_fd = os.dup(listener.fileno())
        self._limiter: ConnectionLimiter | None = None
        distributed = load_distributed()

        def create() -> Any:
            store = create_tcp_store(
                distributed.TCPStore,
                host_name=loop_back,
                port=self.port,
                is_master=True,
                wait_for_workers=False,
                timeout=timedelta(seconds=CONNECT_BOUNDS.timeout),
                master_listen_fd=listener.detach(),
            )
            store.set(IDENTITY, self.identity)
            if run_id:
                store.set(JOB_OF_HOST, run_id)
            return store

        try:
            self._store = run_bounded(create, CONNECT_BOUNDS.timeout, "host")
        except (RuntimeError, OSError) as error:
            self.close()
            raise RendezvousConnectionError(
                f"the rendezvous store cannot be hosted on port {self.port}: {first_line(error)}"
            ) from error
        self.connector = TcpStoreConnector(StoreEndpoint(loop_back, self.port), read_timeout)
        if max_nodes > 1:
            self._limiter = ConnectionLimiter(
                self.port, self._listener_fd, _CONNECTIONS * max_nodes
            )

    def has_guests(self) -> bool:
        """Whether other processes are connected to it."""
        return bool(find_guests(self.port))

    def close(self) -> None:
        """Stop the server; waiting clients get an error. May be called twice."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.close()
        self._store = None
        listener_fd, self._listener_fd = self._listener_fd, -1
        if listener_fd >= 0:
            os.close(listener_fd)
