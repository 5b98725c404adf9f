"""What a check has found, and how it is printed."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.doctor.context import DoctorContext


class Status(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"  # a job may run, but something is likely to go wrong, or to be slow
    PROBLEM = "problem"  # a job with these options does not start, or does not work
    BROKEN = "broken"  # the check itself failed, so that the question is open


@dataclass(frozen=True)
class Finding:
    """One answer of a check.

    Args:
        status: how bad it is.
        what: what was looked at, in one to three words; the line's heading.
        found: what is there, with numbers.
        advice: what to do; empty if all is well.
    """

    status: Status
    what: str
    found: str
    advice: str = ""


# Gives what one look at the node has found; may take a few seconds.
Check = Callable[["DoctorContext"], Iterable[Finding]]

_BAD = frozenset({Status.PROBLEM, Status.BROKEN})


def exit_code(findings: Iterable[Finding]) -> int:
    """0 if nothing is a problem and every check could be made, else 1."""
    return int(any(finding.status in _BAD for finding in findings))


def format_findings(findings: Sequence[Finding], width: int | None = None) -> str:
    """Lay findings out as aligned lines, the advice below each, and a summary at the end.

    Args:
        findings: what was found.
        width: columns of the terminal; None leaves each text on one line, for logs.
    """
    import textwrap  # noqa: PLC0415 - needs `re`, and is not for ordinary launches

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
