"""Findings of checks, and their layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status

from plaunch_doctor.context import NodeContext

if TYPE_CHECKING:
    from collections.abc import Sequence


# Checks one thing and returns findings. May take a few seconds.
Check = Callable[[NodeContext], Iterable[Finding]]

_BAD = frozenset({Status.PROBLEM, Status.BROKEN})


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 without problems and broken checks, else 1."""
    return int(any(finding.status in _BAD for finding in findings))


def format_findings(findings: Sequence[Finding], width: int | None = None) -> str:
    """Format findings as aligned lines, the advice below each, and a summary at the end.

    Args:
        findings: the findings.
        width: columns of the terminal; None does not wrap, for logs.
    """
    import textwrap  # imports `re`, which launches do not need

    column = max([len(status.value) for status in Status]) + 2
    indent = column + max([len(finding.what) for finding in findings], default=0) + 2
    lines: list[str] = []
    for finding in findings:
        head = finding.status.value.ljust(column) + finding.what.ljust(indent - column)
        for text, first, rest in ((finding.found, head, ""), (finding.advice, " " * indent, "   ")):
            arrow = "-> " if rest else ""
            one_line = " ".join(text.split())
            if not one_line:
                continue
            if width is None:
                lines.append(first + arrow + one_line)
                continue
            lines += textwrap.wrap(
                one_line,
                max(width, indent + 40),
                initial_indent=first + arrow,
                subsequent_indent=" " * indent + rest,
                break_long_words=False,
                break_on_hyphens=False,
            )
    lines.append("")
    lines.append(_summary(findings))
    return "\n".join(lines) + "\n"


def _summary(findings: Sequence[Finding]) -> str:
    words = []
    for status, one, many in (
        (Status.PROBLEM, "problem", "problems"),
        (Status.BROKEN, "broken check", "broken checks"),
        (Status.WARNING, "warning", "warnings"),
    ):
        count = sum(finding.status is status for finding in findings)
        words.append(f"{count or 'no'} {one if count == 1 else many}")
    ok = sum(finding.status is Status.OK for finding in findings)
    return f"{', '.join(words)}, {ok} ok"
