"""What must hold for every run, whatever has happened in it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from plaunch_testing.simulation import endings
from plaunch_testing.simulation.script import LINK_FAULTS, STORE_FAULTS, FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from plaunch_testing.simulation.record import RoundRecord, RunRecord, StartedWorker

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


def find_faults(run: RunRecord) -> list[str]:
    """Return what was wrong with a run that is over; one line each, after the name of its check."""
    return [f"{name}: {found}" for name, find in CHECKS.items() for found in find(run)]


def _find_wrong_ranks(run: RunRecord) -> Iterator[str]:
    """The ranks of a round are not a permutation, or its members are in different worlds."""
    for one in run.rounds:
        ranks: dict[int, StartedWorker] = {}
        nodes: dict[str, set[int]] = {}
        first = one.starts[0]
        for worker in one.starts:
            what = f"round {one.number}: {worker.node}"
            if worker.world_size != first.world_size:
                yield (
                    f"{what} has a world of {worker.world_size}, others one of {first.world_size}"
                )
            if worker.master != first.master:
                yield f"{what} has another address of rank 0 than others"
            other = ranks.get(worker.rank)
            if other is not None and one.ends.get(other.node, worker.at + 1.0) > worker.at:
                yield f"{what} runs rank {worker.rank}, which also runs on {other.node}"
            ranks[worker.rank] = worker
            nodes.setdefault(worker.node, set()).add(worker.rank - worker.local_rank)
        if not set(ranks) <= set(range(first.world_size)):
            yield f"round {one.number}: ranks {sorted(ranks)} of {first.world_size}"
        scattered = [name for name, bases in nodes.items() if len(bases) > 1]
        if scattered:
            yield f"round {one.number}: the ranks of {scattered[0]} do not follow each other"
        size, rest = divmod(first.world_size, run.workers)
        if rest or not run.min_nodes <= size <= run.max_nodes:
            yield f"round {one.number} has a world of {first.world_size}"


def _find_endless(run: RunRecord) -> Iterator[str]:
    """Not all nodes have ended some time after the last fault."""
    if run.unfinished:
        yield f"not over: {', '.join(run.unfinished)}"


def _find_two_worlds(run: RunRecord) -> Iterator[str]:
    """Two worlds train at a time, beyond what is documented."""
    complete = [one for one in run.rounds if one.completed_at is not None]
    bound = _OVERLAP_OF_LOST if run.had_fault(*_DISTURBING) else _OVERLAP + run.precision
    for earlier, later in itertools.pairwise(complete):
        for node, ended in earlier.ends.items():
            overlap = ended - (later.completed_at or 0.0)
            if overlap > bound and not earlier.has_succeeded:
                yield (f"{earlier} still runs on {node} {overlap:.1f} s after {later} was complete")


def _find_disagreements(run: RunRecord) -> Iterator[str]:
    """Members of one round have other attempts, or attempts and rounds go back."""
    seen: dict[tuple[str, int], RoundRecord] = {}
    highest: dict[str, RoundRecord] = {}
    for one in run.rounds:
        other = seen.setdefault((one.incarnation, one.number), one)
        if other.attempt != one.attempt:
            yield f"{one} and {other} are one round with two attempts"
        last = highest.setdefault(one.incarnation, one)
        if _was_away(run, one):
            continue
        if one.attempt < last.attempt or one.number < last.number:
            yield f"{one} began after {last}"
        highest[one.incarnation] = one


def _was_away(run: RunRecord, trained: RoundRecord) -> bool:
    """Whether the first node of a round had read it before it was cut off or suspended.

    It starts its workers when it comes back, at once; it reads that the round is over soon after.
    """
    for one in run.with_effect(*LINK_FAULTS):
        if one.host == trained.starts[0].host:
            is_suspended = one.kind is FaultKind.PAUSE
            soon = _INSTANT + run.precision + (0.0 if is_suspended else 20 * run.latency)
            if 0.0 <= trained.began - one.at - one.lasts + run.precision <= soon:
                return True
    return False


def _find_wrong_charges(run: RunRecord) -> Iterator[str]:
    """A failure was charged twice, or not at all, or the budget was exceeded."""
    rounds = run.rounds
    for one in () if run.had_fault(*STORE_FAULTS) else rounds:  # they may cost many
        charged = sum(each.may_charge and each.at <= one.began for each in run.faults)
        charged += sum(at <= one.began for at in run.hangs)
        if one.attempt > charged:
            yield f"{one} began after {charged} faults that may be charged"
            break
    highest = max((one.attempt for one in rounds), default=0)
    if highest > run.budget:
        yield f"attempt {highest} with a budget of {run.budget} restarts"
    if run.had_fault(*_FREE):
        return
    for earlier, later in itertools.pairwise(rounds):
        if earlier.incarnation == later.incarnation and earlier.attempt == later.attempt:
            certain = [cause for cause in earlier.causes if cause.is_certain]
            if certain:
                yield f"{later} began after {certain[0]}, which was not charged"


def _find_old_records(run: RunRecord) -> Iterator[str]:
    """Records of past rounds are left, though the last round ran for long enough to delete them."""
    last = run.rounds[-1] if run.rounds else None
    if last is None or last.finished_at is None or run.had_fault(*_DISTURBING):
        return
    passes = int((last.finished_at - last.began) / _PASS)
    if passes < last.number + 2:  # one pass for each round
        return
    prefix = f"/{last.incarnation}/round/"
    for key in run.keys:
        _, found, rest = key.partition(prefix)
        if found and int(rest.partition("/")[0]) < last.number - 1:
            yield f"{key} is left, though {last} ran for {last.finished_at - last.began:.1f} s"
            return


def _find_lost_output(run: RunRecord) -> Iterator[str]:
    """Lines of workers are lost, or in the wrong order, or lost without a message."""
    is_cut = False
    for one in run.outputs:
        if one.problem:
            yield f"{one.name}: {one.problem}"
        if one.shown < one.wrote:
            is_cut = True
            if not one.may_be_cut:
                yield f"{one.shown} of {one.wrote} lines of {one.name} have arrived"
    if is_cut and run.is_loss_shown is False:
        yield "output is missing, and no message says so"


# Restarts for these are free, or take the place of one that is charged.
_FREE = (
    *_DISTURBING, FaultKind.KILL_AGENT, FaultKind.LEAVE, FaultKind.JOIN, FaultKind.SIGNAL,
    FaultKind.RESTART_JOB, FaultKind.UNKILLABLE, FaultKind.UNHEALTHY,
)  # fmt: skip


# By their names, which findings begin with.
CHECKS: Mapping[str, Callable[[RunRecord], Iterator[str]]] = {
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
    "explained": endings.find_unexplained_codes,
    "successes": endings.find_wrong_successes,
    "events": endings.find_different_events,
    "leftovers": endings.find_leftovers,
    "output": _find_lost_output,
    "records": _find_old_records,
    "health": endings.find_unhealthy,
}
