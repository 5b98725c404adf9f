"""Launching a node of a job that decides for all of its nodes."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest
from plaunch import LaunchConfig, hookimpl, launch_agent
from plaunch.agent import LocalElasticAgent
from plaunch.cli import main
from plaunch.errors import UnkillableWorkerError
from plaunch.process import ChildFailedError, ProcessFailure
from plaunch.rendezvous import JobSettings, NodeSettings
from plaunch.testing import FakeJobRendezvous

from helpers.faults import raising

ELSEWHERE = {7: ProcessFailure(1, 12, 17, "", host="b", last_lines=["oh no"])}


class Backend:
    """A rendezvous backend in code, and how it was used."""

    def __init__(self, handler):
        self.handler = handler
        self.released = []
        handler.prepare = self.prepare
        handler.leave = lambda: self.released.append("leave") or True
        handler.shutdown = lambda: self.released.append("shutdown") or True

    @hookimpl
    def plaunch_rendezvous_backends(self):
        return {"job": self.create}

    def create(self, params):
        self.params = params
        return self.handler

    def prepare(self, node):
        self.node = node
        FakeJobRendezvous.prepare(self.handler, node)


@pytest.fixture
def backend():
    handler = FakeJobRendezvous("job")
    shutdown = handler.shutdown
    yield Backend(handler)
    shutdown()


def config(**changes):
    settings = {"min_nodes": 1, "max_nodes": 2, "nproc_per_node": 2, "max_restarts": 0, **changes}
    return LaunchConfig(rdzv_backend="job", run_id="job", **settings)


def launch(backend, code="pass", **changes):
    return launch_agent(config(**changes), sys.executable, ["-c", code], plugins=[backend])


def test_the_backend_gets_the_settings_of_the_launch(backend):
    launch(backend, role="trainer", max_restarts=4, node_rank=1, shutdown_timeout=7.0)
    job = replace(backend.params.job, restart_policy=None)
    assert job == JobSettings(1, shared={"--restart-policy": "standard"}, command=["pass"])
    assert backend.node == NodeSettings("trainer", 2, 4, stop_timeout=22.0)
    assert backend.released == ["shutdown"]


def test_the_backend_gets_the_settings_of_the_command_line(backend, script):
    argv = ["--rdzv-backend=job", "--rdzv-id=job", "--nproc-per-node=3", "--restart-delay=2s:1m"]
    assert main([*argv, str(script)], plugins=[backend]) == 0
    job = replace(backend.params.job, restart_policy=None)
    shared = {"--restart-policy": "standard", "--restart-delay": "2s:1m"}
    assert job == JobSettings(shared=shared, command=[str(script)])
    assert backend.node == NodeSettings("default", 3, 0, stop_timeout=45.0)


def test_this_node_ends_as_the_job_does(backend):
    def next_rendezvous():
        backend.handler.fail_elsewhere(ELSEWHERE)
        return FakeJobRendezvous.next_rendezvous(backend.handler)

    backend.handler.next_rendezvous = next_rendezvous
    with pytest.raises(ChildFailedError) as caught:
        launch(backend, "import time; time.sleep(300)")
    assert caught.value.exit_code == 17
    assert caught.value.get_first_failure()[0] == 7
    assert backend.released == ["shutdown"]


def test_the_report_on_the_console(backend, script, capfd):
    backend.handler.conclude("failed", ELSEWHERE)
    assert main(["--rdzv-backend=job", "--rdzv-id=job", str(script)], plugins=[backend]) == 17
    err = capfd.readouterr().err
    assert re.search(r"^plaunch: rank 7 on b failed: exit code 17$", err, re.M)
    assert "    oh no\n" in err


def test_others_who_have_not_finished_are_waited_for_as_long_as_asked(backend, caplog):
    backend.handler.ends = False
    assert launch(backend, exit_barrier_timeout=0) == {0: None, 1: None}
    assert "have not finished 0 s after this one" in caplog.text


def test_a_host_with_unkillable_workers_leaves_the_job(backend, monkeypatch):
    stuck = UnkillableWorkerError("pid 7 is stuck")
    monkeypatch.setattr(LocalElasticAgent, "run", raising(stuck))
    with pytest.raises(UnkillableWorkerError):
        launch(backend)
    assert backend.released == ["leave"]
