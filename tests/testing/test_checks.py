"""Checks of runs, on small records of runs that were wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plaunch_testing.simulation import FaultKind
from plaunch_testing.simulation.checks import CHECKS, find_faults
from plaunch_testing.simulation.record import (
    AgentRecord,
    FaultRecord,
    FirstFailure,
    InjectedCause,
    NodeEvent,
    OutputRecord,
    RoundRecord,
    RunRecord,
    StartedWorker,
    VerdictRecord,
)

JOB = "the incarnation"
SUCCEEDED = VerdictRecord("succeeded", "all workers have succeeded", "", "n0")


def started(node, rank=None, world=2, at=1.0, master="n0:29500", local_rank=0):
    rank = node if rank is None else rank
    return StartedWorker(rank, local_rank, world, master, f"n{node}.0", f"n{node}", at)


def trained(number=0, attempt=0, nodes=(0, 1), at=1.0, succeeds=True, ended=5.0, **more):
    starts = [started(node, rank, len(nodes), at) for rank, node in enumerate(nodes)]
    facts = {
        "completed_at": at,
        "finished_at": ended if succeeds else None,
        "has_succeeded": succeeds,
        **more,
    }
    return RoundRecord(JOB, number, attempt, starts, {one.node: ended for one in starts}, **facts)


def formed(number=0, attempt=0, at=1.0, told="", world="2 nodes, rank 0 at n0:29500"):
    return NodeEvent("AfterRendezvous", JOB, number, attempt, at, told, world=world)


def finished(outcome="succeeded", at=5.5, number=0, attempt=0):
    return NodeEvent("AgentFinished", JOB, number, attempt, at, outcome)


def agent(number, code=0, verdict=SUCCEEDED, **facts):
    outcome = "succeeded" if code == 0 else "failed"
    return AgentRecord(
        f"n{number}.0", f"n{number}", 0.5, 6.0, code,
        **{
            "is_success_sure": code == 0,
            "has_failed": code != 0,
            "outcome": outcome,
            "verdict": verdict,
            "incarnation": JOB,
            "last_round": 0,
            "events": [formed(), finished(outcome)],
            **facts,
        },
    )  # fmt: skip


def run(rounds=None, nodes=None, **facts):
    return RunRecord(
        1, 2, 1, 1,
        rounds=[trained()] if rounds is None else rounds,
        nodes=[agent(0), agent(1)] if nodes is None else nodes,
        **facts,
    )  # fmt: skip


FAILED = VerdictRecord("failed", "rank 0 failed", "", "n0", 0, FirstFailure(0, 3, 4.0, False))
FAIL = FaultRecord(FaultKind.FAIL, "n0", 4.0, value=3)
CAUSE = InjectedCause(4.0, 4.0, "n0", 0, 3, True)
EARLIER = InjectedCause(3.0, 3.0, "n1", 1, 7, True)
LATER = InjectedCause(4.5, 4.5, "n1", 1, 7, True)


def failed(**facts):
    """Return a run that a worker's failure has ended."""
    return replace(
        run(
            [trained(succeeds=False, causes=[CAUSE])],
            [agent(0, 3, FAILED), agent(1, 3, FAILED)],
            faults=[FAIL],
        ),
        **facts,
    )


def restarted(attempt=1, faults=(FAIL,), **first):
    """Return a run with a second round."""
    events = [formed(), formed(1, attempt, 6.0, "rank 0 failed; "), finished(at=9.0, number=1)]
    first = {"succeeds": False, "causes": [CAUSE], **first}
    return run(
        [trained(**first), trained(1, attempt, at=6.0, ended=9.0)],
        [agent(0, events=events, last_round=1), agent(1, events=events, last_round=1)],
        faults=list(faults),
    )


@pytest.mark.parametrize("fine", [run(), failed(), restarted()])
def test_nothing_is_wrong_with_a_run(fine):
    assert find_faults(fine) == []


def other_events(*events):
    return [agent(0), agent(1, events=events)]


CUT = OutputRecord("rank 0", 5, 4, may_be_cut=True)
WRONG = [
    ("errors", run(errors=["a task has raised KeyError()"])),
    ("errors", run(nodes=[agent(0, 1, has_failed=False)])),
    ("time", run(unfinished=["n1.0"])),
    ("ranks", run([replace(trained(), starts=[started(0), started(1, 0)])])),
    ("ranks", run([replace(trained(), starts=[started(0), started(1, 5)])])),
    ("ranks", run([replace(trained(), starts=[started(0), started(1, world=1)])])),
    ("ranks", run([replace(trained(), starts=[started(0), started(1, master="n1:29500")])])),
    ("ranks", run([replace(trained(), starts=[started(0), started(0, 1), started(1, 1)])])),
    ("ranks", run([trained(nodes=(0, 1, 2))])),
    ("worlds", restarted(ended=7.5)),
    ("rounds", run([trained(), trained(0, 1, at=2.0)])),
    ("rounds", run([trained(1), trained(0, at=2.0)])),
    ("charges", restarted(faults=())),
    ("charges", restarted(2, [FAIL, FAIL])),
    ("charges", restarted(0)),
    ("verdicts", run(nodes=[agent(0), agent(1, verdict=FAILED)])),
    ("causes", failed(rounds=[trained(succeeds=False, causes=[LATER])])),
    ("causes", failed(rounds=[trained(succeeds=False, causes=[CAUSE, EARLIER])])),
    ("causes", failed(nodes=[agent(0, 4, FAILED), agent(1, 4, FAILED)])),
    ("codes", run(nodes=[agent(0), agent(1, 3)])),
    ("explained", run([trained(succeeds=False)], [agent(0, 9, None), agent(1, 9, None)])),
    ("explained", failed(faults=[replace(FAIL, had_effect=False)])),
    ("losses", run(nodes=other_events(
        formed(), NodeEvent("MembershipChanged", JOB, 0, 0, 2.0, "no heartbeat", "n0"), finished(),
    ))),
    ("successes", run([trained(succeeds=False)])),
    ("successes", run(nodes=[agent(0, 3), agent(1, 3)])),
    ("successes", run(nodes=[agent(0), agent(1, is_success_sure=False)])),
    ("events", run(nodes=other_events(formed(attempt=1), finished()))),
    ("events", run(nodes=other_events(formed(world="1 nodes, rank 0 at n1:1"), finished()))),
    ("events", run(nodes=other_events(formed(1), formed(0), finished()))),
    ("events", run(nodes=other_events(formed()))),
    ("events", run(nodes=other_events(formed(), finished("failed")))),
    ("leftovers", run(leftovers=["process 7 (train.py)"])),
    ("leftovers", run(nodes=[agent(0, leftovers=["2 sockets"]), agent(1)])),
    ("leftovers", run(nodes=[agent(0, runs_workers=True), agent(1)])),
    ("output", run(outputs=[OutputRecord("rank 0", 5, 4)])),
    ("output", run(outputs=[OutputRecord("rank 0", 5, 5, problem="line 2 comes after 3 lines")])),
    ("output", run(outputs=[CUT], is_loss_shown=False)),
    ("records", run(
        [trained(ended=1.5, succeeds=False), trained(2, at=2.0, ended=9.0)],
        [], faults=[], keys=[f"/{JOB}/round/0/slot"],
    )),
    ("health", run(
        nodes=other_events(NodeEvent("WorkersStarted", JOB, 0, 0, 1.0), formed(), finished()),
        faults=[FaultRecord(FaultKind.UNHEALTHY, "n1", 0.1, 9.0)],
    )),
]  # fmt: skip


@pytest.mark.parametrize(("check", "wrong"), WRONG, ids=[name for name, _ in WRONG])
def test_what_is_wrong_with_a_run_is_found(check, wrong):
    assert check in {finding.partition(":")[0] for finding in find_faults(wrong)}


def test_every_check_finds_something():
    assert {name for name, _ in WRONG} == set(CHECKS)


@pytest.mark.parametrize(
    "fine",
    [
        run(outputs=[CUT], is_loss_shown=True),
        run(outputs=[CUT], is_loss_shown=None),
        run(nodes=[agent(0), agent(1, 114, None, events=())],
            faults=[FaultRecord(FaultKind.UNKILLABLE, "n1", 2.0)]),
        run(nodes=[agent(0), agent(1), AgentRecord("n2.0", "n2", 0.6, 6.5, 112, joined_at=5.5)]),
        failed(nodes=[agent(0, 3, FAILED), agent(1, 143, None, events=(), ends_by_itself=True)],
               faults=[FAIL, FaultRecord(FaultKind.SIGNAL, "n1", 2.0)]),
    ],
)  # fmt: skip
def test_what_the_documentation_excepts_is_not_found(fine):
    assert find_faults(fine) == []
