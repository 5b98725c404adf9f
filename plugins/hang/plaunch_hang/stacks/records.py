"""The groups and answers that the nodes of a job exchange, as texts of limited size."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from plaunch.texts import printable

from plaunch_hang.stacks.grouping import MOST_FRAMES, StackGroup, merge
from plaunch_hang.stacks.stack import StackFrame
from plaunch_hang.stacks.waiting import ChildKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MOST_BYTES = 16 << 10
VERSION = 1

_REST = "in groups that did not fit"
_MOST_GROUPS = 1000
_MOST_RANKS = 1 << 20
_MOST_TEXT = 1000  # characters
_MOST_WORDS = 300  # characters of a host, and of a problem; JSON may need six bytes for each
_MOST_CALLS = 8
_ROOM = 40  # bytes of a text in addition to the groups


def dump_groups(groups: Sequence[StackGroup], *, most: int = MOST_BYTES) -> str:
    """Serialize groups as ASCII JSON, as many as fit.

    The others become one group without frames, or are left out if that does not fit.

    Args:
        groups: the groups of one node, the likely cause first.
        most: the maximum size in bytes.
    """
    texts = [_dump(item) for item in groups]
    sizes = [0, *itertools.accumulate(len(text) + 1 for text in texts)]
    for kept in range(len(groups), -1, -1):
        if sizes[kept] > most:
            continue
        rest = merge(StackGroup(item.ranks, (), _REST) for item in groups[kept:])
        text = _join([*texts[:kept], *map(_dump, rest)])
        if len(text) <= most:
            return text
    kept = max(number for number, size in enumerate(sizes) if size == 0 or size <= most - _ROOM)
    text = _join(texts[:kept])
    if len(text) > most:
        raise ValueError(f"groups do not fit in {most} bytes")
    return text


def _join(texts: Iterable[str]) -> str:
    return f'{{"version":{VERSION},"groups":[{",".join(texts)}]}}'


def _dump(item: StackGroup) -> str:
    return json.dumps(
        {
            "ranks": {host: _dump_ranks(ranks) for host, ranks in item.ranks.items()},
            "frames": [list(frame) for frame in item.frames],
            "state": item.state[:_MOST_TEXT],
            "reason": item.reason[:_MOST_TEXT],
            **({} if item.kind is None else {"kind": item.kind.value}),
            **({"held": item.held[:_MOST_TEXT]} if item.held else {}),
            **({"child": [list(frame) for frame in item.child]} if item.child else {}),
        },
        separators=(",", ":"),
    )


def _dump_ranks(ranks: Iterable[int]) -> list[list[int]]:
    """The ranks as spans with a first and a last rank."""
    spans: list[list[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    return spans


def load_groups(text: str) -> list[StackGroup]:
    """Parse the output of `dump_groups` of any node.

    Raises:
        ValueError: the text is invalid, or of an unknown version.
    """
    try:
        data = json.loads(text)
        groups = [_load(item) for item in data["groups"][:_MOST_GROUPS]]
        version = data["version"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no groups of stacks ({error}): {text[:60]!r}") from error
    if version != VERSION:
        raise ValueError(f"groups of stacks of version {version!r:.20}, not {VERSION}")
    return groups


def _load(item: dict[str, Any]) -> StackGroup:
    return StackGroup(
        ranks={_text(host): _load_ranks(spans) for host, spans in item["ranks"].items()},
        frames=_load_frames(item["frames"]),
        state=_text(item["state"]),
        reason=_text(item["reason"]),
        child=_load_frames(item.get("child", [])),
        kind=ChildKind(item["kind"]) if "kind" in item else None,
        held=_text(item.get("held", "")),
    )


def _load_frames(frames: list[list[Any]]) -> tuple[StackFrame, ...]:
    return tuple(
        StackFrame(_text(function), _text(file), _number(line))
        for function, file, line in frames[:MOST_FRAMES]
    )


def _load_ranks(spans: list[list[int]]) -> tuple[int, ...]:
    ranks: set[int] = set()
    for first, last in spans[:_MOST_GROUPS]:
        if not 0 <= _number(first) <= _number(last) < _MOST_RANKS:
            raise ValueError(f"ranks from {first!r:.20} to {last!r:.20}")
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return printable(value, _MOST_TEXT)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


class NodeAnswer(NamedTuple):
    """The answer of a node to a request for the stacks of the job.

    Args:
        by: a unique id of the node.
        calls: the ids of the calls that it answers.
        host: the host of the node.
        folder: the folder of its complete stacks; empty if they are not written.
        problem: why they could not be written.
        groups: the groups of its workers.
    """

    by: str
    calls: tuple[str, ...]
    host: str
    folder: str
    problem: str
    groups: list[StackGroup]


def dump_answer(answer: NodeAnswer, *, most: int = MOST_BYTES) -> str:
    """Serialize an answer as one line: a JSON object, followed by the groups."""
    head = json.dumps(
        {
            "by": answer.by,
            "calls": answer.calls[-_MOST_CALLS:],
            "host": answer.host[:_MOST_WORDS],
            "folder": answer.folder if len(answer.folder) <= _MOST_TEXT else "",
            "problem": answer.problem[:_MOST_WORDS],
        }
    )
    return f"{head} {dump_groups(answer.groups, most=most - len(head) - 1)}"


def load_answer(text: str) -> NodeAnswer:
    """Parse the output of `dump_answer` of any node.

    Raises:
        ValueError: the text is invalid, or of an unknown version.
    """
    try:
        data, end = json.JSONDecoder().raw_decode(text)
        calls = tuple(_text(call) for call in data["calls"][:_MOST_CALLS])
        by, host, folder, problem = (
            _text(data[key]) for key in ("by", "host", "folder", "problem")
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no answer with stacks ({error}): {text[:60]!r}") from error
    return NodeAnswer(by, calls, host, folder, problem, load_groups(text[end:]))
