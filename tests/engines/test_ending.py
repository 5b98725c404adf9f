"""The end of a job on an engine is what the table in docs/engines.md says, for all combinations."""

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from plaunch.errors import PlaunchError
from plaunch.rendezvous import JobOutcome
from plaunch_engines.ending import AgentFailure, CommandFacts, NodeFacts, conclude, is_over
from plaunch_engines.errors import CommandSuspendedError

ENGINES = Path(__file__).parents[2] / "docs/engines.md"
LAST = {"round": 1, "size": 3, "has_ended": True, "ended_at": 5.0}
BEFORE = {**LAST, "round": 0}
FAILED = AgentFailure(text="exit 3", code=3, reported_at=5.0)
SILENCED = AgentFailure(text="nothing came", code=117, is_consequence=True, reported_at=5.0)
MISSES = AgentFailure(text="lost touch", code=113, is_consequence=True, reported_at=5.0)

# What may be known of a node. In each, its agent has ended.
NODES = {
    "succeeded": {**LAST, "code": 0, "has_succeeded": True},
    "succeeded, has read it": {
        **LAST, "code": 0, "has_succeeded": True, "verdict": JobOutcome.SUCCEEDED,
    },
    "spare, has read it": {
        "has_ended": True, "ended_at": 5.0, "code": 0, "verdict": JobOutcome.SUCCEEDED,
    },
    "spare, not needed": {"has_ended": True, "ended_at": 5.0, "code": 0},
    "failed": {**LAST, "code": 3, "failure": FAILED},
    "failed, has read it": {**LAST, "code": 3, "failure": FAILED, "verdict": JobOutcome.FAILED},
    "misses the store": {**LAST, "code": 113, "failure": MISSES},
    "stopped on request": {**LAST, "code": 143, "verdict": JobOutcome.STOPPED},
    "ended there": {**LAST, "code": 143},
    "excluded": {**BEFORE, "code": 115},
    "lost": LAST,
    "lost before": BEFORE,
    "succeeded before": {**BEFORE, "code": 0, "has_succeeded": True},
    "replaced": {**BEFORE, "is_replaced": True},
    "silenced": {**LAST, "code": 117, "failure": SILENCED},
    "never joined": {"has_ended": True, "ended_at": 5.0, "has_begun": False},
}  # fmt: skip
GAVE_UP, SUSPENDED = PlaunchError("too few"), CommandSuspendedError("for 55 s")
COMMANDS = {
    "nothing": CommandFacts(),
    "signal, before": CommandFacts(signum=2, signalled_at=1.0),
    "signal, after": CommandFacts(signum=2, signalled_at=9.0),
    "gave up": CommandFacts(error=GAVE_UP, error_at=5.0, error_code=111),
    "signal, then gave up": CommandFacts(
        signum=2, signalled_at=1.0, error=GAVE_UP, error_at=5.0, error_code=111
    ),
    "suspended": CommandFacts(error=SUSPENDED, error_at=3.0, error_code=117),
    "signal, before it was suspended": CommandFacts(
        signum=2, signalled_at=1.0, error=SUSPENDED, error_at=3.0, error_code=117
    ),
    "suspended; signal, after": CommandFacts(
        signum=2, signalled_at=9.0, error=SUSPENDED, error_at=3.0, error_code=117
    ),
    "gave up, then signal": CommandFacts(
        signum=2, signalled_at=9.0, error=GAVE_UP, error_at=5.0, error_code=111
    ),
}


def table():
    """The rows of the documentation: whether the first of several counts, and what is known."""
    text = ENGINES.read_text().partition("<!-- table: ending -->")[2]
    rows = re.findall(r"^\| (later)? ?\| ([^|]+) \| ([^|]+) \|$", text.split("\n\n", 2)[1], re.M)
    return [(bool(later), what) for later, what, _ in rows if what != "what is known"]


def have(kinds, *wanted):
    return [kind for kind in kinds if any(kind.startswith(each) for each in wanted)]


def find_success(kinds, command, missing):
    """Whether the nodes that were in the last round have all succeeded, `missing` others too."""
    members = [kind for kind in kinds if NODES[kind].get("round") == 1]
    if not members:  # the last round is the one before
        members = [kind for kind in kinds if NODES[kind].get("round") == 0]
    return bool(members) and not missing and all("succeeded" in kind for kind in members)


# For each row: when what it describes began, or None; and the exit code.
ROWS = {
    "a node has read in the job's own record": lambda kinds, command, missing: (
        (0, 0) if have(kinds, "succeeded, has", "spare, has") else None
    ),
    "as many nodes as there were in the last round": lambda kinds, command, missing: (
        (0, 0) if find_success(kinds, command, missing) else None
    ),
    "a node reports a failure that no loss": lambda kinds, command, missing: (
        (0, 3) if have(kinds, "failed") else None
    ),
    "the command got a stop signal": lambda kinds, command, missing: (
        (1 if "signal, before" in command or "signal, then" in command else 9, 130)
        if "signal" in command
        else None
    ),
    "the command was suspended": lambda kinds, command, missing: (
        (3, 117) if "suspended" in command else None
    ),
    "nodes could not be started, or too few": lambda kinds, command, missing: (
        (5, 111) if "gave up" in command else None
    ),
    "a node reports that it misses": lambda kinds, command, missing: (
        (5, 113) if have(kinds, "misses") else None
    ),
    "an agent was ended on its node": lambda kinds, command, missing: (
        (0, 143) if have(kinds, "ended there", "stopped") else None
    ),
    "no agent has reported anything": lambda kinds, command, missing: (0, 111),
}  # fmt: skip


def expected(kinds, command, missing):
    later = []
    for is_later, what in table():
        [find] = [rule for begin, rule in ROWS.items() if what.startswith(begin)]
        found = find(kinds, command, missing)
        if not is_later and later:
            break
        if found is None:
            continue
        if not is_later:
            return found[1]
        later.append(found)
    return min(later, key=lambda one: one[0])[1]


def facts_of(kinds, missing=0):
    """Return nodes of those kinds; the rounds have as many nodes as they say, and `missing`."""
    sizes = {
        number: sum(NODES[kind].get("round") == number for kind in kinds) + missing
        for number in (0, 1)
    }
    return [
        replace(
            NodeFacts(name=f"node{i}", **NODES[kind]), size=sizes.get(NODES[kind].get("round"), 0)
        )
        for i, kind in enumerate(kinds)
    ]


def test_the_table_is_found():
    assert len(table()) == len(ROWS)


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("command", COMMANDS)
def test_all_combinations_of_three_nodes(command, missing):
    """With `missing`, the last round has a node whose report of that round has not arrived."""
    for kinds in itertools.combinations_with_replacement(NODES, 3):
        for order in {kinds, kinds[::-1]}:
            ending = conclude(facts_of(order, missing), COMMANDS[command])
            assert ending.code == expected(order, command, missing), (order, command)


def test_a_loss_before_a_signal_that_breaks_the_store_decides():
    """The store was lost with its node, before somebody has lost patience."""
    lost = replace(NodeFacts(name="node0", end="node0 is lost", **LAST), ended_at=2.0)
    misses = replace(MISSES, reported_at=8.0)
    other = NodeFacts(name="node1", **{**LAST, "code": 113, "failure": misses})
    ending = conclude([lost, other], CommandFacts(signum=2, signalled_at=4.0))
    assert ending.code == 113
    assert [node.end for node in ending.lost] == ["node0 is lost"]


def test_agents_that_count_their_own_rounds_need_as_many_successes_as_the_newest_had_nodes():
    own = {**LAST, "round": 0, "code": 0, "has_succeeded": True}
    first = NodeFacts(name="node0", **{**own, "size": 3, "round_at": 1.0})
    second = NodeFacts(name="node1", **{**own, "size": 2, "round_at": 4.0})
    lost = NodeFacts(name="node2", **{**LAST, "round": 0, "size": 3, "round_at": 1.0})
    assert conclude([first, second, lost], CommandFacts()).code == 0
    assert conclude([replace(second, size=3), first, lost], CommandFacts()).code == 111


def test_an_error_that_ends_one_node_is_preferred_to_what_others_miss():
    others = [
        NodeFacts(name=f"node{i}", **{**LAST, "code": 113, "failure": MISSES}) for i in range(2)
    ]
    failed = NodeFacts(name="node2", **NODES["failed"])
    assert conclude([*others, failed], CommandFacts()).failure is FAILED


@pytest.mark.parametrize(
    ("kind", "over"),
    [
        *((kind, True) for kind in NODES if kind.startswith(("failed", "succeeded", "spare"))),
        ("misses the store", True), ("stopped on request", True),
        ("ended there", False), ("excluded", False), ("lost", False), ("never joined", False),
    ],
)  # fmt: skip
def test_what_makes_other_nodes_useless(kind, over):
    assert is_over(facts_of([kind])) is over


def test_a_node_that_still_runs_is_no_loss():
    node = NodeFacts(name="node0", round=0, size=1)
    assert (node.is_lost, node.has_left, node.ended_at) == (False, False, math.inf)
