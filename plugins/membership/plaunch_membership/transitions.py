"""All transitions of the state of a job.

A function here takes a state and returns its successor, or None if the change no longer applies
because another node was faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.rendezvous import JobOutcome
from plaunch.restarts import Decision, RestartAction

from plaunch_membership.failures import NO_FAILURES, cut
from plaunch_membership.records import MAX_EXCLUDED, MAX_NAME, MAX_REASON
from plaunch_membership.state import (
    JobEvent,
    JobEventKind,
    JobPhase,
    JobState,
    RecordedVerdict,
    describe_departure,
    host_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_membership.failures import FailureSummary
    from plaunch_membership.memory import JobMemory
    from plaunch_membership.state import World


def first_state(node: str, memory: JobMemory | None = None) -> JobState:
    """Return the first state of a job that this node starts, with what it remembers of it."""
    event = JobEvent(JobEventKind.CREATED, node=node, by=node)
    state = JobState(0, JobPhase.FORMING, 0, 0, node, 0, event)
    return state if memory is None else _with_memory(state, memory)


def lead(state: JobState, node: str, gone: str, reason: str) -> JobState | None:
    """Take over from the leader `gone`, for `reason`; None if another node leads already."""
    if state.leader != gone or state.has_ended:
        return None
    event = JobEvent(JobEventKind.LED, node=gone, reason=reason, by=node)
    return _follow(state, event, leader=node, term=state.term + 1)


def end_round(
    state: JobState, kind: JobEventKind, node: str, reason: str, *, by: str, from_round: int
) -> JobState | None:
    """End round `from_round`: a node has arrived, has left, was lost, or requests another round."""
    if state.phase is not JobPhase.RUNNING or state.round != from_round:
        return None
    return _follow(
        state,
        JobEvent(kind, node=node, reason=reason, by=by),
        phase=JobPhase.FORMING,
        round=state.round + 1,
        leader=""
        if state.leader == node and kind in (JobEventKind.LEFT, JobEventKind.LOST)
        else state.leader,
        reason=describe_departure(kind, node, reason),
        decision="",
    )


def leave(
    state: JobState, node: str, reason: str, *, is_member: bool, excluded: str = ""
) -> JobState | None:
    """Leave voluntarily; this ends the round if this node is a member of it.

    `excluded` is its host, if that is to be excluded.
    """
    if state.has_ended:
        return None
    if excluded:
        state = replace(state, excluded=exclude(state, {excluded: reason}))
    if is_member and state.phase is JobPhase.RUNNING:
        return end_round(state, JobEventKind.LEFT, node, reason, by=node, from_round=state.round)
    leader = "" if state.leader == node else state.leader
    return _follow(
        state, JobEvent(JobEventKind.LEFT, node=node, reason=reason, by=node), leader=leader
    )


def exclude(state: JobState, hosts: Mapping[str, str]) -> dict[str, str]:
    """Return the excluded hosts with additional ones; only the latest `MAX_EXCLUDED` are kept."""
    cuts = {host[:MAX_NAME]: cut(reason, MAX_NAME) for host, reason in hosts.items()}
    return dict([*{**state.excluded, **cuts}.items()][-MAX_EXCLUDED:])


def fail(state: JobState, node: str, reason: str, *, from_round: int) -> JobState | None:
    """Report that workers of `from_round` have failed on this node."""
    if state.phase is not JobPhase.RUNNING or state.round != from_round:
        return None
    return _follow(
        state,
        JobEvent(JobEventKind.FAILED, node=node, reason=reason, by=node),
        phase=JobPhase.SETTLING,
    )


def lose(
    state: JobState,
    kind: JobEventKind,
    node: str,
    reason: str,
    *,
    by: str,
    from_round: int,
    index: int = -1,
    summary: FailureSummary = NO_FAILURES,
    now: float = 0.0,
    decision: Decision | None = None,
) -> JobState | None:
    """End round `from_round` after a node has left or was lost; called by the leader.

    The other nodes' failures are consequences of that. By default no restart is charged.
    """
    if state.phase not in (JobPhase.RUNNING, JobPhase.SETTLING) or state.round != from_round:
        return None
    what = describe_departure(kind, node, reason, index)
    decision = decision or Decision(RestartAction.RESTART, costs=False)
    if not decision.is_restart:
        verdict = _failed(host_of(node), what, decision.reason, summary, now)
        return end(state, verdict, by=by)
    event = JobEvent(kind, node=node, reason=reason, by=by, index=index)
    is_default = not (decision.costs or decision.delay or decision.without)
    return _restart(state, event, what, "" if is_default else decision.reason, decision)


def settle_failed(
    state: JobState,
    summary: FailureSummary,
    *,
    max_restarts: int,
    by: str,
    is_final: bool,
    now: float,
    decision: Decision | None = None,
) -> JobState | None:
    """Restart or end the job after failures; by default restart while restarts are left."""
    if state.phase is not JobPhase.SETTLING:
        return None
    what = summary.cause if summary.failures else state.event.reason
    is_restart = state.attempt < max_restarts if decision is None else decision.is_restart
    why = "" if decision is None or is_final else decision.reason
    if is_final or not is_restart:
        return end(state, _failed(host_of(state.event.node), what, why, summary, now), by=by)
    why = why or f"restart {state.attempt + 1} of {max_restarts}"
    event = JobEvent(JobEventKind.RESTARTED, node=state.event.node, reason=what, by=by)
    return _restart(state, event, what, why, decision or Decision(RestartAction.RESTART))


def give_up(
    state: JobState, summary: FailureSummary, decision: Decision, *, by: str, now: float
) -> JobState | None:
    """End the job because of a node's departure, as the restart policy decided."""
    what = summary.failures[0].summary
    return end(state, _failed(by, what, decision.reason, summary, now), by=by)


def _failed(host: str, what: str, why: str, summary: FailureSummary, now: float) -> RecordedVerdict:
    """Return the verdict of a failed job; `why` there is no restart."""
    return RecordedVerdict(
        JobOutcome.FAILED,
        host,
        what,
        now,
        summary.failures,
        summary.groups,
        cut(why, MAX_REASON),
        summary.early_ends,
    )


def _restart(state: JobState, event: JobEvent, what: str, why: str, decision: Decision) -> JobState:
    """Start another round, as the restart policy decided, because of what happened."""
    return _follow(
        state,
        event,
        phase=JobPhase.FORMING,
        round=state.round + 1,
        attempt=state.attempt + decision.costs,
        reason=what,
        decision=cut(why, MAX_REASON),
        pause=decision.delay,
        excluded=exclude(state, dict.fromkeys(decision.without, decision.reason)),
    )


def form(state: JobState, world: World, *, by: str) -> JobState | None:
    """Complete the round; only the leader that gathered it can."""
    if (
        state.phase is not JobPhase.FORMING
        or state.leader != by
        or (state.round, state.term) != (world.round, world.term)
    ):
        return None
    event = JobEvent(JobEventKind.FORMED, node=by, by=by)
    return _follow(state, event, phase=JobPhase.RUNNING, world=world, pause=0.0, former_nodes=0)


def refuse(state: JobState, node: str, reason: str, *, by: str) -> JobState | None:
    """Refuse a node; only the leader that forms a round can."""
    if state.phase is not JobPhase.FORMING or state.leader != by:
        return None
    return _follow(state, JobEvent(JobEventKind.REFUSED, node=node, reason=reason, by=by))


def recall(state: JobState, memory: JobMemory, *, by: str) -> JobState | None:
    """Restore what a node knows from before the store lost the job.

    Args:
        state: the state of the job that has started again.
        memory: what the node knows.
        by: the node.
    """
    new = _with_memory(state, memory)
    if state.has_ended or new == state:
        return None
    reason = f"the store has lost the job, in round {memory.round} and attempt {memory.attempt}"
    return _follow(new, JobEvent(JobEventKind.RECALLED, node=by, reason=reason, by=by))


def _with_memory(state: JobState, memory: JobMemory) -> JobState:
    new = replace(state, attempt=max(state.attempt, memory.attempt))
    if not state.excluded.keys() >= memory.excluded.keys():
        new = replace(new, excluded=exclude(state, memory.excluded))
    is_later = memory.round >= state.round or not state.former_nodes
    if state.phase is JobPhase.FORMING and memory.is_of_former_member(state) and is_later:
        new = replace(new, round=memory.round + 1, former_nodes=memory.nodes)
    return new


def notify(state: JobState, node: str, signum: int) -> JobState | None:
    """Forward a signal to all nodes; None if no workers run."""
    if state.phase is not JobPhase.RUNNING:
        return None
    return _follow(state, JobEvent(JobEventKind.NOTICE, node=node, by=node, signum=signum))


def broadcast(state: JobState, node: str, listener: str, text: str) -> JobState | None:
    """Send a text to a listener of all nodes of the running round; None if no round runs."""
    if state.phase is not JobPhase.RUNNING:
        return None
    kind = JobEventKind.BROADCAST
    return _follow(state, JobEvent(kind, node=node, reason=text, by=node, listener=listener))


def note_ending(state: JobState, node: str, *, from_round: int) -> JobState | None:
    """Notify all nodes that most of them have succeeded in round `from_round`."""
    if state.phase is not JobPhase.RUNNING or state.round != from_round:
        return None
    return _follow(state, JobEvent(JobEventKind.ENDING, node=node, by=node))


def end(state: JobState, verdict: RecordedVerdict, *, by: str) -> JobState | None:
    """End the job with a verdict; None if it has one already, which remains."""
    if state.has_ended:
        return None
    verdict = replace(verdict, reason=cut(verdict.reason, MAX_REASON))
    event = JobEvent(JobEventKind.ENDED, node=verdict.node, reason=verdict.reason, by=by)
    return _follow(state, event, phase=JobPhase.OVER, verdict=verdict)


def replace_job(state: JobState, reason: str, *, by: str) -> JobState | None:
    """Let the job start again in another incarnation; only the leader can."""
    if state.leader != by or state.has_ended:
        return None
    event = JobEvent(JobEventKind.REPLACED, node=by, reason=reason, by=by)
    return _follow(state, event, phase=JobPhase.REPLACED)


def in_brief(state: JobState) -> JobState:
    """Drop the failures, which only reports need, when the state is too large to be written."""
    if state.verdict is None:
        return state
    return replace(state, verdict=replace(state.verdict, failures=(), others=()))


def _follow(state: JobState, event: JobEvent, **changes: object) -> JobState:
    event = replace(event, reason=cut(event.reason, MAX_REASON))
    new = replace(state, version=state.version + 1, event=event, **changes)  # type: ignore[arg-type]
    return replace(new, reason=cut(new.reason, MAX_REASON))
