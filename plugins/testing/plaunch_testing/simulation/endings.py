"""Checks of how the nodes of a run have ended: their exit codes, verdicts, events and leftovers."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent.states import Outcome
from plaunch.errors import ExitCode
from plaunch.process import CONSEQUENCE_WINDOW
from plaunch.rendezvous import JobOutcome

from plaunch_testing.simulation.record import CLOCK_TOLERANCE
from plaunch_testing.simulation.script import (
    COMMAND_LOSSES,
    LINK_FAULTS,
    LOSSES,
    STORE_FAULTS,
    FaultKind,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from plaunch_testing.simulation.record import (
        AgentRecord,
        FaultRecord,
        FirstFailure,
        NodeEvent,
        RoundRecord,
        RunRecord,
    )

__all__ = [
    "find_different_codes",
    "find_different_events",
    "find_different_verdicts",
    "find_leftovers",
    "find_unexpected_errors",
    "find_unexplained_codes",
    "find_unhealthy",
    "find_wrong_causes",
    "find_wrong_losses",
    "find_wrong_successes",
]

# Codes of single nodes, which docs/errors.md excepts from the rule that all nodes end alike.
_OWN_CODES = (ExitCode.UNKILLABLE_WORKER, ExitCode.NODE_EXCLUDED)
# Seconds after which a node that was cut off or suspended takes part again.
_RETURN = 5.0
_REPORT = 5.0  # seconds after a failure in which its node reports it
# Seconds after the end of a fault in which it may still decide how a round ends.
_EFFECT = 60.0


class _Statement(NamedTuple):
    """What one node says of something that all nodes see alike."""

    node: AgentRecord
    text: str


class _Statements:
    """What nodes have said; each subject was first described by one of them."""

    def __init__(self) -> None:
        self._first: dict[Hashable, _Statement] = {}

    def find_contradicted(
        self, subject: Hashable, node: AgentRecord, text: str
    ) -> _Statement | None:
        """Return the first statement about a subject if a node says something else."""
        first = self._first.setdefault(subject, _Statement(node, text))
        return first if first.text != text else None


def find_unexpected_errors(run: RunRecord) -> Iterator[str]:
    """Something ended with an unexpected exception, or an agent with an error of plaunch.

    In the simulator, that may be any task; of a real launcher, a traceback.
    """
    yield from run.errors
    for node in run.nodes:
        if node.exit_code == ExitCode.INTERNAL and not node.has_failed:
            yield f"{node.name} ends with 1: {node.error}"


def find_different_codes(run: RunRecord) -> Iterator[str]:
    """The nodes of a job end with different codes, though none of them is excepted."""
    if run.had_fault(*STORE_FAULTS, *COMMAND_LOSSES):
        return
    links = {one.host for one in run.with_effect(*LINK_FAULTS)}
    codes: dict[str, dict[int, list[str]]] = {}  # by the incarnation of the job
    for node in run.nodes:
        code = node.exit_code
        if code is None or code in _OWN_CODES or node.ends_by_itself or node.has_waited_for_others:
            continue
        if _keeps_success(node) or _has_given_up_alone(run, node):
            continue
        if node.host in links or (code == ExitCode.RENDEZVOUS_CLOSED and is_late(run, node)):
            continue
        codes.setdefault(node.incarnation or "", {}).setdefault(code, []).append(node.name)
    for by_code in codes.values():
        if len(by_code) > 1:
            named = ", ".join(f"{code} of {'/'.join(names)}" for code, names in by_code.items())
            yield f"exit codes differ: {named}"


def find_unexplained_codes(run: RunRecord) -> Iterator[str]:
    """A node ends with a code that no injected fault can explain."""
    explained = {code for one in run.faults if one.had_effect for code in _explained(one)}
    explained |= {int(ExitCode.HANG)} if run.hangs else set()
    # Peers of a lost rank fail with their own codes.
    explained |= {one.exitcode for each in run.rounds for one in each.consequences}
    for node in run.nodes:
        is_refused = node.exit_code in _AFTER_LOSSES and is_late(run, node)
        if node.exit_code and node.exit_code not in explained and not is_refused:
            yield f"{node.name} ends with {node.exit_code}, and no fault explains that"


# What others end with after the loss of a node or of the store; a late one finds the job closed.
_AFTER_LOSSES = (
    128 + signal.SIGKILL, ExitCode.RENDEZVOUS_TIMEOUT, ExitCode.RENDEZVOUS_CLOSED,
    ExitCode.CONTROL_PLANE_LOST,
)  # fmt: skip
_EXPLAINED: Mapping[FaultKind, tuple[int, ...]] = {
    FaultKind.EARLY: (ExitCode.HANG,),
    FaultKind.HANG: (ExitCode.HANG,),
    FaultKind.UNKILLABLE: (ExitCode.UNKILLABLE_WORKER, *_AFTER_LOSSES),
    FaultKind.SIGNAL: (128 + signal.SIGTERM, *_AFTER_LOSSES),
    FaultKind.STOP_JOB: (128 + signal.SIGTERM, ExitCode.RENDEZVOUS_CLOSED),
    FaultKind.LEAVE: (128 + signal.SIGTERM, *_AFTER_LOSSES),
    FaultKind.UNHEALTHY: (ExitCode.NODE_EXCLUDED, *_AFTER_LOSSES),
    **dict.fromkeys(LOSSES, _AFTER_LOSSES),
    # Agents that miss their command stop their workers, as after SIGTERM.
    FaultKind.COMMAND_KILLED: (128 + signal.SIGKILL, 128 + signal.SIGTERM),
    FaultKind.COMMAND_PAUSE: (
        ExitCode.COMMAND_SUSPENDED,
        128 + signal.SIGTERM,
        *_AFTER_LOSSES,
    ),
    FaultKind.CONNECTION_LOSS: (128 + signal.SIGTERM, *_AFTER_LOSSES),
}


def _explained(fault: FaultRecord) -> set[int]:
    """Return the exit codes that a fault can lead to."""
    codes = set(map(int, _EXPLAINED.get(fault.kind, ())))
    if fault.kind in (FaultKind.FAIL, FaultKind.KILLED):
        # Nodes are excluded for them, and then there may be too few.
        codes |= {fault.value if fault.value > 0 else 128 - fault.value, ExitCode.NODE_EXCLUDED}
    elif fault.kind is FaultKind.COMMAND_SIGNAL:
        codes.add(128 + fault.value)
    return codes


def _keeps_success(node: AgentRecord) -> bool:
    """Whether its workers had succeeded when its end was requested: it does not wait for others."""
    return node.is_success_sure and node.is_asked_to_end


def _has_given_up_alone(run: RunRecord, node: AgentRecord) -> bool:
    """Whether a node has waited in vain; others that come later continue the job without it."""
    if node.exit_code != ExitCode.RENDEZVOUS_TIMEOUT or node.verdict is not None:
        return False
    at = node.ended_at or 0.0
    away = {
        one.host
        for one in run.with_effect(*LINK_FAULTS)
        if one.at <= at <= one.at + one.lasts + _RETURN
    }
    others = [one for one in run.nodes if one is not node and one.was_alive(at)]
    return sum(one.host not in away for one in others) + 1 < run.min_nodes


def is_late(run: RunRecord, node: AgentRecord) -> bool:
    """Whether a node has joined after the job was over, or its end requested, or had come."""
    ends = [one.ended_at or 0.0 for one in run.nodes if one.exit_code is not None]
    ends += [one.at for one in run.with_effect(FaultKind.STOP_JOB)]
    ends += [one.finished_at for one in run.rounds if one.has_succeeded and one.finished_at]
    joined_at = node.started_at if node.joined_at is None else node.joined_at
    return any(at <= joined_at for at in ends)


def find_wrong_successes(run: RunRecord) -> Iterator[str]:
    """A node ends with 0 before all workers have succeeded, or with another code after that."""
    last = next((one for one in reversed(run.rounds) if one.completed_at), None)
    is_success = last is not None and last.has_succeeded
    for node in run.nodes:
        if node.exit_code != 0 or node.has_waited_for_others:
            continue
        if not is_success and not _keeps_success(node):
            yield f"{node.name} ends with 0, but the last round has not succeeded"
        if not node.is_success_sure and node.outcome != Outcome.LEFT.value:
            yield f"{node.name} ends with 0, but its workers have not succeeded"
    if last is None or not is_success or run.had_fault(*LOSSES):
        return
    members = {worker.node for worker in last.starts}
    for node in run.nodes:
        if node.exit_code in (None, 0, *_OWN_CODES) or node.name not in members:
            continue
        yield f"{node.name} ends with {node.exit_code}, but all workers of {last} have succeeded"


def find_different_verdicts(run: RunRecord) -> Iterator[str]:
    """Two members of a job know different verdicts, whatever has happened."""
    statements = _Statements()
    for node in run.nodes:
        if node.verdict is None or node.incarnation is None:
            continue
        text = str(node.verdict)
        other = statements.find_contradicted(node.incarnation, node, text)
        if other is not None:
            yield f"the verdict is {other.text} on {other.node.name}, and {text} on {node.name}"


def find_wrong_causes(run: RunRecord) -> Iterator[str]:
    """The first cause of a failed job is not the earliest fault that could end its last attempt."""
    rounds = {(one.incarnation, one.number): one for one in run.rounds}
    for node in run.nodes:
        verdict, trained = node.verdict, rounds.get((node.incarnation or "", node.last_round))
        if verdict is None or trained is None or verdict.outcome != JobOutcome.FAILED.value:
            continue
        first = verdict.first
        if first is None:
            continue
        code = first.exitcode if first.exitcode >= 0 else 128 - first.exitcode
        if node.has_failed and node.exit_code != code:
            yield f"{node.name} ends with {node.exit_code}, and its first failure with {code}"
        if first.rank < 0 or _had_loss(run, trained, node):
            continue
        if _had_jump(run, trained):
            continue
        # The order is documented: a consequence comes after others that began within the window.
        until = first.began + (CONSEQUENCE_WINDOW if first.is_consequence else 0.0)
        certain = [one for one in trained.causes if one.is_certain and one.timestamp <= until]
        yield from _find_late_causes(trained, first)
        same = [
            one
            for one in trained.causes
            if (one.rank, one.exitcode) == (first.rank, first.exitcode)
        ]
        what = f"{node.name} reports rank {first.rank} with {first.exitcode}"
        if not same and (certain or not first.is_consequence):
            yield f"{what}, but {', '.join(map(str, certain)) or 'no fault'} has ended {trained}"
        for one in certain:
            if same and all(one.is_before(other, run.precision) for other in same):
                yield f"{what}, but {one} was earlier"


def _find_late_causes(trained: RoundRecord, first: FirstFailure) -> Iterator[str]:
    """A consequence comes first though a cause began within the window, by a clock for all."""
    if not first.is_consequence:
        return
    for one in trained.consequences:
        if (one.rank, one.exitcode) != (first.rank, first.exitcode):
            continue
        until = one.at + CONSEQUENCE_WINDOW - CLOCK_TOLERANCE
        for cause in trained.causes:
            if cause.is_certain and cause.at <= until:
                yield f"{trained} ends with the consequence {one}, but {cause} has ended it"


def _had_jump(run: RunRecord, trained: RoundRecord) -> bool:
    """Whether the clock of a host was set between a failure there and its report."""
    return any(
        one.host == cause.host and cause.at - 0.001 <= one.at <= cause.at + _REPORT
        for one in run.with_effect(FaultKind.CLOCK)
        for cause in (*trained.causes, *trained.consequences)
    )


def _had_loss(run: RunRecord, trained: RoundRecord, node: AgentRecord) -> bool:
    """Whether a node or the store may have been lost in a round that a node has seen fail."""
    return any(
        one.at < (node.ended_at or one.at + 1.0) and one.at + one.lasts + _EFFECT > trained.began
        for one in run.with_effect(*LOSSES)
    )


def find_different_events(run: RunRecord) -> Iterator[str]:
    """The events of the nodes do not tell one history."""
    rounds, reasons = _Statements(), _Statements()
    for node in run.nodes:
        last: NodeEvent | None = None
        for event in node.events:
            if event.name != "AfterRendezvous":
                continue
            key = event.incarnation, event.round
            text = f"attempt {event.attempt}, {event.world}"
            other = rounds.find_contradicted(key, node, text)
            if other is not None:
                yield (
                    f"round {event.round} has {other.text} in the events of {other.node.name}, "
                    f"and {text} in those of {node.name}"
                )
            is_known = bool(event.told)
            if is_known and (last is None or last.incarnation == event.incarnation):
                # Who has lost a job that starts again has its own reason for the next round.
                other = reasons.find_contradicted(key, node, event.told)
                if other is not None:
                    yield (
                        f"round {event.round} follows {other.text!r} in the events of "
                        f"{other.node.name}, and {event.told!r} in those of {node.name}"
                    )
            goes_back = last is not None and (
                last.round >= event.round or last.attempt > event.attempt
            )
            if last is not None and goes_back and last.incarnation == event.incarnation:
                yield f"{node.name} tells of {_place(event)} after {_place(last)}"
            last = event
        if node.exit_code is not None and node.events:
            yield from _find_wrong_end(node)


def _place(event: NodeEvent) -> str:
    return f"round {event.round}, attempt {event.attempt}"


def _find_wrong_end(node: AgentRecord) -> Iterator[str]:
    ends = [event for event in node.events if event.name == "AgentFinished"]
    if len(ends) != 1 or ends[0] is not node.events[-1]:
        yield f"{node.name} tells {len(ends)} times that it has ended, or goes on after that"
    is_success = node.exit_code == 0
    if ends and is_success != (ends[0].told in (Outcome.SUCCEEDED.value, Outcome.LEFT.value)):
        yield f"{node.name} tells {ends[0].told!r}, and ends with {node.exit_code}"


def find_wrong_losses(run: RunRecord) -> Iterator[str]:
    """A node counts as lost that nothing has happened to.

    A store that is suspended loses no node: checks that are late do not count.
    """
    if run.had_fault(*(kind for kind in STORE_FAULTS if kind is not FaultKind.STORE_PAUSE)):
        return
    hit = {one.host for one in run.with_effect(*LOSSES)}
    for node in run.nodes:
        for event in (one for one in node.events if one.lost):
            lost = [one for one in run.nodes if one.host == event.lost]
            # Who leaves says so, unless the store does not answer.
            is_wrong = any(one.was_alive(event.at) for one in lost) or (
                any(one.ends_by_itself for one in lost) and not run.had_fault(FaultKind.STORE_PAUSE)
            )
            if is_wrong and event.lost not in (*hit, node.host):
                yield f"{node.name} has lost {event.lost}: {event.told}"


def find_unhealthy(run: RunRecord) -> Iterator[str]:
    """A node whose first health checks have failed has started workers."""
    for one in run.with_effect(FaultKind.UNHEALTHY):
        until = one.at + one.lasts
        for node in run.nodes:
            if node.host != one.host or not one.at <= node.started_at <= until:
                continue
            if any(event.name == "WorkersStarted" and event.at < until for event in node.events):
                yield f"{node.name} has started workers, but its health checks fail"


def find_leftovers(run: RunRecord) -> Iterator[str]:
    """Threads, descriptors, connections, processes or files are left after the end."""
    for left in run.leftovers:
        yield f"left: {left}"
    for node in run.nodes:
        if node.exit_code is None:
            continue
        for left in node.leftovers:
            yield f"{node.name} has left {left}"
        if node.runs_workers and node.exit_code != ExitCode.UNKILLABLE_WORKER:
            yield f"{node.name} has left its workers running"
