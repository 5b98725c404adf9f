"""The command line, from arguments to exit codes, with real workers."""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import pytest

from helpers.ports import free_port
from helpers.programs import run_all, run_python

SHOW_ENV = """\
import json, os, pathlib, sys
names = [n for n in os.environ if n.startswith(("TORCHELASTIC_", "MASTER_", "PLAUNCH_", "OMP_"))]
names += [n for n in os.environ if n.endswith(("RANK", "WORLD_SIZE", "ROLE_NAME"))]
env = {name: os.environ[name] for name in sorted(names)}
env["argv"] = sys.argv[1:]
pathlib.Path(f"env-{os.environ['RANK']}.json").write_text(json.dumps(env))
"""

FAIL_ONCE = """\
import os, sys
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(17)
# One write, so that the lines of two workers do not mix.
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
sys.stdout.write(f"rank {rank} of attempt {attempt}\\n")
"""


def test_workers_get_their_environment_and_arguments(plaunch):
    plaunch.environ.pop("USE_LIBUV", None)  # the worker of rank 0 would host the store
    script = plaunch.write("show.py", SHOW_ENV)
    argv = ["--nproc-per-node=2", "--max-restarts=3", "--role=trainer", script]
    done = plaunch.run(*argv, "--x=${local_rank}", "$HOME", "--redirects", "3")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for rank in range(2):
        env = json.loads((plaunch.folder / f"env-{rank}.json").read_text())
        assert env["argv"] == [f"--x={rank}", "$HOME", "--redirects", "3"]
        assert re.fullmatch("[0-9a-f]{16}", env["TORCHELASTIC_RUN_ID"])
        assert 1024 <= int(env["MASTER_PORT"]) <= 65535
        assert env["TORCHELASTIC_ERROR_FILE"].endswith("error.json")
        expected = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "ROLE_RANK": str(rank),
            "GROUP_RANK": "0",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_WORLD_SIZE": "2",
            "ROLE_NAME": "trainer",
            "MASTER_ADDR": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
            "PLAUNCH_ROUND": "0",
            "TORCHELASTIC_MAX_RESTARTS": "3",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }
        assert {name: env[name] for name in expected} == expected


def test_a_failure_is_followed_by_a_restart_of_all(plaunch):
    script = plaunch.write("fail_once.py", FAIL_ONCE)
    done = plaunch.run("--nproc-per-node=2", "--max-restarts=1", script)
    assert done.returncode == 0
    assert "rank 0 of attempt 1" in done.stdout
    assert "rank 1 of attempt 1" in done.stdout
    assert "rank 1" in done.stderr
    assert "exit code 17" in done.stderr
    assert "restart 1 of 1" in done.stderr


def test_the_exit_code_is_the_first_failing_workers_own(plaunch):
    script = plaunch.write("fail_once.py", FAIL_ONCE)
    done = plaunch.run("--nproc-per-node=2", script)
    assert done.returncode == 17
    assert "exit code 17" in done.stderr
    assert "rank 1" in done.stderr
    assert "Traceback" not in done.stderr
    torchruns = plaunch.run("--nproc-per-node=2", script, PLAUNCH_EXIT_CODE="torchrun")
    assert torchruns.returncode == 1


def test_the_signal_that_killed_a_worker_is_reported(plaunch):
    script = plaunch.write("kill.py", "import os; os.kill(os.getpid(), 9)\n")
    done = plaunch.run(script)
    assert done.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in done.stderr


def test_the_last_lines_of_a_failing_worker_are_in_the_report(plaunch):
    script = plaunch.write("boom.py", "def f():\n    raise RuntimeError('boom')\nf()\n")
    done = plaunch.run("--nproc-per-node=2", script)
    assert done.returncode == 1
    report = done.stderr[done.stderr.index("plaunch: ") :]
    assert "RuntimeError: boom" in report


WAIT = """\
import os, pathlib, signal, sys, time
if len(sys.argv) > 1:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: sys.exit(0))
pathlib.Path(f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
os.write(1, b"up\\n")
time.sleep(300)
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_requested_stop_is_one_line_and_leaves_no_process(plaunch, signum):
    script = plaunch.write("wait.py", WAIT)
    with plaunch.start("--nproc-per-node=2", script, "polite") as launcher:
        assert [launcher.stdout.readline() for _ in range(2)] == ["up\n", "up\n"]
        launcher.send_signal(signum)
        _, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 128 + signum
    lines = [line for line in err.splitlines() if line.startswith("plaunch: ")]
    assert lines[0] == f"plaunch: {signum.name} received; the workers are stopped"
    assert len(lines) == 1
    assert "Traceback" not in err
    for rank in range(2):
        pid = int((plaunch.folder / f"pid-{rank}").read_text())
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_modules_programs_and_run_path(plaunch):
    plaunch.write("hello.py", "import sys; print('hello', __name__, sys.argv[1:])\n")
    for argv in (["-m", "hello"], ["hello.py"], ["--run-path", "hello.py"]):
        done = plaunch.run(*argv, "-x")
        assert (done.returncode, done.stdout) == (0, "hello __main__ ['-x']\n"), done.stderr
    done = plaunch.run("--no-python", "echo", "hi", "${local_rank}")
    assert (done.returncode, done.stdout) == (0, "hi 0\n")


def test_another_interpreter(plaunch):
    done = plaunch.run(plaunch.write("x.py", "print('python')\n"), PYTHON_EXEC="/bin/echo")
    assert done.stdout == f"-u {plaunch.folder / 'x.py'}\n"


def test_logs_and_console(plaunch):
    script = plaunch.write(
        "talk.py",
        "import os, sys\nprint('out', os.environ['RANK'])\n"
        "print('err', os.environ['RANK'], file=sys.stderr)\n",
    )
    logs = plaunch.folder / "logs"
    done = plaunch.run(
        "--nproc-per-node=2", f"--log-dir={logs}", "-r", "3", "-t", "0:1,1:2", script
    )
    assert (done.returncode, done.stdout) == (0, "[default0]:out 0\n")
    assert done.stderr == "[default1]:err 1\n"
    (attempt,) = logs.glob("*/attempt_0")
    for rank in range(2):
        assert (attempt / str(rank) / "stdout.log").read_text() == f"out {rank}\n"
        assert (attempt / str(rank) / "stderr.log").read_text() == f"err {rank}\n"


def test_every_attempt_keeps_its_logs(plaunch):
    script = plaunch.write("fail_once.py", FAIL_ONCE)
    logs = plaunch.folder / "logs"
    done = plaunch.run("--nproc-per-node=2", f"--log-dir={logs}", "--max-restarts=1", "-r3", script)
    assert done.returncode == 0
    (run,) = logs.iterdir()
    assert sorted(path.name for path in run.iterdir()) == ["attempt_0", "attempt_1"]
    assert (run / "attempt_1" / "0" / "stdout.log").read_text() == "rank 0 of attempt 1\n"


def test_a_clean_run_leaves_nothing_behind(plaunch):
    scratch = plaunch.folder / "scratch"
    scratch.mkdir()
    done = plaunch.run(plaunch.write("none.py", ""), TMPDIR=str(scratch))
    assert done.returncode == 0
    assert list(scratch.iterdir()) == []


def test_console_events(plaunch):
    done = plaunch.run("--event-log-handler=console", plaunch.write("none.py", ""))
    assert done.returncode == 0
    for event in ("rendezvous.completed: ", "worker.started: rank 0 ", "launcher.finished: succ"):
        assert event in done.stderr


def shown(plaunch, count):
    """The environments of workers, which have run `SHOW_ENV`."""
    paths = [plaunch.folder / f"env-{rank}.json" for rank in range(count)]
    return [json.loads(path.read_text()) for path in paths]


def run_static(plaunch, *nodes):
    """Run static nodes on this host, each with its own options, until all have succeeded."""
    script, port = plaunch.write("show.py", SHOW_ENV), free_port()
    argv = [f"--nnodes={len(nodes)}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    programs = [
        ["-m", "plaunch", *argv, f"--node-rank={rank}", *own, script]
        for rank, own in enumerate(nodes)
    ]
    for done in run_all(programs, cwd=plaunch.folder, env=plaunch.environ):
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return port


def test_two_static_nodes_on_one_host(plaunch):
    """Two agents compute one world; the worker of rank 0 hosts the store that the other joins."""
    port = run_static(plaunch, ["--nproc-per-node=2"], ["--nproc-per-node=2"])
    worlds = shown(plaunch, 4)
    assert [env["GROUP_RANK"] for env in worlds] == ["0", "0", "1", "1"]
    assert {env["WORLD_SIZE"] for env in worlds} == {"4"}
    assert {env["MASTER_PORT"] for env in worlds} == {str(port)}
    assert {env["TORCHELASTIC_RUN_ID"] for env in worlds} == {"none"}


def test_unlike_static_nodes(plaunch):
    """They send their numbers of workers to node 0, on the port where its workers listen later."""
    run_static(plaunch, ["--nproc-per-node=1", "--role=boss"], ["--nproc-per-node=2"])
    worlds = shown(plaunch, 3)
    assert [env["GROUP_RANK"] for env in worlds] == ["0", "1", "1"]
    assert {env["WORLD_SIZE"] for env in worlds} == {"3"}
    assert [env["ROLE_RANK"] for env in worlds] == ["0", "0", "1"]
    assert [env["ROLE_WORLD_SIZE"] for env in worlds] == ["1", "2", "2"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_static_node_whose_peer_never_comes(plaunch, rank):
    script = plaunch.write("show.py", SHOW_ENV)
    where = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}"]
    done = plaunch.run(*where, f"--node-rank={rank}", "--rdzv-conf=join_timeout=0.5", script)
    assert done.returncode == 111
    assert ("missing: index 1." if rank == 0 else "Connection refused") in done.stderr
    assert not list(plaunch.folder.glob("env-*"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "there is no script to run"),
        (["nowhere.py"], "the script 'nowhere.py' does not exist"),
        (["--nproc-per-node=0", "SCRIPT"], "--nproc-per-node is 0"),
        (["--nproc-per-node=lots", "SCRIPT"], "'lots'"),
        (["--nnodes=3:2", "SCRIPT"], "--nnodes is '3:2'; it needs 0 < minimum <= maximum"),
        (["--nnodes=2", "SCRIPT"], "give --master-addr with that of node 0"),
        (["--no-python", "-m", "x"], "--no-python and --module contradict each other"),
        (["--no-python", "--module", "x"], "--no-python and --module contradict each other"),
        (["--redirects=9", "SCRIPT"], "--redirects: '9'"),
        (["--rdzv-conf=x", "SCRIPT"], "--rdzv-conf has 'x'"),
        (["--rdzv-backend=statik", "SCRIPT"], "did you mean 'static'"),
        (["--logs-specs=defalt", "SCRIPT"], "did you mean 'default'"),
        (["--event-log-handler=nul", "SCRIPT"], "did you mean 'null'"),
        (["--signal-policy=torchru", "SCRIPT"], "did you mean 'torchrun'"),
        (["--local-ranks-filter=z", "SCRIPT"], "--local-ranks-filter has 'z'"),
        (["--log-dir=SCRIPT", "SCRIPT"], "show.py"),
        (
            ["--nnodes=2", "--node-rank=2", "--master-addr=a", "SCRIPT"],
            "node rank 2 (--node-rank) is outside the job of 2 nodes",
        ),
        (
            ["--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1", "SCRIPT"],
            "(PLAUNCH_RDZV_TOKEN), but rendezvous backend 'static' does not sign",
        ),
        (["--frobnicate", "SCRIPT"], "no option --frobnicate"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_before_anything_starts(plaunch, argv, message):
    script = plaunch.write("show.py", SHOW_ENV)
    environ = {"PLAUNCH_RDZV_TOKEN": "a token of sixteen bytes"} if "TOKEN" in message else {}
    done = plaunch.run(*[word.replace("SCRIPT", script) for word in argv], **environ)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("plaunch: error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not list(plaunch.folder.glob("env-*.json"))


def test_debug_adds_the_traceback(plaunch):
    done = plaunch.run("nowhere.py", PLAUNCH_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert "UsageError: the script 'nowhere.py' does not exist" in done.stderr


def test_help_and_version(plaunch):
    shown = plaunch.run("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--rdzv-backend" in shown.stdout
    shown = plaunch.run("--version")
    assert shown.returncode == 0
    assert shown.stdout.startswith("plaunch ")
    assert sys.executable in shown.stdout


def test_torch_is_never_imported_by_the_launcher(plaunch):
    script = plaunch.write("none.py", "")
    argv = ["-X", "importtime", "-m", "plaunch", "--nproc-per-node=2", script]
    shown = run_python(*argv, env=plaunch.environ, check=True)
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert "plaunch.launch" in imported
    assert not imported & {"torch", "numpy", "grpc", "etcd3", "multiprocessing", "asyncio"}
