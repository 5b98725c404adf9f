"""Rendezvous handlers that a test drives: arrivals, departures, closing, and waiting."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, TypeVar

from plaunch.errors import RendezvousClosedError, RendezvousTimeoutError
from plaunch.rendezvous.api import (
    ChangeKind,
    MembershipChange,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.rendezvous.api import Store

_Self = TypeVar("_Self", bound="FakeElasticRendezvous")


class FakeRendezvous(RendezvousHandler):
    """A plain handler, which can only be asked; every round has the shape that the test sets.

    Its address is fictitious, so no workers' store is hosted there; a test that needs one sets
    `agent_store`, and `master_port` to a port that is free.

    Args:
        run_id: the id of the job.
        rank: this node's index in the rounds to come; may be changed between rounds.
        world_size: the number of nodes in the rounds to come; may be changed between rounds.
        store: the store of every round.
        patience: how long `next_rendezvous` waits while held, in seconds.
    """

    def __init__(
        self,
        run_id: str = "test",
        *,
        rank: int = 0,
        world_size: int = 1,
        store: Store | None = None,
        patience: float = 30.0,
    ) -> None:
        self.run_id = run_id
        self.rank = rank
        self.world_size = world_size
        self.store = store
        self.patience = patience
        self.master_addr = "127.0.0.1"
        self.master_port = 29400
        self.agent_store = False
        self.rounds = 0
        self.nodes_waiting = 0
        self.closed = False
        self.shut_down = False
        self.joining = threading.Event()  # set once somebody waits in next_rendezvous
        self._released = threading.Event()
        self._released.set()

    def hold(self) -> None:
        """Keep the next rounds from completing until `release`."""
        self.joining.clear()
        self._released.clear()

    def release(self) -> None:
        """Let rounds complete again."""
        self._released.set()

    def get_backend(self) -> str:
        """`fake`."""
        return "fake"

    @property
    def use_agent_store(self) -> bool:
        """What the test has put into `agent_store`."""
        return self.agent_store

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a round of the current shape, once not held; waiting nodes are admitted."""
        self.joining.set()
        if not self._released.wait(self.patience):
            raise RendezvousTimeoutError(f"the fake round was held for {self.patience} s")
        if self.closed:
            raise RendezvousClosedError(f"the fake rendezvous {self.run_id!r} is closed")
        self.rounds += 1
        self.nodes_waiting = 0
        where = RendezvousStoreInfo(self.master_addr, self.master_port + self.rounds - 1)
        return RendezvousInfo(self.store, self.rank, self.world_size, where)

    def is_closed(self) -> bool:
        """Whether the test, or the agent, has closed it."""
        return self.closed

    def set_closed(self) -> None:
        """Close it."""
        self.closed = True

    def num_nodes_waiting(self) -> int:
        """What the test has put into `nodes_waiting`."""
        return self.nodes_waiting

    def get_run_id(self) -> str:
        """The id of the job."""
        return self.run_id

    def shutdown(self) -> bool:
        """Note that it was called."""
        self.shut_down = True
        return True


class FakeElasticRendezvous(FakeRendezvous):
    """A handler that wakes its agent; the test calls `arrive`, `depart`, `lose` and `close`.

    Use it as a context manager, or call `shutdown`, to release its descriptor.
    """

    def __init__(
        self, run_id: str = "test", *, rank: int = 0, world_size: int = 1, patience: float = 30.0
    ) -> None:
        super().__init__(run_id, rank=rank, world_size=world_size, patience=patience)
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._lock = threading.Lock()
        self._changes: list[MembershipChange] = []

    def arrive(self, node: str = "newcomer") -> None:
        """A node wants to join: the next round has one node more."""
        self.nodes_waiting += 1
        self.world_size += 1
        self._change(ChangeKind.ARRIVED, node, "asks to join")

    def depart(self, node: str = "neighbour", reason: str = "leaves") -> None:
        """A node goes on purpose: the next round has one node less."""
        self.world_size -= 1
        self._change(ChangeKind.LEFT, node, reason)

    def lose(self, node: str = "neighbour", reason: str = "missed its heartbeats") -> None:
        """A node is gone: the next round has one node less."""
        self.world_size -= 1
        self._change(ChangeKind.LOST, node, reason)

    def close(self, node: str = "neighbour", reason: str = "closed by the test") -> None:
        """Another node closes the rendezvous."""
        self.closed = True
        self._change(ChangeKind.CLOSED, node, reason)

    def fileno(self) -> int:
        """Readable while there are changes."""
        return self._read

    def changes(self) -> Sequence[MembershipChange]:
        """Take all changes."""
        with self._lock:
            taken, self._changes = self._changes, []
            if taken:
                os.read(self._read, 4096)
        return taken

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a round of the current shape; changes so far are part of it."""
        info = super().next_rendezvous()
        self.changes()
        return info

    def shutdown(self) -> bool:
        """Release the descriptor; may be called twice."""
        if not self.shut_down:
            os.close(self._read)
            os.close(self._write)
        return super().shutdown()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def _change(self, kind: ChangeKind, node: str, reason: str, signum: int = 0) -> None:
        with self._lock:
            self._changes.append(MembershipChange(kind, node, reason, signum))
            os.write(self._write, b"\0")
