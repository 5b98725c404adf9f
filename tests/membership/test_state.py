"""States with unknown words are rejected; those of versions without newer fields are read."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from plaunch.restarts import Decision, RestartAction
from plaunch_membership import transitions
from plaunch_membership.failures import JobFailure, summarize
from plaunch_membership.records import RecordCodec, RecordError
from plaunch_membership.state import JobPhase, JobState, describe_verdict

from .conftest import RUN_ID


@pytest.mark.parametrize(("where", "name"), [((), "phase"), (("event",), "kind")])
def test_a_state_with_an_unknown_word_is_rejected(where, name):
    codec = RecordCodec(RUN_ID)
    raw = transitions.first_state("h0~0").to_record()
    assert JobState.from_record(codec.decode("key", codec.encode("key", raw)), 0).version == 0
    inner = raw
    for part in where:
        inner = inner[part]
    inner[name] = "shaken"
    with pytest.raises(RecordError, match=f"{name}' is unknown: 'shaken'"):
        JobState.from_record(codec.decode("key", codec.encode("key", raw)), 0)


def test_what_happened_and_what_was_decided_are_separate_facts_in_records():
    codec = RecordCodec(RUN_ID)
    cause = "rank 1 failed: RuntimeError: disk full; free 3 GB; restart 1 of 3"
    summary = summarize([JobFailure(1, 1.0, cause)])
    running = replace(transitions.first_state("h0~0"), phase=JobPhase.RUNNING)
    failed = transitions.fail(running, "h0~0", cause, from_round=0)
    settle = partial(transitions.settle_failed, failed, summary, by="h0~0", is_final=False, now=1.0)
    again = settle(max_restarts=3)
    raw = codec.decode("key", codec.encode("key", again.to_record()))
    read = JobState.from_record(raw, again.version)
    assert (read.reason, read.decision) == (cause, "restart 1 of 3")
    assert read.why == f"{cause}; restart 1 of 3"

    over = settle(max_restarts=0, decision=Decision(RestartAction.STOP, "none; is left"))
    verdict = over.verdict
    assert (verdict.reason, verdict.no_restart) == (cause, "none; is left")
    assert describe_verdict(verdict).endswith(f"{cause}; none; is left")


def test_the_state_of_an_older_version_has_both_in_one_text():
    codec = RecordCodec(RUN_ID)
    raw = transitions.first_state("h0~0").to_record() | {"reason": "rank 1 failed; restart 1 of 3"}
    state = JobState.from_record(codec.decode("key", codec.encode("key", raw)), 0)
    assert (state.why, state.decision) == ("rank 1 failed; restart 1 of 3", "")
