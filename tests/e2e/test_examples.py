"""The training example learns, survives a killed worker, and also runs under torchrun.

The commands of docs/elastic-training.md, which are tested, include a job that resumes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from helpers.programs import run_python

TRAIN = str(Path(__file__).parents[2] / "examples/train_ddp.py")
LAUNCHERS = {"plaunch": "plaunch", "torchrun": "torch.distributed.run"}
TIMEOUT = 90.0  # seconds for one training; importing torch in workers takes long
WITH_TORCHRUN_IF_ASKED = ["plaunch", pytest.param("torchrun", marks=pytest.mark.exhaustive)]

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


class Training:
    """A launch of the example with two workers, and its output so far."""

    def __init__(self, plaunch, *argv, **settings):
        self.errors = plaunch.folder / "stderr.txt"
        self.lines = []
        with self.errors.open("w") as errors:
            streams = {"stdout": subprocess.PIPE, "stderr": errors, "text": True}
            self.launcher = plaunch.popen("--nproc-per-node=2", *argv, **settings, **streams)

    def read_until(self, text):
        """Read lines up to the first one that contains `text`, and return that one."""
        for line in self.launcher.stdout:
            self.lines.append(line.rstrip())
            if text in line:
                return self.lines[-1]
        pytest.fail(f"{text!r} was never printed: {self.lines}\n{self.errors.read_text()}")

    def finish(self):
        """Read the rest, require success, and return the accuracy of the last line."""
        self.lines += [line.rstrip() for line in self.launcher.stdout]
        assert self.launcher.wait() == 0, self.errors.read_text()
        return float(re.fullmatch(r"done: \d+ epochs, test accuracy (.*)%", self.lines[-1])[1])

    def losses(self):
        """The loss that was printed last for each epoch."""
        found = (re.match(r"epoch +(\d+)/\d+  loss (\S+)", line) for line in self.lines)
        return {int(match[1]): match[2] for match in found if match}

    def pid_of_rank(self, rank):
        """The process id of a worker; the launcher's children are searched for its variable."""
        for children in Path(f"/proc/{self.launcher.pid}/task").glob("*/children"):
            for pid in children.read_text().split():
                variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                if f"RANK={rank}".encode() in variables:
                    return int(pid)
        pytest.fail(f"no child of the launcher has RANK={rank}")


@pytest.fixture
def train(plaunch):
    """Start trainings in one folder; running ones are killed at the end of the test."""
    trainings = []

    def start(launcher, *argv, **environ):
        if launcher == "torchrun":
            # Else the workers of a second attempt find the first one's addresses in its store and
            # may hang: torch 2.13 keeps one store for all attempts.
            environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        training = Training(plaunch, *argv, module=LAUNCHERS[launcher], environ=environ)
        trainings.append(training)
        return training

    yield start
    for training in trainings:
        training.launcher.kill()
        training.launcher.stdout.close()
        training.launcher.wait()


def check_learning(training):
    """Wait for five epochs, each of which improves the network."""
    assert training.finish() > 90
    assert training.lines[0] == "2 workers on cpu, 1437 images, from the beginning"
    assert len(training.lines) == 1 + 5 + 1
    losses = [float(loss) for loss in training.losses().values()]
    assert losses == sorted(losses, reverse=True)


@pytest.mark.exhaustive
@pytest.mark.timeout(TIMEOUT)
def test_two_workers_recognise_nine_digits_in_ten_with_torchrun(train):
    check_learning(train("torchrun", TRAIN, "--epochs=5"))


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("launcher", WITH_TORCHRUN_IF_ASKED)
def test_a_killed_worker_costs_at_most_an_epoch(train, launcher):
    training = train(launcher, "--max-restarts=1", TRAIN, "--epochs=60")
    training.read_until("epoch   5/60")
    os.kill(training.pid_of_rank(1), signal.SIGKILL)
    again = training.read_until("continuing after epoch")
    before = max(training.losses())
    assert before < 60, "the training ended before the worker was killed"
    assert before - 1 <= int(again.rpartition(" ")[2]) <= before
    assert training.finish() > 90
    assert sorted(training.losses()) == list(range(1, 61))


@pytest.mark.timeout(3 * TIMEOUT)
def test_two_workers_recognise_nine_digits_in_ten_and_only_a_requeued_job_continues(train):
    slurm = {"SLURM_JOB_NUM_NODES": "1", "PET_PRELOAD": "torch"}
    whole = train("plaunch", "--scheduler=slurm", TRAIN, "--epochs=5", **slurm, SLURM_JOB_ID="7")
    check_learning(whole)

    def other(epochs, **more):
        words = ["--scheduler=slurm", TRAIN, f"--epochs={epochs}"]
        training = train("plaunch", *words, **slurm, SLURM_JOB_ID="8", **more)
        training.finish()
        return training

    assert other(1).lines[0].endswith("from the beginning")
    requeued = other(2, SLURM_RESTART_COUNT="1")
    assert requeued.lines[0].endswith("continuing after epoch 1")
    # It continues as without the interruption.
    assert requeued.losses() == {2: whole.losses()[2]}


def test_without_a_launcher_the_error_has_the_fix(plaunch):
    done = run_python(TRAIN, cwd=plaunch.folder, env=plaunch.environ, timeout=TIMEOUT)
    assert done.returncode == 2
    assert "started by plaunch or torchrun" in done.stderr
