"""The health checks of a launch: created by name, run at the same time, with a time limit."""

from __future__ import annotations

import logging
import os
import threading
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

from plaunch_doctor.findings import BAD, collect_findings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from plaunch.plugin import PluginContext, PluginManager

_PERIOD = 0.2  # seconds between two attempts
_MARGIN = 0.1  # share of the time that is kept for returning
logger = logging.getLogger("plaunch")

TIMEOUT = 10.0  # seconds that one check may take
TIMEOUT_VARIABLE = "PLAUNCH_HEALTH_CHECK_TIMEOUT"
_CLOSE_TIMEOUT = 1.0  # seconds that the end of the launch waits for one check


class CheckDeadline:
    """The deadline of one run of a check; `end` brings it forward, from any thread."""

    def __init__(self) -> None:
        self._has_ended = threading.Event()
        self._until = 0.0  # on the monotonic clock
        self.seconds = 0.0  # how long the check may take

    def begin(self, occasion: HealthOccasion) -> None:
        """Start the clock."""
        self.seconds = occasion.timeout * (1 - _MARGIN)
        self._until = time.monotonic() + self.seconds

    @property
    def remaining(self) -> float:
        """Seconds that are left."""
        if self._has_ended.is_set():
            return 0.0
        return max(self._until - time.monotonic(), 0.0)

    def pause(self) -> bool:
        """Sleep before the next attempt; return False if no time is left."""
        return not self._has_ended.wait(min(_PERIOD, self.remaining)) and self.remaining > 0

    def end(self) -> None:
        """Leave no time from now on."""
        self._has_ended.set()


class LaunchHealthChecks:
    """The health checks that the settings of a launch name.

    Args:
        manager: creates the checks.
        context: the launch; its settings name the checks.
        environ: the environment variables; by default this process's.

    Raises:
        UsageError: a check is unknown, or its argument is invalid.
        PluginError: a check cannot be loaded or created.
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
        self._deadline = 0.0  # on the monotonic clock

    def begin(self, wake: Callable[[], None], *, is_restart: bool) -> None:
        """Start all checks; `wake` is called after each one, on its thread."""
        self._deadline = time.monotonic() + self.timeout
        for check in self._checks:
            check.begin(HealthOccasion(is_restart, self.timeout), wake)

    def remaining(self) -> float:
        """Return the seconds left to wait; 0 if all checks have returned."""
        if all(check.has_answered() for check in self._checks):
            return 0.0
        return max(self._deadline - time.monotonic(), 0.0)

    def verdict(self) -> str:
        """Return why this node is excluded, in one line; log and return "" if it is healthy."""
        bad: list[str] = []
        well: list[str] = []
        for check in self._checks:
            for finding in check.findings(self.timeout):
                text = check.describe(finding)
                if finding.status in BAD:
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
        """Return a function for each check that runs it on the caller's thread."""
        occasion = HealthOccasion(timeout=self.timeout)
        return {check.given: partial(check.run, occasion) for check in self._checks}

    def close(self) -> None:
        """Close all checks; a check that is still running is abandoned."""
        for check in self._checks:
            check.close()


class NamedCheck:
    """One check of a launch.

    Args:
        given: what the user wrote.
        description: the check and its plugin, for messages.
        check: the check that a plugin created.
    """

    def __init__(self, given: str, description: str, check: HealthCheck) -> None:
        self.given = given
        self._description = description
        self._check = check
        self._call: BoundedCall | None = None
        self._findings: list[Finding] | None = []  # None while it runs
        self._start_error: Finding | None = None  # why it did not start

    def begin(self, occasion: HealthOccasion, wake: Callable[[], None]) -> None:
        """Start the check on a thread, unless its previous run has still not returned."""
        self._start_error = None
        if not self.has_answered():
            self._start_error = self._broken("has still not returned from its previous run")
            return

        def run() -> None:
            self._findings = self.run(occasion)
            wake()

        self._findings = None
        try:
            self._call = BoundedCall("health-check", run)
        except ThreadStartError as error:
            self._findings = [self._broken(f"was not started: {error}")]

    def has_answered(self) -> bool:
        """Whether there is no run to wait for."""
        return self._start_error is not None or self._findings is not None

    def findings(self, timeout: float) -> list[Finding]:
        """Return the findings of the run; a BROKEN one if it exceeded `timeout` seconds."""
        if self._start_error is not None:
            return [self._start_error]
        if self._findings is None:
            return [self._broken(f"did not return within {timeout:g} s")]
        if self._call is not None:
            # Let its thread end: workers may be forked next.
            self._call.wait(_CLOSE_TIMEOUT)
        return self._findings

    def run(self, occasion: HealthOccasion) -> list[Finding]:
        """Run the check; return its findings, or a BROKEN one if it raises or returns others."""
        return collect_findings(partial(self._check.check, occasion), self._broken)

    def describe(self, finding: Finding) -> str:
        """Format a finding as one line."""
        text = f"{finding.what}: {finding.found}"
        if finding.status is Status.BROKEN and self._description in finding.found:
            text = finding.found
        if finding.status is not Status.OK:
            text += f" ({HEALTH_CHECKS.flag}={self.given})"
            text += f"; {finding.advice}" if finding.advice else ""
        return " ".join(text.split())

    def close(self) -> None:
        """Call the check's `close`, with a time limit."""
        close = getattr(self._check, "close", None)
        if not callable(close):
            return
        try:
            call = BoundedCall("close-health-check", close)
        except ThreadStartError as error:
            logger.warning("%s cannot be closed: %s", self._description, error)
            return
        if not call.wait(_CLOSE_TIMEOUT):
            logger.warning("%s has not returned from close; it is abandoned", self._description)
        elif call.error is not None:
            logger.warning("%s failed in close: %s", self._description, one_line(call.error))

    def _broken(self, text: str) -> Finding:
        return Finding(Status.BROKEN, self.given, f"{self._description} {text}")


def _checked(check: object) -> HealthCheck:
    if not isinstance(check, HealthCheck):
        raise TypeError(f"it returned {check!r}, which has no method 'check'")
    return check


def _create(manager: PluginManager, context: PluginContext, given: str) -> NamedCheck:
    """Create the check that the user gave as `NAME` or `NAME:ARGUMENT`, or with a distribution."""
    parts = given.split(":")
    known = parts[0] in manager.names(HEALTH_CHECKS)
    length = 1 if known else 2
    name, argument = ":".join(parts[:length]), ":".join(parts[length:])
    if not known and len(parts) > 1 and parts[1] not in manager.names(HEALTH_CHECKS):
        name = parts[0]  # for the error
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
    return NamedCheck(
        given, f"the health check {name!r}" + (f" ({origin})" if origin else ""), check
    )
