"""The policy `standard` against a naive model of it, with jobs that hypothesis generates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plaunch.plugin import PluginContext
from plaunch.restarts import Cause, Decided, Failure, RestartAction
from plaunch_restarts.options import OPTIONS
from plaunch_restarts.policies import StandardRestartPolicy
from plaunch_restarts.values import CrashLoop, Delay

RESTART, STOP = RestartAction.RESTART, RestartAction.STOP
CODES = (1, 2, 17, -9)

failures = st.builds(
    Failure,
    cause=st.sampled_from([*[Cause.WORKER] * 6, *Cause]),
    rank=st.integers(0, 1),
    host=st.sampled_from(["node-a", "node-b", "node-b", "node-b", ""]),
    exitcode=st.sampled_from(CODES),
    exception=st.sampled_from(["", "ValueError", "ValueError"]),
    place=st.sampled_from(["", "train.py:12"]),
    message=st.just("it failed"),
    is_retryable=st.sampled_from([None, None, None, None, True, False]),
    retry_after=st.none() | st.floats(0, 100),
    started=st.sampled_from([0.0, 29.0, 30.0, 31.0]),
)
gaps = st.sampled_from([1.0, 600.0, 1800.0, 3600.0])


@dataclass
class Given:
    """The options of one job, some of them as texts."""

    budget: int
    budgets: dict[str, int]
    window: int | None
    loop: CrashLoop | None
    exclude: int | None
    only: list[str]
    never: list[str]

    def policy(self, host="node-a"):
        options = {
            "restart_window": self.window,
            "crash_loop": self.loop,
            "exclude_node_after": self.exclude,
            "restart_on": ",".join(self.only) or None,
            "no_restart_on": ",".join(self.never) or None,
        }
        launch = {"max_restarts": self.budget, "max_restarts_by_cause": self.budgets}
        assert set(options) < {option.dest for option in OPTIONS}
        return StandardRestartPolicy(
            PluginContext("job", "default", host, settings=launch, options=options)
        )


def contradicts(only, never):
    """Whether a wanted condition is also excluded; running out of memory is a SIGKILL."""
    covered = {*never, "oom"} if "signal:SIGKILL" in never else {*never}
    return not covered.isdisjoint(only)


words = st.sampled_from(["exit:1", "exit:2-20", "signal:SIGKILL", "exception:ValueError", "oom"])
lists = st.lists(words, max_size=2, unique=True)
givens = st.builds(
    Given,
    budget=st.integers(0, 6),
    budgets=st.dictionaries(st.sampled_from(["hang", "node", "oom"]), st.integers(0, 2)),
    window=st.none() | st.sampled_from([1000, 3600]),
    loop=st.none() | st.sampled_from([CrashLoop(0, 0.0), CrashLoop(2, 30.0), CrashLoop(3, 30.0)]),
    exclude=st.none() | st.integers(1, 3),
    only=lists,
    never=lists,
).filter(lambda given: not contradicts(given.only, given.never))


def is_listed(words, failure):
    """Whether a failure meets one of the conditions."""
    of_worker = failure.cause in (Cause.WORKER, Cause.OUT_OF_MEMORY)
    names = {"oom"} if failure.cause is Cause.OUT_OF_MEMORY else set()
    if of_worker and failure.exitcode == 1:
        names.add("exit:1")
    if of_worker and failure.exitcode in (2, 17):
        names.add("exit:2-20")
    if of_worker and failure.exitcode == -9:
        names.add("signal:SIGKILL")
    if of_worker and failure.exception:
        names.add("exception:ValueError")
    return bool(names & set(words))


def expected(given, failure, history):
    """The naive model: action, excluded hosts, whether a restart is used."""
    is_outside = failure.cause in (Cause.NODE, Cause.HEALTH)
    if is_listed(given.never, failure) or failure.is_retryable is False:
        return STOP, (), True
    if given.only and not is_outside and not is_listed(given.only, failure):
        return STOP, (), True

    recent = list(history)
    if given.window is not None:
        recent = [one for one in history if one.failure.time > failure.time - given.window]

    excluded = ()
    gone = [host for one in history for host in one.decision.without]
    if failure.host and failure.host not in gone:
        on_host = [one for one in recent if one.failure.host == failure.host]
        is_bad = given.exclude is not None and len(on_host) + 1 >= given.exclude
        if is_bad or failure.cause is Cause.HEALTH:
            excluded = (failure.host,)

    loop = given.loop or (CrashLoop(3, 30.0) if given.budget > 3 else CrashLoop(0, 0.0))
    times = loop.times
    if times and not is_outside and not failure.is_retryable and len(history) + 1 >= times:
        row = [*[one.failure for one in history], failure][-times:]
        is_same = all(
            one.cause == failure.cause
            and one.started <= 30
            and one.exception == failure.exception
            and one.place == failure.place
            and (one.exitcode == failure.exitcode or failure.exception)
            and (one.rank == failure.rank or failure.place)
            for one in row
        )
        if is_same and not (excluded and {one.host for one in row} == set(excluded)):
            return STOP, (), True

    spent = [one.failure.cause.value for one in recent if one.decision.costs]
    cause = failure.cause.value
    if cause in given.budgets:
        is_left = spent.count(cause) < given.budgets[cause]
    elif is_outside:
        return RESTART, excluded, False
    else:
        is_left = sum(one not in given.budgets for one in spent) < given.budget
    return (RESTART, excluded, True) if is_left else (STOP, (), True)


def play(given, story, decide):
    """Let failures happen until the job ends; yields each with what was before it, and follows."""
    now, attempt, history = 0.0, 0, []
    for gap, failure in story:
        now += gap
        current = replace(failure, time=now, attempt=attempt)
        decision = decide(current, tuple(history))
        yield current, tuple(history), decision
        if decision.action is STOP:
            return
        history.append(Decided(current, decision))
        attempt += decision.costs


stories = st.lists(st.tuples(gaps, failures), min_size=1, max_size=12)
# The same failure again and again, with few others in between.
rows = st.builds(
    lambda gap, failure, others: [(gap, failure)] * 2 + others + [(gap, failure)] * 4,
    gaps,
    failures,
    st.lists(st.tuples(gaps, failures), max_size=2),
)


@settings(deadline=None, max_examples=600)
@given(givens, stories | rows)
def test_decisions_equal_those_of_the_model(given, story) -> None:
    policy = given.policy()
    for failure, history, decision in play(given, story, policy.decide):
        found = decision.action, decision.without, decision.costs
        assert found == expected(given, failure, history)
        assert decision.reason or not given.budget
        assert decision.reason.isprintable()


@settings(deadline=None, max_examples=100)
@given(givens, stories | rows)
def test_decisions_depend_on_arguments_only(given, story) -> None:
    """So a new leader decides the same: policies keep no state between calls."""
    policy = given.policy()
    for failure, history, decision in play(given, story, policy.decide):
        assert given.policy("node-z").decide(failure, history) == decision


@settings(deadline=None)
@given(
    st.floats(1e-3, 1e6), st.floats(1, 1e6), st.integers(0, 3000), st.floats(0, 1, exclude_max=True)
)
def test_delays_grow_within_their_bounds(least, factor, used, spread) -> None:
    delay = Delay(0.0, least, least * factor)
    now, later = delay.seconds(used, spread), delay.seconds(used + 1, spread)
    assert now <= later
    assert now == 0.0 if used == 0 else delay.least <= now <= delay.most
    # The jitter of short delays is short.
    assert used == 0 or later <= 2 * now * (1 + 1e-9)


@settings(deadline=None)
@given(st.text(), st.integers(0, 40))
def test_the_delay_is_that_of_the_job(run_id, attempt) -> None:
    def delay_on(host):
        options = {"restart_delay": "1s:10m"}
        context = PluginContext(
            run_id, "default", host, settings={"max_restarts": 50}, options=options
        )
        failure = Failure(Cause.WORKER, 0, host, 1, attempt=attempt)
        return StandardRestartPolicy(context).decide(failure, ()).delay

    assert delay_on("node-a") == delay_on("node-b")


@settings(deadline=None)
@given(st.lists(st.floats(0, 7200), max_size=40), st.integers(1, 5))
def test_no_window_has_more_restarts_than_the_budget(moments, budget) -> None:
    given = Given(budget, {}, 3600, CrashLoop(0, 0.0), None, [], [])
    story, last = [], 0.0
    for moment in sorted(moments):
        story.append((moment - last, Failure(Cause.WORKER, 0, "node-a", 1)))
        last = moment
    restarts = [
        failure.time
        for failure, _, decision in play(given, story, given.policy().decide)
        if decision.action is RESTART
    ]
    for start in restarts:
        assert sum(start <= time < start + 3600 for time in restarts) <= budget


def test_the_strategies_reach_every_outcome() -> None:
    """Checks the strategies above, which could otherwise test less than intended."""
    given = Given(6, {}, None, CrashLoop(3, 30.0), 2, [], ["oom"])
    failure = Failure(Cause.WORKER, 0, "node-b", 1, exception="ValueError", place="a:1")
    ends = [[(1.0, failure)] * 4, [(1.0, replace(failure, cause=Cause.OUT_OF_MEMORY))]]
    found = [[d for *_, d in play(given, story, given.policy().decide)] for story in ends]
    assert [one[-1].action for one in found] == [STOP, STOP]
    assert [one.without for one in found[0]] == [(), ("node-b",), ()]
    with pytest.raises(StopIteration):
        next(play(given, [], given.policy().decide))
