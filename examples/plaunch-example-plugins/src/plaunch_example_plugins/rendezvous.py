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
    """Provide the backend under the name of its entry point."""
    return {"hostfile": create_handler}


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Create this node's handler.

    Raises:
        UsageError: the host file is unusable, its number of hosts does not match `--nnodes`, or an
            option is unknown or has a bad value.
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
    """One node of a host file: every round completes at once, with the same ranks."""

    def __init__(self, run_id: str, info: RendezvousInfo) -> None:
        self._run_id = run_id
        self._info = info
        self._port: HeldPort | None = None
        if info.rank == 0:
            # Reserve the port until the launcher listens on it.
            self._port = HeldPort.given(
                info.bootstrap_store_info.master_port, "--rdzv-conf=port=..."
            )

    def get_backend(self) -> str:
        """The name of the backend."""
        return "hostfile"

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the ranks of the host file."""
        return self._info

    def is_closed(self) -> bool:
        """Return False: this rendezvous cannot be closed."""
        return False

    def set_closed(self) -> None:
        """Do nothing: there is no way to notify other nodes."""

    def num_nodes_waiting(self) -> int:
        """Return 0: the file does not change."""
        return 0

    def fileno(self) -> int:
        """Return -1, so that the agent never calls `changes`."""
        return -1

    def changes(self) -> Sequence[MembershipChange]:
        """Return no changes."""
        return ()

    def get_run_id(self) -> str:
        """The id of the job."""
        return self._run_id

    def shutdown(self) -> bool:
        """Release the port."""
        if self._port is not None:
            self._port.close()
            self._port = None
        return True
