"""The workers' store of a round, if this node hosts it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from plaunch._names import class_name
from plaunch.agent.worker_store import OpenStore, StoreRound, WorkerStore
from plaunch.errors import WorkerStoreError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from plaunch.agent.worker import WorkerGroup
    from plaunch.process.stopping.job import Reaper

logger = logging.getLogger("plaunch")


class HostedStore:
    """Opens, tends and closes the store; all methods are no-ops if this node hosts none.

    Args:
        open_store: opens the store of a round.
        reaper: starts the processes that it needs.
    """

    def __init__(self, open_store: OpenStore, reaper: Reaper) -> None:
        self._open_store = open_store
        self._reaper = reaper
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
        if group.group_rank != 0 or not spec.hosts_worker_store or spec.entrypoint is None:
            return ()
        self._store = self._open_store(
            StoreRound(
                str(group.master_addr),
                int(group.master_port or 0),
                nodes=group.group_world_size or 1,
                entrypoint=spec.entrypoint,
                environ={**os.environ, **env},
                start=self._reaper.start_helper,
            )
        )
        return self._store.fds()

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
