"""What must hold for every run, whatever has happened in it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from plaunch.errors import ExitCode

from plaunch_testing.simulation.script import FaultKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plaunch_testing.simulation.node import SimulatedNode
    from plaunch_testing.simulation.training import TrainedRound
    from plaunch_testing.simulation.world import SimulatedWorld

__all__ = ["find_faults"]

# A node that is cut off stops its workers after `unreachable_timeout`, as docs/membership.md says;
# then they may take their time.
_OVERLAP_OF_LOST = 60.0 + 30.0 + 15.0  # seconds
_OVERLAP = 1.0  # seconds, of nodes that reach the store all the time
# Faults after which a node may not reach the store for a while, or be slow.
_DISTURBING = (
    FaultKind.CUT, FaultKind.CUT_TO, FaultKind.CUT_FROM, FaultKind.PAUSE, FaultKind.STORE_LOSS,
    FaultKind.STORE_SLOW, FaultKind.STORE_DOWN, FaultKind.CRASH,
)  # fmt: skip
# Codes of single nodes, which docs/errors.md excepts from the rule that all nodes end alike.
_OWN_CODES = (ExitCode.UNKILLABLE_WORKER, ExitCode.NODE_EXCLUDED)


def find_faults(world: SimulatedWorld) -> list[str]:
    """Return what was wrong with a run that is over; one line each."""
    return [
        *world.training.findings,
        *_find_errors(world),
        *_find_endless(world),
        *_find_worlds(world),
        *_find_disagreements(world),
        *_find_charges(world),
        *_find_codes(world),
        *_find_leaks(world),
    ]


def _find_errors(world: SimulatedWorld) -> Iterator[str]:
    for task, error in world.hub.errors:
        yield f"{task.name} has raised {error!r}"


def _find_endless(world: SimulatedWorld) -> Iterator[str]:
    if world.is_over_in_time:
        return
    left = [
        f"{node.name} ({node.agent.describe_phase() if node.agent else 'starting'})"
        for node in world.nodes
        if not node.is_over
    ]
    yield f"not over at {world.hub.now:.0f} s: {', '.join(left)}"


def _find_worlds(world: SimulatedWorld) -> Iterator[str]:
    """Two worlds train at a time, beyond what is documented."""
    complete = [one for one in world.training.rounds if one.completed_at is not None]
    is_disturbed = any(one.fault.kind in _DISTURBING for one in world.happened)
    bound = _OVERLAP_OF_LOST if is_disturbed else _OVERLAP
    for earlier, later in itertools.pairwise(complete):
        for part, ended in earlier.ends.items():
            overlap = ended - (later.completed_at or 0.0)
            if overlap > bound and not earlier.has_succeeded:
                yield (
                    f"{earlier} still runs on {part.host.name} {overlap:.1f} s after {later} "
                    f"was complete"
                )


def _find_disagreements(world: SimulatedWorld) -> Iterator[str]:
    """Members of one round have other attempts, or attempts and rounds go back."""
    seen: dict[tuple[str, int], TrainedRound] = {}
    highest: dict[str, TrainedRound] = {}
    for one in world.training.rounds:
        other = seen.setdefault((one.incarnation, one.number), one)
        if other.attempt != one.attempt:
            yield f"{one} and {other} are one round with two attempts"
        last = highest.setdefault(one.incarnation, one)
        if one.attempt < last.attempt or one.number < last.number:
            yield f"{one} began after {last}"
        highest[one.incarnation] = one


def _find_charges(world: SimulatedWorld) -> Iterator[str]:
    """A failure was charged twice, or the budget was exceeded."""
    script = world.script
    charged = sum(one.may_charge for one in world.happened) + world.training.hangs
    highest = max((one.attempt for one in world.training.rounds), default=0)
    if highest > charged:
        yield f"attempt {highest} after {charged} faults that may be charged"
    budget = script.max_restarts + (script.node_restarts or 0)
    if highest > budget:
        yield f"attempt {highest} with a budget of {budget} restarts"


def _find_codes(world: SimulatedWorld) -> Iterator[str]:
    """Exit codes differ, or claim or deny a success."""
    last = next((one for one in reversed(world.training.rounds) if one.completed_at), None)
    is_success = last is not None and last.has_succeeded
    codes: dict[int, list[SimulatedNode]] = {}
    for node in world.nodes:
        if node.exit_code is None:
            continue
        if node.exit_code == ExitCode.INTERNAL and not _is_of_worker(node):
            yield f"{node.name} ends with 1: {node.error!r}"
        codes.setdefault(node.exit_code, []).append(node)
        if node.exit_code == 0 and not is_success and not node.has_waited_for_others:
            yield f"{node.name} ends with 0, but the last round has not succeeded"
    if world.is_disturbed or world.has_own_ends:
        return
    common = {code: nodes for code, nodes in codes.items() if code not in _OWN_CODES}
    if len(common) > 1:
        named = ", ".join(
            f"{code} of {'/'.join(node.name for node in nodes)}" for code, nodes in common.items()
        )
        yield f"exit codes differ: {named}"
    if is_success and common and set(common) != {0}:
        yield f"the last round has succeeded, and the codes are {sorted(common)}"


def _is_of_worker(node: SimulatedNode) -> bool:
    return type(node.error).__name__ == "ChildFailedError"


def _find_leaks(world: SimulatedWorld) -> Iterator[str]:
    """Threads or descriptors of an agent are left after its end."""
    for node in world.nodes:
        if node.exit_code is None:
            continue
        if node.left_threads:
            yield f"{node.name} has left the threads {', '.join(node.left_threads)}"
        if node.left_descriptors:
            yield f"{node.name} has left {node.left_descriptors} descriptors"
