"""A rendezvous backend: `--rdzv-backend=hostfile` takes the ranks of the nodes from a host file.

The nodes never talk to each other: each finds its own line, and the launcher on the first host
hosts the workers' store. The file is what `--rdzv-endpoint` names, or the variable
HOSTFILE. Options (`--rdzv-conf`): `port`, of the workers' store, the same on all nodes (29500), and
`host`, this node's name in the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.plugin import hookimpl
from plaunch.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from plaunch_network import HeldPort

from plaunch_example_plugins.hostfile import find_this_host, read_hosts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from plaunch.rendezvous import MembershipChange

DEFAULT_PORT = 29500


@hookimpl
def plaunch_rendezvous_backends() -> dict[str, Callable[[RendezvousParameters], RendezvousHandler]]:
    """Offer the backend under the name of its entry point."""
    return {"hostfile": create_handler}


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create the handler of this node.

    Raises:
        UsageError: the host file is unusable, names another number of hosts than `--nnodes` asks
            for, or an option is unknown or has a bad value.
    """
    params.refuse_unknown(frozenset({"host", "port"}), frozenset({"rank", "timeout"}))
    hosts = read_hosts(params.endpoint or None)
    if not params.min_nodes <= len(hosts) <= params.max_nodes:
        raise UsageError(
            f"the host file names {len(hosts)} hosts, and --nnodes asks for {params.min_nodes} to "
            f"{params.max_nodes}; give --nnodes={len(hosts)}"
        )
    host = params.get("host")
    rank = find_this_host(hosts, None if host is None else str(host))
    port = params.get_as_int("port", DEFAULT_PORT) or DEFAULT_PORT
    if not 0 < port < 65536:
        raise UsageError(f"port {port} (--rdzv-conf=port=...) is not between 1 and 65535")
    where = RendezvousStoreInfo(hosts[0].address, port)
    return HostfileRendezvous(params.run_id, RendezvousInfo(None, rank, len(hosts), where))


class HostfileRendezvous(RendezvousHandler):
    """One node of a host file: every round is complete at once, and the same."""

    def __init__(self, run_id: str, info: RendezvousInfo) -> None:
        self._run_id = run_id
        self._info = info
        self._port: HeldPort | None = None
        if info.rank == 0:
            # Nobody else is given the port between now and the moment when the launcher listens.
            self._port = HeldPort.given(
                info.bootstrap_store_info.master_port, "--rdzv-conf=port=..."
            )

    def get_backend(self) -> str:
        """The name of the backend."""
        return "hostfile"

    def next_rendezvous(self) -> RendezvousInfo:
        """Return what the host file says."""
        return self._info

    def is_closed(self) -> bool:
        """Never: nobody could close it."""
        return False

    def set_closed(self) -> None:
        """Do nothing: nobody could be told."""

    def num_nodes_waiting(self) -> int:
        """Always 0: the file does not change."""
        return 0

    def fileno(self) -> int:
        """-1, so that the agent does not ask for changes at all."""
        return -1

    def changes(self) -> Sequence[MembershipChange]:
        """Nothing, ever."""
        return ()

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """Let the port go."""
        if self._port is not None:
            self._port.close()
            self._port = None
        return True
