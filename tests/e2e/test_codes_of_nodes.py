"""One cause has one exit code on all nodes of a job, whichever of them notices it first.

The tests are the rows of the tables in docs/errors.md ("One cause, one code").
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket

import pytest

from helpers.nodes import options

HOST, GUEST = "is_host=true", "is_host=false"
LONG = "join_timeout=60"


@pytest.fixture
def endpoint(endpoint_of):
    return endpoint_of("c10d")


@pytest.fixture
def start(agents, endpoint):
    """Start an agent; `conf` is added to its --rdzv-conf."""

    def start(name, nnodes, conf, *more, **environ):
        words = options(endpoint, nnodes, *more, conf=conf)
        if "run_id" in environ:
            words = [word for word in words if not word.startswith("--rdzv-id")]
            del environ["run_id"]
        return agents.start(*words, name=name, **environ)

    return start


def is_up(host):
    return lambda: "this node hosts the rendezvous store" in host.stderr


def start_both(agents, start, nnodes="2", *more):
    host = start("host", nnodes, HOST, *more, LOGLEVEL="INFO")
    agents.until(is_up(host), "the store")
    guest = start("guest", nnodes, GUEST, *more)
    agents.until(lambda: host.workers() and guest.workers(), "the workers")
    return host, guest


@pytest.mark.parametrize(("host_waits", "guest_waits"), [("4", "60"), ("60", "4")])
def test_too_few_nodes(agents, start, host_waits, guest_waits):
    """The other node cannot wait without the store; the host can without the other node."""
    host = start("host", "3", f"{HOST},join_timeout={host_waits}", LOGLEVEL="INFO")
    agents.until(is_up(host), "the store")
    guest = start("guest", "3", f"{GUEST},join_timeout={guest_waits}", LOGLEVEL="INFO")
    if host_waits == "60":
        assert guest.exit_code() == 111
        host.process.send_signal(signal.SIGTERM)
        assert host.exit_code() == 143
    else:
        assert [host.exit_code(), guest.exit_code()] == [111, 111]
        message = "job 'job' needs 3 nodes, and "
        assert message in host.stderr
        assert message in guest.stderr or "no round was formed" in guest.stderr


@pytest.mark.parametrize("how", ["SIGTERM", "SIGKILL"])
def test_the_host_ends_before_the_first_round(agents, start, how):
    host = start("host", "3", f"{HOST},{LONG}", LOGLEVEL="INFO")
    agents.until(is_up(host), "the store")
    guest = start("guest", "3", f"{GUEST},{LONG},refused_timeout=1", LOGLEVEL="INFO")
    agents.until(lambda: "2 came" in guest.stderr, "the other node has joined")
    host.process.send_signal(getattr(signal, how))
    host.exit_code()
    assert guest.exit_code() == 111
    assert "no round was formed" in guest.stderr


def test_nobody_hosts_the_store(agents, start):
    guest = start("guest", "2", f"{GUEST},join_timeout=2")
    assert guest.exit_code() == 111
    assert "no round was formed" in guest.stderr
    assert "Connection refused" in guest.stderr


@pytest.mark.parametrize("where", ["host", "guest"])
def test_a_worker_fails(agents, start, where):
    nodes = start_both(agents, start)
    agents.tell(f"exit.{where}", 17)
    assert [node.exit_code() for node in nodes] == [17, 17]


def test_all_succeed(agents, start):
    agents.finish(*start_both(agents, start))


def test_the_store_is_lost(agents, start):
    host, guest = start_both(agents, start)
    host.kill()
    assert guest.exit_code() == 113


def test_a_node_is_lost_and_its_budget_is_spent(agents, start):
    """The code is that of its workers, which have ended with it."""
    host, guest = start_both(agents, start, "1:2", "--max-restarts=3,node:0")
    guest.kill()
    assert host.exit_code() == 128 + signal.SIGKILL
    assert ") was lost: " in host.stderr
    assert "pid 0" not in host.stderr


@pytest.mark.parametrize("backend", ["c10d", "etcd-v2"])
def test_a_lost_node_of_a_fixed_number_without_restarts(agents, endpoint_of, backend):
    """The nodes that are left do not wait for one that may never come."""
    conf = "keep_alive_interval=0.4,keep_alive_max_attempt=8"
    more = {"backend": backend, "run_id": f"fixed-{backend}", "conf": conf}
    words = options(endpoint_of(backend), "3", **more)
    first = agents.start(*words, name="first", LOGLEVEL="INFO")
    agents.until(lambda: "1 came" in first.stderr, "the first node")  # the host of the store
    others = [agents.start(*words, name=f"other{number}") for number in range(2)]
    agents.until_round(0, first, *others)
    others[0].kill()
    assert [first.exit_code(), others[1].exit_code()] == [128 + signal.SIGKILL] * 2
    for node in (first, others[1]):
        assert ") was lost: " in node.stderr
        # Nobody knows how its workers ended.
        assert re.search(r"^  job: .*, exit code 137, \d{4}-", node.stderr, re.M)
        assert "No restart: 1 node is missing, and none waits to take a place" in node.stderr


@pytest.mark.parametrize("restarts", ["0,node:inf", "1"])
def test_a_job_that_waits_for_another_node_says_until_when(agents, start, restarts):
    words = (f"--max-restarts={restarts}",)
    host, guest = start_both(agents, start, "2", *words)
    guest.kill()
    line = r"waiting for .* was lost: .*; it waits for 2 nodes until \d\d:\d\d:\d\d; 1 came: "
    agents.until(lambda: re.search(line, host.stderr), "the line")
    agents.finish(host, start("another", "2", GUEST, *words))


def test_a_signal_is_for_one_node(agents, start):
    host, guest = start_both(agents, start, "1:2")
    guest.process.send_signal(signal.SIGTERM)
    assert guest.exit_code() == 143
    agents.finish(host)


def test_other_settings(agents, start):
    """The node that is refused ends at once; the message of the other one names it."""
    host = start("host", "2", f"{HOST},{LONG}", LOGLEVEL="INFO")
    agents.until(is_up(host), "the store")
    guest = start("guest", "3", f"{GUEST},{LONG}")
    assert guest.exit_code() == 112
    agents.until(lambda: "--nnodes=3:3 there, 2:2 here" in host.stderr, "its message")


def test_another_program_with_the_default_run_id(agents, start, plaunch, endpoint):
    host = start("host", "1:2", HOST, LOGLEVEL="INFO", run_id=None)
    agents.until(is_up(host), "the store")
    agents.until(host.workers, "its worker")
    words = ["--nnodes=1:2", f"--rdzv-endpoint={endpoint}", "--rdzv-conf=is_host=false"]
    script = plaunch.write("other.py", "print('it has joined the other job')")
    other = agents.launch([*words, "--rdzv-backend=c10d", script, "--lr=2"], "other", {})
    assert other.exit_code() == 112
    assert "the command 'other.py --lr=2' here, 'worker.py host' there" in other.stderr
    assert "give each an --rdzv-id" in other.stderr
    agents.finish(host)
    assert len(host.workers()) == 1


def test_other_arguments_with_the_default_run_id(agents, start):
    """A node may have arguments of its own, so that is only a warning."""
    host = start("host", "1:2", HOST, LOGLEVEL="INFO", run_id=None)
    agents.until(is_up(host), "the store")
    guest = start("guest", "1:2", GUEST, run_id=None)
    agents.until(guest.workers, "the other node")
    assert "worker.py host there, worker.py guest here; if these are two jobs" in guest.stderr
    agents.finish(host, guest)


@pytest.mark.parametrize("stores", [("job", "torch"), ("torch", "job")])
def test_nodes_with_two_kinds_of_store(agents, start, stores):
    host = start("host", "2", f"{HOST},{LONG},store={stores[0]}", LOGLEVEL="INFO")
    agents.until(is_up(host), "the store")
    guest = start("guest", "2", f"{GUEST},{LONG},store={stores[1]}")
    assert guest.exit_code() == 112
    assert "store=torch" in guest.stderr
    if stores[0] == "job":
        assert "the node uses a TCPStore of torch" in host.stderr
    host.process.send_signal(signal.SIGTERM)
    assert host.exit_code() == 143


@pytest.mark.parametrize("conf", [HOST, "last_call_timeout=1"])
def test_a_silent_program_has_the_port(agents, endpoint, conf):
    host, port = endpoint.rsplit(":", 1)
    with contextlib.closing(socket.create_server((host, int(port)))):
        words = [f"--rdzv-endpoint={endpoint}", f"--rdzv-conf={conf},{LONG}"]
        agent = agents.start("--nnodes=2", "--rdzv-backend=c10d", *words)
        assert agent.exit_code() == 2
    assert f"'{endpoint}'" in agent.stderr
    assert "the port is taken by pid " in agent.stderr
    assert "choose another port" in agent.stderr
    assert "a plugin must end what it starts" not in agent.stderr
