"""What the nodes of a job tell each other of their workers, as texts of bounded size."""

from __future__ import annotations

import enum
import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch_hang.options import ACTIONS
from plaunch_hang.stacks import dump_groups, load_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_hang.stacks import Group

NAME = "hang"  # of the texts
VERSION = 1

_MOST_BYTES = 15 << 10  # of the groups of one node
_LEAST_BYTES = 2 << 10
_ALL_BYTES = 4 << 20  # of those of all nodes: each reads them
_MOST_HOST = 255
_MOST_WORDS = 500  # characters
_MOST_NUMBER = 1 << 53


class NodeState(str, enum.Enum):
    """What the workers of one node do, all together."""

    MOVES = "moves"
    PAUSES = "pauses"  # none has moved for a while, though not for the whole time-out
    STILL = "still"
    HELD = "held"  # one of them cannot move: the others may wait for it
    OVER = "over"  # all have ended as they should


class Told(NamedTuple):
    """What one node has told.

    Args:
        round: the round that it is in.
        node: its rank among the nodes of the round.
        host: the name of its host.
        state: what its workers do.
        number: how often it has told something.
        timeout: its `--hang-timeout` in seconds; 0 if it learns it.
        action: its `--on-hang`.
        seconds: for how long none of its workers has moved, if they are still.
        early: which of its workers have ended with exit code 0, in words.
        held: what holds which of its workers, in words, if one is held.
        groups: where they are then, the likely cause first.
    """

    round: int
    node: int
    host: str
    state: NodeState
    number: int
    timeout: float
    action: str
    seconds: float = 0.0
    groups: Sequence[Group] = ()
    held: str = ""
    early: str = ""


def dump_told(told: Told, nodes: int) -> str:
    """Write it as JSON in ASCII, with as many groups as there is room for with so many nodes."""
    most = min(max(_ALL_BYTES // nodes, _LEAST_BYTES), _MOST_BYTES)
    values = {
        "version": VERSION,
        **told._asdict(),
        "host": told.host[:_MOST_HOST],
        "held": told.held[:_MOST_WORDS],
        "early": told.early[:_MOST_WORDS],
        "groups": json.loads(dump_groups(told.groups, most=most)),
    }
    return json.dumps(values, separators=(",", ":"))


def load_told(text: str) -> Told:
    """Read what `dump_told` has written, maybe on another node.

    Raises:
        ValueError: it is something else, or of a version that is not known.
    """
    try:
        values = json.loads(text)
        _check_version(values["version"])
        return Told(
            round=_count(values["round"]),
            node=_count(values["node"]),
            host=_text(values["host"], _MOST_HOST),
            state=NodeState(values["state"]),
            number=_count(values["number"]),
            timeout=_seconds(values["timeout"]),
            action=ACTIONS[ACTIONS.index(values["action"])],
            seconds=_seconds(values["seconds"]),
            groups=load_groups(json.dumps(values["groups"])),
            held=_text(values.get("held", ""), _MOST_WORDS),
            early=_text(values.get("early", ""), _MOST_WORDS),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"nothing that a node tells ({error}): {text[:60]!r}") from error


def _check_version(value: Any) -> None:
    if value != VERSION:
        raise ValueError(f"version {value!r:.20}, not {VERSION}")


def _text(value: Any, most: int) -> str:
    # Whatever another node writes, it is shown on a terminal.
    return "".join(c if c.isprintable() else "?" for c in str(value)[:most])


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"{value!r:.20} is no number")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r:.20} is no time")
    if not (value >= 0 and math.isfinite(value)):
        raise ValueError(f"{value!r:.20} is no time")
    return float(value)
