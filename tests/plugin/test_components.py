"""Components of third parties that the agent's loop calls."""

from __future__ import annotations

import math
import re
import signal
import sys
import time

import pytest
from plaunch.agent.poller import WakeUp
from plaunch.agent.signals import SignalInbox
from plaunch.errors import PluginError, UsageError
from plaunch.plugin import components
from plaunch.plugin.components import BoundedLogsSpecs, BoundedPolicy
from plaunch.process import LogsDest, LogsSpecs, OutputCounts, SignalAction

from helpers.faults import raising
from helpers.waiting import BOUND

WHO = "signal policy 'x' (distribution acme 1.0, module acme)"


class Policy:
    def __init__(self, action):
        self.asked = []
        self._action = action

    def signals(self):
        return [signal.SIGTERM, signal.SIGUSR1]

    def action(self, signum):
        self.asked.append(signum)
        return self._action()


class Specs(LogsSpecs):
    temporary_dir = "/scratch"

    def __init__(self, reify):
        super().__init__()
        self.closed = []
        self._reify = reify

    @property
    def root_log_dir(self):
        return "/logs"

    def reify(self, envs):
        envs[0]["MORE"] = "1"
        return self._reify()

    def create_run_dir(self, run_id):
        return f"/logs/{run_id}"

    def close(self, succeeded):
        self.closed.append(succeeded)


def never():
    return False


def test_a_policy_says_what_it_says() -> None:
    policy = Policy(lambda: SignalAction.NOTIFY)
    bounded = BoundedPolicy(policy, WHO)
    assert bounded.signals() == policy.signals()
    assert bounded.action(signal.SIGUSR1) is SignalAction.NOTIFY


def test_a_policy_that_does_not_answer_is_asked_once(monkeypatch, gate, caplog) -> None:
    monkeypatch.setattr(components, "POLICY_BOUND", 0.01)
    policy = Policy(lambda: gate.wait(BOUND))
    bounded = BoundedPolicy(policy, WHO)
    assert bounded.action(signal.SIGUSR1) is SignalAction.STOP
    assert bounded.action(signal.SIGTERM) is SignalAction.STOP
    assert policy.asked == [signal.SIGUSR1]
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} did not say within 0.01 s what SIGUSR1 means")


def test_a_policy_that_answers_nonsense_is_named(caplog) -> None:
    """The agent's messages are about the policy, and not about what stands before it."""
    wake_up = WakeUp()
    bounded = BoundedPolicy(Policy(lambda: None), WHO)
    with SignalInbox(bounded, wake_up) as inbox:
        signal.raise_signal(signal.SIGUSR1)
        (received,) = inbox.take()
    wake_up.close()
    assert received.action is SignalAction.IGNORE
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} does not say what SIGUSR1 means: it answers None")


def test_a_policy_that_lists_what_cannot_be_handled_is_named() -> None:
    wake_up = WakeUp()
    policy = Policy(None)
    policy.signals = lambda: [signal.SIGKILL]
    with (
        pytest.raises(UsageError, match=f"^{re.escape(WHO)} wants to handle"),
        SignalInbox(BoundedPolicy(policy, WHO), wake_up),
    ):
        pass
    wake_up.close()


def test_a_policy_may_list_signals_one_after_the_other() -> None:
    """They are asked for again when the rendezvous is shut down."""
    policy = Policy(None)
    policy.signals = lambda: iter([signal.SIGTERM])
    bounded = BoundedPolicy(policy, WHO)
    assert [*bounded.signals()] == [*bounded.signals()] == [signal.SIGTERM]


def test_a_logs_spec_does_what_it_does() -> None:
    dest = LogsDest()
    specs = Specs(lambda: dest)
    bounded = BoundedLogsSpecs(specs, "logs spec 'x'", never)
    envs = {0: {}}
    assert bounded.reify(envs) is dest
    assert envs == {0: {"MORE": "1"}}
    assert (bounded.root_log_dir, bounded.create_run_dir("job")) == ("/logs", "/logs/job")
    assert bounded.temporary_dir == "/scratch"
    bounded.close(True)
    assert specs.closed == [True]


class Streams:
    """Streams that do what a test wants."""

    def __init__(self, **behaviour):
        self.__dict__ |= behaviour

    def start(self):
        pass

    def child_fds(self, local_rank):
        return None, None

    def last_shown(self):
        return -math.inf

    def counts(self):
        return OutputCounts(1, 2, 3)


def bounded_streams(streams, is_unwanted=never):
    specs = Specs(None)
    specs.open_streams = lambda dest, nprocs, **options: streams
    return BoundedLogsSpecs(specs, WHO, is_unwanted).open_streams(LogsDest(), 1, prefixes={})


def test_a_logs_spec_that_opens_no_streams_gets_plaunchs() -> None:
    specs = Specs(None)
    own = specs.open_streams(LogsDest(), 1, prefixes={})
    assert type(BoundedLogsSpecs(specs, WHO, never).open_streams(LogsDest(), 1, prefixes={})) is (
        type(own)
    )


def test_streams_do_what_they_do() -> None:
    called = []
    streams = Streams(
        start=lambda: called.append("start"),
        finish=lambda: called.append("finish"),
        escalate=lambda: called.append("escalate"),
        last_lines=lambda local_rank: [str(local_rank)],
        is_shown=lambda local_rank: local_rank == 7,
    )
    bounded = bounded_streams(streams)
    assert bounded.child_fds(0) == (None, None)
    bounded.start()
    bounded.escalate()
    bounded.finish()
    bounded.finish()  # a stop and the end of a context both do so
    assert called == ["start", "escalate", "finish"]
    assert (bounded.last_lines(7), bounded.counts()) == (["7"], OutputCounts(1, 2, 3))
    assert (bounded.is_shown(7), bounded.is_shown(8)) == (True, False)
    assert not bounded_streams(Streams()).is_shown(7)  # they were written before there was this


def test_what_carries_no_streams_is_named() -> None:
    with pytest.raises(PluginError, match=f"^{re.escape(WHO)} returned None from open_streams"):
        bounded_streams(None)


def test_streams_that_do_not_return_are_named(monkeypatch, gate) -> None:
    monkeypatch.setattr(components, "START_BOUND", 0.01)
    bounded = bounded_streams(Streams(start=lambda: gate.wait(BOUND)))
    with pytest.raises(PluginError, match=f"^{re.escape(WHO)} has not returned from start within"):
        bounded.start()


def test_streams_that_fail_when_the_workers_have_ended_harm_nobody(caplog) -> None:
    streams = Streams(
        finish=lambda: sys.exit("no driver"),
        last_lines=lambda local_rank: ({}["x"] for _ in range(3)),
        escalate=lambda: {}["x"],
        is_shown=lambda local_rank: {}["x"],
        last_shown=lambda: {}["x"],
    )
    bounded = bounded_streams(streams)
    bounded.escalate()
    bounded.finish()
    assert bounded.last_lines(0) == ()
    assert not bounded.is_shown(0)
    assert bounded_streams(Streams(last_lines=lambda local_rank: None)).last_lines(0) == ()
    assert [record.getMessage() for record in caplog.records] == [
        f"{WHO} failed in finish: SystemExit: no driver",
        f"{WHO} failed in last_lines: KeyError: 'x'",
        f"{WHO} failed in last_lines: TypeError: 'NoneType' object is not iterable",
    ]


@pytest.mark.parametrize("is_unwanted", [False, True])
def test_streams_finish_for_as_long_as_something_is_shown(
    monkeypatch, gate, caplog, is_unwanted
) -> None:
    """And for less long between two such things once the launch is to stop."""
    monkeypatch.setattr(components, "START_BOUND", BOUND if is_unwanted else 0.2)
    monkeypatch.setattr(components, "HURRIED_CLOSE", 0.2 if is_unwanted else BOUND)
    monkeypatch.setattr("plaunch.threads.UNHURRIED", 0.01)
    monkeypatch.setattr("plaunch.threads.LOOK", 0.01)
    begun = time.monotonic()
    streams = Streams(
        finish=lambda: gate.wait(BOUND), last_shown=lambda: min(time.monotonic(), begun + 0.5)
    )
    bounded_streams(streams, lambda: is_unwanted).finish()
    assert 0.6 < time.monotonic() - begun < BOUND
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{WHO} has not returned from finish")


class WithSinks(LogsSpecs):
    root_log_dir = None

    def __init__(self, open_one):
        super().__init__()
        self._open_one = open_one

    def reify(self, envs):
        return LogsDest(dict.fromkeys(envs, ""), dict.fromkeys(envs, ""))

    def open_sink(self, local_rank, stream):
        return self._open_one(local_rank, stream)


class TakesAll:
    def write(self, data):
        pass

    def close(self):
        pass


def test_sinks_are_opened_for_both_streams_of_every_rank() -> None:
    asked = []

    def open_one(local_rank, stream):
        asked.append((local_rank, stream))
        return TakesAll()

    specs = BoundedLogsSpecs(WithSinks(open_one), WHO, never)
    streams = specs.open_streams(specs.reify({0: {}, 1: {}}), 2, prefixes={0: "", 1: ""})
    for rank in range(2):
        assert None not in streams.child_fds(rank)
    streams.finish()
    assert asked == [(0, "stdout"), (0, "stderr"), (1, "stdout"), (1, "stderr")]


def test_a_sink_whose_opening_does_not_return_is_named(monkeypatch, gate) -> None:
    monkeypatch.setattr(components, "START_BOUND", 0.01)
    specs = BoundedLogsSpecs(WithSinks(lambda *_: gate.wait(BOUND)), WHO, never)
    streams = specs.open_streams(specs.reify({0: {}}), 1, prefixes={0: ""})
    with pytest.raises(PluginError, match=f"{re.escape(WHO)} has not returned from open_sink"):
        streams.child_fds(0)
    streams.finish()


# --- both -----------------------------------------------------------------------------------------

CALLS = {
    "signals": lambda policy, specs: policy.signals(),
    "action": lambda policy, specs: policy.action(signal.SIGTERM),
    "reify": lambda policy, specs: specs.reify({0: {}}),
    "create_run_dir": lambda policy, specs: specs.create_run_dir("job"),
    "close": lambda policy, specs: specs.close(True),
}


def call(method, behaviour):
    """Call a method of a component, which does no more than the function `behaviour`."""
    policy, specs = Policy(None), Specs(None)
    for component in (policy, specs):
        if hasattr(component, method):
            setattr(component, method, lambda *given: behaviour())
    return CALLS[method](BoundedPolicy(policy, WHO), BoundedLogsSpecs(specs, WHO, never))


@pytest.mark.parametrize("method", ["action", "reify"])
def test_one_that_raises_raises(method) -> None:
    with pytest.raises(OSError, match="no space"):
        call(method, raising(OSError("no space")))


@pytest.mark.parametrize(
    ("method", "behaviour", "said"),
    [
        ("signals", lambda: None, "failed in signals: TypeError"),
        ("reify", lambda: None, "returned None from reify, which is"),
        ("close", lambda: {}["x"], "failed in close: KeyError: 'x'"),
        # What calls sys.exit has failed.
        ("action", lambda: sys.exit("no driver"), "failed in .*: SystemExit: no driver"),
        ("reify", lambda: sys.exit("no driver"), "failed in .*: SystemExit: no driver"),
    ],
)
def test_one_that_fails_is_named(method, behaviour, said) -> None:
    with pytest.raises(PluginError, match=f"^{re.escape(WHO)} {said}"):
        call(method, behaviour)


@pytest.mark.parametrize(
    ("method", "ending"),
    [
        ("signals", ""),
        ("reify", " within 0.01"),
        ("create_run_dir", ""),
        ("close", " within 0.01 s; plaunch does not wait for it any longer"),
    ],
)
def test_one_that_does_not_return_is_named(monkeypatch, gate, method, ending) -> None:
    for bound in ("POLICY_BOUND", "START_BOUND", "HURRIED_CLOSE"):
        monkeypatch.setattr(components, bound, 0.01)
    said = f"{re.escape(WHO)} has not returned from {method}{ending}"
    with pytest.raises(PluginError, match=said):
        call(method, lambda: gate.wait(BOUND))
