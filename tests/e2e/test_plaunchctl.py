"""plaunchctl with running launches."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plaunch_control import completion

from helpers.nodes import options
from helpers.ports import free_port
from helpers.programs import BOUND, run_python
from helpers.runtime import runtime_dir  # noqa: F401 - a fixture
from helpers.waiting import wait_for_files, wait_until

CONTROL = "from plaunch_control.cli import entry_point; entry_point()"
NOBODY = 65534
EVIL = Path(__file__).parents[1] / "data/evil_package"
HOST = socket.gethostname()
BY = f"by uid {os.geteuid()}: "
DONE, REFUSED, NO_JOB, NO_ANSWER, FOREIGN = 0, 1, 3, 4, 5

# Writes lines with rank and round until a file exists.
WRITER = """\
import os, sys, time
rank, round_ = os.environ["RANK"], os.environ["PLAUNCH_ROUND"]
number = 0
while not os.path.exists(f"enough.{round_}"):
    print(f"out {rank} {round_} {number}", "x" * 2000, flush=True)
    print(f"err {rank} {round_} {number}", file=sys.stderr, flush=True)
    number += 1
    time.sleep(0.02)
print("the last words", end="", flush=True)
while not os.path.exists("exit"):
    time.sleep(0.02)
"""
# Ignores SIGTERM, and reports it.
DEAF = """\
import os, pathlib, signal, time
signal.signal(signal.SIGTERM, lambda *_: pathlib.Path("asked").touch())
pathlib.Path("ready").touch()
while True: time.sleep(60)
"""


class Control:
    """Runs `plaunchctl`."""

    def __init__(self, environ):
        self.environ = environ

    def words(self, *words):
        return ["-c", CONTROL, *words]

    def run(self, *words, code=DONE):
        """Return its output; it must exit with this code.

        Retries while the launch is not found, because it begins to listen after a delay.
        """
        until = time.monotonic() + BOUND
        while True:
            done = run_python(*self.words(*words), env=self.environ)
            if done.returncode != NO_JOB or code == NO_JOB or time.monotonic() > until:
                break
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def json(self, *words):
        return json.loads(self.run(*words, "--json"))

    @contextlib.contextmanager
    def start(self, *words):
        """Start a long-running launch."""
        command = [sys.executable, *self.words(*words)]
        with subprocess.Popen(
            command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    @contextlib.contextmanager
    def waiting(self, *words):
        """Start `plaunchctl wait`; it has two open connections once it waits."""
        with self.start("wait", *words) as process:
            wait_until(
                lambda: process.poll() is not None or count_sockets(process) >= 2, "it waits"
            )
            yield process


def count_sockets(process):
    count, folder = 0, f"/proc/{process.pid}/fd"
    with contextlib.suppress(OSError):  # it may close one, or exit
        for fd in os.listdir(folder):
            count += os.readlink(os.path.join(folder, fd)).startswith("socket:")
    return count


@pytest.fixture
def ctl(plaunch, runtime_dir):  # noqa: F811
    """Finds only the launches of this test."""
    plaunch.environ["PLAUNCH_RUNTIME_DIR"] = str(runtime_dir)
    return Control(plaunch.environ)


@pytest.fixture
def folder(ctl):
    """The folder of the sockets."""
    return Path(ctl.environ["PLAUNCH_RUNTIME_DIR"])


def local(run_id, *more):
    return ["--nproc-per-node=2", f"--rdzv-id={run_id}", *more]


def until_seen(ctl, *agents):
    """Wait until launches are listed; return the rows, by pid."""
    pids = {agent.process.pid for agent in agents}

    def rows():
        found = {row["pid"]: row for row in ctl.json("ps")}
        return found if pids <= found.keys() else None

    return wait_until(rows, "all launches are listed")


def until_phase(ctl, phase, *words):
    def seen():
        status = ctl.json("status", *words)
        return status if status["phase"] == phase else None

    return wait_until(seen, f"phase {phase}")


def test_two_launches(agents, ctl):
    alpha = agents.start(*local("alpha"), LOGLEVEL="INFO")
    alto = agents.start(*local("alto"))
    agents.until_round(0, alpha, alto, workers=2)
    rows = {row["run_id"]: row for row in ctl.json("ps")}
    assert {name: row["pid"] for name, row in rows.items()} == {
        "alpha": alpha.process.pid,
        "alto": alto.process.pid,
    }
    assert rows["alpha"]["command"][-1] == "node0"
    assert [rows["alpha"][key] for key in ("state", "round", "attempt", "ranks")] == [
        "training",
        0,
        0,
        "0-1",
    ]
    table = ctl.run("ps").splitlines()
    assert table[0].split()[:4] == ["run", "id", "pid", "state"]
    assert [line.split()[0] for line in table[1:]] == ["alpha", "alto"]
    assert run_python(completion.__file__, env=ctl.environ).stdout.split() == ["alpha", "alto"]

    for word in ("alpha", "alp", str(alpha.process.pid)):
        told = ctl.json("status", word)
        assert told["agent_pid"] == alpha.process.pid
        assert [worker["pid"] for worker in told["workers"]] == [
            worker["pid"] for worker in alpha.workers(0)
        ]
    assert f"run id     alpha on {told['host']}" in ctl.run("status", "alpha")
    several = ctl.run("status", "al", code=NO_JOB)
    assert f"'al' matches several launches: alpha (pid {alpha.process.pid}), alto" in several
    assert "there are several launches" in ctl.run("status", code=NO_JOB)
    assert "running: alpha (pid" in ctl.run("status", "beta", code=NO_JOB)

    with ctl.waiting("alpha", "--json") as waits:
        assert ctl.json("stop", "alpha", "--reason", "it is enough")["reason"] == "it is enough"
        out, _ = waits.communicate(timeout=BOUND)
    assert alpha.exit_code() == waits.returncode == 143
    assert json.loads(out)["outcome"] == "signalled"
    said = f"plaunch: node {HOST} requests the end of the job (plaunchctl: {BY}it is enough); "
    said += "the workers are stopped"
    assert said in alpha.stderr.splitlines()
    assert [row["run_id"] for row in ctl.json("ps")] == ["alto"]
    assert ctl.json("status")["run_id"] == "alto"  # the only one
    agents.finish(alto)


def test_two_launches_with_one_run_id(agents, ctl):
    both = [agents.start(*local("same")) for _ in range(2)]
    agents.until_round(0, *both, workers=2)
    first, second = (str(agent.process.pid) for agent in both)
    told = ctl.run("stop", "same", code=NO_JOB)
    assert "'same' matches several launches" in told
    assert first in told
    assert second in told
    ctl.run("stop", first)
    assert both[0].exit_code() == 143
    assert ctl.json("status", "same")["agent_pid"] == int(second)
    agents.finish(both[1])


def test_a_requested_restart_is_not_counted_and_signals_reach_ranks(agents, ctl):
    node = agents.start(*local("job", "--max-restarts=0"), LOGLEVEL="INFO")
    agents.until_round(0, node, workers=2)
    assert ctl.json("restart", "--reason", "new learning rate")["asked"] == "restart"
    workers = agents.until_round(1, node, workers=2)
    assert {worker["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    assert (
        f"plaunchctl requests a restart ({BY}new learning rate); all workers are restarted; this "
        "is not counted against --max-restarts"
    ) in node.stderr
    assert [ctl.json("status")[key] for key in ("round", "attempt")] == [1, 0]

    assert ctl.json("signal", "SIGUSR1", "--ranks=1")["ranks"] == "1"
    agents.until(node.notices, "the notice")
    assert "SIGUSR1 is sent to ranks 0-1 of job" in ctl.run("signal", "usr1")
    agents.until(lambda: len(node.notices()) == 3, "two more")
    assert sorted(notice["rank"] for notice in node.notices()) == ["0", "1", "1"]
    assert "which has ranks 0-1" in ctl.run("signal", "USR1", "--ranks=7", code=REFUSED)
    assert "there is no signal" in ctl.run("signal", "SIGNO", "job", code=REFUSED)

    with ctl.start("events", "-f", "--json") as follows, ctl.waiting() as waits:
        line = json.loads(follows.stdout.readline())
        assert line["name"] == "plaunch.launcher.started"
        agents.finish(node)
        out, err = follows.stdout.read(), follows.stderr.read()
        assert waits.communicate(timeout=BOUND)[0].endswith(" has ended: succeeded, exit code 0\n")
        follows.wait(BOUND)
    names = [json.loads(line)["name"] for line in out.splitlines()]
    assert names[-1] == "plaunch.launcher.finished"
    assert "plaunch.request.received" in names
    assert (follows.returncode, waits.returncode, err) == (0, 0, "")


def test_a_node_leaves_and_all_nodes_are_stopped(agents, ctl, endpoint_of):
    """With a rendezvous that covers the whole job, from either node."""
    argv = options(endpoint_of("c10d"), "1:2", run_id="wide")
    both = [agents.start(*argv, LOGLEVEL="INFO") for _ in range(2)]
    agents.until_round(0, *both)
    for agent in both:
        told = ctl.json("status", str(agent.process.pid))["nodes"]
        assert [(one["group_rank"], one["ranks"], one["phase"]) for one in told] == [
            (0, "0", "training"),
            (1, "1", "training"),
        ]
        assert {one["agent_pid"] for one in told} == {one.process.pid for one in both}
    assert ": training, rank 1" in ctl.run("status", str(both[0].process.pid))
    # The store ends with its host.
    host, guest = sorted(both, key=lambda agent: "hosts the rendezvous store" not in agent.stderr)
    assert "asked wide" in ctl.run("leave", str(guest.process.pid), "--reason", "maintenance")
    assert guest.exit_code() == 143
    assert f"plaunchctl requests that this node leave ({BY}maintenance)" in guest.stderr
    agents.until(lambda: host.workers(1), "a round without it")

    third = agents.start(*argv, LOGLEVEL="INFO")
    agents.until_round(2, host, third)
    spare = agents.start(*argv, LOGLEVEL="INFO")
    check_stopped_alike(agents, ctl, third, host, spare)


def test_a_requested_stop_is_one_outcome_and_refuses_later_nodes(agents, ctl, endpoint_of):
    argv = options(endpoint_of("etcd-v2"), 2, backend="etcd-v2", run_id="stop")
    members = [agents.start(*argv, LOGLEVEL="INFO") for _ in range(2)]
    agents.until_round(0, *members)
    spare = agents.start(*argv, LOGLEVEL="INFO")
    check_stopped_alike(agents, ctl, *members, spare)
    late = agents.start(*argv)
    assert late.exit_code() == 112
    assert "is over: it was stopped at " in late.stderr
    assert f"plaunchctl: {BY}budget; start a new job under another run id" in late.stderr


def check_stopped_alike(agents, ctl, asked, other, spare):
    """Request a stop on one of two members; assert that all nodes end with one outcome."""
    agents.until(lambda: "waits for a place" in spare.stderr, "the spare")
    until_seen(ctl, asked, other, spare)
    with ctl.waiting(str(other.process.pid)) as waits:
        told = ctl.json("stop", str(asked.process.pid), "--all-nodes", "--reason", "budget")
        assert told["nodes"] == "all"
        assert [agent.exit_code() for agent in (asked, other, spare)] == [143, 143, 143]
        assert "ended: signalled, exit code 143" in waits.communicate(timeout=BOUND)[0]
    what = f"node {HOST} requests the end of the job (plaunchctl: {BY}budget)"
    for agent in (asked, other):
        assert f"plaunch: {what}; the workers are stopped\n" in agent.stderr
    assert f"plaunch: {what}; no worker is running\n" in spare.stderr


def test_nodes_that_do_not_know_each_other_are_not_stopped_together(agents, ctl):
    words = ["--nnodes=2", "--rdzv-id=narrow", "--master-addr=127.0.0.1"]
    argv = [*words, f"--master-port={free_port()}"]
    both = [agents.start(*argv, f"--node-rank={rank}") for rank in range(2)]
    agents.until_round(0, *both)
    first = str(both[0].process.pid)
    told = ctl.run("stop", first, "--all-nodes", code=REFUSED)
    assert "do not know each other" in told
    assert ctl.json("stop", first)["nodes"] == "this"
    assert both[0].exit_code() == 143


# --- unusual states -------------------------------------------------------------------------------


def test_while_a_launch_is_in_rendezvous(agents, ctl, endpoint_of):
    node = agents.start(*options(endpoint_of("c10d"), 2, run_id="early"))
    assert until_seen(ctl, node)[node.process.pid]["run_id"] == "early"
    told = until_phase(ctl, "rendezvous")
    wait_until(lambda: ctl.json("status")["waiting_for"], "what it waits for")
    assert "waits for" in ctl.run("status")
    assert told["workers"] == []
    assert "no worker runs now" in ctl.run("signal", "SIGUSR1", code=REFUSED)
    assert "none of these ranks runs on this node" in ctl.run("logs", code=REFUSED)
    ctl.run("stop", "early")
    assert node.exit_code() == 143


def test_the_line_of_a_restart_names_the_sender_of_the_signal(agents, ctl):
    node = agents.start("--rdzv-id=job", "--max-restarts=1", "--nproc-per-node=2")
    agents.until_round(0, node, workers=2)
    assert ctl.json("signal", "KILL", "--ranks=1")["ranks"] == "1"
    agents.until_round(1, node, workers=2)
    sent = f"plaunchctl signal KILL by uid {os.geteuid()}; restart 1 of 1"
    assert re.search(rf"rank 1 on \S+ .* failed: killed by SIGKILL.*: {sent}", node.stderr)
    agents.finish(node)


def test_while_a_launch_is_stopping(plaunch, agents, ctl):
    script = plaunch.write("deaf.py", DEAF)
    node = agents.launch(["--shutdown-timeout=600", "--rdzv-id=late", script], "late", {})
    wait_for_files(plaunch.folder / "ready")
    ctl.run("stop")
    wait_for_files(plaunch.folder / "asked")
    assert until_phase(ctl, "stopping")["alive"]
    for command in ("stop", "restart", "leave"):
        ctl.run(command)
    assert ctl.json("status")["phase"] == "stopping"
    assert ctl.json("signal", "SIGKILL")["ranks"] == "0"
    assert node.exit_code() == 143


def test_while_a_plugins_hook_hangs(agents, ctl, plaunch):
    environ = {"PYTHONPATH": str(EVIL), "EVIL_STANDS": str(plaunch.folder / "stands")}
    environ["PLAUNCH_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    plugins = ["-p", "control", "-p", "stands-in-worker-env"]
    node = agents.start("--rdzv-id=held", *plugins, **environ)
    wait_for_files(plaunch.folder / "stands")
    until_seen(ctl, node)
    assert ctl.json("status")["run_id"] == "held"
    ctl.run("stop", "--reason", "it stands")
    assert node.exit_code() == 143
    assert f"requests the end of the job (plaunchctl: {BY}it stands)" in node.stderr


def test_a_suspended_launcher_is_reported_in_time(agents, ctl):
    node = agents.start(*local("still"), LOGLEVEL="INFO")
    agents.until_round(0, node, workers=2)
    ctl.json("status")  # loads the code that answers
    with ctl.waiting() as waits:
        node.process.send_signal(signal.SIGSTOP)
        try:
            told = ctl.run("status", "--timeout=1", code=NO_ANSWER)
            assert "did not answer within 1 s: it is suspended" in told
            told = ctl.run("stop", "--timeout=1", code=NO_ANSWER)
            assert "the request is withdrawn and will not be carried out" in told
            (row,) = ctl.json("ps")
            assert (row["run_id"], row["state"]) == ("still", "no answer")
        finally:
            node.process.send_signal(signal.SIGCONT)
        assert ctl.json("status")["run_id"] == "still"
        dropped = "a request for '/v1/stop' is not carried out"
        agents.until(lambda: dropped in node.stderr, "the end of the withdrawn request")
        agents.finish(node)
        waits.communicate(timeout=BOUND)
        assert waits.returncode == 0


def test_a_killed_launcher_leaves_nothing(agents, ctl, folder):
    dead, other = agents.start(*local("dead")), agents.start(*local("other"))
    workers = agents.until_round(0, dead, workers=2)
    agents.until_round(0, other, workers=2)
    with ctl.waiting("dead") as waits, ctl.start("events", "-f", "dead") as follows:
        assert follows.stdout.readline()
        dead.kill()
        _, err = waits.communicate(timeout=BOUND)
        assert waits.returncode == NO_ANSWER
        assert "has ended" in err
        assert "its last events are missing" in follows.stderr.read()
    assert [row["run_id"] for row in ctl.json("ps")] == ["other"]
    assert [name.partition(".")[0] for name in os.listdir(folder)] == ["other"]
    assert "matches 'dead'; running: other (pid" in ctl.run("status", "dead", code=NO_JOB)
    agents.until_gone(*(worker["pid"] for worker in workers))
    agents.finish(other)
    assert not os.listdir(folder)


FORKING = """\
import os, time
from plaunch import LaunchConfig, elastic_launch

def work():
    open(f"round.{os.environ['PLAUNCH_ROUND']}", "w").close()
    while not os.path.exists("exit"):
        time.sleep(0.02)

elastic_launch(LaunchConfig(1, 1, 2, run_id="forked", start_method="fork"), work)()
"""


def test_workers_that_are_forked_do_not_answer_in_its_place(plaunch, ctl, folder):
    script = plaunch.write("forking.py", FORKING)
    with subprocess.Popen([sys.executable, script], cwd=plaunch.folder, env=ctl.environ) as process:
        try:
            for round_ in range(3):
                wait_for_files(plaunch.folder / f"round.{round_}")
                wait_until(lambda at=round_: ctl.json("status")["round"] == at, "the round")
                assert ctl.json("status")["agent_pid"] == process.pid
                if round_ < 2:
                    ctl.run("restart")
            (plaunch.folder / "exit").touch()
            assert process.wait(BOUND) == 0
        finally:
            process.kill()
    assert not os.listdir(folder)


# --- other users ----------------------------------------------------------------------------------


@pytest.mark.needs("root")
def test_another_user_is_refused(agents, ctl, folder):
    node = agents.start(*local("mine"))
    agents.until_round(0, node, workers=2)
    until_seen(ctl, node)
    (name,) = os.listdir(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    as_nobody = f"import os; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); "
    # The other users need not be able to read modules that are imported already.
    imported = (
        "import typing, plaunch.process.proc; from plaunch_control import cli, commands, folder; "
        "cli.create_parser().format_help(); "
    )

    def run(*words):
        return run_python("-c", imported + as_nobody + "cli.entry_point()", *words, env=ctl.environ)

    done = run("stop", "mine")
    assert done.returncode == FOREIGN
    assert "a launch of user 0 has this run id; only its user may control it" in done.stderr
    assert run("ps").stdout == "no launch of this user was found on this host\n"
    # Even if the files are accessible, the launch itself rejects them.
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    (folder / name).chmod(0o777)
    page = f"plaunch_control.client.ask({str(folder / name)!r}, '/v1/stop', {{}})"
    done = run_python("-c", f"import plaunch_control.client; {as_nobody}{page}", env=ctl.environ)
    assert f"this launch belongs to user 0, and you are user {NOBODY}" in done.stderr
    folder.chmod(0o700)
    assert ctl.json("status")["phase"] == "training"
    agents.finish(node)


@pytest.mark.needs("curl")
def test_curl_is_enough(agents, ctl, folder):
    node = agents.start(*local("job"), LOGLEVEL="INFO")
    agents.until_round(0, node, workers=2)
    until_seen(ctl, node)
    (name,) = os.listdir(folder)
    curl = ["curl", "-sS", "--max-time", "60", "--unix-socket", str(folder / name)]

    def ask(*words):
        done = subprocess.run([*curl, *words], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    assert ask("http://plaunch/v1/status")["run_id"] == "job"
    assert ask("http://plaunch/v7/status")["versions"] == [1]
    assert ask("-d", '{"reason": "enough"}', "http://plaunch/v1/stop")["asked"] == "stop"
    assert node.exit_code() == 143
    assert f"requests the end of the job (plaunchctl: {BY}enough)" in node.stderr


# --- log files ------------------------------------------------------------------------------------


def test_logs(plaunch, agents, ctl):
    """Across the older files that rotation leaves, and from one round to the next."""
    script = plaunch.write("writer.py", WRITER)
    words = local("job", "--log-dir=logs", "--redirects=3", "--log-rotate=64K:99")
    node = agents.launch([*words, script], "node", {})
    wait_until(lambda: ctl.json("ps")[:1] and len(ctl.json("logs")["files"]) == 2, "the files")
    (path,) = (one["stdout"] for one in ctl.json("logs")["files"] if one["global_rank"] == 1)
    with ctl.start("logs", "-f", "--rank=1", "--grep=^out|words") as follows:
        lines = [follows.stdout.readline() for _ in range(3)]
        wait_for_files(Path(f"{path}.2"))
        (plaunch.folder / "enough.0").touch()
        wait_until(lambda: "the last words" in ctl.run("logs", "--rank=1"), "the end of a round")
        shown = ctl.run("logs", "--rank=1", "--grep", "^out")
        assert set(ctl.run("logs", "--grep=words").splitlines()) == {
            "[0] the last words",
            "[1] the last words",
        }
        ctl.run("restart")
        while not lines[-1].startswith("out 1 1 2"):
            lines.append(follows.stdout.readline())
            assert lines[-1], follows.stderr.read()
        (plaunch.folder / "enough.1").touch()
        (plaunch.folder / "exit").touch()
        rest, err = follows.stdout.read(), follows.stderr.read()
        follows.wait(BOUND)
    assert (node.exit_code(), follows.returncode, err) == (0, 0, "")
    words = [line.split() for line in [*lines, *rest.splitlines()]]
    rounds = [
        [int(word[3]) for word in words if word[:3] == ["out", "1", round_]] for round_ in "01"
    ]
    for numbers in rounds:
        assert numbers == [*range(len(numbers))]
    assert [int(line.split()[3]) for line in shown.splitlines()] == rounds[0]
    assert [word for word in words if word[0] == "the"] == [["the", "last", "words"]] * 2


def test_without_log_files_the_error_has_the_fix(agents, ctl):
    node = agents.start("--rdzv-id=job")
    agents.until_round(0, node)
    assert "launch with --redirects or --tee, and --log-dir" in ctl.run("logs", code=REFUSED)
    assert "'x' is not a list of ranks" in ctl.run("logs", "--rank=x", code=NO_ANSWER)
    assert "is not a regular expression" in ctl.run("logs", "--grep=(", code=NO_ANSWER)
    agents.finish(node)
