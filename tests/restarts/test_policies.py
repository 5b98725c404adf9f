"""Decisions and messages of the policy `standard`."""

from __future__ import annotations

import math

import pytest
from plaunch.errors import UsageError
from plaunch.plugin import PluginContext
from plaunch.process import ProcessFailure
from plaunch.restarts import Cause, Decided, Decision, Failure, RestartAction
from plaunch_restarts.policies import AlwaysRestartPolicy, NeverRestartPolicy, StandardRestartPolicy

RESTART, STOP = RestartAction.RESTART, RestartAction.STOP


def context(max_restarts=3, by_cause=None, run_id="job", **options):
    settings = {"max_restarts": max_restarts, "max_restarts_by_cause": by_cause or {}}
    return PluginContext(run_id, "default", "node-a", settings=settings, options=options)


def bad_shape(**facts):
    known = {
        "cause": Cause.WORKER,
        "rank": 3,
        "host": "node-b",
        "exitcode": 1,
        "exception": "ValueError",
        "message": "ValueError: bad shape",
        "place": "train.py:12",
        "started": 2.0,
        "time": 1000.0,
    }
    return Failure(**{**known, **facts})


def exit_17(**facts):
    known = {"exitcode": 17, "exception": "", "message": "exit code 17", "place": ""}
    return bad_shape(**{**known, **facts})


def lost(**facts):
    known = {
        "cause": Cause.NODE,
        "rank": -1,
        "message": "node node-b was lost: no heartbeat for 30 s",
    }
    return exit_17(**{**known, **facts})


class Job:
    """A sequence of failures, each decided with its history."""

    def __init__(self, *args, **options):
        self.policy = StandardRestartPolicy(context(*args, **options))
        self.history = []
        self.attempt = 0

    def fail(self, *failures):
        """The decision about the last one of these."""
        for failure in failures:
            current = Failure(**{**vars(failure), "attempt": self.attempt})
            decision = self.policy.decide(current, tuple(self.history))
            self.history.append(Decided(current, decision))
            self.attempt += decision.action is RESTART and decision.costs
        return decision


# --- budgets --------------------------------------------------------------------------------------


def test_max_restarts_is_as_in_torchrun() -> None:
    job = Job(2)
    assert [job.fail(exit_17()).reason for _ in range(2)] == ["restart 1 of 2", "restart 2 of 2"]
    end = job.fail(exit_17())
    assert (end.action, end.reason) == (STOP, "all restarts are used (--max-restarts=2)")
    assert not Job(0).fail(exit_17()).reason  # as in torchrun, which logs nothing then


def test_the_attempt_counts_restarts_if_history_is_lost() -> None:
    policy = StandardRestartPolicy(context(2))
    assert policy.decide(exit_17(attempt=1), []).reason == "restart 2 of 2"
    assert policy.decide(exit_17(attempt=2), []).action is STOP


def test_restarts_before_the_window_do_not_count() -> None:
    job = Job(2, restart_window="1h")
    times = [0, 1800, 3599]
    found = [job.fail(exit_17(time=time)) for time in times]
    assert [one.action for one in found] == [RESTART, RESTART, STOP]
    assert [one.reason for one in found] == [
        "restart 1 of 2 within 1 h",
        "restart 2 of 2 within 1 h",
        "all restarts are used within 1 h (--max-restarts=2)",
    ]
    job = Job(1, restart_window="1h")
    for hour in range(50):
        assert job.fail(exit_17(time=3600.0 * hour)).reason == "restart 1 of 1 within 1 h"


def test_outside_causes_use_no_restart() -> None:
    job = Job(1)
    for _ in range(5):
        found = job.fail(lost())
        assert (found.action, found.costs, found.delay) == (RESTART, False, 0.0)
    expected = "restart that does not count: node node-b was lost: no heartbeat for 30 s"
    assert found.reason == expected
    assert job.fail(exit_17()).reason == "restart 1 of 1"


def test_a_cause_can_have_its_own_budget() -> None:
    job = Job(1, {"hang": 1, "oom": 0, "node": 1})
    hang = exit_17(cause=Cause.HANG)
    oom = exit_17(cause=Cause.OUT_OF_MEMORY, message="killed by the kernel")
    assert job.fail(hang).reason == "restart 1 of 1 for hang"
    assert job.fail(exit_17()).reason == "restart 1 of 1"
    assert job.fail(hang).reason == "all restarts are used (--max-restarts=hang:1)"
    job = Job(1, {"hang": 1, "oom": 0, "node": 1})
    assert job.fail(oom).reason == "none is allowed after oom (--max-restarts=oom:0)"
    assert job.fail(lost()).costs
    assert job.fail(lost()).action is STOP


# --- no restart -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "failure", "why"),
    [
        ({"no_restart_on": "oom,exit:10-20"}, exit_17(), "no restart after exit:10-20 (--no-r"),
        ({"no_restart_on": "exception:ValueError"}, bad_shape(), "no restart after exception:V"),
        ({"no_restart_on": "node"}, lost(), "no restart after node (--no-restart-on)"),
        ({"restart_on": "exit:2,oom"}, exit_17(), "restarts only after exit:2,oom (--restart-on)"),
        ({"restart_on": "exit:2"}, exit_17(cause=Cause.HANG), "restarts only after exit:2"),
        ({}, bad_shape(is_retryable=False), "the worker reports that a restart cannot help"),
    ],
)
def test_failures_without_a_restart(options, failure, why) -> None:
    found = Job(**options).fail(failure)
    assert found.action is STOP
    assert why in found.reason
    assert found.reason.startswith(("rank 3 on node-b: ", "node node-b was lost: "))


def test_the_message_of_a_worker_that_forbids_a_restart_is_quoted() -> None:
    found = Job(50).fail(exit_17(message="no such dataset", place="a.py:1", is_retryable=False))
    assert found == Decision(STOP, "rank 3 on node-b gives up: no such dataset")


@pytest.mark.parametrize(
    ("options", "failure"),
    [
        ({"no_restart_on": "exit:18"}, exit_17()),
        ({"restart_on": "exit:17"}, exit_17()),
        ({"restart_on": "exit:2"}, lost()),
        ({}, exit_17(is_retryable=True)),
    ],
)
def test_other_failures_are_followed_by_a_restart(options, failure) -> None:
    assert Job(**options).fail(failure).action is RESTART


# --- crash loops ----------------------------------------------------------------------------------


def test_a_programming_error_ends_after_three_attempts() -> None:
    job = Job(50)
    assert [job.fail(bad_shape()).action for _ in range(3)] == [RESTART, RESTART, STOP]
    assert job.history[-1].decision.reason == (
        "rank 3 on node-b: ValueError: bad shape (train.py:12) came back 3 times within 30 s of "
        "the start (--crash-loop=3/30s)"
    )


def test_no_crash_loop_with_up_to_three_restarts() -> None:
    job = Job(3)
    assert [job.fail(bad_shape()).action for _ in range(4)] == [RESTART] * 3 + [STOP]
    assert "--max-restarts=3" in job.history[-1].decision.reason


@pytest.mark.parametrize(
    "other",
    [
        bad_shape(started=30.5),
        bad_shape(place="train.py:13"),
        bad_shape(exception="KeyError"),
        exit_17(),
        lost(),
    ],
    ids=["late", "another place", "another exception", "an exit code", "a lost node"],
)
def test_other_failures_reset_a_crash_loop(other) -> None:
    same = bad_shape()
    assert Job(50).fail(same, same, other).action is RESTART
    assert Job(50).fail(same, other, same, same).action is RESTART
    assert Job(50).fail(same, other, same, same, same).action is STOP


def test_the_rank_counts_if_the_place_is_unknown() -> None:
    assert Job(50).fail(exit_17(rank=0), exit_17(rank=1), exit_17(rank=0)).action is RESTART
    assert Job(50).fail(exit_17(rank=0), exit_17(rank=0), exit_17(rank=0)).action is STOP
    # A programming error occurs on all ranks, and any of them may fail first.
    assert Job(50).fail(*(bad_shape(rank=rank) for rank in range(3))).action is STOP
    both = {rank: ProcessFailure(rank, 7, 17, "") for rank in (0, 1)}
    row = [exit_17(rank=0, failures=both), exit_17(rank=1, failures=both), exit_17(rank=1)]
    assert Job(50).fail(*row).action is STOP
    assert Job(50).fail(exit_17(rank=3), exit_17(rank=3), exit_17(rank=3, exitcode=18)).action is (
        RESTART
    )


def test_a_worker_that_requests_a_restart_is_not_in_a_crash_loop() -> None:
    later = bad_shape(is_retryable=True)
    assert Job(50).fail(later, later, later, later).action is RESTART
    assert Job(50).fail(later, later, bad_shape()).action is STOP


def test_a_crash_loop_on_one_node_excludes_that_node_first() -> None:
    job = Job(50, exclude_node_after=3)
    found = job.fail(bad_shape(), bad_shape(), bad_shape())
    assert (found.action, found.without) == (RESTART, ("node-b",))
    assert job.fail(bad_shape(host="node-c")).action is STOP
    # A failure that also occurred on another node is not that node's fault.
    job = Job(50, exclude_node_after=2)
    assert job.fail(bad_shape(host="node-c"), bad_shape(), bad_shape()).action is STOP


# --- delays ---------------------------------------------------------------------------------------


def test_a_delay() -> None:
    job = Job(20, restart_delay="1s:60s", crash_loop="off")
    delays = [job.fail(exit_17()).delay for _ in range(10)]
    assert delays[0] == 0.0
    assert 1 <= delays[1] < 2 <= delays[2] < 4
    assert delays == sorted(delays)
    assert 45 <= delays[-1] <= 60
    assert job.history[1].decision.reason == f"restart 2 of 20, after {delays[1]:.3g} s"
    job = Job(restart_delay="5s")
    assert [job.fail(exit_17()).delay for _ in range(2)] == [5.0, 5.0]


def test_jobs_that_failed_together_restart_at_different_times() -> None:
    delays = set()
    for number in range(20):
        job = Job(9, run_id=f"job{number}", restart_delay="1s:60s", crash_loop="off")
        delays.add(job.fail(exit_17(), exit_17()).delay)
    assert len(delays) == 20


def test_a_worker_may_request_a_delay() -> None:
    found = Job().fail(exit_17(retry_after=90.0, message="the disk is full"))
    assert found.delay == 90.0
    assert found.reason == (
        "restart 1 of 3, after 90 s as requested by rank 3 on node-b: the disk is full"
    )
    assert Job(restart_delay="5s").fail(exit_17(retry_after=1.0)).delay == 5.0


# --- nodes ----------------------------------------------------------------------------------------


def test_a_node_is_excluded() -> None:
    job = Job(9, exclude_node_after=2, restart_window="1h")
    job.fail(exit_17(host="node-a"), exit_17(time=0.0), exit_17(time=4000.0))
    found = job.fail(bad_shape(time=4100.0))
    assert found.without == ("node-b",)
    assert found.reason.endswith(
        ", without node-b: 2 failures have begun there within 1 h (--exclude-node-after=2)"
    )
    assert job.fail(exit_17(time=4200.0)).without == ()  # once is enough


def test_an_unhealthy_node_is_excluded_immediately() -> None:
    found = Job(0).fail(lost(cause=Cause.HEALTH, message="node node-b is not healthy: disk full"))
    assert (found.action, found.without, found.costs) == (RESTART, ("node-b",), False)
    assert found.reason == (
        "restart that does not count: node node-b is not healthy: disk full, without node-b: it is "
        "not healthy"
    )


def test_an_unknown_host_is_not_excluded() -> None:
    assert Job(exclude_node_after=1).fail(exit_17(host="")).without == ()


# --- always and never -----------------------------------------------------------------------------


def test_always_and_never() -> None:
    always = AlwaysRestartPolicy(context(0, restart_delay="5s"))
    assert always.decide(exit_17(attempt=99, is_retryable=False), []) == Decision(
        RESTART, "restart 100, after 5 s (--restart-policy=always)", delay=5.0
    )
    assert always.decide(exit_17(retry_after=9.0), []).delay == 9.0
    found = always.decide(lost(), [])
    assert (found.action, found.costs) == (RESTART, False)
    never = NeverRestartPolicy(context(9, restart_delay=None))
    assert never.decide(lost(), []) == Decision(STOP, "no restart (--restart-policy=never)")


@pytest.mark.parametrize(
    ("policy", "options"),
    [
        (AlwaysRestartPolicy, {"crash_loop": "off"}),
        (NeverRestartPolicy, {"restart_delay": "1s"}),
    ],
)
def test_always_and_never_reject_other_options(policy, options) -> None:
    with pytest.raises(UsageError, match="is for the restart policy 'standard'"):
        policy(context(**options))


def test_a_cause_may_have_any_number_of_restarts():
    """Lost nodes are not counted then; other causes are, for their delay and their attempts."""
    job = Job(0, {"node": math.inf, "hang": math.inf}, restart_delay="5s")
    for _ in range(3):
        decision = job.fail(lost(missing_nodes=1))
        assert (decision.action, decision.costs, decision.delay) == (RESTART, False, 0.0)
    for number in (1, 2):
        decision = job.fail(exit_17(cause=Cause.HANG, started=100.0 * number))
        assert (decision.action, decision.costs) == (RESTART, True)
        assert decision.reason == f"restart {number} for hang, after 5 s"
