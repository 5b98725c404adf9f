"""The libraries, and what is run with each."""

from __future__ import annotations

from dataclasses import dataclass

from scenarios import OTHER, PORT, Scenario, steps

_FAILURE = {"code": 17, "environ": {"CODE": "17"}, "says": {r"rank \d on \S+ failed after ": 1}}
_DEEPSPEED = {"DS_ACCELERATOR": "cpu"}
_RECIPE = ("with_torchtune.py", "--config", "torchtune.yaml")
_TWO_NODES = {"expected": steps(2, 1), "only_plaunch": True}


@dataclass(frozen=True)
class Library:
    """A library, and the environment for it.

    Args:
        name: for the command line and the table.
        requirements: what pip installs besides torch and plaunch.
        scenarios: what is run with it.
        freed: packages that it needs in another version than `constraints.txt` has.
        prepare: Python code that is run once in a new environment.
    """

    name: str
    requirements: tuple[str, ...]
    scenarios: tuple[Scenario, ...]
    freed: tuple[str, ...] = ()
    prepare: str = ""

    @property
    def versions(self) -> str:
        """What pip installs, for the table."""
        return ", ".join(requirement.replace("==", " ") for requirement in self.requirements)


def _accelerate(*words: str) -> tuple[str, ...]:
    common = ("--mixed_precision=no", "--dynamo_backend=no", "--multi_gpu")
    return ("accelerate", "launch", *common, *words)


def _accelerate_on_two_machines(backend: str) -> Scenario:
    return Scenario(
        f"`accelerate launch` on each of two machines, `--rdzv_backend={backend}`",
        tuple(
            _accelerate(
                *("--num_processes=4", "--num_machines=2", f"--machine_rank={rank}"),
                *("--main_process_ip=127.0.0.1", f"--main_process_port={PORT}"),
                *(f"--rdzv_backend={backend}", "with_accelerate.py"),
            )
            for rank in (0, 1)
        ),
        steps(4, 2),
        says={"--master-addr is not": 0},
    )


def _torchx(shape: str, *words: str) -> tuple[str, ...]:
    return ("torchx", "run", "-s", "local_cwd", "dist.ddp", "-j", shape, "--script", *words)


TORCH = Library(
    "torch",
    ("torch==2.13.0",),
    (
        Scenario(
            "`torchrun`",
            (("torchrun", "--nproc-per-node=2", "without_library.py"),),
            steps(),
        ),
        Scenario(
            "`torchrun` on each of two machines",
            tuple(
                (
                    *("torchrun", "--nnodes=2", "--nproc-per-node=1", f"--node-rank={rank}"),
                    *("--master-addr=127.0.0.1", f"--master-port={PORT}", "without_library.py"),
                )
                for rank in (0, 1)
            ),
            steps(2, 1),
        ),
        Scenario(
            "`torchrun` with a script that fails",
            (("torchrun", "--nproc-per-node=2", "without_training.py"),),
            **_FAILURE,
        ),
    ),
)
ACCELERATE = Library(
    "accelerate",
    ("accelerate==1.15.0",),
    (
        Scenario(
            "`accelerate launch`",
            (_accelerate("--num_processes=2", "--num_machines=1", "with_accelerate.py"),),
            steps(),
        ),
        Scenario(
            "`accelerate launch` with a script that fails",
            (_accelerate("--num_processes=2", "--num_machines=1", "without_training.py"),),
            **_FAILURE,
        ),
        _accelerate_on_two_machines("static"),
        _accelerate_on_two_machines("c10d"),
        Scenario(
            "`accelerate launch` with `PET_ON=local:2`",
            (_accelerate("--num_processes=2", "--num_machines=1", "with_accelerate.py"),),
            steps(4, 2),
            environ={"PET_ON": "local:2"},
            only_plaunch=True,
        ),
        Scenario(
            "`accelerate launch` with `PET_ON=local:2` and a script that fails",
            (_accelerate("--num_processes=2", "--num_machines=1", "without_training.py"),),
            code=17,
            environ={"PET_ON": "local:2", "CODE": "17"},
            says={r"^plaunch: rank \d on \S+ failed after ": 1},
            only_plaunch=True,
        ),
        Scenario(
            "`accelerate launch` of one process with `PET_ON=local:2`: it does not call torchrun",
            (("accelerate", "launch", "--cpu", "--num_processes=1", "without_torchrun.py"),),
            steps(1, launcher=OTHER),
            environ={"PET_ON": "local:2"},
            says={r"PET_ON=local:2 had no effect: \S*accelerate has not called torchrun": 1},
            only_plaunch=True,
        ),
        Scenario("`notebook_launcher`", (("with_notebook_launcher.py",),), steps()),
        Scenario(
            "`plaunch --on=local:2` with `Accelerator`",
            (("plaunch", "--on=local:2", "with_accelerate.py"),),
            **_TWO_NODES,
        ),
    ),
)
TORCHX = Library(
    "torchx",
    ("torchx==0.7.0",),
    (
        Scenario(
            "`torchx run -s local_cwd dist.ddp -j 1x2`",
            (_torchx("1x2", "without_library.py"),),
            steps(),
        ),
        Scenario(
            "`torchx run -s local_cwd dist.ddp -j 2x1`",
            (_torchx("2x1", "without_library.py"),),
            steps(2, 1),
        ),
        Scenario(
            "`torchx run -s local_cwd dist.ddp -j 1x1` with a script that fails",
            (_torchx("1x1", "without_training.py", "--env", "CODE=17"),),
            code=1,
            says={r"failed after \S+ s: exit code 17$": 1},
        ),
        Scenario(
            "`torchx run -s local_cwd dist.ddp -j 2x1` with `PET_ON=local:2`: it has no effect",
            (_torchx("2x1", "without_library.py"),),
            steps(2, 1),
            environ={"PET_ON": "local:2"},
            says={
                # Each replica is a launch of its own.
                "variable PET_ON has an effect only under python -m plaunch_torchrun": 2,
                r"PET_ON=local:2 had no effect: \S*torchx has not called torchrun": 1,
            },
            only_plaunch=True,
        ),
    ),
    freed=("urllib3",),
)
LIGHTNING = Library(
    "lightning",
    ("pytorch-lightning==2.6.6", "lightning-fabric==2.6.6", "click==8.5.1"),  # fabric run has it
    (
        Scenario(
            "`fabric run --devices=2`",
            (("fabric", "run", "--accelerator=cpu", "--devices=2", "with_fabric.py"),),
            steps(),
        ),
        Scenario(
            "`fabric run --num-nodes=2` with `PET_ON=local:2`",
            (("fabric", "run", "--accelerator=cpu", "--num-nodes=2", "with_fabric.py"),),
            environ={"PET_ON": "local:2"},
            **_TWO_NODES,
        ),
        Scenario(
            "`plaunch` with the `Trainer`",
            (("plaunch", "--nproc-per-node=2", "with_lightning.py"),),
            steps(),
        ),
        Scenario(
            "`plaunch --on=local:2` with `Fabric`",
            (("plaunch", "--on=local:2", "with_fabric.py"),),
            **_TWO_NODES,
        ),
        Scenario(
            "`plaunch --on=local:2` with the `Trainer`",
            (("plaunch", "--on=local:2", "with_lightning.py"),),
            **_TWO_NODES,
        ),
    ),
)
TRANSFORMERS = Library(
    "transformers",
    ("transformers==5.24.0", "accelerate==1.15.0"),
    (
        Scenario(
            "`plaunch` with the `Trainer`",
            (("plaunch", "--nproc-per-node=2", "with_transformers.py"),),
            steps(),
        ),
        Scenario(
            "`accelerate launch` with the `Trainer`",
            (_accelerate("--num_processes=2", "--num_machines=1", "with_transformers.py"),),
            steps(),
        ),
        Scenario(
            "`plaunch --on=local:2` with the `Trainer`",
            (("plaunch", "--on=local:2", "with_transformers.py"),),
            **_TWO_NODES,
        ),
    ),
)
IGNITE = Library(
    "ignite",
    ("pytorch-ignite==0.5.5",),
    (
        Scenario(
            "`plaunch` with `idist.Parallel`",
            (("plaunch", "--nproc-per-node=2", "with_ignite.py"),),
            steps(),
        ),
        Scenario(
            "`plaunch --on=local:2` with `idist.Parallel`",
            (("plaunch", "--on=local:2", "with_ignite.py"),),
            **_TWO_NODES,
        ),
    ),
)
DEEPSPEED = Library(
    "deepspeed",
    ("deepspeed==0.19.8", "accelerate==1.15.0"),
    (
        Scenario(
            "`plaunch` with `deepspeed.initialize`",
            (("plaunch", "--nproc-per-node=2", "with_deepspeed.py"),),
            steps(),
            environ=_DEEPSPEED,
        ),
        Scenario(
            "`plaunch --on=local:2` with `deepspeed.initialize`",
            (("plaunch", "--on=local:2", "with_deepspeed.py"),),
            environ=_DEEPSPEED,
            **_TWO_NODES,
        ),
        Scenario(
            "`deepspeed`: its launcher starts the workers, without torchrun or plaunch",
            (
                (
                    *("deepspeed", "--num_accelerators=2", f"--master_port={PORT}"),
                    "with_deepspeed.py",
                ),
            ),
            steps(launcher=OTHER),
            environ=_DEEPSPEED,
        ),
        Scenario(
            "`accelerate launch --use_deepspeed`",
            (
                (
                    *("accelerate", "launch", "--use_deepspeed", "--num_processes=2"),
                    *("--num_machines=1", "--mixed_precision=no", "--dynamo_backend=no"),
                    "with_deepspeed.py",
                ),
            ),
            steps(),
            environ=_DEEPSPEED,
        ),
    ),
    # Otherwise the first workers compile this, for a minute or more.
    prepare=(
        "from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder; ShareMemCommBuilder().load()"
    ),
)
TORCHTUNE = Library(
    "torchtune",
    ("torchtune==0.6.1", "torchao==0.9.0"),
    (
        Scenario(
            "`tune run` with a recipe",
            (("tune", "run", "--nproc-per-node=2", *_RECIPE),),
            steps(),
        ),
        Scenario(
            "`tune run --on=local:2` with a recipe",
            (("tune", "run", "--on=local:2", "--nproc-per-node=1", *_RECIPE),),
            **_TWO_NODES,
        ),
    ),
)
LIBRARIES = (*(TORCH, ACCELERATE, TORCHX, LIGHTNING, TRANSFORMERS, IGNITE, DEEPSPEED, TORCHTUNE),)
