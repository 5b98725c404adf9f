"""Creates a handler from the parameters: the store, its host, and this node's address."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from plaunch.durations import Duration
from plaunch.errors import RendezvousConnectionError, UsageError
from plaunch.rendezvous import BackendTraits, backend_traits
from plaunch_membership import (
    DynamicRendezvousHandler,
    StoreAccess,
    StoreNotListeningError,
    Timing,
    read_token,
)
from plaunch_network import (
    HeldPort,
    find_node_address,
    is_loop_back,
    join_host_port,
    parse_rendezvous_endpoint,
)

from plaunch_rendezvous_c10d.election import HostElection
from plaunch_rendezvous_c10d.endpoint import CONNECT_BOUNDS, ConnectBounds, StoreEndpoint
from plaunch_rendezvous_c10d.hosting import (
    check_sole_host,
    decide_hosting,
    is_this_machine,
    may_be_elsewhere,
)

if TYPE_CHECKING:
    import socket
    from typing import Any, Protocol

    from plaunch.rendezvous import RendezvousHandler, RendezvousParameters, Store

    from plaunch_rendezvous_c10d.hosting import HostedRendezvousStore, StoreConnector
    from plaunch_rendezvous_c10d.torch_stores import FileStore

    class StoreFactory(Protocol):
        """Hosts and connects to one kind of store."""

        def host(self, listener: socket.socket, max_nodes: int) -> HostedRendezvousStore:
            """Host the store on a listening socket."""

        def connect_to(self, endpoint: StoreEndpoint, run_id: str = "") -> StoreConnector:
            """Return the connector of a store; `run_id` is checked if it is given."""


_log = logging.getLogger("plaunch")

DEFAULT_PORT = 29400
_OPTIONS = ("is_host", "read_timeout", "store", "store_type")
_STORES = ("job", "torch")
_STORE_TYPES = ("file", "tcp")

# The server notices at once that an agent is gone. Heartbeats only show that one is stuck.
_JOB_STORE_INTERVAL = 5.0  # seconds, unless `keep_alive_interval` is given


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
        PluginLoadError: a store of torch is requested, and torch is missing.
    """
    timing = Timing.from_parameters(params, _OPTIONS)  # rejects options before torch is imported
    store = prepare_backend(params)
    if store.subscribe is not None and params.get("keep_alive_interval") is None:
        timing = replace(timing, keep_alive_interval=_JOB_STORE_INTERVAL)
    try:
        return DynamicRendezvousHandler(params, store, timing=timing)
    except BaseException:
        store.release()
        raise


def prepare_backend(
    params: RendezvousParameters, bounds: ConnectBounds = CONNECT_BOUNDS
) -> StoreAccess:
    """Read the backend's own options, and host the store if this node is its host.

    It is called on the main thread. Its slowest steps are importing torch, if a store of torch is
    requested, and a name server that does not answer. `bounds` are those of connecting to another
    node's store.

    Raises:
        UsageError: an option is invalid, or the port is taken.
        PluginLoadError: a store of torch is requested, and torch is missing.
    """
    store_type = _choice(params, "store_type", "tcp", _STORE_TYPES)
    store = _choice(params, "store", "torch" if store_type == "file" else "job", _STORES)
    if store == "job" and store_type == "file":
        raise UsageError(
            f"rendezvous backend {params.backend!r} keeps its store in a file with torch only; "
            "remove store=job, or store_type=file (--rdzv-conf)"
        )
    # torch passes it to poll as milliseconds in 31 bits.
    read_timeout = params.get_as_seconds("read_timeout", 60.0, Duration(most=1e6)) or 60.0
    is_host = params.get_as_bool("is_host")
    with contextlib.ExitStack() as stack:
        if store == "job":
            factory: StoreFactory = _JobStores(params, read_timeout)
            access = _on_network(params, factory, is_host, bounds, stack)
            return replace(access, release=stack.pop_all().close)
        from plaunch_rendezvous_c10d.torch_import import ERROR, load_distributed, torch_log
        from plaunch_rendezvous_c10d.torchrun import RunIdClaim

        if store_type == "file":
            access = _on_file(params, read_timeout, stack)
        else:
            load_distributed()
            stack.enter_context(torch_log().limited(ERROR))
            factory = _TcpStores(params, read_timeout)
            access = _on_network(params, factory, is_host, bounds, stack)
        claim = RunIdClaim(access.connect, params.run_id, access.endpoint)
        return replace(access, connect=claim.connect, release=stack.pop_all().close)


def _choice(
    params: RendezvousParameters, option: str, default: str, choices: tuple[str, ...]
) -> str:
    value = str(params.get(option, default)).lower()
    if value not in choices:
        raise UsageError(
            f"option {option!r} of rendezvous backend {params.backend!r} is {value!r}; "
            f"choose from {', '.join(choices)}"
        )
    return value


class _JobStores:
    """Hosts and connects to the store of plaunch."""

    def __init__(self, params: RendezvousParameters, read_timeout: float) -> None:
        from plaunch_job_store.authentication import Authenticator

        self._token = read_token(params, os.environ)
        self._run_id = params.run_id
        self._authenticator = Authenticator(self._token, params.run_id)
        self._read_timeout = read_timeout

    def host(self, listener: socket.socket, max_nodes: int) -> HostedRendezvousStore:
        from plaunch_rendezvous_c10d.job_store import HostedJobStore

        return HostedJobStore(
            listener,
            self._token,
            self._authenticator,
            self._run_id,
            self._read_timeout,
            max_nodes,
        )

    def connect_to(self, endpoint: StoreEndpoint, run_id: str = "") -> StoreConnector:
        from plaunch_rendezvous_c10d.job_store import JobStoreConnector

        return JobStoreConnector(endpoint, self._authenticator, self._read_timeout, run_id)


class _TcpStores:
    """Hosts and connects to TCPStore of torch."""

    def __init__(self, params: RendezvousParameters, read_timeout: float) -> None:
        self._run_id = params.run_id
        self._read_timeout = read_timeout

    def host(self, listener: socket.socket, max_nodes: int) -> HostedRendezvousStore:
        from plaunch_rendezvous_c10d.tcp_hosting import HostedTcpStore

        return HostedTcpStore(listener, self._run_id, self._read_timeout, max_nodes)

    def connect_to(self, endpoint: StoreEndpoint, run_id: str = "") -> StoreConnector:
        from plaunch_rendezvous_c10d.tcp_connecting import TcpStoreConnector

        return TcpStoreConnector(endpoint, self._read_timeout, run_id)


def _on_network(
    params: RendezvousParameters,
    stores: StoreFactory,
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
    address = find_node_address(
        host, port, max_nodes=params.max_nodes, local_addr=params.local_addr
    )
    is_any_port, picked = port == 0, None
    if is_any_port and params.job.port_range is not None:
        # Reserved until the store listens, so that no other launcher picks the same one.
        picked = HeldPort.any(params.job.port_range)
        held.callback(picked.close)
        port = picked.port
    advice = (
        "; if the store's host does not recognise this name as its own, give that node "
        "--rdzv-conf is_host=true"
    )
    place = StoreEndpoint(host, port, here=here, advice=advice, bounds=bounds)
    joined = stores.connect_to(place, params.run_id)
    if not here:
        held.callback(joined.close)
        return StoreAccess(
            joined.connect,
            address,
            place.name,
            open_store=joined.open_store,
            subscribe=joined.subscribe,
            has_lost_data=joined.has_lost_data,
        )

    def check(hosted: HostedRendezvousStore) -> None:
        if not is_local and may_be_elsewhere(host, port):
            public = stores.connect_to(StoreEndpoint(host, hosted.port, bounds=bounds))
            with contextlib.closing(public):
                check_sole_host(hosted, public)

    election = HostElection(
        lambda: decide_hosting(
            host,
            port,
            # On other machines, such an endpoint means those machines.
            is_local=is_local or host.lower() == "localhost" or is_loop_back(host),
            is_requested=is_host is True or is_any_port,
        ),
        lambda listener: stores.host(listener, params.max_nodes),
        joined,
        check,
    )
    held.callback(election.close)
    with contextlib.suppress(StoreNotListeningError):
        election.try_to_host()
    if picked is not None:
        picked.close()
    endpoint = place.name
    if election.hosted is not None:
        endpoint = join_host_port(host, election.hosted.port)
    if is_any_port and not is_local:
        _log.warning("other nodes reach the rendezvous store at --rdzv-endpoint=%s", endpoint)
    return StoreAccess(
        election.connect,
        address,
        endpoint,
        is_host=election.is_host,
        has_guests=election.has_guests,
        open_store=election.open_store,
        subscribe=election.subscribe,
        has_lost_data=election.has_lost_data,
    )


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
    from plaunch_rendezvous_c10d.torch_import import ERROR, load_distributed, torch_log
    from plaunch_rendezvous_c10d.torch_stores import FileStore

    distributed = load_distributed()
    held.enter_context(torch_log().limited(ERROR))

    def open_client() -> Any:
        try:
            store = distributed.FileStore(path, -1)
        except (RuntimeError, OSError) as error:
            raise RendezvousConnectionError(
                f"rendezvous store {path!r} cannot be opened: {error}"
            ) from error
        store.set_timeout(timedelta(seconds=read_timeout))
        return store

    def connect() -> FileStore:
        return FileStore(open_client(), path, read_timeout)

    def open_store(prefix: str) -> Store:
        store: Store = distributed.PrefixStore(prefix, open_client())
        return store

    address = find_node_address(max_nodes=params.max_nodes, local_addr=params.local_addr)
    return StoreAccess(
        connect,
        address,
        path,
        open_store=open_store,
        outlives_job=not temporary,
    )


def _remove(path: str) -> None:
    """Remove a temporary file and its folder."""
    with contextlib.suppress(OSError):
        os.unlink(path)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(path))
