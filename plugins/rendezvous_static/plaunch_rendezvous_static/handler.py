"""Rendezvous without a meeting: nothing is shared, so nothing can be waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.rendezvous import (
    BackendTraits,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    backend_traits,
)
from plaunch_network import HeldPort, parse_rendezvous_endpoint

from plaunch_rendezvous_static.options import DEFAULT_PORT, fill_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.rendezvous import MembershipChange

LOOP_BACK = "127.0.0.1"

# Mean nothing where nobody is waited for; the launcher refuses a token, where it would be missed.
_NOT_NEEDED = frozenset({"token_file", "arrival_delay"})


@backend_traits(
    BackendTraits(
        needs_endpoint=True,
        default_port=DEFAULT_PORT,
        is_hosted_by_node=True,
        is_single_node=True,
        has_given_ranks=True,
        fill=fill_in,
    )
)
def create_static_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler for one node without an endpoint, or for nodes with given ranks.

    Raises:
        UsageError: an option is unknown or has a bad value, or the port is taken.
    """
    params.refuse_unknown(frozenset({"rank"}), _NOT_NEEDED)
    rank = params.get_as_int("rank", 0) or 0
    if not 0 <= rank < params.max_nodes:
        raise UsageError(
            f"node rank {rank} (--node-rank) is outside the job of {params.max_nodes} nodes "
            f"(--nnodes); ranks go from 0 to {params.max_nodes - 1}"
        )
    if params.max_nodes == 1 and not params.endpoint:
        return SingleNodeRendezvous(
            params.run_id, params.local_addr or LOOP_BACK, params.job.port_range
        )
    if not params.endpoint:
        raise UsageError(
            f"backend 'static' needs to know where rank 0 of {params.max_nodes} nodes is; give "
            "--master-addr and --master-port, the same on all nodes"
        )
    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=-1)
    if params.max_nodes == 1 and port == 0:  # as accelerate's notebook_launcher asks for any
        return SingleNodeRendezvous(params.run_id, host, params.job.port_range)
    if port <= 0:
        raise UsageError(
            f"endpoint {params.endpoint!r} of backend 'static' has no port that all nodes know; "
            "give one with --master-port"
        )
    return StaticRendezvous(params.run_id, host, port, rank, params.max_nodes)


class _NoMembership(RendezvousHandler):
    """What the two kinds have in common: nobody arrives, leaves or closes."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._held: HeldPort | None = None

    def get_backend(self) -> str:
        """`static`, under which both kinds are selected."""
        return "static"

    def is_closed(self) -> bool:
        """Never: there is nothing that could be closed."""
        return False

    def set_closed(self) -> None:
        """Do nothing: other nodes cannot be told."""

    def num_nodes_waiting(self) -> int:
        """None, ever: arrivals are not noticed."""
        return 0

    def fileno(self) -> int:
        """-1: membership never changes."""
        return -1

    def changes(self) -> Sequence[MembershipChange]:
        """Nothing, ever."""
        return ()

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """Let the held port go."""
        if self._held is not None:
            self._held.close()
            self._held = None
        return True


class SingleNodeRendezvous(_NoMembership):
    """One node: every round is complete at once and has a port of its own on loopback.

    The port of a round is held until the next round or the end, so that no other program is given
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
        return RendezvousInfo(None, 0, 1, RendezvousStoreInfo(self._address, self._held.port))


class StaticRendezvous(_NoMembership):
    """Several nodes, each told its rank and where rank 0 is; as torchrun's, less what agents share.

    All nodes must run the same number of workers. Every agent restarts its own workers only. The
    agent of node 0 holds the port, for the store of the workers.

    Raises:
        UsageError: this is node 0 and the port is taken.
    """

    def __init__(self, run_id: str, host: str, port: int, rank: int, world_size: int) -> None:
        super().__init__(run_id)
        self._info = RendezvousInfo(None, rank, world_size, RendezvousStoreInfo(host, port))
        if rank == 0:
            self._held = HeldPort.given(port, "--master-port")

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the round that the command line describes."""
        return self._info
