"""The messages of the agent about why it stops workers, and what follows."""

from __future__ import annotations

import signal
import socket
import time
from typing import TYPE_CHECKING

from plaunch.agent.states import Outcome, Phase, RequestKind, RestartReason, State
from plaunch.process.failure import first_failure

if TYPE_CHECKING:
    from plaunch.agent.worker import RunResult
    from plaunch.rendezvous.job import JobRound


def describe_decision(
    then: RestartReason | Outcome, state: State, reason: str, logged: str = ""
) -> str:
    """One line about what happened and what follows; empty if there is nothing to report.

    Args:
        then: what follows.
        state: of the agent.
        reason: why the agent stops its workers, or how the job ended.
        logged: what this returned last.
    """
    asked = describe_asker(state)
    if then is Outcome.SUCCEEDED and state.is_asked_to_end:
        return (
            f"{asked}; the workers of this node have succeeded, and that stays its result; it "
            "does not wait for other nodes"
        )
    if then is RestartReason.REQUEST:
        return f"{asked}; all workers are restarted; this is not counted against --max-restarts"
    if then is Outcome.SIGNALLED:
        what = "no worker is running" if state.phase is Phase.DONE else "the workers are stopped"
        return f"{asked}; {what}"
    is_running = not state.has_succeeded and state.phase is not Phase.DONE
    stopping = "all workers are stopped" if is_running else ""
    if then is RestartReason.MEMBERSHIP:
        return f"{reason}; " + (f"{stopping}, and " if stopping else "") + "a new round begins"
    if then is Outcome.FAILED and (
        state.phase is Phase.DONE or reason.partition("; ")[0] in logged
    ):
        return ""  # the report that follows contains it
    if isinstance(then, Outcome) and then is not Outcome.ERROR:
        reason = f"the job ended: {reason}"
    return f"{reason}; {stopping}" if stopping else reason


def describe_delay(seconds: float, now: float) -> str:
    """What an agent waits for when the next round is delayed; `now` is the wall clock."""
    at = time.strftime("%H:%M:%S", time.localtime(now + seconds))
    return f"the time of the restart, {at} (--restart-delay, or as a worker asks)"


def describe_asker(state: State) -> str:
    """What requested the end or a restart, and why, in a few words.

    A request for the end of the job reads the same on all of its nodes.
    """
    request = state.request
    if request is None:
        return f"{(state.asked_by or signal.SIGTERM).name} received"
    who, reason = request.who, request.reason
    if request.kind is RequestKind.STOP:
        who, reason = f"node {request.node or socket.gethostname()}", request.origin
    return f"{who} asks for {_WISHES[request.kind]} ({reason})"


_WISHES = {
    RequestKind.STOP: "the end of the job",
    RequestKind.RESTART: "a restart",
    RequestKind.LEAVE: "this node to leave",
}


def describe_round(formed: JobRound, state: State, logged: str = "") -> str:
    """One line about why a round was formed; empty if all of it has been logged.

    What the job decided after a failure is new; arrivals and departures that led to a round have
    been logged as changes.

    Args:
        formed: the round.
        state: of the agent before the round.
        logged: what the agent has logged about the end of the last round.
    """
    is_restart = formed.attempt > state.attempt
    if state.round < 0 or not (is_restart or state.then is RestartReason.FAILURE):
        return ""  # this node was not there, or has logged the change
    what, _, decision = formed.reason.partition("; ")
    if not decision:
        text = what or (f"restart {formed.attempt} of {state.max_restarts}" if is_restart else "")
        return "" if text in logged else text
    if "restart" not in decision:
        decision = f"restart ({decision})"
    return decision if what in logged else f"{what}; {decision}"


def describe_failures(result: RunResult) -> str:
    """Which worker failed first, and how, in a few words."""
    if not result.failures:
        return "the workers failed"
    rank, failure = first_failure(result.failures)
    if rank < 0:
        return failure.text  # the launcher's own
    how = failure.text.partition("\n")[0] if failure.hung else failure.headline
    others = f" (and {len(result.failures) - 1} more)" if len(result.failures) > 1 else ""
    early_ends = "".join(f"; {line}" for line in result.early_ends if failure.is_consequence)
    return (
        f"rank {rank} on {failure.host} (pid {failure.pid}) {failure.verb}: {how}"
        f"{others}{early_ends}"
    )
