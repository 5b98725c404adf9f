"""Many nodes of one job over a real etcd, all of which fail at once with long reports."""

from __future__ import annotations

import json

import pytest
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch.rendezvous import NodeSettings, RendezvousParameters
from plaunch_membership.process_failures import to_job_failures
from plaunch_rendezvous_etcd.backend import create_etcd_handler

from helpers.calls import at_once
from helpers.waiting import wait_until

NODES = 20
WORKERS = 4
LINE = "é" * 60
STACK = f"Traceback (most recent call last):\n{f'  {LINE}' * 30}\n" * 50


def failure(rank):
    text = f"ValueError: batch {rank} is bad {LINE * 90}"
    stack = f"{STACK}{text}\nthe end of {rank}"
    message = {"message": text, "extraInfo": {"py_callstack": stack, "timestamp": "1"}}
    return ProcessFailure(
        rank % WORKERS,
        100 + rank,
        1,
        "",
        error_file_data={"message": message},
        host=f"host-{rank // WORKERS}",
        global_rank=rank,
        # The first failure of each node comes before all others, and is sent with all details.
        timestamp=1_800_000_000.0 + rank % WORKERS * 1000 + rank // WORKERS,
        last_lines=["ö" * 500] * 20,
    )


@pytest.fixture
def handlers(etcd_server, monkeypatch):
    """Handlers of nodes in one round, which wait for each other's reports on a slow machine too."""
    monkeypatch.setattr("plaunch_membership.node_reports._REPORT_TIMEOUT", 30.0)
    made = []
    for _ in range(NODES):
        params = RendezvousParameters(
            "etcd-v2",
            etcd_server.endpoint,
            "many-failures",
            NODES,
            NODES,
            keep_alive_interval="5",
        )
        handler = create_etcd_handler(params)
        handler.prepare(NodeSettings(local_world_size=WORKERS))
        made.append(handler)
    at_once(*(handler.next_rendezvous for handler in made))
    yield made
    for handler in made:
        handler.leave()


def test_all_nodes_get_the_verdict_with_all_details_of_the_first_cause(handlers):
    own = [
        {rank: failure(rank) for rank in range(WORKERS * node, WORKERS * (node + 1))}
        for node in range(NODES)
    ]
    for node, handler in enumerate(handlers):
        handler.report_failure(own[node])
    detail = to_job_failures(own[0])[0].detail
    assert 16 * len(json.dumps(detail)) > 1 << 20, "16 of these exceed the limit of a record"
    for handler in handlers:
        wait_until(handler.is_closed, "the job has a verdict")
    verdict = handlers[12].verdict
    assert {handler.verdict.first for handler in handlers} == {0}
    assert handlers[0].verdict.failures[0] is own[0][0]
    assert all(handler.verdict.failures[0] == verdict.failures[0] for handler in handlers[1:])
    report = str(
        ChildFailedError("train.py", verdict.failures, first=verdict.first, counted=verdict.counted)
    )
    assert report.startswith("train.py FAILED: rank 0 on host-0: ValueError: batch 0 is bad ")
    assert "the end of 0\n" in report
    assert report.count(LINE) > 60
    assert f"Other failures ({NODES * WORKERS - 1}):" in report
    assert "rank 76 (local rank 0) on host-19, pid 176" in report
    assert "rank 49 (local rank 1) on host-12, pid 149" in report
    assert "and 2 more: ranks 50-51\n" in report, "those of this node are known"
    assert "and 45 more: ranks 2-3,6-7,10-11," in report
