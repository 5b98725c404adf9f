"""The launcher's own log lines, and errors before anything starts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

import pytest
from plaunch_network import HeldPort

from helpers.programs import run_python
from helpers.terminals import Terminal, lines_on_screen

pytestmark = pytest.mark.usefixtures("loud")

SHOW = "import json, os; print(json.dumps(dict(os.environ)))"


def test_it_logs_what_is_started(plaunch):
    plaunch.environ.pop("USE_LIBUV", None)  # which it names
    script = plaunch.write("train.py", f"{SHOW}; import time; time.sleep(1.1)")
    (plaunch.folder / "plaunch.toml").write_text("rdzv_id = 'mine'\n")
    done = plaunch.run("--config=plaunch.toml", "--nproc-per-node=2", script)
    assert done.returncode == 0, done.stderr
    begin, end = done.stderr.splitlines()
    assert re.fullmatch(
        r"plaunch: run id mine: 2 workers, 1 node; settings from \S*plaunch.toml; "
        "sets OMP_NUM_THREADS=1",
        begin,
    )
    assert re.match(r"plaunch: this launch took \d+(\.\d+)? s", end)


def test_it_logs_settings_on_request(plaunch):
    done = plaunch.run("--no-python", "true", LOGLEVEL="DEBUG")
    python = re.escape(f"{sys.version.split()[0]} ({sys.executable})")
    assert re.search(rf"^plaunch: version \S+, Python {python}$", done.stderr, re.M)


def test_it_logs_nothing_for_a_launch_that_succeeds_at_once(plaunch):
    done = plaunch.run("--nproc-per-node=2", "--no-python", "true")
    assert (done.returncode, done.stderr) == (0, "")


def test_it_logs_what_was_started_if_it_fails_at_once(plaunch):
    plaunch.environ.pop("USE_LIBUV", None)
    done = plaunch.run("--no-python", "false")
    assert re.match("plaunch: run id [0-9a-f]+: 1 worker, 1 node\n", done.stderr)


def test_log_lines_are_machine_readable(plaunch):
    script = plaunch.write("train.py", "import sys; print('out'); sys.exit('\"why\"')")
    argv = ["--log-format=json", "--rdzv-id=$mine", "--max-restarts=1", "--tee=3"]
    done = plaunch.run(*argv, "--log-dir=logs", script, FORCE_COLOR="1")
    assert done.returncode == 1
    told = [json.loads(line) for line in done.stderr.splitlines()]
    of_workers = [one for one in told if "rank" in one]
    told = [one for one in told if one not in of_workers]
    of_workers += [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["attempt"], one["stream"], one["message"]) for one in of_workers] == [
        *((attempt, "stderr", '"why"') for attempt in range(2)),
        *((attempt, "stdout", "out") for attempt in range(2)),
    ]
    common = {"version": 1, "run_id": "$mine", "host": told[0]["host"]}
    assert all(common.items() <= one.items() for one in [*told, *of_workers])
    assert all((one["rank"], one["local_rank"], one["level"]) == (0, 0, None) for one in of_workers)
    assert all(one["time"].endswith("+00:00") for one in [*told, *of_workers])
    begin, failed = told[:2]
    [report] = [one for one in told if one["level"] == "ERROR"]
    [account] = [one for one in told if one["message"].startswith("this launch took")]
    assert told.index(report) < told.index(account)
    assert begin["level"] == "INFO"
    assert begin["message"].startswith("run id $mine: 1 worker, 1 node")
    assert "failed: exit code 1; restart 1 of 1" in failed["message"]
    assert failed["level"] == "WARNING"
    assert report["level"] == "ERROR"
    assert "No restart: all restarts are used" in report["message"]


@pytest.mark.parametrize("level", ["INFO", "WARNING"])
def test_a_file_gets_no_colours_by_default(plaunch, level):
    script = plaunch.write("train.py", "exit(7)")
    assert "\x1b" not in plaunch.run(script, TERM="xterm", LOGLEVEL=level).stderr
    assert "\x1b[1;31mplaunch: " in plaunch.run("--color=always", script, LOGLEVEL=level).stderr


def test_it_can_be_silenced(plaunch):
    done = plaunch.run(plaunch.write("train.py", SHOW), LOGLEVEL="WARNING")
    assert (done.returncode, done.stderr) == (0, "")


def test_ports_are_from_the_range(plaunch):
    with contextlib.closing(HeldPort.any()) as free:
        port = free.port
    script = plaunch.write("train.py", SHOW)
    done = plaunch.run(f"--port-range={port}-{port}", script)
    assert json.loads(done.stdout)["MASTER_PORT"] == str(port), done.stderr


def test_a_range_without_a_free_port(plaunch):
    with contextlib.closing(HeldPort.any()) as taken:
        pass
    with contextlib.closing(HeldPort.any((taken.port, taken.port))) as held:
        script = plaunch.write("train.py", SHOW)
        done = plaunch.run(f"--port-range={held.port}-{held.port}", script)
    assert done.returncode == 2
    assert "none of the 1 ports" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"PET_NNODES": "x"}, "variable PET_NNODES is 'x'; write a number"),
        ({"PET_NPROC_PER_NODE": "two"}, "variable PET_NPROC_PER_NODE is 'two', which is neither"),
        ({"PET_RDZV_BACKEND": "c10"}, "'c10' is unknown (variable PET_RDZV_BACKEND); did you"),
        ({"PET_RDZV_CONF": "a"}, "variable PET_RDZV_CONF has 'a' in 'a'"),
        ({"PET_SIGNALS_TO_HANDLE": "SIGNOPE"}, "variable PET_SIGNALS_TO_HANDLE: 'SIGNOPE' is not"),
        ({"PET_MAX_RESTARTS": "-1"}, "max_restarts is -1 (variable PET_MAX_RESTARTS)"),
    ],
)
def test_the_error_names_a_bad_variable_and_not_its_option(plaunch, environ, message):
    done = plaunch.run(plaunch.write("train.py", SHOW), LOGLEVEL="WARNING", **environ)
    assert done.returncode == 2
    assert message in done.stderr
    assert not [word for word in done.stderr.split() if word.startswith("--")]


def test_an_option_behind_the_script_starts_the_job_and_is_named(plaunch):
    script = plaunch.write("train.py", "import sys; print(sys.argv[1:])")
    done = plaunch.run(script, "--nproc-per-node=2", LOGLEVEL="WARNING")
    assert (done.returncode, done.stdout) == (0, "['--nproc-per-node=2']\n")
    assert "--nproc-per-node=2 is after the script" in done.stderr
    done = plaunch.run("--", script, "--nproc-per-node=2", LOGLEVEL="WARNING")
    assert (done.stdout, done.stderr) == ("['--nproc-per-node=2']\n", "")


# A launcher whose backend needs no server, so that only the wait for another node takes time.
ALONE = """
import sys
from plaunch.cli import main
from plaunch.plugin import hookimpl
from plaunch_membership import DynamicRendezvousHandler, StoreAccess
from plaunch_membership.testing import MemoryBoard
def create(params):
    return DynamicRendezvousHandler(params, StoreAccess(MemoryBoard().connect, "127.0.0.1"))
class Backend:
    @hookimpl
    def plaunch_rendezvous_backends(self):
        return {"memory": create}
sys.exit(main(plugins=[Backend()]))
"""


@pytest.fixture
def alone(plaunch):
    """Returns the command of a launch that waits for another node."""
    script = plaunch.write("train.py", SHOW)
    launcher = plaunch.write("launcher.py", ALONE)
    argv = ["--nnodes=2", "--rdzv-backend=memory", "--rdzv-id=job"]
    return lambda *more: [launcher, *argv, *more, script]


@pytest.mark.slow
def test_a_long_wait_for_the_start_names_the_missing_nodes(plaunch, alone):
    words = alone("--node-rank=1", "--start-timeout=5")
    done = run_python(*words, cwd=plaunch.folder, env=plaunch.environ)
    assert done.returncode == 111
    host = os.uname().nodename
    came = re.escape(f"1 came: {host} (index 1); missing: index 0")
    who = rf"2 nodes until \d\d:\d\d:\d\d; {came}"
    assert re.search(rf"^plaunch: waiting for {who} \(since \d\d:\d\d:\d\d, for", done.stderr, re.M)
    assert re.search(
        rf"within 5 s \(--start-timeout\); it was waiting for {who}$", done.stderr, re.M
    )
    assert done.stdout == ""


@pytest.mark.slow
def test_on_a_terminal_the_wait_is_one_line(plaunch, alone):
    environ = {**plaunch.environ, "TERM": "xterm"}
    with Terminal(*alone(), columns=80, cwd=plaunch.folder, env=environ) as shown:
        shown.read_until(b"waiting for 2 nodes")
        shown.process.send_signal(signal.SIGINT)
        lines = shown.read_to_end()
        assert shown.process.wait(60) == 130
    (waiting,) = [line for line in lines if "waiting for 2 nodes" in line]
    assert waiting.startswith("plaunch: waiting for 2 nodes")
    # The next output replaces it.
    assert "SIGINT received" in waiting.rpartition("\x1b[K")[2]


def test_on_80_columns_the_wait_shows_its_time(plaunch):
    words = ["-m", "plaunch", "--nnodes=2", f"--rdzv-id={'long-' * 12}7", "--rdzv-backend=c10d"]
    words += ["--rdzv-endpoint=localhost:0", plaunch.write("train.py", SHOW)]
    environ = {**plaunch.environ, "TERM": "xterm"}
    with Terminal(*words, columns=80, cwd=plaunch.folder, env=environ) as shown:
        shown.read_until(b"Ctrl-C ends it)")
        *_, line = lines_on_screen(shown.shown.decode(), 80)
        shown.process.send_signal(signal.SIGINT)
        shown.read_to_end()
    start = r"plaunch: waiting for 2 nodes until [\d:]+; 1 came"
    assert re.fullmatch(rf"{start}.*… \(\d+ s; Ctrl-C ends it\)", line)
    assert len(line) < 80


ASKS = """\
import sys, time
print("question? ", end="", flush=True, file=sys.{stream})
time.sleep(600)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("tee", [[], ["--tee=3"]])
def test_a_message_begins_below_an_open_prompt(plaunch, stream, tee):
    """It is also seen if stdout is not on the terminal."""
    output = {"stdout": subprocess.DEVNULL} if stream == "stderr" else {}
    environ = {**plaunch.environ, "TERM": "xterm"}
    script = plaunch.write("asks.py", ASKS.format(stream=stream))
    words = ["-m", "plaunch", *tee, "--rdzv-id=7", script]
    with Terminal(*words, columns=60, cwd=plaunch.folder, env=environ, **output) as terminal:
        terminal.read_until(b"question? ")
        terminal.process.terminate()
        terminal.read_to_end()
    lines = lines_on_screen(terminal.shown.decode(), 60)
    at = next(at for at, line in enumerate(lines) if "question?" in line)
    assert lines[at] in ("question?", "[default0]:question?")
    assert lines[at + 1].startswith("plaunch: ")
    assert any(line.startswith("plaunch: SIGTERM received") for line in lines[at + 1 :])


def test_a_report_breaks_at_words_and_the_account_comes_below(plaunch):
    environ = {**plaunch.environ, "TERM": "xterm", "NO_COLOR": "1"}
    script = plaunch.write("fails.py", f"raise ValueError({'no ' * 40!r})")
    words = ["-m", "plaunch", script]
    with Terminal(*words, columns=40, cwd=plaunch.folder, env=environ) as terminal:
        terminal.read_to_end()
    lines = lines_on_screen(terminal.shown.decode(), 40)
    report = lines[next(at for at, line in enumerate(lines) if " failed after " in line) :]
    broken = re.sub(r"\n +", " ", "\n".join(report))
    assert re.match(r"plaunch: rank 0 on \S+ failed after .* s: ValueError: (no ){40}", broken)
    starts = [line.partition(":")[0] for line in report if not line.startswith("   ")]
    assert starts.index("  process") < report.index(
        next(line for line in report if line.startswith("plaunch: this launch took"))
    )


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_teed_prompt_is_shown(plaunch, is_terminal):
    script = plaunch.folder / "asks.py"
    script.write_text("print('answer:', input('question? '))")
    words = ("-m", "plaunch", "--tee=3", "--log-dir=logs", "asks.py")
    output = {} if is_terminal else {"stdout": subprocess.PIPE}
    with Terminal(*words, cwd=plaunch.folder, env=plaunch.environ, **output) as shown:
        if is_terminal:
            shown.read_until(b"[default0]:question? ")
        else:
            prompt = b"[default0]:question? "
            assert shown.process.stdout.read(len(prompt)) == prompt
        shown.type(b"yes\n")
        assert shown.process.wait(60) == 0
        if not is_terminal:
            assert shown.process.stdout.read() == b"answer: yes\n"
            shown.process.stdout.close()
