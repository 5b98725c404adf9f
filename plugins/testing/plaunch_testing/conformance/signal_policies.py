"""What every signal policy must do."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest
from plaunch.errors import UsageError
from plaunch.process import SignalAction, SignalPolicy

from plaunch_testing.conformance.plugin_suite import PluginSuite
from plaunch_testing.conformance.surroundings import usage_errors

if TYPE_CHECKING:
    from plaunch.plugin import SignalPolicyFactory

_UNCATCHABLE = frozenset({signal.SIGKILL, signal.SIGSTOP})


class SignalPolicyConformance(PluginSuite):
    """Derive from it, say what the `plugin` is, and let pytest collect the class.

    `settings` are the fields of the launch that the policy needs with other values than their
    defaults.
    """

    def plugin(self) -> SignalPolicyFactory:
        """What the policy's name gives; to be overridden."""
        raise NotImplementedError

    def create(self, **settings: object) -> SignalPolicy:
        """Create the policy of a launch with these settings."""
        context = self.context()
        context = self.context(settings={**context.settings, **settings})
        policy: SignalPolicy = self.call("creating it", self.thing, context)
        return policy

    def use_once(self) -> object:
        """Ask what its signals mean; only the agent installs handlers."""
        policy = self.create()
        for signum in policy.signals():
            policy.action(signum)
        return policy

    def test_it_has_the_methods_of_a_policy(self) -> None:
        """`signals` and `action`."""
        policy = self.create()
        assert isinstance(policy, SignalPolicy), f"{policy!r} lacks one of the two methods"

    def test_its_signals_are_signals(self) -> None:
        """Members of `signal.Signals`, none of them twice."""
        policy = self.create()
        found = list(self.call("signals()", policy.signals))
        assert all(isinstance(signum, signal.Signals) for signum in found), f"it gives {found!r}"
        assert len(found) == len(set(found)), f"it gives one twice: {found!r}"

    def test_its_signals_can_be_handled(self) -> None:
        """SIGKILL and SIGSTOP never reach the launcher."""
        found = set(self.create().signals()) & _UNCATCHABLE
        assert not found, f"no process can handle {', '.join(s.name for s in found)}"

    def test_its_signals_stay_the_same(self) -> None:
        """They are asked for when handlers are installed; another answer later would be lost."""
        policy = self.create()
        assert set(policy.signals()) == set(policy.signals())

    def test_it_answers_for_every_signal_of_its_own(self) -> None:
        """With a `SignalAction`, in time."""
        policy = self.create()
        for signum in policy.signals():
            action = self.call(f"action({signum.name})", policy.action, signum)
            assert isinstance(action, SignalAction), f"of {signum!r} it says {action!r}"

    def test_it_answers_for_every_other_signal(self) -> None:
        """Whichever: an answer must not depend on who asks."""
        policy = self.create()
        own = set(policy.signals())
        for signum in set(signal.Signals) - own:
            action = self.call(f"action({signum.name})", policy.action, signum)
            assert isinstance(action, SignalAction), f"of {signum!r} it says {action!r}"

    def test_its_answers_stay_the_same(self) -> None:
        """A second SIGTERM means what the first one did; the agent knows what to do about it."""
        policy = self.create()
        for signum in policy.signals():
            assert policy.action(signum) is policy.action(signum), f"of {signum!r}"

    def test_two_policies_do_not_mix(self) -> None:
        """Several launches may run in one process, each with settings of its own."""
        first = self.create()
        before = {signum: first.action(signum) for signum in first.signals()}
        with contextlib.suppress(UsageError):  # it may contradict other settings
            self.create(signals_to_handle="SIGWINCH", run_id="another")
        assert {signum: first.action(signum) for signum in first.signals()} == before

    @pytest.mark.parametrize("value", ["SIGNONSENSE", "", "SIGKILL", "SIGTERM;SIGINT", 15, None])
    def test_a_bad_setting_is_a_usage_error(self, value: object) -> None:
        """If it matters to the policy; no other exception may leave it."""
        with usage_errors():
            self.create(signals_to_handle=value).signals()
