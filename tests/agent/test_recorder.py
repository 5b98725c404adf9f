"""torchrun's events, made from an agent's moments."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from plaunch.agent import GroupInfo, RunResult, WorkerExit, WorkerInfo, WorkerState, moments
from plaunch.agent.recorder import EventRecorder
from plaunch.events import Event, EventSource

WORKER = WorkerInfo(
    local_rank=1, global_rank=3, role_rank=2, world_size=6, role_world_size=5, pid=77
)
GROUP = GroupInfo(
    run_id="job",
    role="trainer",
    state=WorkerState.HEALTHY,
    attempt=2,
    round=4,
    max_restarts=3,
    group_rank=1,
    group_world_size=3,
    master_addr="node0",
    master_port=29500,
    workers=(WORKER, replace(WORKER, local_rank=2, global_rank=4, pid=78)),
)


class Handler:
    def __init__(self):
        self.events = []
        self.closed = 0

    def handle(self, event):
        self.events.append(event)

    def close(self):
        self.closed += 1


@pytest.fixture
def handler():
    return Handler()


@pytest.fixture
def record(handler):
    return EventRecorder(handler, "static", "train.py")


def test_the_order_of_a_good_run_is_torchruns(handler, record):
    record(moments.BeforeRendezvous(GROUP))
    record(moments.AfterRendezvous(GROUP, duration=0.25))
    record(moments.WorkersStarted(GROUP))
    record(moments.StateChanged(GROUP, WorkerState.INIT, WorkerState.HEALTHY))
    for worker in GROUP.workers:
        record(moments.WorkerExited(GROUP, WorkerExit(worker, exitcode=0, stopped=False)))
    record(moments.AgentFinished(GROUP, RunResult(WorkerState.SUCCEEDED)))
    told = [
        (event.name.rpartition(".")[2], event.source, event.metadata["global_rank"])
        for event in handler.events
    ]
    agent, worker = EventSource.AGENT, EventSource.WORKER
    assert told == [
        ("RENDEZVOUS", agent, None),
        ("START", worker, 3),
        ("START", worker, 4),
        ("SUCCEEDED", worker, 3),
        ("SUCCEEDED", worker, 4),
        ("SUCCEEDED", agent, None),
    ]
    assert handler.events[0].metadata["duration_ms"] == 250
    assert handler.closed == 1


def test_metadata_are_plain_values_under_torchruns_keys(handler, record):
    before = time.time()
    record(moments.WorkerExited(GROUP, WorkerExit(WORKER, exitcode=-9, stopped=False)))
    (event,) = handler.events
    assert event.name == "torchelastic.worker.status.FAILED"
    assert before <= event.timestamp <= time.time()
    told = dict(event.metadata)
    assert told.pop("hostname")
    assert told.pop("total_run_time") >= 0
    assert told == {
        "run_id": "job",
        "global_rank": 3,
        "group_rank": 1,
        "worker_id": "77",
        "role": "trainer",
        "state": "FAILED",
        "rdzv_backend": "static",
        "raw_error": None,
        "agent_restarts": 2,
        "duration_ms": None,
        "round": 4,
        "group_world_size": 3,
        "entry_point": "train.py",
        "local_rank": 1,
        "role_rank": 2,
        "role_world_size": 5,
        "exit_code": -9,
        "worker_pid": 77,
    }
    assert Event.deserialize(event.serialize()) == event


def test_a_worker_that_the_agent_ended_was_terminated(handler, record):
    record(moments.WorkerExited(GROUP, WorkerExit(WORKER, exitcode=-15, stopped=True)))
    assert handler.events[0].metadata["state"] == "TERMINATED"


def test_an_agent_without_a_result_has_failed(handler, record):
    record(moments.AgentFinished(GROUP, None))
    assert handler.events[0].metadata["state"] == "FAILED"


def test_a_handler_that_fails_is_named_once_and_left_alone(caplog):
    class Broken:
        calls = 0

        def handle(self, event):
            self.calls += 1
            raise OSError("disk full")

        def close(self):
            raise OSError("still full")

    handler = Broken()
    record = EventRecorder(handler, "static", "train.py")
    for _ in range(3):
        record(moments.WorkersStarted(GROUP))
    record(moments.AgentFinished(GROUP, None))
    assert handler.calls == 1
    assert caplog.text.count("disk full") == 1


def test_a_handler_that_cannot_close_does_not_harm_the_job(handler, record, caplog):
    def close():
        raise OSError("disk full")

    handler.close = close
    record(moments.AgentFinished(GROUP, None))
    assert "failed to close" in caplog.text
