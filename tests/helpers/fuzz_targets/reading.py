"""Divides the bytes of an input into what a target needs, and compares texts and results."""

from __future__ import annotations

import re

from helpers.fuzz_targets import Finding

# All but a line feed and what a terminal shows as spaces.
_DISTURBING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


class Choices:
    """Takes choices from the front of an input; zeros follow its end."""

    def __init__(self, data):
        self.rest = data

    def number(self, below):
        """Return a number from zero on."""
        size = 1 if below <= 256 else 2 if below <= 65_536 else 8
        taken, self.rest = self.rest[:size], self.rest[size:]
        return int.from_bytes(taken, "big") % below

    def one_of(self, values):
        """Return one of some values."""
        return values[self.number(len(values))]

    def line(self):
        """Return the bytes before the next line feed, which is removed."""
        found, _, self.rest = self.rest.partition(b"\n")
        return found

    def text(self):
        """Return the next line as text, which may have surrogates."""
        return self.line().decode("utf-8", "surrogateescape")


def divide(data):
    """Yield ways to divide bytes into parts: all at once, one by one, and by their own values."""
    yield [data]
    yield [data[at : at + 1] for at in range(len(data))]
    parts, at = [], 0
    while at < len(data):
        size = 1 + data[at] % 23
        parts.append(data[at : at + size])
        at += size
    yield parts


def check_equal(found, expected, what):
    """Raise a finding unless two results are equal."""
    if found != expected:
        raise Finding(f"{what}: {found!r:.2000}, not {expected!r:.2000}")


def check_message(text, most=10_000):
    """Raise a finding for a message that is long, or could disturb a terminal."""
    if not isinstance(text, str) or len(text) > most:
        raise Finding(f"a message of {len(text)} characters: {text!r:.200}")
    if found := _DISTURBING.search(text):
        raise Finding(f"a message with {found[0]!r}: {text!r:.400}")
