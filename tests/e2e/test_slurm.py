"""A real Slurm of three nodes, and launchers in its jobs, as described in docs/slurm.md.

Skipped if this user may not create namespaces, or Slurm is not installed (Debian's packages
slurmctld, slurmd and slurm-client; openmpi-bin for `mpirun`).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from helpers.engine_clusters import SlurmNodes
from helpers.nodes import WORKER, write_whole
from helpers.waiting import wait_until

pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.slow, pytest.mark.heavy]

PAGE = Path(__file__).parents[2] / "docs/slurm.md"
TIMEOUT = 60.0  # seconds
ON_ALL = ("--nodes=3", "--ntasks-per-node=1")
QUICK = "--rdzv-conf=keep_alive_interval=0.4,keep_alive_max_attempt=8"


class Cluster:
    """A Slurm cluster whose jobs run in `folder`, which has `worker.py`."""

    def __init__(self, nodes, folder, environ):
        self.folder = folder
        self.lose = nodes.lose_node
        (folder / "worker.py").write_text(WORKER)
        self._prefix = nodes.prefix
        self._environ = {
            **environ,
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "LOGLEVEL": "INFO",
        }

    def run(self, *words, **environ):
        """Run a command as a user of the cluster does."""
        return subprocess.run(
            [*self._prefix, *words],
            cwd=self.folder,
            env={**self._environ, **environ},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def submit(self, script, *options):
        """Submit a batch script; return the job."""
        (self.folder / "job.sh").write_text(script)
        done = self.run("sbatch", "--parsable", *options, "--output=job.out", "job.sh")
        assert done.returncode == 0, done.stderr
        return Job(self, done.stdout.strip())


class Job:
    """A batch job that was submitted."""

    def __init__(self, cluster, number):
        self.number = number
        self._cluster = cluster
        self._output = cluster.folder / "job.out"

    @property
    def output(self):
        """Return all of its output."""
        return self._output.read_text() if self._output.exists() else ""

    def said(self, key):
        """Return its workers' lines with this key."""
        lines = [line for line in self.output.splitlines(keepends=True) if line.endswith("}\n")]
        found = [json.loads(line[line.index("{") :]) for line in lines]
        return [facts for facts in found if key in facts]

    def until(self, condition, what):
        """Wait until something has happened."""
        wait_until(condition, lambda: f"{what}\n{self.output}")

    def until_world(self, size, round_=0):
        """Wait for the workers of a world of this size; return them by rank."""

        def workers():
            found = [w for w in self.said("RANK") if int(w["PLAUNCH_ROUND"]) == round_]
            return sorted(found, key=lambda worker: int(worker["RANK"]))

        self.until(lambda: len(workers()) >= size, f"a world of {size} in round {round_}")
        assert [(w["RANK"], w["WORLD_SIZE"]) for w in workers()] == [
            (str(rank), str(size)) for rank in range(size)
        ]
        return workers()

    def tell(self, name, code):
        """Let workers exit; see `WORKER`."""
        write_whole(self._cluster.folder / name, code)

    def end(self):
        """Wait for its end; return the exit code of `srun`."""
        self.until(lambda: "srun ended with" in self.output, "the job is over")
        return int(re.search(r"srun ended with (\d+)", self.output)[1])


@pytest.fixture
def cluster(plaunch, tmp_path):
    """A cluster of three nodes, node01 to node03."""
    with closing(SlurmNodes()) as nodes:
        yield Cluster(nodes, tmp_path, plaunch.environ)


def batch(launch, srun="srun"):
    """A batch script that launches the worker with these words."""
    return f'#!/bin/bash\n{srun} plaunch {launch} worker.py\necho "srun ended with $?"\n'


def test_a_sweep_is_one_job_only_on_request(cluster):
    (cluster.folder / "exit").write_text("0")
    words = ["srun", *ON_ALL, "plaunch"]
    # A launch that succeeds within a second logs nothing.
    alone = cluster.run(*words, "--no-python", "sh", "-c", "sleep 1.1; exec python worker.py")
    assert alone.returncode == 0, alone.stderr
    told = [json.loads(line) for line in alone.stdout.splitlines()]
    assert [(w["RANK"], w["WORLD_SIZE"]) for w in told] == [("0", "1")] * 3
    assert {w["host"] for w in told} == {"node01", "node02", "node03"}
    assert alone.stderr.count("srun has started 3 launchers, each running its own job") == 3
    together = cluster.run(*words, "--scheduler=slurm", "worker.py")
    assert together.returncode == 0, together.stderr
    told = [json.loads(line) for line in together.stdout.splitlines()]
    assert sorted((w["RANK"], w["WORLD_SIZE"]) for w in told) == [(str(r), "3") for r in range(3)]
    assert "each running its own job" not in together.stderr


def test_the_batch_script_of_the_page(cluster):
    (script,) = re.findall(r"<!-- file: train.sbatch -->\n```sh\n(.*?)```", PAGE.read_text(), re.S)
    for found, replacement in [
        ("--nodes=4", "--nodes=3"),
        ("--gpus-per-node=8", "--exclusive"),
        ("--cpus-per-task=64", "--cpus-per-task=2"),
        ("--nproc-per-node=gpu", "--nproc-per-node=2"),
        ("train.py", "worker.py"),
    ]:
        assert found in script
        script = script.replace(found, replacement)
    job = cluster.submit(script + 'echo "srun ended with $?"\n')
    workers = job.until_world(6)
    assert [w["host"] for w in workers] == [f"node0{n}" for n in (1, 1, 2, 2, 3, 3)]
    job.tell("exit", 0)
    assert job.end() == 0


def test_a_batch_script_without_srun_uses_one_node_with_a_warning(cluster):
    job = cluster.submit(batch("", srun=""), *ON_ALL)
    job.until(lambda: "has 3 nodes, but this launcher uses only one" in job.output, "the advice")
    job.tell("exit", 0)
    assert job.end() == 0
    assert [(w["host"], w["WORLD_SIZE"]) for w in job.said("RANK")] == [("node01", "1")]


def test_a_requeued_job_is_the_same_job_in_another_run(cluster):
    job = cluster.submit(
        batch("--scheduler=slurm"), "--nodes=2", "--ntasks-per-node=1", "--requeue"
    )
    before = job.until_world(2)
    assert cluster.run("scontrol", "requeue", job.number).returncode == 0
    state = ("squeue", "--noheader", "--format=%T", f"--jobs={job.number}")
    job.until(lambda: cluster.run(*state).stdout == "PENDING\n", "it is back in the queue")
    # It would rest for two minutes.
    done = cluster.run("scontrol", "update", f"JobId={job.number}", "StartTime=now")
    assert done.returncode == 0, done.stderr
    restarted = f"slurm-{job.number}.0-restart-1"
    job.until(
        lambda: [w["TORCHELASTIC_RUN_ID"] for w in job.said("RANK")] == [restarted] * 2,
        "it runs once more",
    )
    after = job.until_world(2)
    assert {w["TORCHELASTIC_RUN_ID"] for w in before} == {f"slurm-{job.number}.0"}
    assert {w["PLAUNCH_JOB_ID"] for w in before + after} == {f"slurm-{job.number}.0"}
    job.tell("exit", 0)
    assert job.end() == 0


def test_each_worker_gets_a_warning_of_slurms_once(cluster):
    job = cluster.submit(
        batch("--scheduler=slurm --signal-policy=notify --nproc-per-node=2"),
        *ON_ALL,
    )
    job.until_world(6)
    for times in (1, 2):
        assert cluster.run("scancel", "--signal=USR1", job.number).returncode == 0
        job.until(lambda: len(job.said("notice")) >= 6 * times, f"warning {times}")  # noqa: B023
        # Longer than the window in which signals count as one; the first has taken effect.
        subprocess.run(["sleep", "1.5"], check=True)
        assert sorted(f["rank"] for f in job.said("notice")) == sorted([*"012345"] * times)
    job.tell("exit", 0)
    assert job.end() == 0


def test_the_job_survives_the_loss_of_a_node(cluster):
    job = cluster.submit(
        batch(f"--scheduler=slurm --nnodes=2:3 {QUICK}", "srun --no-kill --kill-on-bad-exit"),
        *ON_ALL,
        "--no-kill",
    )
    job.until_world(3)
    cluster.lose("node03")
    workers = job.until_world(2, round_=1)
    assert [w["host"] for w in workers] == ["node01", "node02"]
    job.tell("exit", 0)
    assert job.end() == 0


def test_a_launcher_that_ends_alone_ends_the_job_with_kill_on_bad_exit(cluster):
    """Without it, the others wait for another node for as long as `join_timeout`."""
    job = cluster.submit(
        # The last node does not have this script.
        "#!/bin/bash\nsrun --kill-on-bad-exit bash -c 'test $SLURM_NODEID = 2 && cd /; "
        'exec plaunch --scheduler=slurm worker.py\'\necho "srun ended with $?"\n',
        *ON_ALL,
    )
    # The code that srun has seen first.
    assert job.end() in (2, 128 + signal.SIGTERM)
    assert "the script 'worker.py' does not exist" in job.output


def test_the_code_of_a_worker_is_that_of_srun(cluster):
    job = cluster.submit(batch("--scheduler=slurm", "srun --kill-on-bad-exit"), *ON_ALL)
    job.until_world(3)
    job.tell("exit.1.0", 7)
    assert job.end() == 7
    assert "rank 1 on node02" in job.output


@pytest.mark.needs("mpirun")
def test_ranks_of_mpirun_in_a_batch_script(cluster):
    (cluster.folder / "exit").write_text("0")
    mpirun = "mpirun --map-by ppr:1:node -x MASTER_ADDR=node01"
    job = cluster.submit(
        f"#!/bin/bash\n{mpirun} bash -c 'plaunch --scheduler=slurm worker.py; true'\n"
        f"{mpirun} plaunch --scheduler=mpi worker.py\necho patiently\n"
        f"{mpirun} --mca odls_base_sigkill_timeout 40 plaunch --scheduler=mpi worker.py\n"
        'echo "srun ended with $?"\n',
        *ON_ALL,
    )
    assert job.end() == 0
    assert job.output.count("error: --scheduler=slurm, but this launcher was started by Open") == 3
    assert "is not a task of a step" not in job.output
    hasty, patient = job.output.split("patiently")
    for output in (hasty, patient):
        assert sorted(re.findall(r'"RANK": "(\d)", "WORLD_SIZE": "3"', output)) == [*"012"]
    assert "mpirun kills its processes 1 s after SIGTERM" in hasty
    assert "kills its processes" not in patient
