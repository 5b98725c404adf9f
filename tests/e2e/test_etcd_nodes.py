"""Several agents of one job over a real etcd on this machine, which comes and goes."""

from __future__ import annotations

import base64
import contextlib
import re
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")

from plaunch_rendezvous_etcd.testing import EtcdServer, create_certificates

QUICK = "keep_alive_interval=0.25,keep_alive_max_attempt=8"  # a lost node is noticed in 2 to 3 s
LONGER_THAN_LEASES = 4.0  # seconds; with these times they last for three
LONGER_THAN_SILENCE = 2.5  # seconds; a node that nobody hears would be lost by then
USER, PASSWORD = "ann", "what-only-ann-knows"

# What a user's script does with the workers' store.
COLLECTIVE = """\
import os, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", init_method="env://")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"the sum is {total.item():g}", flush=True)
while not os.path.exists("exit"):
    time.sleep(0.02)
dist.destroy_process_group()
"""


def options(endpoint, nnodes, *more, run_id="job", conf=""):
    return [
        f"--nnodes={nnodes}",
        "--rdzv-backend=etcd-v2",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={run_id}",
        f"--rdzv-conf=last_call_timeout=1{conf}",
        *more,
    ]


@pytest.fixture
def argv(etcd_server, request):
    """The options of an agent of this test's job, on the server that all tests share."""

    def argv(nnodes, *more, conf=""):
        return options(etcd_server.endpoint, nnodes, *more, run_id=request.node.name, conf=conf)

    return argv


def of(name, workers):
    return [int(worker[name]) for worker in workers]


def files_of(agent):
    """What an agent has mapped into its memory: compiled modules, among others."""
    return Path(f"/proc/{agent.process.pid}/maps").read_text()


# --- arrival, loss, failure -----------------------------------------------------------------------


@pytest.mark.slow
def test_a_late_node_is_admitted_and_a_lost_leader_left_behind(agents, argv):
    words = argv("1:2", "--nproc-per-node=2", conf=f",{QUICK}")
    first = agents.start(*words, name="first")
    alone = agents.until_round(0, first, workers=2)
    assert of("WORLD_SIZE", alone) == [2, 2]

    late = agents.start(*words, name="late")
    both = agents.until_round(1, first, late, workers=2)
    assert of("RANK", both) == [0, 1, 2, 3]
    assert of("WORLD_SIZE", both) == [4] * 4
    assert len({(worker["MASTER_ADDR"], worker["MASTER_PORT"]) for worker in both}) == 1
    agents.until_gone(*of("pid", alone))

    first.kill()
    again = agents.until_round(2, late, workers=2)
    agents.until_gone(*of("pid", first.workers()))
    assert of("RANK", again) == [0, 1]
    assert of("WORLD_SIZE", again) == [2, 2]
    assert of("TORCHELASTIC_RESTART_COUNT", alone + both + again) == [0] * 8
    agents.tell("exit", 0)
    assert late.exit_code() == 0
    assert "was lost: no heartbeat" in late.stderr
    assert "Traceback" not in first.stderr + late.stderr


def test_a_failure_anywhere_restarts_all_and_then_ends_all(agents, argv):
    nodes = [agents.start(*argv("3", "--max-restarts=1")) for _ in range(3)]
    for attempt, failing in enumerate((2, 1)):
        workers = agents.until_round(attempt, *nodes)
        assert of("RANK", workers) == [0, 1, 2]
        assert of("TORCHELASTIC_RESTART_COUNT", workers) == [attempt] * 3
        agents.tell(f"exit.{failing}.{attempt}", 7)
    assert [node.exit_code() for node in nodes] == [7] * 3
    agents.until_gone(*(worker["pid"] for node in nodes for worker in node.workers()))
    (report,) = {node.stderr[node.stderr.index("FAILED: rank") :] for node in nodes}
    assert re.search(r"^  rank: +1 ", report, re.M)
    assert re.search(rf"^  pid: +{workers[1]['pid']}$", report, re.M)
    assert re.search(r"^  ended: +exit code 7$", report, re.M)
    for node in nodes:
        assert len(node.workers()) == 2
        assert node.stderr.count("restart 1 of 1") == 1


# --- an etcd that comes and goes ------------------------------------------------------------------


@pytest.mark.slow
def test_workers_go_on_while_the_server_is_restarted_or_paused(agents, own_etcd_server):
    server = own_etcd_server
    words = options(server.endpoint, "2:3", "--signal-policy=notify", conf=f",{QUICK}")
    nodes = [agents.start(*words) for _ in range(3)]
    before = agents.until_round(0, *nodes)

    def notices():
        return [sum("notice" in line for line in node.lines()) for node in nodes]

    for number in (1, 2):
        if number == 1:
            server.kill()
            time.sleep(LONGER_THAN_SILENCE)
            server.start()
        else:
            server.pause()
            time.sleep(LONGER_THAN_LEASES)
            server.resume()
        # The nodes hear of each other again, over what has come back.
        nodes[number].process.send_signal(signal.SIGUSR1)
        agents.until(lambda: notices() == [number] * 3, f"notice {number} is everywhere")  # noqa: B023
        time.sleep(LONGER_THAN_SILENCE)
    assert agents.until_round(0, *nodes) == before
    agents.tell("exit", 0)
    assert [node.exit_code() for node in nodes] == [0] * 3
    for node in nodes:
        assert len(node.workers()) == 1
        assert "lost" not in node.stderr


def test_a_server_that_stays_away_ends_the_nodes_after_a_bound(agents, own_etcd_server):
    words = options(own_etcd_server.endpoint, "2", conf=",unreachable_timeout=2")
    nodes = [agents.start(*words) for _ in range(2)]
    agents.until_round(0, *nodes)
    own_etcd_server.kill()
    assert [node.exit_code() for node in nodes] == [113, 113]
    for node in nodes:
        agents.until_gone(*of("pid", node.workers()))
        told = rf"the store at {re.escape(own_etcd_server.endpoint)} has not answered for \d+ s"
        assert re.search(rf"{told} \(--rdzv-conf unreachable_timeout=2\)", node.stderr)
        assert "Connection refused" in node.stderr
        assert "Traceback" not in node.stderr


@pytest.mark.exhaustive
@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_training_does_not_notice_that_etcds_leader_dies(training, etcd_cluster):
    words = options(etcd_cluster.endpoint, "3", conf=f",{QUICK}")
    nodes = [training.start(*words, interface="lo") for _ in range(3)]
    training.until_further(3)
    etcd_cluster.leader().kill()
    etcd_cluster.leader()  # there is another one
    time.sleep(LONGER_THAN_SILENCE)
    training.until_further(2)
    training.hurry()
    assert [node.exit_code() for node in nodes] == [0, 0, 0]
    assert training.worlds() == [3]
    training.check()


# --- what ends a node, but no job; run ids --------------------------------------------------------


@pytest.mark.slow
def test_other_settings_are_refused_and_a_run_id_begins_anew_after_a_crash(agents, argv):
    first = agents.start(*argv("1:2", "--max-restarts=1", conf=f",{QUICK}"))
    (worker,) = agents.until_round(0, first)
    others = {
        "--nnodes=1:3 here, 1:2 there": argv("1:3", "--max-restarts=1"),
        "--max-restarts=4 here, 1 there": argv("1:2", "--max-restarts=4"),
    }
    for told, words in others.items():
        other = agents.start(*words)
        assert other.exit_code() == 112
        assert told in other.stderr
        assert "Traceback" not in other.stderr
    agents.tell("exit.0.0", 1)
    agents.until(lambda: len(first.workers()) == 2, "the worker was started again")
    (agents.folder / "exit.0.0").unlink()
    first.kill()
    agents.until_gone(worker["pid"], *of("pid", first.workers()))

    again = agents.start(*argv("1:2", "--max-restarts=1", conf=f",{QUICK}"), name="again")
    agents.until(again.workers, "there is a job again")
    assert of("TORCHELASTIC_RESTART_COUNT", again.workers()) == [0]
    assert of("PLAUNCH_ROUND", again.workers()) == [0]
    assert "starts again: the 1 nodes that knew it are gone" in again.stderr
    agents.tell("exit", 0)
    assert again.exit_code() == 0


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("etcd_server")  # is skipped where there is no etcd
def test_the_password_stays_secret(agents, tmp_path_factory):
    try:
        certificates = create_certificates(str(tmp_path_factory.mktemp("certificates")))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    path = tmp_path_factory.mktemp("password") / USER
    path.touch(mode=0o600)
    path.write_text(PASSWORD)
    conf = f",protocol=https,ca_cert={certificates.ca},etcd_user={USER}"
    with EtcdServer(certificates=certificates, users={USER: PASSWORD}) as server:
        nodes = [
            agents.start(
                *options(server.endpoint, "2", "--max-restarts=1", conf=conf + more),
                LOGLEVEL="DEBUG",
                **environ,
            )
            for more, environ in (
                ("", {"PLAUNCH_ETCD_PASSWORD": PASSWORD}),
                (f",etcd_password_file={path}", {}),
            )
        ]
        workers = agents.until_round(0, *nodes)
        secrets = [PASSWORD.encode(), base64.b64encode(PASSWORD.encode())]
        seen = 0
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                line = (process / "cmdline").read_bytes()
                seen += b"plaunch" in line
                assert not any(secret in line for secret in secrets)
        assert seen >= 2
        for worker in workers:
            environ = Path(f"/proc/{worker['pid']}/environ").read_bytes()
            assert b"MASTER_ADDR" in environ
            assert not any(secret in environ for secret in secrets)
        agents.tell("exit.1.0", 1)  # a report, a restart, and a verdict are more to be seen
        agents.until_round(1, *nodes)
        agents.tell("exit.0.1", 1)
        assert [node.exit_code() for node in nodes] == [1, 1]
    assert "round 1 of job 'job'" in "".join(node.stderr for node in nodes)  # they tell much
    for node in nodes:
        assert not any(secret.decode() in node.stdout + node.stderr for secret in secrets)


# --- what is imported -----------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_get_a_store_and_agents_need_no_torch(agents, argv, plaunch):
    pytest.importorskip("torch.distributed")
    script = plaunch.write("collective.py", COLLECTIVE)
    nodes = [
        agents.launch([*argv("2"), script], f"node{number}", {"GLOO_SOCKET_IFNAME": "lo"})
        for number in range(2)
    ]
    agents.until(lambda: all("the sum is" in node.stdout for node in nodes), "they have met")
    for node in nodes:
        assert "the sum is 3\n" in node.stdout
        assert "cygrpc" in files_of(node)
        assert "libtorch" not in files_of(node)
    agents.tell("exit", 0)
    assert [node.exit_code() for node in nodes] == [0, 0]


def test_other_backends_need_no_grpc(agents):
    pytest.importorskip("torch.distributed")
    c10d = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=is_host=true")
    static, dynamic = agents.start(), agents.start("--rdzv-id=own", *c10d)
    agents.until_round(0, static, dynamic)
    assert "cygrpc" not in files_of(static) + files_of(dynamic)
    assert "libtorch" in files_of(dynamic)
    assert "libtorch" not in files_of(static)
    agents.tell("exit", 0)
    assert [static.exit_code(), dynamic.exit_code()] == [0, 0]
