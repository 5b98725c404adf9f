"""Runs checks, each on a thread with a time limit, and formats their findings."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import ThreadStartError
from plaunch.threads import BoundedCall

from plaunch_doctor.context import NodeContext

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Checks one thing and returns findings. May take a few seconds.
Check = Callable[[NodeContext], Iterable[Finding]]

_BAD = frozenset({Status.PROBLEM, Status.BROKEN})
# Seconds for all checks; they run at the same time.
CHECKS_TIMEOUT = 15.0


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


class CallTimeoutError(Exception):
    """A call did not return in time."""


class TimedCall:
    """A call on a thread, with a time limit for its result.

    If no thread can be started, which the checks should report, `result` makes the call itself,
    without a limit: Ctrl-C ends it.
    """

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._function = call
        self._call: BoundedCall | None = None
        with contextlib.suppress(ThreadStartError):
            self._call = BoundedCall(name, call)

    def result(self, timeout: float) -> object:
        """Return the result of the call.

        Raises:
            CallTimeoutError: the call did not return in `timeout` seconds.
            BaseException: what the call raised.
        """
        if self._call is None:
            return self._function()
        if not self._call.wait(timeout):
            raise CallTimeoutError("it has not ended")
        if self._call.error is not None:
            raise self._call.error
        return self._call.result


def run_checks(
    checks: Mapping[str, Check], context: NodeContext, timeout: float = CHECKS_TIMEOUT
) -> list[Finding]:
    """Run all checks at the same time, and return their findings in the order of `checks`.

    A check that raises, returns anything other than findings, or takes longer than `timeout`, is
    reported as broken.

    Args:
        checks: the checks by name, which is the heading of a broken one.
        context: passed to each check.
        timeout: seconds for all of them together.
    """
    deadline = time.monotonic() + timeout
    # list() runs on the threads, because checks may be generators.
    calls = {
        name: TimedCall(f"check-{name}", lambda check=check: list(check(context)))  # type: ignore[misc]
        for name, check in checks.items()
    }
    findings: list[Finding] = []
    for name, call in calls.items():
        try:
            found = call.result(deadline - time.monotonic())
        except CallTimeoutError:
            findings.append(
                _broken(name, f"the check did not finish within {timeout:g} s", "it was abandoned")
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - reported as a broken check
            findings.append(_broken(name, f"the check failed: {type(error).__name__}: {error}", ""))
        else:
            findings += _checked(name, found)
    return findings


def _checked(name: str, found: object) -> list[Finding]:
    findings: list[Finding] = []
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, Finding):
            return [_broken(name, f"the check returned {item!r}, which is not a Finding", "")]
        findings.append(item)
    return findings


def _broken(name: str, found: str, more: str) -> Finding:
    advice = "the subject of the check is not known" + (f"; {more}" if more else "")
    return Finding(
        Status.BROKEN,
        name,
        found,
        f"{advice}. If the check belongs to a plugin, report this to its author",
    )
