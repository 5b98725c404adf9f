"""`--on=local:N`: real agents on this machine, and the command that starts them."""

import json
import os
import re
import shlex
import shutil
import signal
import sys
from functools import partial

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_engines.errors import NodesLostError
from plaunch_engines.local import LocalEngine
from plaunch_testing.conformance import EngineConformance

from helpers.engine_commands import QUICK, EngineCommand, check_refused
from helpers.nodes import write_whole
from helpers.processes import is_gone, parent_of
from helpers.waiting import wait_until

SHOW = """
import os, sys
names = ("RANK", "WORLD_SIZE", "GROUP_RANK")
sys.stdout.write("rank {} of {}, node {}\\n".format(*(os.environ[n] for n in names)))
"""


class TestLocal(EngineConformance):
    where = "2"

    def plugin(self):
        return LocalEngine


def test_each_node_has_its_ranks(launch):
    (launch.folder / "show.py").write_text(SHOW)
    job = launch("--on=local:3", "--nproc-per-node=2", "show.py")
    job.wait(0)
    for rank in range(6):
        node = re.search(rf"\[(node\d)\] rank {rank} of 6, node {rank // 2}\n", job.text())
        assert node, job.text()
    job.check_nothing_left()


def test_options_of_the_agents_and_arguments_of_the_script_are_passed_on(launch):
    (launch.folder / "fail.py").write_text(
        "import os, sys\n"
        "print(sys.argv[1:], os.environ['TORCHELASTIC_RESTART_COUNT'], flush=True)\n"
        "sys.exit(os.environ['RANK'] == '1' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    job = launch("--on", "local:2", "--max-restarts", "1", "fail.py", "--on=x", "--spares", "2")
    job.wait(0)
    assert job.text().count("['--on=x', '--spares', '2'] 1") == 2


def test_a_failure_is_reported_once_with_its_code(launch):
    (launch.folder / "fail.py").write_text(
        "import os, sys, time\nif os.environ['RANK'] == '1': raise SystemExit(7)\ntime.sleep(60)\n"
    )
    job = launch("--on=local:3", "fail.py")
    job.wait(7)
    assert len(re.findall(r"^plaunch: .*rank 1", job.text(), re.MULTILINE)) == 1, job.text()
    assert job.text().count("this launch took") == 1, job.text()
    assert re.search(
        r"^plaunch: .*rank 1(.*\n)*plaunch: this launch took", job.text(), re.MULTILINE
    )
    job.check_nothing_left()


def test_a_stop_signal_ends_the_job(launch):
    job = launch("--on=local:2", "worker.py")
    job.wait_for_world(2)
    job.signal(signal.SIGTERM)
    job.wait(128 + signal.SIGTERM)
    job.check_nothing_left()


def test_a_job_under_nohup_survives_the_terminal(launch):
    job = launch("--on=local:2", "worker.py", by=partial(EngineCommand, prefix=("nohup",)))
    workers = job.wait_for_world(2)
    os.killpg(job.process.pid, signal.SIGHUP)  # as the kernel does when the terminal is gone
    for worker in workers:
        os.kill(parent_of(worker["pid"]), signal.SIGHUP)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    job.check_nothing_left()


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, NodesLostError.exit_code)]
)
def test_an_end_while_a_worker_still_saves_is_not_a_success(launch, signum, code):
    """One node has ended with success; without a record of the job, it does not wait for others."""
    job = launch("--on=local:2", "--rdzv-backend=static", "--exit-barrier-timeout=0", "worker.py")
    saving, done = job.wait_for_world(2)
    agent, ended = parent_of(saving["pid"]), parent_of(done["pid"])
    write_whole(launch.folder / "exit.1.0", 0)
    wait_until(lambda: is_gone(ended), "the end of the other agent")
    if signum == signal.SIGKILL:
        os.kill(agent, signum)
    else:
        job.signal(signum)
    job.wait(code)
    if signum == signal.SIGKILL:
        assert f"{saving['node']} is lost: its agent ended with 137" in job.err
    job.check_nothing_left()


@pytest.mark.needs("networks")
def test_each_node_may_have_its_own_network(launch):
    (launch.folder / "address.py").write_text(
        "import os, socket\n"
        "print(os.environ['MASTER_ADDR'], os.listdir('/sys/class/net') != [], flush=True)\n"
        "print('network', os.readlink('/proc/self/ns/net'), flush=True)\n"
    )
    job = launch("--on=local:2", "--local-network=namespaces", "address.py")
    job.wait(0)
    assert "10.231.0.1" in job.text()
    networks = set(re.findall(r"network (\S+)", job.text()))
    assert len(networks) == 2
    assert os.readlink("/proc/self/ns/net") not in networks
    why = r"this command does not host it: node\d .*: the rendezvous store at .* cannot be reached"
    assert re.search(f"plaunch: node0 hosts the rendezvous store, .*; {why}: ", job.err), job.err
    job.check_nothing_left()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
def test_agents_end_because_of_the_command_and_not_of_its_store(launch, signum):
    """A killed command cannot end the store after them."""
    python, written = launch.folder / "python", shlex.quote(f"{launch.folder}/written")
    python.write_text(
        f'#!/bin/bash\nexec {sys.executable} "$@" 2> >(exec tee -p {written}.$$ >&2)\n'
    )
    python.chmod(0o755)
    job = launch("--on=local:3", f"--node-python={python}", "--max-restarts=3", "worker.py")
    job.wait_for_world(3)
    job.signal(signum)
    job.end()
    job.check_nothing_left()
    texts = [path.read_text() for path in launch.folder.glob("written.*")]
    assert len(texts) == 3
    for text in texts:
        if signum == signal.SIGKILL:
            assert "the command that started this job has ended" in text
        assert "cannot be reached" not in text
        assert "lost touch" not in text


def test_the_store_of_a_stopped_command_goes_on(launch):
    """Ctrl-Z stops the command, and not the job."""
    job = launch("--on=local:2", "--max-restarts=3", QUICK, "worker.py")
    first, second = job.wait_for_world(2)
    job.signal(signal.SIGSTOP)
    write_whole(launch.folder / "exit.1.0", 3)
    # The restart needs the store. The command does not pass on what the new workers write.
    wait_until(lambda: set(map(is_gone, (first["pid"], second["pid"]))) == {True}, job.text)
    write_whole(launch.folder / "exit", 0)
    job.signal(signal.SIGCONT)
    job.wait(0)
    assert ", hosted by this command; " in job.err
    assert len(job.wait_for_world(2, 1)) == 2


def test_a_job_survives_the_death_of_the_process_of_its_store(launch):
    job = launch("--on=local:2", "--max-restarts=3", QUICK, "worker.py")
    job.wait_for_world(2)
    [server] = [pid for pid, title in job.processes().items() if "run_server" in title[-1]]
    os.kill(server, signal.SIGKILL)
    job.wait_for("which this command hosts, has ended .*; its successor has started")
    # A node whose workers succeed before it has noticed does not wait for a job that starts again.
    job.wait_for_workers(4)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    assert len([w for w in job.workers() if w["RANK"] == "0"]) <= 2  # at most one more round


def test_the_first_node_hosts_the_store_if_that_is_requested(launch):
    job = launch("--on=local:2", "--store-host=node", "worker.py")
    job.wait_for_world(2)
    os.kill(job.agent_of(job.wait_for_world(2)[0]), signal.SIGKILL)
    job.wait(113)
    assert "[node0] plaunch: this node hosts the rendezvous store" in job.err
    assert "node0 is lost: " in job.err


def test_the_address_of_the_store_can_be_given(launch):
    job = launch("--on=local:2", "--local-addr=127.0.0.2", "--port-range=20000-29999", "worker.py")
    job.wait_for_world(2)
    assert re.search(r"nodes at 127\.0\.0\.2:2\d{4}, hosted by this command; ", job.err), job.err
    write_whole(launch.folder / "exit", 0)
    job.wait(0)


@pytest.mark.parametrize("option", ["--store-host=command", "--local-addr=127.0.0.1"])
def test_a_job_that_outlives_its_command_cannot_use_its_store(launch, option):
    pytest.importorskip("yaml")
    words = ("--on=kubernetes:print", "--kubernetes-image=image", "--nnodes=2")
    check_refused(
        launch(*words, option, "worker.py"),
        f"{option.partition('=')[0]} has no effect with --on=kubernetes:print; leave it out",
        2,
    )


def test_a_missing_script_starts_nothing(launch):
    job = launch("--on=local:2", "missing.py")
    job.wait(2)
    assert "missing.py" in job.text()


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--on=local:x"], "'x' is not a number of nodes"),
        (["--on=local"], "needs a number of nodes"),
        (["--on=loca:2"], "did you mean 'local'"),
        (["--on=local:2", "--node-rank=1"], "--node-rank is set for each agent by --on"),
        (["--on=local:2", "--standalone"], "--standalone is set for each agent by --on"),
        (["--on=local:2", "--nnodes=3"], "has 2 nodes, and the job needs at least 3"),
        (["--on=local:2", "--spares=2"], "--spares=2 leaves none of 2 nodes"),
        (["--on=local:2", "--spares=-1"], "--spares is -1"),
        (
            ["--on=local:2", "--node-python=/no/python"],
            "/no/python cannot be run on this machine: No such file or directory; name the Python",
        ),
        (["--on=local:2", "--spares=1", "--rdzv-backend=static"], "'static' cannot be replaced"),
        (["--on=local:2", "--ssh-command=ssh"], "--ssh-command is an option of --on=ssh, and this"),
        (["--spares=1"], "--spares has no effect without --on"),
        (["--node-setup=true"], "--node-setup has no effect without --on"),
        (["--on=local:2", "--pass-secret=a:B"], "--pass-secret has no effect with --on=local:2"),
        (["--pass-secret=a:B"], "--pass-secret has no effect without --on"),
        (["--node-output=out"], "--node-output has no effect without --on"),
        (["--on=local:2", "--node-output=/dev/null"], "the folder /dev/null/plaunch-"),
        (["--exclude=node1"], "--exclude has no effect without --on"),
        (["--on=local:2", "--exclude=node1"], "--exclude has no effect with --on=local:2"),
        (["--on=local:2", "--node-python=node1=/a"], "--on=local:2 has no Python of single hosts"),
        (["--on=local:2", "--pass-env=ACME"], "--pass-env=ACME: ACME is not set here"),
        (["--on=local:2", "--node-setup=a\nb"], "--node-setup is one line"),
        (["--store-host=command"], "--store-host has no effect without --on"),
        (
            ["--on=local:2", "--store-host=command", "--rdzv-endpoint=localhost:29400"],
            "--store-host has no effect with --rdzv-endpoint=localhost:29400, which names the host",
        ),
        (
            ["--on=local:2", "--store-host=command", "--rdzv-backend=static"],
            "--store-host has no effect with the rendezvous backend 'static'",
        ),
        (
            ["--on=local:2", "--store-host=command", "--rdzv-conf=store=torch"],
            "--store-host has no effect with a store of torch",
        ),
        (
            ["--on=local:2", "--store-host=node", "--local-addr=127.0.0.1"],
            "--local-addr has no effect with --store-host=node",
        ),
        (
            ["--on=local:2", "--rdzv-conf=is_host=true"],
            "--rdzv-conf: is_host is set for each agent by --on; see --store-host",
        ),
        (
            ["--on=local:2", "--local-addr=0.0.0.0"],
            "--local-addr=0.0.0.0 is not a numeric address of this machine",
        ),
        (
            ["--on=local:2", "--local-addr=192.0.2.77"],
            "--local-addr=192.0.2.77 is not a numeric address of this machine",
        ),
        (["--on=local:2", "--doctor"], "--doctor and --on are given, and each runs instead of"),
    ],
)
def test_usage_errors(launch, words, text):
    job = launch(*words, "worker.py")
    job.wait(2)
    assert re.search(r"^plaunch: error: .*" + re.escape(text), job.text(), re.MULTILINE), job.text()


def test_variables_are_passed_by_name(launch, monkeypatch):
    (launch.folder / "env.py").write_text(
        "import os; print(sorted(n for n in os.environ if 'ACME' in n))"
    )
    monkeypatch.setenv("ACME_ONE", "1")
    job = launch("--on=local:1", "--pass-env=ACME_*", "--pass-env=ACME_TWO=2,3", "env.py")
    job.wait(0)
    assert "['ACME_ONE', 'ACME_TWO']" in job.text()


def test_a_set_up_line_runs_before_each_agent(launch):
    (launch.folder / "env.py").write_text("import os; print(os.environ['ACME'], flush=True)")
    job = launch("--on=local:2", "--node-setup=export ACME=loaded; echo text", "env.py").wait(0)
    assert sorted(job.out.splitlines()) == ["[node0] loaded", "[node1] loaded"]


def test_a_set_up_line_that_fails_is_a_failed_start(launch):
    check_refused(
        launch("--on=local:1", "--node-setup=echo no module >&2; false", "worker.py"),
        r"node0: the agent could not be started \(1\): no module; "
        r"--node-setup=\"echo no module >&2; false\" has ended with 1$",
    )


def test_the_output_of_each_node_is_in_a_file(launch):
    (launch.folder / "show.py").write_text(
        "import os, sys\nfor i in range(3000): print('line', i, os.environ['GROUP_RANK'])\n"
        "sys.stdout.flush()\nos.write(2, b'half')\nos.write(1, b'whole\\n')\n"
    )
    job = launch(
        "--on=local:2", "--node-output=out", "--rdzv-id=a/b", "--store-host=node", "show.py"
    ).wait(0)
    assert "; output of each node in out/a_b\n" in job.err
    for rank in range(2):
        lines = (launch.folder / f"out/a_b/node{rank}.log").read_text().splitlines()
        own = [line for line in lines if line.startswith("line")]
        assert own == [f"line {i} {rank}" for i in range(3000)]
        assert "whole" in lines
        assert any(line.startswith("half") for line in lines)
        assert not rank or not any("this node hosts" in line for line in lines)
        assert not any(line.startswith("[node") for line in lines)
    assert len(job.out.splitlines()) == 2 * 3001
    first = (launch.folder / "out/a_b/node0.log").read_text()
    assert first.startswith("plaunch: this node hosts the rendezvous store\n"), first[:200]
    launch("--on=local:1", "--node-output=out", "--rdzv-id=a/b", "show.py").wait(0)
    assert (launch.folder / "out/a_b/node0.log").read_text().count("line 0 0\n") == 2


def test_a_program_beside_python_is_found(launch, monkeypatch):
    """As accelerate, in an environment that is not activated."""
    folders = os.environ["PATH"].split(":")
    path = [folder for folder in folders if shutil.which("plaunchctl", path=folder) is None]
    monkeypatch.setenv("PATH", ":".join(path))
    assert shutil.which("plaunchctl") is None
    launch("--on=local:1", "--no-python", "plaunchctl", "--help").wait(0)


def test_a_name_that_no_process_can_have_is_refused():
    with pytest.raises(UsageError, match="1 to 1024"):
        LocalEngine(EngineRequest(where="5000"))


@pytest.mark.parametrize(
    "record", [{"kind": "end", "code": 0}, {"kind": "end"}, {"kind": "failure"}]
)
def test_a_line_that_a_worker_prints_is_no_report_of_its_agent(launch, record):
    """It has ended the job with 0, or the command with an internal error."""
    line = f"\x1eplaunch {json.dumps(record)}\n"
    (launch.folder / "forge.py").write_text(
        "import os, sys\n"
        f"for fd in (1, 2): os.write(fd, {line!r}.encode())\n"
        "sys.exit(os.environ['RANK'] == '1' and 3)\n"
    )
    job = launch("--on=local:2", "forge.py")
    job.wait(3)
    assert job.out.count(line) == 2
    assert job.err.count(line) == 2


def test_a_prompt_is_shown_while_it_waits_for_its_answer(launch):
    (launch.folder / "ask.py").write_text(
        "import os, time\nprint('Continue? ', end='', flush=True)\n"
        "while not os.path.exists('answer'):\n    time.sleep(0.05)\nprint('yes')\n"
    )
    job = launch("--on=local:2", "ask.py")
    for node in ("node0", "node1"):
        wait_until(lambda node=node: f"[{node}] Continue? " in job.text(), job.text)
    (launch.folder / "answer").touch()
    job.wait(0)
    for node in ("node0", "node1"):
        assert f"[{node}] Continue? yes\n" in job.text()
