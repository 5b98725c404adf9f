"""A third-party package: built, installed with pip, and used by name."""

from __future__ import annotations

import contextlib
import json
import re
import signal
from pathlib import Path

import pytest

from helpers.ports import free_port
from helpers.programs import run_python

PACKAGE = Path(__file__).parents[2] / "examples/plaunch-example-plugins"

# One write per line: with python -u, `print` writes the newline separately, and output of another
# worker may come in between.
SHOW = """\
import os, sys
rank, world, port = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
sys.stdout.write(f"rank {rank} of {world} at {port}\\n")
sys.stderr.write(f"last failure: {os.environ.get('LAST_FAILURE')}\\n")
"""
FAIL_ONCE = """\
import os, sys
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    sys.exit(17)
sys.stdout.write(f"last failure: {os.environ['LAST_FAILURE']}\\n")
"""
WAIT_FOR_USR1 = """\
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit("saved"))
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def installed(installed):
    """A command line that finds the package, and only those of its variables that a test sets."""
    for name in ("HOSTFILE", "HOSTFILE_HOST", "EVENTS_FILE", "JOURNAL", "LAST_FAILURE"):
        installed.environ.pop(name, None)
    return installed


@pytest.fixture
def hostfile(installed):
    """A host file with two names of this host."""
    path = installed.write(
        "hosts.txt", "alpha slots=2 addr=127.0.0.1\nbeta  slots=1 addr=127.0.0.1\n"
    )
    installed.environ["HOSTFILE"] = path
    return path


def stories(path):
    """The lines of a journal, without time and run id."""
    return [line.split(" ", 2)[2] for line in path.read_text().splitlines()]


def test_every_plugin_is_listed(installed):
    done = installed.run("--list-plugins")
    assert done.returncode == 0
    listed = {
        tuple(line.split()[:2]): line.split()[4]
        for line in done.stdout.splitlines()
        if "plaunch-example-plugins" in line
    }
    assert set(listed.values()) == {"ready"}
    names = ["append", "broken-device", "flat", *["hostfile"] * 3, "journal", "mount"]
    names += ["usr1-stops", "wrapper", "zstd"]
    assert sorted(name for _, name in listed) == names


def test_two_hosts_use_all_plugins_in_one_job(installed, hostfile):
    port = free_port()
    script = installed.write("show.py", SHOW)
    events = installed.folder / "events.jsonl"
    argv = [
        "--nnodes=2",
        "--rdzv-backend=hostfile",
        f"--rdzv-conf=port={port}",
        "--nproc-per-node=1",
        "--logs-specs=flat",
        "--log-dir=logs",
        "--tee=1",
        "--event-log-handler=append",
        "--signal-policy=usr1-stops",
        "--restart-policy=broken-device",
        "--health-check=mount:/",
        script,
    ]
    with contextlib.ExitStack() as stack:
        nodes = []
        for host in ("alpha", "beta"):
            node = installed.start(
                *argv,
                HOSTFILE_HOST=host,
                EVENTS_FILE=str(events),
                JOURNAL=str(installed.folder / f"{host}.txt"),
            )
            nodes.append(stack.enter_context(node))
        outputs = [node.communicate(timeout=60) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    for rank, (out, _) in enumerate(outputs):
        text = f"rank {rank} of 2 at {port}\n"
        assert out.endswith(text)
        assert (installed.folder / f"logs/0-rank0000{rank}.out").read_text() == text
        assert (installed.folder / f"logs/0-rank0000{rank}.err").read_text() == "last failure: \n"
    seen = [json.loads(line) for line in events.read_text().splitlines()]
    started = [
        event["metadata"]["global_rank"]
        for event in seen
        if event["name"] == "plaunch.worker.started"
    ]
    assert sorted(started) == [0, 1]
    expected = ["attempt 0, round 0: ranks 1", "finished: succeeded"]
    assert stories(installed.folder / "beta.txt") == expected


def test_the_device_counter_starts_a_worker_for_each_slot(installed, hostfile):
    script = installed.write("show.py", SHOW)
    done = installed.run("--nproc-per-node=hostfile", script, HOSTFILE_HOST="alpha")
    assert done.returncode == 0
    assert sorted(re.findall("rank . of .", done.stdout)) == ["rank 0 of 2", "rank 1 of 2"]


def test_workers_get_the_reason_of_a_restart(installed):
    script = installed.write("fail_once.py", FAIL_ONCE)
    journal = installed.folder / "journal.txt"
    argv = ["--nproc-per-node=2", "--max-restarts=1", script]
    done = installed.run(*argv, JOURNAL=str(journal))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["last failure: rank 1: exit code 17"] * 2
    assert stories(journal) == [
        "attempt 0, round 0: ranks 0, 1",
        "attempt 1, round 1: ranks 0, 1 after rank 1: exit code 17",
        "finished: succeeded",
    ]


def test_its_restart_policy_decides(installed):
    """`standard` would end the job at the first failure."""
    words = ["-p", "no:journal", "--restart-policy=broken-device", "--max-restarts=0"]
    script = installed.write(
        "fail.py", "import os, sys\nsys.exit(75 if os.environ['PLAUNCH_ROUND'] == '0' else 17)\n"
    )
    done = installed.run(*words, script)
    assert done.returncode == 17
    assert re.search(r"; restart: a device of \S+ is broken, says rank 0; but", done.stderr)
    assert "\n  No restart: 0 restarts did not help\n" in done.stderr


def test_a_blocked_lifecycle_plugin_takes_no_part(installed):
    script = installed.write("show.py", SHOW)
    assert "last failure: \n" in installed.run(script).stderr
    assert "last failure: None\n" in installed.run("-p", "no:journal", script).stderr


def test_usr1_stops_the_job_under_the_policy(installed):
    script = installed.write("wait.py", WAIT_FOR_USR1)
    with installed.start("--signal-policy=usr1-stops", script) as launch:
        assert launch.stdout.readline() == "ready\n"
        launch.send_signal(signal.SIGUSR1)
        _, err = launch.communicate(timeout=60)
    assert launch.returncode == 128 + signal.SIGUSR1
    assert "saved" in err
    assert "SIGUSR1" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nproc-per-node=hostfile"], "set the variable HOSTFILE to its path"),
        (["--rdzv-backend=hostfile"], "set the variable HOSTFILE to its path"),
        (["--event-log-handler=append"], "set the variable EVENTS_FILE to the path of a file"),
        (["--logs-specs=flat", "--log-dir=show.py/logs"], "choose another with --log-dir"),
    ],
)
def test_errors_of_plugins_are_usage_errors_of_one_line(installed, argv, message):
    done = installed.run(*argv, installed.write("show.py", SHOW))
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    said = [line for line in done.stderr.splitlines() if not line.startswith("plaunch: run id ")]
    assert len(said) == 1


def test_plugins_that_are_not_used_are_not_imported(installed):
    script = installed.write("empty.py", "")
    argv = ["-X", "importtime", "-m", "plaunch", "-p", "no:journal", script]
    done = run_python(*argv, cwd=installed.folder, env=installed.environ, check=True)
    assert "plaunch.agent" in done.stderr
    assert "plaunch_example_plugins" not in done.stderr


def test_the_tests_of_the_package_pass(run_tests_of_package):
    run_tests_of_package()


def test_it_imports_public_names_only(rooms_imported):
    public = {"agent", "doctor", "errors", "events", "health", "plugin", "process"}
    public |= {"rendezvous", "restarts", "scheduling"}
    assert {"plugin", "process", "rendezvous"} <= rooms_imported <= public
