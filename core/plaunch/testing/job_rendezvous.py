"""A rendezvous handler that knows the whole job, driven by a test."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from plaunch.errors import RendezvousClosedError
from plaunch.process.failure import first_failure
from plaunch.rendezvous.api import ChangeKind, WorldRanks
from plaunch.rendezvous.job import JobOutcome, JobRound, Verdict
from plaunch.testing.rendezvous import FakeElasticRendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from plaunch.process.failure import ProcessFailure
    from plaunch.rendezvous.api import MembershipChange
    from plaunch.rendezvous.backend import NodeSettings


class FakeJobRendezvous(FakeElasticRendezvous):
    """A handler with one attempt number, one budget and one verdict for the whole job.

    A final failure ends the job at once.

    The test plays the other nodes: `fail_elsewhere`, `notice`, `cut_off`, `conclude`, and what the
    base class has. The agent's reports are in `reported`, its successes in `successes`, its
    signals in `notices`.
    A failure, wherever it was, is decided upon when this node joins again: the next round has one
    attempt more, or the job has failed.

    Args:
        run_id: the id of the job.
        rank: this node's index in the rounds to come.
        world_size: the number of nodes in the rounds to come.
        local_world_size: the number of workers of each node; an agent brings its own.
        max_restarts: the budget of the job; an agent brings its own.
        ends: whether the success of this node is the end of the job; otherwise the test ends it.
        patience: how long `next_rendezvous` waits while held, in seconds.
    """

    def __init__(
        self,
        run_id: str = "test",
        *,
        rank: int = 0,
        world_size: int = 1,
        local_world_size: int = 1,
        max_restarts: int = 0,
        ends: bool = True,
        patience: float = 30.0,
    ) -> None:
        super().__init__(run_id, rank=rank, world_size=world_size, patience=patience)
        self.local_world_size = local_world_size
        self.max_restarts = max_restarts
        self.ends = ends
        self.attempt = 0
        self.ranks: WorldRanks | None = None  # of this node's workers, if nodes are not alike
        # By global rank, with `is_final`, call by call.
        self.reported: list[tuple[dict[int, ProcessFailure], bool]] = []
        self.successes = 0
        self.succeeded: dict[int, float] = {}  # when workers of this node ended, by global rank
        self.farewells: list[str] = []
        self.requested: list[str] = []  # rounds, with the reason
        self.ended: list[str] = []
        self.notices: list[int] = []
        self._verdict: Verdict | None = None
        self._failures: dict[int, ProcessFailure] = {}  # of the round that ran last
        self._is_final = False
        self._reason = self._decision = ""

    def prepare(self, node: NodeSettings) -> None:
        """Count with what the agent under test brings."""
        self.local_world_size = node.local_world_size
        self.max_restarts = node.max_restarts

    @property
    def verdict(self) -> Verdict | None:
        """How the test, or the budget, has ended the job."""
        return self._verdict

    def report_failure(
        self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False
    ) -> None:
        """Note what failed; unless it is final, it is decided upon in `next_rendezvous`."""
        self.reported.append((dict(failures), is_final))
        self._failures.update(failures)
        self._is_final = self._is_final or is_final
        if is_final:
            self._decide()

    def restart_delay(self) -> float:
        """0: no round is delayed."""
        return 0.0

    def take_losses(self) -> Sequence[MembershipChange]:
        """None: the test plays lost nodes with `lose`, in a round."""
        return ()

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Keep it in `succeeded`."""
        self.succeeded = dict(ended)

    def report_success(self) -> None:
        """Note it; the job is then over, unless the test wants to end it."""
        self.successes += 1
        if self.ends:
            self.conclude(JobOutcome.SUCCEEDED, reason="all workers of all nodes have succeeded")

    def send_notice(self, signum: int) -> None:
        """Note it."""
        self.notices.append(signum)

    def announce_leave(self, reason: str, *, is_excluded: bool = False) -> None:
        """Note it; behind an `!` if the node's host is not to come again."""
        self.farewells.append(f"!{reason}" if is_excluded else reason)

    def request_round(self, reason: str) -> None:
        """Note it."""
        self.requested.append(reason)

    def end_job(self, reason: str) -> None:
        """Note it, and end the job."""
        self.ended.append(reason)
        self.conclude(JobOutcome.STOPPED, node="here", reason=reason)

    def request_elsewhere(
        self, node: str = "neighbour", reason: str = "operator: maintenance"
    ) -> None:
        """Another node requests another round."""
        self._change(ChangeKind.RESTART, node, reason)

    def fail_elsewhere(
        self, failures: Mapping[int, ProcessFailure], node: str = "neighbour"
    ) -> None:
        """Workers of another node fail."""
        self._failures.update(failures)
        self._change(ChangeKind.FAILED, node, _describe_first(failures))

    def notice(self, signum: int, node: str = "neighbour") -> None:
        """Another node passes a signal on."""
        self._change(ChangeKind.NOTICE, node, "", signum)

    def cut_off(self, node: str = "", reason: str = "nothing was heard for 10 s") -> None:
        """Nothing is heard of the other nodes any more."""
        self._change(ChangeKind.UNREACHABLE, node, reason)

    def conclude(
        self,
        outcome: JobOutcome | str,
        failures: Mapping[int, ProcessFailure] | None = None,
        *,
        node: str = "neighbour",
        reason: str = "",
        is_past: bool = False,
    ) -> None:
        """End the job for all nodes: `succeeded`, `failed`, `stopped` or `closed`.

        With `is_past`, that was before this node came.
        """
        outcome, failures = JobOutcome(outcome), failures or {}
        first = first_failure(failures)[0] if failures else None
        reason = reason or (_describe_first(failures) if failures else outcome.value)
        self._verdict = Verdict(
            outcome, node, reason, time.time(), failures, first, is_past=is_past
        )
        self._change(ChangeKind.CLOSED, node, reason)

    def next_rendezvous(self) -> JobRound:
        """Return a round of the current shape and attempt, unless the job is over."""
        self._decide()
        if self._verdict is not None:
            raise RendezvousClosedError(f"the fake job {self.run_id!r} has ended")
        info = super().next_rendezvous()
        first = info.rank * self.local_world_size
        total = info.world_size * self.local_world_size
        reason, self._reason = self._reason, ""
        decision, self._decision = self._decision, ""
        return JobRound(
            info.store,
            info.rank,
            info.world_size,
            info.bootstrap_store_info,
            attempt=self.attempt,
            ranks=self.ranks or WorldRanks(first, total, first, total),
            reason=reason,
            decision=decision,
        )

    def _decide(self) -> None:
        if not self._failures:
            return
        ranks = sorted(self._failures, key=lambda rank: self._failures[rank].began)
        failures, self._failures = {rank: self._failures[rank] for rank in ranks}, {}
        if self._is_final or self.attempt >= self.max_restarts:
            self.conclude(JobOutcome.FAILED, failures)
        else:
            self.attempt += 1
            self._reason = _describe_first(failures)
            self._decision = f"restart {self.attempt} of {self.max_restarts}"


def _describe_first(failures: Mapping[int, ProcessFailure]) -> str:
    rank, failure = first_failure(failures)
    if rank < 0:
        return f"the launcher on {failure.host} failed: {failure.text}"
    how = failure.describe_exit()
    return f"rank {rank} on {failure.host} (pid {failure.pid}) failed: {how}"
