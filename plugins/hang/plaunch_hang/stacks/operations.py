"""The last collective operation of each rank, from torch's flight recorder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from plaunch.numbers import format_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from plaunch_hang.stacks.stack import ProcessStacks

_MOST = 200  # characters of one operation
_MOST_LINES = 20


def last_operations(stacks: Mapping[int, ProcessStacks]) -> dict[str, tuple[int, ...]]:
    """The last recorded operations, each with the ranks that began it."""
    return merge_operations(
        {operation: (rank,)}
        for rank, process in stacks.items()
        if (
            operation := describe_last_operation(
                answer for one in process.walk() for answer in one.torch_answers
            )
        )
    )


def merge_operations(many: Iterable[Mapping[str, Iterable[int]]]) -> dict[str, tuple[int, ...]]:
    """Merge the operations of several nodes; the operation of the fewest ranks comes first."""
    found: dict[str, set[int]] = {}
    for operations in many:
        for operation, ranks in operations.items():
            found.setdefault(operation, set()).update(ranks)
    sets = sorted(found.items(), key=lambda item: (len(item[1]), sorted(item[1])))
    return {operation: tuple(sorted(ranks)) for operation, ranks in sets}


def format_operations(operations: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Format operations as lines; empty if there are none."""
    lines = ["last operations in torch's flight recorder:"] if operations else []
    for operation, ranks in [*operations.items()][:_MOST_LINES]:
        word = "rank" if len(ranks) == 1 else "ranks"
        lines.append(f"{len(ranks)} {word}: {format_ranks(ranks).replace(',', ', ')} {operation}")
    if len(operations) > _MOST_LINES:
        lines.append(f"and {len(operations) - _MOST_LINES} more operations")
    return lines


def describe_last_operation(answers: Iterable[tuple[str, str]]) -> str:
    """Describe the last collective operation that a process began; empty if unknown.

    Args:
        answers: the answers of its server, as pairs of a page and a text.
    """
    for page, text in answers:
        if page.endswith("trace_json"):
            try:
                last = json.loads(text)["entries"][-1]
                kind = "p2p_seq_id" if last.get("is_p2p") else "collective_seq_id"
                names = last["process_group"]
                group = names[-1] or names[0]
                found = f"{last['profiling_name']}, number {last[kind]} in {group}"
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                continue
            return "".join(letter for letter in found[:_MOST] if letter.isprintable())
    return ""
