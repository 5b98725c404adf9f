"""Recording events by the name of their handler."""

from __future__ import annotations

import json
import logging

import pytest
from plaunch.errors import UnknownNameError
from plaunch_torchrun.elastic import events


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture(autouse=True)
def loggers():
    yield
    for name in ("console", "null", "dynamic_rendezvous"):
        logger = logging.getLogger(f"torchelastic-events-{name}")
        for handler in list(logger.handlers):
            logger.removeHandler(handler)


def test_the_console(capfd):
    event = events.Event("started", events.EventSource.AGENT, metadata={"run_id": "7"})
    events.record(event, "console")
    out, err = capfd.readouterr()
    assert "started" in out + err


def test_the_null_handler(capfd):
    events.record(events.Event("started", events.EventSource.AGENT))
    assert capfd.readouterr() == ("", "")


def test_a_handler_that_does_not_exist():
    with pytest.raises(UnknownNameError, match="no_such"):
        events.get_logging_handler("no_such")


def test_a_rendezvous_event_through_json():
    event = events.RdzvEvent("f:m", "7", "joined", "host", 3, events.NodeState.RUNNING, rank=1)
    assert events.RdzvEvent.deserialize(event.serialize()) == event
    assert events.RdzvEvent.deserialize(event) is event
    assert json.loads(str(event))["node_state"] == "RUNNING"


def test_a_rendezvous_event_equals_torchs():
    of_torch = pytest.importorskip("torch.distributed.elastic.events")
    values = {"name": "n", "run_id": "7", "message": "m", "hostname": "h", "pid": 3}
    their = of_torch.RdzvEvent(**values, node_state=of_torch.NodeState.INIT)
    assert json.loads(their.serialize()) == json.loads(
        events.RdzvEvent(**values, node_state=events.NodeState.INIT).serialize()
    )


def test_rendezvous_events_for_a_listener():
    events.construct_and_record_rdzv_event("7", "unhandled", events.NodeState.INIT)
    kept = Kept()
    logging.getLogger("torchelastic-events-dynamic_rendezvous").addHandler(kept)
    events.construct_and_record_rdzv_event("7", "handled", events.NodeState.INIT, rank=2)
    try:
        raise ValueError("no")
    except ValueError:
        events.construct_and_record_rdzv_event("7", "failed", events.NodeState.FAILED, name="x")
    first, second = map(events.RdzvEvent.deserialize, kept.texts)
    assert first.message == "handled"
    assert first.name == f"{__file__.rpartition('/')[2]}:test_rendezvous_events_for_a_listener"
    assert (first.rank, first.error_trace) == (2, "")
    assert second.name.endswith(":x")
    assert "ValueError: no" in second.error_trace
