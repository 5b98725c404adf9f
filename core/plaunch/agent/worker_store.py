"""The contract of what hosts the store in which the workers of a round meet, outside of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection, Mapping

    from plaunch.errors import WorkerStoreError


class StoreRound(NamedTuple):
    """A round whose workers need a store, on the node of rank 0; new fields may be added.

    Args:
        address: where the workers look for it, `MASTER_ADDR`.
        port: and at which port, `MASTER_PORT`.
        nodes: how many nodes the round has.
        entrypoint: what the workers run: a function, or the path of a program.
        environ: the environment of the first worker of this node.
        start: starts a process of the launcher's own, once there are workers: takes a command, an
            environment, from which secrets are removed, and more arguments of
            `subprocess.Popen`. Such a process is not a worker, and never outlives the launcher;
            its starter ends it.
    """

    address: str
    port: int
    nodes: int
    entrypoint: Callable[..., Any] | str
    environ: Mapping[str, str]
    start: Callable[..., subprocess.Popen[Any]]


class WorkerStore(Protocol):
    """The store of one round; a server listens at its address once it is open.

    The agent's loop calls these, so only `wait_for_guests` and `close` may take time.
    """

    def watch(self, workers: Collection[int]) -> None:
        """Record the workers of this node, by process id; they have been started."""

    def wait_for_guests(self, patience: float) -> None:
        """Wait until no process of another node is connected, at most `patience` seconds.

        Called when this node's workers have ended, while those of other nodes may still run. It
        runs on a background thread, which may be abandoned.
        """

    def fds(self) -> list[int]:
        """Descriptors that are readable when `tend` has something to do.

        Workers do not inherit those that it has when they are started.
        """

    def due(self) -> float | None:
        """Seconds until `tend` must be called in any case; None if it need not be."""

    def tend(self) -> WorkerStoreError | None:
        """Do what is due.

        Returns:
            Why the store is lost and closed, which ends the round; a `WorkerStoreHostError` ends
            the job.
        """

    def close(self) -> None:
        """Close the store and end its processes; may be called again."""


# Opens the store of each round, before its workers are started. It raises a WorkerStoreError if
# another program listens at the address.
OpenStore = Callable[[StoreRound], WorkerStore]


def open_default_store(store_round: StoreRound) -> WorkerStore:
    """Open plaunch's own store; its code is imported for the first one.

    Raises:
        WorkerStoreError: another program listens at its address.
    """
    from plaunch import parts  # on the node of rank 0 only

    store: WorkerStore = parts.load_part(parts.OPEN_WORKER_STORE)(store_round)
    return store
