"""Records of runs, from what workers and agents have noted."""

from __future__ import annotations

import base64
import json
import os
import urllib.request

import pytest
from fault_injection.observations import (
    Observations,
    WorkerSettings,
    output_records,
    processes_with,
    read_etcd_keys,
    read_lines,
    written_lines,
)
from plaunch_rendezvous_etcd.testing import EtcdServer
from plaunch_testing.simulation.record import AgentRecord, FirstFailure

from helpers.machine_parts import need
from helpers.programs import running_python

GONE = 2**22 + 1  # above all process ids
JOB = "the incarnation"
NAMES = {10: ("n0.0", "n0"), 11: ("n1.0", "n1")}


def entry(event, rank, at, round_=0, world=2, attempt=0, pid=GONE, **facts):
    worker = {"rank": rank, "local_rank": 0, "round": round_, "attempt": attempt, "world": world}
    known = {"master": "n0:1", "pid": pid + rank, "agent": 10 + rank, "forked": False}
    return {**worker, **known, "event": event, "at": at, **facts}


def lasting(rank, at, **facts):
    """Return what a worker notes that succeeds."""
    return [
        entry("start", rank, at, **facts),
        entry("wrote", rank, at + 0.1, lines=3, **facts),
        entry("last", rank, at + 1.0, **facts),
    ]


def record(agent, event, **facts):
    return {"agent": agent, "event": event, "at": 1.0, **facts}


def formed(agent, round_=0, attempt=0):
    return record(agent, "round", round=round_, attempt=attempt, incarnation=JOB)


def observe(folder, ledger, records=(), events=None, injected=()):
    for name, lines in (("ledger", ledger), ("records", records)):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    logs = folder / "logs" / "run" / "events"
    logs.mkdir(parents=True)
    for agent, lines in (events or {}).items():
        text = [
            json.dumps({
                "name": f"plaunch.{name}", "timestamp": at,
                "metadata": {"agent_pid": agent, "round": 0, "attempt": 0, **facts},
            })
            for name, at, facts in lines
        ]  # fmt: skip
        (logs / f"vm-{agent}.jsonl").write_text("\n".join(text) + "\n")
    log = logs.parent / "chaos-vm-1.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in injected))
    return Observations(folder)


def test_a_round_that_has_succeeded(tmp_path):
    seen = observe(tmp_path, [*lasting(0, 1.0), *lasting(1, 2.0)], [formed(10), formed(11)])
    [one] = seen.rounds(NAMES)
    assert (one.incarnation, one.number, one.attempt) == (JOB, 0, 0)
    assert (one.completed_at, one.finished_at, one.has_succeeded) == (2.0, 3.0, True)
    assert [(w.rank, w.node, w.host) for w in one.starts] == [(0, "n0.0", "n0"), (1, "n1.0", "n1")]
    assert set(one.ends) == {"n0.0", "n1.0"}
    assert one.causes == []


def test_a_worker_that_runs_has_not_ended(tmp_path):
    running = entry("start", 0, 1.0, world=1, pid=os.getpid())
    seen = observe(tmp_path, [running])
    assert seen.look() == [running]
    [one] = seen.rounds(NAMES)
    assert (one.ends, one.has_succeeded) == ({}, False)


def test_causes_in_their_order(tmp_path):
    """Those soon after another one may not be reported."""
    seen = observe(
        tmp_path,
        [entry("start", 0, 1.0), entry("start", 1, 1.0), entry("exit", 1, 20.0, code=3)],
        [formed(10), formed(11), record(10, "hang", rank=0, round=0, attempt=0) | {"at": 21.0}],
        injected=[
            {"timestamp": 40.0, "agent_pid": 10, "rank": 0, "pid": GONE, "round": 0, "attempt": 0,
             "is_done": True, "fault": "kill:rank=0,signal=SIGSEGV,step-file=x"},
        ],
    )  # fmt: skip
    [one] = seen.rounds(NAMES)
    causes = [
        (each.at, each.host, each.rank, each.exitcode, each.is_certain) for each in one.causes
    ]
    assert causes == [
        (20.0, "n1", 1, 3, True), (21.0, "n0", 0, 116, False), (40.0, "n0", 0, -11, True),
    ]  # fmt: skip
    [one] = seen.rounds(NAMES, others=[39.0])
    assert not one.causes[-1].is_certain


def test_a_worker_that_a_test_has_killed(tmp_path):
    seen = observe(tmp_path, [entry("start", 0, 1.0, world=1)])
    seen.note_kill(seen.ledger()[0], -9)
    [one] = seen.rounds(NAMES)
    assert [(each.rank, each.exitcode) for each in one.causes] == [(0, -9)]


def test_what_an_agent_says(tmp_path):
    world = {"group_world_size": 2, "master_addr": "n0", "master_port": 1}
    lost = {"kind": "lost", "node": "n1", "reason": "no heartbeat"}
    end = record(
        10, "end", threads=["a"], sockets=["a socket"], load=1.0, incarnation=JOB, round=1,
        verdict=["failed", "why", "", "n0", 0], first=[0, 3, 4.0, False],
    )  # fmt: skip
    seen = observe(
        tmp_path,
        lasting(0, 1.0),
        [formed(10), formed(10, 1), end],
        {10: [
            ("rendezvous.completed", 1.0, world),
            ("membership.changed", 2.0, lost),
            ("signal.received", 2.5, {"action": "stop"}),
            ("restart", 3.0, {"reason": "why", "decision": "again"}),
            ("rendezvous.completed", 3.0, {**world, "round": 1}),
            ("launcher.finished", 4.0, {"outcome": "failed"}),
        ]},
    )  # fmt: skip
    agent = AgentRecord("n0.0", "n0", 0.5)
    seen.complete(agent, 10, seen.rounds(NAMES))
    names = [(event.name, event.round, event.told, event.lost) for event in agent.events]
    assert names == [
        ("AfterRendezvous", 0, "", ""),
        ("MembershipChanged", 0, "no heartbeat", "n1"),
        ("AfterRendezvous", 1, "why; again", ""),
        ("AgentFinished", 0, "failed", ""),
    ]
    assert agent.verdict is not None
    assert agent.verdict.first == FirstFailure(0, 3, 4.0, False)
    assert (agent.incarnation, agent.last_round) == (JOB, 1)
    assert agent.leftovers == ["the threads a", "a socket"]
    assert (agent.has_failed, agent.is_asked_to_end, agent.is_success_sure) == (True, True, True)


# --- output ---------------------------------------------------------------------------------------

LINES = ["[node0] L 0 0 7 0 ", "[node0] L 0 0 7 1 x", "[node0] L 0 0 7 2 last"]
WROTE = {(0, 0, 7): (3, 10)}


def output(lines, wrote=WROTE, agents=(), nodes=(), **facts):
    delivered = read_lines(lines, **{"is_mixed": False, "may_be_cut": False, **facts})
    return output_records(delivered, wrote, agents, nodes)


def test_lines_that_have_all_arrived():
    [one] = output(LINES)
    assert (one.wrote, one.shown, one.problem) == (3, 3, "")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([*LINES, LINES[-1]], "line 2 comes after 3"),
        (LINES[::-1], "line 2 comes after 0"),
        ([*LINES, "plaunch: done"], "no worker has written"),
        ([*LINES, "[node0] L 0 0"], "no worker has written"),
    ],
)
def test_wrong_lines(lines, problem):
    assert any(problem in one.problem for one in output(lines))


@pytest.mark.parametrize(
    ("facts", "may_be_cut"),
    [
        ({}, False),
        ({"agents": [10]}, True),
        ({"agents": [11]}, False),
        ({"nodes": ["node0"]}, True),
        ({"nodes": ["node1"]}, False),
        ({"nodes": ["*"]}, True),
    ],
)
def test_lines_that_are_missing(facts, may_be_cut):
    [one] = output(LINES[:2], **facts)
    assert (one.wrote, one.shown, one.may_be_cut) == (3, 2, may_be_cut)


def test_a_line_that_was_cut_by_a_fault():
    assert all(not one.problem for one in output([*LINES, "[node0] L 0 0"], may_be_cut=True))


def test_other_lines_between_those_of_workers():
    assert all(not one.problem for one in output([*LINES, "plaunch: done"], is_mixed=True))


def test_what_workers_have_written():
    ledger = [entry("wrote", 0, 1.0, lines=2), entry("wrote", 0, 1.0, lines=3)]
    assert written_lines(ledger) == {(0, 0, GONE): (3, 10)}


# --- stores and processes -------------------------------------------------------------------------


def test_processes_of_a_job_are_found():
    env = {**os.environ, "PLAUNCH_TEST_JOB": "observed-7."}
    with running_python("-c", "input()", env=env) as process:
        assert process.pid in processes_with(b"PLAUNCH_TEST_JOB=observed-7.")
    assert not processes_with(b"PLAUNCH_TEST_JOB=observed-7.")


def test_settings_of_workers_are_an_argument():
    settings = json.loads(WorkerSettings(5, node="n1").to_argument())
    assert (settings["lines"], settings["node"], settings["meets"]) == (5, "n1", False)


def test_keys_of_an_etcd_server():
    need("etcd")
    with EtcdServer() as server:
        assert read_etcd_keys(server.endpoint) == []
        body = json.dumps({"key": base64.b64encode(b"/a/key").decode(), "value": ""}).encode()
        with urllib.request.urlopen(f"http://{server.endpoint}/v3/kv/put", body, timeout=30):
            pass
        assert read_etcd_keys(server.endpoint) == ["/a/key"]
    assert read_etcd_keys(server.endpoint) == []
