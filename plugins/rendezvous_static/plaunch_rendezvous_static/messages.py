"""The lines that nodes exchange: JSON objects, and an empty line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
    one_line,
)
from plaunch.rendezvous import WorldRanks
from plaunch.texts import printable
from plaunch_membership import MAX_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

ACCEPTED = b"\n"  # node 0 has accepted an introduction
MAX_LINE = 8 << 10  # bytes of one line
_MAX_WORKERS = 1 << 20  # on one node
_MAX_QUOTED = 80  # bytes, in a message
# The exceptions of reading invalid input, including infinite numbers and deep nesting.
_INVALID = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Introduction:
    """The introduction of one node to node 0.

    Args:
        run_id: the id of the job; the same on all nodes.
        nodes: the number of nodes; the same on all nodes.
        rank: the rank of the node.
        role: the role of its workers.
        local_world_size: the number of its workers.
        host: its hostname, for messages.
    """

    run_id: str
    nodes: int
    rank: int
    role: str
    local_world_size: int
    host: str


def to_line(message: dict[str, Any]) -> bytes:
    """Encode one message."""
    return json.dumps(message).encode() + b"\n"


def read_introduction(line: bytes) -> Introduction:
    """Read the introduction of a node; the input is not trusted.

    Raises:
        ValueError: it is invalid.
    """
    try:
        fields = json.loads(line)
        host = printable(str(fields["host"]), MAX_NAME)
        numbers = {name: int(fields[name]) for name in ("nodes", "rank", "local_world_size")}
        node = Introduction(str(fields["run_id"]), role=str(fields["role"]), host=host, **numbers)
    except _INVALID as error:
        raise ValueError(f"not an introduction: {one_line(error)}") from error
    if not 0 < node.local_world_size <= _MAX_WORKERS:
        raise ValueError(f"{node.local_world_size} workers")
    return node


def read_answer(line: bytes) -> WorldRanks:
    """Return the ranks in node 0's answer.

    Raises:
        RendezvousError: it has none for this node.
    """
    errors: dict[str, Callable[[str], RendezvousError]] = {
        "refused": RendezvousClosedError,
        "timeout": RendezvousTimeoutError,
    }
    try:
        answer = json.loads(line)
        for word, error in errors.items():
            if word in answer:
                raise error(printable(str(answer[word])))
        return WorldRanks(**{name: int(number) for name, number in answer["ranks"].items()})
    except _INVALID as error:
        raise RendezvousConnectionError(
            "node 0 has not answered with ranks: "
            f"{line[:_MAX_QUOTED]!r}; check which program listens on the master's port"
        ) from error
