"""Output and records of remote agents, as the command of --on reads them."""

from __future__ import annotations

from functools import cache

from helpers import record_mutations
from helpers.fuzz_targets.reading import Choices

WORDS = (
    b"\x1eplaunch ", b"\x1eplaunch " + record_mutations.NONCE.encode() + b" ", b"\n", b"\r",
    b'{"kind": "end", "code": 0, "has_succeeded": true, "verdict": ""}\n', b'"kind"', b'"text"',
    b'"running"', b'"failure"', b'"round"', b'"last_message"', b'"is_more"', b'"hello"',
    b'"end_of_output"', b'"workers_ended"', b'"probed"', b"plaunch: ",
)  # fmt: skip


class _Dividing:
    """Chooses as `random.Random` does, from the bytes of an input."""

    def __init__(self, choices):
        self._choices = choices

    def choice(self, values):
        return self._choices.one_of(values)

    def randint(self, low, high):
        return low + self._choices.number(high - low + 1)

    def randrange(self, below):
        return self._choices.number(below)


@cache
def _nodes():
    return record_mutations.NodeChecker()


def check(data):
    """Split output into text and records, divided anywhere, and let a node read it."""
    choices = Choices(data)
    is_configured = bool(choices.number(2))
    divisions = Choices(choices.rest[:8])
    stream = choices.rest[8:]
    nonce = record_mutations.NONCE if is_configured else ""
    is_invalid = record_mutations.check_records(_Dividing(divisions), stream, nonce)
    has_failed = _nodes().check(_Dividing(divisions), stream, is_configured=is_configured)
    if is_configured and is_invalid not in (None, has_failed):
        raise record_mutations.Finding("an invalid record, and no failed node, or the reverse")
