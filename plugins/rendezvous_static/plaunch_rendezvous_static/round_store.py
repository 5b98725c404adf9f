"""torch's store at the master's address, for programs that read the store of a round."""

from __future__ import annotations

import errno
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from plaunch.durations import bounded
from plaunch.errors import PluginLoadError, RendezvousConnectionError
from plaunch.texts import printable
from plaunch.threads import BoundedCall
from plaunch_network import (
    EVERYWHERE,
    create_tcp_store,
    join_host_port,
    listen_at_first,
    numeric_place,
)

if TYPE_CHECKING:
    import socket
    from types import ModuleType

    from plaunch.rendezvous import Store

_BACKLOG = 4096
_OWN_TIMEOUT = 5.0  # seconds to connect to the workers' store on node 0


class RoundStore:
    """Opens a TCPStore at `MASTER_ADDR` and `MASTER_PORT`, as torchrun's backend `static` does.

    Node 0 hosts it in its own process, and the workers share it. If the launcher already listens
    there for the workers, a single node hosts it at another port, and node 0 of several connects.
    Every other node connects. Nothing is opened before `open`.

    Args:
        run_id: the prefix of all keys.
        host, port: the master's address and port.
        is_host: whether this is node 0.
        is_alone: whether there is no other node.
        timeout: the timeout of the connection and of each operation, in seconds.
    """

    def __init__(
        self,
        run_id: str,
        host: str,
        port: int,
        *,
        is_host: bool,
        is_alone: bool,
        timeout: float,
    ) -> None:
        self._run_id = run_id
        self._host = host
        self._port = port
        self._is_host = is_host
        self._is_alone = is_alone
        self._timeout = timedelta(seconds=bounded(timeout))
        self._lock = threading.Lock()
        self._hosted: Any = None

    @property
    def is_shared(self) -> bool:
        """Whether this process serves the store at the address that workers get."""
        return self._hosted is not None and self._hosted.port == self._port

    def open(self) -> Store:
        """Return a `PrefixStore`, whose keys begin with the run id.

        Blocks until node 0 listens; on node 0, for five seconds at most.

        Raises:
            RendezvousConnectionError: the store cannot be reached or hosted.
            PluginLoadError: torch is missing.
        """
        distributed = _load_distributed()
        with self._lock:
            try:
                if self._is_host and self._hosted is None:
                    self._hosted = self._serve(distributed)
                store: Store = distributed.PrefixStore(
                    self._run_id, self._hosted or self._connect(distributed)
                )
            except (RuntimeError, OSError, ValueError) as error:
                where = join_host_port(self._host, self._port)
                raise RendezvousConnectionError(
                    f"the store of the round at {where} (--master-addr, --master-port) cannot be "
                    f"opened: {printable(str(error).partition(chr(10))[0])}"
                ) from error
        return store

    def close(self) -> None:
        """Drop the store; it is closed when no program refers to it."""
        with self._lock:
            self._hosted = None

    def _serve(self, distributed: ModuleType) -> Any:
        """Host the store; None if another process listens at the port."""
        try:
            listener = listen(self._host, self._port, _BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if not self._is_alone:
                return None
            listener = listen(self._host, 0, _BACKLOG)
        own = listener.getsockname()[0]
        return create_tcp_store(
            distributed.TCPStore,
            host_name="127.0.0.1" if own in ("::", "0.0.0.0") else own,  # noqa: S104 - compared
            port=listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=self._timeout,
            master_listen_fd=listener.detach(),
        )

    def _connect(self, distributed: ModuleType) -> Any:
        def connect() -> Any:
            return create_tcp_store(
                distributed.TCPStore,
                host_name=self._host,
                port=self._port,
                is_master=False,
                wait_for_workers=False,
                timeout=self._timeout,
            )

        if not self._is_host:
            return connect()
        # The agent's loop starts the process that serves the workers' store. A call from that loop
        # must return first, and torch's constructor would wait forever.
        call = BoundedCall("round-store", connect)
        if not call.wait(_OWN_TIMEOUT):
            raise TimeoutError(
                "the launcher listens there for the workers, and no process serves their store "
                "yet; read the store on node 0 before the workers start, or later once more"
            )
        if call.error is not None:
            raise call.error
        return call.result


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Listen at `host` if it is a numeric address of this machine, and otherwise on all interfaces.

    Other nodes may resolve a name to another address.

    Raises:
        OSError: another program listens there, or this user may not.
    """
    place = numeric_place("127.0.0.1" if host == "localhost" else host)
    return listen_at_first([*place, *EVERYWHERE], port, backlog)


def _load_distributed() -> ModuleType:
    try:
        import torch.distributed
    except (ImportError, OSError) as error:
        raise PluginLoadError(
            "the store of a round is torch's with rendezvous backend 'static', and torch cannot be "
            f"loaded: {' '.join(str(error).split())}"
        ) from error
    distributed: ModuleType = torch.distributed
    return distributed
