"""Feeds a command with randomly changed output of agents, and checks what it makes of it.

An input is some lines and records of one agent, changed, and divided into random parts. A finding
is an exception; a byte of text that is lost, changed or out of order; a record without the nonce,
or with a field that the schema does not allow; text that is held back without need; a node that
goes on after an invalid record; or a message that is long or could disturb a terminal. From the
root of the repository, a million of them take some minutes of one processor:

    PYTHONPATH=tests nice python -m helpers.record_mutations 1000000 --seed 1
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import time
import traceback
from collections import Counter

from plaunch import __version__
from plaunch.texts import printable_message
from plaunch_engines.agents import AgentState, ConnectedNode
from plaunch_engines.plan import JobPlan
from plaunch_engines.records import (
    FIELDS,
    MAX_LINE,
    VERSION,
    Flag,
    InvalidRecord,
    OneOf,
    Records,
    Text,
    Texts,
    Whole,
    encode,
)

from helpers.played_handles import PlayedHandle

NONCE = "0123456789abcdef" * 2
MAX_MESSAGE = 3000  # characters about one node
# All but a line feed and what a terminal shows as spaces.
_DISTURBING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
_PART = 64 << 10  # bytes that are read at once

HELLO = {
    "kind": "hello", "protocol": VERSION, "version": __version__, "python": "3.12.1",
    "host": "node1", "pid": 17, "has_folder": True, "script": "9 bytes", "port": 20000,
    "addresses": ["192.0.2.7"], "client": "192.0.2.1",
}  # fmt: skip


def _example(type_):
    """Return a value that a field of the table may have."""
    match type_:
        case Whole():
            return max(type_.least, 1)
        case Flag():
            return True
        case Texts():
            return ["192.0.2.7"]
        case OneOf():
            return type_.words[-1]
        case Text():
            return ("bäd\n" * 3)[: type_.most]


RECORDS = [
    {"kind": kind, **{name: _example(type_) for name, type_ in fields.items()}}
    for kind, fields in FIELDS.items()
    if kind != "hello"
]
_TEXTS = (
    b"epoch 1\n", b"50 %", b"\r60 %", b"\n", b"\x1e", b"\x1eplaunch ", b"\x1eplaunch {}\n",
    b"\x1eplaunch " + NONCE.encode(), b"plaunch: it failed\n", b"\xff\xfe\x00\n", b"\x1b[2J\n",
    b"x" * 5000 + b"\n", encode("", kind="end", code=0), encode("f" * 32, kind="end", code=0),
    encode("", **HELLO),
)  # fmt: skip
_VALUES = (
    None, True, False, -1, 0, 1, 255, 256, 65_536, 2**31, 2**63, 10**400, -(10**400), 0.0, 1.5,
    1e308, float("nan"), float("inf"), "", "x", "0", "x" * 5000, "\x1b[2J", "a\nb", "\u202e",
    "\ud800", "\U0001f525" * 200, [], [1], {}, {"kind": "end"}, [[[]]],
)  # fmt: skip
_KINDS = (*FIELDS, "", "dance", "end ", "End")


class Finding(AssertionError):
    """A result that no output of an agent may cause."""


# --- inputs ---------------------------------------------------------------------------------------


def _change_record(choose, record):
    """Return a record with another field, or without one."""
    record = dict(record)
    match choose.randrange(4):
        case 0:
            record.pop(choose.choice(sorted(record)))
        case 1:
            record["kind"] = choose.choice((*_KINDS, *_VALUES))
        case 2:
            record[choose.choice(("more", "kind", "code", *FIELDS))] = choose.choice(_VALUES)
        case _:
            record[choose.choice(sorted(record))] = choose.choice(_VALUES)
    return record


def _write_record(choose, nonce, record):
    """Return the line of a record, which may be another JSON text."""
    line = encode(nonce, **record)
    match choose.randrange(60):
        case 0:
            depth = choose.choice((2, 100, 2000, 20_000))
            text = b"[" * depth + b"]" * depth
        case 1:
            text = b"1" * choose.choice((10, 5000, 60_000))
        case 2:
            text = b'{"kind": "end", "code": ' + b"9" * choose.choice((3, 5000)) + b"}"
        case 3:
            text = b'{"kind": "end", "code": 1, "code": 0}'
        case 4:
            text = json.dumps(choose.choice(_VALUES)).encode()
        case 5:
            text = b'{"a":' * 3000 + b"1" + b"}" * 3000
        case _:
            return line
    return line[: line.index(b"{")] + text + b"\n"


def _damage(choose, data):
    """Return bytes of which some are changed, missing, or there twice."""
    for _ in range(choose.randrange(4)):
        at = choose.randrange(len(data) + 1)
        size = choose.choice((1, 1, 2, 8, 64))
        match choose.randrange(4):
            case 0:
                data = data[:at] + choose.randbytes(size) + data[at + size :]
            case 1:
                data = data[:at] + data[at + size :]
            case 2:
                data = data[:at] + data[at : at + size] + data[at:]
            case _:
                data = data[:at] + choose.choice(_TEXTS) + data[at:]
    return data


def make_output(choose, nonce):
    """Return what an agent and its workers may write to one stream.

    Args:
        choose: a `random.Random`.
        nonce: that of the agent; empty before its settings.
    """
    parts = []
    records = RECORDS if nonce else (HELLO,)
    for _ in range(choose.randrange(1, 7)):
        match choose.randrange(10):
            case 0 | 1 | 2:
                parts.append(choose.choice(_TEXTS))
            case 3:
                parts.append(choose.randbytes(choose.choice((1, 20, 200))))
            case 4 | 5 | 6:
                parts.append(encode(nonce, **choose.choice(records)))
            case _:
                record = _change_record(choose, choose.choice(records))
                parts.append(_write_record(choose, nonce, record))
    if choose.randrange(500) == 0:
        huge = choose.choice((b"x", b"\x1e", b"\x1eplaunch ", encode(nonce, kind="end")[:-1]))
        parts.insert(choose.randrange(len(parts) + 1), huge * (200_000 // len(huge)))
    data = b"".join(parts)
    return _damage(choose, data) if choose.randrange(2) else data


def divide(choose, data):
    """Yield the parts in which a stream is read."""
    size = choose.choice((1, 3, 17, 100, 1000, 5000, _PART))
    if len(data) > 100 * size:
        size = _PART
    at = 0
    while at < len(data):
        step = choose.randint(1, size)
        yield data[at : at + step]
        at += step


# --- checks ---------------------------------------------------------------------------------------


def _split_all(data, nonce):
    """Return text and the lines of records in a whole stream, without `Records`."""
    mark = re.escape(b"\x1eplaunch " + (f"{nonce} ".encode() if nonce else b""))
    return [piece for piece in re.split(b"(" + mark + rb"[^\n]*\n)", data) if piece]


def _is_allowed(record):
    """Whether a record is one of the table, without `find_problem`."""
    fields = FIELDS.get(record.get("kind"))
    if fields is None or record.keys() != {"kind", *fields}:
        return False
    types = {Whole: int, Flag: bool, Text: str, OneOf: str, Texts: list}
    return all(type(record[name]) is types[type(fields[name])] for name in fields)


def _is_old_hello(record):
    return record.get("kind") == "hello" and (record["protocol"], record["version"]) != (
        VERSION, __version__,
    )  # fmt: skip


def check_records(choose, data, nonce):
    """Split a stream; return whether it has an invalid record, None if that is not certain."""
    splitter = Records()
    if nonce:
        splitter.expect(nonce)
    mark = b"\x1eplaunch " + (f"{nonce} ".encode() if nonce else b"")
    expected = _split_all(data, nonce)
    is_long = any(len(piece) > MAX_LINE for piece in expected if mark in piece)
    text, found, fed = b"", [], 0
    for part in (*divide(choose, data), b""):
        fed += len(part)
        for piece in splitter.feed(part):
            if isinstance(piece, bytes):
                text += piece
            else:
                found.append(piece)
                if isinstance(piece, dict) and not (_is_allowed(piece) or _is_old_hello(piece)):
                    raise Finding(f"{piece} is a record")
        if len(splitter._rest) > MAX_LINE + len(mark):
            raise Finding(f"{len(splitter._rest)} bytes are held back")
    if is_long:  # what is found depends on the parts
        return None
    lines = [piece for piece in expected if piece.startswith(mark) and piece.endswith(b"\n")]
    if nonce:
        if expected and expected[-1] not in lines:  # the last record may have no end
            expected[-1] = expected[-1].partition(mark)[0]
        texts = b"".join(piece for piece in expected if piece not in lines)
        if len(found) != len(lines):
            raise Finding(f"{len(found)} records in {len(lines)} lines")
        if text != texts:
            raise Finding(f"text {text!r}, not {texts!r}")
    elif not found and text != data:
        raise Finding(f"text {text!r}, not {data!r}")
    return any(isinstance(one, InvalidRecord) for one in found)


class NodeChecker:
    """Lets nodes of a job read outputs of agents.

    `longest` is the largest part of a second of the processor's time for what is read at once.
    """

    def __init__(self):
        self.longest = 0.0
        self._handle = PlayedHandle("node1")
        self._plan = JobPlan(
            job="job", engine="local", count=2, min_nodes=2, max_nodes=2, options=[],
            program=["train.py"], script="train.py", script_content="9 bytes", folder="/work",
            env={},
        )  # fmt: skip

    def check(self, choose, data, *, is_configured):
        """Let a node read an output; return whether it has failed."""
        handle = self._handle
        handle.is_stopped, handle.code = False, None
        self._now = 0.0
        node = ConnectedNode(1, handle, 1.0, lambda: self._now)
        if is_configured:
            os.write(handle.err, encode("", **HELLO))
            self._read(node)
            node.configure({})
            data = data.replace(NONCE.encode(), handle.settings["nonce"].encode())
        pipe = choose.choice((handle.out, handle.err))
        for part in divide(choose, data):
            os.write(pipe, part[:_PART])
            self._read(node)
        if node.state is AgentState.READY:
            self._check_message(node.problem(self._plan))
            if not node.problem(self._plan):
                self._check_message(node.endpoint())
        self._check_message(node.describe_missing())
        handle.code = 137
        self._check_facts(node)
        for _ in range(2):
            self._now += 100.0
            [*node.update(is_read=True)]
        if node.state is not AgentState.ENDED:
            raise Finding("it does not end")
        self._check_facts(node)
        if handle.is_stopped and "node1: its agent has sent" not in node.problem(self._plan):
            raise Finding(f"a node without a reason: {node.facts()}")
        return handle.is_stopped

    def _check_facts(self, node):
        facts = node.facts()
        if facts.code is not None and not 0 <= facts.code <= 255:
            raise Finding(f"the code is {facts.code}")
        self._check_message(facts.end)
        if node.round < -1 or node.has_workers not in (True, False):
            raise Finding(f"round {node.round}")

    def _read(self, node):
        for fd in node.fds():
            began = time.thread_time()
            texts = [text for _, text in node.read(fd)]
            self.longest = max(self.longest, time.thread_time() - began)
            for text in texts:
                if not isinstance(text, bytes) or not text:
                    raise Finding(f"text {text!r}")

    def _check_message(self, text):
        text = printable_message(text)  # as the console does
        if len(text) > MAX_MESSAGE or _DISTURBING.search(text):
            raise Finding(f"a message: {text!r}")


class RecordFuzzer:
    """Mutations from one seed.

    `outcomes` counts outputs whose records were all read or not, and findings; `findings` has the
    first findings.
    """

    def __init__(self, seed):
        self.seed = seed
        self.outcomes = Counter()
        self.findings = []
        self._choose = random.Random(seed)
        self.nodes = NodeChecker()

    def step(self):
        """Test one more output."""
        choose = self._choose
        is_configured = choose.randrange(4) > 0
        nonce = NONCE if is_configured else ""
        data = make_output(choose, nonce)
        try:
            is_invalid = check_records(choose, data, nonce)
            has_failed = self.nodes.check(choose, data, is_configured=is_configured)
            if is_configured and is_invalid not in (None, has_failed):
                raise Finding("an invalid record, and no failed node" if is_invalid else "failed")
        except Exception as error:
            self.outcomes["found"] += 1
            if len(self.findings) < 20:
                text = "".join(traceback.format_exception(error)[-8:])
                self.findings.append(f"{data[:1000]!r}\n{text[-1500:]}")
        else:
            self.outcomes["refused" if is_invalid else "read"] += 1


def main():
    """Test the given number of outputs, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    fuzzer = RecordFuzzer(options.seed)
    began, cpu = time.monotonic(), time.process_time()
    for _ in range(options.count):
        fuzzer.step()
    took, cpu = time.monotonic() - began, time.process_time() - cpu
    print(
        f"{options.count} outputs from seed {options.seed} in {took:.0f} s, of a processor "
        f"{cpu:.0f} s, and at most {fuzzer.nodes.longest:.3f} s to read one part"
    )
    print(", ".join(f"{fuzzer.outcomes[what]} {what}" for what in ("read", "refused", "found")))
    for finding in fuzzer.findings:
        print(finding)
    return bool(fuzzer.findings)


if __name__ == "__main__":
    sys.exit(main())
