"""The store in which the workers of a round meet: the contract of its hosts, and this node's."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from plaunch._names import class_name
from plaunch.errors import WorkerStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from plaunch.agent.worker import WorkerGroup
    from plaunch.process.components import Starter
    from plaunch.process.stopping.job import Reaper

logger = logging.getLogger("plaunch")

_STREAMS = ("stdin", "stdout", "stderr")


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
            `subprocess.Popen`. With descriptors for all three streams, and nothing else but
            `pass_fds`, the starter of workers may start it. Such a process is not a worker, and
            never outlives the launcher; its caller ends it.
    """

    address: str
    port: int
    nodes: int
    entrypoint: Callable[..., Any] | str
    environ: Mapping[str, str]
    start: Callable[..., Any]


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


class HostedStore:
    """Opens, tends and closes the store; all methods are no-ops if this node hosts none.

    Args:
        open_store: opens the store of a round.
        reaper: starts the processes that it needs.
        starter: the starter of the workers, which may have loaded what the store needs.
    """

    def __init__(
        self, open_store: OpenStore, reaper: Reaper, starter: Starter | None = None
    ) -> None:
        self._open_store = open_store
        self._reaper = reaper
        self._starter = starter
        self._store: WorkerStore | None = None

    def open(self, group: WorkerGroup, env: Mapping[str, str]) -> Sequence[int]:
        """Open the store of a round that begins, if this node hosts it.

        Args:
            group: the workers of this node.
            env: the environment of the first one.

        Returns:
            Descriptors that workers must not inherit.

        Raises:
            WorkerStoreError: another program listens at its address.
        """
        self.close()
        spec = group.spec
        if group.group_rank != 0 or not spec.hosts_worker_store:
            return ()
        self._store = self._open_store(
            StoreRound(
                str(group.master_addr),
                int(group.master_port or 0),
                nodes=group.group_world_size or 1,
                entrypoint=spec.entrypoint,
                environ={**os.environ, **env},
                start=self._start,
            )
        )
        return self._store.fds()

    def _start(self, command: Sequence[str], environ: Mapping[str, str], **options: Any) -> Any:
        """Start a helper; by the starter of workers, if it knows all options."""
        has_streams = all(isinstance(fd, int) and fd >= 0 for fd in map(options.get, _STREAMS))
        is_known = has_streams and options.keys() <= {*_STREAMS, "pass_fds"}
        start = self._starter.start_helper if self._starter is not None and is_known else None
        return self._reaper.start_helper(command, environ, start=start, **options)

    def watch(self, pids: Collection[int]) -> None:
        """Record the workers of this node, which have been started."""
        if self._store is not None:
            self._store.watch(pids)

    def fds(self) -> Sequence[int]:
        """Descriptors that become readable when there is something to do."""
        return () if self._store is None else self._store.fds()

    def due(self) -> float | None:
        """Seconds until there is something to do in any case, or None."""
        return None if self._store is None else self._store.due()

    def tend(self) -> WorkerStoreError | None:
        """Do what is due; returns why the store is lost, if it is."""
        store = self._store
        if store is None:
            return None
        try:
            return store.tend()
        except Exception as error:  # noqa: BLE001 - it may be a plugin's
            self.close()
            return WorkerStoreError(f"the workers' store is lost: {_describe(store, error)}")

    def wait_for_guests(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the workers of other nodes to disconnect."""
        store = self._store  # which the loop closes if it does not wait any longer
        if store is not None:
            store.wait_for_guests(timeout)

    def close(self) -> None:
        """Close the store, if one is open."""
        store, self._store = self._store, None
        if store is None:
            return
        try:
            store.close()
        except Exception as error:  # noqa: BLE001 - as above
            logger.warning("the workers' store could not be closed: %s", _describe(store, error))


def _describe(store: WorkerStore, error: Exception) -> str:
    return f"{class_name(store)} failed with {type(error).__name__}: {error}"
