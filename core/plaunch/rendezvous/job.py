"""The contract of handlers that know the whole job, and not only which nodes are present."""

from __future__ import annotations

import enum
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.rendezvous.api import ObservableRendezvous, RendezvousInfo, WorldRanks
from plaunch.values import Value, plain_dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from plaunch.process.failure import ProcessFailure
    from plaunch.rendezvous.api import MembershipChange, RendezvousStoreInfo, Store


class JobOutcome(str, enum.Enum):
    """How a job ended; each is equal to its word."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"  # `end_job` was called
    CLOSED = "closed"  # `set_closed` was called
    TIMED_OUT = "timed out"  # too few nodes met in time, and none of them can wait any longer

    def __str__(self) -> str:
        return self.value


@plain_dataclass
class Verdict(Value):
    """How a job ended, the same for all of its nodes.

    Args:
        outcome: how it ended.
        node: the node that found it; of a stopped job, the one that received the request.
        reason: what happened, in one sentence; not why there is no restart (`no_restart`).
        time: when, in seconds since the epoch on that node's clock.
        failures: the failures of the last round, of all nodes, by global rank, the first one
            first. A launcher that failed has a negative number.
        first: whose failure was the first one, as all nodes agree; None if there is none.
        counted: how many more failures there are, by descriptions such as
            "ranks 40-99 (exit code 1)", if they are too many to list.
        no_restart: why a restart policy decided against a restart, in one sentence; empty if none
            did.
        is_past: whether the job was over before this node joined.
        early_ends: the workers that had succeeded before the first failure, one line for each node;
            workers that wait for them hang, or fail because they are gone.
    """

    outcome: JobOutcome
    node: str
    reason: str
    time: float
    failures: Mapping[int, ProcessFailure] = field(default_factory=dict)
    first: int | None = None
    counted: Mapping[str, int] = field(default_factory=dict)
    no_restart: str = ""
    is_past: bool = False
    early_ends: Sequence[str] = ()


def world_ranks(nodes: Iterable[tuple[str, int]]) -> list[WorldRanks]:
    """Number the workers of all nodes, given as role and number of workers in order of rank.

    Global ranks are contiguous per node; role ranks are so among the nodes of one role.
    """
    starts: list[tuple[int, str, int]] = []
    world_size = 0
    role_sizes: dict[str, int] = {}
    for role, local_world_size in nodes:
        starts.append((world_size, role, role_sizes.get(role, 0)))
        world_size += local_world_size
        role_sizes[role] = role_sizes.get(role, 0) + local_world_size
    return [
        WorldRanks(first_global, world_size, first_role, role_sizes[role])
        for first_global, role, first_role in starts
    ]


class JobRound(RendezvousInfo):
    """The outcome of one round with a `JobRendezvous`.

    Args:
        attempt: how many restarts the job has used, the same on all nodes.
        reason: what has led to the new round, in one sentence; empty for the first one.
        decision: what the job decided about that, such as `restart 2 of 3`, in one sentence; empty
            if there was nothing to decide.
        round: how many worlds the job has formed before this one, the same on all nodes; None lets
            each agent count those that it was in.
        store, rank, world_size, bootstrap_store_info, ranks, open_store: as in `RendezvousInfo`.
    """

    ranks: WorldRanks

    def __init__(
        self,
        store: Store | None,
        rank: int,
        world_size: int,
        bootstrap_store_info: RendezvousStoreInfo,
        *,
        attempt: int,
        ranks: WorldRanks,
        reason: str = "",
        decision: str = "",
        round: int | None = None,
        open_store: Callable[[], Store | None] | None = None,
    ) -> None:
        super().__init__(
            store, rank, world_size, bootstrap_store_info, ranks=ranks, open_store=open_store
        )
        self.round = round
        self.attempt = attempt
        self.reason = reason
        self.decision = decision


class SharedTexts(Protocol):
    """Short texts that the nodes of a job share, such as the state of their workers.

    A `JobRendezvous` may have one as its attribute `texts`. Its methods are thread-safe while the
    node takes part in a round. The job must not depend on them: a text may be lost, and the text of
    a node that has left may remain.
    """

    def publish(self, name: str, text: str) -> None:
        """Let all nodes read `text`; replaces this node's last text of that name.

        Returns at once. Unprintable characters are read as escape sequences.

        Raises:
            ValueError: the text has more than 16,384 characters.
        """

    def read(
        self, name: str, timeout: float = 1.0, *, all_nodes: bool = False
    ) -> Mapping[str, str]:
        """The texts of that name in the present round, by node, with this node's.

        Waits at most `timeout` seconds for the store; empty if it does not respond.

        Args:
            name: as given to `publish`.
            timeout: seconds.
            all_nodes: whether to include nodes without a text, with an empty one.
        """

    def broadcast(self, name: str, text: str) -> None:
        """Send `text` to the listeners on all nodes of the round, this one included.

        Returns at once. A broadcast between rounds is lost. Use it rarely, such as for requests of
        users: the store keeps each text until the job ends.

        Raises:
            ValueError: name and text have more than 499 characters, or the name has a space.
        """

    def listen(self, name: str, listener: Callable[[str], None]) -> None:
        """Call `listener` with each broadcast of that name, on any thread; it must not block.

        A name has one listener, the last one set; listening costs nothing.
        """


@runtime_checkable
class JobRendezvous(ObservableRendezvous, Protocol):
    """A handler that knows the whole job: one attempt number, one budget, one verdict.

    Only `next_rendezvous` blocks. After a failure, agents on all nodes stop their workers and call
    it again; it raises `RendezvousClosedError` if no restart was left, and
    `RendezvousGracefulExitError` on a spare node when the job has succeeded without it.
    """

    def next_rendezvous(self) -> JobRound:
        """Join the next round and return when it is complete."""

    def restart_delay(self) -> float:
        """Seconds until the next round may begin, if a restart policy has delayed it; else 0.

        Called while this node waits for that round.
        """

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, once this node knows."""

    def report_failure(
        self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False
    ) -> None:
        """Report to all nodes that workers of this node have failed in the current round.

        `failures` are all of them by global rank, however many, and at least one; the one that
        began earliest (`ProcessFailure.began`) is the first. A failure of the launcher itself has a
        negative rank, which need not be its rank in the `Verdict`. A handler may shorten the
        report: it must contain the first failure in detail, and the others at least as numbers
        (`Verdict.counted`).

        Only the first report of a round counts, from any node. `is_final` is whether a restart
        cannot help.
        """

    def take_losses(self) -> Sequence[MembershipChange]:
        """The nodes lost since the last call while this node waits for a round, as LOST changes.

        `changes` has those that are lost while it takes part in one.
        """

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record which workers of this node have succeeded, and when, for `Verdict.early_ends`.

        Called repeatedly while a round runs. The other nodes need it only after a failure.

        Args:
            ended: seconds since the epoch, by global rank.
        """

    def report_success(self) -> None:
        """Report that all workers of this node have succeeded.

        When those of all nodes have, the job is over: a CLOSED change on every node.
        """

    def send_notice(self, signum: int) -> None:
        """Pass a signal on to the agents of all other nodes, as a NOTICE change."""

    def request_round(self, reason: str) -> None:
        """Request that all nodes stop their workers and join another round, without a failure.

        The others get a RESTART change. It is not counted against `max_restarts`. While a round is
        delayed, this may end the delay.
        """

    def end_job(self, reason: str) -> None:
        """End the job for all nodes, because that was requested on this one.

        The verdict is STOPPED. Nodes that run workers or wait for a round end alike.
        """

    def announce_leave(self, reason: str, *, is_excluded: bool = False) -> None:
        """Announce that this node leaves, before it stops its workers; `leave` follows.

        Otherwise the others would see connections break before they know why. The next round begins
        after `leave`, because workers may save until then. If it `is_excluded`,
        because it is unhealthy, the job refuses all nodes of its host from now on.
        """
