"""Workers that succeeded before others failed are in the verdict and in the reason of a restart."""

from __future__ import annotations

import pytest
from plaunch_membership import early_ends
from plaunch_membership.failures import FailureSummary, JobFailure
from plaunch_membership.records import RecordCodec, RecordError

GONE = JobFailure(0, 100.0, "rank 0 on host-a lost a peer: RuntimeError", is_consequence=True)
BUG = JobFailure(0, 100.0, "rank 0 on host-a failed: ValueError")
KEY = "job/0/settled/0"
codec = RecordCodec("simulated")


def read_back(record):
    return codec.decode(KEY, codec.encode(KEY, record))


def test_the_verdict_on_all_nodes_has_the_early_ends(settled):
    job, (first, second) = settled(2, max_restarts=0)
    second.agent.note_succeeded({1: 88.0, 2: 101.0})
    first.fail(BUG)
    job.have_verdict([first, second])
    line = f"rank 1 on {second.membership.identity.host} had ended with exit code 0, 12 s before"
    assert first.verdict.early_ends == second.verdict.early_ends == (line,)
    assert line not in first.verdict.reason


def test_the_reason_of_a_restart_for_a_lost_peer_has_the_early_ends(settled):
    job, (first, second) = settled(2, max_restarts=1)
    second.agent.note_succeeded({1: 88.0})
    first.fail(GONE)
    job.settle(first, second)
    host = second.membership.identity.host
    assert first.state.reason == (
        f"{GONE.summary}; rank 1 on {host} had ended with exit code 0, 12 s before; restart 1 of 1"
    )
    assert first.membership.part.succeeded == second.membership.part.succeeded == {}


def test_records_hold_the_earliest_ends():
    ended = {rank: 2000.0 - rank for rank in range(1500)}
    found = early_ends.from_record(read_back({"succeeded": early_ends.to_records(ended)}))
    assert found == {rank: ended[rank] for rank in range(476, 1500)}
    assert early_ends.from_record(read_back({})) == {}


@pytest.mark.parametrize("wrong", ["all", [{"rank": -1, "at": 5.0}], [{"rank": 1}], [[1, 5.0]]])
def test_invalid_records_are_rejected(wrong):
    with pytest.raises(RecordError):
        early_ends.from_record(read_back({"succeeded": wrong}))


def test_lines_of_other_nodes_are_bounded_and_cannot_control_a_terminal():
    said = ["\x1b[31m" + "x" * 1000] * 100
    lines = read_back(FailureSummary(early_ends=tuple(said)).to_record())
    found = FailureSummary.from_record(lines).early_ends
    assert len(found) == 16
    assert all(len(line) == 300 and "\x1b" not in line for line in found)
