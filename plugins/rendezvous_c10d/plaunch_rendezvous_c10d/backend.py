"""Creates a handler from the parameters: the store, its host, and this node's address."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from plaunch.durations import Duration
from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch.rendezvous import BackendTraits, backend_traits
from plaunch_membership import DynamicRendezvousHandler, StoreAccess, Timing
from plaunch_network import (
    HeldPort,
    find_node_address,
    is_loop_back,
    join_host_port,
    parse_rendezvous_endpoint,
)

from plaunch_rendezvous_c10d.connecting import CONNECT_BOUNDS, ConnectBounds, Connector
from plaunch_rendezvous_c10d.connection_limiter import ConnectionLimiter
from plaunch_rendezvous_c10d.guests import find_guests
from plaunch_rendezvous_c10d.hosting import (
    HostedTcpStore,
    check_sole_host,
    host_store,
    is_this_machine,
    may_be_elsewhere,
)
from plaunch_rendezvous_c10d.stores import FileStore
from plaunch_rendezvous_c10d.torch_import import ERROR, load_distributed, torch_log
from plaunch_rendezvous_c10d.torchrun import RunIdClaim

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from plaunch.rendezvous import RendezvousHandler, RendezvousParameters, Store
    from plaunch_membership import Connect, RendezvousStore

_log = logging.getLogger("plaunch")

DEFAULT_PORT = 29400
_OPTIONS = ("is_host", "read_timeout", "store_type")
_STORE_TYPES = ("file", "tcp")
_CONNECTIONS = 3  # per node, including one that is being replaced


@backend_traits(
    BackendTraits(
        needs_endpoint=True,
        default_port=DEFAULT_PORT,
        is_hosted_by_node=True,
        coordinates_restarts=True,
    )
)
def create_c10d_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler, and host the store if this node is its host; connects to nothing.

    Raises:
        UsageError: an option is unknown or invalid, or the port is taken.
        PluginLoadError: torch is missing.
    """
    timing = Timing.from_parameters(params, _OPTIONS)  # rejects options before torch is imported
    store = prepare_backend(params)
    try:
        return DynamicRendezvousHandler(params, store, timing=timing)
    except BaseException:
        store.release()
        raise


def prepare_backend(
    params: RendezvousParameters, bounds: ConnectBounds = CONNECT_BOUNDS
) -> StoreAccess:
    """Read the backend's own options, and host the store if this node is its host.

    It is called on the main thread. Its slowest steps are importing torch, and a name server that
    does not answer. `bounds` are those of connecting to another node's store.

    Raises:
        UsageError: an option is invalid, or the port is taken.
        PluginLoadError: torch is missing.
    """
    store_type = str(params.get("store_type", "tcp")).lower()
    if store_type not in _STORE_TYPES:
        raise UsageError(
            f"option 'store_type' of rendezvous backend {params.backend!r} is {store_type!r}; "
            f"choose from {', '.join(_STORE_TYPES)}"
        )
    # torch passes it to poll as milliseconds in 31 bits.
    read_timeout = params.get_as_seconds("read_timeout", 60.0, Duration(most=1e6)) or 60.0
    is_host = params.get_as_bool("is_host")
    with contextlib.ExitStack() as stack:
        if store_type == "file":
            store = _on_file(params, read_timeout, stack)
        else:
            store = _on_tcp(params, read_timeout, is_host, bounds, stack)
        claim = RunIdClaim(store.connect, params.run_id, store.endpoint)
        return replace(store, connect=claim.connect, release=stack.pop_all().close)


def _on_tcp(
    params: RendezvousParameters,
    read_timeout: float,
    is_host: bool | None,
    bounds: ConnectBounds,
    held: contextlib.ExitStack,
) -> StoreAccess:
    host, port = parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    is_local = params.max_nodes == 1
    if is_local and not params.endpoint:
        port = 0  # no other node connects to it, so any free port will do
    here = is_this_machine(host, port) if is_host is None else is_host
    if not here and port == 0:
        raise UsageError(
            f"endpoint {params.endpoint!r} has no port; give the port that the host of the store "
            "has logged"
        )
    load_distributed()
    held.enter_context(torch_log().limited(ERROR))
    hosted: HostedTcpStore | None = None
    if here:
        with contextlib.ExitStack() as stack:
            number = port
            if port == 0 and params.job.port_range is not None:
                # Reserved until the store listens, so that no other launcher picks the same one.
                picked = HeldPort.any(params.job.port_range)
                stack.callback(picked.close)
                number = picked.port
            hosted = host_store(
                host,
                number,
                params.run_id,
                # On other machines, such an endpoint means those machines.
                is_local=is_local or host.lower() == "localhost" or is_loop_back(host),
                is_requested=is_host is True,
            )
    if hosted is not None:
        held.callback(hosted.close)
        if not is_local:
            expected = _CONNECTIONS * params.max_nodes
            limiter = ConnectionLimiter(hosted.port, hosted.listener_fd, expected)
            held.callback(limiter.close)
    address = find_node_address(
        host, port, max_nodes=params.max_nodes, local_addr=params.local_addr
    )
    if hosted is None:
        advice = (
            "; if the store's host does not recognise this name as its own, give that node "
            "--rdzv-conf is_host=true"
        )
        connector = Connector(
            host,
            port,
            read_timeout,
            here=here,
            advice=advice,
            run_id=params.run_id,
            bounds=bounds,
        )
        return StoreAccess(
            connector.connect,
            address,
            connector.endpoint,
            open_store=_prefix_stores(connector.connect_client),
        )
    endpoint = join_host_port(host, hosted.port)
    if port == 0 and not is_local:
        _log.warning("other nodes reach the rendezvous store at --rdzv-endpoint=%s", endpoint)
    else:
        _log.info("this node hosts the rendezvous store")
    own = Connector(hosted.loop_back, hosted.port, read_timeout)
    connect: Connect = own.connect
    if not is_local and may_be_elsewhere(host, port):
        public = Connector(host, hosted.port, read_timeout, bounds=bounds)
        connect = _Checked(own.connect, lambda: check_sole_host(hosted, public)).connect
    number = hosted.port
    return StoreAccess(
        connect,
        address,
        endpoint,
        is_host=True,
        has_guests=lambda: bool(find_guests(number)),
        open_store=_prefix_stores(own.connect_client),
    )


class _Checked:
    """Runs a check before the first connection; other threads wait for it."""

    def __init__(self, connect: Connect, check: Callable[[], None]) -> None:
        self._connect = connect
        self._check: Callable[[], None] | None = check
        self._lock = threading.Lock()

    def connect(self) -> RendezvousStore:
        """Connect after the check has passed."""
        with self._lock:
            if self._check is not None:
                self._check()
                self._check = None
        return self._connect()


def _on_file(
    params: RendezvousParameters, read_timeout: float, held: contextlib.ExitStack
) -> StoreAccess:
    path, temporary = params.endpoint, ""
    if not path:
        import tempfile  # rare

        temporary = tempfile.mkdtemp(prefix="plaunch-rendezvous-")
        path = os.path.join(temporary, "store")
        held.callback(_remove, path)
    else:
        try:
            path = os.path.abspath(path)
        except FileNotFoundError:
            raise UsageError(
                f"the rendezvous store {path!r} (--rdzv-endpoint) is relative to the current "
                "folder, which does not exist any more; give a path that begins with /"
            ) from None
        folder = os.path.dirname(path)
        if os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK):
            raise UsageError(
                f"the rendezvous store {path!r} (--rdzv-endpoint) cannot be a file: "
                + ("it is a folder" if os.path.isdir(path) else f"{folder!r} cannot be written to")
            )
    load_distributed()
    held.enter_context(torch_log().limited(ERROR))

    def open_client() -> Any:
        try:
            store = load_distributed().FileStore(path, -1)
        except (RuntimeError, OSError) as error:
            raise RendezvousConnectionError(
                f"rendezvous store {path!r} cannot be opened: {error}"
            ) from error
        store.set_timeout(timedelta(seconds=read_timeout))
        return store

    def connect() -> FileStore:
        return FileStore(open_client(), path, read_timeout)

    address = find_node_address(max_nodes=params.max_nodes, local_addr=params.local_addr)
    return StoreAccess(
        connect,
        address,
        path,
        open_store=_prefix_stores(open_client),
        outlives_job=not temporary,
    )


def _prefix_stores(open_client: Callable[[], Any]) -> Callable[[str], Store]:
    """Return a function that opens torch's store under a prefix, over its own connection."""

    def open_store(prefix: str) -> Store:
        store: Store = load_distributed().PrefixStore(prefix, open_client())
        return store

    return open_store


def _remove(path: str) -> None:
    """Remove a temporary file and its folder."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))
