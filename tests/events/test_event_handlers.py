from __future__ import annotations

import io
import sys
import time
from types import SimpleNamespace

import pytest
from plaunch.errors import UsageError
from plaunch.events import Event, EventHandler, EventSource
from plaunch.plugin import PluginContext
from plaunch_events import SCHEMA
from plaunch_events.console import ConsoleEventHandler
from plaunch_events.null import NullEventHandler

from helpers.faults import raising

CONTEXT = PluginContext(run_id="exp7", role="default", host="gpu-07")
NOON = time.mktime((2026, 1, 31, 12, 0, 0, 0, 0, -1))
ZONE = time.strftime("%z", time.localtime(NOON))


def line_of(name="torchelastic.worker.status.SUCCEEDED", context=CONTEXT, at=0.25, **metadata):
    """The line printed for an event of the agent, `at` seconds after noon."""
    stream = io.StringIO()
    event = Event(name, EventSource.AGENT, NOON + at, metadata)
    ConsoleEventHandler(context, stream).handle(event)
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


def test_null_prints_nothing(capsys):
    NullEventHandler(CONTEXT).handle(Event("x", EventSource.AGENT))
    assert capsys.readouterr() == ("", "")


def test_console_writes_one_line_to_the_current_stderr(capsys):
    handler = ConsoleEventHandler(CONTEXT)
    handler.handle(Event("x", EventSource.WORKER, NOON + 0.25, {"global_rank": 3}))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"2026-01-31 12:00:00.250{ZONE} WORKER x global_rank=3\n"


def test_the_state_is_printed_without_torchruns_prefix():
    assert line_of() == f"2026-01-31 12:00:00.250{ZONE} AGENT SUCCEEDED"
    assert line_of("plaunch.round.3").endswith(" AGENT plaunch.round.3")


def test_identifying_keys_come_first_and_others_keep_their_order():
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
def test_values_stay_on_one_line_and_are_unambiguous(value, shown):
    assert line_of(key=value).endswith(f" SUCCEEDED key={shown}")


def test_a_strange_name_cannot_break_the_line():
    assert line_of("a b\nc").endswith(r" AGENT 'a b\nc'")


@pytest.mark.parametrize(
    ("fraction", "shown"), [(0.0, "000"), (0.0015, "001"), (0.9996, "999"), (0.0625, "062")]
)
def test_milliseconds_are_truncated(fraction, shown):
    assert line_of(at=fraction).startswith(f"2026-01-31 12:00:00.{shown}{ZONE} ")


def test_a_line_is_one_write_and_flushed():
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


def test_a_closed_stream_raises():
    gone = SimpleNamespace(write=raising(BrokenPipeError()))
    with pytest.raises(BrokenPipeError):
        ConsoleEventHandler(CONTEXT, gone).handle(Event("x", EventSource.AGENT))


def test_a_process_without_stderr_is_not_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    ConsoleEventHandler(CONTEXT).handle(Event("x", EventSource.AGENT))


def sentence_of(name, **metadata):
    line = line_of(f"plaunch.{name}", **metadata)
    clock, said = line.split(" ", 1)
    assert clock == "12:00:00.250"
    return said


WORKER = {"global_rank": 3, "worker_pid": 47}


@pytest.mark.parametrize(
    ("name", "metadata", "said"),
    [
        (
            "launcher.started",
            {
                "run_id": "exp7",
                "host": "gpu-07",
                "min_nodes": 2,
                "max_nodes": 4,
                "local_world_size": 8,
                "backend": "c10d",
            },
            "run exp7, host gpu-07, 2 to 4 nodes, 8 workers here, backend c10d",
        ),
        ("rendezvous.begun", {"attempt": 1}, ""),
        (
            "rendezvous.completed",
            {
                "round": 0,
                "attempt": 0,
                "group_world_size": 4,
                "world_size": 32,
                "ranks": "8-15",
                "duration": 2.14,
            },
            "round 0, 4 nodes, 32 workers, here ranks 8-15, after 2.1 s",
        ),
        (
            "rendezvous.failed",
            {"duration": 600.0, "reason": "nobody came"},
            "after 600.0 s, nobody came",
        ),
        ("worker.started", WORKER, "rank 3 (pid 47)"),
        ("workers.started", {"ranks": "0-7", "duration": 0.0213}, "ranks 0-7, after 21.3 ms"),
        (
            "worker.exited",
            {
                **WORKER,
                "exit_code": -15,
                "signal_name": "SIGTERM",
                "stopped": True,
                "lifetime": 9.0,
            },
            "rank 3 (pid 47), stopped, SIGTERM, after 9.0 s",
        ),
        (
            "failure",
            {
                **WORKER,
                "failed_host": "b",
                "is_first": True,
                "exit_code": 1,
                "signal_name": None,
                "headline": "ValueError: no (train.py:9)",
            },
            "rank 3 (pid 47) on b, exit code 1, ValueError: no (train.py:9)",
        ),
        (
            "failure",
            {"global_rank": -1, "worker_pid": 5, "failed_host": "b", "exit_code": 113},
            "the launcher (pid 5) on b, not the first, exit code 113",
        ),
        (
            "restart",
            {"cause": "failure", "attempt": 1, "max_restarts": 3, "reason": "rank 3 failed"},
            "because of failure, 1 of 3 used, rank 3 failed",
        ),
        (
            "restart.completed",
            {
                "round": 1,
                "attempt": 1,
                "seconds_total": 12.3,
                "seconds_noticing": 0.0021,
                "seconds_stopping": 10.2,
                "seconds_waiting": 2.1,
                "seconds_starting": 0.0,
            },
            "round 1, attempt 1, after 12.3 s, noticing 2.1 ms, stopping 10.2 s, waiting 2.1 s",
        ),
        (
            "membership.changed",
            {"kind": "lost", "node": "b", "reason": "silent for 5 s"},
            "node b, lost, silent for 5 s",
        ),
        (
            "signal.received",
            {"signal_name": "SIGUSR1", "action": "notify", "node": "b"},
            "SIGUSR1 on b, notify",
        ),
        (
            "stop.step",
            {"stop_ranks": "0-1", "step": "killed", "signal_name": "SIGKILL", "seconds": 30.0},
            "ranks 0-1, killed with SIGKILL, after 30.0 s",
        ),
        ("state.changed", {"old": "INIT", "new": "HEALTHY"}, "INIT to HEALTHY"),
        (
            "launcher.finished",
            {
                "outcome": "failed",
                "exit_code": 3,
                "seconds_total": 61.04,
                "reason": "rank 3 failed",
            },
            "failed, exit code 3, after 61.0 s, rank 3 failed",
        ),
    ],
)
def test_sentences_of_plaunchs_own_events(name, metadata, said):
    assert sentence_of(name, **metadata) == (f"{name}: {said}" if said else name)


@pytest.mark.parametrize("name", SCHEMA)
def test_every_event_of_the_stream_has_a_sentence_of_one_line(name):
    keys = SCHEMA[name].keys
    said = sentence_of(name.removeprefix("plaunch."), **dict.fromkeys(keys, "\x1b[2J\n"))
    assert "=" not in said
    assert "\x1b" not in said


def test_keys_all_prints_all_metadata():
    context = PluginContext(run_id="exp7", role="r", host="h", options={"keys": "all"})
    line = line_of("plaunch.state.changed", context, old="INIT", new="X")
    assert line.endswith(" AGENT plaunch.state.changed old=INIT new=X")


def test_an_invalid_value_of_keys():
    context = PluginContext(run_id="exp7", role="r", host="h", options={"keys": "few"})
    with pytest.raises(UsageError, match=r"console\.keys='few'"):
        ConsoleEventHandler(context)


def test_stderr_is_written_unbuffered(monkeypatch, tmp_path):
    with open(tmp_path / "err", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr(sys, "__stderr__", stream)
        stream.write("before\n")
        ConsoleEventHandler(CONTEXT).handle(Event("x", EventSource.AGENT, NOON, {"k": "\u00e9"}))
        assert (tmp_path / "err").read_text().splitlines()[0] == "before"
        assert (tmp_path / "err").read_text().endswith(" AGENT x k=\\xe9\n")
