"""Runs checks: each on a thread, with a time limit, isolated from the others."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from plaunch.doctor import Finding, Status
from plaunch.errors import ThreadStartError
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from plaunch_doctor.context import NodeContext
    from plaunch_doctor.findings import Check

# Seconds for all checks; they run at the same time.
CHECKS_TIMEOUT = 15.0


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
