"""The watches of several nodes with a shared store; each has its own clock."""

from __future__ import annotations

import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plaunch.agent import WorkerState
from plaunch.process import Held
from plaunch_hang.records import NodeActivity, NodeReport, dump_report, load_report
from plaunch_hang.stacks import StackFrame, StackGroup

from helpers.hangs import FILE, Node

LINES = ["1 rank: 5 (node-1) load_batch (train.py:6)", "3 ranks: 3-4, 6 step (train.py:10)"]
TITLE = "no worker of the job has moved for 1m45s"  # the last node repeats it
ALL_IN = 22  # samples: one to begin with, 20 within the timeout, one for the repeated reports
PIDS = [{3: 103}, {4: 104, 5: 105, 6: 106}, {7: 107}]


class Job:
    """Some nodes, watched or not, that take samples one after the other."""

    def __init__(self, *nodes, round_=0):
        self.texts = {}
        self.nodes = [
            None
            if options is None
            else Node(**options, pids=PIDS[n], host=f"node-{n}", texts=self.texts, node=n)
            for n, options in enumerate(nodes)
        ]
        self.watched = [node for node in self.nodes if node is not None]
        self.begin(round_)

    def begin(self, round_):
        for n, node in enumerate(self.nodes):
            if node is not None:
                node.control.round = round_
                node.extension.begin(round_, n, len(self.nodes))

    def sample(self, count=1, moving=()):
        for _ in range(count):
            for n in moving:
                self.nodes[n].move()
            for node in self.watched:
                node.sample()

    @property
    def said(self):
        return [node.control.said for node in self.watched]

    @property
    def reported(self):
        return [node.control.reported for node in self.watched]


@pytest.fixture
def make():
    jobs = []

    def call(*nodes, **options):
        jobs.append(Job(*nodes, **options))
        return jobs[-1]

    yield call
    for job in jobs:
        for node in job.watched:
            node.close()


def watch(action="warn", **options):
    return {"action": action, **options}


def test_a_hang_of_all_nodes_is_a_hang_of_the_job(make):
    """The node of the first rank of the smallest group logs it."""
    job = make(watch(), watch())
    job.sample(ALL_IN)
    assert job.said == [[], [f"{TITLE}:", *LINES]]
    job.sample()
    assert job.said[0] == [f"{TITLE}; node-1 logs where all ranks are"]
    job.sample(50)
    assert [len(said) for said in job.said] == [1, 3]
    assert job.reported == [[], []]


def test_each_node_keeps_its_stacks(make, tmp_path):
    job = make(watch(log_dir=str(tmp_path / "0")), watch(log_dir=str(tmp_path / "1")))
    job.sample(ALL_IN + 1)
    for n, own in enumerate((["rank_3.txt"], ["rank_4.txt", "rank_5.txt", "rank_6.txt"])):
        (folder,) = (tmp_path / str(n)).iterdir()
        assert job.said[n][-1] == f"whole stacks: {folder}"
        assert sorted(path.name for path in folder.iterdir()) == [*own, "summary.txt"]
        assert (folder / "summary.txt").read_text().splitlines()[1:] == LINES


@pytest.mark.parametrize(("action", "is_final"), [("restart", False), ("stop", True)])
def test_one_node_reports_it(make, action, is_final):
    job = make(watch(action), watch(action))
    job.sample(ALL_IN)
    text = f"{TITLE} (--hang-timeout): {LINES[0]}\n{LINES[1]}"
    assert job.reported == [[], [(5, text, is_final)]]


def test_the_next_node_reports_it_if_nothing_happened(make):
    job = make(watch("stop"), watch("stop"))
    job.sample(ALL_IN)
    job.sample(3)
    assert job.reported[0] == []
    job.sample()
    ((rank, text, is_final),) = job.reported[0]
    assert (rank, is_final) == (3, True)
    assert text.endswith(f"{LINES[1]}\n{LINES[0]}")  # its own place first
    job.sample(50)
    assert [len(found) for found in job.reported] == [1, 1]


def test_nothing_is_published_while_workers_move(make):
    job = make(watch(), watch())
    job.sample(200, moving=(0, 1))
    assert [len(node.control.published_here) for node in job.nodes] == [1, 1]
    assert job.said == [[], []]


def test_nodes_that_do_not_move_while_others_do_are_stragglers(make):
    job = make(watch("stop"), watch("stop"))
    job.sample(60, moving=(1,))
    title = "rank 3 has not moved for 1m40s, others have:"
    assert job.said == [[title, "1 rank: 3 step (train.py:10)"], []]
    job.sample(moving=(0, 1))
    assert job.said[0][2:] == ["rank 3 moves again"]
    assert job.reported == [[], []]


def test_stragglers_may_become_a_hang(make):
    job = make(watch("stop"), watch("stop"))
    job.sample(40, moving=(1,))
    job.sample(ALL_IN)
    assert [len(found) for found in job.reported] == [0, 1]


def test_pausing_nodes_do_not_count_as_moving(make):
    """They have not moved for more than a quarter of the timeout, so they may hang too."""
    job = make(watch(), watch())
    job.sample(15, moving=(1,))
    job.sample(19)
    assert job.said == [[], []]
    job.sample(2)
    assert job.said[1] == [f"{TITLE}:", *LINES]


def test_a_node_reports_that_it_moves_again(make):
    job = make(watch("stop"), watch("stop"))
    job.sample(10, moving=(1,))
    job.sample(18)
    job.nodes[0].move()
    job.sample(10)
    job.nodes[1].move()
    job.sample(16)
    assert job.reported == [[], []]
    job.sample(6)
    assert [len(found) for found in job.reported] == [0, 1]


def test_a_section_of_another_node_is_waited_for(make):
    job = make(watch("stop"), watch("stop"))
    job.nodes[0].extension._timeouts.of = lambda beat: 1000.0
    job.sample(100)
    assert job.said == [[], []]
    job.sample(moving=(0, 1))
    assert job.said == [[], []]
    assert job.reported == [[], []]


def test_a_worker_of_another_node_that_is_held_is_named_on_all_nodes(make):
    job = make(watch("stop"), watch("stop"))
    rank, *_ = job.nodes[0].control.pids
    control = job.nodes[0].control
    control.holds[rank] = Held("suspended", time.time(), control.pids[rank])
    job.sample(100)
    (reports,) = job.said[1]
    hold = rf"rank {rank} on \S+ is suspended since [\d:]{{8}}"
    assert re.fullmatch(f"no worker of this node has moved for long; {hold}", reports)
    assert re.match(hold, job.said[0][0])
    control.holds.clear()
    job.sample(moving=(0, 1))
    assert job.reported == [[], []]


def test_workers_of_another_node_that_have_ended_early_are_named(make):
    job = make(watch("warn"), watch("stop"))
    job.nodes[0].control.succeeded = {2: time.time() - 12}
    job.sample(ALL_IN)
    early = r"rank 2 on \S+ had ended with exit code 0, 1\d s before"
    assert re.fullmatch(early, job.said[1][-1])


def test_workers_that_have_ended_are_not_waited_for(make):
    job = make(watch("stop"), watch("stop"))
    job.sample()
    job.nodes[0].control.state = WorkerState.SUCCEEDED
    job.sample(ALL_IN)
    assert job.reported == [[], [(5, job.reported[1][0][1], True)]]
    assert "2 ranks: 4, 6" in job.reported[1][0][1]


def test_workers_that_are_stopped_are_not_sampled(make):
    job = make(watch("stop"), watch("stop"))
    job.sample()
    for node in job.nodes:
        node.control.state = WorkerState.STOPPED
    job.sample(100)
    assert [len(node.control.published_here) for node in job.nodes] == [1, 1]
    assert job.reported == [[], []]


def test_a_new_round_starts_over(make):
    """Reports of the previous round do not count; the new one may have other nodes."""
    job = make(watch("stop"), watch("stop"), None)
    job.sample(40)
    job.nodes.pop()
    job.begin(1)
    for node in job.nodes:
        node.control.said.clear()
        node.move()
    job.nodes[0].sample(50)  # while the other has not begun
    assert job.reported == [[], []]
    job.sample(ALL_IN)
    assert [len(found) for found in job.reported] == [0, 1]


def test_samples_of_the_previous_round_do_not_count(make):
    job = make(watch("stop"), watch("stop"))
    for n, node in enumerate(job.nodes):
        node.extension.begin(1, n, 2)  # the agent's own state follows
    job.sample(50)
    assert job.texts == {}
    assert job.reported == [[], []]


BLIND = (
    "a hang of the whole job cannot be detected, and --on-hang=stop has no effect: {}; "
    "give --hang-timeout to all nodes"
)


def test_a_node_that_does_not_watch(make):
    job = make(watch("stop"), watch("stop"), None)
    job.sample(39, moving=(0, 1))
    assert job.said == [[], []]
    job.sample(moving=(0, 1))
    text = BLIND.format("node 2 does not report its workers")
    assert job.said == [[text], []]
    job.sample(60)
    title = "no worker of this node has moved for"
    assert job.said[0][1:] == [f"{title} 2m5s:", "1 rank: 3 step (train.py:10)"]
    assert job.said[1][:2] == [text, f"{title} 2m5s:"]
    assert job.reported == [[], []]


def test_an_action_without_effect_is_a_warning(make):
    job = make(None, watch(), None)
    job.sample(60)
    assert job.said[0][0] == (
        "a hang of the whole job cannot be detected: nodes 0,2 do not report their "
        "workers; give --hang-timeout to all nodes"
    )


def test_a_rendezvous_without_a_job(make):
    job = make(watch("stop"), watch("stop"))
    job.nodes[0].control.is_job_wide = False
    for _ in range(40):
        job.nodes[0].sample()
    job.begin(1)
    for _ in range(40):
        job.nodes[0].sample()
    assert job.said[0] == [
        "a hang of the whole job cannot be detected, and --on-hang=stop has no effect: "
        "the nodes of this rendezvous cannot exchange reports",
        "no worker of this node has moved for 1m40s:",
        "1 rank: 3 step (train.py:10)",
    ]
    assert job.reported[0] == []
    assert job.texts == {}


def test_a_rendezvous_without_texts(make):
    job = make(watch("stop"), watch("stop"))
    control = job.nodes[0].control
    control.published = lambda name: None
    for _ in range(60):
        job.nodes[0].sample()
    assert control.said[0].startswith(BLIND.format("node 1 does not report its workers"))
    assert control.reported == []


def test_a_store_that_does_not_answer(make):
    job = make(watch("stop"), watch("stop"))
    job.sample()
    for node in job.nodes:
        node.control.can_reach_store = False
    job.sample(60)
    assert job.said == [[], []]
    for node in job.nodes:
        node.control.can_reach_store = True
    job.sample(2)
    assert [len(found) for found in job.reported] == [0, 1]


def test_reports_may_be_old(make):
    """The launcher of the node no longer runs, and its workers may have moved since."""
    job = make(watch("stop"), watch("stop"))
    job.sample(5, moving=(0,))
    job.sample(16)
    assert load_report(job.texts["id-1"]).state is NodeActivity.STILL
    for _ in range(30):
        job.nodes[0].sample()
    assert job.reported == [[], []]
    assert job.said[0][0] == BLIND.format("node 1 does not report its workers")


def test_a_node_may_be_lost_after_its_report(make):
    job = make(watch("stop"), watch("stop"))
    job.sample(21)
    del job.texts["id-1"]
    for _ in range(30):
        job.nodes[0].sample()
    assert job.reported == [[], []]


@pytest.mark.parametrize(
    "garbage", ["", "{", "[]", '{"version":2}', '{"version":1}', "null", "9" * 5000, "[" * 9999]
)
def test_invalid_reports_are_ignored(make, garbage):
    job = make(watch("stop"), None)
    job.texts["id-1"] = garbage
    job.sample(60)
    assert job.said[0][0].startswith(BLIND.format("node 1 does not report its workers"))
    assert job.reported == [[]]


def test_nodes_with_different_options(make):
    """The longest timeout and the mildest action apply."""
    job = make(watch("stop"), watch("warn", timeout=300.0))
    job.sample(50)
    assert job.reported == [[], []]
    job.sample(20)
    assert job.reported == [[], []]
    different = (
        "the nodes have different --hang-timeout or --on-hang: the longest timeout and the "
        "mildest action apply"
    )
    assert [said.count(different) for said in job.said] == [1, 1]
    assert "no worker of the job has moved for 5m5s:" in job.said[1]


def test_reports_of_many_nodes_are_read_less_often(make):
    job = make(watch(), *[None] * 999)
    reads = []
    control = job.nodes[0].control
    published = control.published
    control.published = lambda name: reads.append(name) or published(name)
    job.sample(21)
    before = len(reads)
    job.sample(100)
    assert len(reads) - before == 10 + 1  # every 50 s, and once to see who watches


# --- reports --------------------------------------------------------------------------------------

GROUP = StackGroup({"node-b": (3, 4)}, (StackFrame("step", FILE, 10),))
REPORT = NodeReport(7, 1, "node-b", NodeActivity.STILL, 3, 600.0, "stop", 612.5, [GROUP])


def test_a_report_is_serialized_and_parsed():
    assert load_report(dump_report(REPORT, 2)) == REPORT


def test_the_size_of_reports_is_limited():
    groups = [
        StackGroup(
            {"n" * 250: (rank,)}, tuple(StackFrame(f"f{rank}", "x" * 90, n) for n in range(40))
        )
        for rank in range(16)
    ]
    reports = REPORT._replace(host="h" * 9999, groups=groups)
    assert len(dump_report(reports, 2)) < 16 << 10
    assert len(dump_report(reports, 100_000)) < 3 << 10
    assert load_report(dump_report(reports, 100_000)).groups


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("version", 2),
        ("round", -1),
        ("round", 1.5),
        ("node", True),
        ("node", 1 << 60),
        ("state", "idle"),
        ("number", "1"),
        ("timeout", float("nan")),
        ("timeout", True),
        ("action", "cry"),
        ("action", ["stop"]),
        ("seconds", -1),
        ("seconds", "x"),
        ("seconds", float("inf")),
        ("groups", {}),
        ("groups", None),
    ],
)
def test_invalid_fields_of_reports(name, value):
    text = json.dumps({**json.loads(dump_report(REPORT, 2)), name: value})
    with pytest.raises(ValueError, match="not a report"):
        load_report(text)


def test_a_host_is_shown_on_a_terminal():
    reports = load_report(dump_report(REPORT._replace(host="a\x1b[1m"), 2))
    assert reports.host == "a\\x1b[1m"


# --- any history ----------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.sampled_from(["stay", "stay", "stay", "move", "sleep"]), min_size=2, max_size=2
            ),
            st.integers(1, 25),
        ),
        max_size=12,
    )
)
def test_any_history(history):
    """A hang is reported only if no worker moved for the timeout, and once while none moves."""
    job = Job(watch("stop"), watch("stop"))
    still = [0, 0]
    try:
        for moves, times in history:
            for _ in range(times):
                for n, move in enumerate(moves):
                    still[n] = 0 if move == "move" else still[n] + 1
                    if move == "move":
                        job.nodes[n].move()
                    if move != "sleep":  # else its launcher takes no sample
                        job.nodes[n].sample()
                    if any(job.reported):
                        assert min(still) >= 20
                        return
        job.sample(30)
        assert any(job.reported)
    finally:
        for node in job.watched:
            node.close()
