"""The rendezvous contract: which nodes meet, with which ranks, and where the workers' store is.

Names are torchrun's. `ObservableRendezvous` is an addition: a handler that implements it wakes the
agent when something changes, where a plain handler is asked once per monitor interval.
"""

from __future__ import annotations

import abc
import enum
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.rendezvous.backend import RendezvousParameters
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from plaunch.rendezvous.backend import NodeSettings


class Store(Protocol):
    """The part of torch's `Store` that an agent uses; any object with these methods will do."""

    def set(self, key: str, value: str) -> None:
        """Write `value` under `key`."""

    def get(self, key: str) -> bytes:
        """Return the value under `key`, waiting for it if need be."""

    def add(self, key: str, num: int) -> int:
        """Add `num` to the counter under `key` and return the sum."""

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Return when all `keys` exist, or raise after `timeout`."""


@plain_dataclass
class RendezvousStoreInfo(Value):
    """Where the workers' own store is: `MASTER_ADDR` and `MASTER_PORT` of one round."""

    MASTER_ADDR_KEY = "MASTER_ADDR"
    MASTER_PORT_KEY = "MASTER_PORT"

    master_addr: str
    master_port: int


@plain_dataclass
class WorldRanks(Value):
    """The first ranks of one node's workers in a round, and the sizes of their worlds."""

    first_global: int
    world_size: int
    first_role: int
    role_world_size: int


class RendezvousInfo:
    """The outcome of one round for one node. Names and order are torchrun's.

    Args:
        store: shared by the nodes of the round, or None where the backend has none. Agents exchange
            ranks and wait for each other through it.
        rank: this node's index in the round (`GROUP_RANK`).
        world_size: the number of nodes in the round (`GROUP_WORLD_SIZE`).
        bootstrap_store_info: where the workers' store is.
        ranks: the ranks of this node's workers, where the backend knows what all nodes run; None
            lets the agents work them out. torchrun has no such argument.
        open_store: opens a store for programs that read `store`, where `store` is None; called on
            the first read, on any thread, and never by plaunch's agents. torchrun has no such
            argument.
    """

    def __init__(
        self,
        store: Store | None,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo,
        *,
        ranks: WorldRanks | None = None,
        open_store: Callable[[], Store | None] | None = None,
    ) -> None:
        self.ranks = ranks
        self.agent_store = store
        self._store = store
        self._open_store = open_store
        self._opening = threading.Lock()
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Store | None:
        """The store that the nodes of the round share; None where there is none.

        The first read may open a connection, and raises what that raises; the next read then tries
        again. `agent_store` is None if the agents do not share a store.
        """
        if self._store is None and self._open_store is not None:
            with self._opening:
                if self._store is None:
                    self._store = self._open_store()
        return self._store

    @property
    def rank(self) -> int:
        """This node's index in the round."""
        return self._rank

    @property
    def world_size(self) -> int:
        """The number of nodes in the round."""
        return self._world_size

    @property
    def bootstrap_store_info(self) -> RendezvousStoreInfo:
        """Where the workers' store is."""
        return self._bootstrap_store_info

    def __repr__(self) -> str:
        return (
            f"RendezvousInfo(rank={self.rank}, world_size={self.world_size}, "
            f"bootstrap_store_info={self.bootstrap_store_info})"
        )


class RendezvousHandler(abc.ABC):
    """Brings the nodes of a job together, round after round. Backend plugins implement it.

    An agent calls `next_rendezvous` in a thread of its own and the other methods from its loop, so
    those must not block. Every method but `next_rendezvous` may be called at any time.
    """

    @abc.abstractmethod
    def get_backend(self) -> str:
        """The name under which users select this backend."""

    @property
    def use_agent_store(self) -> bool:
        """Whether the workers' store is hosted outside of them, so that it outlives them all.

        By default the launcher of the node of rank 0 hosts it; the handler only provides an address
        of that node, and a free port. False leaves the store to the worker of rank 0. Workers get
        the value in `TORCHELASTIC_USE_AGENT_STORE`.
        """
        return True

    @property
    def hosts_worker_store(self) -> bool:
        """Whether this handler itself serves the workers' store, at the address of its rounds.

        The launcher then does not. torchrun has no such name.
        """
        return False

    def prepare(self, node: NodeSettings) -> None:  # noqa: B027 - most have no use for it
        """Take the settings of this node from its agent, before the first round of each run.

        Handlers that assign ranks or decide about restarts need them. torchrun has no such method.
        The default does nothing, for handlers whose agents work out the ranks.

        Raises:
            UsageError: `node` contradicts the parameters, or what this handler has joined with.
        """

    @abc.abstractmethod
    def next_rendezvous(self) -> RendezvousInfo:
        """Join the next round and return when it is complete.

        Raises:
            RendezvousClosedError: the rendezvous is closed, or this node is refused.
            RendezvousConnectionError: the backend's store cannot be reached.
            RendezvousStateError: the backend's state is corrupt.
            RendezvousTimeoutError: the round did not complete in time.
            RendezvousGracefulExitError: this node is not needed.
        """

    def describe_wait(self) -> str:
        """What `next_rendezvous` is waiting for, in a few words: "2 nodes; 1 came: node0".

        Called about once a second during a long wait. torchrun has no such method.
        """
        return f"the rendezvous backend {self.get_backend()!r}"

    @abc.abstractmethod
    def is_closed(self) -> bool:
        """Whether the rendezvous is closed for all nodes."""

    @abc.abstractmethod
    def set_closed(self) -> None:
        """Close the rendezvous for all nodes."""

    @abc.abstractmethod
    def num_nodes_waiting(self) -> int:
        """How many nodes wait to be admitted; above zero, the agents form a new round."""

    @abc.abstractmethod
    def get_run_id(self) -> str:
        """The id of the job."""

    @abc.abstractmethod
    def shutdown(self) -> bool:
        """Release all resources; False if that failed. May be called twice."""

    def leave(self) -> bool:
        """Release all resources, instead of `shutdown`, when a stop of this node was requested.

        The job may continue without this node, and the node may rejoin. torchrun calls nothing in
        this case, because `shutdown` of its handlers closes the rendezvous for all nodes; `leave`
        must not. The default calls `shutdown`.
        """
        return self.shutdown()


ENDING_DELAY = 5.0  # seconds from the success of half of the nodes until it is reported


class ChangeKind(enum.Enum):
    """What happened to the membership of a job, or to the job."""

    ARRIVED = "arrived"
    LEFT = "left"
    LOST = "lost"
    CLOSED = "closed"  # permanently; `JobRendezvous.verdict` has how the job ended
    # The others come from a `JobRendezvous` only.
    FAILED = "failed"  # workers of this round failed; `next_rendezvous` has what follows
    RESTART = "restart"  # a node requests another round; nothing has failed
    NOTICE = "notice"  # another node passes a signal on; the round continues
    ENDING = "ending"  # those of half of the nodes succeeded `ENDING_DELAY` ago; it continues
    UNREACHABLE = "unreachable"  # the other nodes have been silent for too long


@plain_dataclass
class MembershipChange(Value):
    """One change of membership: what happened, to which node, and why, in words.

    `signum` is the signal of a notice, and 0 otherwise. `index` is the place of a lost node in the
    last round, where that is known.
    """

    kind: ChangeKind
    node: str = ""
    reason: str = ""
    signum: int = 0
    index: int | None = None


@runtime_checkable
class ObservableRendezvous(Protocol):
    """The methods of a handler that wakes the agent, instead of being polled."""

    def fileno(self) -> int:
        """A descriptor, the same for the handler's life, readable while there are changes.

        -1 if nothing ever changes.
        """

    def changes(self) -> Sequence[MembershipChange]:
        """Take all changes since the last call; makes the descriptor unreadable again.

        Changes that led to the round which `next_rendezvous` returned last are not among them.
        """


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]
