"""Failures that only say that a peer is gone wait for their cause, and no other failure does."""

from __future__ import annotations

import time

import pytest
from plaunch.agent import RunResult, WorkerState
from plaunch.agent.results import CauseWait
from plaunch.process import ProcessFailure
from plaunch.testing.rendezvous import FakeRendezvous

from helpers.agents import Node
from helpers.clock import Clock

HEADER, FRAME = "Traceback (most recent call last):", '  File "train.py", line 1, in f'
GLOO = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:5"


def failed(*texts, state=WorkerState.FAILED):
    failures = {}
    for rank, text in enumerate(texts):
        failures[rank] = ProcessFailure(rank, 7, 1, "", last_lines=[HEADER, FRAME, text])
    return RunResult(state, failures=failures)


def test_it_ends_after_two_seconds() -> None:
    clock = Clock()
    wait = CauseWait(clock)
    assert wait.due() is None
    assert wait.is_on(failed(GLOO), others=True)
    assert wait.due() == 2.0
    clock.now += 1.9
    assert wait.is_on(failed(GLOO, GLOO), others=True)
    clock.now += 0.2
    assert not wait.is_on(failed(GLOO, GLOO), others=True)
    assert wait.due() is None
    wait.begin_round()
    assert wait.is_on(failed(GLOO), others=True)


@pytest.mark.parametrize(
    ("result", "others"),
    [
        (failed("ValueError: bad"), True),
        (failed(GLOO, "ValueError: bad"), True),
        (failed(GLOO), False),
        (failed(GLOO, state=WorkerState.UNHEALTHY), True),
        (failed(), True),
    ],
)
def test_a_failure_that_may_be_the_cause_is_reported_at_once(result, others) -> None:
    assert not CauseWait(Clock()).is_on(result, others=others)


def test_the_early_end_of_a_worker_is_a_cause() -> None:
    result = failed(GLOO)
    result.early_ends = ["rank 1 had ended with exit code 0, 12 s before"]
    assert not CauseWait(Clock()).is_on(result, others=True)


def test_news_of_other_nodes_end_it() -> None:
    wait = CauseWait(Clock())
    assert wait.is_on(failed(GLOO), others=True)
    wait.end()
    assert not wait.is_on(failed(GLOO), others=True)


# --- with workers ---------------------------------------------------------------------------------

# Rank 0 misses its peer at once, whose interpreter takes a second to end after its exception.
LATE = f"""
import atexit, os, sys, time
if os.environ["RANK"] == "0":
    time.sleep(0.3)
    raise RuntimeError({GLOO.partition(": ")[2]!r})
atexit.register(time.sleep, 1.0)
{{}}
"""


def test_the_cause_is_found_that_ends_later(tmp_path, caplog) -> None:
    node = Node(tmp_path, FakeRendezvous())
    result = node.run(LATE.format('raise ValueError("bad shape")'), nproc=2, max_restarts=0)
    assert result.error("t").get_first_failure()[0] == 1
    assert sorted(result.failures) == [0, 1]
    assert result.stopped == {}


def test_without_a_cause_it_is_the_first_failure(tmp_path) -> None:
    node = Node(tmp_path, FakeRendezvous())
    began = time.monotonic()
    result = node.run(LATE.format("time.sleep(60)"), nproc=2, max_restarts=0)
    assert 2.0 < time.monotonic() - began < 30
    assert list(result.failures) == [0]
    assert list(result.stopped) == [1]


def test_a_peer_that_ended_early_is_named_at_once(tmp_path, caplog) -> None:
    node = Node(tmp_path, FakeRendezvous())
    script = LATE.format("os._exit(0)") + "\n"
    node.run(script, nproc=2, max_restarts=1)
    words = "lost a peer: RuntimeError: Connection closed by peer [::1]:5 (<string>:5)"
    assert f"{words}; rank 1 had ended with exit code 0, " in caplog.text
