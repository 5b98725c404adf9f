"""The reports that the nodes of a job exchange about their workers, as texts of limited size."""

from __future__ import annotations

import enum
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.texts import printable

from plaunch_hang.options import ACTIONS
from plaunch_hang.stacks import dump_groups, load_groups

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch_hang.stacks import StackGroup

NAME = "hang"  # of the published texts
VERSION = 1

_MOST_BYTES = 15 << 10  # of the groups of one node
_LEAST_BYTES = 2 << 10
_ALL_BYTES = 4 << 20  # of the groups of all nodes, which each node reads
_MOST_HOST = 255
_MOST_WORDS = 500  # characters
_MOST_NUMBER = 1 << 53


class NodeActivity(str, enum.Enum):
    """Whether the workers of one node move."""

    MOVES = "moves"
    PAUSES = "pauses"  # none has moved for a part of the timeout
    STILL = "still"  # none has moved for the whole timeout
    HELD = "held"  # one of them cannot move, and others may wait for it
    OVER = "over"  # all have succeeded


class NodeReport(NamedTuple):
    """The report of one node.

    Args:
        round: the number of its round.
        node: its rank among the nodes of the round.
        host: the name of its host.
        state: whether its workers move.
        number: the number of this report.
        timeout: its `--hang-timeout` in seconds; 0 if it learns it.
        action: its `--on-hang`.
        seconds: how long none of its workers has moved, if they are STILL.
        groups: where they are then, the likely cause first.
        held: what holds which of its workers, in words.
        early: which of its workers ended with exit code 0, in words.
    """

    round: int
    node: int
    host: str
    state: NodeActivity
    number: int
    timeout: float
    action: str
    seconds: float = 0.0
    groups: Sequence[StackGroup] = ()
    held: str = ""
    early: str = ""


def dump_report(report: NodeReport, nodes: int) -> str:
    """Serialize a report as ASCII JSON, with as many groups as fit for this number of nodes."""
    most = min(max(_ALL_BYTES // nodes, _LEAST_BYTES), _MOST_BYTES)
    values = {
        "version": VERSION,
        **report._asdict(),
        "host": report.host[:_MOST_HOST],
        "held": report.held[:_MOST_WORDS],
        "early": report.early[:_MOST_WORDS],
        "groups": json.loads(dump_groups(report.groups, most=most)),
    }
    return json.dumps(values, separators=(",", ":"))


def load_report(text: str) -> NodeReport:
    """Parse a report of any node.

    Raises:
        ValueError: the text is not a report, or of an unknown version.
    """
    try:
        values = json.loads(text)
        _check_version(values["version"])
        return NodeReport(
            round=_count(values["round"]),
            node=_count(values["node"]),
            host=_text(values["host"], _MOST_HOST),
            state=NodeActivity(values["state"]),
            number=_count(values["number"]),
            timeout=_seconds(values["timeout"]),
            action=ACTIONS[ACTIONS.index(values["action"])],
            seconds=_seconds(values["seconds"]),
            groups=load_groups(json.dumps(values["groups"])),
            held=_text(values.get("held", ""), _MOST_WORDS),
            early=_text(values.get("early", ""), _MOST_WORDS),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not a report ({error}): {text[:60]!r}") from error


def _check_version(value: Any) -> None:
    if value != VERSION:
        raise ValueError(f"version {value!r:.20}, not {VERSION}")


def _text(value: Any, most: int) -> str:
    return printable(str(value), most)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_NUMBER:
        raise ValueError(f"{value!r:.20} is not a valid number")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r:.20} is not a number of seconds")
    if not 0 <= value <= sys.float_info.max:
        raise ValueError(f"{value!r:.20} is not a number of seconds")
    return float(value)
