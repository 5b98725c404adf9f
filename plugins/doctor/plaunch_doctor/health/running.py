"""The health checks of a launch: found by name, asked side by side, each with a limit."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from plaunch.doctor import Finding, Status
from plaunch.durations import PERIOD
from plaunch.errors import ThreadStartError, UsageError
from plaunch.health import HealthCheck, HealthOccasion
from plaunch.plugin import HEALTH_CHECKS, one_line
from plaunch.threads import BoundedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch.plugin import PluginContext, PluginManager

logger = logging.getLogger("plaunch")

TIMEOUT = 10.0  # seconds that one check may take
TIMEOUT_VARIABLE = "PLAUNCH_HEALTH_CHECK_TIMEOUT"
_CLOSE_BOUND = 1.0  # seconds that the end of the launch waits for one check
_BAD = (Status.PROBLEM, Status.BROKEN)


class LaunchHealthChecks:
    """The health checks that the settings of a launch name.

    Args:
        manager: finds the checks.
        context: the launch; its settings have the checks' names.
        environ: the environment variables; by default this process's.

    Raises:
        UsageError: no check has the name, or its argument cannot be used.
        PluginError: a check cannot be loaded or made.
    """

    def __init__(
        self,
        manager: PluginManager,
        context: PluginContext,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        text = (os.environ if environ is None else environ).get(TIMEOUT_VARIABLE)
        self.timeout = (
            TIMEOUT if text is None else PERIOD.read(text, f"variable {TIMEOUT_VARIABLE}")
        )
        self._host = context.host
        given: Any = context.settings["health_checks"]
        if isinstance(given, str) or not all(isinstance(each, str) for each in given):
            raise UsageError(f"health_checks is {given!r}; give a list of names")
        self._checks = [_create(manager, context, each) for each in dict.fromkeys(given)]
        self._until = 0.0  # on the monotonic clock

    def begin(self, wake: Callable[[], None], *, is_restart: bool) -> None:
        """Ask all of them; `wake` is called with each answer, on its thread."""
        self._until = time.monotonic() + self.timeout
        for check in self._checks:
            check.begin(HealthOccasion(is_restart, self.timeout), wake)

    def remaining(self) -> float:
        """Seconds until no answer is waited for any longer; 0 once there is no reason to wait."""
        if all(check.has_answered() for check in self._checks):
            return 0.0
        return max(self._until - time.monotonic(), 0.0)

    def verdict(self) -> str:
        """What keeps this node out, in one line; empty if it is healthy, which is said."""
        bad: list[str] = []
        well: list[str] = []
        for check in self._checks:
            for finding in check.take(self.timeout):
                text = check.describe(finding)
                if finding.status in _BAD:
                    bad.append(text)
                elif finding.status is Status.WARNING:
                    logger.warning("%s", text)
                else:
                    well.append(text)
        if bad:
            return f"node {self._host} is not healthy: {'; '.join(bad)}"
        logger.info("node %s is healthy%s", self._host, f": {'; '.join(well)}" if well else "")
        return ""

    def calls(self) -> Mapping[str, Callable[[], Iterable[Finding]]]:
        """What asks each check once, by what the user wrote, for whoever brings threads along."""
        occasion = HealthOccasion(timeout=self.timeout)
        return {check.given: partial(check.ask, occasion) for check in self._checks}

    def close(self) -> None:
        """The launch is over; a check that is still at work is told, and left to itself."""
        for check in self._checks:
            check.close()


class _Check:
    """One check of a launch.

    Args:
        given: what the user wrote.
        who: the check and its plugin, for messages.
        check: what is asked.
    """

    def __init__(self, given: str, who: str, check: HealthCheck) -> None:
        self.given = given
        self._who = who
        self._check = check
        self._call: BoundedCall | None = None
        self._found: list[Finding] | None = []  # None while it has not answered
        self._trouble: Finding | None = None  # why it is not asked

    def begin(self, occasion: HealthOccasion, wake: Callable[[], None]) -> None:
        """Ask on a thread, unless it has still not answered what it was asked before."""
        self._trouble = None
        if not self.has_answered():
            self._trouble = self._broken("has still not answered what it was asked before")
            return

        def ask() -> None:
            self._found = self.ask(occasion)
            wake()

        self._found = None
        try:
            self._call = BoundedCall("health-check", ask)
        except ThreadStartError as error:
            self._found = [self._broken(f"was not asked: {error}")]

    def has_answered(self) -> bool:
        """Whether there is nothing to wait for."""
        return self._trouble is not None or self._found is not None

    def take(self, timeout: float) -> list[Finding]:
        """What it has found, within the `timeout`."""
        if self._trouble is not None:
            return [self._trouble]
        if self._found is None:
            return [self._broken(f"has not answered within {timeout:g} s")]
        if self._call is not None:
            # Workers may be forked next, and its thread be about to end.
            self._call.wait(_CLOSE_BOUND)
        return self._found

    def ask(self, occasion: HealthOccasion) -> list[Finding]:
        """What it finds; whatever else it does is a BROKEN finding."""
        found: list[Any]
        try:
            found = list(self._check.check(occasion))
        except BaseException as error:  # noqa: BLE001 - also SystemExit; it is named
            return [self._broken(f"failed: {one_line(error)}")]
        for item in found:
            if not (isinstance(item, Finding) and isinstance(item.status, Status)):
                return [self._broken(f"gave {item!r}, which is not a Finding")]
        return found

    def describe(self, finding: Finding) -> str:
        """A finding in one line."""
        said = f"{finding.what}: {finding.found}"
        if finding.status is Status.BROKEN and self._who in finding.found:
            said = finding.found
        if finding.status is not Status.OK:
            said += f" ({HEALTH_CHECKS.flag}={self.given})"
            said += f"; {finding.advice}" if finding.advice else ""
        return " ".join(said.split())

    def close(self) -> None:
        """Let it clean up."""
        close = getattr(self._check, "close", None)
        if not callable(close):
            return
        try:
            call = BoundedCall("close-health-check", close)
        except ThreadStartError as error:
            logger.warning("%s cannot be closed: %s", self._who, error)
            return
        if not call.wait(_CLOSE_BOUND):
            logger.warning("%s has not returned from close; it is left to itself", self._who)
        elif call.error is not None:
            logger.warning("%s failed in close: %s", self._who, one_line(call.error))

    def _broken(self, text: str) -> Finding:
        return Finding(Status.BROKEN, self.given, f"{self._who} {text}")


def _checked(check: object) -> HealthCheck:
    if not isinstance(check, HealthCheck):
        raise TypeError(f"it returned {check!r}, which has no method 'check'")
    return check


def _create(manager: PluginManager, context: PluginContext, given: str) -> _Check:
    """Make the check that a user has written as `NAME`, `NAME:ARGUMENT`, or with a distribution."""
    parts = given.split(":")
    known = parts[0] in manager.names(HEALTH_CHECKS)
    length = 1 if known else 2
    name, argument = ":".join(parts[:length]), ":".join(parts[length:])
    if not known and len(parts) > 1 and parts[1] not in manager.names(HEALTH_CHECKS):
        name = parts[0]  # the one that is unknown
    create = manager.get(HEALTH_CHECKS, name)
    has_argument = len(parts) > length
    if has_argument and not getattr(create, "takes_argument", False):
        raise UsageError(
            f"the health check {name!r} takes no argument, but {given!r} gives it {argument!r} "
            f"({HEALTH_CHECKS.flag})"
        )
    context = replace(context, options={"argument": argument} if has_argument else {})
    check = manager.call(HEALTH_CHECKS, name, lambda: _checked(create(context)))
    origin = manager.origin(HEALTH_CHECKS, name)
    return _Check(given, f"the health check {name!r}" + (f" ({origin})" if origin else ""), check)
