"""Several agents of one job over a real etcd server that stops and restarts."""

from __future__ import annotations

import base64
import re
import signal
import time
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("google.protobuf")

from plaunch_rendezvous_etcd.testing import EtcdServer, create_certificates

from helpers.nodes import check_refused, check_secrets, of
from helpers.nodes import options as nodes_options

QUICK = "keep_alive_interval=0.25,keep_alive_max_attempt=8"  # a lost node is noticed in 2 to 3 s
LONGER_THAN_LEASES = 4.0  # seconds; with these times they last for three
LONGER_THAN_SILENCE = 2.5  # seconds; a silent node would be lost by then
USER, PASSWORD = "ann", "what-only-ann-knows"

# A user's script that uses the workers' store.
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


options = partial(nodes_options, backend="etcd-v2")


@pytest.fixture
def argv(etcd_server, request):
    """The options of an agent of this test's job, on the server that all tests share."""

    def argv(nnodes, *more, conf=""):
        return options(etcd_server.endpoint, nnodes, *more, run_id=request.node.name, conf=conf)

    return argv


def files_of(agent):
    """Return the files mapped into an agent's memory, such as compiled modules."""
    return Path(f"/proc/{agent.process.pid}/maps").read_text()


# --- an etcd that stops and restarts --------------------------------------------------------------


@pytest.mark.slow
def test_workers_continue_while_the_server_is_restarted_or_paused(agents, own_etcd_server):
    server = own_etcd_server
    words = options(server.endpoint, "2:3", "--signal-policy=notify", conf=QUICK)
    nodes = [agents.start(*words) for _ in range(3)]
    before = agents.until_round(0, *nodes)

    def notices():
        return [len(node.notices()) for node in nodes]

    for number in (1, 2):
        if number == 1:
            server.kill()
            time.sleep(LONGER_THAN_SILENCE)
            server.start()
        else:
            server.pause()
            time.sleep(LONGER_THAN_LEASES)
            server.resume()
        # The nodes exchange records again over the restarted server.
        nodes[number].process.send_signal(signal.SIGUSR1)
        agents.until(lambda: notices() == [number] * 3, f"notice {number} is everywhere")  # noqa: B023
        time.sleep(LONGER_THAN_SILENCE)
    assert agents.until_round(0, *nodes) == before
    agents.finish(*nodes)
    for node in nodes:
        assert len(node.workers()) == 1
        assert "lost" not in node.stderr


def test_a_lost_server_ends_the_nodes_after_a_timeout(agents, own_etcd_server):
    words = options(own_etcd_server.endpoint, "2", conf="unreachable_timeout=2")
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
def test_training_continues_when_etcds_leader_dies(training, etcd_cluster):
    words = options(etcd_cluster.endpoint, "3", conf=QUICK)
    nodes = [training.start(*words, interface="lo") for _ in range(3)]
    training.until_further(3)
    etcd_cluster.leader().kill()
    etcd_cluster.leader()  # waits for the next one
    time.sleep(LONGER_THAN_SILENCE)
    training.until_further(2)
    training.hurry()
    assert [node.exit_code() for node in nodes] == [0, 0, 0]
    assert training.worlds() == [3]
    training.check()


# --- refused nodes; run ids -----------------------------------------------------------------------


@pytest.mark.slow
def test_other_settings_are_refused_and_a_run_id_is_reusable_after_a_crash(agents, argv):
    first = agents.start(*argv("1:2", "--max-restarts=1", conf=QUICK))
    (worker,) = agents.until_round(0, first)
    check_refused(agents, partial(argv, conf=QUICK))
    agents.tell("exit.0.0", 1)
    agents.until(lambda: len(first.workers()) == 2, "the worker was started again")
    (agents.folder / "exit.0.0").unlink()
    first.kill()
    agents.until_gone(worker["pid"], *of("pid", first.workers()))

    again = agents.start(*argv("1:2", "--max-restarts=1", conf=QUICK), name="again")
    agents.until(again.workers, "there is a job again")
    assert of("TORCHELASTIC_RESTART_COUNT", again.workers()) == [0]
    assert of("PLAUNCH_ROUND", again.workers()) == [0]
    assert "starts again: the 1 nodes that knew it are gone" in again.stderr
    agents.finish(again)


# --- secrets --------------------------------------------------------------------------------------


@pytest.mark.needs("etcd", "openssl")
@pytest.mark.usefixtures("etcd_server")
def test_the_password_stays_secret(agents, tmp_path_factory):
    certificates = create_certificates(str(tmp_path_factory.mktemp("certificates")))
    path = tmp_path_factory.mktemp("password") / USER
    path.touch(mode=0o600)
    path.write_text(PASSWORD)
    conf = f"protocol=https,ca_cert={certificates.ca},etcd_user={USER}"
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
        check_secrets(workers, *secrets)
        agents.tell("exit.1.0", 1)  # a report, a restart, and a verdict are more to be seen
        agents.until_round(1, *nodes)
        agents.tell("exit.0.1", 1)
        assert [node.exit_code() for node in nodes] == [1, 1]
    assert "round 1 of job 'job'" in "".join(node.stderr for node in nodes)  # DEBUG logs the most
    for node in nodes:
        assert not any(secret.decode() in node.stdout + node.stderr for secret in secrets)


# --- imports --------------------------------------------------------------------------------------


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
    agents.finish(*nodes)


def test_other_backends_need_neither_grpc_nor_torch(agents):
    c10d = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=is_host=true")
    static, dynamic = agents.start(), agents.start("--rdzv-id=own", *c10d)
    agents.until_round(0, static, dynamic)
    for agent in (static, dynamic):
        assert "cygrpc" not in files_of(agent)
        assert "libtorch" not in files_of(agent)
    agents.finish(static, dynamic)
