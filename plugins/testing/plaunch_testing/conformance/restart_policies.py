"""The conformance suite for restart policies."""

from __future__ import annotations

import copy
import random
import time
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from plaunch.process import ProcessFailure
from plaunch.restarts import Cause, Decided, Decision, Failure, RestartAction, RestartPolicy

from plaunch_testing.conformance.plugin_suite import PluginSuite, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from plaunch.plugin import RestartPolicyFactory

_SECONDS = 1.0  # time limit of a decision
_DAY = 86400.0
_HISTORIES = 20
_LONG_HISTORY = 2000
_TEXTS = ("", "ValueError: bad shape", "ключ\udcff", "a" * 300, "%s {0} \\")


class RestartPolicyConformance(PluginSuite):
    """Subclass this suite and implement `plugin`; pytest collects the subclass.

    `settings` are the fields of the launch that must differ from their defaults, `options` the
    options that its package declares.
    """

    def plugin(self) -> RestartPolicyFactory:
        """Return the object that the policy's name refers to; override this."""
        raise NotImplementedError

    def create(self, host: str = "node0", **settings: object) -> RestartPolicy:
        """Create the policy on a node of a launch with these settings."""
        context = self.context()
        context = self.context(host=host, settings={**context.settings, **settings})
        policy: RestartPolicy = self.call("creating it", self.thing, context)
        return policy

    def decide(
        self, policy: RestartPolicy, failure: Failure, history: Sequence[Decided] = ()
    ) -> Decision:
        """Call `decide`, and verify that it returns a decision."""
        what = f"decide({failure!r:.200})"
        answer = within(_SECONDS, what, lambda: policy.decide(failure, history))
        assert isinstance(answer, Decision), (
            f"for {failure!r} it returned {answer!r}, not a Decision"
        )
        return answer

    def use_once(self) -> object:
        """Decide on some failures, each with its history."""
        policy = self.create()
        for failure, history in _situations():
            policy.decide(failure, history)
        return policy

    def test_it_has_the_method_of_a_policy(self) -> None:
        """It has `decide`."""
        policy = self.create()
        assert isinstance(policy, RestartPolicy), f"{policy!r} has no method 'decide'"

    @pytest.mark.parametrize("cause", list(Cause), ids=lambda cause: cause.value)
    def test_it_decides_about_every_cause(self, cause: Cause) -> None:
        """It decides within a second, even with few facts."""
        policy = self.create()
        for failure in _failures(cause):
            self.decide(policy, failure)

    def test_it_decides_with_every_history(self) -> None:
        """The history may not begin at the start of the job."""
        policy = self.create()
        for failure, history in _situations():
            self.decide(policy, failure, history)

    def test_it_is_quick_with_a_long_history(self) -> None:
        """The job waits at most a second for a decision."""
        failure = Failure(Cause.WORKER, 0, "node0", 1, time=_DAY, attempt=_LONG_HISTORY)
        history = [
            Decided(
                Failure(Cause.WORKER, 0, "node0", 1, time=float(number), attempt=number),
                Decision(RestartAction.RESTART),
            )
            for number in range(_LONG_HISTORY)
        ]
        self.decide(self.create(), failure, history)

    def test_a_stop_says_why(self) -> None:
        """The operator sees only the reason."""
        policy = self.create()
        for failure, history in _situations():
            answer = self.decide(policy, failure, history)
            if answer.action is RestartAction.STOP:
                assert answer.reason.strip(), f"it stops after {failure!r} and gives no reason"

    def test_it_keeps_nothing_between_calls(self) -> None:
        """Another node, with a new policy object, may decide on the next failure."""
        policy = self.create()
        for failure, history in _situations():
            answer = self.decide(policy, failure, history)
            for other in (policy, self.create()):
                again = self.decide(other, failure, history)
                assert again == answer, f"for {failure!r} it returns {answer!r}, then {again!r}"

    def test_it_decides_the_same_on_every_node(self) -> None:
        """The leader decides, so the host name must not matter."""
        for failure, history in _situations():
            here = self.decide(self.create("node0"), failure, history)
            there = self.decide(self.create("node1"), failure, history)
            assert here == there, f"for {failure!r} nodes return {here!r} and {there!r}"

    def test_it_does_not_use_the_clock(self) -> None:
        """It uses `Failure.time`, because clocks of nodes differ, and no random numbers."""
        for failure, history in _situations():
            random.seed(0)
            now = self.decide(self.create(), failure, history)
            with mock.patch("time.time", return_value=time.time() + _DAY):
                random.seed(1)
                later = self.decide(self.create(), failure, history)
            assert now == later, f"for {failure!r} it returns {now!r}, and {later!r} on another day"

    def test_it_changes_nothing_that_it_is_given(self) -> None:
        """The history belongs to the job."""
        policy = self.create()
        for failure, history in _situations():
            before = copy.deepcopy(history)
            self.decide(policy, failure, history)
            assert history == before, "it has changed the history"


def _failures(cause: Cause) -> Iterator[Failure]:
    """Yield failures of one cause, with many facts and with few."""
    yield Failure(cause, -1, "", 0)
    for text in _TEXTS:
        for exitcode in (1, -9, 255):
            worker = ProcessFailure(0, 4242, exitcode, "")
            yield Failure(
                cause,
                3,
                "node1",
                exitcode,
                exception=text.partition(":")[0],
                message=text,
                place="train.py:12" if text else "",
                last_lines=(text,),
                is_retryable=(None, True, False)[len(text) % 3],
                retry_after=None if text else 5.0,
                started=0.5,
                time=1.7e9,
                attempt=2,
                failures={3: worker},
            )


def _situations() -> Iterator[tuple[Failure, list[Decided]]]:
    """Yield the same failures and histories each time."""
    dice = random.Random(0)  # noqa: S311 - reproducible
    for number in range(_HISTORIES):
        history: list[Decided] = []
        now = 1.7e9
        for attempt in range(number % 7 + 1):
            now += dice.choice((0.5, 60.0, 7200.0))
            failure = Failure(
                dice.choice(list(Cause)) if number % 2 else Cause.WORKER,
                dice.randrange(4),
                f"node{dice.randrange(3)}",
                dice.choice((1, 1, 2, -9)),
                exception=dice.choice(("", "ValueError", "pkg.ConfigError")),
                message="it failed",
                place=dice.choice(("", "train.py:12")),
                is_retryable=dice.choice((None, None, True, False)),
                started=dice.choice((0.1, 3000.0, 1e9)),
                time=now,
                attempt=attempt,
            )
            yield failure, list(history)
            history.append(Decided(failure, Decision(RestartAction.RESTART, "again")))
        yield failure, history[-1:]
