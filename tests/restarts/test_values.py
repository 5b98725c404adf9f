"""The options of the restart policies: parsing, formatting, errors."""

from __future__ import annotations

import pytest
from plaunch.plugin import PluginContext
from plaunch.restarts import Cause, Failure
from plaunch_restarts.options import OPTIONS
from plaunch_restarts.settings import RestartSettings
from plaunch_restarts.values import read_conditions

from helpers.programs import run_python

BY_DEST = {option.dest: option for option in OPTIONS}


def settings(**options):
    given = {"max_restarts": 3, **options.pop("settings", {})}
    context = PluginContext("job", "default", "node0", settings=given, options=options)
    return RestartSettings(context)


@pytest.mark.parametrize(
    ("dest", "text", "written"),
    [
        ("restart_delay", "5s", "5s"),
        ("restart_delay", "0", "0s"),
        ("restart_delay", "1:60s", "1s:1m"),
        ("crash_loop", "3/30", "3/30s"),
        ("crash_loop", "off", "off"),
        ("restart_on", "exit:2,exit:64-78,oom", "exit:2,exit:64-78,oom"),
        ("no_restart_on", "signal:ABRT,signal:6,signal:sigabrt", ",".join(["signal:SIGABRT"] * 3)),
        ("no_restart_on", "exception:pkg.ConfigError,hang", "exception:pkg.ConfigError,hang"),
        ("exclude_node_after", "2", "2"),
    ],
)
def test_values_are_read_and_written(dest, text, written) -> None:
    value = BY_DEST[dest].value_of(text)
    assert str(value) == written
    assert BY_DEST[dest].value_of(str(value)) == value


@pytest.mark.parametrize(
    ("dest", "texts", "message"),
    [
        ("restart_window", ["", "x", "0", "-1h", "inf", "1h:2h"], "is not a duration such as 90s"),
        ("restart_delay", ["", "x", "1s:x", ":1s", "0:1s", "1s:", "1s:2s:3s"], "is not a duration"),
        ("restart_delay", ["60s:1s"], "has a maximum below its minimum"),
        ("crash_loop", ["", "3", "/30s", "x/30s", "1/30s", "0/30s", "on"], "such as 3/30s"),
        ("crash_loop", ["3/", "3/x"], "is not a duration such as"),
        ("exclude_node_after", ["0"], "is not a number of failures from 1; omit the option"),
        ("exclude_node_after", ["", "-1", "x", "1.5"], "is not a number of failures"),
        ("restart_on", ["", ",", "exit:", "exit:0", "exit:256", "exit:3-2"], "is not exit:CODE"),
        ("restart_on", ["signal:NO", "signal:0", "signal:", "signal:99"], "is not exit:CODE"),
        ("restart_on", ["exception:", "exception:a b", "exception:a..b"], "is not exit:CODE"),
        ("no_restart_on", ["om"], "or a cause: worker, oom, node, .*; did you mean 'oom'"),
        ("no_restart_on", ["exot:2"], "is not exit:CODE"),
    ],
)
def test_what_is_refused(dest, texts, message) -> None:
    for text in texts:
        with pytest.raises(ValueError, match=message):
            BY_DEST[dest].value_of(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"restart_window": 59.0, "restart_delay": "1s:1m"},
            "--restart-window=59s is shorter than the longest delay, 1m",
        ),
        ({"restart_window": "1s", "restart_delay": "2s"}, "shorter than the longest delay"),
        (
            {"restart_on": "exit:3", "no_restart_on": "oom,exit:1-5"},
            "exit:3 is in --restart-on, and exit:1-5 in --no-restart-on; keep one",
        ),
        ({"restart_on": "oom", "no_restart_on": "oom"}, "keep one"),
        ({"restart_on": "signal:9", "no_restart_on": "signal:KILL"}, "keep one"),
        ({"restart_on": "exception:A", "no_restart_on": "exception:A"}, "keep one"),
        ({"restart_on": "exception:pkg.A", "no_restart_on": "exception:A"}, "keep one"),
        ({"restart_on": "exit:3", "no_restart_on": "worker"}, "exit:3 is in .*, and worker in"),
        ({"restart_on": "exception:A", "no_restart_on": "worker"}, "keep one"),
        ({"restart_on": "oom", "no_restart_on": "signal:KILL"}, "keep one"),
        ({"exclude_node_after": 0}, "--exclude-node-after: '0' is not a number of failures"),
        ({"restart_delay": -1}, "--restart-delay: '-1' is not a duration"),
        ({"settings": {"max_restarts": None}}, "max_restarts is None"),
        ({"settings": {"max_restarts_by_cause": 3}}, "max_restarts_by_cause is 3"),
    ],
)
def test_contradictions(options, message) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"restart_window": "1m", "restart_delay": "1s:1m"},
        {"restart_on": "exit:1-5", "no_restart_on": "exit:3"},
        {"restart_on": "exit:3", "no_restart_on": "signal:3"},
        {"restart_on": "exception:A", "no_restart_on": "exception:pkg.A"},
        {"restart_on": "signal:KILL", "no_restart_on": "worker"},  # if memory has run out
        {"restart_on": "worker", "no_restart_on": "exit:3"},
        {"restart_on": "oom", "no_restart_on": "worker"},
        {"restart_on": "exception:A", "no_restart_on": "exception:B"},
    ],
)
def test_valid_combinations(options) -> None:
    settings(**options)


@pytest.mark.parametrize(
    ("options", "loop"),
    [
        ({}, "off"),
        ({"settings": {"max_restarts": 4}}, "3/30s"),
        ({"settings": {"max_restarts": 4}, "crash_loop": "off"}, "off"),
        ({"crash_loop": "2/1m"}, "2/1m"),
    ],
)
def test_the_default_of_crash_loop_is_for_larger_budgets(options, loop) -> None:
    assert str(settings(**options).crash_loop) == loop


def failure(exitcode=1, cause=Cause.WORKER, exception=""):
    return Failure(cause, 0, "node0", exitcode, exception=exception)


@pytest.mark.parametrize(
    ("text", "match", "others"),
    [
        ("exit:64-78", [failure(64), failure(78)], [failure(63), failure(79), failure(-64)]),
        ("signal:SIGABRT", [failure(-6)], [failure(6), failure(134)]),
        ("signal:9", [failure(-9), failure(-9, Cause.OUT_OF_MEMORY)], [failure(-9, Cause.HANG)]),
        (
            "exception:ConfigError",
            [failure(exception="ConfigError"), failure(exception="pkg.sub.ConfigError")],
            [failure(), failure(exception="MyConfigError"), failure(exception="ConfigError.x")],
        ),
        (
            "exception:pkg.ConfigError",
            [failure(exception="pkg.ConfigError")],
            [failure(exception="ConfigError"), failure(exception="mypkg.ConfigError")],
        ),
        ("oom", [failure(-9, Cause.OUT_OF_MEMORY)], [failure(-9)]),
        ("exit:1", [failure(1)], [failure(1, Cause.NODE), failure(1, Cause.HEALTH)]),
    ],
)
def test_conditions(text, match, others) -> None:
    conditions = read_conditions(text)
    assert [str(conditions.find(one)) for one in match] == [str(conditions)] * len(match)
    assert [conditions.find(one) for one in others] == [None] * len(others)


def test_values_is_imported_only_with_an_option() -> None:
    code = "import sys, plaunch_restarts.options; print('plaunch_restarts.values' in sys.modules)"
    assert run_python("-c", code, check=True).stdout.split() == ["False"]
