"""The real accelerate, torchx, Lightning and Ignite with plaunch, in an environment of their own.

torchx needs an older urllib3 than other packages that are tested here, and all have a dozen
dependencies that nothing else needs, so they are in no extra: the tests create the environment.
Without a package index they are skipped.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from helpers.ports import free_port
from helpers.waiting import wait_until

pytest.importorskip("torch")
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(600)]

WANTED = (
    "accelerate==1.15.0",
    "lightning-fabric==2.6.6",
    "pytorch-ignite==0.5.5",
    "pytorch-lightning==2.6.6",
    "torchx==0.7.0",
)
BOUND = 300.0  # seconds; on a busy machine, imports alone take minutes

WORKER = """\
import json, os, sys
names = "RANK WORLD_SIZE GROUP_RANK PLAUNCH_ROUND TORCHELASTIC_RUN_ID MASTER_ADDR".split()
os.write(1, (json.dumps({name: os.environ.get(name) for name in names}) + "\\n").encode())
sys.exit(int(os.environ.get("CODE", "0")))
"""
COLLECTIVE = """\
import os, torch, torch.distributed as dist
from accelerate import PartialState
state = PartialState(cpu=True)
total = torch.tensor([state.process_index + 1.0])
dist.all_reduce(total)
who = "plaunch" if "PLAUNCH_ROUND" in os.environ else "torchrun"
os.write(1, f"{state.process_index} of {state.num_processes}: {total.item():g}, {who}\\n".encode())
dist.destroy_process_group()
"""
NOTEBOOK = """\
from accelerate import notebook_launcher
def train(word):
    import os
    who = "plaunch" if "PLAUNCH_ROUND" in os.environ else "torchrun"
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    os.write(1, f"{rank} of {size}: {word}, {who}\\n".encode())
if __name__ == "__main__":
    notebook_launcher(train, ("word",), num_processes=2, use_port="0")
"""
# Trainings of one step with a library, whose gradient is the sum over all ranks, or their mean.
STEP = """\
import os, torch
def say(rank, size, total):
    node = os.environ["GROUP_RANK"]
    os.write(1, f"{rank} of {size}, node {node}: {float(total):g}\\n".encode())
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def forward(self, data):
        return (self.weight * data).sum()
def data(rank):
    return torch.tensor([rank + 1.0])
"""
ACCELERATE = """\
from step import *
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = accelerator.prepare(Model())
accelerator.backward(model(data(accelerator.process_index)))
gradient = accelerator.unwrap_model(model).weight.grad
say(accelerator.process_index, accelerator.num_processes, gradient * accelerator.num_processes)
accelerator.end_training()
"""
FABRIC = """\
from step import *
from lightning_fabric import Fabric
if "LT_CLI_USED" in os.environ:  # fabric run
    fabric = Fabric()
else:
    sizes = [int(os.environ[name]) for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")]
    fabric = Fabric(accelerator="cpu", devices=sizes[0], num_nodes=sizes[1])
    fabric.launch()
model = Model()
wrapped = fabric.setup(model)
fabric.backward(wrapped(data(fabric.global_rank)))
say(fabric.global_rank, fabric.world_size, model.weight.grad * fabric.world_size)
"""
TRAINER = """\
from step import *
import pytorch_lightning as lightning
class Module(lightning.LightningModule, Model):
    def training_step(self, batch):
        return self(data(self.global_rank))
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1)
    def train_dataloader(self):
        return [0]
module = Module()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    use_distributed_sampler=False,
)
trainer.fit(module)
say(trainer.global_rank, trainer.world_size, -module.weight.detach() * trainer.world_size)
"""
IGNITE = """\
from step import *
import ignite.distributed as idist
def train(local_rank):
    model = Model()
    wrapped = idist.auto_model(model)
    wrapped(data(idist.get_rank())).backward()
    say(idist.get_rank(), idist.get_world_size(), model.weight.grad * idist.get_world_size())
with idist.Parallel(backend="gloo") as parallel:
    parallel.run(train)
"""
SCRIPTS = {
    "train": WORKER,
    "sum": COLLECTIVE,
    "notebook": NOTEBOOK,
    "step": STEP,
    "with_accelerate": ACCELERATE,
    "with_fabric": FABRIC,
    "with_trainer": TRAINER,
    "with_ignite": IGNITE,
}


def outer_folders():
    """Return the folders of installed packages, such as plaunch and torch."""
    own = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
    return [
        path
        for path in sys.path
        if path and ("site-packages" in path or not path.startswith(own)) and os.path.isdir(path)
    ]


@pytest.fixture(scope="session")
def python(tmp_path_factory):
    """An interpreter with the callers and all packages of this one."""
    folder = tmp_path_factory.mktemp("callers")
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "outer.pth").write_text("".join(f"{path}\n" for path in outer_folders()))
    words = ["-m", "pip", "install", "-q", "--disable-pip-version-check", *WANTED]
    done = subprocess.run(
        [python, *words], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        pytest.skip(f"{' and '.join(WANTED)} cannot be installed here: {done.stderr[-300:]}")
    return python


@pytest.fixture
def start(python, tmp_path):
    """Start `python -m plaunch_torchrun ...` in a folder with the scripts."""
    for name, text in SCRIPTS.items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "home").mkdir()
    started = []

    def start(*words, module="plaunch_torchrun", **environ):
        out = tmp_path / f"{len(started)}.out"
        with out.open("wb") as file:
            process = subprocess.Popen(
                [python, "-m", module, *words],
                cwd=tmp_path,
                env={
                    **os.environ,
                    "HF_HOME": str(tmp_path / "home"),
                    "HOME": str(tmp_path / "home"),
                    "LOGLEVEL": "WARNING",
                    **environ,
                },
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        process.out = out
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def end(process):
    """Return its exit code, and the output of the launcher and its workers."""
    return process.wait(BOUND), process.out.read_text()


def accelerate(*words):
    common = ["--mixed_precision", "no", "--dynamo_backend", "no", "--multi_gpu"]
    return ["accelerate", "launch", *common, *words]


def facts(text):
    found = [json.loads(line[line.index("{") :]) for line in text.splitlines() if '{"RANK' in line]
    assert all(worker["PLAUNCH_ROUND"] == "0" for worker in found), "not plaunch's workers"
    return sorted(found, key=lambda worker: int(worker["RANK"]))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (accelerate("--num_processes=2", "--num_machines=1", "sum.py"), "3"),
        (["notebook.py"], "word"),  # accelerate's notebook_launcher
    ],
)
def test_accelerate_on_one_machine(start, words, shown):
    code, text = end(start(*words))
    assert code == 0, text
    said = sorted(line for line in text.splitlines() if " of " in line)
    assert said == [f"0 of 2: {shown}, plaunch", f"1 of 2: {shown}, plaunch"], text


def test_a_failure_under_accelerate(start):
    words = accelerate("--num_processes=2", "--num_machines=1", "train.py")
    code, text = end(start(*words, CODE="17"))
    assert code == 17, text
    assert re.search(r"rank \d on \S+ failed after ", text)


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_accelerate_on_two_machines(start, backend):
    port = free_port()
    machines = []
    for rank in (0, 1):
        machines.append(
            start(
                *accelerate(
                    "--num_processes=4",
                    "--num_machines=2",
                    f"--machine_rank={rank}",
                    "--main_process_ip=127.0.0.1",
                    f"--main_process_port={port}",
                    f"--rdzv_backend={backend}",
                    "train.py",
                )
            )
        )
        if (rank, backend) == (0, "c10d"):
            # accelerate rejects the port on machine 0 if a program listens there.
            wait_until(lambda: is_taken(port) or machines[0].poll() is not None, "it listens")
    ended = [end(machine) for machine in machines]
    assert [code for code, _ in ended] == [0, 0], ended
    workers = facts("\n".join(text for _, text in ended))
    assert [worker["RANK"] for worker in workers] == ["0", "1", "2", "3"]
    assert {worker["WORLD_SIZE"] for worker in workers} == {"4"}
    assert "--master-addr is not" not in ended[0][1]


# All of these are one command for two nodes, with one worker on each if the caller permits it.
ON_NODES = {
    "accelerate": (accelerate("--num_machines=1", "--num_processes=2", "with_accelerate.py"), 2),
    "fabric": (["fabric", "run", "--accelerator=cpu", "--num-nodes=2", "with_fabric.py"], 1),
}
SCRIPTS_ON_NODES = ("with_accelerate.py", "with_fabric.py", "with_trainer.py", "with_ignite.py")


def check_steps(text, per_node):
    """Check that all ranks of both nodes have trained together."""
    size = 2 * per_node
    total = sum(range(1, size + 1))
    said = re.findall(r"(?:^|\] )(\d+ of \d+, node \d+: \S+)$", text, re.MULTILINE)
    wanted = [f"{rank} of {size}, node {rank // per_node}: {total}" for rank in range(size)]
    assert sorted(said) == wanted, text


@pytest.mark.parametrize("caller", ON_NODES)
def test_a_caller_on_the_nodes_of_an_engine(start, caller):
    words, per_node = ON_NODES[caller]
    code, text = end(start(*words, PET_ON="local:2"))
    assert code == 0, text
    check_steps(text, per_node)


@pytest.mark.parametrize("script", SCRIPTS_ON_NODES)
def test_a_script_with_a_library_on_the_nodes_of_an_engine(start, script):
    code, text = end(start("--on=local:2", script, module="plaunch"))
    assert code == 0, text
    check_steps(text, 1)


def test_a_failure_under_accelerate_on_the_nodes_of_an_engine(start):
    words = accelerate("--num_processes=2", "--num_machines=1", "train.py")
    code, text = end(start(*words, PET_ON="local:2", CODE="17"))
    assert code == 17, text
    assert len(re.findall(r"^plaunch: rank \d on \S+ failed after ", text, re.MULTILINE)) == 1, text


def test_accelerate_that_does_not_use_torchrun_is_reported(start):
    words = ["accelerate", "launch", "--cpu", "--num_processes=1", "train.py"]
    _, text = end(start(*words, PET_ON="local:2"))
    assert "PET_ON=local:2 had no effect: accelerate has not called torchrun" in text


def is_taken(port):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False


def test_torchx_starts_the_nodes_itself(start):
    words = ["run", "-s", "local_cwd", "dist.ddp", "-j", "2x1", "--script", "sum.py"]
    code, text = end(start("torchx", *words, PET_ON="local:2"))
    assert code == 0, text
    assert len(re.findall(r"\d of 2: 3, plaunch", text)) == 2, text
    assert "variable PET_ON has an effect only under python -m plaunch_torchrun" in text
    assert "PET_ON=local:2 had no effect: torchx has not called torchrun" in text


@pytest.mark.parametrize("shape", ["1x2", "2x1"])
def test_torchx(start, shape):
    # The nodes of local_cwd are processes on one machine; their endpoint is localhost.
    words = ["run", "-s", "local_cwd", "dist.ddp", "-j", shape, "--script", "train.py"]
    code, text = end(start("torchx", *words))
    assert code == 0, text
    workers = facts(text)
    assert [worker["RANK"] for worker in workers] == ["0", "1"], text
    assert len({worker["TORCHELASTIC_RUN_ID"] for worker in workers}) == 1


def test_torchx_reports_a_failed_job(start):
    words = ["run", "-s", "local_cwd", "dist.ddp", "-j", "1x1", "--script", "train.py"]
    code, text = end(start("torchx", *words, "--env", "CODE=17"))
    assert code != 0, text
    assert "exit code 17" in text


def test_the_environment_is_separate(python):
    """Other versions of the callers' dependencies do not affect the tests' own environment."""
    where = subprocess.run(
        [python, "-c", "import urllib3; print(urllib3.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(where.stdout.strip()).is_relative_to(Path(python).parents[1])
