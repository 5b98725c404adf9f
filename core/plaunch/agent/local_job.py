"""A job of one member: what a plain rendezvous handler is to the agent."""

from __future__ import annotations

import logging
import math
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from plaunch import parts
from plaunch.agent.messages import describe_delay, describe_failures, describe_wait, list_early_ends
from plaunch.agent.worker import RunResult, WorkerState
from plaunch.errors import RendezvousClosedError
from plaunch.process.failure import first_failure
from plaunch.rendezvous.api import ChangeKind, MembershipChange, ObservableRendezvous, WorldRanks
from plaunch.rendezvous.job import JobOutcome, JobRound, Verdict
from plaunch.texts import join_facts
from plaunch.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from plaunch.agent.worker import WorkerSpec
    from plaunch.process.failure import ProcessFailure
    from plaunch.rendezvous.api import RendezvousInfo, Store
    from plaunch.restarts import Decision, DecisionHistory, RestartPolicy

logger = logging.getLogger("plaunch")


class LocalJob:
    """A `JobRendezvous` over a plain `RendezvousHandler`, whose only member is this agent.

    The agent knows no other kind of rendezvous. Attempts, restarts and the verdict are decided here
    for the workers of this node alone. Other nodes behind the handler decide for themselves, as
    under torchrun: this node learns of them only by the rounds that the handler forms.

    Args:
        spec: what this node runs; its handler is the plain one.
        policy: decides what follows a failure; None leaves that to `max_restarts`.
        attempt: how many restarts were used before.
        wait_for_peers: called on a background thread when own workers have succeeded in a round of
            several nodes; returns when the workers of the others have finished.
        wake: makes the agent call `changes`, from any thread.
        is_running: returns whether own workers run; only then are new nodes of interest.
        is_asked_to_end: returns whether the agent is about to end, and waits for no other node.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        policy: RestartPolicy | None,
        *,
        attempt: int,
        wait_for_peers: Callable[[], None],
        wake: Callable[[], None],
        is_running: Callable[[], bool],
        is_asked_to_end: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._spec = spec
        self._handler = handler = spec.rdzv_handler
        self._observable = handler if isinstance(handler, ObservableRendezvous) else None
        self._policy = policy
        self.attempt = attempt  # how many restarts were used, the next one included
        self._wait_for_peers = wait_for_peers
        self._wake = wake
        self._is_running = is_running
        self._is_asked_to_end = is_asked_to_end
        self._verdict: Verdict | None = None
        self._has_left = False
        self._has_succeeded = False  # own workers have, and those of other nodes are awaited
        self._history: DecisionHistory | None = None  # once a worker has failed
        self._formed_at = -math.inf  # on the monotonic clock
        self._world_size = 1  # nodes in the last round
        self._succeeded: Mapping[int, float] = {}
        self._reason = self._decision = ""  # of the next round
        self._delay = 0.0  # seconds before the next round
        self._resume_at: float | None = None  # on the monotonic clock, once the delay has begun
        self._resumed = threading.Event()

    @property
    def is_observable(self) -> bool:
        """Whether the handler wakes the agent; otherwise `changes` must be called often."""
        return self._observable is not None

    @property
    def verdict(self) -> Verdict | None:
        """How the job ended, if it has."""
        return self._verdict

    # --- rounds -----------------------------------------------------------------------------------

    def next_rendezvous(self) -> JobRound:
        """Join the next round of the handler, after the delay of the restart policy.

        Raises:
            RendezvousClosedError: the job has ended.
            RendezvousError: the handler has raised it, or this node's ranks cannot be found out.
        """
        if self._delay:
            self._resume_at = self._clock() + self._delay
            self._resumed.wait(self._delay)
        self._delay, self._resume_at = 0.0, None
        self._resumed.clear()
        if self._verdict is not None:
            raise RendezvousClosedError(f"the job has ended: {self._verdict.reason}")
        if self._has_left:
            raise RendezvousClosedError("this node has left the job")
        info = self._handler.next_rendezvous()
        ranks = _ranks_of(self._spec, info)
        self._formed_at = self._clock()
        self._world_size = info.world_size
        self._succeeded = {}
        reason, decision = self._reason, self._decision
        self._reason = self._decision = ""
        return JobRound(
            _agent_store_of(info),
            info.rank,
            info.world_size,
            info.bootstrap_store_info,
            attempt=self.attempt,
            ranks=ranks,
            reason=reason,
            decision=decision,
            open_store=lambda: info.store,
        )

    def restart_delay(self) -> float:
        """Seconds until the next round may begin; 0 if it is not delayed."""
        if self._resume_at is None:
            return self._delay
        return max(self._resume_at - self._clock(), 0.0)

    def describe_wait(self) -> str:
        """What `next_rendezvous` waits for."""
        delay = self.restart_delay()
        if not delay:
            return describe_wait(self._handler)
        why = join_facts(self._reason, self._decision)
        return f"{describe_delay(delay, time.time())}: {why}"

    # --- changes ----------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The handler's descriptor, or -1 if it has none."""
        return -1 if self._observable is None else self._observable.fileno()

    def changes(self) -> Sequence[MembershipChange]:
        """All changes since the last call.

        A handler that cannot report changes is asked for the number of waiting nodes.
        """
        has_succeeded = self._has_succeeded or (len(self._succeeded) == self._spec.local_world_size)
        changes: Sequence[MembershipChange] = ()
        if self._observable is not None:
            changes = self._observable.changes()
        elif self._is_running() and self._handler.num_nodes_waiting() > 0:
            changes = [MembershipChange(ChangeKind.ARRIVED)]
        for change in changes:
            logger.info("node %s %s: %s", change.node, change.kind.value, change.reason)
            if change.kind is ChangeKind.CLOSED and has_succeeded:
                # Other nodes of torchrun's handlers close the rendezvous when they are done.
                self._end(JobOutcome.SUCCEEDED, change.reason)
        # As in torchrun, a node that arrives now does not undo the success.
        return () if self._has_succeeded else changes

    def take_losses(self) -> Sequence[MembershipChange]:
        """Nothing: a plain handler does not report losses between rounds."""
        return ()

    # --- reports of the agent ---------------------------------------------------------------------

    def report_failure(
        self, failures: Mapping[int, ProcessFailure], *, is_final: bool = False
    ) -> None:
        """Decide what follows: the restart policy does, or the number of restarts left."""
        if self._verdict is not None:
            return
        decision = None if is_final else self._decide(failures)
        is_restart = self.attempt < self._spec.max_restarts
        if decision is not None:
            is_restart = decision.is_restart
        early_ends = list_early_ends(self._succeeded, failures)
        what = describe_failures(
            RunResult(WorkerState.FAILED, failures=dict(failures), early_ends=early_ends)
        )
        why = "" if decision is None else decision.reason
        if is_final or not is_restart:
            self._end(JobOutcome.FAILED, what, failures, why)
            return
        self._reason = what
        self._decision = why or f"restart {self.attempt + 1} of {self._spec.max_restarts}"
        self.attempt += decision is None or decision.costs
        self._delay = 0.0 if decision is None else decision.delay
        self._resumed.clear()

    def note_succeeded(self, ended: Mapping[int, float]) -> None:
        """Record which workers have succeeded, and when."""
        self._succeeded = ended

    def report_success(self) -> None:
        """End the job, in a round of several nodes when the workers of the others have finished."""
        self._has_succeeded = True
        if self._world_size > 1 and not self._is_asked_to_end():
            start_thread(threading.Thread(target=self._finish, name="plaunch-peers", daemon=True))
        else:
            self._end(JobOutcome.SUCCEEDED, "all workers have succeeded")

    def _finish(self) -> None:
        try:
            self._wait_for_peers()
        except Exception as error:  # noqa: BLE001 - whatever a store raises, own workers are done
            logger.warning("waiting for the other nodes failed: %s", error)
        self._end(JobOutcome.SUCCEEDED, "all workers have succeeded")

    def send_notice(self, signum: int) -> None:
        """Do nothing: a plain handler has no way to other agents."""

    def request_round(self, reason: str) -> None:
        """End the delay of the next round; this agent joins it by itself."""
        self._resumed.set()

    def end_job(self, reason: str) -> None:
        """End the job."""
        self._end(JobOutcome.STOPPED, reason)

    def announce_leave(self, reason: str, *, is_excluded: bool = False) -> None:
        """Join no other round."""
        self._has_left = True
        self._resumed.set()

    # --- decisions --------------------------------------------------------------------------------

    def _decide(self, failures: Mapping[int, ProcessFailure]) -> Decision | None:
        """What the restart policy decides; None leaves it to the number of restarts left."""
        workers = {rank: failure for rank, failure in failures.items() if rank >= 0}
        if self._policy is None or not workers:
            return None
        from plaunch.restarts import Decided, DecisionHistory, failure_of  # failures only

        failure = failure_of(
            failures,
            first_failure(failures)[0],
            started=self._clock() - self._formed_at,
            attempt=self.attempt,
        )
        if self._history is None:
            self._history = DecisionHistory()
        decision: Decision | None = self._policy.decide(failure, self._history.latest())
        if decision is not None:
            decision = decision.among((failure.host,))
            self._history.append(Decided(failure, decision))
        return decision

    def _end(
        self,
        outcome: JobOutcome,
        reason: str,
        failures: Mapping[int, ProcessFailure] | None = None,
        no_restart: str = "",
    ) -> None:
        if self._verdict is None:
            self._verdict = Verdict(
                outcome,
                socket.gethostname(),
                reason,
                time.time(),
                failures or {},
                no_restart=no_restart,
            )
        self._resumed.set()
        self._wake()


def _ranks_of(spec: WorkerSpec, info: RendezvousInfo) -> WorldRanks:
    """The ranks of this node's workers in a round of a plain handler.

    A handler that knows what all nodes run brings them along. Otherwise they are exchanged through
    the store of the round. All nodes are assumed to be alike if there is no store, or
    if `TORCH_ELASTIC_WORKER_IDENTICAL=1` is set.
    """
    size = spec.local_world_size
    ranks: WorldRanks | None = getattr(info, "ranks", None)  # torch's own class has none
    if ranks is not None:
        return ranks
    store = _agent_store_of(info)
    alike = os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL", "0") == "1"
    if store is None or info.world_size == 1 or alike:
        return assign_alike(size, info.rank, info.world_size)
    assign_ranks = parts.load_part(parts.RANKS_THROUGH_STORE)
    exchanged: WorldRanks = assign_ranks(store, spec.role, size, info.rank, info.world_size)
    return exchanged


def assign_alike(local_world_size: int, group_rank: int, group_world_size: int) -> WorldRanks:
    """The ranks of one node's workers if all nodes are alike, without communication."""
    first = group_rank * local_world_size
    world_size = group_world_size * local_world_size
    return WorldRanks(first, world_size, first, world_size)


def _agent_store_of(info: RendezvousInfo) -> Store | None:
    # torch's own class has one store, and reading that costs nothing.
    return info.agent_store if hasattr(info, "agent_store") else info.store
