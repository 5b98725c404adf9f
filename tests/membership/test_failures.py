"""Records of jobs of any size can be written: of failures, of verdicts, and of worlds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plaunch.errors import RendezvousClosedError
from plaunch.rendezvous import JobOutcome
from plaunch_membership.failures import (
    MAX_GROUPS,
    MAX_LISTED,
    MAX_SPANS,
    FailureGroup,
    FailureSummary,
    JobFailure,
    early_ends_from_record,
    early_ends_to_records,
    merge,
    summarize,
)
from plaunch_membership.keys import entry, tickets
from plaunch_membership.operations import Add, Set
from plaunch_membership.records import RecordCodec, RecordError
from plaunch_membership.state import JobState, RecordedVerdict, describe_verdict, verdict_error
from plaunch_membership.transitions import end, first_state

LONG = "\x1b[31m" + "é" * 30_000  # as JSON, 180 kB
KEY = "job/0/state/1"
codec = RecordCodec("simulated")


def long_failure(rank, began=None, how="exit code 1"):
    detail = {"exit_code": 1, "message": LONG, "traceback": LONG, "last_lines": ["a", LONG]}
    at = 5.0 + rank if began is None else began
    return JobFailure(rank, at, f"rank {rank} failed", detail, how)


def record_of(fields):
    return codec.decode(KEY, codec.encode(KEY, fields))


def read_back(summary):
    return FailureSummary.from_record(record_of(summary.to_record()))


@pytest.mark.parametrize("count", [2, 18, 40])
def test_nodes_with_long_tracebacks_get_a_verdict(settled, count):
    job, nodes = settled(count, max_restarts=0)
    for rank, node in enumerate(nodes):
        node.agent.report([long_failure(rank)], is_final=False)
    job.have_verdict(nodes)
    verdict = nodes[0].verdict
    assert all(node.verdict == verdict for node in nodes)
    assert [failure.rank for failure in verdict.failures] == list(range(count))[:MAX_LISTED]
    assert sum(group.count for group in verdict.others) == max(count - MAX_LISTED, 0)
    assert verdict.failures[0].detail["traceback"] == "... " + LONG[-8192:]


def test_a_job_of_512_nodes_and_4096_failures_has_a_verdict():
    """Each node reports its own, as the leader reads them: the first in full, all are counted."""
    summary = summarize(())
    for node in range(511, -1, -1):
        ranks = range(8 * node, 8 * node + 8)
        hows = [f"exit code {1 + rank % 2}" for rank in ranks]
        others = [long_failure(rank, how=how) for rank, how in zip(ranks, hows, strict=True)][1:]
        others = [replace(failure, detail={"host": f"h{node}"}) for failure in others]
        report = summarize([long_failure(8 * node, how=hows[0]), *others])
        assert len(codec.encode(KEY, report.to_record())) < 750_000
        summary = merge([summary, read_back(report)])
    assert [failure.rank for failure in summary.failures] == list(range(MAX_LISTED))
    assert summary.failures[0] == summarize([long_failure(0)]).failures[0]
    assert [(group.how, group.count) for group in summary.groups] == [
        ("exit code 2", 2032),
        ("exit code 1", 2031),
    ]
    assert len(summary.groups[0].ranks) == MAX_SPANS  # every second rank is a range of its own
    verdict = RecordedVerdict(
        JobOutcome.FAILED, "h0", "x" * 9000, 7.0, summary.failures, summary.groups
    )
    state = end(first_state("h0~0"), verdict, by="h0~0")
    value = codec.encode(KEY, state.to_record())
    assert len(value) < 750_000
    assert JobState.from_record(codec.decode(KEY, value), state.version) == state


def test_the_largest_summary_is_bounded():
    """Also with characters outside the BMP, which take twelve bytes each."""
    wide = "\U0001f680" * 100_000
    detail = {"host": wide, "message": wide, "traceback": wide, "last_lines": [wide] * 99}
    failures = [
        JobFailure(2 * rank, 5.0 + rank, wide, detail, f"{rank % 20} {wide}")
        for rank in range(MAX_LISTED + 2000)
    ]
    summary = summarize(failures)
    assert len(codec.encode(KEY, summary.to_record())) < 750_000
    assert all(failure.detail["host"].endswith("\U0001f680") for failure in summary.failures)


def test_adjacent_ranks_are_one_range():
    summary = summarize([long_failure(rank) for rank in range(100)])
    (group,) = summary.groups
    assert (group.count, group.ranks) == (100 - MAX_LISTED, ((MAX_LISTED, 99),))
    more = merge([summary, FailureSummary(groups=(FailureGroup("exit code 1", 3, ((100, 102),)),))])
    assert more.groups == (FailureGroup("exit code 1", 103 - MAX_LISTED, ((MAX_LISTED, 102),)),)


def test_many_ways_to_end_are_counted():
    failures = [JobFailure(rank, 5.0, "", {}, f"exit code {rank}") for rank in range(200)]
    summary = read_back(summarize(failures))
    assert len(summary.groups) == MAX_GROUPS
    assert summary.groups[-1].how == "in other ways"
    assert len(summary.failures) + sum(group.count for group in summary.groups) == 200
    twice = merge([summary, summary])
    assert len(twice.failures) + sum(group.count for group in twice.groups) == 400


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | inner.map(lambda value: [[[[[[[[value]]]]]]]])
    ),
    max_leaves=8,
)
any_failures = st.lists(
    st.builds(
        JobFailure,
        st.integers(),
        st.floats(),
        st.text(),
        st.dictionaries(st.text(), plain, max_size=4),
        st.text(max_size=3),
    ),
    max_size=50,
)


@given(any_failures)
@settings(max_examples=50, deadline=None)
def test_any_failure_can_be_written_and_read(failures):
    summary = summarize(failures)
    assert read_back(summary) == summary
    assert merge([summary]) == summary, "what was cut is not cut once more"
    assert len(summary.failures) + sum(group.count for group in summary.groups) == len(failures)


def test_texts_and_lists_are_cut():
    strange = JobFailure(
        -7, math.nan, "a\x1b[2Jb\n" + "c" * 9000,
        {"number": 10**400, "inf": math.inf, "bytes": b"x", "many": ["x" * 99] * 9999, 3: "three"},
        "exit\ncode",
    )  # fmt: skip
    (found,) = summarize([strange]).failures
    assert (found.rank, found.how) == (-1, "exit\\ncode")
    assert found.summary.startswith("a\\x1b[2Jb\\ncc")
    assert len(found.summary) == 2000
    assert found.detail == {
        "number": None, "inf": None, "bytes": None, "many": ["x" * 99] * 40, "3": "three",
    }  # fmt: skip
    assert summarize([strange, long_failure(1)]).failures[0].rank == 1, (
        "an unknown time is never first"
    )
    assert (
        summarize([JobFailure(0, 1.0, "", dict.fromkeys(range(99_999)))]).failures[0].detail == {}
    )


def test_a_world_of_many_nodes_with_long_names(simulate):
    """Their names are 1.3 MB as JSON."""
    job = simulate(min_nodes=150, max_nodes=150)
    nodes = [job.add(host=f"{number:03}" + "\U0001f680" * 380) for number in range(150)]
    assert job.settle(*nodes) == list(range(150))
    job.kill(nodes[149])
    assert job.run(30.0, lambda: "lost" in [change.kind.value for change in nodes[0].received])
    assert nodes[149].membership.identity.host in nodes[0].received[0].node


class Narrow(RecordCodec):
    """Writes small records only."""

    def encode(self, key, record):
        value = super().encode(key, record)
        if len(value) > 5000:
            raise RecordError(f"{key} cannot be written: {len(value)} bytes")
        return value


class Garbler(RecordCodec):
    """Writes unreadable reports of failures."""

    def encode(self, key, record):
        return b"garbage" if "/settled" in key else super().encode(key, record)


@pytest.mark.parametrize(
    ("who", "said"),
    [(0, "it is written without its failures"), (1, "cannot be written")],
    ids=["verdict", "report"],
)
def test_a_failure_that_cannot_be_written_still_ends_the_job(settled, caplog, who, said):
    """Also with a smaller size limit: the other nodes learn that the job has failed."""
    job, nodes = settled(2, max_restarts=0)
    nodes[who].membership.codec = Narrow("simulated")
    nodes[1].agent.report([long_failure(1)], is_final=who == 1)
    job.have_verdict(nodes)
    assert {(n.verdict.outcome, n.verdict.reason) for n in nodes} == {("failed", "rank 1 failed")}
    assert who == 1 or nodes[1].verdict.failures == ()
    assert said in caplog.text


def test_an_unreadable_report_does_not_block_the_leader(settled, caplog):
    """Its node is alive and does not report again."""
    job, nodes = settled(3, max_restarts=0)
    nodes[2].membership.codec = Garbler("simulated")
    nodes[0].agent.report([long_failure(0)], is_final=False)
    news_of = [node.membership.news for node in nodes[:2]]
    assert job.run(10.0, lambda: all(news.verdict for news in news_of)), job.describe()
    assert [failure.rank for failure in news_of[1].verdict.failures] == [0]
    assert "a report of failures is rejected" in caplog.text


def test_the_leader_does_not_look_at_all_nodes_after_each_report(settled, monkeypatch):
    """With thousands of nodes, that would take it seconds."""
    job, nodes = settled(96, max_restarts=0)
    peers = job.leader.membership.peers
    looks = []
    monkeypatch.setattr(
        peers, "missing", lambda of: looks.append(of) or type(peers).missing(peers, of)
    )
    for node in nodes:  # one report after another
        node.agent.report([long_failure(node.state.version)], is_final=False)
        job.run(0.01)
    job.have_verdict(nodes)
    assert len(looks) < 8


def test_a_report_that_was_written_twice_counts_once(settled):
    job, nodes = settled(2, max_restarts=0)
    log = nodes[0].membership.keys.settled(0)
    report = {"node": nodes[1].name, "is_final": False, **summarize([long_failure(1)]).to_record()}
    for _ in range(2):
        ticket = Add(tickets(log)).run(job.store)
        Set(entry(log, ticket), codec.encode(entry(log, ticket), report)).run(job.store)
    nodes[0].agent.report([long_failure(0)], is_final=False)
    job.have_verdict(nodes)
    assert [failure.rank for failure in nodes[0].verdict.failures] == [0, 1]


def test_reasons_of_any_origin_are_bounded(settled):
    job, nodes = settled(2, min_nodes=1)
    nodes[1].agent.leave("\x1b" * (2 << 20))
    assert job.run(30.0, lambda: nodes[0].place and nodes[0].place.nodes == 1), job.describe()
    assert nodes[0].received[0].reason.startswith("\\x1b\\x1b")
    assert len(nodes[0].received[0].reason) <= 2000
    assert json.dumps(nodes[0].place.reason).isascii()
    assert "\x1b" not in nodes[0].place.reason


@pytest.mark.parametrize("time", [1e300, -1e300, 9e11, 10**400])
def test_a_verdict_with_any_time_can_be_described(time):
    verdict = RecordedVerdict(JobOutcome.FAILED, "h0", "rank 0 failed", 7.0)
    record = end(first_state("h0~0"), verdict, by="h0~0").to_record()
    record["verdict"]["time"] = time
    value = codec.encode(KEY, record)
    if time == 10**400:
        with pytest.raises(RecordError, match="too large"):
            JobState.from_record(codec.decode(KEY, value), record["version"])
        return
    found = JobState.from_record(codec.decode(KEY, value), record["version"]).verdict
    assert describe_verdict(found).startswith("it failed at ")
    assert isinstance(verdict_error("job", found), RendezvousClosedError)


# --- workers that had succeeded before others failed ----------------------------------------------

GONE = JobFailure(0, 100.0, "rank 0 on host-a lost a peer: RuntimeError", is_consequence=True)
BUG = JobFailure(0, 100.0, "rank 0 on host-a failed: ValueError")


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
        f"{GONE.summary}; rank 1 on {host} had ended with exit code 0, 12 s before"
    )
    assert first.state.decision == "restart 1 of 1"
    assert first.membership.part.succeeded == second.membership.part.succeeded == {}


def test_records_have_the_earliest_ends():
    ended = {rank: 2000.0 - rank for rank in range(1500)}
    found = early_ends_from_record(record_of({"succeeded": early_ends_to_records(ended)}))
    assert found == {rank: ended[rank] for rank in range(476, 1500)}
    assert early_ends_from_record(record_of({})) == {}


@pytest.mark.parametrize("wrong", ["all", [{"rank": -1, "at": 5.0}], [{"rank": 1}], [[1, 5.0]]])
def test_invalid_early_ends_are_rejected(wrong):
    with pytest.raises(RecordError):
        early_ends_from_record(record_of({"succeeded": wrong}))


def test_lines_about_early_ends_are_bounded_and_cannot_control_a_terminal():
    said = ["\x1b[31m" + "x" * 1000] * 100
    found = read_back(FailureSummary(early_ends=tuple(said))).early_ends
    assert len(found) == 16
    assert all(len(line) == 300 and "\x1b" not in line for line in found)
