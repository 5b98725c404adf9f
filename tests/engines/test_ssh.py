"""The engine `ssh` with real servers on loopback addresses; test_every_engine.py has more."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import closing
from threading import BoundedSemaphore

import pytest
from plaunch.engines import EngineRequest
from plaunch.errors import UsageError
from plaunch_engines.ssh import SshEngine, SshHandle
from plaunch_engines.ssh_hosts import SshHost

from helpers.engine_clusters import SshNodes
from helpers.engine_commands import LIMIT, QUICK, check_refused
from helpers.machine_parts import need
from helpers.nodes import WORKER, write_whole
from helpers.processes import children_of, is_gone, parent_of
from helpers.waiting import wait_until


@pytest.fixture(scope="module")
def servers():
    with closing(SshNodes()) as found:
        yield found


@pytest.fixture
def own_servers():
    with closing(SshNodes()) as found:
        yield found


@pytest.fixture
def launch(launch, servers):
    """Start a command with hosts."""

    def launch_on(hosts, *words, of=servers, ssh="", **more):
        return launch(f"--on=ssh:{hosts}", f"--ssh-command={ssh or of.ssh}", *words, **more)

    launch_on.folder = launch.folder
    return launch_on


# --- a job ----------------------------------------------------------------------------------------


def test_a_script_from_stdin_is_read_once_for_all_hosts(launch):
    script = "import json, os, sys; print(json.dumps({'RANK': os.environ['RANK'], 'a': sys.argv}))"
    source, write = os.pipe()
    os.write(write, script.encode())
    os.close(write)
    job = launch("node1,node2", "-", "x", stdin=source).wait(0)
    os.close(source)
    found = sorted((worker["RANK"], worker["a"]) for worker in job.workers())
    assert found == [("0", ["-", "x"]), ("1", ["-", "x"])], job.text()


def test_a_job_on_three_hosts(launch):
    write_whole(launch.folder / "exit", 0)
    job = launch("node1,node2,node3", "--nproc-per-node=2", "worker.py").wait(0)
    workers = sorted(job.workers(), key=lambda worker: int(worker["RANK"]))
    assert [worker["RANK"] for worker in workers] == list("012345"), job.out + job.err
    assert {worker["WORLD_SIZE"] for worker in workers} == {"6"}
    assert {worker["node"] for worker in workers} == {"node1", "node2", "node3"}
    assert len({(worker["node"], worker["GROUP_RANK"]) for worker in workers}) == 3
    job.check_nothing_left()


def test_ranks_in_the_order_of_the_hosts(launch):
    write_whole(launch.folder / "exit", 0)
    job = launch("node3,node1", "--rdzv-backend=static", "worker.py").wait(0)
    assert {worker["RANK"]: worker["node"] for worker in job.workers()} == {
        "0": "node3",
        "1": "node1",
    }
    assert {worker["MASTER_ADDR"] for worker in job.workers()} == {"127.0.0.4"}


def test_lines_of_a_node_stay_in_order(launch):
    (launch.folder / "lines.py").write_text(
        "import sys\nfor i in range(3000): sys.stdout.write(f'{i}\\n')\n"
    )
    job = launch("node1,node2,node3", "lines.py").wait(0)
    for node in ("node1", "node2", "node3"):
        lines = [line.split()[1] for line in job.out.splitlines() if line.startswith(f"[{node}]")]
        assert lines == [str(i) for i in range(3000)]


def test_slots_are_the_default_number_of_workers(launch):
    write_whole(launch.folder / "exit", 0)
    (launch.folder / "hosts").write_text("node1 slots=2\nnode2 slots=1  # small\n")
    job = launch("@hosts", "worker.py").wait(0)
    sizes = {worker["node"]: worker["LOCAL_WORLD_SIZE"] for worker in job.workers()}
    assert sizes == {"node1": "2", "node2": "1"}
    job = launch("@hosts", "--nproc-per-node=1", "worker.py").wait(0)
    assert {worker["LOCAL_WORLD_SIZE"] for worker in job.workers()} == {"1"}


def test_hosts_by_ranges_without_excluded_ones(launch):
    write_whole(launch.folder / "exit", 0)
    job = launch("node[1-3]", "--exclude=node2", "worker.py").wait(0)
    assert {worker["node"] for worker in job.workers()} == {"node1", "node3"}


@pytest.mark.parametrize("is_option", [True, False], ids=["option", "file"])
def test_a_host_may_have_another_python(launch, is_option):
    write_whole(launch.folder / "exit", 0)
    other = launch.folder / "other"
    other.write_text(f'#!/bin/sh\nexport OTHER=1\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    (launch.folder / "which.py").write_text("import os; print(os.environ.get('OTHER'), flush=True)")
    if is_option:
        job = launch("node[1-2]", f"--node-python=node2={other}", "which.py")
    else:
        (launch.folder / "hosts").write_text("node1\nnode2 python=./other\n")
        job = launch("@hosts", "which.py")
    job.wait(0)
    assert sorted(job.out.splitlines()) == ["[node1] None", "[node2] 1"]


def test_a_set_up_line_of_one_node_fails(launch):
    line = 'case $SSH_CONNECTION in *127.0.0.3*) echo "no cuda" >&2; false;; esac'
    job = launch("node1,node2", f"--node-setup={line}", "worker.py").wait(111)
    assert re.search(
        r"nothing was started: node2: the agent could not be started \(1\): no cuda; --node-setup=",
        job.err,
    ), job.err


def test_a_set_up_line_that_hangs_is_ended(launch):
    line = 'echo "{\\"set-up\\": $$}"; sleep 600'
    job = launch("node1", f"--node-setup=echo $$ > pid.new; mv pid.new pid; {line}", "worker.py")
    written = launch.folder / "pid"
    wait_until(written.exists, job.text)
    pid = int(written.read_text())
    job.signal(signal.SIGTERM)
    job.wait(143)
    wait_until(lambda: is_gone(pid), "the end of the set-up line")
    job.check_nothing_left()


def test_a_failure_is_reported_once_with_its_code(launch):
    write_whole(launch.folder / "exit.1.0", 7)
    job = launch("node1,node2,node3", "worker.py").wait(7)
    assert len(re.findall(r"exitcode +: 7|exit code 7", job.err)) >= 1
    assert job.err.count("Root Cause") <= 1, job.err
    job.check_nothing_left()


@pytest.mark.parametrize("shell", ["dash", "bash", "zsh", "fish", "tcsh"])
def test_the_login_shell_may_be_any(launch, own_servers, shell):
    need(shell)
    own_servers.set_shell(f'exec {shell} -c "$SSH_ORIGINAL_COMMAND"')
    write_whole(launch.folder / "exit", 0)
    job = launch("node2", "--nnodes=1", "worker.py", of=own_servers).wait(0)
    assert json.loads(job.out)["RANK"] == "0"


def test_a_shell_that_prints_text(launch, own_servers):
    own_servers.set_shell(
        "for i in 1 2 3 4 5 6 7; do echo welcome; echo warning >&2; done\n"
        "printf half >&2; printf half\n"
        'exec bash -c "$SSH_ORIGINAL_COMMAND"'
    )
    write_whole(launch.folder / "exit", 0)
    job = launch("node1,node2", "worker.py", of=own_servers).wait(0)
    assert len(re.findall(r'"RANK"', job.out)) == 2
    assert "warning" not in job.err
    assert "half" not in job.out


# --- lost nodes -----------------------------------------------------------------------------------


def test_a_spare_host_replaces_a_lost_one(launch):
    job = launch("node1,node2,node3", "--nnodes=2", "--max-restarts=3", QUICK, "worker.py")
    workers = job.wait_for_workers(2)
    lost = next(worker for worker in workers if worker["node"] == "node2")
    os.kill(parent_of(lost["pid"]), signal.SIGKILL)
    job.wait_for("node3 is started in the place of node2")
    wait_until(lambda: any(w["node"] == "node3" for w in job.workers()), lambda: job.err)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    job.check_nothing_left()


def test_a_node_whose_connection_ends_leaves_the_job(launch, own_servers):
    job = launch(
        "node1,node2,node3", "--nnodes=2", "--max-restarts=3", QUICK, "worker.py", of=own_servers
    )
    job.wait_for_workers(2)
    [session] = children_of(own_servers.server_of("node2"))
    os.kill(session, signal.SIGKILL)
    job.wait_for("node3 is started in the place of node2")
    wait_until(lambda: any(w["node"] == "node3" for w in job.workers()), lambda: job.err)
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    assert "left: plaunch --on: the command that started this job has ended" in job.err
    job.check_nothing_left()


def test_a_host_that_dies(launch, own_servers):
    job = launch("node1,node2", "--max-restarts=3", QUICK, "worker.py", of=own_servers)
    job.wait_for_workers(2)
    own_servers.lose_node("node2")
    job.wait(111)
    assert "node2 lost; 1 node is left, the job needs 2" in job.err
    job.check_nothing_left()


def test_a_silent_host_is_lost_after_a_bound(launch, own_servers):
    """Its processes are frozen, as if its network said nothing any more."""
    job = launch(
        "node1,node2", "--max-restarts=3", QUICK, "worker.py", of=own_servers,
        ssh=f"{own_servers.ssh} -oServerAliveInterval=1 -oServerAliveCountMax=1",
    )  # fmt: skip
    job.wait_for_workers(2)
    [session] = children_of(own_servers.server_of("node2"))
    os.kill(session, signal.SIGSTOP)
    try:
        job.wait(111)
        assert re.search("node2 (is )?lost", job.err)
    finally:
        os.kill(session, signal.SIGKILL)


def test_an_agent_ends_after_silence(tmp_path):
    """The agent's own bound, for a command that cannot end the connection."""
    reader, writer = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "plaunch_engines.node", str(tmp_path), ""],
        env={**os.environ, "PLAUNCH_NODE_SILENCE": "0.7"},
        stdin=reader,
        stderr=subprocess.DEVNULL,
    ) as agent:
        os.close(reader)
        assert agent.wait(LIMIT) == 0
    os.close(writer)


def test_a_command_that_is_suspended_for_too_long(launch):
    """Agents and command give the same reason."""
    job = launch("node1,node2", "--silence-limit=5", "worker.py")
    workers = job.wait_for_workers(2)
    job.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: all(is_gone(worker["pid"]) for worker in workers), "the end of the workers")
    job.process.send_signal(signal.SIGCONT)
    job.wait(117)
    command = r"^plaunch: this command was suspended for \d+ s .* after 5 s .*\(--silence-limit\)$"
    assert re.search(command, job.err, re.MULTILINE), job.err
    agent = r"nothing has come from the command for 5 s \(--silence-limit\): it was suspended, or"
    assert re.search(agent, job.err), job.err
    job.check_nothing_left()


# --- ends -----------------------------------------------------------------------------------------


def test_workers_that_ignore_sigterm_end_with_the_command(launch):
    (launch.folder / "worker.py").write_text(
        "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WORKER
    )
    job = launch("node1,node2", "worker.py")
    job.wait_for_workers(2)
    job.kill()
    job.check_nothing_left()


# --- bad input ------------------------------------------------------------------------------------


def wrapper(folder, text):
    """Write a program that runs instead of Python."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return f"--node-python={path}"


def test_a_host_that_cannot_be_reached(launch):
    check_refused(
        launch("node1,127.0.0.250:999", "worker.py"),
        r"nothing was started: 127\.0\.0\.250:999: .*Connection refused; this must work without a "
        r"question: ssh -F \S+/config -p 999 127\.0\.0\.250 true$",
    )


@pytest.mark.parametrize(
    ("hosts", "nnodes", "used"),
    [
        ("node1,127.0.0.250:9,node2", ["--nnodes=2:3"], {"node1", "node2"}),
        ("127.0.0.250:9,node1,node2", ["--nnodes=2:3"], {"node1", "node2"}),
        ("node1,node2,127.0.0.250:9", ["--nnodes=2", "--spares=1"], {"node1", "node2"}),
        ("node1,127.0.0.250:9,node3", ["--nnodes=2", "--spares=1"], {"node1", "node3"}),
        ("node1,127.0.0.250:9,node2", ["--nnodes=2"], {"node1", "node2"}),  # a further host
    ],
)
def test_a_dead_host_is_skipped_with_a_warning(launch, hosts, nnodes, used):
    job = launch(hosts, *nnodes, QUICK, "worker.py")
    workers = job.wait_for_world(2)
    assert {worker["node"] for worker in workers} == used
    job.wait_for(r"127\.0\.0\.250:9: the agent could not be started \(255\): .*Connection refused")
    write_whole(launch.folder / "exit", 0)
    job.wait(0)
    job.check_nothing_left()


def test_half_of_the_hosts(launch):
    job = launch("127.0.0.250:9,node1,127.0.0.251:9,node2", "worker.py").wait(111)
    first, *others = job.err.splitlines()
    assert "nothing was started, because of 2 nodes:" in first
    assert [line.split(": ")[0].strip() for line in others] == ["127.0.0.250:9", "127.0.0.251:9"]


def test_a_host_that_asks_for_a_password(launch, servers):
    check_refused(
        launch("node1", "worker.py", ssh=f"{servers.ssh} -oPubkeyAuthentication=no"),
        r"node1: .*Permission denied.*this must work without a question",
    )


def test_a_host_whose_key_is_not_known(launch, servers):
    check_refused(
        launch("node1", "worker.py", ssh=f"{servers.ssh} -oUserKnownHostsFile=none"),
        r"node1: .*Host key verification failed\.; this must work without a question",
    )


def test_a_host_without_python(launch):
    check_refused(
        launch("node1", "--node-python=/none/python", "worker.py"),
        r"node1: .*\(127\): there is no /none/python; name .* --node-python$",
    )


def test_a_host_without_plaunch(launch):
    check_refused(
        launch("node1", wrapper(launch.folder, f'exec {sys.executable} -I -S "$@"'), "worker.py"),
        r"node1: .*No module named 'plaunch_engines'",
    )


def test_a_host_with_another_version(launch):
    program = (
        "import runpy, sys; import plaunch; plaunch.__version__ = '0.0.9'; "
        "del sys.argv[1]; runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
    )
    check_refused(
        launch(
            "node1", wrapper(launch.folder, f'exec {sys.executable} -c "{program}" "$@"'),
            "worker.py",
        ),
        r"node1 has plaunch 0\.0\.9, and this machine .*; install the same version on all nodes",
    )  # fmt: skip


def test_a_host_that_ends_at_once(launch, own_servers):
    own_servers.set_shell("echo closed for maintenance >&2; exit 3")
    check_refused(
        launch("node2", "worker.py", of=own_servers),
        r"node2: the agent could not be started \(3\): closed for maintenance$",
    )


def test_a_host_that_does_not_answer(launch, own_servers):
    own_servers.set_shell("echo wait >&2; exec sleep 600")
    check_refused(
        launch("node2", "--start-limit=10", "worker.py", of=own_servers),
        r"node2: no agent has reported within 10 s \(--start-limit\): wait; ssh is connected, but "
        r"the login shell has not started the agent; a start-up file such as ~/\.bashrc may hang "
        r"there$",
    )


def test_what_hangs_in_a_start_up_file_starts_no_agent_later(launch, own_servers):
    """Nothing can end it: only then does the shell of the host run what plaunch sends."""
    pid, gate = launch.folder / "pid", launch.folder / "gate"
    own_servers.set_shell(
        f"cd {shlex.quote(str(launch.folder))}\n"
        "echo $$ > pid; while [ ! -e gate ]; do sleep 0.1; done\n"
        'exec bash -c "$SSH_ORIGINAL_COMMAND"'
    )
    job = launch(
        "node2", "--start-limit=10", "--node-setup=echo $$ > ran; exec sleep 600", "worker.py",
        of=own_servers,
    ).wait(111)  # fmt: skip
    gate.touch()
    wait_until(lambda: is_gone(int(pid.read_text())), "the end of the shell")
    assert not (launch.folder / "ran").exists()
    assert "written nothing; ssh is connected" in job.err
    job.check_nothing_left()


def test_the_workers_of_a_host_file_of_mpich_are_taken_for_a_port(launch):
    (launch.folder / "hosts").write_text("127.0.0.250:2\n")
    check_refused(
        launch("@hosts", "worker.py"),
        r"127\.0\.0\.250:2: .*Connection refused; this must work without a question: ssh .*; 2 is "
        r"a port here: for 2 workers write slots=2 in the host file, or --nproc-per-node=2$",
    )


@pytest.mark.parametrize(
    ("on", "arguments", "message"),
    [
        ("", (), "--on=ssh needs hosts: --on=ssh:HOST,HOST or --on=ssh:@HOSTFILE"),
        ("a,a", (), "'a' is named 2 times"),
        ("a,b", ("--nnodes=3",), "--on=ssh:a,b has 2 nodes, and the job needs at least 3"),
        ("a", ("--ssh-command=nossh -v",), r"runs 'nossh -v', which is not a program in PATH"),
        ("a", ("--ssh-command='",), r"\(--ssh-command\)"),
    ],
)
def test_usage_errors(launch, on, arguments, message):
    check_refused(launch(on, *arguments, "worker.py"), message, code=2)


# --- the engine -----------------------------------------------------------------------------------


def handle(openings, script):
    return SshHandle(SshHost("node", "node"), ["sh", "-c", script], "ssh node true", openings, 40.0)


def test_a_connection_waits_until_fewer_others_are_being_opened():
    openings = BoundedSemaphore(1)
    first, second = (handle(openings, "sleep 0.5; read line; exec sleep 600") for _ in range(2))
    try:
        for _ in range(3):
            assert first.poll() is None
            assert second.poll() is None
        assert first.pid
        assert not second.pid
        wait_until(lambda: (first.poll(), second.poll(), second.pid)[-1], "the second connection")
        assert first.poll() is None
    finally:
        for one in (first, second):
            one.stop()
            wait_until(lambda one=one: one.poll() == 137, "the end")
            one.close()


def test_a_connection_that_waits_can_be_stopped():
    openings = BoundedSemaphore(1)
    first, second = handle(openings, "exec sleep 600"), handle(openings, "exec sleep 600")
    first.poll()
    second.poll()
    second.stop()
    assert second.poll() == 137
    assert not second.pid
    assert os.read(second.stderr, 10) == b""
    first.stop()
    wait_until(lambda: first.poll() == 137, "the end")
    for one in (first, second):
        one.close()


def test_hosts_that_are_left_replace_others():
    engine = SshEngine(EngineRequest(where="a,b,c", options={"ssh_command": "true"}))
    assert (engine.nodes, engine.can_replace) == (3, True)
    handles = [*engine.start(["python"], [0, 1])]
    assert engine.can_replace
    handles += engine.start(["python"], [2])
    assert [one.node for one in handles] == ["a", "b", "c"]
    assert not engine.can_replace
    with pytest.raises(UsageError, match="no host is left: --on=ssh names 3"):
        engine.start(["python"], [3])
    engine.close()
    for one in handles:
        one.close()
