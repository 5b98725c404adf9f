"""Collects the findings of a check, and formats them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plaunch.doctor import Finding, Status
from plaunch.plugin import one_line
from plaunch.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

BAD = frozenset({Status.PROBLEM, Status.BROKEN})


def collect_findings(
    check: Callable[[], Iterable[Finding]], broken: Callable[[str], Finding]
) -> list[Finding]:
    """Run a check, which may be a generator, to its end.

    Args:
        check: returns or yields findings.
        broken: creates the only finding of a check that raises, or that returns anything else; its
            argument is the end of a sentence about the check.
    """
    try:
        found: list[Any] = list(check())
    except BaseException as error:  # noqa: BLE001 - also SystemExit
        return [broken(f"failed: {one_line(error)}")]
    for item in found:
        if not (isinstance(item, Finding) and isinstance(item.status, Status)):
            return [broken(f"returned {item!r}, which is not a Finding")]
    return found


def exit_code(findings: Iterable[Finding]) -> int:
    """Return 0 without problems and broken checks, else 1."""
    return int(any(finding.status in BAD for finding in findings))


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
            one_line = printable(" ".join(text.split()))
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
