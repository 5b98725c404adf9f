"""The conformance suite for signal policies."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest
from plaunch.errors import UsageError
from plaunch.process import SignalAction, SignalPolicy

from plaunch_testing.conformance.plugin_suite import PluginSuite, usage_errors

if TYPE_CHECKING:
    from plaunch.plugin import SignalPolicyFactory

_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})


class SignalPolicyConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `settings` are the fields of the launch that must differ from their defaults.
    """

    def plugin(self) -> SignalPolicyFactory:
        """Return the object that the policy's name refers to; override this."""
        raise NotImplementedError

    def create(self, **settings: object) -> SignalPolicy:
        """Create the policy for a launch with these settings."""
        context = self.context()
        context = self.context(settings={**context.settings, **settings})
        policy: SignalPolicy = self.call("creating it", self.thing, context)
        return policy

    def use_once(self) -> object:
        """Get the actions of its signals; only the agent installs handlers."""
        policy = self.create()
        for signum in policy.signals():
            policy.action(signum)
        return policy

    def test_it_has_the_methods_of_a_policy(self) -> None:
        """It has `signals` and `action`."""
        policy = self.create()
        assert isinstance(policy, SignalPolicy), f"{policy!r} lacks one of the two methods"

    def test_its_signals_are_signals(self) -> None:
        """They are members of `signal.Signals`, without duplicates."""
        policy = self.create()
        found = list(self.call("signals()", policy.signals))
        assert all(isinstance(signum, signal.Signals) for signum in found), f"it returns {found!r}"
        assert len(found) == len(set(found)), f"it returns duplicates: {found!r}"

    def test_its_signals_can_be_handled(self) -> None:
        """SIGKILL and SIGSTOP never reach the launcher."""
        found = set(self.create().signals()) & _UNCATCHABLE
        assert not found, f"no process can handle {', '.join(s.name for s in found)}"

    def test_its_signals_stay_the_same(self) -> None:
        """The agent reads them once, when it installs handlers."""
        policy = self.create()
        assert set(policy.signals()) == set(policy.signals())

    def test_it_has_an_action_for_each_of_its_signals(self) -> None:
        """`action` returns a `SignalAction` in time."""
        policy = self.create()
        for signum in policy.signals():
            action = self.call(f"action({signum.name})", policy.action, signum)
            assert isinstance(action, SignalAction), f"for {signum!r} it returns {action!r}"

    def test_it_has_an_action_for_every_other_signal(self) -> None:
        """Any action: the result must not depend on the caller."""
        policy = self.create()
        own = set(policy.signals())
        for signum in set(signal.Signals) - own:
            action = self.call(f"action({signum.name})", policy.action, signum)
            assert isinstance(action, SignalAction), f"for {signum!r} it returns {action!r}"

    def test_its_actions_stay_the_same(self) -> None:
        """A second SIGTERM has the same action as the first one; the agent handles repetition."""
        policy = self.create()
        for signum in policy.signals():
            assert policy.action(signum) is policy.action(signum), f"for {signum!r}"

    def test_two_policies_do_not_mix(self) -> None:
        """Several launches may run in one process, each with its own settings."""
        first = self.create()
        before = {signum: first.action(signum) for signum in first.signals()}
        with contextlib.suppress(UsageError):  # it may contradict other settings
            self.create(signals_to_handle="SIGWINCH", run_id="another")
        assert {signum: first.action(signum) for signum in first.signals()} == before

    @pytest.mark.parametrize("value", ["SIGNONSENSE", "", "SIGKILL", "SIGTERM;SIGINT", 15, None])
    def test_a_bad_setting_is_a_usage_error(self, value: object) -> None:
        """It may be accepted, but no other exception may be raised."""
        with usage_errors():
            self.create(signals_to_handle=value).signals()
