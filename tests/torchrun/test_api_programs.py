"""Small programs over torchrun's Python API observe the same with torch and with plaunch."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.torchs_torchrun import allow_any_store

pytest.importorskip("torch.distributed")

PROGRAMS = Path(__file__).parent / "programs"
NAMES = sorted(
    path.stem for path in PROGRAMS.glob("*.py") if path.stem not in ("api", "driver", "__init__")
)
LIMIT = 200  # seconds for all programs

# By program and what it shows: torch's value, plaunch's, and why they differ.
DIFFERENT = {
    "agent_local": {
        "refused": (["AssertionError"] * 2, ["ValueError"] * 2, "user input is not asserted"),
    },
    "agent_overrides": {
        "calls": (
            ["rendezvous", "start", "monitor"],
            ["start", "monitor"],
            "the loop joins rounds on a thread, without `_rendezvous`",
        ),
    },
    "endpoints": {
        "also '::1'": ([":", 1], ["::1", 29], "an IPv6 address without brackets has no port"),
        "also 'fe80::1'": (["fe80:", 1], ["fe80::1", 29], "the same"),
        "also 'host:1:2'": (["host:1", 2], "ValueError", "no host has a colon in its name"),
        "also 'fe80::1%eth0'": ("ValueError", ["fe80::1%eth0", 29], "link-local addresses"),
        "also '[fe80::1%eth0]:3'": ("ValueError", ["fe80::1%eth0", 3], "the same"),
    },
    "events_record": {"more": ([False] * 2, [True] * 2, "plaunch's events have more fields")},
    "launch_config": {
        "conf": ({"timeout": 900}, {}, "nothing is added to rdzv_configs"),
        "specs": (True, False, "logs_specs stays None, which means the default"),
    },
    "launch_failure": {
        "failures": ([0, 1], [1], "workers stopped because of another have not failed"),
        "says": (
            "To enable traceback see: https://pytorch",
            "the worker ended",
            "plaunch describes the exit, with the last lines of stderr",
        ),
        "text": (True, False, "another format of the report"),
    },
    "parameters": {
        "refused": (
            ["ValueError"] * 3 + [None],
            ["ValueError"] * 4,
            "an empty run id would let all such jobs meet",
        ),
    },
    "record": {
        "extra": (
            ["py_callstack", "timestamp"],
            ["py_callstack", "timestamp", "timestamp_ns"],
            "failures within a second are ordered",
        ),
    },
    "signal_exception": {
        "empty": ("AssertionError", "ValueError", "user input is not asserted"),
        "exit": (
            [
                "<N/A>",
                "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html",
                3,
            ],
            ["<N/A>", "PID 998 ended with exit code 3 and wrote no error file", 3],
            "plaunch describes the exit",
        ),
    },
    "store_utils": {
        "kept": (False, True, "the time-out of the store is restored after an error as well"),
    },
}
# Those that observe something else with versions of torch before `LaunchConfig.shutdown_timeout`.
UNLIKE_OLDER = {
    "launch_failure": "it does not count the workers that it has stopped as failed either",
    "patched_functions": "a job of one node has the static backend and a fixed port",
    "signals_variable": "the variable does not exist",
}


@pytest.mark.slow
def test_programs_observe_the_same(tmp_path):
    started = {side: start(side, tmp_path) for side in ("torch", "plaunch")}
    of_torch, of_plaunch = (read(process) for process in started.values())
    found = []
    torchs = importlib.import_module("torch.distributed.launcher.api").LaunchConfig
    is_older = not hasattr(torchs, "shutdown_timeout")
    for name in NAMES:
        if is_older and name in UNLIKE_OLDER:
            continue
        expected = dict(DIFFERENT.get(name, {}))
        keys = {*of_torch[name], *of_plaunch[name], *expected} - {"seconds", "stderr"}
        for key in sorted(keys):
            pair = of_torch[name].get(key), of_plaunch[name].get(key)
            *wanted, _ = expected.get(key, (pair[0], pair[0], ""))
            if list(pair) != wanted:
                found.append(f"{name}: {key}: torch {pair[0]!r}, plaunch {pair[1]!r}")
        for side, result in (("torch", of_torch), ("plaunch", of_plaunch)):
            if result[name]["exit code"]:
                found.append(f"{name} on {side}: {result[name]['stderr']}")
    assert not found, "\n".join(found)


def start(side, tmp_path):
    folder = tmp_path / side
    folder.mkdir()
    command = [sys.executable, PROGRAMS / "driver.py", folder, *NAMES]
    environ = {**os.environ, "API": side, "PYTHONWARNINGS": "ignore", "BEFORE": allow_any_store()}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


def read(process):
    try:
        return json.loads(process.communicate(timeout=LIMIT)[0])
    finally:
        process.kill()
        process.wait()
