"""The rendezvous contract: who meets, under which ranks, and where the workers' store will be.

Names are torchrun's. `ObservableRendezvous` is an addition: a handler that implements it wakes the
agent when something changes, where a plain handler is asked once per monitor interval.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.durations import PERIOD
from plaunch.errors import UsageError
from plaunch.numbers import quote, whole

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from plaunch.durations import Duration


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


@dataclass(frozen=True)
class RendezvousStoreInfo:
    """Where the workers' own store is: `MASTER_ADDR` and `MASTER_PORT` of one round."""

    MASTER_ADDR_KEY = "MASTER_ADDR"
    MASTER_PORT_KEY = "MASTER_PORT"

    master_addr: str
    master_port: int


class RendezvousInfo:
    """The outcome of one round for one node. Names and order are torchrun's.

    Args:
        store: shared by the nodes of the round, or None where the backend has none.
        rank: this node's index in the round (`GROUP_RANK`).
        world_size: the number of nodes in the round (`GROUP_WORLD_SIZE`).
        bootstrap_store_info: where the workers' store is.
    """

    def __init__(
        self,
        store: Store | None,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._bootstrap_store_info = bootstrap_store_info

    @property
    def store(self) -> Store | None:
        """The store that the nodes of the round share; None where there is none."""
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

        By default it is, by the launcher of the node of rank 0: all that a handler has to do is to
        name an address of that node, and a port of it that is free. False leaves the store to the
        worker of rank 0. Workers are told in `TORCHELASTIC_USE_AGENT_STORE`.
        """
        return True

    @property
    def hosts_worker_store(self) -> bool:
        """Whether this handler itself serves the workers' store, at the address of its rounds.

        The launcher then does not. torchrun has no such name.
        """
        return False

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

        It is called about once a second while that lasts for long. torchrun has no such method.
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
        """Release what the handler holds; False if that did not work. May be called twice."""

    def leave(self) -> bool:
        """Release what the handler holds when this node was told to stop, instead of `shutdown`.

        The job may go on without this node, and the node may come back. torchrun calls nothing at
        all in this case, because its handlers close the rendezvous for everybody in `shutdown`; a
        handler that does so must not do it here. The default calls `shutdown`.
        """
        return self.shutdown()


class ChangeKind(enum.Enum):
    """What happened to the membership of a job, or to the job."""

    ARRIVED = "arrived"
    LEFT = "left"
    LOST = "lost"
    CLOSED = "closed"  # for good; `JobRendezvous.verdict` says how the job ended
    # The others come from a `JobRendezvous` only.
    FAILED = "failed"  # workers of this round failed; what follows, `next_rendezvous` says
    NOTICE = "notice"  # another node passes a signal on; the round goes on
    UNREACHABLE = "unreachable"  # nothing was heard of the other nodes for too long


@dataclass(frozen=True)
class MembershipChange:
    """One change of membership: what happened, to which node, and why, in words.

    `signum` is the signal of a notice, and 0 otherwise.
    """

    kind: ChangeKind
    node: str = ""
    reason: str = ""
    signum: int = 0


@runtime_checkable
class ObservableRendezvous(Protocol):
    """What a handler adds to wake the agent by itself instead of being asked."""

    def fileno(self) -> int:
        """A descriptor, the same for the handler's life, readable while there are changes.

        -1 if nothing ever changes.
        """

    def changes(self) -> Sequence[MembershipChange]:
        """Take all changes since the last call; makes the descriptor unreadable again.

        Changes that led to the round which `next_rendezvous` returned last are not among them.
        """


@dataclass(frozen=True)
class JobSettings:
    """What a backend must know of the launch, beside its own parameters.

    Args:
        role: the role of this node's workers.
        local_world_size: how many workers this node runs.
        max_restarts: the job's budget; all nodes must agree.
        node_rank: the index that this node was given, or None.
        stop_timeout: how long this node may need to stop its workers before it can be in another
            round, in seconds; the others wait for it that long.
        port_range: the first and the last port that may be picked on this node, or None for any.
        start_timeout: seconds until the first worker of this node must run, or None; the default of
            the option `join_timeout`, then.
    """

    role: str = "default"
    local_world_size: int = 1
    max_restarts: int = 0
    node_rank: int | None = None
    stop_timeout: float = 0.0
    port_range: tuple[int, int] | None = None
    start_timeout: float | None = None


_TRUE = frozenset({"1", "true", "t", "yes", "y"})
_FALSE = frozenset({"0", "false", "f", "no", "n"})


@dataclass(init=False)
class RendezvousParameters:
    """What a backend is created with. Names are torchrun's.

    Args:
        backend: the backend's name.
        endpoint: where its store is, as `host[:port]`, or whatever the backend takes.
        run_id: the id of the job.
        min_nodes: how few nodes may form a round.
        max_nodes: how many nodes a round has at most.
        local_addr: this node's address as given by the user, or None.
        job: what the backend must know of the launch; torchrun has no such argument.
        kwargs: backend options (`--rdzv-conf`), kept in `config`; values are strings from the
            command line and may be anything in code.

    Raises:
        UsageError: the backend or the run id is empty, or the node range is.
    """

    backend: str
    endpoint: str
    run_id: str
    min_nodes: int
    max_nodes: int
    local_addr: str | None = None
    config: dict[str, object] = field(default_factory=dict)
    job: JobSettings = field(default_factory=JobSettings)
    secrets_read: set[str] = field(default_factory=set, repr=False, compare=False)

    def __init__(
        self,
        backend: str,
        endpoint: str,
        run_id: str,
        min_nodes: int,
        max_nodes: int,
        local_addr: str | None = None,
        *,
        job: JobSettings | None = None,
        **kwargs: object,
    ) -> None:
        if not backend:
            raise UsageError("the rendezvous backend has no name")
        if not run_id:
            raise UsageError("the run id is empty; give one with --rdzv-id")
        if min_nodes < 1:
            raise UsageError(f"the minimum number of nodes is {min_nodes}; it must be at least 1")
        if max_nodes < min_nodes:
            raise UsageError(
                f"the maximum number of nodes ({max_nodes}) is below the minimum ({min_nodes})"
            )
        self.backend = backend
        self.endpoint = endpoint
        self.run_id = run_id
        self.min_nodes = min_nodes
        self.max_nodes = max_nodes
        self.local_addr = local_addr
        self.config = dict(kwargs)
        self.job = JobSettings() if job is None else job
        self.secrets_read = set()  # names of those that the backend has asked for; copies share it

    def get(self, key: str, default: object = None) -> object:
        """The value of option `key` as it was given, or `default`."""
        return self.config.get(key, default)

    def get_as_bool(self, key: str, default: bool | None = None) -> bool | None:
        """The value of option `key` as a boolean: 1/0, true/false, t/f, yes/no, y/n, any case.

        Raises:
            UsageError: the value is something else.
        """
        value = self.get(key)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        word = str(value).lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise self._not("a boolean (true or false)", key, value)

    def get_as_int(self, key: str, default: int | None = None) -> int | None:
        """The value of option `key` as an integer.

        Raises:
            UsageError: the value is not one.
        """
        value = self.get(key)
        if value is None:
            return default
        try:
            return whole(str(value))
        except ValueError:
            raise self._not("an integer", key, value) from None

    def get_as_float(self, key: str, default: float | None = None) -> float | None:
        """The value of option `key` as a number; torchrun has no such getter.

        Raises:
            UsageError: the value is not one.
        """
        value = self.get(key)
        if value is None:
            return default
        try:
            return float(str(value))
        except ValueError:
            raise self._not("a number", key, value) from None

    def get_as_seconds(
        self, key: str, default: float | None = None, duration: Duration = PERIOD
    ) -> float | None:
        """The value of option `key` as a duration, by default above 0 and not endless.

        Raises:
            UsageError: the value is none.
        """
        value = self.get(key)
        name = f"option {key!r} of rendezvous backend {self.backend!r} (--rdzv-conf)"
        return default if value is None else duration.read(str(value), name)

    def refuse_unknown(self, known: frozenset[str], ignored: frozenset[str] = frozenset()) -> None:
        """Refuse options outside `known`, naming the closest match.

        Options in `ignored`, which some backend of torchrun knows and this one does not need, get
        a warning instead.

        Raises:
            UsageError: an option is neither known nor ignored.
        """
        for key in sorted(self.config):
            if key in known:
                continue
            if key in ignored:
                _warn_ignored(self.backend, key)
                continue
            from plaunch._names import suggest  # noqa: PLC0415 - errors only

            raise UsageError(
                f"rendezvous backend {self.backend!r} has no option {key!r} (--rdzv-conf)"
                f"{suggest(key, known)}"
            )

    def _not(self, what: str, key: str, value: object) -> UsageError:
        return UsageError(
            f"option {key!r} of rendezvous backend {self.backend!r} is {quote(value)}, "
            f"which is not {what}"
        )


def _warn_ignored(backend: str, key: str) -> None:
    import logging  # noqa: PLC0415 - a warning is rare

    logging.getLogger("plaunch").warning(
        "rendezvous backend %r does not need option %r; it is ignored", backend, key
    )


RendezvousHandlerCreator = Callable[[RendezvousParameters], RendezvousHandler]
