"""What single actions do, with components that are made up."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from plaunch.agent import states
from plaunch.agent.effects import Effects
from plaunch.agent.extensions import RequestKind
from plaunch.agent.messages import StopReason


@pytest.mark.parametrize("waits_for", ["the delay of a restart", ""])
def test_a_request_for_a_round_ends_a_delay_if_there_is_one(caplog, waits_for):
    caplog.set_level("INFO", "plaunch")
    asked = []
    components = SimpleNamespace(
        workers=SimpleNamespace(end_stop=None),
        joiner=SimpleNamespace(waits_for=waits_for),
        peers=SimpleNamespace(skip_delay=asked.append),
    )
    request = states.Requested(RequestKind.RESTART, "by hand", "plaunchctl")
    state = SimpleNamespace(phase=states.Phase.JOINING)
    assert Effects(components).perform(states.SkipDelay(request), state) == []
    assert asked == ([request] if waits_for else [])
    assert ("has no effect" in caplog.text) == (not waits_for)


def test_a_round_without_a_reason_is_preceded_by_the_message_that_waits(caplog):
    effects = Effects(SimpleNamespace(workers=SimpleNamespace(end_stop=None)))
    effects._deferred = StopReason("rank 0 failed")
    effects.log_round("")
    assert caplog.messages == ["rank 0 failed"]
    assert effects.due() is None
