"""States that are not written by this version are rejected."""

from __future__ import annotations

import pytest
from plaunch_membership import transitions
from plaunch_membership.records import RecordCodec, RecordError
from plaunch_membership.state import JobState

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
