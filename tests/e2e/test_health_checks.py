"""Health checks on one node, and on several."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from helpers.ports import free_port
from helpers.processes import is_gone
from helpers.waiting import wait_until

TIMEOUT = 60.0  # seconds

THIRD_PARTY = """
import plaunch
from plaunch.doctor import Finding, Status

class Moon:
    takes_argument = True

    def __init__(self, context):
        self._phase = context.options.get("argument", "new")

    def check(self, occasion):
        if self._phase == "full":
            raise SystemExit(0)
        status = Status.PROBLEM if occasion.is_restart else Status.OK
        yield Finding(status, "moon", f"it is {self._phase}", "wait")

@plaunch.hookimpl
def plaunch_node_health():
    return {"moon": Moon}
"""


@pytest.fixture
def program(plaunch):
    """Write a program that checks a node; return the option that selects it."""

    def write(text, name="check.sh"):
        path = Path(plaunch.write(name, f"#!/bin/sh\n{text}\n"))
        path.chmod(0o755)
        return f"--health-check=command:{path}"

    return write


def last_line(text):
    return text.rstrip().splitlines()[-1]


def test_a_node_that_is_not_healthy_does_not_start(plaunch, program):
    option = program("echo GPU 3 has fallen off the bus >&2; exit 7")
    done = plaunch.run(option, "--no-python", "touch", "started")
    host = os.uname().nodename
    assert done.returncode == 115
    assert done.stderr == (
        f"plaunch: node {host} is not healthy: command: check.sh ended with exit code 7: GPU 3 has "
        f"fallen off the bus ({option})\n"
    )
    assert not (plaunch.folder / "started").exists()


def test_after_a_failure_both_causes_are_reported(plaunch, program):
    option = program('echo "$PLAUNCH_HEALTH_OCCASION"; [ "$PLAUNCH_HEALTH_OCCASION" = start ]')
    script = plaunch.write("train.py", "import sys; print('at work'); sys.exit('no more data')\n")
    done = plaunch.run("--max-restarts=5", option, script)
    assert done.returncode == 115
    assert done.stdout == "at work\n"
    assert "no more data" in done.stderr
    assert "plaunch: rank 0 on " in done.stderr
    assert "is not healthy: command: check.sh ended with exit code 1: restart" in last_line(
        done.stderr
    )


@pytest.mark.usefixtures("loud")
def test_a_healthy_node_restarts(plaunch, program):
    option = program('echo "$PLAUNCH_HEALTH_OCCASION" >> asked; echo fine')
    script = plaunch.write(
        "train.py", "import os, sys\nsys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] != '1')\n"
    )
    done = plaunch.run("--max-restarts=1", f"{option},disk:1M", script)
    assert done.returncode == 0, done.stderr
    assert (plaunch.folder / "asked").read_text() == "start\nrestart\n"
    assert done.stderr.count("is healthy: command: check.sh: fine; disk: ") == 2


@pytest.mark.slow
def test_other_nodes_continue_without_an_unhealthy_one(plaunch, program):
    """The first node fails its check; the second then runs the job alone."""
    # A variable identifies each node on this machine.
    option = program('[ "$PLAUNCH_HEALTH_OCCASION" = start ] || [ "$NODE" != ill ]')
    script = plaunch.write(
        "train.py",
        "import os, sys, time\n"
        "world, node = os.environ['WORLD_SIZE'], os.environ['NODE']\n"
        "print(world, node, flush=True)\n"
        "if world == '1': sys.exit(0)\n"
        "if node == 'ill': time.sleep(0.5); sys.exit(3)\n"
        "time.sleep(60)\n",
    )
    options = [
        *("--nnodes=1:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=health"),
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
        *("--max-restarts=1", option, script),
    ]
    # The remaining node hosts the store, which would end with its host.
    conf = "--rdzv-conf=last_call_timeout=30,is_host={}"
    with plaunch.start(conf.format("true"), *options, NODE="well") as well:
        with plaunch.start(conf.format("false"), *options, NODE="ill") as ill:
            _, err = ill.communicate(timeout=TIMEOUT)
            assert ill.returncode == 115, err
        out, well_err = well.communicate(timeout=TIMEOUT)
    assert re.search(r"plaunch: rank \d on ", err)
    assert "is not healthy: command: check.sh ended with exit code 1" in last_line(err)
    assert well.returncode == 0, well_err
    assert out == "2 well\n1 well\n"


def test_a_hanging_check_has_a_time_limit_and_is_named(plaunch):
    plugin = plaunch.write(
        "hangs.py",
        "import plaunch, time\n"
        "class Hangs:\n"
        "    def __init__(self, context): pass\n"
        "    def check(self, occasion): time.sleep(600)\n"
        "@plaunch.hookimpl\n"
        "def plaunch_node_health(): return {'hangs': Hangs}\n",
    )
    done = plaunch.run(
        *("-p", Path(plugin).stem, "--health-check=hangs", "--no-python", "true"),
        PYTHONPATH=str(plaunch.folder),
        PLAUNCH_HEALTH_CHECK_TIMEOUT="0.3",
    )
    assert done.returncode == 115
    assert "the health check 'hangs' (" in done.stderr
    assert "did not return within 0.3 s (--health-check=hangs)" in done.stderr


def test_a_signal_ends_the_wait_and_the_program(plaunch, program):
    option = program("echo $$ > pid; mv pid up; sleep 300")
    with plaunch.start(option, "--no-python", "true") as process:
        wait_until((plaunch.folder / "up").exists, "the program")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=TIMEOUT)
    assert process.returncode == 128 + signal.SIGTERM
    pid = int((plaunch.folder / "up").read_text())
    wait_until(lambda: is_gone(pid), "the end of the program")


@pytest.mark.parametrize(
    ("check", "code", "said"),
    [
        ("moon", 0, ""),
        ("moon:full", 115, "the health check 'moon' ("),
        ("sun", 2, "health check 'sun' is unknown"),
    ],
)
def test_a_third_party_check(plaunch, check, code, said):
    plaunch.write("moonlight.py", THIRD_PARTY)
    done = plaunch.run(
        *("-p", "moonlight", f"--health-check={check}", "--no-python", "true"),
        PYTHONPATH=str(plaunch.folder),
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ("nose", "health check 'nose' is unknown (--health-check). Choices: command, disk, gpu"),
        ("gpu:1", "'gpu' takes no argument"),
        ("disk:lots", "cannot use 'lots' (--health-check=disk:SIZE)"),
        ("command:/no/such", "the program '/no/such' of the health check 'command' does not exist"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_starts(plaunch, check, said):
    for words in ([], ["--dry-run"]):
        done = plaunch.run(*words, f"--health-check={check}", "--no-python", "touch", "started")
        assert done.returncode == 2
        assert said in done.stderr
    assert not (plaunch.folder / "started").exists()


def test_the_doctor_runs_checks_and_a_dry_run_does_not(plaunch, program):
    option = program("touch asked; echo no; exit 1")
    done = plaunch.run("--dry-run", option, "--no-python", "true")
    assert done.returncode == 0
    assert "health_checks    command" in done.stdout
    assert not (plaunch.folder / "asked").exists()
    done = plaunch.run("--doctor", option)
    assert done.returncode == 1
    assert "check.sh ended with exit code 1: no" in done.stdout
