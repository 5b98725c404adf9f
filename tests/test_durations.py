"""Every place where a duration comes in takes the same values, and no wait overflows."""

from __future__ import annotations

import io
import json
import math
import os
import re
import select
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from plaunch.agent import LocalElasticAgent, WorkerSpec
from plaunch.agent.messages import WaitReporter
from plaunch.agent.poller import LoopWatchdog
from plaunch.cli.parser import parse
from plaunch.cli.program import run
from plaunch.config import LaunchConfig, shutdown_timeout_of
from plaunch.durations import (
    LIMIT,
    LONGEST,
    PATIENCE,
    PERIOD,
    Duration,
    bounded,
    describe_end,
    format_duration,
    milliseconds,
    waitable,
)
from plaunch.errors import UsageError
from plaunch.process import start_processes
from plaunch.process.children import ExitPoller
from plaunch.process.watches import uninterruptible_timeout_of
from plaunch.rendezvous import RendezvousParameters
from plaunch.testing.rendezvous import FakeRendezvous
from plaunch_events.otel import _seconds as otel_seconds
from plaunch_membership.options import Timing
from plaunch_rendezvous_c10d.backend import prepare_backend as prepare_c10d
from plaunch_rendezvous_etcd.options import read_options
from plaunch_torchrun.elastic.timer import FileTimerServer, LocalTimerServer, expires
from plaunch_torchrun.elastic.timer.files import FileTimerRequest
from plaunch_torchrun.round_store import wait_for_peers
from plaunch_torchrun.stores import store_timeout

INF = math.inf
NONE = ["nan", "-1", "-inf", "-1e-9", "soon", "", " ", "1s", "0x10", "2e9", "1e400", "9" * 500]
OVER_POLL = 2_147_484.0  # seconds; in milliseconds they are more than 31 bits


def parameters(**options):
    return RendezvousParameters("a-backend", "127.0.0.1:7", "run", 1, 1, **options)


def spec(**changes):
    return WorkerSpec("r", 1, FakeRendezvous(), entrypoint="true", **changes)


# --- what a duration is ---------------------------------------------------------------------------


@pytest.mark.parametrize("text", NONE)
@pytest.mark.parametrize("duration", [PERIOD, LIMIT, PATIENCE])
def test_what_is_none_is_refused_with_the_rule(duration, text):
    with pytest.raises(UsageError, match="which is not a number of seconds") as caught:
        duration.read(text, "variable X")
    message = str(caught.value)
    assert message.startswith("variable X is '")
    assert "\n" not in message
    assert len(message) < 200


UNITS = Duration(has_units=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2m30s", 150),
        ("1h", 3600),
        ("1d2h", 93600),
        ("1h2m3.5s", 3723.5),
        ("1.5m", 90),
        ("7", 7),
    ],
)
def test_units(text, seconds):
    assert UNITS.read(text, "x") == seconds


ODD = "s h30s 30sm 1s1m 1m1m 5ms 1w -1h infs 1e3s 0s 0h0s 9e9h 300000h".split()


@pytest.mark.parametrize("text", [*(text for text in NONE if text != "1s"), *ODD, "1 h"])
def test_what_is_none_is_refused_with_the_forms(text):
    told = "which is not a duration such as 90s, 2m30s or 1h, or a number of seconds above 0 up to"
    with pytest.raises(UsageError, match=told):
        UNITS.read(text, "x")


@pytest.mark.parametrize("value", [math.nan, -1, 2e9, "5", b"5", True, None, []])
def test_what_is_none_is_refused_in_code(value):
    with pytest.raises(UsageError, match=r"^x is .* which is not a number of seconds"):
        PATIENCE.check(value, "x")


def test_numbers_of_many_digits_are_refused_in_code():
    for value in (10**400, 10**5000):
        with pytest.raises(UsageError, match=r"^x is .* which is not a number of seconds"):
            PATIENCE.check(value, "x")


def test_what_is_one():
    for text, seconds in {"5": 5, " 2.5 ": 2.5, "1e3": 1000, "3000000": 3e6, "1e9": 1e9}.items():
        assert PERIOD.read(text, "x") == seconds
        PERIOD.check(seconds, "x")
    assert LIMIT.read("inf", "x") == PATIENCE.read("Infinity", "x") == INF
    assert PATIENCE.read("0", "x") == 0


def test_zero_and_no_end_mean_something_in_some_places_only():
    for duration, zero, endless in ((PERIOD, 0, 0), (LIMIT, 0, 1), (PATIENCE, 1, 1)):
        for text, is_right in (("0", zero), ("inf", endless)):
            if is_right:
                duration.read(text, "x")
            else:
                with pytest.raises(UsageError):
                    duration.read(text, "x")


def test_the_rule_describes_valid_durations():
    assert PERIOD.rule == "a number of seconds above 0 up to 1000000000"
    assert PATIENCE.rule == "a number of seconds from 0 up to 1000000000, or inf for no end"
    assert Duration(least=5, most=1.5e6).rule == "a number of seconds from 5 up to 1500000"
    assert Duration(may_be_zero=True, most=1.5).rule == "a number of seconds from 0 up to 1.5"


# --- waiting --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [OVER_POLL, LONGEST, 1e300, INF])
def test_the_system_takes_every_duration(seconds):
    read_end, write_end = os.pipe()
    os.close(write_end)  # so that it is ready at once
    poller = select.poll()
    poller.register(read_end, select.POLLIN)
    assert poller.poll(milliseconds(seconds))
    os.close(read_end)
    assert 0 < milliseconds(seconds) < 2**31
    assert waitable(seconds) * 1000 == milliseconds(seconds)
    assert bounded(seconds) <= LONGEST


def test_short_waits_are_rounded_up_and_none_is_no_end():
    assert milliseconds(0.0001) == 1
    assert milliseconds(-3) == milliseconds(0) == 0
    assert milliseconds(1.5) == 1500
    assert milliseconds(None) is None
    assert waitable(None) is None
    assert waitable(0.0001) == 0.0001
    assert (describe_end(12), describe_end(INF)) == ("in 12 s", "never")


def test_only_durations_converts_to_milliseconds():
    """Whoever asks poll for seconds of his own does it through `milliseconds`.

    The guard imports next to nothing, and its two times are its own.
    """
    root = Path(__file__).parents[1]
    found = {
        path.name
        for folder in ("core", "plugins")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\.poll\([^)]*\* ?1000", path.read_text(encoding="utf-8"))
    }
    assert found <= {"guard_process.py", "otel_process.py"}


@pytest.mark.parametrize("seconds", [OVER_POLL, INF])
def test_the_watch_of_exits_waits_for_any_time(seconds):
    watch = ExitPoller()
    watch.wake()
    watch.wait(seconds)
    watch.close()


# --- each entrance: the command line, its variables, other variables -----------------------------


@pytest.mark.parametrize("text", NONE)
@pytest.mark.parametrize(
    "option",
    ["--shutdown-timeout", "--monitor-interval", "--exit-barrier-timeout", "--start-timeout"],
)
def test_options_and_their_variables(option, text):
    with pytest.raises(UsageError, match=f"argument {option}: '.* is not a number of seconds"):
        parse([option, text, "x.py"], {})
    variable = "PET_" + option[2:].upper().replace("-", "_")
    with pytest.raises(UsageError, match=f"variable {variable}: '.* is not a number of seconds"):
        parse(["x.py"], {variable: text})


def test_no_end_on_the_command_line():
    words = ["--shutdown-timeout=inf", "--exit-barrier-timeout=inf", "--start-timeout=inf"]
    args = parse([*words, "x.py"], {})
    assert args.shutdown_timeout == args.exit_barrier_timeout == args.start_timeout == INF
    with pytest.raises(UsageError, match="--monitor-interval: 'inf' is not"):
        parse(["--monitor-interval=inf", "x.py"], {})


@pytest.mark.parametrize("text", NONE)
def test_the_grace_of_torchruns_variable(text):
    with pytest.raises(UsageError, match="variable TORCH_ELASTIC_SHUTDOWN_TIMEOUT is '"):
        shutdown_timeout_of({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": text})
    assert shutdown_timeout_of({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "inf"}) == INF


@pytest.mark.parametrize("text", ["soon", "nan", "2e9", "-soon"])
def test_the_bound_of_uninterruptible_sleep(text):
    name = "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
    with pytest.raises(UsageError, match=f"variable {name} is '"):
        uninterruptible_timeout_of({name: text})


def test_a_dry_run_is_json_whatever_has_no_end(tmp_path):
    script = tmp_path / "x.py"
    script.touch()
    out = io.StringIO()
    with redirect_stdout(out):
        run(["--dry-run=json", "--shutdown-timeout=inf", "--start-timeout=inf", str(script)])

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    plan = json.loads(out.getvalue(), parse_constant=refuse)
    assert plan["settings"]["shutdown_timeout"]["value"] == "inf"


# --- each entrance: code --------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, -1, 2e9, "5"])
@pytest.mark.parametrize(
    "name", ["shutdown_timeout", "monitor_interval", "exit_barrier_timeout", "start_timeout"]
)
def test_a_configuration(name, value):
    with pytest.raises(UsageError, match=f"^{name} .*is .* not a number of seconds"):
        LaunchConfig(1, 1, 1, **{name: value})


@pytest.mark.parametrize("value", [math.nan, 0, INF, 2e9, "5"])
def test_a_worker_spec(value):
    with pytest.raises(UsageError, match=r"^monitor_interval is "):
        spec(monitor_interval=value)


@pytest.mark.parametrize("value", [math.nan, -1, 2e9, "5"])
@pytest.mark.parametrize(
    "name", ["shutdown_timeout", "exit_barrier_timeout", "uninterruptible_state_timeout"]
)
def test_an_agent(name, value):
    with pytest.raises(UsageError, match=f"^{name} is "):
        LocalElasticAgent(spec(), **{name: value})


@pytest.mark.parametrize("value", [math.nan, -1, 2e9, "5"])
def test_starting_processes(value):
    with pytest.raises(UsageError, match=r"^shutdown_timeout is "):
        start_processes("w", "true", {0: ()}, shutdown_timeout=value)


def test_waiting_for_and_closing_a_context():
    context = start_processes("w", "sleep", {0: ("60",)})
    try:
        for call in (
            lambda: context.wait(math.nan),
            lambda: context.wait(2e9),
            lambda: context.wait(0, period=0),
            lambda: context.close(timeout=math.nan),
            lambda: context.close(timeout=2e9),
        ):
            with pytest.raises(UsageError, match="which is not a number of seconds"):
                call()
    finally:
        context.close(signal.SIGKILL)


@pytest.mark.parametrize("seconds", [OVER_POLL, 3e6, LONGEST, INF])
def test_a_long_grace_is_one(tmp_path, seconds):
    """A worker that takes its time to save, and is not killed a moment after the signal."""
    program = """
import os, signal, sys, time
def save(signum, frame):
    time.sleep(0.2)
    os.write(1, b"saved\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.write(1, b"ready\\n")
time.sleep(60)
"""
    context = start_processes(
        "w",
        sys.executable,
        {0: ("-c", program)},
        log_dir=tmp_path,
        redirects=3,
        shutdown_timeout=seconds,
    )
    try:
        out = Path(context.stdouts[0])
        while "ready" not in out.read_text():
            assert context.wait(0.02) is None
    finally:
        context.close()
    assert out.read_text() == "ready\nsaved\n"
    assert context.take_exits()[0].exitcode == 0


@pytest.mark.parametrize("seconds", [OVER_POLL, INF])
def test_a_wait_without_an_end_ends_with_the_worker(seconds):
    context = start_processes("w", "true", {0: ()})
    assert context.wait(seconds).is_failed() is False


def test_waits_of_the_agent_have_no_end():
    waiting = WaitReporter(INF, clock=lambda: 100.0)
    assert milliseconds(waiting.pause()) >= 0
    alive = LoopWatchdog(INF, clock=lambda: 100.0)
    alive.before_poll(INF)
    assert alive.overdue() == 0


class RecordedTimeouts:
    """A store with the methods of torch's; records the timeouts that it gets."""

    timeout = None

    def __init__(self):
        self.times = []

    def add(self, key, amount):
        return amount

    def set(self, key, value):
        pass

    def wait(self, keys, timeout):
        self.times.append(timeout.total_seconds())

    def set_timeout(self, timeout):
        if timeout is not None:
            self.times.append(timeout.total_seconds())


def test_stores_of_torch_get_a_time_that_they_know():
    store = RecordedTimeouts()
    wait_for_peers(store, 2, INF)
    with store_timeout(store, INF):
        pass
    assert store.times == [LONGEST, LONGEST]
    with pytest.raises(UsageError, match="timeout is nan"), store_timeout(store, math.nan):
        pass


# --- each entrance: options of backends and of event handlers ------------------------------------


@pytest.mark.parametrize("text", [text for text in NONE if text])  # none is no option
@pytest.mark.parametrize(
    "name",
    [
        "join_timeout",
        "last_call_timeout",
        "arrival_delay",
        "cas_backoff_max_seconds",
        "close_timeout",
        "keep_alive_interval",
        "unreachable_timeout",
        "verdict_ttl",
    ],
)
def test_times_of_all_backends(name, text):
    with pytest.raises(UsageError, match=rf"option '{name}' .*\(--rdzv-conf\) is '"):
        Timing.from_parameters(parameters(**{name: text}))


def test_times_of_all_backends_without_an_end():
    names = (
        "join_timeout",
        "last_call_timeout",
        "arrival_delay",
        "close_timeout",
        "unreachable_timeout",
    )
    timing = Timing.from_parameters(parameters(**dict.fromkeys(names, "inf")))
    assert {getattr(timing, name) for name in names} == {INF}
    for name in ("keep_alive_interval", "verdict_ttl"):
        with pytest.raises(UsageError, match=f"option '{name}'"):
            Timing.from_parameters(parameters(**{name: "inf"}))


@pytest.mark.parametrize("value", ["0", "-1", "1.5", str(10**400)])
def test_the_number_of_missed_signs_is_a_small_one(value):
    with pytest.raises(UsageError, match="option 'keep_alive_max_attempt'"):
        Timing.from_parameters(parameters(keep_alive_max_attempt=value))


@pytest.mark.parametrize("text", ["nan", "0", "inf", "soon", "1e7"])
def test_the_time_of_one_operation_of_c10d(text):
    with pytest.raises(UsageError, match=r"option 'read_timeout' .* is '"):
        prepare_c10d(parameters(read_timeout=text))


@pytest.mark.parametrize("name", ["connect_timeout", "read_timeout", "job_ttl"])
@pytest.mark.parametrize("text", ["nan", "0", "inf", "soon", "2e9"])
def test_times_of_etcd(name, text):
    with pytest.raises(UsageError, match=rf"option '{name}' .* is '"):
        read_options(parameters(**{name: text}), {})


@pytest.mark.parametrize("text", ["nan", "-1", "1.6", "soon", "inf"])
def test_the_wait_for_an_export(text):
    with pytest.raises(UsageError, match=r"option otel.wait \(--event-conf\) is '"):
        otel_seconds(text)


# --- each entrance: timers ------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, -1, 2e9, "5"])
def test_a_timer(value):
    class Client:
        def acquire(self, scope_id, expiration_time):
            pytest.fail("it is asked for")

        def release(self, scope_id):
            pytest.fail("it was never there")

    with pytest.raises(UsageError, match=r"^after is "), expires(value, "scope", Client()):
        pass


@pytest.mark.parametrize("value", [math.nan, 0, -1, INF])
def test_servers_of_timers(tmp_path, value):
    with pytest.raises(UsageError, match=r"^max_interval is "):
        FileTimerServer(str(tmp_path / "pipe"), "run", max_interval=value)
    assert not (tmp_path / "pipe").exists()
    with pytest.raises(UsageError, match=r"^max_interval is "):
        LocalTimerServer(None, max_interval=value)


def test_a_timer_that_never_expires_goes_through_the_pipe_and_no_time_does_not():
    endless = FileTimerRequest(7, "scope", INF, 9)
    assert FileTimerRequest.from_json(endless.to_json()) == endless
    for time in ("NaN", '"nan"', str(10**400)):
        line = f'{{"pid": 7, "scope_id": "s", "expiration_time": {time}, "signal": 9}}'
        with pytest.raises(ValueError, match="is not a timer request"):
            FileTimerRequest.from_json(line)


UNITS = Duration(has_units=True)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h", 3600), ("90s", 90), ("2m30s", 150), ("1.5h", 5400), ("1d2h3m4s", 93784), ("7", 7)],
)
def test_a_duration_may_have_units(text, seconds):
    assert UNITS.parse(text) == seconds
    assert UNITS.parse(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "h", "1x", "1h30", "30s1h", "1h1h", "-1h", "1e3s", "1 h", "0s", "1h-1s", "²s"),
        *("9" * 400 + "s", "infs", "inf", "1.2.3s"),
    ],
)
def test_other_texts_are_no_durations_with_units(text):
    with pytest.raises(ValueError, match="is not a duration such as 90s, 2m30s or 1h, or a number"):
        UNITS.parse(text)


def test_a_duration_without_units_rejects_them():
    with pytest.raises(ValueError, match="is not a number of seconds"):
        PERIOD.parse("1h")


@pytest.mark.parametrize(
    ("seconds", "gap", "text"),
    [
        (0, "", "0s"),
        (30, " ", "30 s"),
        (150, " ", "2 m 30 s"),
        (3600, " ", "1 h"),
        (90061.5, "", "1d1h1m1.5s"),
        (0.25, "", "0.25s"),
    ],
)
def test_durations_are_written_with_units(seconds, gap, text):
    assert format_duration(seconds, gap) == text
