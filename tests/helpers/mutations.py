"""Reads randomly changed records with all their readers, up to the text of the report.

A finding is an exception that is not `RendezvousStateError`, a text that could disturb a terminal,
one that is too long, or a record that was read and cannot be written and read again. From the root
of the repository, a million of them take about a quarter of an hour of one processor:

    PYTHONPATH=tests nice python -m helpers.mutations 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import re
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace

from plaunch.errors import RendezvousStateError
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch.rendezvous import JobOutcome, world_ranks
from plaunch_events.schema import failure_metadata as failure_event
from plaunch_membership import transitions
from plaunch_membership.failures import FailureGroup, FailureSummary, merge, summarize
from plaunch_membership.node import NodeRecord
from plaunch_membership.operations import Add, CompareSet, MultiGet, Sleep, Wait
from plaunch_membership.placement import place
from plaunch_membership.process_failures import describe_groups, from_job_failures, to_job_failures
from plaunch_membership.records import PROTOCOL_VERSION, RecordCodec
from plaunch_membership.shared_log import SharedLogReader
from plaunch_membership.state import (
    JobEvent,
    JobEventKind,
    JobPhase,
    JobState,
    RecordedVerdict,
    World,
    describe_verdict,
    verdict_error,
)

RUN_ID = "fuzzed"
MAX_REPORT = 200_000  # characters
MAX_MESSAGE = 6000

_KEY = "plaunch/fuzzed/i1/state/7"
_codec = RecordCodec(RUN_ID)
# All but a line feed and a tabulator, which a report may have.
_DISTURBING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_STACK = 'Traceback (most recent call last):\n  File "a.py", line 1\nValueError: bäd'


class Finding(AssertionError):
    """A result that no record may cause."""


# --- changed records ------------------------------------------------------------------------------


def _failure(rank, *, reply):
    message = {
        "message": "ValueError: bäd",
        "extraInfo": {"py_callstack": _STACK, "timestamp": "1700000000"},
    }
    return ProcessFailure(
        rank % 8,
        40 + rank,
        1 if reply else -9,
        "/logs/error.json" if reply else "",
        error_file_data={"message": message} if reply else {},
        host=f"h{rank // 8}",
        timestamp=1_700_000_000.0 + rank,
        log_files=["/logs/stdout.log", "/logs/stderr.log"] if reply else [],
        last_lines=["one", "two \x1b[31mred\x1b[0m", "three"],
    )


def _told(ranks):
    return summarize(to_job_failures({rank: _failure(rank, reply=rank % 2 == 0) for rank in ranks}))


def _states():
    began = transitions.first_state("h0~0")
    world = World(0, 0, 2, "10.0.0.1", 29500)
    running = replace(
        began, version=5, phase=JobPhase.RUNNING, world=world, reason="node h1 arrived",
        event=JobEvent(JobEventKind.FORMED, "h0~0", "", "h0~0#4"),
    )  # fmt: skip
    settling = transitions.fail(running, "h1~1", "rank 3 failed", from_round=0)
    told = merge(
        [_told([0, 1, 2]), FailureSummary(groups=(FailureGroup("exit code 1", 7, ((40, 46),)),))]
    )
    over = transitions.settle_failed(
        settling, told, max_restarts=0, by="h0~0", is_final=False, now=1_700_000_000.0
    )
    success = RecordedVerdict(JobOutcome.SUCCEEDED, "h0", "all have", 1.0)
    return [
        began, running, settling, over, over, over,
        transitions.notify(running, "h0~0", 10),
        transitions.broadcast(running, "h0~0", "stacks", "now"),
        transitions.settle_failed(
            settling, told, max_restarts=1, by="h0~0", is_final=False, now=1_700_000_000.0
        ),
        transitions.replace_job(running, "nobody is left", by="h0~0"),
        transitions.end(running, success, by="h"),
    ]  # fmt: skip


def _node(ticket=1):
    return NodeRecord(
        ticket, "h0~0", "h0", index=0, previous=1, local_world_size=4, pid=100,
        address="10.0.0.1", port=29500, stop_timeout=45.0,
    )  # fmt: skip


SEEDS = {
    "state": [state.to_record() for state in _states()],
    "report": [{"node": "h0~0", "is_final": False, **_told([0, 1, 2]).to_record()}],
    "node": [_node().to_record()],
    "slot": [{"rank": 1, "first": 4, "size": 8, "role_first": 4, "role_size": 8}],
    "job": [
        {
            "incarnation": "ab12",
            "min_nodes": 1,
            "max_nodes": 2,
            "max_restarts": 3,
            "by": "h0",
            "state": transitions.first_state("h0~0").to_record(),
        }
    ],
    "beat": [{"beat": 3, "leader": "h0~0", "lease": 5.0, "gone": "told to stop"}],
    "world": [{"nodes": [{"node": "h0~0", "host": "h0", "stop_timeout": 45.0}] * 3}],
    "log": [{"node": "h0~0"}],
}
_WEIGHTS = {"state": 6, "report": 4, "node": 4}

_NASTY = (
    None, True, False, -1, 0, 1, 65_536, 2**31, 2**53, 2**63, -(2**63), 10**400, -(10**400), 1e308,
    -1e308, 5e-324, 0.1, 9e11, 1e18, "", "x",
    "\x1b[2J", "\x1b]0;title\x07", "a\rb", "a\nb", "\x9b2J",
    "\u202egpj", "\u2028", "\ud800", "\U0001f680" * 300, "x" * 5000, "\x00", "..", "a/b", "%s{}",
    [], [[]], {}, [1], [None], {"a": 1}, {"rank": 1}, [{"rank": 1}], [[0, 2**52]], [[5, 1]],
    "failed", "formed", "over", "running", "refused",
)  # fmt: skip


def _places(value, found):
    """Return all containers in a value, each with a key or an index in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, (dict, list)):
            _places(item, found)
    return found


def _deep(choose, levels):
    value = "x"
    for _ in range(levels):
        value = [value] if choose.random() < 0.5 else {"a": value}
    return value


def _nasty(choose):
    if choose.random() < 0.03:
        return _deep(choose, choose.randrange(60))
    return copy.deepcopy(choose.choice(_NASTY))


def mutate(choose, seed):
    """Return the bytes of the record `seed` after random changes."""
    record = json.loads(json.dumps({"v": PROTOCOL_VERSION, **seed}))
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        places = _places(record, [])
        if not places:
            break
        where, key = choose.choice(places)
        action = choose.random()
        if action < 0.55:
            where[key] = _nasty(choose)
        elif action < 0.65:
            del where[key]
        elif action < 0.75:
            other, name = choose.choice(places)
            where[key] = json.loads(json.dumps(other[name]))
        elif action < 0.85 and isinstance(where[key], list):
            where[key] = where[key] * choose.choice((2, 40, 300))
        elif isinstance(where, dict):
            where[choose.choice(("node", "rank", "x", "v", "detail"))] = _nasty(choose)
    if len(record) < 2 and choose.random() < 0.5:
        record["v"] = 1
    text = json.dumps(record).encode()
    if choose.random() < 0.1:
        return _spoil(choose, bytearray(text))
    return text


_INSERTED = (b"NaN", b"1e999", b"9" * 5000, b"[" * 99, b'"', b"\\u0000")


def _spoil(choose, value):
    for _ in range(choose.choice((1, 2, 20))):
        at = choose.randrange(len(value) + 1)
        action = choose.random()
        if action < 0.4 and at < len(value):
            value[at] = choose.randrange(256)
        elif action < 0.6:
            value[at:at] = choose.choice(_INSERTED)
        elif action < 0.8:
            del value[at : at + choose.randrange(1, 40)]
        else:
            value[at:at] = bytes(value[at : at + choose.randrange(1, 200)])
    return bytes(value)


# --- readers --------------------------------------------------------------------------------------


def _check_text(text, most, what):
    if len(text) > most:
        raise Finding(f"{what} has {len(text)} characters")
    found = _DISTURBING.search(text)
    if found:
        raise Finding(f"{what} has {found[0]!r} at {found.start()}: {text[:200]!r}")


def _check_same(value, read, what):
    """Check that a value can be written, and is equal when read again."""
    again = read(_codec.decode(_KEY, _codec.encode(_KEY, value.to_record())))
    if again != value:
        raise Finding(f"{what} is another one when it is read again: {value!r}, {again!r}")


def _state_of(record):
    """Read a state under the key of its own version; other versions are refused anyway."""
    return JobState.from_record(record, record.integer("version"))


def _read_state(record):
    state = _state_of(record)
    _check_same(state, _state_of, "a state")
    for text in (state.reason, state.event.reason, state.leader, state.event.node):
        _check_text(text, 2000, "a state's text")
    for new in (
        transitions.lead(state, "h9~9", state.leader, "lost"),
        transitions.end_round(
            state, JobEventKind.LOST, "h9~9", state.reason, by="h9~9", from_round=state.round
        ),
        transitions.leave(state, "h9~9", state.reason * 3, is_member=True),
        transitions.settle_failed(
            state, _told([0]), max_restarts=state.attempt, by="h9~9", is_final=False, now=1e18
        ),
    ):
        if new is not None and new.version <= _MOST and new.round <= _MOST:
            _codec.encode(_KEY, new.to_record())
    if state.verdict is not None:
        _read_verdict(state.verdict)


_MOST = (1 << 53) - 1


def _read_verdict(verdict):
    _check_text(describe_verdict(verdict), MAX_MESSAGE, "a verdict's text")
    _check_text(str(verdict_error("job", verdict)), MAX_MESSAGE, "an error")
    if verdict.failures:
        _read_failures(verdict.failures, verdict.others)


def _read_failures(told, others):
    failures, first = from_job_failures(told, {2: _failure(2, reply=True)})
    counted = describe_groups(others, failures)
    error = ChildFailedError("train.py", failures, first=first, counted=counted)
    _check_text(str(error), MAX_REPORT, "a report")
    if error.exit_code not in range(1, 256):
        raise Finding(f"exit code {error.exit_code}")
    for rank, failure in failures.items():
        failure.timestamp_isoformat()
        json.dumps(failure_event(rank, failure), allow_nan=False)
        _check_text(failure.host + failure.error_file, 10_000, "a host, or a file")


def _read_report(record):
    record.text("node", max_len=400)
    record.flag("is_final")
    told = FailureSummary.from_record(record)
    _check_same(told, FailureSummary.from_record, "a report")
    if merge([told]) != told:
        raise Finding("what is merged with nothing is another one")
    both = merge([_told([3]), told])
    if len(_codec.encode(_KEY, both.to_record())) > 750_000:
        raise Finding("failures that are too large")
    _read_failures(both.failures, both.groups)


def _read_node(record):
    node = NodeRecord.from_record(7, record)
    again = NodeRecord.from_record(7, _codec.decode(_KEY, _codec.encode(_KEY, node.to_record())))
    if again != node:
        raise Finding(f"a node is another one when it is read again: {node!r}, {again!r}")
    _check_text(node.describe(), 1000, "a node")
    placement = place([node, _node(2)], 2)
    for refusal in placement.refused:
        _check_text(refusal.reason, MAX_MESSAGE, "a refusal")
    ranks = world_ranks((n.role, n.local_world_size) for n in placement.members)
    _codec.encode(_KEY, {"rank": 0, "size": ranks[0].world_size, "port": node.port})
    world = World(0, 0, len(ranks), node.address, node.port)
    state = replace(transitions.first_state(node.node), phase=JobPhase.RUNNING, world=world)
    _check_same(state, _state_of, "the state of a world")


def _read_slot(record):
    for name in ("rank", "first", "role_first"):
        record.integer(name, low=0)
    for name in ("size", "role_size"):
        record.integer(name, low=1)


def _read_job(record):
    record.text("incarnation", max_len=64)
    least = record.integer("min_nodes", low=1)
    record.integer("max_nodes", low=least)
    record.integer("max_restarts", low=0)
    _check_same(JobState.from_record(record.record("state"), 0), _state_of, "a first state")
    _check_text(record.text("by", max_len=400), 400, "a host")


def _read_beat(record):
    _check_text(record.text("gone", default=""), 1 << 20, "why it goes")
    record.number("lease", default=None)
    record.text("leader", default="")


def _read_world(record):
    for found in record.records("nodes"):
        _check_text(found.text("node", max_len=400), 400, "a name")
        _check_text(found.text("host", max_len=400), 400, "a host")
        found.number("stop_timeout")


def _read_shared_log(record):
    _check_text(record.text("node", max_len=400), 400, "a name")


READERS = {
    "state": _read_state,
    "report": _read_report,
    "node": _read_node,
    "slot": _read_slot,
    "job": _read_job,
    "beat": _read_beat,
    "world": _read_world,
    "log": _read_shared_log,
}


def _read_counter(choose):
    """A log with arbitrary counter and entries."""
    log = "plaunch/fuzzed/i1/round/0/joined"
    says = choose.choice((0, 1, 3, 130, 65_537, -1, 2**62, -(2**62)))
    reader = SharedLogReader(log, max_nodes=choose.choice((1, 4)))
    routine = reader.read(choose.choice((1, 8, 1 << 16)))
    result, operations = None, 0
    while True:
        try:
            operation = routine.send(result)
        except StopIteration as end:
            if len(end.value) > 65_536:
                raise Finding("too much of a log") from None
            return
        operations += 1
        if operations > 1000:
            raise Finding("a log takes too many operations")
        if isinstance(operation, Add):
            result = says
        elif isinstance(operation, MultiGet):
            result = [choose.choice((None, b"{}", b"x")) for _ in operation.keys]
        elif isinstance(operation, (CompareSet, Sleep, Wait)):
            raise Finding(f"a log is read with {operation}")


class Fuzzer:
    """Mutations from one seed.

    `outcomes` counts read and refused records by kind; `findings` has the first findings.
    """

    def __init__(self, seed):
        self.seed = seed
        self.outcomes = Counter()
        self.findings = []
        self._choose = random.Random(seed)
        self._kinds = [kind for kind in SEEDS for _ in range(_WEIGHTS.get(kind, 1))] + ["counter"]

    def step(self):
        """Test one more record."""
        choose = self._choose
        kind = choose.choice(self._kinds)
        value = b""
        try:
            if kind == "counter":
                _read_counter(choose)
            else:
                value = mutate(choose, choose.choice(SEEDS[kind]))
                READERS[kind](_codec.decode(_KEY, value))
        except RendezvousStateError as error:
            self.outcomes[kind, "refused"] += 1
            self._check_refusal(kind, value, str(error))
        except Exception as error:
            self._find(kind, value, "".join(traceback.format_exception(error)[-8:]))
        else:
            self.outcomes[kind, "read"] += 1

    def _check_refusal(self, kind, value, text):
        try:
            _check_text(text, 1000, "a refusal")
            if "\n" in text:
                raise Finding(f"a refusal has several lines: {text!r}")
        except Finding as finding:
            self._find(kind, value, str(finding))

    def _find(self, kind, value, text):
        self.outcomes[kind, "found"] += 1
        if len(self.findings) < 20:
            self.findings.append(f"{kind}: {value[:2000]!r}\n{text}")


def main():
    """Test the given number of records, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    fuzzer = Fuzzer(options.seed)
    began = time.monotonic()
    for number in range(options.count):
        fuzzer.step()
        if sys.stderr.isatty() and number % 1000 == 0:
            print(f"\r{number}", end="", file=sys.stderr)
    took = time.monotonic() - began
    print(f"{options.count} mutations from seed {options.seed} in {took:.0f} s")
    for kind in [*SEEDS, "counter"]:
        said = (f"{fuzzer.outcomes[kind, what]} {what}" for what in ("read", "refused", "found"))
        print(f"  {kind}: {', '.join(said)}")
    for finding in fuzzer.findings:
        print(finding)
    return bool(fuzzer.findings)


if __name__ == "__main__":
    sys.exit(main())
