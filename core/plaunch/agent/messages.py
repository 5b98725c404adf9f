"""What the agent says when it changes its course."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

from plaunch.agent.states import Again, Outcome, Phase, RequestKind, State
from plaunch.process.failures.failure import first_failure
from plaunch.rendezvous.job import JobRound

if TYPE_CHECKING:
    from plaunch.agent.worker import RunResult
    from plaunch.rendezvous.api import RendezvousInfo


def describe_turn(
    then: Again | Outcome,
    state: State,
    result: RunResult,
    reason: str,
    decision: str = "",
) -> str:
    """One line about what happened and what follows; empty if there is nothing to say.

    Args:
        then: what follows.
        state: of the agent.
        result: of its workers.
        reason: why the rendezvous was closed; where it knows the whole job (`State.is_job_wide`),
            why the course changes.
        decision: why a restart policy has decided so.
    """
    asked = describe_asker(state)
    if then is Outcome.SUCCEEDED and state.is_asked_to_end:
        return (
            f"{asked}; the workers of this node have succeeded, and that stays its result; it "
            "does not wait for other nodes"
        )
    if then is Again.REQUEST:
        return f"{asked}; all workers are restarted; this uses up none of the restarts"
    if state.is_job_wide and then is not Outcome.SIGNALLED:
        return _describe_turn_of_job(then, state, reason)
    if then is Outcome.SIGNALLED:
        what = "no worker is running" if state.phase is Phase.DONE else "the workers are stopped"
        return f"{asked}; {what}"
    if then is Again.RESTART:
        return f"{describe_failures(result)}; {_describe_restart(state, decision)}"
    return (
        "the nodes of the job have changed; a new round begins"
        if then is Again.MEMBERSHIP
        else f"the rendezvous was closed: {reason}"
    )


def _describe_restart(state: State, decision: str) -> str:
    if not decision:
        delay = f", after {state.pause:.3g} s" if state.pause else ""
        return f"restart {state.attempt + 1} of {state.max_restarts}{delay}"
    # The policy's reason names its delay, as it does in the reports of a job on several nodes.
    return decision if decision.startswith("restart") else f"restart ({decision})"


def format_delay(seconds: float, now: float) -> str:
    """What an agent waits for during a pause of so many seconds that begins `now` (wall clock)."""
    at = time.strftime("%H:%M:%S", time.localtime(now + seconds))
    return f"the time of the restart, {at} (--restart-delay, or as a worker asks)"


def describe_asker(state: State) -> str:
    """Who asked for what, and why, in a few words: a signal did, or a request.

    A request for the end of a job is described in the same words on all of its nodes.
    """
    request = state.request
    if request is None:
        return f"{(state.asked_by or signal.SIGTERM).name} received"
    who, reason = request.who, request.reason
    if state.is_job_wide and request.kind is RequestKind.STOP:
        who, reason = f"node {request.node or socket.gethostname()}", request.origin
    return f"{who} asks for {_WISHES[request.kind]} ({reason})"


_WISHES = {
    RequestKind.STOP: "the end of the job",
    RequestKind.RESTART: "a restart",
    RequestKind.LEAVE: "this node to leave",
}


def _describe_turn_of_job(then: Again | Outcome, state: State, reason: str) -> str:
    stopping = "" if state.has_succeeded or state.phase is Phase.DONE else "all workers are stopped"
    if then is Again.MEMBERSHIP:
        return f"{reason}; " + (f"{stopping}, and " if stopping else "") + "a new round begins"
    if then is Outcome.FAILED and state.phase is Phase.DONE:
        return ""  # what follows at once says it
    if isinstance(then, Outcome) and then is not Outcome.ERROR:
        reason = f"the job ended: {reason}"
    return f"{reason}; {stopping}" if stopping else reason


def describe_round(formed: RendezvousInfo, state: State, logged: str = "") -> str:
    """One line about why a round was formed; empty if there is nothing new to say.

    What the job decided after a failure is news; arrivals and departures that led to a round have
    been logged as changes.

    Args:
        formed: the round.
        state: of the agent before the round.
        logged: what the agent has logged about the end of the last round.
    """
    if not isinstance(formed, JobRound) or state.round < 0:
        return ""  # what happened before this node came is no turn of its course
    if formed.attempt > state.attempt:
        what, _, decision = formed.reason.partition("; ")
        if decision and what in logged:
            return decision
        return formed.reason or f"restart {formed.attempt} of {state.max_restarts}"
    is_news = state.then is Again.DECISION and formed.reason not in logged
    return formed.reason if is_news else ""


def describe_failures(result: RunResult, *, in_job: bool = False) -> str:
    """Who failed first, and how, in a few words; `in_job` with the host, as the job words it."""
    if not result.failures:
        return "the workers failed"
    rank, failure = first_failure(result.failures)
    if rank < 0:
        return failure.text  # the launcher's own
    where = failure.text.partition("\n")[0]
    who, end = f"rank {rank}", failure.describe_exit().partition(" (signal")[0]
    if in_job:
        who = f"{who} on {failure.host}"
        how = f"{failure.verb}: {where if failure.hung else failure.headline}"
    elif failure.hung:
        return where
    elif failure.raised.text or failure.is_consequence:
        how = f"{failure.verb}: {failure.headline}"
    else:
        how = f"failed with {end}" if failure.exitcode > 0 else f"was {end}"
        how += f": {failure.reason}" if failure.reason else ""
        how += f" ({failure.place})" if failure.place else ""
    others = f" (and {len(result.failures) - 1} more)" if len(result.failures) > 1 else ""
    early_ends = "".join(f"; {line}" for line in result.early_ends if failure.is_consequence)
    return f"{who} (pid {failure.pid}) {how}{others}{early_ends}"
