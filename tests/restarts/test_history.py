"""What is kept of earlier decisions."""

from __future__ import annotations

from plaunch.process import ProcessFailure
from plaunch.restarts import Cause, Decided, Decision, DecisionHistory, Failure, RestartAction


def decided(attempt, workers):
    failures = {rank: ProcessFailure(rank, 1, 1, "<N/A>") for rank in range(workers)}
    failure = Failure(Cause.WORKER, 0, "alpha", 1, attempt=attempt, failures=failures)
    return Decided(failure, Decision(RestartAction.RESTART, "restart"))


def filled(counts, **bounds):
    """Return attempt and number of workers of each decision that is kept."""
    history = DecisionHistory(**bounds)
    for attempt, workers in enumerate(counts):
        history.append(decided(attempt, workers))
    return [(one.failure.attempt, len(one.failure.failures)) for one in history.latest()]


def test_the_latest_decisions_are_kept():
    assert filled([1] * 4, max_decisions=2) == [(2, 1), (3, 1)]


def test_workers_of_older_failures_are_not_kept():
    assert filled([4, 0, 4, 4], max_workers=8) == [(0, 0), (1, 0), (2, 4), (3, 4)]


def test_a_failure_of_more_workers_is_not_kept_with_them():
    assert filled([1, 9], max_workers=8) == [(0, 0), (1, 0)]


def test_decisions_known_from_the_start_come_first():
    history = DecisionHistory([decided(5, 1)])
    history.append(decided(6, 1))
    assert [one.failure.attempt for one in history.latest()] == [5, 6]
