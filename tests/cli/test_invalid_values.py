"""Any value of an option gives a plan or a usage error of one line, never a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from plaunch.cli.options import OPTIONS
from plaunch.cli.parser import parse
from plaunch.cli.program import run
from plaunch.config import LaunchConfig
from plaunch.errors import LogDirectoryError, PlaunchError, UsageError
from plaunch.numbers import MOST_NODES, MOST_WORKERS, digits, quote, whole
from plaunch.process.logs import Std
from plaunch_devices.choice import check_devices, parse_devices
from plaunch_logs_default import DefaultLogsSpecs

DIGITS = "9" * 5000  # more than Python reads as a number
ODD = [
    "",
    " ",
    "--",
    "-",
    "=",
    "a=b",
    ",",
    ":",
    "0",
    "-1",
    "1_0",
    DIGITS,
    f"-{DIGITS}",
    f"0-{DIGITS}",
    f"{DIGITS}-1",
    f"0:{DIGITS}",
    f"1:{DIGITS}",
    f"host:{DIGITS}",
    f"timeout={DIGITS}",
    "0-99999999999",
    "4294967296",
    "1e400",
    "nan",
    "a\0b",
    "\udcff",
    "\ud800",
    "\u0663",
    "\u00b2",
    "x" * 10_000,
    "a/" * 3000,
    "\n",
    "1\n",
    "[::1",
    "host:-1",
    "%s",
    "${x}",
    "\x1b[31m",
    "\u202e",
]
VALUED = [option for option in OPTIONS if option.read is not None]
# Those that do something other than launching, and the one that asks torch for an unknown word.
PLANNED = [
    option
    for option in VALUED
    if option.dest not in ("check_plugin", "print_completion", "nproc_per_node")
]


def names(options):
    return [option.dest for option in options]


@pytest.mark.parametrize("option", VALUED, ids=names(VALUED))
def test_what_the_parser_makes_of_odd_values(option):
    for value in ODD:
        variables = [{option.variable: value}] if option.variable else []
        for argv, environ in (
            ([f"{option.names[-1]}={value}", "x.py"], {}),
            ([option.names[0], value, "x.py"], {}),
            *((["x.py"], environ) for environ in variables),
        ):
            try:
                parse(argv, environ)
            except UsageError as error:
                assert "\n" not in str(error)  # noqa: PT017 - most are values


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "script.py"
    path.touch()
    return str(path)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    option=st.sampled_from(PLANNED),
    value=st.sampled_from(ODD) | st.text(max_size=20),
    form=st.sampled_from(["text", "json"]),
)
def test_plans_of_odd_values(script, option, value, form):
    # As the program has it, which is stricter than a stream of text alone.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            run([f"--dry-run={form}", f"{option.names[-1]}={value}", script])
        except (PlaunchError, SystemExit) as error:
            assert "\n" not in str(error)  # noqa: PT017 - most are values


@pytest.mark.parametrize("words", [["--log-dir", "--"], ["--log-dir=--"], ["-r", "--"], ["-r--"]])
def test_the_end_of_the_options_is_no_value(words):
    with pytest.raises(UsageError, match=r"argument .*: it has no value, since '--' ends"):
        parse([*words, "x.py"], {})


def test_undecodable_bytes_are_shown_as_they_can_be(script):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict", write_through=True)
    with contextlib.redirect_stdout(out):
        run(["--dry-run", "--role=\udcff\u00e9", script])
    assert rb"\udcff\xe9" in out.buffer.getvalue()


@pytest.mark.parametrize("count", ["65537", "4294967296", DIGITS])
def test_too_many_workers(script, count):
    with pytest.raises(UsageError, match=rf"--nproc-per-node is .*; a node .* {MOST_WORKERS} w"):
        run(["--dry-run", f"--nproc-per-node={count}", script])


def test_too_many_in_code():
    with pytest.raises(UsageError, match=r"nproc_per_node is 65537 .* at most 65536 workers"):
        LaunchConfig(1, 1, MOST_WORKERS + 1)
    with pytest.raises(UsageError, match=rf"the node range is .* at most {MOST_NODES} nodes"):
        LaunchConfig(1, MOST_NODES + 1, 1)


@pytest.mark.parametrize("text", [DIGITS, f"0-{DIGITS}", f"{DIGITS}-0", "0-99999999999"])
def test_devices_of_many_digits(text):
    with pytest.raises(UsageError, match=r"is not a device number|is too large") as caught:
        parse_devices(text)
    assert len(str(caught.value)) < 300
    with pytest.raises(UsageError, match="is not a number from 0 up"):
        check_devices([DIGITS])


def test_ranks_that_no_node_has_make_no_table():
    with pytest.raises(UsageError, match="does not name streams"):
        Std.from_str("0-99999999999:3")


@pytest.mark.parametrize(
    ("folder", "problem"),
    [
        ("a\0b", "has a NUL character"),
        ("\ud800", "cannot be encoded"),
        ("a/" * 3000, "is too long"),
        ("x" * 300, "cannot be created"),
    ],
)
def test_log_directories_that_no_system_has(tmp_path, monkeypatch, folder, problem):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LogDirectoryError, match=problem):
        DefaultLogsSpecs(folder).create_run_dir("run")
    assert os.listdir(tmp_path) == []


def test_whole_numbers():
    assert [whole(text) for text in ("7", " 7 ", "-7", "1_0")] == [7, 7, -7, 10]
    for text in ("", "x", "1.5", DIGITS, "9" * 20):
        with pytest.raises(ValueError, match="is not a whole number"):
            whole(text)
    assert [digits(text) for text in ("0", "007", "9" * 18)] == [0, 7, int("9" * 18)]
    assert digits("0" * 5000 + "1") == 1
    assert {digits(text, 5) for text in ("", "-1", "+1", " 1", "1_0", "6", DIGITS, "\u0663")} == {
        None
    }
    assert quote("x") == "'x'"
    assert len(quote("x" * 1000)) == 60
    assert quote(10**5000) == "a number of thousands of digits"


# --- a current folder that is gone ----------------------------------------------------------------


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["x.py"], r"'x.py' does not exist, and the current folder does not exist any more"),
        (["--log-dir=logs", "--no-python", "true"], "log directory 'logs' is relative to the cur"),
        (
            ["--event-log-handler=jsonl", "--event-conf=jsonl.path=x", "--no-python", "true"],
            "jsonl.path='x', relative to the current folder",
        ),
    ],
)
def test_what_needs_a_folder_that_is_gone(words, message):
    with pytest.raises(UsageError, match=message):
        run(words)


@pytest.mark.usefixtures("nowhere")
def test_what_needs_no_folder_works():
    assert run(["--no-python", "true"]) == {0: None}


@pytest.mark.parametrize(
    ("words", "code"), [(["--no-python", "true"], 0), (["--version"], 0), (["x.py"], 2)]
)
def test_the_program_starts_in_a_folder_that_is_gone(tmp_path, words, code):
    folder = tmp_path / "gone"
    folder.mkdir()
    program = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", sys.executable, "-m", "plaunch"]
    done = subprocess.run(
        [*program, *words], check=False, capture_output=True, text=True, timeout=60, cwd=folder
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
