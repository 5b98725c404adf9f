"""Rendezvous without a store: one node, or nodes with given ranks that connect once."""

from __future__ import annotations

import logging
import os
import socket
from typing import TYPE_CHECKING, NamedTuple

from plaunch.cli import parse_min_max_nnodes
from plaunch.durations import LIMIT
from plaunch.errors import UsageError
from plaunch.rendezvous import (
    BackendTraits,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    backend_traits,
)
from plaunch_network import HeldPort

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch.cli import Arguments
    from plaunch.rendezvous import MembershipChange, NodeSettings, Store, WorldRanks

    from plaunch_rendezvous_static.exchange import ExchangeBounds, RankExchange
    from plaunch_rendezvous_static.round_store import RoundStore

logger = logging.getLogger("plaunch")

DEFAULT_PORT = 29500  # of the master, as under torchrun
LOOP_BACK = "127.0.0.1"
_LAST_PORT = 65535
JOIN_TIMEOUT = 600.0  # seconds in which all nodes must arrive; torchrun's default

# These have no effect: there is no store to sign, and a round always has all nodes. The launcher
# rejects a token, because it would be ignored.
_WITHOUT_EFFECT = frozenset({"token_file", "arrival_delay"})


def fill_in(args: Arguments) -> None:
    """Make the endpoint from `--master-addr` and `--master-port`, if it is not given.

    Warns about probable mistakes.

    Raises:
        UsageError: the master's port is used, and is not one, or is 0 for several nodes.
    """
    min_nodes, max_nodes = parse_min_max_nnodes(args.nnodes)
    if not args.rdzv_endpoint and not 0 <= (args.master_port or 0) <= _LAST_PORT:
        raise UsageError(
            f"--master-port is {args.master_port}, which is not a port number from 0 to "
            f"{_LAST_PORT}"
        )
    if max_nodes > 1 and not args.rdzv_endpoint:
        if not args.master_addr:
            return  # the launcher rejects several nodes without an endpoint
        if args.master_port == 0:
            raise UsageError(
                f"--master-port=0 leaves {max_nodes} nodes without a port that all of them know; "
                "give one, the same on all nodes, or --rdzv-backend=c10d and --rdzv-endpoint with "
                "the name of one node"
            )
    for text in _warnings_about(args, max_nodes, is_range=min_nodes != max_nodes):
        logger.warning("%s", args.name_sources(text))
    is_addressed = args.master_port is not None or args.master_addr is not None
    if not args.rdzv_endpoint and (max_nodes > 1 or is_addressed):
        address = LOOP_BACK if args.master_addr is None else args.master_addr
        port = args.master_port
        if port is None:  # as under torchrun, the port of one node is a free one
            port = DEFAULT_PORT if max_nodes > 1 else 0
        if ":" in address:
            address = f"[{address}]"
        args.rdzv_endpoint = f"{address}:{port}"


def _warnings_about(args: Arguments, max_nodes: int, *, is_range: bool) -> Iterator[str]:
    """Yield warnings about combinations of options."""
    if max_nodes > 1:
        if not args.is_given("node_rank"):
            yield "this node is node 0, as --node-rank was not given; each node needs its own"
        if is_range:
            yield (
                f"rendezvous backend {args.rdzv_backend!r} does not support a range of nodes: it "
                f"waits for all {max_nodes} (--nnodes)"
            )
    if args.rdzv_endpoint and not _is_endpoint(args):
        names = ("--master-addr", "--master-port")
        ignored = [n for n in names if args.is_given(n[2:].replace("-", "_"))]
        if ignored:
            yield f"--rdzv-endpoint={args.rdzv_endpoint} is used, and {', '.join(ignored)} is not"


def _is_endpoint(args: Arguments) -> bool:
    """Whether the master's address is the endpoint; accelerate gives both."""
    host, _, port = args.rdzv_endpoint.rpartition(":")
    is_given = args.is_given("master_port")
    return bool(host == args.master_addr and (not is_given or port == str(args.master_port)))


class _Place(NamedTuple):
    """Where a node meets the others, and how long it waits for them.

    Args:
        host: the address of node 0, or of this node alone.
        port: the port of the master; 0 if any will do, as this node is alone.
        rank: the index of this node.
        timeout: seconds in which all nodes must arrive.
    """

    host: str
    port: int
    rank: int
    timeout: float


def _read_place(params: RendezvousParameters) -> _Place:
    """Read the endpoint and the options.

    Raises:
        UsageError: an option is unknown or invalid.
    """
    waits = {"join_timeout", "timeout"} if params.max_nodes > 1 else set()
    params.refuse_unknown(frozenset({"rank", *waits}), _WITHOUT_EFFECT)
    rank = params.get_as_int("rank", 0) or 0
    if not 0 <= rank < params.max_nodes:
        raise UsageError(
            f"node rank {rank} (--node-rank) is outside the job of {params.max_nodes} nodes "
            f"(--nnodes); ranks go from 0 to {params.max_nodes - 1}"
        )
    if params.max_nodes == 1 and not params.endpoint:
        return _Place(params.local_addr or LOOP_BACK, 0, rank, JOIN_TIMEOUT)
    from plaunch_network import no_port_error, parse_rendezvous_endpoint  # with an endpoint only

    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=-1)
    # accelerate's notebook_launcher asks for any port of one node
    if port < 0 or (port == 0 and params.max_nodes > 1):
        raise no_port_error(params.endpoint, "give one with --master-port")
    timeout = params.get_as_seconds("timeout", params.job.start_timeout, LIMIT)  # torchrun's name
    timeout = params.get_as_seconds("join_timeout", timeout, LIMIT)
    return _Place(host, port, rank, JOIN_TIMEOUT if timeout is None else timeout)


@backend_traits(
    BackendTraits(
        needs_endpoint=True,
        default_port=DEFAULT_PORT,
        is_hosted_by_node=True,
        is_single_node=True,
        has_given_ranks=True,
        fill=fill_in,
        check=_read_place,
    )
)
def create_static_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler for one node without an endpoint, or for nodes with given ranks.

    Raises:
        UsageError: an option is unknown or invalid, or the port is taken.
    """
    place = _read_place(params)
    if place.port == 0:
        return SingleNodeRendezvous(params.run_id, place.host, params.job.port_range)
    return StaticRendezvous(
        params.run_id, place.host, place.port, place.rank, params.max_nodes, place.timeout
    )


class _FixedMembership(RendezvousHandler):
    """Base of the handlers whose nodes never change: no node arrives, leaves or closes the job."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._held: HeldPort | None = None
        self._store_address: RendezvousStoreInfo | None = None  # of the current round
        self._store: RoundStore | None = None  # created when a program reads it

    def get_backend(self) -> str:
        """Return `static`, the name of both handlers."""
        return "static"

    def is_closed(self) -> bool:
        """Return False: the rendezvous cannot be closed."""
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no way to notify other nodes."""

    def num_nodes_waiting(self) -> int:
        """Return 0: arrivals are not detected."""
        return 0

    def fileno(self) -> int:
        """Return -1: membership never changes."""
        return -1

    def changes(self) -> Sequence[MembershipChange]:
        """Return nothing: there are no changes."""
        return ()

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    @property
    def hosts_worker_store(self) -> bool:
        """Whether a program has read the store before the workers started.

        This process then serves it at the workers' address, as torchrun does, and they share it.
        """
        return self._store is not None and self._store.is_shared

    def _create_round(
        self,
        address: RendezvousStoreInfo,
        rank: int,
        world_size: int,
        ranks: WorldRanks | None,
        timeout: float,
    ) -> RendezvousInfo:
        """Return a round whose store is opened when a program reads it."""
        if address is not self._store_address:
            self._drop_store()
        self._store_address = address

        def open_store() -> Store:
            from plaunch_rendezvous_static.round_store import RoundStore  # rare

            is_current = address is self._store_address
            store = self._store if is_current else None
            if store is None:
                store = RoundStore(
                    self._run_id,
                    address.master_addr,
                    address.master_port,
                    is_host=rank == 0,
                    is_alone=world_size == 1,
                    timeout=timeout,
                )
            if is_current:
                self._store = store
            return store.open()

        return RendezvousInfo(None, rank, world_size, address, ranks=ranks, open_store=open_store)

    def _drop_store(self) -> None:
        store, self._store, self._store_address = self._store, None, None
        if store is not None:
            store.close()

    def shutdown(self) -> bool:
        """Release the port and the store."""
        self._drop_store()
        if self._held is not None:
            self._held.close()
            self._held = None
        return True


class SingleNodeRendezvous(_FixedMembership):
    """One node: every round is complete at once, and has its own port on loopback.

    The port of a round is reserved until the next round or the end, so that no other program gets
    it before the launcher listens there for the workers.
    """

    def __init__(
        self,
        run_id: str,
        address: str = LOOP_BACK,
        port_range: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(run_id)
        self._address = address
        self._port_range = port_range

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the round of this one node, on a fresh port."""
        previous, self._held = self._held, HeldPort.any(self._port_range)
        if previous is not None:
            previous.close()
        address = RendezvousStoreInfo(self._address, self._held.port)
        return self._create_round(address, 0, 1, None, JOIN_TIMEOUT)


class StaticRendezvous(_FixedMembership):
    """Several nodes with given ranks and a given address of rank 0, as in torchrun.

    Before the first round, the nodes report to node 0 how many workers they run, and receive their
    ranks, which never change. After that every agent restarts only its own workers. With
    `TORCH_ELASTIC_WORKER_IDENTICAL=1`, all nodes run the same number of workers and do not wait for
    each other. The agent of node 0 reserves the port for this exchange and for the workers' store.

    Args:
        run_id: the id of the job.
        host, port: the address of node 0.
        rank: the rank of this node.
        world_size: the number of nodes.
        timeout: seconds in which all nodes must arrive.
        bounds: the other bounds of the exchange; None for the usual ones.

    Raises:
        UsageError: this is node 0 and the port is taken.
    """

    def __init__(
        self,
        run_id: str,
        host: str,
        port: int,
        rank: int,
        world_size: int,
        timeout: float = JOIN_TIMEOUT,
        *,
        bounds: ExchangeBounds | None = None,
    ) -> None:
        super().__init__(run_id)
        self._bounds = bounds
        self._master = RendezvousStoreInfo(host, port)
        self._rank = rank
        self._world_size = world_size
        self._ranks: WorldRanks | None = None
        self._timeout = timeout
        self._node: NodeSettings | None = None
        self._exchange: RankExchange | None = None
        self._has_ranks = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1"
        if rank == 0:
            self._held = HeldPort.given(port, "--master-port")

    def prepare(self, node: NodeSettings) -> None:
        """Remember the settings of this node, which it reports to the others."""
        self._node = node

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the round given by the command line; the first one when all nodes have arrived.

        Raises:
            RendezvousTimeoutError: not all nodes have arrived in time.
            RendezvousClosedError: node 0 rejects this node.
            RendezvousConnectionError: node 0 cannot listen, or another program answers there.
        """
        if not self._has_ranks and self._node is not None:
            self._ranks = self._exchange_ranks(self._node)
            self._has_ranks = True
        return self._create_round(
            self._master, self._rank, self._world_size, self._ranks, self._timeout
        )

    def describe_wait(self) -> str:
        """On node 0, the missing nodes; on other nodes, node 0."""
        exchange = self._exchange
        return super().describe_wait() if exchange is None else exchange.describe()

    def shutdown(self) -> bool:
        """Release all resources, and end the wait for other nodes."""
        if self._exchange is not None:
            self._exchange.close()
        return super().shutdown()

    def _exchange_ranks(self, node: NodeSettings) -> WorldRanks | None:
        from plaunch_rendezvous_static.exchange import RankExchange  # several nodes only
        from plaunch_rendezvous_static.messages import Introduction

        introduction = Introduction(
            self._run_id,
            self._world_size,
            self._rank,
            node.role,
            node.local_world_size,
            socket.gethostname(),
        )
        master = self._master
        self._exchange = RankExchange(
            introduction,
            master.master_addr,
            master.master_port,
            self._timeout,
            self._bounds,
        )
        return self._exchange.run()
