"""The conformance suite for health checks."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

import pytest
from plaunch.doctor import Finding, Status
from plaunch.health import HealthCheck, HealthOccasion

from plaunch_testing.conformance.plugin_suite import PluginSuite, usage_errors, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from plaunch.plugin import HealthCheckFactory

_SECONDS = 5.0  # for the check; a launch allows twice as many
_ARGUMENTS = ("", " ", "0", "-1", "8G", "/", "a:b", "'", "ключ", "x" * 10_000)


class HealthCheckConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `settings` are the fields of the launch that must differ from their defaults; `options` has its
    `argument`, if it needs one. The status of the findings does not matter.
    """

    def plugin(self) -> HealthCheckFactory:
        """Return the object that the check's name refers to; override this."""
        raise NotImplementedError

    def create(self, **changes: Any) -> HealthCheck:
        """Create the check for a node of a launch."""
        check: HealthCheck = self.call("creating it", self.thing, self.context(**changes))
        return check

    def ask(self, check: HealthCheck, *, is_restart: bool = False) -> Sequence[Finding]:
        """Run the check, and verify that its findings are valid."""
        occasion = HealthOccasion(is_restart, _SECONDS)
        what = "check of a restart" if is_restart else "check of a start"
        found = within(_SECONDS, what, lambda: list(check.check(occasion)))
        for item in found:
            assert isinstance(item, Finding), f"it returned {item!r}, which is not a Finding"
            assert isinstance(item.status, Status), f"its status is {item.status!r}"
            for text in (item.what, item.found, item.advice):
                assert isinstance(text, str), f"{text!r} of {item!r} is not a str"
            assert item.what.strip(), f"{item!r} does not say what was checked"
            assert item.found.strip(), f"{item!r} does not say what was found"
        return found

    def use_once(self) -> object:
        """Run it at the start, and after a failure."""
        check = self.create()
        self.ask(check)
        self.ask(check, is_restart=True)
        self._used = check
        return check

    def end_use(self) -> None:
        """Close it."""
        _close(self._used)

    def test_it_has_the_method_of_a_check(self) -> None:
        """It has `check`."""
        check = self.create()
        assert isinstance(check, HealthCheck), f"{check!r} has no method 'check'"

    def test_it_can_be_closed_without_a_run(self) -> None:
        """`--dry-run` creates checks, and does not run them."""
        self.call("close()", _close, self.create())

    def test_it_returns_findings_at_the_start(self) -> None:
        """`check` returns findings in time."""
        self.ask(self.create())

    def test_it_returns_findings_after_each_failure(self) -> None:
        """It may run any number of times."""
        check = self.create()
        for number in range(4):
            self.ask(check, is_restart=number > 0)

    def test_it_returns_findings_after_a_failure_without_a_start(self) -> None:
        """The doctor may run it in any order."""
        self.ask(self.create(), is_restart=True)

    def test_it_returns_findings_without_a_log_folder(self) -> None:
        """A launch may have none."""
        self.ask(self.create(log_dir=None))

    def test_two_checks_do_not_mix(self) -> None:
        """A program may have two launches."""
        first, second = self.create(), self.create()
        for check in (first, second, first):
            self.ask(check)

    def test_it_can_be_closed_while_it_runs(self) -> None:
        """A signal may end the launch at any time; `close` does not wait for `check`."""
        check = self.create()
        asked = threading.Thread(target=lambda: self._ask_quietly(check), daemon=True)
        asked.start()
        self.call("close()", _close, check)
        asked.join(_SECONDS)
        assert not asked.is_alive(), "it continues after close()"

    @pytest.mark.parametrize("argument", _ARGUMENTS, ids=lambda text: repr(text)[:20])
    def test_bad_arguments_are_usage_errors(self, argument: str) -> None:
        """Any text from the command line is accepted, or raises a `UsageError`."""
        if not getattr(self.thing, "takes_argument", False):
            pytest.skip("it takes no argument, and plaunch gives it none")
        with usage_errors():
            self.create(options={"argument": argument})

    def _ask_quietly(self, check: HealthCheck) -> None:
        with contextlib.suppress(Exception):  # other checks cover errors
            list(check.check(HealthOccasion(timeout=_SECONDS)))


def _close(check: Any) -> None:
    close = getattr(check, "close", None)
    if close is not None:
        close()
