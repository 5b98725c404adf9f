"""Several agents of one job on this machine, with the backend c10d; workers do not import torch."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from functools import partial

import pytest

from helpers.nodes import check_refused, check_secrets, of, options
from helpers.ports import outgoing_connection
from helpers.processes import is_reaped

QUICK = "keep_alive_interval=0.4,keep_alive_max_attempt=8"  # a lost node is noticed in 3 to 4 s
TOKEN = "a-token-that-nobody-else-knows"

SERVER = """
import sys
from plaunch_rendezvous_c10d.hosting import listen
from plaunch_rendezvous_c10d.tcp_hosting import HostedTcpStore
host = HostedTcpStore(listen("localhost", 0, is_local=True))
print(host.port, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def endpoint(endpoint_of):
    """A free address of this machine, on which the first agent listens."""
    return endpoint_of("c10d")


@contextlib.contextmanager
def store_at(kind, endpoint_of, folder):
    """Options for a store in etcd, in the first agent, in a file, or in a third process."""
    if kind == "etcd":
        yield endpoint_of("etcd-v2"), "etcd-v2", ""
    elif kind == "first agent":
        yield endpoint_of("c10d"), "c10d", ""
    elif kind == "file":
        yield folder / "store", "c10d", ",store_type=file"
    else:
        with subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                yield f"127.0.0.1:{int(process.stdout.readline())}", "c10d", ",store=torch"
            finally:
                process.kill()


HOSTS, JOINS = "is_host=true", "is_host=false"


# --- arrival and loss -----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("store", "victim"),
    [("first agent", "late"), ("file", "first"), ("third process", "first"), ("etcd", "first")],
)
def test_a_late_node_is_admitted_and_a_lost_one_excluded(
    agents, endpoint_of, request, store, victim
):
    if store != "etcd":
        pytest.importorskip("torch.distributed")
    with store_at(store, endpoint_of, agents.folder) as (where, backend, more):
        settings = {"backend": backend, "run_id": request.node.name, "conf": QUICK + more}
        argv = options(where, "1:2", "--nproc-per-node=2", **settings)
        first = agents.start(*argv, name="first")
        alone = agents.until_round(0, first, workers=2)
        assert of("WORLD_SIZE", alone) == [2, 2]

        late = agents.start(*argv, name="late")
        both = agents.until_round(1, first, late, workers=2)
        assert of("RANK", both) == [0, 1, 2, 3]
        assert of("WORLD_SIZE", both) == [4] * 4
        assert len({(w["MASTER_ADDR"], w["MASTER_PORT"]) for w in both}) == 1
        agents.until_gone(*of("pid", alone))

        dead, survivor = (first, late) if victim == "first" else (late, first)
        theirs = of("pid", dead.workers())
        dead.kill()
        again = agents.until_round(2, survivor, workers=2)
        agents.until_gone(*theirs)
        assert of("WORLD_SIZE", again) == [2, 2]
        assert of("TORCHELASTIC_RESTART_COUNT", alone + both + again) == [0] * 8
        assert of("RANK", again) == [0, 1]
        agents.finish(survivor)
        noticed = "its connection to the store" if store == "first agent" else "no heartbeat"
        assert f"was lost: {noticed}" in survivor.stderr
    assert "Traceback" not in first.stderr + late.stderr


@pytest.mark.slow
def test_a_spare_takes_the_place_of_a_lost_node_and_ends_with_the_job(agents, endpoint):
    argv = options(endpoint, "2", conf=QUICK)
    nodes = [agents.start(*argv) for _ in range(2)]
    agents.until_round(0, *nodes)
    spares = [agents.start(*argv, name=f"spare{number}") for number in range(2)]
    for spare in spares:
        agents.until(lambda: "waits for a place" in spare.stderr, "the spare is there")  # noqa: B023
    victim = next(node for node in nodes if node.workers()[0]["RANK"] == "1")
    victim.kill()
    agents.until(lambda: any(spare.workers() for spare in spares), "a spare is needed")
    spares.sort(key=lambda spare: len(spare.workers()))
    (survivor,) = set(nodes) - {victim}
    workers = agents.until_round(1, survivor, spares[1])
    assert of("RANK", workers) == [0, 1]
    assert {worker["TORCHELASTIC_RESTART_COUNT"] for worker in workers} == {"0"}
    agents.finish(survivor, *spares)
    assert spares[0].workers() == []


# --- one job --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "count", "max_restarts"),
    [
        pytest.param("c10d", 4, 0, marks=pytest.mark.slow),
        pytest.param("c10d", 4, 2, marks=pytest.mark.slow),
        ("etcd-v2", 3, 1),
    ],
)
def test_a_failure_anywhere_restarts_or_ends_all(
    agents, endpoint_of, request, backend, count, max_restarts
):
    settings = {"backend": backend, "run_id": request.node.name}
    argv = options(endpoint_of(backend), count, f"--max-restarts={max_restarts}", **settings)
    nodes = [agents.start(*argv) for _ in range(count)]
    for attempt in range(max_restarts + 1):
        workers = agents.until_round(attempt, *nodes)
        assert of("RANK", workers) == list(range(count))
        assert of("TORCHELASTIC_RESTART_COUNT", workers) == [attempt] * count
        failing = count - 1 - attempt
        agents.tell(f"exit.{failing}.{attempt}", 7)
    assert [node.exit_code() for node in nodes] == [7] * count
    agents.until_gone(*(pid for node in nodes for pid in of("pid", node.workers())))
    # The report of a failed job, without the lines of this agent.
    said = "\n".join(node.stderr for node in nodes)
    (headline,) = set(re.findall("^plaunch: (rank .* after .*)", said, re.M))
    assert re.fullmatch(rf"rank {failing} on \S+ failed after .* s: exit code 7", headline)
    for node in nodes:
        assert re.search(rf", pid {workers[failing]['pid']}, exit code 7, ", node.stderr)
        assert len(re.findall(r"^  attempt \d: rank .* s$", node.stderr, re.M)) == max_restarts
        assert len(node.workers()) == max_restarts + 1
        for restart in range(1, max_restarts + 1):
            assert node.stderr.count(f"restart {restart} of {max_restarts}") == 1


@pytest.mark.slow
def test_ranks_follow_the_nodes_index_size_and_role(agents, endpoint):
    def start(index, nproc, role):
        more = (f"--node-rank={index}", f"--nproc-per-node={nproc}", f"--role={role}")
        return agents.start(*options(endpoint, "3", *more), name=f"node{index}")

    nodes = [start(2, 1, "trainer"), start(0, 3, "trainer"), start(1, 2, "reader")]
    nodes.sort(key=lambda node: node.name)
    for node, count in zip(nodes, (3, 2, 1), strict=True):
        agents.until_round(0, node, workers=count)
    workers = [worker for node in nodes for worker in node.workers()]
    assert of("RANK", workers) == [0, 1, 2, 3, 4, 5]
    assert of("GROUP_RANK", workers) == [0, 0, 0, 1, 1, 2]
    assert of("LOCAL_RANK", workers) == [0, 1, 2, 0, 1, 0]
    assert of("LOCAL_WORLD_SIZE", workers) == [3, 3, 3, 2, 2, 1]
    assert of("ROLE_RANK", workers) == [0, 1, 2, 0, 1, 3]
    assert of("ROLE_WORLD_SIZE", workers) == [4, 4, 4, 2, 2, 4]
    assert of("WORLD_SIZE", workers) == [6] * 6
    assert of("GROUP_WORLD_SIZE", workers) == [3] * 6
    # A node that has finished waits for the others; so does the store host.
    for node in nodes[1:]:
        agents.tell(f"exit.{node.name}", 0)
        agents.until_gone(*of("pid", node.workers()))
    assert [node.process.poll() for node in nodes] == [None] * 3
    agents.tell("exit.node0", 0)
    assert [node.exit_code() for node in nodes] == [0, 0, 0]
    assert {node.stderr for node in nodes} == {""}


@pytest.mark.slow
def test_a_node_that_waits_for_the_others_is_restarted_with_them(agents, endpoint):
    nodes = [agents.start(*options(endpoint, "2", "--max-restarts=1")) for _ in range(2)]
    workers = agents.until_round(0, *nodes)
    agents.tell("exit.1.0", 0)
    agents.until_gone(workers[1]["pid"])
    agents.tell("exit.0.0", 5)
    workers = agents.until_round(1, *nodes)
    assert of("TORCHELASTIC_RESTART_COUNT", workers) == [1, 1]
    agents.finish(*nodes)


@pytest.mark.parametrize("hosts", [True, False])
def test_a_finished_node_waits_no_longer_than_its_limit(agents, endpoint, hosts):
    """The others need the store, so its host stays."""
    confs = (HOSTS, JOINS) if hosts else (JOINS, HOSTS)
    quick, slow = (
        agents.start(*options(endpoint, "2", "--exit-barrier-timeout=0.5", conf=conf), name=name)
        for name, conf in zip(("quick", "slow"), confs, strict=True)
    )
    agents.until_round(0, quick, slow)
    agents.tell("exit.quick", 0)
    told = "have not finished 0.5 s after this one (--exit-barrier-timeout)"
    agents.until(lambda: told in quick.stderr, "it does not wait any longer")
    if hosts:
        agents.until(lambda: "it stays until the others have finished" in quick.stderr, "it stays")
    else:
        assert quick.exit_code() == 0
    assert slow.process.poll() is None
    agents.tell("exit.slow", 0)
    assert [quick.exit_code(), slow.exit_code()] == [0, 0]
    assert len(slow.workers()) == 1


@pytest.mark.parametrize("patience", [300, 0.5], ids=["of the round", "of the host"])
def test_a_finished_node_obeys_a_stop_and_logs_the_consequences(agents, endpoint, patience):
    """The signal ends its wait for the others, and its wait as the store host."""
    host, other = (
        agents.start(
            *options(endpoint, "2", f"--exit-barrier-timeout={patience}", conf=conf), name=name
        )
        for name, conf in (("host", HOSTS), ("other", JOINS))
    )
    agents.until_round(0, host, other)
    agents.tell("exit.host", 0)
    if patience == 300:
        pid = host.workers()[0]["pid"]
        agents.until(lambda: is_reaped(pid), "the launcher has seen its end")
    else:
        agents.until(lambda: "it stays until the others have finished" in host.stderr, "it stays")
    host.process.send_signal(signal.SIGTERM)
    assert host.exit_code() == 0
    assert "SIGTERM received" in host.stderr
    assert "the store of job 'job' ends with this launcher, which hosts it" in host.stderr


@pytest.mark.slow
def test_a_notice_is_for_all_nodes_and_a_stop_for_one(agents, endpoint):
    more = ("1:3", "--signal-policy=notify")
    nodes = [agents.start(*options(endpoint, *more, conf=conf)) for conf in (HOSTS, JOINS, JOINS)]
    agents.until(lambda: any(w["WORLD_SIZE"] == "3" for w in nodes[0].workers()), "all are there")
    round_ = max(of("PLAUNCH_ROUND", nodes[0].workers()))
    agents.until_round(round_, *nodes)
    nodes[1].process.send_signal(signal.SIGUSR1)
    agents.until(lambda: all(node.notices() for node in nodes), "all workers have got it")
    for node in nodes:
        (line,) = node.notices()
        assert line == {"notice": signal.SIGUSR1, "rank": node.workers(round_)[0]["RANK"]}

    nodes[2].process.send_signal(signal.SIGTERM)
    assert nodes[2].exit_code() == 128 + signal.SIGTERM
    workers = agents.until_round(round_ + 1, *nodes[:2])
    assert of("RANK", workers) == [0, 1]
    assert of("WORLD_SIZE", workers) == [2, 2]
    assert of("TORCHELASTIC_RESTART_COUNT", workers) == [0, 0]
    agents.tell("exit", 0)
    assert [node.exit_code() for node in nodes[:2]] == [0, 0]
    assert f"node {socket.gethostname()} left" in nodes[0].stderr


SAVES = """
import os, signal, sys, time
def say(what):
    with open("events", "a") as file:
        file.write(f"{what} of round {os.environ['PLAUNCH_ROUND']}\\n")
def save(*_):
    say("save")
    while not os.path.exists("saved"):
        time.sleep(0.02)
    say("end")
    os._exit(0)
if sys.argv[1] == "leaves":
    signal.signal(signal.SIGTERM, save)
say(f"world {os.environ['WORLD_SIZE']}")
while not os.path.exists("exit"):
    time.sleep(0.02)
"""


@pytest.mark.parametrize("store", ["job", "torch", "etcd-v2"])
def test_no_round_begins_while_a_node_that_leaves_still_saves(agents, endpoint_of, plaunch, store):
    """Both worlds would write the same files."""
    backend = "etcd-v2" if store == "etcd-v2" else "c10d"
    own = f"store={store}" if backend == "c10d" else ""
    script, endpoint = plaunch.write("saves.py", SAVES), endpoint_of(backend)
    events = plaunch.folder / "events"

    def start(name, conf):
        words = options(
            endpoint,
            "1:2",
            backend=backend,
            run_id=f"saves-{store}",
            conf=f"{own},{conf}".strip(","),
        )
        return agents.launch([*words, script, name], name, {"LOGLEVEL": "INFO"})

    def seen(what):
        return events.exists() and what in events.read_text()

    stays = start("stays", HOSTS if backend == "c10d" else "")
    leaves = start("leaves", JOINS if backend == "c10d" else "")
    agents.until(lambda: seen("world 2"), "both")
    agents.until(lambda: events.read_text().count("world 2") == 2, "both workers")
    leaves.process.send_signal(signal.SIGTERM)
    agents.until(
        lambda: re.search(
            r"\(index \d\) is still stopping its workers, for at most \d+ s", stays.stderr
        ),
        "the node that stays says what it waits for",
    )
    (plaunch.folder / "saved").touch()
    agents.until(lambda: seen("world 1 of round"), "the next round")
    assert leaves.exit_code() == 128 + signal.SIGTERM
    agents.finish(stays)
    last = events.read_text().splitlines()[-3:]
    assert [line.partition(" of ")[0] for line in last] == ["save", "end", "world 1"]


@pytest.mark.slow
def test_a_notice_to_all_launchers_reaches_each_worker_once(agents, endpoint):
    """As with Slurm's `--signal`: each worker saves once, and is not interrupted while it saves."""
    more = ("3", "--signal-policy=notify")
    nodes = [agents.start(*options(endpoint, *more, conf=conf)) for conf in (HOSTS, JOINS, JOINS)]
    agents.until_round(0, *nodes)

    def notices():
        return [len(node.notices()) for node in nodes]

    for node in nodes:
        node.process.send_signal(signal.SIGUSR1)
    agents.until(lambda: min(notices()) >= 1, "all workers have got it")
    time.sleep(1.5)  # longer than the window in which signals count as one
    nodes[1].process.send_signal(signal.SIGUSR1)
    # The first signal has taken effect before the second.
    agents.until(lambda: min(notices()) >= 2, "all workers have got the second")
    assert notices() == [2, 2, 2]
    agents.finish(*nodes)


def test_a_stop_of_all_nodes_ends_all(agents, endpoint):
    """As a scheduler does; no node waits for a store whose host has ended."""
    nodes = [agents.start(*options(endpoint, "3")) for _ in range(3)]
    workers = agents.until_round(0, *nodes)
    for node in nodes:
        node.process.send_signal(signal.SIGTERM)
    assert [node.exit_code() for node in nodes] == [128 + signal.SIGTERM] * 3
    agents.until_gone(*of("pid", workers))
    for node in nodes:
        # A node that leaves is reported by those whose own signal has not arrived yet. A thread of
        # torch that is alive at the interpreter's exit would print an error here.
        own = [line for line in node.stderr.splitlines() if " left: SIGTERM received; " not in line]
        assert own == ["plaunch: SIGTERM received; the workers are stopped"]


@pytest.mark.slow
def test_a_node_that_comes_when_others_have_finished_is_not_needed(agents, endpoint):
    nodes = [agents.start(*options(endpoint, "1:3", conf=conf)) for conf in (HOSTS, JOINS)]
    agents.until(lambda: any(w["WORLD_SIZE"] == "2" for w in nodes[0].workers()), "both are there")
    round_ = max(of("PLAUNCH_ROUND", nodes[0].workers()))
    agents.until_round(round_, *nodes)
    agents.tell("exit.node1", 0)
    agents.until_gone(*of("pid", nodes[1].workers()))
    late = agents.start(*options(endpoint, "1:3", conf=JOINS))
    agents.until(lambda: "waits in case" in late.stderr, "the late node has come")
    assert [node.process.poll() for node in nodes] == [None, None]
    agents.tell("exit.node0", 0)
    assert [node.exit_code() for node in (*nodes, late)] == [0, 0, 0]
    assert late.workers() == []
    assert {len(node.workers(round_ + 1)) for node in nodes} == {0}


# --- errors of single nodes -----------------------------------------------------------------------


@pytest.mark.slow
def test_other_settings_are_refused_by_name(agents, endpoint):
    first = agents.start(*options(endpoint, "1:2", "--max-restarts=1"))
    agents.until_round(0, first)
    check_refused(agents, partial(options, endpoint))
    agents.finish(first)
    assert len(first.workers()) == 1


def test_too_few_nodes_in_time(agents, endpoint):
    argv = options(endpoint, "3", conf="join_timeout=3")
    nodes = [agents.start(*argv, f"--node-rank={index}") for index in (0, 2)]
    assert [node.exit_code() for node in nodes] == [111, 111]
    for node in nodes:
        assert "job 'job' needs 3 nodes" in node.stderr
        assert "within 3 s (--rdzv-conf join_timeout)" in node.stderr
        assert "Traceback" not in node.stderr
    # The first node to time out counts both nodes; the other may only lose the store.
    host = socket.gethostname()
    seen = f"2 came within 3 s (--rdzv-conf join_timeout): {host} (index 0), {host} (index 2); "
    assert any(f"{seen}missing: index 1" in node.stderr for node in nodes)


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["unreachable_timeout=2", "refused_timeout=2"])
def test_a_lost_store_ends_the_nodes_after_a_timeout(agents, endpoint, bound):
    host = agents.start(*options(endpoint, "3", conf=f"{bound},{HOSTS}"))
    others = [agents.start(*options(endpoint, "3", conf=f"{bound},{JOINS}")) for _ in range(2)]
    agents.until_round(0, host, *others)
    host.kill()
    assert [node.exit_code() for node in others] == [113, 113]
    for node in others:
        assert bound in node.stderr
        assert "Traceback" not in node.stderr
        agents.until_gone(*of("pid", node.workers()))


@pytest.mark.slow
@pytest.mark.usefixtures("loud")
def test_a_connection_that_has_the_port_only_delays_the_host(agents, endpoint):
    with outgoing_connection(int(endpoint.rpartition(":")[2])):
        nodes = [agents.start(*options(endpoint, 2)) for _ in range(2)]
        for node in nodes:
            agents.until(lambda node=node: "its port is in use" in node.stderr, "it waits")
    agents.until_round(0, *nodes)
    agents.finish(*nodes)
    assert sum("this node hosts the rendezvous store" in node.stderr for node in nodes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("nnodes", ["2", "1:2"])
def test_a_restarted_host_does_not_reset_the_budget(agents, endpoint, nnodes):
    """It starts first, with an empty store; the other one knows the number of used restarts."""
    more = (nnodes, "--max-restarts=2")
    host = agents.start(*options(endpoint, *more, conf=HOSTS), name="host")
    other = agents.start(*options(endpoint, *more, conf=JOINS), name="other")
    (worker, _) = agents.until_round(0, host, other)
    for attempt in ("0", "1"):
        agents.tell(f"exit.{worker['RANK']}.{attempt}", 3)
        (worker, _) = agents.until_round(int(attempt) + 1, host, other)
    host.kill()
    again = agents.start(*options(endpoint, *more, conf=HOSTS), name="again")

    def are_together():
        here, there = (agent.lines()[-1] if agent.lines() else {} for agent in (again, other))
        return here and here["WORLD_SIZE"] == "2" and here["MASTER_PORT"] == there["MASTER_PORT"]

    agents.until(are_together, "they are together")
    assert again.lines()[-1]["TORCHELASTIC_RESTART_COUNT"] == "2"
    agents.tell("exit.again", 3)
    assert [again.exit_code(), other.exit_code()] == [3, 3]


@pytest.mark.slow
def test_the_token_refuses_other_clients_and_stays_secret(agents, endpoint):
    with_token = {"PLAUNCH_RDZV_TOKEN": TOKEN}
    first = agents.start(*options(endpoint, "1:2"), **with_token)
    agents.until_round(0, first)
    for environ in ({}, {"PLAUNCH_RDZV_TOKEN": "another-token-of-enough-bytes"}):
        stranger = agents.start(*options(endpoint, "1:2"), **environ)
        assert stranger.exit_code() == 112
        assert "token" in stranger.stderr
    second = agents.start(*options(endpoint, "1:2"), **with_token)
    workers = agents.until_round(1, first, second)
    check_secrets(workers, TOKEN.encode())
    agents.finish(first, second)
    for agent in agents.all:
        assert TOKEN not in agent.stdout + agent.stderr
