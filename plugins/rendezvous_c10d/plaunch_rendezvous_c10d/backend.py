"""Creates a handler from the parameters: the store, its host, and this node's address."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousConnectionError
from plaunch.rendezvous import BackendTraits, backend_traits
from plaunch_membership import (
    DynamicRendezvousHandler,
    StoreAccess,
    StoreNotListeningError,
    Timing,
    check_parameters,
    read_token,
)
from plaunch_network import (
    HeldPort,
    find_node_address,
    is_loop_back,
    join_host_port,
)

from plaunch_rendezvous_c10d.election import HostElection
from plaunch_rendezvous_c10d.endpoint import CONNECT_BOUNDS, ConnectBounds, StoreEndpoint
from plaunch_rendezvous_c10d.hosting import (
    answers,
    check_sole_host,
    decide_hosting,
    may_be_elsewhere,
)
from plaunch_rendezvous_c10d.options import (
    DEFAULT_PORT,
    OPTIONS,
    file_path,
    find_host,
    job_store_interval,
    read_options,
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


def _read_store(params: RendezvousParameters) -> None:
    """Refuse what `prepare_backend` refuses, except for a port that is taken."""
    options = read_options(params)
    if options.store_type == "file":
        file_path(params.endpoint)
    else:
        find_host(params, options.is_host)
    if options.store == "torch":
        from plaunch_rendezvous_c10d.torch_import import load_distributed

        load_distributed()


@backend_traits(
    BackendTraits(
        needs_endpoint=True,
        default_port=DEFAULT_PORT,
        is_hosted_by_node=True,
        coordinates_restarts=True,
        check=lambda params: check_parameters(params, OPTIONS, _read_store),
    )
)
def create_c10d_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler, and host the store if this node is its host; connects to nothing.

    Raises:
        UsageError: an option is unknown or invalid, or the port is taken.
        PluginLoadError: a store of torch is requested, and torch is missing.
    """
    timing = Timing.from_parameters(params, OPTIONS)  # rejects options before torch is imported
    store = prepare_backend(params)
    if store.subscribe is not None and params.get("keep_alive_interval") is None:
        timing = replace(timing, keep_alive_interval=job_store_interval(params.max_nodes))
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
    options = read_options(params)
    with contextlib.ExitStack() as stack:
        if options.store == "job":
            factory: StoreFactory = _JobStores(params, options.read_timeout)
            access = _on_network(params, factory, options.is_host, bounds, stack)
            return replace(access, release=stack.pop_all().close)
        from plaunch_rendezvous_c10d.torch_import import ERROR, load_distributed, torch_log
        from plaunch_rendezvous_c10d.torchrun import RunIdClaim

        if options.store_type == "file":
            access = _on_file(params, options.read_timeout, stack)
        else:
            load_distributed()
            stack.enter_context(torch_log().limited(ERROR))
            factory = _TcpStores(params, options.read_timeout)
            access = _on_network(params, factory, options.is_host, bounds, stack)
        claim = RunIdClaim(access.connect, params.run_id, access.endpoint)
        return replace(access, connect=claim.connect, release=stack.pop_all().close)


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
    host, port, here = find_host(params, is_host)
    is_local = params.max_nodes == 1
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
            is_hosted=lambda: answers(stores.connect_to(place, params.run_id)),
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
        path = file_path(path)
    from plaunch_rendezvous_c10d.torch_import import ERROR, load_distributed, torch_log
    from plaunch_rendezvous_c10d.torch_stores import FileStore

    distributed = load_distributed()
    held.enter_context(torch_log().limited(ERROR))

    def open_client() -> Any:
        try:
            store = distributed.FileStore(path, -1)
        except (RuntimeError, OSError) as error:
            raise RendezvousConnectionError(
                f"rendezvous store {path!r} cannot be opened: {error}", names_store=True
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
