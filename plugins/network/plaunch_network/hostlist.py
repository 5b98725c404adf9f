"""Lists of hosts, as Slurm, pdsh and others write them: `node[01-03,07],login`."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from plaunch.errors import UsageError
from plaunch.numbers import digits, quote

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAX_HOSTS = 1 << 16  # hosts in one list; Slurm's own limit is similar


def expand_hostlist(text: str) -> list[str]:
    """Expand a list of hosts such as `node[01-03,07],login`, in its order, with duplicates.

    A part may have several brackets, with numbers and ranges of numbers in each; the last bracket
    varies fastest. The first number of a range sets the minimum number of digits. A bracket with a
    colon is an IPv6 address, and stays.

    Raises:
        UsageError: a bracket is not closed or has other text than numbers, there are more than
            65536 hosts, or the text has control characters.
    """
    if not text.isprintable():
        raise _malformed(text, "has control characters")
    hosts: list[str] = []
    for part in _split(text):
        choices: list[list[str]] = []
        size = 1
        for piece, is_bracket in _pieces(part, text):
            choices.append(list(_numbers(piece, text)) if is_bracket else [piece])
            size *= len(choices[-1])
            if size + len(hosts) > _MAX_HOSTS:
                raise _malformed(text, f"stands for more than {_MAX_HOSTS} hosts")
        hosts += map("".join, itertools.product(*choices))
    if not hosts:
        raise _malformed(text, "names no host")
    return hosts


def _split(text: str) -> Iterator[str]:
    """Split at the commas outside of brackets."""
    start = depth = 0
    for position, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if text:
        yield text[start:]


def _pieces(part: str, text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a part, and whether each was in brackets."""
    if not part:
        raise _malformed(text, "has an empty part")
    while part:
        plain, bracket, rest = part.partition("[")
        if "]" in plain:
            raise _malformed(text, "closes a bracket that is not open")
        yield plain, False
        if not bracket:
            return
        inside, closing, part = rest.partition("]")
        if not closing:
            raise _malformed(text, "does not close a bracket")
        if ":" in inside:
            yield f"[{inside}]", False
        else:
            yield inside, True


def _numbers(inside: str, text: str) -> Iterator[str]:
    count = 0
    for item in inside.split(","):
        first, dash, last = item.partition("-")
        low, high = digits(first), digits(last if dash else first)
        if low is None or high is None or low > high:
            raise _malformed(text, f"has {item!r} in a bracket, which is not a number or range")
        count += high - low + 1
        if count > _MAX_HOSTS:
            raise _malformed(text, f"stands for more than {_MAX_HOSTS} hosts")
        for number in range(low, high + 1):
            yield str(number).zfill(len(first))


def _malformed(text: str, what: str) -> UsageError:
    return UsageError(f"the list of hosts {quote(text)} {what}; write node[01-03,07],login")
