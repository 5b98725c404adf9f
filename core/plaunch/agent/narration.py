"""What the agent says when it changes its course."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.agent.machine import Again, Outcome, State
from plaunch.process.failures import first_failure

if TYPE_CHECKING:
    import signal

    from plaunch.agent.worker import RunResult


def describe_turn(
    then: Again | Outcome,
    state: State,
    result: RunResult,
    death_signal: signal.Signals,
    close_reason: str,
) -> str:
    """One line about what happened and what follows."""
    if then is Again.MEMBERSHIP:
        return "the nodes of the job have changed; a new round begins"
    if then is Again.RESTART:
        return (
            f"{describe_failures(result)}; all workers are restarted "
            f"(restart {state.attempt + 1} of {state.max_restarts})"
        )
    if then is Outcome.SIGNALLED:
        return f"{death_signal.name} received; the workers are stopped"
    return f"the rendezvous was closed: {close_reason}"


def describe_failures(result: RunResult) -> str:
    """Who failed first, and how, in a few words."""
    if not result.failures:
        return "the workers failed"
    rank, failure = first_failure(result.failures)
    if failure.exitcode > 0:
        how = f"failed with exit code {failure.exitcode}"
    elif failure.has_reply:
        how = "raised an exception"  # and was ended while it was still about to exit
    else:
        how = f"was killed by {failure.signal_name()}"
    others = f" (and {len(result.failures) - 1} more)" if len(result.failures) > 1 else ""
    return f"rank {rank} (pid {failure.pid}) {how}{others}"
