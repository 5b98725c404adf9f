"""What must hold for every run, whatever has happened in it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from plaunch_testing.simulation import endings
from plaunch_testing.simulation.script import LINK_FAULTS, STORE_FAULTS, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plaunch_testing.simulation.training import TrainedRound
    from plaunch_testing.simulation.world import SimulatedWorld

__all__ = ["CHECKS", "find_faults"]

# A node that is cut off stops its workers after `unreachable_timeout`, as docs/membership.md says;
# then they may take their time.
_OVERLAP_OF_LOST = 60.0 + 30.0 + 15.0  # seconds
# Seconds between two passes of the leader, each of which deletes the records of a round.
_PASS = 1.0
_INSTANT = 0.001  # seconds in which a node starts workers for a round that it has read
_OVERLAP = 1.0  # seconds, of nodes that reach the store all the time
# Faults after which a node may not reach the store for a while, or be slow.
_DISTURBING = (*LINK_FAULTS, *STORE_FAULTS, FaultKind.CRASH)


def find_faults(world: SimulatedWorld) -> list[str]:
    """Return what was wrong with a run that is over; one line each, after the name of its check."""
    return [f"{name}: {found}" for name, find in CHECKS.items() for found in find(world)]


def _find_wrong_ranks(world: SimulatedWorld) -> Iterator[str]:
    """The ranks of a round are not a permutation, or its members are in different worlds."""
    return iter(world.training.findings)


def _find_endless(world: SimulatedWorld) -> Iterator[str]:
    """Not all nodes have ended some time after the last fault."""
    if world.is_over_in_time:
        return
    left = [
        f"{node.name} ({node.agent.describe_phase() if node.agent else 'starting'})"
        for node in world.nodes
        if not node.is_over
    ]
    yield f"not over at {world.hub.now:.0f} s: {', '.join(left)}"


def _find_two_worlds(world: SimulatedWorld) -> Iterator[str]:
    """Two worlds train at a time, beyond what is documented."""
    complete = [one for one in world.training.rounds if one.completed_at is not None]
    bound = _OVERLAP_OF_LOST if world.had_fault(*_DISTURBING) else _OVERLAP
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
        if _was_away(world, one):
            continue
        if one.attempt < last.attempt or one.number < last.number:
            yield f"{one} began after {last}"
        highest[one.incarnation] = one


def _was_away(world: SimulatedWorld, trained: TrainedRound) -> bool:
    """Whether the first node of a round had read it before it was cut off or suspended.

    It starts its workers when it comes back, at once; it reads that the round is over soon after.
    """
    for one in world.happened:
        if one.had_effect and one.host is trained.parts[0].host and one.fault.kind in LINK_FAULTS:
            is_suspended = one.fault.kind is FaultKind.PAUSE
            soon = _INSTANT + (0.0 if is_suspended else 20 * world.script.latency)
            if 0.0 <= trained.began - one.at - one.fault.lasts <= soon:
                return True
    return False


def _find_wrong_charges(world: SimulatedWorld) -> Iterator[str]:
    """A failure was charged twice, or not at all, or the budget was exceeded."""
    script, rounds = world.script, world.training.rounds
    for one in () if world.had_fault(*STORE_FAULTS) else rounds:  # they may cost many
        charged = sum(each.may_charge and each.at <= one.began for each in world.happened)
        charged += sum(at <= one.began for at in world.training.hangs)
        if one.attempt > charged:
            yield f"{one} began after {charged} faults that may be charged"
            break
    highest = max((one.attempt for one in rounds), default=0)
    budget = script.max_restarts + (script.node_restarts or 0)
    if highest > budget:
        yield f"attempt {highest} with a budget of {budget} restarts"
    if world.had_fault(*_FREE):
        return
    for earlier, later in itertools.pairwise(rounds):
        if earlier.incarnation == later.incarnation and earlier.attempt == later.attempt:
            certain = [cause for cause in earlier.causes if cause.is_certain]
            if certain:
                yield f"{later} began after {certain[0]}, which was not charged"


def _find_old_records(world: SimulatedWorld) -> Iterator[str]:
    """Records of past rounds are left, though the last round ran for long enough to delete them."""
    last = world.training.rounds[-1] if world.training.rounds else None
    if last is None or last.finished_at is None or world.had_fault(*_DISTURBING):
        return
    passes = int((last.finished_at - last.began) / _PASS)
    if passes < last.number + 2:  # one pass for each round
        return
    prefix = f"/{last.incarnation}/round/"
    for key in world.server.key_list():
        _, found, rest = key.partition(prefix)
        if found and int(rest.partition("/")[0]) < last.number - 1:
            yield f"{key} is left, though {last} ran for {last.finished_at - last.began:.1f} s"
            return


# Restarts for these are free, or take the place of one that is charged.
_FREE = (
    *_DISTURBING, FaultKind.KILL_AGENT, FaultKind.LEAVE, FaultKind.JOIN, FaultKind.SIGNAL,
    FaultKind.RESTART_JOB, FaultKind.UNKILLABLE, FaultKind.UNHEALTHY,
)  # fmt: skip


# By their names, which findings begin with.
CHECKS: Mapping[str, Callable[[SimulatedWorld], Iterator[str]]] = {
    "errors": endings.find_unexpected_errors,
    "time": _find_endless,
    "ranks": _find_wrong_ranks,
    "worlds": _find_two_worlds,
    "rounds": _find_disagreements,
    "charges": _find_wrong_charges,
    "verdicts": endings.find_different_verdicts,
    "causes": endings.find_wrong_causes,
    "codes": endings.find_different_codes,
    "losses": endings.find_wrong_losses,
    "successes": endings.find_wrong_successes,
    "events": endings.find_different_events,
    "leftovers": endings.find_leftovers,
    "records": _find_old_records,
    "health": endings.find_unhealthy,
}
