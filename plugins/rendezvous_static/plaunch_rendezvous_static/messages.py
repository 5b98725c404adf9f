"""The lines that nodes send each other when they meet: JSON objects, and an empty line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plaunch.errors import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousTimeoutError,
)
from plaunch.rendezvous import WorldRanks
from plaunch_membership import MAX_NAME, printable

if TYPE_CHECKING:
    from collections.abc import Callable

SEATED = b"\n"  # node 0 has heard who somebody is
MOST_LINE = 8 << 10  # bytes of one of them
_MOST_WORKERS = 1 << 20  # on one node
_MOST_QUOTED = 80  # bytes, in a message
# What reading something else may raise: of infinite numbers and of brackets without end, too.
_NO_MESSAGE = (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Introduction:
    """The introduction of one node to node 0.

    Args:
        run_id: of the job; the same on all nodes.
        nodes: how many there are; the same on all nodes.
        rank: this node's own.
        role: of its workers.
        local_world_size: how many workers it runs.
        host: its name, for messages.
    """

    run_id: str
    nodes: int
    rank: int
    role: str
    local_world_size: int
    host: str


def to_line(message: dict[str, Any]) -> bytes:
    """One message, as it is sent."""
    return json.dumps(message).encode() + b"\n"


def read_introduction(line: bytes) -> Introduction:
    """Read the introduction of a node, which may be anybody's.

    Raises:
        ValueError: it is something else.
    """
    try:
        said = json.loads(line)
        host = printable(str(said["host"])[:MAX_NAME])
        numbers = {name: int(said[name]) for name in ("nodes", "rank", "local_world_size")}
        node = Introduction(str(said["run_id"]), role=str(said["role"]), host=host, **numbers)
    except _NO_MESSAGE as error:
        raise ValueError(f"no introduction: {error}") from error
    if not 0 < node.local_world_size <= _MOST_WORKERS:
        raise ValueError(f"{node.local_world_size} workers")
    return node


def read_answer(line: bytes) -> WorldRanks:
    """The ranks in what node 0 has answered.

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
    except _NO_MESSAGE as error:
        raise RendezvousConnectionError(
            "node 0 has answered with something that is not its ranks: "
            f"{line[:_MOST_QUOTED]!r}; see what listens on the master's port"
        ) from error
