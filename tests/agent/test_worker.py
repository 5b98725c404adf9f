"""The variables that a worker is given."""

from __future__ import annotations

import pytest
from plaunch.agent import Worker, WorkerGroup, WorkerSpec, macros
from plaunch.agent.worker import worker_environment
from plaunch.errors import UsageError
from plaunch.testing.rendezvous import FakeRendezvous


@pytest.fixture
def group():
    group = WorkerGroup(
        WorkerSpec(
            role="trainer",
            local_world_size=2,
            rdzv_handler=FakeRendezvous("job"),
            entrypoint="python",
            max_restarts=4,
        )
    )
    group.spec.rdzv_handler.agent_store = True  # as every handler says that does not say otherwise
    group.group_rank, group.group_world_size = 1, 3
    group.master_addr, group.master_port = "node0", 29500
    return group


def test_all_of_torchruns_variables_are_there(group):
    worker = Worker(local_rank=1, global_rank=3, role_rank=2, world_size=6, role_world_size=5)
    env = worker_environment(group, worker, attempt=2, round=5, environ={})
    assert env == {
        "LOCAL_RANK": "1",
        "RANK": "3",
        "GROUP_RANK": "1",
        "ROLE_RANK": "2",
        "ROLE_NAME": "trainer",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "6",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "4",
        "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "PLAUNCH_ROUND": "5",
        "PLAUNCH_JOB_ID": "job",
    }


def test_a_job_that_is_started_once_more_has_its_own_name_beside_the_run_id(group):
    group.spec.job_id = "slurm-7.0"
    env = worker_environment(group, group.workers[0], attempt=0, round=0, environ={})
    assert (env["PLAUNCH_JOB_ID"], env["TORCHELASTIC_RUN_ID"]) == ("slurm-7.0", "job")


class HostsStore(FakeRendezvous):
    """Serves the workers itself."""

    @property
    def hosts_worker_store(self):
        return True


class OfTorchs:
    """As torch's own handlers: it serves the workers itself whenever they are to be served."""

    def __init__(self, *, use_agent_store):
        self.use_agent_store = use_agent_store


def with_agent_store(handler):
    handler.agent_store = True
    return handler


@pytest.mark.parametrize(
    ("handler", "asked", "uses", "hosts"),
    [
        (with_agent_store(FakeRendezvous()), "agent", True, True),
        (with_agent_store(FakeRendezvous()), "rank0", False, False),
        (FakeRendezvous(), "agent", False, False),
        (HostsStore(), "agent", True, False),
        (HostsStore(), "rank0", True, False),  # the port is taken
        (OfTorchs(use_agent_store=True), "agent", True, False),
        (OfTorchs(use_agent_store=False), "agent", False, False),
    ],
)
def test_who_hosts_the_workers_store(handler, asked, uses, hosts):
    spec = WorkerSpec("r", 1, handler, entrypoint="x", worker_store=asked)
    assert (spec.uses_agent_store, spec.hosts_worker_store) == (uses, hosts)


def test_an_unknown_host_of_the_workers_store_is_refused():
    with pytest.raises(UsageError, match=r"'rank1'.*choices: agent, rank0"):
        WorkerSpec("r", 1, FakeRendezvous(), entrypoint="x", worker_store="rank1")


def test_the_launchers_own_choices_are_passed_on(group):
    environ = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "OMP_NUM_THREADS": "7", "OTHER": "x"}
    env = worker_environment(group, Worker(0), attempt=0, round=0, environ=environ)
    assert env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert env["OMP_NUM_THREADS"] == "7"
    assert "OTHER" not in env


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--rank=${local_rank}", 5, None], ["--rank=3", 5, None]),
        (["${local_rank}${local_rank}"], ["33"]),
        (["$HOME", "$$", "${other}", "cost: 5$"], ["$HOME", "$$", "${other}", "cost: 5$"]),
    ],
)
def test_macros_replace_the_local_rank_and_nothing_else(args, expected):
    assert macros.substitute(args, "3") == expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"local_world_size": 0}, "at least one worker"),
        ({"monitor_interval": 0}, "above 0 up to"),
        ({"max_restarts": -1}, "cannot be negative"),
        ({"entrypoint": None}, "needs an entrypoint"),
    ],
)
def test_a_spec_is_checked(change, message):
    good = {
        "role": "trainer",
        "local_world_size": 1,
        "rdzv_handler": FakeRendezvous(),
        "entrypoint": "python",
    }
    WorkerSpec(**good)
    with pytest.raises(UsageError, match=message):
        WorkerSpec(**{**good, **change})


def test_the_older_name_of_the_entrypoint_still_works():
    def train():
        """Do nothing."""

    spec = WorkerSpec("trainer", 1, FakeRendezvous(), fn=train)
    assert spec.entrypoint is train
    assert spec.get_entrypoint_name().endswith("train")
    assert WorkerSpec("t", 1, FakeRendezvous(), entrypoint="/bin/echo").get_entrypoint_name() == (
        "echo"
    )


def test_workers_are_described_once_until_one_changes(group):
    described = group.describe_workers()
    assert group.describe_workers() is described
    group.workers[0].id = 4711
    changed = group.describe_workers()
    assert [worker.pid for worker in changed[:1]] == [4711]
    assert group.describe_workers() is changed
    group.workers = [Worker(local_rank=0, global_rank=5)]
    assert [worker.global_rank for worker in group.describe_workers()] == [5]


def test_the_variables_that_bind_a_worker_are_added(group):
    class Binder:
        def environment(self, local_rank, environ):
            return {"CUDA_VISIBLE_DEVICES": f"{local_rank} of {environ['A']}, {environ['RANK']}"}

    worker = Worker(local_rank=1, global_rank=3)
    env = worker_environment(group, worker, attempt=0, round=0, environ={"A": "a"}, binder=Binder())
    assert env["CUDA_VISIBLE_DEVICES"] == "1 of a, 3"
    assert "A" not in env
