"""Stories of runs: outcome, causes, rounds, workers, times, and clocks."""

from __future__ import annotations

import itertools

import pytest
from plaunch.errors import UsageError
from plaunch_report.launches import align, choose_launch, choose_run, split_launches
from plaunch_report.summary import SummaryBuilder


def summary_of(runs, run_id=None, launch=None):
    event_files = runs.read()
    agents, number, count = choose_launch(choose_run(event_files.agents, run_id), launch)
    return SummaryBuilder(agents, event_files, number, count).create_summary()


@pytest.fixture
def elastic(runs):
    runs.elastic()
    return summary_of(runs)


def test_the_end(elastic):
    assert (elastic.run_id, elastic.outcome, elastic.exit_code) == ("job", "succeeded", 0)
    assert elastic.duration == pytest.approx(61)
    assert elastic.began == pytest.approx(1_800_000_000)
    assert elastic.first_cause.message == "ValueError: bad batch"
    assert elastic.final_cause is None, "the job went on"


def test_rounds_and_why_they_ended(elastic):
    found = [
        (item.number, item.attempt, item.world_size, item.hosts, item.ended_by)
        for item in elastic.rounds
    ]
    assert found == [
        (0, 0, 4, ["a", "b"], "failure: rank 3 failed"),
        (1, 1, 4, ["a", "b"], "membership: node c arrived"),
        (2, 1, 6, ["a", "b", "c"], ""),
    ]
    trained = [(round(item.trains_from), round(item.trains_until)) for item in elastic.rounds]
    assert trained == [(5, 20), (24, 40), (43, 60)]


def test_a_failure_recorded_by_several_nodes_is_one(elastic):
    [failure] = elastic.failures
    assert (failure.global_rank, failure.host, failure.pid, failure.round) == (3, "b", 10_003, 0)
    assert failure.who == "rank 3"
    assert failure.how == "exit code 1"
    assert failure.is_first
    # Node a recorded it first, with fewer details.
    assert failure.message == "ValueError: bad batch"
    assert failure.last_lines == "Traceback:\nValueError: bad batch"
    assert failure.told_by == [0, 1]


def test_lives_of_workers(elastic):
    fates = [(life.node, life.round, life.local_rank, life.state) for life in elastic.lives]
    assert len(fates) == 4 + 4 + 6
    assert [fate for fate in fates if fate[-1] == "failed"] == [(1, 0, 1, "failed")]
    assert fates.count((0, 0, 0, "stopped")) == 1
    assert all(fate == "succeeded" for _, number, _, fate in fates if number == 2)
    (failed,) = (life for life in elastic.lives if life.state == "failed")
    assert round(failed.end - failed.begin) == 15


def test_spans_have_no_gaps(elastic):
    for index, node in enumerate(elastic.nodes):
        spans = [span for span in elastic.spans if span.node == index]
        assert spans[0].begin == pytest.approx(node.begin)
        assert spans[-1].end == pytest.approx(node.end)
        for before, after in itertools.pairwise(spans):
            assert after.begin == before.end
        trained = sum(span.end - span.begin for span in spans if span.phase == "training")
        assert trained == pytest.approx(node.seconds["training"])


def test_accounts(elastic):
    seconds = {
        node.label: [round(node.seconds[name], 6) for name in ("training", "lost", "total")]
        for node in elastic.nodes
    }
    assert seconds == {"a": [48, 7, 61], "b": [48, 7, 60.5], "c": [17, 0, 23]}
    assert elastic.nodes[0].account == (
        "1 min 1 s: 4 s waiting for nodes, 2 s starting, 48 s training, 7 s lost to 2 restarts"
    )


def test_times_of_restarts(elastic):
    found = [
        (item.node, item.round, item.cause, round(item.time), [*item.seconds.values()])
        for item in elastic.restarts
    ]
    seconds = [0.5, 2.0, 1.0, 1.0, 4.5]
    assert found == [
        (0, 1, "failure", 24, seconds),
        (0, 2, "membership", 43, seconds),
        (1, 1, "failure", 24, seconds),
        (1, 2, "membership", 43, seconds),
    ]


def test_the_launchers_own_times_take_precedence(runs):
    agent = runs.agent("a").start(0)
    own = {f"seconds_{name}": 0.0 for name in ("waiting", "starting", "stopping", "lost")}
    agent.finish(9, "succeeded", 0, seconds_training=8.5, seconds_total=8.5, **own).write()
    [node] = summary_of(runs).nodes
    assert node.seconds["training"] == node.seconds["total"] == 8.5


def test_marks(elastic):
    found = {(mark.node, mark.kind, mark.text) for mark in elastic.marks}
    assert (0, "restart", "restart (failure): rank 3 failed") in found
    assert (1, "membership", "c arrived: it came late") in found
    assert [round(mark.time) for mark in elastic.marks] == sorted(
        round(mark.time) for mark in elastic.marks
    )


# --- clocks ---------------------------------------------------------------------------------------


def test_hosts_are_aligned_by_shared_rounds(elastic):
    """The hosts booted at different times, and the dates of two are wrong."""
    assert [round(node.begin, 6) for node in elastic.nodes] == [0, 0.5, 38]
    assert [round(node.end, 6) for node in elastic.nodes] == [61, 61, 61]
    assert [round(node.skew, 6) for node in elastic.nodes] == [0, 100, -7]
    assert any("b by +100.0 s, c by -7.0 s" in note for note in elastic.notes)
    assert any("aligned by the rounds" in note for note in elastic.notes)


def test_hosts_without_a_shared_round_are_aligned_through_a_third(runs):
    a = runs.agent("a", boot=10.0).start(0, 1)
    b = runs.agent("b", boot=20.0, ahead=50.0).start(0, 1)
    c = runs.agent("c", boot=30.0, ahead=-50.0).start(0, 1)
    a.join(1, 2, 3, round=0, world=2, nodes=2, rank=0).finish(5, "signalled", 143)
    b.join(1, 2, 3, round=0, world=2, nodes=2, rank=1)
    b.join(5, 6, 7, round=1, world=2, nodes=2, rank=0)
    c.join(5, 6, 7, round=1, world=2, nodes=2, rank=1)
    for agent in (b, c):
        agent.succeed(9, 9)
    for agent in (a, b, c):
        agent.write()
    agents = runs.read().agents
    assert len(split_launches(agents)) == 1
    offsets = {agent.host: clock.offset for agent, clock in zip(agents, align(agents), strict=True)}
    assert offsets["a"] - offsets["b"] == pytest.approx(10)
    assert offsets["b"] - offsets["c"] == pytest.approx(10)


def test_a_host_without_a_round_is_placed_by_its_date_and_noted(runs):
    runs.elastic()
    spare = runs.agent("d", boot=1.0).start(30)
    spare.finish(61, "not_needed", 0, "the job has enough nodes").write()
    summary = summary_of(runs)
    assert [node.label for node in summary.nodes] == ["a", "b", "c", "d"]
    assert summary.nodes[3].begin == pytest.approx(30)
    assert summary.nodes[3].skew is None
    assert any(note.startswith("d formed no round with others") for note in summary.notes)
    assert summary.outcome == "succeeded"


def test_agents_of_one_host_share_its_clock(runs):
    """Even if one of them noticed late that the round was complete, and one was a spare."""
    for rank, late in ((0, 0), (1, 0.25)):
        agent = runs.agent("a", 5 + rank, rank=rank).start(0, 1)
        agent.join(1, 2 + late, 3, round=0, world=2, nodes=2, rank=rank).finish(9, "succeeded", 0)
        agent.write()
    runs.agent("a", 7).start(1).finish(9, "not_needed", 0).write()
    summary = summary_of(runs)
    assert [node.begin for node in summary.nodes] == [0, 0, 1]
    assert [node.skew for node in summary.nodes] == [0, 0, 0]
    assert summary.notes == []


def test_setting_the_date_during_the_run_changes_nothing(runs):
    agent = runs.agent("a").start(0)
    agent.ahead = 3600.0
    agent.tell(5, "rendezvous.begun")
    agent.finish(9, "error", 111).write()
    assert summary_of(runs).duration == pytest.approx(9)


# --- how a job ended ------------------------------------------------------------------------------


def two_nodes(runs):
    agents = [runs.agent(host, rank=rank).start(0) for rank, host in enumerate("ab")]
    for rank, agent in enumerate(agents):
        agent.join(1, 2, 3, round=0, world=4, nodes=2, rank=rank)
    return agents


@pytest.mark.parametrize(
    ("ends", "outcome", "code"),
    [
        ([("succeeded", 0), ("succeeded", 0)], "succeeded", 0),
        ([("succeeded", 0), ("failed", 17)], "failed", 17),
        ([("error", 113), ("signalled", 143)], "error", 113),
        ([("closed", 112), ("signalled", 143)], "signalled", 143),
        ([("succeeded", 0), None], "succeeded", 0),  # one was killed, or its file was not copied
        ([None, None], "no end", None),
        ([("of a later version", 5), None], "of a later version", 5),
    ],
)
def test_the_outcome_of_several_nodes(runs, ends, outcome, code):
    for agent, end in zip(two_nodes(runs), ends, strict=True):
        if end is not None:
            agent.finish(9, *end)
        agent.write()
    summary = summary_of(runs)
    assert (summary.outcome, summary.exit_code) == (outcome, code)
    endless = [note for note in summary.notes if note.startswith("No end is recorded of")]
    assert len(endless) == (None in ends)


def test_a_node_that_left_before_the_last_round_does_not_decide(runs):
    a, b = two_nodes(runs)
    b.tell(5, "signal.received", signum=15, signal_name="SIGTERM", action="stop")
    b.finish(6, "signalled", 143).write()
    a.join(6, 7, 8, round=1, world=2, nodes=1, rank=0).succeed(9, 9).write()
    summary = summary_of(runs)
    assert summary.outcome == "succeeded"
    assert [node.outcome for node in summary.nodes] == ["succeeded", "signalled"]


def test_the_first_cause_and_the_final_cause(runs):
    agent = runs.agent("a").start(0)
    for attempt, cause in enumerate(("first try", "second try")):
        at = 10 * attempt
        agent.join(at, at + 1, at + 2, round=attempt, attempt=attempt, world=2, nodes=1, rank=0)
        for rank in (1, 0):
            agent.fail(
                at + 5, rank, rank, exit_code=-9, signal_name="SIGKILL", message=cause,
                is_first=rank == 0, last_lines=f"{cause} of {rank}",
            )  # fmt: skip
    agent.finish(20, "failed", 137).write()
    summary = summary_of(runs)
    assert summary.first_cause.last_lines == "first try of 0"
    assert summary.final_cause.last_lines == "second try of 0"
    assert summary.final_cause.how == "killed by SIGKILL"
    found = [(failure.attempt, failure.global_rank) for failure in summary.failures]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_restart_that_is_not_counted_is_another_round_of_the_same_attempt(runs):
    agent = runs.agent("a").start(0)
    for round_, cause in enumerate(("a hang", "a typing error")):
        at = 10 * round_
        agent.join(at, at + 1, at + 2, round=round_, attempt=0, world=2, nodes=1, rank=0)
        agent.fail(at + 5, 0, round_, message=cause, round=round_)
    agent.finish(20, "failed", 1).write()
    summary = summary_of(runs)
    assert (summary.first_cause.message, summary.final_cause.message) == (
        "a hang",
        "a typing error",
    )


def test_a_round_with_a_killed_launcher_ends_as_on_other_nodes(runs):
    a, b = two_nodes(runs)
    a.stop_all(40).finish(41, "failed", 1).write()
    b.tell(5, "signal.received", signal_name="SIGUSR1", action="notify").write()  # its last event
    (round_,) = summary_of(runs).rounds
    assert round_.trains_until == pytest.approx(41)


def test_a_round_without_a_recorded_end(runs):
    for at, agent in zip((5, 9), two_nodes(runs), strict=True):
        agent.tell(at, "signal.received", signal_name="SIGUSR1", action="notify").write()
    (round_,) = summary_of(runs).rounds
    assert round_.trains_until == pytest.approx(5)


def test_nodes_may_agree_on_another_first_cause(runs):
    a, b = two_nodes(runs)
    ours = {"rank": 0, "pid": 10, "failed_host": "a", "message": "ours"}
    theirs = {"rank": 2, "pid": 20, "failed_host": "b", "message": "theirs"}
    a.fail(5, **ours)
    b.fail(5.1, **theirs)
    a.fail(6, **theirs).fail(6, **ours, is_first=False)
    for agent in (a, b):
        agent.finish(7, "failed", 1).write()
    summary = summary_of(runs)
    assert summary.first_cause.message == summary.final_cause.message == "theirs"
    assert [failure.is_first for failure in summary.failures] == [True, False]


def test_a_request_is_marked(runs):
    agent = runs.agent("a").start(0).join(1, 2, 3, round=0, world=2, nodes=1, rank=0)
    agent.tell(4, "request.received", kind="stop", who="plugin 'x'", reason="enough")
    agent.finish(5, "signalled", 1).write()
    (mark,) = summary_of(runs).marks
    assert (mark.kind, mark.text, mark.time) == ("request", "stop (plugin 'x'): enough", 4)


def test_missing_agents_and_rounds_are_noted(runs):
    agent = runs.agent("b", rank=1)
    agent.workers = 2
    agent.join(50, 51, 52, round=3, world=6, nodes=3, rank=1).finish(60, "succeeded", 0).write()
    notes = summary_of(runs).notes
    assert any("of up to 2 of the nodes in round 3" in note for note in notes)
    assert "The rounds before round 3 are not in these files." in notes


def test_incomplete_files_are_noted(runs):
    path = runs.agent("a").start(0).finish(1, "succeeded", 0).write()
    path.write_text(path.read_text() + "x\n" + '{"name": "plau')
    notes = summary_of(runs).notes
    assert "1 file ends within a line, which was skipped." in notes
    assert "1 line is not an event of plaunch and skipped." in notes


def test_a_worker_without_an_end(runs):
    runs.agent("a").start(0).join(1, 2, 3, round=0, world=2, nodes=1, rank=0).write()
    summary = summary_of(runs)
    assert [life.state for life in summary.lives] == ["unknown"] * 2
    assert summary.outcome == "no end"


def test_labels_of_agents_of_one_host_are_unique(runs):
    for pid in (5, 6):
        agent = runs.agent("a", pid).start(0, 1)
        agent.join(1, 2, 3, round=0, world=2, nodes=2, rank=pid - 5).succeed(4, 5).write()
    assert [node.label for node in summary_of(runs).nodes] == ["a (5)", "a (6)"]


# --- several runs ---------------------------------------------------------------------------------


def test_a_run_is_chosen_by_its_id(runs):
    runs.agent("a", 1, run_id="one").start(0).finish(1, "succeeded", 0).write()
    runs.agent("a", 2, run_id="two").start(5).finish(6, "failed", 1).write()
    with pytest.raises(UsageError, match="there are 2 runs; choose with --run-id: 'one', 'two'"):
        summary_of(runs)
    assert summary_of(runs, "two").outcome == "failed"
    with pytest.raises(UsageError, match="there is no run 'three'; choose with --run-id: 'one'"):
        summary_of(runs, "three")


def test_a_run_id_that_is_used_again_is_another_launch(runs):
    """Both launches meet at the same address, port and round, an hour apart."""
    for shift, pid, outcome in ((0, 1, "failed"), (3600, 2, "succeeded")):
        for rank, host in enumerate("ab"):
            agent = runs.agent(host, pid, rank=rank).start(shift, 1)
            agent.join(shift + 1, shift + 2, shift + 3, round=0, world=2, nodes=2, rank=rank)
            agent.finish(shift + 9, outcome, 0).write()
    # A spare of the second launch, and an agent without a launch.
    runs.agent("c", 3).start(3604).finish(3608, "not_needed", 0).write()
    runs.agent("d", 4).start(7200).finish(7201, "error", 111).write()
    first, second, third = (summary_of(runs, launch=number) for number in (1, 2, 3))
    assert [node.label for node in first.nodes] == ["a", "b"]
    assert [node.label for node in second.nodes] == ["a", "b", "c"]
    assert [node.label for node in third.nodes] == ["d"]
    assert (first.outcome, second.outcome, third.outcome) == ("failed", "succeeded", "error")
    assert summary_of(runs).launch == 3
    assert any("launched 3 times; this is launch 2" in note for note in second.notes)
    with pytest.raises(UsageError, match="--launch=4: this run was launched 3 times"):
        summary_of(runs, launch=4)
