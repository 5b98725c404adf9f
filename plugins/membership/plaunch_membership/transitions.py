"""All the ways in which the state of a job changes.

A function here takes a state and returns its successor, or None if it does not apply any more,
because another node was faster.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from plaunch.restarts import Decision, RestartAction

from plaunch_membership.bounds import MAX_EXCLUDED, MAX_NAME
from plaunch_membership.failures import NO_FAILURES, cut
from plaunch_membership.records import MAX_REASON
from plaunch_membership.state import (
    JobEvent,
    JobPhase,
    JobState,
    RecordedVerdict,
    describe_departure,
    host_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from plaunch_membership.failures import FailureSummary
    from plaunch_membership.state import World


def first_state(node: str, attempt: int = 0) -> JobState:
    """The state of a job that this node begins."""
    return JobState(
        0, JobPhase.FORMING, 0, attempt, node, 0, JobEvent("created", node=node, by=node)
    )


def lead(state: JobState, node: str, gone: str, reason: str) -> JobState | None:
    """Take over from the leader `gone`, for `reason`; None if another one leads already."""
    if state.leader != gone or state.has_ended:
        return None
    event = JobEvent("led", node=gone, reason=reason, by=node)
    return _follow(state, event, leader=node, term=state.term + 1)


def call(
    state: JobState, kind: str, node: str, reason: str, *, by: str, from_round: int
) -> JobState | None:
    """End round `from_round`: a node has arrived, has left, was lost, or asks for another one."""
    if state.phase is not JobPhase.RUNNING or state.round != from_round:
        return None
    return _follow(
        state,
        JobEvent(kind, node=node, reason=reason, by=by),
        phase=JobPhase.FORMING,
        round=state.round + 1,
        leader="" if state.leader == node and kind in ("left", "lost") else state.leader,
        reason=describe_departure(kind, node, reason),
    )


def leave(
    state: JobState, node: str, reason: str, *, is_member: bool, excluded: str = ""
) -> JobState | None:
    """Go on purpose; a round that this node is a member of is over.

    `excluded` is its host, if none of its nodes is to come again.
    """
    if state.has_ended:
        return None
    if excluded:
        state = replace(state, excluded=exclude(state, {excluded: reason}))
    if is_member and state.phase is JobPhase.RUNNING:
        return call(state, "left", node, reason, by=node, from_round=state.round)
    leader = "" if state.leader == node else state.leader
    return _follow(state, JobEvent("left", node=node, reason=reason, by=node), leader=leader)


def exclude(state: JobState, hosts: Mapping[str, str]) -> dict[str, str]:
    """The hosts that the job goes on without, with others; the latest ones if they are too many."""
    cuts = {host[:MAX_NAME]: cut(reason, MAX_NAME) for host, reason in hosts.items()}
    return dict([*{**state.excluded, **cuts}.items()][-MAX_EXCLUDED:])


def fail(state: JobState, node: str, reason: str, *, from_round: int) -> JobState | None:
    """Tell that workers of `from_round` have failed on this node."""
    if state.phase is not JobPhase.RUNNING or state.round != from_round:
        return None
    return _follow(
        state, JobEvent("failed", node=node, reason=reason, by=node), phase=JobPhase.SETTLING
    )


def lose(
    state: JobState,
    kind: str,
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
    """End round `from_round` without a node that has left or was lost; only for the leader.

    Failures of others come from that. By default it costs no restart.
    """
    if state.phase not in (JobPhase.RUNNING, JobPhase.SETTLING) or state.round != from_round:
        return None
    what = describe_departure(kind, node, reason, index)
    decision = decision or Decision(RestartAction.RESTART, costs=False)
    if not decision.is_restart:
        verdict = _failed(host_of(node), what, decision.reason, summary, now)
        return end(state, verdict, by=by)
    event = JobEvent(kind, node=node, reason=reason, by=by, index=index)
    is_usual = not (decision.costs or decision.delay or decision.without)
    return _again(state, event, what if is_usual else f"{what}; {decision.reason}", decision)


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
    """After failures: what was decided; by default another attempt if there is one left."""
    if state.phase is not JobPhase.SETTLING:
        return None
    what = summary.cause if summary.failures else state.event.reason
    is_restart = state.attempt < max_restarts if decision is None else decision.is_restart
    why = "" if decision is None or is_final else decision.reason
    if is_final or not is_restart:
        return end(state, _failed(host_of(state.event.node), what, why, summary, now), by=by)
    reason = f"{what}; {why or f'restart {state.attempt + 1} of {max_restarts}'}"
    event = JobEvent("restarted", node=state.event.node, reason=reason, by=by)
    return _again(state, event, reason, decision or Decision(RestartAction.RESTART))


def give_up(
    state: JobState, summary: FailureSummary, decision: Decision, *, by: str, now: float
) -> JobState | None:
    """End the job because of what has become of a node, as a restart policy has decided."""
    what = summary.failures[0].summary
    return end(state, _failed(by, what, decision.reason, summary, now), by=by)


def _failed(host: str, what: str, why: str, summary: FailureSummary, now: float) -> RecordedVerdict:
    """That the job has failed, as found on a host; `why` there is no other attempt."""
    return RecordedVerdict(
        "failed",
        host,
        f"{what}; {why}" if why else what,
        now,
        summary.failures,
        summary.groups,
        cut(why, MAX_REASON),
        summary.early_ends,
    )


def _again(state: JobState, event: JobEvent, reason: str, decision: Decision) -> JobState:
    """Another round, as a restart policy has decided."""
    return _follow(
        state,
        event,
        phase=JobPhase.FORMING,
        round=state.round + 1,
        attempt=state.attempt + decision.costs,
        reason=reason,
        pause=decision.delay,
        excluded=exclude(state, dict.fromkeys(decision.without, decision.reason)),
    )


def form(state: JobState, world: World, *, by: str) -> JobState | None:
    """Complete the round; only for the leader that has gathered it."""
    if (
        state.phase is not JobPhase.FORMING
        or state.leader != by
        or (state.round, state.term) != (world.round, world.term)
    ):
        return None
    event = JobEvent("formed", node=by, by=by)
    return _follow(state, event, phase=JobPhase.RUNNING, world=world, pause=0.0)


def refuse(state: JobState, node: str, reason: str, *, by: str) -> JobState | None:
    """Tell a node that it cannot take part; only for the leader that forms a round."""
    if state.phase is not JobPhase.FORMING or state.leader != by:
        return None
    return _follow(state, JobEvent("refused", node=node, reason=reason, by=by))


def recall(
    state: JobState, attempt: int, excluded: Mapping[str, str], *, by: str
) -> JobState | None:
    """Know what a node knows that was in the job before its store lost it.

    Args:
        state: of the job that begins anew.
        attempt: how many restarts were used.
        excluded: the hosts that the job went on without, and why.
        by: the node.
    """
    is_known = state.attempt >= attempt and state.excluded.keys() >= excluded.keys()
    if state.has_ended or is_known:
        return None
    reason = f"attempt {attempt} was reached before the store lost the job"
    return _follow(
        state,
        JobEvent("recalled", node=by, reason=reason, by=by),
        attempt=max(state.attempt, attempt),
        excluded=exclude(state, excluded),
    )


def notify(state: JobState, node: str, signum: int) -> JobState | None:
    """Pass a signal on to all nodes; None where there are no workers to get it."""
    if state.phase is not JobPhase.RUNNING:
        return None
    return _follow(state, JobEvent("notice", node=node, by=node, signum=signum))


def broadcast(state: JobState, node: str, text: str) -> JobState | None:
    """Have all nodes of the round that runs hear a text; None if none does."""
    if state.phase is not JobPhase.RUNNING:
        return None
    return _follow(state, JobEvent("broadcast", node=node, reason=text, by=node))


def end(state: JobState, verdict: RecordedVerdict, *, by: str) -> JobState | None:
    """Find the verdict; None if there is one, which stands."""
    if state.has_ended:
        return None
    verdict = replace(verdict, reason=cut(verdict.reason, MAX_REASON))
    event = JobEvent("ended", node=verdict.node, reason=verdict.reason, by=by)
    return _follow(state, event, phase=JobPhase.OVER, verdict=verdict)


def replace_job(state: JobState, reason: str, *, by: str) -> JobState | None:
    """Let the job start again; only for the leader."""
    if state.leader != by or state.has_ended:
        return None
    event = JobEvent("replaced", node=by, reason=reason, by=by)
    return _follow(state, event, phase=JobPhase.REPLACED)


def in_brief(state: JobState) -> JobState:
    """The same without what only a report needs, for when the whole cannot be written."""
    if state.verdict is None:
        return state
    return replace(state, verdict=replace(state.verdict, failures=(), others=()))


def _follow(state: JobState, event: JobEvent, **changes: object) -> JobState:
    event = replace(event, reason=cut(event.reason, MAX_REASON))
    new = replace(state, version=state.version + 1, event=event, **changes)  # type: ignore[arg-type]
    return replace(new, reason=cut(new.reason, MAX_REASON))
