"""What a handler adds to the contract that knows the whole job, and not only who is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from plaunch.rendezvous.api import ObservableRendezvous, RendezvousInfo, WorldRanks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from plaunch.rendezvous.api import RendezvousStoreInfo, Store


@dataclass(frozen=True)
class JobFailure:
    """One worker's failure, as the nodes of a job tell each other.

    Args:
        rank: the worker's global rank; -1 for a failure of the node itself.
        began: when it began, in seconds since the epoch on the node's clock. The earliest is the
            job's first failure.
        summary: what happened, in one sentence.
        detail: more, for the report: values that JSON can hold. Of a job's first
            failure, up to 160 KiB of it reach the other nodes, of others 8 KiB; texts are cut.
        how: how it ended, in a few words that others may share: "exit code 1". By them, failures
            are counted that are too many to be told one by one.
    """

    rank: int
    began: float
    summary: str
    detail: Mapping[str, object] = field(default_factory=dict)
    how: str = ""


@dataclass(frozen=True)
class FailureGroup:
    """Failures that are too many to be told one by one, and ended in the same way.

    Args:
        how: how they ended (`JobFailure.how`).
        count: how many there are.
        ranks: their global ranks, as the first and the last of each contiguous part; of very many
            parts, the first ones. Failures of nodes themselves have none.
    """

    how: str
    count: int
    ranks: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """How a job ended, the same for all of its nodes.

    Args:
        outcome: `"succeeded"`, `"failed"` or `"closed"` (`set_closed` was called).
        node: the node that found it.
        reason: why, in one sentence.
        time: when, in seconds since the epoch on that node's clock.
        failures: the failures of the last round, the first one first.
        others: those that are too many to be told one by one.
    """

    outcome: str
    node: str
    reason: str
    time: float
    failures: tuple[JobFailure, ...] = ()
    others: tuple[FailureGroup, ...] = ()


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
        reason: why there is a new round, in one sentence; empty for the first one.
        round: how many worlds the job has formed before this one, the same on all nodes; None lets
            each agent count those that it was in.
        store, rank, world_size, bootstrap_store_info, ranks: as in `RendezvousInfo`.
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
        round: int | None = None,
    ) -> None:
        super().__init__(store, rank, world_size, bootstrap_store_info, ranks=ranks)
        self.round = round
        self.attempt = attempt
        self.reason = reason


@runtime_checkable
class JobRendezvous(ObservableRendezvous, Protocol):
    """What a handler adds that knows the whole job: one attempt number, one budget, one verdict.

    Nothing here blocks. `next_rendezvous` returns a `JobRound`. After a failure, agents on all
    nodes stop their workers and call it again; it raises `RendezvousClosedError` if no restart was
    left, and `RendezvousGracefulExitError` on a spare node when the job has succeeded without it.
    """

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, once this node knows."""

    def report_failure(self, failures: Sequence[JobFailure], *, is_final: bool = False) -> None:
        """Tell all nodes that workers of this node have failed in the current round.

        `failures` are all of them, however many; a handler tells the others what it has room for:
        the first one in detail, the others at least as numbers (`Verdict.others`).

        It counts once per round, from any node. `is_final` says that restarting cannot help.
        """

    def report_success(self) -> None:
        """Tell that all workers of this node have succeeded.

        When those of all nodes have, the job is over: a CLOSED change on every node.
        """

    def send_notice(self, signum: int) -> None:
        """Pass a signal on to the agents of all other nodes, as a NOTICE change."""

    def request_round(self, reason: str) -> None:
        """Ask all nodes to stop their workers and to join another round, although none has failed.

        The others get a RESTART change. It uses none of the restarts.
        """

    def end_job(self, reason: str) -> None:
        """End the job for all nodes, as `set_closed` does, and say why."""

    def announce_leave(self, reason: str) -> None:
        """Tell that this node goes, before it stops its workers; `leave` follows when it has.

        Otherwise the others would see connections break before they know why.
        """
