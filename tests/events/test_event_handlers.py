from __future__ import annotations

import io
import sys
import time

import pytest
from plaunch.events import Event, EventHandler, EventSource
from plaunch.plugin import PluginContext
from plaunch_events import ConsoleEventHandler, NullEventHandler

CONTEXT = PluginContext(run_id="exp7", role="default", host="gpu-07")
NOON = time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1))
ZONE = time.strftime("%z", time.localtime(NOON))


def line_of(name="torchelastic.worker.status.SUCCEEDED", source=EventSource.AGENT, **metadata):
    stream = io.StringIO()
    event = Event(name, source, NOON + 0.25, metadata)
    ConsoleEventHandler(CONTEXT, stream).handle(event)
    text = stream.getvalue()
    assert text.endswith("\n")
    assert text.count("\n") == 1
    return text.removesuffix("\n")


@pytest.mark.parametrize("factory", [ConsoleEventHandler, NullEventHandler])
def test_both_are_event_handlers(factory, capsys):
    handler = factory(CONTEXT)
    assert isinstance(handler, EventHandler)
    handler.close()
    assert capsys.readouterr() == ("", "")


def test_null_says_nothing(capsys):
    NullEventHandler(CONTEXT).handle(Event("x", EventSource.AGENT))
    assert capsys.readouterr() == ("", "")


def test_console_writes_one_line_to_stderr_as_it_is_then(capsys):
    handler = ConsoleEventHandler(CONTEXT)
    handler.handle(Event("x", EventSource.WORKER, NOON + 0.25, {"global_rank": 3}))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"2026-01-31 12:00:00.250{ZONE} WORKER x global_rank=3\n"


def test_the_state_is_said_without_torchruns_prefix():
    assert line_of() == f"2026-01-31 12:00:00.250{ZONE} AGENT SUCCEEDED"
    assert line_of("plaunch.round.3").endswith(" AGENT plaunch.round.3")


def test_who_comes_first_and_the_rest_keeps_its_order():
    line = line_of(
        zeta=1, state="SUCCEEDED", local_rank=1, global_rank=9, run_id="exp7", alpha=True, none=None
    )
    assert line.endswith(
        " SUCCEEDED run_id=exp7 global_rank=9 local_rank=1 zeta=1 state=SUCCEEDED alpha=True"
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("plain", "plain"),
        ("/a/b:c,d", "/a/b:c,d"),
        ("two words", "'two words'"),
        ("two\nlines", r"'two\nlines'"),
        ("", "''"),
        ('{"a": "b"}', """'{"a": "b"}'"""),
        ("a=b", "'a=b'"),
        ("\x1b[31mred", r"'\x1b[31mred'"),
        (0, "0"),
        (1.5, "1.5"),
        (False, "False"),
    ],
)
def test_values_stay_on_one_line_and_can_be_told_apart(value, shown):
    assert line_of(key=value).endswith(f" SUCCEEDED key={shown}")


def test_a_strange_name_cannot_break_the_line():
    assert line_of("a b\nc").endswith(r" AGENT 'a b\nc'")


@pytest.mark.parametrize(
    ("fraction", "shown"), [(0.0, "000"), (0.0015, "001"), (0.9996, "999"), (0.0625, "062")]
)
def test_milliseconds_are_cut_not_rounded_into_the_next_second(fraction, shown):
    stream = io.StringIO()
    ConsoleEventHandler(CONTEXT, stream).handle(Event("x", EventSource.AGENT, NOON + fraction))
    assert stream.getvalue().startswith(f"2026-01-31 12:00:00.{shown}{ZONE} ")


def test_a_line_is_one_write_that_is_flushed():
    class Stream(io.StringIO):
        calls = ()

        def write(self, text):
            self.calls += (text,)
            return len(text)

        def flush(self):
            self.calls += ("<flush>",)

    stream = Stream()
    ConsoleEventHandler(CONTEXT, stream).handle(Event("x", EventSource.AGENT, NOON))
    line, flush = stream.calls
    assert line.endswith(" AGENT x\n")
    assert flush == "<flush>"


def test_a_stream_that_is_gone_raises_for_the_agent_to_report():
    class Gone(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        ConsoleEventHandler(CONTEXT, Gone()).handle(Event("x", EventSource.AGENT))


def test_a_process_without_stderr_is_no_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    ConsoleEventHandler(CONTEXT).handle(Event("x", EventSource.AGENT))
