"""Running checks: each on its own, bounded, and unable to spoil the others."""

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

# How long all checks together may take, in seconds; they run at the same time.
CHECKS_TIMEOUT = 15.0


class NotDoneError(Exception):
    """A call has not come back in time."""


class Bounded:
    """A call whose result is waited for no longer than allowed.

    If the system gives no thread, which the checks should report, it is made when its result is
    wanted, without a limit: Ctrl-C ends it.
    """

    def __init__(self, name: str, call: Callable[[], object]) -> None:
        self._function = call
        self._call: BoundedCall | None = None
        with contextlib.suppress(ThreadStartError):
            self._call = BoundedCall(name, call)

    def result(self, timeout: float) -> object:
        """The result of the call.

        Raises:
            NotDoneError: it has not returned in `timeout` seconds.
            BaseException: what the call raised.
        """
        if self._call is None:
            return self._function()
        if not self._call.wait(timeout):
            raise NotDoneError("it has not ended")
        if self._call.error is not None:
            raise self._call.error
        return self._call.result


def run_checks(
    checks: Mapping[str, Check], context: NodeContext, timeout: float = CHECKS_TIMEOUT
) -> list[Finding]:
    """Run all checks at the same time; the findings come in the order of the checks.

    A check that raises, gives something other than findings, or is not done within `timeout`
    seconds, is itself reported as broken.

    Args:
        checks: the checks by name, which is the heading of a broken one.
        context: what they are given.
        timeout: how long all of them together may take, in seconds.
    """
    deadline = time.monotonic() + timeout
    # The lists are made inside the threads, where checks that are generators do their work.
    calls = {
        name: Bounded(f"check-{name}", lambda check=check: list(check(context)))  # type: ignore[misc]
        for name, check in checks.items()
    }
    findings: list[Finding] = []
    for name, call in calls.items():
        try:
            found = call.result(deadline - time.monotonic())
        except NotDoneError:
            findings.append(
                _broken(name, f"the check did not finish within {timeout:g} s", "it was abandoned")
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - one check never spoils the others
            findings.append(_broken(name, f"the check failed: {type(error).__name__}: {error}", ""))
        else:
            findings += _checked(name, found)
    return findings


def _checked(name: str, found: object) -> list[Finding]:
    findings: list[Finding] = []
    for item in found if isinstance(found, list) else [found]:
        if not isinstance(item, Finding):
            return [_broken(name, f"the check gave {item!r}, which is not a Finding", "")]
        findings.append(item)
    return findings


def _broken(name: str, found: str, more: str) -> Finding:
    advice = "the subject of the check is not known" + (f"; {more}" if more else "")
    return Finding(
        Status.BROKEN, name, found, f"{advice}. If the check belongs to a plugin, tell its author"
    )
