"""Jobs with faults injected by `--inject`, and their log lines."""

from __future__ import annotations

import json
import re
import signal

import pytest

from helpers.ports import free_port
from helpers.processes import is_gone
from helpers.waiting import wait_until

STOPPED = "def is_stopped(pid): return open(f'/proc/{pid}/stat').read().rsplit(')')[-1][1] == 'T'\n"

# Each worker writes its process id. Only the first attempt keeps running, or all with `ever`.
WAITING = """\
import os, pathlib, sys, time
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
pathlib.Path(f"pid.{rank}.{attempt}").write_text(str(os.getpid()))
while attempt == "0" or "ever" in sys.argv:
    time.sleep(0.02)
"""


@pytest.fixture(autouse=True)
def _loud(loud):
    """Show the log lines of launches."""


def logged(plaunch):
    """Return the log lines about faults, without the line that lists planned ones."""
    (path,) = (plaunch.folder / "logs").glob("*/chaos-*.jsonl")
    assert (path.parent / "attempt_0").is_dir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if "planned" not in line]


def test_a_worker_is_killed_and_the_job_recovers(plaunch):
    script = plaunch.write("train.py", WAITING)
    inject = "--inject=kill:rank=1,step-file=pid.1.0"
    done = plaunch.run("--nproc-per-node=2", "--max-restarts=1", inject, script)
    assert done.returncode == 0, done.stderr
    assert "this job will be broken on purpose, by --inject='kill:rank=1,step-file" in done.stderr
    pid = (plaunch.folder / "pid.1.0").read_text()
    assert f"kill:rank=1,step-file=pid.1.0: SIGKILL to rank 1 (pid {pid})\n" in done.stderr
    assert "restart 1 of 1" in done.stderr


def test_the_report_and_the_log_name_the_injected_fault(plaunch):
    script = plaunch.write("train.py", WAITING)
    inject = "--inject=kill:rank=1,signal=SIGSEGV,times=2"
    words = ["--nproc-per-node=2", "--max-restarts=1", "--log-dir=logs", inject]
    done = plaunch.run(*words, script, "ever")
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    first, second = logged(plaunch)
    (path,) = plaunch.folder.rglob("chaos-*.jsonl")
    assert f"{inject.removeprefix('--inject=')}' (log: {path})\n" in done.stderr
    assert [line["attempt"] for line in (first, second)] == [0, 1]
    assert first["what"] == f"SIGSEGV to rank 1 (pid {first['pid']})"
    assert (
        f"Signal 11 (SIGSEGV) received by PID {second['pid']}: injected by "
        "--inject=kill:rank=1,signal=SIGSEGV,times=2\n"
    ) in done.stderr


STEPS = """\
import os, pathlib, time
if os.environ["RANK"] == "0":
    pathlib.Path("step").touch()
while True:
    time.sleep(0.02)
"""


def test_a_worker_exits_with_a_code(plaunch):
    script = plaunch.write("train.py", STEPS)
    inject = "--inject=exit:rank=0,code=3,step-file=step"
    done = plaunch.run("--nproc-per-node=2", "--log-dir=logs", inject, script)
    assert done.returncode == 3, done.stderr
    assert re.search("^plaunch: rank 0 on .* failed after .*: exit code 3$", done.stderr, re.M)
    assert "plaunch: rank 0 exits with code 3, injected by " + inject in done.stderr
    (line,) = logged(plaunch)
    assert (line["kind"], line["rank"], line["is_done"]) == ("exit", 0, True)


def test_a_preloaded_worker_exits_with_a_code(plaunch):
    """It is executed, and no other worker exits with the code."""
    script = plaunch.write("train.py", STEPS)
    done = plaunch.run("--preload=decimal", "--inject=exit:rank=0,code=3", script)
    assert done.returncode == 3, done.stderr
    assert "workers are started afresh" in done.stderr


# Rank 1 checks that rank 0 is stopped, and reads its message.
WATCHING = (
    STOPPED
    + """\
import os, pathlib, sys, time
rank = os.environ["RANK"]
if rank == "0":
    pathlib.Path("part").write_text(str(os.getpid()))
    os.rename("part", "pid")
    while not os.path.exists("seen"):
        time.sleep(0.02)
else:
    while not os.path.exists("pid"):
        time.sleep(0.02)
    pathlib.Path("ready").touch()
    while not is_stopped(open("pid").read()):
        time.sleep(0.02)
    pathlib.Path("seen").touch()
    sys.exit(int(sys.argv[1]))
"""
)


def test_a_worker_is_stopped_for_some_time(plaunch):
    script = plaunch.write("train.py", WATCHING)
    inject = "--inject=stop:rank=0,for=3s,step-file=ready"
    done = plaunch.run("--nproc-per-node=2", inject, script, "0")
    assert done.returncode == 0, done.stderr
    pid = (plaunch.folder / "pid").read_text()
    steps = re.findall(rf"ready: (SIG\w+) to rank 0 \(pid {pid}\)", done.stderr)
    assert steps == ["SIGSTOP", "SIGCONT"]


def test_a_worker_hangs_until_it_is_to_end(plaunch):
    script = plaunch.write("train.py", WATCHING)
    inject = "--inject=hang:rank=0,step-file=ready"
    done = plaunch.run("--nproc-per-node=2", "--shutdown-timeout=600", inject, script, "7")
    assert done.returncode == 7, done.stderr
    assert "hang:rank=0,step-file=ready: SIGSTOP to rank 0 (pid" in done.stderr
    assert "stopped because of it: rank 0 (SIGTERM)" in done.stderr


def test_the_launcher_is_killed(plaunch, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    script = plaunch.write("train.py", WAITING)
    inject = "--inject=kill:agent,step-file=pid.0.0;exit:rank=0,code=3,after=1h"
    done = plaunch.run("--log-dir=logs", inject, script, TMPDIR=str(temporary))
    assert done.returncode == -signal.SIGKILL, done.stderr
    (line,) = logged(plaunch)
    assert line["what"] == f"SIGKILL to this launcher (pid {line['agent_pid']})"
    pid = int((plaunch.folder / "pid.0.0").read_text())
    wait_until(lambda: is_gone(pid), "the end of the worker")
    assert list(temporary.glob("plaunch_chaos_*")) == []


PARENT = (
    STOPPED
    + """\
import os, time
parent = os.getppid()
while not is_stopped(parent):
    time.sleep(0.02)
print("stopped", flush=True)
while is_stopped(parent):
    time.sleep(0.02)
print("goes on", flush=True)
"""
)


def test_the_launcher_is_stopped_for_some_time(plaunch):
    script = plaunch.write("train.py", PARENT)
    done = plaunch.run("--inject=stop:agent,for=3s,after=0.2s", script)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "stopped\ngoes on\n"
    said = r"stop:agent,for=3s,after=0.2s: SIGSTOP to this launcher \(pid (\d+)\) for 3 s\n"
    (pid,) = re.findall(said, done.stderr)
    assert f"after=0.2s: this launcher (pid {pid}) continues\n" in done.stderr


def test_each_node_injects_its_own_faults(agents):
    words = [
        "--nnodes=2",
        "--master-addr=127.0.0.1",
        f"--master-port={free_port()}",
        "--inject=exit:rank=0,code=5,after=1;kill:agent,group-rank=1,after=1",
    ]
    first, second = (agents.start(*words, f"--node-rank={rank}") for rank in (0, 1))
    assert first.exit_code() == 5, first.stderr
    assert second.exit_code() == -signal.SIGKILL, second.stderr
    assert "exit code 5 for rank 0" in first.stderr
    assert "SIGKILL to this launcher" not in first.stderr
    assert "SIGKILL to this launcher" in second.stderr
    assert "exit code 5 for rank 0" not in second.stderr


def test_bad_faults_end_before_anything_starts(plaunch):
    script = plaunch.write("train.py", "open('started', 'w')")
    done = plaunch.run("--inject=kill:rank=1,after=soon", script)
    assert done.returncode == 2
    assert done.stderr.startswith(
        "plaunch: error: argument --inject: fault 'kill:rank=1,after=soon': after: 'soon' is not "
    )
    assert not (plaunch.folder / "started").exists()
    done = plaunch.run(script, PET_INJECT="burn:rank=1")
    assert done.returncode == 2
    assert "variable PET_INJECT: fault 'burn:rank=1': unknown fault 'burn'" in done.stderr


def test_it_is_shown_and_only_loaded_if_used(plaunch):
    script = plaunch.write("train.py", "import sys; print(sys.path)")
    assert "--inject FAULT;..." in plaunch.run("--help").stdout
    shown = plaunch.run("--dry-run=json", "--inject=hang:rank=0", script)
    plan = json.loads(shown.stdout)
    assert plan["settings"]["inject"] == {"value": "hang:rank=0", "source": "command line"}
    assert "chaos" in [plugin["name"] for plugin in plan["plugins"]]
    plan = json.loads(plaunch.run("--dry-run=json", script).stdout)
    assert "chaos" not in [plugin["name"] for plugin in plan["plugins"]]
