"""Requests to an agent from other threads, with real workers, on one node and on two."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from dataclasses import replace

import pytest
from plaunch.agent import (
    RequestKind,
    Snapshot,
    WorkerState,
    notifications,
)
from plaunch.errors import PluginError, SignalException
from plaunch.testing import FakeJobRendezvous
from plaunch.testing.rendezvous import FakeRendezvous

from helpers.agents import UP, Node, PretendAgent, run_nodes
from helpers.calls import meanwhile
from helpers.ports import free_port

BOUND = 120.0  # seconds; a hang is a failure, however slow the machine

# In round 0 it runs until somebody ends it.
WORKER = UP + (
    "signal.signal(signal.SIGUSR1, lambda *_: (where / f'told.{rank}').touch())\n"
    "up()\n"
    "while round_ == 0: time.sleep(0.01)\n"
)


class Asked(Node):
    """An agent of two workers, of which something is asked once they are up."""

    def __init__(self, folder, handler):
        super().__init__(folder, handler)
        self.built = self.agent(WORKER, max_restarts=0)

    def run(self, *requests):
        def ask():
            self.wait_for("0.0.0", "0.0.1")
            for request in requests:
                request(self.built)

        with meanwhile(ask):
            return self.built.run()


@pytest.fixture
def node(tmp_path):
    return Asked(tmp_path, FakeRendezvous())


HOST = socket.gethostname()


def ask(kind, reason="no progress for 60 s"):
    return lambda agent: agent.request(RequestKind[kind], reason, "the watch")


def test_a_restart_is_another_round_that_uses_no_attempt(node, caplog):
    assert node.run(ask("RESTART")).state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.0.0", "0.0.1", "1.0.0", "1.0.1"]
    assert (
        "the watch requests a restart (no progress for 60 s); all workers are restarted; this is "
        "not counted against --max-restarts" in caplog.messages
    )
    (told,) = node.notifications.of(notifications.RequestReceived)
    assert (told.request.kind, told.request.who) == (RequestKind.RESTART, "the watch")
    assert "no progress" in node.notifications.of(notifications.AfterRendezvous)[-1].reason


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("STOP", f"node {HOST} requests the end of the job (the watch: no progress for 60 s)"),
        ("LEAVE", "the watch requests that this node leave (no progress for 60 s)"),
    ],
)
def test_a_stop_ends_the_run_and_names_the_requester(node, kind, text):
    with pytest.raises(SignalException) as caught:
        node.run(ask(kind))
    assert caught.value.sigval == signal.SIGTERM
    assert str(caught.value) == f"{text}; the workers were stopped"
    assert node.built.is_asked_to_end()
    assert node.built.has_ended_job == (kind == "STOP")
    assert node.built.snapshot().pids == {}


def test_a_request_without_effect_is_logged(node, caplog):
    caplog.set_level("INFO", "plaunch")
    node.built.request(RequestKind.RESTART, "too early", "somebody")
    node.run(ask("RESTART"))
    assert (
        "somebody requests a restart (too early), but this has no effect while this agent is "
        "joining" in caplog.messages
    )
    assert node.starts()[-1] == "1.0.1"


def test_a_request_before_the_run_ends_it_before_workers_start(node):
    node.built.request(RequestKind.STOP, "no", "somebody")
    assert node.built.is_asked_to_end()
    with pytest.raises(SignalException, match=r"requests the end of the job \(somebody: no\)"):
        node.built.run()
    assert node.starts() == []


@pytest.mark.parametrize("kind", ["STOP", "LEAVE"])
def test_a_stop_during_the_start_of_workers_is_the_cause(kind):
    """What holds their start is not waited for any more, and has failed then."""

    class Held(PretendAgent):
        def _start_workers(self, worker_group):
            self.request(RequestKind[kind], "it takes too long", "the watch")
            raise PluginError("a hook had not returned")

    with pytest.raises(
        SignalException,
        match=r"the watch.* it takes too long|the watch requests .* \(it takes too long\)",
    ):
        Held(FakeRendezvous(), max_restarts=0).run()


def test_a_signal_for_some_of_the_workers(node):
    def check(agent):
        node.wait_for("told.1")
        assert not node.has("told.0")

    node.run(
        lambda agent: agent.signal_workers(signal.SIGUSR1, ranks=[1, 7]),
        check,
        lambda agent: agent.signal_workers(signal.SIGUSR1),
        lambda _: node.wait_for("told.0"),
        ask("RESTART"),
    )


REASON = "it hangs"


@pytest.mark.parametrize(
    ("code", "is_blamed"),
    [
        ("signal.pause()", True),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); signal.pause()", True),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); signal.pause()", False),
    ],
)
def test_a_signal_explains_the_end_that_it_has_brought(tmp_path, code, is_blamed):
    node = Node(tmp_path, FakeRendezvous())
    script = UP + code.replace("signal.pause()", "up(); signal.pause()")
    agent = node.agent(script, nproc=1)

    def end():
        node.wait_for("0.0.0")
        agent.signal_workers(signal.SIGTERM, reason=REASON)

    with meanwhile(end):
        (failure,) = agent.run().failures.values()
    assert (REASON in failure.message) is is_blamed


def test_what_others_may_know(node):
    seen = []
    before = node.built.snapshot()
    assert before == Snapshot(WorkerState.INIT, -1, 0, (), {})

    def look(agent):
        while (now := agent.snapshot()).state is not WorkerState.HEALTHY:
            threading.Event().wait(0.005)
        seen.append(now)

    node.run(look, ask("RESTART"))
    pids = dict(enumerate(worker["pid"] for worker in node.workers("0.0.0", "0.0.1")))
    (now,) = seen
    assert replace(now, stdouts={}, stderrs={}) == Snapshot(WorkerState.HEALTHY, 0, 0, (0, 1), pids)
    assert [*now.stdouts] == [*now.stderrs] == [0, 1]
    after = node.built.snapshot()
    assert (after.round, after.attempt, after.pids) == (1, 0, {})


# --- where the rendezvous knows the whole job -----------------------------------------------------


@pytest.fixture
def job(tmp_path):
    with FakeJobRendezvous(local_world_size=2, world_size=1) as handler:
        yield handler


@pytest.mark.parametrize("kind", ["RESTART", "STOP", "LEAVE"])
def test_a_request_is_reported_to_the_job(job, tmp_path, kind):
    node = Asked(tmp_path, job)
    with contextlib.nullcontext() if kind == "RESTART" else pytest.raises(SignalException):
        node.run(ask(kind))
    told = {"RESTART": job.requested, "STOP": job.ended, "LEAVE": job.farewells}
    assert told.pop(kind) == ["the watch: no progress for 60 s"]
    assert list(told.values()) == [[], []]
    assert job.reported == []
    assert node.starts()[-1] == ("1.0.1" if kind == "RESTART" else "0.0.1")


def test_a_restart_that_another_node_requests(job, tmp_path, caplog):
    node = Asked(tmp_path, job)
    assert node.run(lambda _: job.request_elsewhere(node="b")).state is WorkerState.SUCCEEDED
    assert node.starts() == ["0.0.0", "0.0.1", "1.0.0", "1.0.1"]
    assert any("node b requests a restart: operator: maintenance" in m for m in caplog.messages)


# One node; the first one asks when the workers of both are up.
ASK = """\
where = pathlib.Path(given["folder"])

def ask():
    while not all((where / name).exists() for name in ("0.0.0", "0.0.1")):
        time.sleep(0.01)
    agent.request(RequestKind[given["kind"]], "no progress", "the watch")

if given["kind"]:
    threading.Thread(target=ask, daemon=True).start()
end = "error"
release = handler.shutdown
try:
    end = agent.run().state.value
except SignalException as error:
    end = str(error)
    if not agent.has_ended_job:
        release = handler.leave
except PlaunchError as error:
    end = str(error)
release()
sys.stdout.write(end)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "min_nodes", "attempts", "asked", "other"),
    [
        ("RESTART", 2, ["0.0.0", "0.0.1", "1.0.0", "1.0.1"], "SUCCEEDED", "SUCCEEDED"),
        ("STOP", 2, ["0.0.0", "0.0.1"], "requests the end", "the watch: no progress"),
        ("LEAVE", 1, ["0.0.0", "0.0.1", "1.0.0"], "requests that this node", "SUCCEEDED"),
    ],
)
def test_two_nodes_over_a_real_store(tmp_path, with_torch, kind, min_nodes, attempts, asked, other):
    """What is asked of one of them, both do, or the other one goes on; no restart is used."""
    rendezvous = {
        "backend": "c10d",
        "endpoint": f"localhost:{free_port()}",
        "run_id": "requests",
        "min_nodes": min_nodes,
        "max_nodes": 2,
        "last_call_timeout": 60,
    }
    args = ["-c", WORKER, str(tmp_path)]
    spec = {"role": "trainer", "local_world_size": 1, "args": args, "max_restarts": 0}
    # The first one hosts the store, so that it is the second one that may leave.
    kinds = ["", kind] if kind == "LEAVE" else [kind, ""]
    nodes = [
        {
            "rendezvous": {**rendezvous, "is_host": number == 0},
            "spec": spec,
            "folder": str(tmp_path),
            "kind": kinds[number],
        }
        for number in range(2)
    ]
    ended = run_nodes(ASK, *nodes, with_torch=with_torch)
    outs = [process.stdout for process in ended]
    by_asked, by_other = reversed(outs) if kind == "LEAVE" else outs
    assert asked in by_asked, ended
    assert other in by_other, ended
    assert sorted(path.name for path in tmp_path.glob("?.?.?")) == attempts


def test_states_of_extensions_are_in_the_snapshot_until_they_are_empty(node):
    agent = node.agent("pass")
    agent.note_state("uploads", "2 wait")
    agent.note_state("cache", "full")
    agent.note_state("uploads", "")
    assert agent.snapshot().notes == {"cache": "full"}
