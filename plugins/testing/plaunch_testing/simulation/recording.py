"""Makes the record of a simulated run, which the checks read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plaunch.process import ChildFailedError

from plaunch_testing.simulation.record import (
    AgentRecord,
    FaultRecord,
    FirstFailure,
    RoundRecord,
    RunRecord,
    VerdictRecord,
)

if TYPE_CHECKING:
    from plaunch.rendezvous.job import Verdict

    from plaunch_testing.simulation.node import SimulatedNode
    from plaunch_testing.simulation.training import TrainedRound
    from plaunch_testing.simulation.world import SimulatedWorld

__all__ = ["record_run"]


def record_run(world: SimulatedWorld) -> RunRecord:
    """Return the record of a run that is over."""
    script = world.script
    return RunRecord(
        script.min_nodes,
        script.max_nodes,
        script.workers,
        script.max_restarts + (script.node_restarts or 0),
        script.latency,
        faults=[
            FaultRecord(
                one.fault.kind,
                one.host.name,
                one.at,
                one.fault.lasts,
                one.had_effect,
                one.fault.value,
            )
            for one in world.happened
        ],
        rounds=[_record_round(one) for one in world.training.rounds],
        nodes=[_record_node(one) for one in world.nodes],
        errors=[f"{task.name} has raised {error!r}" for task, error in world.hub.errors],
        unfinished=_find_unfinished(world),
        hangs=world.training.hangs,
        keys=world.server.key_list(),
    )


def _record_verdict(verdict: Verdict) -> VerdictRecord:
    found = None if verdict.first is None else verdict.failures.get(verdict.first)
    first = None
    if found is not None:
        first = FirstFailure(
            found.global_rank or 0, found.exitcode, found.began, found.is_consequence
        )
    return VerdictRecord(
        verdict.outcome.value,
        verdict.reason,
        verdict.no_restart,
        verdict.node,
        verdict.first,
        first,
    )


def _find_unfinished(world: SimulatedWorld) -> list[str]:
    if world.is_over_in_time:
        return []
    return [f"at {world.hub.now:.0f} s"] + [
        f"{node.name} ({node.agent.describe_phase() if node.agent else 'starting'})"
        for node in world.nodes
        if not node.is_over
    ]


def _record_round(trained: TrainedRound) -> RoundRecord:
    return RoundRecord(
        trained.incarnation,
        trained.number,
        trained.attempt,
        trained.starts,
        {part.name: ended for part, ended in trained.ends.items()},
        trained.completed_at,
        trained.finished_at,
        trained.has_succeeded,
        trained.causes,
        trained.consequences,
    )


def _record_node(node: SimulatedNode) -> AgentRecord:
    leftovers = []
    if node.left_threads:
        leftovers.append(f"the threads {', '.join(node.left_threads)}")
    if node.left_descriptors:
        leftovers.append(f"{node.left_descriptors} descriptors")
    if node.left_connections:
        leftovers.append(f"{node.left_connections} connections to the store")
    workers, outcome = node.workers, node.outcome
    incarnation, last_round = node.last_round or (None, -1)
    return AgentRecord(
        node.name,
        node.host.name,
        node.started_at,
        node.ended_at if node.exit_code is not None else node.process.killed_at,
        node.exit_code,
        repr(node.error),
        isinstance(node.error, ChildFailedError),
        workers is not None and workers.succeeded_at is not None,
        "" if outcome is None else outcome.value,
        None if node.verdict is None else _record_verdict(node.verdict),
        incarnation,
        last_round,
        events=node.events,
        leftovers=leftovers,
        runs_workers=workers is not None and workers.is_running,
        is_asked_to_end=node.agent is not None and node.agent.is_asked_to_end(),
        has_waited_for_others=node.has_waited_for_others,
        ends_by_itself=node.ends_by_itself,
    )
