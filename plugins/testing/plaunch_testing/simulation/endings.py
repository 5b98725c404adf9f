"""Checks of how the nodes of a run have ended: their exit codes, verdicts, events and leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from plaunch.agent.states import Outcome
from plaunch.errors import ExitCode
from plaunch.process import CONSEQUENCE_WINDOW, ChildFailedError
from plaunch.rendezvous import JobOutcome

from plaunch_testing.simulation.script import LINK_FAULTS, LOSSES, STORE_FAULTS, FaultKind
from plaunch_testing.simulation.training import CLOCK_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from plaunch.process import ProcessFailure
    from plaunch.rendezvous.job import Verdict

    from plaunch_testing.simulation.node import NodeEvent, SimulatedNode
    from plaunch_testing.simulation.training import TrainedRound
    from plaunch_testing.simulation.world import SimulatedWorld

__all__ = [
    "find_different_codes",
    "find_different_events",
    "find_different_verdicts",
    "find_leftovers",
    "find_unexpected_errors",
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

    node: SimulatedNode
    text: str


class _Statements:
    """What nodes have said; each subject was first described by one of them."""

    def __init__(self) -> None:
        self._first: dict[Hashable, _Statement] = {}

    def find_contradicted(
        self, subject: Hashable, node: SimulatedNode, text: str
    ) -> _Statement | None:
        """Return the first statement about a subject if a node says something else."""
        first = self._first.setdefault(subject, _Statement(node, text))
        return first if first.text != text else None


def _has_succeeded(node: SimulatedNode) -> bool:
    """Whether its workers have succeeded."""
    return node.workers is not None and node.workers.succeeded_at is not None


def _first_failure(verdict: Verdict) -> ProcessFailure | None:
    return None if verdict.first is None else verdict.failures.get(verdict.first)


def find_unexpected_errors(world: SimulatedWorld) -> Iterator[str]:
    """A task of the simulator ended with an exception, or an agent with an error of plaunch."""
    for task, error in world.hub.errors:
        yield f"{task.name} has raised {error!r}"
    for node in world.nodes:
        if node.exit_code == ExitCode.INTERNAL and not _has_failed(node):
            yield f"{node.name} ends with 1: {node.error!r}"


def _has_failed(node: SimulatedNode) -> bool:
    """Whether it reports a failure of workers, of any node."""
    return isinstance(node.error, ChildFailedError)


def find_different_codes(world: SimulatedWorld) -> Iterator[str]:
    """The nodes of a job end with different codes, though none of them is excepted."""
    if world.had_fault(*STORE_FAULTS):
        return
    links = {one.host for one in world.happened if one.had_effect and one.fault.kind in LINK_FAULTS}
    codes: dict[str, dict[int, list[str]]] = {}  # by the incarnation of the job
    for node in world.nodes:
        code = node.exit_code
        if code is None or code in _OWN_CODES or node.ends_by_itself or node.has_waited_for_others:
            continue
        if _keeps_success(node) or _has_given_up_alone(world, node):
            continue
        if node.host in links or (code == ExitCode.RENDEZVOUS_CLOSED and is_late(world, node)):
            continue
        incarnation = node.last_round[0] if node.last_round else ""
        codes.setdefault(incarnation, {}).setdefault(code, []).append(node.name)
    for by_code in codes.values():
        if len(by_code) > 1:
            named = ", ".join(f"{code} of {'/'.join(names)}" for code, names in by_code.items())
            yield f"exit codes differ: {named}"


def _keeps_success(node: SimulatedNode) -> bool:
    """Whether its workers had succeeded when its end was requested: it does not wait for others."""
    return _has_succeeded(node) and node.agent is not None and node.agent.is_asked_to_end()


def _has_given_up_alone(world: SimulatedWorld, node: SimulatedNode) -> bool:
    """Whether a node has waited in vain; others that come later continue the job without it."""
    if node.exit_code != ExitCode.RENDEZVOUS_TIMEOUT or node.verdict is not None:
        return False
    at = node.ended_at
    away = {
        one.host
        for one in world.happened
        if one.had_effect
        and one.fault.kind in LINK_FAULTS
        and one.at <= at <= one.at + one.fault.lasts + _RETURN
    }
    others = [one for one in world.nodes if one is not node and one.was_alive(at)]
    return sum(one.host not in away for one in others) + 1 < world.script.min_nodes


def is_late(world: SimulatedWorld, node: SimulatedNode) -> bool:
    """Whether a node has started after the end of the job was requested, or had come."""
    ends = [one.ended_at for one in world.nodes if one.exit_code is not None]
    requested = FaultKind.STOP_JOB
    ends += [one.at for one in world.happened if one.had_effect and one.fault.kind is requested]
    return any(at <= node.started_at for at in ends)


def find_wrong_successes(world: SimulatedWorld) -> Iterator[str]:
    """A node ends with 0 before all workers have succeeded, or with another code after that."""
    last = next((one for one in reversed(world.training.rounds) if one.completed_at), None)
    is_success = last is not None and last.has_succeeded
    for node in world.nodes:
        if node.exit_code != 0 or node.has_waited_for_others:
            continue
        if not is_success and not _keeps_success(node):
            yield f"{node.name} ends with 0, but the last round has not succeeded"
        if not _has_succeeded(node) and node.outcome is not Outcome.LEFT:
            yield f"{node.name} ends with 0, but its workers have not succeeded"
    if last is None or not is_success or world.had_fault(*LOSSES):
        return
    members = {id(part) for part in last.parts}
    for node in world.nodes:
        if node.exit_code in (None, 0, *_OWN_CODES) or id(node.workers) not in members:
            continue
        yield f"{node.name} ends with {node.exit_code}, but all workers of {last} have succeeded"


def find_different_verdicts(world: SimulatedWorld) -> Iterator[str]:
    """Two members of a job know different verdicts, whatever has happened."""
    statements = _Statements()
    for node in world.nodes:
        if node.verdict is None or node.last_round is None:
            continue
        text = _describe_verdict(node.verdict)
        other = statements.find_contradicted(node.last_round[0], node, text)
        if other is not None:
            yield f"the verdict is {other.text} on {other.node.name}, and {text} on {node.name}"


def _describe_verdict(verdict: Verdict) -> str:
    first = _first_failure(verdict)
    return (
        f"{verdict.outcome} ({verdict.reason}; {verdict.no_restart}) of {verdict.node}, first "
        f"{verdict.first} with {None if first is None else first.exitcode}"
    )


def find_wrong_causes(world: SimulatedWorld) -> Iterator[str]:
    """The first cause of a failed job is not the earliest fault that could end its last attempt."""
    rounds = {(one.incarnation, one.number): one for one in world.training.rounds}
    for node in world.nodes:
        verdict, trained = node.verdict, rounds.get(node.last_round or ("", -1))
        if verdict is None or trained is None or verdict.outcome is not JobOutcome.FAILED:
            continue
        first = _first_failure(verdict)
        if first is None:
            continue
        code = first.exitcode if first.exitcode >= 0 else 128 - first.exitcode
        if _has_failed(node) and node.exit_code != code:
            yield f"{node.name} ends with {node.exit_code}, and its first failure with {code}"
        if (first.global_rank or 0) < 0 or _had_loss(world, trained, node):
            continue
        if _had_jump(world, trained):
            continue
        # The order is documented: a consequence comes after others that began within the window.
        until = first.began + (CONSEQUENCE_WINDOW if first.is_consequence else 0.0)
        certain = [one for one in trained.causes if one.is_certain and one.timestamp <= until]
        yield from _find_late_causes(trained, first)
        same = [
            one
            for one in trained.causes
            if (one.rank, one.exitcode) == (first.global_rank, first.exitcode)
        ]
        what = f"{node.name} reports rank {first.global_rank} with {first.exitcode}"
        if not same and (certain or not first.is_consequence):
            yield f"{what}, but {', '.join(map(str, certain)) or 'no fault'} has ended {trained}"
        for one in certain:
            if same and all(one.is_before(other) for other in same):
                yield f"{what}, but {one} was earlier"


def _find_late_causes(trained: TrainedRound, first: ProcessFailure) -> Iterator[str]:
    """A consequence comes first though a cause began within the window, by a clock for all."""
    if not first.is_consequence:
        return
    for one in trained.consequences:
        if (one.rank, one.exitcode) != (first.global_rank, first.exitcode):
            continue
        until = one.at + CONSEQUENCE_WINDOW - CLOCK_TOLERANCE
        for cause in trained.causes:
            if cause.is_certain and cause.at <= until:
                yield f"{trained} ends with the consequence {one}, but {cause} has ended it"


def _had_jump(world: SimulatedWorld, trained: TrainedRound) -> bool:
    """Whether the clock of a host was set between a failure there and its report."""
    return any(
        one.host.name == cause.host and cause.at - 0.001 <= one.at <= cause.at + _REPORT
        for one in world.happened
        if one.had_effect and one.fault.kind is FaultKind.CLOCK
        for cause in (*trained.causes, *trained.consequences)
    )


def _had_loss(world: SimulatedWorld, trained: TrainedRound, node: SimulatedNode) -> bool:
    """Whether a node or the store may have been lost in a round that a node has seen fail."""
    return any(
        one.had_effect
        and one.fault.kind in LOSSES
        and one.at < node.ended_at
        and one.at + one.fault.lasts + _EFFECT > trained.began
        for one in world.happened
    )


def find_different_events(world: SimulatedWorld) -> Iterator[str]:
    """The events of the nodes do not tell one history."""
    rounds, reasons = _Statements(), _Statements()
    for node in world.nodes:
        last: NodeEvent | None = None
        for event in node.events:
            if event.name != "AfterRendezvous":
                continue
            group = event.group
            key = event.incarnation, group.round
            text = (
                f"attempt {group.attempt}, {group.group_world_size} nodes, rank 0 at "
                f"{group.master_addr}:{group.master_port}"
            )
            other = rounds.find_contradicted(key, node, text)
            if other is not None:
                yield (
                    f"round {group.round} has {other.text} in the events of {other.node.name}, "
                    f"and {text} in those of {node.name}"
                )
            if last is None or last.incarnation == event.incarnation:
                # Who has lost a job that starts again has its own reason for the next round.
                other = reasons.find_contradicted(key, node, event.told)
                if other is not None:
                    yield (
                        f"round {group.round} follows {other.text!r} in the events of "
                        f"{other.node.name}, and {event.told!r} in those of {node.name}"
                    )
            goes_back = last is not None and (
                last.group.round >= group.round or last.group.attempt > group.attempt
            )
            if last is not None and goes_back and last.incarnation == event.incarnation:
                yield f"{node.name} tells of {_place(event)} after {_place(last)}"
            last = event
        if node.exit_code is not None and node.agent is not None:
            yield from _find_wrong_end(node)


def _place(event: NodeEvent) -> str:
    return f"round {event.group.round}, attempt {event.group.attempt}"


def _find_wrong_end(node: SimulatedNode) -> Iterator[str]:
    ends = [event for event in node.events if event.name == "AgentFinished"]
    if len(ends) != 1 or ends[0] is not node.events[-1]:
        yield f"{node.name} tells {len(ends)} times that it has ended, or goes on after that"
    is_success = node.exit_code == 0
    if ends and is_success != (ends[0].told in (Outcome.SUCCEEDED.value, Outcome.LEFT.value)):
        yield f"{node.name} tells {ends[0].told!r}, and ends with {node.exit_code}"


def find_wrong_losses(world: SimulatedWorld) -> Iterator[str]:
    """A node counts as lost that nothing has happened to.

    A store that is suspended loses no node: checks that are late do not count.
    """
    if world.had_fault(*(kind for kind in STORE_FAULTS if kind is not FaultKind.STORE_PAUSE)):
        return
    hit = {one.host.name for one in world.happened if one.had_effect and one.fault.kind in LOSSES}
    for node in world.nodes:
        for event in node.events:
            lost = [one for one in world.nodes if one.host.name == event.lost]
            # Who leaves says so, unless the store does not answer.
            is_wrong = any(one.was_alive(event.at) for one in lost) or (
                any(one.ends_by_itself for one in lost)
                and not world.had_fault(FaultKind.STORE_PAUSE)
            )
            if is_wrong and event.lost not in (*hit, node.host.name):
                yield f"{node.name} has lost {event.lost}: {event.told}"


def find_unhealthy(world: SimulatedWorld) -> Iterator[str]:
    """A node whose first health checks have failed has started workers."""
    for one in world.happened:
        if not one.had_effect or one.fault.kind is not FaultKind.UNHEALTHY:
            continue
        until = one.at + one.fault.lasts
        for node in world.nodes:
            if node.host is not one.host or not one.at <= node.started_at <= until:
                continue
            if any(event.name == "WorkersStarted" and event.at < until for event in node.events):
                yield f"{node.name} has started workers, but its health checks fail"


def find_leftovers(world: SimulatedWorld) -> Iterator[str]:
    """Threads, descriptors or connections of an agent are left after its end."""
    for node in world.nodes:
        if node.exit_code is None:
            continue
        if node.left_threads:
            yield f"{node.name} has left the threads {', '.join(node.left_threads)}"
        if node.left_descriptors:
            yield f"{node.name} has left {node.left_descriptors} descriptors"
        if node.left_connections:
            yield f"{node.name} has left {node.left_connections} connections to the store"
        is_unkillable = node.exit_code == ExitCode.UNKILLABLE_WORKER
        if node.workers is not None and node.workers.is_running and not is_unkillable:
            yield f"{node.name} has left its workers running"
